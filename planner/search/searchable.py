"""What a machine allows of a request, and what its plans are searched with: the start of every search.

One record a framework; the least of each weighted term among the plans of all makes the terms comparable. Of the sets
of switches of a framework those that change nothing are not searched; of a plan those that would pay are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.axes import AXES
from planner.domain.configuration import MODES, Configuration, Configurations
from planner.domain.framework import GENERIC, Framework
from planner.domain.objective import weights_of
from planner.domain.precision import PRECISIONS, precision_named
from planner.domain.request import Problem, SpaceRequest
from planner.errors import CoverageError, PlannerError, Refusal, UsageError
from planner.search.bases import SplitLimits
from planner.search.exhaustive import Asked, Outcome, Stopped, check_target
from planner.search.ranking import Order, check_limits, order_of, rounded
from planner.search.search import first_plan, search
from planner.search.space import Limits
from planner.sources.overheads import Overheads
from planner.sources.sources import Sources, candidate_precisions, check_candidate
from planner.steps import predict
from planner.steps.compute import PASSES, ComputeCases, host_s, memory_rules, scaled
from planner.steps.host_and_gpu import STAGES
from planner.steps.price import Pricer
from planner.workload.fusion import composed_kinds, idle_fusions, with_attention
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.program import block_starts

__all__ = [
    "KEPT", "LAST_RESORT", "LEAST_GAIN", "NEAREST_BATCH", "Asked", "Gains", "Searchable", "Settings", "as_run",
    "asking", "different_sets", "fits_somewhere", "kept", "least_of_all", "limits_of", "of_tables", "one_more",
    "order_and_limits", "over_leasts", "run_by", "searchable_among", "switch_gains", "with_last_resort",
    "with_nearest_batch", "without_efficiency",
]  # fmt: skip


T = TypeVar("T")
SomeAsked = TypeVar("SomeAsked", bound="Asked")
KEPT: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)
"""What requests of one run share, by key; None: nothing is kept."""
MOST_KEPT, MOST_KEPT_BYTES = 2**10, 2**29
"""Entries, and memory of the tables of all evaluators."""


def kept(key: Any, make: Callable[[], T]) -> T:
    """Return the cached value of a key, computed if absent; beyond MOST_KEPT the least recently used is dropped."""
    store = KEPT.get()
    if store is None:
        return make()
    found: T = store.pop(key) if key in store else make()
    store[key] = found
    while len(store) > MOST_KEPT:
        del store[next(iter(store))]
    return found


def kept_evaluator(problem: Problem, like: predict.Evaluator | None = None) -> predict.Evaluator:
    """Return the evaluator of a problem, with its tables; beyond MOST_KEPT_BYTES those not used for longest forget."""
    found = kept(("evaluator", id(problem)), partial(predict.Evaluator, problem, like))
    every = [one for one in (KEPT.get() or {}).values() if isinstance(one, predict.Evaluator)]
    sizes = [one.table_bytes for one in every]
    for at, one in enumerate(every[:-1]):
        if sum(sizes[at:]) > MOST_KEPT_BYTES:
            one.pricers.clear()
            one.switched.clear()
    return found


ANY_REQUEST = SpaceRequest(1)
"""Which asks for nothing."""


def order_and_limits(
    problem: Problem, request: SpaceRequest, evaluator: predict.Evaluator | None = None
) -> tuple[Order, Limits]:
    """Return the order of the plans of a request, and what the machine allows; raise as :func:`suggest`.

    ``evaluator``: that prices the plans, whose tables memory is read from too.
    """
    check_target(request, problem.dataset)
    order = order_of(problem, request)
    check_limits(request.most, order, request.modes)
    about = request.allow_specified, request.allow_lossy, tuple(request["precision"] or ())
    make_limits = partial(limits_of, problem, request, evaluator)
    # Limits and evaluators hold what their keys are the identity of.
    limits = kept(("limits", id(evaluator), about), make_limits) if evaluator else make_limits()
    names = [precision_named(name).name for name in request["precision"] or PRECISIONS]
    if all(limits.why_not(name, mode) for name in names for mode in request.modes):
        kernel_sources = Sources(problem)
        for mode in request.modes:
            kernel_sources.check_mode(mode)
        allows = request.allow_specified or names[0] in (request["precision"] or ())
        check_candidate(kernel_sources, names[0], allow_specified=allows, allow_lossy=request.allow_lossy)
    return order, limits


def limits_of(
    problem: Problem, request: SpaceRequest = ANY_REQUEST, evaluator: predict.Evaluator | None = None
) -> Limits:
    """Return what the cluster of a problem allows, in the precisions that a request may take."""
    cluster, kernel_sources = problem.cluster, Sources(problem)

    @cache
    def largest_sub_batch(rules: MemoryRules) -> int:
        # replicas have communicators and buckets, and with a second micro-batch gradients beside all activations
        most = Configurations.having(data_parallel=min(2, cluster.nodes * cluster.node.gpus), accumulation_steps=2)
        found = Memory(problem.network, rules).largest_sub_batches(most, kernel_sources.accelerator.memory_bytes)
        return int(found)

    pairs = [(name, mode) for name in PRECISIONS for mode in MODES]
    whole = {pair: replace(memory_rules(kernel_sources, *pair), shrunk=1.0) for pair in pairs}  # whatever the scenario
    return Limits(
        cluster.name,
        cluster.nodes,
        cluster.node.gpus,
        {pair: largest_sub_batch(rules) for pair, rules in whole.items()},
        {
            name: reason
            for name, reason in candidate_precisions(
                kernel_sources,
                allow_specified=request.allow_specified,
                allow_lossy=request.allow_lossy,
                named=request["precision"] or (),
            ).items()
            if reason is not None
        },
        problem.scenario.sub_batch_factor,
        {mode: Refusal("mode", reason, mode) for mode in MODES if (reason := kernel_sources.why_not_mode(mode))},
        cluster.node.accelerator.memory_bytes,
        _split_limits(problem, evaluator or predict.Evaluator(problem)),
    )


def _split_limits(problem: Problem, evaluator: predict.Evaluator) -> SplitLimits:
    """Return the limits of plans that split the network."""
    has_blocks, settings = bool(block_starts(problem.network)), problem.settings

    @cache
    def ledger(precision: str) -> Memory:
        return Memory(problem.network, memory_rules(Sources(problem), precision))

    def memory_bytes(rows: Configurations, precision: str) -> FloatArray:
        is_uneven = (rows.pipeline_parallel > 1) | (rows.tensor_parallel > 1) | (rows.recompute > 0)
        if rows.is_laid_out.any() or (not has_blocks and is_uneven.any()):
            pricer = evaluator.pricer_of(rows)
            if isinstance(pricer, Pricer):
                return pricer.memory(rows).total
        return ledger(precision).totals(rows)

    cluster = problem.cluster
    capacity = cluster.node.accelerator.memory_bytes
    return SplitLimits(
        problem.network, settings.framework, memory_bytes, capacity, ledger, has_host=cluster.host is not None
    )


@dataclass(frozen=True)
class Searchable(Asked):
    """The request to one framework, or of one group of nodes."""

    evaluator: predict.Evaluator
    problem: Problem

    @property
    def label(self) -> str:
        """Of the framework."""
        return self.problem.settings.framework.label


def searchable_among(
    asked: Sequence[tuple[Problem, SpaceRequest]], errors: dict[str, PlannerError], stopped: Stopped | None = None
) -> list[Searchable]:
    """Return those that can be searched, and add to ``errors``, by framework, why others cannot.

    UsageError where searches for the leasts of a weighted objective were ``stopped`` before they found a plan.
    """
    searchable: list[Searchable] = []
    for problem, request in asked:
        kernels = problem.settings.framework.name, of_tables(problem)
        named = ((one.evaluator, one.problem.settings.framework.name, of_tables(one.problem)) for one in searchable)
        like = next((evaluator for evaluator, *each in named if (*each,) == kernels), None)
        try:
            evaluator = kept_evaluator(problem, like)
            order, limits = order_and_limits(problem, request, evaluator)
            searchable.append(over_leasts(Searchable(request, limits, evaluator, order, problem), stopped))
        except (CoverageError, UsageError) as error:
            if stopped is not None and stopped():
                raise
            errors[problem.settings.framework.label] = error
    return least_of_all(searchable)


def least_of_all(searchable: Sequence[SomeAsked]) -> list[SomeAsked]:
    """Return them with each term of a weighted objective over its least among the plans of all, and one baseline."""
    leasts: dict[str, float] = {}
    for one in searchable:
        leasts |= {term: min(value, leasts.get(term, value)) for term, value in one.order.leasts.items()}
    baseline = min((one.order.baseline for one in searchable if one.order.baseline), default=None)
    return [replace(one, order=replace(one.order, leasts=leasts, baseline=baseline)) for one in searchable]


def over_leasts(asked: SomeAsked, stopped: Stopped | None = None) -> SomeAsked:
    """Return a request in whose order each term of a weighted objective is over its least of all plans.

    Where efficiency is limited it has the baseline too, the fastest plan on the fewest devices but for that limit. That
    of a single quantity stays, as any does that no plan satisfies. Once ``stopped`` it is the least so far.

    UsageError: the space is too large to be searched, or the search was to end before a plan was found.
    """
    order, leasts = asked.order, dict[str, float]()
    for term in weights_of(order.objective) if order.is_sum else ():
        alone = replace(order, objective=term, leasts={})
        best = search(replace(asked, order=alone), keep=1, stopped=stopped).best
        if best is not None:
            leasts[term] = float(alone.values(best)[0])
    asked = replace(asked, order=replace(order, leasts=leasts))
    if "efficiency" not in asked.request.most:
        return asked
    smallest = search(replace(asked, request=without_efficiency(asked.request)), keep=1, stopped=stopped).smallest
    if smallest is None:
        return asked
    gpus = int(smallest.configurations.gpus[0])
    baseline = gpus, gpus / float(smallest.predictions.samples_per_s[0])
    return replace(asked, order=replace(asked.order, baseline=baseline))


def without_efficiency(request: SpaceRequest) -> SpaceRequest:
    """Return a request without its limit of efficiency: the baseline keeps any."""
    return request.changed(most={name: one for name, one in request.most.items() if name != "efficiency"})


def asking(of: Asked, request: SpaceRequest) -> Asked:
    """Return another request in its place; efficiency is of its own plans."""
    if "efficiency" not in request.most:
        return replace(of, request=request)
    asked = over_leasts(replace(of, request=request, order=replace(of.order, leading=None)))
    return replace(asked, order=replace(asked.order, leading=of.order.leading))


LAST_RESORT = "as nothing fits otherwise"
"""Source of the values of an axis that are tried only then."""
NEAREST_BATCH = "nearest mini-batch"
"""Source of a tolerance as wide as the nearest mini-batch is off."""


def with_last_resort(asked: Sequence[SomeAsked]) -> list[SomeAsked]:
    """Return requests with last-resort values, for when nothing fits in memory; empty if that would not help.

    Axes that a request leaves to the search have their values of last resort besides the default.
    """
    wider = []
    for one in asked:
        of, request = one.limits.split, one.request
        more = {axis.name: of.last_resort(axis) or None for axis in AXES if of and request[axis.name] is None}
        wider += [replace(one, request=request.changed(**more))] if any(more.values()) else []
    if any(map(fits_somewhere, asked if wider else ())) or not any(map(fits_somewhere, wider)):
        return []
    return least_of_all(list(map(over_leasts, wider)))


def with_nearest_batch(asked: Sequence[SomeAsked], outcomes: Sequence[Outcome]) -> list[SomeAsked]:
    """Widen the window to the nearest mini-batch of which a plan keeps the limits, for when no plan is inside.

    Within limits at most twice the target, or as far as without. Nothing where a window was asked for, some plan is
    found, limits alone are in its way, or none is near.
    """
    first = asked[0].request
    if not first.takes_nearest or "sync" not in first.modes or any(one.best is not None for one in outcomes):
        return []

    def reach(every: Sequence[Outcome], default: int) -> int:
        pairs = ((of.order, one.nearest) for of, one in zip(asked, every, strict=True) if one.nearest is not None)
        plans = ((order, near.take(~near.configurations.is_async)) for order, near in pairs)
        reaches = (order.reaches(near.configurations, near.predictions.mini_batch_mean) for order, near in plans)
        return int(min((one for some in reaches for one in some.tolist()), default=default))

    def has_plan(distance: int) -> bool:
        changes = {"mode": ("sync",), "tolerance_sync": distance / first.target_batch}
        rest = (replace(one, request=without_efficiency(one.request).changed(**changes)) for one in asked)
        return any(first_plan(one) is not None for one in rest)

    below, off = 0, reach(outcomes, 0)
    if first.most:  # the wider the window, the more plans: a bisection
        rest = [search(replace(one, request=one.request.changed(most={})), keep=1) for one in asked]
        if any(one.best is not None for one in rest):
            return []
        step, is_known = 1, off > 0
        off = off or max(first.target_batch, reach(rest, 0))
        while step < off and not has_plan(step):
            below, step = step, 2 * step
        if step >= off and not is_known and not has_plan(off):
            return []
        off = min(step, off)
        while off - below > 1:
            middle = (below + off) // 2
            below, off = (below, middle) if has_plan(middle) else (middle, off)
    wider = [replace(one, request=one.request.changed(tolerance_sync=off / first.target_batch)) for one in asked]
    return least_of_all(list(map(over_leasts, wider))) if off else []


def fits_somewhere(one: Asked) -> bool:
    """Return whether any candidate in the window fits in memory."""
    rules = one.rules(space := one.space)
    return any(rules.fits(rows).any() for rows in space.chunks())


@dataclass(frozen=True, slots=True)
class Settings:
    """Framework and optimizer as they were given, and what is asked where some of them are left out.

    ``given``: option -> text; ``without``: options left out -> problems and requests, with the defaults in their place.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    without: Callable[[frozenset[str]], Sequence[tuple[Problem, SpaceRequest]]] = lambda _: ()

    def searchable(self, options: Iterable[str]) -> list[Searchable]:
        """Return what is searched where options are left out; none where nothing can be."""
        left_out = frozenset(options) & set(self.given)
        return searchable_among(self.without(left_out), {}) if left_out else []


