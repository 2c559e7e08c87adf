"""Tables of text (CSV): the only home of pandas. Arrays cross, data frames only to users of Python."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import FloatArray, IntArray
from planner.errors import InputFileError, Refusal, nearest_name, shown

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "DataFrame", "Rows", "TextTable", "check_control_characters", "did_you_mean", "frame_of", "line_problem",
    "lines_of", "parse_table", "rows_of", "to_numbers", "write_table",
]  # fmt: skip

LONGEST_LINE = 2**16
"""Characters; a table of longer lines is something else."""
LONGEST_CELL = 5_000
"""Characters of a cell of a table that is held as columns: arrays of text are as wide as their longest cell."""
MOST_ROWS = 100_000
MOST_COLUMNS = 200
"""Cells of a row; no table has so many columns, but a spreadsheet may leave empty cells behind them."""
CONTROL_CHARACTERS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What a terminal would obey; tabs and line breaks belong to a table."""
MOST_LINES_OF_A_ROW = 64
"""How far a quoted cell may reach over lines: a quote that never closes must not swallow the rest of a table."""
WRONG_BYTES = re.compile("[\udc80-\udcff]")
"""What ``errors="surrogateescape"`` makes of a byte that is not UTF-8."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """r rows as columns of text, each of shape (r,), and the line of the file each row starts on, shape (r,)."""

    columns: Mapping[str, NDArray[np.str_]]
    lines: IntArray

    def column(self, name: str) -> NDArray[np.str_]:
        """Return the cells of a column, shape (r,); of one that is absent, empty ones."""
        return self.columns.get(name, np.full(self.lines.size, "", dtype=np.str_))


def parse_table(text: str, path: str, lines_before: int) -> TextTable:
    """Return the cells of a CSV text, header first; rows without any value are left out.

    ``lines_before``: of the file before the text. InputFileError, with the line, where there is no header, a column
    twice, rows of different lengths, or more or longer ones than a table may have.
    """
    numbered_rows = _rows(text, path, lines_before)
    line, header = next(numbered_rows, (lines_before + 1, []))
    while header and not header[-1]:
        header.pop()
    twice = next((name for name in header if name and header.count(name) > 1), "")
    if twice or not header or not all(header):
        what = f"got {shown(twice)} twice" if twice else "got a column without a name"
        raise InputFileError(path, f"header must name each column once, {what}", f"line {line}")
    lines: list[int] = []
    rows: list[list[str]] = []
    for line, cells in numbered_rows:
        if any(cells[len(header) :]):
            raise InputFileError(path, f"row must have at most {len(header)} cells", f"line {line}")
        if any(cells):
            if len(rows) == MOST_ROWS:
                raise InputFileError(path, f"file must be of at most {MOST_ROWS:,} rows, got more", f"line {line}")
            lines.append(line)
            rows.append(cells[: len(header)] + [""] * (len(header) - len(cells)))
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    by_name = {name: np.array(column, dtype=np.str_) for name, column in zip(header, columns, strict=True)}
    return TextTable(by_name, np.array(lines, dtype=np.int64))


def _rows(text: str, path: str, lines_before: int) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text), strict=True)
    start = lines_before + 1
    try:
        for cells in reader:
            if len(cells) > MOST_COLUMNS:
                problem = f"row must have at most {MOST_COLUMNS} cells, got {len(cells):,}"
                raise InputFileError(path, problem, f"line {start}")
            plain = [cell.strip() for cell in cells]
            longest = max(map(len, plain), default=0)
            if longest > LONGEST_CELL:
                problem = f"cell must be of at most {LONGEST_CELL:,} characters, got {longest:,}"
                raise InputFileError(path, problem, f"line {start}")
            yield start, plain
            start = lines_before + 1 + reader.line_num
    except csv.Error as error:  # a quote that never closes, or a cell beyond all sense
        raise InputFileError(path, f"text must be CSV, got: {error}", f"line {start} or later") from None


def check_control_characters(text: str, path: str) -> None:
    """Refuse a character that a terminal would obey; the null character would also end a cell, or a line, unseen."""
    control = CONTROL_CHARACTERS.search(text)
    if control:
        begin, line = text.rfind("\n", 0, control.start()) + 1, text.count("\n", 0, control.start()) + 1
        kind = "null" if control[0] == "\0" else "control"
        character = "one" if control[0] == "\0" else f"U+{ord(control[0]):04X}"
        problem = f"text must be free of {kind} characters, got {character} as character {control.start() - begin + 1}"
        raise InputFileError(path, f"{problem}; remove it", f"line {line}")


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: the nearest known one, if any is near."""
    near = nearest_name(word, words)
    return f"; did you mean {near!r}?" if near else ""


