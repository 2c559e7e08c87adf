"""What a family of the zoo declares: how to make a network, and the arguments that it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.domain.network import Network

__all__ = ["Argument", "ZooEntry"]

_COUNT = re.compile("[1-9][0-9]{0,6}")
_FACTOR = re.compile("[0-9]{1,4}([.][0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a network: its values, the default first, and one line on what it does.

    One that ``counts`` takes any whole number from 1 to ``most``, and its default, which may be in words; one that is a
    ``factor`` any number above 0 and up to ``most``, of at most three decimals.
    """

    values: tuple[str, ...]
    doc: str
    counts: bool = False
    most: int = 9999
    factor: bool = False

    @property
    def rule(self) -> str:
        """What it takes, in words."""
        if self.factor:
            return f"a number above 0, at most {self.most}, of at most three decimals, or {self.values[0]}"
        return f"a whole number from 1 to {self.most}" if self.counts else " or ".join(self.values)

    def takes(self, value: str) -> bool:
        """Tell whether a value is one that it takes."""
        if value in self.values or not (self.counts or self.factor):
            return value in self.values
        if self.factor:
            return bool(_FACTOR.fullmatch(value)) and 0 < float(value) <= self.most
        return bool(_COUNT.fullmatch(value)) and int(value) <= self.most


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One network of the zoo.

    ``make`` gets the network's name as the user typed it and the value of every argument, each one of those declared.
    """

    make: Callable[[str, Mapping[str, str]], Network]
    arguments: Mapping[str, Argument] = field(default_factory=dict)
