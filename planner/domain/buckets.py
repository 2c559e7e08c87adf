"""How a strategy says the size of gradient buckets."""

from __future__ import annotations

from planner.errors import ParameterError
from planner.units import parse_quantity

__all__ = ["BUCKETED", "MIB", "size_words", "strategy_and_size"]

BUCKETED = "bucketed"
MIB = 2.0**20
"""In which people say sizes [byte]."""


def strategy_and_size(text: str, what: str = "--strategy") -> tuple[str, float]:
    """Return the name of a strategy and the size of its buckets [byte]; 0: the framework's own.

    >>> strategy_and_size("bucketed"), strategy_and_size("bucketed:8MiB")
    (('bucketed', 0.0), ('bucketed', 8388608.0))

    ParameterError: what follows the name is no size.
    """
    name, colon, size = text.partition(":")
    if colon and (name != BUCKETED or ":" in size or size == "best"):
        remedy = "best-fusion sends neighbouring gradients together in the fastest way"
        raise ParameterError(what, "of the form bucketed:25MiB where it says a size", text, remedy)
    return name, parse_quantity(size, "bytes", what) if colon else 0.0


def size_words(size_bytes: float) -> str:
    """Return a size as a strategy takes it, but for the space.

    >>> size_words(160432.128), size_words(25 * MIB)
    ('0.153 MiB', '25 MiB')
    """
    return f"{size_bytes / MIB:.6g} MiB"
