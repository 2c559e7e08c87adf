"""Training runs, measured or wanted, one record a row of a runs file; and their validation against predictions.

Every error, bias, coverage, share and regret is a fraction. ``n`` counts rows; where there are none, figures are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from planner.domain.arrays import LARGEST_COUNT, check_count, frozen_map
from planner.domain.axes import AXES, check_rank_order, with_axes
from planner.domain.configuration import DEGREES, LARGEST_MINI_BATCH, OPTIMIZERS, SPLIT_AXES
from planner.domain.framework import STRATEGIES
from planner.domain.keys import ALWAYS, Key
from planner.errors import NOTHING, ParameterError, Refusal, nearest_name

MEMORY_METRIC = "memory_bytes"
METRICS = (
    "iteration_s", "update_s", "samples_per_s", "epoch_s", "mini_batch_mean", "staleness_mean", MEMORY_METRIC,
)  # fmt: skip
"""What a value is: seconds of one update (asynchronous: of the GPU thread), seconds of the update thread, a rate of the
whole job, seconds of an epoch, the means of two random variables, and the most bytes on one device."""
MEMORY_READINGS = ("in use", "reserved", "trials", "allocated")
"""What memory was read, as notes state it: of the device, of the allocator, of tensors with trials, or without."""
ASYNCHRONOUS_METRICS = ("update_s", "staleness_mean")
STATUSES = ("ok", "out_of_memory")
INPUTS = ("synthetic", "storage")
CHOICES = {
    "metric": METRICS, **{axis.name: axis.words for axis in AXES if axis.words},
    "status": STATUSES, "strategy": ("", *STRATEGIES), "input": INPUTS, "optimizer": ("", *OPTIMIZERS),
}  # fmt: skip
"""Fields of a run whose values are words -> those words."""
_ASYNC_VALUES = {axis.name: axis.default for axis in AXES if axis.only_sync}
_OPEN_FIELDS = ("gpus_per_node", "mini_batch", "sub_batch", "accumulation_steps", "data_parallel")
_LEAST_COUNTS = {axis.name: axis.least for axis in AXES if not axis.words}
_LEAST_COUNTS |= dict.fromkeys(_OPEN_FIELDS, 1)
_LARGEST_COUNTS = {axis.name: axis.most for axis in AXES if axis.most}
"""Fields of whole numbers -> the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
@with_axes
class Run:
    """One training run: its plan and what was measured of it.

    mini_batch = data_parallel x sub_batch x accumulation_steps, and data_parallel x tensor_parallel x
    pipeline_parallel = GPUs. What these leave open is derived when the record is made; ``accumulation_steps`` is 1
    where two are open. Without ``gpus_per_node`` the GPUs are all those of a node: the numbers that depend on it stay
    None until :meth:`on` is told how many that is.

    Attributes
    ----------
    id, network, cluster, metric : ``network`` and ``cluster`` are names or paths as written; paths of clusters start
        from the file of runs
    value : in the unit of ``metric``; None of a wanted run, and where memory did not suffice
    mini_batch : asynchronous: samples of one gradient of each GPU, since what stands behind an update is random
    optimizer : empty for the default of the network
    input : {"synthetic", "storage"}, derived: an epoch reads its samples from storage, other metrics do without
    rank_order : in which ranks are numbered, innermost first; empty: as the framework does
    placement : GPUs on each node where that is stated. ``gpus_per_node`` is then the largest
    line : where the run stands in its file; 0 outside files

    ParameterError: a value against its rule, or values that contradict each other.
    """

    id: str
    network: str
    cluster: str
    metric: str
    value: float | None = None
    nodes: int = 1
    gpus_per_node: int | None = None
    mini_batch: int | None = None
    sub_batch: int | None = None
    accumulation_steps: int | None = None
    precision: str = "fp32"
    mode: str = "sync"
    data_parallel: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    virtual_stages: int = 1
    recompute: str = "none"
    sharding: int = 0
    sequence_parallel: str = "off"
    context_parallel: int = 1
    expert_parallel: int = 1
    schedule: str = "1f1b"
    shard_group: str = "all"
    offload: str = "none"
    optimizer: str = ""
    framework: str = "pytorch"
    framework_version: str = ""
    status: str = "ok"
    input: str = ""
    strategy: str = ""
    dataset: str = ""
    source: str = ""
    group: str = ""
    notes: str = ""
    rank_order: tuple[str, ...] = ()
    placement: tuple[int, ...] = ()
    line: int = 0

    def __post_init__(self) -> None:
        for what in ("id", "network", "cluster"):
            if not getattr(self, what):
                raise ParameterError(what, "given", NOTHING)
        if not self.input:
            self._set("input", "storage" if self.metric == "epoch_s" else "synthetic")
        for what, words in CHOICES.items():
            if (word := getattr(self, what)) not in words:
                near = nearest_name(word, words)
                listing = ", ".join(filter(None, words))
                raise ParameterError(what, f"one of {listing}", word, f"did you mean {near!r}?" if near else "")
        if self.rank_order:
            check_rank_order("rank_order", self.rank_order)
        for what, least in _LEAST_COUNTS.items():
            if what not in _OPEN_FIELDS or getattr(self, what) is not None:
                check_count(what, getattr(self, what), least, _LARGEST_COUNTS.get(what, LARGEST_COUNT))
        if self.value is not None and not (math.isfinite(self.value) and self.value > 0):
            raise ParameterError("value", "a finite number above 0", self.value)
        if self.value is not None and self.metric == MEMORY_METRIC and self.memory_reading not in self.notes:
            rule = f"with what was read where metric is {MEMORY_METRIC}: {', '.join(MEMORY_READINGS)}"
            raise ParameterError("notes", rule, self.notes or NOTHING)
        self._place()
        self._check_plan()
        self._derive()

    @property
    def gpus(self) -> int | None:
        """Accelerators in all; None where the GPUs of a node are not known yet."""
        if self.placement:
            return sum(self.placement)
        return None if self.gpus_per_node is None else self.nodes * self.gpus_per_node

    @property
    def memory_reading(self) -> str:
        """Which of MEMORY_READINGS its notes state; the first where they state none."""
        return next((one for one in MEMORY_READINGS if one in self.notes), MEMORY_READINGS[0])

    @property
    def is_uneven(self) -> bool:
        """Whether the nodes hold unequal numbers of GPUs."""
        return len(set(self.placement)) > 1

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole network and keeps all that belongs to it."""
        return all(getattr(self, axis.name) in (axis.default, None) for axis in SPLIT_AXES)

    def on(self, gpus_of_a_node: int) -> Run:
        """Return the run with every number known, on nodes of so many GPUs.

        ParameterError: the numbers contradict each other on such nodes.
        """
        return self if self.gpus_per_node is not None else replace(self, gpus_per_node=gpus_of_a_node)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _place(self) -> None:
        if not self.placement:
            return
        for count in self.placement:
            check_count("placement", count)
        text = "+".join(str(count) for count in self.placement)
        if len(self.placement) != self.nodes:
            rule = f"of {self.nodes} nodes, as nodes says"
            raise ParameterError("placement", rule, text)
        if self.gpus_per_node not in (None, max(self.placement)):
            raise ParameterError("gpus_per_node", f"the largest of placement {text}", self.gpus_per_node)
        self._set("gpus_per_node", max(self.placement))

    def _check_plan(self) -> None:
        if self.virtual_stages > 1 and self.pipeline_parallel == 1:
            raise ParameterError("virtual_stages", "1 where pipeline_parallel is 1", self.virtual_stages)
        if self.mode == "sync":
            if self.metric in ASYNCHRONOUS_METRICS:
                raise ParameterError("metric", "one of a synchronous run where mode is sync", self.metric)
            return
        for what, alone in _ASYNC_VALUES.items():
            if getattr(self, what) not in (None, alone):
                raise ParameterError(what, f"{alone} where mode is async", getattr(self, what))

    def _derive(self) -> None:
        self._derive_data_parallel()
        if self.mini_batch is None and self.sub_batch is None:
            raise ParameterError("sub_batch", "given, or mini_batch", NOTHING)
        if self.data_parallel is None:
            return
        open_ones = [what for what in _OPEN_FIELDS[1:4] if getattr(self, what) is None]
        if self.accumulation_steps is None and (len(open_ones) > 1 or self.mode == "async"):
            self._set("accumulation_steps", 1)
        if self.mini_batch is None:
            self._set("mini_batch", self._product("data_parallel", "sub_batch", "accumulation_steps"))
        elif self.sub_batch is None:
            self._set("sub_batch", self._quotient("data_parallel", "accumulation_steps"))
        elif self.accumulation_steps is None:
            self._set("accumulation_steps", self._quotient("data_parallel", "sub_batch"))
        product = self._product("data_parallel", "sub_batch", "accumulation_steps")
        if product > LARGEST_MINI_BATCH:
            raise ParameterError("mini_batch", f"at most {LARGEST_MINI_BATCH:,} samples", product)
        if self.mini_batch != product:
            rule = f"data_parallel x sub_batch x accumulation_steps = {product}"
            raise ParameterError("mini_batch", rule, self.mini_batch)

    def _derive_data_parallel(self) -> None:
        model = self._product(*DEGREES)
        if self.data_parallel is None and self.gpus is not None:
            if self.gpus % model:
                rule = f"a multiple of {' x '.join(DEGREES)} = {model}"
                raise ParameterError("the number of GPUs", rule, self.gpus)
            self._set("data_parallel", self.gpus // model)
        elif self.data_parallel is None and None not in (self.mini_batch, self.sub_batch, self.accumulation_steps):
            self._set("data_parallel", self._quotient("sub_batch", "accumulation_steps"))
        elif self.data_parallel is not None and self.gpus not in (None, self.data_parallel * model):
            rule = f"{' x '.join(('data_parallel', *DEGREES))} = {self.data_parallel * model}"
            raise ParameterError("the number of GPUs", rule, self.gpus)

    def _product(self, *names: str) -> int:
        return math.prod(int(getattr(self, name)) for name in names)

    def _quotient(self, *names: str) -> int:
        divisor = self._product(*names)
        quotient, rest = divmod(self._product("mini_batch"), divisor)
        if rest:
            raise ParameterError("mini_batch", f"a multiple of {' x '.join(names)} = {divisor}", self.mini_batch)
        return quotient


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that is no run, where it stands, and why."""

    line: int
    id: str
    reason: Refusal


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a file in its order, and the rows that are none.

    ``omitted`` counts rows beyond those listed, refused or not read: a file of gigabytes should not fill the memory.
    ``is_log``: of a log, whose plan names files as the command line does; others stand beside the file of runs.
    """

    rows: tuple[Run, ...]
    refused: tuple[RefusedRow, ...] = ()
    omitted: int = 0
    is_log: bool = False


ROW_AXES = ("network", "cluster", "source")
"""Properties of a row by which errors are summed up."""
ANY_TEXT = r"[\s\S]*"
ORDERS = ("this program", "random order", "fewest nodes", "most nodes")
"""What plans of a group are ranked by: predictions, chance, rules of one line."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Relative errors of rows: the bias is above 0 where predictions are too long (or, of a rate, too high)."""

    n: Annotated[int, Key("rows", least=0)]
    mape: Annotated[float | None, Key("mean of abs(predicted / measured - 1)", absent=ALWAYS)] = None
    median_ape: Annotated[float | None, Key("its median", absent=ALWAYS)] = None
    p90_ape: Annotated[float | None, Key("its 90% quantile", absent=ALWAYS)] = None
    bias: Annotated[float | None, Key("mean of predicted / measured - 1", absent=ALWAYS, signed=True)] = None
    coverage_90: Annotated[
        float | None, Key("share of the rows with an interval whose measured value lies in it", absent=ALWAYS)
    ] = None


