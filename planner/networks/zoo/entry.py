"""What a family of the zoo declares: how to make a network, and the arguments that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.domain.network import Network

__all__ = ["Argument", "ZooEntry"]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a network: its values, the default first, and one line on what it does."""

    values: tuple[str, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One network of the zoo.

    ``make`` gets the network's name as the user typed it and the value of every argument, each one of those declared.
    """

    make: Callable[[str, Mapping[str, str]], Network]
    arguments: Mapping[str, Argument] = field(default_factory=dict)
