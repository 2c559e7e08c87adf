"""What serves a term: an entry, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.calibration import Calibration, Entry
from planner.domain.calls import LOOKED_UP
from planner.domain.transfer import SCALED

__all__ = [
    "Source",
    "derived_name",
    "is_derived",
    "is_nearest",
    "is_of_answer",
    "is_used",
    "miss_in_words",
    "scaled_name",
    "without_unused",
]

LARGEST_MISS = 1.0
"""Held-out error up to which an entry is used: above it, any other source says more."""

DERIVED = " derived from "
"""In names of calibrations that were derived from one in another precision, behind the precision."""


def scaled_name(calibration: str, device: str) -> str:
    """Return the name of a calibration that was scaled from ``device``, whose bundled one has that very name."""
    return SCALED + device if calibration == device else f"{calibration} {SCALED}{device}"


def derived_name(calibration: str, precision: str, source: str) -> str:
    """Return the name of what a calibration says of a precision by what it holds in another.

    >>> derived_name("t4", "bf16", "fp16"), derived_name(scaled_name("t4", "t4"), "bf16", "fp16")
    ('bf16 derived from fp16 of t4', 'bf16 derived from fp16 scaled from t4')
    """
    return f"{precision}{DERIVED}{source} {'' if calibration.startswith(SCALED) else 'of '}{calibration}"


def is_derived(calibration: str) -> bool:
    """Tell by its name whether a calibration was derived from one in another precision."""
    return DERIVED in calibration


def is_nearest(calibration: Calibration) -> bool:
    """Tell whether a calibration specifies a device by another one that was measured: scaled, and no measurement."""
    return SCALED in calibration.name and all(entry.origin == "specified" for entry in calibration.entries)


def is_of_answer(calibration: str) -> bool:
    """Tell by its name whether a calibration was scaled or derived for an answer: no file holds it."""
    return SCALED in calibration or is_derived(calibration)


def is_used(entry: Entry) -> bool:
    """Tell whether an entry serves anything: not where it misses what it was not fitted to by more than LARGEST_MISS.

    Calls that were measured as they are need no fit: the error is that of those between them.
    """
    return entry.held_out_error is None or entry.held_out_error <= LARGEST_MISS or entry.term == LOOKED_UP


def without_unused(calibration: Calibration) -> Calibration:
    """Return a calibration without the entries that are not used."""
    used = tuple(filter(is_used, calibration.entries))
    return calibration if len(used) == len(calibration.entries) else replace(calibration, entries=used)


def miss_in_words(entry: Entry, calibration: str) -> str:
    """Return which entry is not used, and why."""
    name = " ".join(filter(None, (entry.kind.replace("_", " "), entry.direction.replace("_", " "))))
    return f"{name} of {calibration} misses rows that were left out of its fit by {entry.held_out_error:,.0%}"


@dataclass(frozen=True, slots=True)
class Source:
    """An entry and the name of the calibration that holds it; empty: taken from a specification or assumed."""

    entry: Entry
    calibration: str = ""

    @property
    def origin(self) -> str:
        """Origin of the entry."""
        return self.entry.origin

    @property
    def scaled_from(self) -> str:
        """Name of the device that the entry was scaled from; empty: of none."""
        _, found, device = self.calibration.rpartition(SCALED)
        return device if found else ""
