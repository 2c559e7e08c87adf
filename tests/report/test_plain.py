"""Lines of blocks: none is wider than it may be, nothing is lost, and signs of two columns count as two."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.report.blocks import Block, Line, Pairs, Table, line_count, lines_of

words = st.text("ab1.`é宽 \n", max_size=120)
cells = st.text("ab1.é宽 \n", max_size=40)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    columns = draw(st.lists(st.text("abc\n", min_size=1, max_size=12), min_size=1, max_size=5, unique=True))
    rows = draw(st.lists(st.tuples(*[cells] * len(columns)), max_size=4))
    return Table(columns, rows, gap=draw(st.integers(1, 3)))


blocks = st.one_of(
    st.builds(Line, words, indent=st.integers(0, 6), label=st.sampled_from(["", "warning: "])),
    st.builds(Pairs, st.lists(st.tuples(st.text("ab ", max_size=20), words), min_size=1, max_size=4)),
    tables(),
)


def signs(block: Block) -> Counter[str]:
    if isinstance(block, Line):
        texts = [block.label, block.text]
    else:
        texts = [cell for row in block.rows for cell in row] + list(getattr(block, "columns", ()))
    return Counter("".join("".join(texts).split()))


def columns(line: str) -> int:
    return len(line) + line.count("宽")


@given(block=blocks, width=st.integers(30, 100))
def test_lines_are_no_wider_than_they_may_be_and_lose_nothing(block: Block, width: int) -> None:
    lines = ["".join(text for text, _ in line).replace("\ue000", " ") for line in lines_of(block, width)]
    assert max((columns(line.rstrip()) for line in lines), default=0) <= width
    assert Counter("".join("".join(lines).split())) == signs(block)


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        (Line("a" * 81), ["a" * 80, "a"]),
        (Line("two words", indent=2, label="code: "), ["  code: two words"]),
        (Table(["name", "n"], [["宽", "10"], ["b", "9"]], right=["n"]), ["name   n", "宽    10", "b      9"]),
        (Pairs([("a", "x"), ("bc", "y z")]), ["a   x", "bc  y z"]),
    ],
)
def test_lines_by_hand(block: Block, lines: list[str]) -> None:
    assert ["".join(text for text, _ in line).rstrip() for line in lines_of(block, 80)] == lines
    assert line_count([block]) == len(lines)
