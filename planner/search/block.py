"""Candidates of a mode: counted by arithmetic, and made where the window holds them.

D: data-parallel degree; n: sub-batch; m: accumulation steps; [lo, hi]: accepted mini-batches.

A candidate is a base (:mod:`planner.search.bases`) with a sub-batch and accumulation steps. A *run* is what a sub-batch
has of them with bases of one *group*, which are alike in D and in what steps their schedule runs: unless they are asked
for, D·n·m in [lo, hi] gives ⌈lo / Dn⌉ to ⌊hi / Dn⌋. Where a whole network is on every device, a run of which the window
holds nothing is counted as the last steps below and the first above it: they tell which plans come nearest. The
mini-batch of an asynchronous plan is random: it has one step, and its sub-batch alone must not be above the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.domain.arrays import IntArray, distinct_numbers, distinct_rows, distinct_values
from planner.domain.axes import AXES, MODES
from planner.domain.configuration import LARGEST_MINI_BATCH, Configurations, JoinedConfigurations
from planner.errors import Refusal, UsageError
from planner.search.bases import PASSES, Bases, values_to_try
from planner.search.ranking import ABOVE_WINDOW, ASYNC_ACCUMULATION, BELOW_WINDOW, LARGE_SUB_BATCH, UNEVEN_DEGREES

__all__ = ["CHUNK", "Block", "Kinds", "Plans", "Runs", "each", "members", "spans"]

CHUNK = 2**17
"""Candidates made at once."""
PAIRS = 2**20
"""Runs counted at once."""
MOST_PAIRS = 2**23
"""Runs in the window up to which they are searched."""
MOST_PASSES = 2**17
"""Sub-batches with their accumulation steps, of a data-parallel degree, up to which they are searched."""
_STEPS = 2**31
"""More than any accumulation that is asked for."""
_PRICED_TOGETHER = (
    "sharding", "schedule", "expert_parallel", "sequence_parallel", "tensor_parallel", "pipeline_parallel",
)  # fmt: skip
"""Axes of which bases with the same values follow each other, the last first."""
_ACCUMULATION = next(axis for axis in AXES if axis.name == PASSES[1])
Kinds = tuple[int, tuple[str, ...]]
"""Position of a precision, and the names of those of the space."""


@dataclass(frozen=True, slots=True)
class Runs:
    """k runs, and how many accumulation steps lie below, in and above the window.

    ``group``: its position; ``first``: the first steps in the window, or that would be, as a position, see
    :meth:`Plans.steps`. All of shape (k,).
    """

    group: IntArray
    sub_batch: IntArray
    first: IntArray
    below: IntArray
    inside: IntArray
    above: IntArray

    def take(self, which: IntArray) -> Runs:
        """Return some of them."""
        return Runs(*(getattr(self, name)[which] for name in self.__slots__))

    @staticmethod
    def joined(parts: list[Runs]) -> Runs:
        """Return all runs of parts."""
        nothing = np.zeros(0, dtype=np.int64)
        return Runs(*(np.concatenate([nothing, *(getattr(one, name) for one in parts)]) for name in Runs.__slots__))


@dataclass(frozen=True)
class Plans:
    """Candidates of a mode, whatever their precision; ``sub_batches``: those to try, None: any."""

    bases: Bases
    sub_batches: IntArray | None = None

    @property
    def mode(self) -> str:
        """Of updates."""
        return self.bases.mode

    @property
    def window(self) -> tuple[int, int]:
        """Samples that all copies take in a step, or one of them where the mini-batch is random."""
        low, high = self.bases.window
        return (low, high) if self.mode == "sync" else (1, high)

    def count(self) -> int:
        """Return the number of candidates, without making them."""
        return self.inside() + sum(self.outside().values())

    def inside(self) -> int:
        """Return how many of them the window holds, or may hold where the mini-batch is random."""
        return self._counts[1]

    def outside(self) -> Mapping[int, int]:
        """Return how many are refused before they are made, by the position in REASONS of the reason."""
        if self.sub_batches is None or not self.bases.counts_outside:
            return {}
        below, inside, above = self._counts
        places, lawful = self.bases.places, self.bases.lawful[0]
        if self.mode == "async" and self._asked is not None:
            every = places["nodes"].size * self.sub_batches.size * self._asked.size
            refused = {ASYNC_ACCUMULATION: every - inside - above, LARGE_SUB_BATCH: above}
        else:
            copies, number = np.unique(np.delete(places["data_parallel"], lawful), return_counts=True)
            uneven = sum(self._counted(copies, np.zeros_like(copies), number))
            refused = {BELOW_WINDOW: below, ABOVE_WINDOW: above, UNEVEN_DEGREES: uneven}
        return {reason: number for reason, number in refused.items() if number}

    def candidates(self, kinds: Kinds) -> Iterator[Configurations]:
        """Yield those in the window, at most CHUNK at a time."""
        *groups, group = self.groups
        runs, order = self.searched(*groups), np.lexsort([self.bases.column(name) for name in _PRICED_TOGETHER])
        for owner, run in each(*spans(runs.group, group[order])):
            yield from self.made(order[owner], runs.sub_batch[run], kinds)

    def too_large(self, kinds: Kinds) -> Iterator[Configurations]:
        """Yield asynchronous candidates whose sub-batch alone is above the window, at most CHUNK at a time."""
        if self.mode == "async" and self.sub_batches is not None and self._table.size:
            large = self.sub_batches[self.sub_batches > self.window[1]]
            yield from self._on_bases(np.zeros_like(large), large, np.ones_like(large), kinds)

    def near(self, kinds: Kinds, target: int, largest: int) -> Iterator[tuple[int, Configurations]]:
        """Yield the synchronous candidates outside the window that are nearest to a target, each side's reason first.

        ``largest``: sub-batch that fits in memory.
        """
        if self.mode == "async" or self.sub_batches is None or not self.bases.counts_outside:
            return
        copies, kind, _ = self.groups
        tried = self.sub_batches[self.sub_batches <= largest]
        runs = Runs.joined([*self._all_runs(copies, kind, tried), self._first_above(copies, tried)])
        for reason, has, at in (
            (BELOW_WINDOW, runs.below > 0, runs.first - 1),
            (ABOVE_WINDOW, runs.above > 0, runs.first + runs.inside),
        ):
            if not has.any():
                continue
            steps = self.steps(np.where(has, at, 0))
            mini_batch = (copies[runs.group] * runs.sub_batch).astype(np.float64) * steps
            far = np.where(has, np.abs(mini_batch - target), np.inf)
            some = np.flatnonzero(far <= far.min() * (1 + 1e-8))  # what rounding may make equal
            for rows in self._on_bases(runs.group[some], runs.sub_batch[some], steps[some], kinds):
                yield reason, rows

    def passes_of(self, base: int) -> tuple[IntArray, IntArray]:
        """Return the sub-batches, and the accumulation of each, with which a base is a candidate to price."""
        copies, kind, group = self.groups
        of = group[base : base + 1]
        runs = Runs.joined(list(self._all_runs(copies[of], kind[of])))
        check_passes(int(runs.inside.sum()))
        run, at = members(runs.first, runs.inside)
        return runs.sub_batch[run], self.steps(at, kind[of][runs.group[run]])

    @cached_property
    def groups(self) -> tuple[IntArray, IntArray, IntArray]:
        """The data-parallel degree and the kind of schedule of each group, ascending, and the group of each base."""
        copies, kind = self.bases.copies, self._kinds[1][1:]
        first, group = distinct_rows(copies, kind)
        return copies[first], kind[first], group

    def searched(self, copies: IntArray, kind: IntArray | None = None) -> Runs:
        """Return the runs of groups of which some accumulation lies in the window; raise UsageError for too many.

        Without ``kind``: of a schedule that runs any.
        """
        parts: list[Runs] = []
        for one in self._all_runs(copies, np.full(copies.shape, self._kinds[1][0]) if kind is None else kind):
            parts.append(one.take(np.flatnonzero(one.inside)))
            check_passes(sum(part.group.size for part in parts), MOST_PAIRS)
        return Runs.joined(parts)

    def span(self, base: IntArray, sub_batch: IntArray) -> tuple[IntArray, IntArray]:
        """Return of bases, each with a sub-batch, the first position of steps in the window, and how many there are."""
        copies, kind, group = self.groups
        first, stop = self._span(copies[group[base]], kind[group[base]], sub_batch)
        return first, np.maximum(stop - first, 0)

    def made(self, base: IntArray, sub_batch: IntArray, kinds: Kinds) -> Iterator[Configurations]:
        """Yield bases, each with a sub-batch, with all their steps in the window, at most CHUNK at a time."""
        _, kind, group = self.groups
        for owner, at in each(*self.span(base, sub_batch)):
            of = base[owner]
            yield self.rows(of, sub_batch[owner], self.steps(at, kind[group[of]]), kinds)

    def rows(self, base: IntArray, sub_batch: IntArray, steps: IntArray, kinds: Kinds) -> Configurations:
        """Return bases, each with a sub-batch and accumulation steps."""
        first, which = distinct_numbers((base, self.bases.size))
        none = np.broadcast_to(np.int64(1), first.shape)
        columns = self.bases.columns(base[first]) | dict.fromkeys(PASSES, none)
        return JoinedConfigurations(self.configurations(columns, kinds), which, sub_batch, steps)

    def configurations(self, rows: Mapping[str, IntArray], kinds: Kinds) -> Configurations:
        """Return columns as configurations of the mode and a precision."""
        codes = {"precision": kinds[0], "mode": MODES.index(self.mode)}
        shape = rows["sub_batch"].shape
        more = {name: np.broadcast_to(np.int64(code), shape) for name, code in codes.items()}
        return Configurations(**rows, **more, precisions=kinds[1])

    def steps(self, at: IntArray, kind: IntArray | None = None) -> IntArray:
        """Return accumulation steps from positions: among those asked for that a kind of schedule runs, else of all."""
        if self._asked is None and kind is None:
            return at
        return at * self._kinds[0][0][kind] if self._asked is None else self._table[at] % _STEPS

    @cached_property
    def _asked(self) -> IntArray | None:
        """The accumulation steps that are asked for, ascending; None: any."""
        asked = self.bases.request[_ACCUMULATION.name]
        return None if asked is None and self.mode == "sync" else values_to_try(_ACCUMULATION, asked, {})

    @cached_property
    def _table(self) -> IntArray:
        """The steps asked for that each kind of schedule runs, above those of the kinds before it; ascending."""
        asked = np.zeros(0, dtype=np.int64) if self._asked is None else self._asked
        steps = asked if self.mode == "sync" else asked[asked == 1]
        multiple, least, most = (one[:, None] for one in self._kinds[0])
        every = np.arange(multiple.size)[:, None] * _STEPS + steps
        return np.asarray(every[(steps % multiple == 0) & (steps >= least) & (steps <= most)])

    @cached_property
    def _kinds(self) -> tuple[list[IntArray], IntArray]:
        """Of kinds of schedules: of what steps are a multiple, their least and most; the one that runs any; bases'."""
        any_steps = (1, 1, LARGEST_MINI_BATCH)
        columns = [np.append(one, of) for one, of in zip(any_steps, self.bases.scheduled(), strict=True)]
        first, which = distinct_rows(*columns)
        return [one[first] for one in columns], which

    @cached_property
    def _counts(self) -> tuple[int, int, int]:
        copies, kind, group = self.groups
        return self._counted(copies, kind, np.bincount(group, minlength=copies.size))

    def _counted(self, copies: IntArray, kind: IntArray, bases: IntArray) -> tuple[int, int, int]:
        """Return how many candidates are below, in and above the window, of groups of so many bases each."""
        total = np.zeros(3, dtype=np.int64)
        for runs in self._all_runs(copies, kind):
            total += [int((one * bases[runs.group]).sum()) for one in (runs.below, runs.inside, runs.above)]
        if self.sub_batches is not None:
            steps = 1 if self._asked is None else self._table.size
            total[2] += steps * int(((self.sub_batches.size - self._reached(copies, self.sub_batches)) * bases).sum())
        below, inside, above = total.tolist()
        return below, inside, above

    def _all_runs(self, copies: IntArray, kind: IntArray, tried: IntArray | None = None) -> Iterator[Runs]:
        """Yield the runs of groups that are not above the window, some PAIRS at a time, by group, then sub-batch."""
        table, starts, sizes = self._tried(copies, self.sub_batches if tried is None else tried)
        ends = np.cumsum(sizes)
        start = 0
        while start < copies.size:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + PAIRS, side="right")))
            owner, at = members(starts[start:stop], sizes[start:stop])
            group = start + owner
            runs = self._runs(group, copies[group], kind[group], table[at])
            if self.sub_batches is not None and not self.bases.counts_outside:
                check_passes(int(np.bincount(owner, runs.inside).max(initial=0)))
            yield runs
            start = stop

    def _runs(self, group: IntArray, copies: IntArray, kind: IntArray, sub_batch: IntArray) -> Runs:
        first, stop = self._span(copies, kind, sub_batch)
        inside = np.maximum(stop - first, 0)
        if self._asked is not None:
            return Runs(group, sub_batch, first, first, inside, self._table.size - first - inside)
        misses = (inside == 0).astype(np.int64)
        return Runs(group, sub_batch, first, misses * (first > 1), inside, misses)

    def _span(self, copies: IntArray, kind: IntArray, sub_batch: IntArray) -> tuple[IntArray, IntArray]:
        """Return the first position of steps in the window, and that behind the last, which may be less."""
        unit = np.maximum(copies, 1) * sub_batch
        multiple, least, most = (one[kind] for one in self._kinds[0])
        first = np.maximum(-(-self.window[0] // unit), least)
        last = np.minimum(self.window[1] // unit, most)
        if self._asked is None:
            return -(-first // multiple), last // multiple + 1
        first, last = (kind * _STEPS + np.minimum(one, _STEPS - 1) for one in (first, last))
        return np.searchsorted(self._table, first), np.searchsorted(self._table, last, side="right")

    def _tried(self, copies: IntArray, tried: IntArray | None) -> tuple[IntArray, IntArray, IntArray]:
        """Return sub-batches, and where those of groups that are not above the window start in them, and how many."""
        if tried is not None:
            return tried, np.zeros_like(copies), self._reached(copies, tried)
        degrees, which = np.unique(copies, return_inverse=True)
        parts = [np.zeros(0, dtype=np.int64), *map(self._with_some_steps, degrees.tolist())]
        sizes = np.array([part.size for part in parts])
        return np.concatenate(parts), np.cumsum(sizes)[which], sizes[1:][which]

    def _with_some_steps(self, copies: int) -> IntArray:
        """Return the sub-batches, ascending, of which so many copies take some number of steps within the window."""
        low, high = -(-max(self.window[0], 1) // copies), self.window[1] // copies
        small = np.arange(1, math.isqrt(high) + 1)  # of two factors one is at most the root
        steps = small if self._asked is None else self._asked
        first = -(-low // steps)
        number = np.maximum(high // steps - first + 1, 0)
        check_passes(int(number.sum()))
        return distinct_values(np.concatenate([members(first, number)[1], small]))

    def _reached(self, copies: IntArray, tried: IntArray) -> IntArray:
        """Return how many of the sub-batches, ascending, are not above the window in each group."""
        least = 1 if self._asked is None else int(self._asked[0])
        return np.searchsorted(tried, self.window[1] // np.maximum(copies * least, 1), side="right")

    def _first_above(self, copies: IntArray, tried: IntArray) -> Runs:
        """Return of each group the first sub-batch that is above the window whatever the accumulation."""
        reached = self._reached(copies, tried)
        group = np.flatnonzero(reached < tried.size)
        zero, one = np.zeros_like(group), np.ones_like(group)
        return Runs(group, tried[reached[group]], one if self._asked is None else zero, zero, zero, one)

    def _on_bases(
        self, group: IntArray, sub_batch: IntArray, steps: IntArray, kinds: Kinds
    ) -> Iterator[Configurations]:
        """Yield every base of groups, each with a sub-batch and steps, at most CHUNK at a time."""
        order = np.argsort(self.groups[2], kind="stable")
        for owner, at in each(*spans(self.groups[2][order], group)):
            yield self.rows(order[at], sub_batch[owner], steps[owner], kinds)


@dataclass(frozen=True)
class Block:
    """Plans in a precision; ``refused``: why none of them can be priced."""

    plans: Plans
    precision: str
    refused: Refusal | None = None


def check_passes(number: int, most: int = MOST_PASSES) -> None:
    """Raise UsageError where a window holds more sub-batches with their accumulation steps than are searched."""
    if number > most:
        rule = f"the window must hold at most {most:,} sub-batches with their accumulation steps"
        remedy = "; narrow --tolerance, or give --sub-batch and --accumulation"
        raise UsageError(Refusal("space_size", rule, "the window", f"{number:,}", remedy))


def each(starts: IntArray, sizes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield of some spans the number and the position of each member, some CHUNK at a time."""
    ends = np.cumsum(sizes)
    for start in range(0, int(ends[-1]) if ends.size else 0, CHUNK):
        flat = np.arange(start, min(start + CHUNK, int(ends[-1])))
        owner = np.searchsorted(ends, flat, side="right")
        yield owner, starts[owner] + flat - (ends[owner] - sizes[owner])


def members(starts: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
    """Return of all members of some spans the number of the span and the position."""
    owner = np.repeat(np.arange(sizes.size), sizes)
    return owner, np.arange(owner.size) - (np.cumsum(sizes) - sizes - starts)[owner]


def spans(in_order: IntArray, wanted: IntArray) -> tuple[IntArray, IntArray]:
    """Return where each of some values starts in ascending ones, and how often it stands there."""
    starts = np.searchsorted(in_order, wanted)
    return starts, np.searchsorted(in_order, wanted, side="right") - starts
