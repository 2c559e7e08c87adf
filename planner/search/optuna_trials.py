"""Trials of a study: proposed, shared, run once each, whoever runs them.

Where one quantity is minimised, every second proposal is one of the best plans with another value of one axis: a
sampler that learns each axis by itself rarely leaves a precision, or follows the edge of what a window accepts.

A plan whose bound is above the last of the best plans is not priced: its trial is pruned, and counts as tried.

A trial waits in the storage with all its values until a worker takes it. Of two trials of one plan, which workers may
propose at the same time, the first is run; storages number trials one after another, so that both workers agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.domain.arrays import FloatArray
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.feasibility import Rules
from planner.search.optuna_space import Domain, LawfulPlan, LawfulPlans, Values
from planner.search.optuna_standing import Standing
from planner.search.plan_bounds import OpenBounds, least_values
from planner.search.ranking import Order
from planner.search.reasons import OUT_OF_MEMORY, REASONS

if TYPE_CHECKING:
    import optuna

__all__ = ["DUPLICATE", "LEARNT_FROM", "WHY", "Pricer", "Trials"]

PLAN, WHY, COUNTS_AS, BOUND = "planner:plan", "planner:why", "planner:counts-as", "planner:bound"
"""Attributes of a trial: its plan in words, why it is refused, what the sampler takes it for then, and the least that
its objective can be where that was enough to know."""
PRUNED = "its bound is above the best plans"
DUPLICATE = "duplicate of trial"
LEARNT_FROM = 20
"""Trials at random before the first that is learnt from."""
MOST_CHANGED = 3
BEST = 5
"""Plans beside which others are tried."""


class _NothingWaitsError(Exception):
    """Another worker took the trial that waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricer:
    """What a plan costs, or why it is refused."""

    evaluator: Evaluator
    order: Order
    rules: Rules
    pareto: bool = False

    def __call__(self, plans: LawfulPlans, plan: LawfulPlan) -> tuple[tuple[float, ...] | None, str]:
        """Return the quantities that are minimised, or why the plan is refused and what it counts as to the sampler.

        The objective, and GPUs where a front is wanted. Of a refused one the objective is the larger the farther its
        mini-batch is from the window: plans at the edge of a window are often the best ones. None: it has no price.
        """
        row = plans.configurations([plan])
        if not self.rules.fits(row)[0]:
            return None, str(REASONS[OUT_OF_MEMORY])
        priced = PricedPlans(row, self.evaluator.evaluate(row))
        why = REASONS[int(self.rules.why_not_after_pricing(priced)[0])]
        mean, mode = float(priced.predictions.mini_batch_mean[0]), int(row.mode[0])
        over = max(1.0, float(self.rules.low[mode]) / mean, mean / float(self.rules.high[mode]))
        values = (float(self.order.values(priced)[0]) * over**2, *([float(row.gpus[0])] if self.pareto else []))
        return (values, "") if why is None else (values if over > 1 else None, str(why))

    def least(self, plans: LawfulPlans, some: Sequence[LawfulPlan]) -> FloatArray:
        """Return the least that the objective of plans can be, shape (n,); inf: they do not fit in memory."""
        rows = plans.configurations(some)
        return np.where(self.rules.fits(rows), least_values(rows, self.evaluator, self.order), np.inf)

    def hits_target(self, plans: LawfulPlans, plan: LawfulPlan) -> bool:
        """Tell whether a plan has the target itself as its mini-batch."""
        row = plans.configurations([plan])
        is_hit = ~row.is_async & (row.synchronous_mini_batch == self.order.target_batch)
        return bool(is_hit[0])