LEAST_GAIN = 1.03
"""Times faster that a switch is told from."""
_OF_KERNELS = ("composes", "layout", "update", "launch", "pads_products", "state_type", "loss")
"""Fields of a framework that change kernels and memory alone: plans on one device tell whether they do."""
_OF_TABLES = (
    "input_gradient", "gradient_type", "state_type", "fuses", "composes", "layout", "update", "selective",
    "pads_vocabulary", "pads_products",
)  # fmt: skip
"""Fields that the tables of compute are made from, besides ``launch`` where it composes kernels."""
_NUMBERS = attrgetter(
    "kernel_scale", "convolution_scale", "product_scale", "host_s_per_call", "host_s_per_layer",
    "wait_inside", "wait_between", "exponent", "matched",
)  # fmt: skip
"""Of overheads, what times on one device follow from."""
_SUB_BATCHES = (1, 32)
_STAGES = len(STAGES)


class Gains(Mapping[str, float]):
    """The switches that would pay for a plan, worked out when somebody asks; see :func:`switch_gains`."""

    def __init__(self, evaluator: predict.Evaluator, plan: Configuration) -> None:
        self._of = evaluator, plan

    @cached_property
    def _gains(self) -> dict[str, float]:
        return switch_gains(*self._of)

    def __getitem__(self, switch: str) -> float:
        return self._gains[switch]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gains)

    def __len__(self) -> int:
        return len(self._gains)


