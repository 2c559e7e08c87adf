"""Intervals of predictions, and predicting what took no part in the fit.

Held-out answers -> half-widths of intervals by kind of prediction, and the intervals that they make.

The residual of an answer is abs(log(p / v)). Rows of one network on one GPU miss together, and so are one group. Kinds
of predictions are ordered (:mod:`planner.domain.provenance`): by where, from one GPU to several nodes; by what kernels
rest on, from measured to specified; and by whether they extrapolate. Half-widths follow that order, none is below that
of a surer kind: with q(A) the conformal score of the rows of a set of kinds, that of kind x is

    max over a <= x of  min over b >= x of  q({k: a <= k <= b}),

as isotonic regression has it (Robertson, Wright, Dykstra 1988, "Order Restricted Statistical Inference"), over ranges
of kinds with at least :data:`LEAST_OWN_GROUPS` groups. So kinds of few rows, and those that would break the order,
share the rows of their neighbours. Where all rows together are fewer groups, they are one range.

Split-conformal intervals: half-widths taken from residuals of groups that no fit has seen.

s = abs(log(p / v)) (n,), p predicted and v measured; K groups, n_g rows of group g. Rows of a group miss together, so
that groups are exchangeable and rows are not. The score is the least q at which

    sum over g, i of [s_gi <= q] / ((K + 1) n_g)  >=  level

so that every group has one weight and the group to come has one too, at infinity. The interval p·exp(±q) then covers a
random row of a new group with a probability of at least ``level``, whatever the distributions (Lee, Barber, Willett
2023, "Distribution-free inference with hierarchical data", arXiv:2306.06342). Scores must come from rows that took no
part in the fit.

End-to-end coefficients are fitted anew without each group in turn, by work spread over forked processes: each shares
the parent's memory, and none survives the call that started it.

Every worker has a pipe of its own and no lock is shared, so that a worker that is killed, or kills, blocks nobody;
``multiprocessing.Pool`` shares the locks of two queues, and one lost process can leave the others waiting for ever.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, TypeVar, cast

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.configuration import Configuration, Configurations
from planner.domain.network import family_of
from planner.domain.provenance import INTERVAL_LEVEL, PREDICTION_KINDS, ConformalScore, PredictionKind
from planner.domain.request import Dataset, Problem
from planner.domain.runs import Run, ScoredRow
from planner.errors import ParameterError
from planner.fitting.step_fit import Observed, StepFit, fit_steps, is_fitted, without_end_to_end, without_measured_plans
from planner.scoring.errors import HOLD_OUTS, Split, numbered, splits
from planner.scoring.evaluate import Answer, answers_of, refused, sort_runs
from planner.steps.intervals import LARGEST_REACH

LEAST_GROUPS = 10
ROUNDING = 1e-9
"""Of sums of weights that reach the level exactly."""


def log_scores(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return s = abs(log(predicted / measured)), shape (n,); NaN where either is missing or not above 0.

    ``predicted``, ``measured``: ndarray of shape (n,), in one unit.
    """
    columns = np.stack([predicted, measured])
    is_known = np.all(np.isfinite(columns) & (columns > 0), axis=0)
    result = np.full(predicted.shape, np.nan)
    result[is_known] = np.abs(np.log(predicted[is_known]) - np.log(measured[is_known]))
    return result


def conformal_score(scores: FloatArray, groups: Sequence[str], level: float = INTERVAL_LEVEL) -> ConformalScore:
    """Return the score q of the module's formula, or the reason why there are too few groups for one.

    ``scores``: ndarray of shape (n,), rows with NaN do not count; ``groups``: sequence of str, n; ``level``: float, > 0
    and < 1.

    ParameterError: a level outside its range.
    """
    if not 0 < level < 1:
        raise ParameterError("level", "above 0 and below 1", level)
    use = ~np.isnan(scores)
    names, code = numbered(groups, use)
    count, s = len(names), scores[use]
    least = max(LEAST_GROUPS, math.ceil(level / (1 - level) - ROUNDING))  # fewer cannot reach K / (K + 1) >= level
    if count < least:
        reason = f"groups of measured runs must be at least {least} for an interval of {level:.0%}, got {count}"
        return ConformalScore(None, level, count, s.size, reason)
    weights = 1 / ((count + 1) * np.bincount(code)[code])
    order = np.argsort(s, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), level - ROUNDING))
    return ConformalScore(float(s[order][place]), level, count, int(use.sum()))


