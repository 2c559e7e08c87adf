"""Calibration files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.domain.calibration import Calibration
from planner.errors import InputFileError, ParameterError
from planner.formats.calibration import CALIBRATION, LARGEST_COVARIANCE, read_calibration, write_calibration


def test_calibration_comes_back_as_it_was(tmp_path: Path, calibration: Calibration) -> None:
    path = tmp_path / "c.json"
    path.write_text(write_calibration(calibration))
    assert read_calibration(path) == calibration


def test_coefficients_keep_the_order_of_the_covariance(calibration: Calibration) -> None:
    again = CALIBRATION.parse(write_calibration(calibration), "x")
    assert list(again.entries[0].coefficients) == ["work", "constant"]


def test_what_is_not_finite_is_left_out(calibration: Calibration) -> None:
    entry = replace(
        calibration.entries[0],
        standard_errors={"work": 1e-14, "constant": math.nan},
        ranges={"work": (0.0, math.inf)},
        covariance=((math.nan, 0.0), (0.0, 1.0)),
        condition_number=math.inf,
    )
    text = write_calibration(replace(calibration, entries=(entry,)))
    assert "NaN" not in text
    assert "Infinity" not in text
    again = CALIBRATION.parse(text, "x").entries[0]
    assert again.standard_errors == {"work": 1e-14}
    assert (again.ranges, again.covariance, again.condition_number) == ({}, None, None)


def test_coefficient_that_is_not_finite_is_a_mistake(calibration: Calibration) -> None:
    entry = replace(calibration.entries[0], coefficients={"work": math.nan})
    with pytest.raises(ParameterError, match="coefficient work of gemm must be a finite number, got nan"):
        write_calibration(replace(calibration, entries=(entry,)))


@pytest.mark.parametrize(("size", "kept"), [(LARGEST_COVARIANCE, True), (LARGEST_COVARIANCE + 1, False)])
def test_covariance_of_many_coefficients_is_left_out(calibration: Calibration, *, size: int, kept: bool) -> None:
    rows = tuple(tuple(float(i == j) for j in range(size)) for i in range(size))
    coefficients = {f"f{i}": float(i) for i in range(size)}
    entry = replace(calibration.entries[0], coefficients=coefficients, covariance=rows)
    again = CALIBRATION.parse(write_calibration(replace(calibration, entries=(entry,))), "x").entries[0]
    assert again.covariance == (rows if kept else None)
    assert list(again.coefficients) == list(coefficients)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["entries"][0].update(covariance=[[1.0]]), r"entries\[0\]: covariance must be 2 rows of 2 numbers"),
        (lambda d: d["entries"][0].update(scope="kernel"), r"entries\[0\].scope: value must be one of kernels"),
        (lambda d: d["entries"][0].update(origin="guessed"), "origin: value must be one of measured"),
        (lambda d: d["entries"][0].update(error=-0.1), r"entries\[0\].error: value must be a number of at least 0"),
        (lambda d: d["entries"][0]["ranges"].update(work=[2, 1]), r"entries\[0\]: range must be from the least"),
        (lambda d: d["entries"].append(d["entries"][0]), "entries must be unique"),
        (lambda d: d["entries"][0]["coefficients"].append({"feature": "work", "value": 1}), "of different features"),
        (lambda d: d.pop("accelerator"), "accelerator: key must be given"),
        (lambda d: d.update(version=2), "version: value must be at most 1, got 2; the file is newer"),
        (lambda d: d["entries"][0].update(coeficients=[]), r"entries\[0\].coeficients: .*did you mean 'coefficients'"),
    ],
)
def test_mistakes_name_the_entry(
    calibration: Calibration, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    document = json.loads(write_calibration(calibration))
    change(document)
    with pytest.raises(InputFileError, match=sentence):
        CALIBRATION.build(document, "x.json")
