"""What a machine allows of a request, and the order of its plans: the start of every search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from planner.domain.arrays import FloatArray
from planner.domain.configuration import MODES, Configurations
from planner.domain.precision import PRECISIONS, precision_named
from planner.domain.request import Problem, SpaceRequest
from planner.errors import Refusal
from planner.search.feasibility import check_target
from planner.search.ranking import Order, order_of
from planner.search.reasons import check_limits
from planner.search.space import Limits
from planner.search.split_space import DATA, SplitLimits, kinds_of
from planner.sources import sources
from planner.sources.usable import candidate_precisions, check_candidate
from planner.steps.compute import memory_rules
from planner.steps.layer_pipeline import step_pricer
from planner.steps.price import Pricer
from planner.workload.blocks import block_starts
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules

__all__ = ["limits_of", "order_and_limits"]


def order_and_limits(problem: Problem, request: SpaceRequest) -> tuple[Order, Limits]:
    """Return the order of the plans of a request, and what the machine allows; raise as :func:`suggest`."""
    check_target(request, problem.dataset)
    order = order_of(problem, request)
    check_limits(request.most, order)
    named = request["precision"] or ()
    limits = limits_of(problem, allow_specified=request.allow_specified, named=named)
    names = [precision_named(name).name for name in request["precision"] or PRECISIONS]
    if all(limits.why_not(name, mode) for name in names for mode in request.modes):
        kernel_sources = sources.Sources(problem)
        for mode in request.modes:
            kernel_sources.check_mode(mode)
        check_candidate(kernel_sources, names[0], allow_specified=request.allow_specified or names[0] in named)
    return order, limits


def limits_of(problem: Problem, *, allow_specified: bool = False, named: Sequence[str] = ()) -> Limits:
    """Return what the cluster of a problem allows; ``allow_specified``: 8 bits that are not ``named`` too."""
    cluster, kernel_sources = problem.cluster, sources.Sources(problem)

    @cache
    def largest_sub_batch(rules: MemoryRules) -> int:
        ledger = Memory(problem.network, rules)
        return int(ledger.largest_sub_batches(Configurations.having(), kernel_sources.accelerator.memory_bytes))

    pairs = [(name, mode) for name in PRECISIONS for mode in MODES]
    whole = {pair: replace(memory_rules(kernel_sources, *pair), shrunk=1.0) for pair in pairs}  # whatever the scenario
    return Limits(
        cluster.name,
        cluster.nodes,
        cluster.node.gpus,
        {pair: largest_sub_batch(rules) for pair, rules in whole.items()},
        {
            name: reason
            for name, reason in candidate_precisions(
                kernel_sources, allow_specified=allow_specified, named=named
            ).items()
            if reason is not None
        },
        problem.scenario.sub_batch_factor,
        {mode: Refusal("mode", reason, mode) for mode in MODES if (reason := kernel_sources.why_not_mode(mode))},
        cluster.node.accelerator.memory_bytes,
        _split_limits(problem),
    )


def _split_limits(problem: Problem) -> SplitLimits | None:
    """Return the limits of plans that split the network; None where no plan can."""
    has_blocks, settings = bool(block_starts(problem.network)), problem.settings
    if not has_blocks and kinds_of(problem.network, settings.framework) == (DATA,):
        return None

    @cache
    def ledger(precision: str) -> Memory:
        return Memory(problem.network, memory_rules(sources.Sources(problem), precision))

    @cache
    def pricer(precision: str) -> Pricer:
        return step_pricer(sources.Sources(problem), precision)

    def memory_bytes(rows: Configurations, precision: str) -> FloatArray:
        if not has_blocks or rows.is_laid_out.any():
            return pricer(precision).memory(rows).total
        return ledger(precision).totals(rows)

    return SplitLimits(
        problem.network,
        settings.framework,
        memory_bytes,
        problem.cluster.node.accelerator.memory_bytes,
        ledger,
    )
