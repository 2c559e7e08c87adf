from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import Configuration, Configurations
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.domain.prediction import Predictions
from planner.domain.request import Dataset, Problem, SpaceRequest
from planner.errors import ParameterError, UsageError
from planner.search.explain import label, whys, whys_nearest, whys_pareto
from planner.search.ranking import Order, PricedPlans, order_of, rounded

ORDER = Order("epoch-time", 64, has_dataset=True)
FIRST = {"epoch_s": 100.0, "staleness_mean": 3.0, "mini_batch_mean": 64.0, "memory_bytes": 2.0**30}


def plans(*rows: tuple[Configuration, dict[str, float]]) -> PricedPlans:
    """Return plans that are alike but for what is given."""
    values = [FIRST | {"samples_per_s": 1e4 / (FIRST | row)["epoch_s"]} | row for _, row in rows]
    columns = {name: np.array([row.get(name, math.nan) for row in values]) for name in Predictions.__dataclass_fields__}
    return PricedPlans(Configurations.of([c for c, _ in rows]), Predictions(**columns))


def problem(price: float | None, dataset: Dataset | None = None) -> Problem:
    device = Accelerator("card", "gpu", 1e9, 1e9, {"fp32": 1e12})
    network = Network("tiny", (1,), (Layer("loss", "loss", ("input",)),))
    return Problem(network, dataset, Cluster("pair", 2, Node(1, device), usd_per_gpu_hour=price), ())


@given(st.floats(1e-250, 1e250) | st.floats(-1e250, -1e-250))
def test_rounding_keeps_nine_significant_digits(value: float) -> None:
    one = rounded(np.array([value]))[0]
    assert one == pytest.approx(float(f"{value:.8e}"), rel=1e-15)
    assert abs(one / value - 1) <= 5.0000001e-9


def test_rounding_joins_noise_and_leaves_the_rest() -> None:
    noise = np.array([0.1 + 0.2, 0.3, 0.6 / 0.2, 3.0, 9.99999999999, 10.0, 1e-4, 9.9999999999e-5])
    first, second = rounded(noise)[::2], rounded(noise)[1::2]
    np.testing.assert_array_equal(first, second)
    assert rounded(np.array([1.00000001, 1.00000002])).tolist() == [1.00000001, 1.00000002]
    np.testing.assert_array_equal(rounded(np.array([0.0, np.inf, np.nan])), [0.0, np.inf, np.nan])


A, B = Configuration(2, 4, 8), Configuration(1, 4, 16)


@pytest.mark.parametrize(
    ("better", "worse", "sentence"),
    [
        (
            (A, {"epoch_s": 99.0}),
            (B, {}),
            "the next, 1 node x 4 GPUs, sub-batch 16, fp32, synchronous, is 1.0% slower",
        ),
        ((B, {}), (A, {"epoch_s": 100 - 1e-8}), "fewer GPUs (4 against 8)"),
        ((A, {"staleness_mean": 2.0}), (A, {}), "smaller staleness (2 against 3)"),
        ((A, {}), (A, {"mini_batch_mean": 70.0}), "nearer the target (0 samples against 6 samples)"),
        ((A, {"memory_bytes": 2.0**29}), (A, {}), "larger memory margin (512 MiB used against 1 GiB used)"),
        ((A, {}), (replace(A, nodes=4, gpus_per_node=2), {}), "earlier in configuration order"),
    ],
)
def test_each_column_decides_when_those_before_are_equal(better: Any, worse: Any, sentence: str) -> None:
    for rows in ((better, worse), (worse, better)):
        best = ORDER.best(plans(*rows), 2)
        assert best.configurations.one(0) == better[0]
        assert whys(ORDER, best, "2 plans", 2)[0].endswith(sentence)


def test_later_plans_say_how_far_they_are_and_ties_are_said() -> None:
    best = ORDER.best(plans((B, {}), (A, {}), (A, {"epoch_s": 150.0})), 3)
    first, second, third = whys(ORDER, best, "7 plans", 3)
    assert first.startswith("shortest epoch of 7 plans: 100.0 s; equal to 9 digits to 2 nodes x 4 GPUs, sub-batch 8")
    assert second == "equal to 9 digits to plan 1, more GPUs (8 against 4)"
    assert third == "50% slower than plan 1"


def test_plans_on_cpus_are_called_so() -> None:
    of_cpus = replace(
        problem(None), cluster=Cluster("pair", 2, Node(4, Accelerator("chip", "cpu", 1e9, 1e9, {"fp32": 1e12})))
    )
    order = order_of(of_cpus, SpaceRequest(64))
    assert order_of(problem(None), SpaceRequest(64)).device == "GPU"
    best = order.best(plans((B, {"samples_per_s": 20.0}), (A, {"samples_per_s": 10.0})), 2)
    assert "; the next, 2 nodes x 4 CPUs, sub-batch 8, " in whys(order, best, "2 plans", 2)[0]
    tied = order.best(plans((A, {}), (B, {})), 2)
    assert [sentence.count("GPU") for sentence in whys(order, tied, "2 plans", 2)] == [0, 0]
    assert [", 4 CPUs, " in sentence for sentence in whys_pareto(order, tied)] == [True, False]


