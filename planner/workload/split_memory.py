"""Memory of one rank of plans that split a transformer, counted by stage and never fitted.

weights, gradients, optimizer   parameters of the rank (:mod:`planner.workload.split_parameters`); weights in as many
                                versions as a pipeline without a flush keeps
activations                     of a layer (:mod:`planner.workload.kept_activations`), of all layers of the stage and
                                its live micro-batches (:mod:`planner.workload.in_flight`); the mask behind the
                                embedding and the tokens on the first stage, inputs of norm and logits on the last
logits                          on the last stage, at the peak of one micro-batch, and what others keep that wait for
                                their backward pass; see :data:`LOSS_BYTES`; those of micro-batches that are done, where
                                a pipeline keeps them
workspace                       what one layer's backward pass makes again, and gradients of activations, in so far as
                                it is more than the logits, which are gone by then; or the wide gradients of an update,
                                in so far as they are more than activations and logits
gathered                        where weights are sharded, the units in flight and the gradient of one
messages                        of the pipeline, two in and two out; the gathered input of sequence parallelism; what
                                experts dispatch and combine; buckets of gradients
framework, margin               a context, and a share of all tensors that the allocator loses, both assumed

With the optimizer on the host, its state and a 4-byte gradient lie there, and each step moves gradients out and weights
in (Ren et al. 2021, arXiv:2101.06840). With activations there, two layers' stay on the device (Rhu et al. 2016,
arXiv:1602.08124).

Recompute of whole layers keeps the input of every k-th layer of a stage (``recompute_every`` k), and makes a group of k
again at a time: Megatron-LM's ``uniform`` method (MODEL 13.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, check_not_negative, check_positive, frozen_map
from planner.domain.framework import LOSSES, Framework
from planner.domain.precision import precision_named
from planner.domain.ranks import RANK_ORDER
from planner.domain.split import (
    GRADIENTS_SHARDED,
    OFFLOADS,
    OPTIMIZER_SHARDED,
    WEIGHTS_SHARDED,
    SplitMemoryBytes,
    SplitPlans,
)
from planner.domain.transformer import Transformer
from planner.errors import UnknownNameError
from planner.numbers import constant
from planner.workload.in_flight import live_in_first_chunk, live_in_last_chunk, live_micro_batches, weight_versions
from planner.workload.kept_activations import LayerBytes, layer_bytes, positions
from planner.workload.memory import ASSUMED_CONTEXT_BYTES
from planner.workload.split_parameters import (
    BytesOfParameter,
    RankParameters,
    StageLayers,
    shard_ranks,
    stage_blocks,
    stage_parameters,
    stages_that_can_be_worst,
)
from planner.workload.transformer import ENCODER, blocks, padded_vocabulary

__all__ = [
    "ASSUMED_MARGIN", "LOSS_BYTES", "MemoryRules", "layers_of", "pass_bytes", "split_memory", "stage_memory",
    "state_bytes", "workspace",
]  # fmt: skip

ASSUMED_MARGIN = constant("memory.margin")
"""Of what tensors take: what the allocator loses in pieces (docs/numbers.md)."""
LOSS_BYTES = frozen_map(dict(zip(LOSSES, ((1, 4, 1, 12), (0, 4, 1, 8), (1, 0, 1, 0)), strict=True)))
"""Loss -> logits that a micro-batch keeps, of the working precision and in bytes of fp32, and their peak likewise.

