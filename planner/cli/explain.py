"""``planner explain``: any part of an answer that was kept."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from planner import catalog
from planner.cli import output
from planner.cli.request import from_options
from planner.cli.streams import note
from planner.domain.prediction import Citation, Prediction
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, Suggestion
from planner.errors import NOTHING, ParameterError
from planner.formats.documents import STANDARD_INPUT
from planner.formats.suggestion import read_answers
from planner.report import parts
from planner.report.answer import (
    part_of_plan,
    part_of_suggestion,
    prediction_answer,
    suggestion_answer,
    suggestions_views,
)
from planner.report.blocks import Block, Line
from planner.report.prediction import prediction_rest
from planner.sessions.measure_next import wanted_runs

__all__ = ["run"]

PLAN_PARTS = ("plan", "terms", "sources")
"""Parts that a plan has; the others are of a whole suggestion."""
MORE_HINT = "--part warnings shows all"


def run(arguments: Mapping[str, Any]) -> None:
    """Print an answer in full, one plan of it, or one part."""
    values = {name: one.value for name, one in from_options(arguments).items()}
    if "answer" not in values:
        raise ParameterError("ANSWER.json", "given", NOTHING, "name a document of 'planner suggest --json', or -")
    answers = read_answers(values["answer"]).with_frameworks(catalog.recorded)
    part, position = values.get("part"), values.get("position")
    if part == "runs":
        output.write_text(_runs(answers.of_best_cluster, position))
        kept = values["answer"] if values["answer"] != STANDARD_INPUT else "plan.json"
        command = f"planner calibrate --plan {shlex.quote(kept)} --runs FILE.csv --out refined.json"
        note(f"fill in value, the seconds of a step, of each run that you make; then: {command}")
        return
    if answers.suggestions:
        output.write_views(_suggestions(answers.suggestions, part, position))
        return
    predictions = [(subject, one) for at, (subject, one) in enumerate(answers.predictions, 1) if position in (None, at)]
    if not predictions:
        raise _no_position(position, len(answers.predictions))
    output.write_views(_prediction(one, answers.citations, part) for one in predictions)


def _runs(answers: Sequence[tuple[Subject, Suggestion]], position: int | None) -> str:
    if position is not None:
        raise ParameterError("--position", "left out with --part runs", position)
    if len(answers) != 1:
        got = f"{len(answers)} of them" if answers else "predictions"
        raise ParameterError("--part runs", "of a suggestion alone, as planner calibrate --plan takes it", got)
    ((subject, suggestion),) = answers
    text = wanted_runs(suggestion, subject)
    if not text:
        raise ParameterError("--part runs", "of a suggestion with synchronous plans", suggestion.status)
    return text


def _suggestions(
    answers: Sequence[tuple[Subject, Suggestion]], part: str | None, position: int | None
) -> Iterator[Iterable[Block]]:
    if part is None and position is None:
        yield from suggestions_views(answers, in_full=True)
        return
    for subject, one in answers:
        if part == "answer":
            yield suggestion_answer(one, subject, more=MORE_HINT, is_alone=len(answers) == 1)
        elif position is not None or part in PLAN_PARTS:
            yield part_of_plan(_plan(one, position, part), subject, one.citations, part or "plan")
        else:
            yield part_of_suggestion(one, part or "request")


def _plan(suggestion: Suggestion, position: int | None, part: str | None) -> Plan:
    """Return the plan at a position; without one the chosen plan, or where nothing fits the nearest."""
    plans = suggestion.plans or suggestion.nearest
    if position is not None and part not in (None, "warnings", *PLAN_PARTS):
        raise ParameterError("--position", f"given with --part {', '.join((*PLAN_PARTS, 'warnings'))} alone", part)
    number = position or suggestion.chosen or 1
    match = next((plan for plan in plans if plan.position == number), None)
    if match is None:
        raise _no_position(position, [plan.position for plan in plans])
    return match


def _no_position(position: int | None, positions: int | list[int]) -> ParameterError:
    there = f"1 to {positions}" if isinstance(positions, int) else ", ".join(map(str, positions)) or "none"
    return ParameterError("--position", f"one of the answer's ({there})", position)


def _prediction(answer: tuple[Subject, Prediction], citations: Sequence[Citation], part: str | None) -> Iterable[Block]:
    subject, one = answer
    if part == "answer":
        return prediction_answer(one, subject, more=MORE_HINT)
    if part == "warnings":
        return parts.warnings(one.warnings, result=True)
    if part in ("request", "refusals"):
        raise ParameterError("--part", f"one that a prediction has (answer, {', '.join(PLAN_PARTS)}, warnings)", part)
    if part is None:
        short = [block for block in prediction_answer(one, subject) if not (isinstance(block, Line) and block.aside)]
        return [*parts.warnings(one.warnings), *short, *prediction_rest([answer], {}, citations)]
    return part_of_plan(Plan(1, one, ""), subject, citations, part)
