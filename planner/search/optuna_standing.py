"""What the trials of a study have shown, against which the bound of a plan tells that it need not be priced."""

from __future__ import annotations

from bisect import bisect_left, insort

from planner.search.ranking import SLACK

__all__ = ["Standing"]


class Standing:
    """The plans that satisfy the request, of all that were priced.

    A plan promises nothing once ``keep`` better values of the objective are known, as plans of one value may stand side
    by side; unless it may be the fastest on the fewest GPUs, which efficiencies are relative to, or have a place in the
    front, where one is looked for: there a plan that hits the target rules out all that take longer on as many GPUs or
    more.
    """

    def __init__(self, keep: int, *, wants_front: bool) -> None:
        self._keep, self._wants_front = keep, wants_front
        self._values: list[float] = []
        self._fewest: tuple[int, float] | None = None
        self._hits: dict[int, float] = {}

    @property
    def best(self) -> float | None:
        """The least value; None: no plan satisfies the request so far."""
        return self._values[0] if self._values else None

    def add(self, value: float, gpus: int, *, hits_target: bool) -> None:
        """Count a plan that was priced and satisfies the request."""
        at = bisect_left(self._values, value)
        if at == len(self._values) or self._values[at] != value:
            insort(self._values, value)
        self._fewest = min(self._fewest or (gpus, value), (gpus, value))
        if hits_target:
            self._hits[gpus] = min(self._hits.get(gpus, value), value)

    def is_behind(self, least: float) -> bool:
        """Tell whether plans that have at least this value have ``keep`` better ones before them."""
        return len(self._values) >= self._keep and least > self._values[self._keep - 1] * (1 + SLACK)

    def promises(self, least: float, gpus: int) -> bool:
        """Tell whether a plan on so many GPUs that has at least this value is worth its price."""
        if not self.is_behind(least) or self._fewest is None or (gpus, least) <= self._fewest:
            return True
        faster = (value for of, value in self._hits.items() if of <= gpus and value * (1 + SLACK) < least)
        return self._wants_front and next(faster, None) is None
