"""Which candidates are refused, and why: cheap reasons first, so that only the rest is priced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.axes import AXES
from planner.domain.configuration import DEGREES, MODES, Configurations
from planner.domain.dataset import Dataset
from planner.domain.request import SpaceRequest
from planner.errors import ParameterError, Refusal
from planner.search.evaluator import PricedPlans
from planner.search.plan_limits import LIMIT_REASONS, limited
from planner.search.ranking import Order
from planner.search.space import Limits, accepted_mini_batches
from planner.search.split_space import SplitLimits

__all__ = [
    "ABOVE_WINDOW",
    "BELOW_WINDOW",
    "LARGE_SUB_BATCH",
    "LAWFUL",
    "OUT_OF_MEMORY",
    "REASONS",
    "Rules",
    "check_target",
]

REASONS = (
    None,
    Refusal("accumulation", "accumulation in an asynchronous plan", "accumulation"),
    Refusal("below_window", "mini-batch below the window", "mini-batch"),
    Refusal("above_window", "mini-batch above the window", "mini-batch"),
    Refusal("memory", "sub-batch larger than fits in memory", "sub-batch"),
    Refusal("above_window", "sub-batch above the window", "sub-batch"),
    Refusal("degrees", "GPUs not a multiple of the degrees of parallelism", "the number of GPUs"),
    *LIMIT_REASONS.values(),
)
"""Why a candidate is refused, by its position in an array of reasons; None keeps it.

A sub-batch above the window is refused in asynchronous plans whatever their mean: an update holds whole sub-batches, so
that every one that is not empty exceeds the window."""

LAWFUL, _ASYNC_ACCUMULATION, BELOW_WINDOW, ABOVE_WINDOW, OUT_OF_MEMORY, LARGE_SUB_BATCH, _UNEVEN_DEGREES = range(7)
_OF_LIMIT = {name: at for at, name in enumerate(LIMIT_REASONS, start=7)}
"""Limit -> position in REASONS of what exceeds it."""


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
    low, high : ndarray of float, shape (modes,)
        Accepted mini-batches [samples], in the order of MODES.
    largest_sub_batch : ndarray of int, shape (precisions, modes)
        In the order of the space's precisions and of MODES; of plans that do not split the network.
    order : Order
        What tells costs.
    split : SplitLimits or None
        Of those that do.
    most : mapping of limit to float
        What a plan may take at most.
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
        whole = np.less_equal(configurations.sub_batch, largest)
        is_split = configurations.is_split
        if self.split is None or not is_split.any():
            return whole
        result = np.broadcast_to(whole, configurations.shape).copy()
        where = np.broadcast_to(is_split, configurations.shape)
        result[where] = self.split.fits(configurations.where(where).rows)
        return result

    def why_not_before_pricing(self, configurations: Configurations) -> IntArray:
        """Return the reason of each that needs no price, as positions in REASONS, shape (n,)."""
        is_async = configurations.is_async
        window = np.where(is_async, LAWFUL, self._window(configurations, configurations.synchronous_mini_batch))
        not_alone = [getattr(configurations, a.name) != configurations.code(a, a.default) for a in AXES if a.only_sync]
        accumulates = is_async & reduce(np.logical_or, not_alone)
        too_large = is_async & (configurations.sub_batch > self.high[configurations.mode])
        if DEGREES:
            window = np.where(configurations.gpus % configurations.replica_gpus, _UNEVEN_DEGREES, window)
        reasons = np.where(accumulates, _ASYNC_ACCUMULATION, np.where(too_large, LARGE_SUB_BATCH, window))
        return np.where((reasons == LAWFUL) & ~self.fits(configurations), OUT_OF_MEMORY, reasons)

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
            over = np.where((over == LAWFUL) & ~(limited(name, plans, self.order) <= most), _OF_LIMIT[name], over)
        return over

    def _window(self, configurations: Configurations, mini_batch: FloatArray | IntArray) -> IntArray:
        low, high = self.low[configurations.mode], self.high[configurations.mode]
        # written so that NaN, which is neither, is refused
        return np.where(mini_batch < low, BELOW_WINDOW, np.where(mini_batch <= high, LAWFUL, ABOVE_WINDOW))
