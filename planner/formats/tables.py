"""Tables of text (CSV): the only home of pandas. Arrays cross, data frames never."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import FloatArray, IntArray
from planner.errors import InputFileError

__all__ = ["TextTable", "check_free_of_nulls", "lines_of", "parse_table", "rows_of", "to_numbers", "write_table"]

LONGEST_LINE = 2**16
"""Characters; a table of longer lines is something else."""
MOST_LINES_OF_A_ROW = 64
"""How far a quoted cell may reach over lines: a quote that never closes must not swallow the rest of a table."""
WRONG_BYTE = re.compile("[\udc80-\udcff]")
"""What ``errors="surrogateescape"`` makes of a byte that is not UTF-8."""


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


def check_free_of_nulls(text: str, path: str) -> None:
    """Refuse a null character, which no text file holds: it would end a cell, or a line, unseen."""
    at = text.find("\0")
    if at >= 0:
        begin, line = text.rfind("\n", 0, at) + 1, text.count("\n", 0, at) + 1
        problem = f"text must be free of null characters, got one as character {at - begin + 1}; remove it"
        raise InputFileError(path, problem, f"line {line}")


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


def lines_of(file: TextIO) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers, from 1; of one over LONGEST_LINE, its first LONGEST_LINE + 1."""
    for number in itertools.count(1):
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        rest = line
        while len(rest) > LONGEST_LINE and not rest.endswith("\n"):
            rest = file.readline(LONGEST_LINE + 1)
        yield number, line


def rows_of(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the line on which each row of a CSV starts, with its cells, or with the reason why it has none.

    Unlike :func:`parse_table`, this holds one row at a time, and a broken row costs no other. Lines come from a file
    opened with ``errors="surrogateescape"``.
    """
    ahead: deque[tuple[int, str]] = deque()
    while True:
        number, line = ahead.popleft() if ahead else next(lines, (0, ""))
        if not line:
            return
        problem = _problem(line)
        if problem:
            yield number, problem
            continue
        cells = _cells(line)
        if cells is None and line.count('"') % 2:
            cells = _closed_row(line, ahead, lines)
        yield number, QUOTES if cells is None else cells


QUOTES = "quotes must enclose a whole cell, got one that does not; write a quote inside a quoted cell twice"


def _problem(line: str) -> str:
    """Return why a line is none of a table; empty where it may be one."""
    if len(line) > LONGEST_LINE:
        return f"line must be of at most {LONGEST_LINE:,} characters, got more"
    wrong = None if line.isascii() else WRONG_BYTE.search(line)
    if wrong:
        byte = ord(wrong[0]) - 0xDC00
        return f"text must be UTF-8, got byte 0x{byte:02x} as character {wrong.start() + 1}; save the file as UTF-8"
    if "\0" in line:
        return f"text must be free of null characters, got one as character {line.index(chr(0)) + 1}; remove it"
    return ""


def _cells(text: str) -> list[str] | None:
    if '"' not in text:
        return [cell.strip() for cell in text.split(",")]
    try:
        return [cell.strip() for cell in next(csv.reader((text,), strict=True))]
    except csv.Error:
        return None


def _closed_row(line: str, ahead: deque[tuple[int, str]], lines: Iterator[tuple[int, str]]) -> list[str] | None:
    """Return the cells of a row whose last quote closes on a later line, or None; takes those lines from ``ahead``."""
    for count in range(MOST_LINES_OF_A_ROW):
        if count == len(ahead):
            ahead.extend(itertools.islice(lines, 1))
        if count == len(ahead) or _problem(ahead[count][1]) or len(line) > LONGEST_LINE:
            return None
        line += ahead[count][1]
        if line.count('"') % 2 == 0:
            cells = _cells(line)
            for _ in range(count + 1 if cells else 0):
                ahead.popleft()
            return cells
    return None
