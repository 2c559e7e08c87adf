"""The kernel calls of a network's layers, whatever the sub-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from planner.domain.arrays import IntArray
from planner.domain.calls import LayerCall
from planner.domain.kernels import ATTENTION_COLUMNS, UPDATE, WORK_COLUMNS
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Site
from planner.domain.network import Network
from planner.workload.autocast import wide_tensors
from planner.workload.lowering import ledger_of
from planner.workload.program import program

__all__ = ["distinct_calls", "layer_calls"]


def layer_calls(
    network: Network, *, convolution: str = "direct", optimizer: str = "sgd-momentum"
) -> Mapping[tuple[str, str], tuple[LayerCall, ...]]:
    """Return the calls of every kind and direction, in the order of :func:`planner.workload.lowering.lower`."""
    of = program(network)
    places = [of.sites[at] for at in of.site.tolist()]
    return {row[:2]: _calls(row, places, optimizer) for row in ledger_of(of, convolution, optimizer=optimizer).rows()}


def _calls(row: tuple[str, str, IntArray, IntArray], places: Sequence[Site], optimizer: str) -> tuple[LayerCall, ...]:
    kind, direction, layer, amounts = row
    is_update = direction == UPDATE
    found = []
    for position, (count, *work) in zip(layer.tolist(), amounts.tolist(), strict=True):
        site = places[position]
        named = dict(zip(WORK_COLUMNS[kind], map(tuple, work), strict=True))
        tensors = LAYER_KINDS[site.layer.kind].tensors(site.layer) if is_update else 0
        used = optimizer if is_update else ""
        found.append(LayerCall(kind, direction, named, site.layer, site.inputs, used, tensors, sum(count)))
    return tuple(found)


def distinct_calls(networks: Sequence[Network]) -> tuple[LayerCall, ...]:
    """Return the calls of networks, each once, those first that take most of the time of a step as far as is known.

    Each with the optimizer of its family. ``bias`` is left out: it is part of the product before it, or left to fits.
    """
    found: dict[tuple[str, str, str], LayerCall] = {}
    weights: dict[tuple[str, str, str], float] = {}
    wide: dict[tuple[str, str, str], dict[str, Counter[tuple[bool, ...]]]] = {}
    for network in networks:
        made = [call for calls in layer_calls(network, optimizer=network.optimizer).values() for call in calls]
        total = sum(_guessed_s(call) * call.count for call in made)
        tensors = _wide_by_layer(network)
        for call in made:
            key = (call.kind, call.direction, call.name)
            found.setdefault(key, call)
            for place, by_layer in tensors[call.layer.name].items():
                wide.setdefault(key, {}).setdefault(place, Counter()).update(by_layer)
            weights[key] = weights.get(key, 0.0) + _guessed_s(call) * call.count / total
    order = sorted((key for key in found if key[0] != "bias"), key=lambda key: -weights[key])
    return tuple(
        replace(found[key], wide={place: many.most_common(1)[0][0] for place, many in wide[key].items()})
        for key in order
    )


def _wide_by_layer(network: Network) -> Mapping[str, Mapping[str, Counter[tuple[bool, ...]]]]:
    """Return how many layers read and write what in fp32, by the first layer that is like them and by place."""
    of = program(network)
    found: dict[str, dict[str, Counter[tuple[bool, ...]]]] = {}
    for place in ("cpu", "gpu"):
        tensors = wide_tensors(network, on_gpu=place == "gpu")
        for layer, at in zip(network.layers, of.site.tolist(), strict=True):
            counts = found.setdefault(of.sites[at].layer.name, {}).setdefault(place, Counter())
            counts[tensors[layer.name]] += 1
    return found


GUESSED_FLOP_PER_S, GUESSED_BYTES_PER_S = 5e10, 5e9
"""Of one thread, for the order of measuring only."""
GUESS_AT = 8
"""Samples of the sub-batch whose step the order is for."""


def _guessed_s(call: LayerCall) -> float:
    work = call.at(GUESS_AT)
    if "m" in work:
        return 2 * prod(work.values()) / GUESSED_FLOP_PER_S
    if "queries" in work:
        return 4 * prod(work[name] for name in ATTENTION_COLUMNS[:4]) / GUESSED_FLOP_PER_S
    if "in_c" not in work:
        return (4 * work["traffic"] + work["fixed_bytes"]) / GUESSED_BYTES_PER_S
    sides = [
        (work[f"in_{axis}"] + 2 * work[f"pad_{axis}"] - work[f"k_{axis}"]) // work[f"stride_{axis}"] + 1
        for axis in "hw"
    ]
    macs = work["images"] * work["out_c"] * prod(sides) * work["in_c"] // work["groups"] * work["k_h"] * work["k_w"]
    return 2 * macs / GUESSED_FLOP_PER_S
