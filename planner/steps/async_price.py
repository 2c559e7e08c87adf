"""Asynchronous plans: threads of GPUs, and threads of updates, over what a sub-batch takes of the whole network.

A GPU thread loads its samples, computes their gradient and adds it to a buffer of its node; those of a node read from
the same storage, so that none repeats faster than storage serves all. An update thread sums the gradients of its node,
meets those of other nodes, and updates the weights (:mod:`planner.steps.asynchronous`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.sources.sources import Sources
from planner.steps.asynchronous import Asynchrony, update_period_s
from planner.steps.epoch import Input, InputTimes
from planner.steps.messages import host_all_reduce_s
from planner.steps.split_costs import StepCosts
from planner.steps.split_passes import Passes

__all__ = ["AsyncPricer", "AsyncPrices", "asynchrony_of"]


@dataclass(frozen=True, slots=True)
class AsyncPrices:
    """Asynchronous plans of one precision, n of them or a product, to whose shape arrays broadcast.

    Attributes
    ----------
    computing_s, updating_s : task -> ndarray of float
        What a GPU thread does with a sub-batch once it is there, and what an update thread does, one after another [s].
    load, first_load : InputTimes
        In later epochs, and in the first.
    memory_bytes : ndarray of float
    """

    computing_s: Mapping[str, FloatArray]
    updating_s: Mapping[str, FloatArray]
    load: InputTimes
    first_load: InputTimes
    memory_bytes: FloatArray

    def chain_s(self, load: InputTimes) -> FloatArray:
        """Return what a GPU thread does one after another [s], loading for itself alone."""
        return np.asarray(sum(self.computing_s.values(), load.alone_s))

    @property
    def period_s(self) -> FloatArray:
        """How long a GPU thread takes to repeat, in later epochs [s]."""
        return np.maximum(self.chain_s(self.load), self.load.node_s)

    @property
    def first_period_s(self) -> FloatArray:
        """The same in the first epoch."""
        return np.maximum(self.chain_s(self.first_load), self.first_load.node_s)

    @property
    def update_s(self) -> FloatArray:
        """How long an update thread takes to repeat [s]."""
        return np.asarray(sum(self.updating_s.values()))


class AsyncPricer(StepCosts):
    """Prices asynchronous plans of one precision; what a GPU takes of a sub-batch stays for later calls."""

    def __init__(self, sources: Sources, precision: str, like: StepCosts | None = None) -> None:
        super().__init__(sources, precision, like.compute if like else None, mode="async")
        self.input = Input(sources)

    @property
    def parameters(self) -> int:
        """Trained parameters of the network."""
        return self.compute.ranks[0].program.parameters

    def price(self, plans: Configurations) -> AsyncPrices:
        """Price rows, or a product."""
        passes = Passes(self, plans, self.ranks(plans))
        at = passes.cases.case
        first, later = (
            self.input.times(plans.sub_batch, plans.gpus_per_node, plans.nodes, first_epoch=one)
            for one in (True, not self.input.is_cached)
        )
        computing = {
            "host_to_device": passes.copy_s[at],
            "forward": passes.forward_s[at],
            "backward": passes.backward.first_s[at],
            "update_gradient": np.full(at.shape, self.host_s("update_gradient", 1.0)),
        }
        gpu = AsyncPrices(computing, {}, later, first, self.ledger.totals(plans))
        empty_sum = self.host_s("sum_gradient", 0.0)
        per_gradient = self.host_s("sum_gradient", 1.0) - empty_sum
        all_reduce = host_all_reduce_s(self.sources, self.parameters, plans.nodes)
        weights = self.host_s("update_weights", 1.0)
        period = update_period_s(
            empty_sum + all_reduce + weights, np.full(at.shape, per_gradient), plans.gpus_per_node, gpu.period_s
        )
        gradients = np.minimum(period / gpu.period_s, 1.0) * plans.gpus_per_node
        updating = {
            "sum_gradient": per_gradient * gradients + empty_sum,
            "host_all_reduce": all_reduce,
            "update_weights": np.full(at.shape, weights),
        }
        return AsyncPrices(computing, updating, later, first, gpu.memory_bytes)

    def host_s(self, kind: str, buffers: float) -> float:
        """Return a host term [s] where so many gradient buffers are summed."""
        work = {"parameters": float(self.parameters), "buffers": buffers}
        seconds = np.atleast_1d(evaluate(self.sources.host(kind).entry, work))
        return float(self.sources.multiplied(kind, seconds)[0])


def asynchrony_of(gpus: IntArray, sub_batch: IntArray, prices: AsyncPrices) -> Asynchrony:
    """Return the statistics of priced plans, arrays that broadcast."""
    columns = np.broadcast_arrays(gpus, sub_batch, prices.period_s, prices.update_s)
    return Asynchrony(*columns)
