"""What plans of one precision and mode share: what the network sends by, and what serves it.

Times of messages between devices: any operation, one buffer a group or several.

Derivatives of collectives by their coefficients, and the all-reduce between hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from planner.costs.collectives import ALPHA_BETA, all_reduce_s, collective_s
from planner.domain.arrays import FloatArray, IntArray, distinct_rows
from planner.domain.calibration import Entry
from planner.domain.configuration import RANK_AXES, SHARD_AXES, Configurations
from planner.domain.messages import ALL_REDUCE, OVERLAP, PARAMETER_SERVER, Groups
from planner.domain.precision import precision_named
from planner.numbers import constant
from planner.sources.source import Source
from planner.sources.sources import Sources
from planner.steps.compute import ComputeCases, UnitTable, host_s, memory_rules, scaled, term_of
from planner.steps.host_and_gpu import TOGETHER, WITH_RECOMPUTE, together_s
from planner.steps.tables import RowTable
from planner.workload.memory import Memory
from planner.workload.placement import Placement
from planner.workload.split_messages import EXCHANGED, RING, MessageRules, NetworkSends, network_sends

_PLACED_BY = (*RANK_AXES.values(), "gpus_per_node")


class Ring(NamedTuple):
    """Where gradients of all copies of a network go around, other than on their own nodes: of so many ranks each."""

    sources: Sources
    ranks_per_node: float


class StepCosts:
    """What plans of one precision and mode share.

    Attributes
    ----------
    gradient_bytes : of an element, as it is sent
    rank_order : how ranks are numbered, innermost first
    chooses_order : whether each plan has the order that is fastest for it instead
    gradient_operation : by which ranks sum gradients that all of them update
    gradient_entry : what serves the sum of gradients in place of its own entry
    slot_exchange : how gradients of slots are exchanged, a kind of :class:`planner.steps.step_part.SlotExchange`
    slowdown : float
        ς, by how much kernels take longer beside messages: of t_c beside t_m they take max(t_m, t_c + (1 - 1/ς) t_m).
    overlaps_tensor : whether messages of tensor ranks run beside products of the backward pass
    """

    slot_exchange: Any

    def __init__(
        self, sources: Sources, precision: str, compute: ComputeCases | None = None, *, mode: str = "sync"
    ) -> None:
        self.sources, self.precision, self.mode = sources, precision, mode
        self.compute: ComputeCases = compute or ComputeCases(sources, precision)
        self.overheads = sources.overheads(precision, mode)
        settings = sources.problem.settings
        framework = settings.framework
        self.strategy = settings.overlap
        self.gradient_bytes = float(framework.message_bytes(precision))
        self.rank_order, self.chooses_order = settings.placed_by, settings.chooses_order
        self.ledger = Memory(sources.problem.network, memory_rules(sources, precision, mode))
        self.parameter = self.ledger.rules.parameter
        self.overlaps_tensor = framework.overlaps_tensor
        by_kernels = sources.accelerator.kind == "gpu" and framework.sends_by == "kernels" and not self.strategy.servers
        measured = sources.cluster_entry("collectives", OVERLAP)
        self.slowdown = SLOWDOWN if by_kernels else 1.0
        if measured is not None and not self.strategy.servers:
            self.slowdown = max(1.0, measured.entry.coefficients["beside_s"])
        self.ring: Ring | None = None
        self._of_rows: dict[OfRows, RowTable] = {}
        self.gradient_entry: Entry | None = None
        self.gradient_operation = PARAMETER_SERVER if self.strategy.servers else ALL_REDUCE
        self.sends: NetworkSends = network_sends(sources.problem.network)
        itemsize = precision_named(precision).activation_bytes
        way = EXCHANGED if framework.context == "heads" else RING
        self.message_rules = MessageRules(itemsize, way, scatters_boundary=framework.scatters_boundary)

    def ranks(self, plans: Configurations) -> IntArray:
        """Return the rank of each plan in ``compute``, shape (n,)."""
        first, which = plans.distinct(SHARD_AXES)
        some = plans.take(first)
        degrees = zip(*(getattr(some, name).tolist() for name in SHARD_AXES), strict=True)
        return np.array([self.compute.rank_of(*each) for each in degrees], dtype=np.int64)[which]

    def samples_read(self, plans: Configurations) -> IntArray:
        """Return the samples of a micro-batch that one device reads, of the shape of the plans."""
        return plans.sub_batch

    def sent(self, cases: Any, row: IntArray) -> Mapping[str, Any]:  # noqa: ARG002 - of one kind of plans
        """Return what messages between parts of a network take by term, of the stages of cases; empty: by blocks.

        Of :class:`planner.steps.passes.Sent` each; ``row``: of each case in the table of compute.
        """
        return {}

    def placement(self, plans: Configurations) -> Placement:
        """Return where the groups of plans lie on the cluster."""
        link = self.sources.cluster.inter_node
        return Placement(plans, link.nics_per_node if link else 1, self.rank_order)

    def placed_alike(self, plans: Configurations, names: tuple[str, ...]) -> tuple[IntArray, int]:
        """Return a number of each plan that says where its groups of some names lie, shape (n,), and how many do."""

        def numbers(some: Configurations) -> IntArray:
            first, which = some.distinct(_PLACED_BY)
            if first.size == 1:
                return which
            placement = self.placement(some.take(first).rows)
            groups = [placement.groups(name) for name in names]
            columns = (column for one in groups for column in (one.nodes, one.ranks_per_node, one.streams_per_nic))
            return distinct_rows(*columns)[1][which]

        number: IntArray = plans.of_bases(numbers)
        count = int(number.max(initial=-1)) + 1
        if plans.is_product and count == 1:
            number = number[(slice(1),) * number.ndim]  # alike along every axis
        return number, count

    def operation_s(self, operation: str, buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
        """Return times [s] of an operation, shape (n,); groups of one rank send nothing."""
        return operation_s(self.sources, operation, buffer_bytes, groups)

    @property
    def gradient_source(self) -> Source:
        """What serves the sum of gradients over all copies of the network."""
        sources = self.ring.sources if self.ring else self.sources
        return sources.device_collective(self.gradient_operation)

    def copies(self, groups: Groups) -> Groups:
        """Return groups of all copies of the network as their messages go, around a ring where that is another."""
        if self.ring is None:
            return groups
        link, several = self.ring.sources.cluster.inter_node, groups.ranks > 1
        mean = self.ring.ranks_per_node
        streams = max(mean / (link.nics_per_node if link else 1), 1.0)
        return Groups(
            groups.nodes,
            np.where(several, mean, groups.ranks_per_node),
            np.where(several, streams, groups.streams_per_nic),
        )

    def between_copies_s(self, operation: str, buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
        """Return times [s] of an operation between all copies of the network, of the shape of the buffers."""
        sources = self.ring.sources if self.ring else self.sources
        return operation_s(sources, operation, buffer_bytes, self.copies(groups), self.gradient_entry)

    def of_rows(self, make: OfRows) -> tuple[FloatArray, ...]:
        """Return what follows from the table of compute row by row, worked out once of each row."""
        if make not in self._of_rows:
            self._of_rows[make] = RowTable(self.compute.cases, partial(make, self))
        return self._of_rows[make].arrays

    def stages_s(self, kernels_s: FloatArray, host_s: FloatArray) -> dict[str, FloatArray]:
        """Return what stages take, kernels and host together, the scenario applied [s], shape (...).

        Times by themselves, shape (..., 5) in the order of WITH_RECOMPUTE.
        """
        whole = together_s(kernels_s, host_s, TOGETHER[self.mode], self.overheads.exponent)
        return {
            stage: self.sources.multiplied(term_of(stage), whole[..., at], self.precision)
            for at, stage in enumerate(WITH_RECOMPUTE)
        }


OfRows = Callable[[StepCosts, UnitTable], tuple[FloatArray, ...]]


def units_s(costs: StepCosts, table: UnitTable) -> tuple[FloatArray, ...]:
    """Return kernels and host time of passes over units in some cases, shape (c, len(PASSES), U) [s]."""
    host = host_s(costs.sources, costs.overheads, table.counts, table.layers)
    return scaled(table.kernel_s, costs.overheads), np.asarray(host)


def operation_s(
    sources: Sources, operation: str, buffer_bytes: FloatArray, groups: Groups, served: Entry | None = None
) -> FloatArray:
    """Return times [s] of an operation between devices, of the shape of the buffers, the scenario applied.

    By an entry of the operation, else by that of the all-reduce, whose multipliers in a scenario are those of every
    operation.

    Parameters
    ----------
    operation : see :func:`planner.costs.collectives.collective_s`
    buffer_bytes : ndarray of shape (n,), or (n, k): several of each group
    groups : Groups, n of them, or a single one
    served : what serves the operation in place of the sources' entry

    CoverageError: the groups need a link, or a kind of placement, that nothing serves.
    """
    if (groups.ranks == 1).all():
        return np.zeros_like(buffer_bytes)
    entry = served or sources.device_collective(operation).entry
    every = buffer_bytes if buffer_bytes.ndim > 1 else buffer_bytes[:, None]
    if entry.term == ALPHA_BETA:
        times = collective_s(entry, operation, every, groups)
    else:
        columns = (*(one[:, None] for one in (groups.nodes, groups.ranks_per_node, groups.streams_per_nic)), every)
        n, r, s, v = (one.ravel() for one in np.broadcast_arrays(*columns))
        first, number = distinct_rows(n, r, s, v)
        distinct = Groups(n, r, s).rows(first)
        measured = collective_s(entry, operation, v[first][:, None], distinct)[:, 0] * _crowd(sources, distinct)
        times = measured[number].reshape(-1, every.shape[1])
    times = sources.multiplied("all_reduce", times, nodes=groups.nodes[:, None])
    return times if buffer_bytes.ndim > 1 else times[:, 0]


def _crowd(sources: Sources, groups: Groups) -> FloatArray:
    """Return how many times longer messages get where groups of a node share NICs; measured was one at a time."""
    link, gpus = sources.cluster.inter_node, sources.cluster.node.gpus
    probe_share = max(gpus / (link.nics_per_node if link else 1), 1.0) / gpus
    share = np.maximum(groups.streams_per_nic / groups.ranks_per_node / probe_share, 1.0)
    return np.where(groups.nodes > 1, share, 1.0)


SLOWDOWN = constant("overlap.slowdown")
"""ς where kernels of the same GPU move messages (docs/numbers.md)."""
HOST_GRADIENT_BYTES = 4
"""Gradients are summed in host memory in single precision."""


def host_all_reduce_s(sources: Sources, parameters: int, nodes: IntArray) -> FloatArray:
    """Return the all-reduce [s] of the host's gradient sum, one rank a node, shape of ``nodes``; 0 for one node."""
    distinct, inverse = np.unique(nodes, return_inverse=True)
    if distinct.size == 0 or int(distinct[-1]) == 1:
        return np.zeros(nodes.shape)
    source = sources.host_all_reduce
    groups = Groups(distinct, np.ones_like(distinct), np.ones(distinct.size))
    buffer = np.array([float(parameters * HOST_GRADIENT_BYTES)])
    times = all_reduce_s(source.entry, buffer, groups)[:, 0]
    return sources.multiplied("all_reduce", times, nodes=distinct)[inverse].reshape(nodes.shape)