An eager one keeps logits and fp32 logarithms, and adds two gradients in fp32. Megatron-LM's over a split vocabulary
keeps fp32 probabilities, and has logits of both precisions beside them. A fused one writes gradients over the logits.
What tells them: docs/split-plans.md, "What memory rests on".
"""
_MESSAGE_BUFFERS = 4
_LAYERS_ON_DEVICE = 2
_WIDE_BYTES = 4
"""Of fp32."""
_TOKEN_BYTES = 8
_MASKED = ("masked", "pretraining")
_INPUTS_OF_MASKED = 4
"""Of the linear layer, activation, normalisation and logits of a masked head."""


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """What all plans share, but the network.

    Attributes
    ----------
    parameter : BytesOfParameter
    precision : str
        Of activations.
    loss : one of LOSSES
    padded : bool
        Whether the vocabulary is padded as Megatron-LM does.
    fused_activation : bool
        Of a gated feed-forward part.
    imbalance : float
        u, rows of the fullest rank's experts over their mean; 1 is assumed.
    prefetch : int
        Units gathered ahead where weights are sharded.
    output_buffers : int
        Micro-batches whose fp32 logits the last stage keeps until others take their place, up to ``output_sharding``:
        with more, the framework runs without its pipeline.
    bucket_bytes : float
        Of a gradient bucket that is a copy; 0: gradients are sent from where they are.
    rank_order : tuple of str
        How ranks are numbered, innermost first: which of those that share shards lie in one node.
    framework_bytes, margin : float
        Assumed: of a context; of what tensors take.
    """

    parameter: BytesOfParameter
    precision: str = "bf16"
    loss: str = "parallel"
    padded: bool = False
    fused_activation: bool = True
    imbalance: float = 1.0
    prefetch: int = 1
    output_buffers: int = 0
    output_sharding: int = WEIGHTS_SHARDED
    bucket_bytes: float = 0.0
    rank_order: tuple[str, ...] = RANK_ORDER
    framework_bytes: float = ASSUMED_CONTEXT_BYTES["gpu"]
    margin: float = ASSUMED_MARGIN

    def __post_init__(self) -> None:
        precision_named(self.precision)
        if self.loss not in LOSSES:
            raise UnknownNameError("loss", self.loss, LOSSES)
        check_positive("imbalance of experts", self.imbalance, "rows a mean row")
        for what, value in (("bucket", self.bucket_bytes), ("framework", self.framework_bytes)):
            check_not_negative(what, value, "bytes")
        check_not_negative("margin", self.margin, "bytes a byte of tensors")

    @staticmethod
    def of(
        precision: str, optimizer: str, framework: Framework, rank_order: tuple[str, ...] = RANK_ORDER
    ) -> MemoryRules:
        """Return the rules of a framework in a precision, with an optimizer."""
        each = BytesOfParameter.of(precision, optimizer, framework.gradient_bytes(precision))
        copies = framework.main_gradients and each.gradient < _WIDE_BYTES
        shards = framework.keeps_weight_shards or not each.master
        each = replace(each, main_gradient=_WIDE_BYTES * copies, keeps_weight_shards=shards)
        return MemoryRules(
            each,
            precision,
            loss=framework.loss,
            padded=framework.pads_vocabulary,
            prefetch=framework.gathers_ahead,
            output_buffers=framework.output_buffers,
            output_sharding=framework.most_sharded_in_pipeline,
            rank_order=rank_order,
        )

    @property
    def itemsize(self) -> int:
        """Bytes of an activation."""
        return precision_named(self.precision).activation_bytes


def split_memory(of: Transformer, plans: SplitPlans, rules: MemoryRules) -> SplitMemoryBytes:
    """Return the memory of the rank that needs most, and of which stage it is.

    Returns
    -------
    SplitMemoryBytes
        Arrays of the shape of the plans; of stages that need as much, the first.
    """
    layers = layers_of(of, plans, rules)
    each = [_on(of, plans, stage, rules, layers) for stage in stages_that_can_be_worst(of, plans)]
    if len(each) == 1:
        return each[0]
    worst = np.argmax(np.stack([one.total for one in each]), axis=0)[None]

    def of_worst(name: str) -> Any:
        return np.take_along_axis(np.stack([getattr(one, name) for one in each]), worst, axis=0)[0]

    return SplitMemoryBytes(**{one.name: of_worst(one.name) for one in fields(SplitMemoryBytes)})


def stage_memory(
    of: Transformer, plans: SplitPlans, stage: IntArray | int, rules: MemoryRules, held: StageLayers | None = None
) -> SplitMemoryBytes:
    """Return the memory of a rank of a stage, from 0; arrays of the shape that plans and stage broadcast to.

    ``held``: the layers of each stage, where they are not dealt out evenly, or not all computed again.
    """
    return _on(of, plans, np.asarray(stage), rules, layers_of(of, plans, rules, held))


class Layers(NamedTuple):
    """Bytes of a layer of each kind, and the layers of each stage; ``held`` None: as :func:`stage_memory` says."""

    of_kinds: tuple[LayerBytes, ...]
    held: StageLayers | None


def layers_of(of: Transformer, plans: SplitPlans, rules: MemoryRules, held: StageLayers | None = None) -> Layers:
    """Return the layers of plans."""
    size, fused, u = rules.itemsize, rules.fused_activation, rules.imbalance
    kinds = [kind for kind, _ in blocks(of)]
    return Layers(
        tuple(layer_bytes(of, plans, kind, size, fused_activation=fused, imbalance=u) for kind in kinds), held
    )


def _on(of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules, layers: Layers) -> SplitMemoryBytes:
    """Return the memory of a rank of a stage, given its layers."""
    kept = state_bytes(of, plans, stage, rules, layers.held)
    passing = pass_bytes(of, plans, stage, rules, layers)
    on_host = plans.offload == OFFLOADS.index("optimizer")
    by_host, passes = np.where(on_host, kept.updated, 0.0), plans.accumulation_steps
    values = {
        "weights": kept.weights,
        "gradients": kept.gradients,
        "optimizer": np.where(on_host, 0.0, kept.optimizer),
        "activations": passing.activations,
        "workspace": workspace(rules, kept.updated, passing.activations, passing.working, passing.rest),
        "framework": np.float64(rules.framework_bytes),
        "logits": passing.logits,
        "gathered": kept.gathered,
        "messages": passing.messages,
        "margin": np.float64(0.0),
        "host": np.where(on_host, kept.optimizer + _WIDE_BYTES * kept.updated, 0.0) + passing.live * passing.away,
        "to_host": rules.parameter.gradient * by_host + passes * passing.away,
        "to_device": rules.parameter.weight * by_host + passes * passing.away,
        "stage": stage,
    }
    shape = np.broadcast_shapes(plans.shape, stage.shape)
    tensors = SplitMemoryBytes(**{name: np.broadcast_to(np.asarray(value), shape) for name, value in values.items()})
    return replace(tensors, margin=rules.margin * tensors.allocated)


class StateBytes(NamedTuple):
    """What a rank of a stage keeps whatever its micro-batches are, wherever it lies; parameters that it updates."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    gathered: FloatArray
    updated: FloatArray


