"""What split plans of one precision share: what the network sends by, and what serves it."""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_rows
from planner.domain.configuration import RANK_AXES, Configurations
from planner.domain.messages import Groups
from planner.domain.precision import precision_named
from planner.sources.sources import Sources
from planner.steps.compute import host_s, memory_rules, term_of
from planner.steps.host_and_gpu import BESIDE, WITH_RECOMPUTE, together_s
from planner.steps.split_compute import SplitCompute
from planner.steps.split_messages import operation_s
from planner.workload.memory import Memory
from planner.workload.placement import Placement
from planner.workload.split_messages import MessageRules, NetworkSends, network_sends

__all__ = ["SplitCosts"]

_PLACED_BY = (*RANK_AXES.values(), "gpus_per_node")


class SplitCosts:
    """What split plans of one precision share.

    Attributes
    ----------
    compute : SplitCompute
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
    overlaps_tensor : bool
        Whether messages of tensor ranks run beside products of the backward pass.
    """

    def __init__(self, sources: Sources, precision: str, compute: SplitCompute | None = None) -> None:
        self.sources, self.precision = sources, precision
        self.compute: SplitCompute = compute or SplitCompute(sources, precision)
        self.overheads = sources.overheads(precision, "sync")
        settings = sources.problem.settings
        framework = settings.framework
        self.strategy = settings.overlap
        self.gradient_bytes = float(framework.message_bytes(precision))
        self.rank_order, self.chooses_order = settings.placed_by, settings.chooses_order
        self.ledger = Memory(sources.problem.network, memory_rules(sources, precision))
        self.parameter = self.ledger.rules.parameter
        self.overlaps_tensor = framework.overlaps_tensor
        self.sends: NetworkSends = network_sends(sources.problem.network)
        itemsize = precision_named(precision).activation_bytes
        self.message_rules = MessageRules(itemsize, scatters_boundary=framework.scatters_boundary)

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
        return number, int(number.max(initial=-1)) + 1

    def operation_s(self, operation: str, buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
        """Return times [s] of an operation, shape (n,); groups of one rank send nothing."""
        return operation_s(self.sources, operation, buffer_bytes, groups)

    def unit_s(self) -> tuple[FloatArray, FloatArray]:
        """Return kernels and host time of passes over units, shape (c, len(PASSES), U), of the table of compute [s]."""
        table = self.compute.cases.columns
        host = host_s(self.sources, self.overheads, table.counts, table.layers)
        return table.kernels_s(self.overheads), np.asarray(host)

    def stages_s(self, kernels_s: FloatArray, host_s: FloatArray) -> dict[str, FloatArray]:
        """Return what stages take, kernels and host together, the scenario applied [s], shape (...).

        Times by themselves, shape (..., 5) in the order of WITH_RECOMPUTE.
        """
        whole = together_s(kernels_s, host_s, BESIDE, self.overheads.exponent)
        return {
            stage: self.sources.multiplied(term_of(stage), whole[..., at], self.precision)
            for at, stage in enumerate(WITH_RECOMPUTE)
        }
