"""Predicting what took no part in the fit: end-to-end coefficients are fitted anew without each group in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration, Configurations
from planner.domain.network import family_of
from planner.domain.request import Dataset, Problem
from planner.domain.runs import Run
from planner.errors import ParameterError
from planner.fitting.end_to_end import EndToEnd, fit_end_to_end
from planner.fitting.measured_steps import without_measured_plans
from planner.fitting.observed import Observed, is_fitted, without_end_to_end
from planner.fitting.split_steps import SplitFit, SplitObserved, fit_split_steps
from planner.scoring.evaluate import Answer, answers_of, refused, sort_runs
from planner.scoring.groups import HOLD_OUTS, Split, splits
from planner.scoring.intervals import rescaled
from planner.scoring.workers import spread

__all__ = ["Asked", "Fitted", "fit_runs", "group_of", "held_out_answers", "measured_step_s"]

WHOLE, SPLIT = "unsplit", "split"
KINDS = (WHOLE, SPLIT)
"""Of plans: a whole network on every device, or split over devices; their coefficients are fitted apart."""
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
        return self._observed(Observed, WHOLE)

    @cached_property
    def split(self) -> tuple[SplitObserved, ...]:
        """The same of plans that split the network, which are fitted apart."""
        return self._observed(SplitObserved, SPLIT)

    def _observed(self, kind: type[Rows], plans: str) -> tuple[Rows, ...]:
        by_precision: dict[str, list[tuple[Configuration, float]]] = {}
        for one, seconds in self._measured:
            if _kind_of(one) == plans:
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

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Kinds of the plans of its runs, of KINDS, that end-to-end coefficients are of use to."""
        if not is_fitted(self.problem):
            return frozenset()
        return frozenset(_kind_of(run) for run in self.runs if run.mode == "sync")

    @cached_property
    def measured_kinds(self) -> frozenset[str]:
        """Kinds of the plans that a fit can learn from."""
        return frozenset(_kind_of(one) for one, _ in self._measured)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions of the runs, each once."""
        return tuple(dict.fromkeys(run.precision for run in self.runs))


def _kind_of(plan: Configuration | Run) -> str:
    """Return the kind of a plan, or of that of a run."""
    return WHOLE if plan.is_replicated else SPLIT


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

    @property
    def free_numbers(self) -> int:
        """How many values were fitted: effects of both kinds of plans, and exponents that runs tell."""
        return len(self.whole.effects) + len(self.whole.exponents) + len(self.split.effects)

    def calibrations(self, problem: Problem, precisions: Sequence[str]) -> tuple[Calibration, ...]:
        """Return the overheads of a problem in some precisions, and the collectives of its cluster.

        Links are those of the fit that has seen the cluster; of neither, those of split plans where a network is a
        transformer that no framework of the other kind trains.
        """
        whole, split = (one.calibrations(problem, precisions) for one in (self.whole, self.split))
        cluster = problem.cluster.name
        is_of_split = cluster in self.split.clusters or (
            cluster not in self.clusters and problem.settings.framework.variant in self.split.frameworks
        )
        links, overheads = (split, whole) if is_of_split else (whole, split)
        return (*links, *(one for one in overheads if not one.cluster))


def fit_runs(asked: Sequence[Asked], kinds: Collection[str] = KINDS) -> Fitted:
    """Return the end-to-end coefficients of runs; of plans of other kinds than these nothing is told."""
    whole = [one for one in asked if one.observed] if WHOLE in kinds else []
    split = [one for one in asked if one.split] if SPLIT in kinds else []
    several = {one.problem.cluster.name for one in whole for each in one.observed if each.joint}
    return Fitted(
        fit_end_to_end([each for one in whole for each in one.observed], _sources(whole)),
        fit_split_steps([each for one in split for each in one.split], _sources(split)),
        frozenset(several),
    )


def _sources(asked: Sequence[Asked]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.runs[0].source for one in asked))


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
    _price(folds, _kinds(asked), processes)
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


def _kinds(asked: Iterable[Asked]) -> frozenset[str]:
    return frozenset(kind for one in asked for kind in one.kinds)


def _with_fits(
    asked: Sequence[Asked], folds: Sequence[_Fold], axis: str
) -> tuple[list[_Fold], dict[int, ParameterError]]:
    """Return the folds with what their fits can tell, and why the others are not predicted, by position."""
    kept: list[_Fold] = []
    errors: dict[int, ParameterError] = {}
    for fold in folds:
        missing = {at: kind for at in fold.test for kind in asked[at].kinds - _learned(fold.fit, asked[at].kinds)}
        for at, kind in missing.items():
            rule = f"given beside measured runs of {kind} plans with another {axis}, to fit to"
            got = f"runs of {group_of(asked[at], axis)} alone"
            errors[at] = ParameterError(f"--hold-out {axis}", rule, got, "name files of such runs by --fit-on")
        if places := tuple(at for at in fold.test if at not in missing):
            kept.append(fold._replace(test=places))
    return kept, errors


def _learned(asked: Sequence[Asked], kinds: Collection[str]) -> frozenset[str]:
    """Return which kinds of plans some of the runs tell."""
    return frozenset(kind for kind in kinds if any(kind in one.measured_kinds for one in asked))


def _price(folds: Sequence[_Fold], kinds: Collection[str], processes: int) -> None:
    """Price what fits learn from before processes part: each would price the same kernels."""
    if min(processes, len(folds)) > 1:
        for one in {id(each): each for fold in folds for each in fold.fit}.values():
            _ = one.observed if WHOLE in kinds else (), [each.steps for each in one.split] if SPLIT in kinds else ()


def _of_fold(asked: Sequence[Asked], fold: _Fold) -> tuple[dict[int, list[Answer]], int]:
    """Return the answers to what a fold leaves out, by place in ``asked``, and how many values its fit has."""
    fit = fit_runs(fold.fit, _told_by(fold, asked))
    return {at: _answers(asked[at], fit) for at in fold.test}, fit.free_numbers


def _told_by(fold: _Fold, asked: Sequence[Asked]) -> frozenset[str]:
    """Return the kinds of plans that tell something of what a fold predicts: of either kind often its own alone.

    A kind says something of runs of the other where these are on its clusters or of its frameworks: see
    :meth:`Fitted.calibrations`.
    """
    split, tests = [one.problem for one in fold.fit if one.split], [asked[at] for at in fold.test]
    clusters = {one.cluster.name for one in split}
    frameworks = {one.settings.framework.variant for one in split}
    on_split = [one.problem.cluster.name in clusters for one in tests]
    of_split = [one.problem.settings.framework.variant in frameworks for one in tests]
    if all(SPLIT not in one.kinds for one in tests) and not any([*on_split, *of_split]):
        return frozenset({WHOLE})
    if all(one.kinds == {SPLIT} for one in tests) and all([*on_split, *of_split]):
        return frozenset({SPLIT})
    return _kinds(asked)


def _answers(asked: Asked, fit: Fitted) -> list[Answer]:
    problem = asked.problem
    mine = fit.calibrations(problem, asked.precisions)
    like = next((one.evaluator for one in (*asked.observed, *asked.split)), None)
    return answers_of(replace(problem, calibrations=(*mine, *problem.calibrations)), asked.runs, like)
