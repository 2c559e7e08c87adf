"""Runs with what was predicted of them held out, and what entries that were fitted to them state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.domain.calibration import Entry
from planner.fitting.observed import Observed
from planner.scoring.evaluate import Answer
from planner.scoring.refit import Asked

__all__ = ["DIGITS", "GENERIC", "POOLED_PRECISIONS", "Cell", "Rows", "few", "rounded", "stated"]

GENERIC = "generic"
POOLED_PRECISIONS = {"": "fp32", "fp16": "half", "bf16": "half", "tf32": "tf32"}
"""Precision of a pooled entry -> the class of precisions that it takes its effects from."""
DIGITS = 4
"""Significant digits that are stored: fits agree in them on every machine."""

Cell = tuple[str, str, str, str]
"""Program, or framework with its switches of split plans, accelerator, class of precisions, kernels' origin."""


@dataclass(frozen=True)
class Rows:
    """Runs of one problem, with their errors when their network, or their accelerator, took no part in the fit."""

    asked: Asked
    by_network: Sequence[Answer]
    by_gpu: Sequence[Answer]

    @property
    def version(self) -> str:
        """Of the framework and its libraries; empty where it is not known."""
        return self.asked.problem.settings.framework.version

    @cached_property
    def cells(self) -> frozenset[Cell]:
        """What the coefficients of the runs that a fit learns from belong to."""
        return frozenset(_cell(one, "program") for one in self.asked.observed)

    @cached_property
    def split_cells(self) -> frozenset[Cell]:
        """The same of plans that split the network."""
        return frozenset(_cell(one, "framework") for one in self.asked.split)


def _cell(observed: Observed, framework: str) -> Cell:
    of = observed.properties
    return of[framework], of["accelerator"], of["precision"], of["kernels"]


def stated(entry: Entry, rows: Sequence[Rows], answers: Iterable[Sequence[Answer]]) -> Entry:
    """Return an entry with the errors and sources of the runs behind it, in few digits."""
    errors = np.array([abs(one.row.error) for some in answers for one in some if one.row.error is not None])
    sources = sorted({one.asked.runs[0].source for one in rows if one.asked.observed or one.asked.split})
    return replace(
        entry,
        coefficients=rounded(entry.coefficients),
        standard_errors=rounded(entry.standard_errors),
        samples=int(errors.size),
        held_out_error=few(float(errors.mean())) if errors.size else None,
        held_out_by="group" if errors.size else "",
        worst_error=few(float(errors.max())) if errors.size else None,
        source=", ".join(sources),
    )


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Return values in DIGITS digits."""
    return {name: few(value) for name, value in values.items()}


def few(value: float) -> float:
    """Return a value in DIGITS digits."""
    return float(f"{value:.{DIGITS}g}")
