"""Where nothing fits: what to loosen, what is nearest, and which constraints contradict each other.

Each constraint is taken away alone; of the plans that are lawful then, that which is nearest to what was asked says how
far it must give way. The smallest change stands first. A change is relative: of a count, a limit and memory, by how
much the larger of what is asked and what suffices exceeds the smaller (8 -> 4 and 4 -> 8 are both 1); of several counts
the sum; of the tolerance, how much wider it gets (0.1 -> 0.25 is 0.15). What has no such measure, as a precision, goes
last. Numbers of nodes, of GPUs and, for memory, of samples are tried from the nearest outwards, twice as many at a
time. A limit of time or cost that even the fastest or cheapest plan exceeds is told from that plan alone.

The constraints named as contradicting each other are a smallest set with which no plan fits: without any one of them
some plan does (deletion filter: at most one look for a plan a constraint). That plans take all GPUs of a node unless
something else is said is a constraint like any other, named as a default. An axis that is left out takes the values
that are tried if none are given, beside those given, as framework and optimizer do; without target and tolerance a plan
may have any mini-batch. Of any mini-batch a few stand for all. The smallest sub-batch needs the least memory, and no
degree depends on it. Where time or cost is limited, sub-batches and accumulation of every size are tried, by powers of
four, and the largest that fit: the more samples an update has, the less an epoch takes, but for the last update.

Limits that nothing keeps have nearest plans: those that exceed them by the least part. A network that fits in no way
asked for has a leanest plan: the memory that it needs, single changes after which it fits, and the fewest nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES, Axis
from planner.domain.configuration import Configuration, Configurations
from planner.domain.objective import LIMITS
from planner.domain.precision import PRECISIONS
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.errors import CoverageError
from planner.search.bases import HYBRID, SplitLimits, kinds_to_try
from planner.search.choice import Ranking, Searched, distinct_plans, in_all_precisions, ranked
from planner.search.exhaustive import Asked, Outcome, lawful_plans
from planner.search.explain import label, typed_values
from planner.search.ranking import (
    LeadingKey,
    Order,
    PricedPlans,
    excess,
    limit_text,
    limited,
    rounded,
    seconds_allowed,
)
from planner.search.search import MOST_PRICED, first_plan, search
from planner.search.searchable import Settings, asking, without_efficiency
from planner.search.space import Limits, Space, has_whole_plans, space_of, sub_batches_to_try
from planner.units import format_bytes, format_duration, format_number, format_samples
from planner.workload.memory import Memory
from planner.workload.program import block_starts
from planner.workload.what_fits import Change, least_gpus, lowest_plans, what_fits

__all__ = [
    "Constraint", "Loosener", "constraints_of", "loosenings", "nearest_over_limits", "of_settings", "smallest_conflict",
    "tolerance_that_suffices", "with_shortages",
]  # fmt: skip

LARGEST_MEMORY_MULTIPLE = 4
"""Sub-batches are tried up to this multiple of the largest that fits, to say how much memory would help."""
WINDOW = "--tolerance"
"""Option of the constraint of target and tolerance."""
OBJECTIVE_OF_LIMIT = {name: one.term for name, one in LIMITS.items() if one.term}
"""Limit -> the objective that is the same quantity, where there is one."""
_ACCUMULATION = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
"""Steps of any mini-batch: with few, activations of the fewest micro-batches are kept; schedules ask for multiples."""
_SIZES = tuple(4**power for power in range(7))
"""Sub-batches and steps of any mini-batch where time or cost is limited."""
_OPTIONS = {
    "sequence parallelism": ("--sequence-parallel", "on"),
    "selective recompute": ("--recompute", "selective"),
    "full recompute": ("--recompute", "full"),
    "smaller sub-batch": ("--sub-batch", ""),
    "tensor degree in a node": ("--tensor", ""),
    "tensor degree beyond a node": ("--tensor", ""),
    "pipeline degree": ("--pipeline", ""),
    "context degree": ("--context", ""),
    "sharding 1": ("--sharding", "1"),
    "sharding 2": ("--sharding", "2"),
    "sharding 3": ("--sharding", "3"),
    "8-bit optimizer": ("--optimizer", "adam-8bit"),
    "optimizer on the host": ("--offload", "optimizer"),
    "activations on the host": ("--offload", "activations"),
    "more nodes": ("--nodes", ""),
}
"""Change -> the option that asks for it, and its value where that is a word."""

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint of a request.

    Attributes
    ----------
    text : as it may be typed
    without : the request without it
    option : that loosens it alone; empty: none does
    now : what is asked, in the words of a sentence
    far : how far plans (n,) are from what is asked; None: it has no measure
    value : what the option must be so that it allows the one plan given
    trials, with_values : values to try from the nearest outwards, those equally near together, and the request for some
        of them; without any, all plans of the request without the constraint
    """

    text: str
    without: Callable[[SpaceRequest], SpaceRequest]
    option: str = ""
    now: str = ""
    far: LeadingKey | None = None
    value: Callable[[PricedPlans], str] = str
    trials: Sequence[Values] | None = None
    with_values: Callable[[SpaceRequest, Values], SpaceRequest] = lambda request, _: request


