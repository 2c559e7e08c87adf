"""Configurations: what a plan decides. One is a record, many are arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, BoolArray, IntArray, check_count, distinct_rows, divisors
from planner.domain.axes import AXES, MODES, RANK_ORDER, SCHEDULES, Axes, Axis
from planner.domain.cluster import GroupPart
from planner.domain.framework import OPTIMIZERS, Settings
from planner.domain.split import BEST_STAGES, PER_STAGE
from planner.errors import ParameterError, UnknownNameError

__all__ = [
    "DEGREES", "LARGEST_MINI_BATCH", "MODES", "NEUTRAL", "OPTIMIZERS", "RANK_AXES", "SHARD_AXES", "SPLIT_AXES",
    "Box", "Configuration", "Configurations", "JoinedConfigurations", "Settings", "splits", "taken",
]  # fmt: skip

Box = tuple[slice | IntArray, ...]
"""Of each dimension of a product the part that is meant."""
LARGEST_MINI_BATCH = 10**15
"""No more samples pass between two updates; far more than any data set holds, and exact in a float."""
DEGREES = tuple(axis.name for axis in AXES if axis.is_degree)
"""Of parallelism, all but the data-parallel one."""
_BY_RANKS = {axis.ranks: axis.name for axis in AXES if axis.ranks}
RANK_AXES = {name: _BY_RANKS.get(name, "data_parallel") for name in RANK_ORDER}
"""Name in orders of ranks -> the degree."""
SHARD_AXES = tuple(axis.name for axis in AXES if axis.is_shard)
"""Which part of each layer a rank computes."""
SPLIT_AXES = tuple(axis for axis in AXES if axis.splits)
"""How a network is split over devices, and what is kept of it."""
_NAMES = tuple(axis.name for axis in AXES)
_columns_of = attrgetter(*_NAMES)


def _is_one_stage(plan: Any) -> Any:
    return plan.pipeline_parallel == 1


NEUTRAL: Mapping[str, Callable[[Any], Any]] = {
    "virtual_stages": _is_one_stage,
    "schedule": _is_one_stage,
    "stages": _is_one_stage,
    "sequence_parallel": lambda plan: plan.tensor_parallel == 1,
    "sharding": lambda plan: plan.weight_copies == 1,
    "shard_group": lambda plan: (plan.sharding == 0) | (plan.gpus <= plan.gpus_per_node),
}
"""Axis -> whether no value of it changes anything for a plan, or for plans as arrays.

