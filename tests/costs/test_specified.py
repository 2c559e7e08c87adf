from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.costs.collectives import all_reduce_s
from planner.costs.features import Work, number
from planner.costs.specified import (
    ASSUMED_BYTES_EFFICIENCY,
    ASSUMED_FLOP_EFFICIENCY,
    ASSUMED_LAUNCH_S,
    ISSUED_SHARE,
    specified_collective,
    specified_copy,
    specified_entry,
    specified_host,
    specified_host_collective,
    specified_storage,
)
from planner.costs.terms import evaluate
from planner.domain.cluster import Accelerator, Cluster, Link, Node, Storage
from planner.domain.kernels import MATRIX_KINDS
from planner.domain.messages import Groups
from planner.errors import CoverageError

GPU = Accelerator("gpu", "gpu", 16e9, 900e9, {"fp32": 15e12, "fp16": 120e12, "int8": 240e12}, 80)
CLUSTER = Cluster(
    "c", 4, Node(8, GPU), Link("nvlink", 100e9, 3e-6), Link("infiniband", 12.5e9, 5e-6), Link("pcie3", 12e9, 1e-5),
    Storage(2e9, shared=True),
)  # fmt: skip


def groups(nodes: int, ranks: int) -> Groups:
    return Groups(np.array([nodes]), np.array([ranks]), np.array([float(ranks)]))


def test_product_is_bound_by_compute_or_by_memory() -> None:
    entry = specified_entry(GPU, "gemm", "", "fp32")
    assert entry is not None
    large, thin = ({"m": 4096, "n": n, "k": 4096, "batch": 1, "itemsize": 4} for n in (4096, 1))
    compute = 2 * 4096**3 / (ASSUMED_FLOP_EFFICIENCY["fp32"] * 15e12)
    memory = 4 * (4096**2 + 2 * 4096) / (ASSUMED_BYTES_EFFICIENCY * 900e9)
    np.testing.assert_allclose(evaluate(entry, large), compute + ASSUMED_LAUNCH_S)
    np.testing.assert_allclose(evaluate(entry, thin), memory + ASSUMED_LAUNCH_S)
    assert entry.origin == "specified"
    assert "assumed: 60% of the peak rate" in entry.notes


def test_a_precision_that_the_device_lacks_is_not_specified() -> None:
    assert specified_entry(GPU, "gemm", "", "bf16") is None


@pytest.mark.parametrize("name", ["k20x", "k40", "p40", "h200-sxm-141gb", "b200-sxm-180gb", "mi250x"])
def test_every_precision_of_a_device_is_specified_and_says_what_was_assumed(name: str) -> None:
    device = catalog.find_accelerator(name)
    precisions, kinds = device.peak_flop_per_s, MATRIX_KINDS
    found = [specified_entry(device, kind, "", precision) for precision in precisions for kind in kinds]
    entries = tuple(one for one in (*found, specified_entry(device, "copy", "", "fp32")) if one is not None)
    assert {entry.precision for entry in entries if entry.kind == "gemm"} == set(device.peak_flop_per_s)
    for entry in entries:
        assert entry.origin == "specified"
        if entry.kind in ("gemm", "convolution"):
            efficiency = number(entry.settings, "flop_efficiency", 0.0)
            assert efficiency >= ASSUMED_FLOP_EFFICIENCY[entry.precision] * ISSUED_SHARE.get(device.architecture, 1.0)
            assert f"assumed: {efficiency:.0%} of the peak rate" in entry.notes


@pytest.mark.parametrize("name", catalog.names("accelerators"))
def test_no_precision_is_slower_than_fp32(name: str) -> None:
    device = catalog.find_accelerator(name)
    large: Work = {"m": 4096.0, "n": 4096.0, "k": 4096.0, "batch": 1.0, "itemsize": 4.0}
    times = {
        precision: float(evaluate(entry, large))
        for precision in device.peak_flop_per_s
        if (entry := specified_entry(device, "gemm", "", precision)) is not None
    }
    assert max(times.values()) == times["fp32"]


