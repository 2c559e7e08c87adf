"""A device that takes no time, for the measuring loop and what calls it."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from planner.domain.network import Point
from planner.probes.timing import Timing

CALL_S = 0.1
REFERENCE_S = 0.003


class FakeBench:
    """A device whose every point takes 0.1 s to measure, its call 1 us x m; slow between two times, by a factor.

    What has a larger m than ``most`` does not fit.
    """

    def __init__(
        self,
        slow: tuple[float, float] = (0.0, 0.0),
        factor: float = 3.0,
        stop_after: int = 10**9,
        most: float = math.inf,
    ) -> None:
        self.now, self.slow, self.factor, self.stop_after, self.most = 0.0, slow, factor, stop_after, most
        self.timed: list[str] = []

    def _factor(self) -> float:
        return self.factor if self.slow[0] <= self.now < self.slow[1] else 1.0

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def time(self, point: Point) -> Timing | None:
        """Return a call's time."""
        if point.work.get("m", 0) > self.most:
            return None
        if len(self.timed) >= self.stop_after:
            raise KeyboardInterrupt
        self.timed.append(point.name)
        self.now += CALL_S
        return Timing(1e-6 * max(point.work.values()) * self._factor(), 0.0, 5)

    def reference(self) -> float:
        """Return the reference's time."""
        self.now += REFERENCE_S
        return REFERENCE_S * self._factor()


@pytest.fixture
def fake_bench() -> Callable[..., Any]:
    """Return what makes a fake bench."""
    return FakeBench
