"""What is minimised, and what may be limited; nothing here imports NumPy, because ``planner --help`` lists it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import NOTHING, ParameterError, nearest_name
from planner.units import parse_number

__all__ = ["LIMITS", "TERMS", "is_sum", "weights_of"]

TERMS = ("epoch-time", "cost")
"""Quantities that may stand in a sum."""


def is_sum(objective: str) -> bool:
    """Return whether an objective is a weighted sum, such as ``epoch-time:1+cost:0.2``."""
    return ":" in objective or "+" in objective


def weights_of(objective: str, what: str = "objective") -> dict[str, float]:
    """Return the weight of each term of an objective, in its order; a single quantity has the weight 1.

    Parameters
    ----------
    what : names the objective in errors

    ParameterError: a sum has an unknown term, one that stands twice, or a weight that is no number above 0.
    """
    if not is_sum(objective):
        return {objective: 1.0}
    weights: dict[str, float] = {}
    for part in re.split(r"\+(?!\d)", objective):  # the plus of 1e+3 is of a number
        term, _, text = (one.strip() for one in part.partition(":"))
        if term not in TERMS:
            near = nearest_name(term, TERMS)
            remedy = f"did you mean {near!r}?" if near else "write for example epoch-time:1+cost:0.2"
            raise ParameterError(f"term of {what}", f"one of {', '.join(TERMS)}", term or NOTHING, remedy)
        if term in weights:
            raise ParameterError(what, "a sum with each term once", objective)
        weights[term] = parse_number(text, f"weight of {term} in {what}", f"write for example {term}:1")
    return weights


@dataclass(frozen=True, slots=True)
class Limited:
    """A quantity that may be limited.

    ``words``: in a sentence. ``unit``: of the number that stands in documents. ``of_epoch``: whether it needs a data
    set. ``is_least``: whether a plan must have at least as much, where it may take at most as much of the others.
    """

    words: str
    unit: str
    of_epoch: bool = True
    is_least: bool = False

    @property
    def side(self) -> str:
        """On which side of its limit a plan is refused."""
        return "below" if self.is_least else "above"


LIMITS: Mapping[str, Limited] = {
    "epoch": Limited("epoch time", "s"),
    "gpu-hours": Limited("GPU-hours of an epoch", "h"),
    "cost": Limited("cost of an epoch", "USD"),
    "nodes": Limited("nodes", "", of_epoch=False),
    "staleness": Limited("mean staleness", "", of_epoch=False),
    "window": Limited("share of updates inside the window", "share", of_epoch=False, is_least=True),
}
