"""A suggestion: ranked plans, what was searched, what to loosen when nothing fits; and answers beside the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from planner.domain.arrays import frozen_map
from planner.domain.configuration import Configuration
from planner.domain.framework import Framework
from planner.domain.job import PlanToStart
from planner.domain.keys import ALWAYS, Key
from planner.domain.objective import TERMS
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import Citation, PlanWarning, Prediction, Run
from planner.domain.request import Sourced, Subject

PLANS: Mapping[str, int] = {"least": 0, "most": 10**18}
"""Bounds of a number of plans."""
REFUSALS = ("precision", "mode", "accumulation", "below_window", "above_window", "memory", "degrees", "limit", "other")
"""Codes of the reasons why candidates are refused."""
INPUTS = ("inter-node bandwidth", "intra-node bandwidth", "kernel times", "host time of a call", "memory of a device")
"""What is changed, each alone."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The best plan where one input is another; None: no plan satisfies the request then, or it is of one framework."""

    input: Annotated[str, Key("what is changed alone", choices=INPUTS)]
    factor: Annotated[float, Key("by which it is multiplied")]
    is_other: Annotated[bool, Key("whether another plan than the first is then the best")]
    best: Configuration | None
    framework: Framework | None
    position: Annotated[int | None, Key("of the best plan then; absent: it is not among plans", absent=None)]
    behind: Annotated[
        float | None, Key("more of the objective of the plan to take, relative; absent: it does not fit", absent=None)
    ]