def constraints_of(request: SpaceRequest, order: Order, limits: Limits) -> tuple[Constraint, ...]:
    """Return the constraints of a request, in the order in which to leave them out."""
    widths = dict.fromkeys(f"{100 * request.tolerance(mode):.6g}%" for mode in request.modes)
    width = "" if request.takes_nearest and request.modes == ("sync",) else f" --tolerance {' or '.join(widths)}"
    window = f"--target-batch {request.target_batch}{width}"
    axes = [_of_axis(axis, request, limits) for axis in reversed(AXES)]
    parallelism = f"--parallelism {','.join(request.parallelism)}"
    return (
        *(one for one in axes if one and "the default" in one.text),
        *(_of_limit(name, request, order, limits) for name in request.most),
        *([Constraint(parallelism, lambda one: replace(one, parallelism=()))] if request.parallelism else ()),
        Constraint(window, lambda one: one, WINDOW),
        *(one for one in axes if one and "the default" not in one.text),
    )


def _of_axis(axis: Axis, request: SpaceRequest, limits: Limits) -> Constraint | None:
    """Return the constraint that the values of an axis are; None: there is none."""
    name, option, given = axis.name, f"--{axis.option.replace('_', '-')}", request[axis.name]
    every = getattr(limits, name) if axis.of_cluster else 0
    values = (every,) if given is None and axis.of_cluster == "all" and every > 1 else given
    resort = limits.split.last_resort(axis) if limits.split else ()
    if values is None or (resort and {*resort} <= {*values}):
        return None
    is_open = axis.default_in_suggest and axis.default_in_suggest != str(axis.default)
    beside = range(1, every + 1) if axis.of_cluster else None if is_open else (axis.default,)
    wide = None if beside is None and not resort else (*values, *(resort or beside or ()))
    text = f"{option} {typed_values(values)}"
    if given is None:
        text = f"{option} {every} (the default; {option} 1:{every} allows fewer)"
    others = np.setdiff1d(np.arange(1, every + 1), values) if axis.of_cluster else None
    return Constraint(
        text,
        lambda one: one.changed(**{name: wide}),
        option,
        _listing(values),
        None if axis.words else lambda plans: _change(getattr(plans.configurations, name), values),
        lambda plan: str(getattr(plan.configurations.one(0), name)),
        None if others is None else _by_key(others, rounded(_change(others, values))),
        lambda one, some: one.changed(**{name: some}),
    )


def _of_limit(name: str, request: SpaceRequest, order: Order, limits: Limits) -> Constraint:
    """Return the constraint that a limit is."""
    most, option = request.most[name], LIMITS[name].option or "--limit"

    def without(one: SpaceRequest) -> SpaceRequest:
        return replace(one, most={other: value for other, value in one.most.items() if other != name})

    def value(plan: PricedPlans) -> str:
        own = float(limited(name, plan, order)[0])
        if LIMITS[name].option:
            return limit_text(name, own)
        needed = {key: one for key, one in {**request.most, name: own}.items() if not LIMITS[key].option}
        return ",".join(f"{one}={limit_text(one, of)}" for one, of in needed.items())

    nodes = np.unique(request["nodes"] or range(1, limits.nodes + 1))
    return Constraint(
        f"{option} {limit_text(name, most)}" if LIMITS[name].option else f"--limit {name}={limit_text(name, most)}",
        without,
        option if len(request.most) == 1 or LIMITS[name].option else "",
        limit_text(name, most),
        lambda plans: excess(name, limited(name, plans, order), most) - 1,
        value,
        [(one,) for one in nodes[nodes > most].tolist()] if name == "nodes" else None,
        lambda one, some: without(one).changed(nodes=some),
    )


