"""Tables of text (CSV): the only home of pandas. Arrays cross, data frames only to users of Python."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import FloatArray, IntArray
from planner.errors import InputFileError, Refusal, VersionError, nearest_name, shown

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "DataFrame", "Rows", "TextTable", "check_control_characters", "check_header", "check_opening", "did_you_mean",
    "frame_of", "line_problem", "lines_of", "parse_table", "rows_of", "short", "to_numbers", "without_end",
    "write_table",
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
SEPARATORS = {"semicolons": ";", "tabs": "\t", "bars": "|"}
LONGEST_SHOWN = 60
"""Characters of a wrong cell or line that a sentence repeats."""
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


def parse_table(text: str, path: str, lines_before: int, check: Callable[[list[str], str], None]) -> TextTable:
    """Return the cells of a CSV text, header first; rows without any value are left out.

    ``lines_before``: of the file before the text; ``check``: of a header and where it stands. InputFileError, with the
    line, where a row is no row, or has more or longer cells, or there are more, than a table may have.
    """
    numbered_rows = _plain_rows(text, path, lines_before)
    line, header = next(numbered_rows, (lines_before + 1, []))
    check(header := without_end(header), f"line {line}")
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


def _plain_rows(text: str, path: str, lines_before: int) -> Iterator[tuple[int, list[str]]]:
    numbered = ((lines_before + number, line) for number, line in lines_of(io.StringIO(text)))
    for line, cells in rows_of(numbered):
        if isinstance(cells, Refusal):
            raise InputFileError(path, cells, f"line {line}")
        if len(cells) > MOST_COLUMNS:
            problem = f"row must have at most {MOST_COLUMNS} cells, got {len(cells):,}"
            raise InputFileError(path, problem, f"line {line}")
        if (longest := max(map(len, cells), default=0)) > LONGEST_CELL:
            problem = f"cell must be of at most {LONGEST_CELL:,} characters, got {longest:,}"
            raise InputFileError(path, problem, f"line {line}")
        yield line, cells


def without_end(cells: list[str]) -> list[str]:
    """Return the cells of a header without empty ones behind them."""
    return cells[: max((at for at, cell in enumerate(cells, 1) if cell), default=0)]


def check_opening(line: str, name: str, newest: int, path: str, *, rule: str = "", remedy: str = "") -> None:
    """Check the first line ``# planner/NAME VERSION``; InputFileError where it is none, VersionError where newer."""
    opening = re.fullmatch(rf"#\s*planner/{name}\s+([1-9]\d{{0,8}})[\s,;]*", line)
    if opening is None:
        got = repr(short(line.strip())) if line else "an empty file"
        raise InputFileError(path, f"first line must be {rule}'# planner/{name} {newest}', got {got}{remedy}", "line 1")
    if int(opening[1]) > newest:
        remedy = "the file is newer than this program; update planner"
        raise VersionError(path, f"version must be at most {newest}, got {opening[1]}; {remedy}", "line 1")


def check_header(
    header: list[str], where: str, *, columns: Collection[str], required: Collection[str], path: str,
    instead: Callable[[str], str] = lambda _: "", otherwise: str = "",
) -> None:  # fmt: skip
    """Refuse a header that is empty, has a column that is unknown or there twice, or misses a required one.

    ``instead``: unknown column -> what to write, where that is known. ``otherwise``: what else it may be.
    """

    def refuse(problem: str) -> NoReturn:
        raise InputFileError(path, problem, where)

    text = ",".join(header)
    if not header:
        refuse("header must name the columns, got an empty line; remove it")
    if not {*header} & {*columns}:
        for name, sign in SEPARATORS.items():
            if {cell.strip() for cell in text.split(sign)} & {*columns}:
                rule, remedy = "columns must be separated by commas", f"save the file with commas, not {name}"
                refuse(f"{rule}, got {short(text)!r}; {remedy}")
        refuse(
            f"header must name the columns, as in '{','.join(required)}', got {short(text)!r}; write it above the "
            f"rows{otherwise}"
        )
    for column in header:
        if column not in columns:
            remedy = instead(column) or did_you_mean(short(column), columns) or f"; known: {', '.join(columns)}"
            remedy = remedy if column else "; name the column or remove it"
            refuse(f"column must be a known one, got {short(column)!r}{remedy}")
        if header.count(column) > 1:
            refuse(f"header must name each column once, got {column!r} twice")
    for column in required:
        if column not in header:
            refuse(f"column {column} must be given, got only {short(', '.join(header))}")


def short(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return a text, cut after ``most`` characters."""
    return text if len(text) <= most else text[:most] + "..."


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
        if cells is None:
            wrong = next((one for one in line.split(",") if '"' in re.sub(r'^\s*"[^"]*"\s*$', "", one)), line)
            remedy = "; write a quote inside a quoted cell twice"
            yield number, Refusal("row", "quotes must enclose a whole cell", "", shown(wrong.strip()), remedy)
        else:
            yield number, cells


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
