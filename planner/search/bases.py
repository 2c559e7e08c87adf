"""Bases of candidates: all that a plan decides but its sub-batch and its accumulation.

A *place* is a number of GPUs with the degrees that share a copy of the network, D its data-parallel degree. To it come
*choices*, of what is kept on its devices and how they are scheduled: a lawful pair is a base. Bases that differ in
nothing a device does are one (:func:`planner.workload.lawful.is_told_apart`). Where the network may be split, those
that no mini-batch of the window divides are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_values, divisors
from planner.domain.axes import AXES, SCHEDULES, Axis
from planner.domain.configuration import DEGREES, SHARD_AXES, SPLIT_AXES, Configurations, splits, taken
from planner.domain.framework import GENERIC, Framework
from planner.domain.network import Network
from planner.domain.request import SpaceRequest
from planner.workload.lawful import is_lawful, is_told_apart, micro_batches_run, most_stages
from planner.workload.memory import Memory
from planner.workload.program import block_starts
from planner.workload.shards import attended_positions, expert_number
from planner.workload.what_fits import context_degrees, tensor_degrees

__all__ = [
    "DATA", "HYBRID", "MODEL", "PASSES", "PIPELINE", "Bases", "SplitBases", "SplitLimits", "kinds_of",
    "kinds_to_try", "layer_axis_asked", "values_to_try",
]  # fmt: skip

DATA, MODEL, PIPELINE, HYBRID = "data", "model", "pipeline", "hybrid"


def kinds_of(network: Network, framework: Framework) -> tuple[str, ...]:
    """Return the kinds of parallelism that a network and a framework allow."""
    has_blocks = bool(block_starts(network))
    names = [axis.ranks for axis in AXES if axis.is_shard and (has_blocks or axis.name == "tensor_parallel")]
    model = not {*names}.isdisjoint(framework.can)
    pipeline = "pipeline" in framework.can and (has_blocks or framework.stages != "blocks")
    allowed = ((DATA, True), (MODEL, model), (PIPELINE, pipeline), (HYBRID, model and (pipeline or not has_blocks)))
    return tuple(kind for kind, is_allowed in allowed if is_allowed)


def kinds_to_try(request: SpaceRequest, network: Network, framework: Framework) -> tuple[str, ...]:
    """Return the kinds asked for, else all that are allowed.

    Of networks without blocks pipelines are tried where their axes are asked for, or the framework deals out layers by
    itself, and groups that share layers where their degree is asked for, or it has them.
    """
    if request.parallelism or block_starts(network):
        return request.parallelism or kinds_of(network, framework)
    shares = framework.shares_layers or {*(request["tensor_parallel"] or ())} - {1}
    stages = framework.stages == "layers" or layer_axis_asked(request)
    open_kinds = (DATA, *((MODEL, HYBRID) if shares else ()), *((PIPELINE,) if stages else ()))
    return tuple(kind for kind in kinds_of(network, framework) if kind in open_kinds)


def layer_axis_asked(request: SpaceRequest) -> Axis | None:
    """Return the first axis of layer pipelines of which more than the default is asked for."""
    axes = (axis for axis in AXES if axis.name in ("pipeline_parallel", *_STAGED))
    return next((axis for axis in axes if {*(request[axis.name] or ())} - {axis.default}), None)


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """What splitting a network is limited by.

    ``memory_bytes``: (rows of one precision; precision) -> shape (n,), needed on the fullest device;
    ``capacity_bytes``: of a device; ``has_host``: whether a link to the memory of the host is described.
    """

    network: Network
    framework: Framework
    memory_bytes: Callable[[Configurations, str], FloatArray]
    capacity_bytes: float
    ledger: Callable[[str], Memory]
    has_host: bool = True

    def last_resort(self, axis: Axis) -> tuple[Any, ...]:
        """Return the values of an axis to try where nothing fits in memory otherwise; none: no others than before."""
        is_open = axis.name in _DEFAULTS and bool(block_starts(self.network))
        if not axis.last_resort or is_open or (axis.name == "offload" and not self.has_host):
            return ()
        plans = Configurations.having(**{axis.name: np.array([axis.code(one) for one in axis.last_resort])})
        lawful = np.flatnonzero(is_lawful(self.network, self.framework, plans, but_accumulation=True))
        return tuple(axis.last_resort[at] for at in lawful) if lawful.size > 1 else ()

    def needed_bytes(self, rows: Configurations) -> FloatArray:
        """Return the memory of the fullest device of each, shape (n,)."""
        codes = distinct_values(rows.bases.precision).tolist()
        if len(codes) == 1:
            return self.memory_bytes(rows, rows.precisions[codes[0]])
        needed = np.zeros(rows.size)
        for code in codes:
            where = np.flatnonzero(rows.precision == code)
            needed[where] = self.memory_bytes(rows.take(where), rows.precisions[code])
        return needed

    def fits(self, rows: Configurations) -> BoolArray:
        """Return whether each fits in memory, shape (n,)."""
        return self.needed_bytes(rows) <= self.capacity_bytes


CHECKED = 2**18
"""Bases checked at once whether they are lawful."""
LEAST_POSITIONS = 8192
"""Of a sample, that a context rank has at least where no degree is asked for."""
PASSES = ("sub_batch", "accumulation_steps")
"""Axes that no base has."""
_CHOICE = tuple(axis.name for axis in SPLIT_AXES if not axis.is_degree)
_PLACE = tuple(axis.name for axis in AXES if axis.name not in (*_CHOICE, *PASSES, "precision", "mode"))
_OF_LAYERS = ("tensor_parallel", "pipeline_parallel", "schedule")
"""Axes of which more than the default is tried of networks without blocks where none is asked for."""
_STAGED = ("schedule", "stages")
"""Axes that say something of a pipeline alone."""
_SCHEDULED = ("schedule", "pipeline_parallel", "virtual_stages")
_BY_NAME = {axis.name: axis for axis in AXES}


@dataclass(frozen=True)
class Bases:
    """Those with a whole network on every device; of places that are none too the number is asked for.

    Attributes
    ----------
    most : mapping of axis to int, nodes and GPUs of each that the cluster has
    window : accepted mini-batches [whole samples]
    framework : whose schedules run the micro-batches
    counts_outside : whether candidates outside the window are counted: whether there is an end to them
    """

    counts_outside: ClassVar[bool] = True
    request: SpaceRequest
    most: Mapping[str, int]
    window: tuple[int, int]
    mode: str = "sync"
    framework: Framework = GENERIC

    @cached_property
    def places(self) -> dict[str, IntArray]:
        """Columns of all places, with ``data_parallel``, rounded down, shape (g,)."""
        columns = _product({name: self._values(_BY_NAME[name]) for name in _PLACE})
        replica = np.prod([columns[name] for name in DEGREES], axis=0)
        return columns | {"data_parallel": columns["nodes"] * columns["gpus_per_node"] // replica}

    @cached_property
    def choices(self) -> dict[str, IntArray]:
        """Columns of all choices, lawful somewhere or not."""
        return _product({name: self._values(_BY_NAME[name]) for name in _CHOICE})

    @cached_property
    def lawful(self) -> tuple[IntArray, IntArray]:
        """The place and the choice of every base, by place, shape (b,)."""
        of = self.places
        if self.mode == "async":
            holds = [
                of[name] == _BY_NAME[name].code(_BY_NAME[name].default) for name in _PLACE if _BY_NAME[name].only_sync
            ]
        else:
            replica = np.prod([of[name] for name in DEGREES], axis=0)
            holds = [of["nodes"] * of["gpus_per_node"] == of["data_parallel"] * replica]
        place = np.flatnonzero(np.all(holds, axis=0))
        return place, np.zeros(place.size, dtype=np.int64)

    @property
    def size(self) -> int:
        """How many there are."""
        return self.lawful[0].size

    @property
    def copies(self) -> IntArray:
        """Data-parallel degree of each, shape (b,); 1 where the mini-batch is random."""
        place = self.lawful[0]
        return self.places["data_parallel"][place] if self.mode == "sync" else np.ones(place.size, dtype=np.int64)

    def scheduled(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return of what the accumulation of each must be a multiple, its least and its most, shape (b,)."""
        return micro_batches_run(
            self.framework, Configurations.having(**{name: self.column(name) for name in _SCHEDULED})
        )

    def column(self, name: str, some: IntArray | slice = slice(None)) -> IntArray:
        """Return an axis of all, or of some."""
        place, choice = (one[some] for one in self.lawful)
        column = taken(self.choices[name], choice) if name in self.choices else taken(self.places[name], place)
        return _run(column, taken(self.places["pipeline_parallel"], place)) if name == "schedule" else column

    def columns(self, some: IntArray | slice = slice(None)) -> dict[str, IntArray]:
        """Return the axes of all, or of some."""
        return {name: self.column(name, some) for name in (*_PLACE, *_CHOICE)}

    def _values(self, axis: Axis) -> IntArray:
        """Return the values of an axis to try, as numbers or codes."""
        return values_to_try(axis, None if axis in SPLIT_AXES else self.request[axis.name], self.most)