def loosenings(of: Asked, outcome: Outcome) -> tuple[Loosening, ...]:
    """Return what to loosen where nothing satisfies a request; of memory what splitting the network needs, if any."""
    return with_shortages(Loosener(of).loosenings(outcome), of.request, of.limits)


def of_settings(settings: Settings) -> Iterator[Loosening]:
    """Yield the framework and the optimizer whose default in place of what was given allows a plan."""
    for option, text in settings.given.items():
        for one in settings.searchable([option]):
            plan = first_plan(one)
            if plan is not None:
                default = one.problem.settings
                value = default.framework.label if option == "--framework" else default.optimizer
                yield replace(Loosener(one).sentence([(option, value)], text, plan), change=math.inf)


def with_shortages(ways: tuple[Loosening, ...], request: SpaceRequest, limits: Limits) -> tuple[Loosening, ...]:
    """Return what to loosen, with what splitting the network needs of memory in its place, if any of it is lacking.

    Of the leanest candidate: the memory that it needs, in which stage, its largest parts and what is missing; then the
    single changes after which it fits (:mod:`planner.workload.what_fits`), and the fewest nodes on which some plan
    with the least memory does.
    """
    of = limits.split
    leanest = None if of is None else _leanest(of, space_of(request, limits))
    if of is None or leanest is None:
        return ways
    ledger = of.ledger(leanest.precision)
    lacking = (*_memory(of, leanest, ledger, limits), *_nodes(of, request, ledger, limits))
    return (*(one for one in ways if one.option != "memory"), *lacking) if lacking else ways


