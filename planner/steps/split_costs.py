"""What plans of one precision and mode share: what the network sends by, and what serves it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_rows
from planner.domain.calibration import Entry
from planner.domain.configuration import RANK_AXES, SHARD_AXES, Configurations
from planner.domain.messages import ALL_REDUCE, PARAMETER_SERVER, Groups
from planner.domain.precision import precision_named
from planner.sources.source import Source
from planner.sources.sources import Sources
from planner.steps.compute import PASSES, ComputeCases, host_s, memory_rules, term_of
from planner.steps.host_and_gpu import STAGES, TOGETHER, WITH_RECOMPUTE, together_s
from planner.steps.split_messages import operation_s
from planner.workload.memory import Memory
from planner.workload.placement import Placement
from planner.workload.split_messages import MessageRules, NetworkSends, network_sends

__all__ = ["Ring", "StepCosts"]

_PLACED_BY = (*RANK_AXES.values(), "gpus_per_node")


class Ring(NamedTuple):
    """Where gradients of all copies of a network go around, other than on their own nodes: of so many ranks each."""

    sources: Sources
    ranks_per_node: float


class StepCosts:
    """What plans of one precision and mode share.

    Attributes
    ----------
    compute : ComputeCases
    overheads : Overheads
    strategy : OverlapStrategy
    gradient_bytes : float
        Of an element, as it is sent.
    parameter : BytesOfParameter
    ledger : Memory
    sends : NetworkSends
    message_rules : MessageRules
    rank_order : tuple of str
        How ranks are numbered, innermost first.
    chooses_order : bool
        Whether each plan has the order that is fastest for it instead.
    gradient_operation : str
        By which ranks sum gradients that all of them update.
    ring : Ring or None
    gradient_entry : Entry or None
        What serves the sum of gradients in place of its own entry.
    overlaps_tensor : bool
        Whether messages of tensor ranks run beside products of the backward pass.
    """

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
        self.ring: Ring | None = None
        self.gradient_entry: Entry | None = None
        self.gradient_operation = PARAMETER_SERVER if self.strategy.servers else ALL_REDUCE
        self.sends: NetworkSends = network_sends(sources.problem.network)
        itemsize = precision_named(precision).activation_bytes
        self.message_rules = MessageRules(itemsize, scatters_boundary=framework.scatters_boundary)

    def ranks(self, plans: Configurations) -> IntArray:
        """Return the rank of each plan in ``compute``, shape (n,)."""
        first, which = plans.distinct(SHARD_AXES)
        some = plans.take(first)
        degrees = zip(*(getattr(some, name).tolist() for name in SHARD_AXES), strict=True)
        return np.array([self.compute.rank_of(*each) for each in degrees], dtype=np.int64)[which]

    def placement(self, plans: Configurations) -> Placement:
        """Return where the groups of plans lie on the cluster."""
        link = self.sources.cluster.inter_node
        return Placement(plans, link.nics_per_node if link else 1, self.rank_order)

    def placed_alike(self, plans: Configurations, names: tuple[str, ...]) -> tuple[IntArray, int]:
        """Return a number of each plan that says where its groups of some names lie, shape (n,), and how many do."""

        def numbers(some: Configurations) -> IntArray:
            first, which = some.distinct(_PLACED_BY)
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

    def on_one_device(self, sub_batch: IntArray) -> FloatArray:
        """Return what makes the time and memory of sub-batches on one device, shape (s, 12).

        GPU time by stage and host time by stage [s], in the order of STAGES; memory [bytes], the share that replicas
        wait, and the exponent that composes the times and its negative: where no column is larger, no step is longer.
        """
        cases, of = self.compute.cases, np.zeros(sub_batch.size, dtype=np.int64)
        cases.ensure(of, sub_batch)
        units, passes = self.compute.ranks[0].units, [PASSES.index(name) for name in STAGES]
        number = np.bincount(units.sequence, minlength=units.distinct)
        kernels, host = (one[cases.rows(of, sub_batch)][:, passes] @ number for one in self.unit_s())
        rest = (self.overheads.replica_wait, self.overheads.exponent, -self.overheads.exponent)
        memory = self.ledger.totals(Configurations.having(sub_batch=sub_batch))
        return np.column_stack([kernels, host, memory, np.broadcast_to(rest, (sub_batch.size, len(rest)))])

    def unit_s(self) -> tuple[FloatArray, FloatArray]:
        """Return kernels and host time of passes over units, shape (c, len(PASSES), U), of the table of compute [s]."""
        table = self.compute.cases.columns
        host = host_s(self.sources, self.overheads, table.counts, table.layers)
        return table.kernels_s(self.overheads), np.asarray(host)

    def stages_s(self, kernels_s: FloatArray, host_s: FloatArray) -> dict[str, FloatArray]:
        """Return what stages take, kernels and host together, the scenario applied [s], shape (...).

        Times by themselves, shape (..., 5) in the order of WITH_RECOMPUTE.
        """
        whole = together_s(kernels_s, host_s, TOGETHER[self.mode], self.overheads.exponent)
        return {
            stage: self.sources.multiplied(term_of(stage), whole[..., at], self.precision)
            for at, stage in enumerate(WITH_RECOMPUTE)
        }
