"""What serves a term: an entry, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.domain.calibration import Calibration, Entry
from planner.domain.calls import LOOKED_UP
from planner.domain.provenance import ASSUMED, DATASHEET, EXACT, FIT, Provenance
from planner.numbers import constant

__all__ = ["Source", "is_used", "miss_in_words", "source_of", "unsure", "without_unused"]

LARGEST_MISS = constant("serving.largest_miss")
"""Held-out error up to which an entry is used: above it, any other source says more."""


def is_used(entry: Entry) -> bool:
    """Tell whether an entry serves anything: not where it misses what it was not fitted to by more than LARGEST_MISS.

    Calls that were measured as they are need no fit: the error is that of those between them.
    """
    return entry.held_out_error is None or entry.held_out_error <= LARGEST_MISS or entry.term == LOOKED_UP


def unsure(entry: Entry, mean: float, by: str, of_sums: float | None = None) -> Entry:
    """Return an entry that was made of another, with the mean error of such ones, or its own where that is larger.

    ``of_sums``: that of sums over many shapes, which is never taken to be less than the entry's own; None: not known
    apart.
    """
    sums = None if of_sums is None else max(of_sums, entry.miss_of_sums or 0.0)
    own = entry.miss or 0.0
    return replace(entry, held_out_error=max(mean, own), held_out_by=by, worst_error=None, sum_error=sums)


def without_unused(calibration: Calibration) -> Calibration:
    """Return a calibration without the entries that are not used."""
    entries = tuple(filter(is_used, calibration.entries))
    return calibration if len(entries) == len(calibration.entries) else replace(calibration, entries=entries)


def miss_in_words(entry: Entry, calibration: str) -> str:
    """Return which entry is not used, and why."""
    name = " ".join(filter(None, (entry.kind.replace("_", " "), entry.direction.replace("_", " "))))
    return f"{name} of {calibration} misses rows that were left out of its fit by {entry.held_out_error:,.0%}"


@dataclass(frozen=True, slots=True)
class Source:
    """An entry and where it comes from."""

    entry: Entry
    provenance: Provenance

    @property
    def origin(self) -> str:
        """Origin of the entry."""
        return self.entry.origin

    @property
    def calibration(self) -> str:
        """Name of the calibration that holds it, as answers name it; empty: a data sheet or an assumption."""
        return self.provenance.name


def source_of(entry: Entry, calibration: Calibration | None = None) -> Source:
    """Return an entry with its provenance; without a calibration it is a data sheet's, or an assumption."""
    origin = Provenance(FIT) if calibration is None else calibration.provenance
    of_origin = {"specified": DATASHEET, "assumed": ASSUMED}.get(entry.origin, FIT)
    own = EXACT if entry.term == LOOKED_UP else of_origin
    return Source(entry, replace(origin, kind=own) if origin.kind == FIT else origin)
