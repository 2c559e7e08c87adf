"""Sample files (CSV): one timed call a row.

The first line is ``# planner/samples 1``; further comment lines ``# key: value`` are the circumstances, then comes
the header. Blank lines say nothing. ``stride`` and ``padding`` are one number or ``HxW``. ``passes`` x ``elements`` =
elements of the row's precision read and written (``traffic`` in records), and what ``bytes`` holds beyond them moves
whatever the precision (``fixed_bytes``); without ``passes`` all of ``bytes`` is of that kind. Precision ``any`` counts
elements of 4 bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.kernels import DIRECTIONS, KINDS, TRAFFIC_KINDS
from planner.domain.precision import PRECISIONS
from planner.domain.samples import FREE_CIRCUMSTANCES, INPUT_COLUMNS, NUMBER_COLUMNS, STEP, TEXT_COLUMNS, Samples
from planner.errors import InputFileError, shown
from planner.formats.documents import read_text
from planner.formats.logs import UNSTATED, Stated, is_log, rows_of_log
from planner.formats.tables import (
    TextTable,
    check_control_characters,
    check_header,
    check_opening,
    did_you_mean,
    parse_table,
    to_numbers,
    write_table,
)

VERSION = 1
SOURCE = "source"
COLUMNS = (
    "kind", "direction", "precision", "device", "library", "m", "n", "k", "batch", "trans_a", "trans_b", "groups",
    "in_c", "in_h", "in_w", "out_c", "k_h", "k_w", "stride", "padding", "images", "elements", "rows", "passes", "bytes",
    "queries", "keys", "width", "causal", "operation", "ranks", "nodes", "ranks_per_node", "call", "sub_batch",
    "time_s", "spread_s", "repeats", "source", "group", "notes",
)  # fmt: skip
REQUIRED = ("kind", "time_s")
_PAIR_COLUMNS = {"stride": ("stride_h", "stride_w"), "padding": ("pad_h", "pad_w")}
_DERIVED_COLUMNS = ("traffic", "fixed_bytes", *_PAIR_COLUMNS["stride"], *_PAIR_COLUMNS["padding"])
_NUMBER_COLUMNS = tuple(name for name in NUMBER_COLUMNS if name not in _DERIVED_COLUMNS)
_FRACTION_COLUMNS = ("time_s", "spread_s", "passes", "bytes")
_POSITIVE_COLUMNS = ("time_s",)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_receive")
_WORD_COLUMNS = {
    "kind": (*KINDS, "pointwise", *COLLECTIVES, *INPUT_COLUMNS, STEP),
    "direction": ("", *DIRECTIONS),
    "precision": ("", "any", *PRECISIONS),
}
"""Columns of words -> those words; ``pointwise`` stands for any kind whose work is bytes."""
LARGEST_FILE = 2**24
"""Bytes of a samples file; that of an hour's measurement has a fiftieth."""
MOST_COMMENTS = 1_000
"""Lines before the header."""
LARGEST_NUMBER = 1e18
"""No count, and no time in seconds, is larger."""
OTHER_UNITS = {"ms": "1e3", "us": "1e6", "ns": "1e9"}


def read_samples(path: Path | str, stated: Stated = UNSTATED) -> tuple[Samples, IntArray]:
    """Return the samples of a file, and the line on which each row stands, shape (k,).

    ``stated``: of a log of a test of links, where it ran.

    InputFileError, with the line, where it is no samples file, has an unknown column, or a value against its rule;
    VersionError where it is newer than this program.
    """
    name = str(path)
    text = read_text(path, LARGEST_FILE)
    check_control_characters(text, name)
    if is_log(text):
        lines, rows = zip(*rows_of_log(text, name, stated), strict=True)
        return Samples.from_rows(list(rows), {SOURCE: Path(name).name}), np.array(lines)
    circumstances, body, lines_before = _comments(text, name)
    check = partial(check_header, columns=COLUMNS, required=REQUIRED, path=name, instead=_instead)
    table = parse_table(body, name, lines_before, check)
    words = {column: table.column(column) for column in TEXT_COLUMNS}
    number = {column: _numbers(table, column, name) for column in _NUMBER_COLUMNS}
    for column, sides in _PAIR_COLUMNS.items():
        number |= zip(sides, _pairs(table, column, name), strict=True)
    _refuse(words["kind"] == "", table, name, "kind", "given")
    for column, choices in _WORD_COLUMNS.items():
        known, known_words = np.isin(table.column(column), choices), [word for word in choices if word]
        _refuse(~known, table, name, column, f"one of {', '.join(known_words)}", words=known_words)
    number |= _traffic(words, number, _numbers(table, "passes", name), table, name)
    return Samples(words, {column: number[column] for column in NUMBER_COLUMNS}, circumstances), table.lines


