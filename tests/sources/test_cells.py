"""Measured runs of cells correct the forward and backward passes of their network, and nothing else."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configurations
from planner.sources.cells import (
    CELLS,
    COMMON,
    NOISE,
    REACH,
    Cell,
    cell_factors,
    cells_of,
    drawn,
    packed,
    told,
    unpacked,
)
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
    return Configurations(ones, ones, np.array(sub_batches), ones, 0 * ones, 0 * ones, precisions=(precision,))


def shared(one: int, other: int) -> float:
    """Return the covariance of the effects of two sub-batches."""
    return COMMON + (1 - COMMON) * math.exp(-abs(math.log2(one / other)) / REACH)


def expected(logs: dict[int, tuple[float, int]], sub_batch: int) -> float:
    """Return the factor of a sub-batch by the inverse of two runs' covariances: log ratios and runs by sub-batch."""
    (one, (first, runs)), (other, (second, more)) = logs.items()
    at, behind, between = 1 + NOISE / runs, 1 + NOISE / more, shared(one, other)
    weights = behind * first - between * second, at * second - between * first
    effect = weights[0] * shared(sub_batch, one) + weights[1] * shared(sub_batch, other)
    return math.exp(effect / (at * behind - between**2))


def test_a_run_corrects_passes_of_its_cell_and_of_others_less(make_problem: Make, calibration: Calibration) -> None:
    refined = with_cells(calibration, cells_entry((Cell(1, 5, FACTOR, 1), Cell(2, 7, 9.0, 1))))
    asked = configurations(5, 7, 32)
    before, after = (Evaluator(make_problem(calibrations=(one,))).describe(asked) for one in (calibration, refined))
    for plain, corrected in zip(before, after, strict=True):
        is_cell = plain.configuration.sub_batch == 5
        multiple = FACTOR ** shared(5, plain.configuration.sub_batch)
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
    """A network that is a fifth slower at every sub-batch: those that were not run are hardly faster for that."""
    ran = factors_of({n: (math.log(1.2), 1) for n in (2, 4, 8, 16, 32)}, [2, 4, 8, 16, 32, 1, 12, 64])
    assert all(1.2 ** (1 / 1.2) < factor < 1.2 for factor in ran[:5])
    assert ran[6] == pytest.approx(ran[2], rel=0.01)
    assert ran[5:] == pytest.approx([ran[0], ran[2], ran[4]], rel=0.04)
    far = factors_of({2: (math.log(1.2), 1)}, [4, 64, 2**20])
    assert 1.2 > far[0] > far[1] > far[2] > 1.2 ** (COMMON / 1.2)


@pytest.mark.parametrize("logs", [{4: (0.3, 1), 8: (-0.1, 4)}, {64: (0.2, 2), 1: (0.1, 1)}])
def test_runs_that_differ_count_by_how_many_and_how_near_they_are(logs: dict[int, tuple[float, int]]) -> None:
    sub_batches = [1, 4, 5, 8, 64, 100]
    assert factors_of(logs, sub_batches) == pytest.approx([expected(logs, n) for n in sub_batches])


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
    for sub_batch in (5, 6):
        assert told(found, sub_batch).startswith(
            "3 measured runs of sub-batches 5 and 8 were used, of calibration toy-kernels and second: "
        )
    alone = cells_of((first,), "small", "pytorch", "fp32")
    assert told(alone, 5).startswith("2 measured runs were used, of calibration toy-kernels: ")
    assert told(found, 5, tensor=2) == ""
    assert cell_factors(found, "forward", np.array([5, 8]), tensor=2).tolist() == [1.0, 1.0]


def test_cells_come_back_from_their_setting() -> None:
    cells = (Cell(1, 5, FACTOR, 3), Cell(2, 64, 0.875, 1))
    assert unpacked(cells_entry(cells), "small") == cells
    for values in ((1.0, 2.0), (1.0, 8.0, 0.0, 1.0), (1.0, 8.0, 1.1, 0.0), (1.0, 0.0, 1.1, 1.0)):
        broken = Entry("overheads", "pytorch", "", "fp32", CELLS, "overheads", {"small": values}, {})
        assert unpacked(broken, "small") == unpacked(broken, "other") == ()