def to_numbers(cells: NDArray[np.str_]) -> FloatArray:
    """Return numbers, shape (r,): NaN of an empty cell; of a cell that is no finite number, infinity."""
    import pandas as pd  # noqa: PLC0415 - heavy, and only sample files need it

    numbers = pd.to_numeric(pd.Series(cells, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    return np.where(cells == "", np.nan, np.where(np.isfinite(numbers), numbers, np.inf))


def write_table(columns: Mapping[str, list[str]]) -> str:
    """Return a CSV text, header first."""
    import pandas as pd  # noqa: PLC0415 - heavy, and only sample files need it

    return str(pd.DataFrame(dict(columns)).to_csv(index=False, lineterminator="\n"))


def frame_of(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return a data frame of rows, for users of Python."""
    import pandas as pd  # noqa: PLC0415 - heavy, and only who asks for one needs it

    return pd.DataFrame(list(rows))


def lines_of(file: TextIO) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers, from 1; of one over LONGEST_LINE, its first LONGEST_LINE + 1."""
    for number in itertools.count(1):
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        yield number, line
        rest = line
        while len(rest) > LONGEST_LINE and not rest.endswith("\n"):
            rest = file.readline(LONGEST_LINE + 1)


Rows = Iterator[tuple[int, list[str] | Refusal]]
"""The line on which a row starts, and its cells, or why it has none."""


def rows_of(lines: Iterator[tuple[int, str]]) -> Rows:
    """Yield the line on which each row of a CSV starts, with its cells, or with why it has none.

    Unlike :func:`parse_table`, this holds one row at a time, and a broken row costs no other. Lines come from a file
    opened with ``errors="surrogateescape"``.
    """
    ahead: deque[tuple[int, str]] = deque()
    while True:
        number, line = ahead.popleft() if ahead else next(lines, (0, ""))
        if not line:
            return
        problem = line_problem(line)
        if problem is not None:
            yield number, problem
            continue
        cells = _cells(line)
        if cells is None and line.count('"') % 2:
            cells = _closed_row(line, ahead, lines)
        yield number, QUOTE_PATTERN if cells is None else cells


QUOTE_PATTERN = Refusal(
    "row", "quotes must enclose a whole cell", "", "one that does not", "; write a quote inside a quoted cell twice"
)


def line_problem(line: str) -> Refusal | None:
    """Return why a line is no line of text; None where it may be one."""
    if len(line) > LONGEST_LINE:
        return Refusal("row", f"line must be of at most {LONGEST_LINE:,} characters", got="more")
    wrong = None if line.isascii() else WRONG_BYTES.search(line)
    if wrong:
        byte = ord(wrong[0]) - 0xDC00
        received = f"byte 0x{byte:02x} as character {wrong.start() + 1}"
        return Refusal("row", "text must be UTF-8", got=received, rest="; save the file as UTF-8")
    if "\0" in line:
        received = f"one as character {line.index(chr(0)) + 1}"
        return Refusal("row", "text must be free of null characters", got=received, rest="; remove it")
    return None


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
        if count == len(ahead) or line_problem(ahead[count][1]) or len(line) > LONGEST_LINE:
            return None
        line += ahead[count][1]
        if line.count('"') % 2 == 0:
            cells = _cells(line)
            for _ in range(count + 1 if cells else 0):
                ahead.popleft()
            return cells
    return None
