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
from typing import Annotated

from planner.domain.arrays import frozen_map
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import MODES, Configuration
from planner.domain.kernels import ATTENTION, TRAFFIC_KINDS
from planner.domain.keys import ALWAYS, Key
from planner.domain.precision import PRECISIONS
from planner.domain.provenance import FIT, PREDICTION_KINDS, ConformalScore, Provenance, check_scores
from planner.errors import NOTHING, ParameterError

SCOPES = ("kernels", "overheads", "collectives", "storage", "host")
ANY_ACCELERATOR = "any"
"""Accelerator of calibrations whose overheads were pooled over GPUs: they serve those that have none of their own."""
END_TO_END = "end-to-end"
"""Estimator of overheads and links that were fitted to whole steps of measured runs."""
ORIGINS = ("measured", "published", "specified", "reconstructed", "assumed")
SettingValue = float | str | tuple[float, ...]
LARGEST_COVARIANCE = 64
"""Coefficients up to which a file holds the covariance of an entry; beyond, it would be mostly that."""
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
    settings : exponents, tiles, grid, chosen by cross-validation and stored
    coefficients : mapping of feature name to float, in the map's order (p of them)
    fixed : what the data could not identify, or what was never free
    ranges : also of a work column that no feature tells apart, such as ``groups`` of convolutions
    sum_error : None: misses of shapes are taken to go together
    estimator : such as ``relative-nnls`` or ``least-squares``; empty when stated
    worst_point : its error is ``worst_error``; empty where it was not kept
    mode : ``sync`` or ``async``, how the runs exchanged gradients; empty where none was exchanged, or for both
    """

    scope: Annotated[str, Key("what the entry belongs to", choices=SCOPES)]
    kind: Annotated[str, Key("kernel kind, framework, or operation", is_name=True)]
    direction: Annotated[str, Key("direction of a kernel", absent="", is_name=True, empty=True)]
    precision: Annotated[str, Key("precision, or any", absent="", is_name=True, empty=True)]
    library: Annotated[str, Key("library that was measured", absent="", is_name=True, empty=True)]
    term: Annotated[str, Key("registered name of the feature map", is_name=True)]
    settings: Mapping[str, SettingValue]
    coefficients: Mapping[str, float]
    standard_errors: Annotated[Mapping[str, float], Key("of the coefficients that were fitted")] = field(
        default_factory=dict
    )
    covariance: tuple[tuple[float, ...], ...] | None = None
    fixed: Annotated[tuple[str, ...], Key("features whose coefficient was stated, not fitted", is_name=True)] = ()
    ranges: Annotated[
        Mapping[str, tuple[float, float]], Key("least and most of each feature in the fit", signed=True)
    ] = field(default_factory=dict)
    samples: Annotated[int, Key("rows of the fit", least=0)] = 0
    error: Annotated[float | None, Key("mean absolute relative error on the rows of the fit")] = None
    held_out_error: Annotated[float | None, Key("the same on rows left out")] = None
    held_out_by: Annotated[str, Key("what was left out at a time: row, shape, group, network", empty=True)] = ""
    worst_error: Annotated[float | None, Key("largest absolute relative error on rows left out")] = None
    condition_number: Annotated[float | None, Key("of the column-scaled design; null: not finite", null=True)] = None
    estimator: Annotated[str, Key("how the coefficients were found", empty=True)] = ""
    origin: Annotated[str, Key("where the coefficients come from", choices=ORIGINS)] = "measured"
    source: Annotated[str, Key("citation, or the machine", empty=True)] = ""
    notes: Annotated[str, Key("what a reader should know", empty=True)] = ""
    worst_point: Annotated[str, Key("row whose error is the largest; files of before leave it out", empty=True)] = ""
    mode: Annotated[str, Key("of overheads: mode of the runs that they were fitted to; absent: any", choices=MODES)] = (
        ""
    )
    sum_error: Annotated[float | None, Key("error of sums over many shapes; absent: that of one")] = None

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

    A step holds messages, so that it says nothing of another cluster. Passes hold none: their cluster is empty, and of
    their plan sub-batch, tensor-parallel degree and precision count.
    """

    network: Annotated[str, Key("network that was trained", is_name=True)]
    cluster: Annotated[
        str, Key("cluster that it was trained on; absent: passes, which are of no cluster", absent="", is_name=True)
    ]
    framework: Annotated[str, Key("training framework", is_name=True)]
    configuration: Configuration
    factor: Annotated[float, Key("measured over predicted time, geometric mean of the runs", above=True)]
    runs: Annotated[int, Key("measured runs")]
    of: Annotated[str, Key("what was timed: a whole step, or passes of one device", choices=(OF_STEP, OF_PASSES))] = (
        OF_STEP
    )

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
    cluster : None: of no cluster
    environment : circumstances that must agree before calibrations are merged
    seen : groups (networks, applications, clusters): scored as in-sample
    warnings : said of every prediction that takes something from here
    input_warnings : those about the input side: said of predictions that price it
    precision_warnings : mapping of precision to tuple of str, said of predictions that take kernels in it from here
        alone
    conformal : half-widths of intervals, none below that of a surer kind
    measured_steps : of its accelerator, what was timed of no plan twice
    made_from : of what it was made from for an answer; None: a file holds it
    provenance : of its entries. What was seen goes along with what was made from it; a reconstruction has seen its
        cluster
    """

    name: Annotated[str, Key("name to refer to it", is_name=True)]
    accelerator: Annotated[str, Key("accelerator that the kernel entries belong to", is_name=True)]
    entries: Annotated[tuple[Entry, ...], Key("terms")]
    cluster: Annotated[
        str | None, Key("cluster that collectives, storage and host entries belong to", null=True, is_name=True)
    ] = None
    node: Annotated[Node | None, Key("node it was measured on; the cluster 'local' is one such node")] = None
    origin: Annotated[str, Key("where the whole comes from; an entry may differ", absent=ALWAYS, choices=ORIGINS)] = (
        "measured"
    )
    source: Annotated[str, Key("citation, or the machine", empty=True)] = ""
    date: Annotated[str, Key("ISO date of the measurement or publication", empty=True)] = ""
    environment: Annotated[Mapping[str, str], Key("library versions, threads, clocks", empty=True)] = field(
        default_factory=dict
    )
    seen: Annotated[tuple[str, ...], Key("groups that took part in a fit")] = ()
    warnings: Annotated[tuple[str, ...], Key("what a reader should know")] = ()
    conformal: Annotated[
        Mapping[str, ConformalScore], Key("conformal scores by kind of prediction", keys=PREDICTION_KINDS)
    ] = field(default_factory=dict)
    input_warnings: Annotated[tuple[str, ...], Key("the same about input, said where input is priced")] = ()
    precision_warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    measured_steps: Annotated[tuple[MeasuredStep, ...], Key("plans that were timed")] = ()
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
class KernelErrors:
    """Errors of kernel times that were predicted; kernels whose work is bytes have precision ``any``."""

    units: Annotated[
        str, Key("what multiplies; any: nothing, or not told apart", absent=ANY_UNITS, choices=UNITS_OF_PAIRS)
    ]
    kind: Annotated[str, Key("kernel kind")]
    precision: Annotated[str, Key("precision that was predicted, or any")]
    pairs: Annotated[int, Key("devices, directions and precisions predicted from, which weigh the same")]
    rows: Annotated[int, Key("measured kernel times that were predicted")]
    mean: Annotated[float, Key("mean over the pairs of the mean of |predicted / measured - 1|")]
    median: Annotated[float, Key("mean over the pairs of the median of it")]
    p90: Annotated[float, Key("mean over the pairs of the 90th percentile of it")]

    def __post_init__(self) -> None:
        if self.units not in UNITS_OF_PAIRS:
            raise ParameterError("units", "one of " + ", ".join(UNITS_OF_PAIRS), self.units)


@dataclass(frozen=True, slots=True)
class TransferScore(KernelErrors):
    """Of a device from another by specification; ``bias``: what sums over the shapes of a network are missed by."""

    relation: Annotated[str, Key("what the two devices have in common", choices=RELATIONS)]
    bias: Annotated[float, Key("mean over the pairs of |mean of predicted / measured - 1|")]


@dataclass(frozen=True, slots=True)
class PrecisionScore(KernelErrors):
    """Of a precision from another one on the same device, of the same units."""

    units: Annotated[str, Key("what multiplies in both precisions", choices=UNITS)]
    sheet: Annotated[float, Key("mean error of the specification on the same rows")]


@dataclass(frozen=True, slots=True)
class OwnPoints:
    """Mean absolute relative errors of a kind on the same rows: by transfer, and from a few of its own kernels.

    ``all_own`` is as the others without the groups that are predicted.
    """

    units: Annotated[
        str, Key("what multiplies; any: nothing, or not told apart", absent=ANY_UNITS, choices=(*UNITS, ANY_UNITS))
    ]
    kind: Annotated[str, Key("kernel kind")]
    precision: Annotated[str, Key("precision, or any")]
    devices: Annotated[int, Key("devices and directions, which weigh the same")]
    transfer: Annotated[float, Key("mean error of the best transfer")]
    ratio: Annotated[float, Key("of that times one factor from the device's own points")]
    own: Annotated[float, Key("of a fit to these points alone")]
    all_own: Annotated[float, Key("of a fit to all rows of the device")]


@dataclass(frozen=True, slots=True)
class Transfers:
    """Errors of kernel times: scaled from other devices, of the device itself, derived from another precision."""

    scores: Annotated[tuple[TransferScore, ...], Key("one for relation, units, kind and precision", absent=ALWAYS)] = ()
    points: Annotated[int, Key("kernels of the device itself that own_points are from", absent=ALWAYS)] = 20
    own_points: Annotated[tuple[OwnPoints, ...], Key("one for units, kind and precision", absent=ALWAYS)] = ()
    precisions: Annotated[
        tuple[PrecisionScore, ...], Key("one for units, kind and precision: derived from another")
    ] = ()


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
