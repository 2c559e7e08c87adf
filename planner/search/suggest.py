"""The main job: from a resolved problem and a request to ranked plans, or to what to loosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

from planner.domain.citation import cited
from planner.domain.configuration import MODES, SPLIT_AXES, Configurations
from planner.domain.precision import PRECISIONS, precision_named
from planner.domain.prediction import PlanWarning, Prediction
from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.suggestion import Plan, Refused, SearchReport, Suggestion
from planner.errors import Refusal
from planner.search.choice import (
    MOST_COMPARED_PLANS,
    Distinct,
    chosen_of,
    distinct_plans,
    in_all_precisions,
    probability_better,
    tied_plans,
)
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.exhaustive import Outcome, search
from planner.search.explain import hardly_inside, why_split, whys, whys_nearest, whys_pareto
from planner.search.feasibility import check_target
from planner.search.loosen import loosenings
from planner.search.plan_limits import check_limits
from planner.search.ranking import Order, order_of
from planner.search.space import Limits
from planner.search.split_space import SplitLimits
from planner.sources import sources
from planner.sources.usable import candidate_precisions, check_candidate
from planner.steps import predict
from planner.steps.split_price import SplitPricer, plans_of
from planner.workload.memory import largest_sub_batch

__all__ = ["Searcher", "limits_of", "order_and_limits", "suggest", "suggest_with"]


class Searcher(Protocol):
    """What looks for the best plans of a request; exhaustive unless another is named."""

    def __call__(
        self, request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, *, keep: int, pareto: bool
    ) -> Outcome:
        """Return the best ``keep`` plans, and how the space was searched."""


def suggest(
    problem: Problem,
    request: SpaceRequest,
    provenance: Mapping[str, Sourced[object]],
    searcher: Searcher = search,
) -> Suggestion:
    """Return the answer to a request; nothing that fits is an answer too, with what to loosen.

    Parameters
    ----------
    problem : Problem
    request : SpaceRequest
    provenance : mapping of request key to Sourced
        Stands in the answer as ``request``.
    searcher : Searcher

    Raises
    ------
    UsageError
        A value breaks its rule, is more than the cluster has, or asks for what is not supported.
    CoverageError
        No precision and mode of the request can be priced, or a link or term is missing.
    """
    order, limits = order_and_limits(problem, request)
    answer = suggest_with(predict.Evaluator(problem), order, limits, request, provenance, searcher=searcher)
    plans = (*answer.plans, *answer.pareto, *answer.nearest)
    return replace(
        answer,
        citations=cited([plan.prediction for plan in plans], problem.calibrations),
        warnings=(*_refusal_warnings(request, limits), *answer.warnings),
    )


def order_and_limits(problem: Problem, request: SpaceRequest) -> tuple[Order, Limits]:
    """Return the order of the plans of a request, and what the machine allows; raise as :func:`suggest`."""
    check_target(request, problem.dataset)
    order = order_of(problem, request)
    check_limits(request.most, order)
    limits = limits_of(problem, allow_specified=request.allow_specified)
    names = [precision_named(name).name for name in request["precision"] or PRECISIONS]
    if all(limits.why_not(name, mode) for name in names for mode in request.modes):
        kernel_sources = sources.Sources(problem)
        for mode in request.modes:
            kernel_sources.check_mode(mode)
        check_candidate(kernel_sources, names[0], allow_specified=request.allow_specified)
    return order, limits


def _refusal_warnings(request: SpaceRequest, limits: Limits) -> tuple[PlanWarning, ...]:
    """Return a warning for every precision that was named and is refused in all modes asked for."""
    reasons = {name: [limits.why_not(name, mode) for mode in request.modes] for name in request["precision"] or ()}
    return tuple(
        PlanWarning("precision_refused", name, f"It was asked for and is no candidate: {why[0]}.")
        for name, why in reasons.items()
        if all(why)
    )


def limits_of(problem: Problem, *, allow_specified: bool = False) -> Limits:
    """Return what the cluster of a problem allows; ``allow_specified``: 8 bits by the data sheet too."""
    cluster, kernel_sources = problem.cluster, sources.Sources(problem)
    return Limits(
        cluster.name,
        cluster.nodes,
        cluster.node.gpus,
        {
            (name, mode): _largest_sub_batch(problem, name, mode, kernel_sources.convolution_lowering(name))
            for name in PRECISIONS
            for mode in MODES
        },
        {
            name: reason
            for name, reason in candidate_precisions(kernel_sources, allow_specified=allow_specified).items()
            if reason is not None
        },
        problem.scenario.sub_batch_factor,
        {mode: Refusal("mode", reason, mode) for mode in MODES if (reason := kernel_sources.why_not_mode(mode))},
        cluster.node.accelerator.memory_bytes,
        _split_limits(problem, kernel_sources),
    )


def _split_limits(problem: Problem, kernel_sources: sources.Sources) -> SplitLimits | None:
    """Return the limits of plans that split the network; None where no plan can."""
    if problem.network.transformer is None:
        return None

    @cache
    def pricer(precision: str) -> SplitPricer:
        return SplitPricer(kernel_sources, precision)

    return SplitLimits(
        problem.network,
        problem.settings.framework,
        lambda rows, precision: pricer(precision).memory(plans_of(rows)).total,
        problem.cluster.node.accelerator.memory_bytes,
        lambda precision: pricer(precision).memory_rules,
    )


def _largest_sub_batch(problem: Problem, precision: str, mode: str, convolution: str) -> int:
    device, optimizer = problem.cluster.node.accelerator, problem.settings.optimizer
    return largest_sub_batch(
        problem.network,
        precision,
        optimizer,
        device.kind,
        device.memory_bytes,
        convolution=convolution,
        mode=mode,
        framework=problem.settings.framework,
    )


def suggest_with(
    evaluator: Evaluator,
    order: Order,
    limits: Limits,
    request: SpaceRequest,
    provenance: Mapping[str, Sourced[object]],
    *,
    searcher: Searcher = search,
) -> Suggestion:
    """Return the answer to a request, with any evaluator."""
    names = len(request["precision"] or PRECISIONS)  # as many equal plans may stand side by side
    keep = (max(request.top, MOST_COMPARED_PLANS) + 1) * names  # the last reported one is compared with the next
    outcome = searcher(request, limits, evaluator, order, keep=keep, pareto=request.pareto)
    report = SearchReport(
        method=outcome.method,
        certified=outcome.certified,
        candidates=outcome.candidates,
        evaluated=outcome.evaluated,
        refused=tuple(Refused(why.code, str(why), count) for why, count in outcome.refused.items()),
    )
    if outcome.best is None:
        nearest = _nearest(evaluator, order, request, outcome.nearest)
        loosen = loosenings(request, limits, evaluator, order, outcome) if outcome.certified else ()
        return Suggestion(provenance, "none_feasible", (), (), report, nearest, loosen, _warnings(order, nearest))
    best = distinct_plans(order, outcome.best)
    baseline = None if outcome.smallest is None else distinct_plans(order, outcome.smallest).priced.take(slice(1))
    candidates = _ranked_plans(evaluator, order, request, best, (outcome.evaluated, baseline))
    ties = tied_plans(candidates)
    choice, reason = chosen_of(candidates, ties, request.choose, order.device)
    if limits.split is not None and choice.prediction.configuration.is_split:
        reason += f". {_whole_first(why_split(choice.prediction, _whole_bytes(limits.split, choice)))}"
    plans = tuple(candidates[: request.top])
    if choice not in plans:  # it takes the place of the last one that was asked for
        plans = (*plans[: max(request.top - 1, 1)], choice)
    front = None if outcome.pareto is None else in_all_precisions(order, evaluator, outcome.pareto)
    return Suggestion(
        provenance,
        "found",
        plans,
        () if front is None else _plans(evaluator, request, front, whys_pareto(order, front.priced)),
        report,
        warnings=_warnings(order, plans),
        chosen=choice.position,
        choice=reason,
        tied=tuple(one.position for one in ties),
        baseline=None if baseline is None else baseline.configurations.one(0),
    )


def _whole_first(words: str) -> str:
    return words[0].upper() + words[1:]


def _whole_bytes(of: SplitLimits, plan: Plan) -> float:
    """Return the memory of a GPU that holds and keeps the whole network, for the same sub-batch [byte]."""
    defaults: dict[str, Any] = {axis.name: axis.default for axis in SPLIT_AXES}
    one = replace(plan.prediction.configuration, **defaults)
    return float(of.needed_bytes(Configurations.of([one]))[0])


def _ranked_plans(
    evaluator: Evaluator, order: Order, request: SpaceRequest, best: Distinct, of: tuple[int, PricedPlans | None]
) -> list[Plan]:
    """Return the plans that are reported or may be tied with the first, in order.

    ``of``: how many were ranked, and what efficiencies are relative to.
    """
    n_plans, baseline = of
    most = max(request.top, MOST_COMPARED_PLANS)
    leaders = best.priced.take(slice(most))
    sentences = whys(order, best.priced, n_plans, most)
    predictions, deviations = evaluator.compare(leaders.configurations, window=request.window)
    values = order.values(leaders).tolist()
    return [
        Plan(
            at + 1,
            one,
            sentences[at] + hardly_inside(one),
            best.precisions[at],
            probability_better(values[0], values[at], deviations[at]) if at else None,
            _efficiency(one, baseline),
        )
        for at, one in enumerate(predictions)
    ]


def _efficiency(prediction: Prediction, baseline: PricedPlans | None) -> float | None:
    """Return samples a second and device over those of a baseline of one plan."""
    if baseline is None:
        return None
    rate = float(baseline.predictions.samples_per_s[0]) / int(baseline.configurations.gpus[0])
    return prediction.samples_per_s.value / prediction.configuration.gpus / rate


def _plans(evaluator: Evaluator, request: SpaceRequest, distinct: Distinct, sentences: list[str]) -> tuple[Plan, ...]:
    predictions = evaluator.describe(distinct.priced.configurations, window=request.window)
    rows = zip(predictions, sentences, distinct.precisions, strict=True)
    return tuple(Plan(i, one, why + hardly_inside(one), alike) for i, (one, why, alike) in enumerate(rows, start=1))


def _nearest(
    evaluator: Evaluator, order: Order, request: SpaceRequest, nearest: PricedPlans | None
) -> tuple[Plan, ...]:
    if nearest is None:
        return ()
    windows = [request.window(MODES[mode]) for mode in nearest.configurations.mode]
    return _plans(
        evaluator, request, in_all_precisions(order, evaluator, nearest), whys_nearest(order, nearest, windows)
    )


def _warnings(order: Order, plans: tuple[Plan, ...]) -> tuple[PlanWarning, ...]:
    """Return the warnings of the plans, each once, and that of a missing data set."""
    warnings = dict.fromkeys(warning for plan in plans for warning in plan.prediction.warnings)
    if not order.has_dataset and all(warning.code != "no_dataset" for warning in warnings):
        message = "without a data set there is no epoch: plans are ranked by samples per second"
        warnings[PlanWarning("no_dataset", "dataset", message)] = None
    return tuple(warnings)