class Trials:
    """The trials of a study, here and elsewhere.

    ``open_bounds``: of the space of ``plans``; ``keep``: values of the objective that a plan must not be behind.

    Attributes
    ----------
    tried : dict of str to LawfulPlan
        Plans that were priced, refused or pruned, by their words; each once.
    least : dict of str to float
        The least that the objective of each of them can be; inf: it does not fit in memory.
    pruned : set of str
        Those that were not priced, as their bounds were enough to know.
    standing : Standing
    is_exhausted : bool
        Whether no lawful plan is left that promises anything; nothing is said of a front.
    """

    def __init__(
        self,
        study: optuna.Study,
        plans: LawfulPlans,
        pricer: Pricer,
        sampler: optuna.samplers.BaseSampler,
        random: np.random.Generator,
        *,
        open_bounds: OpenBounds,
        keep: int,
    ) -> None:
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it

        self._study, self._plans, self._pricer, self._open_bounds = study, plans, pricer, open_bounds
        self._mirror = optuna.create_study(directions=study.directions, sampler=sampler)
        self._distributions = {domain.name: _distribution(domain) for domain in plans.domains}
        self._random = random
        self._best: list[tuple[float, int, Values]] = []
        self._live: dict[str, set[int]] = {}
        self._finished: set[int] = set()
        self._waiting = 0
        self._has_run = False
        self.standing = Standing(keep, wants_front=pricer.pareto)
        self.tried: dict[str, LawfulPlan] = {}
        self.least: dict[str, float] = {}
        self.pruned: set[str] = set()
        self.is_exhausted = False
        self._update()

    def add(self, plans: Iterable[LawfulPlan]) -> None:
        """Let plans wait to be tried."""
        for plan in plans:
            self._add(plan, {})

    def go(self, trials: int, is_stopped: Callable[[], bool]) -> int:
        """Run so many trials, fewer where it is stopped or no plan is left, and return how many."""
        done = 0
        while done < trials and not is_stopped():
            self._update()
            if not self._waiting and (self._is_hopeless() or not self._propose()):
                break
            self._has_run = False
            self._study.optimize(self._run, n_trials=1, catch=(_NothingWaitsError,))
            done += self._has_run
        self._update()
        return done

    def _update(self) -> None:
        """Take over what has happened to trials, here and elsewhere."""
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy, and only this search needs it

        self._waiting = 0
        new: dict[str, LawfulPlan] = {}
        for trial in self._study.get_trials(deepcopy=False):
            if trial.number in self._finished or PLAN not in trial.user_attrs:
                continue
            if trial.state.is_finished():
                self._finished.add(trial.number)
            words, plan = trial.user_attrs[PLAN], self._plans.find(trial.params)
            live = self._live.setdefault(words, set())
            if trial.state == TrialState.FAIL or plan is None:  # its worker died: another trial of the plan waits
                live.discard(trial.number)
                continue
            self._plans.mark(plan)
            live.add(trial.number)
            self._waiting += trial.state == TrialState.WAITING
            if trial.state.is_finished() and not trial.user_attrs.get(WHY, "").startswith(DUPLICATE):
                self.tried[words] = plan
                if words not in self.least:
                    new[words] = plan
                self._learn(trial, plan)
        if new:
            self.least |= zip(new, self._pricer.least(self._plans, list(new.values())).tolist(), strict=True)

    def remaining(self) -> float:
        """Return the least objective that plans can have that were not tried; inf: none is left; 0: not known."""
        tried = np.array([self.least[words] for words in self.tried])
        return self._open_bounds.least(tried[np.isfinite(tried)])

    def _is_hopeless(self) -> bool:
        """Tell whether all plans that were not tried would be pruned; of a front that is not known."""
        hopeless = not self._pricer.pareto and self.standing.is_behind(self.remaining())
        self.is_exhausted |= hopeless
        return hopeless

    def _learn(self, trial: optuna.trial.FrozenTrial, plan: LawfulPlan) -> None:
        from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - heavy, and only this search needs it

        if BOUND in trial.user_attrs:
            self.pruned.add(trial.user_attrs[PLAN])
        values = trial.user_attrs.get(COUNTS_AS)
        if values is not None and len(values) == 1:
            trial = create_trial(
                state=TrialState.COMPLETE, values=values, params=trial.params, distributions=trial.distributions
            )
        elif trial.state == TrialState.COMPLETE:
            gpus = int(self._plans.configurations([plan]).gpus[0])
            self.standing.add(trial.values[0], gpus, hits_target=self._pricer.hits_target(self._plans, plan))
        self._mirror.add_trial(trial)
        if trial.values is not None and len(trial.values) == 1:
            self._best = sorted([*self._best, (trial.values[0], len(self.tried), trial.params)])[:BEST]

    def _propose(self) -> bool:
        """Let the plan that is nearest to what the sampler wants wait; False: every plan was tried."""
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy, and only this search needs it

        of_sampler: dict[str, Any] = {}
        if self._best and len(self.tried) >= LEARNT_FROM and len(self.tried) % 2:
            wanted: Values = self._beside_the_best()
        else:
            asked = self._mirror.ask(self._distributions)
            self._mirror.tell(asked, state=TrialState.FAIL)  # the plan itself is what it learns from
            wanted, of_sampler = asked.params, self._mirror.get_trials(deepcopy=False)[asked.number].system_attrs
        plan = self._plans.nearest(wanted)
        self.is_exhausted = plan is None
        if plan is not None:
            self._add(plan, of_sampler)
        return plan is not None

    def _beside_the_best(self) -> Values:
        """Return one of the best plans with other values of one to three axes."""
        values = dict(self._best[self._random.integers(len(self._best))][-1])
        some = self._random.permutation(len(self._plans.domains))[: self._random.integers(1, MOST_CHANGED + 1)]
        return values | {self._plans.domains[at].name: self._other(self._plans.domains[at], values) for at in some}

    def _other(self, domain: Domain, values: Values) -> int | str:
        now = values[domain.name]
        if isinstance(now, str):
            others = [word for word in domain.words if word != now]
            return others[self._random.integers(len(others))]
        scaled = round(now * 2.0 ** self._random.normal())
        other = scaled if scaled != now else now + int(self._random.choice((-1, 1)))
        return min(max(other, domain.least), domain.most)

    def _add(self, plan: LawfulPlan, of_sampler: dict[str, Any]) -> None:
        from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - heavy, and only this search needs it

        values = self._plans.values_of(self._plans.configurations([plan]))
        trial = create_trial(
            state=TrialState.WAITING,
            params=dict(values),
            distributions=self._distributions,
            user_attrs={PLAN: _words(values)},
            system_attrs=of_sampler,
        )
        self._study.add_trial(trial)

    def _run(self, trial: optuna.Trial) -> tuple[float, ...]:
        from optuna.exceptions import TrialPruned  # noqa: PLC0415 - heavy, and only this search needs it

        words = trial.user_attrs.get(PLAN)
        if words is None:
            raise _NothingWaitsError
        self._update()
        plan = self._plans.find(trial.params)
        first = min(self._live.get(words) or {trial.number})
        if first < trial.number:
            values, why = None, f"{DUPLICATE} {first}"
        else:
            self._has_run = True
            values, why = (None, "no lawful plan") if plan is None else self._outcome(trial, words, plan)
        if why:
            trial.set_user_attr(WHY, why)
            trial.set_user_attr(COUNTS_AS, values)
        if why or values is None:
            raise TrialPruned
        return values

    def _outcome(self, trial: optuna.Trial, words: str, plan: LawfulPlan) -> tuple[tuple[float, ...] | None, str]:
        """Return what the pricer says of a plan, or that its bound makes a price needless."""
        least = self.least[words] = float(self._pricer.least(self._plans, [plan])[0])
        gpus = int(self._plans.configurations([plan]).gpus[0])
        if not np.isfinite(least) or self.standing.promises(least, gpus):
            return self._pricer(self._plans, plan)
        trial.set_user_attr(BOUND, least)
        return None if self._pricer.pareto else (least,), PRUNED


def _words(values: Values) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    from optuna import distributions  # noqa: PLC0415 - heavy, and only this search needs it

    if domain.words:
        return distributions.CategoricalDistribution(domain.words)
    return distributions.IntDistribution(domain.least, domain.most, log=domain.least > 0)