def scores_of(quantities: Sequence[str], by_quantity: Mapping[str, ConformalScore]) -> FloatArray:
    """Return the score of each row's quantity, shape (n,); NaN where there is none."""
    by_name = {name: math.nan if one.half_width is None else one.half_width for name, one in by_quantity.items()}
    return np.array([by_name.get(name, math.nan) for name in quantities], dtype=np.float64)


LEAST_OWN_GROUPS = 20
"""Groups of a range of kinds: with fewer, the group to come would stand for more than half of the 10 % left uncovered,
and the score be about the largest residual."""
_KINDS = tuple(PREDICTION_KINDS.values())


class _Residuals(NamedTuple):
    """Columns of n rows: ranks of the kind (n, 3), residual (NaN where there is none) and group."""

    ranks: FloatArray
    residual: FloatArray
    group: list[str]

    @classmethod
    def of(cls, rows: Sequence[ScoredRow]) -> _Residuals:
        """Return the residuals of rows; those that a calibration has seen, or of no kind, have none."""
        is_used = [row.error is not None and not row.in_sample and row.kind in PREDICTION_KINDS for row in rows]
        figures = [
            (row.predicted, row.measured) if is_used_ else (None, None)
            for row, is_used_ in zip(rows, is_used, strict=True)
        ]
        predicted, measured = np.array(figures, dtype=np.float64).reshape(-1, 2).T
        kinds = [PREDICTION_KINDS.get(row.kind) for row in rows]
        ranks = np.array([(-1, -1, -1) if kind is None else kind.ranks for kind in kinds], dtype=np.float64)
        groups = [f"{family_of(row.network)} on {row.gpu}" for row in rows]
        return cls(ranks.reshape(-1, 3), log_scores(predicted, measured), groups)

    def masked(self, mask: BoolArray) -> _Residuals:
        """Return the masked rows that have a residual."""
        at = np.flatnonzero(mask & np.isfinite(self.residual))
        return _Residuals(self.ranks[at], self.residual[at], [self.group[i] for i in at.tolist()])

    def scores(self) -> dict[str, ConformalScore]:
        """Return the scores by kind; none without any row."""
        if not self.group:
            return {}
        ranges = dict(self._ranges())
        every = self._within(_KINDS[0], _KINDS[-1])
        by_kind: dict[str, ConformalScore] = {}
        for name, kind in PREDICTION_KINDS.items():  # by the formula of the module; all rows where no range holds it
            narrowest: dict[PredictionKind, ConformalScore] = {}
            for (low, high), score in ranges.items():
                if low.is_as_sure_as(kind) and kind.is_as_sure_as(high):
                    narrowest[low] = min(narrowest.get(low, score), score, key=_width)
            by_kind[name] = max(narrowest.values(), key=_width, default=every)
        return by_kind

    def _ranges(self) -> Iterator[tuple[tuple[PredictionKind, PredictionKind], ConformalScore]]:
        """Yield the scores of all ranges of kinds, by ends, that have the groups."""
        for low, high in product(_KINDS, _KINDS):
            if low.is_as_sure_as(high) and (score := self._within(low, high)).groups >= LEAST_OWN_GROUPS:
                yield (low, high), score

    def _within(self, low: PredictionKind, high: PredictionKind) -> ConformalScore:
        chosen = np.all((self.ranks >= low.ranks) & (self.ranks <= high.ranks), axis=1)
        return conformal_score(self.residual[chosen], [self.group[i] for i in np.flatnonzero(chosen).tolist()])


def _width(score: ConformalScore) -> float:
    return math.inf if score.half_width is None else score.half_width


def scores(answers: Sequence[Answer]) -> dict[str, ConformalScore]:
    """Return the conformal scores of kinds of predictions, as :class:`planner.domain.calibration.Calibration` has them.

    Of all kinds, by name; with too few groups each says why it has no half-width. Empty without any row.

    ``answers``: to runs that took no part in the fit that predicts them. Rows without a kind or a measured value, and
    those that a calibration has seen, do not count.
    """
    return _Residuals.of([one.row for one in answers]).masked(np.ones(len(answers), dtype=np.bool_)).scores()


