"""How sure it is which of two plans is faster, on pairs of measured runs: deviations by axis, and what claims hold.

    python -m validation.ties       # writes docs/ties.md

Of a pair D = ln(t1 / t2) measured less predicted, v the variance that shared coefficients leave, and g_a, for every
axis a in which the plans differ, 1 of a named value and the doublings of a number. E D^2 = v + 2 m^2 + sum s_a^2 g_a,
with m the noise of a repeat, and s_a >= 0 by least squares: one vote a group, each weighted by its expected square,
twice, D^2 held below its 95th percentile. A group is what one source ran of one network on one cluster. Runs are
predicted by fits without the FOLDS-th part of the sources that they belong to.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.configuration import Configuration, Configurations
from planner.domain.request import Problem
from planner.formats.documents import write_file
from planner.numbers import constant
from planner.scoring.evaluate import Answer, answers_of, sort_runs
from planner.scoring.refit import Asked, fit_runs, measured_step_s
from planner.search.choice import probability_better
from planner.sessions.runs import locked_sources, table_of
from planner.steps.describe import OF_AXES, deviation_of_axes, doublings_of
from planner.steps.predict import Evaluator, compare_among
from validation.accuracy_answers import FOLDER, UNCOUNTED, files_of_runs, learned_runs, timed_runs
from validation.command import finished, parser_of
from validation.tables import markdown_table

__all__ = ["Claim", "Pair", "claims", "deviations", "largest_claim", "main", "page", "pairs_of", "share_right"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ties.md"
FOLDS = 4
MOST_PAIRS = 600
"""Of a group, drawn at random."""
REPEAT = 0.015
"""Deviation of a measurement from one repeat to the next."""
HELD = 0.95
"""Quantile that squared errors are held below."""
SWEEPS = 2000
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
STATED = (0.8, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99)
HEADS = ("pairs", "groups", "right")
TEXT = """# Which of two plans is faster

How sure answers are that plan 1 is faster than another: *plan 1 better* in tables, `probability_first_better` in JSON.
The deviation of the ratio of two plans is what the coefficients leave that both share, and a part for every axis in
which they differ, times the root of the doublings of a number (`ties` of [numbers.md](numbers.md)). Errors have heavy
tails: Student's t with 5 degrees of freedom. On {pairs} pairs of measured runs of {groups} groups, each of what one
source ran of one network on one cluster, predicted by fits without a quarter of the sources, theirs among it. Written
by `python -m validation.ties`.

Deviations by axis, one vote a group; of fewer than three sources the one of *other* is in use, and none is below the
floor:

{axes}
Of pairs that differ by more than a repeat, how many are right of those claimed so surely, one vote a group; beside it
what the same claims would be without the parts of the axes:

{bins}
The largest claim that so many groups support is {largest} (enough of them for 1 - 3/n, and no more wrong than chance
leaves); answers say {used} at most.
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two measured runs of one group.

    Attributes
    ----------
    group : str
    source : str
    doublings : mapping of str to float
        Of every axis in which they differ: 1 of a named value.
    measured, predicted : float
        ln of the time a sample of the first over that of the second.
    shared : float
        Standard deviation of ``predicted`` that coefficients leave which both share.
    """

    group: str
    source: str
    doublings: Mapping[str, float]
    measured: float
    predicted: float
    shared: float


def pairs_of(folder: Path = FOLDER) -> list[Pair]:
    """Return pairs of the runs of a folder that fits learn from or could, at most MOST_PAIRS of a group."""
    asked: list[Asked] = []
    as_bundled: list[Problem] = []
    for path in files_of_runs(folder):
        for problem, runs in table_of(timed_runs(path), folder, {}, lambda _text: None).problems:
            even = [run for run in runs if not run.is_uneven]
            if even and path.stem not in {*UNCOUNTED, *locked_sources(folder)}:
                asked.append(Asked(problem, even))
                as_bundled.append(problem)
    groups: dict[str, list[_Measured]] = {}
    for one, problem, answers in zip(asked, as_bundled, _held_out(asked, folder), strict=True):
        for measured in _measured(one, problem, answers):
            run = one.runs[0]
            name = f"{run.source}: {run.network} on {problem.cluster.name}"
            groups.setdefault(name, []).append(measured)
    return [pair for name, some in groups.items() for pair in _pairs(name, some)]


def _held_out(asked: Sequence[Asked], folder: Path) -> list[list[Answer]]:
    """Return the answers to runs by fits without their fold of the sources."""
    learned = learned_runs(asked, folder)
    sources = sorted({one.runs[0].source for one in asked})
    fold = {name: at % FOLDS for at, name in enumerate(sources)}
    fits = [fit_runs([one for one in learned if fold[one.runs[0].source] != number]) for number in range(FOLDS)]
    found = []
    for one in asked:
        calibrations = fits[fold[one.runs[0].source]].calibrations(one.problem, one.precisions)
        problem = replace(one.problem, calibrations=(*calibrations, *one.problem.calibrations))
        found.append(answers_of(problem, one.runs))
    return found


class _Measured(NamedTuple):
    """A run: its problem and plan, ln of the time a sample as measured, and ln(predicted / measured)."""

    problem: Problem
    plan: Configuration
    log_s: float
    error: float


def _measured(one: Asked, problem: Problem, answers: Sequence[Answer]) -> Iterator[_Measured]:
    for plan, places in sort_runs(one.problem, one.runs).plans.items():
        for run, row in ((one.runs[at], answers[at].row) for at in places):
            seconds = measured_step_s(run, plan, problem.dataset)
            if plan.mode == "sync" and seconds is not None and row.error is not None:
                error = math.log1p(row.error) * (-1 if run.metric == "samples_per_s" else 1)
                yield _Measured(problem, plan, math.log(seconds / plan.samples_per_update), error)


def _pairs(name: str, runs: Sequence[_Measured]) -> Iterator[Pair]:
    every = [(i, j) for i in range(len(runs)) for j in range(i)]
    order = np.random.default_rng(0).permutation(len(every))[:MOST_PAIRS]
    chosen = [every[at] for at in order.tolist()]
    problems = {id(one.problem): one.problem for one in runs}
    place = {name: at for at, name in enumerate(problems)}
    which = [place[id(one.problem)] for one in runs]
    evaluators = [Evaluator(one) for one in problems.values()]
    _, deviation = compare_among(evaluators, None, which, Configurations.of([one.plan for one in runs]), axes=False)
    for i, j in chosen:
        first, second = runs[i], runs[j]
        axes = doublings_of(first.plan, second.plan)
        labels = {one.problem.settings.framework.label for one in (first, second)}
        axes |= {"framework": 1.0} if len(labels) > 1 else {}
        shared, measured = deviation(i, j), first.log_s - second.log_s
        if axes and shared is not None:
            predicted = measured + first.error - second.error
            yield Pair(name, name.partition(":")[0], axes, measured, predicted, shared)


def deviations(pairs: Sequence[Pair], names: Sequence[str]) -> dict[str, float]:
    """Return s of the axes of that name, by the formula of the module."""
    squares = np.array([(one.measured - one.predicted) ** 2 for one in pairs])
    squares = np.minimum(squares, np.quantile(squares, HELD))
    known = np.array([one.shared**2 for one in pairs]) + 2 * REPEAT**2
    columns = np.array([[one.doublings.get(name, 0.0) for name in names] for one in pairs])
    sizes = Counter(one.group for one in pairs)
    votes = np.array([1 / sizes[one.group] for one in pairs])
    expected, found = np.full(squares.size, max(squares.mean(), REPEAT**2)), np.zeros(len(names))
    for _ in range(3):
        found = _least_squares(columns, squares - known, votes / expected**2)
        expected = known + columns @ found
    return dict(zip(names, np.sqrt(found).tolist(), strict=True))


def _least_squares(columns: FloatArray, values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the solution x >= 0 of weighted least squares, one coordinate after another."""
    square, slope = columns.T @ (columns * weights[:, None]), columns.T @ (weights * values)
    x = np.zeros(columns.shape[1])
    for _ in range(SWEEPS):
        for at in np.flatnonzero(np.diag(square) > 0).tolist():
            x[at] = max(0.0, x[at] + (slope[at] - square[at] @ x) / square[at, at])
    return x