def switch_gains(evaluator: predict.Evaluator, plan: Configuration) -> dict[str, float]:
    """Return the switches that are off and would make a plan faster, each with those that it needs, the best first.

    By how many times is told to a thousandth. ``evaluator``: of the framework as it is; its tables are used.

    What a switch does to kernels and messages is counted, with the coefficients of the framework as it is: those of
    another set of switches were fitted to other runs, and would tell these apart. Where steps of both were measured on
    this accelerator, each has its own.
    """
    plans, gains = Configurations.of([plan]), dict[str, float]()
    as_it_is = float(evaluator.evaluate(plans).samples_per_s[0])
    if (plan.precision, plan.mode) not in evaluator.switched:
        evaluator.switched[plan.precision, plan.mode] = list(_switched(evaluator, plan))
    for name, other in evaluator.switched[plan.precision, plan.mode]:
        with suppress(PlannerError):  # the plan is none of the framework so switched
            gain = float(other.evaluate(plans).samples_per_s[0]) / as_it_is
            if gain >= LEAST_GAIN:
                gains[name] = round(gain, 3)
    return dict(sorted(gains.items(), key=lambda one: -one[1]))


def _switched(evaluator: predict.Evaluator, plan: Configuration) -> Iterator[tuple[str, predict.Evaluator]]:
    """Yield the switches that change something for plans like one, each with an evaluator; kernels are shared."""
    problem = evaluator.problem
    framework, is_measured = problem.settings.framework, _is_measured(evaluator.sources, plan)
    alike, as_it_runs = {of_tables(problem): evaluator}, as_run(problem)
    for other in dict.fromkeys(one_more(framework)):
        with_own = run_by(problem, other)
        if not (is_measured and _is_measured(Sources(with_own), plan)):
            with_own = run_by(problem, replace(other, switched=framework.switched))
            if as_run(with_own) == as_it_runs:
                continue
        switched = predict.Evaluator(with_own, alike.get(of_tables(with_own)))
        switched.sources = evaluator.sources.of_problem(with_own)  # kernels are looked up once
        alike.setdefault(of_tables(with_own), switched)
        yield "+".join(name for name in other.switched if name not in framework.switched), switched


