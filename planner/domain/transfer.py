"""How well kernel times of one device tell those of another, by how near the two are: scores of predicted devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planner.domain.cluster import Accelerator
from planner.domain.kernels import ATTENTION, TRAFFIC_KINDS
from planner.errors import ParameterError

__all__ = [
    "ANY_UNITS", "RELATIONS", "UNITS", "UNITS_OF_PAIRS", "OwnPoints", "PrecisionScore", "TransferScore", "Transfers",
    "precision_score", "relation", "score_for", "units_between", "units_of",
]  # fmt: skip

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
