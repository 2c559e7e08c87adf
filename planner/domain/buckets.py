"""How a strategy says the size of gradient buckets: one size, a range to choose from, or whatever is best."""

from __future__ import annotations

from planner.errors import ParameterError
from planner.units import parse_quantity

__all__ = ["BUCKETED", "MIB", "WIDEST", "size_words", "strategy_and_sizes"]

BUCKETED = "bucketed"
MIB = 2.0**20
"""In which people say sizes [byte]."""
WIDEST = (2.0**16, 2.0**30)
"""Sizes among which the best is looked for where no range is given [byte]."""


def strategy_and_sizes(text: str, what: str = "--strategy") -> tuple[str, tuple[float, ...]]:
    """Return the name of a strategy and the size of its buckets [byte]: none, one, or the ends of a range.

    >>> strategy_and_sizes("bucketed"), strategy_and_sizes("bucketed:8MiB"), strategy_and_sizes("bucketed:1MiB:4MiB")
    (('bucketed', ()), ('bucketed', (8388608.0,)), ('bucketed', (1048576.0, 4194304.0)))

    Raises
    ------
    ParameterError
        What follows the name is no size, or no range.
    """
    name, *sizes = text.split(":")
    if not sizes:
        return name, ()
    if name != BUCKETED or len(sizes) > 2:
        rule = "of the form bucketed:25MiB, bucketed:1MiB:100MiB or bucketed:best where it says sizes"
        raise ParameterError(what, rule, text)
    if sizes == ["best"]:
        return name, WIDEST
    ends = tuple(parse_quantity(one, "bytes", what) for one in sizes)
    if list(ends) != sorted(set(ends)):
        raise ParameterError(what, "a range whose second size is above its first", text)
    return name, ends


def size_words(size_bytes: float) -> str:
    """Return a size as a strategy takes it, but for the space.

    >>> size_words(160432.128), size_words(25 * MIB)
    ('0.153 MiB', '25 MiB')
    """
    return f"{size_bytes / MIB:.6g} MiB"