def rescaled(
    answers: Sequence[Sequence[Answer]], left_out: Sequence[str], counts: Sequence[Sequence[bool]] | None = None
) -> list[list[Answer]]:
    """Return answers with intervals by the scores of the rows of all other groups: never by residuals of their own.

    Where the other groups are too few for a score, there is none. Scores that calibrations hold do not count.
    Predictions of the other groups may rest on fits to this one, as always in cross-validation.

    Parameters
    ----------
    answers : sequence of m sequences of Answer
    left_out : sequence of str, m; what was left out of the fit behind each sequence of answers
    counts : sequence of m sequences of bool; rows whose residuals make scores; default: all
    """
    flat = [one for some in answers for one in some]
    names = np.array([name for some, name in zip(answers, left_out, strict=True) for _ in some], dtype=np.str_)
    rows = [one.row for one in flat]
    residuals, half_widths = _Residuals.of(rows), np.full(len(rows), np.nan)
    used = np.array([True] * len(rows) if counts is None else [one for some in counts for one in some], dtype=np.bool_)
    for name in np.unique(names):
        own = names == name
        kinds = [row.kind for row, is_own in zip(rows, own.tolist(), strict=True) if is_own]
        half_widths[own] = scores_of(kinds, residuals.masked(~own & used).scores())
    answers_ = map(_with_interval, flat, half_widths.tolist())
    return [[next(answers_) for _ in some] for some in answers]


def _with_interval(answer: Answer, half_width: float) -> Answer:
    row = answer.row
    if row.predicted is None or not row.kind:
        return answer
    if math.isnan(half_width):
        return replace(answer, row=replace(row, low=None, high=None))
    reach = math.exp(min(half_width, math.log(LARGEST_REACH)))
    return replace(answer, row=replace(row, low=row.predicted / reach, high=row.predicted * reach))


R = TypeVar("R")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def spread(job: Callable[[int], R], jobs: int, processes: int, started: Callable[[int], object]) -> list[R]:
    """Return ``job(0), job(1), ...`` in this order, computed by up to so many processes.

    One process, or a system without fork, computes them here. Results and exceptions travel by pickle.

    ``job``: of a number, not necessarily picklable, as workers are forked; ``started``: told of every job when it
    starts, in order, in this process.

    ChildProcessError: a worker died without an answer, such as for want of memory.
    """
    if min(jobs, processes) <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [(started(number), job(number))[1] for number in range(jobs)]
    workers: dict[Connection, multiprocessing.process.BaseProcess] = {}
    try:
        for _ in range(min(jobs, processes)):
            _start(job, workers)
        return _collected(workers, jobs, started)
    finally:
        for pipe, worker in workers.items():
            worker.kill()  # all are idle unless an exception, such as an interrupt, is on its way
            worker.join()
            pipe.close()


def _start(job: Callable[[int], R], workers: dict[Connection, multiprocessing.process.BaseProcess]) -> None:
    """Add a worker; signals wait until the parent knows of it and the worker has handlers of its own."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        ours, theirs = multiprocessing.Pipe()
        worker = multiprocessing.get_context("fork").Process(
            target=_work, args=(job, theirs, [*workers, ours], before), daemon=True
        )
        worker.start()
        workers[ours] = worker
        theirs.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Callable[[int], R], pipe: Connection, of_parent: Collection[Connection], mask: set[int]) -> None:
    """Answer job numbers until the parent closes its end, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for one in of_parent:
        one.close()
    with suppress(EOFError, OSError):
        while True:
            number = pipe.recv()
            try:
                pipe.send((number, job(number), None))
            except Exception as error:  # noqa: BLE001 - raised again by the parent
                pipe.send((number, None, error))


