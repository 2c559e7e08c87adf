"""What people see of a validation, at 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from planner.domain.runs import ScoredRow, TermScale
from planner.errors import Refusal, UnknownNameError
from planner.report.blocks import Block
from planner.report.studies import validation_view
from planner.scoring.evaluate import score

ROW = ScoredRow(
    id="a", line=2, metric="iteration_s", predicted=1.1, low=1.0, high=1.2, measured=1.0, status_predicted="ok",
    status_measured="ok", in_sample=False, refused=None, network="resnet18:classes=10,input=32,stem=cifar",
    cluster="a-cluster-with-a-long-name", gpu="k80", source="a source", group="g",
)  # fmt: skip
REFUSED = replace(
    ROW, predicted=None, low=None, high=None, status_predicted=None,
    refused=UnknownNameError("network", "bert", ["b"]).refusal,
)  # fmt: skip

Render = Callable[[Iterable[Block]], str]


def test_lines_fit_and_name_every_group(printed: Render) -> None:
    rows = [ROW, replace(ROW, id="an-id-of-" + "many-" * 20 + "parts", predicted=3.0, line=3, source="")]
    text = printed(validation_view(score(rows), ["runs.csv"]))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "resnet18:classes=10,input=32" in text
    assert "a-cluster-with-a-long-name" in text
    assert "2: 2 predicted, 0 refused" in text
    assert "105.0%" in text  # mean of 10 % and 200 %
    assert "+200.0%" in text
    assert "Memory" not in text


def test_refused_rows_are_counted_by_rule_with_their_values(printed: Render) -> None:
    other = replace(REFUSED, refused=UnknownNameError("network", "gpt", "ab").refusal, line=9)
    rows = [other, REFUSED, REFUSED, replace(REFUSED, refused=Refusal("parameter", "value must be given")), ROW]
    text = " ".join(printed(validation_view(score(rows), ["runs.csv"], omitted=5)).split())
    assert "10: 1 predicted, 9 refused" in text
    assert "3 9 network must be a known name, got 'bert' (2), 'gpt' (1)" in text
    assert "1 2 value must be given" in text
    assert "Known" not in text


def test_many_reasons_are_cut_off_with_their_count(printed: Render) -> None:
    rows = [replace(REFUSED, refused=Refusal("parameter", f"rule {at} must hold", got=str(at))) for at in range(13)]
    text = printed(validation_view(score(rows), ["runs.csv"]))
    assert "and 3 more for 3 other reasons" in text
    assert "held out" in text  # with no row


def test_worst_five_rows_stand_last_and_leave_in_sample_out(printed: Render) -> None:
    rows = [replace(ROW, id=f"row-{at}", predicted=1.0 + at / 10, line=at + 2) for at in range(8)]
    rows.append(replace(ROW, id="seen", predicted=9.0, in_sample=True))
    text = printed(validation_view(score(rows), ["runs.csv"]))
    worst = text[text.index("Worst rows") :]
    assert [line.split()[0] for line in worst.splitlines()[2:]] == ["row-7", "row-6", "row-5", "row-4", "row-3"]
    assert "1 of the predicted rows: a calibration was made from them" in text


def test_memory_calls_and_the_explaining_term_are_said(printed: Render) -> None:
    full = replace(ROW, status_predicted="out_of_memory", status_measured="out_of_memory", measured=None)
    missed = replace(ROW, status_measured="out_of_memory", measured=None)
    found = score([ROW, full, missed, replace(ROW, status_predicted="out_of_memory")])
    term = TermScale("all_reduce", 1.4, 2, 0.12, 0.08)
    text = printed(validation_view(replace(found, terms=(term,)), ["runs.csv"]))
    rows = [line.split() for line in text.splitlines()]
    assert ["a", "source", "0", "-", "-", "-", "2", "1", "2", "1"] in rows
    assert "all_reduce x 1.4 would take the mean error from 12 to 8%" in text


@pytest.mark.parametrize("files", [["a.csv"], ["a.csv", "b.csv"]])
def test_ranking_says_what_the_first_choice_costs(printed: Render, files: list[str]) -> None:
    rows = [ROW, replace(ROW, id="b", predicted=1.0, measured=1.25, low=None, high=None)]
    text = printed(validation_view(score(rows), files))
    assert text.startswith(", ".join(files))
    assert "25.0% on average, 25.0% at worst" in text
    assert "-1.00 on average" in text
