"""Candidates with a whole network on every device: counted by arithmetic, and made where the window holds them.

d: data-parallel degree; n: sub-batch; a: accumulation steps; [lo, hi]: accepted mini-batches.

A candidate is a *place* (a value of every axis but n and a), a sub-batch and accumulation steps. Unless they are asked
for, those of a synchronous place are solved from d·n·a in [lo, hi]: a = ⌈lo / dn⌉ ... ⌊hi / dn⌋. Where there is no such
value, the last one below and the first one above the window are counted: they tell which plans come nearest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.domain.arrays import BoolArray, IntArray
from planner.domain.axes import AXES, MODES
from planner.domain.configuration import DEGREES, Configurations
from planner.errors import Refusal
from planner.search.reasons import ABOVE_WINDOW, ASYNC_ACCUMULATION, BELOW_WINDOW, LARGE_SUB_BATCH, UNEVEN_DEGREES
from planner.search.split_space import check_passes, passes_within

__all__ = ["CHUNK", "SOLVED_AXIS", "DataBlock"]

CHUNK = 2**17
"""Candidates made at once; some 15 MB with their predictions."""
PAIRS = 2**20
"""Degrees and sub-batches counted at once."""
MOST_PAIRS = 2**23
"""Degrees and sub-batches in the window up to which they are searched."""
SOLVED_AXIS = "accumulation_steps"
_PASSES = ("sub_batch", SOLVED_AXIS)
_AXES = {axis.name: axis for axis in AXES}


@dataclass(frozen=True, slots=True)
class _Pairs:
    """k pairs of a degree and a sub-batch, and how many accumulation steps lie below, in and above the window.

    ``degree``: position among the distinct degrees; ``first``: the first steps in the window, or that would be, as a
    value where they are solved, else as a position among those asked for. All of shape (k,).
    """

    degree: IntArray
    sub_batch: IntArray
    first: IntArray
    below: IntArray
    inside: IntArray
    above: IntArray

    def take(self, which: BoolArray | IntArray) -> _Pairs:
        """Return some of them."""
        return _Pairs(*(getattr(self, name)[which] for name in self.__slots__))

    @staticmethod
    def joined(parts: list[_Pairs]) -> _Pairs:
        """Return all pairs of parts."""
        return _Pairs(*(np.concatenate([getattr(one, name) for one in parts]) for name in _Pairs.__slots__))


@dataclass(frozen=True)
class DataBlock:
    """Candidates of one precision and mode.

    Attributes
    ----------
    values : mapping of axis to ndarray of int
        Values of all other axes, ascending; accumulation that is not among them is solved.
    window : tuple of int
        Accepted mini-batches [whole samples].
    precision, mode : str
    refused : Refusal or None
        Why none of them can be priced.
    """

    values: Mapping[str, IntArray]
    window: tuple[int, int]
    precision: str
    mode: str
    refused: Refusal | None = None

    def count(self) -> int:
        """Return the number of candidates, without making them."""
        return self.inside() + sum(self.outside().values())

    def inside(self) -> int:
        """Return how many of them the window holds, or may hold where the mini-batch is random."""
        return self._counts[0]

    def outside(self) -> Mapping[int, int]:
        """Return how many are refused before they are made, by the position in REASONS of the reason."""
        return self._counts[1]

    def candidates(self, precision: int, precisions: tuple[str, ...]) -> Iterator[Configurations]:
        """Yield those in the window, at most CHUNK at a time: products, or rows where a window cuts them out.

        ``precision``: position in ``precisions``, the names of the space.
        """
        kinds = precision, precisions
        if self.mode == "async":
            yield from self._product(self._asynchronous(self._sub_batches_to(self.window[1])), kinds).pieces(CHUNK)
        elif SOLVED_AXIS in self.values and not self.outside():
            yield from self._product(self.values, kinds).pieces(CHUNK)
        else:
            yield from self.rows(np.arange(self.pairs.degree.size), kinds)

    def too_large(self, precision: int, precisions: tuple[str, ...]) -> Iterator[Configurations]:
        """Yield asynchronous candidates whose sub-batch alone is above the window, at most CHUNK at a time."""
        if self.mode == "async":
            tried = self.values["sub_batch"]
            large = self._asynchronous(tried[tried > self.window[1]])
            yield from self._product(large, (precision, precisions)).pieces(CHUNK)

    def near(
        self, precision: int, precisions: tuple[str, ...], target: int, largest: int
    ) -> Iterator[tuple[int, Configurations]]:
        """Yield the synchronous candidates outside the window that are nearest to a target, each side's reason first.

        ``largest``: sub-batch that fits in memory.
        """
        if self.mode == "async":
            return
        tried = self.values["sub_batch"]
        parts = list(self._all_pairs(tried[tried <= largest]))
        pairs = _Pairs.joined(parts) if parts else None
        if pairs is None or not pairs.degree.size:
            return
        unit = self._degrees[pairs.degree] * pairs.sub_batch
        for reason, has, steps in (
            (BELOW_WINDOW, pairs.below > 0, pairs.first - 1),
            (ABOVE_WINDOW, pairs.above > 0, pairs.first + pairs.inside),
        ):
            if not has.any():
                continue
            mini_batch = unit.astype(np.float64) * self._steps(np.where(has, steps, 0))
            far = np.where(has, np.abs(mini_batch - target), np.inf)
            at = np.flatnonzero(far <= far.min() * (1 + 1e-8))  # what rounding may make equal
            ones = np.ones(at.size, dtype=np.int64)
            for rows in self._expanded(pairs.take(at), steps[at], ones, (precision, precisions)):
                yield reason, rows

    def base_columns(self) -> dict[str, IntArray]:
        """Return the axes of a base but for its sub-batch, an ndarray of shape (b,) each."""
        return dict(self._places)

    def passes_of(self, base: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        """Return the sub-batches, and the accumulation of each, with which a base is a candidate to price."""
        tried = self.values["sub_batch"]
        if self.mode == "async":  # the mini-batch is random, and accumulation 1
            tried = tried[(tried <= self.window[1]) & (1 in self.values[SOLVED_AXIS])]
            return tried, np.ones(tried.size, dtype=np.int64)
        copies = base["nodes"] * base["gpus_per_node"] // math.prod(base[name] for name in DEGREES)
        return passes_within(self.window, tried, self.values.get(SOLVED_AXIS), copies)

    @cached_property
    def pairs(self) -> _Pairs:
        """The pairs of which some accumulation lies in the window, of synchronous candidates."""
        parts: list[_Pairs] = []
        for one in self._all_pairs(self.values["sub_batch"]):
            parts.append(one.take(one.inside > 0))
            check_passes(sum(part.degree.size for part in parts), MOST_PAIRS)
        nothing = np.zeros(0, dtype=np.int64)
        return _Pairs.joined(parts) if parts else _Pairs(*(nothing,) * len(_Pairs.__slots__))

    @property
    def copies(self) -> IntArray:
        """Data-parallel degree of each of ``pairs``, shape (k,)."""
        return self._degrees[self.pairs.degree]

    def rows(self, which: IntArray, kinds: tuple[int, tuple[str, ...]]) -> Iterator[Configurations]:
        """Yield the candidates in the window of some of ``pairs``, at most CHUNK at a time."""
        pairs = self.pairs.take(which)
        yield from self._expanded(pairs, pairs.first, pairs.inside, kinds)

    @cached_property
    def _places(self) -> dict[str, IntArray]:
        """Columns of every place."""
        names = [name for name in self.values if name not in _PASSES]
        grid = np.meshgrid(*(self.values[name] for name in names), indexing="ij")
        return {name: column.ravel() for name, column in zip(names, grid, strict=True)}

    @cached_property
    def _by_degree(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return the distinct degrees of places whose GPUs they divide, how many places have each, and which, sorted.

        The last: data-parallel degrees, rounded down, of places whose GPUs they do not divide.
        """
        gpus = self._places["nodes"] * self._places["gpus_per_node"]
        replica = math.prod(self._places[name] for name in DEGREES) if DEGREES else np.ones_like(gpus)
        is_even = gpus % replica == 0
        copies, even = gpus // replica, np.flatnonzero(is_even)
        order = even[np.argsort(copies[even], kind="stable")]
        starts = np.flatnonzero(np.diff(copies[order], prepend=-1))
        return copies[order[starts]], np.diff(starts, append=order.size), order, copies[~is_even]

    @property
    def _degrees(self) -> IntArray:
        return self._by_degree[0]

    @cached_property
    def _counts(self) -> tuple[int, dict[int, int]]:
        """Return how many candidates may be in the window, and how many are refused, by reason."""
        if self.mode == "async":
            return self._asynchronous_counts()
        every = self._counted(self._degrees, self._by_degree[1])
        uneven = self._by_degree[3]
        undivided = sum(self._counted(*np.unique(uneven, return_counts=True)) if uneven.size else ())
        refused = {BELOW_WINDOW: every[0], ABOVE_WINDOW: every[2], UNEVEN_DEGREES: undivided}
        return every[1], {reason: number for reason, number in refused.items() if number}

    def _counted(self, degrees: IntArray, places: IntArray) -> tuple[int, int, int]:
        """Return how many candidates are below, in and above the window, of degrees and the places that have each."""
        total = np.zeros(3, dtype=np.int64)
        tried, steps = self.values["sub_batch"], self.values.get(SOLVED_AXIS)
        for start, part in self._parts(degrees, tried):
            pairs = self._pairs_of(part, start, tried)
            for at, column in enumerate((pairs.below, pairs.inside, pairs.above)):
                total[at] += int((column * places[pairs.degree]).sum())
            missing = (tried.size - self._reached(part, tried)) * (1 if steps is None else steps.size)
            total[2] += int((missing * places[start : start + part.size]).sum())
        below, inside, above = total.tolist()
        return below, inside, above

    def _asynchronous_counts(self) -> tuple[int, dict[int, int]]:
        every = math.prod(values.size for values in self.values.values())
        tried = self.values["sub_batch"]
        alone = math.prod(values.size for values in self._asynchronous(tried).values())
        large = alone // max(tried.size, 1) * int((tried > self.window[1]).sum())
        refused = {ASYNC_ACCUMULATION: every - alone, LARGE_SUB_BATCH: large}
        return alone - large, {reason: number for reason, number in refused.items() if number}

    def _asynchronous(self, sub_batches: IntArray) -> dict[str, IntArray]:
        """Return the values of asynchronous candidates: without what synchronous ones alone do."""
        values = {
            name: some[some == _AXES[name].code(_AXES[name].default)] if _AXES[name].only_sync else some
            for name, some in self.values.items()
        }
        return values | {"sub_batch": sub_batches}

    def _sub_batches_to(self, most: int) -> IntArray:
        tried = self.values["sub_batch"]
        return tried[tried <= most]

    def _product(self, values: Mapping[str, IntArray], kinds: tuple[int, tuple[str, ...]]) -> Configurations:
        codes = {"precision": np.array([kinds[0]]), "mode": np.array([MODES.index(self.mode)])}
        return Configurations.product({**values, **codes}, kinds[1])

    def _all_pairs(self, tried: IntArray) -> Iterator[_Pairs]:
        """Yield the pairs, and of the sub-batches above every window the first."""
        for start, part in self._parts(self._degrees, tried):
            yield self._pairs_of(part, start, tried)
            reached = self._reached(part, tried)
            above = np.flatnonzero(reached < tried.size)
            zero, one = np.zeros(above.size, dtype=np.int64), np.ones(above.size, dtype=np.int64)
            first = one if SOLVED_AXIS not in self.values else zero
            yield _Pairs(start + above, tried[reached[above]], first, zero, zero, one)

    def _parts(self, degrees: IntArray, tried: IntArray) -> Iterator[tuple[int, IntArray]]:
        """Yield degrees, so many that their pairs are PAIRS at most, and the position of the first."""
        ends = np.cumsum(self._reached(degrees, tried))
        start = 0
        while start < degrees.size:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + PAIRS, side="right")))
            yield start, degrees[start:stop]
            start = stop

    def _reached(self, degrees: IntArray, tried: IntArray) -> IntArray:
        """Return how many of the sub-batches, ascending, are not above the window at each degree."""
        steps = self.values.get(SOLVED_AXIS)
        least = 1 if steps is None else int(steps[0])
        return np.searchsorted(tried, self.window[1] // np.maximum(degrees * least, 1), side="right")

    def _pairs_of(self, degrees: IntArray, start: int, tried: IntArray) -> _Pairs:
        """Return the pairs of degrees with the sub-batches that are not above the window."""
        low, high = self.window
        number = self._reached(degrees, tried)
        owner = np.repeat(np.arange(degrees.size), number)
        sub_batch = tried[np.arange(owner.size) - np.repeat(np.cumsum(number) - number, number)]
        unit = np.maximum(degrees[owner], 1) * sub_batch
        first, last = np.maximum(-(-low // unit), 1), high // unit
        steps = self.values.get(SOLVED_AXIS)
        if steps is None:
            inside = np.maximum(last - first + 1, 0)
            misses = (inside == 0).astype(np.int64)
            return _Pairs(start + owner, sub_batch, first, misses * (first > 1), inside, misses)
        begin, end = np.searchsorted(steps, first), np.searchsorted(steps, last, side="right")
        inside = np.maximum(end - begin, 0)
        return _Pairs(start + owner, sub_batch, begin, begin, inside, steps.size - begin - inside)

    def _steps(self, first: IntArray) -> IntArray:
        """Return accumulation steps from positions among those asked for; what is solved is the value itself."""
        asked = self.values.get(SOLVED_AXIS)
        return first if asked is None else asked[first]

    def _expanded(
        self, pairs: _Pairs, first: IntArray, number: IntArray, kinds: tuple[int, tuple[str, ...]]
    ) -> Iterator[Configurations]:
        """Yield every place of pairs with so many accumulation steps from the first, at most CHUNK at a time."""
        _, places, order, _ = self._by_degree
        starts = np.cumsum(places) - places
        ends = np.cumsum(places[pairs.degree] * number)
        for begin in range(0, int(ends[-1]) if ends.size else 0, CHUNK):
            flat = np.arange(begin, min(begin + CHUNK, int(ends[-1])))
            owner = np.searchsorted(ends, flat, side="right")
            within = flat - (ends[owner] - places[pairs.degree[owner]] * number[owner])
            place = order[starts[pairs.degree[owner]] + within // number[owner]]
            columns = {name: column[place] for name, column in self._places.items()}
            columns |= {
                "sub_batch": pairs.sub_batch[owner],
                SOLVED_AXIS: self._steps(first[owner] + within % number[owner]),
            }
            codes = {"precision": kinds[0], "mode": MODES.index(self.mode)}
            columns |= {name: np.broadcast_to(np.int64(code), flat.shape) for name, code in codes.items()}
            yield Configurations(**columns, precisions=kinds[1])
