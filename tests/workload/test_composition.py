"""Kernels computed from primitives: chains counted by hand from TensorFlow's operations and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Settings
from planner.domain.framework import COMPOSED, Framework
from planner.domain.kernels import BACKWARD_DATA, FORWARD, KernelCalls
from planner.domain.network import Network
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.compute import ComputeCases, call_times_s
from planner.workload.calls import lower
from planner.workload.fusion import composed_calls
from planner.workload.program import program

LAYERS, HIDDEN, SEQUENCE, HEADS, SAMPLES = 3, 64, 32, 4, 2
BERT = f"bert:layers={LAYERS},hidden={HIDDEN},heads={HEADS},sequence={SEQUENCE},vocabulary=512,attention=unfused"
ELEMENTS, SCORES = SAMPLES * SEQUENCE * HIDDEN, SAMPLES * HEADS * SEQUENCE * SEQUENCE


def network_of(name: str = BERT) -> Network:
    return catalog.find_network(name)


def calls_of(kind: str, direction: str, network: Network) -> KernelCalls:
    return next(one for one in lower(network, np.array([SAMPLES])) if (one.kind, one.direction) == (kind, direction))


def primitives(kind: str, direction: str, what: str, network: Network) -> tuple[float, float, float]:
    """Return kernels, elements of the working precision and bytes besides that the primitives of a kind move."""
    found = composed_calls(calls_of(kind, direction, network), program(network), (what,), "executor")
    assert found is not None
    count, work, launches = found[1].count, found[1].work, found[1].launches
    assert launches is not None
    moved = [float((work[name] * count).sum()) for name in ("traffic", "fixed_bytes")]
    return float((count + launches).sum()), moved[0], moved[1]


# kind of call, direction, what is composed; kernels of a call, elements and bytes of an element that they move
CHAINS = [
    ("activation", FORWARD, "gelu", 8, 0, 4 * (2 + 2 + 3 + 2 + 2 + 2 + 2 + 3)),
    ("activation", BACKWARD_DATA, "gelu", 10, 0, 4 * (3 + 3 + 2 + 3 + 2 + 2 + 2 + 2 + 3 + 4)),
    ("dropout", FORWARD, "dropout", 5, 2 + 1 + 3, 4 * (1 + 1) + 1 + 1),
    ("dropout", BACKWARD_DATA, "dropout", 2, 3 + 2, 0),
    ("layer_norm", FORWARD, "layer_norm", 10, 0, 4 * (1 + 2 + 1 + 1 + 3 + 2 + 2 + 3)),
    ("layer_norm", BACKWARD_DATA, "layer_norm", 21, 0, 4 * (6 + 3 + 6 + 3 + 3 + 3 + 10 + 3 + 4)),
    ("softmax", FORWARD, "softmax", 5, 2 + 2 + 1 + 1 + 2, 0),
    ("softmax", BACKWARD_DATA, "softmax", 5, 2, 4 * (3 + 1 + 2 + 3)),
]


@pytest.mark.parametrize("chain", CHAINS)
def test_primitives_move_what_their_operations_do(chain: tuple[str, str, str, int, int, int]) -> None:
    """An executor's chain is one call with launches behind it; of a program in Python each primitive is a call."""
    kind, direction, what, kernels, moved, others = chain
    network = network_of()
    whole = calls_of(kind, direction, network)
    for launch, calls in (("executor", 1), ("eager", kernels)):
        made = composed_calls(whole, program(network), (what,), launch)
        assert made is not None
        rest, made_of = made
        assert made_of.launches is not None
        own = made_of.count > 0
        elements = float((np.broadcast_to(whole.work["elements"], (1, own.size)) * whole.count)[:, own].sum())
        assert (made_of.count[own] == calls * whole.count[own]).all()
        np.testing.assert_array_equal(made_of.operations, np.where(own, whole.count, 0))
        assert (made_of.launches == np.where(own, (kernels - calls) * whole.count, 0)).all()
        assert not rest.count[own].any()
        assert (rest.count[~own] == whole.count[~own]).all()
        bytes_ = [float((made_of.work[name] * made_of.count).sum()) for name in ("traffic", "fixed_bytes")]
        assert bytes_ == pytest.approx([moved * elements, others * elements])


def test_gelu_alone_is_composed_of_all_activations() -> None:
    """Of the feed-forward layers, four times as wide; the pooler's tanh stays."""
    network = network_of(f"{BERT},head=pooler")
    count, _, moved = primitives("activation", FORWARD, "gelu", network)
    assert (count, moved) == (8 * LAYERS, 4 * 18 * 4 * ELEMENTS * LAYERS)


def test_the_softmax_of_a_loss_is_one_kernel() -> None:
    network = network_of()
    count, traffic, _ = primitives("softmax", FORWARD, "softmax", network)
    assert (count, traffic) == (5 * LAYERS, 8 * SCORES * LAYERS)


def test_nothing_is_composed_unasked() -> None:
    network = network_of()
    for one in lower(network, np.array([SAMPLES])):
        assert composed_calls(one, program(network), (), "eager") is None
    convolutions = network_of("resnet50")
    for one in lower(convolutions, np.array([SAMPLES])):
        assert composed_calls(one, program(convolutions), COMPOSED, "eager") is None


def kernels_s(framework: Framework, network: str, precision: str) -> tuple[int, float]:
    """Return the kernel calls of the forward and backward pass, and what they take by themselves."""
    machine = catalog.find_cluster("dgx1-v100")
    problem = Problem(
        network_of(network), None, machine, catalog.calibrations_for(machine),
        settings=Settings("adam", "wait-free", "synthetic", framework),
    )  # fmt: skip
    compute = ComputeCases(Sources(problem), precision).ranks[0]
    served = [one for stage in ("forward", "backward") for one in compute.calls_with_sources(np.array([8]))[stage]]
    seconds = sum(float(call_times_s(source.entry, calls, compute.itemsize).sum()) for calls, source in served)
    return sum(int(calls.count.sum()) for calls, _ in served), seconds


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_of_tensorflow_takes_longer_than_with_xla(precision: str) -> None:
    plain, fused = (catalog.find_framework(name) for name in ("tensorflow", "tensorflow:xla"))
    assert (plain.composes, fused.composes) == (COMPOSED, ())
    (calls, seconds), (fewer, less) = (kernels_s(one, "bert-base:sequence=128", precision) for one in (plain, fused))
    assert calls >= fewer
    assert seconds > 1.15 * less


def test_networks_without_such_layers_do_not_change() -> None:
    plain, own = (Framework("own", composes=what) for what in ((), COMPOSED))
    assert kernels_s(plain, "resnet50", "fp32") == kernels_s(own, "resnet50", "fp32")
