"""Blocks as plain text of a given width, as rich prints them, which takes long to load: for files and pipes.

What needs more than words that break at spaces is left to rich: words and tables wider than a line, signs that are not
one column wide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from planner.report.blocks import Block, Line, Pairs, Row, Table

__all__ = ["plain_lines"]

FIRST_COMBINING = "\u0300"
"""Printable signs before this one are one column wide."""
_WORD = re.compile(r"\s*\S+\s*")
Glue = Callable[[str], str]


def plain_lines(block: Block, width: int, glued: Glue) -> list[str] | None:
    """Return the lines of a block; None where rich is needed. ``glued``: text whose lines break at spaces alone."""
    if isinstance(block, Line):
        return _lines_of(block, width, glued)
    if isinstance(block, Pairs):
        return _grid(Table(("", ""), block.rows), width, names=True)
    return _grid(block.within(width) if block.dropped else block, width, names=False)


def _has_plain_signs(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n")) and max(text, default="") < FIRST_COMBINING


def _is_plain(text: str) -> bool:
    return _has_plain_signs(text) and all(line == line.strip() for line in text.split("\n"))


def _lines_of(line: Line, width: int, glued: Glue) -> list[str] | None:
    if line.whole and _has_plain_signs(line.label + line.text):
        return f"{' ' * line.indent}{line.label}{line.text}".split("\n")
    if line.whole or not _is_plain(line.label + line.text) or (line.indent and "" in line.text.split("\n")):
        return None
    wrapped = _wrapped(line.label + glued(line.text), width - line.indent)
    return None if wrapped is None else [" " * line.indent + one for one in wrapped]


def _wrapped(text: str, width: int) -> list[str] | None:
    """Return lines of at most ``width`` signs; None where a word has more."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in _WORD.findall(paragraph):
            if len(word.rstrip()) > width:
                return None
            if line and len(line) + len(word.rstrip()) > width:
                lines.append(line)
                line = ""
            line += word
        lines.append(line)
    return lines


def _grid(table: Table, width: int, *, names: bool) -> list[str] | None:
    """Return columns without lines; with ``names`` there is no header, and the second column fills the line."""
    rows: list[Row] = [*([] if names else [table.columns]), *table.rows]
    if not rows or not all(_is_plain(cell) and (not cell or all(cell.split("\n"))) for row in rows for cell in row):
        return None
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]
    if names:
        widths[-1] = min(widths[-1], width - widths[0] - table.gap)
    if sum(widths) + table.gap * (len(widths) - 1) > width:
        return None
    is_right = [column in table.right for column in table.columns]
    lines: list[str] = []
    for at, row in enumerate(rows):
        cells = [_wrapped(cell, most) for cell, most in zip(row, widths, strict=True)]
        if any(cell is None for cell in cells):
            return None
        is_header = at == 0 and not names
        lines += _row([cell or [] for cell in cells], widths, is_right, " " * table.gap, at_bottom=is_header)
    return lines


def _row(
    cells: Sequence[list[str]], widths: Sequence[int], is_right: Sequence[bool], gap: str, *, at_bottom: bool
) -> Iterator[str]:
    """Yield the lines of a row; cells of fewer lines stand at the top, or ``at_bottom``."""
    most = max(map(len, cells), default=0)
    for cell in cells:
        cell[:] = [""] * (most - len(cell)) + cell if at_bottom else cell + [""] * (most - len(cell))
    for parts in zip(*cells, strict=True):
        columns = zip(parts, widths, is_right, strict=True)
        yield gap.join(part.rstrip().rjust(most) if right else part.ljust(most) for part, most, right in columns)
