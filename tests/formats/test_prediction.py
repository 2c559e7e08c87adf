"""Keys of predictions and suggestions: what is null when, and what counts are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.domain.configuration import Configuration
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import Prediction, Quantity
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Suggestion
from planner.errors import InputFileError
from planner.formats.asked import request_keys
from planner.formats.documents import dump_json
from planner.formats.prediction import PREDICTION, configuration_keys, prediction_document, predictions_document
from planner.formats.suggestion import suggestion_document, suggestions_document
from planner.search.feasibility import REASONS

KEYS = {
    "network", "cluster", "scenario", "optimizer", "strategy", "input", "framework", "gradient_bytes_per_element",
    "nodes", "gpus_per_node", "gpus", "precision", "mode", "parallelism", "data_parallel", "tensor_parallel",
    "pipeline_parallel", "virtual_stages", "sub_batch", "accumulation_steps", "mini_batch", "recompute", "sharding",
}  # fmt: skip


def test_synchronous_mini_batch_is_the_product_and_asynchronous_is_null(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    sync = prediction_document(subject, prediction("sync"))
    assert sync["configuration"]["mini_batch"] == 4 * 2 * 8
    assert sync["update_s"] is None
    assert sync["staleness"] == {"mean": 0.0, "std": 0.0, "pmf": {"0": 1.0}}
    asynchronous = prediction_document(subject, prediction("async"))
    assert asynchronous["configuration"]["mini_batch"] is None
    assert asynchronous["mini_batch"]["mean"] == 64.0
    assert asynchronous["update_s"]["value"] == 0.2
    assert asynchronous["staleness"]["pmf"] == {"1": 0.5, "2": 0.5}


def test_configuration_says_what_it_is_of(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    configuration = prediction_document(subject, prediction("sync"))["configuration"]
    assert set(configuration) == KEYS
    known = {"network": "alexnet", "cluster": "example", "scenario": "edr", "optimizer": "adam", "input": "synthetic"}
    assert known.items() <= configuration.items()


@pytest.mark.parametrize(("framework", "bytes_of_mixed"), [("megatron@0.9", 2), ("pytorch@2.4", 4)])
def test_gradient_bytes_are_those_of_precision_and_framework(
    subject: Subject, framework: str, bytes_of_mixed: int
) -> None:
    asked = replace(subject, settings=replace(subject.settings, framework=framework))
    sizes = {name: configuration_keys(asked, Configuration(1, 1, 1, 1, name)) for name in PRECISIONS}
    stated = {name: keys["gradient_bytes_per_element"] for name, keys in sizes.items()}
    assert stated == {"fp32": 4, "tf32": 4} | dict.fromkeys(("fp16", "bf16", "fp8", "int8"), bytes_of_mixed)


def test_an_epoch_costs_its_gpu_hours(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    one = replace(prediction("sync"), epoch_s=Quantity(1000.0, 900.0, 1200.0, "assumed"))
    # 4 nodes x 2 GPUs at 3.6 USD an hour: 0.008 USD a second.
    expected = {"value": 8.0, "low": 7.2, "high": 9.6, "interval_basis": "assumed"}
    assert prediction_document(subject, one)["epoch_usd"] == pytest.approx(expected)
    assert prediction_document(replace(subject, usd_per_gpu_hour=None), one)["epoch_usd"] is None
    assert prediction_document(subject, replace(one, epoch_s=None))["epoch_usd"] is None


def test_every_way_to_find_a_kernels_time_has_its_share(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    names = {"exact", "between", "beyond", "sibling", "regression", "specification"}
    assert prediction_document(subject, prediction("sync"))["kernel_shares"] == dict.fromkeys(names, 0.0)
    shares = dict(zip(sorted(names), (0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125), strict=True))
    one = replace(prediction("sync"), kernel_shares=shares)
    document = prediction_document(subject, one)
    assert PREDICTION.build(document, "x")["kernel_shares"] == document["kernel_shares"] == shares
    wrong: dict[str, object] = dict(shares) | {"regression": "most"}
    with pytest.raises(InputFileError, match=r"kernel_shares\.regression"):
        PREDICTION.build(document | {"kernel_shares": wrong}, "x")


def test_interval_has_both_ends_or_neither(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    one = replace(prediction("sync"), iteration_s=Quantity(0.5, 0.4, None, "assumed"))
    found = prediction_document(subject, one)["iteration_s"]
    assert found == {"value": 0.5, "low": None, "high": None, "interval_basis": "none"}


def test_nan_never_reaches_json(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    one = replace(prediction("sync"), epoch_s=Quantity(math.nan, math.nan, math.inf, "assumed"))
    text = dump_json(prediction_document(subject, one))
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["epoch_s"] == {"value": None, "low": None, "high": None, "interval_basis": "none"}


def test_predictions_keep_their_order(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    other = replace(subject, network="vgg16")
    document = predictions_document([(subject, prediction("sync")), (other, prediction("async"))])
    assert document["format"] == "planner/predictions"
    assert [one["configuration"]["mode"] for one in document["predictions"]] == ["sync", "async"]
    assert [one["configuration"]["network"] for one in document["predictions"]] == ["alexnet", "vgg16"]
    assert "format" not in document["predictions"][0]


def test_suggestion_says_where_every_value_comes_from(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    document = suggestion_document(subject, suggestion())
    assert document["request"]["sub_batch"] == {"value": [1, 2], "source": "default request"}
    assert document["request"]["dataset"] == {"value": None, "source": "default"}
    assert document["plans"][0]["position"] == 1
    assert document["plans"][0]["configuration"] == document["plans"][0]["prediction"]["configuration"]
    assert document["request"]["precision"]["value"] is None
    assert document["request"]["scenario"]["value"] is None
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
    assert request_keys({"nodes": Sourced(values, "option")})["nodes"]["value"] == expected


def test_every_reason_of_the_search_has_a_code(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    told = [reason for reason in REASONS if reason]
    told += ["precision tf32: k80 does not have tf32", "mode async: nothing between hosts"]
    one = suggestion()
    one = replace(one, search=replace(one.search, refused=dict.fromkeys(told, 1)))
    rows = suggestion_document(subject, one)["search"]["refused"]
    assert [row["reason"] for row in rows] == told
    codes = {row["reason"]: row["code"] for row in rows}
    assert "other" not in codes.values()
    assert codes["mini-batch below the window"] == "below_window"
    assert codes["mini-batch above the window"] == "above_window"
    assert (codes[told[-2]], codes[told[-1]]) == ("precision", "mode")


def test_bytes_are_whole_numbers(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    one = replace(prediction("sync"), memory_bytes=dict.fromkeys(prediction("sync").memory_bytes, 1e9 + 0.25))
    found = prediction_document(subject, one)["memory_bytes"]
    assert {type(size) for size in found.values()} == {int}
    assert set(found.values()) == {10**9}


def test_no_scenario_is_null(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    none = replace(subject, scenario="")
    assert prediction_document(none, prediction("sync"))["configuration"]["scenario"] is None


def test_plans_say_what_they_are_of(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    configuration = suggestion_document(subject, suggestion())["plans"][0]["configuration"]
    assert set(configuration) == KEYS
    assert (configuration["network"], configuration["scenario"]) == ("alexnet", "edr")


def test_pareto_is_null_unless_asked_for(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    assert suggestion_document(subject, suggestion())["pareto"] is None
    assert len(suggestion_document(subject, suggestion(pareto=True))["pareto"]) == 1


def test_nothing_found_has_nearest_and_loosen(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    document = suggestion_document(subject, suggestion(found=False))
    assert (document["status"], document["plans"]) == ("none_feasible", [])
    assert len(document["nearest"]) == 1
    assert document["loosen"] == [{"option": "--tolerance", "value": "30%", "message": "then 3 plans fit"}]


def test_several_suggestions_are_one_document(suggestion: Callable[..., Suggestion], subject: Subject) -> None:
    other = replace(subject, network="vgg16")
    document = suggestions_document([(subject, suggestion()), (other, suggestion(found=False))])
    assert document["format"] == "planner/suggestions"
    assert [one["status"] for one in document["suggestions"]] == ["found", "none_feasible"]
