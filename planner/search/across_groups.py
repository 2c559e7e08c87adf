"""The best plans across groups of nodes: for every choice of their nodes the shares of the batch that take least."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import MODES, Configuration, Configurations
from planner.domain.node_groups import GroupPart
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import Predictions
from planner.domain.request import Problem, SpaceRequest
from planner.errors import Refusal, UsageError
from planner.search.batch_shares import BatchShares, best_shares
from planner.search.evaluator import PricedPlans
from planner.search.plan_limits import LIMIT_REASONS, limited
from planner.search.ranking import Order
from planner.search.space import Limits, accepted_mini_batches, has_whole_plans
from planner.steps.node_groups import AcrossGroups
from planner.steps.predict import Evaluator

__all__ = ["PlansAcross", "Searchable", "search_across"]

NO_SHARES = Refusal("other", "no shares of the groups make a mini-batch of the window and fit", "mini-batch")
MOST_CHOICES = 200_000
"""Choices of nodes of a set of groups: some 20 s a precision."""
MOST_SPLITS = 10**9
"""Splits of a mini-batch of one choice: about 2 s."""


@dataclass(frozen=True, slots=True)
class Searchable:
    """A group of nodes, what it allows, and its prices."""

    problem: Problem
    limits: Limits
    evaluator: Evaluator


@dataclass(frozen=True, slots=True)
class PlansAcross:
    """Plans across groups, one a choice of nodes and precision.

    Attributes
    ----------
    plans : n Configuration
    sets : n AcrossGroups
        That price them.
    priced : PricedPlans, shape (n,)
        For the order of plans, in which each counts as a node a GPU.
    candidates : int
        Choices of nodes and precisions that were looked at.
    refused : mapping of Refusal to int
        Those without a plan.
    """

    plans: tuple[Configuration, ...]
    sets: tuple[AcrossGroups, ...]
    priced: PricedPlans | None
    candidates: int
    refused: Mapping[Refusal, int]


def search_across(groups: Mapping[str, Searchable], request: SpaceRequest, order: Order) -> PlansAcross:
    """Return the best plan of every choice of nodes of at least two groups, in every precision that they share.

    Raises
    ------
    UsageError
        More than MOST_CHOICES choices, or more than MOST_SPLITS splits of one.
    """
    if not has_whole_plans(request):
        return PlansAcross((), (), None, 0, {})
    low, high = accepted_mini_batches(request, "sync")
    window = max(math.ceil(low), 1), math.floor(high)
    found: list[_Plan] = []
    candidates = 0
    for names in _sets(groups):
        some = {name: groups[name] for name in names}
        choices = _choices([one.limits.nodes for one in some.values()], request)
        gpus_per_node = [one.limits.gpus_per_node for one in some.values()]
        _check_size(gpus_per_node, window)
        across = AcrossGroups(
            {name: one.problem for name, one in some.items()}, {name: one.evaluator for name, one in some.items()}
        )
        feasible = choices[choices @ np.array(gpus_per_node) <= window[1]]  # each device takes a sample at least
        for precision in _precisions(some, request):
            passes = {name: _passes(one, request, precision, window[1]) for name, one in some.items()}
            candidates += len(choices)
            if all(one.sub_batch.size for one in passes.values()):
                found += _OfSet(across, passes, precision).best(feasible, window)
    refused = {NO_SHARES: candidates - len(found)} if len(found) < candidates else {}
    if not found:
        return PlansAcross((), (), None, candidates, refused)
    return _within_limits(found, next(iter(groups.values())).problem, request, order, (candidates, refused))


def _within_limits(
    found: Sequence[_Plan],
    problem: Problem,
    request: SpaceRequest,
    order: Order,
    counts: tuple[int, dict[Refusal, int]],
) -> PlansAcross:
    """Return those of the plans that take no more than the request allows; ``counts``: candidates and refused ones."""
    candidates, refused = counts
    priced = _priced(found, problem)
    keep = np.ones(priced.size, dtype=np.bool_)
    for name, most in request.most.items():
        if name != "nodes":  # of which no choice has more
            exceeds = keep & ~(limited(name, priced, order) <= most)
            if exceeds.any():
                refused[LIMIT_REASONS[name]] = int(exceeds.sum())
            keep &= ~exceeds
    kept = [one for one, is_kept in zip(found, keep.tolist(), strict=True) if is_kept]
    return PlansAcross(
        tuple(one.configuration for one in kept),
        tuple(one.across for one in kept),
        priced.take(keep) if kept else None,
        candidates,
        refused,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan across groups, the time of its step [s], and the most memory that a device of a group needs [byte]."""

    configuration: Configuration
    across: AcrossGroups
    step_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class _Passes:
    """The passes that a device of a group may take in a step, p of them, by the samples that they make, ascending.

    Attributes
    ----------
    gpus_per_node : int
    sub_batch, accumulation : ndarray of int, shape (p,)
        Of equal samples the largest sub-batch first.
    """

    gpus_per_node: int
    sub_batch: IntArray
    accumulation: IntArray

    @property
    def samples(self) -> IntArray:
        """Of a device, shape (p,)."""
        return self.sub_batch * self.accumulation


