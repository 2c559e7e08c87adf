"""Several sample files as one table: their circumstances agree, and every row knows its file and line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from planner.domain.arrays import BoolArray
from planner.domain.samples import FREE_CIRCUMSTANCES, Samples
from planner.errors import InputFileError
from planner.formats.samples import read_samples_and_lines

__all__ = ["SampleFiles", "read_sample_files"]

SOURCE = "source"
MOST_LINES = 4
"""Lines of one file that a sentence names."""


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The samples of files, in order.

    Attributes
    ----------
    samples : Samples
        k rows.
    places : tuple of k (path, line)
    """

    samples: Samples
    places: tuple[tuple[str, int], ...]

    def select(self, mask: BoolArray) -> SampleFiles:
        """Return the rows where a mask, shape (k,), is true."""
        places = tuple(place for place, is_in in zip(self.places, mask.tolist(), strict=True) if is_in)
        return SampleFiles(self.samples.select(mask), places)

    def where(self, rows: Iterable[int]) -> str:
        """Return files and lines of rows as words: ``a.csv: lines 3 and 7``."""
        by_file = groupby(sorted({self.places[row] for row in rows}), key=lambda place: place[0])
        return "; ".join(f"{path}: {_lines([line for _, line in own])}" for path, own in by_file)


def _lines(lines: Sequence[int]) -> str:
    first_lines = [str(line) for line in lines[:MOST_LINES]]
    more = [f"{len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    *first, last = [*first_lines, *more]
    return f"lines {', '.join(first)} and {last}" if first else f"line {last}"


def _each_once(key: str, values: Sequence[str]) -> Iterable[str]:
    """Return values, each once; of sources, which a file may join by semicolons itself, each of those."""
    return dict.fromkeys(part for value in values for part in (value.split("; ") if key == SOURCE else [value]))


def read_sample_files(paths: Sequence[Path]) -> SampleFiles:
    """Return the samples of one or more files, in order, with the circumstances of all.

    Circumstances that FREE_CIRCUMSTANCES are joined by semicolons; a file may leave out any.

    Raises
    ------
    InputFileError
        A file is wrong, or was measured under other circumstances than one before it.
    """
    parts, places = [], []
    first: dict[str, Path] = {}
    values: dict[str, list[str]] = {}
    for path in paths:
        part, lines = read_samples_and_lines(path)
        for key, value in part.circumstances.items():
            values_so_far = values.setdefault(key, [value])
            if value not in values_so_far and key not in FREE_CIRCUMSTANCES:
                rule = f"circumstance must be {values_so_far[0]!r}, as in {first[key]}, got {value!r}"
                raise InputFileError(str(path), f"{rule}; fit files of unlike circumstances apart", key)
            first.setdefault(key, path)
            values_so_far.append(value)
        parts.append(part)
        places += [(str(path), int(line)) for line in lines]
    circumstances = {key: "; ".join(_each_once(key, values_so_far)) for key, values_so_far in values.items()}
    whole = parts[0]
    samples = Samples(
        {name: np.concatenate([part.text[name] for part in parts]) for name in whole.text},
        {name: np.concatenate([part.number[name] for part in parts]) for name in whole.number},
        circumstances,
    )
    return SampleFiles(samples, tuple(places))
