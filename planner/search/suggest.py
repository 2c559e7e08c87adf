"""The main job: from a resolved problem and a request to ranked plans, or to what to loosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.domain.citation import cited
from planner.domain.configuration import MODES
from planner.domain.precision import PRECISIONS, precision_named
from planner.domain.prediction import PlanWarning, Prediction
from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.suggestion import Plan, Refused, SearchReport, Suggestion
from planner.errors import ParameterError, Refusal
from planner.search.choice import (
    AMONG,
    Distinct,
    chosen_of,
    distinct_plans,
    in_all_precisions,
    probability_better,
    tied_plans,
)
from planner.search.evaluator import Evaluator, Priced
from planner.search.exhaustive import search
from planner.search.explain import hardly_inside, whys, whys_nearest, whys_pareto
from planner.search.feasibility import check_target
from planner.search.loosen import Loosener
from planner.search.ranking import Order, order_of
from planner.search.space import Limits
from planner.sources import sources
from planner.sources.usable import candidate_precisions, check_candidate
from planner.steps import predict
from planner.workload.memory import largest_sub_batch

__all__ = ["limits_of", "suggest", "suggest_with"]


def suggest(problem: Problem, request: SpaceRequest, provenance: Mapping[str, Sourced[object]]) -> Suggestion:
    """Return the answer to a request; nothing that fits is an answer too, with what to loosen.

    Parameters
    ----------
    problem : Problem
    request : SpaceRequest
    provenance : mapping of request key to Sourced
        Stands in the answer as ``request``.

    Raises
    ------
    UsageError
        A value breaks its rule, is more than the cluster has, or asks for what is not supported.
    CoverageError
        No precision and mode of the request can be priced, or a link or term is missing.
    """
    check_target(request, problem.dataset)
    order = order_of(problem, request)
    limits = limits_of(problem, allow_specified=request.allow_specified)
    asked = [precision_named(name).name for name in request["precision"] or PRECISIONS]
    if all(limits.why_not(name, mode) for name in asked for mode in request.modes):
        found = sources.Sources(problem)
        for mode in request.modes:
            found.check_mode(mode)
        check_candidate(found, asked[0], allow_specified=request.allow_specified)
    answer = suggest_with(predict.Evaluator(problem), order, limits, request, provenance)
    shown = (*answer.plans, *answer.pareto, *answer.nearest)
    return replace(
        answer,
        citations=cited([plan.prediction for plan in shown], problem.calibrations),
        warnings=(*_refused(request, limits), *answer.warnings),
    )


def _refused(request: SpaceRequest, limits: Limits) -> tuple[PlanWarning, ...]:
    """Return a warning for every precision that was named and is refused in all modes asked for."""
    reasons = {name: [limits.why_not(name, mode) for mode in request.modes] for name in request["precision"] or ()}
    return tuple(
        PlanWarning("precision_refused", name, f"It was asked for and is no candidate: {found[0]}.")
        for name, found in reasons.items()
        if all(found)
    )


def limits_of(problem: Problem, *, allow_specified: bool = False) -> Limits:
    """Return what the cluster of a problem allows; ``allow_specified``: 8 bits by the data sheet too."""
    cluster, found = problem.cluster, sources.Sources(problem)
    return Limits(
        cluster.name,
        cluster.nodes,
        cluster.node.gpus,
        {
            (name, mode): _largest_sub_batch(problem, name, mode, found.convolution_lowering(name))
            for name in PRECISIONS
            for mode in MODES
        },
        {
            name: reason
            for name, reason in candidate_precisions(found, allow_specified=allow_specified).items()
            if reason is not None
        },
        problem.scenario.sub_batch_factor,
        {mode: Refusal("mode", reason, mode) for mode in MODES if (reason := found.why_not_mode(mode))},
        cluster.node.accelerator.memory_bytes,
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
) -> Suggestion:
    """Return the answer to a request, with any evaluator."""
    if request.parallelism != ("data",):
        raise ParameterError("parallelism", "data, until other kinds are supported", ",".join(request.parallelism))
    names = len(request["precision"] or PRECISIONS)  # as many equal plans may stand side by side
    keep = (max(request.top, AMONG) + 1) * names  # the last reported one is compared with the next
    outcome = search(request, limits, evaluator, order, keep=keep, pareto=request.pareto)
    report = SearchReport(
        method="exhaustive",
        certified=True,
        candidates=outcome.candidates,
        evaluated=outcome.evaluated,
        refused=tuple(Refused(why.code, str(why), count) for why, count in outcome.refused.items()),
    )
    if outcome.best is None:
        nearest = _nearest(evaluator, order, request, outcome.nearest)
        loosen = Loosener(request, limits, evaluator, order).loosenings(outcome)
        return Suggestion(provenance, "none_feasible", (), (), report, nearest, loosen, _warnings(order, nearest))
    best = distinct_plans(order, outcome.best)
    baseline = None if outcome.smallest is None else distinct_plans(order, outcome.smallest).priced.take(slice(1))
    ranked = _ranked(evaluator, order, request, best, (outcome.evaluated, baseline))
    tied = tied_plans(ranked)
    chosen, choice = chosen_of(ranked, tied, request.choose, order.device)
    plans = tuple(ranked[: request.top])
    if chosen not in plans:  # it takes the place of the last one that was asked for
        plans = (*plans[: max(request.top - 1, 1)], chosen)
    front = None if outcome.pareto is None else in_all_precisions(order, evaluator, outcome.pareto)
    return Suggestion(
        provenance,
        "found",
        plans,
        () if front is None else _plans(evaluator, request, front, whys_pareto(order, front.priced)),
        report,
        warnings=_warnings(order, plans),
        chosen=chosen.position,
        choice=choice,
        tied=tuple(one.position for one in tied),
        baseline=None if baseline is None else baseline.configurations.one(0),
    )


def _ranked(
    evaluator: Evaluator, order: Order, request: SpaceRequest, best: Distinct, of: tuple[int, Priced | None]
) -> list[Plan]:
    """Return the plans that are reported or may be tied with the first, in order.

    ``of``: how many were ranked, and what efficiencies are relative to.
    """
    evaluated, baseline = of
    most = max(request.top, AMONG)
    looked_at = best.priced.take(slice(most))
    sentences = whys(order, best.priced, evaluated, most)
    described, deviations = evaluator.compare(looked_at.configurations, window=request.window)
    values = order.values(looked_at).tolist()
    return [
        Plan(
            at + 1,
            one,
            sentences[at] + hardly_inside(one),
            best.precisions[at],
            probability_better(values[0], values[at], deviations[at]) if at else None,
            _efficiency(one, baseline),
        )
        for at, one in enumerate(described)
    ]


def _efficiency(prediction: Prediction, baseline: Priced | None) -> float | None:
    """Return samples a second and device over those of a baseline of one plan."""
    if baseline is None:
        return None
    rate = float(baseline.predictions.samples_per_s[0]) / int(baseline.configurations.gpus[0])
    return prediction.samples_per_s.value / prediction.configuration.gpus / rate


def _plans(evaluator: Evaluator, request: SpaceRequest, found: Distinct, sentences: list[str]) -> tuple[Plan, ...]:
    described = evaluator.describe(found.priced.configurations, window=request.window)
    rows = zip(described, sentences, found.precisions, strict=True)
    return tuple(Plan(i, one, why + hardly_inside(one), alike) for i, (one, why, alike) in enumerate(rows, start=1))


def _nearest(evaluator: Evaluator, order: Order, request: SpaceRequest, nearest: Priced | None) -> tuple[Plan, ...]:
    if nearest is None:
        return ()
    windows = [request.window(MODES[mode]) for mode in nearest.configurations.mode]
    return _plans(
        evaluator, request, in_all_precisions(order, evaluator, nearest), whys_nearest(order, nearest, windows)
    )


def _warnings(order: Order, plans: tuple[Plan, ...]) -> tuple[PlanWarning, ...]:
    """Return the warnings of the plans, each once, and that of a missing data set."""
    found = dict.fromkeys(warning for plan in plans for warning in plan.prediction.warnings)
    if not order.has_dataset and all(warning.code != "no_dataset" for warning in found):
        message = "without a data set there is no epoch: plans are ranked by samples per second"
        found[PlanWarning("no_dataset", "dataset", message)] = None
    return tuple(found)
