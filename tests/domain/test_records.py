from __future__ import annotations

import math

import numpy as np
import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Link, Node, Storage
from planner.domain.configuration import LARGEST_MINI_BATCH, Configuration, Configurations, Settings
from planner.domain.kernels import KernelCalls
from planner.domain.layers.record import Layer
from planner.domain.messages import Groups
from planner.domain.network import Network
from planner.domain.precision import PRECISIONS, precision_named
from planner.domain.provenance import ConformalScore
from planner.domain.request import Dataset
from planner.domain.samples import Samples
from planner.errors import ParameterError, UnknownNameError

GPU = Accelerator("g", "gpu", 16e9, 9e11, {"fp32": 15e12})


def test_layer_fills_in_defaults_and_refuses_strangers() -> None:
    layer = Layer("c", "convolution", ("input",), {"channels": 8, "kernel": (1, 7), "padding": (0, 3)})
    assert layer.pair("stride") == (1, 1)
    assert layer.pair("kernel") == (1, 7)
    assert layer.integer("groups") == 1
    with pytest.raises(UnknownNameError, match="did you mean 'stride'"):
        Layer("c", "convolution", ("input",), {"channels": 8, "kernel": 3, "strides": 1})
    with pytest.raises(UnknownNameError, match="did you mean 'convolution'"):
        Layer("c", "convolutions", ("input",))


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel": 3},
        {"channels": 0, "kernel": 3},
        {"channels": 8, "kernel": (3, 0)},
        {"channels": 8, "kernel": 3, "padding": -1},
        {"channels": 8, "kernel": 3, "bias": 1},
        {"channels": 8.5, "kernel": 3},
        {"channels": True, "kernel": 3},
    ],
)
def test_layer_refuses_bad_attributes(attributes: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=r"layer c: .* must be"):
        Layer("c", "convolution", ("input",), attributes)  # type: ignore[arg-type]  # wrong on purpose


def test_network_is_a_graph_in_topological_order() -> None:
    first, second = Layer("a", "activation", ("input",)), Layer("b", "add", ("a", "input"))
    assert Network("n", (3, 4, 4), (first, second)).layers == (first, second)
    with pytest.raises(UnknownNameError, match="It must stand before"):
        Network("n", (3, 4, 4), (second, first))
    with pytest.raises(ParameterError, match="unique"):
        Network("n", (3, 4, 4), (first, first))
    with pytest.raises(ParameterError, match="at least one layer"):
        Network("n", (3, 4, 4), ())


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_physical_quantities_are_positive_and_finite(value: float) -> None:
    for make in (
        lambda: Link("nvlink", value, 1e-6),
        lambda: Storage(value),
        lambda: Accelerator("g", "gpu", value, 1.0, {}),
        lambda: Accelerator("g", "gpu", 1.0, 1.0, {"fp32": value}),
        lambda: Dataset("d", 10, value),
    ):
        with pytest.raises(ParameterError, match="must be a finite number"):
            make()


@pytest.mark.parametrize("value", [0, -1, True, 1.5, 10**12])
def test_counts_are_whole_and_sane(value: int) -> None:
    for make in (
        lambda: Configuration(value, 1, 1),
        lambda: Configuration(1, 1, value),
        lambda: Node(value, GPU),
        lambda: Cluster("c", value, Node(1, GPU)),
    ):
        with pytest.raises(ParameterError, match="must be a whole number"):
            make()


def test_asynchronous_plans_do_not_accumulate() -> None:
    with pytest.raises(ParameterError, match="accumulation_steps must be 1 in an asynchronous plan, got 2"):
        Configuration(1, 1, 1, 2, mode="async")


def test_configurations_round_trip_through_arrays() -> None:
    records = [Configuration(2, 4, 8, 3, "fp16"), Configuration(1, 1, 5, 1, "fp32", "async")]
    arrays = Configurations.of(records)
    assert [arrays.one(i) for i in range(arrays.size)] == records
    assert arrays.synchronous_mini_batch.tolist() == [192, 5]
    assert arrays.is_async.tolist() == [False, True]
    assert arrays.take(np.array([1])).one(0) == records[1]


