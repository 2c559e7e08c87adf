"""Parts of a space with the least that their plans can take: what a search by bounds goes through.

A part is a *site* with a sub-batch: a place of plans that split the network, or a data-parallel degree of those with a
whole network on every device. Bounds of all parts of a block come from a few vectorised calls (MODEL 10.12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows, distinct_values
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configurations, splits
from planner.domain.split import BUBBLES
from planner.search.block import Kinds, Plans, Runs, each, members, spans
from planner.search.exhaustive import Progress, Rules
from planner.search.ranking import OUT_OF_MEMORY, SLACK, Evaluator, Order
from planner.search.space import Space

__all__ = ["OpenBounds", "Parts", "least_values", "parts_of"]

_APART = ("virtual_stages", "schedule", "recompute")
"""What tells bases of a site apart besides what their ranks share."""
Promises = Callable[[FloatArray, IntArray, IntArray], BoolArray]
"""(least epoch [s], GPUs, mini-batch), shape (n,) each: whether plans with these may be among the best."""


def parts_of(space: Space, evaluator: Evaluator) -> list[Parts]:
    """Return the parts of every block that can be priced."""
    return [
        (Parts if plans.mode == "sync" else _Unbounded)(plans, evaluator, kinds) for plans, kinds in space.open_blocks()
    ]


@dataclass(frozen=True)
class Parts:
    """The parts of plans in a precision, k of them: of sites each with a run of its data-parallel degree."""

    plans: Plans
    evaluator: Evaluator
    kinds: Kinds

    @property
    def _has_choices(self) -> bool:
        """Whether plans of a site differ in more than what is open in every bound."""
        return not self.plans.bases.counts_outside

    @cached_property
    def _site(self) -> tuple[IntArray, IntArray]:
        """The first base of each site, and the site of each base."""
        bases = self.plans.bases
        return distinct_rows(bases.lawful[0] if self._has_choices else bases.copies)

    @cached_property
    def _columns(self) -> dict[str, IntArray]:
        """Axes of the places of the first base of each site."""
        first, bases = self._site[0], self.plans.bases
        return {name: column[bases.lawful[0][first]] for name, column in bases.places.items()}

    @cached_property
    def _parts(self) -> tuple[IntArray, Runs, IntArray]:
        """The site of each part, the runs of all degrees, and which of them each part has."""
        degrees, which = np.unique(self._columns["data_parallel"], return_inverse=True)
        runs = self.plans.searched(degrees)
        site, run = members(*spans(runs.group, which))
        return site, runs, run

    @cached_property
    def gpus(self) -> IntArray:
        """The least GPUs of a plan of each, shape (k,)."""
        (first, of), bases = self._site, self.plans.bases
        least = np.full(first.size, np.iinfo(np.int64).max)
        np.minimum.at(least, of, bases.column("nodes") * bases.column("gpus_per_node"))
        return least[self._parts[0]]

    @cached_property
    def unit(self) -> IntArray:
        """What divides the mini-batch of every plan of each [samples], 0 where it is random, shape (k,)."""
        site, runs, run = self._parts
        return self._columns["data_parallel"][site] * runs.sub_batch[run]

    @cached_property
    def least_s(self) -> FloatArray:
        """The least epoch of a plan of each [s], without a data set of a sample, shape (k,); 0 where none is known."""
        site = self._parts[0]
        least_s = np.full(site.size, np.inf)
        coarse = self._openings(())
        for part, opening in each(*spans(coarse["site"], site)):
            np.minimum.at(least_s, part, self._bounds(coarse, opening, part, closely=False))
        return least_s

    @cached_property
    def _fine(self) -> tuple[dict[str, IntArray], IntArray, IntArray]:
        """Openings that tell recompute and schedules apart, the bases by opening, and where those of each start."""
        openings = self._openings(_APART)
        bases = np.argsort(openings.pop("which"), kind="stable")
        return openings, bases, np.cumsum(openings["bases"]) - openings["bases"]

    def _openings(self, apart: tuple[str, ...]) -> dict[str, IntArray]:
        """Return what bounds tell apart of the bases of a site: the site and columns of axes, by site.

        Without ``apart``: of the virtual stages the most, a schedule without a bubble where some base has one, and no
        recompute. ``which``: the opening of each base; ``bases``: how many each has.
        """
        of, site = self.plans.bases, self._site[1]
        names = ("sequence_parallel", "expert_parallel", *apart)
        first, which = distinct_rows(site, *map(of.column, names))
        columns = {name: of.column(name, first) for name in (*names, *_APART)}
        if not apart:
            columns["recompute"] = np.zeros(first.size, dtype=np.int64)
            columns["virtual_stages"] = columns["virtual_stages"].copy()  # a column that is alike is read-only
            np.maximum.at(columns["virtual_stages"], which, of.column("virtual_stages"))
            has_none = np.zeros(first.size, dtype=np.bool_)
            np.logical_or.at(has_none, which, ~np.isin(of.column("schedule"), BUBBLES))
            columns["schedule"] = np.where(has_none, SCHEDULES.index("zero-bubble"), SCHEDULES.index("1f1b"))
        return columns | {"site": site[first], "which": which, "bases": np.bincount(which, minlength=first.size)}

    def _bounds(self, openings: dict[str, IntArray], some: IntArray, part: IntArray, *, closely: bool) -> FloatArray:
        """Return the least epoch of plans of some openings, each with the most micro-batches of a part [s]."""
        (site, runs, which), names = self._parts, ("sequence_parallel", "expert_parallel", *_APART)
        run = which[part]
        columns = {name: openings[name][some] for name in names} | {"sub_batch": runs.sub_batch[run]}
        columns["accumulation_steps"] = self.plans.steps(runs.first[run] + runs.inside[run] - 1)
        columns |= {name: one[site[part]] for name, one in self._columns.items() if name != "data_parallel"}
        rows = self.plans.configurations(columns, self.kinds)
        return self.evaluator.least_epoch_s(rows, split=self._has_choices, closely=closely)

    def open(self, parts: IntArray, promises: Promises, progress: Progress) -> Iterator[Configurations]:
        """Yield candidates of some parts that may be among the best, some at a time."""
        (site, runs, run), (openings, bases, starts) = self._parts, self._fine
        gpus, unit, of = self.gpus[parts], self.unit[parts], run[parts]
        if not self._has_choices:  # no bound is closer than that of the part
            part, at = members(*spans(self._site[1][bases], site[parts]))
            yield from self.plans.made(bases[at], runs.sub_batch[of[part]], self.kinds)
            return
        first, last = (self.plans.steps(at) for at in (runs.first[of], runs.first[of] + runs.inside[of] - 1))
        target = self.plans.bases.request.target_batch
        nearest = unit * np.clip(np.rint(target / unit).astype(np.int64), first, last)
        for part, opening in each(*spans(openings["site"], site[parts])):
            whatever = promises(np.full(part.size, np.inf), gpus[part], nearest[part]).all()
            for closely in () if whatever else (False, True):
                seconds = self._bounds(openings, opening, parts[part], closely=closely)
                keeps = promises(seconds, gpus[part], nearest[part])
                part, opening = part[keeps], opening[keeps]  # noqa: PLW2901 - fewer
            for pair, at in each(starts[opening], openings["bases"][opening]):
                some = bases[at], runs.sub_batch[of[part[pair]]], first[part[pair]]
                yield from self._promising(some, promises, progress)

    def _promising(
        self, some: tuple[IntArray, IntArray, IntArray], promises: Promises, progress: Progress
    ) -> Iterator[Configurations]:
        """Yield bases, each with a sub-batch, and steps of which those that do not fit tell that no more of them do."""
        base, sub_batch, steps = some
        fits = progress.rules.fits(self.plans.rows(base, sub_batch, steps, self.kinds))
        progress.counts[OUT_OF_MEMORY] += int(self.plans.span(base[~fits], sub_batch[~fits])[1].sum())
        for rows in self.plans.made(base[fits], sub_batch[fits], self.kinds):
            seconds = self.evaluator.least_epoch_s(rows, split=True, closely=True)
            yield rows.where(promises(seconds, rows.gpus, rows.synchronous_mini_batch))


class _Unbounded(Parts):
    """One part of all plans, of whose epochs and mini-batches nothing is known."""

    gpus = cached_property(lambda _: np.ones(1, dtype=np.int64))
    least_s = cached_property(lambda _: np.zeros(1))
    unit = cached_property(lambda _: np.zeros(1, dtype=np.int64))

    def open(self, *_: object) -> Iterator[Configurations]:
        """Yield all candidates."""
        return self.plans.candidates(self.kinds)


MOST_BOUNDED = 2**18
"""Candidates of which each has its bound; of more those of parts of the space are used."""


def least_values(plans: Configurations, evaluator: Evaluator, order: Order) -> FloatArray:
    """Return a lower bound of the objective of each plan, shape (n,); 0 where none is known."""
    seconds = np.zeros(plans.size)
    kind = np.where(plans.is_async, -1, plans.precision * 2 + plans.of_bases(splits))
    for value in distinct_values(kind[kind >= 0]).tolist():
        rows = np.flatnonzero(kind == value)
        seconds[rows] = evaluator.least_epoch_s(plans.take(rows), split=bool(value % 2), closely=True)
    return order.value_of(seconds, plans.gpus)


@dataclass(frozen=True)
class OpenBounds:
    """What plans of a space that were not tried can reach."""

    space: Space
    evaluator: Evaluator
    order: Order
    rules: Rules

    def least(self, tried: FloatArray) -> float:
        """Return what plans beside those tried take at least, inf where there are none; 0: not known.

        ``tried``: bounds of those that fit in memory, which may differ by rounding.
        """
        number = tried.size if self._is_by_plan else 0
        missing = np.flatnonzero(np.sort(tried)[:number] > self._every[:number] * (1 + SLACK))
        first = int(missing[0]) if missing.size else number
        return float(self._every[first]) if first < self._every.size else np.inf

    @property
    def _is_by_plan(self) -> bool:
        return self.space.inside <= MOST_BOUNDED

    @cached_property
    def _every(self) -> FloatArray:
        """Bounds of all plans that fit in memory, ascending; of more than MOST_BOUNDED those of parts of the space."""
        return np.sort(np.concatenate([np.zeros(0), *self._bounds()]))

    def _bounds(self) -> Iterator[FloatArray]:
        if self._is_by_plan:
            for chunk in self.space.chunks():
                yield least_values(chunk.where(self.rules.fits(chunk)).rows, self.evaluator, self.order)
        else:
            for part in parts_of(self.space, self.evaluator):
                yield self.order.value_of(part.least_s, part.gpus)
