"""``planner suggest``: ranked plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from planner import catalog
from planner.cli import output
from planner.cli.optuna import kept_options, say_trials, searcher_of
from planner.cli.request import gather, resolve
from planner.cli.search_request import allowed_cases, allowed_request, check_not_refined, provenance, space_request
from planner.cli.stopping import StoppableSearch
from planner.cli.streams import note
from planner.cli.values import settings_named
from planner.domain.framework import PYTORCH
from planner.domain.node_groups import MixedCluster
from planner.domain.objective import weights_of
from planner.domain.precision import PRECISIONS
from planner.domain.request import DEFAULT, Problem, Sourced, SpaceRequest, Subject
from planner.domain.suggestion import Suggestion
from planner.errors import NOTHING, NothingFitsError, ParameterError
from planner.report.answer import suggestion_brief, suggestions_views
from planner.report.prediction import place
from planner.search.exhaustive import Watch, unwatched
from planner.search.refine import Refined, refinement, without_refinement
from planner.search.search import Searcher, search
from planner.search.searchable import Settings
from planner.search.suggest import suggest_among
from planner.search.switches import different_sets
from planner.sessions.inputs import Case, machine_of
from planner.sessions.inputs import cases as cases_of
from planner.sessions.node_groups import mixed_cluster, questions, subject_of_all
from planner.sessions.values import Values, listed

__all__ = [
    "answer", "check_found", "check_price", "run", "wanted", "write",
]  # fmt: skip


Answers = Sequence[tuple[Subject, Suggestion]]


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

            write_why_nots([allowed_cases(some, values) for some in _by_question(cases)], values, arguments)
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
    asked, left_out = allowed_cases(cases, values)
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
