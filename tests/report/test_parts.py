from collections.abc import Callable, Iterable

from planner.domain.prediction import PlanWarning, Term
from planner.report.blocks import Block
from planner.report.parts import sources_once, terms, warnings


def test_a_source_is_named_once() -> None:
    assert sources_once("one, 2019; two; one, 2019; two") == "one, 2019; two"
    assert sources_once("") == ""


def test_several_origins_break_between_words(printed: Callable[[Iterable[Block]], str]) -> None:
    shown = [
        Term(name, "step", 0.1234, 0.1234, 0.5, "published+specified", "v100-sxm2-16gb, any-steps", extrapolated=True)
        for name in ("host to device", "all reduce")
    ]
    words = set(printed([terms(shown, "all reduce")]).split())
    assert {"published", "+", "specified,", "extrapolated"} <= words
    assert {"v100-sxm2-16gb,", "any-steps"} <= words


def test_a_warning_of_some_rows_of_a_table_names_them() -> None:
    own = [PlanWarning("own", "net", f"{share} %") for share in (10, 20, 30)]
    of_all, late = PlanWarning("all", "", "everywhere"), PlanWarning("late", "x", "far")
    rows = [(1, (of_all, own[0])), (2, (of_all, own[1], late)), (3, (of_all, own[1], late)), (4, (of_all, own[2]))]
    heading, *lines = [
        line.label + line.text for line in warnings([PlanWarning("rank", "", "none")], [*rows, (9, own)])
    ]
    assert heading.strip() == "Warnings"
    assert lines == [
        "rank: none", "all, #1-4: everywhere", "own (net), #1, 9: 10 %", "own (net), #2-3, 9: 20 %",
        "late (x), #2-3: far", "own (net), #4, 9: 30 %",
    ]  # fmt: skip
    assert [line.label for line in warnings((), rows)][1] == "all: "
    assert list(warnings(())) == []
