"""Documents as JSON: the order of keys, and what stands on one line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

__all__ = ["WIDEST_TABLE", "dump_json", "json_pieces", "json_scalar", "key_order"]

WIDEST_TABLE = 120
"""Characters up to which a table of plain values stands on one line of JSON."""


def key_order(table: Mapping[str, Any]) -> list[str]:
    """Return keys in the order of files: format, version, then the others sorted."""
    first = [key for key in ("format", "version") if key in table]
    return first + sorted(key for key in table if key not in first)


def dump_json(document: Mapping[str, Any]) -> str:
    """Return a document as JSON.

    ``format`` and ``version`` first, other keys sorted, indented by two, lists of plain values on one line, and tables
    of up to WIDEST_TABLE characters; shortest floats that read back exactly; numbers that are not finite are null.
    """
    return "".join(json_pieces(document))


def json_pieces(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of ``dump_json`` piece by piece: of a long list of tables, a table at a time."""
    yield from _pieces(document, 0)
    yield "\n"


def _pieces(value: Any, depth: int) -> Iterator[str]:
    inside, outside = "\n" + "  " * (depth + 1), "\n" + "  " * depth
    if isinstance(value, Mapping) and not (depth and len(_line(value)) <= WIDEST_TABLE):
        for at, key in enumerate(key_order(value)):
            yield f"{',' if at else '{'}{inside}{_line(str(key))}: "
            yield from _pieces(value[key], depth + 1)
        yield outside + "}" if value else "{}"
    elif _is_list(value) and any(map(_is_nested, value)):
        for at, item in enumerate(value):
            yield f"{',' if at else '['}{inside}{''.join(_pieces(item, depth + 1))}"
        yield outside + "]"
    else:
        yield _line(value)


def _line(value: Any) -> str:
    """Return a value on one line; of a table with more than plain values and lists of them nothing that fits."""
    if _is_list(value):
        return f"[{', '.join(map(json_scalar, value))}]"
    if not isinstance(value, Mapping):
        return json_scalar(value)
    if any(map(_is_nested, chain.from_iterable(one if _is_list(one) else [one] for one in value.values()))):
        return " " * (WIDEST_TABLE + 1)
    return "{" + ", ".join(f"{_line(str(key))}: {_line(value[key])}" for key in key_order(value)) + "}"


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or _is_list(value)


_encode = json.JSONEncoder(ensure_ascii=False).encode


def json_scalar(value: Any) -> str:
    """Return a plain value; null for a number that is not finite."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return "null"
    return _encode(plain)
