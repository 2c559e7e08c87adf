"""A suggestion: ranked plans, what was searched, and what to loosen when nothing fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.domain.arrays import frozen_map
from planner.domain.citation import Citation
from planner.domain.configuration import Configuration
from planner.domain.framework import Framework
from planner.domain.prediction import PlanWarning, Prediction
from planner.domain.request import Sourced, Subject
from planner.domain.sensitivity import Sensitivity
from planner.domain.start import start_command, start_comment

__all__ = ["CHOICES", "MOST_OF_FRONT", "Loosening", "Plan", "Refused", "SearchReport", "Suggestion"]

CHOICES = ("fewest-gpus", "fastest", "least-regret")
"""Which of the tied plans is taken."""
LEAST_GAP = 1e-4
"""Of the best value, below which how much better another plan may be is not told in figures."""
MOST_OF_FRONT = 50
"""Plans of a Pareto front that an answer tells of; the others are counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A ranked plan and the sentence that says why it stands there.

    Attributes
    ----------
    position : from 1, in the order of prediction
    precisions : every precision in which the same plan has the same prediction, that of the configuration first
    first_is_better : probability that plan 1 is better by the objective; None for plan 1, and where errors are not
        known
    efficiency : samples a second and device over those of the suggestion's ``baseline``; None: no baseline
    framework : one of several that were asked for; None: that of the subject
    objective : value of a weighted objective; None: a single quantity is minimised
    alike : mapping of str to tuple of str, of the plans that share its line, within 1 % of it on as many ranks of each
        kind: their values by axis in which they differ, its own first
    """

    position: int
    prediction: Prediction
    why: str
    precisions: tuple[str, ...] = ()
    first_is_better: float | None = None
    efficiency: float | None = None
    framework: Framework | None = None
    objective: float | None = None
    alike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.precisions:
            object.__setattr__(self, "precisions", (self.prediction.configuration.precision,))

    def subject(self, shared: Subject) -> Subject:
        """Return what the plan is of; ``shared``: what the plans of the answer share."""
        return shared.trained_in(self.framework) if self.framework else shared

    def start(self, shared: Subject) -> str:
        """Return the command that starts it, with what the program must be told behind it as a comment."""
        one, settings = self.prediction.configuration, self.subject(shared).settings
        what = start_comment(one, settings, self.prediction.rank_order)
        return f"{start_command(one, settings.framework)}  # {what}"


@dataclass(frozen=True, slots=True)
class Refused:
    """How many candidates were refused for one reason: its code for programs, its sentence for people."""

    code: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class SearchReport:
    """How the space was searched; ``certified``: no better plan exists in it.

    Of the ``candidates`` those that satisfy the request were ranked, ``evaluated`` in number; ``refused`` counts those
    that do not by reason; ``discarded`` ones were not priced, as a bound, or the end of the search, left them out. Of a
    search that was stopped ``gap`` is by how much of the best value another plan may be better at most; None: unknown.
    ``trials``: plans that a sampler proposed, which are all candidates then; 0: it was asked for none.
    """

    method: str
    certified: bool
    candidates: int
    evaluated: int
    refused: tuple[Refused, ...]
    discarded: int = 0
    gap: float | None = None
    trials: int = 0

    @property
    def ranked(self) -> str:
        """In words, the plans among which the best was found."""
        if self.trials:
            return self._tried
        plans = f"{self.evaluated:,} plan{'s' if self.evaluated > 1 else ''}"
        if not self.discarded:
            return plans
        if self.certified:
            return f"{self.evaluated + self.discarded:,} candidates"
        return f"{plans} priced in time{self.at_most}"

    @property
    def _tried(self) -> str:
        plans = f"{self.evaluated:,} tried by Optuna"
        rest = self.at_most or ("" if self.certified else "; a better one may exist")
        return f"{'the whole space, ' if self.certified else 'the '}{plans}{rest}"

    @property
    def at_most(self) -> str:
        """In words, by how much another plan may be better; nothing where that is not known."""
        if self.certified or self.gap is None:
            return ""
        most = "less than 0.01" if self.gap < LEAST_GAP else f"at most {100 * self.gap:.2g}"
        return f"; another is {most} % better"


@dataclass(frozen=True, slots=True)
class Loosening:
    """A constraint to loosen so that something fits, and what is reached then.

    ``changes`` are pairs of an option and the value that suffices: several where they must give way together.
    ``change``: how large it is, relative; see :mod:`planner.search.loosen`. It orders them, and no document keeps it.
    """

    changes: tuple[tuple[str, str], ...]
    message: str
    change: float = field(default=math.inf, compare=False)

    @property
    def option(self) -> str:
        """The options in one text, separated by spaces."""
        return " ".join(option for option, _ in self.changes)

    @property
    def value(self) -> str:
        """Their values, likewise."""
        return " ".join(value for _, value in self.changes)

    @property
    def given(self) -> str:
        """Each option with its value, as they may be typed."""
        return " ".join(word for pair in self.changes for word in pair)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The answer to one request under one scenario.

    Attributes
    ----------
    request : mapping of request key to Sourced
    status : {"found", "none_feasible"}
    plans : in the order of prediction; the chosen one stands last where it is not among the first ones reported
    pareto : the first MOST_OF_FRONT of the front
    nearest, loosen : : where nothing fits
    conflict : likewise: a smallest set of constraints that contradict each other, as they may be typed, defaults in
        words
    pareto_more : plans of the front beyond ``pareto``
    warnings : of all plans, each once
    chosen : position of the plan to take among the tied
    choice : why it is taken, in words
    tied : positions of plan 1 and of all plans tied with it, among the best 50; equal plans count once
    deciding : positions of the tied plans whose measured steps would decide; empty where nothing is tied
    baseline : of the fewest devices among the plans ranked, the fastest: what efficiencies are relative to. None of
        trials
    baseline_framework : its framework, where several were asked for
    citations : of the calibrations that the plans rest on
    switches : mapping of str to float, of the framework of the plan to take, those that are off and would make it
        faster, joined by + where one needs another, and by how many times; the best first
    sensitivity : what a change of single inputs does to the best plan; empty where it was not asked for
    leasts : mapping of term to float, of a weighted objective what each term is divided by: its least of all plans, in
        s and USD of an epoch, without a data set of a sample
    frameworks : mapping of str to float, of several frameworks each that has a plan, and how many times the objective
        of the best plan its best one has
    """

    request: Mapping[str, Sourced[object]]
    status: str
    plans: tuple[Plan, ...]
    pareto: tuple[Plan, ...]
    search: SearchReport
    nearest: tuple[Plan, ...] = ()
    loosen: tuple[Loosening, ...] = ()
    warnings: tuple[PlanWarning, ...] = field(default_factory=tuple)
    chosen: int | None = None
    choice: str = ""
    tied: tuple[int, ...] = ()
    baseline: Configuration | None = None
    baseline_framework: Framework | None = None
    citations: tuple[Citation, ...] = ()
    switches: Mapping[str, float] = field(default_factory=dict)
    conflict: tuple[str, ...] = ()
    pareto_more: int = 0
    leasts: Mapping[str, float] = field(default_factory=dict)
    deciding: tuple[int, ...] = ()
    sensitivity: tuple[Sensitivity, ...] = ()
    frameworks: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "request", frozen_map(self.request))
        object.__setattr__(self, "leasts", frozen_map(self.leasts))

    @property
    def chosen_plan(self) -> Plan | None:
        """The plan to take; None where nothing fits."""
        return next((plan for plan in self.plans if plan.position == self.chosen), None)

    @property
    def deciding_plans(self) -> tuple[Plan, ...]:
        """The tied plans whose measured steps would decide."""
        return tuple(plan for plan in self.plans if plan.position in self.deciding)
