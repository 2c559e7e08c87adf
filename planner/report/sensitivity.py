"""What a change of single inputs does to the best plan, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.request import Subject
from planner.domain.sensitivity import Sensitivity
from planner.domain.suggestion import Suggestion
from planner.report import parts
from planner.report.blocks import Line

__all__ = ["sensitivity_lines"]

MOST_NAMED = 2
"""Changes that a sentence names; the others are counted."""


def sensitivity_lines(suggestion: Suggestion, subject: Subject) -> Iterator[Line]:
    """Yield which changes make another plan the best, and which; nothing where it was not asked for."""
    every = suggestion.sensitivity
    if not every:
        return
    others = [one for one in every if one.is_other]
    if not others:
        yield Line(f"Sensitivity: {_share(every[0])} more or less of any one input leaves plan 1 the best")
        return
    words = [_words(one, subject) for one in others[:MOST_NAMED]]
    words += [f"{len(others) - MOST_NAMED} more (--json)"] * (len(others) > MOST_NAMED)
    rest = len(every) - len(others)
    yield Line(f"Sensitivity: {'; '.join(words)}; {rest} of {len(every)} changes leave plan 1 the best")


def _words(one: Sensitivity, subject: Subject) -> str:
    """Return a change and what is the best plan then."""
    amount = f"{_share(one)} {'more' if one.factor > 1 else 'less'}"
    change = f"{amount} {one.input.replace('device', subject.device)}"
    if one.best is None:
        return f"with {change} nothing fits"
    plan = f"plan {one.position}" if one.position else parts.configuration_words(one.best, subject.device)
    of = f", in {one.framework.label}," if one.framework and not one.position else ""
    return f"{change} makes {plan}{of} the best"


def _share(one: Sensitivity) -> str:
    return f"{100 * abs(one.factor - 1):.0f} %"