def different_sets(problems: Sequence[Problem], precisions: Sequence[str], modes: Sequence[str]) -> list[int]:
    """Return the positions of problems whose set of switches may have a best plan that no other set has.

    A set is left out where a smaller set before it has the same terms, and where another set, all else of the framework
    equal, has terms of which none is larger, and the kernels of every step are shorter or every step needs less memory:
    each of its plans is slower there, or needs more. Host time alone leaves none out, as it may be hidden.

    ``problems`` differ in the switches of a framework alone, smaller sets first; ``precisions``, ``modes``: of plans.
    """
    shared = _Shared({}, {}, {})
    sources = Sources(problems[0])
    terms = [_terms(sources.of_problem(one), precisions, modes, shared) for one in problems]
    useful, sets = [_useful(one) for one in problems], [{*one.settings.framework.switched} for one in problems]
    left: list[int] = []
    for at in range(len(problems)):
        smaller = (other for other in left if sets[other] < sets[at] and useful[at] == useful[other])
        if not any(np.array_equal(terms[at], terms[other], equal_nan=True) for other in smaller):
            left.append(at)
    rest = [replace(one, fuses=()) for one in useful]
    return [
        at for at in left if not any(rest[other] == rest[at] and _is_better(terms[other], terms[at]) for other in left)
    ]


