"""Where the coefficients behind a call or a term come from: a record that travels with what is made of them."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import ParameterError

__all__ = [
    "ASSUMED", "DATASHEET", "DERIVED", "EXACT", "FIT", "KINDS", "NEAREST", "SAME_DIE", "SCALED", "SCALING_CURVE",
    "Provenance",
]  # fmt: skip

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
