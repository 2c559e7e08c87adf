"""Parts of a space with the least that their plans can take: what a search by bounds goes through.

A part is a data-parallel degree and a sub-batch of plans with a whole network on every device, or a place of those that
split it. Bounds of all parts of a block come from a few vectorised calls (MODEL 10.12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.axes import MODES, SCHEDULES
from planner.domain.configuration import Configurations
from planner.domain.split import BUBBLES
from planner.search.evaluator import Evaluator
from planner.search.exhaustive import Progress
from planner.search.reasons import OUT_OF_MEMORY
from planner.search.space import Block, Space
from planner.search.split_block import SplitBlock, each

__all__ = ["Parts", "parts_of"]

_APART = ("virtual_stages", "schedule", "recompute")
"""What tells bases of a place apart besides what their ranks share."""
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
Kinds = tuple[int, tuple[str, ...]]
Promises = Callable[[FloatArray, IntArray, IntArray], BoolArray]
"""(least epoch [s], GPUs, mini-batch), shape (n,) each: whether plans with these may be among the best."""


@dataclass(frozen=True)
class Parts:
    """The parts of one block, k of them.

    Attributes
    ----------
    gpus, least_s, unit : ndarray, shape (k,)
        The least GPUs, and the least epoch [s] (without a data set time a sample), of a plan of each; what divides the
        mini-batch of every plan of each [samples], 0 where it is random.
    open : (parts, promises, progress) -> iterator of Configurations
        Candidates of some parts that may be among the best, some at a time.
    """

    gpus: IntArray
    least_s: FloatArray
    unit: IntArray
    open: Callable[[IntArray, Promises, Progress], Iterator[Configurations]]


def parts_of(space: Space, evaluator: Evaluator) -> list[Parts]:
    """Return the parts of every block that can be priced."""
    return [_parts_of(block, evaluator, (precision, space.precisions)) for block, precision in space.open_blocks()]


def _parts_of(block: Block, evaluator: Evaluator, kinds: Kinds) -> Parts:
    """Return parts of places with a sub-batch, of degrees with one, or of a block of which no bound is known, it."""
    if isinstance(block, SplitBlock):
        of = _SplitParts(block, evaluator, kinds)
        return Parts(of.gpus, of.least_s(), of.unit, of.open)
    if block.mode == "async":
        none = np.zeros(1, dtype=np.int64)
        return Parts(none + 1, np.zeros(1), none, lambda *_: block.candidates(*kinds))
    sub_batch, which = np.unique(block.pairs.sub_batch, return_inverse=True)
    one = np.ones(sub_batch.size, dtype=np.int64)
    codes = {"precision": one * kinds[0], "mode": one * MODES.index("sync")}
    of_one = Configurations(one, one, sub_batch, one, **codes, precisions=kinds[1])
    least_s = evaluator.least_epoch_s(of_one, split=False)[which] / np.maximum(block.copies, 1)
    unit = block.copies * block.pairs.sub_batch
    return Parts(block.copies, least_s, unit, lambda parts, *_: block.rows(parts, kinds))


@dataclass(frozen=True)
class _SplitParts:
    """Places of plans that split the network, each with a sub-batch: its passes follow each other."""

    block: SplitBlock
    evaluator: Evaluator
    kinds: Kinds

    @cached_property
    def gpus(self) -> IntArray:
        places, place = self.block.of.places, self._runs[0]
        return np.asarray((places["nodes"] * places["gpus_per_node"])[place])

    def least_s(self) -> FloatArray:
        """Return that of the most micro-batches of each."""
        place, first, number = self._runs
        least_s = np.full(place.size, np.inf)
        coarse = self._openings(())
        starts, sizes = _spans(coarse["place"], place)
        for part, opening in each(starts, sizes):
            bounds_s = self._bounds(coarse, opening, first[part] + number[part] - 1, closely=False)
            np.minimum.at(least_s, part, bounds_s)
        return least_s

    @cached_property
    def unit(self) -> IntArray:
        of, (place, first, _) = self.block.of, self._runs
        return np.asarray(of.places["data_parallel"][place] * of.passes[0][first])

    @cached_property
    def _runs(self) -> tuple[IntArray, IntArray, IntArray]:
        """The place of each part, its first pass, and how many passes it has."""
        n, _, start, size = self.block.of.passes
        is_first = np.diff(n, prepend=0) != 0
        is_first[start[size > 0]] = True
        first = np.flatnonzero(is_first)
        low, high = np.searchsorted(first, start), np.searchsorted(first, start + size)
        place = np.repeat(np.arange(start.size), high - low)
        run = np.arange(place.size) - np.repeat(np.cumsum(high - low) - high, high - low)
        return place, first[run], np.diff(first, append=n.size)[run]

    @cached_property
    def _fine(self) -> tuple[dict[str, IntArray], IntArray, IntArray]:
        """Openings that tell recompute and schedules apart, the bases by opening, and where those of each start."""
        openings = self._openings(_APART)
        bases = np.argsort(openings.pop("which"), kind="stable")
        return openings, bases, np.cumsum(openings["bases"]) - openings["bases"]

    def _openings(self, apart: tuple[str, ...]) -> dict[str, IntArray]:
        """Return what bounds tell apart of the bases of a place: columns of the place and of axes, by place.

        Without ``apart``: of the virtual stages the most, a schedule without a bubble where some base has one, and no
        recompute. ``which``: the opening of each base; ``bases``: how many each has.
        """
        of = self.block.of
        place, choice = of.bases
        names = ("sequence_parallel", "expert_parallel", *apart)
        first, which = distinct_rows(place, *(of.choices[name][choice] for name in names))
        order = np.argsort(place[first], kind="stable")
        first, which = first[order], np.argsort(order)[which]
        columns = {name: of.choices[name][choice[first]] for name in (*names, *_APART)}
        if not apart:
            columns["recompute"] = np.zeros(first.size, dtype=np.int64)
            np.maximum.at(columns["virtual_stages"], which, of.choices["virtual_stages"][choice])
            has_none = np.zeros(first.size, dtype=np.bool_)
            np.logical_or.at(has_none, which, ~np.isin(of.choices["schedule"][choice], BUBBLES))
            columns["schedule"] = np.where(has_none, SCHEDULES.index("zero-bubble"), SCHEDULES.index("1f1b"))
        return columns | {"place": place[first], "which": which, "bases": np.bincount(which, minlength=first.size)}

    def _bounds(self, openings: dict[str, IntArray], some: IntArray, at: IntArray, *, closely: bool) -> FloatArray:
        """Return the least epoch of plans of some openings, each with a pass [s]."""
        of = self.block.of
        place = openings["place"][some]
        columns = {name: openings[name][some] for name in ("sequence_parallel", "expert_parallel", *_APART)}
        columns |= {name: column[place] for name, column in of.places.items() if name != "data_parallel"}
        columns |= {"sub_batch": of.passes[0][at], "accumulation_steps": of.passes[1][at]}
        return self.evaluator.least_epoch_s(self.block.configurations(columns, self.kinds), split=True, closely=closely)

    def open(self, parts: IntArray, promises: Promises, progress: Progress) -> Iterator[Configurations]:
        of, (openings, bases, starts) = self.block.of, self._fine
        place, first, number = (one[parts] for one in self._runs)
        gpus, unit, m = self.gpus[parts], self.unit[parts], of.passes[1]
        last = first + number - 1
        nearest = unit * np.clip(np.rint(of.request.target_batch / unit).astype(np.int64), m[first], m[last])
        for part, opening in each(*_spans(openings["place"], place)):
            whatever = promises(np.full(part.size, np.inf), gpus[part], nearest[part]).all()
            for closely in () if whatever else (False, True):
                seconds = self._bounds(openings, opening, last[part], closely=closely)
                keeps = promises(seconds, gpus[part], nearest[part])
                part, opening = part[keeps], opening[keeps]  # noqa: PLW2901 - fewer
            for pair, at in each(starts[opening], openings["bases"][opening]):
                yield from self._rows(bases[at], first[part[pair]], number[part[pair]], promises, progress)

    def _rows(
        self, base: IntArray, first: IntArray, number: IntArray, promises: Promises, progress: Progress
    ) -> Iterator[Configurations]:
        """Yield bases with so many passes from a first: what that one does not fit in, the others do not either."""
        of, fits = self.block.of, progress.rules.fits(self.block.joined(base, first, self.kinds))
        for some in (~fits, fits):
            of_some = base[some]
            for owner, at in each(first[some], number[some]):
                runs = of.runs(of_some[owner], at)
                if some is not fits:
                    progress.counts[OUT_OF_MEMORY] += int(runs.sum())
                    continue
                rows = self.block.joined(of_some[owner[runs]], at[runs], self.kinds)
                seconds = self.evaluator.least_epoch_s(rows, split=True, closely=True)
                yield rows.where(promises(seconds, rows.gpus, rows.synchronous_mini_batch))


def _spans(in_order: IntArray, wanted: IntArray) -> tuple[IntArray, IntArray]:
    """Return where each of some values starts in ascending ones, and how often it stands there."""
    starts, stops = (np.searchsorted(in_order, wanted, side=side) for side in _SIDES)
    return starts, stops - starts