def as_run(problem: Problem) -> Framework:
    """Return a problem's framework without fusions, compositions and layouts of what its network has not."""
    framework, network = problem.settings.framework, problem.network
    idle = idle_fusions(network, framework.fuses).keys()
    composes = tuple(one for one in framework.composes if one in composed_kinds(network))
    has_layout = any(layer.kind == "convolution" for layer in network.layers)
    layout = framework.layout if has_layout else GENERIC.layout
    return replace(framework, fuses=tuple(sorted({*framework.fuses} - idle)), composes=composes, layout=layout)


def of_tables(problem: Problem) -> Framework:
    """Return what the tables of compute read of a problem's framework as it runs the network."""
    framework = as_run(problem)
    launch = framework.launch if framework.composes else GENERIC.launch
    return replace(GENERIC, launch=launch, **{name: getattr(framework, name) for name in _OF_TABLES})


def _is_better(one: FloatArray, other: FloatArray) -> bool:
    """Tell whether no term of one set is larger than the other's, and its kernels, or its memory, are less."""
    priced = ~np.isnan(one[0, 0])
    if not np.array_equal(priced, ~np.isnan(other[0, 0])) or not priced.any():
        return False
    mine, its = one[..., priced], other[..., priced]
    is_less = mine < its
    return bool((mine <= its).all() and (is_less[:, :_STAGES].any(axis=1).all() or is_less[:, -1].all()))


