"""What serves a term: an entry, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.calibration import Entry
from planner.domain.transfer import SCALED

__all__ = ["Source", "scaled_name"]


def scaled_name(calibration: str, device: str) -> str:
    """Return the name of a calibration that was scaled from ``device``, whose bundled one has that very name."""
    return SCALED + device if calibration == device else f"{calibration} {SCALED}{device}"


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
