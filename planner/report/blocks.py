"""What an answer is made of (lines, tables, pairs of name and text), and its text on a terminal, in a file or a pipe.

80 columns and plain in a file or pipe, the terminal's width and colour on a terminal; COLUMNS, NO_COLOR and FORCE_COLOR
say otherwise. rich takes long to load: plain text is laid out here, as rich would, and rich called only for a terminal
and for what needs more than words that break at spaces: words and tables wider than a line, signs that are not one
column wide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TextIO

__all__ = [
    "LINE_WIDTH", "Block", "Line", "Pairs", "Row", "Table", "console", "given", "heading", "line_count", "plain_lines",
    "print_blocks", "title", "width_of",
]  # fmt: skip


Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Line:
    """A paragraph: indented by ``indent`` spaces, in a style of the terminal, ``label`` before it in another.

    ``aside``: a warning beside the result, for standard error. ``whole``: not to be broken, a command to be pasted.
    """

    text: str
    style: str = ""
    indent: int = 0
    label: str = ""
    aside: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; rows in ``strong`` stand out.

    Columns in ``right`` hold numbers, which never wrap, nor do those in ``whole``; with ``fixed`` no column does. Of
    the columns in ``dropped`` one after another goes until a line holds the others; where it still does not, in its
    cells no spaces stand beside ``/`` and ``x``, and rates two lines of heading.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    right: Sequence[str] = ()
    gap: int = 2
    strong: Sequence[int] = ()
    fixed: bool = False
    dropped: Sequence[str] = ()
    whole: Sequence[str] = ()

    def within(self, width: int) -> Table:
        """Return the table with as many of its columns as lines of ``width`` characters hold, gaps up to 2."""
        columns: dict[str, Sequence[str]] = {}
        if self.rows:
            columns |= zip(self.columns, zip(*self.rows, strict=True), strict=True)
        for name in self.dropped:
            if width_of(columns, 1) <= width:
                break
            columns.pop(name, None)
        if not columns:
            return self
        right = [name for name in self.right if name in columns]
        if self.dropped and width_of(columns, 1) > width:
            right = [_narrow(name) for name in right]
            columns = {
                _narrow(name): [cell.replace(" / ", "/").replace(" x ", "x") for cell in cells]
                for name, cells in columns.items()
            }
        gap = 2 if width_of(columns, 2) <= width else 1
        return replace(
            self, columns=list(columns), rows=list(zip(*columns.values(), strict=True)), right=right, gap=gap
        )


def _narrow(heading: str) -> str:
    """Return a heading of one line in two where it is a rate."""
    return heading if "\n" in heading else heading.replace("/", "\n/")


def width_of(columns: Mapping[str, Sequence[str]], gap: int) -> int:
    """Return the characters of a line of a table."""
    widest = (max(map(len, (*name.split("\n"), *cells))) for name, cells in columns.items())
    return sum(widest) + gap * (len(columns) - 1)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and texts side by side; a long text wraps in its own column."""

    rows: Sequence[tuple[str, str]]


Block = Line | Table | Pairs


def title(words: str) -> Line:
    """Return the first line of an answer."""
    return Line(words, "bold")


def heading(words: str) -> Line:
    """Return a heading with an empty line before it."""
    return Line(f"\n{words}", "bold")


def given(rows: Iterable[tuple[str, str]]) -> Pairs:
    """Return the pairs whose text is not empty."""
    return Pairs([row for row in rows if row[1]])


FIRST_COMBINING = "\u0300"
"""Printable signs before this one are one column wide."""
_WORD = re.compile(r"\s*\S+\s*")


def plain_lines(block: Block, width: int) -> list[str] | None:
    """Return the lines of a block; None where rich is needed."""
    if isinstance(block, Line):
        return _plain_line(block, width)
    if isinstance(block, Pairs):
        return _plain_grid(Table(("", ""), block.rows), width, names=True)
    return _plain_grid(block.within(width) if block.dropped else block, width, names=False)


