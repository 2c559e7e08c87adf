"""Sentences about ties and about changes of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from planner.domain.configuration import Configuration, Settings
from planner.domain.framework import Framework
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, Sensitivity, Suggestion
from planner.report.blocks import Block
from planner.report.doubt import deciding, sensitivity_lines

Printed = Callable[[Iterable[Block]], str]
OTHER = Configuration(2, 8, 16, precision="bf16")


def change(what: str, factor: float, best: Configuration | None = OTHER, **values: object) -> Sensitivity:
    one = Sensitivity(what, factor, is_other=True, best=best, framework=None, position=None, behind=None)
    return replace(one, **values)  # type: ignore[arg-type]


SAME = change("kernel times", 1.1, is_other=False, position=1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ((), ""),
        ((SAME, SAME), "changing any one input by 10% leaves plan 1 the best"),
        (
            (SAME, change("inter-node bandwidth", 0.9, position=3)),
            "10% less inter-node bandwidth makes plan 3 the best; 1 of 2 changes leave plan 1 the best",
        ),
        (
            (change("memory of a device", 1.1), change("memory of a device", 0.9, best=None)),
            (
                "10% more memory of a GPU makes 2 nodes x 8 GPUs, sub-batch 16, bf16, synchronous the best; "
                "with 10% less memory of a GPU nothing fits; 0 of 2 changes leave plan 1 the best"
            ),
        ),
        (
            (change("kernel times", 1.1, framework=Framework("mxnet")), *[change("kernel times", 0.9, position=2)] * 3),
            (
                "10% more kernel times makes 2 nodes x 8 GPUs, sub-batch 16, bf16, synchronous, in mxnet, the best; "
                "10% less kernel times makes plan 2 the best; 2 more (--json); 0 of 4 changes leave plan 1 the best"
            ),
        ),
    ],
)
def test_a_sentence_names_what_changes_the_best_plan(
    changes: tuple[Sensitivity, ...], sentence: str, suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    text = " ".join(printed(sensitivity_lines(replace(suggestion, sensitivity=changes), subject)).split())
    assert text == (f"Sensitivity: {sentence}" if sentence else "")


def tied(suggestion: Suggestion, *configurations: Configuration) -> Suggestion:
    plans = [
        Plan(at, replace(suggestion.plans[0].prediction, configuration=one), "")
        for at, one in enumerate(configurations, 1)
    ]
    return replace(suggestion, plans=tuple(plans), deciding=tuple(plan.position for plan in plans))


def test_plans_of_one_device_are_run_by_the_program_itself(
    suggestion: Suggestion, subject: Subject, printed: Printed
) -> None:
    in_torch = replace(subject, settings=Settings())
    alone = tied(suggestion, Configuration(1, 1, 8), Configuration(1, 1, 16))
    said = "To decide between plans 1 and 2: `planner calibrate --plan plan.json`\n"
    assert printed(deciding(alone, in_torch)) == said
    assert "planner calibrate --plan plan.json --out refined.json\n" in printed(deciding(alone, in_torch, in_full=True))
    elsewhere = replace(subject, settings=Settings(framework=Framework("mxnet")))
    for one, of in ((alone, elsewhere), (tied(suggestion, Configuration(1, 1, 8), OTHER), in_torch)):
        assert "`planner explain plan.json --part runs`" in printed(deciding(one, of))
        lines = printed(deciding(one, of, in_full=True)).splitlines()
        assert [line for line in lines if line.startswith("plan 1: ")]
        assert "planner calibrate --plan plan.json --runs runs.csv --out refined.json" in lines


def test_without_ties_nothing_is_to_be_run(suggestion: Suggestion, subject: Subject, printed: Printed) -> None:
    one = replace(suggestion, deciding=())
    assert printed([*deciding(one, subject), *deciding(one, subject, in_full=True)]) == ""
