"""Which split plans fit: memory of the fullest rank of many plans, its total alone, and sub-batches that still fit.

What a rank keeps whatever its micro-batches are, and what these take, depend on different degrees: each is worked out
once for the plans that differ in it, and added plan by plan.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, BoolArray, FloatArray, IntArray
from planner.domain.split import OFFLOADS, SCHEDULES, SplitPlans
from planner.domain.transformer import Transformer
from planner.workload.memory_rules import MemoryRules
from planner.workload.pass_memory import OF_MICRO_BATCH, layers_of, micro_batch, pass_bytes
from planner.workload.split_memory import split_memory, state_bytes, workspace
from planner.workload.split_parameters import stages_that_can_be_worst

__all__ = ["fullest_bytes", "largest_sub_batches"]

_SAME_STATE = (
    "sub_batch", "accumulation_steps", "virtual_stages", "sequence_parallel", "recompute", "recompute_every",
)  # fmt: skip
"""Fields of plans on which nothing depends that is kept whatever micro-batches are."""
_SAME_PASSES = ("data_parallel", "shard_group", "gpus_per_node", "sharding")
"""Those on which nothing depends that micro-batches take, but for ``sharding`` where logits are buffered."""

_LIVE_TWICE = [SCHEDULES.index(name) for name in ("interleaved", "zero-bubble-h2", "zero-bubble-v")]
"""Schedules that have up to twice as many micro-batches alive as stages, somewhere: see in_flight."""


def fullest_bytes(of: Transformer, plans: SplitPlans, rules: MemoryRules) -> FloatArray:
    """Return the total of :func:`planner.workload.split_memory.split_memory`, of plans with fields of shape (n,).

    Up to rounding, as parts are added in another order.
    """
    if not plans.shape[0]:
        return np.zeros(0)
    if rules.bucket_bytes:
        return split_memory(of, plans, rules).total
    kept, which_kept = _cases(plans, _SAME_STATE)
    passing, steps, which_passing = _saturated(plans, rules)
    first, which_one = passing.distinct(OF_MICRO_BATCH)
    ones, worst = passing.take(first).rows, np.zeros(plans.shape)
    layers = layers_of(of, ones, rules)
    stages = (stages_that_can_be_worst(of, some) for some in (kept, passing, ones))
    for stage_kept, stage_passing, stage_of_one in zip(*stages, strict=True):
        state = state_bytes(of, kept, stage_kept, rules)
        one = micro_batch(of, ones, stage_of_one, rules, layers).at(which_one)
        passes = pass_bytes(passing, stage_passing, rules, one, steps)
        optimizer = np.where(kept.offload == OFFLOADS.index("optimizer"), 0.0, state.optimizer)
        of_state = state.weights + state.gradients + optimizer + state.gathered
        of_passes = passes.activations + passes.logits + passes.messages
        # What a workspace adds while layers compute, and while wide gradients are updated: see split_memory.workspace.
        computing = workspace(rules, np.zeros(()), passes.activations, passes.working, passes.rest)
        np.maximum(worst, of_state[which_kept] + (of_passes + computing)[which_passing], out=worst)
        if rules.parameter.main_gradient:
            of_updates = of_state + rules.parameter.main_gradient * state.updated
            left = of_passes - passes.activations - passes.rest
            np.maximum(worst, of_updates[which_kept] + left[which_passing], out=worst)
    return worst + rules.margin * worst + rules.framework_bytes


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
    first, which = plans.distinct(one.name for one in fields(SplitPlans) if one.name not in but)
    return plans.take(first).rows, which


def _saturated(plans: SplitPlans, rules: MemoryRules) -> tuple[SplitPlans, IntArray, IntArray]:
    """Return plans that differ in what micro-batches take, how many change that, and which plan each of n is like."""
    same = [name for name in _SAME_PASSES if name != "sharding" or not rules.output_buffers]
    names = [one.name for one in fields(SplitPlans) if one.name not in (*same, "accumulation_steps")]
    most = plans.of_bases(lambda some: _most_steps(some, rules))
    steps = np.minimum(plans.accumulation_steps, most)
    first, which = plans.distinct(names, (steps, int(steps.max(initial=0)) + 1))
    return plans.take(first), steps[first], which


def _most_steps(plans: SplitPlans, rules: MemoryRules) -> IntArray:
    """Return from how many micro-batches on more of them change nothing; gpipe keeps all."""
    twice = np.isin(plans.schedule, _LIVE_TWICE)
    most = np.maximum(plans.pipeline_parallel * np.where(twice, 2, 1), rules.output_buffers)
    return np.where(plans.schedule == SCHEDULES.index("gpipe"), LARGEST_COUNT, most)
