"""Scores of kernel times that were predicted for one device from another (JSON).

History, newest first
---------------------
1 : first version.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planner.domain.transfer import RELATIONS, TransferScore
from planner.formats.fields import Field, ListOf, Table
from planner.formats.kinds import Kind
from planner.formats.values import Number, Text, Whole

__all__ = ["TRANSFER", "read_transfer", "write_transfer"]

_SCORE = Table(
    (
        Field("relation", Text(RELATIONS), "what the two devices have in common"),
        Field("kind", Text(), "kernel kind"),
        Field("precision", Text(), "precision, or any"),
        Field("pairs", Whole(), "pairs of devices and directions, which weigh the same"),
        Field("rows", Whole(), "measured kernel times that were predicted"),
        Field("mean", Number(), "mean over the pairs of the mean of |predicted / measured - 1|"),
        Field("median", Number(), "mean over the pairs of the median of it"),
        Field("p90", Number(), "mean over the pairs of the 90th percentile of it"),
        Field("bias", Number(), "mean over the pairs of |mean of predicted / measured - 1|"),
    ),
    TransferScore,
)
TRANSFER = Kind(
    "transfer",
    1,
    "json",
    Table((Field("scores", ListOf(_SCORE), "one a relation, kind and precision"),), dict[str, Any]),
)


def read_transfer(path: Path | str) -> tuple[TransferScore, ...]:
    """Return the scores of a file."""
    return tuple(TRANSFER.read(path)["scores"])


def write_transfer(scores: Iterable[TransferScore]) -> str:
    """Return the text of a file of scores."""
    return TRANSFER.dump({"scores": tuple(scores)})
