"""A measured row in words, for the reader of a calibration."""

from __future__ import annotations

import numpy as np

from planner.domain.samples import Samples
from planner.fitting.rows import work_columns
from planner.units import format_seconds

__all__ = ["row_in_words"]

SILENT_VALUES = {"batch": 1.0, "groups": 1.0, "pad_h": 0.0, "pad_w": 0.0, "fixed_bytes": 0.0}
"""Work columns, and the value at which they say nothing."""


def row_in_words(samples: Samples, row: int, kind: str) -> str:
    """Return work, time and group of a row: ``m=64 n=32 k=16: 1.2 ms (layer3)``.

    Parameters
    ----------
    samples : Samples
    row : int
        Position of the row, from 0.
    kind : str
        Kind whose work columns the row has.
    """
    values = {name: float(samples.number[name][row]) for name in work_columns(kind)}
    words = [f"{name}={value:.10g}" for name, value in values.items() if _tells(name, value)]
    call = str(samples.text["call"][row]) or " ".join(words)
    group = str(samples.text["group"][row])
    return f"{call}: {format_seconds(float(samples.time_s[row]))}" + (f" ({group})" if group else "")


def _tells(name: str, value: float) -> bool:
    return not np.isnan(value) and value != SILENT_VALUES.get(name)
