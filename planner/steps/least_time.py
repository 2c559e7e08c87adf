"""The least that plans can take, whatever is left open of them: bounds for a search.

No term of a step is below 0, and stages take what their kernels and the host take at least. With Σ the passes of all
units of the network over one micro-batch and t those of the quickest block, kernels alone, and c by what the host makes
any stage longer at least,

    step >= c max(m Σ / p, (m + (p - 1) / v) ⌊L / p⌋ t)

as some stage has its share of all units, every stage of an even cut holds ⌊L / p⌋ blocks, and the last one starts when
the first micro-batch has passed the others. c grows with the host's time over that of kernels, which of sums is no less
than of their least part: of a block, by itself or with an end of the network.

Closer, stages are priced as in the step itself. With w what a micro-batch takes of a stage both ways, its messages
included, W the sum of w over the s stages in front of it, and x what a micro-batch takes between stages, each way,

    step >= m w + W / v + 2 s x

of any stage, of which the one with the largest p w + W is taken. What is waited for falls away for schedules that fill
the bubble. These are bounds of the model, not of a machine.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, distinct_values
from planner.domain.configuration import Configurations
from planner.domain.split import BUBBLES, RECOMPUTES
from planner.steps.compute import PASSES, UnitTable
from planner.steps.host_and_gpu import composed_s
from planner.steps.passes import Passes
from planner.steps.price import Pricer
from planner.steps.step_costs import StepCosts, units_s
from planner.workload.units import Units

__all__ = ["least_pass_s", "least_scheduled_s", "least_step_s"]


def least_pass_s(pricer: Pricer, plans: Configurations) -> FloatArray:
    """Return what the passes of one sub-batch take at least, of a network without blocks or on one device [s], (n,).

    Some stage of a pipeline has its share of all passes.
    """
    least = np.zeros(plans.size)
    for rows, part in pricer.apart(plans):
        least[rows] = part.least_pass_s(plans.take(rows))
    return least


def least_step_s(pricer: Pricer, plans: Configurations) -> FloatArray:
    """Return a lower bound of the step of every plan that is like one of these but for what is open [s], shape (n,).

    Open are sharding, offloading, fewer virtual stages, and of schedules that have a bubble which one; stages are cut
    evenly. A sample takes no longer with more accumulation.

    Parameters
    ----------
    plans : Configurations, fields of shape (n,)
        With a schedule without a bubble, every schedule is open; without recompute, all recompute.
    """
    compute, rank = pricer.compute, pricer.ranks(plans)
    compute.cases.ensure(rank, plans.sub_batch)
    row, (every, block) = compute.cases.rows(rank, plans.sub_batch), pricer.of_rows(_leasts)
    m, p = plans.accumulation_steps, plans.pipeline_parallel
    waiting = np.where(np.isin(plans.schedule, BUBBLES), (p - 1) / plans.virtual_stages, 0.0)
    of_blocks = (compute.ranks[0].units.sequence.size - 2) // p * block[row, plans.recompute]
    replica_wait = pricer.overheads.wait_share(plans.gpus_per_node, plans.nodes) * m * of_blocks
    return np.asarray(np.maximum(m * every[row, plans.recompute] / p, (m + waiting) * of_blocks) + replica_wait)


def least_scheduled_s(pricer: Pricer, plans: Configurations) -> FloatArray:
    """Return a closer bound than :func:`least_step_s`, which takes longer."""
    passes = Passes(pricer, plans, pricer.ranks(plans))
    cases, case = passes.cases, passes.cases.case
    each_s, p = passes.least_s(messages=not pricer.chooses_order), cases.plans.pipeline_parallel[cases.of]
    ends = np.append(cases.stage[1:], 0)
    number = np.where(np.append(np.diff(cases.of), 1) > 0, p, ends) - cases.stage  # stages that each stands for
    through_s = np.cumsum(number * each_s)
    of_case = np.append(0.0, through_s)[np.flatnonzero(np.diff(cases.of, prepend=-1))]
    ahead_s = np.maximum(through_s - of_case[cases.of] - each_s, 0.0)
    score = p * each_s + ahead_s
    slowest = np.flatnonzero(score == cases.most(score)[cases.of])
    at = slowest[np.flatnonzero(np.diff(cases.of[slowest], prepend=-1))][case]
    waits = np.isin(plans.schedule, BUBBLES) & (plans.pipeline_parallel > 1)
    sent_s = 0.0 if pricer.chooses_order else 2.0 * (cases.stage + number - 1)[at] * passes.transfer_s[passes.case]
    fill_s = np.where(waits, ahead_s[at] / plans.virtual_stages + sent_s, 0.0)
    wait = pricer.overheads.wait_share(plans.gpus_per_node, plans.nodes)
    if wait.any():
        wait = wait * -cases.most(-passes.least_s(messages=False))[case]
    return np.asarray(plans.accumulation_steps * (each_s[at] + wait) + fill_s)


def _leasts(costs: StepCosts, table: UnitTable) -> tuple[FloatArray, ...]:
    """Return what passes of all units, and of the quickest block, take at least by kind of recompute, (c, kinds)."""
    units, (kernels, host) = costs.compute.ranks[0].units, units_s(costs, table)
    longer = _longer(kernels, host, units, costs.overheads.exponent)
    number = np.bincount(units.sequence, minlength=units.distinct).astype(np.float64)
    inner = np.bincount(units.sequence[1:-1], minlength=units.distinct).astype(np.float64)
    every, block = np.zeros((2, kernels.shape[0], len(RECOMPUTES)))
    for term, names, of, codes in (
        ("forward", ("forward",), number, slice(None)),
        ("backward", ("backward", "accumulating"), number, slice(None)),
        ("forward", ("forward",), inner * (units.reached > 0), RECOMPUTES.index("full")),
        ("forward", ("attention",), inner * (units.reached > 0), RECOMPUTES.index("selective")),
    ):
        least = longer[:, None] * np.min([kernels[:, PASSES.index(name)] for name in names], axis=0)
        least = costs.sources.multiplied(term, least, costs.precision)
        every.T[codes] += least @ of
        if inner.any():
            block.T[codes] += (least * (of > 0))[:, inner > 0].min(axis=1)
    return every, block


def _longer(kernels: FloatArray, host: FloatArray, units: Units, exponent: float) -> FloatArray:
    """Return by what the host makes the stages of even cuts longer at least, of each case, shape (c,)."""
    ends = np.zeros((4, 1, units.distinct))
    ends[1:3, :, units.sequence[0]] += 1.0
    ends[2:, :, units.sequence[-1]] += units.sequence.size > 1
    blocks = np.eye(units.distinct)[distinct_values(units.sequence[1:-1])]
    if not blocks.size:
        ends, blocks = ends[2:3], np.zeros((1, units.distinct))
    held = ends + blocks
    ratios = []
    for names in (("forward", "backward", "update"), ("forward", "accumulating")):
        for again in ((), ("forward",), ("attention",)):
            gpu_s, host_s = (
                np.einsum("cpu,ebu->ceb", one[:, [PASSES.index(name) for name in names]], held)
                + np.einsum("cpu,bu->cb", one[:, [PASSES.index(name) for name in again]], blocks)[:, None]
                for one in (kernels, host)
            )
            ratios.append(np.divide(host_s, gpu_s, out=np.full_like(host_s, np.inf), where=gpu_s > 0).min(axis=(1, 2)))
    return composed_s(np.ones(kernels.shape[0]), np.min(ratios, axis=0), exponent)
