"""What a search minimises: one quantity, or a weighted sum of several, each over its own least.

Nothing here imports NumPy, because ``planner --help`` lists the terms.
"""

from __future__ import annotations

import re

from planner.errors import NOTHING, ParameterError, nearest_name
from planner.units import parse_number

__all__ = ["TERMS", "is_sum", "weights_of"]

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