def test_a_scheduler_of_kepler_feeds_two_lanes_of_three() -> None:
    entry = specified_entry(replace(GPU, architecture="Kepler"), "gemm", "", "fp32")
    assert entry is not None
    assert entry.settings["flop_efficiency"] == pytest.approx(2 / 3 * ASSUMED_FLOP_EFFICIENCY["fp32"])
    assert "assumed: 40% of the peak rate" in entry.notes


@pytest.mark.parametrize(("peak", "efficiency"), [(15e12, 0.6), (16e12, 0.5625), (20e12, 0.5)])
def test_a_peak_hardly_above_that_of_fp32_is_reached_as_far_as_that(peak: float, efficiency: float) -> None:
    entry = specified_entry(replace(GPU, peak_flop_per_s={"fp32": 15e12, "tf32": peak}), "gemm", "", "tf32")
    assert entry is not None
    assert entry.settings["flop_efficiency"] == pytest.approx(efficiency)


def test_collective_from_links() -> None:
    entry = specified_collective(CLUSTER)
    time = all_reduce_s(entry, np.array([1e9]), groups(1, 8))
    np.testing.assert_allclose(time, 14 * 3e-6 + 2 * 7 / 8 * 1e9 / 100e9)


@pytest.mark.parametrize(("flow", "rate"), [(1.25e9, 1.25e9), (None, 12.5e9), (25e9, 12.5e9)])
def test_messages_between_nodes_are_as_fast_as_one_stream(flow: float | None, rate: float) -> None:
    fast = replace(CLUSTER, inter_node=Link("ethernet", 12.5e9, 5e-6, flow_bytes_per_s=flow))
    for entry in (specified_collective(fast), specified_host_collective(fast)):
        assert entry.coefficients["bytes_between"] == pytest.approx(1 / rate)
        assert ("one stream, 10 Gb/s" in entry.notes) == (rate < 12.5e9)


@pytest.mark.parametrize(("pair", "ratio"), [(None, 1), (12.5e9, 2), (10e9, 2.5), (40e9, 1)])
@pytest.mark.parametrize("nodes", [2, 3])
def test_two_nodes_share_what_a_pair_exchanges(pair: float | None, ratio: float, nodes: int) -> None:
    cluster = replace(CLUSTER, inter_node=Link("ethernet", 12.5e9, 0, pair_bytes_per_s=pair))
    time = all_reduce_s(specified_collective(cluster), np.array([1e9]), groups(nodes, 1))
    one_way = 2 * (nodes - 1) / nodes * 1e9 / 12.5e9
    np.testing.assert_allclose(time, one_way * (ratio if nodes == 2 else 1))


@pytest.mark.parametrize(
    ("direct", "host", "rate"),
    [
        (None, "pcie3", 12.5e9),
        (True, "pcie3", 12.5e9),
        (False, "pcie3", 6e9),  # NVIDIA/nccl #465: 6 of 12.5 GB/s
        (False, "nvlink-c2c", 12e9),
        (False, "", 12.5e9),
    ],
)
def test_bytes_cross_the_host_where_adapters_do_not_reach_gpus(direct: bool | None, host: str, rate: float) -> None:  # noqa: FBT001 - a case
    between = replace(Link("infiniband", 12.5e9, 5e-6), gpu_direct=direct)
    one = replace(CLUSTER, inter_node=between, host=Link(host, 12e9, 1e-5) if host else None)
    assert specified_collective(one).coefficients["bytes_between"] == pytest.approx(1 / rate)
    assert specified_host_collective(one).coefficients["bytes_between"] == pytest.approx(1 / 12.5e9)
    cpus = replace(one, node=replace(one.node, accelerator=replace(GPU, kind="cpu")))
    assert specified_collective(cpus).coefficients["bytes_between"] == pytest.approx(1 / 12.5e9)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_switches_that_add_never_slow_an_all_reduce(inside: bool, between: bool, nodes: int, ranks: int) -> None:  # noqa: FBT001 - cases
    assert CLUSTER.intra_node is not None
    assert CLUSTER.inter_node is not None
    adding = replace(
        CLUSTER,
        intra_node=replace(CLUSTER.intra_node, in_network_reduction=inside),
        inter_node=replace(CLUSTER.inter_node, in_network_reduction=between),
    )
    sizes, group = np.array([0.0, 1e3, 1e6, 1e9]), groups(nodes, ranks)
    before, after = (all_reduce_s(specified_collective(one), sizes, group)[0] for one in (CLUSTER, adding))
    assert (after <= before).all()
    if not (inside or between):
        np.testing.assert_array_equal(after, before)
    if (inside and (nodes, ranks) == (1, 8)) or (between and (nodes, ranks) == (16, 1)):
        assert after[-1] < 0.8 * before[-1]
    if inside and not between and nodes > 1:  # the link between nodes sets the pace
        np.testing.assert_allclose(after[-1], before[-1], rtol=1e-2)


