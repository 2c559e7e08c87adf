"""What a searcher may ask: prices of configurations, and everything about the few that are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.prediction import Prediction, Predictions
from planner.steps.describe import Description
from planner.steps.measured import Deviation

__all__ = ["Evaluator", "PricedPlans"]


class Evaluator(Protocol):
    """Prices configurations; searchers depend on this and not on how it is done."""

    def evaluate(self, configurations: Configurations) -> Predictions:
        """Return the predictions of n configurations as arrays of shape (n,), of a product in the order of its rows."""

    def least_epoch_s(self, configurations: Configurations, *, split: bool, closely: bool = False) -> FloatArray:
        """Return a lower bound of the epoch of every plan that may become of rows [s], shape (n,).

        Rows are synchronous and of one precision. Of a sample without a data set; 0 where no bound is known. Open is
        accumulation, and of plans that split the network not that, but sharding, offloading, fewer virtual stages, all
        recompute where the row has none, and the schedule among those with a bubble, or any where the row's has none;
        ``closely``: with a bound that is closer and takes longer.
        """

    def describe(
        self, configurations: Configurations, window: Callable[[str], tuple[float, float]] | None = None
    ) -> list[Prediction]:
        """Return the predictions with every field; ``window`` gives the accepted mini-batches of a mode."""

    def compare(
        self, configurations: Configurations, window: Callable[[str], tuple[float, float]] | None = None
    ) -> tuple[list[Description], Deviation]:
        """Return the same, worked out when they are read, and how unsure the ratio of two of them is, by position."""


@dataclass(frozen=True, slots=True)
class PricedPlans:
    """n configurations with their predictions."""

    configurations: Configurations
    predictions: Predictions

    @property
    def size(self) -> int:
        """Number of configurations."""
        return self.configurations.size

    def take(self, rows: IntArray | BoolArray | slice) -> PricedPlans:
        """Return those at positions, where a mask is true, or of a slice."""
        arrays = {f.name: getattr(self.predictions, f.name)[rows] for f in fields(Predictions)}
        return PricedPlans(self.configurations.take(rows), Predictions(**arrays))

    def joined(self, other: PricedPlans) -> PricedPlans:
        """Return these, then those of ``other``."""
        columns = {
            f.name: np.concatenate([getattr(self.predictions, f.name), getattr(other.predictions, f.name)])
            for f in fields(Predictions)
        }
        return PricedPlans(Configurations.joined([self.configurations, other.configurations]), Predictions(**columns))
