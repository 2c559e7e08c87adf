"""Tables of text (CSV): the only home of pandas. Arrays cross, data frames never."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import FloatArray, IntArray
from planner.errors import InputFileError

__all__ = ["TextTable", "parse_table", "to_numbers", "write_table"]


@dataclass(frozen=True, slots=True)
class TextTable:
    """r rows as columns of text, each of shape (r,), and the line of the file each row starts on, shape (r,)."""

    columns: Mapping[str, NDArray[np.str_]]
    lines: IntArray


def parse_table(text: str, path: str, skipped: int) -> TextTable:
    """Return the cells of a CSV text; rows without any value are left out.

    Parameters
    ----------
    text : str
        Header line first.
    path : str
    skipped : int
        Lines of the file before ``text``.

    Raises
    ------
    InputFileError
        No header, a column twice, or rows of different lengths; the line is named.
    """
    import pandas as pd  # noqa: PLC0415 - heavy, and only sample files need it

    names = _positions(text)
    try:
        rows = pd.read_csv(
            io.StringIO(text), header=None, names=names, dtype=str, keep_default_na=False, skip_blank_lines=False
        ).fillna("")
    except ValueError as error:  # pandas' own errors are of this class: a quote that never closes
        raise InputFileError(path, f"text must be CSV, got: {error}", f"line {skipped + 1} or later") from None
    cells = np.char.strip(rows.to_numpy(dtype=np.str_))
    header = [str(name) for name in cells[0]] if len(cells) else [""]
    starts = skipped + 1 + np.arange(len(cells)) + _line_breaks_before(cells)
    width = max(position for position, name in enumerate(header) if name or position == 0) + 1
    too_long = np.flatnonzero((cells[:, width:] != "").any(axis=1))
    if too_long.size:
        raise InputFileError(path, f"row must have at most {width} cells", f"line {starts[too_long[0]]}")
    twice = [name for name in header[:width] if header.count(name) > 1]
    if twice or not all(header[:width]):
        what = f"got {twice[0]!r} twice" if twice else "got a column without a name"
        raise InputFileError(path, f"header must name each column once, {what}", f"line {skipped + 1}")
    filled = np.flatnonzero((cells != "").any(axis=1))[1:]
    return TextTable({name: cells[filled, i] for i, name in enumerate(header[:width])}, starts[filled])


def _positions(text: str) -> list[int]:
    # Rows may be longer than the header (an error reported with its line): no row has more cells than commas + 1.
    return list(range(max((line.count(",") for line in text.splitlines()), default=0) + 1))


def _line_breaks_before(cells: NDArray[np.str_]) -> IntArray:
    breaks = np.char.count(cells, "\n").sum(axis=1, dtype=np.int64)
    return np.concatenate([[0], np.cumsum(breaks)[:-1]]).astype(np.int64)


def to_numbers(cells: NDArray[np.str_]) -> FloatArray:
    """Return numbers, shape (r,): NaN of an empty cell; of a cell that is no finite number, infinity."""
    import pandas as pd  # noqa: PLC0415 - heavy, and only sample files need it

    numbers = pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    return np.where(cells == "", np.nan, np.where(np.isfinite(numbers), numbers, np.inf))


def write_table(columns: Mapping[str, list[str]]) -> str:
    """Return a CSV text, header first."""
    import pandas as pd  # noqa: PLC0415 - heavy, and only sample files need it

    return str(pd.DataFrame(dict(columns)).to_csv(index=False, lineterminator="\n"))
