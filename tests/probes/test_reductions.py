"""Sums over rows have no calls of their own: those of a training step are all part of calls that are timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, Point
from planner.networks.zoo import build
from planner.probes.kernels import timed_call
from planner.probes.operands import Operands
from planner.probes.steps import build_module
from planner.workload.calls import layer_calls

SAMPLES = 2
SMALL = {"layers": "1", "hidden": "32", "heads": "2", "sequence": "16", "vocabulary": "64"}
IMAGES = Network(
    "images",
    (3, 16, 16),
    (
        Layer("convolution", "convolution", (INPUT,), {"channels": 8, "kernel": 3}),
        Layer("norm", "batch_norm", ("convolution",)),
        Layer("mean", "global_pool", ("norm",)),
        Layer("flat", "flatten", ("mean",)),
        Layer("logits", "linear", ("flat",), {"features": 10}),
        Layer("loss", "loss", ("logits",)),
    ),
)


def reductions(run: Callable[[], object]) -> Counter[str]:
    """Return how often a sum or mean over each shape was computed."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as seen:
        run()
    events = (event for event in seen.events() if event.name in ("aten::sum", "aten::mean"))
    return Counter(f"{event.name} {event.input_shapes[0]}" for event in events)


@pytest.mark.parametrize(
    "network",
    [IMAGES, build("gpt", SMALL), build("gpt", {**SMALL, "attention": "fused"}), build("bert", SMALL)],
    ids=lambda network: network.name,
)
def test_every_sum_of_a_step_is_part_of_one_timed_call(network: Network) -> None:
    module, shape = build_module(network), (SAMPLES, *network.input_shape)
    samples = torch.randint(0, 64, shape) if network.layers[0].kind == "embedding" else torch.randn(shape)
    positions = (16,) if network.name.startswith("gpt") else ()
    targets = torch.zeros((SAMPLES, *positions), dtype=torch.int64)
    in_step = reductions(lambda: module(samples, targets).backward())
    operands = Operands(elements=1 << 20)
    made = [
        timed_call(Point(call.kind, call.direction, call.at(SAMPLES), call=call, sub_batch=SAMPLES), operands)
        for (kind, _), calls in layer_calls(network).items()
        for call in calls
        for _ in range(call.count)
        if kind != "bias"
    ]
    assert reductions(lambda: [call.run() for call in made]) == in_step
    assert in_step
