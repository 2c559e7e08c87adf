"""Memory of one rank of plans that split a transformer, counted by stage and never fitted.

weights, gradients, optimizer   parameters of the rank (:mod:`planner.workload.split_parameters`); weights in as many
                                versions as a pipeline without a flush keeps
activations                     of a layer (:mod:`planner.workload.kept_activations`), of all layers of the stage and
                                its live micro-batches (:mod:`planner.workload.in_flight`); the mask behind the
                                embedding and the tokens on the first stage, inputs of norm and logits on the last
logits                          on the last stage, at the peak of one micro-batch, and what others keep that wait for
                                their backward pass; see LOSS_BYTES; those of micro-batches that are done, where
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

from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.split import (
    GRADIENTS_SHARDED,
    OFFLOADS,
    OPTIMIZER_SHARDED,
    WEIGHTS_SHARDED,
    SplitMemoryBytes,
    SplitPlans,
)
from planner.domain.transformer import Transformer
from planner.workload.in_flight import weight_versions
from planner.workload.memory_rules import WIDE_BYTES, MemoryRules
from planner.workload.pass_memory import Layers, layers_of, micro_batch, pass_bytes
from planner.workload.split_parameters import (
    RankParameters,
    StageLayers,
    shard_ranks,
    stage_parameters,
    stages_that_can_be_worst,
)

__all__ = ["split_memory", "stage_memory", "state_bytes", "workspace"]


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


def _on(of: Transformer, plans: SplitPlans, stage: IntArray, rules: MemoryRules, layers: Layers) -> SplitMemoryBytes:
    """Return the memory of a rank of a stage, given its layers."""
    kept = state_bytes(of, plans, stage, rules, layers.held)
    one = micro_batch(of, plans, stage, rules, layers)
    passing = pass_bytes(plans, stage, rules, one, plans.accumulation_steps)
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
        "host": np.where(on_host, kept.optimizer + WIDE_BYTES * kept.updated, 0.0) + passing.live * passing.away,
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


def workspace(
    rules: MemoryRules, updated: FloatArray, activations: FloatArray, working: FloatArray, rest: FloatArray
) -> FloatArray:
    """Return the workspace of ranks, given what :class:`StateBytes` and :class:`PassBytes` hold."""
    updating = rules.parameter.main_gradient * updated
    return np.asarray(np.maximum(0.0, np.maximum(working, updating - activations) - rest))


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
