"""Blocks to text: 80 columns and plain in a file or pipe, the terminal's width and colour on a terminal.

The environment may say otherwise: COLUMNS, NO_COLOR, FORCE_COLOR.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, Literal, TextIO

from planner.report.blocks import Block, Line, Pairs, Table
from planner.report.plain import plain_lines

__all__ = ["LINE_WIDTH", "console", "line_count", "print_blocks"]

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
        lines = plain_lines(block, LINE_WIDTH, _glued)
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
        plain = [plain_lines(block, width, _glued) for block in blocks]
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
        return _line(block)
    if isinstance(block, Pairs):
        return _grid(Table(("", ""), block.rows), names=True)
    return _grid(block, names=False)


def _line(line: Line) -> object:
    from rich.padding import Padding  # noqa: PLC0415 - heavy, and JSON answers do without
    from rich.text import Text  # noqa: PLC0415 - as above

    if line.whole:  # padding would cut it off
        return Text.assemble((" " * line.indent + line.label, "yellow"), (line.text, line.style))
    text = Text.assemble((line.label, "yellow"), (_glued(line.text), line.style))
    return Padding(text, (0, 0, 0, line.indent), expand=False) if line.indent else text


def _grid(table: Table, *, names: bool) -> object:
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
