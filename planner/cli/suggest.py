"""Commands that search: ``planner suggest``, exactly or by Optuna, ``search-worker``, its trials, and ``sweep``."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import __version__, catalog
from planner.cli.options import OPTIONS
from planner.cli.request import (
    PRINTING_OPTIONS,
    SEARCHING_OPTIONS,
    SOURCES,
    Allowed,
    allowed_cases,
    allowed_request,
    check_not_refined,
    from_options,
    gather,
    provenance,
    resolve,
    settings_named,
    space_request,
    values_typed,
)
from planner.cli.streams import form_of, interruption, note, plot_file, write_document, write_view, write_views
from planner.domain.axes import AXES
from planner.domain.cluster import MixedCluster
from planner.domain.framework import PYTORCH
from planner.domain.objective import TERMS, is_sum, weights_of
from planner.domain.precision import PRECISIONS
from planner.domain.request import DEFAULT, Problem, Sourced, SpaceRequest, Subject
from planner.domain.suggestion import Suggestion, WhyNot, question_of
from planner.errors import (
    NOTHING,
    CoverageError,
    NothingFitsError,
    ParameterError,
    PlannerError,
    UnknownNameError,
    UsageError,
)
from planner.formats.documents import write_file
from planner.report.answer import suggestion_brief, suggestions_views
from planner.report.prediction import place
from planner.search.choice import in_one_ranking
from planner.search.exhaustive import Asked, Outcome, Stopped, Watch, unwatched
from planner.search.search import Refined, Searcher, refinement, search, without_refinement
from planner.search.searchable import Settings, different_sets, searchable_among
from planner.search.suggest import suggest_among
from planner.sessions import inputs
from planner.sessions.inputs import INFERENCE, OPTION, SETTINGS_FILE, Case, Values, listed, value_of
from planner.units import typed_number

if TYPE_CHECKING:
    from planner.search.optuna_search import OptunaSearch
    from planner.search.optuna_study import StudyPlace

__all__ = ["run", "search_worker", "sweep"]


@dataclass
class StoppableSearch:
    """A searcher with so much time for all its searches, and a watch over others, which have as much as they need.

    ``is_interrupted``: whether Ctrl-C or SIGTERM came meanwhile; every later search ends at once then.
    """

    time_limit_s: float | None = None
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        self._end_s = None if self.time_limit_s is None else time.monotonic() + self.time_limit_s

    def __call__(self, asked: Asked, *, keep: int, pareto: bool, beside: Sequence[Outcome] = ()) -> Outcome:
        """Return the best ``keep`` plans, or the best so far."""
        was_interrupted = self.is_interrupted
        with self.watch() as is_interrupted:

            def stopped() -> bool:
                return is_interrupted() or (self._end_s is not None and time.monotonic() >= self._end_s)

            outcome = search(asked, keep=keep, pareto=pareto, stopped=stopped, beside=beside)
        return replace(outcome, certified=False) if was_interrupted else outcome

    @contextmanager
    def watch(self) -> Iterator[Stopped]:
        """Give what says whether searches are to end; KeyboardInterrupt where none of them has found anything yet."""
        with interruption() as is_asked:

            def stopped() -> bool:
                self.is_interrupted |= is_asked()
                return self.is_interrupted

            try:
                yield stopped
            except UsageError:
                if stopped():
                    raise KeyboardInterrupt from None
                raise
            stopped()


DEFAULT_TRIALS = 200
_NOT_KEPT = PRINTING_OPTIONS | SEARCHING_OPTIONS | {"seed", "top", "choose", "why_not", "sensitivity"}
"""Options that change no trial."""


def searcher_of(values: Values, cases: Sequence[Case], options: Mapping[str, Any]) -> OptunaSearch | None:
    """Return the search that ``--search optuna`` asks for; None: an exact one. ``options``: as a study keeps them.

    ParameterError: what belongs to a search by Optuna is given without it; or there are several questions, as a study
    is of one.
    """
    if "search" not in values or values["search"].value == "exact":
        for name in ("trials", "study"):
            if name in values:
                raise ParameterError(f"--{name}", "given with --search optuna", values[name].value)
        return None
    if "time_limit" in values:
        raise ParameterError("--time-limit", "given with --search exact", values["time_limit"].value, "give --trials")
    from planner.search.optuna_search import OptunaSearch  # noqa: PLC0415 - only this search needs it
    from planner.search.optuna_study import StudyPlace, fingerprints  # noqa: PLC0415 - as above

    if (number := len(cases) * len(_by_target(values))) > 1:
        rule = "of one network, framework, scenario and target, as a study is of one"
        raise ParameterError("--search optuna", rule, f"{number} of them", "run it once for each")
    return OptunaSearch(
        value_of(values, "trials", DEFAULT_TRIALS),
        StudyPlace(value_of(values, "study", "")),
        value_of(values, "seed", 0),
        fingerprints(cases[0].problem, allowed_request(cases[0], values)),
        options,
        interruption=interruption,
    )


def say_trials(searcher: OptunaSearch | None) -> None:
    """Say how many trials a study had, and raise KeyboardInterrupt where the search was interrupted."""
    if searcher is None:
        return
    if searcher.place.where:
        note(f"study {searcher.place.shown}: {searcher.trials_before} trials before, {searcher.trials_here} more")
    if searcher.is_interrupted:
        goes_on = "the same command goes on" if searcher.place.where else "with --study FILE it could go on"
        note(f"the best of {searcher.trials_before + searcher.trials_here} trials; {goes_on}")
        raise KeyboardInterrupt


def kept_options(values: Values, arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return by source the options that change trials, as they were typed."""
    of_file = any(one.source == SETTINGS_FILE for one in values.values())
    settings = catalog.read_settings(Path.cwd()) if of_file else None
    texts = (arguments, settings[1] if settings else {}, catalog.default_request())
    typed: dict[str, Mapping[str, Any]] = dict(zip(SOURCES, texts, strict=True))
    return {
        source: {
            name: text
            for name, text in typed[source].items()
            if name not in _NOT_KEPT and (source == OPTION or (name in values and values[name].source == source))
        }
        for source in SOURCES
    }


