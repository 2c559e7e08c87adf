"""The forward pass as engines fuse it."""

import numpy as np
import pytest

from planner.catalog import find_network
from planner.domain.kernels import FORWARD
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.workload.calls import lower
from planner.workload.fusion import forward_calls, in_epilogues, live_elements
from planner.workload.program import program

NETWORKS = ("resnet50", "vgg16", "googlenet", "alexnet", "inception-v3", "bert-base:sequence=64")


def launched(name: str, *, is_fused: bool) -> dict[str, float]:
    """Return the kernels of a forward pass by kind, without sums in epilogues."""
    network = find_network(name)
    counts: dict[str, float] = {}
    for one in forward_calls(lower(network, np.array([4])), program(network), is_fused=is_fused):
        assert one.direction == FORWARD
        if one.operations is None or np.any(one.operations):
            counts[one.kind] = counts.get(one.kind, 0.0) + float(np.sum(one.count))
    return counts


def test_resnet50_is_57_kernels_of_175() -> None:
    assert launched("resnet50", is_fused=True) == {
        "convolution": 53, "gemm": 1, "max_pool": 1, "average_pool": 1, "softmax": 1,
    }  # fmt: skip
    assert sum(launched("resnet50", is_fused=False).values()) - 1 == 175  # and the bias of the last layer


@pytest.mark.parametrize("name", NETWORKS)
def test_fusing_takes_no_product_away_and_adds_no_kernel(name: str) -> None:
    fused, apart = launched(name, is_fused=True), launched(name, is_fused=False)
    assert sum(fused.values()) < sum(apart.values())
    for kind, count in fused.items():
        assert count <= apart[kind]
    assert all(fused.get(kind) == apart.get(kind) for kind in ("convolution", "gemm", "max_pool", "softmax"))


@pytest.mark.parametrize("is_fused", [False, True])
def test_dropped_samples_and_scales_of_layers_take_nothing_or_what_a_sum_reads(*, is_fused: bool) -> None:
    """A block of ConvNeXt: its products, depthwise convolution, normalisation and GELU; fused, a GELU of a product."""
    of = program(find_network("convnext-t"), merged=False)
    made = forward_calls(lower(of.network, np.array([2]), merged=False), of, is_fused=is_fused)
    at = {layer.name: place for place, layer in enumerate(of.network.layers)}

    def launches(name: str) -> float:
        rows = ((np.broadcast_to(one.count, one.layer.shape), one) for one in made if one.operations is None)
        return float(sum(count[one.layer == at[f"stage1.2.{name}"]].sum() for count, one in rows))

    kinds = {name: launches(name) for name in ("depthwise", "norm", "wide", "gelu", "narrow", "scale", "drop", "add")}
    unfused = {"depthwise": 2, "wide": 2, "narrow": 2}
    assert kinds == dict.fromkeys(kinds, 1) | {"drop": 0} | (
        dict.fromkeys(("gelu", "scale", "add"), 0) if is_fused else unfused
    )


def test_what_another_layer_reads_before_is_no_epilogue() -> None:
    network = Network(
        "two-readers",
        (4, 8, 8),
        (
            Layer("conv", "convolution", ("input",), {"channels": 4, "kernel": 3, "padding": 1}),
            Layer("relu", "activation", ("conv",)),
            Layer("sum", "add", ("conv", "relu")),
        ),
    )
    assert in_epilogues(network) == set()
    assert live_elements(network) == 3 * 4 * 8 * 8


@pytest.mark.parametrize("name", NETWORKS)
def test_live_tensors_are_at_least_the_largest_layer_and_at_most_all(name: str) -> None:
    network = find_network(name)
    of = program(network)
    sizes = [int(np.prod(of.sites[at].output)) for at in of.site]
    assert max(sizes) <= live_elements(network) <= sum(sizes) + int(np.prod(network.input_shape))
