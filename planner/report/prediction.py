"""Predictions for people: one in full, many as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.domain.calibration import Calibration
from planner.domain.prediction import PlanWarning, Prediction
from planner.domain.request import Sourced
from planner.report import parts
from planner.report.blocks import Block, Pairs, Table, heading, title
from planner.units import format_seconds

__all__ = ["body", "comparison", "prediction_view", "predictions_view"]


def prediction_view(
    prediction: Prediction, request: Mapping[str, Sourced[object]], calibrations: Sequence[Calibration]
) -> Iterator[Block]:
    """Yield a prediction term by term, then warnings and the values it rests on."""
    configuration = parts.configuration_words(prediction.configuration)
    yield title(f"{_place(request)}: {configuration}")
    yield from body(prediction, calibrations)
    yield from _closing(prediction.warnings, request)


def predictions_view(
    predictions: Sequence[Prediction], request: Mapping[str, Sourced[object]], calibrations: Sequence[Calibration]
) -> Iterator[Block]:
    """Yield many predictions of one network as a table in the order given."""
    yield title(_place(request))
    yield comparison(list(enumerate(predictions, 1)))
    yield heading("Calibrations")
    yield parts.origins([term for one in predictions for term in one.terms], calibrations)
    yield from _closing([warning for one in predictions for warning in one.warnings], request)


def _place(request: Mapping[str, Sourced[object]]) -> str:
    scenario = request.get("scenario")
    what_if = f", scenario {scenario.value}" if scenario and scenario.value else ""
    return f"{request['network'].value} on {request['cluster'].value}{what_if}"


def _closing(warnings: Sequence[PlanWarning], request: Mapping[str, Sourced[object]]) -> Iterator[Block]:
    if warnings:
        yield heading("Warnings")
        yield from parts.warnings(warnings)
    yield heading("Values and their sources")
    yield parts.request_values(request)


def body(prediction: Prediction, calibrations: Sequence[Calibration]) -> Iterator[Block]:
    """Yield figures, terms and origins of one prediction."""
    yield Pairs(_figures(prediction))
    yield heading("Terms")
    yield parts.terms(prediction.terms, prediction.bottleneck)
    yield heading("Calibrations")
    yield parts.origins(prediction.terms, calibrations)


def _figures(prediction: Prediction) -> list[tuple[str, str]]:
    """Return the figures as names and texts; time never without mini-batch and staleness."""
    is_async = prediction.configuration.mode == "async"
    rows = [
        ("epoch", parts.quantity(prediction.epoch_s, format_seconds)),
        ("first epoch", parts.quantity(prediction.first_epoch_s, format_seconds)),
        ("GPU thread's period" if is_async else "iteration", parts.quantity(prediction.iteration_s, format_seconds)),
        ("update thread's period", parts.quantity(prediction.update_s, format_seconds)),
        ("speed", f"{parts.quantity(prediction.samples_per_s, parts.speed)} samples/s"),
        ("mini-batch", _mini_batch(prediction)),
        ("staleness", _staleness(prediction)),
        ("memory", parts.memory_line(prediction.memory_bytes)),
        ("bottleneck", prediction.bottleneck.replace("_", " ")),
    ]
    first_is_alike = prediction.first_epoch_s == prediction.epoch_s
    return [row for row in rows if row[1] != "-" and not (row[0] == "first epoch" and first_is_alike)]


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


def comparison(numbered: Sequence[tuple[int, Prediction]]) -> Block:
    """Return configurations side by side, one a row.

    Without a data set samples/s stand for the epoch time; accumulation and intervals have a column when there are any.
    """
    shown = [one for _, one in numbered]
    epochs = all(one.epoch_s for one in shown)
    columns: dict[str, list[str]] = {
        "#": [str(number) for number, _ in numbered],
        "nodes\nx GPUs": [f"{one.configuration.nodes} x {one.configuration.gpus_per_node}" for one in shown],
        "sub-\nbatch": [str(one.configuration.sub_batch) for one in shown],
        "accu-\nmul.": [str(one.configuration.accumulation_steps) for one in shown],
        "preci-\nsion": [one.configuration.precision for one in shown],
        "mode": [one.configuration.mode for one in shown],
        "mini-\nbatch": [parts.mini_batch(one.mini_batch) for one in shown],
        "stale-\nness": [f"{one.staleness.mean:.3g}" for one in shown],
        "epoch" if epochs else "samples/s": [_speed(one) for one in shown],
        "90 %\ninterval": [_interval(one) for one in shown],
        "memory": [_memory(one) for one in shown],
    }
    if set(columns["accu-\nmul."]) == {"1"}:
        del columns["accu-\nmul."]
    intervals = any(columns["90 %\ninterval"])
    if not intervals:
        del columns["90 %\ninterval"]
    right = [name for name in columns if name not in ("preci-\nsion", "mode")]
    return Table(list(columns), list(zip(*columns.values(), strict=True)), right, 1 if intervals else 2, fixed=True)


def _speed(one: Prediction) -> str:
    return format_seconds(one.epoch_s.value) if one.epoch_s else parts.speed(one.samples_per_s.value)


def _interval(one: Prediction) -> str:
    """Return how far the bounds lie below and above the figure beside them."""
    figure = one.epoch_s or one.samples_per_s
    if figure.low is None or figure.high is None or not figure.value:
        return ""
    return f"{figure.low / figure.value - 1:+.0%} {figure.high / figure.value - 1:+.0%}"


def _memory(one: Prediction) -> str:
    over = one.memory_bytes["total"] > one.memory_bytes.get("capacity", float("inf"))
    return f"{one.memory_bytes['total'] / 2**30:.3g} GiB" + (" !" if over else "")