@dataclass(frozen=True, slots=True)
class Loosener:
    """Takes away each constraint of a request that nothing satisfies."""

    of: Asked

    def fewer_gpus_per_node(self) -> Loosening | None:
        """Return the number of GPUs per node nearest to what is asked with which a plan fits; None: none does."""
        axis = next(one for one in AXES if one.name == "gpus_per_node")
        one = _of_axis(axis, self.of.request, self.of.limits)
        return None if one is None else self._way(one)

    def loosenings(self, outcome: Outcome) -> tuple[Loosening, ...]:
        """Return the constraints whose loosening helps, the smallest change first.

        Each alone; nodes and GPUs per node together where neither alone helps.
        """
        request, limits = self.of.request, self.of.limits
        axes = {axis.name: _of_axis(axis, request, limits) for axis in AXES if axis.is_loosened}
        alone = {name: None if one is None else self._way(one) for name, one in axes.items()}
        together = None if alone["nodes"] or alone["gpus_per_node"] else self._fewer_gpus()
        of_limits = (_of_limit(name, request, self.of.order, limits) for name in request.most)
        own = (self._limit(name, one) for name, one in zip(request.most, of_limits, strict=True))
        ways = (self._tolerance(outcome), together, *alone.values(), *own, self._memory())
        return tuple(sorted((one for one in ways if one is not None), key=lambda one: one.change))

    def _way(self, one: Constraint) -> Loosening | None:
        """Return how to loosen a constraint; None: no plan fits without it."""
        if one.trials is None:
            plan = self._first(one.without(self.of.request), one.far)
        else:
            plan = self._outwards(one.trials, lambda some: one.with_values(self.of.request, some))
        return None if plan is None else self._told(one, plan)

    def _limit(self, name: str, one: Constraint) -> Loosening | None:
        if name not in OBJECTIVE_OF_LIMIT:
            return self._way(one)
        plan = least_plan(name, asking(self.of, one.without(self.of.request)))
        return None if plan is None else self._told(replace(one, option=LIMITS[name].option or "--limit"), plan)

    def _told(self, one: Constraint, plan: PricedPlans) -> Loosening:
        change = math.inf if one.far is None else float(one.far(plan)[0])
        return replace(self.sentence([(one.option or "--limit", one.value(plan))], one.now, plan), change=change)

    def _tolerance(self, outcome: Outcome) -> Loosening | None:
        near = outcome.nearest
        if near is None:
            return None
        reaches = self.of.order.reaches(near.configurations, near.predictions.mini_batch_mean)
        off = reaches / self.of.request.target_batch
        first = int(np.argmin(off))
        tolerance = self.of.request.tolerance(near.configurations.one(first).mode)
        given = [(WINDOW, tolerance_that_suffices(float(off[first])))]
        is_nearest = self.of.request.takes_nearest and tolerance == self.of.request.tolerance_sync > 0
        now = f"the nearest mini-batch, {100 * tolerance:.4g}% off" if is_nearest else f"{100 * tolerance:.6g}%"
        sentence = self.sentence(given, now, near.take(np.array([first])))
        return replace(sentence, change=float(off[first]) - tolerance)

    def _fewer_gpus(self) -> Loosening | None:
        """Try fewer nodes of fewer GPUs; of those that help, report the most GPUs, on the fewest nodes."""
        request, limits = self.of.request, self.of.limits
        nodes, gpus = request["nodes"], request["gpus_per_node"] or (limits.gpus_per_node,)
        if nodes is None:
            return None
        fewer = request.changed(nodes=tuple(range(1, max(nodes) + 1)), gpus_per_node=tuple(range(1, max(gpus) + 1)))
        best = self._first(fewer, lambda p: p.configurations.nodes - p.configurations.gpus * (limits.nodes + 1.0))
        if best is None:
            return None
        rows = best.configurations
        change = _change(rows.nodes, nodes) + _change(rows.gpus_per_node, gpus)
        given = [("--nodes", str(rows.one(0).nodes)), ("--gpus-per-node", str(rows.one(0).gpus_per_node))]
        return replace(self.sentence(given, f"{_listing(nodes)} x {_listing(gpus)}", best), change=float(change[0]))

    def _memory(self) -> Loosening | None:
        """Try sub-batches that do not fit; of the plans that are lawful then, report that with the least memory."""
        request, limits = self.of.request, self.of.limits
        kinds = [(name, mode) for mode in request.modes for name in request["precision"] or PRECISIONS]
        kinds = [kind for kind in kinds if not limits.why_not(*kind)]
        if not kinds or not has_whole_plans(request):
            return None
        asked = max(request["sub_batch"] or (1,))
        most = {kind: max(LARGEST_MEMORY_MULTIPLE * max(limits.fits(*kind), 1), asked) for kind in kinds}
        wide = replace(limits, sub_batch_factor=1, largest_sub_batch={**limits.largest_sub_batch, **most})
        tried = np.unique(np.concatenate([sub_batches_to_try(request, wide, kind) for kind in kinds]))
        groups = [(one,) for one in tried[tried > min(limits.fits(*kind) for kind in kinds)].tolist()]
        wider = Loosener(replace(self.of, limits=wide))
        plan = wider._outwards(
            groups, lambda some: request.changed(sub_batch=some), lambda plans: plans.predictions.memory_bytes
        )
        if plan is None:
            return None
        needed_bytes, capacity_bytes = float(plan.predictions.memory_bytes[0]), limits.memory_bytes
        gib = math.ceil(needed_bytes / 2**30 * 1000) / 1000
        sentence = self.sentence([("memory", f"{gib:g}GiB")], "less on each device", plan)
        return replace(sentence, change=math.inf if capacity_bytes is None else needed_bytes / capacity_bytes - 1)

    def fewest(self) -> SpaceRequest | None:
        """Return the request on the fewest nodes, then GPUs of each, on which a plan fits; None: none does on any."""
        request, limits = self.of.request, self.of.limits
        for name, most in (("nodes", limits.nodes), ("gpus_per_node", limits.gpus_per_node)):
            every = sorted(request[name] or (range(1, most + 1) if name == "nodes" else (most,)))
            plan = self._outwards([(one,) for one in every], partial(_with, request, name))
            if plan is None:
                return None
            request = _with(request, name, (int(getattr(plan.configurations, name)[0]),))
        return request

    def _outwards(
        self, trials: Sequence[Values], asking: Callable[[Values], SpaceRequest], leading: LeadingKey | None = None
    ) -> PricedPlans | None:
        """Return the best plan of the first trial that allows any: twice as many at a time, then by halves."""
        start, size = 0, 1
        while start < len(trials):
            some, start, size = trials[start : start + size], start + size, 2 * size
            plan = self._first(asking(_joined(some)), leading)
            while plan is not None and len(some) > 1:
                half = len(some) // 2
                earlier = self._first(asking(_joined(some[:half])), leading)
                some = some[half:] if earlier is None else some[:half]
                plan = earlier or self._first(asking(_joined(some)), leading) or plan
            if plan is not None:
                return plan
        return None

    def _first(self, request: SpaceRequest, leading: LeadingKey | None = None) -> PricedPlans | None:
        """Return the first plan in order, ``leading`` compared before all else; None: nothing satisfies the request."""
        of = asking(self.of, request)
        if not may_keep_limits(of):
            return None
        return first_plan(replace(of, order=replace(of.order, leading=leading)))

    def sentence(self, changes: list[tuple[str, str]], now: str, one: PricedPlans) -> Loosening:
        """Return what to change, what it is now, and the plan that fits then, in a sentence."""
        order = self.of.order
        plan = in_all_precisions(order, self.of.evaluator, one).priced
        tokens, per_s = order.tokens, float(plan.predictions.samples_per_s[0])
        rate = f"{format_number(per_s * (tokens or 1), 3)} {'tokens' if tokens else 'samples'}/s"
        epoch = float(plan.predictions.epoch_s[0])
        speed = f"in an epoch of {format_duration(epoch)}" if order.has_dataset else f"at {rate}"
        result = f"mini-batch {format_samples(float(plan.predictions.mini_batch_mean[0]))} {speed}"
        given, words = Loosening(tuple(changes), "").given, label(plan.configurations.one(0), order.device)
        return Loosening(tuple(changes), f"{given} (now {now}) allows {words}: {result}")


