"""Measured runs of a cell correct the forward and backward passes of that cell, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configurations
from planner.steps.cells import CELLS, Cell, cell_factors, cells_of, packed, unpacked
from planner.steps.predict import Evaluator

Make = Callable[..., Any]
FACTOR = 1.25


def cells_entry(cells: tuple[Cell, ...], network: str = "small", precision: str = "fp32") -> Entry:
    settings = {network: packed(cells)}
    return Entry("overheads", "pytorch", "", precision, CELLS, "overheads", settings, {})


def with_cells(calibration: Calibration, *entries: Entry) -> Calibration:
    return replace(calibration, entries=(*calibration.entries, *entries))


def configurations(*sub_batches: int, precision: str = "fp32") -> Configurations:
    ones = np.ones(len(sub_batches), dtype=np.int64)
    return Configurations(ones, ones, np.array(sub_batches), ones, 0 * ones, 0 * ones, (precision,))


def test_only_the_cell_and_only_its_passes_are_multiplied(make_problem: Make, calibration: Calibration) -> None:
    refined = with_cells(calibration, cells_entry((Cell(1, 5, FACTOR, 1), Cell(2, 7, 9.0, 1))))
    asked = configurations(5, 7, 32)
    before, after = (Evaluator(make_problem(calibrations=(one,))).describe(asked) for one in (calibration, refined))
    for plain, corrected in zip(before, after, strict=True):
        is_cell = plain.configuration.sub_batch == 5
        old, new = ({term.name: term.seconds for term in one.terms} for one in (plain, corrected))
        for name, seconds in old.items():
            factor = FACTOR if is_cell and name in ("forward", "backward") else 1.0
            assert new[name] == pytest.approx(factor * seconds)
        words = [one.message for one in corrected.warnings if one.code == "measured_run"]
        assert len(words) == is_cell
        assert all("a measured run was used, of calibration toy-kernels" in word and "1.25" in word for word in words)
        assert not [one for one in plain.warnings if one.code == "measured_run"]


@pytest.mark.parametrize(("name", "precision"), [("other", "fp32"), ("small", "fp16")])
def test_cells_of_other_networks_and_precisions_do_not_count(
    name: str, precision: str, make_problem: Make, calibration: Calibration
) -> None:
    refined = with_cells(calibration, cells_entry((Cell(1, 5, FACTOR, 1),), name, precision))
    before, after = (
        Evaluator(make_problem(calibrations=(one,))).evaluate(configurations(5)) for one in (calibration, refined)
    )
    assert after.iteration_s.tolist() == before.iteration_s.tolist()


def test_the_first_calibration_that_holds_a_cell_serves_it(calibration: Calibration) -> None:
    first = with_cells(calibration, cells_entry((Cell(1, 5, 1.1, 2),)))
    second = replace(with_cells(calibration, cells_entry((Cell(1, 5, 1.2, 1), Cell(1, 8, 0.9, 1)))), name="second")
    found = cells_of((calibration, first, second), "small", "pytorch@2.1", "fp32")
    assert found == {(1, 5): Cell(1, 5, 1.1, 2, "toy-kernels"), (1, 8): Cell(1, 8, 0.9, 1, "second")}
    assert cells_of((first,), "small", "mxnet", "fp32") == {}
    assert cell_factors(found, "forward", np.array([5, 6, 8])).tolist() == [1.1, 1.0, 0.9]
    assert cell_factors(found, "update", np.array([5, 6, 8])).tolist() == [1.0, 1.0, 1.0]
    assert cell_factors(found, "forward", np.array([5, 8]), tensor=2).tolist() == [1.0, 1.0]


def test_cells_come_back_from_their_setting() -> None:
    cells = (Cell(1, 5, FACTOR, 3), Cell(2, 64, 0.875, 1))
    assert unpacked(cells_entry(cells), "small") == cells
    broken = Entry("overheads", "pytorch", "", "fp32", CELLS, "overheads", {"small": (1.0, 2.0)}, {})
    assert unpacked(broken, "small") == unpacked(broken, "other") == ()
