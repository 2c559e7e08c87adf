"""Times of configurations term by term, gathered from the tables: the one path of evaluating and of describing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TypeVar

import numpy as np

from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.precision import gradient_bytes
from planner.steps.asynchronous import Asynchrony, update_period_s
from planner.steps.compute import Compute
from planner.steps.epoch import Input
from planner.steps.messages import Messages, host_all_reduce_s
from planner.steps.sources import Sources
from planner.steps.synchronous import backward_end_s, exposed_s
from planner.steps.tables import PairTable

__all__ = ["AsyncTimes", "Pricer", "SyncTimes", "asynchrony_of", "row_of"]


@dataclass(frozen=True, slots=True)
class SyncTimes:
    """Synchronous steps of n configurations; times [s] of all accumulation steps, each of shape (n,).

    ``exposed_s`` is the part of ``all_reduce_s`` that outlasts the backward pass; ``replica_wait_s`` what compute takes
    longer because replicas wait for the slowest of them.
    """

    load_s: FloatArray
    first_load_s: FloatArray
    host_to_device_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray
    all_reduce_s: FloatArray
    exposed_s: FloatArray
    update_s: FloatArray
    replica_wait_s: FloatArray
    iteration_s: FloatArray
    first_iteration_s: FloatArray
    memory_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class AsyncTimes:
    """Asynchronous periods of n configurations and their terms [s], each of shape (n,).

    ``load_s`` and ``first_load_s`` are what loading adds to the GPU thread's period; ``deposited`` the gradients that a
    node's update thread finds on average.
    """

    load_s: FloatArray
    host_to_device_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray
    update_gradient_s: FloatArray
    gpu_s: FloatArray
    first_gpu_s: FloatArray
    sum_gradient_s: FloatArray
    deposited: FloatArray
    all_reduce_s: FloatArray
    update_weights_s: FloatArray
    update_s: FloatArray
    memory_bytes: FloatArray


Times = TypeVar("Times", bound=SyncTimes | AsyncTimes)


def row_of(times: Times, position: int) -> Times:
    """Return the times of one configuration, each of shape (1,)."""
    part = slice(position, position + 1)
    return type(times)(**{f.name: getattr(times, f.name)[part] for f in fields(times)})


class Pricer:
    """Prices configurations of one precision and mode; what it tabled stays for later calls."""

    def __init__(self, sources: Sources, precision: str, mode: str, like: Pricer | None = None) -> None:
        self.sources = sources
        self.compute: Compute = Compute(sources, precision, mode, like.compute if like else None)
        sent_bytes = gradient_bytes(precision, sources.problem.settings.framework)
        self.messages = Messages(sources, (self.compute.slots.elements * sent_bytes).astype(np.float64))
        self.input = Input(sources)
        self._pairs = PairTable(self._outlasting)

    @cached_property
    def parameters(self) -> int:
        """Trained parameters of the network."""
        return int(self.compute.slots.elements.sum())

    def _outlasting(self, last_pass: IntArray, message_case: IntArray) -> FloatArray:
        """Return by how much messages outlast a backward pass [s], for pairs of cases, shape (k,)."""
        table = self.compute.table
        backward = table.backward_s.ravel()
        ready = table.ready_s.reshape(backward.size, table.ready_s.shape[2])[:, self.messages.slot]
        end = backward_end_s(ready, self.messages.prefix_s, last_pass, message_case)
        return exposed_s(end, backward[last_pass])

    def synchronous(self, chosen: Configurations) -> SyncTimes:
        """Price synchronous configurations whose cases are tabled.

        Without overlap everything follows each other; wait-free, input is prefetched and messages leave as gradients
        become ready, or in buckets, as the last gradient of each does: max(t_io, t_h2d + t_f + t_b + exposed + t_u +
        wait).
        Only the last of several sub-batches overlaps; all but the first add to the gradients.
        """
        table, steps = self.compute.table, chosen.accumulation_steps
        again = steps - 1
        if again.any():
            self.compute.check_accumulation()
        row = self.compute.cases.rows(chosen.sub_batch)
        group = self.messages.cases.rows(chosen.nodes, chosen.gpus_per_node)
        no_overlap = self.sources.problem.settings.strategy == "no-overlap"
        messages = self.messages.prefix_s.shape[1]
        all_reduce = self.messages.prefix_s[group, messages - 1] if messages else np.zeros(group.shape)
        exposed = all_reduce if no_overlap else np.where(all_reduce > 0, self._overlaps(row, again, group), 0.0)
        h2d, forward, backward = (
            table.host_to_device_s[row] * steps,
            table.forward_s[row] * steps,
            table.backward_s[row, 0] + table.backward_s[row, 1] * again,
        )
        update = table.update_s[row]
        share = self.compute.overheads.replica_wait
        wait = np.where(chosen.gpus > 1, share * (forward + backward + update), 0.0)
        work = h2d + forward + backward + exposed + update + wait
        first, later = self._loads(chosen, steps * chosen.sub_batch)
        join = np.add if no_overlap else np.maximum
        return SyncTimes(
            later, first, h2d, forward, backward, all_reduce, exposed, update, wait,
            join(later, work), join(first, work), table.memory_bytes[row],
        )  # fmt: skip

    def _overlaps(self, row: IntArray, again: IntArray, group: IntArray) -> FloatArray:
        """Return the exposed communication [s] behind the last backward pass of compute cases."""
        return self._pairs.gather(2 * row + (again > 0), group)

    def _loads(self, chosen: Configurations, samples: IntArray) -> tuple[FloatArray, FloatArray]:
        arguments = (samples, chosen.gpus_per_node, chosen.nodes)
        first = self.input.times(*arguments, first_epoch=True).node_s
        later = self.input.times(*arguments, first_epoch=False).node_s if self.input.is_cached else first
        return first, later

    def asynchronous(self, chosen: Configurations) -> AsyncTimes:
        """Price asynchronous configurations whose sub-batches are tabled.

        A GPU thread's parts follow each other, but no faster than its node can read for all of its threads.
        """
        table = self.compute.table
        row = self.compute.cases.rows(chosen.sub_batch)
        h2d, forward, backward = table.host_to_device_s[row], table.forward_s[row], table.backward_s[row, 0]
        update_gradient = np.full(row.shape, self.host_s("update_gradient", 1.0))
        rest = h2d + forward + backward + update_gradient
        first_gpu, gpu = (self._gpu_s(chosen, rest, first_epoch=first) for first in (True, False))
        fixed_sum, summing = self.host_s("sum_gradient", 0.0), self.host_s("sum_gradient", 1.0)
        update_weights = np.full(row.shape, self.host_s("update_weights", 1.0))
        all_reduce = host_all_reduce_s(self.sources, self.parameters, chosen.nodes)
        fixed = fixed_sum + all_reduce + update_weights
        per_gradient = np.full(row.shape, summing - fixed_sum)
        update = update_period_s(fixed, per_gradient, chosen.gpus_per_node, gpu)
        deposited: FloatArray = np.minimum(update / gpu, 1.0) * chosen.gpus_per_node
        return AsyncTimes(
            gpu - rest, h2d, forward, backward, update_gradient, gpu, first_gpu,
            per_gradient * deposited + fixed_sum, deposited, all_reduce, update_weights, update,
            table.async_memory_bytes[row],
        )  # fmt: skip

    def _gpu_s(self, chosen: Configurations, rest: FloatArray, *, first_epoch: bool) -> FloatArray:
        load = self.input.times(chosen.sub_batch, chosen.gpus_per_node, chosen.nodes, first_epoch=first_epoch)
        return np.maximum(rest + load.alone_s, load.node_s)

    def host_s(self, kind: str, buffers: float) -> float:
        """Return a host term [s] where so many gradient buffers are summed."""
        work = {"parameters": float(self.parameters), "buffers": buffers}
        seconds = np.atleast_1d(evaluate(self.sources.host(kind).entry, work))
        return float(self.sources.multiplied(kind, seconds)[0])


def asynchrony_of(chosen: Configurations, times: AsyncTimes) -> Asynchrony:
    """Return the statistics of priced asynchronous configurations."""
    return Asynchrony(chosen.gpus, chosen.sub_batch, times.gpu_s, times.update_s)