def all_reduce_gradient(
    entry: Entry, buffer_bytes: FloatArray, groups: Groups, operation: str = ALL_REDUCE
) -> tuple[FloatArray, float]:
    """Return the derivatives of the sum over buffers by the entry's coefficients, shape (p,), and the sum [s].

    For one group. Operation: of :func:`planner.costs.collectives.collective_s`.

    By differences: which algorithm is least, and which link paces it, depends on the coefficients; between the kinks
    the time is linear in them.
    """
    counts: dict[str, FloatArray] = {}
    total = float(collective_s(entry, operation, buffer_bytes, groups, counts).sum())
    slopes = []
    for name, value in entry.coefficients.items():
        step = 1e-6 * max(abs(value), 1e-15)
        neighbour = replace(entry, coefficients=dict(entry.coefficients) | {name: value + step})
        slopes.append((float(collective_s(neighbour, operation, buffer_bytes, groups, counts).sum()) - total) / step)
    return np.array(slopes), total


def host_gradient(sources: Sources, parameters: int, nodes: int) -> tuple[FloatArray, float]:
    """Return the derivatives of the host's all-reduce by its entry's coefficients, shape (p,), and its time [s]."""
    groups = Groups(np.array([nodes]), np.array([1]), np.array([1.0]))
    buffer = np.array([float(parameters * HOST_GRADIENT_BYTES)])
    return all_reduce_gradient(sources.host_all_reduce.entry, buffer, groups)
