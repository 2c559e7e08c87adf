"""Suggestions for people: ranked plans, the best one term by term, what was searched, what to loosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.domain.calibration import Calibration
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, SearchReport, Suggestion
from planner.report import parts, prediction
from planner.report.blocks import Block, Line, Pairs, Table, heading, title

__all__ = ["suggestion_view"]


def suggestion_view(suggestion: Suggestion, subject: Subject, calibrations: Sequence[Calibration]) -> Iterator[Block]:
    """Yield the answer to one request under one scenario."""
    target = suggestion.request["target_batch"].value
    yield title(f"{prediction.place(subject)}, target mini-batch {target}")
    yield from _found(suggestion, subject, calibrations) if suggestion.plans else _nothing_fits(suggestion, subject)
    shown = suggestion.plans or suggestion.nearest
    yield from parts.warnings(suggestion.warnings, [(plan.position, plan.prediction.warnings) for plan in shown])
    yield heading("Request")
    yield from parts.request_values(suggestion.request)
    yield heading("Search")
    yield from _search(suggestion.search)


def _found(suggestion: Suggestion, subject: Subject, calibrations: Sequence[Calibration]) -> Iterator[Block]:
    yield from _plans(suggestion.plans, subject)
    if suggestion.pareto:
        costs = suggestion.request.get("objective")
        first = "cost" if costs is not None and costs.value == "cost" else "epoch time"
        yield heading(f"Pareto front of {first}, {subject.device}s and distance from the target")
        yield from _plans(suggestion.pareto, subject)
    best = suggestion.plans[0]
    yield heading(f"Plan 1: {parts.configuration_words(best.prediction.configuration, subject.device)}")
    if best.why:
        yield Line(best.why)
    yield from prediction.body(best.prediction, subject, calibrations)


def _plans(plans: Sequence[Plan], subject: Subject) -> Iterator[Block]:
    return prediction.comparison([(plan.position, plan.prediction) for plan in plans], subject)


def _nothing_fits(suggestion: Suggestion, subject: Subject) -> Iterator[Block]:
    yield Line("No plan fits.", style="bold red")
    if suggestion.nearest:
        yield heading("Nearest plans")
        yield from _plans(suggestion.nearest, subject)
    if suggestion.loosen:
        yield heading("What to loosen")
        yield from (Line(one.message, indent=2) for one in suggestion.loosen)


def _search(search: SearchReport) -> Iterator[Block]:
    certified = "no better plan in the space" if search.certified else "a better plan may exist"
    refused = [(f"{count:,}", reason.replace("_", " ")) for reason, count in search.refused.items()]
    counted = f"{search.candidates:,} candidates: {search.evaluated:,} ranked"
    counted += f", {sum(search.refused.values()):,} refused" if refused else ""
    yield Pairs([("method", f"{search.method}: {certified}"), ("plans", counted)])
    if refused:
        yield Table(("refused", "because"), refused, right=("refused",))
