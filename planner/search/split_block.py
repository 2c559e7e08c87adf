"""Candidates that split a network: every lawful set of degrees that a mini-batch in the window can be reached with.

A *place* is a number of GPUs with its tensor, context and pipeline degrees; D its data-parallel degree. To it come
*choices*, of what is kept on its devices and how they are scheduled: a lawful pair is a base. To a base come the
*passes* of its place: sub-batches n and accumulation steps m with D·n·m in the window. Bases that differ in nothing a
device does are one (:func:`planner.workload.lawful.is_told_apart`), and those that no mini-batch of the window divides
are no candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.domain.arrays import BoolArray, IntArray, distinct_numbers, distinct_rows, distinct_values
from planner.domain.axes import AXES, MODES, SCHEDULES, Axis
from planner.domain.configuration import DEGREES, SHARD_AXES, SPLIT_AXES, Configurations, splits
from planner.domain.framework import Framework
from planner.domain.joined import JoinedConfigurations, Pairs, Passes
from planner.domain.network import Network
from planner.domain.request import SpaceRequest
from planner.errors import Refusal
from planner.search.split_space import DATA, HYBRID, MODEL, PIPELINE, kinds_to_try, passes_within, values_to_try
from planner.workload.blocks import block_starts
from planner.workload.lawful import LAYER_AXES, accumulates, is_lawful, is_told_apart, most_stages
from planner.workload.shards import expert_number
from planner.workload.what_fits import tensor_degrees

__all__ = ["SplitBlock", "SplitCandidates", "each"]

CHUNK = 2**16
"""Candidates made at once."""
CHECKED = 2**18
"""Bases checked at once whether they are lawful."""
_PLACE = ("nodes", "gpus_per_node", *DEGREES)
_PRICED_TOGETHER = (
    "sharding",
    "schedule",
    "expert_parallel",
    "sequence_parallel",
    "tensor_parallel",
    "pipeline_parallel",
)
_SCHEDULED = ("schedule", "pipeline_parallel", "virtual_stages", "accumulation_steps")
_CHOICE = tuple(axis.name for axis in SPLIT_AXES if not axis.is_degree)
_BY_NAME = {axis.name: axis for axis in AXES}


@dataclass(frozen=True)
class SplitCandidates:
    """Split candidates, synchronous, whatever their precision.

    Attributes
    ----------
    network : Network
    framework : Framework
    request : SpaceRequest
    most : mapping of axis to int
        Nodes and GPUs of each that the cluster has.
    window : tuple of int
        Accepted mini-batches [whole samples].
    """

    network: Network
    framework: Framework
    request: SpaceRequest
    most: Mapping[str, int]
    window: tuple[int, int]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of parallelism to try."""
        return kinds_to_try(self.request, self.network, self.framework)

    @cached_property
    def count(self) -> int:
        """The number of candidates."""
        return int(self.passes_of_bases.sum())

    @cached_property
    def places(self) -> dict[str, IntArray]:
        """Columns of all places, with ``data_parallel``, shape (g,)."""
        parts = list(self._places())
        return {name: np.concatenate([one[name] for one in parts]) for name in (*_PLACE, "data_parallel")}

    @cached_property
    def choices(self) -> dict[str, IntArray]:
        """Columns of all choices, lawful somewhere or not."""
        return _product({name: self._values(_BY_NAME[name]) for name in _CHOICE})

    @cached_property
    def bases(self) -> tuple[IntArray, IntArray]:
        """The place and the choice of every base, by place."""
        places, choices = self.places["nodes"].size, self.choices["sharding"].size
        step = max(1, CHECKED // max(1, choices))
        found = [np.zeros((2, 0), dtype=np.int64)]
        for start in range(0, places, step):
            place, choice = np.nonzero(self._is_base(slice(start, start + step)))
            found.append(np.stack((start + place, choice)))
        place, choice = np.concatenate(found, axis=1)
        return place, choice

    @cached_property
    def passes(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Sub-batches and accumulation steps of all places, by degree; of each place where they start, and how many."""
        copies, which = np.unique(self.places["data_parallel"], return_inverse=True)
        parts = [self._passes(degree) for degree in copies.tolist()]
        sizes = np.array([n.size for n, _ in parts], dtype=np.int64)
        n, m = (np.concatenate([np.zeros(0, np.int64), *(one[at] for one in parts)]) for at in range(2))
        return n, m, (np.cumsum(sizes) - sizes)[which], sizes[which]

    @cached_property
    def passes_of_bases(self) -> IntArray:
        """How many passes each base has that its schedule runs, shape (b,)."""
        place, choice = self.bases
        first, which = self._scheduled_alike(place, choice)
        number = np.zeros(first.size, dtype=np.int64)
        for owner, _ in self._run(place[first], choice[first]):
            number += np.bincount(owner, minlength=first.size)
        return number[which]

    def pairs(self) -> Iterator[tuple[IntArray, Pairs]]:
        """Yield some bases, and them with every pass that their schedule runs: some CHUNK of pairs, or those of one."""
        order = self.by_degrees()
        ends = np.cumsum(self.passes_of_bases[order])
        start = 0
        while start < order.size:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + CHUNK, side="right")))
            bases = order[start:stop]
            yield bases, self._paired(bases)
            start = stop

    def _paired(self, bases: IntArray) -> Pairs:
        """Return the pairs of some bases, by base."""
        place, choice = (one[bases] for one in self.bases)
        first, kind = self._scheduled_alike(place, choice)
        owner, at = (np.concatenate(both) for both in zip(*self._run(place[first], choice[first]), strict=True))
        number = np.bincount(owner, minlength=first.size)[kind]
        starts = np.searchsorted(owner, kind)
        base = np.repeat(np.arange(bases.size), number)
        of_base = np.arange(base.size) - np.repeat(np.cumsum(number) - number - starts, number)
        return Pairs(base, at[of_base], self.joined_passes)

    @cached_property
    def joined_passes(self) -> Passes:
        """The passes of all places, as bases are joined with."""
        n, m, *_ = self.passes
        return Passes({"sub_batch": n, "accumulation_steps": m})

    def _scheduled_alike(self, place: IntArray, choice: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first of bases that run the same passes, and of which kind each is."""
        places = distinct_rows(*(self.places[name] for name in ("data_parallel", "pipeline_parallel")))
        choices = distinct_rows(*(self.choices[name] for name in ("schedule", "virtual_stages")))
        kinds = ((number[at], first.size) for (first, number), at in ((places, place), (choices, choice)))
        return distinct_numbers(*kinds)

    def _run(self, place: IntArray, choice: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield each of some bases with each pass that its schedule runs: positions in both, by base."""
        yield np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        for owner, at in each(*(one[place] for one in self.passes[2:])):
            runs = self._runs((place[owner], choice[owner]), at)
            yield owner[runs], at[runs]

    def runs(self, base: IntArray, at: IntArray) -> BoolArray:
        """Tell of bases with passes that belong together whether their schedule runs them."""
        return self._runs((self.bases[0][base], self.bases[1][base]), at)

    def _runs(self, base: tuple[IntArray, IntArray], at: IntArray) -> BoolArray:
        columns = {name: self._column(name, *base) for name in _SCHEDULED[:3]}
        return accumulates(Configurations.having(**columns, accumulation_steps=self.passes[1][at]))

    def by_degrees(self) -> IntArray:
        """Return the bases such that those of equal degrees follow each other, as they are priced together."""
        return np.lexsort([self._column(name, *self.bases) for name in _PRICED_TOGETHER])

    def base_columns(self, some: IntArray | slice = slice(None)) -> dict[str, IntArray]:
        """Return the axes of all bases, or of some, lawful ones alone, an ndarray of shape (b,) each."""
        place, choice = (one[some] for one in self.bases)
        return {name: self._column(name, place, choice) for name in (*_PLACE, *_CHOICE)}

    def passes_of(self, base: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        """Return the sub-batches, and the accumulation of each, with which a base is a candidate to price."""
        replica = math.prod(base[name] for name in DEGREES)
        n, m = self._passes(base["nodes"] * base["gpus_per_node"] // replica)
        columns = {name: np.full(n.size, base[name]) for name in _SCHEDULED if name in base}
        keeps = accumulates(Configurations.having(**columns | {"accumulation_steps": m}))
        return n[keeps], m[keeps]

    def _column(self, name: str, place: IntArray, choice: IntArray) -> IntArray:
        column = self.choices[name][choice] if name in self.choices else self.places[name][place]
        return _run(column, self.places["pipeline_parallel"][place]) if name == "schedule" else column

    def _values(self, axis: Axis) -> IntArray:
        """Return the values of an axis to try, as numbers or codes."""
        asked = self.request[axis.name]
        is_open = axis.name in _DEFAULTS and (bool(block_starts(self.network)) or axis.name in LAYER_AXES)
        return _DEFAULTS[axis.name](self) if asked is None and is_open else values_to_try(axis, asked, self.most)

    def _places(self) -> Iterator[dict[str, IntArray]]:
        """Yield columns of places, of each number of GPUs of a node: from nodes, or from degrees where they are fewer.

        Most numbers of nodes of a large cluster have no data-parallel degree that divides a mini-batch of the window.
        """
        degrees = _product({name: self._values(_BY_NAME[name]) for name in DEGREES})
        degrees = _where(degrees, self._is_of_kind(degrees))
        replica = np.prod([*degrees.values()], axis=0)
        nodes = self._values(_BY_NAME["nodes"])
        for gpus_per_node in self._values(_BY_NAME["gpus_per_node"]).tolist():
            copies = np.arange(1, min(self.window[1], int(nodes.max()) * gpus_per_node) + 1)
            copies = copies[self._reaches(copies)]
            is_by_nodes = nodes.size <= copies.size
            which, other = _pairs(replica.size, min(nodes.size, copies.size))
            gpus = nodes[other] * gpus_per_node if is_by_nodes else copies[other] * replica[which]
            keeps = (gpus % gpus_per_node == 0) & (gpus % replica[which] == 0)
            which, gpus = which[keeps], gpus[keeps]
            keeps = self._reaches(gpus // replica[which]) & np.isin(gpus // gpus_per_node, nodes)
            which, gpus = which[keeps], gpus[keeps]
            yield {name: column[which] for name, column in degrees.items()} | {
                "nodes": gpus // gpus_per_node,
                "gpus_per_node": np.full(which.size, gpus_per_node),
                "data_parallel": gpus // replica[which],
            }

    def _is_base(self, some: slice) -> BoolArray:
        """Tell which places, rows, and choices, columns, are lawful together, and told apart."""
        of = {name: self.places[name][some, None] for name in _PLACE}
        of |= {name: column[None] for name, column in self.choices.items()}
        is_scheduled = self._is_scheduled(of)
        of["schedule"] = _run(of["schedule"], of["pipeline_parallel"])
        plans = Configurations(**of, sub_batch=np.ones((1, 1), dtype=np.int64), precisions=("fp32",))
        lawful = is_lawful(self.network, self.framework, plans, but_accumulation=True)
        told_apart = is_told_apart(self.network, self.framework, plans)
        return np.asarray(lawful & told_apart & is_scheduled & splits(of))

    def _is_of_kind(self, of: Mapping[str, IntArray]) -> BoolArray:
        """Tell which degrees are of the kinds of parallelism to try."""
        model = np.any([of[name] > 1 for name in DEGREES if name in SHARD_AXES], axis=0)
        pipeline = of["pipeline_parallel"] > 1
        kinds = {DATA: ~model & ~pipeline, MODEL: model & ~pipeline, PIPELINE: pipeline & ~model}
        kinds[HYBRID] = model & pipeline
        return np.asarray(np.any([kinds[one] for one in self.kinds], axis=0))

    def _is_scheduled(self, of: Mapping[str, IntArray]) -> BoolArray:
        """Tell which bases have a pipeline to schedule, or the one schedule that stands for all where there is none."""
        schedules = self.request["schedule"] or (self.framework.schedule,)
        code = SCHEDULES.index("1f1b" if "1f1b" in schedules else schedules[0])
        return np.asarray((of["pipeline_parallel"] > 1) | (of["schedule"] == code))

    def _reaches(self, copies: IntArray) -> BoolArray:
        """Tell of data-parallel degrees whether some mini-batch of the window is a multiple."""
        low, high = self.window
        return np.asarray(high // copies * copies >= max(low, 1))

    def _passes(self, copies: int) -> tuple[IntArray, IntArray]:
        """Return sub-batches and accumulation steps whose product with the copies lies in the window."""
        asked = (self.request[name] for name in ("sub_batch", "accumulation_steps"))
        n, m = (None if some is None else distinct_values(np.array(some, dtype=np.int64)) for some in asked)
        return passes_within(self.window, n, m, copies)


@dataclass(frozen=True)
class SplitBlock:
    """Split candidates of one precision; ``refused``: why none of them can be priced."""

    of: SplitCandidates
    precision: str
    refused: Refusal | None = None
    mode: str = "sync"

    @property
    def window(self) -> tuple[int, int]:
        """Accepted mini-batches [whole samples]."""
        return self.of.window

    def count(self) -> int:
        """Return the number of candidates."""
        return self.of.count

    def inside(self) -> int:
        """Return how many of them the window holds: all."""
        return self.of.count

    def outside(self) -> Mapping[int, int]:
        """Return those outside the window, by reason: there are none."""
        return {}

    def candidates(self, precision: int, precisions: tuple[str, ...]) -> Iterator[Configurations]:
        """Yield the candidates, some CHUNK at a time; ``precision``: position in ``precisions``."""
        for bases, pairs in self.of.pairs():
            yield self._joined(bases, pairs, (precision, precisions))

    def joined(self, base: IntArray, at: IntArray, kinds: tuple[int, tuple[str, ...]]) -> Configurations:
        """Return bases with passes that belong together."""
        some, which = distinct_numbers((base, self.of.bases[0].size))
        return self._joined(base[some], Pairs(which, at, self.of.joined_passes), kinds)

    def _joined(self, bases: IntArray, pairs: Pairs, kinds: tuple[int, tuple[str, ...]]) -> Configurations:
        none = {name: np.broadcast_to(np.int64(1), bases.shape) for name in pairs.passes.columns}
        return JoinedConfigurations(self.configurations(self.of.base_columns(bases) | none, kinds), pairs)

    def configurations(self, rows: Mapping[str, IntArray], kinds: tuple[int, tuple[str, ...]]) -> Configurations:
        """Return columns as configurations of the precision."""
        codes = {"precision": kinds[0], "mode": MODES.index(self.mode)}
        shape = rows["sub_batch"].shape
        more = {name: np.broadcast_to(np.int64(code), shape) for name, code in codes.items()}
        return Configurations(**rows, **more, precisions=kinds[1])

    def base_columns(self) -> dict[str, IntArray]:
        """Return the axes of all bases, lawful ones alone, an ndarray of shape (b,) each."""
        return self.of.base_columns()

    def passes_of(self, base: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        """Return the sub-batches, and the accumulation of each, with which a base is a candidate to price."""
        return self.of.passes_of(base)


def each(starts: IntArray, sizes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield of some spans the number and the position of each member, some CHUNK at a time."""
    ends = np.cumsum(sizes)
    for start in range(0, int(ends[-1]) if ends.size else 0, CHUNK):
        flat = np.arange(start, min(start + CHUNK, int(ends[-1])))
        owner = np.searchsorted(ends, flat, side="right")
        yield owner, starts[owner] + flat - (ends[owner] - sizes[owner])


def _pairs(first: int, second: int) -> tuple[IntArray, IntArray]:
    """Return every pair of positions below two numbers."""
    return np.repeat(np.arange(first), second), np.tile(np.arange(second), first)


def _divisors(whole: int, most: int) -> IntArray:
    tried = np.arange(1, min(whole, most) + 1)
    return np.asarray(tried[whole % tried == 0])


def _tensor(block: SplitCandidates) -> IntArray:
    """Return the degrees inside a node."""
    splits = block_starts(block.network) and {MODEL, HYBRID} & set(block.kinds)
    degrees = tensor_degrees(block.network) if splits else [1]
    return np.array([one for one in degrees if one <= block.most["gpus_per_node"]])


def _pipeline(block: SplitCandidates) -> IntArray:
    """Return the stages to try: as many as there are blocks, else those that fill nodes evenly."""
    if not {PIPELINE, HYBRID} & set(block.kinds):
        return np.ones(1, dtype=np.int64)
    most, gpus = most_stages(block.network), block.most["gpus_per_node"]
    if block_starts(block.network):
        return np.arange(1, most + 1)
    whole_nodes = gpus * 2 ** np.arange(int(np.log2(max(most / gpus, 1))) + 1)
    return distinct_values(np.concatenate([_divisors(gpus, most), whole_nodes[whole_nodes <= most]]))


def _virtual(block: SplitCandidates) -> IntArray:
    if not block_starts(block.network) or not {PIPELINE, HYBRID} & set(block.kinds):
        return np.ones(1, dtype=np.int64)
    number = most_stages(block.network)
    return _divisors(number, number // 2)


def _expert(block: SplitCandidates) -> IntArray:
    experts = max(expert_number(block.network) * bool({MODEL, HYBRID} & set(block.kinds)), 1)
    return _divisors(experts, experts)


_DEFAULTS: Mapping[str, Callable[[SplitCandidates], IntArray]] = {
    "tensor_parallel": _tensor,
    "pipeline_parallel": _pipeline,
    "virtual_stages": _virtual,
    "expert_parallel": _expert,
    "sequence_parallel": lambda _: np.arange(2),
    "schedule": lambda block: np.array([SCHEDULES.index(block.framework.schedule)]),
    "sharding": lambda block: np.array(block.framework.shardings),
    "recompute": lambda _: np.arange(3),
}
"""Axis -> the values that are tried where none are asked for; of others the default alone."""


def _product(values: Mapping[str, IntArray]) -> dict[str, IntArray]:
    columns = np.meshgrid(*values.values(), indexing="ij")
    return {name: column.ravel() for name, column in zip(values, columns, strict=True)}


def _run(schedule: IntArray, stages: IntArray) -> IntArray:
    """Return the schedule that stages run: the default where there is one, as a Configuration has it."""
    return np.where(stages > 1, schedule, SCHEDULES.index("1f1b"))


def _where(columns: Mapping[str, IntArray], mask: BoolArray) -> dict[str, IntArray]:
    return {name: column[mask] for name, column in columns.items()}
