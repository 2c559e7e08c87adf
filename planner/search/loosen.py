"""What to loosen when nothing fits: each constraint alone, and how far it must give way.

The smallest change stands first. A change is relative: of a count, and of memory, by how much the larger of what is
asked and what suffices exceeds the smaller (8 -> 4 and 4 -> 8 are both 1); of several counts the sum; of the tolerance,
how much wider it gets (0.1 -> 0.25 is 0.15). What has no such measure, as a precision, goes last.

Nothing is searched again that is known to hold no plan. Numbers of nodes, of GPUs and, for memory, of samples are tried
from the nearest outwards, twice as many at a time, until some plan fits. A limit of time or cost that even the fastest
or cheapest plan exceeds is told from that plan alone.

Limits that nothing keeps have nearest plans: those that exceed them by the least part. A network that fits in no way
asked for has a leanest plan: the memory that it needs, single changes after which it fits, and the fewest nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES, Axis
from planner.domain.configuration import MODES, Configuration, Configurations
from planner.domain.limits import LIMITS
from planner.domain.precision import PRECISIONS
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.search.choice import distinct_plans, in_all_precisions
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.exhaustive import Outcome
from planner.search.explain import label, whys_nearest
from planner.search.least import OBJECTIVE_OF_LIMIT, least_plan, may_keep_limits, order_of_limit
from planner.search.ranking import SLACK, Order, rounded
from planner.search.reasons import excess, limit_text, limited
from planner.search.rivals import Ranking, Searched, ranked
from planner.search.search import MOST_PRICED, first_plan, search
from planner.search.searchable import Settings
from planner.search.space import Limits, Space, blocks_of, has_whole_plans, space_of, sub_batches_to_try
from planner.search.split_space import HYBRID, SplitLimits, kinds_to_try
from planner.units import format_bytes, format_duration, format_number, format_samples
from planner.workload.blocks import block_starts
from planner.workload.memory import Memory
from planner.workload.what_fits import Change, least_gpus, lowest_plans, what_fits

__all__ = [
    "Loosener", "loosenings", "nearest_over_limits", "of_settings", "tolerance_that_suffices", "whys_over_limits",
    "with_shortages",
]  # fmt: skip

LARGEST_MEMORY_MULTIPLE = 4
"""Sub-batches are tried up to this multiple of the largest that fits, to say how much memory would help."""


def loosenings(
    request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, outcome: Outcome
) -> tuple[Loosening, ...]:
    """Return what to loosen where nothing satisfies a request; of memory what splitting the network needs, if any."""
    return with_shortages(Loosener(request, limits, evaluator, order).loosenings(outcome), request, limits)


def of_settings(settings: Settings) -> Iterator[Loosening]:
    """Yield the framework and the optimizer whose default in place of what was given allows a plan."""
    for option, text in settings.given.items():
        for one in settings.searchable([option]):
            of = Loosener(one.request, one.limits, one.evaluator, one.order)
            plan = first_plan(one.request, one.limits, one.evaluator, one.order)
            if plan is not None:
                default = one.problem.settings
                value = default.framework.label if option == "--framework" else default.optimizer
                yield replace(of.sentence([(option, value)], text, plan), change=math.inf)


def with_shortages(ways: tuple[Loosening, ...], request: SpaceRequest, limits: Limits) -> tuple[Loosening, ...]:
    """Return what to loosen, and what splitting the network needs of memory in its place, if any of it is lacking."""
    lacking = shortages(request, limits, space_of(request, limits))
    return (*(one for one in ways if one.option != "memory"), *lacking) if lacking else ways


class _Way(NamedTuple):
    """A constraint to loosen, and by how much; see the module."""

    change: float
    loosening: Loosening


@dataclass(frozen=True, slots=True)
class Loosener:
    """Tries each constraint of a request that nothing satisfies."""

    request: SpaceRequest
    limits: Limits
    evaluator: Evaluator
    order: Order

    def loosenings(self, outcome: Outcome) -> tuple[Loosening, ...]:
        """Return the constraints whose loosening helps, the smallest change first.

        Each alone; nodes and GPUs per node together where neither alone helps.
        """
        alone = {axis.name: self._values(axis) for axis in AXES if axis.is_loosened}
        together = None if alone["nodes"] or alone["gpus_per_node"] else self._fewer_gpus()
        ways = (
            self._tolerance(outcome),
            together,
            *alone.values(),
            *map(self._limit, self.request.most),
            self._memory(),
        )
        ordered_ways = sorted((one for one in ways if one is not None), key=lambda one: one.change)
        return tuple(replace(one.loosening, change=one.change) for one in ordered_ways)

    def _tolerance(self, outcome: Outcome) -> _Way | None:
        near = outcome.nearest
        if near is None:
            return None
        reaches = self.order.reaches(near.configurations, near.predictions.mini_batch_mean)
        off = reaches / self.request.target_batch
        first = int(np.argmin(off))
        value = tolerance_that_suffices(float(off[first]))
        tolerance = self.request.tolerance(near.configurations.one(first).mode)
        change = float(off[first]) - tolerance
        sentence = self.sentence([("--tolerance", value)], f"{100 * tolerance:.6g}%", near.take(np.array([first])))
        return _Way(change, sentence)

    def _values(self, axis: Axis) -> _Way | None:
        """Try other values of an axis; of those that help, report the nearest to what was asked."""
        request_values = self.request[axis.name]
        if axis.of_cluster == "all":
            request_values = request_values or (getattr(self.limits, axis.name),)
        if request_values is None:
            return None

        def change(plans: PricedPlans) -> FloatArray:
            return _change(getattr(plans.configurations, axis.name), request_values)

        if axis.of_cluster:
            others = np.setdiff1d(np.arange(1, getattr(self.limits, axis.name) + 1), request_values)
            groups = _by_key(others, rounded(_change(others, request_values)))
            plan = self._first_of(groups, lambda values: self.request.changed(**{axis.name: values}), self.limits)
        else:
            wide = self.request.changed(**{axis.name: None})
            plan = self._first(wide, self.limits, None if axis.words else change)
        if plan is None:
            return None
        value = str(getattr(plan.configurations.one(0), axis.name))
        sentence = self.sentence([("--" + axis.option.replace("_", "-"), value)], _listing(request_values), plan)
        return _Way(math.inf if axis.words else float(change(plan)[0]), sentence)

    def _limit(self, name: str) -> _Way | None:
        """Take a limit away; of the plans that are lawful then, report that which exceeds it least."""
        most = self.request.most[name]
        others = {one: value for one, value in self.request.most.items() if one != name}
        request = self.request.changed(most=others)
        if name == "nodes":
            nodes = np.unique(self.request["nodes"] or range(1, self.limits.nodes + 1))
            groups = [(value,) for value in nodes[nodes > most].tolist()]
            plan = self._first_of(groups, lambda values: request.changed(nodes=values), self.limits)
        elif name in OBJECTIVE_OF_LIMIT:
            plan = least_plan(name, request, self.limits, self.evaluator, self.order)
        else:
            plan = self._first(request, self.limits, _Excess({name: most}, self.order))
        if plan is None:
            return None
        needed = float(limited(name, plan, self.order)[0])
        texts = (f"{one}={limit_text(one, value)}" for one, value in {**self.request.most, name: needed}.items())
        changes = [("--limit", ",".join(texts))]
        return _Way(abs(needed / (most or 1.0) - 1), self.sentence(changes, limit_text(name, most), plan))

    def _fewer_gpus(self) -> _Way | None:
        """Try fewer nodes of fewer GPUs; of those that help, report the most GPUs, on the fewest nodes."""
        nodes, gpus = self.request["nodes"], self.request["gpus_per_node"] or (self.limits.gpus_per_node,)
        if nodes is None:
            return None
        fewer = self.request.changed(
            nodes=tuple(range(1, max(nodes) + 1)), gpus_per_node=tuple(range(1, max(gpus) + 1))
        )
        best = self._first(
            fewer, self.limits, lambda p: p.configurations.nodes - p.configurations.gpus * (self.limits.nodes + 1.0)
        )
        if best is None:
            return None
        configuration = best.configurations.one(0)
        now = f"{_listing(nodes)} x {_listing(gpus)}"
        change = _change(best.configurations.nodes, nodes) + _change(best.configurations.gpus_per_node, gpus)
        changes = [("--nodes", str(configuration.nodes)), ("--gpus-per-node", str(configuration.gpus_per_node))]
        return _Way(float(change[0]), self.sentence(changes, now, best))

    def _memory(self) -> _Way | None:
        """Try sub-batches that do not fit; of the plans that are lawful then, report that with the least memory."""
        kinds = [(name, mode) for mode in self.request.modes for name in self.request["precision"] or PRECISIONS]
        plans = [self._least_memory(*kind) for kind in kinds if not self.limits.why_not(*kind)]
        found = [one.configurations.one(0) for one in plans if one is not None]
        if not found:
            return None
        names = blocks_of(self.request, self.limits)[1]
        codes = np.array([names.index(one.precision) for one in found])
        together = replace(Configurations.of(found), precision=codes, precisions=names)
        by_memory = replace(self.order, leading=lambda p: p.predictions.memory_bytes)
        plan = by_memory.best(PricedPlans(together, self.evaluator.evaluate(together)), 1)
        needed_bytes, capacity_bytes = float(plan.predictions.memory_bytes[0]), self.limits.memory_bytes
        gib = math.ceil(needed_bytes / 2**30 * 1000) / 1000
        sentence = self.sentence([("memory", f"{gib:g}GiB")], "less on each device", plan)
        return _Way(math.inf if capacity_bytes is None else needed_bytes / capacity_bytes - 1, sentence)

    def _least_memory(self, precision: str, mode: str) -> PricedPlans | None:
        """Best plan with the smallest sub-batch of a precision and mode that does not fit: it needs least memory."""
        fits = self.limits.largest_sub_batch[precision, mode]
        most = max(LARGEST_MEMORY_MULTIPLE * max(fits, 1), *(self.request["sub_batch"] or (1,)), 1)
        wide = replace(self.limits, largest_sub_batch={**self.limits.largest_sub_batch, (precision, mode): most})
        request = self.request.changed(precision=(precision,), mode=(mode,))
        if not has_whole_plans(request):
            return None
        tried = sub_batches_to_try(request, wide, (precision, mode))
        groups = [(value,) for value in tried[tried > self.limits.fits(precision, mode)].tolist()]
        one_range = replace(
            wide, sub_batch_factor=1, largest_sub_batch={**wide.largest_sub_batch, (precision, mode): int(tried[-1])}
        )
        return self._first_of(groups, lambda values: request.changed(sub_batch=values), one_range)

    def _first_of(
        self, groups: Sequence[tuple[int, ...]], asking: Callable[[tuple[int, ...]], SpaceRequest], limits: Limits
    ) -> PricedPlans | None:
        """Return the best plan of the first group of values that allows any; ``asking``: the request for values."""
        start, size = 0, 1
        while start < len(groups):
            some = groups[start : start + size]
            plan = self._first(asking(_joined(some)), limits)
            if plan is not None:
                return self._first_of_some(some, plan, asking, limits)
            start, size = start + size, 2 * size
        return None

    def _first_of_some(
        self,
        groups: Sequence[tuple[int, ...]],
        plan: PricedPlans,
        asking: Callable[[tuple[int, ...]], SpaceRequest],
        limits: Limits,
    ) -> PricedPlans:
        """Return the same of groups of which some allows ``plan``, by halves."""
        while len(groups) > 1:
            half = len(groups) // 2
            earlier = self._first(asking(_joined(groups[:half])), limits)
            groups = groups[:half] if earlier is not None else groups[half:]
            plan = earlier or self._first(asking(_joined(groups)), limits) or plan
        return plan

    def _first(
        self, request: SpaceRequest, limits: Limits, leading: Callable[[PricedPlans], FloatArray] | None = None
    ) -> PricedPlans | None:
        """Return the first plan in order, ``leading`` compared before all else; None: nothing satisfies the request."""
        if not may_keep_limits(request, limits, self.evaluator, self.order):
            return None
        return first_plan(request, limits, self.evaluator, replace(self.order, leading=leading))

    def sentence(self, changes: list[tuple[str, str]], now: str, one: PricedPlans) -> Loosening:
        """Return what to change, what it is now, and the plan that fits then, in a sentence."""
        plan = in_all_precisions(self.order, self.evaluator, one).priced
        epoch = float(plan.predictions.epoch_s[0])
        speed = (
            f"in an epoch of {format_duration(epoch)}"
            if self.order.has_dataset
            else f"at {format_number(float(plan.predictions.samples_per_s[0]), 3)} samples/s"
        )
        result = f"mini-batch {format_samples(float(plan.predictions.mini_batch_mean[0]))} {speed}"
        plan_words = label(plan.configurations.one(0), self.order.device)
        loosening = Loosening(tuple(changes), "")
        return replace(loosening, message=f"{loosening.given} (now {now}) allows {plan_words}: {result}")


def _joined(groups: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(value for group in groups for value in group)


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
    least_first = replace(order, leading=_Excess(most, order))
    found = {at: _nearest(one, order) for at, one in enumerate(searches)}
    parts = {
        at: distinct_plans(least_first, least_first.best(one, one.size)) for at, one in found.items() if one is not None
    }
    if not parts:
        return None
    ranking = ranked(least_first, parts)
    return ranking.take(range(min(NEAREST, ranking.priced.size)))


def whys_over_limits(order: Order, plans: PricedPlans, request: SpaceRequest) -> list[str]:
    """Return by how much each plan exceeds the limits that it does not keep, and how far outside its window it is."""
    values = {name: limited(name, plans, order) for name in request.most}
    windows = [request.window(MODES[mode]) for mode in plans.configurations.mode]
    outside = whys_nearest(order, plans, windows)
    sentences = []
    for at, ((low, high), mean) in enumerate(zip(windows, plans.predictions.mini_batch_mean.tolist(), strict=True)):
        exceeded = (_above(name, float(values[name][at]), most) for name, most in request.most.items())
        is_inside = low * (1 - SLACK) <= mean <= high * (1 + SLACK)
        sentences.append(", ".join(filter(None, ("" if is_inside else outside[at], *exceeded))))
    return sentences


def _above(name: str, value: float, most: float) -> str:
    """Return in words by how much a value exceeds a limit; empty where it does not."""
    limit = LIMITS[name]
    by = f" by {format_number(100 * abs(value / most - 1))} %" if most else ""
    is_beyond = value < most if limit.is_least else value > most
    return f"{limit.words} {limit_text(name, value)}, {limit.side} --limit {name}{by}" if is_beyond else ""


@dataclass(frozen=True, slots=True)
class _Excess:
    """The largest part by which plans exceed a limit."""

    most: Mapping[str, float]
    order: Order

    def __call__(self, plans: PricedPlans) -> FloatArray:
        """Return it (n,); of a limit of nothing the quantity itself."""
        parts = [excess(name, limited(name, plans, self.order), most) for name, most in self.most.items()]
        largest: FloatArray = np.max(parts, axis=0)
        return largest


def _nearest(one: Searched, order: Order) -> PricedPlans | None:
    """First plans without limits: the best by the objective of a single limit, else those that exceed them least."""
    request, most = replace(one.request, most={}), one.request.most
    (name, *others) = most
    if not others and name in OBJECTIVE_OF_LIMIT:
        order = order_of_limit(name, order)
    elif space_of(request, one.limits).inside <= MOST_PRICED:
        order = replace(order, leading=_Excess(most, order))
    keep = NEAREST * len(request["precision"] or PRECISIONS)  # as many equal plans may stand side by side
    outcome = search(request, one.limits, one.evaluator, order, keep=keep)
    return outcome.nearest if outcome.best is None else outcome.best


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


def shortages(request: SpaceRequest, limits: Limits, space: Space) -> tuple[Loosening, ...]:
    """Return what to change where every candidate that splits a network needs too much memory; none where some fit.

    Of the leanest candidate: the memory that it needs, in which stage, its largest parts and what is missing; then the
    single changes after which it fits (:mod:`planner.workload.what_fits`), and the fewest nodes on which some plan
    with the least memory does.
    """
    of = limits.split
    leanest = None if of is None else _leanest(of, space)
    if of is None or leanest is None:
        return ()
    ledger = of.ledger(leanest.precision)
    return (*_memory(of, leanest, ledger, limits), *_nodes(of, request, ledger, limits))


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
        f"{format_bytes(short.missing_bytes)} more than there is"
    )
    yield Loosening((("memory", f"{gib:g}GiB"),), message)
    for change in (one for one in short.changes if one.fits):
        values = _given(change, of)
        words = " ".join(values[0])
        message = f"{words}: {change.name} saves {format_bytes(change.saved_bytes)} of it, after which it fits"
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
        words = f"{nodes} nodes x {limits.gpus_per_node} GPUs are the fewest on which some lawful split fits"
        yield Loosening((("--nodes", str(nodes)),), f"--nodes {nodes}: {words}")