@dataclass(frozen=True, kw_only=True)
class SplitBases(Bases):
    """Those that split a network; with ``framework``, ``network`` tells the lawful ones."""

    counts_outside: ClassVar[bool] = False
    network: Network

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of parallelism to try."""
        return kinds_to_try(self.request, self.network, self.framework)

    @cached_property
    def places(self) -> dict[str, IntArray]:
        """Columns of all places, with ``data_parallel``, shape (g,)."""
        parts = list(self._places())
        return {name: np.concatenate([one[name] for one in parts]) for name in (*_PLACE, "data_parallel")}

    @cached_property
    def lawful(self) -> tuple[IntArray, IntArray]:
        """The place and the choice of every base, by place, shape (b,)."""
        places, choices = self.places["nodes"].size, self.choices["sharding"].size
        step = max(1, CHECKED // max(1, choices))
        found = [np.zeros((2, 0), dtype=np.int64)]
        for start in range(0, places, step):
            place, choice = np.nonzero(self._is_base(slice(start, start + step)))
            found.append(np.stack((start + place, choice)))
        place, choice = np.concatenate(found, axis=1)
        return place, choice

    def _values(self, axis: Axis) -> IntArray:
        asked = self.request[axis.name]
        is_open = axis.name in (_DEFAULTS if block_starts(self.network) else _OF_LAYERS)
        return _DEFAULTS[axis.name](self) if asked is None and is_open else values_to_try(axis, asked, self.most)

    def _places(self) -> Iterator[dict[str, IntArray]]:
        """Yield columns of places, by GPUs of a node: from nodes, or from degrees where they are fewer."""
        others = [name for name in _PLACE if name not in ("nodes", "gpus_per_node")]
        degrees = _product({name: self._values(_BY_NAME[name]) for name in others})
        is_of_kind = self._is_of_kind(degrees)
        degrees = {name: column[is_of_kind] for name, column in degrees.items()}
        replica = np.prod([degrees[name] for name in DEGREES], axis=0)
        nodes = self._values(_BY_NAME["nodes"])
        for gpus_per_node in self._values(_BY_NAME["gpus_per_node"]).tolist():
            copies = np.arange(1, min(self.window[1], int(nodes.max()) * gpus_per_node) + 1)
            copies = copies[self._reaches(copies)]
            # most numbers of nodes of a large cluster have no degree that divides a mini-batch of the window
            is_by_nodes = nodes.size <= copies.size
            fewer = min(nodes.size, copies.size)
            which, other = np.divmod(np.arange(replica.size * fewer), max(fewer, 1))
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
        return np.asarray(lawful & told_apart & is_scheduled & splits(plans))

    def _is_of_kind(self, of: Mapping[str, IntArray]) -> BoolArray:
        """Tell which degrees are of the kinds of parallelism to try."""
        model = np.any([of[name] > 1 for name in DEGREES if name in SHARD_AXES], axis=0)
        pipeline = of["pipeline_parallel"] > 1
        kinds = {DATA: ~model & ~pipeline, MODEL: model & ~pipeline, PIPELINE: pipeline & ~model}
        # Groups that share layers are hybrid where some layers are by samples: which are is chosen with the price.
        kinds[HYBRID] = model & pipeline if block_starts(self.network) else model
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


def values_to_try(axis: Axis, asked: tuple[Any, ...] | None, most: Mapping[str, int]) -> IntArray:
    """Return the values of an axis, ascending, as numbers or codes: those asked for, of the cluster, or the default."""
    if asked is None and axis.of_cluster:
        return np.arange(1 if axis.of_cluster == "any" else most[axis.name], most[axis.name] + 1)
    values = (axis.default,) if asked is None else asked
    return distinct_values(np.array([axis.code(one) for one in values], dtype=np.int64))


def _tensor(bases: SplitBases) -> IntArray:
    """Return the degrees inside a node, of networks without blocks those that divide it."""
    if not {MODEL, HYBRID} & set(bases.kinds):
        return np.ones(1, dtype=np.int64)
    if not block_starts(bases.network):
        return np.array(divisors(bases.most["gpus_per_node"]))
    return np.array([one for one in tensor_degrees(bases.network) if one <= bases.most["gpus_per_node"]])


def _context(bases: SplitBases) -> IntArray:
    """Return powers of two that leave each rank LEAST_POSITIONS: 1 unless samples are long."""
    if (
        not block_starts(bases.network)
        or "context" not in bases.framework.can
        or not {MODEL, HYBRID} & set(bases.kinds)
    ):
        return np.ones(1, dtype=np.int64)
    most = max(attended_positions(bases.network), default=1) // LEAST_POSITIONS
    return np.array([one for one in context_degrees(bases.network) if one & (one - 1) == 0 and one <= max(most, 1)])


def _pipeline(bases: SplitBases) -> IntArray:
    """Return the stages to try: as many as there are blocks, else those that fill nodes evenly."""
    if not {PIPELINE, HYBRID} & set(bases.kinds):
        return np.ones(1, dtype=np.int64)
    most, gpus = most_stages(bases.network), bases.most["gpus_per_node"]
    if block_starts(bases.network):
        return np.arange(1, most + 1)
    whole_nodes = gpus * 2 ** np.arange(int(np.log2(max(most / gpus, 1))) + 1)
    tried = np.array([*divisors(gpus), *whole_nodes])
    return distinct_values(tried[tried <= most])


def _virtual(bases: SplitBases) -> IntArray:
    if not block_starts(bases.network) or not {PIPELINE, HYBRID} & set(bases.kinds):
        return np.ones(1, dtype=np.int64)
    number = most_stages(bases.network)
    wholes = {"blocks": [number], "ends": [number, number + 2]}.get(bases.framework.deals, range(number, number + 3))
    tried = np.array([one for whole in wholes for one in divisors(whole)])
    return distinct_values(tried[tried <= number // 2])


def _expert(bases: SplitBases) -> IntArray:
    experts = max(expert_number(bases.network) * bool({MODEL, HYBRID} & set(bases.kinds)), 1)
    return np.array(divisors(experts))


_DEFAULTS: Mapping[str, Callable[[SplitBases], IntArray]] = {
    "tensor_parallel": _tensor,
    "context_parallel": _context,
    "pipeline_parallel": _pipeline,
    "virtual_stages": _virtual,
    "expert_parallel": _expert,
    "sequence_parallel": lambda _: np.arange(2),
    "schedule": lambda bases: np.array([SCHEDULES.index(bases.framework.schedule)]),
    "sharding": lambda bases: np.array(bases.framework.shardings),
    "recompute": lambda _: np.arange(3),
}
"""Axis -> the values that are tried where none are asked for; of others the default alone."""


def _product(values: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """Return columns of every combination of values; a single value is held once."""
    columns = np.meshgrid(*values.values(), indexing="ij")
    size = columns[0].size
    return {
        name: np.broadcast_to(of[0], size) if of.size == 1 else column.ravel()
        for (name, of), column in zip(values.items(), columns, strict=True)
    }


def _run(schedule: IntArray, stages: IntArray) -> IntArray:
    """Return the schedule that stages run: the default where there is one, as a Configuration has it."""
    default = SCHEDULES.index("1f1b")
    return schedule if schedule.size and (schedule == default).all() else np.where(stages > 1, schedule, default)
