"""Which candidates are refused, and why: cheap reasons first, so that only the rest is priced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import MODES, Configurations, splits
from planner.domain.dataset import Dataset
from planner.domain.request import SpaceRequest
from planner.errors import ParameterError
from planner.search.evaluator import PricedPlans
from planner.search.ranking import Order
from planner.search.reasons import ABOVE_WINDOW, BELOW_WINDOW, LAWFUL, OF_LIMIT, keeps
from planner.search.space import Limits, accepted_mini_batches
from planner.search.split_space import SplitLimits

__all__ = ["Rules", "check_target"]


def check_target(request: SpaceRequest, dataset: Dataset | None) -> None:
    """Raise ParameterError where the wanted mini-batch is more than a data set has: an update longer than an epoch."""
    if dataset is not None and request.target_batch > dataset.samples:
        rule = f"at most the {dataset.samples:,} samples of data set {dataset.name}, as an update is part of an epoch"
        raise ParameterError("--target-batch", rule, request.target_batch)


@dataclass(frozen=True, slots=True)
class Rules:
    """The constraints of a request as arrays.

    Attributes
    ----------
    low, high : ndarray of float, shape (modes,), accepted mini-batches [samples], in the order of MODES
    largest_sub_batch : ndarray of int, shape (precisions, modes), in the order of the space's precisions and of MODES;
        of plans that do not split the network
    order : what tells costs
    split : of those that do
    most : mapping of limit to float, what a plan may take at most
    """

    low: FloatArray
    high: FloatArray
    largest_sub_batch: IntArray
    order: Order
    split: SplitLimits | None = None
    most: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(request: SpaceRequest, limits: Limits, precisions: tuple[str, ...], order: Order) -> Rules:
        """Return the rules of a request for a space with these precisions."""
        windows = np.array([accepted_mini_batches(request, mode) for mode in MODES])
        largest = [[limits.fits(precision, mode) for mode in MODES] for precision in precisions]
        return Rules(windows[:, 0], windows[:, 1], np.array(largest, dtype=np.int64), order, limits.split, request.most)

    def fits(self, configurations: Configurations) -> BoolArray:
        """Return whether each sub-batch fits in memory, shape (n,)."""
        largest = self.largest_sub_batch[configurations.precision, configurations.mode]
        fits = np.less_equal(configurations.sub_batch, largest)
        if self.split is not None and (of_split := configurations.of_bases(splits)).any():
            fits[of_split] = self.split.fits(configurations.where(of_split))
        return fits

    def why_not_after_pricing(self, plans: PricedPlans) -> IntArray:
        """Return the reason of each, as positions in REASONS, shape (n,)."""
        configurations = plans.configurations
        window = self._window(configurations, plans.predictions.mini_batch_mean)
        reasons = np.where(configurations.is_async, window, LAWFUL)
        return np.where(reasons == LAWFUL, self.over_limit(plans), reasons)

    def over_limit(self, plans: PricedPlans) -> IntArray:
        """Return the first limit that each exceeds, as positions in REASONS, shape (n,)."""
        over = np.full(plans.size, LAWFUL)
        for name, most in self.most.items():
            over = np.where((over == LAWFUL) & ~keeps(name, plans, self.order, most), OF_LIMIT[name], over)
        return over

    def _window(self, configurations: Configurations, mini_batch: FloatArray | IntArray) -> IntArray:
        low, high = self.low[configurations.mode], self.high[configurations.mode]
        # written so that NaN, which is neither, is refused
        return np.where(mini_batch < low, BELOW_WINDOW, np.where(mini_batch <= high, LAWFUL, ABOVE_WINDOW))
