"""Parts of a space with the least that their plans can take: what a search by bounds goes through.

A part is a data-parallel degree and a sub-batch of plans with a whole network on every device, or a place of those that
split it. Bounds of all parts of a block come from a few vectorised calls (MODEL 10.12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_values
from planner.domain.axes import MODES, SCHEDULES
from planner.domain.configuration import Configurations
from planner.domain.split import BUBBLES
from planner.search.data_block import DataBlock
from planner.search.evaluator import Evaluator
from planner.search.space import Space
from planner.search.split_block import CHUNK, SplitBlock

__all__ = ["Parts", "parts_of"]

Kinds = tuple[int, tuple[str, ...]]
Promises = Callable[[FloatArray, IntArray, IntArray], BoolArray]
"""(least epoch [s], GPUs, mini-batch), shape (n,) each: whether plans with these may be among the best."""


class Parts(Protocol):
    """The parts of one block, k of them."""

    @property
    def gpus(self) -> IntArray:
        """The least GPUs of a plan of each, shape (k,)."""

    @property
    def least_s(self) -> FloatArray:
        """The least epoch of a plan of each [s], without a data set time a sample, shape (k,)."""

    @property
    def unit(self) -> IntArray:
        """What divides the mini-batch of every plan of each [samples], shape (k,); 0 where it is random."""

    def open(self, parts: IntArray, promises: Promises) -> Iterator[Configurations]:
        """Yield the candidates of some parts that may be among the best, some at a time."""


def parts_of(space: Space, evaluator: Evaluator) -> list[Parts]:
    """Return the parts of every block that can be priced."""
    result: list[Parts] = []
    for block, precision in space.open_blocks():
        kinds = precision, space.precisions
        if isinstance(block, SplitBlock):
            result.append(_SplitParts(block, evaluator, kinds))
        else:
            result.append(_Whole(block, kinds) if block.mode == "async" else _DataParts(block, evaluator, kinds))
    return result


@dataclass(frozen=True)
class _Whole:
    """A block of which no bound is known, as one part."""

    block: DataBlock
    kinds: Kinds

    @property
    def gpus(self) -> IntArray:
        return np.ones(1, dtype=np.int64)

    @property
    def least_s(self) -> FloatArray:
        return np.zeros(1)

    @property
    def unit(self) -> IntArray:
        return np.zeros(1, dtype=np.int64)

    def open(self, parts: IntArray, promises: Promises) -> Iterator[Configurations]:  # noqa: ARG002
        for _ in parts:
            yield from self.block.candidates(*self.kinds)


@dataclass(frozen=True)
class _DataParts:
    """Degrees and sub-batches of plans with a whole network on every device."""

    block: DataBlock
    evaluator: Evaluator
    kinds: Kinds

    @property
    def gpus(self) -> IntArray:
        return self.block.copies

    @cached_property
    def least_s(self) -> FloatArray:
        sub_batch, which = np.unique(self.block.pairs.sub_batch, return_inverse=True)
        one = np.ones(sub_batch.size, dtype=np.int64)
        kinds = {"precision": one * self.kinds[0], "mode": one * MODES.index("sync")}
        of_one = Configurations(one, one, sub_batch, one, **kinds, precisions=self.kinds[1])
        return self.evaluator.least_epoch_s(of_one, split=False)[which] / np.maximum(self.gpus, 1)

    @property
    def unit(self) -> IntArray:
        return self.block.copies * self.block.pairs.sub_batch

    def open(self, parts: IntArray, promises: Promises) -> Iterator[Configurations]:  # noqa: ARG002
        yield from self.block.rows(parts, self.kinds)


@dataclass(frozen=True)
class _SplitParts:
    """Places of plans that split the network."""

    block: SplitBlock
    evaluator: Evaluator
    kinds: Kinds

    @property
    def gpus(self) -> IntArray:
        places = self.block.of.places
        return np.asarray(places["nodes"] * places["gpus_per_node"])

    @cached_property
    def least_s(self) -> FloatArray:
        least_s = np.full(self.gpus.size, np.inf)
        for place, _, seconds in self._bounds(np.arange(self._openings["place"].size)):
            np.minimum.at(least_s, place, seconds)
        return least_s

    @property
    def unit(self) -> IntArray:
        return self.block.of.places["data_parallel"]

    @cached_property
    def _openings(self) -> dict[str, IntArray]:
        """What bounds tell apart of the bases of a place: columns of the place and of axes, by place.

        Of the virtual stages the most, and a schedule without a bubble where some base has one.
        """
        of = self.block.of
        place, choice = of.bases
        shares, experts = (of.choices[name][choice] for name in ("sequence_parallel", "expert_parallel"))
        key = (place * 2 + shares) * (int(experts.max(initial=0)) + 1) + experts
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        most, has_none = np.ones(first.size, dtype=np.int64), np.zeros(first.size, dtype=np.bool_)
        np.maximum.at(most, which, of.choices["virtual_stages"][choice])
        np.logical_or.at(has_none, which, ~np.isin(of.choices["schedule"][choice], BUBBLES))
        schedule = np.where(has_none, SCHEDULES.index("zero-bubble"), SCHEDULES.index("1f1b"))
        return {
            "place": place[first], "sequence_parallel": shares[first], "expert_parallel": experts[first],
            "virtual_stages": most, "schedule": schedule,
        }  # fmt: skip

    def _bounds(self, openings: IntArray) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        """Yield of some openings, with every pass: the place, the pass, and the least epoch of such a plan [s]."""
        of, some = self.block.of, {name: column[openings] for name, column in self._openings.items()}
        place = some.pop("place")
        for owner, at in of.with_passes(place):
            columns = {name: column[owner] for name, column in some.items()}
            columns |= {name: column[place[owner]] for name, column in of.places.items() if name != "data_parallel"}
            columns |= {"sub_batch": of.passes[0][at], "accumulation_steps": of.passes[1][at]}
            rows = self.block.configurations(columns, self.kinds)
            yield place[owner], at, self.evaluator.least_epoch_s(rows, split=True)

    def open(self, parts: IntArray, promises: Promises) -> Iterator[Configurations]:
        of = self.block.of
        is_open = np.zeros(self.gpus.size, dtype=np.bool_)
        is_open[parts] = True
        for place, at, seconds in self._bounds(np.flatnonzero(is_open[self._openings["place"]])):
            mini_batch = self.unit[place] * of.passes[0][at] * of.passes[1][at]
            keeps = promises(seconds, self.gpus[place], mini_batch)
            if not keeps.any():
                continue
            passes = of.passes[0].size
            units = distinct_values(place[keeps] * passes + at[keeps])
            for base, unit in self._with_bases(units // passes):
                rows = of.joined(units[unit] // passes, of.bases[1][base], units[unit] % passes)
                yield self.block.configurations(rows, self.kinds)

    def _with_bases(self, place: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield each of some places with each of its bases: positions in both, some CHUNK at a time."""
        starts, stops = (np.searchsorted(self.block.of.bases[0], place, side=side) for side in ("left", "right"))
        ends = np.cumsum(stops - starts)
        for start in range(0, int(ends[-1]), CHUNK):
            flat = np.arange(start, min(start + CHUNK, int(ends[-1])))
            owner = np.searchsorted(ends, flat, side="right")
            yield stops[owner] + flat - ends[owner], owner