class PassBytes(NamedTuple):
    """What micro-batches take on a rank of a stage.

    ``working``: for one layer's backward pass; ``rest``: of logits, what is gone by then; ``live``: micro-batches;
    ``away``: of each in the host's memory.
    """

    activations: FloatArray
    working: FloatArray
    logits: FloatArray
    rest: FloatArray
    messages: FloatArray
    live: FloatArray
    away: FloatArray


def workspace(
    rules: MemoryRules, updated: FloatArray, activations: FloatArray, working: FloatArray, rest: FloatArray
) -> FloatArray:
    """Return the workspace of ranks, given what :class:`StateBytes` and :class:`PassBytes` hold."""
    updating = rules.parameter.main_gradient * updated
    return np.asarray(np.maximum(0.0, np.maximum(working, updating - activations) - rest))


def pass_bytes(of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules, layers: Layers) -> PassBytes:
    """Return what micro-batches take on a rank of a stage, given its layers."""
    of_layers, away, live, working = _of_layers(of, plans, stage, rules, layers)
    logits, left = _logits(of, plans, stage, rules)
    activations = of_layers + _ends(of, plans, stage, rules)
    return PassBytes(activations, working, logits, logits - left, _messages(of, plans, rules), live, away)


def state_bytes(
    of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules, held: StageLayers | None = None
) -> StateBytes:
    """Return what a rank of a stage keeps whatever its micro-batches are; ``held``: of :func:`stage_memory`."""
    parameters = stage_parameters(of, plans, stage, padded=rules.padded, layers=held)
    weights, gradients, optimizer, updated = _state(plans, rules, parameters)
    unit = (1 + rules.prefetch) * rules.parameter.weight + rules.parameter.gradient
    gathered = np.where(plans.sharding == WEIGHTS_SHARDED, unit * parameters.largest_unit, 0.0)
    return StateBytes(weights * weight_versions(stage, plans), gradients, optimizer, gathered, updated)


