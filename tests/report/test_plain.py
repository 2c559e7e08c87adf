"""Plain text is what rich prints, wherever it is printed without rich."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.report.blocks import Block, Line, Pairs, Table, _print_styled, plain_lines, print_blocks

words = st.text("ab1.`é \n", max_size=120)
cells = st.text("ab1.é \n", max_size=40)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    columns = draw(st.lists(st.text("abc\n", min_size=1, max_size=12), min_size=1, max_size=5, unique=True))
    rows = draw(st.lists(st.tuples(*[cells] * len(columns)), max_size=4))
    return Table(columns, rows, right=draw(st.sets(st.sampled_from(columns))), gap=draw(st.integers(1, 3)))  # type: ignore[arg-type]


blocks = st.one_of(
    st.builds(Line, words, indent=st.integers(0, 6), label=st.sampled_from(["", "warning: "]), whole=st.booleans()),
    st.builds(Pairs, st.lists(st.tuples(st.text("ab ", max_size=20), words), min_size=1, max_size=4)),
    tables(),
)


@given(block=blocks)
def test_plain_lines_are_those_of_rich(block: Block) -> None:
    lines = plain_lines(block, 80)
    assume(lines is not None)
    assert printed([block]) == printed([block], styled=True)


def printed(some: Sequence[Block], *, styled: bool = False) -> str:
    out = io.StringIO()
    (_print_styled if styled else print_blocks)(some, out)
    return out.getvalue()


@pytest.mark.parametrize("block", [Line("a" * 81), Line("宽"), Table(["a"], [["b " * 50]]), Line("a\tb")])
def test_what_is_no_plain_text_is_left_to_rich(block: Block) -> None:
    assert plain_lines(block, 80) is None
    assert printed([block]) == printed([block], styled=True)
