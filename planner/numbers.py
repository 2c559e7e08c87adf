"""Numbers that were chosen on measured rows: the records of ``_bundled/numbers.toml``, shown by docs/numbers.md."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

NUMBERS = Path(__file__).parent / "_bundled" / "numbers.toml"


def constant(name: str) -> float:
    """Return the number of a record, named ``section.record``."""
    return float(_value(name))


def constants(name: str) -> Mapping[str, float]:
    """Return the numbers of a record that has several, by name."""
    return MappingProxyType({key: float(value) for key, value in _value(name).items()})


def _value(name: str) -> Any:
    section, _, record = name.partition(".")
    return _document()[section][record]["value"]


@cache
def _document() -> Mapping[str, Any]:
    return tomllib.loads(NUMBERS.read_text(encoding="utf-8"))
