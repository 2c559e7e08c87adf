"""Times of configurations term by term, gathered from the tables: the one path of evaluating and of describing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.schedule import ONCE
from planner.sources.sources import Sources
from planner.steps.asynchronous import Asynchrony, update_period_s
from planner.steps.compute import Compute
from planner.steps.epoch import Input, InputTimes
from planner.steps.messages import Messages, host_all_reduce_s
from planner.steps.schedule import GPU_THREAD, UPDATE_THREAD, Timed, step_schedule
from planner.steps.synchronous import backward_end_s, exposed_s
from planner.steps.tables import PairTable

__all__ = ["Priced", "Pricer", "asynchrony_of", "deposited"]


@dataclass(frozen=True, slots=True)
class Priced:
    """n configurations of one precision and mode.

    Attributes
    ----------
    threads : thread -> Timed
        Of later epochs; the first thread is the one whose period sets the throughput.
    first_epoch : Timed
        That one in the first epoch.
    memory_bytes : ndarray of float, shape (n,)
    """

    threads: Mapping[str, Timed]
    first_epoch: Timed
    memory_bytes: FloatArray

    @property
    def iteration(self) -> Timed:
        """The thread that sets the throughput, in later epochs."""
        return next(iter(self.threads.values()))

    def take(self, rows: slice) -> Priced:
        """Return part of the configurations."""
        threads = {name: timed.take(rows) for name, timed in self.threads.items()}
        return Priced(threads, self.first_epoch.take(rows), self.memory_bytes[rows])


class Pricer:
    """Prices configurations of one precision and mode; what it tabled stays for later calls."""

    def __init__(self, sources: Sources, precision: str, mode: str, like: Pricer | None = None) -> None:
        self.sources, self.mode = sources, mode
        self.strategy = sources.problem.settings.overlap
        self.compute: Compute = Compute(sources, precision, mode, like.compute if like else None)
        sent_bytes = sources.problem.settings.framework.gradient_bytes(precision)
        self.messages = Messages(sources, (self.compute.slots.elements * sent_bytes).astype(np.float64))
        self.input = Input(sources)
        self._pairs = PairTable(self._outlasting)

    @cached_property
    def parameters(self) -> int:
        """Trained parameters of the network."""
        return int(self.compute.slots.elements.sum())

    def outlasting_s(self, prefix: FloatArray, last_pass: IntArray, message_case: IntArray) -> FloatArray:
        """Return by how much messages outlast a backward pass [s], shape (k,).

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

    def _outlasting(self, last_pass: IntArray, message_case: IntArray) -> FloatArray:
        return self.outlasting_s(self.messages.prefix_s, last_pass, message_case)

    def price(self, chosen: Configurations) -> Priced:
        """Price configurations of this mode whose cases are tabled."""
        return self._asynchronous(chosen) if self.mode == "async" else self._synchronous(chosen)

    def _synchronous(self, chosen: Configurations) -> Priced:
        table, steps = self.compute.table, chosen.accumulation_steps
        further = steps > 1
        if further.any():
            self.compute.check_accumulation()
        row = self.compute.cases.rows(chosen.sub_batch)
        group = self.messages.cases.rows(chosen.nodes, chosen.gpus_per_node)
        schedule = step_schedule(self.strategy)
        run_s = {
            "host_to_device": table.host_to_device_s,
            "forward": table.forward_s,
            "backward": table.backward_s[:, 0],
            "accumulating": table.backward_s[:, 1],
            "update": table.update_s,
        }
        seconds = {
            task.name: run_s[task.name][row] if task.count == ONCE else run_s[task.name][row] * task.count.of(steps)
            for task in schedule.tasks
            if task.name in run_s
        }
        sent = self.messages.prefix_s[group, -1] if self.messages.slot.size else np.zeros(group.shape)
        outlasting = {}
        if self.strategy.overlap:
            outlasting["all_reduce"] = np.where(sent > 0, self._pairs.gather(2 * row + further, group), 0.0)
        share = np.where(chosen.gpus > 1, self.compute.overheads.replica_wait, 0.0)
        first, later = self._loads(chosen)
        shared = {**seconds, "all_reduce": sent, "replica_wait": share}
        step = Timed(schedule, {**shared, "load_input": later.node_s}, outlasting)
        return self._priced({"step": step}, {"load_input": first.node_s}, table.memory_bytes[row])

    def _priced(self, threads: Mapping[str, Timed], first: Mapping[str, FloatArray], memory: FloatArray) -> Priced:
        one = next(iter(threads.values()))
        return Priced(threads, one.changed(first) if self.input.is_cached else one, memory)

    def _loads(self, chosen: Configurations) -> tuple[InputTimes, InputTimes]:
        """Return what loading the samples of a step takes in the first epoch, and in later ones."""
        arguments = (chosen.sub_batch * chosen.accumulation_steps, chosen.gpus_per_node, chosen.nodes)
        first = self.input.times(*arguments, first_epoch=True)
        return first, self.input.times(*arguments, first_epoch=False) if self.input.is_cached else first

    def _asynchronous(self, chosen: Configurations) -> Priced:
        table, row = self.compute.table, self.compute.cases.rows(chosen.sub_batch)
        first, later = ({"load_node_input": load.node_s, "load_input": load.alone_s} for load in self._loads(chosen))
        update_gradient, weights, fixed_sum, summed = (
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
        gpu = Timed(GPU_THREAD, {**later, **computing}, {})
        sent = host_all_reduce_s(self.sources, self.parameters, chosen.nodes)
        per_gradient, fixed = summed - fixed_sum, fixed_sum + sent + weights
        period = update_period_s(fixed, per_gradient, chosen.gpus_per_node, gpu.period_s)
        summing = per_gradient * deposited(period, gpu.period_s, chosen.gpus_per_node) + fixed_sum
        given = {"sum_gradient": summing, "host_all_reduce": sent, "update_weights": weights}
        update = Timed(UPDATE_THREAD, given, {})
        return self._priced({"gpu": gpu, "update": update}, first, table.async_memory_bytes[row])

    def host_s(self, kind: str, buffers: float) -> float:
        """Return a host term [s] where so many gradient buffers are summed."""
        work = {"parameters": float(self.parameters), "buffers": buffers}
        seconds = np.atleast_1d(evaluate(self.sources.host(kind).entry, work))
        return float(self.sources.multiplied(kind, seconds)[0])


def asynchrony_of(chosen: Configurations, priced: Priced) -> Asynchrony:
    """Return the statistics of priced asynchronous configurations."""
    periods = (priced.threads[name].period_s for name in ("gpu", "update"))
    return Asynchrony(chosen.gpus, chosen.sub_batch, *periods)


def deposited(update_s: FloatArray, gpu_s: FloatArray, gpus_per_node: IntArray | int) -> FloatArray:
    """Return the gradients that a node's update thread finds on average, of the common shape."""
    found: FloatArray = np.minimum(update_s / gpu_s, 1.0) * gpus_per_node
    return found
