"""The request of a command: values of its options and where they are from, names resolved, what a framework allows.

Values come from the command line, from ``planner.toml`` and from the default request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import catalog
from planner.cli.options import COMMANDS, OPTIONS, Option
from planner.cli.parsing import EVERY
from planner.cli.streams import note
from planner.domain.axes import AXES, Axis
from planner.domain.cluster import LOCAL
from planner.domain.objective import LIMITS
from planner.domain.prediction import Run
from planner.domain.request import DEFAULT, Problem, Sourced, SpaceRequest
from planner.errors import NOTHING, CoverageError, InputFileError, ParameterError, PlannerError, Refusal, UsageError
from planner.search.bases import HYBRID, PIPELINE, kinds_of, kinds_to_try, layer_axis_asked
from planner.search.search import refinement
from planner.search.searchable import kept
from planner.sessions import inputs
from planner.sessions.inputs import DEFAULT_REQUEST, OPTION, SETTINGS_FILE, Case, Values, listed, merge, value_of
from planner.sources.source import KERNEL_MISSING
from planner.workload.lawful import check_allowed
from planner.workload.program import block_starts


def from_options(arguments: Mapping[str, Any]) -> Values:
    """Return what the command line gives, parsed."""
    return {
        name: Sourced(_parsed(OPTIONS[name], OPTIONS[name].flag, value), OPTION) for name, value in arguments.items()
    }


def from_settings(settings: Mapping[str, Any], source: str, command: str) -> Values:
    """Return the values of a settings table that ``command`` has, parsed with the rules of the options.

    ``settings`` maps option names to text, numbers or lists; a value against its rule is InputFileError naming
    ``source``.
    """
    names = next(declared.options for declared in COMMANDS if declared.name == command)
    try:
        return {
            key: Sourced(_parsed(OPTIONS[key], key, as_text(OPTIONS[key], value)), source)
            for key, value in settings.items()
            if key in names
        }
    except ParameterError as error:
        raise InputFileError(source, str(error)) from error


SOURCES = (OPTION, SETTINGS_FILE, DEFAULT_REQUEST)
"""Of values that were typed, the strongest first."""


def values_typed(typed: Mapping[str, Mapping[str, Any]], command: str) -> Values:
    """Return the values of a command that were typed, by source."""
    return in_full(merge(*(from_settings(typed.get(source, {}), source, command) for source in SOURCES)))


def values_kept(request: Mapping[str, Sourced[Any]], command: str) -> Values:
    """Return the options that were typed for the request of a document, without derived values."""
    typed: dict[str, dict[str, Any]] = {source: {} for source in SOURCES}
    for key, one in request.items():
        source = next((each for each in SOURCES if each in one.source.split(", ")), None)
        value: Any = list(one.value) if isinstance(one.value, tuple) else one.value
        if key == "tolerance":  # by mode, the same of all to which it applies
            value = next(iter(value.values()), None)
        elif key == "deadline":
            value = f"{value!r}s"
        elif key == "limit":
            value = ",".join(f"{name}={most!r}{'s' * (LIMITS[name].unit == 's')}" for name, most in value.items())
        if source and value is not None:
            typed[source][key] = value
    values = values_typed(typed, command)
    if "calibration" in values:  # a document has known ones behind those that were named
        names = tuple(request["calibration"].value)
        for n in range(1, len(names)):
            named = {**values, "calibration": replace(values["calibration"], value=names[:n])}
            if tuple(inputs.machine_of(named, lambda _: None).sources["calibration"].value) == names:
                return named
    return values


def in_full(values: Values) -> Values:
    """Return the values with what ``recompute every:K`` stands for: full recompute of each K-th layer.

    ``recompute_every`` beside it replaces K where it comes from a stronger source.
    """
    given, own = values.get("recompute"), values.get("recompute_every")
    if given is None or not given.value[0].startswith(EVERY):
        return values
    if own is not None and own.source == given.source:
        flag, beside = OPTIONS["recompute_every"].flag, f"{OPTIONS['recompute'].flag} {','.join(given.value)}"
        raise ParameterError(flag, f"left out with {beside}", ",".join(map(str, own.value)))
    meant: Values = {
        "recompute": replace(given, value=("full",)),
        "recompute_every": replace(given, value=tuple(int(one.removeprefix(EVERY)) for one in given.value)),
    }
    stronger: Values = {"recompute_every": own} if own is not None and own.source == OPTION else {}
    return merge(stronger, meant, values)


@contextmanager
def settings_named(values: Values) -> Iterator[None]:
    """Let an error about a value of ``planner.toml`` name that file and the key, not a flag that nobody typed.

    InputFileError: instead of UsageError: the file is what is wrong.
    CoverageError: with the same exit code as without the file.
    """
    try:
        yield
    except (UsageError, CoverageError) as error:
        names = (name for name, value in values.items() if value.source == SETTINGS_FILE)
        key = next((name for name in names if _is_about(error.refusal, name)), None)
        if key is None:
            raise
        sentence = str(error).replace(OPTIONS[key].flag, key)
        if isinstance(error, CoverageError):
            why = Refusal(error.refusal.code, f"{SETTINGS_FILE}: {key}: {sentence}", key)
            raise CoverageError(why) from error
        raise InputFileError(SETTINGS_FILE, sentence, key) from error


@contextmanager
def options_named() -> Iterator[None]:
    """Let an error about how a plan is split name the option that says it, as it is typed."""
    try:
        yield
    except ParameterError as error:
        what = " x ".join(_FLAGS.get(name, name) for name in error.what.split(" x "))
        if what == error.what:
            raise
        raise ParameterError(what, error.rule, error.value, error.remedy) from error


_FLAGS = {axis.name: OPTIONS[axis.option].flag for axis in AXES if axis.only_sync}


def _is_about(refusal: Refusal, key: str) -> bool:
    """Return whether what is refused is the value of an option, or a part of it: a kernel is one of a precision."""
    if key == "precision" and refusal.code == KERNEL_MISSING:
        return True
    word = "data set" if key == "dataset" else key
    return re.match(rf"(\S+ of )?({OPTIONS[key].flag}|{word})(?![\w-])", refusal.subject) is not None


def _parsed(option: Option, what: str, value: Any) -> Any:
    if option.switch:
        return value
    if option.repeatable or isinstance(value, list):
        each = [option.parse(what, _single(what, one)) for one in value]
        found = tuple(each if option.is_distinct else dict.fromkeys(each))
        return found if option.repeatable or len(found) > 1 else found[0]
    return option.parse(what, value)


def _single(what: str, text: str) -> str:
    """Return a value of an option that is given once for each, or refuse a list of names in one."""
    several = [one.strip() for one in text.partition(":")[0].split(",") if one.strip()]  # arguments may have commas
    is_file = False
    with suppress(OSError):  # of a name that no file can have
        is_file = Path(text).exists()
    if len(several) < 2 or is_file:
        return text
    again = " ".join(f"{what} {one}" for one in several) if what.startswith("-") else f"{what} = {several}"
    raise ParameterError(what, "one name or file", text, f"for several write {again}")


def as_text(option: Option, value: Any) -> Any:
    """Return a value, or a list of them, as it is typed; of an option that repeats, a list of texts."""
    if option.switch:
        return value
    items = value if isinstance(value, list) else [value]
    is_list = option.repeatable or (option.several_in and isinstance(value, list))
    return [str(item) for item in items] if is_list else ",".join(str(item) for item in items)


PRINTING_OPTIONS = {"json", "brief", "verbose"}
"""Options that only say how to print."""
SEARCHING_OPTIONS = {"search", "switches", "time_limit", "trials", "study", "storage"}
"""Options that only say how to search: the answer says it as its method."""


def gather(command: str, arguments: Mapping[str, Any]) -> Values:
    """Return the values of the command line over those of ``planner.toml``, completed by the default request."""
    options = from_options(with_unknown(arguments))
    read = None
    with suppress(FileNotFoundError):  # deleted while the shell stands in it: nothing can be found upward from there
        read = catalog.read_settings(Path.cwd())
    path, settings = read or (None, {})
    of_file = from_settings(settings, SETTINGS_FILE, command)
    values = merge(options, of_file)
    with settings_named(values):
        for key, one in values.items():
            if (several := OPTIONS[key].several_in) and isinstance(one.value, tuple) and command not in several:
                rule, remedy = f"one with {command}", "name one on the command line"
                raise ParameterError(OPTIONS[key].flag, rule, ",".join(one.value), remedy)
        values, hint = _with_base(in_full(values), command)
    if used := sorted(key for key in of_file if key not in options):
        note(f"{', '.join(used)}: from {path}")
    if hint:
        note(hint)
    say_unused_frameworks()
    return values


def with_unknown(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with ``--allow-unknown`` as part of the networks that are read with it."""
    if "allow_unknown" not in arguments:
        return arguments
    allowing = {key: value for key, value in arguments.items() if key != "allow_unknown"}
    for key in {"network", "item"} & allowing.keys():
        value = allowing[key]
        several = isinstance(value, list | tuple)
        allowing[key] = [*map(catalog.allowing_unknown, value)] if several else catalog.allowing_unknown(value)
    return allowing


