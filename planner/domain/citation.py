"""Where the calibrations behind an answer come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.domain.calibration import Calibration
from planner.domain.prediction import Prediction
from planner.domain.transfer import SCALED

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
    by_name = {calibration.name: calibration for calibration in calibrations}
    terms = (term for one in predictions for term in one.terms)
    names = dict.fromkeys(name for term in terms for name in term.calibration.split(", ") if name)
    return tuple(_citation(name, by_name.get(name) or by_name.get(name.partition(f" {SCALED}")[0])) for name in names)


def _citation(name: str, calibration: Calibration | None) -> Citation:
    if calibration is None:
        return Citation(name, "", "", "")
    return Citation(name, calibration.origin, calibration.source, calibration.date)
