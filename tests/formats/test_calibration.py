"""Calibration files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.domain.calibration import LARGEST_COVARIANCE, Calibration
from planner.domain.provenance import ConformalScore
from planner.errors import InputFileError, ParameterError
from planner.formats.calibration import CALIBRATION


def test_calibration_comes_back_as_it_was(tmp_path: Path, calibration: Calibration) -> None:
    path = tmp_path / "c.json"
    path.write_text(CALIBRATION.dump(calibration))
    assert CALIBRATION.read(path) == calibration


def test_a_warning_that_begins_with_a_precision_is_about_it(calibration: Calibration) -> None:
    document = CALIBRATION.document(calibration)
    sentences = ["Cold.", "FP16 is too fast.", "Half of FP16 rows are missing.", "fp16 again.", "TF32 was off."]
    read = CALIBRATION.parse(json.dumps(document | {"warnings": sentences}), "x")
    assert read.warnings == ("Cold.", "Half of FP16 rows are missing.")
    assert read.precision_warnings == {"fp16": ("FP16 is too fast.", "fp16 again."), "tf32": ("TF32 was off.",)}
    assert set(CALIBRATION.document(read)["warnings"]) == set(sentences) == set(read.all_warnings)
    assert CALIBRATION.parse(CALIBRATION.dump(read), "x") == read


def test_coefficients_keep_the_order_of_the_covariance(calibration: Calibration) -> None:
    again = CALIBRATION.parse(CALIBRATION.dump(calibration), "x")
    assert list(again.entries[0].coefficients) == ["work", "constant"]


def test_what_is_not_finite_is_left_out(calibration: Calibration) -> None:
    entry = replace(
        calibration.entries[0],
        standard_errors={"work": 1e-14, "constant": math.nan},
        ranges={"work": (0.0, math.inf)},
        covariance=((math.nan, 0.0), (0.0, 1.0)),
        condition_number=math.inf,
    )
    text = CALIBRATION.dump(replace(calibration, entries=(entry,)))
    assert "NaN" not in text
    assert "Infinity" not in text
    again = CALIBRATION.parse(text, "x").entries[0]
    assert again.standard_errors == {"work": 1e-14}
    assert (again.ranges, again.covariance, again.condition_number) == ({}, None, None)


def test_coefficient_that_is_not_finite_is_a_mistake(calibration: Calibration) -> None:
    entry = replace(calibration.entries[0], coefficients={"work": math.nan})
    with pytest.raises(ParameterError, match="coefficient work of gemm must be a finite number, got nan"):
        CALIBRATION.dump(replace(calibration, entries=(entry,)))


@pytest.mark.parametrize(("size", "kept"), [(LARGEST_COVARIANCE, True), (LARGEST_COVARIANCE + 1, False)])
def test_covariance_of_many_coefficients_is_left_out(calibration: Calibration, *, size: int, kept: bool) -> None:
    rows = tuple(tuple(float(i == j) for j in range(size)) for i in range(size))
    coefficients = {f"f{i}": float(i) for i in range(size)}
    entry = replace(calibration.entries[0], coefficients=coefficients, covariance=rows)
    again = CALIBRATION.parse(CALIBRATION.dump(replace(calibration, entries=(entry,))), "x").entries[0]
    assert again.covariance == (rows if kept else None)
    assert list(again.coefficients) == list(coefficients)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["entries"][0].update(covariance=[[1.0]]), r"entries\[0\]: covariance must be 2 rows of 2 numbers"),
        (lambda d: d["entries"][0].update(scope="kernel"), r"entries\[0\].scope: value must be one of kernels"),
        (lambda d: d["entries"][0].update(origin="guessed"), "origin: value must be one of measured"),
        (lambda d: d["entries"][0].update(error=-0.1), r"entries\[0\].error: value must be 0, or a number from"),
        (lambda d: d["entries"][0]["ranges"].update(work=[2, 1]), r"entries\[0\]: range must be from the least"),
        (lambda d: d["entries"].append(d["entries"][0]), "entries must be unique"),
        (lambda d: d["entries"][0]["coefficients"].append({"feature": "work", "value": 1}), "of different features"),
        (
            lambda d: d["entries"][0].update(library="cells"),
            r"entries\[0\]: library must be of fitted terms, got 'cells'; runs of plans are measured_steps now: ",
        ),
        (lambda d: d.pop("accelerator"), "accelerator: key must be given"),
        (lambda d: d.update(version=2), "version: value must be at most 1, got 2; the file is newer"),
        (lambda d: d["entries"][0].update(coeficients=[]), r"entries\[0\].coeficients: .*did you mean 'coefficients'"),
    ],
)
def test_mistakes_name_the_entry(
    calibration: Calibration, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    document = json.loads(CALIBRATION.dump(calibration))
    change(document)
    with pytest.raises(InputFileError, match=sentence):
        CALIBRATION.build(document, "x.json")


def scored(calibration: Calibration, **changes: Any) -> Calibration:
    values: dict[str, Any] = {"half_width": 0.25, "level": 0.9, "groups": 21, "rows": 300}
    inside = ConformalScore(**values | changes)
    outside = replace(inside, half_width=0.5)
    few = ConformalScore(None, 0.9, 3, 5, "groups of measured runs must be at least 10")
    found = {"one_gpu_specified": inside, "one_gpu_specified_outside": outside, "one_gpu_measured": few}
    return replace(calibration, conformal=found)


def test_conformal_scores_come_back_as_they_were(calibration: Calibration) -> None:
    written = scored(calibration)
    assert CALIBRATION.parse(CALIBRATION.dump(written), "x") == written


def test_a_calibration_without_scores_is_written_as_before_there_were_any(calibration: Calibration) -> None:
    assert "conformal" not in json.loads(CALIBRATION.dump(calibration))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda d: d["one_gpu_specified"].update(half_width=-1),
            r"conformal.one_gpu_specified.half_width: value must be 0, or a number",
        ),
        (
            lambda d: d["one_gpu_specified"].update(score=0.2),
            r"conformal.one_gpu_specified.score: key must be a known one",
        ),
        (
            lambda d: d["one_gpu_specified"].update(level=0.5),
            "level of one_gpu_specified must be 0.9, as of all intervals",
        ),
        (
            lambda d: d["one_gpu_specified"].update(half_width=3.0),
            "half_width of one_gpu_specified_outside must be at least the 3 of one_gpu_specified",
        ),
        (lambda d: d.update(many_gpus=d["one_gpu_specified"]), "conformal.many_gpus: key must be a known one"),
    ],
)
def test_mistakes_of_scores_name_the_kind(
    calibration: Calibration, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    document = json.loads(CALIBRATION.dump(scored(calibration)))
    change(document["conformal"])
    with pytest.raises(InputFileError, match=sentence):
        CALIBRATION.build(document, "x.json")