def test_a_mini_batch_larger_than_any_data_set_is_refused() -> None:
    assert Configuration(10**6, 1, 10**9).samples_per_update == LARGEST_MINI_BATCH
    for wrong in ((10**6, 1, 10**9, 2), (64, 8, 10**9, 10**9)):
        with pytest.raises(ParameterError, match="the mini-batch must be at most 1,000,000,000,000,000 samples"):
            Configuration(*wrong)
    with pytest.raises(ParameterError, match="the mini-batch must be at most"):
        Configuration(10**6, 2, 10**9, mode="async")


def test_products_of_counts_do_not_wrap_around() -> None:
    nodes, gpus, sub_batch, steps = np.array([[64, 8, 10**9, 10**9], [10**6, 4096, 10**9, 10**9], [1, 1, 3, 5]]).T
    kinds = np.zeros(3, dtype=np.int64)
    arrays = Configurations(nodes, gpus, sub_batch, steps, kinds, kinds, precisions=("fp32",))
    assert arrays.synchronous_mini_batch.tolist() == [LARGEST_MINI_BATCH + 1, LARGEST_MINI_BATCH + 1, 15]


def test_settings_name_the_allowed_values() -> None:
    known = "wait-free, no-overlap, bucketed, best-fusion, tensor-fusion, parameter-server"
    with pytest.raises(ParameterError, match=f"strategy must be one of {known}, got 'magic'"):
        Settings(strategy="magic")


def test_kernel_calls_know_their_columns() -> None:
    one = np.ones(1, dtype=np.int64)
    with pytest.raises(ParameterError, match="work of gemm must be the columns m, n, k, batch"):
        KernelCalls("gemm", "forward", one, one, {"m": one})


def test_calibration_refuses_two_entries_of_one_key() -> None:
    entry = Entry("kernels", "gemm", "", "fp32", "", "flop.rate", {}, {"flop": 1e-12})
    with pytest.raises(ParameterError, match="entries must be unique"):
        Calibration("c", "g", (entry, entry))


def test_groups_count_ranks() -> None:
    groups = Groups(np.array([2, 4]), np.array([8, 1]), np.array([2.0, 1.0]))
    assert groups.ranks.tolist() == [16, 4]


def test_samples_select_and_join() -> None:
    samples = Samples.from_rows([{"kind": "gemm", "m": 1, "time_s": 1.0}, {"kind": "copy", "time_s": 2.0}], {})
    assert samples.size == 2
    assert np.isnan(samples.number["m"][1])
    part = samples.select(samples.text["kind"] == "copy")
    assert part.time_s.tolist() == [2.0]
    assert part.joined(samples).size == 3


@pytest.mark.parametrize(
    ("peaks", "precision", "expected"),
    [
        ({"fp32": 15.7, "fp16": 125.0, "int8": 62.8}, "fp16", True),  # V100
        ({"fp32": 15.7, "fp16": 125.0, "int8": 62.8}, "int8", False),  # four products a lane
        ({"fp32": 9.3, "fp16": 18.7}, "fp16", False),  # P100: two halves a lane
        ({"fp32": 35.6, "tf32": 35.6, "fp16": 71.0}, "fp16", True),  # RTX 3090: no faster than lanes, but TF32 is none
        ({"fp32": 35.6, "tf32": 35.6, "fp16": 71.0}, "fp32", False),
        ({"fp32": 9.3}, "fp16", False),
    ],
)
def test_matrix_units_are_what_lanes_cannot_do(peaks: dict[str, float], precision: str, *, expected: bool) -> None:
    assert Accelerator("one", "gpu", 1e9, 1e9, peaks).has_matrix_units(precision) == expected


def test_precisions() -> None:
    assert precision_named("int8").measured_only
    assert PRECISIONS["fp16"].master_bytes == 4
    with pytest.raises(UnknownNameError, match="did you mean 'bf16'"):
        precision_named("bf61")


def test_scores_are_of_known_kinds_of_predictions() -> None:
    with pytest.raises(ParameterError, match=r"^conformal must be of kinds one_gpu_measured, .*, got 'two_gpus'"):
        Calibration("c", "any", (), conformal={"two_gpus": ConformalScore(1.0, 0.9, 10, 10)})