CHOICES = ("fewest-gpus", "fastest", "least-regret")
"""Which of the tied plans is taken."""
LEAST_GAP = 1e-4
"""Of the best value, below which how much better another plan may be is not told in figures."""
KNEE_TIMES, KNEE_SHARE = 2.0, 0.8
"""How many times as long as plan 1 the plan with the least GPU-hours may take, and what part of its GPU-hours."""
MOST_OF_FRONT = 50
"""Plans of a Pareto front that an answer tells of; the others are counted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A ranked plan and the sentence that says why it stands there.

    Attributes
    ----------
    precisions : that of the configuration first
    framework : one of several that were asked for; None: that of the subject
    """

    position: Annotated[int, Key("rank")]
    prediction: Prediction
    why: Annotated[str, Key("why it stands there", absent="")]
    precisions: Annotated[
        tuple[str, ...],
        Key(
            "all in which the plan is predicted the same; absent: that of the configuration alone",
            size=(2, None),
            choices=tuple(PRECISIONS),
        ),
    ] = ()
    first_is_better: Annotated[
        float | None,
        Key("that plan 1 is better; absent: plan 1, or not known", name="probability_first_better", unit="share"),
    ] = None
    efficiency: Annotated[float | None, Key("samples a second and device over those of the baseline")] = None
    framework: Framework | None = None
    objective: Annotated[float | None, Key("value of a weighted objective; absent: one quantity is minimised")] = None
    alike: Annotated[
        Mapping[str, tuple[str, ...]],
        Key(
            "values, by axis, of the plans within 1% of it that share its line, its own first; absent: none does",
            size=(2, None),
        ),
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.precisions:
            object.__setattr__(self, "precisions", (self.prediction.configuration.precision,))

    def subject(self, shared: Subject) -> Subject:
        """Return what the plan is of; ``shared``: what the plans of the answer share."""
        return shared.trained_in(self.framework) if self.framework else shared

    def position_among(self, plans: Iterable[Plan]) -> int | None:
        """Return the position of the same plan among others of one question; None: it is not there."""
        same = (self.prediction.configuration, self.framework)
        return next((one.position for one in plans if (one.prediction.configuration, one.framework) == same), None)

    def to_start(self, shared: Subject, run: Run | None = None) -> PlanToStart:
        """Return what starts it is made from."""
        return PlanToStart.of(self.prediction, self.subject(shared), self.position, run)


@dataclass(frozen=True, slots=True)
class Refused:
    """Candidates that were refused for one reason."""

    code: Annotated[str, Key("for programs", choices=REFUSALS)]
    reason: Annotated[str, Key("for people")]
    count: Annotated[int, Key("plans that are refused for it", **PLANS)]


@dataclass(frozen=True, slots=True)
class SearchReport:
    """How the space was searched; ``gap`` and ``trials`` of a search that was stopped, or by samples."""

    method: Annotated[str, Key("how the space was searched")]
    certified: Annotated[bool, Key("whether no better plan exists in it")]
    candidates: Annotated[int, Key("plans of the space: those ranked, refused and discarded", **PLANS)]
    evaluated: Annotated[int, Key("plans that satisfy the request and were ranked", **PLANS)]
    refused: Annotated[tuple[Refused, ...], Key("plans that do not satisfy it, by the reason why they were refused")]
    discarded: Annotated[int, Key("plans that a bound, or the end of the search, left out", **PLANS)] = 0
    gap: Annotated[float | None, Key("part of the best value by which another plan may be better at most")] = None
    trials: Annotated[int, Key("plans that Optuna tried; absent: none", **PLANS)] = 0

    @property
    def ranked(self) -> str:
        """In words, the plans among which the best was found."""
        if self.trials:
            rest = self.at_most or ("" if self.certified else "; a better one may exist")
            return f"the {'whole space, ' * self.certified}{self.evaluated:,} tried by Optuna{rest}"
        plans = f"{self.evaluated:,} plan{'s' if self.evaluated > 1 else ''}"
        if not self.discarded:
            return plans
        if self.certified:
            return f"{self.evaluated + self.discarded:,} candidates"
        return f"{plans} priced in time{self.at_most}"

    @property
    def at_most(self) -> str:
        """In words, by how much another plan may be better; nothing where that is not known."""
        if self.certified or self.gap is None:
            return ""
        most = "less than 0.01" if self.gap < LEAST_GAP else f"at most {100 * self.gap:.2g}"
        return f"; another is {most}% better"


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
    plans : in the order of prediction; the chosen one stands last where it is not among the first ones reported
    pareto : the first MOST_OF_FRONT of the front
    nearest, loosen, conflict : where nothing fits
    warnings : of all plans, each once
    tied : among plan 2, the first plans of the best 50 lines, the best plan on each smaller number of devices, and the
        chosen one; equal plans count once
    baseline : of the fewest devices among the plans ranked, the fastest: what efficiencies are relative to. None of
        trials
    baseline_framework : its framework, where several were asked for
    """

    request: Mapping[str, Sourced[object]]
    status: Annotated[str, Key("whether any plan fits", choices=("found", "none_feasible"))]
    plans: tuple[Plan, ...]
    pareto: tuple[Plan, ...]
    search: Annotated[SearchReport, Key("how the space was searched")]
    nearest: tuple[Plan, ...] = ()
    loosen: Annotated[tuple[Loosening, ...], Key("what to loosen, when none fits")] = ()
    warnings: tuple[PlanWarning, ...] = field(default_factory=tuple)
    chosen: Annotated[int | None, Key("position of the plan to take among the tied")] = None
    choice: Annotated[str, Key("why it is taken")] = ""
    knee: Annotated[
        int | None,
        Key(
            f"position of the plan with the fewest GPU-hours of those within {KNEE_TIMES:g} times the time of plan 1; "
            f"absent: none has at most {KNEE_SHARE:.0%} of its GPU-hours"
        ),
    ] = None
    tied: Annotated[tuple[int, ...], Key("positions of plan 1 and of those tied with it")] = ()
    baseline: Configuration | None = None
    baseline_framework: Framework | None = None
    citations: tuple[Citation, ...] = ()
    switches: Annotated[Mapping[str, float], Key("of the plan's framework, those off that pay -> times faster")] = (
        field(default_factory=dict)
    )
    conflict: Annotated[
        tuple[str, ...],
        Key("when none fits, a smallest set of constraints that contradict each other; absent: not known"),
    ] = ()
    pareto_more: Annotated[int, Key("plans of the front beyond those told; absent: none")] = 0
    leasts: Annotated[
        Mapping[str, float],
        Key(
            "what the terms of a weighted objective are divided by: the least of all plans, in s, h and USD", keys=TERMS
        ),
    ] = field(default_factory=dict)
    deciding: Annotated[
        tuple[int, ...], Key("positions of tied plans whose measured steps would decide", name="deciding_runs")
    ] = ()
    sensitivity: tuple[Sensitivity, ...] = ()
    frameworks: Annotated[
        Mapping[str, float],
        Key("of several frameworks each with a plan -> times the objective of the best plan that its best one has"),
    ] = field(default_factory=dict)
    clusters: Annotated[
        Mapping[str, float],
        Key("of several clusters each with a plan -> times the objective of the best one's plan that its own has"),
    ] = field(default_factory=dict)
    first_cluster_is_better: Annotated[
        float | None,
        Key(
            "probability that the plan of the best cluster is better than this one's; absent: this is it, or not known",
            unit="share",
        ),
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "request", frozen_map(self.request))
        object.__setattr__(self, "leasts", frozen_map(self.leasts))

    @property
    def chosen_plan(self) -> Plan | None:
        """The plan to take; None where nothing fits."""
        return self._at(self.chosen)

    @property
    def run(self) -> Run | None:
        """The whole training, where the request says one."""
        epochs, tokens = (self.request[name].value if name in self.request else 0 for name in ("epochs", "tokens"))
        if not epochs and not tokens and "deadline" not in self.request:
            return None
        return Run(int(str(epochs)) or 1, float(str(tokens)))

    @property
    def knee_plan(self) -> Plan | None:
        """The plan with the least GPU-hours; None: it is not told."""
        return self._at(self.knee)

    def _at(self, position: int | None) -> Plan | None:
        return next((plan for plan in self.plans if plan.position == position), None)

    @property
    def deciding_plans(self) -> tuple[Plan, ...]:
        """The tied plans whose measured steps would decide."""
        return tuple(plan for plan in self.plans if plan.position in self.deciding)


def question_of(subject: Subject, one: Suggestion) -> tuple[object, ...]:
    """Return what identifies the question that an answer is to, apart from the cluster."""
    return (subject.network, subject.network_option, subject.scenario, one.request["target_batch"].value)


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan and what is minimised; ``framework``: one of several that were asked for; None: no other was."""

    configuration: Configuration
    objective: Annotated[float, Key("what is minimised: s or USD of an epoch (no data set: of a sample), or a sum")]
    framework: Framework | None = None


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer about plans with certain values.

    Attributes
    ----------
    request : mapping of request key to Sourced
    outside : a sentence each; ``best`` is then of a request that tries them
    framework : ``first`` and ``rank`` are of the plans of all. Empty: no other was asked for
    """

    request: Mapping[str, Sourced[object]]
    values: Annotated[Mapping[str, str], Key("what is asked about, by option")]
    first: Annotated[RankedPlan | None, Key("the best plan of the request; absent: nothing satisfies it", absent=None)]
    best: Annotated[
        RankedPlan | None, Key("the best plan with the values; absent: none of them satisfies the request", absent=None)
    ]
    rank: Annotated[int | None, Key("of best among all plans, each precision by itself, from 1", absent=None)]
    evaluated: Annotated[int | None, Key("plans that satisfy the request, of which rank is", absent=None, **PLANS)]
    outside: Annotated[
        tuple[str, ...], Key("values that the request does not try, the cluster has not, or a rule forbids")
    ] = ()
    candidates: Annotated[int, Key("candidates with the values", absent=ALWAYS, **PLANS)] = 0
    refused: Annotated[tuple[Refused, ...], Key("of them, by the reason")] = ()
    loosen: Annotated[tuple[Loosening, ...], Key("what else to change; where all are refused")] = ()
    framework: Annotated[str, Key("of the plans asked about, one of several; absent: that of the subject")] = ""

    @property
    def status(self) -> str:
        """``ranked``; ``outside``: the request tries no such plan; ``refused``: a constraint is in the way."""
        return "ranked" if self.rank else "outside" if self.outside else "refused"

    def __post_init__(self) -> None:
        for name in ("request", "values"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class SweptPlan:
    """The best plan of one number of nodes and sub-batch; times in seconds, None without a data set.

    ``objective``: epoch time [s], its cost [USD] (without a data set of a sample) or a weighted sum.
    """

    rank: Annotated[int, Key("among the plans of the sweep, from 1")]
    configuration: Configuration
    objective: Annotated[float, Key("what is minimised")]
    iteration_s: Annotated[float, Key("one update; asynchronous: one period of a device's thread")]
    epoch_s: Annotated[float | None, Key("a later epoch; absent: no data set", absent=None)]
    samples_per_s: Annotated[float, Key("samples a second")]
    mini_batch: float
    memory_bytes: Annotated[int, Key("needed on one device", **PLANS)]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The plans by nodes, then sub-batch, and how the space was searched."""

    request: Mapping[str, Sourced[object]]
    plans: Annotated[
        tuple[SweptPlan, ...], Key("by nodes, then sub-batch; those without a plan are absent", size=(1, None))
    ]
    candidates: Annotated[int, Key("plans of the space", **PLANS)]
    evaluated: Annotated[int, Key("plans that satisfy the request", **PLANS)]
    is_complete: Annotated[bool, Key("whether all plans were priced; false: it was interrupted", name="complete")] = (
        True
    )

    @property
    def best(self) -> SweptPlan:
        """The first of all."""
        return min(self.plans, key=lambda one: one.rank)

    @property
    def of_nodes(self) -> dict[int, SweptPlan]:
        """The best plan of each number of nodes."""
        least: dict[int, SweptPlan] = {}
        for one in sorted(self.plans, key=lambda one: one.rank):
            least.setdefault(one.configuration.nodes, one)
        return dict(sorted(least.items()))