def _has_plain_signs(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n")) and max(text, default="") < FIRST_COMBINING


def _is_plain(text: str) -> bool:
    return _has_plain_signs(text) and all(line == line.strip() for line in text.split("\n"))


def _plain_line(line: Line, width: int) -> list[str] | None:
    if line.whole and _has_plain_signs(line.label + line.text):
        return f"{' ' * line.indent}{line.label}{line.text}".split("\n")
    if line.whole or not _is_plain(line.label + line.text) or (line.indent and "" in line.text.split("\n")):
        return None
    wrapped = _wrapped(line.label + _glued(line.text), width - line.indent)
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


def _plain_grid(table: Table, width: int, *, names: bool) -> list[str] | None:
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
        lines += _plain_row([cell or [] for cell in cells], widths, is_right, " " * table.gap, at_bottom=is_header)
    return lines


def _plain_row(
    cells: Sequence[list[str]], widths: Sequence[int], is_right: Sequence[bool], gap: str, *, at_bottom: bool
) -> Iterator[str]:
    """Yield the lines of a row; cells of fewer lines stand at the top, or ``at_bottom``."""
    most = max(map(len, cells), default=0)
    for cell in cells:
        cell[:] = [""] * (most - len(cell)) + cell if at_bottom else cell + [""] * (most - len(cell))
    for parts in zip(*cells, strict=True):
        columns = zip(parts, widths, is_right, strict=True)
        yield gap.join(part.rstrip().rjust(most) if right else part.ljust(most) for part, most, right in columns)


LINE_WIDTH = 80
"""Columns where there is no terminal to ask."""
GLUE = "\ue000"
"""Stands for a space at which lines are not broken; for private use in Unicode, so in no text."""
COMMAND = re.compile(r"`[^`\n]{1,60}`")
"""A command in a sentence; a longer one would leave too little room."""


def console(stream: TextIO) -> Any:
    """Return a rich Console: colour only on a terminal or with FORCE_COLOR set, and never with NO_COLOR set.

    Its width is that of COLUMNS, else of the terminal, else 80.
    """
    from rich.console import Console  # noqa: PLC0415 - heavy, and JSON answers do without

    has_style = _has_style(stream)
    return Console(
        file=stream, width=_width(stream), highlight=False, emoji=False, markup=False,
        force_terminal=has_style, color_system="auto" if has_style else None,
    )  # fmt: skip


def _has_style(stream: TextIO) -> bool:
    return not os.environ.get("NO_COLOR") and (stream.isatty() or bool(os.environ.get("FORCE_COLOR")))


def _width(stream: TextIO) -> int | None:
    """Return the width of lines; None: that of the terminal."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else None if stream.isatty() else LINE_WIDTH


def line_count(blocks: Iterable[Block]) -> int:
    """Return the lines of blocks at LINE_WIDTH; what only rich can lay out counts two lines a row, or paragraph."""
    count = 0
    for block in blocks:
        lines = plain_lines(block, LINE_WIDTH)
        rows = 1 if isinstance(block, Line) else len(block.rows)
        count += 2 * rows if lines is None else len(lines)
    return count


def print_blocks(blocks: Iterable[Block], stream: TextIO) -> None:
    """Print blocks one below the other, by rich where one of them needs it or there is a terminal.

    rich ends the program itself when the reader of a pipe is gone; so it only renders here, and the text is written by
    ``stream``, whose errors reach the caller.
    """
    blocks, width = list(blocks), _width(stream)
    if width is not None and not stream.isatty() and not _has_style(stream):
        plain = [plain_lines(block, width) for block in blocks]
        lines = [line for one in plain for line in one or ()]
        if None not in plain:
            stream.writelines(f"{line.replace(GLUE, ' ').rstrip()}\n" for line in lines)
            return
    _print_styled(blocks, stream)


def _print_styled(blocks: Iterable[Block], stream: TextIO) -> None:
    out = console(stream)
    with out.capture() as output:
        for block in blocks:
            fitting = block.within(out.width) if isinstance(block, Table) and block.dropped else block
            out.print(_rendered(fitting), soft_wrap=isinstance(block, Line) and block.whole)
    text = output.get().replace(GLUE, " ")
    stream.write(text if out.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


def _glued(text: str) -> str:
    """Return a text whose commands are one word."""
    return COMMAND.sub(lambda command: command[0].replace(" ", GLUE), text)


def _rendered(block: Block) -> object:
    if isinstance(block, Line):
        return _rich_line(block)
    if isinstance(block, Pairs):
        return _rich_grid(Table(("", ""), block.rows), names=True)
    return _rich_grid(block, names=False)


def _rich_line(line: Line) -> object:
    from rich.padding import Padding  # noqa: PLC0415 - heavy, and JSON answers do without
    from rich.text import Text  # noqa: PLC0415 - as above

    if line.whole:  # padding would cut it off
        return Text.assemble((" " * line.indent + line.label, "yellow"), (line.text, line.style))
    text = Text.assemble((line.label, "yellow"), (_glued(line.text), line.style))
    return Padding(text, (0, 0, 0, line.indent), expand=False) if line.indent else text


def _rich_grid(table: Table, *, names: bool) -> object:
    """Return columns without lines; with ``names`` there is no header and the first column names the second."""
    from rich.table import Table as Grid  # noqa: PLC0415 - heavy, and JSON answers do without

    grid = Grid(box=None, show_header=not names, pad_edge=False, padding=(0, table.gap, 0, 0), header_style="bold")
    for at, column in enumerate(table.columns):
        number, name = column in table.right, names and at == 0
        style = "dim" if name else None
        justify: Literal["left", "right"] = "right" if number else "left"
        whole = number or name or table.fixed or column in table.whole
        grid.add_column(column, justify=justify, style=style, no_wrap=whole, overflow="fold")
    for at, row in enumerate(table.rows):
        grid.add_row(*row, style="bold" if at in table.strong else None)
    return grid