@dataclass(frozen=True, slots=True)
class GroupRanking:
    """How well the plans of one group were ordered; ``spearman`` is None where all measured times are equal."""

    group: Annotated[str, Key("name of the group")]
    n: Annotated[int, Key("plans with a prediction that ran", least=2)]
    spearman: Annotated[float | None, Key("rank correlation of predicted and measured times", signed=True)]
    top1: Annotated[float, Key("probability that the first choice is the fastest")]
    regret: Annotated[float, Key("time of the first choice over the least, minus 1")]
    regret_best3: Annotated[float, Key("the same of the best of the first three choices")]
    chose_out_of_memory: Annotated[float, Key("probability that the first choice ran out of memory")]


@dataclass(frozen=True, slots=True)
class RankingSummary:
    """How well plans are ordered in groups."""

    groups: Annotated[int, Key("groups of at least two plans that ran", least=0)]
    spearman: Annotated[
        float | None,
        Key("rank correlation of predicted and measured times, mean over groups", absent=ALWAYS, signed=True),
    ] = None
    top1: Annotated[float | None, Key("share of groups whose first choice is the fastest", absent=ALWAYS)] = None
    regret_mean: Annotated[
        float | None, Key("time of the first choice over the least, minus 1, mean over groups", absent=ALWAYS)
    ] = None
    regret_max: Annotated[float | None, Key("its largest value", absent=ALWAYS)] = None
    regret_best3: Annotated[
        float | None, Key("the same of the best of the first three choices, mean over groups", absent=ALWAYS)
    ] = None
    regret_best3_max: Annotated[float | None, Key("its largest value", absent=ALWAYS)] = None
    chose_out_of_memory: Annotated[
        float | None, Key("share of groups whose first choice ran out of memory", absent=ALWAYS)
    ] = None


