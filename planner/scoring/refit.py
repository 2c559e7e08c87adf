"""Predicting what took no part in the fit: end-to-end coefficients are fitted anew without each group in turn."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.domain.configuration import Configuration, Configurations
from planner.domain.network import family_of
from planner.domain.request import Problem
from planner.domain.runs import Run
from planner.errors import ParameterError
from planner.fitting.end_to_end import EndToEnd, fit_end_to_end
from planner.fitting.observed import Observed, is_fitted, without_end_to_end
from planner.scoring.evaluate import Answer, answers_of, sort_runs
from planner.scoring.hold_out import HOLD_OUTS, Split, splits
from planner.scoring.intervals import rescaled

__all__ = ["Asked", "fit_runs", "group_of", "held_out_answers"]

Progress = Callable[[str, int, int], None]
"""Called with the group that is left out next, its number and how many there are."""


@dataclass(frozen=True)
class Asked:
    """Runs of one problem and one source.

    ``problem`` has no overheads that were fitted to runs, whatever it was made with.
    """

    problem: Problem
    runs: Sequence[Run]

    def __post_init__(self) -> None:
        bare = without_end_to_end(self.problem.calibrations)
        object.__setattr__(self, "problem", replace(self.problem, calibrations=bare))

    @cached_property
    def observed(self) -> tuple[Observed, ...]:
        """What a fit learns from: the times of synchronous steps that were measured and can be priced, by precision."""
        if not is_fitted(self.problem):
            return ()
        found: dict[str, list[tuple[Configuration, float]]] = {}
        for one, positions in sort_runs(self.problem, self.runs).plans.items():
            for at in positions:
                seconds = self._step_s(self.runs[at], one)
                if seconds is not None and one.mode == "sync":
                    found.setdefault(one.precision, []).append((one, seconds))
        observed = (
            Observed.of(self.problem, Configurations.of([one for one, _ in rows]), np.array([s for _, s in rows]))
            for rows in found.values()
        )
        return tuple(one for one in observed if one.measured_s.size)

    def _step_s(self, run: Run, one: Configuration) -> float | None:
        """Return the measured time of a step [s]; None where the run does not tell it."""
        if run.value is None or run.status != "ok":
            return None
        if run.metric == "samples_per_s":
            return one.samples_per_update / run.value
        if run.metric == "epoch_s" and self.problem.dataset is not None:
            return run.value * one.samples_per_update / self.problem.dataset.samples
        return run.value if run.metric == "iteration_s" else None

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions of the runs, each once."""
        return tuple(dict.fromkeys(run.precision for run in self.runs))


def group_of(asked: Asked, axis: str) -> str:
    """Return what these runs are left out with; variants of a network (``resnet50:input=32``) are one group."""
    run, cluster = asked.runs[0], asked.problem.cluster
    values = {
        "network": family_of(run.network),
        "gpu": cluster.node.accelerator.name,
        "cluster": cluster.name,
        "source": run.source,
    }
    return values[axis]


def fit_runs(asked: Sequence[Asked]) -> EndToEnd:
    """Return the end-to-end coefficients of runs."""
    sources = dict.fromkeys(one.runs[0].source for one in asked if one.observed)
    return fit_end_to_end([each for one in asked for each in one.observed], tuple(sources))


def held_out_answers(
    asked: Sequence[Asked],
    axis: str,
    progress: Progress = lambda _name, _number, _of: None,
    processes: int = 1,
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
    """
    if axis not in HOLD_OUTS:
        raise ParameterError("hold-out", "one of " + ", ".join(HOLD_OUTS), axis)
    found: dict[int, list[Answer]] = {}
    folds = list(splits([group_of(one, axis) for one in asked]))
    answers = _by_fold(asked, folds, processes)
    for number, fold in enumerate(folds):
        progress(fold.name, number, len(folds))
        found |= next(answers)
    return rescaled([found[at] for at in range(len(asked))], [group_of(one, axis) for one in asked])


def _by_fold(asked: Sequence[Asked], folds: Sequence[Split], processes: int) -> Iterator[dict[int, list[Answer]]]:
    """Yield the answers to what each fold leaves out, by place in ``asked``."""
    if processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield from (_of_fold(asked, fold) for fold in folds)
        return
    for one in asked:
        _ = one.observed  # before processes part: each would price the same kernels
    # What is forked has the runs already; only answers travel.
    with multiprocessing.get_context("fork").Pool(processes, _share, (asked, folds)) as pool:
        yield from pool.imap(_of_shared, range(len(folds)))


_shared: list[tuple[Sequence[Asked], Sequence[Split]]] = []


def _share(asked: Sequence[Asked], folds: Sequence[Split]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for this one ends it
    _shared[:] = [(asked, folds)]


def _of_shared(number: int) -> dict[int, list[Answer]]:
    asked, folds = _shared[0]
    return _of_fold(asked, folds[number])


def _of_fold(asked: Sequence[Asked], fold: Split) -> dict[int, list[Answer]]:
    fitted = fit_runs([one for one, fits in zip(asked, fold.fit.tolist(), strict=True) if fits])
    return {at: _answers(asked[at], fitted) for at in np.flatnonzero(fold.test).tolist()}


def _answers(asked: Asked, fitted: EndToEnd) -> list[Answer]:
    problem = asked.problem
    mine = fitted.calibrations(problem, asked.precisions)
    like = asked.observed[0].evaluator if asked.observed else None
    return answers_of(replace(problem, calibrations=(*mine, *problem.calibrations)), asked.runs, like)
