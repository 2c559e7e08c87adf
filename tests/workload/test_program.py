"""Programs: made once a network, never mixed up, and no other than the network layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

from planner.domain.arrays import IntArray
from planner.domain.kernels import KernelCalls
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.networks.zoo import build
from planner.workload.calls import lower
from planner.workload.program import Program, program

NETWORKS = ("resnet50", "googlenet", "mobilenet-v2", "gpt:layers=3", "bert:layers=3", "yolov3", "mlp")


def network(channels: int) -> Network:
    return Network("n", (3, 8, 8), (Layer("c", "convolution", (INPUT,), {"channels": channels, "kernel": 3}),))


def built(name: str) -> Network:
    family, _, arguments = name.partition(":")
    return build(family, dict(pair.split("=") for pair in filter(None, arguments.split(","))))


def test_programs_are_made_once_a_network() -> None:
    one = network(4)
    assert program(one) is program(one)
    assert program(network(4)).sites == program(one).sites


def test_networks_that_come_and_go_keep_their_own_programs() -> None:
    """New networks may lie where dropped ones lay."""
    for channels in [*range(1, 40), *range(1, 40)]:
        (site,) = program(network(channels)).sites
        assert site.output == (channels, 6, 6)


def by_segment(
    of: Program, calls: KernelCalls, sub_batch: IntArray
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return count times the sum of the work columns, by segment."""
    shape = (sub_batch.size, calls.layer.size)
    amounts = sum(np.broadcast_to(column, shape) for column in calls.work.values()) * calls.count
    return of.by_segment(amounts.astype(np.float64), calls.layer)[:, of.segment]


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_layers_once_are_no_other_than_every_layer_by_itself(name: str) -> None:
    made, sub_batch = built(name), np.array([3, 8])
    once, each = program(made), program(made, merged=False)
    assert len(each.sites) == len(made.layers) > len(once.sites)
    assert once.slot.tolist() == each.slot.tolist()
    assert once.parameters == each.parameters
    calls = lower(made, sub_batch, optimizer="adam")
    every = lower(made, sub_batch, optimizer="adam", merged=False)
    assert [(one.kind, one.direction) for one in calls] == [(one.kind, one.direction) for one in every]
    for one, other in zip(calls, every, strict=True):
        assert one.count.sum() == other.count.sum()
        np.testing.assert_allclose(by_segment(once, one, sub_batch), by_segment(each, other, sub_batch), rtol=1e-12)


def test_equal_blocks_make_no_further_segments() -> None:
    """The first block is behind the embedding, the last before another reader: no block between is different."""
    few, many = (program(build("gpt", {"layers": str(layers)})) for layers in (4, 40))
    assert few.repeats.size == many.repeats.size < few.segment.size < many.segment.size
    assert many.segment.size == few.segment.size + 36 * 6


def test_a_name_makes_no_layer_another_and_every_attribute_does() -> None:
    def of(second: Layer) -> int:
        first = Layer("first", "activation", (INPUT,))
        return len(program(Network("n", (3, 8, 8), (first, second))).sites)

    assert of(Layer("second", "activation", ("first",))) == 2  # the last is read by none
    behind = (Layer("a", "dropout", (INPUT,)), Layer("b", "dropout", ("a",)), Layer("c", "dropout", ("b",)))
    assert len(program(Network("n", (4,), behind)).sites) == 2
    other = (*behind[:1], Layer("b", "dropout", ("a",), {"rate": 0.25}), behind[2])
    assert len(program(Network("n", (4,), other)).sites) == 3
