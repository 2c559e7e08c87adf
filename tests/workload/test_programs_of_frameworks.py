"""What a framework does to kernels: transposes, norms in one with activations, and kernels of updates."""

from __future__ import annotations

import numpy as np
import pytest

from planner.domain.kernels import DIRECTIONS, UPDATE, KernelCalls
from planner.domain.layers import LAYER_KINDS
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo import build
from planner.workload.calls import (
    ARITHMETIC,
    BLOCK_ELEMENTS,
    MOST_TENSORS,
    OPERATIONS,
    UPDATE_BYTES,
    casts,
    lower,
    transposes,
    updated_calls,
)
from planner.workload.fusion import fused_calls
from planner.workload.program import program

BATCH = np.array([4])


def of_kind(calls: tuple[KernelCalls, ...], kind: str) -> dict[str, KernelCalls]:
    return {one.direction: one for one in calls if one.kind == kind}


def moved(calls: tuple[KernelCalls, ...], kind: str, direction: str) -> float:
    one = of_kind(calls, kind)[direction]
    return float((one.count * one.work["traffic"]).sum())


def test_transposes_move_inputs_and_outputs_of_convolutions_in_whole_eights() -> None:
    net = NetworkBuilder()
    top = net.convolution("first", "input", 16, 3, padding=1)
    top = net.convolution("second", top, 32, 3, padding=1, stride=2)
    net.convolution("depthwise", top, 32, 3, padding=1, groups=32)
    network = net.network("three", (3, 8, 8), "")
    by_direction = of_kind(lower(network, BATCH), "convolution")
    for calls in by_direction.values():
        found = transposes(calls)
        assert found is not None
        moved_of = dict(zip(found.layer.tolist(), (found.count * found.work["elements"])[0].tolist(), strict=True))
        assert moved_of.pop(1) == 4 * (16 * 8 * 8 + 32 * 4 * 4)  # three channels in, and one a group, are none of eight
        assert set(moved_of.values()) <= {0}
        assert (found.work["traffic"] == 2 * found.work["elements"]).all()


def test_casts_read_what_products_read_once_in_either_layout() -> None:
    """By hand, 4 samples: a linear layer of 32 to 8 features, and a convolution of 16 channels to 32, strided.

    Both are second ones, as nothing is passed back to the input of a network.
    """
    net = NetworkBuilder()
    net.linear("second", net.linear("first", "input", 32), 8)
    products = of_kind(lower(net.network("one", (32,), ""), BATCH), "gemm")
    other = NetworkBuilder()
    other.convolution("second", other.convolution("first", "input", 16, 1), 32, 3, padding=1, stride=2)
    convolutions = of_kind(lower(other.network("two", (3, 8, 8), ""), BATCH), "convolution")

    def cast(by_direction: dict[str, KernelCalls], precision: str) -> list[tuple[int, float]]:
        found = filter(None, (casts(calls, precision) for calls in by_direction.values()))
        return [(int(one.count[-1]), float(one.count[-1] * one.work["fixed_bytes"][0, -1])) for one in found]

    w, x, y = 32 * 8, 4 * 32, 4 * 8
    assert cast(products, "fp8") == [(4, 6 * (w + x)), (2, 6 * y)]
    assert cast(products, "int8") == [(4, 5 * (w + x)), (4, 5 * (w + y))]
    w, x, y = 32 * 16 * 9, 4 * 16 * 8 * 8, 4 * 32 * 4 * 4
    found = cast(convolutions, "int8")
    assert found == [(4, 5 * (w + x)), (4, 5 * (w + y))]


def test_norm_with_activation_and_sum_moves_what_one_kernel_reads_and_writes() -> None:
    """One block of ResNet: norm, activation; norm, sum, activation; the norm of the other branch stays alone."""
    net = NetworkBuilder()
    stem = net.relu("stem.relu", net.convolution_norm("stem", "input", 8, 1))
    first = net.relu("first.relu", net.convolution_norm("first", stem, 8, 1))
    branch = net.convolution_norm("second", first, 8, 1)
    other = net.convolution_norm("other", stem, 8, 1)
    net.relu("last", net.add("add", "sum", (branch, other)))
    network = net.network("block", (8, 4, 4), "")
    elements = 4 * 8 * 4 * 4
    apart = lower(network, BATCH)
    together = fused_calls(apart, program(network), ("norm",), 2)
    assert moved(apart, "batch_norm", "forward") == 4 * 3 * elements
    assert moved(together, "batch_norm", "forward") == (3 + 3 + 4 + 3) * elements
    assert moved(together, "batch_norm", "backward_data") == (5 + 5 + 6 + 5) * elements
    assert moved(together, "activation", "forward") == moved(together, "activation", "backward_data") == 0
    assert moved(together, "add", "forward") == 0
    assert moved(together, "add", "backward_data") == moved(apart, "add", "backward_data") > 0  # gradients that meet
    assert fused_calls(apart, program(network), (), 2) is apart


@pytest.mark.parametrize("optimizer", OPERATIONS)
@pytest.mark.parametrize("update", ["list", "primitive", "foreach", "arithmetic"])
def test_updates_move_their_bytes_in_as_many_kernels_as_operations_and_lists(update: str, optimizer: str) -> None:
    network = build("resnet50", {})
    of = program(network)
    calls = of_kind(lower(network, BATCH, optimizer=optimizer), "update")[UPDATE]
    found = updated_calls(calls, of, update, optimizer)
    in_parts = ARITHMETIC if update == "arithmetic" else OPERATIONS
    operations, per_parameter = in_parts[optimizer] if update != "list" else (1, UPDATE_BYTES[optimizer])
    parameters = sum(site.parameters * count for site, count in of.site_counts())
    assert float((found.count * found.work["fixed_bytes"]).sum()) == pytest.approx(per_parameter * parameters)
    sites = [of.sites[at] for at in of.site.tolist()]
    tensors = sum(len(LAYER_KINDS[one.layer.kind].parameters(one.layer, one.inputs[0])) for one in sites)
    kernels = float(found.count.sum())
    if update in ("primitive", "arithmetic"):
        assert kernels == pytest.approx(operations * tensors)
    else:
        assert operations * tensors / MOST_TENSORS <= kernels * (1 + 1e-9)
        assert kernels <= operations * (tensors / MOST_TENSORS + parameters / BLOCK_ELEMENTS)
    made = found.operations
    assert (made is None) == (update != "arithmetic")
    assert made is None or made.sum() == calls.count.sum()  # the host's learned time of a layer's update, once
    assert updated_calls(calls, of, "layer", optimizer) is calls
    assert set(DIRECTIONS) >= {found.direction}
