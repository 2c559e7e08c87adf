"""Which constraints contradict each other where nothing fits on node groups, each by itself or several together.

As of one group (:mod:`planner.search.conflict`), and plans across groups count too. Of any mini-batch a few stand for
all there: on every choice of nodes those in which each device takes the fewest, and the most, samples at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from planner.domain.precision import PRECISIONS
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.errors import UsageError
from planner.search.across_groups import Searchable, search_across
from planner.search.conflict import WINDOW, Asked, Constraint, constraints_of, has_plan, smallest_of
from planner.search.ranking import Order
from planner.search.space import on_nodes

__all__ = ["conflict_of_groups"]

_MOST_CHOICES = 256
"""Choices of nodes up to which plans of any mini-batch are looked for; of more no conflict is told."""


def conflict_of_groups(
    groups: Mapping[str, Searchable], request: SpaceRequest, order: Order, ways: Iterable[Loosening]
) -> tuple[str, ...]:
    """Return the texts of constraints that contradict each other, each of them needed; none where that is not known.

    ``ways``: each found with all other constraints in place.
    """
    if math.prod(one.limits.nodes for one in groups.values()) > _MOST_CHOICES:
        return ()
    nodes = sum(one.limits.nodes for one in groups.values())
    whole = replace(next(iter(groups.values())).limits, nodes=nodes, gpus_per_node=1)  # plans take all GPUs of a node

    def fits(left_out: Sequence[Constraint]) -> bool:
        wide = request
        for one in left_out:
            wide = one.without(wide)
        is_any = any(one.option == WINDOW for one in left_out)
        alone = ((of, on_nodes(wide, of.limits.nodes)) for of in groups.values())
        if any(own and has_plan(Asked(own, of.limits, of.evaluator, order), is_any) for of, own in alone):
            return True
        return any(search_across(groups, one, order).plans for one in (_of_any(groups, wide) if is_any else [wide]))

    try:
        return smallest_of(constraints_of(request, whole), ways, fits)
    except UsageError:  # more splits of mini-batches than are looked at
        return ()


def _of_any(groups: Mapping[str, Searchable], request: SpaceRequest) -> Iterator[SpaceRequest]:
    """Yield requests for mini-batches that stand for all; see the module."""
    steps = min(request["accumulation_steps"] or (1,))
    targets = set()
    gpus_per_node = [one.limits.gpus_per_node for one in groups.values()]
    choices = list(product(*(range(one.limits.nodes + 1) for one in groups.values())))
    for precision, end in product(request["precision"] or PRECISIONS, (min, max)):
        sizes = [_sizes(one, request, precision) for one in groups.values()]
        for choice in choices:
            if all(some or not nodes for nodes, some in zip(choice, sizes, strict=True)):
                of = zip(choice, gpus_per_node, sizes, strict=True)
                targets.add(sum(nodes * gpus * end(some) * steps for nodes, gpus, some in of if nodes))
    for target in sorted(targets - {0}):
        yield request.changed(target_batch=target, tolerance_sync=0.0)


def _sizes(one: Searchable, request: SpaceRequest, precision: str) -> list[int]:
    """Return the sub-batches of a request that fit a device of a group; those of a range by their ends."""
    if one.limits.why_not(precision, "sync"):
        return []
    most = one.limits.fits(precision, "sync")
    return [n for n in request["sub_batch"] or (1, most) if 0 < n <= most]