def say_unused_frameworks() -> None:
    """Say which of the user's own frameworks are not found under a name, as a bundled one has it."""
    for sentence in catalog.unused_own_names():
        note(sentence)


def _with_base(values: Values, command: str) -> tuple[Values, str]:
    """Return the values completed by the default request, and a note for the user or ''; unknown names come first."""
    for name in listed(values, "network"):
        catalog.find_network(name)
    finders = (catalog.find_any_cluster, catalog.find_dataset, catalog.find_framework, catalog.find_calibration)
    for key, find in zip(("cluster", "dataset", "framework", "calibration"), finders, strict=True):
        if key in values and (key, values[key].value) != ("cluster", LOCAL):
            for one in listed(values, key):
                find(one)
    if "network" in values:
        return values, ""
    if "cluster" in values or "calibration" in values:
        beside = inputs.said(values, "cluster" if "cluster" in values else "calibration")
        remedy = "name a network; 'planner show networks' lists them"
        raise ParameterError("--network", f"given with {beside}", NOTHING, remedy)
    defaults = from_settings(catalog.default_request(), DEFAULT_REQUEST, command)
    own = inputs.own_calibrations(note)
    hint = f"this machine has its own calibration {own[0].name!r}; --network NAME uses it" if own else ""
    return merge(values, defaults), hint


