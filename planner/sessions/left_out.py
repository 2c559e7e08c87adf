"""Which calls of networks ``planner calibrate`` does not time as they are, in words, and a budget that times more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from planner.domain.calls import LayerCall
from planner.domain.kernels import DIRECTIONS, UPDATE
from planner.domain.network import Network
from planner.probes.layer_points import Extent, unmeasurable
from planner.workload.calls import layer_calls

__all__ = ["DEFAULT_BUDGET_S", "Kernel", "enough_s", "grouped", "left_out", "never_timed"]

DEFAULT_BUDGET_S = 60.0
"""Of the time that ``planner calibrate`` takes [s]."""
Kernel = tuple[str, str]
"""Kind and direction."""
THREE_WAYS = frozenset(DIRECTIONS) - {UPDATE}


def left_out(calls: Sequence[LayerCall], networks: Sequence[Network], extent: Extent) -> Iterator[str]:
    """Yield a sentence for every layer with calls that are not measured: which, why, and what predicts them instead.

    Layers that are kept out in the same words share one. What is timed in fp32 alone is told with the other precisions.

    Parameters
    ----------
    calls : sequence of LayerCall
        Of the networks, each once.
    networks : sequence of Network
    extent : Extent
    """
    kernels: dict[tuple[str, str, str], list[Kernel]] = {}
    most: dict[tuple[str, str, str], int] = {}
    for call in calls:
        reasons = {name: unmeasurable(call, extent, name) for name in extent.precisions}
        names = [name for name, reason in reasons.items() if reason]
        reason = next(filter(None, reasons.values()), None)
        if reason:
            key = _layer(call, networks), "" if "fp32" in names else f" in {', '.join(names)}", reason.words
            kernels.setdefault(key, []).append((call.kind, call.direction))
            most[key] = max(reason.needed_bytes, most.get(key, 0))
    alike: dict[str, list[str]] = {}
    for (layer, precisions, words), ways in kernels.items():
        several, mib = len(set(ways)) > 1, most[layer, precisions, words] / 2**20
        verb = f"{'have up to' if several else 'has'} {mib:,.0f} MiB" if mib else "are" if several else "is"
        alike.setdefault(f"{grouped(ways)}{precisions} {verb} {words}", []).append(layer)
    for what, layers in alike.items():
        more = f" (and {len(layers) - 1} more layer{'s' if layers[2:] else ''})" if layers[1:] else ""
        yield f"layer {layers[0]}{more}: {what}; not timed as in the network, but predicted by a fit to other kernels"


def never_timed(network: Network, extent: Extent, precision: str = "fp32") -> int:
    """Return how many calls of a network no budget is enough for in a precision."""
    calls = (call for of in layer_calls(network, optimizer=network.optimizer).values() for call in of)
    return sum(call.count for call in calls if call.kind != "bias" and unmeasurable(call, extent, precision))


def enough_s(budget_s: float) -> float:
    """Return the budget to try after one that was too short [s]: the default, or twice what was not below that."""
    return DEFAULT_BUDGET_S if budget_s < DEFAULT_BUDGET_S else 2 * budget_s


def _layer(call: LayerCall, networks: Sequence[Network]) -> str:
    """Return the name of the layer that makes a call, with that of its network."""
    owner = next((network.name for network in networks if call.layer in network.layers), "")
    return f"{call.layer.name} of {owner}" if owner else call.layer.name


def grouped(kernels: Iterable[Kernel]) -> str:
    """Return kinds and directions in words: kinds of the same directions together, these in brackets behind them."""
    ways: dict[str, set[str]] = {}
    for kind, direction in kernels:
        ways.setdefault(kind, set()).add(direction)
    kinds: dict[str, list[str]] = {}
    for kind, own in ways.items():
        text = "all three directions" if own >= THREE_WAYS else ", ".join(way for way in DIRECTIONS if way in own)
        kinds.setdefault("" if own == {kind} else f" ({text})", []).append(kind)  # an update has no direction
    return "; ".join(", ".join(alike) + text for text, alike in kinds.items()).replace("_", " ")
