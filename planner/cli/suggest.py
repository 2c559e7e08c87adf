"""``planner suggest``: ranked plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from planner import catalog
from planner.cli import output
from planner.cli.options import OPTIONS
from planner.cli.optuna import kept_options, say_trials, searcher_of
from planner.cli.request import gather, ordered, resolve
from planner.cli.stopping import StoppableSearch
from planner.cli.streams import note
from planner.cli.values import settings_named
from planner.domain.axes import AXES, Axis
from planner.domain.cluster import Cluster
from planner.domain.framework import PYTORCH
from planner.domain.node_groups import MixedCluster
from planner.domain.objective import weights_of
from planner.domain.precision import PRECISIONS
from planner.domain.request import DEFAULT, Problem, Sourced, SpaceRequest, Subject
from planner.domain.suggestion import Suggestion
from planner.errors import NOTHING, NothingFitsError, ParameterError, PlannerError
from planner.report.answer import suggestion_brief
from planner.report.prediction import place
from planner.report.suggestion import suggestions_views
from planner.search.conflict import Settings
from planner.search.exhaustive import Watch, unwatched
from planner.search.refine import Refined, refinement, without_refinement
from planner.search.search import Searcher, search
from planner.search.split_space import HYBRID, MODEL, PIPELINE, kinds_of, kinds_to_try, layer_axis_asked
from planner.search.suggest import suggest_among
from planner.search.switches import different_sets
from planner.sessions.inputs import Case, machine_of
from planner.sessions.inputs import cases as cases_of
from planner.sessions.node_groups import mixed_cluster, questions, subject_of_all
from planner.sessions.values import DEFAULT_REQUEST, OPTION, Values, listed, merge
from planner.workload.lawful import check_allowed

__all__ = [
    "Allowed",
    "allowed_request",
    "answer",
    "check_found",
    "check_not_refined",
    "check_price",
    "provenance",
    "run",
    "space_request",
    "wanted",
    "write",
]


Answers = Sequence[tuple[Subject, Suggestion]]
Allowed = tuple[list[tuple[Case, SpaceRequest]], dict[str, PlannerError]]
"""Of one question, the cases whose framework allows the request, and by framework why others do not."""


def run(arguments: Mapping[str, Any]) -> None:
    """Answer a request: gather values, resolve names, search, write.

    Every network is answered under every scenario, with the plans of all frameworks in one ranking, and all answers are
    written. NothingFitsError (exit code 4) when at least one of them has no plan, naming each that has none: a program
    that asks several questions must not take a missing answer for a plan.
    """
    values = _in_all_switches(wanted("suggest", arguments))
    with settings_named(values):
        mixed = mixed_cluster(values)
        cases = _of_use(resolve(values)[1], values) if mixed is None else ()
        for case in cases:
            check_price(case.problem, values)
            _check_epochs(case.problem, values)
        if "why_not" in values and mixed is None:
            from planner.cli.why_not import write_why_nots  # noqa: PLC0415 - only this question needs it

            write_why_nots([_allowed(some, values) for some in _by_question(cases)], values, arguments)
            return
        options = kept_options(values, arguments)
        trials = None if mixed else searcher_of(values, cases, allowed_request, options)
        _check_sensitivity(values)
        exact = StoppableSearch(values["time_limit"].value if "time_limit" in values else None)
        if mixed is not None:
            answers = _answers_across(values, mixed)
        else:
            watch = exact.watch if trials is None else unwatched
            answers = [answer(some, values, trials or exact, watch) for some in _by_question(cases)]
    write(answers, values["epochs"].value if "epochs" in values else None, arguments)
    say_trials(trials)
    if exact.is_interrupted:
        raise KeyboardInterrupt
    check_found(answers)


def _check_sensitivity(values: Values) -> None:
    """Refuse to say what changes of inputs do to an answer that is not the best of the whole space."""
    method = values["search"].value if "search" in values else "exact"
    if "sensitivity" in values and (method != "exact" or "time_limit" in values):
        got = f"--search {method}" if method != "exact" else "--time-limit"
        remedy = "each change is a search of the whole space"
        raise ParameterError("--sensitivity", "of an exact search without a time limit", got, remedy)


def _answers_across(values: Values, mixed: MixedCluster) -> list[tuple[Subject, Suggestion]]:
    """Return the answers on a cluster of several node groups, one a network and scenario."""
    from planner.cli.node_groups import check_suggested  # noqa: PLC0415 - few clusters have groups: commands start fast
    from planner.search.node_groups import suggest_across  # noqa: PLC0415 - likewise

    check_suggested(values, mixed)
    answers = []
    for question in questions(values, mixed, note):
        for case in question.values():
            check_price(case.problem, values, mixed.name)
            _check_epochs(case.problem, values)
        asked = {name: (case.problem, allowed_request(case, values)) for name, case in question.items()}
        first = next(iter(question))
        of_first = provenance(question[first], asked[first][1])
        calibrations = (name for case in question.values() for name in case.sources["calibration"].value)
        of_all: dict[str, Sourced[object]] = {
            **of_first,
            "calibration": replace(of_first["calibration"], value=tuple(dict.fromkeys(calibrations))),
            "gpus_per_node": Sourced(tuple(dict.fromkeys(one.cluster.node.gpus for one in mixed.groups)), "cluster"),
        }
        if "nodes" not in values:
            most = sum(one.cluster.nodes for one in mixed.groups)
            of_all["nodes"] = Sourced(tuple(range(1, most + 1)), "cluster")
        seed = values["seed"].value if "seed" in values else 0
        answers.append((subject_of_all(question, mixed), suggest_across(asked, of_all, seed)))
    return answers


def write(answers: Answers, epochs: int | None, arguments: Mapping[str, Any]) -> None:
    """Write answers as the options say; ``epochs``: of the whole training."""
    if "json" in arguments:
        output.write_document(_document(answers, epochs, brief="brief" in arguments))
    elif "brief" in arguments:
        output.write_views(suggestion_brief(one, subject, epochs) for subject, one in answers)
    else:
        output.write_views(suggestions_views(answers, in_full="verbose" in arguments, epochs=epochs))


def wanted(command: str, arguments: Mapping[str, Any]) -> Values:
    """Return the values of a command that searches, or raise ParameterError where no mini-batch is wanted."""
    values = gather(command, arguments)
    if "target_batch" not in values:
        raise ParameterError("--target-batch", "given", NOTHING, "say the wanted mini-batch in samples")
    return values


def _in_all_switches(values: Values) -> Values:
    """Return the values with every lawful set of switches of each framework, where --switches asks for them."""
    if "switches" not in values or not values["switches"].value:
        return values
    given = values.get("framework", Sourced(PYTORCH.name, DEFAULT))
    found = {one: catalog.find_framework(one) for one in listed(values, "framework") or (given.value,)}
    texts = (
        catalog.with_switches(text, framework.with_switches(names))
        for text, framework in found.items()
        for names in framework.switch_sets()
    )
    return {**values, "framework": replace(given, value=tuple(dict.fromkeys(texts)))}


def _of_use(cases: tuple[Case, ...], values: Values) -> tuple[Case, ...]:
    """Return the cases, with --switches without sets of switches that do what a smaller set does."""
    if "switches" not in values or not values["switches"].value:
        return cases
    request = space_request(values)
    of = request["precision"] or tuple(PRECISIONS), request.modes
    return tuple(some[at] for some in _by_question(cases) for at in different_sets([one.problem for one in some], *of))


def check_price(problem: Problem, values: Values, cluster: str = "") -> None:
    """Refuse to minimise the cost where there is no price; that of a scenario's device is not known.

    ``cluster``: the one that the problem has a node group of.
    """
    objective = values["objective"].value if "objective" in values else ""
    if "cost" in weights_of(objective) and problem.cluster.usd_per_gpu_hour is None:
        of = "" if problem.scenario.accelerator is None else f" of {problem.scenario.accelerator.name}"
        rule = f"epoch-time on cluster {(cluster or problem.cluster.name)!r}, which has no price{of}"
        raise ParameterError("--objective", rule, objective, "give --cluster a file with [price] usd_per_gpu_hour")


def _check_epochs(problem: Problem, values: Values) -> None:
    """Refuse to tell the time of epochs where a data set does not say what an epoch is."""
    if "epochs" in values and problem.dataset is None:
        what = f"given with a data set, which network {problem.network.name!r} has not"
        raise ParameterError("--epochs", what, values["epochs"].value, "name one with --dataset")


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


def _by_question(cases: Sequence[Case]) -> list[list[Case]]:
    """Return the cases of each network under each scenario: one a framework."""
    by_question: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by_question.setdefault((case.sources["network"].value, case.problem.scenario.text), []).append(case)
    return list(by_question.values())


def answer(
    cases: Sequence[Case], values: Values, searcher: Searcher = search, watch: Watch = unwatched
) -> tuple[Subject, Suggestion]:
    """Return the plans of one network under one scenario, and what they are of: the framework of the one to take.

    A framework of several that does not allow the request is left out, and that is said.
    """
    asked, left_out = _allowed(cases, values)
    of_request = provenance(*asked[0])
    if values_of_plan := refinement(asked[0][1]):
        if asked[0][1].sensitivity:
            check_not_refined(asked[0][1], "--sensitivity")
        asked = [(case, without_refinement(request)) for case, request in asked]
        searcher = Refined(values_of_plan, searcher)
    if len(cases) > 1:
        kinds = tuple(dict.fromkeys(kind for _, request in asked for kind in request.parallelism))
        labels = tuple(case.subject.settings.framework.label for case in cases)
        changes = {"framework": labels, "parallelism": kinds}
        of_request = {key: replace(one, value=changes.get(key, one.value)) for key, one in of_request.items()}
    of_each = [(case.problem, request) for case, request in asked]
    suggestion = suggest_among(of_each, of_request, left_out, searcher, watch, settings=_settings(cases, values))
    plan, subjects = suggestion.chosen_plan, [case.subject for case, _ in asked]
    own = (one for one in subjects if plan and plan.framework and one.settings.framework.label == plan.framework.label)
    return next(own, subjects[0]), suggestion


def _settings(cases: Sequence[Case], values: Values) -> Settings:
    """Return framework and optimizer as they were given, and what is asked of the same question without them."""
    keys = {"--framework": "framework", "--optimizer": "optimizer"}
    given = {option: ",".join(listed(values, key)) for option, key in keys.items() if key in values}

    def without(options: frozenset[str]) -> list[tuple[Problem, SpaceRequest]]:
        rest = {key: value for key, value in values.items() if key not in {keys[one] for one in options}}
        own = {(case.sources["network"].value, case.problem.scenario.text) for case in cases}
        asked = []
        for case in cases_of(rest, machine_of(rest, lambda _: None)):
            if (case.sources["network"].value, case.problem.scenario.text) in own:
                with suppress(ParameterError):  # the default allows no such request
                    asked.append((case.problem, allowed_request(case, rest)))
        return asked

    return Settings(given, without)


def _allowed(cases: Sequence[Case], values: Values) -> Allowed:
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
            splits_layers = kind in (MODEL, HYBRID) and network.transformer is None
            remedy = "schemes that split single layers are priced for transformers alone" if splits_layers else ""
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
    """Refuse stages of a network that a framework cannot pipeline: of transformers rules of their own say so."""
    network, framework = case.problem.network, case.problem.settings.framework
    if asked is not None and network.transformer is None and PIPELINE not in allowed:
        of = f"{network.name} in framework {framework.variant}"
        rule = f"{asked.default} for {of}, which has no pipeline of its layers"
        raise ParameterError(f"--{asked.option}", rule, "another value")


def provenance(case: Case, request: SpaceRequest) -> Mapping[str, Sourced[object]]:
    """Return every value of the request with its source; None, and why in words, where it depends on the plan."""
    defaults: Values = {axis.option: _tried(axis, case.problem.cluster, request) for axis in AXES} | {
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


def _tried(axis: Axis, cluster: Cluster, request: SpaceRequest) -> Sourced[object]:
    """Return what is tried of an axis of which nothing is said."""
    if axis.of_cluster:
        most = cluster.nodes if axis.name == "nodes" else cluster.node.gpus
        return Sourced(tuple(range(1 if axis.of_cluster == "any" else most, most + 1)), "cluster")
    is_whole = axis.is_split and request.parallelism == ("data",)
    if is_whole or not axis.default_in_suggest or (axis.only_sync and request.modes == ("async",)):
        return Sourced((axis.default,), DEFAULT)
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


def _document(answers: Answers, epochs: int | None, *, brief: bool) -> Mapping[str, Any]:
    """Return the document of the answers; with ``brief`` of the plans to take alone."""
    if not brief:
        from planner.formats.suggestion import suggestion_document, suggestions_document  # noqa: PLC0415 - JSON alone

        return suggestions_document(answers) if len(answers) > 1 else suggestion_document(*answers[0])
    from planner.formats.brief import brief_document, briefs_document  # noqa: PLC0415 - as above

    return briefs_document(answers, epochs) if len(answers) > 1 else brief_document(*answers[0], epochs)


def check_found(answers: Answers) -> None:
    """Raise NothingFitsError, naming what has no plan and what to loosen, unless every answer has one."""
    missing = [(subject, one) for subject, one in answers if not one.plans]
    if not missing:
        return
    target = missing[0][1].request["target_batch"].value
    of = f" for {' and '.join(place(subject) for subject, _ in missing)}" if len(answers) > 1 else ""
    least = [
        one.loosen[0].given + (f" for {place(subject)}" if len(answers) > 1 else "")
        for subject, one in missing
        if one.loosen
    ]
    remedy = f"; the smallest change that helps: {', '.join(least)}" if least else ""
    within = " within --limit" if missing[0][1].request.get("limit") else ""
    raise NothingFitsError(f"no plan of the space reaches --target-batch {target}{within}{of}{remedy}")
