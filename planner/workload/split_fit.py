"""Which split plans fit: memory of the fullest rank of many plans, its total alone, and sub-batches that still fit.

What a rank keeps whatever its micro-batches are, and what these take, depend on different degrees: each is worked out
once for the plans that differ in it, and added plan by plan.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.split import OFFLOADS, SCHEDULES, SplitPlans
from planner.domain.transformer import Transformer
from planner.workload.split_memory import (
    MemoryRules,
    layers_of,
    pass_bytes,
    split_memory,
    state_bytes,
    workspace,
)
from planner.workload.split_parameters import stages_that_can_be_worst

__all__ = ["fullest_bytes", "largest_sub_batches"]

_SAME_STATE = (
    "sub_batch", "accumulation_steps", "virtual_stages", "sequence_parallel", "recompute", "recompute_every",
)  # fmt: skip
"""Fields of plans on which nothing depends that is kept whatever micro-batches are."""
_SAME_PASSES = ("data_parallel", "shard_group", "gpus_per_node", "sharding")
"""Those on which nothing depends that micro-batches take, but for ``sharding`` where logits are buffered."""


def fullest_bytes(of: Transformer, plans: SplitPlans, rules: MemoryRules) -> FloatArray:
    """Return the total of :func:`planner.workload.split_memory.split_memory`, of plans with fields of shape (n,)."""
    if not plans.shape[0]:
        return np.zeros(0)
    if rules.bucket_bytes:
        return split_memory(of, plans, rules).total
    kept, which_kept = _cases(plans, _SAME_STATE)
    same = tuple(name for name in _SAME_PASSES if name != "sharding" or not rules.output_buffers)
    passing, which_passing = _cases(_saturated(plans, rules), same)
    layers, worst = layers_of(of, passing, rules), np.zeros(plans.shape)
    stages = (stages_that_can_be_worst(of, one) for one in (kept, passing))
    for stage_kept, stage_passing in zip(*stages, strict=True):
        state = state_bytes(of, kept, stage_kept, rules)
        passes = pass_bytes(of, passing, stage_passing, rules, layers)
        optimizer = np.where(kept.offload == OFFLOADS.index("optimizer"), 0.0, state.optimizer)
        allocated = _at(state.weights + state.gradients + optimizer, which_kept)
        # In the order of SplitMemoryBytes.allocated: sums are those of split_memory to the last bit.
        allocated += _at(passes.activations, which_passing)
        for one, which in ((passes.logits, which_passing), (state.gathered, which_kept)):
            if one.any():
                allocated += _at(one, which)
        allocated += _at(passes.messages, which_passing)
        allocated += _workspace(rules, (state.updated, which_kept), passes[:4], which_passing)
        np.maximum(worst, allocated + rules.margin * allocated + rules.framework_bytes, out=worst)
    return worst


def largest_sub_batches(
    of: Transformer, plans: SplitPlans, rules: MemoryRules, capacity_bytes: float | FloatArray
) -> IntArray:
    """Return the largest sub-batch of each plan, all else as it is, whose memory fits; 0: not even one sample does.

    Bisected: more samples never take less.
    """
    shape = np.broadcast_shapes(plans.shape, np.shape(capacity_bytes))
    fitting, least_unfit = np.zeros(shape, dtype=np.int64), np.full(shape, 2, dtype=np.int64)
    fits = _fits(of, plans, rules, capacity_bytes, np.ones(shape, dtype=np.int64))
    while (growing := fits & (least_unfit <= LARGEST_COUNT)).any():
        fitting = np.where(growing, least_unfit // 2, fitting)
        fits = growing & _fits(of, plans, rules, capacity_bytes, least_unfit)
        least_unfit = np.where(fits, 2 * least_unfit, least_unfit)
    fitting = np.where(fits, least_unfit // 2, fitting)
    least_unfit = np.where(fitting > 0, least_unfit, 1)
    while (open_ones := least_unfit - fitting > 1).any():
        middle = np.where(open_ones, (fitting + least_unfit) // 2, np.maximum(fitting, 1))
        fits = _fits(of, plans, rules, capacity_bytes, middle)
        fitting = np.where(open_ones & fits, middle, fitting)
        least_unfit = np.where(open_ones & ~fits, middle, least_unfit)
    return fitting


def _fits(
    of: Transformer, plans: SplitPlans, rules: MemoryRules, capacity_bytes: float | FloatArray, samples: IntArray
) -> BoolArray:
    return np.asarray(split_memory(of, plans.but(sub_batch=samples), rules).total <= capacity_bytes)


def _cases(plans: SplitPlans, but: tuple[str, ...]) -> tuple[SplitPlans, IntArray]:
    """Return plans that differ in more than some fields, and which of them each of n plans is like."""
    first, which = distinct_rows(*(getattr(plans, one.name) for one in fields(plans) if one.name not in but))
    return plans.take(first), which


def _saturated(plans: SplitPlans, rules: MemoryRules) -> SplitPlans:
    """Return plans with no more micro-batches than change what is live or buffered."""
    most = np.maximum(2 * plans.pipeline_parallel, rules.output_buffers)
    is_gpipe = plans.schedule == SCHEDULES.index("gpipe")
    steps = plans.accumulation_steps
    return plans.but(accumulation_steps=np.where(is_gpipe, steps, np.minimum(steps, most)))


def _at(values: FloatArray, which: IntArray) -> FloatArray:
    """Return the value of each plan; ``values``: of cases, or one for all."""
    return values[which] if values.ndim else np.full(which.shape, values)


def _workspace(
    rules: MemoryRules,
    updated: tuple[FloatArray, IntArray],
    passes: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    which: IntArray,
) -> FloatArray:
    """Return the workspace of each plan: of cases of passes alone, where no update needs wide gradients."""
    activations, working, _, rest = passes
    if not rules.parameter.main_gradient:
        return _at(workspace(rules, np.zeros(()), activations, working, rest), which)
    return workspace(rules, _at(*updated), *(_at(one, which) for one in (activations, working, rest)))