def _collected(workers: Collection[Connection], jobs: int, started: Callable[[int], object]) -> list[R]:
    """Return the answers by number: every worker gets the next job when it has answered the last."""
    answers: dict[int, R] = {}
    waiting = iter(range(jobs))

    def give(pipe: Connection) -> None:
        if (number := next(waiting, None)) is not None:
            started(number)
            pipe.send(number)

    for pipe in workers:
        give(pipe)
    while len(answers) < jobs:
        for pipe in cast("list[Connection]", wait(list(workers))):
            try:
                number, answer, error = pipe.recv()
            except (EOFError, OSError):
                raise ChildProcessError("a worker process ended without an answer") from None
            if error is not None:
                raise error
            answers[number] = answer
            give(pipe)
    return [answers[number] for number in range(jobs)]


Progress = Callable[[str, int, int], None]
"""Called with the group that is left out next, its number and how many there are."""


@dataclass(frozen=True)
class Asked:
    """Runs of one problem and one source.

    ``problem`` has nothing that runs say, neither overheads fitted to them nor plans, whatever it was made with.
    """

    problem: Problem
    runs: Sequence[Run]

    def __post_init__(self) -> None:
        bare = tuple(map(without_measured_plans, without_end_to_end(self.problem.calibrations)))
        object.__setattr__(self, "problem", replace(self.problem, calibrations=bare))

    @cached_property
    def observed(self) -> tuple[Observed, ...]:
        """What a fit learns from: the times of synchronous steps that were measured and can be priced, by precision."""
        if not is_fitted(self.problem):
            return ()
        by_precision: dict[str, list[tuple[Configuration, float]]] = {}
        for one, positions in sort_runs(self.problem, self.runs).plans.items():
            for at in positions if one.mode == "sync" else ():
                seconds = measured_step_s(self.runs[at], one, self.problem.dataset)
                if seconds is not None:
                    by_precision.setdefault(one.precision, []).append((one, seconds))
        observed = (
            Observed.of(self.problem, Configurations.of([one for one, _ in rows]), np.array([s for _, s in rows]))
            for rows in by_precision.values()
        )
        return tuple(one for one in observed if one.measured_s.size)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions of the runs, each once."""
        return tuple(dict.fromkeys(run.precision for run in self.runs))


def measured_step_s(run: Run, one: Configuration, dataset: Dataset | None) -> float | None:
    """Return the measured time of a step of a plan [s]; None where the run does not tell it."""
    if run.value is None or run.status != "ok":
        return None
    if run.metric == "samples_per_s":
        return one.samples_per_update / run.value
    if run.metric == "epoch_s" and dataset is not None:
        return run.value * one.samples_per_update / dataset.samples
    return run.value if run.metric == "iteration_s" else None


def group_of(asked: Asked, axis: str) -> str:
    """Return what these runs are left out with.

    Variants of a network (``resnet50:input=32``) are one group, and all boards of a chip.
    """
    run, cluster = asked.runs[0], asked.problem.cluster
    values = {
        "network": _network_of(run.network),
        "gpu": cluster.node.accelerator.chip or cluster.node.accelerator.name,
        "cluster": cluster.name,
        "source": run.source,
    }
    return values[axis]


def _network_of(name: str) -> str:
    """Return a network without what changes its input alone: of those that have sizes, layers and hidden stay.

    >>> _network_of("resnet50:input=32"), _network_of("gpt:heads=16,hidden=1024,layers=24,sequence=512")
    ('resnet50', 'gpt:hidden=1024,layers=24')
    """
    sizes = sorted(one for one in name.partition(":")[2].split(",") if one.partition("=")[0] in ("hidden", "layers"))
    return f"{family_of(name)}:{','.join(sizes)}" if sizes else family_of(name)


def fit_runs(asked: Sequence[Asked]) -> StepFit:
    """Return the coefficients of whole steps that runs tell."""
    of = [one for one in asked if one.observed]
    return fit_steps([each for one in of for each in one.observed], {one.runs[0].source for one in of})


def held_out_answers(
    asked: Sequence[Asked],
    axis: str,
    progress: Progress = lambda _name, _number, _of: None,
    processes: int = 1,
    fit_on: Sequence[Asked] | None = None,
    *,
    count: Callable[[int], None] = lambda _values: None,
) -> list[list[Answer]]:
    """Return the answers to the runs of each problem, predicted by a fit to the runs of all other groups.

    Intervals are by the conformal scores of the other groups; see :func:`planner.scoring.refit.rescaled`.

    Parameters
    ----------
    axis : one of HOLD_OUTS
    processes : how many groups are left out at a time, where processes can be forked
    fit_on : what fits learn from, of which some may be among ``asked``; default: all of them. Those of ``asked`` that
        are not among them are predicted as others are, but no interval is scaled by their errors
    count : told of each fit how many values it has

    ParameterError: nothing is left to fit to, whichever group is left out; where that is so of some, their runs are
    refused.
    """
    if axis not in HOLD_OUTS:
        raise ParameterError("hold-out", "one of " + ", ".join(HOLD_OUTS), axis)
    learned = asked if fit_on is None else fit_on
    folds, without_fit = _with_fits(asked, list(_folds(asked, learned, axis)), axis)
    by_place = {
        at: [refused(run, error.refusal, asked[at].problem.cluster) for run in asked[at].runs]
        for at, error in without_fit.items()
    }
    if asked and not folds:
        raise next(iter(without_fit.values()))
    if min(processes, len(folds)) > 1:  # before processes part: each would price the same kernels
        fit_runs(learned)

    def of_fold(number: int) -> tuple[dict[int, list[Answer]], int]:
        fit = fit_runs(folds[number].fit)
        return {at: _answers(asked[at], fit) for at in folds[number].test}, len(fit.effects)

    found = spread(
        of_fold, len(folds), processes, lambda number: progress(" and ".join(folds[number].names), number, len(folds))
    )
    for by_fold, values in found:
        by_place |= by_fold
        count(values)
    fitted = {id(one) for one in learned}
    return rescaled(
        [by_place[at] for at in range(len(asked))],
        [group_of(one, axis) for one in asked],
        [[id(one) in fitted and not run.is_uneven for run in one.runs] for one in asked],
    )


class _Fold(NamedTuple):
    """What one fit learns from, the positions of what it predicts, and the groups that are left out."""

    names: tuple[str, ...]
    fit: tuple[Asked, ...]
    test: tuple[int, ...]


def _folds(asked: Sequence[Asked], learned: Sequence[Asked], axis: str) -> Iterator[_Fold]:
    """Yield the folds; groups that no fit learns from share one."""
    of_learned = [group_of(one, axis) for one in learned]
    apart = [group_of(one, axis) for one in asked]
    rest: list[Split] = []
    for split in splits(apart):
        fit = tuple(one for one, name in zip(learned, of_learned, strict=True) if name != split.name)
        if len(fit) == len(learned):
            rest.append(split)
            continue
        yield _Fold((split.name,), fit, tuple(np.flatnonzero(split.test).tolist()))
    if rest:
        places = sorted(at for split in rest for at in np.flatnonzero(split.test).tolist())
        yield _Fold(tuple(split.name for split in rest), tuple(learned), tuple(places))


def _with_fits(
    asked: Sequence[Asked], folds: Sequence[_Fold], axis: str
) -> tuple[list[_Fold], dict[int, ParameterError]]:
    """Return the folds with what their fits can tell, and why the others are not predicted, by position."""
    kept: list[_Fold] = []
    errors: dict[int, ParameterError] = {}
    for fold in folds:
        is_told = any(one.observed for one in fold.fit)
        for at in fold.test if not is_told else ():
            if is_fitted(asked[at].problem) and any(run.mode == "sync" for run in asked[at].runs):
                rule = f"given beside measured runs with another {axis}, to fit to"
                got = f"runs of {group_of(asked[at], axis)} alone"
                errors[at] = ParameterError(f"--hold-out {axis}", rule, got, "name files of such runs by --fit-on")
        if places := tuple(at for at in fold.test if at not in errors):
            kept.append(fold._replace(test=places))
    return kept, errors


def _answers(asked: Asked, fit: StepFit) -> list[Answer]:
    problem = asked.problem
    mine = fit.calibrations(problem, asked.precisions)
    like = next((one.evaluator for one in asked.observed), None)
    return answers_of(replace(problem, calibrations=(*mine, *problem.calibrations)), asked.runs, like)
