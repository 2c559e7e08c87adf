"""Where the calibrations behind an answer come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.domain.calibration import Calibration
from planner.domain.prediction import Prediction

__all__ = ["Citation", "cited"]


@dataclass(frozen=True, slots=True)
class Citation:
    """Where a calibration comes from: its origin, its source and the ISO date of that; empty where not known."""

    name: str
    origin: str
    source: str
    date: str


def cited(predictions: Iterable[Prediction], calibrations: Iterable[Calibration]) -> tuple[Citation, ...]:
    """Return the citation of every calibration that terms of predictions name, each once."""
    by_name = {one.provenance.calibration: one for one in calibrations}
    terms = (term for one in predictions for term in one.terms)
    behind = dict.fromkeys((each.name, each.calibration) for term in terms for each in term.provenance if each.name)
    calibrations_behind = ((name, by_name[file]) for name, file in behind)
    return tuple(Citation(name, one.origin, one.source, one.date) for name, one in calibrations_behind)
