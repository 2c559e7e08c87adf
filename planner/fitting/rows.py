"""Measured rows made ready for a fit: work columns, rejected rows, duplicates merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from planner.costs.features import Work, column
from planner.costs.work import is_attention, is_convolution, is_product, moved_bytes
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.kernels import BACKWARD_WEIGHT, ROW_COLUMNS, TRAFFIC_COLUMNS, UPDATE, WORK_COLUMNS
from planner.domain.precision import PRECISIONS
from planner.domain.samples import INPUT_COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS, Samples

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


def usable(samples: Samples) -> tuple[BoolArray, tuple[Rejected, ...]]:
    """Return a mask of the rows that a fit can use, shape (k,), and the others with the reason."""
    kinds, times = samples.text["kind"], samples.time_s
    bad = ~(np.isfinite(times) & (times > 0))
    reasons = {row: f"time_s must be finite and above 0, got {times[row]:g}" for row in _positions(bad)}
    no_operation, no_traffic = samples.text["operation"] == "", np.isnan(samples.number["traffic"])
    for kind in dict.fromkeys(kinds.tolist()):
        own = kinds == kind
        if kind not in (POINTWISE, *WORK_COLUMNS, *INPUT_COLUMNS):
            for row in _positions(own & no_operation):
                reasons.setdefault(row, f"kind must be known, got {kind!r}")
        columns = work_columns(kind)
        bytes_alone = own & no_traffic & (columns in (TRAFFIC_COLUMNS, ROW_COLUMNS))
        for names, rows in ((columns, own & ~bytes_alone), (("bytes",), bytes_alone)):
            for row, reason in _out_of_range(samples, names, rows):
                reasons.setdefault(row, reason)
        for row, reason in _impossible(samples, kind, [row for row in _positions(own) if row not in reasons]):
            reasons.setdefault(row, reason)
    mask = np.ones(samples.size, dtype=np.bool_)
    mask[list(reasons)] = False
    return mask, tuple(Rejected(row, reasons[row]) for row in sorted(reasons))


def _out_of_range(samples: Samples, names: tuple[str, ...], rows: BoolArray) -> Iterator[tuple[int, str]]:
    for name in names:
        values = samples.number[name]
        least = 0.0 if name in ("pad_h", "pad_w", "causal", *ROW_COLUMNS) else 1.0
        good = (np.isfinite(values) & (values >= least)) | (np.isnan(values) & (name in DEFAULTS))
        for row in _positions(rows & ~good):
            yield row, f"{name} must be given and at least {least:g}, got {values[row]:g}"


def _impossible(samples: Samples, kind: str, rows: list[int]) -> Iterator[tuple[int, str]]:
    """Yield those of rows of one kind, each column in its range, that no call can have, with the reason."""
    if kind not in WORK_COLUMNS:
        return
    own = take(samples, np.array(rows, dtype=np.int64))
    work = work_of(own, kind)
    if is_product(work) or is_convolution(work) or is_attention(work):
        for at in _positions(own.text["direction"] == UPDATE):
            yield rows[at], f"direction must be forward, backward_data or backward_weight, got {UPDATE!r}"
    for name, values, rule, bounds, wrong in _at_odds(work):
        for at in _positions(wrong):
            yield rows[at], f"{name} must be {rule} {bounds[at]:.10g}, got {values[at]:.10g}"


def _at_odds(work: Work) -> Iterator[tuple[str, FloatArray, str, FloatArray, BoolArray]]:
    """Yield column, its values, the rule, what the rule compares with and where it is broken; arrays of shape (k,)."""
    if is_convolution(work):
        for axis in "hw":
            side, extent = column(work, f"k_{axis}"), column(work, f"in_{axis}") + 2 * column(work, f"pad_{axis}")
            yield f"k_{axis}", side, f"at most in_{axis} + 2 pad_{axis} =", extent, side > extent
        groups = column(work, "groups")
        for name in ("in_c", "out_c"):
            channels = column(work, name)
            yield name, channels, "a multiple of groups =", groups, channels % groups != 0
    elif is_attention(work):
        causal = column(work, "causal")
        yield "causal", causal, "0 or", np.ones_like(causal), causal > 1
    elif not is_product(work):
        total_bytes, elements = moved_bytes(work), column(work, "elements")
        yield "bytes", total_bytes, "above", np.zeros_like(total_bytes), total_bytes <= 0
        rows = np.maximum(column(work, "rows"), 1) if "rows" in work else np.ones_like(elements)
        yield "elements", elements, "a multiple of rows =", rows, elements % rows != 0


def _positions(mask: BoolArray) -> list[int]:
    positions: list[int] = np.flatnonzero(mask).tolist()
    return positions


def merged(samples: Samples, kind: str) -> Samples:
    """Return rows of equal work, transposition and element size as one, at the median time, in the first one's group.

    Without this, the same shape could stand both in and outside a fold.
    """
    table = np.column_stack([*work_of(samples, kind).values(), *text_codes(samples, ("trans_a", "trans_b"))])
    _, first, inverse, counts = np.unique(table, axis=0, return_index=True, return_inverse=True, return_counts=True)
    of_each = np.split(samples.time_s[np.argsort(inverse.ravel(), kind="stable")], np.cumsum(counts)[:-1])
    order = np.argsort(first)
    times = np.array([np.median(of_each[place]) for place in order])
    rows = take(samples, first[order])
    return Samples(rows.text, {**rows.number, "time_s": times}, samples.circumstances)


def group_codes(samples: Samples) -> IntArray:
    """Return each row's hold-out group as a number, shape (k,)."""
    return text_codes(samples, ("group",))[0]


def text_codes(samples: Samples, names: Iterable[str]) -> list[IntArray]:
    """Return columns of words as numbers, shape (k,) each, the same for equal words."""
    codes = (np.unique(samples.text[name], return_inverse=True)[1] for name in names)
    return [one.astype(np.int64).ravel() for one in codes]


def left_out_together(samples: Samples, kind: str) -> tuple[IntArray, str]:
    """Return each row's hold-out group as a number, shape (k,), and what the rows of one have in common.

    What the rows state, where they state several; else, of kernels, the shape of the layer: rows that differ in samples
    or precision alone tell of each other. Of kinds whose work is bytes it is the size, as nothing else is known, but
    the length of a row where there are rows.
    """
    groups = group_codes(samples)
    if np.unique(groups).size > 1:
        return groups, "group"
    if kind not in (POINTWISE, *WORK_COLUMNS):
        return np.arange(samples.size), "row"
    _, first, codes = np.unique(_shapes(samples, kind), axis=0, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes.ravel()], "shape"


def _shapes(samples: Samples, kind: str) -> FloatArray:
    """Return what tells the layers of rows of one kind apart, shape (k, p)."""
    work = work_of(samples, kind)
    shape = {name: np.asarray(work[name], dtype=np.float64) for name in work_columns(kind)}
    if kind == "gemm":
        single = shape.pop("batch") <= 1
        of_weight = samples.text["direction"] == BACKWARD_WEIGHT
        shape["n"] = np.where(single & ~of_weight, 0.0, shape["n"])
        shape["k"] = np.where(single & of_weight, 0.0, shape["k"])
        shape["single"] = single.astype(np.float64)
    elif "rows" in shape and np.all(shape["rows"] > 0):
        shape = {"length": shape["elements"] / shape["rows"]}
    samples_column = {"convolution": "images", "attention": "batch"}.get(kind)
    return np.column_stack([values for name, values in shape.items() if name != samples_column])
