"""The main job: from a resolved problem and a request to ranked plans, or to what to loosen."""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.configuration import MODES
from planner.domain.precision import PRECISIONS, precision_named
from planner.domain.prediction import PlanWarning
from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.suggestion import Plan, SearchReport, Suggestion
from planner.errors import ParameterError
from planner.search.evaluator import Evaluator, Priced
from planner.search.exhaustive import search
from planner.search.explain import hardly_inside, whys, whys_nearest, whys_pareto
from planner.search.feasibility import check_target
from planner.search.loosen import Loosener
from planner.search.ranking import Order, order_of
from planner.search.space import Limits
from planner.steps import predict, sources
from planner.steps.usable import candidate_precisions, check_candidate
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
    asked = [precision_named(name).name for name in request.precisions or PRECISIONS]
    if all(limits.why_not(name, mode) for name in asked for mode in request.modes):
        found = sources.Sources(problem)
        for mode in request.modes:
            found.check_mode(mode)
        check_candidate(found, asked[0], allow_specified=request.allow_specified)
    return suggest_with(predict.Evaluator(problem), order, limits, request, provenance)


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
            if reason
        },
        problem.scenario.sub_batch_factor,
        {mode: reason for mode in MODES if (reason := found.why_not_mode(mode))},
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
    keep = request.top + 1  # the last reported one is compared with the next
    outcome = search(request, limits, evaluator, order, keep=keep, pareto=request.pareto)
    report = SearchReport(
        method="exhaustive",
        certified=True,
        candidates=outcome.candidates,
        evaluated=outcome.evaluated,
        refused=outcome.refused,
    )
    if outcome.best is None:
        nearest = _nearest(evaluator, order, request, outcome.nearest)
        loosen = Loosener(request, limits, evaluator, order).loosenings(outcome)
        return Suggestion(provenance, "none_feasible", (), (), report, nearest, loosen, _warnings(order, nearest))
    sentences = whys(order, outcome.best, outcome.evaluated, request.top)
    plans = _plans(evaluator, request, outcome.best.take(slice(request.top)), sentences)
    front = outcome.pareto
    pareto = () if front is None else _plans(evaluator, request, front, whys_pareto(order, front))
    return Suggestion(provenance, "found", plans, pareto, report, warnings=_warnings(order, plans))


def _plans(evaluator: Evaluator, request: SpaceRequest, priced: Priced, sentences: list[str]) -> tuple[Plan, ...]:
    described = evaluator.describe(priced.configurations, window=request.window)
    pairs = zip(described, sentences, strict=True)
    return tuple(Plan(i, one, why + hardly_inside(one)) for i, (one, why) in enumerate(pairs, start=1))


def _nearest(evaluator: Evaluator, order: Order, request: SpaceRequest, nearest: Priced | None) -> tuple[Plan, ...]:
    if nearest is None:
        return ()
    windows = [request.window(MODES[mode]) for mode in nearest.configurations.mode]
    return _plans(evaluator, request, nearest, whys_nearest(order, nearest, windows))


def _warnings(order: Order, plans: tuple[Plan, ...]) -> tuple[PlanWarning, ...]:
    """Return the warnings of the plans, each once, and that of a missing data set."""
    found = dict.fromkeys(warning for plan in plans for warning in plan.prediction.warnings)
    if not order.has_dataset and all(warning.code != "no_dataset" for warning in found):
        message = "without a data set there is no epoch: plans are ranked by samples per second"
        found[PlanWarning("no_dataset", "dataset", message)] = None
    return tuple(found)
