"""Keys of predictions and suggestions: what is null when, and what counts are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

from planner.domain.configuration import Settings
from planner.domain.prediction import Prediction, Quantity
from planner.domain.request import Sourced
from planner.domain.suggestion import Suggestion
from planner.formats.documents import dump_json
from planner.formats.prediction import prediction_document, predictions_document
from planner.formats.suggestion import suggestion_document, suggestions_document

KEYS = {
    "nodes", "gpus_per_node", "gpus", "precision", "mode", "parallelism", "data_parallel", "tensor_parallel",
    "pipeline_parallel", "virtual_stages", "sub_batch", "accumulation_steps", "mini_batch", "recompute", "sharding",
}  # fmt: skip


def test_synchronous_mini_batch_is_the_product_and_asynchronous_is_null(
    prediction: Callable[[str], Prediction],
) -> None:
    sync = prediction_document(prediction("sync"))
    assert sync["configuration"]["mini_batch"] == 4 * 2 * 8
    assert sync["update_s"] is None
    assert sync["staleness"] == {"mean": 0.0, "std": 0.0, "pmf": {"0": 1.0}}
    asynchronous = prediction_document(prediction("async"))
    assert asynchronous["configuration"]["mini_batch"] is None
    assert asynchronous["mini_batch"]["mean"] == 64.0
    assert asynchronous["update_s"]["value"] == 0.2
    assert asynchronous["staleness"]["pmf"] == {"1": 0.5, "2": 0.5}


def test_configuration_has_the_promised_keys_and_settings_where_known(prediction: Callable[[str], Prediction]) -> None:
    assert set(prediction_document(prediction("sync"))["configuration"]) == KEYS
    with_settings = prediction_document(prediction("sync"), Settings(optimizer="adam"))["configuration"]
    assert set(with_settings) == KEYS | {"optimizer", "strategy", "input", "framework"}
    assert with_settings["optimizer"] == "adam"


def test_interval_has_both_ends_or_neither(prediction: Callable[[str], Prediction]) -> None:
    one = replace(prediction("sync"), iteration_s=Quantity(0.5, 0.4, None, "assumed"))
    found = prediction_document(one)["iteration_s"]
    assert found == {"value": 0.5, "low": None, "high": None, "interval_basis": "none"}


def test_nan_never_reaches_json(prediction: Callable[[str], Prediction]) -> None:
    one = replace(prediction("sync"), epoch_s=Quantity(math.nan, math.nan, math.inf, "assumed"))
    text = dump_json(prediction_document(one))
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["epoch_s"] == {"value": None, "low": None, "high": None, "interval_basis": "none"}


def test_predictions_keep_their_order(prediction: Callable[[str], Prediction]) -> None:
    document = predictions_document([prediction("sync"), prediction("async")])
    assert document["format"] == "planner/predictions"
    assert [one["configuration"]["mode"] for one in document["predictions"]] == ["sync", "async"]
    assert "format" not in document["predictions"][0]


def test_suggestion_says_where_every_value_comes_from(suggestion: Callable[..., Suggestion]) -> None:
    document = suggestion_document(suggestion())
    assert document["request"]["sub_batch"] == {"value": [1, 2], "source": "default request"}
    assert document["request"]["dataset"] == {"value": None, "source": "default"}
    assert document["plans"][0]["position"] == 1
    assert document["plans"][0]["configuration"] == document["plans"][0]["prediction"]["configuration"]
    assert document["search"]["refused"] == {"out_of_memory": 6}


def test_plans_carry_the_settings_of_their_request(suggestion: Callable[..., Suggestion]) -> None:
    plain = suggestion()
    shared = {"optimizer": "adam", "strategy": "no-overlap", "input": "synthetic", "framework": "mxnet@1.0"}
    request: dict[str, Sourced[object]] = {
        **plain.request,
        **{key: Sourced(value, "option") for key, value in shared.items()},
    }
    configuration = suggestion_document(replace(plain, request=request))["plans"][0]["configuration"]
    assert shared.items() <= configuration.items()
    assert not shared.keys() & suggestion_document(plain)["plans"][0]["configuration"].keys()


def test_pareto_is_null_unless_asked_for(suggestion: Callable[..., Suggestion]) -> None:
    assert suggestion_document(suggestion())["pareto"] is None
    assert len(suggestion_document(suggestion(pareto=True))["pareto"]) == 1


def test_nothing_found_has_nearest_and_loosen(suggestion: Callable[..., Suggestion]) -> None:
    document = suggestion_document(suggestion(found=False))
    assert (document["status"], document["plans"]) == ("none_feasible", [])
    assert len(document["nearest"]) == 1
    assert document["loosen"] == [{"option": "--tolerance", "value": "30%", "message": "then 3 plans fit"}]


def test_several_suggestions_are_one_document(suggestion: Callable[..., Suggestion]) -> None:
    document = suggestions_document([suggestion(), suggestion(found=False)])
    assert document["format"] == "planner/suggestions"
    assert [one["status"] for one in document["suggestions"]] == ["found", "none_feasible"]
