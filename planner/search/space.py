"""All lawful candidates of a request as arrays, counted, in chunks that bound the memory.

d: data-parallel degree; n: sub-batch; a: accumulation steps; [lo, hi]: accepted mini-batches.

The space is a list of blocks, one a precision and mode; a block is a product, over all other axes, of *bases*, each
with its accumulation steps. Unless they are asked for, those of a synchronous base are solved from d·n·a in [lo, hi]:
a = ⌈lo / dn⌉ ... ⌊hi / dn⌋. A base without such a value keeps its last one below and its first one above the
window: they are refused, and tell which plans come nearest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, IntArray, check_count, check_not_negative, frozen_map
from planner.domain.axes import AXES, MODES, Axis
from planner.domain.configuration import DEGREES, Configurations
from planner.domain.precision import PRECISIONS
from planner.domain.request import SpaceRequest
from planner.errors import ParameterError, Refusal, UnknownNameError, UsageError
from planner.search.split_space import DATA, SplitBlock, SplitLimits, passes_within
from planner.workload.lawful import LAYER_AXES

__all__ = [
    "CHUNK",
    "LARGEST_SPACE",
    "TOO_LARGE",
    "Block",
    "Limits",
    "Space",
    "accepted_mini_batches",
    "blocks_of",
    "has_whole_plans",
    "space_of",
]

CHUNK = 2**17
"""Candidates handled at once; some 15 MB with their predictions."""

LARGEST_SPACE = 10**8
"""Candidates that are enumerated at most; more would take minutes, and are refused instead."""

TOO_LARGE = "space_too_large"
"""Code of their refusal."""
_SOLVED_AXIS = "accumulation_steps"
_PASSES = ("sub_batch", _SOLVED_AXIS)
_RELATIVE_SLACK = 1e-12  # relative; a product such as 100 x 1.1 must not lose its own edge to rounding


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine allows.

    Attributes
    ----------
    cluster : str
    nodes, gpus_per_node : int
        That it has.
    largest_sub_batch : mapping of (precision, mode) to int
        The largest that fits the memory of one device; 0: not even one sample.
    refused_precisions : mapping of precision to Refusal
        Those without a usable sub-model, with the reason.
    refused_modes : mapping of mode to Refusal
        Those that cannot be priced, with the reason.
    sub_batch_factor : int
        Of the scenario; multiplies the largest sub-batch of fp32 plans.
    memory_bytes : float or None
        Of one device, where it is known.
    split : SplitLimits or None
        Of plans that split the network; None: it cannot be split.
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
class Block:
    """Candidates of one precision and mode: a product of values of the other axes, each an ascending integer ndarray.

    Accumulation that is not among them is solved for ``window`` [whole samples]. ``refused``: why none of them can be
    priced.
    """

    values: Mapping[str, IntArray]
    window: tuple[int, int]
    precision: str
    mode: str
    refused: Refusal | None = None

    @property
    def bases(self) -> int:
        """Number of candidates but for their accumulation."""
        return math.prod(values.size for name, values in self.values.items() if name != _SOLVED_AXIS)

    def count(self) -> int:
        """Return the number of candidates, without making them."""
        if _SOLVED_AXIS in self.values:
            return self.bases * self.values[_SOLVED_AXIS].size
        return sum(int(steps.sum()) for _, _, steps in self._bases_with_steps(0, (self.precision,)))

    def candidates(self, precision: int, precisions: tuple[str, ...]) -> Iterator[Configurations]:
        """Yield the candidates, at most CHUNK at a time: products, or rows where their accumulation is solved.

        Rows, as a window keeps the few of a product that lie between two hyperbolas.

        ``precision``: position in ``precisions``, the names of the space.
        """
        if _SOLVED_AXIS in self.values:
            yield from self._product(precision, precisions).pieces(CHUNK)
            return
        for bases, first, steps in self._bases_with_steps(precision, precisions):
            rows, ends = bases.rows, np.cumsum(steps)
            for start in range(0, int(ends[-1]), CHUNK):
                flat = np.arange(start, min(start + CHUNK, int(ends[-1])))
                owner = np.searchsorted(ends, flat, side="right")
                step = flat - (ends - steps)[owner]
                yield replace(rows.take(owner), accumulation_steps=first[owner] + step)

    def base_columns(self) -> dict[str, IntArray]:
        """Return the axes of a base but for its sub-batch, an ndarray of shape (b,) each."""
        names = [name for name in self.values if name not in _PASSES]
        grid = np.meshgrid(*(self.values[name] for name in names), indexing="ij")
        return {name: column.ravel() for name, column in zip(names, grid, strict=True)}

    def passes_of(self, base: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        """Return the sub-batches, and the accumulation of each, with which a base is a candidate to price."""
        tried, (low, high) = self.values["sub_batch"], self.window
        if self.mode == "async":  # the mini-batch is random, and accumulation 1
            tried = tried[(tried <= high) & (1 in self.values[_SOLVED_AXIS])]
            return tried, np.ones(tried.size, dtype=np.int64)
        copies = base["nodes"] * base["gpus_per_node"] // math.prod(base[name] for name in DEGREES)
        return passes_within((-(-max(low, 1) // copies), high // copies), tried, self.values.get(_SOLVED_AXIS))

    def _product(self, precision: int, precisions: tuple[str, ...]) -> Configurations:
        kinds = {"precision": np.array([precision]), "mode": np.array([MODES.index(self.mode)])}
        return Configurations.product({**self.values, **kinds}, precisions)

    def _bases_with_steps(
        self, precision: int, precisions: tuple[str, ...]
    ) -> Iterator[tuple[Configurations, IntArray, IntArray]]:
        """Yield products of b bases, at most CHUNK; the first accumulation of each and how many it has, shape (b,)."""
        for bases in self._product(precision, precisions).pieces(CHUNK):
            samples = np.maximum(bases.data_parallel * bases.sub_batch, 1)
            yield bases, *_accumulations(np.broadcast_to(samples, bases.shape).ravel(), self.window)


@dataclass(frozen=True, slots=True)
class Space:
    """The blocks of a request, the candidates of each, and the precisions that can be priced, as in PRECISIONS."""

    blocks: tuple[Block | SplitBlock, ...]
    counts: tuple[int, ...]
    precisions: tuple[str, ...]

    @property
    def candidates(self) -> int:
        """How many there are, those of refused precisions included."""
        return sum(self.counts)

    def refused(self) -> dict[Refusal, int]:
        """Return the candidates of refused blocks, counted by reason."""
        total: dict[Refusal, int] = {}
        for block, count in zip(self.blocks, self.counts, strict=True):
            if block.refused is not None:
                total[block.refused] = total.get(block.refused, 0) + count
        return total

    def chunks(self) -> Iterator[Configurations]:
        """Yield all candidates that are not refused with their block, at most CHUNK at a time."""
        for block in self.blocks:
            if not block.refused:
                yield from block.candidates(self.precisions.index(block.precision), self.precisions)


def accepted_mini_batches(request: SpaceRequest, mode: str) -> tuple[float, float]:
    """Return the window of a mode [samples], wider by a rounding error."""
    low, high = request.window(mode)
    return low * (1 - math.copysign(_RELATIVE_SLACK, low)), high * (1 + _RELATIVE_SLACK)


def space_of(request: SpaceRequest, limits: Limits) -> Space:
    """Return the space of a request on a machine.

    Raises
    ------
    ParameterError
        A value breaks its rule, or is more than the cluster has.
    UnknownNameError
        An unknown precision.
    UsageError
        More than LARGEST_SPACE candidates.
    """
    blocks, precisions = blocks_of(request, limits)
    _check_size(sum(block.bases for block in blocks))  # each has a candidate: counting too many would take long
    counts = tuple(block.count() for block in blocks)
    _check_size(sum(counts))
    return Space(blocks, counts, precisions)


def blocks_of(request: SpaceRequest, limits: Limits) -> tuple[tuple[Block | SplitBlock, ...], tuple[str, ...]]:
    """Return the blocks of a request, uncounted, and the precisions that can be priced; raise as for a wrong value."""
    _check(request, limits)
    precisions = [name for name in PRECISIONS if name in (request["precision"] or PRECISIONS)]
    modes = [mode for mode in MODES if mode in request.modes]
    blocks = tuple(
        block for mode in modes for precision in precisions for block in _blocks(request, limits, precision, mode)
    )
    return blocks, tuple(name for name in precisions if name not in limits.refused_precisions)


def _check_size(least: int) -> None:
    if least > LARGEST_SPACE:
        remedy = "; give fewer values of nodes, sub-batch or accumulation, or a smaller tolerance"
        rule = f"the space must hold at most {LARGEST_SPACE:,} candidates"
        raise UsageError(Refusal(TOO_LARGE, rule, "the space", f"{least:,} or more", remedy))


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
    is_whole = limits.split is None or (limits.split.network.transformer is None and axis.name not in LAYER_AXES)
    if axis.is_split and is_whole and set(values) != {axis.default}:
        remedy = "the network is no transformer"
        raise ParameterError(
            f"--{axis.option.replace('_', '-')}", str(axis.default), ",".join(map(str, values)), remedy
        )
    most = getattr(limits, axis.name) if axis.of_cluster else axis.most or LARGEST_COUNT
    of = f"the {most} of cluster {limits.cluster}" if axis.of_cluster else most
    for value in () if axis.words else (min(values), max(values)):
        if not axis.least <= value <= most:
            raise ParameterError(axis.title, f"from {axis.least} to {of}", value)


def has_whole_plans(request: SpaceRequest) -> bool:
    """Tell whether plans with a whole network on every device are candidates."""
    split = [(request[axis.name], axis.default) for axis in AXES if axis.is_split]
    is_default = all(values is None or default in values for values, default in split)
    return DATA in (request.parallelism or (DATA,)) and is_default


def _blocks(request: SpaceRequest, limits: Limits, precision: str, mode: str) -> Iterator[Block | SplitBlock]:
    """Yield the candidates with a whole network on every device, and those that split it."""
    if has_whole_plans(request):
        yield _block(request, limits, precision, mode)
    if limits.split is not None and mode == "sync":
        low, high = accepted_mini_batches(request, mode)
        most = {"nodes": limits.nodes, "gpus_per_node": limits.gpus_per_node}
        window = (math.ceil(low), math.floor(high))
        of = limits.split
        yield SplitBlock(of.network, of.framework, request, most, window, precision, limits.why_not(precision, mode))


def _block(request: SpaceRequest, limits: Limits, precision: str, mode: str) -> Block:
    low, high = accepted_mini_batches(request, mode)
    window = (math.ceil(low), math.floor(high))
    solved_axis = _SOLVED_AXIS if mode == "sync" and request[_SOLVED_AXIS] is None else ""
    of_block = {"sub_batch": _sub_batches(request, limits, (precision, mode), window[1])}
    whole = request.changed(**{axis.name: None for axis in AXES if axis.is_split})
    values = {
        axis.name: of_block[axis.name] if axis.name in of_block else _values(axis, whole, limits)
        for axis in AXES
        if axis.name not in ("precision", "mode", solved_axis)
    }
    return Block(values, window, precision, mode, limits.why_not(precision, mode))


def _values(axis: Axis, request: SpaceRequest, limits: Limits) -> IntArray:
    """Return the values of an axis to try, as numbers or codes."""
    request_values = request[axis.name]
    if request_values is None and axis.of_cluster:
        most: int = getattr(limits, axis.name)
        return np.arange(1 if axis.of_cluster == "any" else most, most + 1)
    values = (axis.default,) if request_values is None else request_values
    return _ascending(tuple(axis.words.index(word) for word in values) if axis.words else values)


def _sub_batches(request: SpaceRequest, limits: Limits, kind: tuple[str, str], most: int) -> IntArray:
    """Return the sub-batches to try: those asked for, else 1 to the largest that fits (and that the window holds).

    ``kind``: precision and mode; ``most``: what the window holds, which bounds synchronous plans.
    A scenario that makes room for more lengthens a range that was asked for, and leaves a single value as it is.
    Where not even one sample fits, one stands for all, to be refused for its memory.
    """
    factor = limits.factor(kind[0])
    if request["sub_batch"] is None:
        largest = limits.fits(*kind)
        return np.arange(1, max(1, min(largest, most) if kind[1] == "sync" else largest) + 1)
    request_values = _ascending(request["sub_batch"])
    if factor == 1 or request_values.size == 1:
        return request_values
    step = int(request_values[-1] - request_values[-2])
    return np.union1d(request_values, np.arange(request_values[-1], factor * request_values[-1] + 1, step))


def _ascending(values: tuple[Any, ...]) -> IntArray:
    return np.unique(np.array(values, dtype=np.int64))


def _accumulations(samples: IntArray, window: tuple[int, int]) -> tuple[IntArray, IntArray]:
    """Return the first of the consecutive accumulation steps of each base, and how many, from d·n, shape (b,)."""
    low, high = window
    first = np.maximum(-(-low // samples), 1)
    last = high // samples
    misses = last < first
    return np.where(misses, np.maximum(first - 1, 1), first), np.where(misses, np.minimum(first, 2), last - first + 1)
