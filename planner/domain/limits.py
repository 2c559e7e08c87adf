"""What may be limited by ``--limit``; nothing here imports NumPy, because ``planner --help`` lists it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["LIMITS", "Limited"]


@dataclass(frozen=True, slots=True)
class Limited:
    """A quantity that may be limited.

    ``words``: in a sentence. ``unit``: of the number that stands in documents. ``of_epoch``: whether it needs a data
    set. ``is_least``: whether a plan must have at least as much, where it may take at most as much of the others.
    """

    words: str
    unit: str
    of_epoch: bool = True
    is_least: bool = False

    @property
    def side(self) -> str:
        """On which side of its limit a plan is refused."""
        return "below" if self.is_least else "above"


LIMITS: Mapping[str, Limited] = {
    "epoch": Limited("epoch time", "s"),
    "gpu-hours": Limited("GPU-hours of an epoch", "h"),
    "cost": Limited("cost of an epoch", "USD"),
    "nodes": Limited("nodes", "", of_epoch=False),
    "staleness": Limited("mean staleness", "", of_epoch=False),
    "window": Limited("share of updates inside the window", "share", of_epoch=False, is_least=True),
}
