"""Suggestions for people: ranked plans, the best one term by term, what was searched, what to loosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.domain.calibration import Calibration
from planner.domain.suggestion import Plan, SearchReport, Suggestion
from planner.report import parts, prediction
from planner.report.blocks import Block, Line, Pairs, heading, title

__all__ = ["suggestion_view"]


def suggestion_view(suggestion: Suggestion, calibrations: Sequence[Calibration]) -> Iterator[Block]:
    """Yield the answer to one request under one scenario."""
    yield title(_title(suggestion))
    yield from _found(suggestion, calibrations) if suggestion.plans else _nothing_fits(suggestion)
    warnings = [*suggestion.warnings, *(one for plan in suggestion.plans for one in plan.prediction.warnings)]
    if warnings:
        yield heading("Warnings")
        yield from parts.warnings(warnings)
    yield heading("Request")
    yield parts.request_values(suggestion.request)
    yield heading("Search")
    yield _search(suggestion.search)


def _title(suggestion: Suggestion) -> str:
    values = {name: sourced.value for name, sourced in suggestion.request.items()}
    scenario = f", scenario {values['scenario']}" if values.get("scenario") else ""
    return f"{values['network']} on {values['cluster']}, target mini-batch {values['target_batch']}{scenario}"


def _found(suggestion: Suggestion, calibrations: Sequence[Calibration]) -> Iterator[Block]:
    yield _plans(suggestion.plans)
    if suggestion.pareto:
        yield heading("Pareto front of epoch time, GPUs and distance from the target")
        yield _plans(suggestion.pareto)
    best = suggestion.plans[0]
    yield heading(f"Plan 1: {parts.configuration_words(best.prediction.configuration)}")
    if best.why:
        yield Line(best.why)
    yield from prediction.body(best.prediction, calibrations)


def _plans(plans: Sequence[Plan]) -> Block:
    return prediction.comparison([(plan.position, plan.prediction) for plan in plans])


def _nothing_fits(suggestion: Suggestion) -> Iterator[Block]:
    yield Line("No plan fits.", style="bold red")
    if suggestion.nearest:
        yield heading("Nearest plans")
        yield _plans(suggestion.nearest)
    if suggestion.loosen:
        yield heading("What to loosen")
        yield from (Line(one.message, indent=2) for one in suggestion.loosen)


def _search(search: SearchReport) -> Block:
    certified = "no better plan in the space" if search.certified else "a better plan may exist"
    refused = [(reason, f"{count:,}") for reason, count in search.refused.items()]
    counted = f"{search.candidates:,} candidates, {search.evaluated:,} evaluated"
    rows = [("method", f"{search.method}: {certified}"), ("plans", counted)]
    rows += [("refused", f"{count} {reason.replace('_', ' ')}") for reason, count in refused]
    return Pairs(rows)