def _state(
    plans: SplitPlans, rules: MemoryRules, parameters: RankParameters
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return bytes of weights, gradients and optimizer, and the parameters that a rank updates."""
    each = rules.parameter
    weights = gradients = updated = np.zeros(())
    for count, ranks in (
        (parameters.shared, shard_ranks(plans, rules.rank_order)),
        (parameters.experts, shard_ranks(plans, rules.rank_order, experts=True)),
    ):
        shard = count / ranks
        weight_shard = shard * each.keeps_weight_shards
        weights = weights + np.where(plans.sharding >= WEIGHTS_SHARDED, weight_shard, count) * each.weight
        gradients = gradients + np.where(plans.sharding >= GRADIENTS_SHARDED, shard, count) * each.gradient
        updated = updated + np.where(plans.sharding >= OPTIMIZER_SHARDED, shard, count)
    return weights, gradients, updated * each.updated, updated


def _of_layers(
    of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules, layers: Layers
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return what layers keep on the device, and in the host's memory a micro-batch, live ones, and what one needs."""
    p, every = plans.pipeline_parallel, plans.recompute_every
    live = live_micro_batches(stage, plans.accumulation_steps, p, plans.virtual_stages, plans.schedule)
    of_one = largest = working = np.zeros(())
    count_of_all = np.zeros(())
    held = layers.held
    counts = stage_blocks(of, p, stage, held)
    repeated = counts if held is None else stage_blocks(of, p, stage, held.computed_again)
    for one, (kind, count), (_, repeats) in zip(layers.of_kinds, counts, repeated, strict=True):
        again = [np.zeros(()), (repeats > 0) * one.scores, np.minimum(every, repeats) * one.total]
        inputs = np.ceil(repeats / every)
        in_all = _by(plans.recompute, (repeats * one.total, repeats * one.others, inputs * one.input))
        if held is not None:
            in_all = in_all + (count - repeats) * one.total
        working = np.maximum(working, np.where(count > 0, _by(plans.recompute, again) + one.gradients, 0.0))
        largest = np.maximum(largest, in_all / np.maximum(count, 1))
        of_one, count_of_all = of_one + in_all, count_of_all + count
        if of.encoder_layers and kind != ENCODER:  # what the encoder gives, which all of them read
            of_one = of_one + (count > 0) * rules.itemsize * of.hidden * positions(of, plans, encoder=True)[1]
    on_device = np.minimum(_LAYERS_ON_DEVICE, count_of_all * live) * largest
    on_host = plans.offload == OFFLOADS.index("activations")
    return np.where(on_host, on_device, live * of_one), np.where(on_host, of_one, 0.0), live, working


def _by(codes: IntArray, values: Sequence[FloatArray]) -> FloatArray:
    """Return of each the value that its code says; of what each stage chooses, full recompute: it can be no more."""
    result = values[0]
    for code, other in enumerate((*values[1:], values[-1]), start=1):
        result = np.where(codes == code, other, result)
    return result


def _ends(of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules) -> FloatArray:
    """Return what is kept outside of layers, of all live micro-batches but the logits."""
    e, p, m, schedule = rules.itemsize, plans.pipeline_parallel, plans.accumulation_steps, plans.schedule
    n, n_s = positions(of, plans)
    entry = n_s * of.hidden * ((of.dropout > 0) + e * (not of.norm_first))
    entry = entry + n * (e * of.patch + _TOKEN_BYTES * ((of.vocabulary > 0) + (of.types > 0)))
    inputs = _INPUTS_OF_MASKED * _computed(of, plans) * n_s / n if of.head in _MASKED else n_s
    behind = e * of.hidden * (n_s * of.norm_first + inputs)
    if of.encoder_layers:
        encoded, encoded_s = positions(of, plans, encoder=True)
        masks = of.dropout > 0
        entry = entry + encoded_s * of.hidden * (e + 2 * masks) + _TOKEN_BYTES * encoded
        behind = behind + n_s * of.hidden * masks
    first = (stage == 0) * live_in_first_chunk(m, p, plans.virtual_stages, schedule)
    last = (stage == plans.last_stage) * live_in_last_chunk(m, p, schedule)
    return np.asarray(first * entry + last * behind)


def _computed(of: Transformer, plans: SplitPlans) -> FloatArray:
    """Return the positions of a rank and micro-batch of which logits are computed."""
    n, _ = positions(of, plans)
    if of.head == "classes":
        return plans.sub_batch.astype(np.float64)
    return n * (of.predictions / of.sequence if of.predictions else 1.0)


def _logits(of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules) -> tuple[FloatArray, FloatArray]:
    """Return the bytes of logits and loss when the last stage has most of them, and those left when it is through."""
    e, t = rules.itemsize, plans.tensor_parallel
    of_each: FloatArray | float = float(of.classes if of.head != "pooler" else 0)
    if of.has_logits:
        of_each = np.ceil((padded_vocabulary(of.vocabulary, t) if rules.padded else of.vocabulary) / t)
    narrow_kept, wide_kept, narrow_peak, wide_peak = LOSS_BYTES[rules.loss]
    live = live_in_last_chunk(plans.accumulation_steps, plans.pipeline_parallel, plans.schedule)
    waiting = (live - 1) * (narrow_kept * e + wide_kept)
    buffers = np.minimum(plans.accumulation_steps, rules.output_buffers) * (plans.sharding <= rules.output_sharding)
    # of one, the peak has the logits already
    peak = waiting + narrow_peak * e + wide_peak + _WIDE_BYTES * np.maximum(buffers - 1, 0)
    last = (stage == plans.last_stage) * _computed(of, plans) * of_each
    return last * peak, last * _WIDE_BYTES * buffers


def _messages(of: Transformer, plans: SplitPlans, rules: MemoryRules) -> FloatArray:
    """Return the bytes of buffers that messages need besides the tensors they carry."""
    n, n_s = positions(of, plans)
    one = rules.itemsize * n_s * of.hidden
    gathers = (plans.sequence_parallel > 0) * (plans.tensor_parallel > 1) * rules.itemsize * n * of.hidden
    between = (plans.pipeline_parallel > 1) * _MESSAGE_BUFFERS * one
    buckets = (plans.data_parallel > 1) * (plans.sharding == 0) * 2 * rules.bucket_bytes
    routed = 2 * of.top_k * rules.imbalance * (of.capacity or 1.0) * one * bool(of.expert_layers)
    total: FloatArray = gathers + between + buckets + (plans.expert_parallel > 1) * routed
    return total
