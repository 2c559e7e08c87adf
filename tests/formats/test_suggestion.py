"""Keys of suggestions: what stands once, what is left out when, and where values come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.domain.prediction import Citation, PlanWarning
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Plan, Refused, Suggestion
from planner.formats.parts import REQUEST_TABLE
from planner.formats.suggestion import SUGGESTION, suggestion_document, suggestion_of, suggestions_document
from planner.search.ranking import REASONS


def test_suggestion_says_where_every_value_comes_from(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    document = suggestion_document(subject, suggestion())
    assert document["request"]["sub_batch"] == {"value": [1, 2], "source": "default request"}
    assert document["request"]["dataset"] == document["request"]["scenario"] == {}
    assert document["request"]["precision"] == {"source": "default: every one with a usable sub-model"}
    assert document["request"]["tolerance"]["value"] == {"async": 0.25}
    assert document["request"]["nodes"]["value"] == {"first": 1, "last": 1000, "step": 1}
    reason = "sub-batch larger than fits in memory"
    assert document["search"]["refused"] == [{"code": "memory", "reason": reason, "count": 6}]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (tuple(range(1, 257)), list(range(1, 257))),
        (tuple(range(8, 8008, 8)), {"first": 8, "last": 8000, "step": 8}),
        ((*range(1, 300), 400), [*range(1, 300), 400]),
        (tuple(range(300, 0, -1)), list(range(300, 0, -1))),
    ],
)
def test_long_even_ranges_are_first_last_and_step(values: tuple[int, ...], expected: object) -> None:
    assert REQUEST_TABLE.write({"target_batch": Sourced(1, "option"), "nodes": Sourced(values, "option")})["nodes"] == {
        "value": expected,
        "source": "option",
    }


def test_every_reason_of_the_search_has_a_code(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    told = [Refused(why.code, str(why), 1) for why in REASONS if why]
    told += [Refused("precision", "precision tf32: k80 does not have tf32", 1), Refused("mode", "nothing", 1)]
    one = suggestion()
    one = replace(one, search=replace(one.search, refused=tuple(told)))
    rows = suggestion_document(subject, one)["search"]["refused"]
    assert [Refused(**row) for row in rows] == told
    codes = {row["reason"]: row["code"] for row in rows}
    assert codes["mini-batch below the window"] == "below_window"
    assert codes["mini-batch above the window"] == "above_window"


def test_a_plan_decides_what_a_scheduler_needs_and_the_rest_stands_once(
    suggestion: Callable[..., Suggestion], subject: Subject
) -> None:
    document = suggestion_document(subject, suggestion())
    (plan,) = document["plans"]
    assert set(plan) == {"position", "configuration", "prediction", "why"}
    assert plan["configuration"] == {
        "nodes": 4, "gpus_per_node": 2, "gpus": 8, "data_parallel": 8, "sub_batch": 8, "accumulation_steps": 1,
        "precision": "fp32", "mode": "async",
    }  # fmt: skip
    assert not {"configuration", "warnings"} & plan["prediction"].keys()
    assert (document["subject"]["network"], document["subject"]["scenario"]) == ("alexnet", "edr")
    none = suggestion_document(replace(subject, scenario=""), suggestion())
    assert "scenario" not in none["subject"]


def test_what_is_known_of_a_plan_besides_its_prediction_is_told(
    suggestion: Callable[..., Suggestion], subject: Subject
) -> None:
    one = suggestion()
    (plan,) = one.plans
    second = Plan(2, plan.prediction, "later", ("fp32", "tf32"), 0.75, 0.9)
    citations = (Citation("a", "published", "paper", "2020"), Citation("b", "measured", "", ""))
    one = replace(
        one,
        plans=(plan, second),
        chosen=2,
        choice="fewer GPUs",
        tied=(1, 2),
        baseline=plan.prediction.configuration,
        citations=(*citations, replace(citations[0], name="a scaled")),
    )
    document = suggestion_document(subject, one)
    told = {"precisions": ["fp32", "tf32"], "probability_first_better": 0.75, "efficiency": 0.9}
    assert told.items() <= document["plans"][1].items()
    assert not told.keys() & document["plans"][0].keys()
    assert (document["chosen"], document["choice"], document["tied"]) == (2, "fewer GPUs", [1, 2])
    assert document["baseline"] == document["plans"][0]["configuration"]
    assert document["citations"] == [
        {"names": ["a", "a scaled"], "origin": "published", "source": "paper", "date": "2020"},
        {"names": ["b"], "origin": "measured"},
    ]


def test_a_warning_stands_once_with_the_plans_that_it_is_of(
    suggestion: Callable[..., Suggestion], subject: Subject
) -> None:
    one = suggestion(pareto=True)
    (plan,) = one.plans
    of_all, common = plan.prediction.warnings[0], one.warnings[0]
    own = PlanWarning("calibration", "a", "scaled")
    again = replace(own, subject="b")
    of_second = replace(plan.prediction, warnings=(of_all, own))
    of_third = replace(plan.prediction, warnings=(of_all, again))
    plans = (plan, Plan(2, of_second, ""), Plan(3, of_third, ""))
    one = replace(one, plans=plans, warnings=(common, of_all, own, again))
    assert suggestion_document(subject, one)["warnings"] == [
        {"code": common.code, "subject": common.subject, "message": common.message, "plans": [], "pareto": []},
        {"code": of_all.code, "subject": of_all.subject, "message": of_all.message},
        {
            "code": "calibration", "subject": "a", "message": "scaled", "plans": [2], "pareto": [],
            "also": [{"subject": "b", "plans": [3], "pareto": []}],
        },
    ]  # fmt: skip


def test_pareto_is_left_out_unless_asked_for_and_names_plans_that_are_told(
    suggestion: Callable[..., Suggestion], subject: Subject
) -> None:
    assert "pareto" not in suggestion_document(subject, suggestion())
    one = suggestion(pareto=True)
    assert suggestion_document(subject, one)["pareto"] == [{"position": 1, "plan": 1, "why": "soonest"}]
    told = one.plans[0].prediction
    seconds = replace(told.iteration_s, deviation=0.1)  # a rounding error apart: one plan has one prediction
    again = replace(one, pareto=(replace(one.plans[0], prediction=replace(told, iteration_s=seconds)),))
    assert suggestion_document(subject, again)["pareto"][0]["plan"] == 1
    wider = replace(told.configuration, nodes=told.configuration.nodes + 1)
    other = replace(told, configuration=wider, bottleneck="backward")
    front = (replace(one.plans[0], prediction=other),)
    (row,) = suggestion_document(subject, replace(one, pareto=front))["pareto"]
    assert row["prediction"]["bottleneck"] == "backward"
    assert "plan" not in row
    alike = (replace(front[0], precisions=("bf16", "fp16")),)
    (row,) = suggestion_document(subject, replace(one, pareto=alike))["pareto"]
    assert row["precisions"] == ["bf16", "fp16"]


def test_what_is_counted_or_named_beside_plans_is_there_where_it_is_known(
    suggestion: Callable[..., Suggestion], subject: Subject
) -> None:
    assert not {"pareto_more", "conflict"} & suggestion_document(subject, suggestion(pareto=True)).keys()
    many = replace(suggestion(pareto=True), pareto_more=1621)
    assert suggestion_document(subject, many)["pareto_more"] == 1621
    nothing = replace(suggestion(found=False), conflict=("--nodes 3", "--tensor 16"))
    assert suggestion_document(subject, nothing)["conflict"] == ["--nodes 3", "--tensor 16"]
    for one in (many, nothing):
        again = suggestion_of(SUGGESTION.build(suggestion_document(subject, one), "document"))[1]
        assert (again.pareto_more, again.conflict) == (one.pareto_more, one.conflict)


def test_nothing_found_has_nearest_and_loosen(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    document = suggestion_document(subject, suggestion(found=False))
    assert (document["status"], document["plans"]) == ("none_feasible", [])
    assert len(document["nearest"]) == 1
    assert document["loosen"] == [{"option": "--tolerance", "value": "30%", "message": "then 3 plans fit"}]
    assert not {"nearest", "loosen"} & suggestion_document(subject, suggestion()).keys()


def test_several_suggestions_are_one_document(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    other = replace(subject, network="vgg16")
    document = suggestions_document([(subject, suggestion()), (other, suggestion(found=False))])
    assert document["format"] == "planner/suggestions"
    assert [one["status"] for one in document["suggestions"]] == ["found", "none_feasible"]
