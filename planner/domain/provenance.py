"""Where the coefficients behind a call or a term come from: a record that travels with what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product, starmap
from typing import Annotated, NamedTuple

from planner.domain.arrays import frozen_map
from planner.domain.keys import Key
from planner.errors import ParameterError

EXACT, SCALING_CURVE, SAME_DIE, FIT, SCALED = "exact call", "scaling curve", "same die", "fit", "scaled"
DERIVED, NEAREST, DATASHEET, ASSUMED = "derived precision", "nearest device", "datasheet", "assumed"
KINDS = (EXACT, SCALING_CURVE, SAME_DIE, FIT, SCALED, DERIVED, NEAREST, DATASHEET, ASSUMED)
"""What may serve a call, in the order in which it is looked for.

The very call as it was timed, its scaling curve at other sub-batches, the same of a device with the same die, a fit to
kernels of the device, another device's fit scaled by the data sheets, one in another precision of the same units, what
the nearest measured device says of a kernel that is specified otherwise, peak rates with stated efficiencies, and a
stated assumption."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where coefficients come from.

    Attributes
    ----------
    name : of the calibration as an answer names it, which says what was made of it; empty: of none
    calibration : name under which ``--calibration`` finds what it was made from
    device : another device that was measured in place of this one; empty: this one, or none
    precision : another precision that was measured in place of this one; empty likewise
    seen : networks, applications, clusters and sources of the measurements behind it
    """

    kind: str
    name: str = ""
    calibration: str = ""
    device: str = ""
    precision: str = ""
    seen: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError("kind of a provenance", "one of " + ", ".join(KINDS), self.kind)


INTERVAL_LEVEL = 0.9
"""Share that intervals are to cover."""
NORMAL_90 = 1.6448536269514722
"""Standard deviations within which a normal distribution has that share."""
PLACES = ("one_gpu", "one_node", "several_nodes")
EVIDENCE = ("measured", "scaled", "specified")
"""What matrix kernels rest on: kernels of the device, those of another device or precision, or a data sheet."""


class PredictionKind(NamedTuple):
    """Where a step is predicted for, and from what: each kind misses by other amounts.

    ``is_outside``: whether it extrapolates.
    """

    place: str
    evidence: str
    is_outside: bool

    @property
    def name(self) -> str:
        """Return the name in files: place, evidence, and ``outside`` where it extrapolates.

        >>> PredictionKind("one_gpu", "scaled", True).name
        'one_gpu_scaled_outside'
        """
        return f"{self.place}_{self.evidence}" + ("_outside" if self.is_outside else "")

    @property
    def ranks(self) -> tuple[int, int, int]:
        """Return how far it is from one GPU, from kernels of the device, and from what fits have seen."""
        return PLACES.index(self.place), EVIDENCE.index(self.evidence), int(self.is_outside)

    def is_as_sure_as(self, other: PredictionKind) -> bool:
        """Tell whether this one is nowhere farther than another, so that its intervals are no wider; also of itself."""
        return all(mine <= its for mine, its in zip(self.ranks, other.ranks, strict=True))


PREDICTION_KINDS: Mapping[str, PredictionKind] = frozen_map(
    {kind.name: kind for kind in starmap(PredictionKind, product(PLACES, EVIDENCE, (False, True)))}
)
"""By name, none before one that is surer."""


@dataclass(frozen=True, slots=True)
class ConformalScore:
    """Conformal score of predictions of one kind: interval = value * exp(-+ half_width)."""

    half_width: Annotated[float | None, Key("of log(predicted / measured); absent: too few groups", absent=None)]
    level: Annotated[float, Key("share of the runs of a new group that is covered", unit="share")]
    groups: Annotated[int, Key("groups of measured runs that it was calibrated on", least=0)]
    rows: Annotated[int, Key("measured runs that it was calibrated on", least=0)]
    reason: Annotated[str, Key("why there is no score", empty=True)] = ""


def check_scores(scores: Mapping[str, ConformalScore]) -> None:
    """Check the scores of kinds of predictions.

    ParameterError: an unknown kind, another level than that of intervals, or a half-width below that of a surer kind.
    """
    for name, one in scores.items():
        if name not in PREDICTION_KINDS:
            raise ParameterError("conformal", "of kinds " + ", ".join(PREDICTION_KINDS), name)
        if one.level != INTERVAL_LEVEL:
            raise ParameterError(f"level of {name}", f"{INTERVAL_LEVEL}, as of all intervals", one.level)
        for surer, other in scores.items():
            is_surer = surer in PREDICTION_KINDS and PREDICTION_KINDS[surer].is_as_sure_as(PREDICTION_KINDS[name])
            if is_surer and one.half_width is not None and one.half_width < (other.half_width or 0.0):
                rule = f"at least the {other.half_width:g} of {surer}, which is surer"
                raise ParameterError(f"half_width of {name}", rule, one.half_width)
