"""One micro-batch on the stages of pipelines: its kernels, the host's time, and messages.

Kernels and host of a stage's passes and update take what they do together (:mod:`planner.steps.host_and_gpu`), as those
of a network that no pipeline cuts, and a pass its messages besides. The backward pass of the first micro-batch writes
gradients, those of the others add to them.

Times of the messages of layers and ends: of one micro-batch on distinct stages, beside products or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import CONTEXT, EXPERT, TENSOR
from planner.domain.calibration import OF_PASSES
from planner.domain.configuration import Configurations
from planner.domain.kernels import BACKWARD_DATA, UPDATE
from planner.domain.messages import (
    CONTEXT_NEIGHBOURS,
    CORE,
    EMBEDDING_BACKWARD,
    EMBEDDING_FORWARD,
    EXPERT_SHARDS,
    HEAD_FORWARD,
    INPUT_GRADIENT,
    LAYER_BACKWARD,
    LAYER_FORWARD,
    NEIGHBOURS,
    RECOMPUTED,
    WEIGHT_GRADIENT,
    Message,
)
from planner.domain.split import RECOMPUTES
from planner.steps.compute import BESIDE, HEAD, PASSES, scaled
from planner.steps.host_and_gpu import STAGES, TOGETHER, beside_s, composed_s
from planner.steps.stage_cases import OfStages, StageCases
from planner.steps.step_costs import StepCosts, units_s
from planner.steps.synchronous import ready_s
from planner.workload.split_messages import (
    BlockSends,
    boundary_messages,
    embedding_messages,
    head_messages,
    layer_messages,
)

_SAME_PASSES = (
    "accumulation_steps", "virtual_stages", "sharding", "shard_group", "schedule", "offload", "nodes",
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
    forward_s, recompute_s, update_s : kernels and host together; an update of all parameters of the stage
    copy_s : of samples to the device, on the first stage
    backward : the same; ``weights`` is its part that is gradients of weights
    messages : term -> Sent
    backward_shares : ndarray of float, shape (3, f)
        Of the backward pass of a stage: what stands before the blocks, the blocks, and what stands behind them.
    case : ndarray of int, shape (n,)
        Of each plan, a case of passes and of where neighbouring stages lie, of which there are ``number``.
    transfer_s : ndarray of float, shape (number,); between neighbouring stages
    """

    def __init__(self, costs: StepCosts, plans: Configurations, rank: IntArray, stages: OfStages = StageCases) -> None:
        self.costs = costs
        self.cases = cases = stages(costs, plans, rank, _SAME_PASSES, costs.placed_alike(plans, SENT_BETWEEN))
        row = cases.compute_rows(costs.compute)
        if np.any(plans.accumulation_steps > 1) and costs.compute.ranks[0].accumulation_source is None:
            costs.sources.kernel("add", BACKWARD_DATA, costs.sources.rest_precision(costs.precision))  # raises
        repeated, both = cases.again, costs.of_rows(units_s)

        def times(name: str, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
            """Return kernels and host time of a pass, of stages that hold so many units."""
            of_units = (one[row, PASSES.index(name)][cases.of] for one in both)
            kernels, host = (np.einsum("fu,fu->f", counts, one) for one in of_units)
            return kernels, host

        by_stage = [times(name, cases.counts) for name in STAGES]
        by_stage.append(self._again(times("forward", repeated), times("attention", repeated)))
        kernels, host = (np.stack(each, axis=-1) for each in zip(*by_stage, strict=True))
        stage_s = costs.stages_s(kernels, host)
        if measured := costs.sources.measured_steps(costs.precision, OF_PASSES):
            is_whole = (cases.rank == 0) & (cases.plans.pipeline_parallel == 1)
            factors = np.where(is_whole, measured.factors(cases.plans), 1.0)[cases.of]
            stage_s |= {name: factors * stage_s[name] for name in STAGES if name != UPDATE}
        self._kernels_s, self._host_s = (beside_s(one, TOGETHER["sync"])[:, 0] for one in (kernels, host))
        self._update_kernels_s = kernels[:, STAGES.index("update")]
        self.forward_s, self.recompute_s, self.update_s = (stage_s[name] for name in ("forward", "recompute", "update"))
        self.backward = Backward(stage_s["backward"], stage_s["accumulating"])
        weights, first = times("weights", cases.counts)[0], kernels[:, STAGES.index("backward")]
        share = np.divide(weights, first, out=np.zeros_like(weights), where=first > 0)
        self.weights = Backward(share * stage_s["backward"], share * stage_s["accumulating"])
        self.messages = costs.sent(cases, row) or StageMessages(costs, cases).seconds(row)
        of_units = cases.counts * both[0][row, PASSES.index("backward")][cases.of]
        parts = cases.in_parts(of_units)
        total = parts.sum(axis=0)
        self.backward_shares = np.divide(parts, total, out=np.zeros_like(parts), where=total > 0)
        neighbours = costs.placed_alike(plans, (NEIGHBOURS,))
        rows, self.case = plans.distinct((), (cases.case, cases.rank.size), neighbours)
        self.number, self.transfer_s = rows.size, _transfer_s(costs, plans.take(rows).rows)
        nothing = np.zeros(cases.of.size)
        sent = self.messages.values()
        copied_s = costs.compute.ranks[0].host_to_device_s(costs.samples_read(cases.plans))
        self.copy_s = np.where(cases.stage == 0, copied_s[cases.of], 0.0)
        self._ahead_s = self.forward_s + self.copy_s + sum((one.forward_s for one in sent), nothing)
        self._back_s = self.recompute_s + sum((one.backward_s for one in sent), nothing)

    @cached_property
    def last_backward_s(self) -> FloatArray:
        """The last backward pass of a step with one micro-batch, and with several, shape (f, 2) [s]."""
        first = self.backward.first_s
        return np.stack([first, first + self.backward.more_s], axis=1) + self._back_s[:, None]

    @cached_property
    def ready_shares(self) -> FloatArray:
        """Of cases of one stage the share of such a pass after which each slot's gradient is ready, shape (c, 2, J).

        In proportion to the kernels of segments; where there are none these take equally long.
        """
        compute = self.costs.compute
        segments = scaled(compute.cases.columns.segment_s[self.cases.compute_rows(compute)], self.costs.overheads)
        which = np.stack([one.program.segment for one in compute.ranks])[self.cases.rank]
        slots = np.take_along_axis(segments, which[:, None], axis=-1)
        ready = ready_s(np.where(slots.sum(axis=-1, keepdims=True) > 0, slots, 1.0))
        return np.asarray(ready[..., 1:] / ready[..., :1])

    @cached_property
    def unit_shares(self) -> FloatArray:
        """Of cases of one stage the share of the forward and of the backward pass in each unit, shape (c, 2, V)."""
        at = [PASSES.index("forward"), PASSES.index("backward")]
        kernels = self.costs.of_rows(units_s)[0][self.cases.compute_rows(self.costs.compute)]
        of_units = kernels[:, at][..., self.cases.units.sequence]
        of_units = np.where(of_units.sum(axis=-1, keepdims=True) > 0, of_units, 1.0)
        return np.asarray(of_units / of_units.sum(axis=-1, keepdims=True))

    def smaller_update_s(self, at: IntArray, share: FloatArray, m: FloatArray) -> FloatArray:
        """Return the update of a share of the parameters of stages, and what of the host it hides no more [s].

        ``at``: ndarray of int, shape (r, n); ``share``: ndarray of float, shape (r, n); ``m``: ndarray of float, shape
        (n,).
        """
        if np.all(share == 1.0):
            return self.update_s[at]
        kernels, host, exponent = self._kernels_s[at], self._host_s[at], self.costs.overheads.exponent
        smaller = kernels - (1 - share) * self._update_kernels_s[at]
        slower = composed_s(smaller, host, exponent) * kernels
        slower = np.divide(
            slower, composed_s(kernels, host, exponent) * smaller, out=np.ones_like(slower), where=smaller > 0
        )
        hid = m * (self.forward_s + self.recompute_s)[at] + self.backward.first_s[at]
        return np.asarray(self.update_s[at] * share * slower + hid * (slower - 1))

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


def _transfer_s(costs: StepCosts, plans: Configurations) -> FloatArray:
    """Return what one micro-batch takes between neighbouring stages, shape (n,); one stage sends nothing."""
    placement, total_s = costs.placement(plans), np.zeros(plans.shape)
    for one in boundary_messages(costs.sends, plans, costs.message_rules):
        seconds = costs.operation_s(one.operation, one.buffer_bytes, placement.groups(one.group))
        total_s = total_s + one.count * seconds
    return costs.sources.multiplied("stage_messages", total_s)


_CORES = ("core", "core_backward")
_GROUP_TERMS = {
    TENSOR: "tensor_messages",
    CONTEXT: "context_messages",
    CONTEXT_NEIGHBOURS: "context_messages",
    EXPERT: "expert_messages",
    EXPERT_SHARDS: "expert_messages",
}
SENT_BETWEEN = tuple(_GROUP_TERMS)
"""Groups that the messages of a stage go between."""


class Sent(NamedTuple):
    """What messages take, and what they add to the forward and to the backward pass, each of shape (f,) [s]."""

    taken_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray


class StageMessages:
    """Messages of one micro-batch on each of the distinct stages of plans."""

    def __init__(self, costs: StepCosts, cases: StageCases) -> None:
        self.costs, self.cases = costs, cases
        self._each: dict[tuple[str, str, bytes], FloatArray] = {}  # of equal messages once

    def seconds(self, row: IntArray) -> dict[str, Sent]:
        """Return what messages take and add by term; ``row``: in the table of compute, of each case."""
        costs, plans, stage = self.costs, self.cases.plans, self.cases.stage
        by_term: dict[str, Sent] = {}
        beside = self._products_s(row)
        for block, alike in self._blocks():
            held, again = self.cases.blocks[:, alike], self.cases.again[:, alike]
            counts = {LAYER_BACKWARD: held * (self.cases.units.reached[alike] > 0), RECOMPUTED: again}
            for one in layer_messages(block, plans, costs.message_rules):
                self._add(by_term, one, counts.get(one.where, held).sum(axis=1), beside)
        is_embedded = self.cases.units.reached[self.cases.units.sequence[0]] > 0
        for messages, where in (
            (embedding_messages(costs.sends, plans, costs.message_rules), stage == 0),
            (head_messages(costs.sends, plans, costs.message_rules), self.cases.is_last),
        ):
            for one in messages:
                if is_embedded or one.where != EMBEDDING_BACKWARD:
                    self._add(by_term, one, where.astype(np.float64), beside)
        return by_term

    def _blocks(self) -> list[tuple[BlockSends, list[int]]]:
        """Return what blocks send by, each with the distinct units that send alike."""
        alike: dict[BlockSends, list[int]] = {}
        sequence = self.cases.units.sequence[1:-1].tolist()
        for unit, sends in dict(zip(sequence, self.costs.sends.units[1:-1], strict=False)).items():
            alike.setdefault(sends, []).append(unit)
        return list(alike.items())

    def _add(
        self, by_term: dict[str, Sent], one: Message, layers: FloatArray, beside: Mapping[tuple[str, str], FloatArray]
    ) -> None:
        """Add what messages take, and expose of it; ``layers``: of every stage that send them, shape (f,)."""
        term, of = _GROUP_TERMS[one.group], self.cases.of
        key = one.operation, one.group, one.buffer_bytes.tobytes()
        if key not in self._each:
            seconds = self.costs.operation_s(one.operation, one.buffer_bytes, self.cases.groups(one.group))
            self._each[key] = self.costs.sources.multiplied(term, seconds)
        each = self._each[key]
        taken = layers * (one.count * each)[of]
        if one.hidden_under == CORE:
            exposed = layers * self._beside_attention_s(one, each, beside)
        elif (one.hidden_under, one.part) in beside:
            least = (1 - 1 / self.costs.slowdown) * each[of]
            exposed = layers * one.count[of] * np.maximum(each[of] - beside[one.hidden_under, one.part], least)
        else:
            exposed = taken
        is_forward = one.where in (LAYER_FORWARD, EMBEDDING_FORWARD, HEAD_FORWARD)
        nothing = np.zeros_like(taken)
        before = by_term.get(term, Sent(nothing, nothing, nothing))
        by_term[term] = Sent(
            before.taken_s + taken,
            before.forward_s + exposed if is_forward else before.forward_s,
            before.backward_s if is_forward else before.backward_s + exposed,
        )

    def _beside_attention_s(
        self, one: Message, each: FloatArray, beside: Mapping[tuple[str, str], FloatArray]
    ) -> FloatArray:
        """Return what messages of a ring outlast the blocks of attention beside them; forward, the last has none."""
        of, is_backward = self.cases.of, one.where == LAYER_BACKWARD
        ranks = self.cases.plans.context_parallel[of]
        block = beside[CORE, "core_backward" if is_backward else "core"] / ranks
        sent = (one.count * each)[of]
        return np.maximum(sent - block * (ranks - (not is_backward)), (1 - 1 / self.costs.slowdown) * sent)

    def _products_s(self, row: IntArray) -> dict[tuple[str, str], FloatArray]:
        """Return the products of one layer that messages run beside, by which gradient and part, (f,)."""
        of, counts = self.cases.of, self.cases.blocks
        number = np.maximum(counts.sum(axis=1), 1.0)

        def of_layer(by_unit: FloatArray) -> FloatArray:
            """Return the mean over the layers of each stage, shape (c, U) to (f,)."""
            return np.asarray(np.einsum("fu,fu->f", counts, by_unit[of]) / number)

        kernels = self.costs.of_rows(units_s)[0]
        core = {(CORE, name): of_layer(kernels[row, PASSES.index(name)]) for name in _CORES}
        if not self.costs.overlaps_tensor:
            return core
        products = self.costs.compute.cases.columns.products_s[row] * self.costs.overheads.scale_of("gemm")
        layers = {key: of_layer(products[:, at]) for at, key in enumerate(BESIDE)}
        last = products[:, :, self.cases.units.sequence[-1]]
        head = {(under, ""): last[of, BESIDE.index((under, HEAD))] for under in (WEIGHT_GRADIENT, INPUT_GRADIENT)}
        return core | layers | head