A configuration has the default there, whatever was asked for: two ways to say a plan are one plan. A rule looks at axes
that stand before its own, or at degrees.
"""


@dataclass(frozen=True, slots=True)
class Configuration(Axes[int, str]):
    """One configuration: a value of each axis, the default where the axis is NEUTRAL.

    Attributes
    ----------
    groups : what each group of nodes does, of a plan on a cluster that has several; empty: all nodes are alike.
        ``nodes`` are those of all groups then, and GPUs per node, sub-batch and accumulation the largest of a group
    """

    groups: tuple[GroupPart, ...] = ()

    @staticmethod
    def across(groups: tuple[GroupPart, ...], precision: str) -> Configuration:
        """Return the synchronous data-parallel plan in which groups of nodes do their parts."""
        most = {
            name: max(getattr(part, name) for part in groups)
            for name in ("gpus_per_node", "sub_batch", "accumulation_steps")
        }
        return Configuration(sum(part.nodes for part in groups), **most, precision=precision, groups=groups)

    def __post_init__(self) -> None:
        for axis in AXES:
            _check(axis, getattr(self, axis.name))
            if self.mode == "async" and axis.only_sync and getattr(self, axis.name) != axis.default:
                rule = f"{axis.default} in an asynchronous plan"
                raise ParameterError(axis.name, rule, getattr(self, axis.name))
        if (gpus := self.gpus) % (product := self.replica_gpus):
            every = divisors(gpus)
            near = [one for one in every if one < product][-1:] + [one for one in every if one > product][:1]
            nearest = f"the nearest {'are' if len(near) > 1 else 'is'} {' and '.join(map(str, near))}"
            names = " x ".join(name for name in DEGREES if getattr(self, name) > 1)
            raise ParameterError(names, f"a divisor of the {gpus} GPUs", product, nearest)
        for name, is_neutral in NEUTRAL.items():
            if is_neutral(self):
                object.__setattr__(self, name, _DEFAULTS[name])
        if self.samples_per_update > LARGEST_MINI_BATCH:
            rule = f"at most {LARGEST_MINI_BATCH:,} samples (GPUs x sub-batch x accumulation)"
            raise ParameterError("the mini-batch", rule, self.samples_per_update)

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return sum(part.gpus for part in self.groups) or self.nodes * self.gpus_per_node

    @property
    def replica_gpus(self) -> int:
        """Accelerators that hold one copy of the network: the product of all degrees but the data-parallel one."""
        return math.prod(getattr(self, name) for name in DEGREES)

    @property
    def data_parallel(self) -> int:
        """Copies of the network."""
        return self.gpus // self.replica_gpus

    @property
    def weight_copies(self) -> int:
        """Ranks that hold the same weights: of all copies, those that share the positions of a sample."""
        return self.data_parallel * self.context_parallel

    @property
    def samples_per_update(self) -> int:
        """Data-parallel degree x sub-batch x accumulation steps; the mini-batch of a synchronous configuration."""
        if len(self.groups) > 1:
            return sum(part.samples for part in self.groups)
        return self.data_parallel * self.sub_batch * self.accumulation_steps

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole network and keeps all that belongs to it."""
        return all(getattr(self, axis.name) == axis.default for axis in SPLIT_AXES)

    @property
    def parallelism(self) -> str:
        """``data``, ``model`` (tensor, context or expert degrees), ``pipeline``, or ``hybrid``, a product of both."""
        is_model = any(getattr(self, name) != _DEFAULTS[name] for name in SHARD_AXES)
        if is_model and self.pipeline_parallel > 1:
            return "hybrid"
        return "model" if is_model else "pipeline" if self.pipeline_parallel > 1 else "data"

    @property
    def besides(self) -> list[str]:
        """In words, the values of axes that go without saying where they are the default."""
        values = [(axis, getattr(self, axis.name)) for axis in AXES if not axis.always_said]
        others = [(axis, value) for axis, value in values if value != axis.default]
        return [axis.short.format(value) if axis.short else f"{axis.title} {value}" for axis, value in others]


_DEFAULTS: Mapping[str, Any] = {axis.name: axis.default for axis in AXES}


def _check(axis: Axis, value: int | str) -> None:
    if not axis.words:
        check_count(axis.name, value, axis.least, axis.most or LARGEST_COUNT)
    elif value not in axis.words:
        raise UnknownNameError(axis.name, str(value), axis.words)


