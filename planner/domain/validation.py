"""A validation: predicted against measured runs, row by row and summed up.

Every error, bias, coverage, share and regret is a fraction. ``n`` counts rows; where there are none, figures are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.domain.arrays import frozen_map
from planner.errors import Refusal

__all__ = [
    "AXES", "ORDERS", "ErrorSummary", "GroupRanking", "Growth", "Locked", "MemoryScore", "OrderRanking",
    "RankingSummary", "ScoredRow", "TermScale", "Validation",
]  # fmt: skip

AXES = ("network", "cluster", "source")
"""Properties of a row by which errors are summed up."""
ORDERS = ("this program", "random order", "fewest nodes", "most nodes")
"""What plans of a group are ranked by: predictions, chance, rules of one line."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Relative errors e = predicted / measured - 1 of n rows.

    Attributes
    ----------
    mape, median_ape, p90_ape : mean, median and 90 % quantile of abs(e)
    bias : mean of e: above 0 where predictions are too long (or, of a rate, too high)
    coverage_90 : share of the rows that have an interval whose measured value lies in it, ends included
    """

    n: int
    mape: float | None = None
    median_ape: float | None = None
    p90_ape: float | None = None
    bias: float | None = None
    coverage_90: float | None = None


@dataclass(frozen=True, slots=True)
class GroupRanking:
    """How well the plans of one group were ordered.

    Attributes
    ----------
    n : plans with a prediction that ran, at least 2
    spearman : rank correlation of predicted and measured times; None where all measured times are equal
    top1 : probability that the first choice is the plan measured fastest
    regret, regret_best3 : time of the first choice, and of the best of the first three, over the least time, minus 1
    chose_out_of_memory : probability that the first choice ran out of memory
    """

    group: str
    n: int
    spearman: float | None
    top1: float
    regret: float
    regret_best3: float
    chose_out_of_memory: float


@dataclass(frozen=True, slots=True)
class RankingSummary:
    """Means over ``groups`` groups of at least two plans that ran; ``regret_max`` and ``regret_best3_max``: the worst.

    ``chose_out_of_memory`` is the share of groups whose first choice ran out of memory.
    """

    groups: int
    spearman: float | None = None
    top1: float | None = None
    regret_mean: float | None = None
    regret_max: float | None = None
    regret_best3: float | None = None
    regret_best3_max: float | None = None
    chose_out_of_memory: float | None = None


@dataclass(frozen=True, slots=True)
class OrderRanking:
    """How well one order ranks the plans of the groups of some size; ``plans``: how many a group has, in words."""

    order: str
    plans: str
    figures: RankingSummary


@dataclass(frozen=True, slots=True)
class Locked:
    """Rows that count in sums alone, as nobody is to look at them one by one: of which sources, how many, predicted."""

    sources: tuple[str, ...]
    rows: int
    predicted: int


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """Runs by predicted status, and what memory that was read of them is missed by.

    Attributes
    ----------
    true_out_of_memory, false_out_of_memory, true_ok, false_ok : true or false by what happened: ``false_ok`` was called
        ok and ran out
    n : rows of which memory was read
    error : exp(mean of abs(ln(predicted / measured))) - 1 of these
    bias : exp(mean of ln(predicted / measured)) - 1
    coverage_90 : share of them inside their interval
    """

    true_out_of_memory: int = 0
    false_out_of_memory: int = 0
    true_ok: int = 0
    false_ok: int = 0
    n: int = 0
    error: float | None = None
    bias: float | None = None
    coverage_90: float | None = None


@dataclass(frozen=True, slots=True)
class TermScale:
    """By how much one term would have to be multiplied to explain what predictions miss.

    Attributes
    ----------
    n : rows
    mape : mean absolute relative error as predicted
    scaled_mape : the same with the term scaled, each row by the scale that the other rows ask for
    """

    term: str
    scale: float
    n: int
    mape: float
    scaled_mape: float

    def sentence(self) -> str:
        """Return the finding in words, such as ``all_reduce x 1.4 would take the mean error from 12 to 8 %``."""
        before, after = 100 * self.mape, 100 * self.scaled_mape
        digits = 0 if before - after >= 1 else 1
        return (
            f"{self.term} x {self.scale:.2g} would take the mean error from {before:.{digits}f} to {after:.{digits}f}%"
        )


@dataclass(frozen=True, slots=True)
class Growth:
    """How errors change along an axis, within groups of rows of one source, network and GPU.

    Attributes
    ----------
    axis : GPUs, nodes or sub-batch
    slope : of log(predicted / measured), a doubling
    term : whose share of the predicted time grows most along the axis; empty: no term's does
    n, groups : rows and groups that have several values of the axis
    """

    axis: str
    slope: float
    term: str
    n: int
    groups: int

    def sentence(self) -> str:
        """Return the finding in words."""
        way = "longer" if self.slope > 0 else "shorter"
        beside = f"; {self.term} grows most along it" if self.term else ""
        change = 100 * abs(math.expm1(self.slope))
        return f"with each doubling of {self.axis} times come out {change:.1f}% {way} ({self.groups} groups){beside}"


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One run, predicted or refused.

    Attributes
    ----------
    line : of the file, the first is 1
    metric : ``predicted``, ``low``, ``high`` and ``measured`` are in it
    predicted : as if memory sufficed; None where refused
    low, high : ends of the central 90 % interval; both or neither
    measured : None where the run gave no value
    status_predicted : ``ok`` or ``out_of_memory``; None where refused
    status_measured : ``ok`` or ``out_of_memory``; None where nothing was measured
    in_sample : a calibration that predicts the row has seen it
    refused : why nothing is predicted
    group : rows of one group are plans for the same work; empty: ranked against none
    bottleneck : the term that takes most
    kind : kind of prediction, with a score of its own; see :data:`planner.domain.provenance.PREDICTION_KINDS`
    deviation : standard deviation of log(predicted) that the prediction states of itself, whatever its interval is
    nodes, gpus, sub_batch : that it ran on, and with; 0 where it is no run
    repeats_run : whether another row is of the same run, so that its status counts there
    """

    id: str
    line: int
    metric: str
    predicted: float | None
    low: float | None
    high: float | None
    measured: float | None
    status_predicted: str | None
    status_measured: str | None
    in_sample: bool
    refused: Refusal | None
    network: str = ""
    cluster: str = ""
    gpu: str = ""
    source: str = ""
    group: str = ""
    bottleneck: str | None = None
    kind: str = ""
    deviation: float | None = None
    nodes: int = 0
    gpus: int = 0
    sub_batch: int = 0
    repeats_run: bool = False

    @property
    def error(self) -> float | None:
        """Return predicted / measured - 1; None unless the run was predicted and gave a value."""
        if self.predicted is None or self.measured is None or self.status_measured != "ok":
            return None
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows and what they add up to.

    Attributes
    ----------
    summary : of held-out rows that were predicted and gave a value, like all that follows except ``in_sample`` and
        ``rows``; without rows of memory. ``memory`` and ``memory_by`` are of all predicted rows, as no fit learns
        memory
    by : mapping of AXES to mapping of name to ErrorSummary
    groups : what ``ranking`` sums up, by name
    memory_by : mapping of str to MemoryScore, by source, of those with a row of which memory was read, or that ran out
        of it or was called to
    terms : terms that explain what predictions miss, the best explanation first
    in_sample : of rows that a calibration has seen
    rows : as they stood in the file
    hold_out : what coefficients were refitted without, in turn
    rankings : what ``ranking`` says, of groups of many plans and of few, beside an order by chance and rules of one
        line
    free_numbers : fitted values of the step model, the most of one of the fits; None: nothing was refitted
    locked : rows that are in sums alone: not in ``rows``, ``groups``, ``terms``, nor by network or cluster
    unknown_frameworks : rows by a framework that nobody knows, answered as those of any
    growth : axes along which errors grow, the steepest first
    """

    summary: ErrorSummary
    by: Mapping[str, Mapping[str, ErrorSummary]]
    ranking: RankingSummary
    groups: tuple[GroupRanking, ...]
    memory: MemoryScore
    terms: tuple[TermScale, ...]
    in_sample: ErrorSummary
    rows: tuple[ScoredRow, ...] = field(repr=False)
    hold_out: str | None = None
    rankings: tuple[OrderRanking, ...] = ()
    free_numbers: int | None = None
    locked: Locked | None = None
    memory_by: Mapping[str, MemoryScore] = field(default_factory=dict)
    unknown_frameworks: Mapping[str, int] = field(default_factory=dict)
    growth: tuple[Growth, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", frozen_map({axis: frozen_map(summaries) for axis, summaries in self.by.items()}))