def _with(request: SpaceRequest, name: str, some: Values) -> SpaceRequest:
    return request.changed(**{name: some})


def least_plan(name: str, of: Asked, most: float | None = None) -> PricedPlans | None:
    """Return the plan with the least of what a limit of OBJECTIVE_OF_LIMIT is of; None as :func:`first_plan`.

    Plans with more than ``most`` of it need not be looked for.
    """
    own = replace(of.order, objective=OBJECTIVE_OF_LIMIT[name], leading=None)
    most = seconds_allowed({name: most}, of.order) if most is not None and name == "run" else most
    return first_plan(replace(of, order=own), most=most)


def may_keep_limits(of: Asked) -> bool:
    """Tell whether, limit by limit, some plan that is lawful but for limits keeps to it; all at once is not looked at.

    Cheaper than a search among plans that must keep to them: the plan with the least of a quantity tells of all, and
    where no bound allows as little none is priced.
    """
    request, nodes = of.request, of.request["nodes"]
    if nodes is not None and min(nodes) > request.most.get("nodes", math.inf):
        return False
    for name in OBJECTIVE_OF_LIMIT.keys() & request.most.keys():
        most = request.most[name]
        least = least_plan(name, replace(of, request=request.changed(most={})), most)
        if least is None or not limited(name, least, of.order)[0] <= most:
            return False
    return True