def test_what_eight_gpus_reach_by_switches_that_add() -> None:
    """H200: 270 GB/s of buffers of 8 GiB, by links of 450 GB/s on which rings move 366 (nccl-tests)."""
    link = Link("nvswitch", 366e9, 3e-6, in_network_reduction=True)
    time = all_reduce_s(specified_collective(replace(CLUSTER, intra_node=link)), np.array([2.0**33]), groups(1, 8))
    assert float(2**33 / time[0, 0]) == pytest.approx(270e9, rel=0.01)


def test_link_that_is_not_described_is_refused_only_where_it_is_used() -> None:
    entry = specified_collective(replace(CLUSTER, inter_node=None))
    assert all_reduce_s(entry, np.array([1e6]), groups(1, 8)) > 0
    with pytest.raises(CoverageError, match=r"links\.inter_node"):
        all_reduce_s(entry, np.array([1e6]), groups(2, 8))


def test_copies_and_storage() -> None:
    copy, load = specified_copy(CLUSTER), specified_storage(CLUSTER)
    assert copy is not None
    assert load is not None
    assert evaluate(copy, {"bytes": 12e9}) == pytest.approx(1 + 1e-5)
    assert evaluate(load, {"bytes": 2e9, "nodes": 3}) == pytest.approx(3)
    bare = replace(CLUSTER, host=None, storage=None)
    assert specified_copy(bare) is None
    assert specified_storage(bare) is None
    assert specified_host(bare, "update_gradient", "sgd") is None


def test_update_gradient_copies_out_adds_and_copies_in() -> None:
    entry = specified_host(CLUSTER, "update_gradient", "adam")
    assert entry is not None
    assert evaluate(entry, {"parameters": 1e9}) == pytest.approx(8 / 12 + 1.2)


@pytest.mark.parametrize(("optimizer", "seconds"), [("none", 0.0), ("sgd", 1.2), ("sgd-momentum", 2.0), ("adam", 2.8)])
def test_weights_move_the_bytes_of_their_optimizer(optimizer: str, seconds: float) -> None:
    """8 bytes of weight and 4 of gradient at 10 GB/s, and 8 more for every moment."""
    entry = specified_host(CLUSTER, "update_weights", optimizer)
    assert entry is not None
    assert evaluate(entry, {"parameters": 1e9}) == pytest.approx(seconds)


def test_hosts_reduce_by_message_passing_between_nodes() -> None:
    """One rank on each of 4 nodes: recursive doubling sends fewest messages, Rabenseifner as few bytes as a ring."""
    assert CLUSTER.inter_node is not None
    alpha, beta = CLUSTER.inter_node.latency_s, 1 / CLUSTER.inter_node.bytes_per_s
    entry = specified_host_collective(CLUSTER)
    short, long = all_reduce_s(entry, np.array([8.0, 1e9]), groups(4, 1))[0]
    assert short == pytest.approx(2 * alpha + 2 * 8 * beta)
    assert long == pytest.approx(4 * alpha + 1.5e9 * beta)
    assert "double_binary_tree" not in str(entry.settings["algorithms"])
    with pytest.raises(CoverageError, match=r"links\.inter_node"):
        all_reduce_s(specified_host_collective(replace(CLUSTER, inter_node=None)), np.array([8.0]), groups(2, 1))
