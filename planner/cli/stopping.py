"""An exact search that ends at a time limit or an interrupt, with the best so far."""

from __future__ import annotations

import time
from dataclasses import dataclass

from planner.cli.termination import interruption
from planner.domain.request import SpaceRequest
from planner.errors import UsageError
from planner.search.evaluator import Evaluator
from planner.search.exhaustive import Outcome
from planner.search.ranking import Order
from planner.search.search import search
from planner.search.space import Limits

__all__ = ["StoppableSearch"]


@dataclass
class StoppableSearch:
    """A searcher with so much time for all its searches; ``is_interrupted``: whether one was."""

    time_limit_s: float | None = None
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        self._end_s = None if self.time_limit_s is None else time.monotonic() + self.time_limit_s

    def __call__(
        self, request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, *, keep: int, pareto: bool
    ) -> Outcome:
        """Return the best ``keep`` plans, or the best so far."""
        with interruption() as is_asked:

            def stopped() -> bool:
                self.is_interrupted |= is_asked()
                return self.is_interrupted or (self._end_s is not None and time.monotonic() >= self._end_s)

            try:
                outcome = search(request, limits, evaluator, order, keep=keep, pareto=pareto, stopped=stopped)
            except UsageError:
                if is_asked():  # nothing was found yet: there is nothing to tell
                    raise KeyboardInterrupt from None
                raise
            self.is_interrupted |= is_asked()
            return outcome
