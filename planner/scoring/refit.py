"""Predicting what took no part in the fit: end-to-end coefficients are fitted anew without each group in turn."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration, Configurations
from planner.domain.dataset import Dataset
from planner.domain.network import family_of
from planner.domain.request import Problem
from planner.domain.runs import Run
from planner.errors import ParameterError
from planner.fitting.end_to_end import EndToEnd, fit_end_to_end
from planner.fitting.measured_steps import without_measured_plans
from planner.fitting.observed import Observed, is_fitted, without_end_to_end
from planner.fitting.split_steps import SplitFit, SplitObserved, fit_split_steps
from planner.scoring.evaluate import Answer, answers_of, sort_runs
from planner.scoring.hold_out import HOLD_OUTS, Split, splits
from planner.scoring.intervals import rescaled

__all__ = ["Asked", "Fitted", "fit_runs", "group_of", "held_out_answers", "measured_step_s"]

Rows = TypeVar("Rows", bound=Observed)
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
        return self._observed(Observed, is_split=False)

    @cached_property
    def split(self) -> tuple[SplitObserved, ...]:
        """The same of plans that split the network, which are fitted apart."""
        return self._observed(SplitObserved, is_split=True)

    def _observed(self, kind: type[Rows], *, is_split: bool) -> tuple[Rows, ...]:
        by_precision: dict[str, list[tuple[Configuration, float]]] = {}
        for one, seconds in self._measured:
            if one.is_split == is_split:
                by_precision.setdefault(one.precision, []).append((one, seconds))
        observed = (
            kind.of(self.problem, Configurations.of([one for one, _ in rows]), np.array([s for _, s in rows]))
            for rows in by_precision.values()
        )
        return tuple(one for one in observed if one.measured_s.size)

    @cached_property
    def _measured(self) -> list[tuple[Configuration, float]]:
        if not is_fitted(self.problem):
            return []
        times = (
            (one, measured_step_s(self.runs[at], one, self.problem.dataset))
            for one, positions in sort_runs(self.problem, self.runs).plans.items()
            for at in positions
        )
        return [(one, seconds) for one, seconds in times if seconds is not None and one.mode == "sync"]

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
    """Return what these runs are left out with; variants of a network (``resnet50:input=32``) are one group."""
    run, cluster = asked.runs[0], asked.problem.cluster
    values = {
        "network": _network_of(run.network),
        "gpu": cluster.node.accelerator.name,
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


@dataclass(frozen=True)
class Fitted:
    """Coefficients of runs: of plans that leave a network whole, and of those that split it.

    Attributes
    ----------
    whole : EndToEnd
    split : SplitFit
    clusters : frozenset of str
        Whose links runs of whole plans show.
    """

    whole: EndToEnd
    split: SplitFit
    clusters: frozenset[str]

    def calibrations(self, problem: Problem, precisions: Sequence[str]) -> tuple[Calibration, ...]:
        """Return the overheads of a problem in some precisions, and the collectives of its cluster.

        Links are those of the fit that has seen the cluster; of neither, those of split plans where a network is a
        transformer that no framework of the other kind trains.
        """
        whole, split = (one.calibrations(problem, precisions) for one in (self.whole, self.split))
        cluster = problem.cluster.name
        is_split = cluster in self.split.clusters or (
            cluster not in self.clusters and problem.settings.framework.variant in self.split.frameworks
        )
        links, overheads = (split, whole) if is_split else (whole, split)
        return (*links, *(one for one in overheads if not one.cluster))


def fit_runs(asked: Sequence[Asked]) -> Fitted:
    """Return the end-to-end coefficients of runs."""
    sources = tuple(dict.fromkeys(one.runs[0].source for one in asked if one.observed))
    of_split = tuple(dict.fromkeys(one.runs[0].source for one in asked if one.split))
    several = {one.problem.cluster.name for one in asked for each in one.observed if each.joint}
    return Fitted(
        fit_end_to_end([each for one in asked for each in one.observed], sources),
        fit_split_steps([each for one in asked for each in one.split], of_split),
        frozenset(several),
    )


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
    by_place: dict[int, list[Answer]] = {}
    folds = list(splits([group_of(one, axis) for one in asked]))
    answers = _by_fold(asked, folds, processes)
    for number, fold in enumerate(folds):
        progress(fold.name, number, len(folds))
        by_place |= next(answers)
    return rescaled([by_place[at] for at in range(len(asked))], [group_of(one, axis) for one in asked])


def _by_fold(asked: Sequence[Asked], folds: Sequence[Split], processes: int) -> Iterator[dict[int, list[Answer]]]:
    """Yield the answers to what each fold leaves out, by place in ``asked``."""
    if processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield from (_of_fold(asked, fold) for fold in folds)
        return
    for one in asked:
        # before processes part: each would price the same kernels
        _ = one.observed, [each.steps for each in one.split]
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
    fit = fit_runs([one for one, fits in zip(asked, fold.fit.tolist(), strict=True) if fits])
    return {at: _answers(asked[at], fit) for at in np.flatnonzero(fold.test).tolist()}


def _answers(asked: Asked, fit: Fitted) -> list[Answer]:
    problem = asked.problem
    mine = fit.calibrations(problem, asked.precisions)
    like = next((one.evaluator for one in (*asked.observed, *asked.split)), None)
    return answers_of(replace(problem, calibrations=(*mine, *problem.calibrations)), asked.runs, like)
