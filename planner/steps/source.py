"""What serves a term: an entry, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.calibration import Entry

__all__ = ["Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """An entry and the name of the calibration that holds it; empty: taken from a specification or assumed."""

    entry: Entry
    calibration: str = ""

    @property
    def origin(self) -> str:
        """Origin of the entry."""
        return self.entry.origin
