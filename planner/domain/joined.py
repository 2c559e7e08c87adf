"""Rows of bases and passes: what a block of a search is made of, without a column of every axis of every row.

A base is a place with what is chosen there, a pass a sub-batch with its accumulation. A column of rows is gathered when
it is first asked for; what no pass decides is worked out of bases; and distinct rows are told by the numbers of
distinct bases and of distinct passes, of which there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, IntArray, distinct_numbers, distinct_rows
from planner.domain.axes import AXES
from planner.domain.configuration import Configurations

__all__ = ["JoinedConfigurations", "Pairs", "Passes"]

_AXES = frozenset(axis.name for axis in AXES)


class Passes:
    """Passes that bases are joined with.

    Attributes
    ----------
    columns : mapping of axis to ndarray of int, shape (q,)
        Sub-batch and accumulation.
    """

    def __init__(self, columns: Mapping[str, IntArray]) -> None:
        self.columns = columns
        self._numbers: dict[tuple[str, ...], tuple[IntArray, int]] = {}

    def numbers(self, names: tuple[str, ...]) -> tuple[IntArray, int]:
        """Return the number of each pass among those that differ in some columns, and how many do."""
        if names not in self._numbers:
            first, number = distinct_rows(*(self.columns[name] for name in names))
            self._numbers[names] = number, first.size
        return self._numbers[names]


@dataclass(frozen=True, slots=True)
class Pairs:
    """n pairs of a base and a pass: positions of both, shape (n,)."""

    base: IntArray
    at: IntArray
    passes: Passes

    def column(self, name: str, bases: Configurations) -> IntArray:
        """Return an axis, or a field, of every pair."""
        of_passes = self.passes.columns.get(name)
        return self.gathered(getattr(bases, name)) if of_passes is None else of_passes[self.at]

    def gathered(self, of_bases: Any) -> Any:
        """Return what the base of every pair has, (n,), of an array by base; what is alike for all is held once."""
        if of_bases.strides == (0,) and of_bases.size:
            return np.broadcast_to(of_bases[0], self.base.shape)
        return of_bases[self.base]

    def take(self, rows: IntArray | BoolArray | slice) -> Pairs:
        """Return some of the pairs."""
        return Pairs(self.base[rows], self.at[rows], self.passes)


class JoinedConfigurations(Configurations):
    """Rows of a block: lawful ones, all of which split the network. Columns are gathered when first asked for.

    Attributes
    ----------
    bases : Configurations
        Rows, whose passes say nothing.
    pairs : Pairs
    """

    __slots__ = ("__dict__", "bases", "pairs")
    bases: Configurations
    pairs: Pairs

    def __init__(self, bases: Configurations, pairs: Pairs) -> None:
        for name, value in (("bases", bases), ("pairs", pairs), ("precisions", bases.precisions)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:  # called for columns that are not gathered yet
        if name not in _AXES:
            raise AttributeError(name)
        object.__setattr__(self, name, self.pairs.column(name, self.bases))
        return object.__getattribute__(self, name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows."""
        return self.pairs.base.shape

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

    @property
    def is_split(self) -> BoolArray:
        """That each splits the network, shape (n,)."""
        return np.broadcast_to(np.True_, self.shape)

    def of_bases(self, function: Callable[[Configurations], Any]) -> Any:
        """Return what a function makes of rows, (n,), which looks at no sub-batch and no accumulation."""
        return self.pairs.gathered(function(self.bases))

    def with_bases(self, change: Callable[[Configurations], Configurations]) -> Configurations:
        """Return rows that differ in other axes than sub-batch and accumulation."""
        return JoinedConfigurations(change(self.bases), self.pairs)

    def distinct(self, names: Iterable[str], *more: tuple[IntArray, int]) -> tuple[IntArray, IntArray]:
        """Return :func:`planner.domain.arrays.distinct_rows` of some axes, or properties, and of ``more``."""
        every, passes = tuple(names), self.pairs.passes
        of_bases = [getattr(self.bases, name) for name in every if name not in passes.columns]
        of_passes = tuple(name for name in every if name in passes.columns)
        columns = list(more)
        if of_passes:
            number, size = passes.numbers(of_passes)
            columns.insert(0, (number[self.pairs.at], size))
        if of_bases:
            first, number = distinct_rows(*of_bases)
            columns.insert(0, (number[self.pairs.base], first.size))
        return distinct_numbers(*columns)

    def take(self, rows: IntArray | BoolArray | slice) -> Configurations:
        """Return those at positions, where a mask is true, or of a slice."""
        return JoinedConfigurations(self.bases, self.pairs.take(rows))

    def pieces(self, most: int) -> Iterator[Configurations]:  # noqa: ARG002 - what is priced is fewer distinct cases
        """Yield all of them at once."""
        yield self

    def where(self, mask: BoolArray) -> Configurations:
        """Return those where a mask is true."""
        return self.take(np.flatnonzero(mask))

    @staticmethod
    def all_of(parts: Sequence[JoinedConfigurations]) -> JoinedConfigurations:
        """Return rows that are joined with the same passes, one part after another."""
        sizes = [one.bases.nodes.size for one in parts]
        base = np.concatenate([one.pairs.base + sum(sizes[:at]) for at, one in enumerate(parts)])
        at = np.concatenate([one.pairs.at for one in parts])
        bases = Configurations.joined([one.bases for one in parts])
        return JoinedConfigurations(bases, Pairs(base, at, parts[0].pairs.passes))
