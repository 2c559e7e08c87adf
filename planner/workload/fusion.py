"""Point-wise kernels that a framework runs as one: what their calls become.

=============  ====================================================  ==========================================
fusion         forward, apart                                        forward, in one
=============  ====================================================  ==========================================
activation     bias 2E, activation 2E                                2E
... gated      5E, backward 8E                                       3E, backward 5E
residual       bias 2E, dropout 2E and a byte each, sum 3E           3E and a byte each
=============  ====================================================  ==========================================

E: elements of what the activation, or the sum, gives. Backward the gradient of a bias is summed apart in either case,
a dropout is one pass, and a sum is none. As Megatron-LM's fused bias + GELU and bias + dropout + residual (Shoeybi et
al. 2019, arXiv:1909.08053; NVIDIA/Megatron-LM at d98e8a64, fusions).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.domain.arrays import BoolArray
from planner.domain.kernels import BACKWARD_DATA, FORWARD, KernelCalls
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.workload.program import Program

__all__ = ["fused_calls"]

_GATED = {FORWARD: 3 / 5, BACKWARD_DATA: 5 / 8}
"""Bytes of a gated activation in one kernel over those in two."""


def fused_calls(calls: tuple[KernelCalls, ...], of: Program, fuses: tuple[str, ...]) -> tuple[KernelCalls, ...]:
    """Return the calls of a program as a framework makes them that fuses some of :data:`FUSIONS`.

    Every call keeps its place: one that is part of another is made no times.
    """
    if not fuses:
        return calls
    inside = {kind: _sites(of, names) for kind, names in _parts(of.network, fuses).items()}
    return tuple(_fused(one, inside) for one in calls)


def _fused(calls: KernelCalls, inside: Mapping[str, set[int]]) -> KernelCalls:
    name = calls.kind if calls.direction == FORWARD else ""
    if name in ("bias", "linear_bias", "dropout"):
        is_part = _among(calls, inside["dropout" if name == "dropout" else "bias"])
        return replace(calls, count=np.where(is_part, 0, calls.count)) if is_part.any() else calls
    if name == "add" and (masked := _among(calls, inside["masked"])).any():
        work = dict(calls.work)
        work["fixed_bytes"] = work["fixed_bytes"] + np.where(masked, work["elements"], 0)
        return replace(calls, work=work)
    if calls.kind == "activation" and calls.direction in _GATED and (gated := _among(calls, inside["gated"])).any():
        part = np.where(gated, _GATED[calls.direction], 1.0)
        return replace(calls, work={**calls.work, "traffic": calls.work["traffic"] * part})
    return calls


def _among(calls: KernelCalls, sites: set[int]) -> BoolArray:
    return np.asarray(np.isin(calls.layer, list(sites)))


def _sites(of: Program, names: set[str]) -> set[int]:
    """Return the first layer of every site whose layers are all named."""
    total, members = Counter(of.site.tolist()), Counter[int]()
    for layer, site in zip(of.network.layers, of.site.tolist(), strict=True):
        members[site] += layer.name in names
    return {of.sites[site].position for site, count in total.items() if count == members[site]}


def _parts(network: Network, fuses: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the layers whose bias, or dropout, is part of what reads them, sums with a mask, and gated activations."""
    readers = Counter(source for layer in network.layers for source in layer.inputs)
    by_name = {layer.name: layer for layer in network.layers}
    parts: dict[str, set[str]] = {"bias": set(), "dropout": set(), "masked": set(), "gated": set()}
    for layer in network.layers:
        if layer.kind == "activation" and "activation" in fuses:
            parts["bias"].update(one.name for one in _alone(layer, "linear", by_name, readers))
        elif layer.kind == "gated_activation" and "activation" in fuses and not layer.attributes["fused"]:
            parts["gated"].add(layer.name)
        elif layer.kind == "add" and "residual" in fuses:
            dropped = list(_alone(layer, "dropout", by_name, readers))
            parts["dropout"].update(one.name for one in dropped)
            parts["masked"].update([layer.name] * bool(dropped))
            for one in (layer, *dropped):
                parts["bias"].update(each.name for each in _alone(one, "linear", by_name, readers))
    return parts


def _alone(layer: Layer, kind: str, by_name: Mapping[str, Layer], readers: Mapping[str, int]) -> Iterator[Layer]:
    """Yield the inputs of a kind that nothing else reads."""
    inputs = (by_name[source] for source in layer.inputs if source in by_name)
    yield from (one for one in inputs if one.kind == kind and readers[one.name] == 1)
