"""What an answer is made of (lines, tables, pairs of name and text), and its text on a terminal, in a file or a pipe.

80 columns and plain in a file or pipe, the terminal's width and colour on a terminal; COLUMNS, NO_COLOR and FORCE_COLOR
say otherwise. Lines break at spaces, a word that is wider than its line anywhere.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TextIO, TypeVar
from unicodedata import combining, east_asian_width

T = TypeVar("T")
Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Line:
    """A paragraph: indented by ``indent`` spaces, in a style of the terminal, ``label`` before it in another.

    ``aside``: a warning beside the result, for standard error. ``whole``: not to be broken, a command to be pasted.
    ``spare``: to be left out where a screen does not hold the answer.
    """

    text: str
    style: str = ""
    indent: int = 0
    label: str = ""
    aside: bool = False
    whole: bool = False
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; rows in ``strong`` stand out.

    Columns in ``right`` hold numbers, which never wrap, nor do those in ``whole``; with ``fixed`` no column does. Of
    the columns in ``dropped`` but the last one after another goes until a line holds the others; where it still does
    not, cells have no spaces beside ``/`` and ``x``, then their words are short too, as headings are; the last goes
    where even that is too wide.
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
        for name in self.dropped[:-1]:
            if width_of(columns, 1) <= width:
                break
            columns.pop(name, None)
        right = [name for name in self.right if name in columns]
        if self.dropped and width_of(columns, 1) > width:
            right = [_narrow(name) for name in right]
            for short in SHORT_WORDS:
                columns = {
                    _narrow(name): [reduce(lambda cell, one: cell.replace(*one), short, cell) for cell in cells]
                    for name, cells in columns.items()
                }
                if width_of(columns, 1) <= width:
                    break
            else:
                columns.pop(_narrow(self.dropped[-1]), None)
        if not columns:
            return self
        right = [name for name in right if name in columns]
        gap = 2 if width_of(columns, 2) <= width else 1
        return replace(
            self, columns=list(columns), rows=list(zip(*columns.values(), strict=True)), right=right, gap=gap
        )


SHORT_HEADINGS = {"re-\ncompute": "re-\ncomp", "accu-\nmulate": "acc.", "memory\nGiB": "mem.\nGiB"}
"""Headings of columns whose cells are narrower, where a line does not hold them."""
SHORT_WORDS = (((" / ", "/"), (" x ", "x"), (" to ", "-")), (("selective", "sel."), ("per-stage", "stages")))
"""Parts of cells that are shortened then, the first ones first."""


def _narrow(heading: str) -> str:
    """Return a short heading where there is one, and one of a rate in two lines."""
    return SHORT_HEADINGS.get(heading, heading if "\n" in heading else heading.replace("/", "\n/"))


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


def listing(things: Iterable[T], cells: Mapping[str, Callable[[T], str]], right: Sequence[str] = ()) -> Table:
    """Return a table of a row a thing; ``cells``: heading of each column -> what it says of one."""
    return Table(list(cells), [[cell(one) for cell in cells.values()] for one in things], right)


def given(rows: Iterable[tuple[str, str]]) -> Pairs:
    """Return the pairs whose text is not empty."""
    return Pairs([row for row in rows if row[1]])


LINE_WIDTH = 80
"""Columns where there is no terminal to ask."""
GLUE = "\ue000"
"""Stands for a space at which lines are not broken; for private use in Unicode, so in no text."""
COMMAND = re.compile(r"`[^`\n]{1,60}`")
"""A command in a sentence; a longer one would leave too little room."""
STYLES = {"bold": 1, "dim": 2, "yellow": 33}
"""Style -> its code on a terminal."""
FIRST_COMBINING = "\u0300"
"""Printable signs before this one are one column wide."""
_WORD = re.compile(r"\s*\S+\s*")
Part = tuple[str, str]
"""Of a line, some signs and their style; empty: none."""


def lines_of(block: Block, width: int) -> list[list[Part]]:
    """Return the lines of a block, none wider than ``width`` but for what is not to be broken."""
    if isinstance(block, Line):
        text, indent = block.label + block.text, (" " * block.indent, "")
        if not block.whole:  # what is whole is not broken
            glued = COMMAND.sub(lambda one: one[0].replace(" ", GLUE), text)
            text = "\n".join(_wrapped(glued, width - block.indent))
        first, *others = text.split("\n")
        of_label = len(block.label)
        start = [indent, (first[:of_label], "yellow"), (first[of_label:], block.style)]
        return [start, *([indent, (other, block.style)] for other in others)]
    if isinstance(block, Pairs):
        return _grid(Table(("", ""), block.rows), width, names=True)
    return _grid(block.within(width) if block.dropped else block, width, names=False)


def line_count(blocks: Iterable[Block]) -> int:
    """Return the lines of blocks at LINE_WIDTH."""
    return sum(len(lines_of(block, LINE_WIDTH)) for block in blocks)


def print_blocks(blocks: Iterable[Block], stream: TextIO) -> None:
    """Print blocks one below the other."""
    width, is_terminal = _width(stream), stream.isatty() and os.environ.get("TERM") != "dumb"
    is_styled = not os.environ.get("NO_COLOR") and (is_terminal or bool(os.environ.get("FORCE_COLOR")))
    for line in (line for block in blocks for line in lines_of(block, width)):
        each = (f"\x1b[{STYLES[style]}m{text}\x1b[0m" if is_styled and style and text else text for text, style in line)
        stream.write(f"{''.join(each).replace(GLUE, ' ').rstrip()}\n")


def html_of(blocks: Iterable[Block]) -> str:
    """Return blocks as HTML, for a notebook."""
    return "".join(map(_html, blocks))


def _html(block: Block) -> str:
    if isinstance(block, Line):
        tag = "pre" if block.whole else "h3" if block.text.startswith("\n") else "p"
        words = _escaped(f"{block.label} {block.text}".strip())
        return f"<{tag}>{words}</{tag}>" if words else ""
    if isinstance(block, Pairs):
        pairs = (f'<th scope="row">{_escaped(name)}</th><td>{_escaped(text)}</td>' for name, text in block.rows)
        return f"<table>{''.join(f'<tr>{pair}</tr>' for pair in pairs)}</table>"
    kinds = [' class="number"' if name in block.right else "" for name in block.columns]
    names = (_escaped(_BROKEN.sub("", name)) for name in block.columns)
    head = "".join(f'<th scope="col"{kind}>{name}</th>' for name, kind in zip(names, kinds, strict=True))
    body = ""
    for at, row in enumerate(block.rows):
        start, end = ("<b>", "</b>") if at in block.strong else ("", "")
        cells = (f"<td{kind}>{start}{_escaped(cell)}{end}</td>" for cell, kind in zip(row, kinds, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_BROKEN = re.compile(r"(?<!sub)(?<!mini)(?<!PU)-\n")
"""Where a word of a heading is broken; behind the others a hyphen belongs to the word."""


def _escaped(text: str) -> str:
    return html.escape(text.replace("-\n", "-").replace(GLUE, " "))


def _width(stream: TextIO) -> int:
    """Return the width of lines: that of COLUMNS, else of the terminal, else LINE_WIDTH."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or LINE_WIDTH
    except (OSError, ValueError):  # no terminal
        return LINE_WIDTH


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if max(text, default="") < FIRST_COMBINING:
        return len(text)
    return sum(0 if combining(one) else 1 + (east_asian_width(one) in "WF") for one in text)


