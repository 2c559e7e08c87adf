"""What an answer is made of before it is printed: lines, tables, pairs of name and text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

__all__ = ["Block", "Line", "Pairs", "Row", "Table", "given", "heading", "title", "width_of"]

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
        columns = dict(zip(self.columns, zip(*self.rows, strict=True), strict=True)) if self.rows else {}
        for name in self.dropped:
            if width_of(columns, 1) <= width:
                break
            columns.pop(name, None)
        if not columns:
            return self
        right = [name for name in self.right if name in columns]
        if self.dropped and width_of(columns, 1) > width:
            right = [_narrow(name) for name in right]
            columns = {_narrow(name): tuple(map(_narrow_cell, cells)) for name, cells in columns.items()}
        gap = 2 if width_of(columns, 2) <= width else 1
        return replace(
            self, columns=list(columns), rows=list(zip(*columns.values(), strict=True)), right=right, gap=gap
        )


def _narrow(heading: str) -> str:
    """Return a heading of one line in two where it is a rate."""
    return heading if "\n" in heading else heading.replace("/", "\n/")


def _narrow_cell(text: str) -> str:
    return text.replace(" / ", "/").replace(" x ", "x")


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