@dataclass(frozen=True, slots=True)
class OrderRanking:
    """How well one order ranks the plans of the groups of some size."""

    order: Annotated[str, Key("what orders plans: predictions, chance, or a rule of one line", choices=ORDERS)]
    plans: Annotated[str, Key("how many plans the groups have")]
    figures: RankingSummary


@dataclass(frozen=True, slots=True)
class Locked:
    """Rows that are reported in sums alone."""

    sources: Annotated[tuple[str, ...], Key("names of their sources, which are locked")]
    rows: Annotated[int, Key("how many there are", least=0)]
    predicted: Annotated[int, Key("how many of them are predicted", least=0)]


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """Runs by predicted status, and what memory that was read of them is missed by."""

    true_out_of_memory: Annotated[int, Key("rows called out of memory that ran out", absent=ALWAYS, least=0)] = 0
    false_out_of_memory: Annotated[int, Key("rows called out of memory that ran", absent=ALWAYS, least=0)] = 0
    true_ok: Annotated[int, Key("rows called ok that ran", absent=ALWAYS, least=0)] = 0
    false_ok: Annotated[int, Key("rows called ok that ran out of memory", absent=ALWAYS, least=0)] = 0
    n: Annotated[int, Key("rows of which memory was read", least=0)] = 0
    error: Annotated[float | None, Key("exp(mean of abs(ln(predicted / measured))) - 1 of these", null=True)] = None
    bias: Annotated[float | None, Key("exp(mean of ln(predicted / measured)) - 1", null=True, signed=True)] = None
    coverage_90: Annotated[float | None, Key("share of these inside their interval", null=True)] = None


