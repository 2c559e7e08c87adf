"""Measured rows made ready for a fit: work columns, rejected rows, duplicates merged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from planner.costs.features import Work
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.inputs import INPUT_COLUMNS
from planner.domain.kernels import ROW_COLUMNS, TRAFFIC_COLUMNS, WORK_COLUMNS
from planner.domain.precision import PRECISIONS
from planner.domain.samples import NUMBER_COLUMNS, TEXT_COLUMNS, Samples

__all__ = ["POINTWISE", "Rejected", "group_codes", "merged", "take", "usable", "work_columns", "work_of"]

POINTWISE = "pointwise"
MESSAGE_COLUMNS = ("bytes", "nodes", "ranks_per_node")
DEFAULTS = {"batch": 1.0, "groups": 1.0, "fixed_bytes": 0.0, "elements": 0.0, "rows": 0.0, "causal": 0.0}
"""Columns that may be empty."""


class Rejected(NamedTuple):
    """A row that took no part in a fit; ``row`` counts from 0."""

    row: int
    reason: str


def work_columns(kind: str) -> tuple[str, ...]:
    """Return the work columns of a kind of kernel, of a kind of input, or of a collective operation."""
    return TRAFFIC_COLUMNS if kind == POINTWISE else {**WORK_COLUMNS, **INPUT_COLUMNS}.get(kind, MESSAGE_COLUMNS)


def take(samples: Samples, rows: IntArray) -> Samples:
    """Return rows by position, in that order."""
    return Samples(
        {name: samples.text[name][rows] for name in TEXT_COLUMNS},
        {name: samples.number[name][rows] for name in NUMBER_COLUMNS},
        samples.circumstances,
    )


def work_of(samples: Samples, kind: str) -> Work:
    """Return the work of rows of one kind, arrays of shape (k,), with ``itemsize`` [byte] of each row's precision.

    Products have ``trans_a`` and ``trans_b`` besides: 1 where the operand is transposed, else 0.
    """
    work: dict[str, FloatArray] = {}
    for name in work_columns(kind):
        values = samples.number[name]
        work[name] = np.where(np.isnan(values), DEFAULTS.get(name, np.nan), values)
    if "fixed_bytes" in work:  # rows may give only the bytes in all
        unknown = np.isnan(work["traffic"])
        work["traffic"] = np.where(unknown, 0.0, work["traffic"])
        work["fixed_bytes"] = np.where(unknown, samples.number["bytes"], work["fixed_bytes"])
    if kind == "gemm":
        work |= {name: (samples.text[name] == "T").astype(np.float64) for name in ("trans_a", "trans_b")}
    sizes = {name: float(precision.activation_bytes) for name, precision in PRECISIONS.items()}
    work["itemsize"] = np.array([sizes.get(name, 4.0) for name in samples.text["precision"].tolist()])
    return work


def _why_not(samples: Samples) -> dict[int, str]:
    """Return the reason of every row that a fit cannot use, by its position."""
    kinds, times = samples.text["kind"], samples.time_s
    bad = ~(np.isfinite(times) & (times > 0))
    found = {row: f"time_s must be finite and above 0, got {times[row]:g}" for row in _positions(bad)}
    no_operation, no_traffic = samples.text["operation"] == "", np.isnan(samples.number["traffic"])
    for kind in dict.fromkeys(kinds.tolist()):
        own = kinds == kind
        if kind not in (POINTWISE, *WORK_COLUMNS, *INPUT_COLUMNS):
            for row in _positions(own & no_operation):
                found.setdefault(row, f"kind must be known, got {kind!r}")
        columns = work_columns(kind)
        bytes_alone = own & no_traffic & (columns in (TRAFFIC_COLUMNS, ROW_COLUMNS))
        for names, rows in ((columns, own & ~bytes_alone), (("bytes",), bytes_alone)):
            for row, reason in _out_of_range(samples, names, rows):
                found.setdefault(row, reason)
    return found


def _out_of_range(samples: Samples, names: tuple[str, ...], rows: BoolArray) -> Iterator[tuple[int, str]]:
    for name in names:
        values = samples.number[name]
        least = 0.0 if name in ("pad_h", "pad_w", "causal", *ROW_COLUMNS) else 1.0
        good = (np.isfinite(values) & (values >= least)) | (np.isnan(values) & (name in DEFAULTS))
        for row in _positions(rows & ~good):
            yield row, f"{name} must be given and at least {least:g}, got {values[row]:g}"


def _positions(mask: BoolArray) -> list[int]:
    positions: list[int] = np.flatnonzero(mask).tolist()
    return positions


def usable(samples: Samples) -> tuple[BoolArray, tuple[Rejected, ...]]:
    """Return a mask of the rows that a fit can use, shape (k,), and the others with the reason."""
    reasons = _why_not(samples)
    mask = np.ones(samples.size, dtype=np.bool_)
    mask[list(reasons)] = False
    return mask, tuple(Rejected(row, reasons[row]) for row in sorted(reasons))


def merged(samples: Samples, kind: str) -> Samples:
    """Return rows of equal work, transposition and element size as one, at the median time, in the first one's group.

    Without this, the same shape could stand both in and outside a fold.
    """
    texts = [np.unique(samples.text[name], return_inverse=True)[1].ravel() for name in ("trans_a", "trans_b")]
    table = np.column_stack([*work_of(samples, kind).values(), *texts])
    _, first, inverse, counts = np.unique(table, axis=0, return_index=True, return_inverse=True, return_counts=True)
    of_each = np.split(samples.time_s[np.argsort(inverse.ravel(), kind="stable")], np.cumsum(counts)[:-1])
    order = np.argsort(first)
    times = np.array([np.median(of_each[place]) for place in order])
    rows = take(samples, first[order])
    return Samples(rows.text, {**rows.number, "time_s": times}, samples.circumstances)


def group_codes(samples: Samples) -> IntArray:
    """Return each row's hold-out group as a number, shape (k,)."""
    _, codes = np.unique(samples.text["group"], return_inverse=True)
    return codes.astype(np.int64).ravel()
