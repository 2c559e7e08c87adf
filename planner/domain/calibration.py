"""A calibration: coefficients of cost terms, with their errors, ranges and origin; what it tells of other devices.

Time of an entry = link(Φ(work; settings) · coefficients): ``term`` names Φ in the
registry of :mod:`planner.costs.terms`.

Scopes and their keys:

===========  ==========================================================================================
kernels      kind, direction, precision, library; belongs to an accelerator. Kind ``pointwise`` serves every
             kind whose work is traffic and that has no entry of its own; precision ``any`` serves all.
overheads    kind = framework (or ``generic``), for one precision or all, one mode or both; coefficients of
             :class:`planner.sources.overheads.Overheads`; accelerator ``any``: pooled over GPUs
collectives  kind = operation (``all_reduce``); belongs to a cluster
storage      kinds ``load``, bringing a sub-batch from storage into host memory, ``load_cached`` from what the system
             kept of it, ``decode`` on a thread; belongs to a cluster
host         kinds ``update_gradient``, ``sum_gradient``, ``update_weights`` of the asynchronous threads; ``copy`` to
             the device, ``copy_back`` from it, library ``pinned`` or ``pageable``; of a cluster
===========  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from planner.domain.arrays import frozen_map
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import MODES, Configuration
from planner.domain.kernels import ATTENTION, TRAFFIC_KINDS
from planner.domain.precision import PRECISIONS
from planner.domain.provenance import FIT, ConformalScore, Provenance, check_scores
from planner.errors import NOTHING, ParameterError

__all__ = [
    "ANY_ACCELERATOR", "ANY_UNITS", "END_TO_END", "OF_PASSES", "OF_STEP", "ORIGINS", "REASONS", "RELATIONS", "SCOPES",
    "UNITS", "UNITS_OF_PAIRS", "Calibration", "Entry", "Gap", "MeasuredStep", "OwnPoints", "PrecisionScore",
    "SettingValue", "TransferScore", "Transfers", "by_precision", "precision_score", "relation", "score_for",
    "units_between", "units_of",
]  # fmt: skip

SCOPES = ("kernels", "overheads", "collectives", "storage", "host")
ANY_ACCELERATOR = "any"
"""Accelerator of calibrations whose overheads were pooled over GPUs: they serve those that have none of their own."""
END_TO_END = "end-to-end"
"""Estimator of overheads and links that were fitted to whole steps of measured runs."""
ORIGINS = ("measured", "published", "specified", "reconstructed", "assumed")
SettingValue = float | str | tuple[float, ...]
OF_STEP, OF_PASSES = "step", "passes"
"""What was timed of a plan: its whole steps, or forward and backward passes of one sub-batch on one device."""


def by_precision(sentences: Iterable[str]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the warnings about everything, and by precision those that begin with its name, as files state them."""
    general: list[str] = []
    of_precision: dict[str, tuple[str, ...]] = {}
    for sentence in sentences:
        first = sentence.partition(" ")[0].lower()
        if first in PRECISIONS:
            of_precision[first] = (*of_precision.get(first, ()), sentence)
        else:
            general.append(sentence)
    return tuple(general), of_precision


