"""Rows of a block of a search, without a column of every axis of every row.

A base is all that a plan decides but its sub-batch and its accumulation. A column of rows is gathered when it is first
asked for; what no sub-batch decides is worked out of bases; and distinct rows are told by the numbers of distinct
bases, of which there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, IntArray, distinct_rows
from planner.domain.axes import AXES
from planner.domain.configuration import Configurations

__all__ = ["JoinedConfigurations"]

_AXES = frozenset(axis.name for axis in AXES)
_PASSES = frozenset({"sub_batch", "accumulation_steps"})


class JoinedConfigurations(Configurations):
    """Rows of a block, lawful ones: bases, each with a sub-batch and accumulation steps.

    Attributes
    ----------
    bases : rows, whose sub-batch and accumulation say nothing
    base : ndarray of int, shape (n,), position of the base of each
    """

    __slots__ = ("__dict__", "base", "bases")
    bases: Configurations
    base: IntArray

    def __init__(self, bases: Configurations, base: IntArray, sub_batch: IntArray, steps: IntArray) -> None:
        fields = {"bases": bases, "base": base, "sub_batch": sub_batch, "accumulation_steps": steps}
        for name, value in (fields | {"precisions": bases.precisions}).items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # called for columns that are not gathered yet
        if name not in _AXES:
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
            return np.broadcast_to(of_bases[0], self.base.shape)
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
