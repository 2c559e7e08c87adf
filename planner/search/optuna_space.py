"""Lawful plans of a space by their axes, for a sampler that proposes a value an axis.

A plan is a *base* (every axis but the sub-batch and the accumulation; a row of a table) with one of its *passes*, a
sub-batch and an accumulation that the mini-batch allows. What a sampler proposes becomes the nearest plan that was not
tried: axis by axis the bases stay whose value is nearest to the one proposed, then the nearest pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.axes import AXES, MODES
from planner.domain.configuration import Configurations
from planner.domain.request import SpaceRequest
from planner.search.space import Block, Limits, blocks_of

__all__ = ["Domain", "LawfulPlan", "LawfulPlans", "Values"]

_PASSES = ("sub_batch", "accumulation_steps")
Values = Mapping[str, int | str]
"""Axis -> whole number or word, of the axes that differ within a space."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Values of an axis that differ: words, or whole numbers from ``least`` to ``most``."""

    name: str
    words: tuple[str, ...] = ()
    least: int = 1
    most: int = 1


@dataclass(frozen=True, slots=True)
class LawfulPlan:
    """A base, by its row, with a pass."""

    row: int
    sub_batch: int
    accumulation_steps: int


class LawfulPlans:
    """The lawful plans of a request, and which of them were tried.

    Attributes
    ----------
    domains : tuple of Domain
        Of the axes that differ, in the order of AXES. Where the target is one mini-batch, accumulation follows from the
        other axes and has none.
    precisions : tuple of str
        Words of the axis ``precision``.
    """

    def __init__(self, request: SpaceRequest, limits: Limits) -> None:
        blocks, self.precisions = blocks_of(request, limits)
        self._blocks = tuple(one for one in blocks if one.refused is None)
        parts = [self._columns_of(one) for one in self._blocks]
        sizes = [part["nodes"].size for part in parts]
        self._block = np.repeat(np.arange(len(parts)), sizes)
        names = [axis.name for axis in AXES if axis.name not in _PASSES]
        self._columns = {name: np.concatenate([np.zeros(0, int), *(part[name] for part in parts)]) for name in names}
        self._scaled = {name: np.log1p(column) for name, column in self._columns.items()}
        self._open = np.arange(self._block.size)
        self._tried: dict[int, set[tuple[int, int]]] = {}
        self._passes: dict[int, tuple[IntArray, IntArray]] = {}
        self.domains = tuple(self._domains())

    def nearest(self, proposed: Values) -> LawfulPlan | None:
        """Return the plan nearest to a proposal of those that were not tried; None: all were."""
        while self._open.size:
            row = self._nearest_row(proposed)
            n, m = self._passes_of(row)
            tried = self._tried.get(row, set())
            far = [np.abs(np.log(one / int(proposed.get(name, 1)))) for name, one in zip(_PASSES, (n, m), strict=True)]
            for at in np.lexsort(far[::-1]).tolist():
                if (int(n[at]), int(m[at])) not in tried:
                    return LawfulPlan(row, int(n[at]), int(m[at]))
            self._open = self._open[self._open != row]
        return None

    def find(self, values: Values) -> LawfulPlan | None:
        """Return the plan with certain values; None: none of the lawful ones has them."""
        rows = np.arange(self._block.size)
        for domain in self.domains:
            if domain.name not in _PASSES:
                rows = rows[self._columns[domain.name][rows] == self._code(domain.name, values[domain.name])]
        if not rows.size:
            return None
        n, m = self._passes_of(int(rows[0]))
        keeps = np.ones(n.size, dtype=np.bool_)
        for name, column in zip(_PASSES, (n, m), strict=True):
            keeps &= column == values.get(name, column)
        at = np.flatnonzero(keeps)
        return LawfulPlan(int(rows[0]), int(n[at[0]]), int(m[at[0]])) if at.size else None

    def mark(self, plan: LawfulPlan) -> None:
        """Count a plan as tried."""
        self._tried.setdefault(plan.row, set()).add((plan.sub_batch, plan.accumulation_steps))

    def configurations(self, plans: Sequence[LawfulPlan]) -> Configurations:
        """Return plans as arrays, in their order."""
        rows = np.array([one.row for one in plans], dtype=np.int64)
        passes = {name: np.array([getattr(one, name) for one in plans], dtype=np.int64) for name in _PASSES}
        columns = {name: column[rows] for name, column in self._columns.items()}
        return Configurations(**columns, **passes, precisions=self.precisions)

    def values_of(self, configurations: Configurations) -> dict[str, int | str]:
        """Return the values of the first of some configurations."""
        one = configurations.one(0)
        return {domain.name: getattr(one, domain.name) for domain in self.domains}

    def _columns_of(self, block: Block) -> dict[str, IntArray]:
        columns = block.base_columns()
        kinds = {"precision": self.precisions.index(block.precision), "mode": MODES.index(block.mode)}
        return columns | {name: np.full(columns["nodes"].size, code) for name, code in kinds.items()}

    def _domains(self) -> Iterator[Domain]:
        for axis in AXES:
            if axis.name in _PASSES:
                most = self._most(axis.name)
                if most > 1:
                    yield Domain(axis.name, most=most)
                continue
            values = np.unique(self._columns[axis.name])
            if values.size > 1 and axis.words:
                words = self._words(axis.name)
                yield Domain(axis.name, tuple(words[code] for code in values.tolist()))
            elif values.size > 1:
                yield Domain(axis.name, least=int(values[0]), most=int(values[-1]))

    def _most(self, name: str) -> int:
        """Return a bound of the sub-batches, or of the accumulation that does not follow from them."""
        bounds = [1]
        for at, block in enumerate(self._blocks):
            rows = np.flatnonzero(self._block == at)
            if not rows.size:
                continue
            if block.mode == "async":
                bounds += [int(self._passes_of(int(rows[0]))[0].max(initial=1))] if name == "sub_batch" else []
            elif name == "sub_batch" or block.window[0] < block.window[1]:
                columns = {axis: column[rows] for axis, column in self._columns.items()}
                copies = Configurations(
                    **columns, sub_batch=rows, accumulation_steps=rows, precisions=self.precisions
                ).data_parallel
                bounds.append(block.window[1] // max(1, int(copies.min())))
        return max(bounds)

    def _nearest_row(self, proposed: Values) -> int:
        rows = self._open
        for domain in self.domains:
            if domain.name not in _PASSES and rows.size > 1:
                wanted = np.log1p(self._code(domain.name, proposed[domain.name]))
                far = np.abs(self._scaled[domain.name][rows] - wanted)
                rows = rows[far == far.min()]
        return int(rows[0])

    def _passes_of(self, row: int) -> tuple[IntArray, IntArray]:
        if row not in self._passes:
            base = {name: int(column[row]) for name, column in self._columns.items()}
            self._passes[row] = self._blocks[self._block[row]].passes_of(base)
        return self._passes[row]

    def _words(self, name: str) -> tuple[str, ...]:
        return self.precisions if name == "precision" else next(axis.words for axis in AXES if axis.name == name)

    def _code(self, name: str, value: int | str) -> int:
        return self._words(name).index(value) if isinstance(value, str) else value
