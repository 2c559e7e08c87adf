"""What a search is asked: the values of a command as a request, what a framework allows of it, where each is from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.cli.options import OPTIONS
from planner.cli.request import ordered
from planner.domain.axes import AXES, Axis
from planner.domain.request import DEFAULT, Problem, Sourced, SpaceRequest
from planner.errors import ParameterError, PlannerError
from planner.search.bases import HYBRID, MODEL, PIPELINE, kinds_of, kinds_to_try, layer_axis_asked
from planner.search.refine import refinement
from planner.sessions.inputs import DEFAULT_REQUEST, OPTION, Case, Values, merge
from planner.workload.blocks import block_starts
from planner.workload.lawful import check_allowed

__all__ = ["Allowed", "allowed_cases", "allowed_request", "check_not_refined", "provenance", "space_request"]

Allowed = tuple[list[tuple[Case, SpaceRequest]], dict[str, PlannerError]]
"""Of one question, the cases whose framework allows the request, and by framework why others do not."""


def space_request(values: Values) -> SpaceRequest:
    """Return what to search over; a value that is not given keeps the default of the record.

    The tolerance of the default request is that of asynchronous plans, whose mini-batch is random: synchronous ones can
    hit the target exactly. Any other source means both.
    """
    names = {axis.option: axis.name for axis in AXES}
    names |= {key: key for key in ("objective", "top", "pareto", "parallelism", "choose")}
    names |= {key: key for key in ("allow_specified", "sensitivity")}
    changes = {name: values[key].value for key, name in names.items() if key in values}
    if "tolerance" in values:
        tolerance = values["tolerance"]
        both = ("tolerance_sync", "tolerance_async")
        changes |= dict.fromkeys(both[tolerance.source == DEFAULT_REQUEST :], tolerance.value)
    changes["most"] = values["limit"].value if "limit" in values else {}
    return SpaceRequest(values["target_batch"].value).changed(**changes)


def allowed_cases(cases: Sequence[Case], values: Values) -> Allowed:
    """Return the cases of one question whose framework allows the request, and why others do not.

    ParameterError where none does: that of the first.
    """
    asked: list[tuple[Case, SpaceRequest]] = []
    left_out: dict[str, PlannerError] = {}
    for case in cases:
        try:
            asked.append((case, allowed_request(case, values)))
        except ParameterError as error:
            left_out[case.subject.settings.framework.label] = error
    if not asked:
        raise next(iter(left_out.values()))
    return asked, left_out


def allowed_request(case: Case, values: Values) -> SpaceRequest:
    """Return what to search over for one network: kinds of parallelism and schedules that its framework allows."""
    request = space_request(values)
    network, framework = case.problem.network, case.problem.settings.framework
    allowed = kinds_of(network, framework)
    _check_layers(case, layer_axis_asked(request), allowed)
    request = request.changed(parallelism=kinds_to_try(request, network, framework))
    for kind in request.parallelism:
        if kind not in allowed:
            splits_layers = kind in (MODEL, HYBRID) and not block_starts(network)
            remedy = "schemes that split single layers are priced for attention blocks alone" if splits_layers else ""
            rule = f"of the kinds that {network.name} and framework {framework.variant} allow, {', '.join(allowed)}"
            raise ParameterError("--parallelism", rule, kind, remedy)
    check_allowed(framework, request.asked)
    return request


def check_not_refined(request: SpaceRequest, what: str) -> None:
    """Refuse values that are chosen for the leading plans of a search alone."""
    for name, value in refinement(request).items():
        flag = OPTIONS[name].flag
        raise ParameterError(flag, f"of fixed values with {what}, which looks at all plans", value)


def _check_layers(case: Case, asked: Axis | None, allowed: tuple[str, ...]) -> None:
    """Refuse stages of a network that a framework cannot pipeline: of those with blocks rules of their own say so."""
    network, framework = case.problem.network, case.problem.settings.framework
    if asked is not None and not block_starts(network) and PIPELINE not in allowed:
        of = f"{network.name} in framework {framework.variant}"
        rule = f"{asked.default} for {of}, which has no pipeline of its layers"
        raise ParameterError(f"--{asked.option}", rule, "another value")


def provenance(case: Case, request: SpaceRequest) -> Mapping[str, Sourced[object]]:
    """Return every value of the request with its source; None, and why in words, where it depends on the plan."""
    defaults: Values = {axis.option: _tried(axis, case.problem, request) for axis in AXES} | {
        "target_batch": Sourced(request.target_batch, OPTION),
        "tolerance": _tolerance(request, case.sources.get("tolerance")),
        "objective": Sourced(request.objective, DEFAULT),
        "top": Sourced(request.top, DEFAULT),
        "pareto": Sourced(request.pareto, DEFAULT),
        "parallelism": Sourced(request.parallelism, DEFAULT),
        "choose": Sourced(request.choose, DEFAULT),
    }
    sources = {name: value for name, value in case.sources.items() if name != "tolerance"}
    return ordered(merge(sources, defaults))


def _tried(axis: Axis, problem: Problem, request: SpaceRequest) -> Sourced[object]:
    """Return what is tried of an axis of which nothing is said."""
    if axis.of_cluster:
        most = problem.cluster.nodes if axis.name == "nodes" else problem.cluster.node.gpus
        return Sourced(tuple(range(1 if axis.of_cluster == "any" else most, most + 1)), "cluster")
    is_whole = axis.splits and request.parallelism == ("data",)
    if is_whole or not axis.default_in_suggest or (axis.only_sync and request.modes == ("async",)):
        is_scheduled = axis.name == "schedule" and {PIPELINE, HYBRID} & {*request.parallelism}
        return Sourced((problem.settings.framework.schedule if is_scheduled else axis.default,), DEFAULT)
    if axis.name != "accumulation_steps":
        return Sourced(None, f"{DEFAULT}: {axis.default_in_suggest}")
    of_async = ", 1 when asynchronous" if "async" in request.modes else ""
    return Sourced(None, f"{DEFAULT}: what reaches the target{of_async}")


def _tolerance(request: SpaceRequest, tolerance: Sourced[Any] | None) -> Sourced[object]:
    """Return the tolerance of each mode in play, and which of them are from where."""
    widths = {mode: request.tolerance(mode) for mode in request.modes}
    sources = dict.fromkeys(request.modes, tolerance.source if tolerance else DEFAULT)
    if tolerance and tolerance.source == DEFAULT_REQUEST and "sync" in sources:
        sources["sync"] = DEFAULT
    return Sourced(widths, ", ".join(dict.fromkeys(sources.values())))