def values_kept(place: StudyPlace, options: Mapping[str, Any]) -> Values:
    """Return the values of options that a study keeps; InputFileError where they are none."""
    for source, typed in options.items():
        if source not in SOURCES or not isinstance(typed, Mapping) or not typed.keys() <= OPTIONS.keys() - _NOT_KEPT:
            raise place.wrong("options must be those of suggest, by source", typed, source)
    try:
        return values_typed(options, "suggest")
    except PlannerError as error:
        raise place.wrong("options must be values that suggest accepts", str(error)) from error


Answers = Sequence[tuple[Subject, Suggestion]]


def run(arguments: Mapping[str, Any]) -> None:
    """Answer a request: gather values, resolve names, search, write.

    Every network is answered under every scenario, with the plans of all frameworks in one ranking, and all answers are
    written. NothingFitsError (exit code 4) when at least one of them has no plan, naming each that has none: a program
    that asks several questions must not take a missing answer for a plan.
    """
    values = gather("suggest", arguments)
    _check_clusters(values)
    if value_of(values, "task") == INFERENCE:
        from planner.cli.predict import write_replicas  # noqa: PLC0415 - only this task needs it

        with settings_named(values):
            write_replicas(values, arguments)
        return
    values = wanted(values)
    if value_of(values, "switches"):  # every lawful set of switches of each framework
        given = values.get("framework", Sourced(PYTORCH.name, DEFAULT))
        named = {one: catalog.find_framework(one) for one in listed(values, "framework") or (given.value,)}
        texts = (
            catalog.with_switches(text, framework.with_switches(names))
            for text, framework in named.items()
            for names in framework.switch_sets()
        )
        values = {**values, "framework": replace(given, value=tuple(dict.fromkeys(texts)))}
    exact = StoppableSearch(value_of(values, "time_limit"))
    with settings_named(values):
        if "why_not" in values and (of_one := _cases(values))[0] is None:
            asked = [allowed_cases(some, of) for of in _by_target(values) for some in _by_question(of_one[1])]
            _write_why_nots(asked, values, arguments)
            return
        answers, trials = _answers_on_clusters(values, arguments, exact)
    write(answers, arguments, in_list=isinstance(value_of(values, "cluster"), tuple))
    say_trials(trials)
    if exact.is_interrupted:
        raise KeyboardInterrupt
    check_found(answers)


def _check_clusters(values: Values) -> None:
    """Refuse several clusters together with an option that works on one."""
    if not isinstance(names := value_of(values, "cluster"), tuple):
        return
    clash = [name for name in ("why_not", "sensitivity") if name in values]
    clash += ["search"] * (value_of(values, "search") == "optuna")
    clash += ["objective"] * is_sum(value_of(values, "objective", ""))
    clash += ["task"] * (value_of(values, "task") == INFERENCE)
    if clash:
        key, flag = clash[0], OPTIONS[clash[0]].flag
        rule = f"a single one with {flag}{'' if key in ('why_not', 'sensitivity') else f' {value_of(values, key)}'}"
        raise ParameterError("--cluster", rule, ",".join(names), "ask for each by itself")


