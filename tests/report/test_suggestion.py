from collections.abc import Callable, Iterable

from planner.domain.calibration import Calibration
from planner.domain.request import Subject
from planner.domain.suggestion import Suggestion
from planner.report.blocks import Block
from planner.report.suggestion import suggestion_view

Printed = Callable[[Iterable[Block]], str]


def test_plans_stand_in_order_with_the_best_in_full(
    suggestion: Suggestion, subject: Subject, calibration: Calibration, printed: Printed
) -> None:
    text = printed(suggestion_view(suggestion, subject, [calibration]))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "sprint-15 on tsubame-kfc, target mini-batch 138"
    assert lines[3] == "1 8 x 8 8 fp32 async 165.1 ± 12 1.31 1779 s -7% +8% 1.12 GiB *"
    assert lines[4].startswith("2 12 x 8 8 ")
    assert "Plan 1: 8 nodes x 8 GPUs, sub-batch 8, fp32, asynchronous" in lines
    assert "shortest epoch of 440 plans" in lines
    assert "Pareto front of epoch time, GPUs and distance from the target" in lines


def test_the_search_is_accounted_for(
    suggestion: Suggestion, subject: Subject, calibration: Calibration, printed: Printed
) -> None:
    words = " ".join(printed(suggestion_view(suggestion, subject, [calibration])).split())
    assert "method exhaustive: no better plan in the space" in words
    assert "plans 462 candidates: 440 ranked, 22 refused" in words
    assert "refused because 22 out of memory" in words
    assert "target-batch 138 option" in words


def test_each_warning_stands_once(
    suggestion: Suggestion, subject: Subject, calibration: Calibration, printed: Printed
) -> None:
    assert printed(suggestion_view(suggestion, subject, [calibration])).count("in_sample") == 1


def test_when_nothing_fits_the_nearest_and_a_way_out_are_shown(
    nothing_fits: Suggestion, subject: Subject, calibration: Calibration, printed: Printed
) -> None:
    text = printed(suggestion_view(nothing_fits, subject, [calibration]))
    assert "No plan fits." in text
    assert "Nearest plans" in text
    assert "  --tolerance 3.1% (now 0%) allows 8 nodes x 8 GPUs" in text
    assert "Terms" not in text


def test_no_line_is_wider_than_80_columns(
    suggestion: Suggestion, nothing_fits: Suggestion, subject: Subject, calibration: Calibration, printed: Printed
) -> None:
    for one in (suggestion, nothing_fits):
        assert max(map(len, printed(suggestion_view(one, subject, [calibration])).splitlines())) <= 80