_OF_PROBLEM = (
    "network", "dataset", "cluster", "calibration", "only_calibration", "framework", "optimizer", "trainable",
    "strategy", "rank_order", "input", "scenario", "task",
)  # fmt: skip
"""Options that problems are made of."""


def resolve(values: Values) -> tuple[inputs.Machine, tuple[Case, ...]]:
    """Return what the networks run on, and a case for every network and scenario.

    Fusions that were asked for and have no use are noted, but for those that ``--switches`` goes through.
    """
    about = {name: values[name] for name in _OF_PROBLEM if name in values}
    machine = kept(("machine", repr(about)), lambda: inputs.machine_of(about, note))
    inputs.check_nodes(machine.cluster, values)
    of_problem = kept(("cases", repr(about)), lambda: inputs.cases(about, machine))
    inputs.check_trainable(values, (case.problem.network for case in of_problem))
    cases = tuple(replace(one, sources=merge(one.sources, values)) for one in of_problem)
    for sentence in () if "switches" in values else inputs.idle_fusions(cases):
        note(sentence)
    return machine, cases


def ordered(values: Values) -> Values:
    """Return the values in the order in which the options are declared.

    Without those that only say how to print or search, and without how a network is split where
    nothing but defaults says that it is not.
    """
    unsplit = {a.option for a in AXES if a.splits and values.get(a.option) == Sourced((a.default,), DEFAULT)}
    left_out = PRINTING_OPTIONS | SEARCHING_OPTIONS | unsplit
    return {name: values[name] for name in OPTIONS if name in values and name not in left_out}