class Claim(NamedTuple):
    """That the plan predicted faster is: how surely, whether it was, and of which group."""

    probability: float
    is_right: bool
    group: str


def claims(pairs: Sequence[Pair], *, axes: bool = True) -> Iterator[Claim]:
    """Yield what is claimed of each pair whose runs differ by more than a repeat; ``axes``: with what axes add."""
    for one in pairs:
        if abs(one.measured) >= math.sqrt(2) * REPEAT and one.predicted:
            added = deviation_of_axes(one.doublings) if axes else 0.0
            surely = probability_better(1.0, math.exp(abs(one.predicted)), math.hypot(one.shared, added), most=1.0)
            yield Claim(surely or 0.5, one.measured * one.predicted > 0, one.group)


def share_right(some: Sequence[Claim]) -> float:
    """Return the share of claims that are right, one vote a group."""
    by_group: dict[str, list[bool]] = {}
    for one in some:
        by_group.setdefault(one.group, []).append(one.is_right)
    return float(np.mean([np.mean(right) for right in by_group.values()]))


def largest_claim(found: Sequence[Claim]) -> float:
    """Return the largest of STATED that the groups support: enough of them, and not too many wrong."""
    supported = [0.5]
    for level in STATED:
        some = [one for one in found if one.probability >= level]
        n = len({one.group for one in some})
        if n and level <= 1 - 3 / n:
            wrong = 1 - share_right(some)
            supported += [level] * (wrong <= 1 - level + 1.64 * math.sqrt(level * (1 - level) / n))
    return max(supported)


def page(pairs: Sequence[Pair]) -> str:
    """Return the page."""
    names = Counter(name for one in pairs for name in one.doublings)
    sources = {name: len({one.source for one in pairs if name in one.doublings}) for name in names}
    fitted, now = deviations(pairs, list(names)), [*claims(pairs)]
    axes = (
        (name, f"{fitted[name]:.3f}", f"{OF_AXES.get(name, OF_AXES['other']):g}", f"{count:,}", str(sources[name]))
        for name, count in names.most_common()
    )
    kinds = {"with axes": now, "coefficients alone": [*claims(pairs, axes=False)]}
    rows = (
        (
            f"{100 * low:.0f} to {100 * high:.0f} %",
            *(cell for some in kinds.values() for cell in _cells(some, low, high)),
        )
        for low, high in pairwise(BINS)
    )
    return TEXT.format(
        pairs=f"{len(pairs):,}",
        groups=len({one.group for one in pairs}),
        axes=markdown_table(("axis", "these pairs ask for", "in use", "pairs", "sources"), axes),
        bins=markdown_table(("claimed", *(f"{name}: {what}" for name in kinds for what in HEADS)), rows),
        largest=f"{largest_claim(now):.0%}".replace("%", " %"),
        used=f"{constant('ties.largest'):.0%}".replace("%", " %"),
    )


def _cells(found: Sequence[Claim], low: float, high: float) -> tuple[str, ...]:
    some = [one for one in found if low < one.probability <= high]
    if not some:
        return "0", "0", "-"
    return f"{len(some):,}", str(len({one.group for one in some})), f"{100 * share_right(some):.0f} %"


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser_of("validation.ties", __doc__).parse_args(arguments)
    return finished(lambda: write_file(PAGE, page(pairs_of()), force=True))


if __name__ == "__main__":
    sys.exit(main())