def _comments(text: str, path: str) -> tuple[dict[str, str], str, int]:
    lines = list(islice(io.StringIO(text), MOST_COMMENTS))
    remedy = "; write it above the header, or move a file that holds no samples out of the folder"
    check_opening(lines[0] if lines else "", "samples", VERSION, path, remedy=remedy)
    circumstances: dict[str, str] = {}
    for at, line in enumerate(lines[1:], start=1):
        if not line.strip():
            continue
        if not line.startswith("#"):
            return circumstances, text[sum(map(len, lines[:at])) :], at
        key, colon, value = line[1:].partition(":")
        if not colon:
            raise InputFileError(path, f"comment must be '# key: value', got {shown(line.strip())}", f"line {at + 1}")
        if key.strip() in circumstances:
            raise InputFileError(path, f"comment must be given once, got {shown(key.strip())} again", f"line {at + 1}")
        circumstances[key.strip()] = value.strip()
    received = "the end of the file" if len(lines) < MOST_COMMENTS else f"{MOST_COMMENTS:,} lines without one"
    raise InputFileError(path, f"header must follow the comments, got {received}", f"line {len(lines)}")


def _instead(column: str) -> str:
    """Return what to do about a column of times in another unit."""
    unit = OTHER_UNITS.get(column.removeprefix("time_"))
    is_time = column.startswith("time_") and unit
    return f"; times are in seconds: divide by {unit} and call the column time_s" if is_time else ""


def _refuse(
    wrong: BoolArray, table: TextTable, path: str, column: str, rule: str, *, words: Sequence[str] = ()
) -> None:
    """Raise InputFileError at the first row, of shape (r,), that is wrong, offering the nearest of ``words``."""
    bad = np.flatnonzero(wrong)
    if bad.size:
        cell = str(table.column(column)[bad[0]])
        problem = f"{column} must be {rule}, got {shown(cell)}{did_you_mean(cell, words)}"
        raise InputFileError(path, problem, f"line {table.lines[bad[0]]}")


def _numbers(table: TextTable, column: str, path: str) -> FloatArray:
    cells = table.column(column)
    values = to_numbers(cells)
    above = column in _POSITIVE_COLUMNS
    is_there = ~np.isnan(values)
    wrong = is_there & ~((values > 0 if above else values >= 0) & (values <= LARGEST_NUMBER))
    if column not in _FRACTION_COLUMNS:
        wrong |= is_there & (np.rint(values) != values)
    if column in REQUIRED:
        wrong |= ~is_there
    kind = "number" if column in _FRACTION_COLUMNS else "whole number"
    most = f"{LARGEST_NUMBER:g}" if column in _FRACTION_COLUMNS else f"{LARGEST_NUMBER:.0f}"
    _refuse(wrong, table, path, column, f"a {kind} {'above 0' if above else 'of at least 0'}, at most {most}")
    return values


def _pairs(table: TextTable, column: str, path: str) -> tuple[FloatArray, FloatArray]:
    cells = table.column(column)
    parts = [str(cell).partition("x") for cell in cells]
    heights = np.array([height for height, _, _ in parts], dtype=np.str_)
    widths = np.array([width if cross else height for height, cross, width in parts], dtype=np.str_)
    sides = to_numbers(heights), to_numbers(widths)
    is_there = cells != ""
    # A side that is missing is NaN, one that is no number infinite: both fail a comparison.
    whole = np.all([(side >= 0) & (side <= LARGEST_NUMBER) & (np.rint(side) == side) for side in sides], axis=0)
    _refuse(is_there & ~whole, table, path, column, "a whole number of at least 0, or two as HxW")
    return sides


