"""How well plans of a group are ordered: by the step model, by chance, and by rules of one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from planner.domain.runs import Validation
from planner.scoring.errors import FEWEST_PLANS, OURS, RATE_METRICS, RULES, summarise_ranking
from planner.scoring.evaluate import Answer, validation_of
from validation.accuracy_answers import Facts

__all__ = ["FEWEST_PLANS", "OURS", "RULES", "rankings"]

NETWORK = "network"


def rankings(answers: Sequence[Answer], facts: Sequence[Facts]) -> dict[str, Any]:
    """Return how well plans are ranked, of every source that has groups of plans.

    Figures of a source itself are of all groups of the rows that fits learn from, with ``rules`` on the same groups;
    under ``of_five`` they are of groups of FEWEST_PLANS plans or more, runs on unequal nodes among them.
    """
    found: dict[str, Any] = {}
    for source in sorted({one.row.source for one in answers if one.row.group}):
        pairs = [(one, fact) for one, fact in zip(answers, facts, strict=True) if one.row.source == source]
        even = [(one, fact) for one, fact in pairs if (fact.name or source) == source]
        summary = _summaries(even, 2)
        if summary[OURS]["groups"]:
            larger = _summaries(pairs, FEWEST_PLANS)
            rest = {"rules": {name: one for name, one in summary.items() if name != OURS}}
            found[source] = {**summary[OURS], **rest} | ({"of_five": larger} if larger[OURS]["groups"] else {})
    return found


def _summaries(pairs: Sequence[tuple[Answer, Facts]], fewest: int) -> dict[str, dict[str, Any]]:
    """Return the figures of groups of so many plans or more, by what orders them."""
    orders = {OURS: [one for one, _ in pairs]}
    nodes = np.array([fact.nodes for _, fact in pairs], dtype=np.int64)
    for name, rule in RULES.items():
        times = rule(nodes).tolist()
        orders[name] = [_ordered(one, time) for (one, _), time in zip(pairs, times, strict=True)]
    return {name: _summary(validation_of(some, NETWORK), fewest) for name, some in orders.items()}


def _ordered(answer: Answer, time: float) -> Answer:
    """Return an answer as a rule gives it, which knows no memory."""
    row = answer.row
    if row.predicted is None:
        return answer
    predicted = 1 / time if row.metric in RATE_METRICS else time
    return replace(answer, row=replace(row, predicted=predicted, status_predicted="ok"))


def _summary(found: Validation, fewest: int) -> dict[str, Any]:
    return asdict(summarise_ranking([one for one in found.groups if one.n >= fewest]))
