"""The document of a validation: the contract's keys, exact figures, its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from planner.domain.runs import ScoredRow
from planner.errors import Refusal
from planner.formats.documents import dump_json
from planner.formats.summaries import VALIDATION, validation_document
from planner.scoring.evaluate import score

SEEN = ScoredRow(
    id="c", line=4, metric="epoch_s", predicted=2.0, low=None, high=None, measured=2.0, status_predicted="ok",
    status_measured="ok", in_sample=True, refused=None, network="vgg16", cluster="two", source="s",
)  # fmt: skip
LOW = replace(
    SEEN, id="a", line=2, metric="samples_per_s", predicted=90.0, low=80.0, high=95.0, measured=100.0, in_sample=False,
    network="alexnet", cluster="one", source="", group="g",
)  # fmt: skip
HIGH = replace(LOW, id="b", line=3, predicted=60.0, low=None, high=None, measured=50.0, source="s")
UNREAD = ScoredRow(
    id="", line=5, metric="", predicted=None, low=None, high=None, measured=None, status_predicted=None,
    status_measured=None, in_sample=False, refused=Refusal("row", "row must be whole", got="half"),
)  # fmt: skip
ROWS = (LOW, HIGH, SEEN, UNREAD)
ERRORS = {"n", "mape", "median_ape", "p90_ape", "bias", "coverage_90"}


def test_document_has_the_keys_of_the_contract(validate: Callable[[dict[str, Any], Any], str]) -> None:
    document = validation_document(score(ROWS), omitted=3)
    assert validate(VALIDATION.schema(), document) == ""
    assert (document["format"], document["version"], document["omitted"]) == ("planner/validation", 1, 3)
    assert set(document["summary"]) == set(document["in_sample"]) == ERRORS
    assert set(document["by"]) == {"network", "cluster", "source"}
    assert set(document["by"]["network"]) == {"alexnet"}
    assert set(document["by"]["source"]) == {"", "s"}
    assert {"groups", "spearman", "top1", "regret_mean", "regret_max", "regret_best3"} <= set(document["ranking"])
    assert set(document["rows"][0]) == {
        "id", "line", "metric", "predicted", "low", "high", "measured", "status_predicted", "in_sample",
        "refused_reason",
    }  # fmt: skip


def test_errors_are_signed_fractions_and_rows_stand_in_order() -> None:
    document = validation_document(score(ROWS))
    summary = document["summary"]
    assert summary["n"] == 2
    assert abs(summary["mape"] - 0.15) < 1e-12
    assert abs(summary["bias"] - 0.05) < 1e-12
    assert document["by"]["source"][""]["bias"] < 0
    assert (document["in_sample"]["n"], document["in_sample"]["mape"]) == (1, 0.0)
    assert [row["line"] for row in document["rows"]] == [2, 3, 4, 5]
    assert document["rows"][3]["metric"] is None
    assert document["rows"][3]["refused_reason"] == "row must be whole, got half"
    assert [row.get("refused_code") for row in document["rows"]] == [None, None, None, "row"]


def test_text_reads_as_the_same_document() -> None:
    document = validation_document(score(ROWS))
    assert VALIDATION.document(VALIDATION.build(json.loads(dump_json(document)), "x")) == document


def test_nothing_to_score_is_a_document_too(validate: Callable[[dict[str, Any], Any], str]) -> None:
    document = validation_document(score(ROWS[3:]))
    assert validate(VALIDATION.schema(), document) == ""
    assert (document["summary"]["n"], document["summary"]["mape"], document["by"]["network"]) == (0, None, {})
