"""Data set files (TOML).

History, newest first
---------------------
1 : first version.
"""

from __future__ import annotations

from pathlib import Path

from planner.domain.dataset import Dataset
from planner.formats.fields import Field, Table
from planner.formats.kinds import Kind
from planner.formats.values import Name, Number, Text, Whole

__all__ = ["DATASET", "read_dataset", "write_dataset"]

DATASET = Kind(
    "dataset",
    1,
    "toml",
    Table(
        (
            Field("name", Name(), "name to refer to it"),
            Field("samples", Whole(most=10**13), "samples of one epoch"),
            Field("bytes_per_sample", Number("sample", above=True), "mean size as stored (encoded)"),
            Field("source", Text(), "where the figures come from", ""),
        ),
        Dataset,
    ),
)


def read_dataset(path: Path | str) -> Dataset:
    """Return the data set of a file."""
    return DATASET.read(path)


def write_dataset(dataset: Dataset) -> str:
    """Return the text of a data set's file."""
    return DATASET.dump(dataset)
