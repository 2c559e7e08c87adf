"""Array types and the checks that records share."""

from __future__ import annotations

import copyreg
import math
from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.errors import ParameterError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Argument = TypeVar("_Argument")
_Number = TypeVar("_Number", np.float64, np.int64)

_WIDEST_DIGIT, _LARGEST_KEY = 2**30, 2**62
_MOST_REMEMBERED = 2**8
_WIDE_DIGIT, _MOST_MARKED = 2**5, 2**24
"""Possible values of a column from which on only those that occur are counted; most numbers that are marked."""
_MARKED_AT_LEAST, _MARKED_A_NUMBER = 2**16, 2**6
"""Numbers that are marked in less time than it takes to sort any, and for each that is to be sorted."""

LARGEST_COUNT = 10**9
"""No node count, batch or degree is larger; a typed-in extra digit should not become an array size."""


def distinct_values(values: NDArray[_Number]) -> NDArray[_Number]:
    """Return the distinct values of an array of any shape, ascending, shape (k,); none is not a number.

    As :func:`numpy.unique`, which loads NumPy's masked arrays first.
    """
    in_order = np.sort(values, axis=None)
    is_first = np.ones(in_order.shape, dtype=np.bool_)
    is_first[1:] = in_order[1:] != in_order[:-1]
    return in_order[is_first]


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, rising."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def distinct_rows(*columns: IntArray | FloatArray) -> tuple[IntArray, IntArray]:
    """Return where each distinct row of columns of shape (n,) first stands, shape (k,), and the number of each row's.

    Columns become digits of one whole number. Where few numbers are possible, those that occur are marked; else they
    are sorted once: many times as fast as sorting rows.
    """
    number, possible = np.zeros(columns[0].shape, dtype=np.int64), 1
    if number.size < 2:  # nothing to tell apart
        return number, number.copy()
    for column in columns:
        digit, width = _digits(column)
        if possible * width > _LARGEST_KEY:
            number, possible = _ranked(number, possible)
        if width > 1:
            number, possible = number * width + digit, possible * width
        if possible > _most_marked(number):
            number, possible = _ranked(number, possible)
    return _with_first(number, possible)


def distinct_numbers(*columns: tuple[IntArray, int]) -> tuple[IntArray, IntArray]:
    """Return :func:`distinct_rows` of columns of whole numbers from 0, each with what its numbers stay below."""
    number, possible = columns[0]
    most = _most_marked(number)
    for column, width in columns[1:]:
        if possible * width > most:
            (number, possible), (column, width) = _ranked(number, possible), _ranked(column, width)  # noqa: PLW2901
        if width > 1:
            number, possible = number * width + column, possible * width
    return _with_first(number, possible)


def _with_first(number: IntArray, possible: int) -> tuple[IntArray, IntArray]:
    number, possible = _ranked(number, possible)
    first = np.empty(possible if number.size else 0, dtype=np.int64)
    first[number[::-1]] = np.arange(number.size)[::-1]  # of equal ones the last that is written stays
    return first, number


def _digits(column: IntArray | FloatArray) -> tuple[IntArray, int]:
    """Return whole numbers in the order of a column's values, and what they stay below; of an equal one 1 is all."""
    if column.dtype.kind == "i":
        least, most = (int(column[0]),) * 2 if column.strides == (0,) else (int(column.min()), int(column.max()))
        if (width := most - least + 1) <= _WIDEST_DIGIT:
            digit = column.astype(np.int64) - least if width > 1 else np.zeros(0, dtype=np.int64)
            return _ranked(digit, width) if width > _WIDE_DIGIT else (digit, width)
    values, place = np.unique(column, return_inverse=True)
    return place, values.size


def once_of(function: Callable[[_Argument], _Value]) -> Callable[[_Argument], _Value]:
    """Return a function whose value is worked out once of an object that never changes, such as a frozen record.

    Objects are told apart by identity, which is faster than by what they hold; the last hundreds are remembered.
    """
    known: dict[int, tuple[_Argument, _Value]] = {}

    @wraps(function)
    def remembered(argument: _Argument) -> _Value:
        if id(argument) not in known:
            while len(known) >= _MOST_REMEMBERED:
                known.pop(next(iter(known)))
            known[id(argument)] = argument, function(argument)  # which holds the object, so that no other has its id
        return known[id(argument)][1]

    return remembered


def _most_marked(number: IntArray) -> int:
    return max(_MARKED_AT_LEAST, min(_MARKED_A_NUMBER * number.size, _MOST_MARKED))


def _ranked(number: IntArray, possible: int) -> tuple[IntArray, int]:
    """Return the place of each number from 0 among those that occur, and how many these are."""
    if possible > _most_marked(number):
        values, place = np.unique(number, return_inverse=True)
        return place, values.size
    occurs = np.zeros(possible, dtype=np.bool_)
    occurs[number] = True
    values = np.flatnonzero(occurs)
    if values.size == possible:
        return number, possible
    places = np.empty(possible, dtype=np.int64)
    places[values] = np.arange(values.size)
    return places[number], values.size


def frozen_map(values: Mapping[_Key, _Value]) -> Mapping[_Key, _Value]:
    """Return a read-only copy, which can be pickled."""
    return MappingProxyType(dict(values))


def _pickled_map(values: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return frozen_map, (dict(values),)


copyreg.pickle(MappingProxyType, _pickled_map)


def check_count(what: str, value: object, least: int = 1, most: int = LARGEST_COUNT) -> None:
    """Raise ParameterError unless ``value`` is a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ParameterError(what, f"a whole number from {least} to {most}", value)


def check_positive(what: str, value: float, unit: str) -> None:
    """Raise ParameterError unless ``value`` is finite and above zero."""
    if not (math.isfinite(value) and value > 0):
        raise ParameterError(what, f"a finite number of {unit} above 0", value)


def check_not_negative(what: str, value: float, unit: str) -> None:
    """Raise ParameterError unless ``value`` is finite and at least zero."""
    if not (math.isfinite(value) and value >= 0):
        raise ParameterError(what, f"a finite number of {unit}, at least 0", value)
