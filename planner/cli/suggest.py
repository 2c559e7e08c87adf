"""``planner suggest``: ranked plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.cli import output
from planner.cli.inputs import Case
from planner.cli.parsing import NOTHING
from planner.cli.request import gather, ordered, resolve
from planner.cli.values import DEFAULT, DEFAULT_REQUEST, OPTION, Values, merge, settings_named
from planner.domain.calibration import Calibration
from planner.domain.request import Problem, Sourced, SpaceRequest, Subject
from planner.domain.suggestion import Suggestion
from planner.errors import NothingFitsError, ParameterError, UsageError
from planner.formats.suggestion import suggestion_document, suggestions_document
from planner.report.prediction import overview, place
from planner.report.suggestion import suggestion_view
from planner.search.suggest import suggest

__all__ = ["answer", "run", "space_request"]


def run(arguments: Mapping[str, Any]) -> None:
    """Answer a request: gather values, resolve names, search, write.

    Every network is answered under every scenario, and all answers are written. NothingFitsError (exit code 4) when at
    least one of them has no plan, naming each that has none: a program that asks several questions must not take a
    missing answer for a plan.
    """
    values = gather("suggest", arguments)
    if "target_batch" not in values:
        raise ParameterError("--target-batch", "given", NOTHING, "say the wanted mini-batch in samples")
    with settings_named(values):
        _, resolved = resolve(values)
        for case in resolved:
            _check_price(case.problem, values)
        answers = [(case.problem.subject, answer(case, values)) for case in resolved]
    _write(answers, [case.problem.calibrations for case in resolved], as_json="json" in arguments)
    _check_found(answers)


def _check_price(problem: Problem, values: Values) -> None:
    """Refuse to minimise the cost where there is no price; that of a scenario's device is not known."""
    if "objective" in values and values["objective"].value == "cost" and problem.cluster.usd_per_gpu_hour is None:
        of = "" if problem.scenario.accelerator is None else f" of {problem.scenario.accelerator.name}"
        raise UsageError(
            f"--objective must be epoch-time on cluster {problem.cluster.name!r}, which has no price{of}, got 'cost'; "
            "give --cluster a file with [price] usd_per_gpu_hour"
        )


def space_request(values: Values) -> SpaceRequest:
    """Return what to search over; a value that is not given keeps the default of the record.

    The tolerance of the default request is that of asynchronous plans, whose mini-batch is random: synchronous ones can
    hit the target exactly. Any other source means both.
    """
    fields = {
        "nodes": "nodes", "gpus_per_node": "gpus_per_node", "sub_batch": "sub_batch", "accumulation": "accumulation",
        "precision": "precisions", "mode": "modes", "objective": "objective", "top": "top", "pareto": "pareto",
        "parallelism": "parallelism", "allow_specified": "allow_specified",
    }  # fmt: skip
    chosen = {field: values[name].value for name, field in fields.items() if name in values}
    if "tolerance" in values:
        given = values["tolerance"]
        both = ("tolerance_sync", "tolerance_async")
        chosen |= dict.fromkeys(both[given.source == DEFAULT_REQUEST :], given.value)
    return SpaceRequest(values["target_batch"].value, **chosen)


def answer(case: Case, values: Values) -> Suggestion:
    """Return the plans of one network under one scenario."""
    request = space_request(values)
    return suggest(case.problem, request, provenance(case, request))


def provenance(case: Case, request: SpaceRequest) -> Mapping[str, Sourced[object]]:
    """Return every value of the request with its source; None, and why in words, where it depends on the plan."""
    cluster = case.problem.cluster
    defaults: Values = {
        "target_batch": Sourced(request.target_batch, OPTION),
        "mode": Sourced(request.modes, DEFAULT),
        "tolerance": _tolerance(request, case.sources.get("tolerance")),
        "nodes": Sourced(tuple(range(1, cluster.nodes + 1)), "cluster"),
        "gpus_per_node": Sourced((cluster.node.gpus,), "cluster"),
        "sub_batch": Sourced(None, f"{DEFAULT}: 1 to the largest that fits"),
        "accumulation": _accumulation(request.modes),
        "precision": Sourced(None, f"{DEFAULT}: every one with a usable sub-model"),
        "objective": Sourced(request.objective, DEFAULT),
        "top": Sourced(request.top, DEFAULT),
        "pareto": Sourced(request.pareto, DEFAULT),
        "parallelism": Sourced(request.parallelism, DEFAULT),
    }
    given = {name: value for name, value in case.sources.items() if name != "tolerance"}
    return ordered(merge(given, defaults))


def _accumulation(modes: tuple[str, ...]) -> Sourced[object]:
    if modes == ("async",):
        return Sourced((1,), DEFAULT)
    return Sourced(None, f"{DEFAULT}: what reaches the target" + (", 1 when asynchronous" if "async" in modes else ""))


def _tolerance(request: SpaceRequest, given: Sourced[Any] | None) -> Sourced[object]:
    """Return the tolerance of each mode in play, and which of them are from where."""
    widths = {mode: request.tolerance(mode) for mode in request.modes}
    sources = dict.fromkeys(request.modes, given.source if given else DEFAULT)
    if given and given.source == DEFAULT_REQUEST and "sync" in sources:
        sources["sync"] = DEFAULT
    return Sourced(widths, ", ".join(dict.fromkeys(sources.values())))


Answers = Sequence[tuple[Subject, Suggestion]]


def _write(answers: Answers, calibrations: Sequence[tuple[Calibration, ...]], *, as_json: bool) -> None:
    if as_json:
        output.write_document(suggestions_document(answers) if len(answers) > 1 else suggestion_document(*answers[0]))
        return
    both = zip(answers, calibrations, strict=True)
    views = [suggestion_view(one, subject, known) for (subject, one), known in both]
    best = [(subject, one.plans[0].prediction if one.plans else None) for subject, one in answers]
    output.write_views([overview(best), *views] if len(views) > 1 else views)


def _check_found(answers: Answers) -> None:
    """Raise NothingFitsError, naming what has no plan and what to loosen, unless every answer has one."""
    missing = [(subject, one) for subject, one in answers if not one.plans]
    if not missing:
        return
    target = missing[0][1].request["target_batch"].value
    of = f" for {' and '.join(place(subject) for subject, _ in missing)}" if len(answers) > 1 else ""
    messages = dict.fromkeys(one.message for _, suggestion in missing for one in suggestion.loosen)
    ways = "; or ".join(messages)
    raise NothingFitsError(f"no plan of the space reaches --target-batch {target}{of}" + (f"; {ways}" if ways else ""))
