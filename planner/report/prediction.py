"""Predictions for people: one in full, many as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from planner.domain.calibration import OUTSIDE, Calibration
from planner.domain.prediction import LOOKUPS, PlanWarning, Prediction
from planner.domain.request import Sourced, Subject
from planner.report import parts
from planner.report.blocks import Block, Line, Pairs, Table, heading, title
from planner.report.printing import WIDTH
from planner.units import format_seconds

__all__ = ["body", "comparison", "overview", "place", "prediction_view", "predictions_view"]


Values = Mapping[str, Sourced[object]]
"""The values of a request with their sources."""


def prediction_view(
    prediction: Prediction, subject: Subject, request: Values, calibrations: Sequence[Calibration]
) -> Iterator[Block]:
    """Yield a prediction term by term, then warnings and the values it rests on."""
    configuration = parts.configuration_words(prediction.configuration, subject.device)
    yield title(f"{place(subject)}: {configuration}")
    yield from _mixed_precisions([prediction], subject)
    yield from body(prediction, subject, calibrations)
    yield from _closing([(1, prediction.warnings)], request)


def predictions_view(
    predictions: Sequence[Prediction], subject: Subject, request: Values, calibrations: Sequence[Calibration]
) -> Iterator[Block]:
    """Yield many predictions of one network as a table in the order given."""
    numbered = list(enumerate(predictions, 1))
    yield title(place(subject))
    yield from comparison(numbered, subject)
    yield from _lookups(predictions)
    yield heading(parts.ORIGINS)
    yield parts.origins([term for one in predictions for term in one.terms], calibrations)
    yield from _closing([(number, one.warnings) for number, one in numbered], request)


def place(subject: Subject) -> str:
    """Return network, cluster and scenario in words."""
    what_if = f", scenario {subject.scenario}" if subject.scenario else ""
    return f"{subject.network} on {subject.cluster}{what_if}"


def _closing(warnings: Sequence[tuple[int, Sequence[PlanWarning]]], request: Values) -> Iterator[Block]:
    yield from parts.warnings((), warnings)
    yield heading("Values and their sources")
    yield from parts.request_values(request)


def body(prediction: Prediction, subject: Subject, calibrations: Sequence[Calibration]) -> Iterator[Block]:
    """Yield figures, terms and origins of one prediction."""
    yield Pairs(_figures(prediction, subject))
    yield heading("Terms")
    yield parts.terms(prediction.terms, prediction.bottleneck)
    yield from _lookups([prediction])
    yield heading(parts.ORIGINS)
    yield parts.origins(prediction.terms, calibrations)


def _figures(prediction: Prediction, subject: Subject) -> list[tuple[str, str]]:
    """Return the figures as names and texts; time never without mini-batch and staleness."""
    cost = prediction.epoch_usd(subject.usd_per_gpu_hour)
    is_async = prediction.configuration.mode == "async"
    rows = [
        ("epoch", parts.quantity(prediction.epoch_s, format_seconds)),
        ("first epoch", parts.quantity(prediction.first_epoch_s, format_seconds)),
        ("cost of an epoch", f"{parts.quantity(cost, parts.money)} USD" if cost else "-"),
        (
            f"{subject.device} thread's period" if is_async else "iteration",
            parts.quantity(prediction.iteration_s, format_seconds),
        ),
        ("update thread's period", parts.quantity(prediction.update_s, format_seconds)),
        ("speed", f"{parts.quantity(prediction.samples_per_s, parts.speed)} samples/s"),
        ("mini-batch", _mini_batch(prediction)),
        ("staleness", _staleness(prediction)),
        ("memory", parts.memory_line(prediction.memory_bytes, subject.device)),
        ("bottleneck", prediction.bottleneck.replace("_", " ")),
        ("intervals", _intervals(prediction)),
    ]
    first_is_alike = prediction.first_epoch_s == prediction.epoch_s
    return [row for row in rows if row[1] != "-" and not (row[0] == "first epoch" and first_is_alike)]


def _lookups(shown: Sequence[Prediction]) -> Iterator[Line]:
    """Yield how the kernel time was found, by share: from the least to the most of several; nothing without kernels."""
    told = [one.kernel_shares for one in shown if any(one.kernel_shares.values())]
    found = {words: [shares[lookup] for shares in told] for lookup, words in LOOKUPS.items()}
    words = [f"{_span(shares)} {by}" for by, shares in found.items() if any(shares)]
    if words:
        yield Line(f"Kernel time: {', '.join(words)}")


def _span(shares: Sequence[float]) -> str:
    """Return a share, or the least and the most of several where they differ; a little is never none."""
    low, high = (_percent(end(shares)) for end in (min, max))
    return high if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 or not share else "<0.1%"


def _intervals(prediction: Prediction) -> str:
    """Return what the intervals of times rest on; a dash where there are none."""
    words = BASES.get(prediction.iteration_s.interval_basis)
    if words is None:
        return "-"
    is_wider = prediction.iteration_s.interval_basis == "conformal" and prediction.kind.endswith(OUTSIDE)
    return f"90 %, {words}" + ("; wider, as outside of what was seen" if is_wider else "")


def _mini_batch(prediction: Prediction) -> str:
    batch = prediction.mini_batch
    if not batch.std:
        return f"{parts.mini_batch(batch)} samples"
    inside = batch.probability_in_window
    chance = f"; {inside:.0%} of updates inside the window" if inside is not None else ""
    return f"{parts.mini_batch(batch)} samples, 90 % between {batch.p05:.4g} and {batch.p95:.4g}{chance}"


def _staleness(prediction: Prediction) -> str:
    staleness = prediction.staleness
    if not staleness.mean:
        return "0 updates"
    chances = ", ".join(f"{value}: {chance:.0%}" for value, chance in staleness.pmf.items() if chance >= 0.005)
    return f"{staleness.mean:.3g} updates on average" + (f" ({chances})" if chances else "")


INTERVAL = "90 %\ninterval"
BASES = {
    "assumed": "in part by stated assumptions",
    "covariance": "by the errors of the fits",
    "conformal": "scaled by what predictions of measured runs missed (conformal)",
}
"""Basis of intervals -> what they rest on."""


def comparison(numbered: Sequence[tuple[int, Prediction]], subject: Subject) -> Iterator[Block]:
    """Yield configurations side by side, one a row, and what their precisions mean.

    Without a data set samples/s stand for the epoch time. Accumulation, intervals and cost have a column when there are
    any; intervals only where the line holds them. Rows that extrapolate or exceed the memory are marked.
    """
    shown = [one for _, one in numbered]
    columns = {name: cells for name, cells in _columns(numbered, subject).items() if any(cells)}
    if _width(columns, 1) > WIDTH:
        columns.pop(INTERVAL, None)
    right = [name for name in columns if name not in ("preci-\nsion", "mode", "")]
    gap = 2 if _width(columns, 2) <= WIDTH else 1
    yield Table(list(columns), list(zip(*columns.values(), strict=True)), right, gap, fixed=True)
    yield from (
        Line(f"{mark} {MEANINGS[mark].format(device=subject.device)}")
        for mark, holds in MARKS.items()
        if any(map(holds, shown))
    )
    yield from _mixed_precisions(shown, subject)


def _mixed_precisions(shown: Iterable[Prediction], subject: Subject) -> Iterator[Line]:
    names = dict.fromkeys(one.configuration.precision for one in shown)
    words = (parts.precision_words(name, subject.settings.framework) for name in names)
    yield from (Line(one) for one in words if one)


def _columns(numbered: Sequence[tuple[int, Prediction]], subject: Subject) -> dict[str, list[str]]:
    """Return the cells of each column; a column that has nothing to say has empty ones."""
    shown = [one for _, one in numbered]
    configurations = [one.configuration for one in shown]
    costs = [one.epoch_usd(subject.usd_per_gpu_hour) for one in shown]
    accumulates = any(one.accumulation_steps > 1 for one in configurations)
    return {
        "#": [str(number) for number, _ in numbered],
        f"nodes\nx {subject.device}s": [f"{one.nodes} x {one.gpus_per_node}" for one in configurations],
        "sub-\nbatch": [str(one.sub_batch) for one in configurations],
        "accumu-\nlation": [str(one.accumulation_steps) if accumulates else "" for one in configurations],
        "preci-\nsion": [one.precision for one in configurations],
        "mode": [one.mode for one in configurations],
        "mini-\nbatch": [parts.mini_batch(one.mini_batch) for one in shown],
        "stale-\nness": [f"{one.staleness.mean:.3g}" for one in shown],
        "epoch" if all(one.epoch_s for one in shown) else "samples/s": [_speed(one) for one in shown],
        INTERVAL: [_interval(one) for one in shown],
        "USD an\nepoch": [parts.money(cost.value) if cost else "" for cost in costs],
        "memory": [f"{one.memory_bytes['total'] / 2**30:.3g} GiB" for one in shown],
        "": ["".join(mark for mark, holds in MARKS.items() if holds(one)) for one in shown],
    }


def _width(columns: Mapping[str, Sequence[str]], gap: int) -> int:
    """Return the characters of a line of a table."""
    widest = (max(map(len, (*name.split("\n"), *cells))) for name, cells in columns.items())
    return sum(widest) + gap * (len(columns) - 1)


def overview(answers: Sequence[tuple[Subject, Prediction | None]]) -> Iterator[Block]:
    """Yield the answers for one cluster, one a row: network, scenario and the best plan, or that none fits."""
    rows = [(one.network, one.scenario or "none", *_best(found, one.device)) for one, found in answers]
    columns = ("network", "scenario", "plan", "mini-batch", "epoch")
    yield title(f"{len(rows)} answers on {answers[0][0].cluster}")
    yield Table(columns, rows, right=columns[3:])


def _best(found: Prediction | None, device: str) -> tuple[str, str, str]:
    if found is None:
        return ("no plan fits", "-", "-")
    speed = _speed(found) + ("" if found.epoch_s else " samples/s")
    return (parts.configuration_words(found.configuration, device), parts.mini_batch(found.mini_batch), speed)


def _speed(one: Prediction) -> str:
    return format_seconds(one.epoch_s.value) if one.epoch_s else parts.speed(one.samples_per_s.value)


def _interval(one: Prediction) -> str:
    """Return how far the bounds lie below and above the figure beside them."""
    figure = one.epoch_s or one.samples_per_s
    if figure.low is None or figure.high is None or not figure.value:
        return ""
    return f"{figure.low / figure.value - 1:+.0%} {figure.high / figure.value - 1:+.0%}"


def _out_of_memory(one: Prediction) -> bool:
    return one.memory_bytes["total"] > one.memory_bytes.get("capacity", float("inf"))


def _extrapolates(one: Prediction) -> bool:
    return any(term.extrapolated for term in one.terms)


MARKS: Mapping[str, Callable[[Prediction], bool]] = {"*": _extrapolates, "!": _out_of_memory}
"""Mark of a row -> what it says of a prediction."""
MEANINGS = {"*": "extrapolated: a time lies outside what was fitted", "!": "needs more memory than one {device} has"}
