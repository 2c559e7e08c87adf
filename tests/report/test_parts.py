from collections.abc import Callable, Iterable

import pytest

from planner.domain.prediction import MiniBatch, PlanWarning, Quantity, Term
from planner.report.blocks import Block
from planner.report.parts import duration, figure, mini_batch, sources_once, term_words, terms, warnings


def test_a_source_is_named_once() -> None:
    assert sources_once("one, 2019; two; one, 2019; two") == "one, 2019; two"
    assert sources_once("") == ""


def test_several_origins_break_between_words(printed: Callable[[Iterable[Block]], str]) -> None:
    shown = [
        Term(
            name,
            "step",
            0.1234,
            0.1234,
            0.5,
            ("published", "specified"),
            ("v100-sxm2-16gb", "any-steps"),
            extrapolated=True,
        )
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


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((168.0, 120.0, 234.0), "2.8 min (2.0 to 3.9 min)"),
        ((51.0, 16.0, 161.0), "51 s (16 to 160 s)"),
        ((147600.0, 126000.0, 176400.0), "1 d 17 h (1 d 11 h to 2 d 1 h)"),
        ((7200.0, 7190.0, 7210.0), "2.000 h (1.997 to 2.003 h)"),
        ((0.0405, 0.039, 0.042), "40.5 ms (39.0 to 42.0 ms)"),
        ((18.0, None, None), "18.00 s"),
    ],
)
def test_an_interval_has_the_unit_of_its_value(ends: tuple[float, float | None, float | None], text: str) -> None:
    assert duration(Quantity(*ends)) == text


def test_what_does_not_apply_is_left_out() -> None:
    assert duration(None) == ""


def test_a_unit_stands_once() -> None:
    assert figure(Quantity(4763.0, 1281.0, 17708.0), "samples/s") == "4,800 samples/s (1,300 to 18,000)"
    assert figure(Quantity(1.25), "USD") == "1.250 USD"


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [(1024, 0, "1024"), (1114.2, 388.6, "1114 ± 389"), (165.1, 12.25, "165 ± 12"), (553.04, 8.76, "553.0 ± 8.8"),
     (5.147, 0.0634, "5.147 ± 0.063"), (300.2, 1e-9, "300.200 ± 0.000")],
)  # fmt: skip
def test_a_random_mini_batch_has_the_digits_of_its_deviation(mean: float, std: float, text: str) -> None:
    assert mini_batch(MiniBatch(mean, std, mean, mean)) == text


def test_collectives_are_hyphenated() -> None:
    assert [term_words(name) for name in ("all_reduce", "reduce_scatter", "load_input")] == [
        "all-reduce", "reduce-scatter", "load input",
    ]  # fmt: skip


def test_short_terms_mark_what_extrapolates(printed: Callable[[Iterable[Block]], str]) -> None:
    far = Term("forward", "gpu", 0.1, 0.1, 0.5, ("published", "specified"), ("a100",), extrapolated=True)
    near = Term("all_reduce", "update", 0.1, 0.1, 0.5, ("measured",), ("links",), extrapolated=False)
    lines = [line.split() for line in printed([terms([far, near], "", "CPU", brief=True)]).splitlines()]
    assert lines[0] == ["thread", "term", "takes", "adds", "share", "origin"]
    assert lines[1] == ["CPU", "forward", "100", "ms", "100", "ms", "50.0%", "published", "+", "specified", "*"]
    assert lines[2] == ["update", "all-reduce", "100", "ms", "100", "ms", "50.0%", "measured"]
