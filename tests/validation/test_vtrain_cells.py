"""Scores by cells of a composed table: what folds leave out, which short runs are seen, and figures counted by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from planner.domain.arrays import FloatArray
from planner.domain.runs import Run
from planner.formats.runs import read_runs
from validation.vtrain_cells import (
    FOLDS,
    SHORT,
    Cell,
    bundled,
    cell_of,
    folds,
    held_out,
    main,
    short_runs,
    with_short_runs,
)

RUNS = read_runs(Path(__file__).parents[2] / "validation" / "vtrain-single.csv").rows


def measured(runs: Sequence[Run]) -> FloatArray:
    return np.array([run.value for run in runs], dtype=np.float64)


def test_table_has_32_cells_whose_rows_lie_on_lines_in_sub_batches() -> None:
    assert len(RUNS) == 1440
    assert len({cell_of(run) for run in RUNS}) == 32
    series: dict[tuple[object, ...], list[tuple[int, float]]] = {}
    for run in RUNS:
        key = (cell_of(run), run.network, run.gpus, run.data_parallel, run.pipeline_parallel)
        series.setdefault(key, []).append((run.accumulation_steps or 0, run.value or 0.0))
    for points in series.values():
        steps, seconds = np.array(sorted(points)).T
        if len(points) >= 3:
            slopes = np.diff(seconds) / np.diff(steps)
            assert slopes == pytest.approx(slopes[0], rel=1e-4)  # seven digits are kept


def test_every_cell_is_left_out_once_and_no_value_of_an_axis_altogether() -> None:
    times: Counter[Cell] = Counter()
    for seen, held in folds(RUNS):
        known, unknown = {cell_of(RUNS[at]) for at in seen}, {cell_of(RUNS[at]) for at in held}
        assert len(unknown) == 4
        assert not known & unknown
        assert sorted(seen + held) == list(range(len(RUNS)))
        assert len({cell.tensor_parallel for cell in unknown}) >= 3
        for axis in range(3):
            assert {cell[axis] for cell in unknown} <= {cell[axis] for cell in known}
        times.update(unknown)
    assert set(times.values()) == {1}
    assert len(times) == 4 * FOLDS


def test_a_prediction_sees_no_run_of_the_cells_it_predicts() -> None:
    def predict(seen: Sequence[Run], held: Sequence[Run]) -> FloatArray:
        assert not {cell_of(run) for run in seen} & {cell_of(run) for run in held}
        return measured(held)

    found = held_out(RUNS, predict)
    assert (found.errors.n, found.errors.mape, found.refused) == (1440, 0.0, 0)
    assert (found.ranking.groups, found.ranking.top1, found.ranking.regret_max) == (120, 1.0, 0.0)


def test_short_runs_are_one_a_cell_balanced_and_not_scored() -> None:
    chosen = [RUNS[at] for at in short_runs(RUNS)]
    assert len({cell_of(run) for run in chosen}) == len(chosen) == SHORT
    assert {run.network.partition(",")[0] for run in chosen} == {"gpt:layers=12"}
    assert all((run.gpus or 9) <= max(2, run.tensor_parallel) for run in chosen)
    for axis in range(3):
        counts = Counter(cell_of(run)[axis] for run in chosen)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert set(counts) == {cell_of(run)[axis] for run in RUNS}

    def predict(seen: Sequence[Run], held: Sequence[Run]) -> FloatArray:
        assert {run.id for run in seen} == {run.id for run in chosen}
        assert not {run.id for run in seen} & {run.id for run in held}
        return measured(held)

    assert with_short_runs(RUNS, predict).errors.n == 1440 - SHORT


def test_errors_weigh_rows_and_cells_and_refused_rows_are_counted() -> None:
    odd = Cell(2048, 4, 2)

    def predict(_: Sequence[Run], held: Sequence[Run]) -> FloatArray:
        factors = [1.32 if cell_of(run) == odd else 1.0 for run in held]
        refused = [np.nan if cell_of(run).sub_batch == 8 else 1.0 for run in held]
        return measured(held) * factors * refused

    found = held_out(RUNS, predict)
    cells = [cell_of(run) for run in RUNS]
    left = sum(cell.sub_batch != 8 for cell in cells)
    assert found.refused == 1440 - left
    assert found.errors.mape == pytest.approx(0.32 * cells.count(odd) / left)
    assert found.cell_mape == pytest.approx(0.32 / 24)


def test_bundled_calibrations_predict_without_learning() -> None:
    some = [*RUNS[:2], *RUNS[-2:]]
    found = bundled((), some)
    assert np.isfinite(found).all()
    assert found == pytest.approx(bundled(RUNS[2:9], some[::-1])[::-1])


def test_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--groups"], lambda _, held: 1.1 * measured(held)) == 0
    said = capsys.readouterr().out
    assert "| cells held out | 1,440 | 0 | 10.0 % | 10.0 % | 10.0 % | 10.0 % | 120 | 100.0 % | 0.0 % |" in said
    assert f"| {SHORT} short runs seen | {1440 - SHORT:,} | 0 |" in said
    assert said.count("gpt-l12-h1024-") > 10