def smallest_conflict(
    asked: Sequence[Asked], ways: Iterable[Loosening] = (), settings: Settings | None = None
) -> tuple[str, ...]:
    """Return the texts of constraints that contradict each other, each of them needed for that.

    None where nothing fits without any constraint either, or where not all of it can be priced. ``asked``: that nothing
    satisfies, by framework; ``ways``: each found with all other constraints in place: what it loosens is needed.
    """
    settings = settings or Settings()
    others = cache(settings.searchable)

    def fits(left_out: Sequence[Constraint]) -> bool:
        is_any = any(one.option == WINDOW for one in left_out)
        more = others(frozenset(one.option for one in left_out) & frozenset(settings.given))
        for one in (*asked, *more):
            request = one.request
            for constraint in left_out:
                request = constraint.without(request)
            if is_any:
                request = _of_any_mini_batch(request, one.limits)
            of = replace(one, request=without_efficiency(request))
            if may_keep_limits(of) and any(plans.size for plans in lawful_plans(of)):
                return True
        return False

    given = (Constraint(f"{option} {text}", lambda one: one, option) for option, text in settings.given.items())
    every = (*given, *constraints_of(asked[0].request, asked[0].order, asked[0].limits))
    helpful, left_out = {way.option for way in ways}, list[Constraint]()
    try:
        for one in every:
            if one.option not in helpful and not fits([*left_out, one]):
                left_out.append(one)
    except CoverageError:  # of what is left out some other value cannot be priced
        return ()
    kept = [one for one in reversed(every) if one not in left_out]
    return tuple(one.text for one in sorted(kept, key=lambda one: one.option == WINDOW))


def _of_any_mini_batch(request: SpaceRequest, limits: Limits) -> SpaceRequest:
    """Return a request whose window holds the mini-batch of every plan, some of which stand for all; see the module."""
    is_timed = any(name in OBJECTIVE_OF_LIMIT for name in request.most)
    of_split = _ACCUMULATION[-1] if limits.split else 1  # memory refuses those that are too many
    largest = max(of_split, *limits.largest_sub_batch.values()) * limits.sub_batch_factor
    fitting = {one for one in limits.largest_sub_batch.values() if one}
    stages = {times * one for one in request["pipeline_parallel"] or () for times in (1, 2)}
    sub_batches = request["sub_batch"] or tuple(sorted({one for one in _SIZES if one <= largest} | fitting))
    if not is_timed:
        sub_batches = (min(sub_batches),)
    steps = request["accumulation_steps"] or tuple(sorted({*(_SIZES if is_timed else _ACCUMULATION), *stages}))
    most = limits.nodes * limits.gpus_per_node * max(sub_batches) * max(steps) * limits.sub_batch_factor
    width = max(most / request.target_batch, 1.0)
    return request.changed(sub_batch=sub_batches, accumulation_steps=steps, tolerance_sync=width, tolerance_async=width)


def _joined(groups: Iterable[Values]) -> Values:
    return tuple(chain.from_iterable(groups))