def _answers_on_clusters(
    values: Values, arguments: Mapping[str, Any], exact: StoppableSearch
) -> tuple[Answers, OptunaSearch | None]:
    """Return as :func:`_answers`; several clusters are ranked, and those that cannot be searched left out."""
    if "cluster" not in values or not isinstance((own := values["cluster"]).value, tuple):
        return _answers(values, arguments, exact)
    answers: list[tuple[Subject, Suggestion]] = []
    refused: dict[str, PlannerError] = {}
    for name in own.value:
        try:
            answers += _answers({**values, "cluster": replace(own, value=name)}, arguments, exact)[0]
        except (UsageError, CoverageError) as error:
            refused[name] = error
    if not answers:
        raise next(iter(refused.values()))
    of_name = Counter((question_of(*one), one[0].cluster) for one in answers)
    (_, name), count = of_name.most_common(1)[0]
    if count > 1:
        raise ParameterError("--cluster", "of different names, which the answer tells them by", name, "rename one")
    return in_one_ranking(answers, refused), None


def _cases(values: Values) -> tuple[MixedCluster | None, tuple[Case, ...]]:
    """Return a cluster of several node groups and no cases, or None and the cases on one of equal nodes."""
    mixed = inputs.mixed_cluster(values)
    cases = resolve(values)[1] if mixed is None else ()
    if cases and value_of(values, "switches"):  # without sets that do what a smaller set does
        request = space_request(_by_target(values)[0])
        of = request["precision"] or tuple(PRECISIONS), request.modes
        each = ((some, different_sets([one.problem for one in some], *of)) for some in _by_question(cases))
        cases = tuple(some[at] for some, kept in each for at in kept)
    for case in cases:
        _check_problem(case.problem, values)
    return mixed, cases


def _answers(
    values: Values, arguments: Mapping[str, Any], exact: StoppableSearch
) -> tuple[Answers, OptunaSearch | None]:
    """Return the answers on one cluster, and the search by Optuna where that was asked for."""
    mixed, cases = _cases(values)
    trials = None if mixed else searcher_of(values, cases, kept_options(values, arguments))
    method = value_of(values, "search", "exact")
    if "sensitivity" in values and (method != "exact" or "time_limit" in values):
        got, remedy = f"--search {method}", "each change is a search of the whole space"
        got = got if method != "exact" else "--time-limit"
        raise ParameterError("--sensitivity", "of an exact search without a time limit", got, remedy)
    if mixed is not None:
        return [one for of in _by_target(values) for one in _answers_across(of, mixed)], None
    watch = exact.watch if trials is None else unwatched
    every = ((some, of) for of in _by_target(values) for some in _by_question(cases))
    return [answer(some, of, trials or exact, watch) for some, of in every], trials


def _by_target(values: Values) -> list[Values]:
    """Return the values of each target mini-batch."""
    own = values["target_batch"]
    every = own.value if isinstance(own.value, tuple) else (own.value,)
    return [{**values, "target_batch": replace(own, value=one)} for one in every]


def _answers_across(values: Values, mixed: MixedCluster) -> list[tuple[Subject, Suggestion]]:
    """Return the answers on a cluster of several node groups, one a network and scenario."""
    from planner.cli.predict import check_suggested  # noqa: PLC0415 - few clusters have groups: commands start fast
    from planner.search.node_groups import suggest_across  # noqa: PLC0415 - likewise

    check_suggested(values, mixed)
    answers = []
    for question in inputs.questions(values, mixed, note):
        for case in question.values():
            _check_problem(case.problem, values, mixed.name)
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
        seed = value_of(values, "seed", 0)
        answers.append((inputs.subject_of_all(question, mixed), suggest_across(asked, of_all, seed)))
    return answers


_OF_RANKING = ("pareto", "sensitivity", "switches", "choose", "search", "trials", "study", "time_limit")
"""Options that an answer about other plans has no use for."""


