"""Search by Optuna: what it proposes becomes the nearest lawful plan that was not tried, and that is priced.

Two studies: the one that workers share holds trials, each with all its values from the start, and says who runs them;
its mirror in this process is what the sampler learns from, so that a proposal costs no round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.configuration import Configurations
from planner.domain.precision import PRECISIONS
from planner.domain.request import SpaceRequest
from planner.errors import Refusal
from planner.search.evaluator import Evaluator
from planner.search.exhaustive import Outcome, Watch, search_among, unwatched
from planner.search.feasibility import Rules
from planner.search.optuna_space import LawfulPlan, LawfulPlans
from planner.search.optuna_study import StudyPlace, quiet
from planner.search.optuna_trials import LEARNT_FROM, Pricer, Trials
from planner.search.plan_bounds import OpenBounds
from planner.search.ranking import SLACK, Order
from planner.search.search import search
from planner.search.space import Limits, space_of

if TYPE_CHECKING:
    import optuna

__all__ = ["SAMPLERS", "OptunaSearch"]

SAMPLERS = {"tpe": "TPE", "gp": "GP", "nsga2": "NSGA-II"}
POPULATION = 20
"""Plans of a generation."""
ENUMERATED = 10**7
"""Candidates that are all priced before the first trial; more would take too long."""


@dataclass
class OptunaSearch:
    """A searcher: so many trials of a study.

    Attributes
    ----------
    trials : int
        To run here, besides those that the study has.
    place : StudyPlace
    seed : int
    inputs : mapping of part to fingerprint
    options : mapping
        From which a worker makes the same request.
    sampler : one of SAMPLERS, or ''
        Empty: NSGA-II for a Pareto front, of the objective and GPUs; else TPE.
    starts : bool
        Whether to begin with the best plans of the whole space, where it can be enumerated.
    interruption : callable
        Gives what is asked between trials: once that is true, the best so far is the answer.
    trials_before, trials_here : int
        That the study had, and that were run; after the search.
    is_interrupted : bool
        Likewise.
    """

    trials: int
    place: StudyPlace = field(default_factory=StudyPlace)
    seed: int = 0
    inputs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sampler: str = ""
    starts: bool = True
    interruption: Watch = unwatched
    trials_before: int = 0
    trials_here: int = 0
    is_interrupted: bool = False

    def __call__(
        self, request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, *, keep: int, pareto: bool
    ) -> Outcome:
        """Return the best ``keep`` plans of all trials of the study.

        Raises
        ------
        UsageError
            The storage does not answer, or its study is of other inputs.
        """
        name = self.sampler or ("nsga2" if pareto else "tpe")
        with quiet(), self.interruption() as is_stopped:
            study = self.place.create(1 + pareto, self.inputs, self.options)
            exact = self._exact(request, limits, evaluator, order, pareto=pareto, stopped=is_stopped)
            self.is_interrupted = exact is not None and is_stopped()
            if exact is not None and (exact.best is None or self.is_interrupted):
                return exact
            plans = LawfulPlans(request, limits)
            rules = Rules.of(request, limits, plans.precisions, order)
            with self.place.answering():
                earlier = len(study.get_trials(deepcopy=False))
                random = np.random.default_rng([self.seed, earlier])  # going on, it does not draw the same again
                pricer = Pricer(evaluator=evaluator, order=order, rules=rules, pareto=pareto)
                bounds = OpenBounds(space_of(request, limits), evaluator, order, rules)
                sampler = _sampler(name, int(random.integers(2**32)))
                run = Trials(study, plans, pricer, sampler, random, open_bounds=bounds, keep=_distinct(keep, request))
                self.trials_before = len(run.tried)
                starts = _starts(plans, exact)
                run.add([] if self.trials_before else starts[: self.trials])
                self.trials_here = run.go(self.trials, is_stopped)
                self.is_interrupted = is_stopped()
        pruned = {words for words in run.pruned if run.standing.is_behind(run.least[words])}
        priced = [plan for words, plan in run.tried.items() if words not in pruned]
        some = _Some(plans.configurations(priced))
        outcome = search_among(some, request, limits, evaluator, order, keep=keep, pareto=pareto)
        is_proven = bool(starts) and set(starts) <= set(run.tried.values())
        number, certified = len(run.tried), run.is_exhausted or is_proven
        outcome = replace(outcome, certified=certified, candidates=number, discarded=len(pruned), trials=number)
        return _proven(replace(outcome, method=_method(name, outcome)), run, pareto=pareto)

    def _exact(
        self,
        request: SpaceRequest,
        limits: Limits,
        evaluator: Evaluator,
        order: Order,
        *,
        pareto: bool,
        stopped: Callable[[], bool],
    ) -> Outcome | None:
        """Return what an exhaustive search gives; None: not wanted, or the space is too large for one."""
        if not self.starts:
            return None
        if space_of(request, limits).inside > ENUMERATED:
            return None
        return search(request, limits, evaluator, order, keep=1, pareto=pareto, stopped=stopped)


def _distinct(keep: int, request: SpaceRequest) -> int:
    """Return how many values of the objective are kept: plans that differ in precision alone may share one."""
    return max(1, keep // len(request["precision"] or PRECISIONS))


def _method(name: str, outcome: Outcome) -> str:
    pruned = f", {outcome.discarded:,} of them pruned by their bounds" if outcome.discarded else ""
    return f"optuna ({SAMPLERS[name]}), {outcome.trials:,} trials{pruned}"


def _proven(outcome: Outcome, run: Trials, *, pareto: bool) -> Outcome:
    """Return the outcome with what bounds of all plans that were not tried prove of it; of a front nothing."""
    best, remaining = run.standing.best, run.remaining()
    if outcome.certified or pareto or best is None or not remaining:
        return outcome
    return replace(outcome, certified=remaining > best * (1 + SLACK), gap=max(0.0, 1 - remaining / best))


def _starts(plans: LawfulPlans, exact: Outcome | None) -> list[LawfulPlan]:
    """Return the best plan of the whole space, and its front where that is wanted."""
    if exact is None or exact.best is None:
        return []
    parts = [exact.best, *([exact.pareto] if exact.pareto is not None else [])]
    every = [part.configurations.take(slice(at, at + 1)) for part in parts for at in range(part.size)]
    places = (plans.find(plans.values_of(one)) for one in every)
    return list(dict.fromkeys(one for one in places if one is not None))


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    from optuna import samplers  # noqa: PLC0415 - heavy, and only this search needs it

    if name == "nsga2":
        return samplers.NSGAIISampler(seed=seed, population_size=POPULATION)
    if name == "gp":
        return samplers.GPSampler(seed=seed, n_startup_trials=LEARNT_FROM, deterministic_objective=True)
    return samplers.TPESampler(seed=seed, n_startup_trials=LEARNT_FROM, multivariate=True)


@dataclass(frozen=True, slots=True)
class _Some:
    """The plans that were tried, as a space."""

    plans: Configurations

    @property
    def candidates(self) -> int:
        return self.plans.size

    @property
    def precisions(self) -> tuple[str, ...]:
        return self.plans.precisions

    def refused(self) -> dict[Refusal, int]:
        return {}

    def chunks(self) -> Iterator[Configurations]:
        yield from ([self.plans] if self.plans.size else [])

    def too_large(self) -> Iterator[Configurations]:
        yield from ()

    def near(self, target: int, largest: IntArray) -> Iterator[tuple[int, Configurations]]:  # noqa: ARG002
        yield from ()