@dataclass(frozen=True, slots=True)
class Configurations(Axes[IntArray, IntArray]):
    """n configurations: an integer ndarray an axis, of shape (n,), or of shapes that broadcast, as of a product.

    ``precision`` holds positions in ``precisions``, another axis of words those in its words. An axis that is not given
    has its default. An axis that is alike in all rows is held once (stride 0), as most axes of a search are.
    """

    precisions: tuple[str, ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        like: IntArray = self.nodes
        shape = like.shape if like.ndim == 1 else (1,) * like.ndim
        for axis, column in zip(AXES, _columns_of(self), strict=True):
            if not isinstance(column, np.ndarray):
                object.__setattr__(self, axis.name, np.broadcast_to(self.code(axis, axis.default), shape))

    @property
    def size(self) -> int:
        """Number of configurations."""
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """What the axes broadcast to."""
        if self.nodes.ndim == 1 and self.nodes.size > 1:
            return self.nodes.shape
        return _shape_of(_columns_of(self))

    @staticmethod
    def product(values: Mapping[str, IntArray], precisions: tuple[str, ...]) -> Configurations:
        """Return every combination of the values of each axis, the last axis fastest."""
        names = [axis.name for axis in AXES if axis.name in values]
        columns = np.meshgrid(*(values[name] for name in names), indexing="ij", sparse=True)
        return Configurations(**dict(zip(names, columns, strict=True)), precisions=precisions)

    @staticmethod
    def having(**values: int | IntArray) -> Configurations:
        """Return plans with values of some axes, which broadcast to shape (n,); the others have their default.

        A sub-batch is 1, and a node has 8 GPUs. Nodes follow from ``data_parallel``, 1 where it is not said: they hold
        fewer GPUs where those of a plan fill no whole ones.
        """
        names = [*_DEFAULTS, "data_parallel"][1:]
        if unknown := {*values} - {*names}:
            raise ParameterError("axis of plans", "one of " + ", ".join(names), ", ".join(sorted(unknown)))
        codes = {axis.name: axis.code(axis.default) for axis in AXES}
        every = codes | {"sub_batch": 1, "gpus_per_node": 8, "precision": 0, "data_parallel": 1} | values
        return _placed({name: np.asarray(value, dtype=np.int64) for name, value in every.items()}, ("fp32",))

    def but(self, **values: int | IntArray) -> Configurations:
        """Return rows that differ in some axes; there are as many copies of the network, unless they are among them."""
        columns = dict(zip(_NAMES, _columns_of(self), strict=True))
        columns |= {name: np.asarray(value, dtype=np.int64) for name, value in values.items()}
        if _PLACED_BY.isdisjoint(values):
            return Configurations(**_alike_shaped(columns), precisions=self.precisions)
        return _placed({"data_parallel": self.data_parallel} | columns, self.precisions)

    @property
    def bases(self) -> Configurations:
        """Rows in which each combination of other axes than sub-batch and accumulation stands at least once."""
        return self

    def of_bases(self, function: Callable[[Configurations], Any]) -> Any:
        """Return what a function makes of rows, (n,), which looks at no sub-batch and no accumulation."""
        return function(self)

    def with_bases(self, change: Callable[[Configurations], Configurations]) -> Configurations:
        """Return rows that differ in other axes than sub-batch and accumulation, on which no change depends."""
        return change(self)

    def distinct(self, names: Iterable[str], *more: tuple[IntArray, int]) -> tuple[IntArray, IntArray]:
        """Return :func:`planner.domain.arrays.distinct_rows` of some axes, or properties, of rows.

        Of a product the positions are those of its rows, and numbers have a shape that broadcasts to that of the
        product: axes that are not asked for have length 1.

        ``more``: further columns of whole numbers from 0, and what they stay below.
        """
        columns = [*(getattr(self, name) for name in names), *(column for column, _ in more)]
        if not self.is_product:
            return distinct_rows(*columns)
        shape = np.broadcast_shapes(*(one.shape for one in columns))
        first, number = distinct_rows(*(np.broadcast_to(one, shape).ravel() for one in columns))
        return np.ravel_multi_index(np.unravel_index(first, shape), self.shape), number.reshape(shape)

    def at(self, of_plans: Any, rows: IntArray) -> Any:
        """Return what plans at positions have of an array that broadcasts to the shape of all."""
        return _in_rows(of_plans, rows, self.shape) if self.is_product else of_plans[rows]

    def _each(self, change: Callable[[IntArray], IntArray]) -> Configurations:
        columns = dict(zip(_NAMES, map(change, _columns_of(self)), strict=True))
        return Configurations(**columns, precisions=self.precisions)

    @property
    def is_product(self) -> bool:
        """Whether there is a dimension an axis."""
        return bool(self.nodes.ndim > 1)

    @property
    def rows(self) -> Configurations:
        """The same with axes of shape (n,)."""
        return self if len(self.shape) == 1 else self._each(partial(_row_column, shape=self.shape))

    @property
    def gpus(self) -> IntArray:
        """Accelerators in all, shape (n,)."""
        return self.nodes * self.gpus_per_node

    @property
    def data_parallel(self) -> IntArray:
        """Copies of the network, shape (n,), rounded down: GPUs over the product of all other degrees."""
        return self.gpus // self.replica_gpus if DEGREES else self.gpus

    @property
    def weight_copies(self) -> IntArray:
        """Ranks that hold the same weights, shape (n,): of all copies, those that share the positions of a sample."""
        return self.data_parallel * self.context_parallel

    @property
    def replica_gpus(self) -> IntArray | int:
        """Accelerators that hold one copy of the network, shape (n,): the product of all other degrees."""
        return math.prod(_once(getattr(self, name)) for name in DEGREES)

    @property
    def schedule_run(self) -> IntArray:
        """The schedule that runs, shape (n,): 1f1b with virtual stages is interleaved."""
        interleaves = (self.virtual_stages > 1) & (self.schedule == SCHEDULES.index("1f1b"))
        return np.where(interleaves, SCHEDULES.index("interleaved"), self.schedule)

    @property
    def is_laid_out(self) -> BoolArray:
        """Whether what each stage holds, or computes again, follows from what fits, shape (n,)."""
        return np.asarray((self.stages == BEST_STAGES) | (self.recompute == PER_STAGE))

    @property
    def last_stage(self) -> IntArray:
        """The stage with the last layers: that with the first ones, where the order of stages is a V."""
        return np.where(self.schedule == SCHEDULES.index("zero-bubble-v"), 0, self.pipeline_parallel - 1)

    @property
    def is_async(self) -> BoolArray:
        """Whether each is asynchronous, shape (n,)."""
        return np.equal(self.mode, MODES.index("async"))

    def code(self, axis: Axis, value: int | str | None) -> int:
        """Return the number that stands for a value of an axis in its array."""
        return self.precisions.index(str(value)) if axis.name == "precision" else axis.code(value)

    @property
    def synchronous_mini_batch(self) -> IntArray:
        """Data-parallel degree x sub-batch x accumulation steps, shape (n,); the mini-batch where synchronous.

        Products above LARGEST_MINI_BATCH are LARGEST_MINI_BATCH + 1, as 64 bits might not hold them.
        """
        degree, sub_batch, steps = self.data_parallel, self.sub_batch, self.accumulation_steps
        exact = degree * sub_batch * steps
        if math.prod(int(one.max(initial=0)) for one in (degree, sub_batch, steps)) <= LARGEST_MINI_BATCH:
            return exact
        about = degree.astype(np.float64) * sub_batch * steps
        return np.where(about > LARGEST_MINI_BATCH, LARGEST_MINI_BATCH + 1, exact)

    def words_of(self, axis: Axis) -> tuple[str, ...]:
        """Return the words of an axis in the order of their codes."""
        return self.precisions if axis.name == "precision" else axis.words

    def where(self, mask: BoolArray) -> Configurations:
        """Return those where a mask, which broadcasts, is true: of a product as a product where they are one."""
        box = self.box(mask)
        return self.rows.take(np.broadcast_to(mask, self.shape).ravel()) if box is None else self.boxed(box)

    def box(self, mask: BoolArray) -> Box | None:
        """Return the part of each dimension of a product that a mask, which broadcasts, holds; None: they are none."""
        if not self.is_product or not mask.any():
            return None
        others = [tuple(one for one in range(mask.ndim) if one != at) for at in range(mask.ndim)]
        places = [np.flatnonzero(mask.any(axis=axes)) for axes in others]
        if math.prod(one.size for one in places) != np.count_nonzero(mask):
            return None
        ends = [slice(int(one[0]), int(one[-1]) + 1) for one in places]  # of places without a gap
        return tuple(
            slice(None) if one.size == n else end if end.stop - end.start == one.size else one
            for one, end, n in zip(places, ends, mask.shape, strict=True)
        )

    def boxed(self, box: Box) -> Configurations:
        """Return those that a part of each dimension holds, of the last ones all where ``box`` is shorter."""

        def held(column: IntArray) -> IntArray:
            for at, one in enumerate(box):
                if column.shape[at] > 1:  # it may be alike along a dimension
                    column = column[(slice(None),) * at + (one,)]
            return column

        return self._each(held)

    def take(self, rows: IntArray | BoolArray | slice) -> Configurations:
        """Return those at positions, where a mask is true, or of a slice, of rows."""
        if self.is_product:
            is_positions = isinstance(rows, np.ndarray) and rows.dtype != np.bool_
            places: Any = rows if is_positions else np.arange(self.size)[rows]
            return self._each(partial(_in_rows, rows=places, shape=self.shape))
        at = rows if isinstance(rows, slice) else np.arange(self.size)[rows]
        return self._each(partial(taken, at=at))

    def one(self, position: int) -> Configuration:
        """Return the configuration at a position as a record."""
        values: dict[str, Any] = {axis.name: int(getattr(self, axis.name)[position]) for axis in AXES}
        return Configuration(**values | {a.name: self.words_of(a)[values[a.name]] for a in AXES if a.words})

    @staticmethod
    def of(configurations: list[Configuration]) -> Configurations:
        """Return records as arrays, in their order."""
        precisions = tuple(dict.fromkeys(c.precision for c in configurations))
        columns = {}
        for axis in AXES:
            words = precisions if axis.name == "precision" else axis.words
            values = [getattr(c, axis.name) for c in configurations]
            columns[axis.name] = np.array([words.index(v) for v in values] if words else values, dtype=np.int64)
        return Configurations(**columns, precisions=precisions)

    @staticmethod
    def joined(parts: list[Configurations]) -> Configurations:
        """Return the configurations of parts with equal ``precisions``, one after another."""
        columns = {a.name: _joined([getattr(part, a.name) for part in parts]) for a in AXES}
        return Configurations(**columns, precisions=parts[0].precisions)

    @staticmethod
    def all_of(parts: list[Any]) -> Configurations:
        """Return the rows of parts that are of one class, one after another."""
        return Configurations.joined(parts)


_PLACED_BY = {*DEGREES, "data_parallel", "gpus_per_node"}


def _placed(columns: dict[str, IntArray], precisions: tuple[str, ...]) -> Configurations:
    """Return rows of columns by axis, and of copies, on as many nodes as they take."""
    gpus = columns.pop("data_parallel") * math.prod(columns[name] for name in DEGREES)
    node = columns["gpus_per_node"]
    node = np.where(gpus <= node, gpus, np.gcd(gpus, node))
    placed = {"nodes": np.asarray(gpus // np.maximum(node, 1)), "gpus_per_node": node}
    return Configurations(**_alike_shaped(columns | placed), precisions=precisions)


def _shape_of(columns: Iterable[IntArray]) -> tuple[int, ...]:
    """Return what columns broadcast to; most have one shape."""
    shapes = {one.shape for one in columns}
    return shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)


def _alike_shaped(columns: dict[str, IntArray]) -> dict[str, IntArray]:
    """Return columns of rows of one shape; those of a product stay as they are."""
    shape = _shape_of(columns.values())
    if len(shape) > 1:
        return {name: one.reshape((1,) * (len(shape) - one.ndim) + one.shape) for name, one in columns.items()}
    return {name: one if one.shape == shape else np.broadcast_to(one, shape) for name, one in columns.items()}


def _row_column(column: IntArray, shape: tuple[int, ...]) -> IntArray:
    """Return the column of rows of an axis of a product."""
    if column.size == 1:
        return np.broadcast_to(column.ravel(), (math.prod(shape),))
    return np.broadcast_to(column, shape).ravel()


def _in_rows(column: Any, rows: IntArray, shape: tuple[int, ...]) -> Any:
    """Return what positions among the rows of a product have of a column that broadcasts to its shape."""
    if column.size == 1:
        return np.broadcast_to(column.ravel()[0], rows.shape)
    places = np.unravel_index(rows, shape)
    return column[tuple(0 if length == 1 else place for length, place in zip(column.shape, places, strict=True))]


def _is_alike(column: IntArray) -> bool:
    """Tell whether a column holds one value once."""
    return column.strides == (0,) and column.size > 0


def _once(column: IntArray) -> IntArray:
    """Return a column, which broadcasts, without repeating a value that is held once."""
    return column[:1] if _is_alike(column) else column


def taken(column: IntArray, at: IntArray | slice) -> IntArray:
    """Return values at positions; one that is held once stays so."""
    if isinstance(at, slice) or not _is_alike(column):
        return column[at]
    is_part = at.ndim == 1 and at.size <= column.size  # which is made faster
    return column[: at.size] if is_part else np.broadcast_to(column[0], at.shape)


def _joined(columns: list[IntArray]) -> IntArray:
    """Return columns one after another; a value that all hold once stays so."""
    if all(map(_is_alike, columns)) and len({int(one[0]) for one in columns}) == 1:
        return np.broadcast_to(columns[0][0], (sum(one.size for one in columns),))
    return np.concatenate(columns)


def splits(plans: Configurations) -> BoolArray:
    """Tell which plans split the network, or keep less than the whole of it, of the plans' shape."""
    differs = [np.not_equal(_once(getattr(plans, axis.name)), axis.code(axis.default)) for axis in SPLIT_AXES]
    return np.broadcast_to(reduce(np.logical_or, differs), plans.shape)


_PASSES = frozenset({"sub_batch", "accumulation_steps"})


class JoinedConfigurations(Configurations):
    """Rows of a block, lawful ones: bases, each with a sub-batch and accumulation steps.

    ``bases``: rows, whose sub-batch and accumulation say nothing; ``base``: ndarray of int, shape (n,), position of the
    base of each.
    """

    __slots__ = ("__dict__", "base", "bases")
    bases: Configurations
    base: IntArray

    def __init__(self, bases: Configurations, base: IntArray, sub_batch: IntArray, steps: IntArray) -> None:
        fields = {"bases": bases, "base": base, "sub_batch": sub_batch, "accumulation_steps": steps}
        for name, value in (fields | {"precisions": bases.precisions}).items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # called for columns that are not gathered yet
        if name not in _NAMES:
            raise AttributeError(name)
        object.__setattr__(self, name, self._gathered(getattr(self.bases, name)))
        return object.__getattribute__(self, name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows."""
        return self.base.shape

    @cached_property
    def gpus(self) -> IntArray:
        """Accelerators in all, shape (n,)."""
        return np.asarray(self.of_bases(lambda bases: bases.gpus))

    @cached_property
    def data_parallel(self) -> IntArray:
        """Copies of the network, shape (n,)."""
        return np.asarray(self.of_bases(lambda bases: bases.data_parallel))

    @cached_property
    def schedule_run(self) -> IntArray:
        """The schedule that runs, shape (n,)."""
        return np.asarray(self.of_bases(lambda bases: bases.schedule_run))

    @property
    def is_laid_out(self) -> BoolArray:
        """Whether what each stage holds, or computes again, follows from what fits, shape (n,)."""
        return np.asarray(self.of_bases(lambda bases: bases.is_laid_out))

    def of_bases(self, function: Callable[[Configurations], Any]) -> Any:
        """Return what a function makes of rows, (n,), which looks at no sub-batch and no accumulation."""
        return self._gathered(function(self.bases))

    def _gathered(self, of_bases: Any) -> Any:
        """Return what the base of every row has, (n,), of an array by base; what is alike for all is held once."""
        if of_bases.strides == (0,) and of_bases.size:
            return taken(of_bases, self.base)
        return of_bases[self.base]

    def with_bases(self, change: Callable[[Configurations], Configurations]) -> Configurations:
        """Return rows that differ in other axes than sub-batch and accumulation."""
        return JoinedConfigurations(change(self.bases), self.base, self.sub_batch, self.accumulation_steps)

    def distinct(self, names: Iterable[str], *more: tuple[IntArray, int]) -> tuple[IntArray, IntArray]:
        """Return :func:`planner.domain.arrays.distinct_rows` of some axes, or properties, and of ``more``."""
        every = tuple(names)
        columns = [getattr(self, name) for name in every if name in _PASSES] + [column for column, _ in more]
        of_bases = [getattr(self.bases, name) for name in every if name not in _PASSES]
        if of_bases:
            columns.insert(0, distinct_rows(*of_bases)[1][self.base])
        return distinct_rows(*columns)

    def take(self, rows: IntArray | BoolArray | slice) -> Configurations:
        """Return those at positions, where a mask is true, or of a slice."""
        own = (one[rows] for one in (self.base, self.sub_batch, self.accumulation_steps))
        return JoinedConfigurations(self.bases, *own)

    def where(self, mask: BoolArray) -> Configurations:
        """Return those where a mask is true."""
        return self.take(np.flatnonzero(mask))

    @staticmethod
    def all_of(parts: Sequence[JoinedConfigurations]) -> JoinedConfigurations:
        """Return rows, one part after another."""
        before = accumulate((one.bases.nodes.size for one in parts), initial=0)
        base = np.concatenate([one.base + first for one, first in zip(parts, before, strict=False)])
        passes = (np.concatenate([getattr(one, name) for one in parts]) for name in ("sub_batch", "accumulation_steps"))
        return JoinedConfigurations(Configurations.joined([one.bases for one in parts]), base, *passes)
