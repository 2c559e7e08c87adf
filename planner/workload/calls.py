"""The kernel calls of a network's layers, whatever the sub-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from planner.domain.calls import LayerCall
from planner.domain.kernels import ATTENTION_COLUMNS, UPDATE, KernelCalls
from planner.domain.network import Network
from planner.workload.autocast import wide_tensors
from planner.workload.graph import Site, sites
from planner.workload.lowering import lower

__all__ = ["distinct_calls", "layer_calls"]


def layer_calls(
    network: Network, *, convolution: str = "direct", optimizer: str = "sgd-momentum"
) -> Mapping[tuple[str, str], tuple[LayerCall, ...]]:
    """Return the calls of every kind and direction, in the order of :func:`planner.workload.lowering.lower`.

    Work is a + b·n: two lowerings tell a and b.
    """
    places = sites(network)
    lowered = lower(network, np.array([1, 2]), convolution=convolution, optimizer=optimizer)
    return {(calls.kind, calls.direction): _calls(calls, places, optimizer) for calls in lowered}


def _calls(calls: KernelCalls, places: Sequence[Site], optimizer: str) -> tuple[LayerCall, ...]:
    size = calls.layer.size
    columns = {name: np.broadcast_to(values, (2, size)).tolist() for name, values in calls.work.items()}
    counts = np.broadcast_to(calls.count, (2, size))[0].tolist()
    is_update = calls.direction == UPDATE
    found = []
    for at, position in enumerate(calls.layer.tolist()):
        site = places[position]
        work = {name: (2 * one[at] - two[at], two[at] - one[at]) for name, (one, two) in columns.items()}
        tensors = _tensors(site) if is_update else 0
        made = LayerCall(
            calls.kind,
            calls.direction,
            work,
            site.layer,
            site.inputs,
            optimizer if is_update else "",
            tensors,
            counts[at],
        )
        found.append(made)
    return tuple(found)


def _tensors(site: Site) -> int:
    """Return how many tensors of parameters a layer has."""
    layer = site.layer
    if layer.kind == "embedding":
        return sum(layer.integer(table) > 0 for table in ("vocabulary", "positions", "types"))
    if layer.kind in ("convolution", "linear"):
        weights = not (layer.kind == "linear" and layer.attributes["tied"])
        return int(weights) + bool(layer.attributes["bias"])
    return 2


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
        tensors = {place: wide_tensors(network, on_gpu=place == "gpu") for place in ("cpu", "gpu")}
        for call in made:
            key = (call.kind, call.direction, call.name)
            found.setdefault(key, call)
            for place, of_layers in tensors.items():
                wide.setdefault(key, {}).setdefault(place, Counter())[of_layers[call.layer.name]] += call.count
            weights[key] = weights.get(key, 0.0) + _guessed_s(call) * call.count / total
    order = sorted((key for key in found if key[0] != "bias"), key=lambda key: -weights[key])
    return tuple(
        replace(found[key], wide={place: many.most_common(1)[0][0] for place, many in wide[key].items()})
        for key in order
    )


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