@dataclass(frozen=True, slots=True)
class Entry:
    """One fitted (or stated) term.

    Attributes
    ----------
    scope, kind, direction, precision, library : the key, with ``mode``; ``direction`` and ``library`` may be empty
    term : registered name of the feature map
    settings : mapping of str to float, str or tuple of float, shape settings of the map (exponents, tiles, grid),
        chosen by cross-validation and stored
    coefficients : mapping of feature name to float, in the map's order (p of them)
    standard_errors : mapping of feature name to float, of those that were fitted
    fixed : features that the data could not identify, or that were never free; their coefficient is a stated value
    ranges : mapping of feature name to (least, most) seen in the fit, also of a work column that no feature tells
        apart, such as ``groups`` of convolutions
    error : mean absolute relative error on the rows of the fit
    held_out_error : the same on rows left out, by ``held_out_by`` ("row", "shape", "group", "network")
    worst_error : largest absolute relative error on rows left out
    sum_error : mean absolute relative error of sums over many shapes, as steps are, where it is known apart from that
        of one; None: misses of shapes are taken to go together
    condition_number : of the column-scaled design
    estimator : such as ``relative-nnls`` or ``least-squares``; empty when stated
    worst_point : the row whose error is ``worst_error``; empty where it was not kept
    mode : of overheads: ``sync`` or ``async``, how the runs that they were fitted to exchanged gradients; empty where
        none was exchanged, or for both
    """

    scope: str
    kind: str
    direction: str
    precision: str
    library: str
    term: str
    settings: Mapping[str, SettingValue]
    coefficients: Mapping[str, float]
    standard_errors: Mapping[str, float] = field(default_factory=dict)
    covariance: tuple[tuple[float, ...], ...] | None = None
    fixed: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    samples: int = 0
    error: float | None = None
    held_out_error: float | None = None
    held_out_by: str = ""
    worst_error: float | None = None
    condition_number: float | None = None
    estimator: str = ""
    origin: str = "measured"
    source: str = ""
    notes: str = ""
    worst_point: str = ""
    mode: str = ""
    sum_error: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("", *(MODES if self.scope == "overheads" else ())):
            raise ParameterError("mode", "sync or async, of overheads alone", self.mode)
        if self.scope not in SCOPES:
            raise ParameterError("scope", "one of " + ", ".join(SCOPES), self.scope)
        if self.origin not in ORIGINS:
            raise ParameterError("origin", "one of " + ", ".join(ORIGINS), self.origin)
        for name in ("settings", "coefficients", "standard_errors", "ranges"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))

    @property
    def miss(self) -> float | None:
        """Relative error on rows left out, else on its own; None: it was never compared with any."""
        return self.error if self.held_out_error is None else self.held_out_error

    @property
    def miss_of_sums(self) -> float | None:
        """The same of sums over many shapes."""
        return self.miss if self.sum_error is None else self.sum_error

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Scope, kind, direction, precision, library."""
        return (self.scope, self.kind, self.direction, self.precision, self.library)


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A plan that was timed, and what it takes over what is predicted without its runs.

    Attributes
    ----------
    network, cluster, framework : by name; a step holds messages, so that it says nothing of another cluster. Passes
        hold none: their cluster is empty
    configuration : every axis of the plan; of passes sub-batch, tensor-parallel degree and precision, the rest is left
    factor : measured over predicted time, the geometric mean of the runs
    runs : measured
    of : OF_STEP or OF_PASSES
    """

    network: str
    cluster: str
    framework: str
    configuration: Configuration
    factor: float
    runs: int
    of: str = OF_STEP

    def __post_init__(self) -> None:
        if (self.of == OF_STEP) != bool(self.cluster):
            raise ParameterError("cluster", "given of a step, and left out of passes", self.cluster or NOTHING)
        if self.of == OF_PASSES:
            degree, plan = self.configuration.tensor_parallel, self.configuration
            bare = Configuration(1, degree, plan.sub_batch, precision=plan.precision, tensor_parallel=degree)
            object.__setattr__(self, "configuration", bare)

    @property
    def key(self) -> tuple[str, str, str, str, Configuration]:
        """What was timed, network, cluster, framework and plan."""
        return (self.of, self.network, self.cluster, self.framework, self.configuration)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Entries of one accelerator, or cluster, with where they come from.

    Attributes
    ----------
    accelerator : name of the accelerator that the kernel entries belong to
    cluster : cluster that collectives, storage and host entries belong to; None: of no cluster
    node : the node it was measured on; cluster ``local`` is one such node
    origin : of the whole; an entry may differ
    source : citation, or the machine
    date : ISO date of the measurement or publication
    environment : mapping of str to str, library versions, threads, clocks: circumstances that must agree before
        calibrations are merged
    seen : groups (networks, applications, clusters) that took part in a fit: scored as in-sample
    warnings : said of every prediction that takes something from here
    input_warnings : those about the input side: said of predictions that price it
    precision_warnings : mapping of precision to tuple of str, said of predictions that take kernels in it from here
        alone
    conformal : mapping of str to ConformalScore, by names of :data:`planner.domain.provenance.PREDICTION_KINDS`,
        half-widths of their intervals, none below that of a surer kind
    measured_steps : of its accelerator, what was timed of no plan twice
    made_from : of what it was made from for an answer; None: a file holds it
    provenance : of its entries. What was seen goes along with what was made from it; a reconstruction has seen its
        cluster
    """

    name: str
    accelerator: str
    entries: tuple[Entry, ...]
    cluster: str | None = None
    node: Node | None = None
    origin: str = "measured"
    source: str = ""
    date: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    seen: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    conformal: Mapping[str, ConformalScore] = field(default_factory=dict)
    input_warnings: tuple[str, ...] = ()
    precision_warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    measured_steps: tuple[MeasuredStep, ...] = ()
    made_from: Provenance | None = None
    provenance: Provenance = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise ParameterError("origin", "one of " + ", ".join(ORIGINS), self.origin)
        keys = [(*entry.key, entry.mode) for entry in self.entries]
        if len(set(keys)) != len(keys):
            duplicate = next(key for key in keys if keys.count(key) > 1)
            raise ParameterError("entries", "unique in scope, kind, direction, precision, library and mode", duplicate)
        plans = [one.key for one in self.measured_steps]
        if len(set(plans)) != len(plans):
            twice = next(one.configuration for one in self.measured_steps if plans.count(one.key) > 1)
            raise ParameterError("measured_steps", "of different plans", twice)
        for name in ("environment", "conformal", "precision_warnings"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))
        origin = self.made_from or Provenance(FIT, calibration=self.name)
        cluster = {self.cluster} if self.origin == "reconstructed" and self.cluster else set()
        groups_seen = origin.seen.union(self.seen, cluster)
        object.__setattr__(self, "provenance", replace(origin, name=self.name, seen=groups_seen))
        check_scores(self.conformal)

    @property
    def has_kernels(self) -> bool:
        """Whether it says how long kernels take: one of links alone does not."""
        return any(entry.scope == "kernels" for entry in self.entries)

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """The warnings about everything, about precisions and about input."""
        of_precisions = (sentence for sentences in self.precision_warnings.values() for sentence in sentences)
        return (*self.warnings, *of_precisions, *self.input_warnings)

    def computes(self, cluster: Cluster) -> bool:
        """Tell whether its kernels and overheads are of a cluster's device.

        What was reconstructed from the results of one cluster holds whatever took time there: it serves no other.
        """
        is_elsewhere = self.origin == "reconstructed" and self.cluster != cluster.name
        return self.accelerator == cluster.node.accelerator.name and not is_elsewhere


UNITS = ("matrix", "lanes")
"""What multiplies in a precision: matrix units (tensor cores), or the CUDA cores, the fp32 units (``lanes``)."""
ANY_UNITS = "any"
"""Of kernels whose work is bytes: nothing is told apart."""
UNITS_OF_PAIRS = (*UNITS, *(f"mixed, to {name}" for name in UNITS), ANY_UNITS)
"""What multiplies on two devices; ``mixed``: matrix units on one alone, with those of the one that is predicted."""
BYTE_KINDS = ("pointwise", *TRAFFIC_KINDS)
"""Kinds of kernels, and of entries, whose work is bytes."""
RELATIONS = ("chip", "architecture", "vendor", "other")
"""What two devices have in common, the nearest first; ``other``: nothing."""


def relation(one: Accelerator, other: Accelerator) -> str:
    """Return the nearest of RELATIONS of two devices; what is not known is not in common."""
    for name in RELATIONS[:-1]:
        mine = getattr(one, name)
        if mine and (one.vendor, mine) == (other.vendor, getattr(other, name)):
            return name
    return RELATIONS[-1]


def units_of(device: Accelerator, kind: str, precision: str) -> str:
    """Return which of UNITS multiply on a device in kernels of a kind and precision; of bytes ANY_UNITS."""
    if kind in BYTE_KINDS:
        return ANY_UNITS
    return UNITS[not device.has_matrix_units(precision)]


def units_between(source: Accelerator, target: Accelerator, kind: str, precision: str) -> str:
    """Return which of UNITS_OF_PAIRS multiply in kernels of a kind and precision, predicted from ``source``."""
    before, after = (units_of(device, kind, precision) for device in (source, target))
    return after if before == after else f"mixed, to {after}"


@dataclass(frozen=True, slots=True)
class TransferScore:
    """Errors of kernel times that were predicted for a device from another by specification.

    Attributes
    ----------
    units : of the precision, on both devices
    kind, precision : of kernels; kinds whose work is bytes have precision ``any``
    pairs : of devices, directions counted apart; all weigh the same
    rows : measured kernel times that were predicted
    mean, median, p90 : of abs(predicted / measured - 1), of single shapes: means over the pairs
    bias : mean over the pairs of abs(mean(predicted / measured - 1)): what a whole device is missed by, and so a sum
        over the shapes of a network
    """

    relation: str
    units: str
    kind: str
    precision: str
    pairs: int
    rows: int
    mean: float
    median: float
    p90: float
    bias: float

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ParameterError("relation", "one of " + ", ".join(RELATIONS), self.relation)
        if self.units not in UNITS_OF_PAIRS:
            raise ParameterError("units", "one of " + ", ".join(UNITS_OF_PAIRS), self.units)


@dataclass(frozen=True, slots=True)
class PrecisionScore:
    """Errors of kernel times that were predicted from those of the same device in another precision.

    Attributes
    ----------
    units : those of both precisions
    kind, precision : of kernels; the precision that was predicted
    pairs : of devices, directions of kernels and precisions that were predicted from; all weigh the same
    rows : measured kernel times that were predicted
    mean, median, p90 : of abs(predicted / measured - 1): means over the pairs
    sheet : mean over the pairs of the mean error of the specification on the same rows
    """

    units: str
    kind: str
    precision: str
    pairs: int
    rows: int
    mean: float
    median: float
    p90: float
    sheet: float

    def __post_init__(self) -> None:
        if self.units not in UNITS:
            raise ParameterError("units", "one of " + ", ".join(UNITS), self.units)


@dataclass(frozen=True, slots=True)
class OwnPoints:
    """Mean absolute relative errors of a kind on the same rows: by transfer, and from a few of its own kernels.

    Attributes
    ----------
    units : of the device
    devices : whose rows were predicted, directions counted apart; all weigh the same
    transfer : from another device, the one that the scores say is best
    ratio : that times one factor from the few kernels
    own : from a fit to the few kernels alone
    all_own : from a fit to all kernels of the device; as the others without the groups that are predicted
    """

    units: str
    kind: str
    precision: str
    devices: int
    transfer: float
    ratio: float
    own: float
    all_own: float


@dataclass(frozen=True, slots=True)
class Transfers:
    """All scores: of transfers, of ``points`` kernels of the device itself, and of precisions from one another."""

    scores: tuple[TransferScore, ...] = ()
    points: int = 20
    own_points: tuple[OwnPoints, ...] = ()
    precisions: tuple[PrecisionScore, ...] = ()


def score_for(
    scores: Iterable[TransferScore], near: str, units: str, kind: str, precision: str
) -> TransferScore | None:
    """Return the score that says most about a transfer, or None without any.

    That of the relation, units, kind and precision; what was not scored is taken to be as bad as the worst that comes
    close: of another precision, then of a relation less near; of other units in the same order; then of another kind.
    Fused attention, which was not scored, is products.
    """
    alike = BYTE_KINDS if kind in BYTE_KINDS else ("gemm",) if kind == ATTENTION else (kind,)
    wider = RELATIONS[RELATIONS.index(near) :]
    by_kind: tuple[Callable[[TransferScore], bool], ...] = (
        lambda s: (s.relation, s.kind, s.precision) == (near, kind, precision),
        lambda s: (s.relation, s.kind) == (near, kind),
        lambda s: s.relation == near and s.kind in alike,
        lambda s: s.relation in wider and s.kind in alike,
    )
    of_any: tuple[Callable[[TransferScore], bool], ...] = (lambda s: s.relation in wider, lambda _: True)
    every = tuple(scores)
    same_units = tuple(score for score in every if score.units == units)
    tries = ((same_units, by_kind), (every, by_kind), (every, of_any))
    worst = (max(filter(one, among), key=lambda s: s.mean, default=None) for among, ways in tries for one in ways)
    return next((score for score in worst if score is not None), None)


def precision_score(scores: Iterable[PrecisionScore], units: str, kind: str, precision: str) -> PrecisionScore | None:
    """Return the score that says most about a precision derived from another of the same units; None without any.

    What was not scored is taken to be as bad as the worst that comes close: of another precision, then of other units,
    then of another kind.
    """
    candidates = tuple(scores)
    tries = (
        lambda s: (s.units, s.kind, s.precision) == (units, kind, precision),
        lambda s: (s.units, s.kind) == (units, kind),
        lambda s: s.kind == kind,
        lambda _: True,
    )
    worst = (max(filter(one, candidates), key=lambda s: s.mean, default=None) for one in tries)
    return next((score for score in worst if score is not None), None)


REASONS = ("missing", "outside", "poor", "worst known")
"""Taken from the specification; outside the ranges of the fit; of a large held-out error; or only the largest left."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Kernels of one kind, direction and precision in one network.

    Attributes
    ----------
    kind, direction, precision : an empty direction stands for all
    share : of the kernel time of a training step
    error : expected relative error of these kernels
    detail : the feature farthest outside the fit, or empty
    """

    network: str
    kind: str
    direction: str
    precision: str
    reason: str
    share: float
    error: float
    detail: str = ""

    def __post_init__(self) -> None:
        if self.reason not in REASONS:
            raise ParameterError("reason", "one of " + ", ".join(REASONS), self.reason)

    @property
    def weight(self) -> float:
        """What it can add to the relative error of the step."""
        return self.share * self.error