@dataclass(frozen=True, slots=True)
class TermScale:
    """By how much one term would have to be multiplied to explain what predictions miss."""

    term: Annotated[str, Key("term that explains part of what predictions miss")]
    scale: Annotated[float, Key("factor on it that explains most")]
    n: Annotated[int, Key("rows")]
    mape: Annotated[float, Key("mean error as predicted")]
    scaled_mape: Annotated[float, Key("mean error with the term scaled, each row by what the others ask for")]

    def sentence(self) -> str:
        """Return the finding in words, such as ``all_reduce x 1.4 would take the mean error from 12 to 8 %``."""
        before, after = 100 * self.mape, 100 * self.scaled_mape
        digits = 0 if before - after >= 1 else 1
        return (
            f"{self.term} x {self.scale:.2g} would take the mean error from {before:.{digits}f} to {after:.{digits}f}%"
        )


@dataclass(frozen=True, slots=True)
class Growth:
    """How errors change along an axis (GPUs, nodes, sub-batch), within groups of one source, network and GPU."""

    axis: Annotated[str, Key("along which errors grow")]
    slope: Annotated[float, Key("of log(predicted / measured), a doubling")]
    term: Annotated[str, Key("term whose share grows most along it; empty: none does", empty=True)]
    n: Annotated[int, Key("rows")]
    groups: Annotated[int, Key("groups of rows with several values of the axis")]

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
    metric : ``predicted``, ``low``, ``high`` and ``measured`` are in it
    low, high : both or neither
    status_measured : ``ok`` or ``out_of_memory``; None where nothing was measured
    refused : why nothing is predicted
    group : rows of one group are plans for the same work; empty: ranked against none
    bottleneck : the term that takes most
    kind : kind of prediction, with a score of its own; see :data:`planner.domain.provenance.PREDICTION_KINDS`
    deviation : standard deviation of log(predicted) that the prediction states of itself, whatever its interval is
    nodes, gpus, sub_batch : that it ran on, and with; 0 where it is no run
    repeats_run : whether another row is of the same run, so that its status counts there
    """

    id: Annotated[str, Key("name of the run", empty=True)]
    line: Annotated[int, Key("where it stands in its file", least=0)]
    metric: str
    predicted: Annotated[float | None, Key("as if memory sufficed; null where refused")]
    low: Annotated[float | None, Key("lower end of the central 90% interval")]
    high: Annotated[float | None, Key("upper end")]
    measured: Annotated[float | None, Key("null where the run gave no value")]
    status_predicted: Annotated[str | None, Key("whether memory suffices; null where refused", choices=STATUSES)]
    status_measured: str | None
    in_sample: Annotated[bool, Key("whether a calibration that predicts the row has seen it")]
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

    All but ``in_sample`` and ``rows`` is of held-out rows that were predicted and gave a value, without rows of memory;
    ``memory`` and ``memory_by`` are of all predicted rows, as no fit learns memory.
    """

    summary: Annotated[ErrorSummary, Key("errors of rows that were predicted and that no calibration has seen")]
    by: Mapping[str, Mapping[str, ErrorSummary]]
    ranking: Annotated[RankingSummary, Key("how well plans of one group are ordered")]
    groups: Annotated[tuple[GroupRanking, ...], Key("the same group by group")]
    memory: Annotated[
        MemoryScore, Key("predicted against observed shortage of memory, and against memory that was read")
    ]
    terms: Annotated[tuple[TermScale, ...], Key("terms that explain what predictions miss, the best explanation first")]
    in_sample: Annotated[ErrorSummary, Key("errors of rows that a calibration has seen")]
    rows: Annotated[tuple[ScoredRow, ...], Key("every row, file by file in its order, but for locked ones")] = field(
        repr=False
    )
    hold_out: Annotated[str | None, Key("what coefficients were refitted without, in turn", absent=ALWAYS)] = None
    rankings: Annotated[
        tuple[OrderRanking, ...], Key("ranking of large and of small groups, beside chance and simple rules")
    ] = ()
    free_numbers: Annotated[
        int | None, Key("fitted values of the step model, the most of one fit; absent: nothing was refitted", least=0)
    ] = None
    locked: Annotated[Locked | None, Key("rows that are in sums alone, not in rows, groups, terms nor by network")] = (
        None
    )
    memory_by: Annotated[
        Mapping[str, MemoryScore], Key("the same by source that tells of memory", pattern=ANY_TEXT)
    ] = field(default_factory=dict)
    unknown_frameworks: Annotated[
        Mapping[str, int], Key("rows by a framework that nobody knows, answered as those of any", pattern=ANY_TEXT)
    ] = field(default_factory=dict)
    growth: Annotated[tuple[Growth, ...], Key("axes along which errors grow, the steepest first")] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", frozen_map({axis: frozen_map(summaries) for axis, summaries in self.by.items()}))
