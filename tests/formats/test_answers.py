"""Answers are read back: what was written, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.domain.prediction import Citation, Prediction, Quantity
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, Suggestion
from planner.errors import InputFileError, VersionError
from planner.formats.documents import dump_json
from planner.formats.prediction import prediction_document, predictions_document
from planner.formats.suggestion import Answers, parse_answers, read_answers, suggestion_document, suggestions_document

ASSETS = Path(__file__).parents[1] / "data" / "formats"
KINDS = ("suggestion", "suggestions", "prediction", "predictions")
KEPT = sorted(path for kind in KINDS for path in ASSETS.glob(f"{kind}/v1/*.json"))


def written(answers: Answers, kind: str) -> str:
    """Return the document of answers as a kind."""
    if kind.startswith("suggestion"):
        several, one = suggestions_document(answers.suggestions), suggestion_document(*answers.suggestions[0])
    else:
        several = predictions_document(answers.predictions, answers.citations)
        one = prediction_document(*answers.predictions[0], answers.citations)
    return dump_json(several if kind.endswith("s") else one)


def named(path: Path) -> str:
    return f"{path.parent.parent.name}-{path.stem}"


@pytest.mark.parametrize("path", KEPT, ids=named)
def test_an_answer_that_is_read_writes_itself(path: Path) -> None:
    assert written(read_answers(path), path.parent.parent.name) == dump_json(json.loads(path.read_text()))


@pytest.mark.parametrize("found", [True, False])
def test_every_field_of_a_suggestion_comes_back(
    suggestion: Callable[..., Suggestion], subject: Subject, *, found: bool
) -> None:
    one = suggestion(found=found, pareto=found)
    if found:
        (plan,) = one.plans
        one = replace(
            one,
            plans=(plan, Plan(2, replace(plan.prediction, bottleneck="other"), "b", ("fp32", "tf32"), 0.6, 0.8)),
            chosen=2,
            choice="fewer GPUs",
            tied=(1, 2),
            baseline=plan.prediction.configuration,
            citations=(Citation("a", "published", "paper", "2020"),),
        )
    ((about, back),) = parse_answers(dump_json(suggestion_document(subject, one)), "x").suggestions
    assert about == subject
    assert dict(back.request) == dict(one.request)
    assert back == replace(one, request=back.request)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_field_of_a_prediction_comes_back(
    prediction: Callable[[str], Prediction], subject: Subject, mode: str
) -> None:
    doubt = {"kernels": 0.75, "collectives": 0.25}
    one = replace(
        prediction(mode), doubt=doubt, kind="several_nodes_outside", update_s=Quantity(0.2, 0.1, 0.3, "assumed")
    )
    cpu = replace(subject, device="CPU")
    ((about, back),) = parse_answers(dump_json(prediction_document(cpu, one)), "x").predictions
    assert (about, back) == (cpu, one)
    assert list(back.doubt) == ["kernels", "collectives"]
    two = [(subject, one), (replace(subject, network="vgg16", scenario=""), prediction("sync"))]
    assert list(parse_answers(dump_json(predictions_document(two)), "x").predictions) == two


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "planner/brief"}, "x: format: value must be one of 'planner/suggestion', .*, got 'planner/brief'"),
        ({"format": None}, "x: format: value must be one of .*, got nothing"),
        ({"sources": []}, "x: source of term forward: value must be below 0, as many as sources has, got 0"),
        ({"mini_batch": None}, "x: mini_batch: value must be a table"),
        ({"terms": [{"name": "a"}]}, r"x: terms\[0\].seconds: key must be given"),
    ],
)
def test_what_is_wrong_is_said(
    prediction: Callable[[str], Prediction], subject: Subject, change: dict[str, Any], sentence: str
) -> None:
    document = prediction_document(subject, prediction("async")) | change
    with pytest.raises(InputFileError, match=sentence):
        parse_answers(dump_json(document), "x")


def test_configurations_that_cannot_be_are_input_errors(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    document = prediction_document(subject, prediction("async"))
    del document["mini_batch"]
    with pytest.raises(InputFileError, match="mini_batch: key must be given of an asynchronous"):
        parse_answers(dump_json(document), "x")
    divided = document["configuration"] | {"tensor_parallel": 2}
    with pytest.raises(InputFileError, match="tensor_parallel must be 1 in an asynchronous plan, got 2"):
        parse_answers(dump_json(document | {"configuration": divided}), "x")
    with pytest.raises(VersionError, match="version: value must be at most 1, got 2"):
        parse_answers(dump_json(document | {"version": 2}), "x")
    two = predictions_document([(subject, prediction("sync"))])
    del two["subject"]["network"]
    with pytest.raises(InputFileError, match=r"x: predictions\[0\].subject.network: key must be given"):
        parse_answers(dump_json(two), "x")
