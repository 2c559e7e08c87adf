"""What a split transformer needs at least: bytes of a device on so many GPUs, and GPUs of so many bytes each.

Inputs of layers come to weights, gradients and optimizer, which all may share: with 1f1b the first stage keeps those of
L/p layers of p micro-batches, as many with any number of stages, so only tensor and context degrees lower them.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, BoolArray, IntArray
from planner.domain.split import RECOMPUTES, SCHEDULES, SplitPlans
from planner.domain.transformer import Transformer
from planner.workload.memory_rules import MemoryRules
from planner.workload.split_memory import split_memory
from planner.workload.transformer import blocks

__all__ = ["divisors", "least_gpus", "least_memory", "lowest_plans", "splits_by_tensors"]

_MOST_CONTEXT = 64


def lowest_plans(
    of: Transformer, gpus_per_node: int, *, tensor_most: int | None = None, shards_in_pipelines: bool = False
) -> SplitPlans:
    """Return plans of every lawful product of degrees with the least memory of each, on the fewest GPUs.

    One sample a pass, whole layers made again, 1f1b with as many micro-batches as stages; sharding 3 where there is one
    stage or the framework has it with several, else 1. Stages have equally many layers.
    """
    t = [d for d in divisors(of.heads) if splits_by_tensors(of, d) and d <= (tensor_most or of.heads)]
    c = [d for d in divisors(of.sequence // 2) if d <= _MOST_CONTEXT] if of.sequence % 2 == 0 else [1]
    p = divisors(sum(count for _, count in blocks(of)))
    tensor, context, pipeline, expert = (
        np.ravel(axis) for axis in np.meshgrid(t, c, p, divisors(max(of.experts, 1)), indexing="ij")
    )
    return SplitPlans.of(
        accumulation_steps=pipeline,
        data_parallel=expert // np.gcd(expert, context),
        tensor_parallel=tensor,
        context_parallel=context,
        expert_parallel=expert,
        pipeline_parallel=pipeline,
        sequence_parallel=(tensor > 1).astype(np.int64),
        recompute=RECOMPUTES.index("full"),
        sharding=np.where((pipeline == 1) | shards_in_pipelines, 3, 1),
        schedule=SCHEDULES.index("1f1b"),
        gpus_per_node=gpus_per_node,
    )


def least_memory(of: Transformer, plans: SplitPlans, rules: MemoryRules, gpus: int) -> tuple[float, SplitPlans] | None:
    """Return the least bytes that :func:`lowest_plans` take on so many GPUs, and the plan; None: no replicas divide."""
    replica = plans.tensor_parallel * plans.context_parallel * plans.pipeline_parallel
    data = gpus // replica
    lawful = (gpus % replica == 0) & (data % plans.data_parallel == 0) & (data > 0)
    if not lawful.any():
        return None
    total = split_memory(of, plans.but(data_parallel=np.maximum(data, 1)), rules).total
    best = int(np.argmin(np.where(lawful, total, np.inf)))
    return float(total[best]), plans.but(data_parallel=data).row(best)


def least_gpus(of: Transformer, plans: SplitPlans, rules: MemoryRules, capacity_bytes: float) -> int | None:
    """Return the fewest GPUs on which one of :func:`lowest_plans` fits, whole nodes of them; None: on no number.

    The data-parallel degree of each is bisected: more replicas never take more.
    """
    unit = plans.data_parallel

    def fits(times: IntArray) -> BoolArray:
        return np.asarray(split_memory(of, plans.but(data_parallel=unit * times), rules).total <= capacity_bytes)

    unfit, fit = np.zeros_like(unit), np.maximum(LARGEST_COUNT // plans.gpus, 1)
    can = fits(fit)
    while (between := fit - unfit > 1).any():
        middle = np.where(between, (unfit + fit) // 2, fit)
        enough = fits(middle)
        fit, unfit = np.where(enough, middle, fit), np.where(between & ~enough, middle, unfit)
    gpus = plans.but(data_parallel=unit * fit).gpus[can]
    if not gpus.size:
        return None
    node = int(plans.gpus_per_node)
    return min(int(one) if one <= node else -(-int(one) // node) * node for one in gpus)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, rising."""
    small = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def splits_by_tensors(of: Transformer, degree: int) -> bool:
    """Tell whether heads, groups of keys and widths of feed-forward parts lie on so many ranks in equal numbers."""
    groups = of.kv_heads % degree == 0 or degree % of.kv_heads == 0
    return groups and not any(size % degree for size in (of.heads, of.ffn, of.expert_ffn))
