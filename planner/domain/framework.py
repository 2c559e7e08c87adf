"""A training framework: the names it goes by, and what it computes otherwise than others."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import ParameterError

__all__ = ["GENERIC", "Framework", "name_and_version"]

GENERIC = "generic"
"""Name of the framework that stands for any other."""
_NAME = re.compile(r"[a-z][a-z0-9._+-]*", re.ASCII)


def name_and_version(framework: str) -> tuple[str, str]:
    """Return the name and the version of ``name@version``; version empty where there is none."""
    name, _, version = framework.partition("@")
    return name, version


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, of a version where one is asked for.

    Attributes
    ----------
    name : str
        In lower case; what coefficients of its overheads are looked up by.
    aliases : tuple of str
        Other names, in lower case.
    input_gradient : bool
        Whether its backward pass ends at the network's input, whose gradient nothing needs.
    source : str
        Where that comes from.
    version : str
        Free text; empty: any.
    """

    name: str
    aliases: tuple[str, ...] = ()
    input_gradient: bool = False
    source: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        for what, names in (("name", (self.name,)), ("aliases", self.aliases)):
            for name in names:
                if not _NAME.fullmatch(name):
                    raise ParameterError(what, "lower-case letters, digits and . _ + -, a letter first", name)

    @property
    def label(self) -> str:
        """``name`` or ``name@version``."""
        return f"{self.name}@{self.version}" if self.version else self.name
