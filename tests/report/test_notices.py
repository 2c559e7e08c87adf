from collections.abc import Callable, Iterable

import pytest

from planner.domain.prediction import PlanWarning
from planner.report.blocks import Block
from planner.report.doubt import HEADLINES, MOST_NOTICES, notices

Printed = Callable[[Iterable[Block]], str]
MORE = "-v shows all"


def said(found: Iterable[PlanWarning]) -> list[str]:
    return [line.label + line.text for line in notices(found, MORE)]


def test_nothing_is_said_without_warnings() -> None:
    assert said([]) == []


def test_warnings_of_a_code_are_one_line_and_none_is_said_twice() -> None:
    found = [PlanWarning("specified", name, f"Times of {name}") for name in ("v100", "dgx1", "v100", "links")]
    assert said([*found, *found]) == ["warning: some times on v100, dgx1 and links come from data sheets"]


def test_frameworks_are_named_where_their_switches_leave_no_room() -> None:
    labels = ("mxnet:channels-last+fused-norm", "mxnet:channels-last+fused-norm+graphs", "pytorch@1.12:channels-last")
    generic = "framework_overheads_generic"
    assert said([PlanWarning(generic, labels[0], "")]) == [
        "warning: the overhead of mxnet is taken from other frameworks"
    ]
    assert said([PlanWarning(generic, label, label) for label in labels]) == [
        "warning: the overhead of mxnet and pytorch@1.12 is taken from other frameworks"
    ]


def test_the_gravest_come_first_and_the_others_are_counted() -> None:
    codes = ["own_layers", "unknown_version", "memory_tight", "out_of_memory", "no_dataset"]
    found = [PlanWarning(code, f"of {at}", f"{code} {at}") for code in codes for at in (1, 2)]
    assert said(found) == [
        "warning: it needs more memory than of 1 and of 2 has",
        "warning: it may run out of memory on of 1 and of 2",
        "warning: 6 more; -v shows all",
    ]
    assert len(said(found[:6])) == MOST_NOTICES
    assert "more;" not in "".join(said(found[:6]))
    typed = [
        PlanWarning(code, "it", code) for code in ("specified", "no_dataset", "unknown_version", "head_size_rounded")
    ]
    assert said(typed)[0] == "warning: it is no known version: treated as the newest"


def test_a_code_without_a_headline_is_said_in_its_own_words_before_all_others() -> None:
    long = PlanWarning("new", "", "word " * 30)
    first, second = said([PlanWarning("out_of_memory", "k80", "x"), long])
    assert first.startswith("warning: word word")
    assert first.endswith("word...")
    assert len(first) <= 80
    assert second == "warning: it needs more memory than k80 has"


@pytest.mark.parametrize("code", HEADLINES)
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_every_headline_is_one_line_of_80_columns(code: str, count: int, printed: Printed) -> None:
    found = [PlanWarning(code, f"a-long-accelerator-{at}gb" if count else "", f"{at}") for at in range(max(count, 1))]
    lines = printed(notices(found, MORE)).splitlines()
    assert len(lines) == 1
    assert len(lines[0]) <= 80
    assert "..." not in lines[0]
    if count == 40 and "{subjects}" in HEADLINES[code]:
        assert " more" in lines[0] or " it" in lines[0]


def test_warnings_stand_beside_the_answer() -> None:
    assert all(line.aside for line in notices([PlanWarning("no_dataset", "", "none")], MORE))
