"""What is minimised, and what may be limited; nothing here imports NumPy, because ``planner --help`` lists it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import NOTHING, ParameterError, nearest_name
from planner.units import format_duration, format_number, parse_number


@dataclass(frozen=True, slots=True)
class Objective:
    """What may be minimised: seconds of an epoch (without a data set of a sample), or what grows with them.

    Attributes
    ----------
    noun, unit : of it, as in ``time`` and ``s``
    words : of an epoch, in a sentence
    best, best_sample : the plan with the least, of an epoch and of a sample
    worse, better : what another plan is beside it
    is_of_gpus, needs_price : what the seconds are multiplied by
    """

    noun: str
    unit: str
    words: str
    best: str
    best_sample: str
    worse: str
    better: str
    is_of_gpus: bool = False
    needs_price: bool = False

    def rate(self, gpus: Any, usd_per_gpu_hour: float | None) -> Any:
        """Return the objective of one second on a number of GPUs."""
        price = (usd_per_gpu_hour or 0.0) if self.needs_price else 1.0
        return gpus * price / 3600.0 if self.is_of_gpus else 1.0

    def text(self, value: float, digits: int = 3) -> str:
        """Return a value with its unit, for people."""
        if self.unit == "s":
            return format_duration(value, digits)
        return f"{format_number(value, digits)} {self.unit}" if self.unit else format_number(value, 4)


TERMS: Mapping[str, Objective] = {
    "epoch-time": Objective(
        "time", "s", "epoch time", "shortest epoch", "most samples per second", "slower", "faster"
    ),
    "gpu-hours": Objective(
        "GPU-hours", "h", "GPU-hours of an epoch", "fewest GPU-hours of an epoch", "fewest GPU-hours of a sample",
        "more", "less", is_of_gpus=True,
    ),
    "cost": Objective(
        "cost", "USD", "cost of an epoch", "cheapest epoch", "cheapest sample", "dearer", "cheaper", is_of_gpus=True,
        needs_price=True,
    ),
}  # fmt: skip
"""Objectives, which may also stand in a sum. One more is a record here."""


def objective_named(name: str) -> Objective:
    """Return the record of an objective, as a request has it; of a weighted sum one without a unit."""
    return TERMS.get(name) or Objective("objective", "", "objective", f"least {name}", f"least {name}", "more", "less")


def is_sum(objective: str) -> bool:
    """Return whether an objective is a weighted sum, such as ``epoch-time:1+cost:0.2``."""
    return ":" in objective or "+" in objective


def weights_of(objective: str, what: str = "objective") -> dict[str, float]:
    """Return the weight of each term of an objective, in its order; a single quantity has the weight 1.

    ``what``: names the objective in errors.

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
    ``term``: the objective of which the same plan has the least; empty: none has. ``option``: that says it; empty:
    ``--limit``.
    """

    words: str
    unit: str
    of_epoch: bool = True
    is_least: bool = False
    term: str = ""
    option: str = ""

    @property
    def side(self) -> str:
        """On which side of its limit a plan is refused."""
        return "below" if self.is_least else "above"


LIMITS: Mapping[str, Limited] = {
    **{
        "epoch" if term == "epoch-time" else term: Limited(one.words, one.unit, term=term)
        for term, one in TERMS.items()
    },
    "nodes": Limited("nodes", "", of_epoch=False),
    "staleness": Limited("mean staleness", "", of_epoch=False),
    "window": Limited("share of updates inside the window", "share", of_epoch=False, is_least=True),
    "samples-per-s": Limited("samples a second", "", of_epoch=False, is_least=True),
    "tokens-per-s": Limited("tokens a second", "", of_epoch=False, is_least=True),
    "efficiency": Limited("efficiency", "share", of_epoch=False, is_least=True),
    "run": Limited("time of the whole training", "s", term="epoch-time", option="--deadline"),
}
