"""One micro-batch on the stages of pipelines: its kernels, the host's time, and messages.

A pass takes what its kernels and its host take together, and its messages. The backward pass of the first micro-batch
writes gradients, those of the others add to them.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_numbers
from planner.domain.messages import NEIGHBOURS
from planner.domain.split import RECOMPUTES, SplitPlans
from planner.steps.split_compute import PASSES
from planner.steps.split_costs import SplitCosts
from planner.steps.split_sent import SENT_BETWEEN, StageMessages
from planner.steps.split_stages import OfStages, StageCases
from planner.workload.split_messages import boundary_messages

__all__ = ["Backward", "Passes"]

_SAME_PASSES = (
    "accumulation_steps", "virtual_stages", "sharding", "shard_group", "schedule", "offload", "data_parallel",
    "gpus_per_node",
)  # fmt: skip
"""Fields of plans that no pass over a stage depends on, but for where its groups lie."""


class Backward:
    """A time of the backward pass, in the mean of m micro-batches, of which the first only writes gradients."""

    def __init__(self, first_s: FloatArray, later_s: FloatArray) -> None:
        self.first_s, self.more_s = first_s, later_s - first_s

    def mean_s(self, at: IntArray, m: FloatArray) -> FloatArray:
        """Return the mean [s], shape of ``at``, which broadcasts with m."""
        return np.asarray(self.first_s[at] + (m - 1) / m * self.more_s[at])


class Passes:
    """Times of one micro-batch on each distinct stage, of shape (f,) [s].

    Attributes
    ----------
    cases : StageCases
    forward_s, recompute_s : kernels and host together
    backward : Backward
        The same; ``weights`` is its part that is gradients of weights.
    forward_kernels_s, backward_kernels, recompute_kernels_s : kernels alone
    messages : term -> Sent
    backward_shares : ndarray of float, shape (3, f)
        Of the backward pass of a stage: what stands before the blocks, the blocks, and what stands behind them.
    case : ndarray of int, shape (n,)
        Of each plan, a case of passes and of where neighbouring stages lie, of which there are ``number``.
    transfer_s : ndarray of float, shape (number,)
        Between neighbouring stages.
    """

    def __init__(self, costs: SplitCosts, plans: SplitPlans, rank: IntArray, stages: OfStages = StageCases) -> None:
        self.cases = cases = stages(costs, plans, rank, _SAME_PASSES, costs.placed_alike(plans, SENT_BETWEEN))
        row = cases.compute_rows(costs.compute)
        table, repeated = costs.compute.cases.columns, cases.again
        both = table.kernels_s(costs.overheads), table.host_s(costs.overheads)

        def times(name: str, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
            """Return kernels and host time of a pass, of stages that hold so many units."""
            of_units = (one[:, PASSES.index(name)][row][cases.of] for one in both)
            kernels, host = (np.einsum("fu,fu->f", counts, one) for one in of_units)
            return kernels, host

        def scaled(term: str, seconds: FloatArray) -> FloatArray:
            return costs.sources.multiplied(term, seconds, costs.precision)

        forward, first, later = (times(name, cases.counts) for name in ("forward", "backward", "accumulating"))
        again = self._again(times("forward", repeated), times("attention", repeated))
        self.forward_s = costs.passed_s("forward", *forward)
        self.recompute_s = costs.passed_s("forward", *again)
        self.backward = Backward(costs.passed_s("backward", *first), costs.passed_s("backward", *later))
        weights = times("weights", cases.counts)[0]
        share = np.divide(weights, first[0], out=np.zeros_like(weights), where=first[0] > 0)
        self.weights = Backward(*(share * costs.passed_s("backward", *one) for one in (first, later)))
        self.forward_kernels_s, self.recompute_kernels_s = scaled("forward", forward[0]), scaled("forward", again[0])
        self.backward_kernels = Backward(scaled("backward", first[0]), scaled("backward", later[0]))
        self.messages = StageMessages(costs, cases).seconds(row)
        of_units = cases.counts * both[0][:, PASSES.index("backward")][row][cases.of]
        parts = cases.in_parts(of_units)
        total = parts.sum(axis=0)
        self.backward_shares = np.divide(parts, total, out=np.zeros_like(parts), where=total > 0)
        neighbours = costs.placed_alike(plans, (NEIGHBOURS,))
        rows, self.case = distinct_numbers((cases.case, cases.rank.size), neighbours)
        self.number, self.transfer_s = rows.size, _transfer_s(costs, plans.take(rows).rows)
        nothing = np.zeros(cases.of.size)
        sent = self.messages.values()
        self._ahead_s = self.forward_s + sum((one.forward_s for one in sent), nothing)
        self._back_s = self.recompute_s + sum((one.backward_s for one in sent), nothing)

    def alone_s(self, at: IntArray, m: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the forward and backward passes of stages with their messages, weights being there, shape of ``at``.

        ``m``: micro-batches, broadcasts with ``at``.
        """
        return self._ahead_s[at], self.backward.mean_s(at, m) + self._back_s[at]

    def least_s(self, *, messages: bool) -> FloatArray:
        """Return what a micro-batch takes at least both ways, weights being there, with or without messages, (f,)."""
        ahead_s, back_s = (self._ahead_s, self._back_s) if messages else (self.forward_s, self.recompute_s)
        return np.asarray(ahead_s + back_s + self.backward.first_s + np.minimum(self.backward.more_s, 0.0))

    def _again(
        self, whole: tuple[FloatArray, FloatArray], attention: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return kernels and host time of what is computed again."""
        recompute = self.cases.plans.recompute[self.cases.of]
        is_full, is_selective = (recompute == RECOMPUTES.index(name) for name in ("full", "selective"))
        kernel, host = (
            np.where(is_full, one, np.where(is_selective, other, 0.0))
            for one, other in zip(whole, attention, strict=True)
        )
        return kernel, host


def _transfer_s(costs: SplitCosts, plans: SplitPlans) -> FloatArray:
    """Return what one micro-batch takes between neighbouring stages, shape (n,); one stage sends nothing."""
    placement, total_s = costs.placement(plans), np.zeros(plans.shape)
    for one in boundary_messages(costs.sends, plans, costs.message_rules):
        seconds = costs.operation_s(one.operation, one.buffer_bytes, placement.groups(one.group))
        total_s = total_s + one.count * seconds
    return total_s