def _sets(groups: Mapping[str, Searchable]) -> Iterator[tuple[str, ...]]:
    """Yield every set of at least two groups."""
    for size in range(2, len(groups) + 1):
        yield from combinations(groups, size)


def _choices(most: Sequence[int], request: SpaceRequest) -> IntArray:
    """Return the nodes of each group in every choice that the request allows, shape (choices, groups)."""
    if (number := math.prod(most)) > MOST_CHOICES:
        rule = f"the choices of nodes of several groups must be at most {MOST_CHOICES:,}"
        raise UsageError(
            Refusal("space_too_large", rule, "nodes", f"{number:,}", "; write fewer of them into the file")
        )
    every: IntArray = np.indices(most).reshape(len(most), -1).T + 1
    totals = every.sum(axis=1)
    allowed = totals <= request.most.get("nodes", math.inf)
    if request["nodes"] is not None:
        allowed &= np.isin(totals, request["nodes"])
    chosen: IntArray = every[allowed]
    return chosen


def _check_size(gpus_per_node: Sequence[int], window: tuple[int, int]) -> None:
    """Refuse mini-batches whose splits among nodes are too many to look at."""
    unit = math.gcd(*gpus_per_node)
    totals = (window[1] - window[0]) // unit + 1 if len(gpus_per_node) == 2 else window[1] // unit + 1
    splits = totals * (window[1] // min(gpus_per_node))
    if splits > MOST_SPLITS:
        rule = f"the splits of a mini-batch among node groups must be at most {MOST_SPLITS:,}"
        raise UsageError(Refusal("space_too_large", rule, "splits", f"{splits:,}", "; give a smaller --tolerance"))


def _precisions(groups: Mapping[str, Searchable], request: SpaceRequest) -> list[str]:
    """Return the precisions asked for that all groups can train in."""
    asked = [name for name in PRECISIONS if name in (request["precision"] or PRECISIONS)]
    return [name for name in asked if all(one.limits.why_not(name, "sync") is None for one in groups.values())]


def _passes(group: Searchable, request: SpaceRequest, precision: str, high: int) -> _Passes:
    """Return the passes of a device of a group that fit its memory and may be part of a mini-batch of ``high``."""
    limits = group.limits
    most = high // limits.gpus_per_node
    fits = min(limits.fits(precision, "sync"), most)
    sub_batches = [n for n in request["sub_batch"] or range(1, fits + 1) if n <= fits]
    pairs = []
    for n in sub_batches:
        steps = np.array(request["accumulation_steps"] or range(1, most // n + 1), dtype=np.int64)
        steps = steps[steps <= most // n]
        pairs.append((np.full(steps.size, n), steps))
    if not pairs:
        none = np.zeros(0, dtype=np.int64)
        return _Passes(limits.gpus_per_node, none, none)
    sub_batch, accumulation = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    first = np.lexsort((accumulation, sub_batch * accumulation))
    return _Passes(limits.gpus_per_node, sub_batch[first], accumulation[first])


@dataclass(frozen=True, slots=True)
class _OfSet:
    """A set of groups in one precision, and the passes that a device of each may take."""

    across: AcrossGroups
    passes: Mapping[str, _Passes]
    precision: str

    def evaluate(self, nodes: int) -> dict[str, Predictions]:
        """Return what the passes of each group take where all groups have so many nodes."""
        return {
            name: self.across.evaluate(name, nodes, one.sub_batch, one.accumulation, self.precision)
            for name, one in self.passes.items()
        }

    def best(self, choices: IntArray, window: tuple[int, int]) -> Iterator[_Plan]:
        """Yield the best plan of each choice that has one."""
        totals, gpus_per_node = choices.sum(axis=1), np.array([one.gpus_per_node for one in self.passes.values()])
        for total in np.unique(totals).tolist():
            evaluated = self.evaluate(total)
            tables = [_shortest(self.passes[name].samples, of.iteration_s) for name, of in evaluated.items()]
            for choice in choices[totals == total]:
                shares = best_shares(tables, (choice * gpus_per_node).tolist(), window)
                if shares is not None:
                    yield self._plan(choice.tolist(), shares, evaluated)

    def _plan(self, choice: Sequence[int], shares: BatchShares, evaluated: Mapping[str, Predictions]) -> _Plan:
        parts, memory = [], []
        for nodes, samples, (name, one) in zip(choice, shares.samples, self.passes.items(), strict=True):
            at = _place(one.samples, evaluated[name].iteration_s, samples)
            passes = int(one.sub_batch[at]), int(one.accumulation[at])
            parts.append(GroupPart(name, nodes, one.gpus_per_node, *passes))
            memory.append(float(evaluated[name].memory_bytes[at]))
        plan = Configuration.across(tuple(parts), self.precision)
        return _Plan(plan, self.across, shares.step_s, max(memory))


def _shortest(samples: IntArray, step_s: FloatArray) -> FloatArray:
    """Return the shortest step by the samples of a device; infinity where no passes make them."""
    starts = np.flatnonzero(np.diff(samples, prepend=0))
    table = np.full(int(samples[-1]) + 1, np.inf)
    table[samples[starts]] = np.minimum.reduceat(step_s, starts)
    return table


def _place(samples: IntArray, step_s: FloatArray, wanted: int) -> int:
    """Return the place of the passes with the shortest step of those that make so many samples."""
    where: BoolArray = samples == wanted
    first = int(np.argmax(where))
    return first + int(np.argmin(step_s[where]))


def _priced(found: Sequence[_Plan], problem: Problem) -> PricedPlans:
    """Return plans as arrays, each as if a node had one GPU."""
    plans = [one.configuration for one in found]
    names = tuple(dict.fromkeys(one.precision for one in plans))
    rows = Configurations(
        nodes=np.array([one.gpus for one in plans]),
        gpus_per_node=np.ones(len(plans), dtype=np.int64),
        sub_batch=np.array([one.sub_batch for one in plans]),
        accumulation_steps=np.array([one.accumulation_steps for one in plans]),
        precision=np.array([names.index(one.precision) for one in plans]),
        mode=np.full(len(plans), MODES.index("sync")),
        precisions=names,
    )
    step_s, samples = np.array([one.step_s for one in found]), np.array([one.samples_per_update for one in plans])
    nothing = np.full(len(plans), np.nan)
    data = problem.dataset.samples if problem.dataset else np.nan
    return PricedPlans(
        rows,
        Predictions(
            iteration_s=step_s,
            update_s=nothing,
            samples_per_s=samples / step_s,
            epoch_s=data / samples * step_s,
            first_epoch_s=nothing,
            mini_batch_mean=samples.astype(np.float64),
            staleness_mean=np.zeros(len(plans)),
            memory_bytes=np.array([one.memory_bytes for one in found]),
        ),
    )
