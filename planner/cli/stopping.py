"""An exact search that ends at a time limit or an interrupt, with the best so far."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from planner.cli.termination import interruption
from planner.domain.request import SpaceRequest
from planner.errors import UsageError
from planner.search.evaluator import Evaluator
from planner.search.exhaustive import Outcome, Stopped
from planner.search.ranking import Order
from planner.search.search import search
from planner.search.space import Limits

__all__ = ["StoppableSearch"]


@dataclass
class StoppableSearch:
    """A searcher with so much time for all its searches, and a watch over others, which have as much as they need.

    ``is_interrupted``: whether Ctrl-C or SIGTERM came meanwhile; every later search ends at once then.
    """

    time_limit_s: float | None = None
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        self._end_s = None if self.time_limit_s is None else time.monotonic() + self.time_limit_s

    def __call__(
        self, request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, *, keep: int, pareto: bool
    ) -> Outcome:
        """Return the best ``keep`` plans, or the best so far."""
        was_interrupted = self.is_interrupted
        with self.stopping() as stopped:
            outcome = search(request, limits, evaluator, order, keep=keep, pareto=pareto, stopped=stopped)
        return replace(outcome, certified=False) if was_interrupted else outcome

    @contextmanager
    def stopping(self) -> Iterator[Stopped]:
        """Give what says whether the time is over, or an interrupt came; see :meth:`watch`."""
        with self.watch() as is_interrupted:
            yield lambda: is_interrupted() or (self._end_s is not None and time.monotonic() >= self._end_s)

    @contextmanager
    def watch(self) -> Iterator[Stopped]:
        """Give what says whether searches are to end; KeyboardInterrupt where none of them has found anything yet."""
        with interruption() as is_asked:

            def stopped() -> bool:
                self.is_interrupted |= is_asked()
                return self.is_interrupted

            try:
                yield stopped
            except UsageError:
                if stopped():
                    raise KeyboardInterrupt from None
                raise
            stopped()