def _by_key(values: IntArray, keys: FloatArray) -> list[tuple[int, ...]]:
    """Return values (n,) in groups of one key, that of the smallest key first."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order])) + 1
    return [tuple(group.tolist()) for group in np.split(values[order], starts) if group.size]


def _change(values: IntArray, request_values: tuple[int, ...]) -> FloatArray:
    """Return by how much each value, shape (n,), differs from the nearest that was asked for, shape (n,)."""
    tried, here = np.maximum(np.unique(request_values), 1), np.maximum(values, 1)
    above = np.searchsorted(tried, here)
    neighbours = tried[np.clip([above - 1, above], 0, tried.size - 1)]
    ratio = here / neighbours
    least: FloatArray = np.maximum(ratio, 1 / ratio).min(axis=0) - 1
    return least


def _listing(values: tuple[Any, ...]) -> str:
    is_short = len(values) <= 4 or isinstance(values[0], str)
    return ",".join(map(str, values)) if is_short else f"{min(values)} to {max(values)}"


def tolerance_that_suffices(off: float) -> str:
    """Return a relative distance as a percentage of four digits, rounded up: ``3.124%``."""
    percent = 100 * off
    scale = 10.0 ** (3 - math.floor(math.log10(percent)))
    return f"{math.ceil(percent * scale * (1 - 1e-12)) / scale:.12g}%"


NEAREST = 3
"""Plans above a limit that are told."""


def nearest_over_limits(searches: Sequence[Searched], order: Order) -> Ranking | None:
    """Return the NEAREST plans of all searches that keep to everything but limits, those that exceed them least first.

    Where no plan keeps to the rest either, those outside the window that are nearest to it. None: no limit was given,
    or the network fits nowhere.
    """
    most = searches[0].request.most if searches else {}
    if not most:
        return None
    least_first = replace(order, leading=_largest_excess(most, order))
    found = {at: _nearest(one, order) for at, one in enumerate(searches)}
    parts = {
        at: distinct_plans(least_first, least_first.best(one, one.size)) for at, one in found.items() if one is not None
    }
    if not parts:
        return None
    ranking = ranked(least_first, parts)
    return ranking.take(range(min(NEAREST, ranking.priced.size)))


def _largest_excess(most: Mapping[str, float], order: Order) -> LeadingKey:
    """Return what gives the largest factor by which plans exceed a limit."""
    return lambda plans: np.max([excess(name, limited(name, plans, order), one) for name, one in most.items()], axis=0)


def _nearest(one: Searched, order: Order) -> PricedPlans | None:
    """First plans without limits: the best by the objective of a single limit, else those that exceed them least."""
    request, most = replace(one.request, most={}), one.request.most
    (name, *others) = most
    if not others and name in OBJECTIVE_OF_LIMIT:
        order = replace(order, objective=OBJECTIVE_OF_LIMIT[name], leading=None)
    elif space_of(request, one.limits).inside <= MOST_PRICED:
        order = replace(order, leading=_largest_excess(most, order))
    keep = NEAREST * len(request["precision"] or PRECISIONS)  # as many equal plans may stand side by side
    outcome = search(replace(one, request=request, order=order), keep=keep)
    return outcome.nearest if outcome.best is None else outcome.best


def _leanest(of: SplitLimits, space: Space) -> Configuration | None:
    """Return the candidate that needs least; None where one fits or none is split."""
    best: tuple[float, Configuration] | None = None
    split = (some for some in space.open_blocks() if not some[0].bases.counts_outside)
    for rows in (rows for plans, kinds in split for rows in plans.candidates(kinds)):
        need = of.needed_bytes(rows)
        at = int(np.argmin(need))
        if best is None or need[at] < best[0]:
            best = float(need[at]), rows.one(at)
    return None if best is None or best[0] <= of.capacity_bytes else best[1]


def _memory(of: SplitLimits, one: Configuration, ledger: Memory, limits: Limits) -> Iterator[Loosening]:
    if not block_starts(of.network):
        return
    short = what_fits(
        ledger, Configurations.of([one]), of.capacity_bytes, framework=of.framework, most_nodes=limits.nodes
    )
    need = of.capacity_bytes + short.missing_bytes
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in short.largest)
    where = f" on stage {short.stage}" if one.pipeline_parallel > 1 else ""
    gib = np.ceil(need / 2**30 * 1000) / 1000
    message = (
        f"memory {gib:g}GiB: the leanest plan, {label(one)}, needs {format_bytes(need)} on a GPU{where} ({largest}), "
        f"{format_bytes(short.missing_bytes)} more than it has"
    )
    yield Loosening((("memory", f"{gib:g}GiB"),), message)
    for change in (one for one in short.changes if one.fits):
        values = _given(change, of)
        if values[0][0] == "--offload" and not of.has_host:
            continue
        words = " ".join(values[0])
        message = f"{words}: {change.name} saves {format_bytes(change.saved_bytes)}, which is enough"
        yield Loosening(values, message)


def _given(change: Change, of: SplitLimits) -> tuple[tuple[str, str], ...]:
    """Return a change as an option and its value."""
    if change.name == "fused attention":
        return (("--network", f"{of.network.name} with attention=fused"),)
    if change.name == "fused loss":
        return (("loss", "fused, as the framework allows"),)
    option, value = _OPTIONS[change.name]
    return ((option, value or str(change.value)),)


def _nodes(of: SplitLimits, request: SpaceRequest, ledger: Memory, limits: Limits) -> Iterator[Loosening]:
    if not block_starts(of.network) or HYBRID not in kinds_to_try(request, of.network, of.framework):
        return
    plans = lowest_plans(of.network, limits.gpus_per_node, tensor_most=limits.gpus_per_node)
    fewest = least_gpus(ledger, plans, of.capacity_bytes, limits.gpus_per_node)
    if fewest is None:
        return
    nodes = -(-fewest // limits.gpus_per_node)
    if nodes > max(request["nodes"] or (limits.nodes,)):
        words = f"{nodes} nodes x {limits.gpus_per_node} GPUs are the fewest that hold the network with any split"
        yield Loosening((("--nodes", str(nodes)),), f"--nodes {nodes}: {words}")