Allowed = tuple[list[tuple[Case, SpaceRequest]], dict[str, PlannerError]]
"""Of one question, the cases whose framework allows the request, and by framework why others do not."""


_OF_SEARCH = ("objective", "top", "pareto", "parallelism", "choose")
"""Options that a request has under their own names, besides those of axes."""


def space_request(values: Values) -> SpaceRequest:
    """Return what to search over; a value that is not given keeps the default of the record.

    The tolerance of the default request is that of asynchronous plans, whose mini-batch is random: synchronous ones can
    hit the target exactly. Any other source means both.
    """
    names = {axis.option: axis.name for axis in AXES}
    names |= {key: key for key in (*_OF_SEARCH, "allow_specified", "allow_lossy", "sensitivity")}
    changes = {name: values[key].value for key, name in names.items() if key in values}
    changes["takes_nearest"] = "tolerance" not in values or values["tolerance"].source == DEFAULT_REQUEST
    if "tolerance" in values:
        tolerance = values["tolerance"]
        both = ("tolerance_sync", "tolerance_async")
        changes |= dict.fromkeys(both[tolerance.source == DEFAULT_REQUEST :], tolerance.value)
    changes["deadline_s"] = value_of(values, "deadline")
    deadline = {"run": changes["deadline_s"]} if "deadline" in values else {}
    changes["most"] = value_of(values, "limit", {}) | deadline
    changes["run"] = Run(value_of(values, "epochs", 1), value_of(values, "tokens", 0))
    if isinstance(target := values["target_batch"].value, tuple):
        raise ParameterError("--target-batch", "one number here", ",".join(map(str, target)), "suggest answers several")
    return SpaceRequest(target).changed(**changes)


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
    allowed, stages = kinds_of(network, framework), layer_axis_asked(request)
    if stages is not None and not block_starts(network) and PIPELINE not in allowed:  # rules of blocks say it otherwise
        of = f"{network.name} in framework {framework.variant}"
        rule = f"{stages.default} for {of}, which has no pipeline of its layers"
        raise ParameterError(f"--{stages.option}", rule, "another value")
    request = request.changed(parallelism=kinds_to_try(request, network, framework))
    for kind in request.parallelism:
        if kind not in allowed:
            rule = f"of the kinds that {network.name} and framework {framework.variant} allow, {', '.join(allowed)}"
            raise ParameterError("--parallelism", rule, kind)
    check_allowed(framework, request.asked)
    return request


def check_not_refined(request: SpaceRequest, what: str) -> None:
    """Refuse values that are chosen for the leading plans of a search alone."""
    for name, value in refinement(request).items():
        flag = OPTIONS[name].flag
        raise ParameterError(flag, f"of fixed values with {what}, which looks at all plans", value)


def provenance(case: Case, request: SpaceRequest) -> Mapping[str, Sourced[object]]:
    """Return every value of the request with its source; None, and why in words, where it depends on the plan."""
    tolerance = case.sources.get("tolerance")  # of each mode in play
    of_modes = dict.fromkeys(request.modes, tolerance.source if tolerance else DEFAULT)
    if tolerance and tolerance.source == DEFAULT_REQUEST and "sync" in of_modes:
        of_modes["sync"] = DEFAULT
    widths = {mode: request.tolerance(mode) for mode in request.modes}
    defaults: Values = {
        **{axis.option: _tried(axis, case.problem, request) for axis in AXES},
        "target_batch": Sourced(request.target_batch, OPTION),
        "tolerance": Sourced(widths, ", ".join(dict.fromkeys(of_modes.values()))),
        **{key: Sourced(getattr(request, key), DEFAULT) for key in _OF_SEARCH},
    }
    sources = {name: value for name, value in case.sources.items() if name != "tolerance"}
    if "target_batch" in sources:  # of several this one
        sources["target_batch"] = replace(sources["target_batch"], value=request.target_batch)
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
