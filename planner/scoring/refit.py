"""Predicting what took no part in the fit: end-to-end coefficients are fitted anew without each group in turn.

Work spread over forked processes: each shares the parent's memory, and none survives the call that started it.

Every worker has a pipe of its own and no lock is shared, so that a worker that is killed, or kills, blocks nobody;
``multiprocessing.Pool`` shares the locks of two queues, and one lost process can leave the others waiting for ever.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, TypeVar, cast

import numpy as np

from planner.domain.configuration import Configuration, Configurations
from planner.domain.network import family_of
from planner.domain.request import Dataset, Problem
from planner.domain.runs import Run
from planner.errors import ParameterError
from planner.fitting.measured_steps import without_measured_plans
from planner.fitting.observed import Observed, is_fitted, without_end_to_end
from planner.fitting.step_fit import StepFit, fit_steps
from planner.scoring.errors import HOLD_OUTS, Split, splits
from planner.scoring.evaluate import Answer, answers_of, refused, sort_runs
from planner.scoring.intervals import rescaled

__all__ = ["Asked", "fit_runs", "group_of", "held_out_answers", "measured_step_s", "spread"]

R = TypeVar("R")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def spread(job: Callable[[int], R], jobs: int, processes: int, started: Callable[[int], object]) -> list[R]:
    """Return ``job(0), job(1), ...`` in this order, computed by up to so many processes.

    One process, or a system without fork, computes them here. Results and exceptions travel by pickle.

    Parameters
    ----------
    job : callable
        Of a number; it need not be picklable, as workers are forked.
    jobs : int
    processes : int
    started : callable
        Told of every job when it starts, in order, in this process.

    Raises
    ------
    ChildProcessError
        A worker died without an answer, such as for want of memory.
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

    @cached_property
    def needs_fit(self) -> bool:
        """Whether end-to-end coefficients are of use to its runs."""
        return is_fitted(self.problem) and any(run.mode == "sync" for run in self.runs)

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

    Intervals are by the conformal scores of the other groups; see :func:`planner.scoring.intervals.rescaled`.

    Parameters
    ----------
    asked : sequence of Asked
    axis : one of HOLD_OUTS
    progress : callable, optional
    processes : int
        How many groups are left out at a time, where processes can be forked.
    fit_on : sequence of Asked, optional
        What fits learn from, of which some may be among ``asked``; default: all of them. Those of ``asked`` that are
        not among them are predicted as others are, but no interval is scaled by their errors.
    count : callable, optional
        Told of each fit how many values it has.

    Raises
    ------
    ParameterError
        Nothing is left to fit to, whichever group is left out; where that is so of some, their runs are refused.
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
    found = spread(
        lambda number: _of_fold(asked, folds[number]),
        len(folds),
        processes,
        lambda number: progress(" and ".join(folds[number].names), number, len(folds)),
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
            if asked[at].needs_fit:
                rule = f"given beside measured runs with another {axis}, to fit to"
                got = f"runs of {group_of(asked[at], axis)} alone"
                errors[at] = ParameterError(f"--hold-out {axis}", rule, got, "name files of such runs by --fit-on")
        if places := tuple(at for at in fold.test if at not in errors):
            kept.append(fold._replace(test=places))
    return kept, errors


def _of_fold(asked: Sequence[Asked], fold: _Fold) -> tuple[dict[int, list[Answer]], int]:
    """Return the answers to what a fold leaves out, by place in ``asked``, and how many values its fit has."""
    fit = fit_runs(fold.fit)
    return {at: _answers(asked[at], fit) for at in fold.test}, len(fit.effects)


def _answers(asked: Asked, fit: StepFit) -> list[Answer]:
    problem = asked.problem
    mine = fit.calibrations(problem, asked.precisions)
    like = next((one.evaluator for one in asked.observed), None)
    return answers_of(replace(problem, calibrations=(*mine, *problem.calibrations)), asked.runs, like)
