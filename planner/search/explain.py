"""The sentences that say why a plan stands where it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from planner.domain.configuration import MODES, Configuration
from planner.domain.objective import LIMITS, objective_named
from planner.domain.prediction import Prediction
from planner.domain.request import SpaceRequest
from planner.search.ranking import SLACK, Order, PricedPlans, limited
from planner.units import format_bytes, format_duration, format_number, format_samples

__all__ = [
    "hardly_inside", "label", "listed_positions", "typed_values", "why_split", "whys", "whys_nearest",
    "whys_of_values", "whys_over_limits", "whys_pareto",
]  # fmt: skip


_MESSAGE_TERMS = (
    "tensor_messages", "context_messages", "expert_messages", "stage_messages", "sharded_weights", "all_reduce",
    "embedding_all_reduce", "updated_weights",
)  # fmt: skip
_LEAST_SHARE = 0.005
MOST_SPANS = 4
"""Spans of positions that a sentence lists."""
_MODE_WORDS = {"sync": "synchronous", "async": "asynchronous"}


def label(configuration: Configuration, device: str = "GPU") -> str:
    """Return a configuration in a few words; ``device``: what it computes on."""
    c = configuration
    if len(c.groups) > 1:
        parts = " + ".join(f"{part.nodes} x {part.gpus_per_node} of {part.name}" for part in c.groups)
        return f"{parts}, {c.precision}"
    accumulation = f" x {c.accumulation_steps} accumulated" if c.accumulation_steps > 1 else ""
    nodes, gpus = (f"{n} {word}{'s' if n > 1 else ''}" for n, word in ((c.nodes, "node"), (c.gpus_per_node, device)))
    words = [f"{nodes} x {gpus}, sub-batch {c.sub_batch}{accumulation}", c.precision, _MODE_WORDS[c.mode], *c.besides]
    return ", ".join(words)


def whys(order: Order, best: PricedPlans, of_plans: str, n_reported: int, frameworks: Sequence[str] = ()) -> list[str]:
    """Return why each of the first ``n_reported`` plans of ``best`` stands there.

    ``best`` is in order and holds one plan more than is reported, where there is one: the first is compared with it.
    ``of_plans``: those that ``best`` are the first of, in words. ``frameworks``: of each plan, where there are several;
    empty names are not said.
    """
    values, differ, second = order.values(best)[: max(n_reported, 2)], _difference(order, best), ""
    if best.size > 1:
        of = f" in {frameworks[1]}" if frameworks and frameworks[1] else ""
        second = label(best.configurations.one(1), order.device) + of
    sentences = whys_of_values(order, values.tolist(), of_plans, second) if best.size else []
    for i in np.flatnonzero(values[1:] == values[:-1]).tolist():
        if i == 0:
            sentences[0] = f"{sentences[0].partition(';')[0]}; equal to 9 digits to {second}, {differ(0, 1)}"
        sentences[i + 1] = f"equal to 9 digits to plan {i + 1}, {differ(i + 1, i)}"
    return sentences[:n_reported]


def whys_of_values(order: Order, values: Sequence[float], of_plans: str, second: str) -> list[str]:
    """Return why plans stand where they stand, by their values of the objective alone, which ascend.

    ``of_plans``, ``second``: those that they are the first of, and the second plan, in words.
    """
    objective = objective_named(order.objective)
    superlative = objective.best if order.has_dataset else objective.best_sample
    first = f"{superlative} of {of_plans}: {_value_words(order, values[0])}"
    if len(values) > 1:
        first += f"; the next, {second}, is {_percent(values[1], values[0])} {objective.worse}"
    return [first, *(f"{_percent(value, values[0])} {objective.worse} than plan 1" for value in values[1:])]


def whys_pareto(order: Order, front: PricedPlans) -> list[str]:
    """Return why each plan of a Pareto front is on it."""
    rows = zip(order.values(front), front.configurations.gpus, order.distances(front), strict=True)
    return [
        f"no plan is better in one of these and no worse in the others: {_value_words(order, value)}, "
        f"{gpus} {order.device}s, {distance:.4g} samples from the target"
        for value, gpus, distance in rows
    ]


def whys_nearest(order: Order, nearest: PricedPlans, windows: list[tuple[float, float]]) -> list[str]:
    """Return why each plan outside its window (low, high) [samples] is shown."""
    sentences = []
    means = nearest.predictions.mini_batch_mean
    for i, (mean, (low, high)) in enumerate(zip(means, windows, strict=True)):
        one = nearest.configurations.one(i)
        is_too_large = _is_too_large(one, high)
        side = "above" if is_above(one, float(mean), (low, high)) else "below"
        off = abs(mean / order.target_batch - 1)
        alone = f"; its sub-batch alone, {one.sub_batch}, is above the window" if is_too_large else ""
        sentences.append(
            f"nearest {side} the window {format_samples(low)} to {format_samples(high)}: "
            f"mini-batch {format_samples(mean)}, "
            f"{off:.2%} from the target" + alone
        )
    return sentences


def whys_over_limits(order: Order, plans: PricedPlans, request: SpaceRequest) -> list[str]:
    """Return by how much each plan exceeds the limits that it does not keep, and how far outside its window it is."""
    values = {name: limited(name, plans, order) for name in request.most}
    windows = [request.window(MODES[mode]) for mode in plans.configurations.mode]
    outside = whys_nearest(order, plans, windows)
    sentences = []
    for at, ((low, high), mean) in enumerate(zip(windows, plans.predictions.mini_batch_mean.tolist(), strict=True)):
        exceeded = (_above(name, float(values[name][at]), most) for name, most in request.most.items())
        is_inside = low * (1 - SLACK) <= mean <= high * (1 + SLACK)
        sentences.append(", ".join(filter(None, ("" if is_inside else outside[at], *exceeded))))
    return sentences


def _above(name: str, value: float, most: float) -> str:
    """Return in words by how much a value exceeds a limit; empty where it does not."""
    limit = LIMITS[name]
    ratio = value / most if most else 0.0
    by = f"{format_number(100 * abs(ratio - 1))}% " if ratio > 0.1 else ""  # of a smaller one the limit says more
    is_beyond = value < most if limit.is_least else value > most
    option = limit.option or f"--limit {name}"
    of = partial(_limited_text, limit.unit, 3 if abs(ratio - 1) > 0.1 else 4)
    side = f"{by}{limit.side} {option}" if by or not most else f"{limit.side} the {of(most)} of {option}"
    return f"{limit.words} {of(value)}, {side}" if is_beyond else ""


def _limited_text(unit: str, digits: int, value: float) -> str:
    """Return what is limited as answers write it."""
    if unit == "s":
        return format_duration(value, digits)
    if unit == "share":
        return f"{format_number(100 * value, digits)}%"
    return f"{value:,.0f}" if value == int(value) else format_number(value, digits)


def is_above(one: Configuration, mean: float, window: tuple[float, float]) -> bool:
    """Tell whether a plan outside its window (low, high) [samples] is above it: its mean, or its sub-batch alone."""
    return mean >= window[0] or _is_too_large(one, window[1])


def _is_too_large(one: Configuration, high: float) -> bool:
    return one.mode == "async" and one.sub_batch > high * (1 + 1e-12)


def listed_positions(positions: Sequence[int], most: int = MOST_SPANS) -> str:
    """Return ascending positions in words: ``1 and 2``, ``1 to 3, 5, 6 and 9``; ``most``: spans that are listed."""
    ends = [one for one in positions if one + 1 not in positions]
    starts = [one for one in positions if one - 1 not in positions]
    spans = list(zip(starts, ends, strict=True))
    words: list[str] = []
    for low, high in spans[: most if len(spans) > most + 1 else None]:
        words += [f"{low} to {high}"] if high > low + 1 else [str(one) for one in range(low, high + 1)]
    if len(spans) > most + 1:
        words.append(f"{sum(one > spans[most - 1][1] for one in positions)} more")
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def typed_values(values: tuple[Any, ...]) -> str:
    """Return values as an option takes them: ``1,2``, ``1:64``."""
    is_range = len(values) > 4 and not isinstance(values[0], str)
    return f"{min(values)}:{max(values)}" if is_range else ",".join(map(str, values))


def why_split(prediction: Prediction, whole_bytes: float, resorts: Sequence[str] = ()) -> str:
    """Return why a plan splits the network or what is kept of it, and what that costs.

    ``whole_bytes``: of a GPU that holds and keeps all of it; ``resorts``: what nothing fits without.
    """
    capacity = prediction.memory_bytes["capacity"]
    if whole_bytes <= capacity and not resorts:
        return "unsplit it is slower"
    reason = f"unsplit it needs {format_bytes(whole_bytes)} on each GPU; one has {format_bytes(capacity)}"
    if resorts:
        without = " or ".join(filter(None, (", ".join(resorts[:-1]), resorts[-1])))
        reason = (
            f"nothing fits in the {format_bytes(capacity)} of a GPU without {without}: "
            f"without it, this plan needs {format_bytes(whole_bytes)} on each"
        )
    shares = {term.name: term.share for term in prediction.terms}
    parts = {
        "messages": sum(shares.get(name, 0.0) for name in _MESSAGE_TERMS),
        "waiting for other stages": shares.get("bubble", 0.0),
        "recompute": shares.get("recompute", 0.0),
        "copies to and from the host": shares.get("offload", 0.0),
    }
    costs = [f"{share:.0%} is {name}" for name, share in parts.items() if share >= _LEAST_SHARE]
    return f"{reason}. Of the step, {', '.join(costs)}" if costs else reason


def hardly_inside(prediction: Prediction) -> str:
    """Return the end of a sentence about a plan whose mean lies inside the window that its updates hardly ever hit."""
    shares = {"window_missed": prediction.mini_batch.probability_in_window, "empty_updates": prediction.empty_share}
    words = {
        "window_missed": "only {:.2g}% of its updates lie inside the window",
        "empty_updates": "{:.2g}% of its updates have no gradient to apply",
    }
    codes = [one.code for one in prediction.warnings if one.code in words]
    return "".join(f"; {words[code].format(100 * (shares[code] or 0.0))}" for code in codes)


def _value_words(order: Order, value: float) -> str:
    one = objective_named(order.objective)
    if one.unit != "s" or order.has_dataset:
        return one.text(float(value), 4)
    return f"{format_number(max(order.tokens, 1) / value, 4)} {'tokens' if order.tokens else 'samples'}/s"


def _percent(value: float, least: float) -> str:
    return f"{format_number(100 * (value / least - 1))}%"


def _used(memory_bytes: float) -> str:
    return f"{format_bytes(memory_bytes)} used"


def _difference(order: Order, best: PricedPlans) -> Callable[[int, int], str]:
    """Return what tells in what one plan differs from another where the objective does not decide."""
    c, p = best.configurations, best.predictions
    columns = (
        (c.gpus, f"fewer {order.device}s", f"more {order.device}s", "{:,}".format),
        (p.staleness_mean, "smaller staleness", "larger staleness", "{:.4g}".format),
        (order.distances(best), "nearer the target", "farther from the target", "{:.4g} samples".format),
        (p.memory_bytes, "larger memory margin", "smaller memory margin", _used),
    )
    keys = list(zip(order.keys(best)[1:], columns, strict=False))

    def words(one: int, other: int) -> str:
        for key, (column, less, more, format_value) in keys:
            if key[one] != key[other]:
                word = less if key[one] < key[other] else more
                return f"{word} ({format_value(column[one])} against {format_value(column[other])})"
        return ("earlier" if one < other else "later") + " in configuration order"

    return words