def _write_why_nots(questions: Sequence[Allowed], values: Values, arguments: Mapping[str, Any]) -> None:
    """Write, of every network and scenario, why plans with the values of --why-not are not the answer."""
    from planner.formats.summaries import why_not_document  # noqa: PLC0415 - only this question needs it
    from planner.report.studies import why_not_view  # noqa: PLC0415 - as above

    given = [key for key in _OF_RANKING if key in values and values[key].source == OPTION]
    given += ["brief"] if "brief" in arguments else []
    if given:
        rule, remedy = "given without options of a ranking", "leave one of them out"
        raise ParameterError("--why-not", rule, f"--{given[0].replace('_', '-')}", remedy)
    by_option = {axis.option: axis for axis in AXES}
    asked: dict[str, tuple[Any, ...]] = {}  # by axis
    texts = dict(values["why_not"].value)
    framework = texts.pop("framework", "")
    for key, text in texts.items():
        axis = by_option.get(key.replace("-", "_"))
        if axis is None:
            names = ["framework", *(name.replace("_", "-") for name in by_option)]
            raise UnknownNameError("key of --why-not", key, names)
        parsed = OPTIONS[axis.option].parse(f"{key} in --why-not", text)
        asked[axis.name] = parsed if isinstance(parsed, tuple) else (parsed,)
    answers = [one for question in questions for one in _why_nots(question, asked, framework)]
    if "json" not in arguments:
        write_views(why_not_view(one, subject) for subject, one in answers)
        return
    if len(answers) > 1:
        rule = "of one network, framework and scenario with --json"
        raise ParameterError("--why-not", rule, f"{len(answers)} of them", "run it once for each")
    write_document(why_not_document(*answers[0]))


def _why_nots(question: Allowed, asked: Mapping[str, tuple[Any, ...]], framework: str) -> list[tuple[Subject, WhyNot]]:
    """Return the answers of one question, one a framework, or that of the one named."""
    from planner.search.studies import Among, why_nots  # noqa: PLC0415 - only this question needs it

    cases, errors = question
    left_out: dict[str, PlannerError] = dict(errors)
    for _, request in cases:
        check_not_refined(request, "--why-not")
    of_label = {case.problem.settings.framework.label: (case, request) for case, request in cases}
    searchable = searchable_among([(case.problem, request) for case, request in cases], left_out)
    labels = [one.label for one in searchable]
    if framework in left_out:
        raise left_out[framework]
    if framework and framework not in labels:
        rule, remedy = f"one of those of --framework, {', '.join(labels)}", "name it in --framework too"
        raise ParameterError("framework in --why-not", rule, framework, remedy)
    if not searchable:
        raise next(iter(left_out.values()))
    for label, error in left_out.items():
        note(f"{label} is left out: {error}")
    among = []
    for label, one in zip(labels, searchable, strict=True):
        own = one.problem.settings.framework if len(cases) + len(errors) > 1 else None
        among.append(Among(one.request, one.limits, one.evaluator, one.order, provenance(*of_label[label]), own))
    answers = zip(labels, why_nots(among, asked), strict=True)
    return [(of_label[label][0].subject, one) for label, one in answers if framework in ("", label)]


def write(answers: Answers, arguments: Mapping[str, Any], *, in_list: bool = False) -> None:
    """Write answers as the options say; ``in_list``: as a document of several, even of one."""
    is_brief, in_list = "brief" in arguments, in_list or len(answers) > 1
    if "json" in arguments:
        from planner.formats import suggestion, summaries  # noqa: PLC0415 - JSON alone

        several = summaries.briefs_document if is_brief else suggestion.suggestions_document
        alone = summaries.brief_document if is_brief else suggestion.suggestion_document
        write_document(several(answers) if in_list else alone(*answers[0]))
    elif "brief" in arguments:
        write_views(suggestion_brief(one, subject) for subject, one in answers)
    else:
        write_views(suggestions_views(answers, in_full="verbose" in arguments))


def wanted(values: Values) -> Values:
    """Return the values of a command that searches, or raise ParameterError where no mini-batch is wanted."""
    if value_of(values, "task") == INFERENCE:
        raise ParameterError("--task", "training in a sweep", INFERENCE, "ask planner suggest")
    for name in ("latency", "rate"):
        if name in values:
            raise ParameterError(OPTIONS[name].flag, "given with --task inference", values[name].value)
    if "epochs" in values and "tokens" in values:
        raise ParameterError("--tokens", "left out with --epochs", typed_number(values["tokens"].value))
    if "target_batch" not in values:
        raise ParameterError("--target-batch", "given", NOTHING, "say the wanted mini-batch in samples")
    return values


def _check_problem(problem: Problem, values: Values, cluster: str = "") -> None:
    """Refuse the cost without a price (of a scenario's device there is none), and epochs without a data set."""
    objective = value_of(values, "objective", "")
    needs_price = any(TERMS[one].needs_price for one in weights_of(objective) if objective)
    if needs_price and problem.cluster.usd_per_gpu_hour is None:
        of = "" if problem.scenario.accelerator is None else f" of {problem.scenario.accelerator.name}"
        rule = f"epoch-time or gpu-hours on cluster {(cluster or problem.cluster.name)!r}, which has no price{of}"
        raise ParameterError("--objective", rule, objective, "give --cluster a file with [price] usd_per_gpu_hour")
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
        for case in inputs.cases(rest, inputs.machine_of(rest, lambda _: None)):
            if (case.sources["network"].value, case.problem.scenario.text) in own:
                with suppress(ParameterError):  # the default allows no such request
                    asked.append((case.problem, allowed_request(case, rest)))
        return asked

    return Settings(given, without)