def test_a_single_plan_is_compared_with_none() -> None:
    assert whys(ORDER, plans((A, {})), "1 plan", 5) == ["shortest epoch of 1 plan: 100.0 s"]


def test_plans_without_a_price_come_last() -> None:
    best = ORDER.best(plans((A, {"epoch_s": math.nan}), (B, {}), (A, {"epoch_s": math.nan})), 2)
    assert best.configurations.one(0) == B
    assert best.size == 2


@given(st.permutations(range(8)), st.integers(1, 8))
def test_best_is_the_head_of_the_sorted_whole_in_any_order_of_input(
    priced: Callable[[list[Configuration]], PricedPlans], shuffle: list[int], keep: int
) -> None:
    records = [Configuration(n, 2, s, 1, p, "async") for n in (1, 2) for s in (3, 5) for p in ("fp32", "fp16")]
    whole = ORDER.best(priced(records), 8)
    shuffled = ORDER.best(priced(records).take(np.array(shuffle)), keep)
    assert [shuffled.configurations.one(i) for i in range(keep)] == [whole.configurations.one(i) for i in range(keep)]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_values_that_rounding_makes_equal_are_all_compared(sign: float) -> None:
    """A is first by its memory, though its value is larger by less than nine digits tell."""
    rows = plans((A, {"epoch_s": 100 + 1e-8}), (A, {"memory_bytes": 2.0**31}), (A, {"epoch_s": 200.0}))
    for order in (ORDER, replace(ORDER, leading=lambda some: sign * some.predictions.epoch_s)):
        first = order.best(rows, 1).predictions
        expected = 200.0 if order is not ORDER and sign < 0 else 100 + 1e-8
        assert first.epoch_s.tolist() == [expected]
    fewest = replace(ORDER, leading=lambda some: np.full(some.size, sign))
    assert fewest.best(rows, 1).predictions.epoch_s.tolist() == [100 + 1e-8]


def test_cost_is_epoch_time_by_gpus_by_price() -> None:
    order = order_of(problem(2.5, Dataset("d", 10_000, 1.0)), SpaceRequest(64).changed(objective="cost"))
    best = order.best(plans((A, {"epoch_s": 3600.0}), (B, {"epoch_s": 7000.0})), 2)
    assert best.configurations.one(0) == B  # 4 GPUs x 7000 s cost less than 8 GPUs x 3600 s
    assert order.values(best).tolist() == pytest.approx([4 * 7000 / 3600 * 2.5, 8 * 2.5])
    assert whys(order, best, "2 plans", 2)[0].startswith("cheapest epoch of 2 plans: 19.44 USD; the next,")


def test_without_a_data_set_samples_per_second_decide() -> None:
    order = order_of(problem(None), SpaceRequest(64))
    best = order.best(plans((A, {"samples_per_s": 10.0, "epoch_s": math.nan}), (B, {"samples_per_s": 20.0})), 2)
    assert best.configurations.one(0) == B
    assert whys(order, best, "2 plans", 2)[0].startswith(
        "most samples per second of 2 plans: 20.00 samples/s; the next,"
    )


def test_cost_needs_a_price() -> None:
    with pytest.raises(UsageError, match="usd_per_gpu_hour"):
        order_of(problem(None), SpaceRequest(64).changed(objective="cost"))


def test_time_to_accuracy_is_refused_and_said_to_be_missing() -> None:
    with pytest.raises(UsageError, match="not supported yet"):
        order_of(problem(1.0), SpaceRequest(64).changed(objective="time-to-accuracy"))


def test_unknown_objective_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^objective must be one of epoch-time, gpu-hours, cost"):
        order_of(problem(1.0), SpaceRequest(64).changed(objective="beauty"))


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        (Configuration(1, 1, 2, 1, "fp16", "async"), "1 node x 1 GPU, sub-batch 2, fp16, asynchronous"),
        (Configuration(3, 2, 5, 4), "3 nodes x 2 GPUs, sub-batch 5 x 4 accumulated, fp32, synchronous"),
    ],
)
def test_configurations_are_named_in_a_few_words(configuration: Configuration, words: str) -> None:
    assert label(configuration) == words


def test_nearest_plans_say_on_which_side_and_how_far() -> None:
    near = plans((A, {"mini_batch_mean": 48.0}), (B, {"mini_batch_mean": 80.0}))
    below, above = whys_nearest(ORDER, near, [(64.0, 64.0), (51.2, 76.8)])
    assert below == "nearest below the window 64 to 64: mini-batch 48, 25.00% from the target"
    assert above == "nearest above the window 51.2 to 76.8: mini-batch 80, 25.00% from the target"
