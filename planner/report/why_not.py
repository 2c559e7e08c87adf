"""Why plans with certain values are not the answer, for people."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.objective import is_sum
from planner.domain.request import Subject
from planner.domain.why_not import RankedPlan, WhyNot
from planner.report import parts
from planner.report.blocks import Block, Line, Table, title
from planner.report.prediction import place
from planner.units import format_number

__all__ = ["why_not_view"]

MOST_LOOSENINGS = 4
"""Ways out that are listed."""


def why_not_view(answer: WhyNot, subject: Subject) -> Iterator[Block]:
    """Yield the constraint that refuses such plans, or the price and the rank of the best of them."""
    values = ", ".join(f"{option}={value}" for option, value in answer.values.items())
    framework = f" in {answer.framework}" if answer.framework else ""
    yield title(f"{place(subject)}{framework}{', ' if values else ''}{values}: {_verdict(answer)}")
    for sentence in answer.outside:
        yield Line(sentence)
    if answer.best:
        yield Line(_priced(answer, answer.best, subject))
        if answer.first and answer.rank != 1:
            yield Line(f"plan 1: {_words(answer, answer.first, subject)}")
    elif answer.refused:
        rows = [(f"{one.count:,}", one.reason.replace("_", " ")) for one in answer.refused]
        yield Table(("refused", "because"), rows, right=("refused",))
    for one in answer.loosen[:MOST_LOOSENINGS]:
        yield Line(one.message, label="what would help: ")


def _verdict(answer: WhyNot) -> str:
    if answer.rank:
        of_all = " of all frameworks" if answer.framework else ""
        return f"rank {answer.rank:,} of {answer.evaluated:,} plans{of_all}"
    if answer.outside:
        return "not among what the request tries"
    if not answer.candidates:
        return "no such plan is lawful for this network and framework on so many GPUs"
    return f"all {answer.candidates:,} candidates are refused"


def _priced(answer: WhyNot, one: RankedPlan, subject: Subject) -> str:
    behind = ""
    if answer.first and answer.first.objective:
        share = one.objective / answer.first.objective - 1
        worse, better = _comparatives(_objective(answer))
        if share:
            behind = f", {format_number(100 * abs(share))} % {worse if share > 0 else better} than plan 1"
    return f"the best of them: {_words(answer, one, subject)}{behind}"


def _words(answer: WhyNot, one: RankedPlan, subject: Subject) -> str:
    value = parts.objective(one.objective, _objective(answer))
    dataset = answer.request.get("dataset")
    of_sample = " a sample" if dataset is None or not dataset.value else ""
    framework = f", in {one.framework.label}" if one.framework else ""
    return f"{parts.configuration_words(one.configuration, subject.device)}{framework}: {value}{of_sample}"


def _objective(answer: WhyNot) -> str:
    return str(answer.request["objective"].value)


def _comparatives(objective: str) -> tuple[str, str]:
    """Return what a plan with more of the objective is, and one with less."""
    if is_sum(objective):
        return "more", "less"
    return ("dearer", "cheaper") if objective == "cost" else ("slower", "faster")