def check_found(answers: Answers) -> None:
    """Raise NothingFitsError, naming what has no plan and what to loosen, unless every question has one."""
    found = {question_of(*one) for one in answers if one[1].plans}
    missing = [one for one in answers if question_of(*one) not in found]
    if not missing:
        return
    target = ",".join(dict.fromkeys(str(one.request["target_batch"].value) for _, one in missing))
    of = f" for {' and '.join(place(subject) for subject, _ in missing)}" if len(answers) > 1 else ""
    least = [
        one.loosen[0].given + (f" for {place(subject)}" if len(answers) > 1 else "")
        for subject, one in missing
        if one.loosen
    ]
    remedy = f"; the smallest change that helps: {', '.join(least)}" if least else ""
    limits = "".join(f" and --{name}" for name in ("limit", "deadline") if name in missing[0][1].request)
    raise NothingFitsError(f"no plan meets --target-batch {target}{limits}{of}{remedy}")


def sweep(arguments: Mapping[str, Any]) -> None:
    """Sweep the objective against nodes and sub-batch: one network on one cluster.

    NothingFitsError (exit code 4) where no plan fits, behind the answer of ``suggest``: what comes nearest.
    """
    from planner.formats.summaries import sweep_document  # noqa: PLC0415 - only sweeps need it
    from planner.report.studies import sweep_plot, sweep_view  # noqa: PLC0415 - as above
    from planner.search import studies  # noqa: PLC0415 - as above

    values = wanted(gather("sweep", arguments))
    plot = plot_file(values)
    with settings_named(values):
        _, cases = resolve(values)
        if len(cases) > 1:
            rule = "one network, framework and scenario, as a table is of one"
            raise ParameterError("a sweep", rule, f"{len(cases)} of them", "run it once for each")
        case = cases[0]
        _check_problem(case.problem, values)
        request = allowed_request(case, values)
        check_not_refined(request, "sweep")
        exact = StoppableSearch()
        with exact.watch() as stopped:
            of_request = provenance(case, request)
            swept = studies.sweep(case.problem, request, of_request, stopped)
            nearest = [] if swept.plans or stopped() else [answer(cases, values)]
            if nearest and nearest[0][1].plans:  # of the nearest mini-batch
                width: Any = (tolerance := nearest.pop()[1].request["tolerance"]).value
                request = request.changed(tolerance_sync=width["sync"])
                swept = studies.sweep(case.problem, request, {**of_request, "tolerance": tolerance}, stopped)
        if exact.is_interrupted and not swept.plans:
            raise KeyboardInterrupt
    if nearest:
        write(nearest, arguments)
        check_found(nearest)
    if "json" in arguments:
        write_document(sweep_document(case.subject, swept))
    else:
        write_view(sweep_view(swept, case.subject))
    if plot:
        write_file(plot, sweep_plot(swept, case.subject, form_of(plot)), "force" in arguments)
        note(f"objective against nodes in {plot}")
    if exact.is_interrupted:
        raise KeyboardInterrupt


def search_worker(arguments: Mapping[str, Any]) -> None:
    """Make the request that the study keeps, and run trials of it; refuse other inputs, or another version.

    Names and files are looked up here: what they hold must be what it was where the study was made.
    """
    from planner.search.optuna_study import StudyPlace  # noqa: PLC0415 - only studies need it

    own = from_options(arguments)
    if "storage" not in own:
        raise ParameterError("--storage", "given", NOTHING, "say what suggest had as --study")
    place = StudyPlace(own["storage"].value, "--storage")
    inputs, options = place.load()
    place.check_inputs(inputs, {"planner": __version__})
    trials = own.get("trials", Sourced(DEFAULT_TRIALS, OPTION))
    of_its_own = int.from_bytes(os.urandom(4), "big")  # workers must not propose the same plans
    seed = own.get("seed", Sourced(of_its_own, OPTION))
    search = {"search": Sourced("optuna", OPTION), "trials": trials, "seed": seed}
    values = {**values_kept(place, options), **search}
    _, cases = resolve(values)
    searcher = searcher_of(values, cases, options)
    if searcher is None:
        return
    searcher = replace(searcher, place=place, starts=False)
    write([answer(cases, values, searcher)], arguments)
    say_trials(searcher)