def _wrapped(text: str, width: int) -> list[str]:
    """Return lines of at most ``width`` columns."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in _WORD.findall(paragraph):
            if line and _columns(line) + _columns(word.rstrip()) > width:
                lines.append(line)
                line = ""
            line += word
            while _columns(line.rstrip()) > width:
                fitting = next(at for at in range(len(line), 0, -1) if _columns(line[:at]) <= width or at == 1)
                lines.append(line[:fitting])
                line = line[fitting:]
        lines.append(line)
    return lines


def _grid(table: Table, width: int, *, names: bool) -> list[list[Part]]:
    """Return columns without lines; with ``names`` there is no header, and the first column names the second."""
    rows: list[Row] = [*([] if names else [table.columns]), *table.rows]
    widths = [max(_columns(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]
    is_right = [column in table.right for column in table.columns]
    is_whole = [table.fixed or column in (*table.right, *table.whole) for column in table.columns]
    is_whole[0] |= names
    narrowed = [at for at, whole in enumerate(is_whole) if not whole] or [*range(len(widths))]
    _narrow_widest(widths, narrowed, width - table.gap * (len(widths) - 1), table.gap)
    lines: list[list[Part]] = []
    for at, row in enumerate(rows):
        cells = [_wrapped(cell, most) for cell, most in zip(row, widths, strict=True)]
        is_header = at == 0 and not names
        style = "bold" if is_header or at - (not names) in table.strong else ""
        most = max(map(len, cells), default=0)  # cells of fewer lines stand at the top, those of a header at the bottom
        of_lines = [[*[""] * (most - len(own)), *own] if is_header else own + [""] * (most - len(own)) for own in cells]
        for line in zip(*of_lines, strict=True):
            parts = []
            for part, wide, right in zip(map(str.rstrip, line), widths, is_right, strict=True):
                space = " " * (wide - _columns(part))
                parts.append(space + part if right else part + space)
            first, rest = parts[0], (" " * table.gap).join(["", *parts[1:]])
            lines.append([(first, "dim" if names else style), (rest, style)])
    return lines


def _narrow_widest(widths: list[int], narrowed: Sequence[int], free: int, gap: int) -> None:
    """Take what columns exceed ``free`` from the widest of some, with the gap behind them, as far as to the next."""
    while (excess := sum(widths) - free) > 0:
        behind = {at: widths[at] + gap * (at < len(widths) - 1) for at in narrowed if widths[at] > 1}
        most = max(behind.values(), default=0)
        widest = [at for at, one in behind.items() if one == most]
        if not widest:
            return
        step = most - max((one for one in behind.values() if one < most), default=1)
        for place, at in enumerate(widest):
            cut = min(step, widths[at] - 1, round(excess / (len(widest) - place)))
            widths[at], excess = widths[at] - cut, excess - cut
