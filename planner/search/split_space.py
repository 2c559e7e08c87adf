"""Candidates that split a network: every lawful set of degrees that a mini-batch in the window can be reached with.

A base is a number of GPUs with its degrees and what is kept on them; D its data-parallel degree. To it come sub-batches
n and accumulation steps m with D·n·m in the window. Bases that differ in nothing a device does are one
(:func:`planner.workload.lawful.is_told_apart`), and those that no mini-batch of the window divides are no candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.axes import AXES, MODES, SCHEDULES, Axis
from planner.domain.configuration import Configurations, splits
from planner.domain.framework import Framework
from planner.domain.network import Network
from planner.domain.request import SpaceRequest
from planner.domain.split import SplitPlans, schedule_run
from planner.errors import Refusal
from planner.workload.lawful import LAYER_AXES, accumulates, is_lawful, is_told_apart, most_stages
from planner.workload.split_memory import MemoryRules

__all__ = [
    "DATA",
    "HYBRID",
    "MODEL",
    "PIPELINE",
    "SplitBlock",
    "SplitLimits",
    "kinds_of",
    "kinds_to_try",
    "layer_axis_asked",
    "passes_within",
]

DATA, MODEL, PIPELINE, HYBRID = "data", "model", "pipeline", "hybrid"
CHUNK = 2**16
"""Candidates made at once."""
_DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel")
_OUTER = ("nodes", "gpus_per_node", *_DEGREES)
_PRICED_TOGETHER = (
    "sharding",
    "schedule",
    "expert_parallel",
    "sequence_parallel",
    "tensor_parallel",
    "pipeline_parallel",
)
_SCHEDULED = ("schedule", "pipeline_parallel", "virtual_stages", "accumulation_steps")
_INNER = (
    "sequence_parallel", "expert_parallel", "virtual_stages", "schedule", "sharding", "shard_group", "recompute",
    "recompute_every", "stages", "offload",
)  # fmt: skip


def kinds_of(network: Network, framework: Framework) -> tuple[str, ...]:
    """Return the kinds of parallelism that a network and a framework allow."""
    is_transformer = network.transformer is not None
    model = is_transformer and any(kind in framework.can for kind in ("tensor", "context", "expert"))
    pipeline = "pipeline" in framework.can and (is_transformer or framework.stages != "blocks")
    allowed = ((DATA, True), (MODEL, model), (PIPELINE, pipeline), (HYBRID, model and pipeline))
    return tuple(kind for kind, is_allowed in allowed if is_allowed)


def kinds_to_try(request: SpaceRequest, network: Network, framework: Framework) -> tuple[str, ...]:
    """Return the kinds asked for, else all that are allowed.

    Of networks whose stages the user has to write, pipelines are tried where their axes are asked for alone.
    """
    by_itself = network.transformer is not None or framework.stages == "layers"
    allowed = kinds_of(network, framework) if by_itself or layer_axis_asked(request) else (DATA,)
    return request.parallelism or allowed


def layer_axis_asked(request: SpaceRequest) -> Axis | None:
    """Return the first axis of layer pipelines of which more than the default is asked for."""
    axes = (axis for axis in AXES if axis.name in LAYER_AXES)
    return next((axis for axis in axes if {*(request[axis.name] or ())} - {axis.default}), None)


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """What splitting a network is limited by.

    Attributes
    ----------
    network : Network
    framework : Framework
    memory_bytes : (configurations of one precision, rows; precision) -> ndarray of float, shape (n,)
        Needed on the fullest device.
    capacity_bytes : float
        Of a device.
    rules : precision -> MemoryRules
        What memory is counted by.
    """

    network: Network
    framework: Framework
    memory_bytes: Callable[[Configurations, str], FloatArray]
    capacity_bytes: float
    rules: Callable[[str], MemoryRules]

    def needed_bytes(self, rows: Configurations) -> FloatArray:
        """Return the memory of the fullest device of each, shape (n,)."""
        needed = np.zeros(rows.size)
        for code in np.unique(rows.precision).tolist():
            where = np.flatnonzero(rows.precision == code)
            needed[where] = self.memory_bytes(rows.take(where), rows.precisions[code])
        return needed

    def fits(self, rows: Configurations) -> BoolArray:
        """Return whether each fits in memory, shape (n,)."""
        return self.needed_bytes(rows) <= self.capacity_bytes


@dataclass(frozen=True)
class SplitBlock:
    """Split candidates of one precision, synchronous.

    Attributes
    ----------
    network : Network
    framework : Framework
    request : SpaceRequest
    most : mapping of axis to int
        Nodes and GPUs of each that the cluster has.
    window : tuple of int
        Accepted mini-batches [whole samples].
    precision : str
    refused : Refusal or None
        Why none of them can be priced.
    """

    network: Network
    framework: Framework
    request: SpaceRequest
    most: Mapping[str, int]
    window: tuple[int, int]
    precision: str
    refused: Refusal | None = None
    mode: str = "sync"

    @property
    def bases(self) -> int:
        """Number of bases."""
        return int(self._bases["nodes"].size)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of parallelism to try."""
        return kinds_to_try(self.request, self.network, self.framework)

    def count(self) -> int:
        """Return the number of candidates."""
        return sum(one["sub_batch"].size for one in self._rows())

    def candidates(self, precision: int, precisions: tuple[str, ...]) -> Iterator[Configurations]:
        """Yield the candidates as rows, some CHUNK at a time; ``precision``: position in ``precisions``."""
        for rows in self._rows():
            size = rows["sub_batch"].size
            kinds = {"precision": np.full(size, precision), "mode": np.full(size, MODES.index(self.mode))}
            yield Configurations(**rows, **kinds, precisions=precisions)

    def _values(self, axis: Axis) -> IntArray:
        """Return the values of an axis to try, as numbers or codes."""
        asked = self.request[axis.name]
        if asked is not None:
            return np.unique([axis.code(one) for one in asked])
        if axis.of_cluster:
            most = self.most[axis.name]
            return np.arange(1 if axis.of_cluster == "any" else most, most + 1)
        is_open = axis.name in _DEFAULTS and (self.network.transformer is not None or axis.name in LAYER_AXES)
        return _DEFAULTS[axis.name](self) if is_open else np.array([axis.code(axis.default)])

    @cached_property
    def _bases(self) -> dict[str, IntArray]:
        """Columns of all bases, lawful ones alone."""
        by_name = {axis.name: axis for axis in AXES}
        outer = _product({name: self._values(by_name[name]) for name in _OUTER})
        gpus = outer["nodes"] * outer["gpus_per_node"]
        shared = outer["tensor_parallel"] * outer["context_parallel"] * outer["pipeline_parallel"]
        outer = _where(outer, (gpus % shared == 0) & self._is_of_kind(outer))
        outer["data_parallel"] = (
            outer["nodes"]
            * outer["gpus_per_node"]
            // (outer["tensor_parallel"] * outer["context_parallel"] * outer["pipeline_parallel"])
        )
        outer = _where(outer, self._reaches(outer["data_parallel"]))
        inner = _product({name: self._values(by_name[name]) for name in _INNER})
        of = {name: np.repeat(column, inner["sharding"].size) for name, column in outer.items()}
        of |= {name: np.tile(column, outer["nodes"].size) for name, column in inner.items()}
        plans = SplitPlans.of(**_plan_columns(of))
        lawful = is_lawful(self.network, self.framework, plans, but_accumulation=True)
        told_apart = is_told_apart(self.network.transformer, plans) & self._is_scheduled(of)
        return _where(of, lawful & told_apart & splits(of))

    def _is_of_kind(self, of: Mapping[str, IntArray]) -> BoolArray:
        """Tell which bases are of the kinds of parallelism to try."""
        model = (of["tensor_parallel"] > 1) | (of["context_parallel"] > 1)
        pipeline = of["pipeline_parallel"] > 1
        kinds = {DATA: ~model & ~pipeline, MODEL: model & ~pipeline, PIPELINE: pipeline & ~model}
        kinds[HYBRID] = model & pipeline
        return np.asarray(np.any([kinds[one] for one in self.kinds], axis=0))

    def _is_scheduled(self, of: Mapping[str, IntArray]) -> BoolArray:
        """Tell which bases have a pipeline to schedule, or the one schedule that stands for all where there is none."""
        schedules = self.request["schedule"] or ("1f1b",)
        code = SCHEDULES.index("1f1b" if "1f1b" in schedules else schedules[0])
        return np.asarray((of["pipeline_parallel"] > 1) | (of["schedule"] == code))

    def _reaches(self, copies: IntArray) -> BoolArray:
        """Tell of data-parallel degrees whether some mini-batch of the window is a multiple."""
        low, high = self.window
        return np.asarray(high // copies * copies >= max(low, 1))

    def _rows(self) -> Iterator[dict[str, IntArray]]:
        """Yield columns of candidates: bases with every sub-batch and accumulation that the window holds.

        Those of equal degrees follow each other, as they are priced together.
        """
        bases = {name: column[self._by_degrees] for name, column in self._bases.items()}
        copies, which = np.unique(bases["data_parallel"], return_inverse=True)
        passes = [self._passes(degree) for degree in copies.tolist()]
        sizes = np.array([sub_batch.size for sub_batch, _ in passes], dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        sub_batch, steps = (np.concatenate([one[at] for one in passes] or [np.zeros(0, int)]) for at in range(2))
        ends = np.cumsum(sizes[which])
        total = int(ends[-1]) if ends.size else 0
        for start in range(0, total, CHUNK):
            flat = np.arange(start, min(start + CHUNK, total))
            owner = np.searchsorted(ends, flat, side="right")
            place = starts[which[owner]] + flat - (ends[owner] - sizes[which[owner]])
            columns = {name: column[owner] for name, column in bases.items() if name != "data_parallel"}
            columns |= {"sub_batch": sub_batch[place], "accumulation_steps": steps[place]}
            scheduled = {name: columns[name] for name in _SCHEDULED}
            yield _where(columns, accumulates(SplitPlans.of(**scheduled)))

    @cached_property
    def _by_degrees(self) -> IntArray:
        return np.lexsort([self._bases[name] for name in _PRICED_TOGETHER])

    def _passes(self, copies: int) -> tuple[IntArray, IntArray]:
        """Return sub-batches and accumulation steps whose product with the copies lies in the window."""
        low, high = self.window
        least, most = -(-max(low, 1) // copies), high // copies
        asked, steps = self.request["sub_batch"], self.request["accumulation_steps"]
        tried = np.unique(asked) if asked is not None else np.arange(1, most + 1)
        return passes_within((least, most), tried, None if steps is None else np.unique(steps))

    def base_columns(self) -> dict[str, IntArray]:
        """Return the axes of all bases, lawful ones alone, an ndarray of shape (b,) each."""
        return {name: column for name, column in self._bases.items() if name != "data_parallel"}

    def passes_of(self, base: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        """Return the sub-batches, and the accumulation of each, with which a base is a candidate to price."""
        replica = math.prod(base[name] for name in _DEGREES)
        n, m = self._passes(base["nodes"] * base["gpus_per_node"] // replica)
        columns = {name: np.full(n.size, base[name]) for name in _SCHEDULED if name in base}
        keeps = accumulates(SplitPlans.of(**columns | {"accumulation_steps": m}))
        return n[keeps], m[keeps]


def passes_within(
    window: tuple[int, int], sub_batches: IntArray, steps: IntArray | None = None
) -> tuple[IntArray, IntArray]:
    """Return the sub-batches and accumulation steps whose product lies in a window; ``steps`` None: any."""
    least, most = window
    if steps is not None:
        n, m = (one.ravel() for one in np.meshgrid(sub_batches, steps, indexing="ij"))
        return n[(n * m >= least) & (n * m <= most)], m[(n * m >= least) & (n * m <= most)]
    first, last = -(-least // sub_batches), most // sub_batches
    number = np.maximum(last - first + 1, 0)
    owner = np.repeat(np.arange(sub_batches.size), number)
    within = np.arange(owner.size) - np.repeat(np.cumsum(number) - number, number)
    return sub_batches[owner], first[owner] + within


def _divisors(whole: int, most: int) -> IntArray:
    tried = np.arange(1, min(whole, most) + 1)
    return np.asarray(tried[whole % tried == 0])


def _tensor(block: SplitBlock) -> IntArray:
    """Return the degrees inside a node."""
    of = block.network.transformer
    heads = 1 if of is None or not {MODEL, HYBRID} & set(block.kinds) else of.heads
    return _divisors(heads, block.most["gpus_per_node"])


def _pipeline(block: SplitBlock) -> IntArray:
    """Return the stages to try: as many as a transformer has layers, else those that fill nodes evenly."""
    if not {PIPELINE, HYBRID} & set(block.kinds):
        return np.ones(1, dtype=np.int64)
    most, gpus = most_stages(block.network), block.most["gpus_per_node"]
    if block.network.transformer is not None:
        return np.arange(1, most + 1)
    whole_nodes = gpus * 2 ** np.arange(int(np.log2(max(most / gpus, 1))) + 1)
    return np.union1d(_divisors(gpus, most), whole_nodes[whole_nodes <= most])


def _virtual(block: SplitBlock) -> IntArray:
    of = block.network.transformer
    if of is None or not {PIPELINE, HYBRID} & set(block.kinds):
        return np.ones(1, dtype=np.int64)
    return _divisors(of.layers + of.encoder_layers, (of.layers + of.encoder_layers) // 2)


def _expert(block: SplitBlock) -> IntArray:
    of = block.network.transformer
    experts = 1 if of is None or not {MODEL, HYBRID} & set(block.kinds) else max(of.experts, 1)
    return _divisors(experts, experts)


_DEFAULTS: Mapping[str, Callable[[SplitBlock], IntArray]] = {
    "tensor_parallel": _tensor,
    "pipeline_parallel": _pipeline,
    "virtual_stages": _virtual,
    "expert_parallel": _expert,
    "sequence_parallel": lambda _: np.arange(2),
    "sharding": lambda block: np.arange(block.framework.most_sharded + 1),
    "recompute": lambda _: np.arange(3),
}
"""Axis -> the values that are tried where none are asked for; of others the default alone."""


def _product(values: Mapping[str, IntArray]) -> dict[str, IntArray]:
    columns = np.meshgrid(*values.values(), indexing="ij")
    return {name: column.ravel() for name, column in zip(values, columns, strict=True)}


def _where(columns: Mapping[str, IntArray], mask: BoolArray) -> dict[str, IntArray]:
    return {name: column[mask] for name, column in columns.items()}


def _plan_columns(of: Mapping[str, IntArray]) -> dict[str, IntArray]:
    """Return the columns of bases that split plans have; 1f1b with virtual stages is interleaved."""
    schedule = schedule_run(of["schedule"], of["virtual_stages"])
    return {name: column for name, column in of.items() if name != "nodes"} | {"schedule": schedule}
