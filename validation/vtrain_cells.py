"""Score predictions of vTrain's single-node table by its cells, and what short runs of cells would add.

    python -m validation.vtrain_cells            # prints the figures
    python -m validation.vtrain_cells --groups   # and those of every group of plans
    python -m validation.vtrain_cells --bundled  # of the bundled calibrations, nothing fitted

The 1,440 rows are composed by a formula from 32 cells (hidden size, tensor-parallel degree, sub-batch): cells are left
out, never rows. In the first table a fit predicts four cells that it has not seen, eight times. In the second it has
seen the SHORT short runs that :func:`short_runs` designs, all other rows are predicted, and none of the runs is scored.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from planner.cli.streams import note
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.request import Problem
from planner.domain.runs import Run, Runs
from planner.domain.validation import ErrorSummary, GroupRanking, RankingSummary
from planner.fitting.split_steps import SplitObserved, SplitSteps, fit_split_steps
from planner.formats.runs import read_runs
from planner.scoring.errors import Figures, relative_errors, summarise
from planner.scoring.evaluate import sort_runs
from planner.scoring.ranking import Outcomes, rank_groups, summarise_ranking
from planner.scoring.refit import Asked
from planner.sessions.runs import table_of
from planner.steps.predict import Evaluator
from validation.command import finished, parser_of
from validation.tables import markdown_table

__all__ = [
    "FOLDS",
    "SHORT",
    "Cell",
    "Predict",
    "Refitted",
    "Scores",
    "bundled",
    "cell_of",
    "folds",
    "held_out",
    "main",
    "short_runs",
    "with_short_runs",
]

FOLDER = Path(__file__).resolve().parent
TABLE = FOLDER / "vtrain-single.csv"
FOLDS = 8
SHORT = 20
LEAST_PLANS = 4
"""Plans of a group whose ranking counts: the first of two or three is easily right."""

Predict = Callable[[Sequence[Run], Sequence[Run]], FloatArray]
"""Runs to learn from, n runs to predict -> their seconds, shape (n,), NaN where one is refused."""


class Cell(NamedTuple):
    """What the rows of a cell share: one time of a layer."""

    hidden: int
    tensor_parallel: int
    sub_batch: int


@dataclass(frozen=True, slots=True)
class Scores:
    """How well n rows are predicted.

    Attributes
    ----------
    errors : ErrorSummary
        Of rows.
    cell_mape : float or None
        Mean over cells of the mean error of their rows: one weight a cell.
    refused : int
        Rows without a prediction.
    ranking : RankingSummary
        Of groups of at least LEAST_PLANS plans.
    groups : tuple of GroupRanking
    """

    errors: ErrorSummary
    cell_mape: float | None
    refused: int
    ranking: RankingSummary
    groups: tuple[GroupRanking, ...]


def cell_of(run: Run) -> Cell:
    """Return the cell of a run."""
    return Cell(_argument(run, "hidden"), run.tensor_parallel, run.sub_batch or 0)


def _argument(run: Run, name: str) -> int:
    return _arguments(run.network)[name]


@cache
def _arguments(network: str) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in network.partition(":")[2].split(","))
    return {key: int(value) for key, _, value in pairs}


def folds(runs: Sequence[Run], count: int = FOLDS) -> Iterator[tuple[list[int], list[int]]]:
    """Yield positions of runs to learn from and of runs to predict: every cell is predicted once.

    Cells are dealt along diagonals, so that of 32 cells in 8 folds each fold leaves out four of at least three degrees,
    and no fold leaves out all of a hidden size, a degree or a sub-batch.
    """
    cells = [cell_of(run) for run in runs]
    places = [sorted({cell[axis] for cell in cells}) for axis in range(len(Cell._fields))]
    numbers = []
    for cell in cells:
        hidden, degree, sub_batch = (values.index(value) for values, value in zip(places, cell, strict=True))
        numbers.append((sub_batch + degree + len(places[2]) * ((hidden + degree) % 2)) % count)
    for fold in range(count):
        held = [at for at, number in enumerate(numbers) if number == fold]
        if held:
            yield [at for at, number in enumerate(numbers) if number != fold], held


def held_out(runs: Sequence[Run], predict: Predict, count: int = FOLDS) -> Scores:
    """Return the scores of all runs, each predicted from cells other than its own."""
    predicted = np.full(len(runs), np.nan)
    for seen, held in folds(runs, count):
        predicted[held] = predict([runs[at] for at in seen], [runs[at] for at in held])
    return _scores(runs, predicted)


def short_runs(runs: Sequence[Run], count: int = SHORT) -> list[int]:
    """Return positions of one short run a cell: fewest layers, then fewest sub-batches, then fewest GPUs.

    Cells are chosen so that every hidden size, degree and sub-batch is seen as often as others: the next is one whose
    values were chosen least.
    """
    cheapest: dict[Cell, int] = {}
    for at in sorted(range(len(runs)), key=lambda at: _cost(runs[at])):
        cheapest.setdefault(cell_of(runs[at]), at)
    times: Counter[tuple[int, int]] = Counter()
    left = sorted(cheapest)
    chosen: list[int] = []
    while left and len(chosen) < count:
        cell = min(left, key=lambda cell: sum(times[pair] ** 2 for pair in enumerate(cell)))
        times.update(enumerate(cell))
        left.remove(cell)
        chosen.append(cheapest[cell])
    return sorted(chosen)


def _cost(run: Run) -> tuple[int, ...]:
    return (_argument(run, "layers"), run.accumulation_steps or 0, run.gpus or 0, run.pipeline_parallel)


def with_short_runs(runs: Sequence[Run], predict: Predict, count: int = SHORT) -> Scores:
    """Return the scores of all runs but the short ones that the prediction has seen."""
    seen = short_runs(runs, count)
    rest = sorted(set(range(len(runs))) - set(seen))
    others = [runs[at] for at in rest]
    return _scores(others, predict([runs[at] for at in seen], others))


def _scores(runs: Sequence[Run], predicted: FloatArray) -> Scores:
    measured = np.array([run.value for run in runs], dtype=np.float64)
    errors = np.abs(relative_errors(predicted, measured))
    by_cell: dict[Cell, list[float]] = {}
    for run, error in zip(runs, errors.tolist(), strict=True):
        if not np.isnan(error):
            by_cell.setdefault(cell_of(run), []).append(error)
    never = np.zeros(len(runs), dtype=np.bool_)
    ranked = rank_groups([run.group for run in runs], Outcomes(predicted, measured, never, never))
    large = tuple(group for group in ranked if group.n >= LEAST_PLANS)
    return Scores(
        summarise(Figures(predicted, measured)),
        float(np.mean([np.mean(some) for some in by_cell.values()])) if by_cell else None,
        int(np.isnan(predicted).sum()),
        summarise_ranking(large),
        large,
    )


class Refitted:
    """What the planner predicts with coefficients of steps that the runs to learn from tell alone.

    All rows of a problem are priced at once, and again only where a fit ends far from the fits before.
    """

    def __init__(self) -> None:
        self._problems: dict[tuple[str, ...], Asked] = {}

    def __call__(self, seen: Sequence[Run], held: Sequence[Run]) -> FloatArray:
        """Return the seconds (n,) of ``held``; NaN where one is refused."""
        asked = list(self._asked([*seen, *held]))
        names = {run.id for run in seen}
        fitted = fit_split_steps([part for one in asked for part in _parts(one, names)])
        at = {run.id: position for position, run in enumerate(held)}
        times_s = np.full(len(held), np.nan)
        for one in asked:
            some = [run for run in one.runs if run.id in at]
            calibrations = (*fitted.calibrations(one.problem, one.precisions), *one.problem.calibrations)
            like = next((each.evaluator for each in one.split), None)
            positions = [at[run.id] for run in some]
            times_s[positions] = _seconds(replace(one.problem, calibrations=calibrations), some, like)
        return times_s

    def _asked(self, runs: Sequence[Run]) -> Iterator[Asked]:
        """Yield runs by problem; the same ones are the same object again."""
        in_order = sorted(runs, key=lambda run: run.id)
        for problem, some in table_of(Runs(tuple(in_order)), FOLDER, {}, note).problems:
            key = tuple(run.id for run in some)
            if key not in self._problems:
                self._problems[key] = Asked(problem, some)
            yield self._problems[key]


@dataclass(frozen=True, eq=False)
class _Part(SplitObserved):
    """Some rows of what is priced as a whole."""

    whole: SplitObserved
    rows: IntArray

    def steps_near(self, theta: FloatArray) -> SplitSteps:
        """Return the rows as functions of coefficients around θ; the same object around the same centre."""
        steps = self.whole.steps_near(theta)
        return self._by_whole.setdefault(id(steps), steps.take(self.rows))

    @cached_property
    def _by_whole(self) -> dict[int, SplitSteps]:
        return {}


def _parts(asked: Asked, names: AbstractSet[str]) -> Iterator[SplitObserved]:
    """Yield the rows of runs that are named; all of them are of one precision and have a price."""
    order = [at for positions in sort_runs(asked.problem, asked.runs).plans.values() for at in positions]
    for one in asked.split:
        rows = np.array([row for row, at in enumerate(order) if asked.runs[at].id in names], dtype=np.int64)
        if rows.size:
            yield _Part(
                one.problem, one.configurations.take(rows), one.measured_s[rows], one.evaluator, whole=one, rows=rows
            )


def bundled(_seen: Sequence[Run], held: Sequence[Run]) -> FloatArray:
    """Return the seconds (n,) of ``held`` as the bundled calibrations have them; NaN where one is refused."""
    at = {run.id: position for position, run in enumerate(held)}
    found = np.full(len(held), np.nan)
    for problem, some in table_of(Runs(tuple(held)), FOLDER, {}, note).problems:
        found[[at[run.id] for run in some]] = _seconds(problem, some)
    return found


def _seconds(problem: Problem, runs: Sequence[Run], like: Evaluator | None = None) -> FloatArray:
    """Return the predicted seconds (n,) of runs of one problem; NaN where one is refused."""
    found = np.full(len(runs), np.nan)
    plans = sort_runs(problem, runs).plans
    if plans:
        times_s = Evaluator(problem, like).evaluate(Configurations.of(list(plans))).iteration_s
        for positions, seconds in zip(plans.values(), times_s.tolist(), strict=True):
            found[positions] = seconds
    return found


def main(arguments: list[str] | None = None, predict: Predict | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("validation.vtrain_cells", __doc__)
    parser.add_argument("--groups", action="store_true", help="print every group of plans too")
    parser.add_argument("--bundled", action="store_true", help="predict by the bundled calibrations, fit nothing")
    options = parser.parse_args(arguments)
    chosen = predict or (bundled if options.bundled else Refitted())
    return finished(lambda: _run(chosen, groups=options.groups))


def _run(predict: Predict, *, groups: bool) -> None:
    runs = read_runs(TABLE).rows
    scores = {"cells held out": held_out(runs, predict), f"{SHORT} short runs seen": with_short_runs(runs, predict)}
    sys.stdout.write(page_of(scores))
    if groups:
        sys.stdout.write("".join(f"\n{name}\n\n{_groups(one)}" for name, one in scores.items()))


def page_of(scores: dict[str, Scores]) -> str:
    """Return the table of scores by name."""
    errors = ("predicted", "refused", "mean", "median", "90 %", "mean of cells")
    ranking = ("groups", "fastest first", "regret", "worst", "regret, best of first three", "worst")
    return markdown_table(("", *errors, *ranking), ((name, *_cells(one)) for name, one in scores.items()))


def _cells(one: Scores) -> Iterator[str]:
    errors, ranking = one.errors, one.ranking
    yield from (f"{errors.n:,}", f"{one.refused:,}")
    yield from map(_percent, (errors.mape, errors.median_ape, errors.p90_ape, one.cell_mape))
    yield f"{ranking.groups:,}"
    yield from map(_percent, (ranking.top1, ranking.regret_mean, ranking.regret_max))
    yield from map(_percent, (ranking.regret_best3, ranking.regret_best3_max))


def _groups(one: Scores) -> str:
    rows = ((group.group, str(group.n), _percent(group.regret), _percent(group.regret_best3)) for group in one.groups)
    return markdown_table(("group", "plans", "regret", "regret, best of first three"), rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
