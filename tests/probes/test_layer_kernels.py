from dataclasses import replace
from typing import Any

import pytest

from planner.domain.kernels import BACKWARD_DATA
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.probes.kernels import timed_call
from planner.probes.layer_points import layer_points
from planner.probes.operands import Operands
from planner.workload.calls import distinct_calls

LAYERS = {
    "activation": (Layer("one", "activation", ("zero",)), 4),
    "global_pool": (Layer("one", "global_pool", ("zero",)), 4),
    "pool": (Layer("one", "pool", ("zero",), {"mode": "max", "window": 2, "stride": 2}), 2),
    "lrn": (Layer("one", "lrn", ("zero",)), 1),
}
"""With graphs whose saved tensors cover four inputs: an activation saves its result, the mean of an image nothing, a
maximum its input and an index of 8 bytes for every fourth number, normalisation over channels at least four tensors."""


@pytest.mark.parametrize("kind", LAYERS)
def test_graphs_are_made_until_what_they_save_overflows_the_cache(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, graphs = LAYERS[kind]
    before = Layer("zero", "convolution", (INPUT,), {"channels": 8, "kernel": 1})
    points = layer_points(distinct_calls([Network("net", (8, 16, 16), (before, layer))]))
    backward = [one for one in points if one.direction == BACKWARD_DATA and one.call and one.call.layer.kind == kind]
    point = max(backward, key=lambda one: one.sub_batch)
    made = 0

    def counted(*given: Any) -> Any:
        def run(*values: Any) -> Any:
            nonlocal made
            made += 1
            return part(*values)

        part = plain(*given)
        return run

    plain = LAYER_KINDS[kind].module
    monkeypatch.setitem(LAYER_KINDS, kind, replace(LAYER_KINDS[kind], module=counted))
    four_inputs = 4 * 4 * 8 * 16 * 16 * point.sub_batch
    timed_call(point, Operands(elements=1 << 20, cold_bytes=four_inputs)).run()
    assert made == graphs + 1  # the first one tells how much is saved