def _useful(problem: Problem) -> Framework:
    """Return a problem's framework as it runs the network, without its switches, kernels and fused attention."""
    usual: dict[str, Any] = {one.name: one.default for one in fields(Framework) if one.name in _OF_KERNELS}
    framework = as_run(problem)
    fuses = tuple(one for one in framework.fuses if one != "attention")  # which is in the network by now
    return replace(framework, switched=(), fuses=fuses, **usual)


class _Shared(NamedTuple):
    """What sets of switches share: kernels by framework and precision (None: no price), and what follows from them.

    Times by kernels, launch and overheads; memory by network and rules.
    """

    compute: dict[tuple[Framework, str], ComputeCases | None]
    seconds: dict[tuple[Any, ...], FloatArray]
    memory: dict[tuple[int, MemoryRules], FloatArray]


def _terms(sources: Sources, precisions: Sequence[str], modes: Sequence[str], shared: _Shared) -> FloatArray:
    """Return terms of plans on one device, rounded, shape (sub-batches, 13, precisions x modes); NaN: not priced.

    Columns are those of :func:`_on_one_device`, and memory. ``shared``: with other problems of the same network.
    """
    columns, alike, sub_batches = [], of_tables(sources.problem), np.array(_SUB_BATCHES)
    for precision, mode in product(precisions, modes):
        if (alike, precision) not in shared.compute:
            shared.compute[alike, precision] = None
            with suppress(CoverageError):
                shared.compute[alike, precision] = ComputeCases(sources, precision)
        if (compute := shared.compute[alike, precision]) is None:
            columns.append(np.full((len(_SUB_BATCHES), 2 * _STAGES + 5), np.nan))
            continue
        overheads = sources.overheads(precision, mode)
        times = alike, precision, sources.problem.settings.framework.launch, *_NUMBERS(overheads)
        if times not in shared.seconds:
            shared.seconds[times] = _on_one_device(sources, compute, overheads)
        rules = id(sources.problem.network), memory_rules(sources, precision, mode)
        if rules not in shared.memory:
            ledger = Memory(sources.problem.network, rules[1])
            shared.memory[rules] = ledger.totals(Configurations.having(sub_batch=sub_batches))
        columns.append(np.column_stack([shared.seconds[times], shared.memory[rules]]))
    return rounded(np.stack(columns, axis=-1))


def _on_one_device(sources: Sources, compute: ComputeCases, overheads: Overheads) -> FloatArray:
    """Return what makes the time of _SUB_BATCHES on one device, shape (sub-batches, 12).

    GPU time by stage and host time by stage [s], in the order of STAGES; spreads that replicas wait for, and the
    exponent that composes the times and its negative: where no column is larger, no step is longer.
    """
    of, sub_batch = np.zeros(len(_SUB_BATCHES), dtype=np.int64), np.array(_SUB_BATCHES)
    compute.cases.ensure(of, sub_batch)
    units, rows, table = compute.ranks[0].units, compute.cases.rows(of, sub_batch), compute.cases.columns
    number, passes = np.bincount(units.sequence, minlength=units.distinct), [PASSES.index(name) for name in STAGES]
    seconds = scaled(table.kernel_s, overheads), host_s(sources, overheads, table.counts, table.layers)
    kernels, host = (np.asarray(one)[rows][:, passes] @ number for one in seconds)
    rest = overheads.wait_inside, overheads.wait_between, overheads.exponent, -overheads.exponent
    return np.column_stack([kernels, host, np.broadcast_to(rest, (sub_batch.size, len(rest)))])


def one_more(framework: Framework) -> Iterator[Framework]:
    """Yield the framework with each switch on that is off, may be, and changes no result."""
    for name in framework.switches:
        if name not in framework.switched and not framework.switches[name].changes_results:
            try:
                yield framework.with_switches([name])
            except PlannerError:
                continue


def run_by(problem: Problem, framework: Framework) -> Problem:
    """Return a problem as another set of switches runs it; gradients go its way where no other was asked for."""
    settings = problem.settings.trained_in(framework)
    return replace(problem, network=with_attention(problem.network, framework.fuses), settings=settings)


def _is_measured(sources: Sources, plan: Configuration) -> bool:
    """Tell whether the overheads of a problem's framework were measured on its accelerator."""
    overheads = sources.overheads(plan.precision, plan.mode)
    return overheads.matched in ("exact", "framework") and not overheads.pooled
