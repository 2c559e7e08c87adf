"""All candidates of a request: counted by arithmetic, and made as arrays in chunks that bound the memory.

The space is a list of blocks, one or two a precision and mode: those with a whole network on every device, and those
that split it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, IntArray, check_count, check_not_negative, distinct_values, frozen_map
from planner.domain.axes import AXES, MODES, Axis
from planner.domain.configuration import Configurations
from planner.domain.precision import PRECISIONS
from planner.domain.request import SpaceRequest
from planner.errors import ParameterError, Refusal, UnknownNameError
from planner.search.bases import DATA, Bases, SplitBases, SplitLimits
from planner.search.block import Block, Kinds, Plans
from planner.search.ranking import REASONS
from planner.workload.lawful import LAYER_AXES
from planner.workload.program import block_starts

__all__ = [
    "Limits", "Space", "accepted_mini_batches", "blocks_of", "has_whole_plans", "on_nodes", "space_of",
    "sub_batches_to_try",
]  # fmt: skip

_RELATIVE_SLACK = 1e-12  # relative; a product such as 100 x 1.1 must not lose its own edge to rounding


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine allows.

    Attributes
    ----------
    nodes, gpus_per_node : that it has
    largest_sub_batch : mapping of (precision, mode) to int, the largest that fits the memory of one device; 0: not even
        one sample
    refused_precisions : mapping of precision to Refusal, those without a usable sub-model, with the reason
    refused_modes : mapping of mode to Refusal, those that cannot be priced, with the reason
    sub_batch_factor : of the scenario; multiplies the largest sub-batch of fp32 plans
    memory_bytes : of one device, where it is known
    split : of plans that split the network; None: it cannot be split
    """

    cluster: str
    nodes: int
    gpus_per_node: int
    largest_sub_batch: Mapping[tuple[str, str], int]
    refused_precisions: Mapping[str, Refusal]
    sub_batch_factor: int = 1
    refused_modes: Mapping[str, Refusal] = field(default_factory=dict)
    memory_bytes: float | None = None
    split: SplitLimits | None = None

    def __post_init__(self) -> None:
        for name in ("largest_sub_batch", "refused_precisions", "refused_modes"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))

    @property
    def most(self) -> Mapping[str, int]:
        """What the cluster has of an axis."""
        return {"nodes": self.nodes, "gpus_per_node": self.gpus_per_node}

    def factor(self, precision: str) -> int:
        """Return the scenario's factor on the largest sub-batch of a precision."""
        return self.sub_batch_factor if precision == "fp32" else 1

    def fits(self, precision: str, mode: str) -> int:
        """Return the largest sub-batch of a precision and mode, the scenario included."""
        return self.largest_sub_batch[precision, mode] * self.factor(precision)

    def why_not(self, precision: str, mode: str) -> Refusal | None:
        """Return why a precision and mode cannot be priced, with the one that is in the way; None: it can."""
        if reason := self.refused_modes.get(mode):
            return Refusal("mode", f"mode {mode}: {reason}", mode)
        reason = self.refused_precisions.get(precision)
        return Refusal("precision", f"precision {precision}: {reason}", precision) if reason else None


@dataclass(frozen=True, slots=True)
class Space:
    """The blocks of a request, and the precisions that can be priced, as in PRECISIONS."""

    blocks: tuple[Block, ...]
    precisions: tuple[str, ...]

    @property
    def candidates(self) -> int:
        """How many there are, all that are refused included."""
        return sum(block.plans.count() for block in self.blocks)

    @property
    def inside(self) -> int:
        """How many are made: of precisions and modes that can be priced, and in the window."""
        return sum(plans.inside() for plans, _ in self.open_blocks())

    def refused(self) -> dict[Refusal, int]:
        """Return the candidates that are not made, counted by reason."""
        total: dict[Refusal, int] = {}
        for block in self.blocks:
            refused = {REASONS[at]: number for at, number in block.plans.outside().items()}
            for why, count in ({block.refused: block.plans.count()} if block.refused else refused).items():
                if why is not None and count:
                    total[why] = total.get(why, 0) + count
        return total

    def open_blocks(self) -> Iterator[tuple[Plans, Kinds]]:
        """Yield the plans of the blocks that can be priced, and the precision of each."""
        for block in self.blocks:
            if not block.refused:
                yield block.plans, (self.precisions.index(block.precision), self.precisions)

    def chunks(self) -> Iterator[Configurations]:
        """Yield all candidates in the window of blocks that are not refused, some at a time."""
        for plans, kinds in self.open_blocks():
            yield from plans.candidates(kinds)

    def too_large(self) -> Iterator[Configurations]:
        """Yield asynchronous candidates whose sub-batch alone is above the window."""
        for plans, kinds in self.open_blocks():
            yield from plans.too_large(kinds)

    def near(self, target: int, largest: IntArray) -> Iterator[tuple[int, Configurations]]:
        """Yield the synchronous candidates outside the window that are nearest to a target on either side.

        Each with the position in REASONS of why they are refused. ``target``: mini-batch [samples]; ``largest``:
        ndarray of int, shape (precisions, modes), sub-batch that fits in memory.
        """
        for plans, kinds in self.open_blocks():
            yield from plans.near(kinds, target, int(largest[kinds[0], MODES.index(plans.mode)]))