def _traffic(
    text: Mapping[str, NDArray[np.str_]],
    number: Mapping[str, FloatArray],
    passes: FloatArray,
    table: TextTable,
    path: str,
) -> dict[str, FloatArray]:
    has_traffic = np.isin(text["kind"], TRAFFIC_KINDS)
    traffic = np.rint(passes * number["elements"])
    has_passes = ~np.isnan(traffic)
    total = number["bytes"]
    _refuse(
        has_traffic & ~has_passes & np.isnan(total), table, path, "passes", "given with elements, unless bytes is given"
    )
    fixed_bytes = total - np.where(has_passes, traffic, 0.0) * _itemsize(text["precision"])
    _refuse(has_traffic & (fixed_bytes < 0), table, path, "bytes", "at least passes x elements x bytes of an element")
    return {
        "traffic": np.where(has_traffic, np.where(has_passes, traffic, 0.0), np.nan),
        "fixed_bytes": np.where(has_traffic, np.where(np.isnan(total), 0.0, fixed_bytes), np.nan),
    }


def _itemsize(precisions: NDArray[np.str_]) -> FloatArray:
    sizes = {name: precision.activation_bytes for name, precision in PRECISIONS.items()}
    return np.array([float(sizes.get(str(name), 4)) for name in precisions], dtype=np.float64)


def write_samples(samples: Samples) -> str:
    """Return the text of a samples file: every column in order, the circumstances sorted."""
    number = dict(samples.number)
    traffic, elements = number["traffic"], number["elements"]
    with np.errstate(divide="ignore", invalid="ignore"):
        passes = np.where(elements > 0, traffic / elements, 0.0 * traffic)
    total = traffic * _itemsize(samples.text["precision"]) + number["fixed_bytes"]
    number |= {"passes": passes, "bytes": np.where(np.isnan(total), number["bytes"], total)}
    columns = {}
    for column in COLUMNS:
        if column in samples.text:
            columns[column] = [str(cell) for cell in samples.text[column]]
        elif column in _PAIR_COLUMNS:
            heights, widths = (list(map(_number_text, number[side])) for side in _PAIR_COLUMNS[column])
            sides = zip(heights, widths, strict=True)
            columns[column] = [one if one == other else f"{one}x{other}" for one, other in sides]
        else:
            columns[column] = [_number_text(value) for value in number[column]]
    comments = "".join(f"# {key}: {samples.circumstances[key]}\n" for key in sorted(samples.circumstances))
    return f"# planner/samples {VERSION}\n{comments}{write_table(columns)}"


def _number_text(value: float) -> str:
    if np.isnan(value):
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


MOST_LINES = 4
"""Lines of one file that a sentence names."""


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The samples of files, in order: k rows, and the path and line of each."""

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


def read_sample_files(paths: Sequence[Path], stated: Stated = UNSTATED) -> SampleFiles:
    """Return the samples of one or more files, in order, with the circumstances of all.

    Circumstances that FREE_CIRCUMSTANCES are joined by semicolons; a file may leave out any. InputFileError where a
    file is wrong, or was measured under other circumstances than one before it.
    """
    parts, places = [], []
    first: dict[str, Path] = {}
    values: dict[str, list[str]] = {}
    for path in paths:
        part, lines = read_samples(path, stated)
        for key, value in part.circumstances.items():
            values_so_far = values.setdefault(key, [value])
            if value not in values_so_far and key not in FREE_CIRCUMSTANCES:
                rule = f"circumstance must be {values_so_far[0]!r}, as in {first[key]}, got {value!r}"
                raise InputFileError(str(path), f"{rule}; fit files of unlike circumstances apart", key)
            first.setdefault(key, path)
            values_so_far.append(value)
        parts.append(part)
        places += [(str(path), int(line)) for line in lines]
    if SOURCE in values:  # a file may join several itself
        values[SOURCE] = [one for value in values[SOURCE] for one in value.split("; ")]
    circumstances = {key: "; ".join(dict.fromkeys(values_so_far)) for key, values_so_far in values.items()}
    whole = parts[0]
    samples = Samples(
        {name: np.concatenate([part.text[name] for part in parts]) for name in whole.text},
        {name: np.concatenate([part.number[name] for part in parts]) for name in whole.number},
        circumstances,
    )
    return SampleFiles(samples, tuple(places))
