"""Measured runs of cells correct the forward and backward passes of their network, and nothing else."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configurations
from planner.steps.cells import CELLS, COMMON, NOISE, Cell, cell_factors, cells_of, drawn, packed, told, unpacked
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


def expected(logs: dict[int, tuple[float, int]], sub_batches: list[int]) -> list[float]:
    """Return factors by the covariances of effects and noise: log ratios and runs by sub-batch -> conditional means."""
    ran = np.array(list(logs))
    means, runs = (np.array([one[i] for one in logs.values()]) for i in (0, 1))
    covariance = COMMON + (1 - COMMON) * np.eye(ran.size)
    weights = np.linalg.solve(covariance + np.diag(NOISE / runs), means)
    with_all = COMMON + (1 - COMMON) * (np.array(sub_batches)[:, None] == ran)
    factors: list[float] = np.exp(with_all @ weights).tolist()
    return factors


def test_a_run_corrects_passes_of_its_cell_and_of_others_less(make_problem: Make, calibration: Calibration) -> None:
    refined = with_cells(calibration, cells_entry((Cell(1, 5, FACTOR, 1), Cell(2, 7, 9.0, 1))))
    asked = configurations(5, 7, 32)
    before, after = (Evaluator(make_problem(calibrations=(one,))).describe(asked) for one in (calibration, refined))
    for plain, corrected in zip(before, after, strict=True):
        is_cell = plain.configuration.sub_batch == 5
        multiple = FACTOR if is_cell else FACTOR**COMMON
        old, new = ({term.name: term.seconds for term in one.terms} for one in (plain, corrected))
        for name, seconds in old.items():
            factor = multiple if name in ("forward", "backward") else 1.0
            assert new[name] == pytest.approx(factor * seconds)
        (word,) = (one.message for one in corrected.warnings if one.code == "measured_run")
        of = "" if is_cell else " of sub-batch 5"
        assert f"a measured run{of} was used, of calibration toy-kernels: " in word
        assert word.endswith(f"multiplied by {multiple:.4g}.")
        assert not [one for one in plain.warnings if one.code == "measured_run"]


def test_runs_of_a_network_support_each_other() -> None:
    """A network that is a fifth slower at every sub-batch: those that were not run are no faster for that."""
    logs = {n: (math.log(1.2), 1) for n in (2, 4, 8, 16, 32)}
    factors = factors_of(logs, [2, 32, 64])
    assert factors == pytest.approx(expected(logs, [2, 32, 64]))
    assert 1.2 ** (1 / 1.2) < factors[0] == pytest.approx(factors[1])
    assert 0.97 < factors[2] / factors[0] < 1


def test_runs_that_differ_are_drawn_to_their_mean_by_how_many_they_are() -> None:
    logs = {4: (0.3, 1), 8: (-0.1, 4), 64: (0.2, 2)}
    assert factors_of(logs, [4, 5, 8, 64]) == pytest.approx(expected(logs, [4, 5, 8, 64]))


def factors_of(logs: dict[int, tuple[float, int]], sub_batches: list[int]) -> list[float]:
    cells = {(1, n): Cell(1, n, math.exp(mean * drawn(runs)), runs) for n, (mean, runs) in logs.items()}
    factors: list[float] = cell_factors(cells, "backward", np.array(sub_batches)).tolist()
    return factors


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
    assert cell_factors(found, "update", np.array([5, 6, 8])).tolist() == [1.0, 1.0, 1.0]
    assert told(found, 6).startswith(
        "3 measured runs of sub-batch 5, 8 were used, of calibration toy-kernels and second"
    )
    assert told(found, 5).startswith("2 measured runs were used, of calibration toy-kernels: ")
    assert told(found, 5, tensor=2) == ""
    assert cell_factors(found, "forward", np.array([5, 8]), tensor=2).tolist() == [1.0, 1.0]


def test_cells_come_back_from_their_setting() -> None:
    cells = (Cell(1, 5, FACTOR, 3), Cell(2, 64, 0.875, 1))
    assert unpacked(cells_entry(cells), "small") == cells
    for values in ((1.0, 2.0), (1.0, 8.0, 0.0, 1.0), (1.0, 8.0, 1.1, 0.0)):
        broken = Entry("overheads", "pytorch", "", "fp32", CELLS, "overheads", {"small": values}, {})
        assert unpacked(broken, "small") == unpacked(broken, "other") == ()
