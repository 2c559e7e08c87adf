"""The least that plans can take, whatever is left open of them: bounds for a search.

No term of a step is below 0, and stages take what their kernels and the host take at least. With Σ the passes of all
units of the network over one micro-batch and t those of the quickest block, each composed like a stage's,

    step >= max(m Σ / p, (m + (p - 1) / v) ⌊L / p⌋ t)

as some stage has its share of all units, every stage of an even cut holds ⌊L / p⌋ blocks, and the last one starts when
the first micro-batch has passed the others. The second part of the sum falls away for schedules that fill the bubble.
A sum of composed times is no less than the composed sums (Minkowski), so that Σ of all stages may be composed at once.
These are bounds of the model, not of a machine.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_values
from planner.domain.split import BUBBLES, SplitPlans
from planner.steps.price import Pricer
from planner.steps.split_compute import PASSES
from planner.steps.split_price import SplitPricer

__all__ = ["least_pass_s", "least_step_s"]


def least_pass_s(pricer: Pricer, sub_batch: IntArray) -> FloatArray:
    """Return what the passes of one sub-batch take at least on one device that holds the whole network [s], (n,)."""
    cases = pricer.compute.cases
    cases.ensure(distinct_values(sub_batch))
    table, row = pricer.compute.table, cases.rows(sub_batch)
    return np.asarray((table.forward_s + table.backward_s.min(axis=1))[row])


def least_step_s(pricer: SplitPricer, plans: SplitPlans) -> FloatArray:
    """Return a lower bound of the step of every plan that is like one of these but for what is open [s], shape (n,).

    Open are recompute, sharding, offloading, fewer virtual stages, and of schedules that have a bubble which one;
    stages are cut evenly.

    Parameters
    ----------
    pricer : SplitPricer
    plans : SplitPlans, fields of shape (n,)
        With a schedule without a bubble, every schedule is open.
    """
    compute, rank = pricer.compute, pricer.ranks(plans)
    compute.cases.ensure(rank, plans.sub_batch)
    row, table, units = compute.cases.rows(rank, plans.sub_batch), compute.cases.columns, compute.ranks[0].units
    kernels, host = table.kernels_s(pricer.overheads), table.host_s(pricer.overheads)
    number = np.bincount(units.sequence, minlength=units.distinct).astype(np.float64)
    blocks = distinct_values(units.sequence[1:-1])
    every, block = np.zeros(kernels.shape[0]), np.zeros(kernels.shape[0])
    for term, names in (("forward", ("forward",)), ("backward", ("backward", "accumulating"))):
        least = [np.min([one[:, PASSES.index(name)] for name in names], axis=0) for one in (kernels, host)]
        every += pricer.passed_s(term, *(one @ number for one in least))
        if blocks.size:
            block += pricer.passed_s(term, *(one[:, blocks].min(axis=1) for one in least))
    m, p = plans.accumulation_steps, plans.pipeline_parallel
    waiting = np.where(np.isin(plans.schedule, BUBBLES), (p - 1) / plans.virtual_stages, 0.0)
    of_blocks = (units.sequence.size - 2) // p * block[row]
    replica_wait = np.where(plans.gpus > 1, pricer.overheads.replica_wait, 0.0) * m * of_blocks
    return np.asarray(np.maximum(m * every[row] / p, (m + waiting) * of_blocks) + replica_wait)
