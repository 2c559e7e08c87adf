"""A suggestion in full: every part of it on its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from planner.domain.citation import Citation
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, SearchReport, Suggestion
from planner.report import parts
from planner.report.answer import suggestion_answer, suggestions_overview
from planner.report.blocks import Block, Line, Pairs, Table, heading
from planner.report.doubt import deciding_commands
from planner.report.prediction import prediction_details

__all__ = ["part_of_plan", "part_of_suggestion", "suggestion_rest", "suggestions_views"]


def suggestions_views(
    answers: Sequence[tuple[Subject, Suggestion]], *, in_full: bool = False, epochs: int | None = None
) -> Iterator[Iterable[Block]]:
    """Yield the views of answers: one short answer, a table of several, and each in full where asked for.

    ``epochs``: of the whole training, whose time is told too.
    """
    if in_full:
        for subject, one in answers:
            is_alone = len(answers) == 1
            answer = suggestion_answer(one, subject, epochs=epochs, in_full=True, is_alone=is_alone)
            short = [block for block in answer if not (isinstance(block, Line) and block.aside)]
            yield [*_warnings(one), *short, *suggestion_rest(one, subject, is_alone=is_alone)]
    elif len(answers) == 1:
        subject, one = answers[0]
        yield suggestion_answer(one, subject, epochs=epochs)
    else:
        yield suggestions_overview(answers)


def part_of_suggestion(suggestion: Suggestion, part: str) -> Iterable[Block]:
    """Return one part of an answer: ``request``, ``refusals`` or ``warnings``."""
    if part == "warnings":
        return _warnings(suggestion, result=True)
    return parts.request_values(suggestion.request) if part == "request" else _refusals(suggestion.search)


def part_of_plan(plan: Plan, subject: Subject, citations: Sequence[Citation], part: str) -> Iterator[Block]:
    """Yield one part of a plan: ``plan`` for all of it, ``terms``, ``sources`` or ``warnings``."""
    one = plan.prediction
    subject = plan.subject(subject)
    if part == "plan":
        yield from _plan_details(plan, subject, citations)
    elif part == "terms":
        yield parts.terms(one.terms, one.bottleneck)
    elif part == "sources":
        yield parts.origins(one.terms, citations)
    if part in ("plan", "warnings"):
        yield from parts.warnings(one.warnings, result=part == "warnings")


def _warnings(suggestion: Suggestion, *, result: bool = False) -> Iterable[Line]:
    plans = suggestion.plans or suggestion.nearest
    of_rows = [(plan.position, plan.prediction.warnings) for plan in plans]
    return parts.warnings(suggestion.warnings, of_rows, result=result)


def suggestion_rest(suggestion: Suggestion, subject: Subject, *, is_alone: bool = True) -> Iterator[Block]:
    """Yield what a short answer leaves out: the chosen plan in full, the request, the search."""
    plan = suggestion.chosen_plan
    if plan is not None:
        yield from _plan_details(plan, subject, suggestion.citations)
    if is_alone and not subject.scenario:
        yield from deciding_commands(suggestion, subject)
    yield heading("Request")
    yield from parts.request_values(suggestion.request)
    yield heading("Search")
    yield from _refusals(suggestion.search)


def _plan_details(plan: Plan, subject: Subject, citations: Sequence[Citation]) -> Iterator[Block]:
    """Yield one plan of an answer with every figure."""
    subject = plan.subject(subject)
    words = parts.configuration_words(plan.prediction.configuration, subject.device, plan.precisions)
    words += f", in {plan.framework.label}" if plan.framework else ""
    yield heading(f"Plan {plan.position}: {words}")
    if plan.why:
        yield Line(plan.why)
    yield from prediction_details(plan.prediction, subject, citations)


def _refusals(search: SearchReport) -> Iterator[Block]:
    """Yield how a space was searched, and how many plans were refused for which reason."""
    proof = "no better prediction in the space" if search.certified else "a better one may exist"
    if search.gap is not None:
        proof = f"another is at most {100 * search.gap:.2g} % better"
    rows = [(f"{one.count:,}", one.reason.replace("_", " ")) for one in search.refused]
    counts = f"{search.candidates:,} candidates: {search.evaluated:,} ranked"
    counts += f", {sum(one.count for one in search.refused):,} refused" if rows else ""
    counts += f", {search.discarded:,} discarded" if search.discarded else ""
    yield Pairs([("method", f"{search.method}: {proof}"), ("plans", counts)])
    if rows:
        yield Table(("refused", "because"), rows, right=("refused",))
