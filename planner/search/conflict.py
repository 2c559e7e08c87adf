"""Which of the constraints of a request contradict each other: a smallest set with which no plan fits.

Smallest: without any one of the set some plan fits. Found by leaving out one constraint after another, and leaving out
for good those without which there is still no plan (deletion filter: at most one look for a plan a constraint). That
plans take all GPUs of a node unless something else is said is a constraint like any other, named as a default. An
axis that is left out takes the values that are tried if none are given, beside those given, as framework and
optimizer do; without target and tolerance a plan may have any mini-batch.

Of any mini-batch a few stand for all. The smallest sub-batch needs the least memory, and no degree depends on it. Where
time or cost is limited, sub-batches and accumulation of every size are tried, by powers of four, and the largest that
fit: the more samples an update has, the less an epoch takes, but for the last update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from planner.domain.axes import AXES, Axis
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.errors import CoverageError
from planner.search.evaluator import Evaluator
from planner.search.exhaustive import lawful_plans
from planner.search.explain import typed_values
from planner.search.least import OBJECTIVE_OF_LIMIT, may_keep_limits
from planner.search.ranking import Order
from planner.search.reasons import limit_text
from planner.search.searchable import Settings
from planner.search.space import Limits

__all__ = [
    "WINDOW", "Asked", "Constraint", "constraints_of", "has_plan", "smallest_conflict", "smallest_of",
]  # fmt: skip

_ACCUMULATION = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
"""Steps of any mini-batch: with few, activations of the fewest micro-batches are kept; schedules ask for multiples."""
_SIZES = tuple(4**power for power in range(7))
"""Sub-batches and steps of any mini-batch where time or cost is limited."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to one framework: what it allows, and what prices and orders its plans."""

    request: SpaceRequest
    limits: Limits
    evaluator: Evaluator
    order: Order


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint as it may be typed, and what gives a request without it.

    ``option``: that loosens it alone, in what to loosen; empty: none does.
    """

    text: str
    without: Callable[[SpaceRequest], SpaceRequest]
    option: str = ""


WINDOW = "--tolerance"
"""Option of the constraint of target and tolerance."""


def constraints_of(request: SpaceRequest, limits: Limits) -> tuple[Constraint, ...]:
    """Return the constraints of a request, in the order in which to leave them out."""
    defaults, axes = _of_defaults(request, limits), _of_axes(request, limits)
    return (*defaults, *_of_limits(request), *_of_parallelism(request), _window(request), *axes)


def smallest_conflict(
    asked: Sequence[Asked], ways: Iterable[Loosening] = (), settings: Settings | None = None
) -> tuple[str, ...]:
    """Return the texts of constraints that contradict each other, each of them needed for that.

    None where nothing fits without any constraint either, or where not all of it can be priced.

    Parameters
    ----------
    asked : that nothing satisfies; they differ in the framework and what it allows
    ways : each found with all other constraints in place: what it loosens is needed
    settings : that were given; none: they are no constraints
    """
    settings = settings or Settings()
    others = cache(settings.searchable)

    def fits(left_out: Sequence[Constraint]) -> bool:
        is_any = any(one.option == WINDOW for one in left_out)
        more = others(frozenset(one.option for one in left_out) & frozenset(settings.given))
        every = (*asked, *(Asked(one.request, one.limits, one.evaluator, one.order) for one in more))
        return any(has_plan(replace(one, request=_without(left_out, one.request)), is_any) for one in every)

    given = (Constraint(f"{option} {text}", lambda one: one, option) for option, text in settings.given.items())
    return smallest_of((*given, *constraints_of(asked[0].request, asked[0].limits)), ways, fits)


def smallest_of(
    every: Sequence[Constraint], ways: Iterable[Loosening], fits: Callable[[Sequence[Constraint]], bool]
) -> tuple[str, ...]:
    """Return the texts of the same of some constraints; ``fits``: whether some plan does where some are left out."""
    helpful = {way.option for way in ways}
    left_out: tuple[Constraint, ...] = ()
    try:
        for one in every:
            more = (*left_out, one)
            if one.option not in helpful and not fits(more):
                left_out = more
    except CoverageError:  # of what is left out some other value cannot be priced
        return ()
    kept = [one for one in reversed(every) if one not in left_out]
    return tuple(one.text for one in sorted(kept, key=lambda one: one.option == WINDOW))


def _without(left_out: Sequence[Constraint], request: SpaceRequest) -> SpaceRequest:
    for one in left_out:
        request = one.without(request)
    return request


def has_plan(asked: Asked, is_any: bool) -> bool:  # noqa: FBT001 - two ways to ask
    """Tell whether some plan satisfies a request; ``is_any``: of any mini-batch."""
    request = _of_any_mini_batch(asked.request, asked.limits) if is_any else asked.request
    of = (request, asked.limits, asked.evaluator, asked.order)
    return may_keep_limits(*of) and any(plans.size for plans in lawful_plans(*of))


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


def _of_defaults(request: SpaceRequest, limits: Limits) -> Iterator[Constraint]:
    """Yield what a request keeps to of which nothing is said: all GPUs of each node."""
    every = limits.gpus_per_node
    if request["gpus_per_node"] is None and every > 1:
        fewer = tuple(range(1, every + 1))
        text = f"all {every} GPUs of a node (the default; --gpus-per-node 1:{every} allows fewer)"
        yield Constraint(text, lambda one: one.changed(gpus_per_node=fewer), "--gpus-per-node")


def _of_limits(request: SpaceRequest) -> Iterator[Constraint]:
    for name, most in request.most.items():

        def without(one: SpaceRequest, name: str = name) -> SpaceRequest:
            return replace(one, most={other: value for other, value in one.most.items() if other != name})

        yield Constraint(
            f"--limit {name}={limit_text(name, most)}", without, "--limit" if len(request.most) == 1 else ""
        )


def _of_parallelism(request: SpaceRequest) -> Iterator[Constraint]:
    if request.parallelism:
        yield Constraint(f"--parallelism {','.join(request.parallelism)}", lambda one: replace(one, parallelism=()))


def _window(request: SpaceRequest) -> Constraint:
    widths = dict.fromkeys(f"{100 * request.tolerance(mode):.6g}%" for mode in request.modes)
    text = f"--target-batch {request.target_batch} --tolerance {' or '.join(widths)}"
    return Constraint(text, lambda one: one, WINDOW)


def _of_axes(request: SpaceRequest, limits: Limits) -> Iterator[Constraint]:
    for axis in reversed(AXES):
        values = request[axis.name]
        if values is not None:
            beside = _also_tried(axis, limits)

            def without(
                one: SpaceRequest, name: str = axis.name, wide: tuple[Any, ...] | None = beside and (*values, *beside)
            ) -> SpaceRequest:
                return one.changed(**{name: wide})

            option = f"--{axis.option.replace('_', '-')}"
            yield Constraint(f"{option} {typed_values(values)}", without, option)


def _also_tried(axis: Axis, limits: Limits) -> tuple[Any, ...] | None:
    """Return the values of an axis beside those given that hold without it; None: every lawful one."""
    if axis.of_cluster:
        return tuple(range(1, getattr(limits, axis.name) + 1))
    is_open = axis.default_in_suggest and axis.default_in_suggest != str(axis.default)
    return None if is_open else (axis.default,)
