"""Scores of kernel times that were predicted for one device from another (JSON).

History, newest first
---------------------
1 : first version; later with ``precisions``, and with ``units`` of scores and own points, which may be absent.
"""

from __future__ import annotations

from pathlib import Path

from planner.domain.transfer import (
    ANY_UNITS,
    RELATIONS,
    UNITS,
    UNITS_OF_PAIRS,
    OwnPoints,
    PrecisionScore,
    Transfers,
    TransferScore,
)
from planner.formats.fields import Field, ListOf, Table
from planner.formats.kinds import Kind
from planner.formats.values import Number, Text, Whole

__all__ = ["TRANSFER", "read_transfer", "write_transfer"]

_ERROR_FIELDS = (
    Field("rows", Whole(), "measured kernel times that were predicted"),
    Field("mean", Number(), "mean over the pairs of the mean of |predicted / measured - 1|"),
    Field("median", Number(), "mean over the pairs of the median of it"),
    Field("p90", Number(), "mean over the pairs of the 90th percentile of it"),
)
_SCORE = Table(
    (
        Field("relation", Text(RELATIONS), "what the two devices have in common"),
        Field("units", Text(UNITS_OF_PAIRS), "what multiplies on both; any: nothing, or not told apart", ANY_UNITS),
        Field("kind", Text(), "kernel kind"),
        Field("precision", Text(), "precision, or any"),
        Field("pairs", Whole(), "pairs of devices and directions, which weigh the same"),
        *_ERROR_FIELDS,
        Field("bias", Number(), "mean over the pairs of |mean of predicted / measured - 1|"),
    ),
    TransferScore,
)
_OWN = Table(
    (
        Field("units", Text((*UNITS, ANY_UNITS)), "what multiplies; any: nothing, or not told apart", ANY_UNITS),
        Field("kind", Text(), "kernel kind"),
        Field("precision", Text(), "precision, or any"),
        Field("devices", Whole(), "devices and directions, which weigh the same"),
        Field("transfer", Number(), "mean error of the best transfer"),
        Field("ratio", Number(), "of that times one factor from the device's own points"),
        Field("own", Number(), "of a fit to these points alone"),
        Field("all_own", Number(), "of a fit to all rows of the device"),
    ),
    OwnPoints,
)
_PRECISION = Table(
    (
        Field("units", Text(UNITS), "what multiplies in both precisions"),
        Field("kind", Text(), "kernel kind"),
        Field("precision", Text(), "the precision that was predicted"),
        Field("pairs", Whole(), "devices, directions and precisions predicted from, which weigh the same"),
        *_ERROR_FIELDS,
        Field("sheet", Number(), "mean error of the specification on the same rows"),
    ),
    PrecisionScore,
)
TRANSFER = Kind(
    "transfer",
    1,
    "json",
    Table(
        (
            Field("scores", ListOf(_SCORE), "one for relation, units, kind and precision"),
            Field("points", Whole(), "kernels of the device itself that own_points are from"),
            Field("own_points", ListOf(_OWN), "one for units, kind and precision"),
            Field("precisions", ListOf(_PRECISION), "one for units, kind and precision: derived from another", ()),
        ),
        Transfers,
    ),
)


def read_transfer(path: Path | str) -> Transfers:
    """Return the scores of a file."""
    return TRANSFER.read(path)


def write_transfer(transfers: Transfers) -> str:
    """Return the text of a file of scores."""
    return TRANSFER.dump(transfers)
