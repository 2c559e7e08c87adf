"""What micro-batches take on one rank of a stage: what one takes whatever the schedule, times those that are alive.

See :mod:`planner.workload.split_memory` for what is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.split import OFFLOADS, SplitPlans
from planner.domain.transformer import Transformer
from planner.workload.in_flight import live_in_first_chunk, live_in_last_chunk, live_micro_batches
from planner.workload.kept_activations import LayerBytes, layer_bytes, positions
from planner.workload.memory_rules import LOSS_BYTES, WIDE_BYTES, MemoryRules
from planner.workload.split_parameters import StageLayers, stage_blocks
from planner.workload.transformer import ENCODER, blocks, padded_vocabulary

__all__ = ["OF_MICRO_BATCH", "Layers", "MicroBatch", "PassBytes", "layers_of", "micro_batch", "pass_bytes"]

OF_MICRO_BATCH = (
    "sub_batch", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_parallel", "sequence_parallel",
    "recompute", "recompute_every", "last_stage",
)  # fmt: skip
"""Fields and properties of plans that decide what one micro-batch takes, but for buckets of gradients."""
_MESSAGE_BUFFERS = 4
_LAYERS_ON_DEVICE = 2
_TOKEN_BYTES = 8
_MASKED = ("masked", "pretraining")
_INPUTS_OF_MASKED = 4
"""Of the linear layer, activation, normalisation and logits of a masked head."""


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


class MicroBatch(NamedTuple):
    """What one micro-batch takes on a rank of a stage.

    ``of_layers``, ``largest``, ``layers``: bytes that all its layers keep, that the largest does, and how many they
    are; ``working``: for one layer's backward pass; ``entry``, ``behind``: kept outside of layers, with the first of
    them and with the last; ``logits``: elements; ``messages``: buffers.
    """

    of_layers: FloatArray
    largest: FloatArray
    layers: FloatArray
    working: FloatArray
    entry: FloatArray
    behind: FloatArray
    logits: FloatArray
    messages: FloatArray

    def at(self, which: IntArray) -> MicroBatch:
        """Return those at positions; what all have none of is held once."""
        nothing = np.zeros(())
        return MicroBatch(*((one[which] if one.any() else nothing) if one.ndim else one for one in self))


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


def micro_batch(of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules, layers: Layers) -> MicroBatch:
    """Return what one micro-batch takes on a rank of a stage, given its layers."""
    entry, behind = _ends(of, plans, rules)
    is_first, is_last = stage == 0, stage == plans.last_stage
    logits = is_last * _computed(of, plans) * _logits(of, plans, rules)
    of_layers = _of_layers(of, plans, stage, rules, layers)
    return MicroBatch(*of_layers, is_first * entry, is_last * behind, logits, _messages(of, plans, rules))


def pass_bytes(
    plans: SplitPlans, stage: IntArray, rules: MemoryRules, one: MicroBatch, micro_batches: IntArray
) -> PassBytes:
    """Return what so many micro-batches a step take on a rank of a stage, given what one does."""
    m, p, v, schedule = micro_batches, plans.pipeline_parallel, plans.virtual_stages, plans.schedule
    live, in_last = live_micro_batches(stage, m, p, v, schedule), live_in_last_chunk(m, p, schedule)
    kept, away = live * one.of_layers, np.zeros(())
    if (on_host := plans.offload == OFFLOADS.index("activations")).any():
        kept = np.where(on_host, np.minimum(_LAYERS_ON_DEVICE, one.layers * live) * one.largest, kept)
        away = np.where(on_host, one.of_layers, 0.0)
    activations = kept + (live_in_first_chunk(m, p, v, schedule) * one.entry + in_last * one.behind)
    narrow_kept, wide_kept, narrow_peak, wide_peak = LOSS_BYTES[rules.loss]
    waiting = (in_last - 1) * (narrow_kept * rules.itemsize + wide_kept)
    buffers = np.zeros(())
    if rules.output_buffers:
        buffers = np.minimum(m, rules.output_buffers) * (plans.sharding <= rules.output_sharding)
    # of one, the peak has the logits already
    peak = waiting + narrow_peak * rules.itemsize + wide_peak + WIDE_BYTES * np.maximum(buffers - 1, 0)
    logits = one.logits * peak
    rest = logits - one.logits * WIDE_BYTES * buffers
    return PassBytes(activations, one.working, logits, rest, one.messages, live, away)


def _of_layers(
    of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules, layers: Layers
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return what a micro-batch keeps of all layers, of the largest, how many they are, and what one needs to work."""
    p, every = plans.pipeline_parallel, plans.recompute_every
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
    return of_one, largest, count_of_all, working


def _by(codes: IntArray, values: Sequence[FloatArray]) -> FloatArray:
    """Return of each the value that its code says; of what each stage chooses, full recompute: it can be no more."""
    result = values[0]
    for code, other in enumerate((*values[1:], values[-1]), start=1):
        result = np.where(codes == code, other, result)
    return result


def _ends(of: Transformer, plans: SplitPlans, rules: MemoryRules) -> tuple[FloatArray, FloatArray]:
    """Return what a micro-batch keeps ahead of the layers and behind them, but the logits."""
    e = rules.itemsize
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
    return entry, behind


def _computed(of: Transformer, plans: SplitPlans) -> FloatArray:
    """Return the positions of a rank and micro-batch of which logits are computed."""
    n, _ = positions(of, plans)
    if of.head == "classes":
        return plans.sub_batch.astype(np.float64)
    return n * (of.predictions / of.sequence if of.predictions else 1.0)


def _logits(of: Transformer, plans: SplitPlans, rules: MemoryRules) -> FloatArray | float:
    """Return the logits of a position on a rank of the last stage."""
    if not of.has_logits:
        return float(of.classes if of.head != "pooler" else 0)
    t = plans.tensor_parallel
    return np.ceil((padded_vocabulary(of.vocabulary, t) if rules.padded else of.vocabulary) / t)


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