def on_nodes(request: SpaceRequest, most: int) -> SpaceRequest | None:
    """Return a request for plans on so many nodes at most; None: it asks for more."""
    if request["nodes"] is None:
        return request
    nodes = tuple(one for one in request["nodes"] if one <= most)
    return request.changed(nodes=nodes) if nodes else None


def accepted_mini_batches(request: SpaceRequest, mode: str) -> tuple[float, float]:
    """Return the window of a mode [samples], wider by a rounding error."""
    low, high = request.window(mode)
    return low * (1 - math.copysign(_RELATIVE_SLACK, low)), high * (1 + _RELATIVE_SLACK)


def space_of(request: SpaceRequest, limits: Limits) -> Space:
    """Return the space of a request on a machine; ParameterError, UnknownNameError: a value breaks its rule."""
    return Space(*blocks_of(request, limits))


def blocks_of(request: SpaceRequest, limits: Limits) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Return the blocks of a request, and the precisions that can be priced; raise as for a wrong value."""
    _check(request, limits)
    split, whole = _split_plans(request, limits), has_whole_plans(request)
    precisions = [name for name in PRECISIONS if name in (request["precision"] or PRECISIONS)]
    blocks = []
    for mode in (one for one in MODES if one in request.modes):
        bases = Bases(request, limits.most, _window(request, mode), mode)
        for name in precisions:
            of = [Plans(bases, sub_batches_to_try(request, limits, (name, mode)))] if whole else []
            of += [split] if split is not None and mode == "sync" else []
            blocks += [Block(plans, name, limits.why_not(name, mode)) for plans in of]
    return tuple(blocks), tuple(name for name in precisions if name not in limits.refused_precisions)


def _check(request: SpaceRequest, limits: Limits) -> None:
    check_count("the target batch", request.target_batch)
    check_count("top", request.top)
    for mode in request.modes:
        check_not_negative(f"the {mode} tolerance", request.tolerance(mode), "relative half-width")
    for axis in AXES:
        if (values := request[axis.name]) is not None:
            _check_values(axis, values, limits)


def _check_values(axis: Axis, values: tuple[Any, ...], limits: Limits) -> None:
    if not values:
        raise ParameterError(axis.title, "at least one value", ())
    for word in values if axis.words else ():
        if word not in axis.words:
            raise UnknownNameError(axis.title, word, axis.words)
    is_whole = limits.split is not None and not block_starts(limits.split.network) and axis.name not in LAYER_AXES
    if axis.splits and is_whole and set(values) != {axis.default}:
        remedy = "the network is not made of attention blocks"
        raise ParameterError(
            f"--{axis.option.replace('_', '-')}", str(axis.default), ",".join(map(str, values)), remedy
        )
    most = limits.most[axis.name] if axis.of_cluster else axis.most or LARGEST_COUNT
    of = f"the {most} of cluster {limits.cluster}" if axis.of_cluster else most
    for value in () if axis.words else (min(values), max(values)):
        if not axis.least <= value <= most:
            raise ParameterError(axis.title, f"from {axis.least} to {of}", value)


def has_whole_plans(request: SpaceRequest) -> bool:
    """Tell whether plans with a whole network on every device are candidates."""
    split = [(request[axis.name], axis.default) for axis in AXES if axis.splits]
    is_default = all(values is None or default in values for values, default in split)
    return DATA in (request.parallelism or (DATA,)) and is_default


def _window(request: SpaceRequest, mode: str) -> tuple[int, int]:
    low, high = accepted_mini_batches(request, mode)
    return math.ceil(low), math.floor(high)


def _split_plans(request: SpaceRequest, limits: Limits) -> Plans | None:
    """Return the candidates that split the network, of any precision; None where there are none."""
    of, asked = limits.split, request["sub_batch"]
    if of is None or "sync" not in request.modes:
        return None
    bases = SplitBases(request, limits.most, _window(request, "sync"), network=of.network, framework=of.framework)
    return Plans(bases, None if asked is None else distinct_values(np.array(asked, dtype=np.int64)))


def sub_batches_to_try(request: SpaceRequest, limits: Limits, kind: tuple[str, str]) -> IntArray:
    """Return the sub-batches to try: those asked for, else 1 to the largest that fits (and that the window holds).

    ``kind``: precision and mode. The window bounds synchronous plans.
    A scenario that makes room for more lengthens a range that was asked for, and leaves a single value as it is.
    Where not even one sample fits, one stands for all, to be refused for its memory; in int8 multiples of 4 alone.
    """
    factor, least = limits.factor(kind[0]), PRECISIONS[kind[0]].batch_multiple
    if request["sub_batch"] is None:
        largest, most = limits.fits(*kind), _window(request, kind[1])[1]
        return np.arange(least, max(least, min(largest, most) if kind[1] == "sync" else largest) + 1, least)
    request_values = distinct_values(np.array(request["sub_batch"], dtype=np.int64))
    if (is_lawful := request_values % least == 0).any():
        request_values = request_values[is_lawful]
    if factor == 1 or request_values.size == 1:
        return request_values
    step = int(request_values[-1] - request_values[-2])
    return distinct_values(
        np.concatenate([request_values, np.arange(request_values[-1], factor * request_values[-1] + 1, step)])
    )
