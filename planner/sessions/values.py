"""Which value an option has, and where that comes from: option, ``planner.toml``, default request, default.

Earlier sources win. The merge is the only place that knows their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.domain.request import Sourced

__all__ = ["DEFAULT_REQUEST", "OPTION", "SETTINGS_FILE", "Say", "Values", "listed", "merge", "said"]

OPTION, SETTINGS_FILE, DEFAULT_REQUEST = "option", "planner.toml", "default request"
Values = Mapping[str, Sourced[Any]]


def merge(*layers: Values) -> Values:
    """Return one value each; an earlier layer wins."""
    return {name: value for layer in reversed(layers) for name, value in layer.items()}


def said(values: Values, key: str) -> str:
    """Return an option as the user gave it: its flag, or its key in ``planner.toml``."""
    in_settings = key in values and values[key].source == SETTINGS_FILE
    return f"{key} in {SETTINGS_FILE}" if in_settings else "--" + key.replace("_", "-")


def listed(values: Values, key: str) -> tuple[Any, ...]:
    """Return the values of an option that is, or may be, a list; none where it is absent."""
    if key not in values:
        return ()
    value = values[key].value
    return (value,) if isinstance(value, str) else tuple(value)


Say = Callable[[str], None]
"""Takes a sentence that is not the result."""
