"""Search by Optuna: what it proposes becomes the nearest lawful plan that was not tried, and that is priced.

The study that workers share says which plans are taken. What it says of their price is compared with the own one, as
all of a study have the same inputs; the sampler of this process learns from all trials, so that a proposal costs no
round trip.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES, MODES
from planner.domain.configuration import Configurations
from planner.domain.precision import PRECISIONS
from planner.domain.request import SpaceRequest
from planner.search.bases import PASSES
from planner.search.block import Plans
from planner.search.exhaustive import Asked, Outcome, Progress, Rules, Watch, unwatched
from planner.search.optuna_study import AxisValues, Sampler, SharedStudy, StudyPlace, Values, quiet
from planner.search.ranking import LAWFUL, SLACK, Evaluator, Order, PricedPlans
from planner.search.search import OpenBounds, least_values, search
from planner.search.searchable import fits_somewhere
from planner.search.space import Limits, Space, space_of

if TYPE_CHECKING:
    import optuna

__all__ = ["LawfulPlan", "LawfulPlans", "OptunaSearch"]

ENUMERATED = 10**7
"""Candidates that are all priced before the first trial; more would take too long."""
PASSED_OVER = 32
"""Plans nearest to a proposal that are passed over, as their bounds are above the best ones."""
ROUNDING = 1e-6
"""Relative, by which prices of one plan on two machines may differ."""


class LawfulPlan(NamedTuple):
    """A base, by its row, with one of its passes."""

    row: int
    sub_batch: int
    accumulation_steps: int


class LawfulPlans:
    """The lawful plans of a request by their axes.

    A plan is a *base* (every axis but the sub-batch and the accumulation; a row of a table) with one of its *passes*, a
    sub-batch and an accumulation that the mini-batch allows.

    Attributes
    ----------
    axes : mapping of axis to AxisValues, those that differ, in the order of AXES. Where the target is one mini-batch,
        accumulation follows from the others and has none
    taken : set of LawfulPlan, those that are proposed no more
    """

    def __init__(self, request: SpaceRequest, limits: Limits) -> None:
        self.space = space_of(request, limits)
        self._words = {axis.name: axis.words for axis in AXES if axis.words} | {"precision": self.space.precisions}
        self._blocks = [plans for plans, _ in self.space.open_blocks()]
        columns: dict[str, list[IntArray]] = {axis.name: [] for axis in AXES if axis.name not in PASSES}
        for plans, (precision, _) in self.space.open_blocks():
            size, own = plans.bases.size, plans.bases.columns()
            own |= {"precision": np.full(size, precision), "mode": np.full(size, MODES.index(plans.mode))}
            for name, column in columns.items():
                column.append(own[name])
        self._columns = {name: np.concatenate([np.zeros(0, int), *parts]) for name, parts in columns.items()}
        self._starts = np.cumsum([0, *(plans.bases.size for plans in self._blocks)])
        self._every = self._open = np.arange(self._starts[-1])
        self._passes = cache(self._passes_of)
        self.axes = dict(self._axes())
        self.taken: set[LawfulPlan] = set()

    def nearest(self, wanted: Values) -> LawfulPlan | None:
        """Return the plan nearest to certain values that is not taken, axis by axis; None: all are."""
        while self._open.size:
            row = self._base(self._open, wanted)
            free = next((plan for plan in self._plans(row, wanted) if plan not in self.taken), None)
            if free is not None:
                return free
            self._open = self._open[self._open != row]
        return None

    def find(self, values: Values) -> LawfulPlan | None:
        """Return the plan with certain values; None: no lawful plan has them, or they are of other axes."""
        if values.keys() != self.axes.keys() or not self._every.size:
            return None
        for plan in self._plans(self._base(self._every, values), values):
            return plan if self.values_of(self.configurations([plan])) == values else None
        return None

    def free(self, plans: Collection[LawfulPlan]) -> None:
        """Let plans be proposed again."""
        if plans:
            self.taken -= set(plans)
            self._open = self._every

    def configurations(self, plans: Sequence[LawfulPlan]) -> Configurations:
        """Return plans as arrays, in their order."""
        rows, n, m = np.array(plans, dtype=np.int64).reshape(-1, 3).T
        columns = {name: column[rows] for name, column in self._columns.items()}
        return Configurations(**columns, sub_batch=n, accumulation_steps=m, precisions=self.space.precisions)

    def values_of(self, configurations: Configurations) -> dict[str, int | str]:
        """Return the values of the first of some configurations."""
        one = configurations.one(0)
        return {name: getattr(one, name) for name in self.axes}

    def _axes(self) -> Iterator[tuple[str, AxisValues]]:
        for axis in AXES:
            name, words = axis.name, self._words.get(axis.name)
            if name in PASSES:
                values = np.array([1, max([1, *(self._most(block, name) for block in self._blocks)])])
            else:
                values = np.unique(self._columns[name])
            if values.size and values[0] < values[-1]:
                yield name, tuple(words[at] for at in values) if words else (int(values[0]), int(values[-1]))

    @staticmethod
    def _most(block: Plans, name: str) -> int:
        """Return a bound of the sub-batches of a block, or of the accumulation that does not follow from them."""
        is_async = block.mode == "async"
        if not block.bases.size or (name == PASSES[1] and (is_async or block.window[0] == block.window[1])):
            return 1
        if is_async:
            return int(block.passes_of(0)[0].max(initial=1))
        return max(1, block.window[1] // int(block.bases.copies.min()))

    def _base(self, rows: IntArray, wanted: Values) -> int:
        """Return that of some bases which is nearest to certain values."""
        for name in self.axes:
            if name not in PASSES and rows.size > 1:
                value: Any = wanted[name]
                code = self._words[name].index(value) if name in self._words else value
                far = np.abs(np.log1p(self._columns[name][rows]) - np.log1p(code))
                rows = rows[far == far.min()]
        return int(rows[0])

    def _plans(self, row: int, wanted: Values) -> Iterator[LawfulPlan]:
        """Yield the plans of a base, those with the nearest passes first."""
        passes = self._passes(row)
        far_passes = [np.abs(np.log(p / int(wanted.get(name, 1)))) for name, p in zip(PASSES, passes, strict=True)]
        for at in np.lexsort(far_passes[::-1]).tolist():
            yield LawfulPlan(row, int(passes[0][at]), int(passes[1][at]))

    def _passes_of(self, row: int) -> tuple[IntArray, IntArray]:
        block = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._blocks[block].passes_of(row - int(self._starts[block]))


@dataclass
class OptunaSearch:
    """A searcher: so many trials of a study.

    Attributes
    ----------
    trials : to run here, besides those that the study has
    inputs : mapping of part to fingerprint
    options : from which a worker makes the same request
    starts : whether to begin with the best plans of the whole space, where it can be enumerated
    interruption : gives what is asked between trials: once that is true, the best so far is the answer
    trials_before, trials_here : that the study had, and that were run; after the search
    is_interrupted : likewise
    """

    trials: int
    place: StudyPlace = field(default_factory=StudyPlace)
    seed: int = 0
    inputs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    starts: bool = True
    interruption: Watch = unwatched
    trials_before: int = 0
    trials_here: int = 0
    is_interrupted: bool = False

    def __call__(self, asked: Asked, *, keep: int, pareto: bool, beside: Sequence[Outcome] = ()) -> Outcome:  # noqa: ARG002 - of one framework
        """Return the best ``keep`` plans of all trials of the study.

        Raises
        ------
        InputFileError : the study is of other inputs, or not as it was written
        UsageError : the storage does not answer
        """
        with quiet(), self.interruption() as is_stopped:
            study, exact = self.place.open(1 + pareto, self.inputs, self.options), None
            is_enumerated = self.starts and asked.space.inside <= ENUMERATED
            if is_enumerated or not fits_somewhere(asked):
                exact = search(asked, keep=1, pareto=pareto, stopped=is_stopped)
                self.is_interrupted = is_stopped()
                if exact.best is None or self.is_interrupted:
                    return exact
            plans = LawfulPlans(asked.request, asked.limits)
            distinct = max(
                1, keep // len(asked.request["precision"] or PRECISIONS)
            )  # those that differ in it alone are one
            sampler = Sampler(plans.axes, [self.seed, len(study.trials())], 1 + pareto)  # going on, it draws others
            starts = _starts(plans, exact)
            run = _Run(
                study=study, plans=plans, sampler=sampler, evaluator=asked.evaluator, order=asked.order,
                rules=asked.rules(plans.space), distinct=distinct, pareto=pareto, waiting=[*starts],
            )  # fmt: skip
            self.trials_before = len(run.tried)
            while self.trials_here < self.trials and not is_stopped() and run.try_next():
                self.trials_here += 1
            self.is_interrupted = is_stopped()
        is_proven = bool(starts) and run.tried.keys() >= set(starts)
        return run.outcome(keep, is_proven=is_proven)


def _starts(plans: LawfulPlans, exact: Outcome | None) -> list[LawfulPlan]:
    """Return the best plan of the whole space, and its front where that is wanted."""
    if exact is None or exact.best is None:
        return []
    parts = [exact.best, *([exact.pareto] if exact.pareto is not None else [])]
    every = [part.configurations.take(slice(at, at + 1)) for part in parts for at in range(part.size)]
    return list(dict.fromkeys(filter(None, (plans.find(plans.values_of(one)) for one in every))))


@dataclass(kw_only=True)
class _Run:
    """The trials of a study, here and elsewhere.

    Attributes
    ----------
    distinct : values of the objective that a plan must not be behind to be among the best
    waiting : plans to start with, and those that a worker claimed and never ended
    tried : plans that were priced or refused, and the least that the objective of each can be; inf: it does not fit
    """

    study: SharedStudy
    plans: LawfulPlans
    sampler: Sampler
    evaluator: Evaluator
    order: Order
    rules: Rules
    distinct: int
    pareto: bool
    waiting: list[LawfulPlan]
    tried: dict[LawfulPlan, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._is_exhausted = self._others_run = False
        self._values: list[float] = []
        self._ended: set[int] = set()
        self._price = cache(lambda plan: self._prices([plan])[0])
        self._bounds = OpenBounds(self.plans.space, self.evaluator, self.order, self.rules)
        starts, self.waiting = self.waiting, []
        self._learn()
        self.waiting += [] if self.tried else starts

    def try_next(self) -> bool:
        """Try one more plan; False: none is left that may be among the best."""
        number = None
        while number is None and (plan := self._next()) is not None:
            values = self.plans.values_of(self.plans.configurations([plan]))
            number = self.study.claim(values, self.sampler.distributions)
            if number is not None:
                price = self._price(plan)
                self.study.tell(number, price.quantities if price.is_lawful else None)
            self._learn()
        return number is not None

    def outcome(self, keep: int, *, is_proven: bool) -> Outcome:
        """Return the best of all trials; ``is_proven``: they have those of the whole space."""
        progress = Progress(self.evaluator, self.order, self.rules, keep, self.pareto)
        tried = progress.sift(self.plans.configurations(list(self.tried)))
        if tried.size:
            progress.price(tried)
        outcome = progress.outcome(Space((), self.plans.space.precisions))
        number, certified = len(self.tried), self._is_exhausted or is_proven
        method = f"optuna (TPE), {number:,} trial{'s' if number != 1 else ''}"
        outcome = replace(outcome, method=method, certified=certified, candidates=number, trials=number)
        best, remaining = next(iter(self._values), None), self._remaining()
        if certified or self.pareto or best is None or not remaining:
            return outcome
        return replace(outcome, certified=remaining > best * (1 + SLACK), gap=max(0.0, 1 - remaining / best))

    def _next(self) -> LawfulPlan | None:
        """Return the next plan to claim; None: there is none, or a bound of all others is above the best plans."""
        while self.waiting:
            first = self.waiting.pop(0)
            if first not in self.plans.taken:
                return first
        if not self.pareto and self._remaining() > self._last:
            self._is_exhausted = True
            return None
        wanted = self.sampler.ask()
        plan = self.plans.nearest(wanted)
        for _ in range(0 if self.pareto else PASSED_OVER):
            if plan is None or self._least([plan])[0] <= self._last:
                break
            self.plans.taken.add(plan)
            plan = self.plans.nearest(wanted)
        self._is_exhausted = plan is None and not self._others_run
        return plan

    def _learn(self) -> None:
        """Take over what has happened to trials, here and elsewhere."""
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy, and only this search needs it

        running, lost = set[LawfulPlan](), set[LawfulPlan]()
        ended: dict[LawfulPlan, optuna.trial.FrozenTrial] = {}
        for trial in self.study.trials():
            if trial.number in self._ended:
                continue
            with self.study.place.answering():
                plan = self.plans.find(trial.params)
            if plan is None:
                raise self._wrong(trial, "values must be those of a lawful plan", trial.params)
            if trial.state.is_finished():
                self._ended.add(trial.number)
                if trial.state == TrialState.FAIL:
                    lost.add(plan)
                elif plan not in self.tried:
                    ended.setdefault(plan, trial)
            else:
                running.add(plan)
        self._others_run = bool(running)
        lost -= self.tried.keys() | ended.keys() | running
        self.plans.free(lost)
        self.waiting += lost
        self.plans.taken |= {*running, *ended}
        prices = [self._price(next(iter(ended)))] if len(ended) == 1 else self._prices(list(ended))
        for (plan, trial), price, least in zip(ended.items(), prices, self._least(list(ended)).tolist(), strict=True):
            self._take(trial, price)
            self.tried[plan] = least

    def _take(self, trial: optuna.trial.FrozenTrial, price: _Price) -> None:
        """Learn from a trial; refuse one that has other quantities than its plan has here."""
        expected = price.quantities if price.is_lawful and price.quantities else []
        stored = trial.values or []
        if len(stored) != len(expected) or not np.allclose(stored, expected, rtol=ROUNDING, atol=0.0):
            raise self._wrong(trial, f"objectives must be those that its plan has here, {expected}", stored)
        self.sampler.tell(trial.params, price.quantities)
        if expected and expected[0] not in self._values:
            insort(self._values, expected[0])

    def _wrong(self, trial: optuna.trial.FrozenTrial, rule: str, got: object) -> Exception:
        return self.study.place.wrong(rule, got, f"trial {trial.number}")

    def _prices(self, plans: Sequence[LawfulPlan]) -> list[_Price]:
        """Return the prices of plans; of one outside the window it is the larger the farther its mini-batch is."""
        rows = self.plans.configurations(plans)
        fits = self.rules.fits(rows)
        prices = [_Price(None, is_lawful=False)] * len(plans)
        some = rows.take(fits)
        if not some.size:
            return prices
        priced = PricedPlans(some, self.evaluator.evaluate(some))
        is_lawful = self.rules.why_not_after_pricing(priced) == LAWFUL
        mean = priced.predictions.mini_batch_mean
        over = np.maximum(1, np.maximum(self.rules.low[some.mode] / mean, mean / self.rules.high[some.mode]))
        values = self.order.values(priced) * over**2  # plans at the edge of a window are often the best ones
        is_priced = np.isfinite(values) & (is_lawful | (over > 1))
        columns = [values, *([some.gpus.astype(np.float64)] if self.pareto else [])]
        for at, row in enumerate(np.flatnonzero(fits).tolist()):
            if is_priced[at]:
                prices[row] = _Price([float(column[at]) for column in columns], is_lawful=bool(is_lawful[at]))
        return prices

    def _least(self, plans: Sequence[LawfulPlan]) -> FloatArray:
        """Return the least that the objective of plans can be, shape (n,); inf: they do not fit in memory."""
        rows = self.plans.configurations(plans)
        return np.where(self.rules.fits(rows), least_values(rows, self.evaluator, self.order), np.inf)

    def _remaining(self) -> float:
        """Return the least objective that plans can have that were not tried; inf: none is left; 0: not known."""
        tried = np.array(list(self.tried.values()))
        return self._bounds.least(tried[np.isfinite(tried)])

    @property
    def _last(self) -> float:
        """The objective that a plan must not exceed to be among the best; inf: too few are known."""
        return self._values[self.distinct - 1] * (1 + SLACK) if len(self._values) >= self.distinct else np.inf


class _Price(NamedTuple):
    """The objective of a plan, and its GPUs where a front is wanted; None: it has no price. Whether it is lawful."""

    quantities: list[float] | None
    is_lawful: bool
