"""Times of configurations term by term, gathered from the tables: the one path of evaluating and of describing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray, IntArray, distinct_values
from planner.domain.calibration import Entry
from planner.domain.configuration import Configurations
from planner.domain.schedule import ONCE
from planner.sources.sources import Sources
from planner.steps.asynchronous import Asynchrony, update_period_s
from planner.steps.best_fusion import Fusion, best_fusion
from planner.steps.compute import Compute
from planner.steps.cycle_fusion import cycle_fusion
from planner.steps.epoch import Input, InputTimes
from planner.steps.messages import Messages, host_all_reduce_s
from planner.steps.schedule import GPU_THREAD, UPDATE_THREAD, TimedSchedule, step_schedule
from planner.steps.synchronous import backward_end_s, exposed_s
from planner.steps.tables import PairTable, distinct_pairs

__all__ = ["Pricer", "Prices", "asynchrony_of", "deposited_gradients"]


@dataclass(frozen=True, slots=True)
class Prices:
    """n configurations of one precision and mode.

    Attributes
    ----------
    threads : thread -> TimedSchedule
        Of later epochs; the first thread is the one whose period sets the throughput.
    first_epoch : TimedSchedule
        That one in the first epoch.
    memory_bytes : ndarray of float, shape (n,)
    """

    threads: Mapping[str, TimedSchedule]
    first_epoch: TimedSchedule
    memory_bytes: FloatArray

    @property
    def iteration(self) -> TimedSchedule:
        """The thread that sets the throughput, in later epochs."""
        return next(iter(self.threads.values()))


class Pricer:
    """Prices configurations of one precision and mode; what it tabled stays for later calls.

    See :class:`planner.steps.messages.Messages` for ``mean_ranks``.
    """

    def __init__(
        self, sources: Sources, precision: str, mode: str, like: Pricer | None = None, mean_ranks: float | None = None
    ) -> None:
        self.sources, self.mode = sources, mode
        self.strategy = sources.problem.settings.overlap
        self.compute: Compute = Compute(sources, precision, mode, like.compute if like else None)
        gradient_bytes = sources.problem.settings.framework.message_bytes(precision)
        by_slot = (self.compute.slots.elements * gradient_bytes).astype(np.float64)
        self.messages = Messages(sources, by_slot, mean_ranks)
        self.input = Input(sources)
        self._pairs = PairTable(self._outlasting)
        self._taken = PairTable(lambda last_pass, case: self.fused_s(last_pass, case, self.messages.places)[1])

    @cached_property
    def parameters(self) -> int:
        """Trained parameters of the network."""
        return int(self.compute.slots.elements.sum())

    def outlasting_s(self, prefix: FloatArray, last_pass: IntArray, message_case: IntArray) -> FloatArray:
        """Return by how much messages outlast a backward pass [s], shape (k,), or (r, q) of cases of (r, 1) and (q,).

        Parameters
        ----------
        prefix : ndarray of float, shape (m, B)
            See :class:`planner.steps.messages.Messages`.
        last_pass : ndarray of int, shape (k,)
            Twice the compute case, and 1 for a pass that adds to gradients.
        message_case : ndarray of int, shape (k,)
        """
        table = self.compute.table
        backward = table.backward_s.ravel()
        ready = table.ready_s.reshape(backward.size, table.ready_s.shape[2])[:, self.messages.slot]
        return exposed_s(backward_end_s(ready, prefix, last_pass, message_case), backward[last_pass])

    def fused_s(
        self, last_pass: IntArray, group: IntArray, places: IntArray, entry: Entry | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return by how much messages that are chosen by what is ready when outlast a backward pass, and take [s].

        Both of the shape that ``last_pass`` and ``group`` broadcast to.

        Parameters
        ----------
        last_pass : ndarray of int
            As of :meth:`outlasting_s`.
        group : ndarray of int
            Position in ``places``.
        places : ndarray of int, shape (g, 2)
            Nodes of groups, and GPUs of each.
        entry : Entry, optional
            What serves the messages; else their own.
        """
        table = self.compute.table
        backward = table.backward_s.ravel()
        ready = table.ready_s.reshape(backward.size, table.ready_s.shape[2])
        last_pass, group = np.broadcast_arrays(last_pass, group)
        ends, taken = np.zeros((2, *group.shape))
        for at in np.unique(group).tolist():
            rows = np.nonzero(group == at)
            sent = self.fusion(ready[last_pass[rows]], int(places[at, 0]), int(places[at, 1]), entry)
            ends[rows], taken[rows] = sent.end_s, sent.taken_s
        return exposed_s(ends, backward[last_pass]), taken

    def fusion(self, ready: FloatArray, nodes: int, gpus_per_node: int, entry: Entry | None = None) -> Fusion:
        """Return the messages of backward passes whose gradients are ready at times of shape (c, J) [s]."""
        together, strategy = self.messages.together_s(nodes, gpus_per_node, entry), self.strategy
        if strategy.best_buckets:
            return best_fusion(ready, together)
        return cycle_fusion(ready, together, self.messages.by_slot, strategy.bucket_bytes, strategy.cycle_s)

    def _outlasting(self, last_pass: IntArray, message_case: IntArray) -> FloatArray:
        if self.strategy.is_timed:
            return self.fused_s(last_pass, message_case, self.messages.places)[0]
        return self.outlasting_s(self.messages.prefix_s, last_pass, message_case)

    def ensure(self, plans: Configurations) -> None:
        """Table the cases of configurations of this mode."""
        sub_batch = distinct_values(plans.sub_batch)
        self.compute.cases.ensure(sub_batch)
        if self.mode == "async":
            return
        groups = distinct_pairs(plans.nodes, plans.gpus_per_node)
        self.messages.cases.ensure(*groups)
        if plans.is_product and self.strategy.overlap:
            last_pass = 2 * self.compute.cases.rows(sub_batch)[:, None] + distinct_values(
                (plans.accumulation_steps > 1).astype(np.int64)
            )
            self._pairs.ensure(last_pass.ravel(), self.messages.cases.rows(*groups))

    def price(self, plans: Configurations) -> Prices:
        """Price configurations of this mode whose cases are tabled."""
        return self._asynchronous(plans) if self.mode == "async" else self._synchronous(plans)

    def _synchronous(self, plans: Configurations) -> Prices:
        table, steps = self.compute.table, plans.accumulation_steps
        further = steps > 1
        if further.any():
            self.compute.check_accumulation()
        row = self.compute.cases.rows(plans.sub_batch)
        group = self.messages.cases.rows(plans.nodes, plans.gpus_per_node)
        schedule = step_schedule(self.strategy)
        stage_s = {
            "host_to_device": table.host_to_device_s,
            "forward": table.forward_s,
            "backward": table.backward_s[:, 0],
            "accumulating": table.backward_s[:, 1],
            "update": table.update_s,
        }
        seconds = {
            task.name: stage_s[task.name][row] if task.count == ONCE else stage_s[task.name][row] * task.count.of(steps)
            for task in schedule.tasks
            if task.name in stage_s
        }
        all_reduce = self.messages.prefix_s[group, -1] if self.messages.slot.size else np.zeros(group.shape)
        if self.strategy.is_timed:
            all_reduce = self._taken.gather(2 * row + further, group)
        outlasting = {}
        if self.strategy.overlap:
            outlasting["all_reduce"] = np.where(all_reduce > 0, self._pairs.gather(2 * row + further, group), 0.0)
        wait_share = np.where(plans.gpus > 1, self.compute.overheads.replica_wait, 0.0)
        first, later = self._loads(plans)
        times = {**seconds, "all_reduce": all_reduce, "replica_wait": wait_share}
        step = TimedSchedule(schedule, {**times, "load_input": later.node_s}, outlasting)
        return self._prices({"step": step}, {"load_input": first.node_s}, table.memory_bytes[row])

    def _prices(
        self, threads: Mapping[str, TimedSchedule], first: Mapping[str, FloatArray], memory: FloatArray
    ) -> Prices:
        thread = next(iter(threads.values()))
        return Prices(threads, thread.changed(first) if self.input.is_cached else thread, memory)

    def _loads(self, plans: Configurations) -> tuple[InputTimes, InputTimes]:
        """Return what loading the samples of a step takes in the first epoch, and in later ones."""
        arguments = (plans.sub_batch * plans.accumulation_steps, plans.gpus_per_node, plans.nodes)
        first = self.input.times(*arguments, first_epoch=True)
        return first, self.input.times(*arguments, first_epoch=False) if self.input.is_cached else first

    def _asynchronous(self, plans: Configurations) -> Prices:
        table, row = self.compute.table, self.compute.cases.rows(plans.sub_batch)
        first, later = ({"load_node_input": load.node_s, "load_input": load.alone_s} for load in self._loads(plans))
        update_gradient, weights, empty_sum, sum_of_one = (
            np.full(row.shape, self.host_s(kind, buffers))
            for kind, buffers in (
                ("update_gradient", 1.0), ("update_weights", 1.0), ("sum_gradient", 0.0), ("sum_gradient", 1.0)
            )
        )  # fmt: skip
        computing = {
            "host_to_device": table.host_to_device_s[row],
            "forward": table.forward_s[row],
            "backward": table.backward_s[row, 0],
            "update_gradient": update_gradient,
        }
        gpu = TimedSchedule(GPU_THREAD, {**later, **computing}, {})
        all_reduce = host_all_reduce_s(self.sources, self.parameters, plans.nodes)
        per_gradient, constant = sum_of_one - empty_sum, empty_sum + all_reduce + weights
        period = update_period_s(constant, per_gradient, plans.gpus_per_node, gpu.period_s)
        summing = per_gradient * deposited_gradients(period, gpu.period_s, plans.gpus_per_node) + empty_sum
        times = {"sum_gradient": summing, "host_all_reduce": all_reduce, "update_weights": weights}
        update = TimedSchedule(UPDATE_THREAD, times, {})
        return self._prices({"gpu": gpu, "update": update}, first, table.async_memory_bytes[row])

    def host_s(self, kind: str, buffers: float) -> float:
        """Return a host term [s] where so many gradient buffers are summed."""
        work = {"parameters": float(self.parameters), "buffers": buffers}
        seconds = np.atleast_1d(evaluate(self.sources.host(kind).entry, work))
        return float(self.sources.multiplied(kind, seconds)[0])


def asynchrony_of(plans: Configurations, prices: Prices, rows: slice = slice(None)) -> Asynchrony:
    """Return the statistics of priced asynchronous plans, of some rows."""
    periods = (prices.threads[name].period_s[rows] for name in ("gpu", "update"))
    return Asynchrony(plans.gpus[rows], plans.sub_batch[rows], *periods)


def deposited_gradients(
    update_s: FloatArray | float, gpu_s: FloatArray | float, gpus_per_node: IntArray | int
) -> FloatArray:
    """Return the gradients that a node's update thread finds on average, of the common shape."""
    gradients: FloatArray = np.minimum(update_s / gpu_s, 1.0) * gpus_per_node
    return gradients
