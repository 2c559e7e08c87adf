"""``planner predict``: configurations, term by term, on one kind of nodes or on several node groups (``--group``).

With ``--task inference``, of predict and suggest: batches on one device, and the fewest replicas for a rate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.cli.options import OPTIONS
from planner.cli.parsing import AskedPart
from planner.cli.request import gather, options_named, ordered, resolve, settings_named
from planner.cli.streams import note, write_document, write_view
from planner.domain.axes import AXES
from planner.domain.cluster import Cluster, GroupPart, MixedCluster
from planner.domain.configuration import SPLIT_AXES, Configuration, Configurations
from planner.domain.framework import BEST_FUSION, Framework
from planner.domain.objective import TERMS, is_sum
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import Batch, Prediction, cited
from planner.domain.request import DEFAULT, Sourced, Subject
from planner.errors import NOTHING, NothingFitsError, ParameterError
from planner.formats.prediction import prediction_document, predictions_document
from planner.formats.summaries import inference_document
from planner.report.answer import predictions_view
from planner.report.blocks import Block
from planner.report.parts import configuration_words
from planner.report.prediction import fusion_lines, place
from planner.report.studies import batches_view, gains_table, kernel_table, replicas_view
from planner.search.search import REFINED
from planner.sessions import inputs
from planner.sessions.inputs import DEFAULT_REQUEST, OPTION, TRAINING, Case, Values, merge, value_of
from planner.sources.sources import Sources, why_not_precision
from planner.steps.inference import Inference, check_batch, replicas_of
from planner.steps.kernel_rows import by_kind, kernel_rows
from planner.steps.predict import Evaluator
from planner.units import format_duration

Answers = list[tuple[Subject, Sequence[Case], Sequence[Prediction]]]
"""What each is about, the cases that it rests on, and its predictions."""
MOST_CONFIGURATIONS = 10_000
"""Configurations predicted in full at once; more are a search."""


def run(arguments: Mapping[str, Any]) -> None:
    """Predict: gather values, resolve names, multiply the lists out, evaluate, write."""
    if "runs" in arguments:
        files = ", ".join(arguments["runs"])
        raise ParameterError("--runs", "left out, as tables of runs are not supported yet", files)
    values = gather("predict", arguments)
    if value_of(values, "task", TRAINING) != TRAINING:
        with settings_named(values):
            _write_batches(values, arguments)
        return
    with settings_named(values), options_named():
        mixed = inputs.mixed_cluster(values)
        if mixed is None and "group" in values:
            rule = "left out on a cluster without node groups"
            raise ParameterError("--group", rule, values["group"].value[0].group, "use --nodes and --sub-batch")
        if mixed is None:
            machine, cases = resolve(values)
            answers: Answers = []
            for case in cases:
                whole = _completed(values, machine.cluster, case.problem.settings.framework)
                predictions = Evaluator(case.problem).describe(Configurations.of(_configurations(whole)))
                answers.append((case.subject, (case,), predictions))
            values = whole
        else:
            answers = _across_groups(values, mixed)
    _write(answers, values, arguments)


def _completed(values: Values, cluster: Cluster, framework: Framework) -> Values:
    """Return the values with the defaults of one configuration; ``mini_batch`` replaces a weaker ``sub_batch``."""
    defaults = {axis.option: Sourced((axis.default,), DEFAULT) for axis in AXES if axis.default is not None}
    if max(values["pipeline"].value if "pipeline" in values else (1,)) > 1:
        defaults["schedule"] = Sourced((framework.schedule,), DEFAULT)
    every_gpu = {"gpus_per_node": Sourced((cluster.node.gpus,), "cluster")}
    whole = dict(merge(values, defaults, every_gpu))
    if len(whole["mode"].value) != 1:
        raise ParameterError("--mode", "sync or async, one of them", ",".join(whole["mode"].value))
    if "mini_batch" not in whole:
        if "sub_batch" not in whole:
            raise ParameterError("--sub-batch", "given", NOTHING, "say the samples of one pass, or --mini-batch")
        return whole
    if "sub_batch" in whole and whole["sub_batch"].source == OPTION:
        raise ParameterError("--mini-batch", "given without --sub-batch", whole["mini_batch"].value)
    if whole["mode"].value != ("sync",):
        remedy = "an asynchronous mini-batch is an outcome: give --sub-batch"
        raise ParameterError("--mini-batch", "given with --mode sync", whole["mini_batch"].value, remedy)
    whole.pop("sub_batch", None)
    return whole


def _configurations(values: Values) -> list[Configuration]:
    """Return the product of all lists, the last axis fastest; with ``mini_batch`` the sub-batch follows from it."""
    lists = [values[axis.option].value if axis.option in values else (None,) for axis in AXES]
    size = math.prod(len(one) for one in lists)
    if size > MOST_CONFIGURATIONS:
        raise ParameterError("the lists and ranges", f"at most {MOST_CONFIGURATIONS} configurations together", size)
    plans = []
    for point in itertools.product(*lists):
        axes: dict[str, Any] = {axis.name: value for axis, value in zip(AXES, point, strict=True)}
        for axis in AXES:
            if axes["mode"] == "async" and axis.only_sync and axes[axis.name] != axis.default:
                flag, rule = OPTIONS[axis.option].flag, f"{axis.default} in an asynchronous plan"
                raise ParameterError(flag, rule, axes[axis.name])
        if axes["sub_batch"] is None:
            one = Configuration(**axes | {"sub_batch": 1})
            passes, mini_batch = one.samples_per_update, values["mini_batch"].value
            if mini_batch % passes:
                copies = "GPUs" if one.data_parallel == one.gpus else "data-parallel copies"
                rule = f"a multiple of {copies} x accumulation, here {passes}"
                near = max(mini_batch // passes, 1) * passes
                raise ParameterError("--mini-batch", rule, mini_batch, f"the nearest are {near} and {near + passes}")
            axes["sub_batch"] = mini_batch // passes
        check_batch(axes["precision"], axes["sub_batch"])
        plans.append(Configuration(**axes))
    return plans


def _fusion_gains(case: Case, of_case: Sequence[Prediction]) -> list[float | None]:
    """Return what the best messages of gradients would save of each step [s].

    None where no gradients overlap, and on a cluster of several node groups, all of which have the same messages.
    """
    settings = case.problem.settings
    fixed = not settings.overlap.overlap or settings.overlap.best_buckets
    if fixed or any(one.configuration.groups for one in of_case):
        return [None] * len(of_case)
    fused = replace(case.problem, settings=replace(settings, strategy=BEST_FUSION, bucket_bytes=0.0))
    times = Evaluator(fused).evaluate(Configurations.of([one.configuration for one in of_case])).iteration_s
    return [
        None if one.configuration.mode == "async" else one.iteration_s.value - float(best)
        for one, best in zip(of_case, times, strict=True)
    ]


def _write(answers: Answers, values: Values, arguments: Mapping[str, Any]) -> None:
    each = [(subject, one) for subject, _, of_case in answers for one in of_case]
    calibrations = [one for _, cases, _ in answers for case in cases for one in case.problem.calibrations]
    citations = cited([one for _, one in each], calibrations)
    if "json" in arguments:
        alone = len(each) == 1
        document = prediction_document(*each[0], citations) if alone else predictions_document(each, citations)
        write_document(document)
        return
    if "verbose" not in arguments:
        write_view(predictions_view(each, beside=_gains(answers)))
        return
    request = ordered(merge(answers[0][1][0].sources, values))
    fused = [gain for _, cases, of_case in answers for gain in _fusion_gains(cases[0], of_case)]
    beside = [*_gains(answers), *fusion_lines(each, fused)]
    view = list(predictions_view(each, citations, request, beside=beside, in_full=True))
    for subject, cases, of_case in answers:  # the kernels of every prediction on one kind of nodes
        for one in (x.configuration for x in of_case if not x.configuration.groups):
            ridges = cases[0].problem.cluster.node.accelerator.ridges
            words = f"of a micro-batch and an update, {configuration_words(one, subject.device)}"
            if rows := kernel_rows(Evaluator(cases[0].problem), one):
                view += kernel_table(rows, words, ridges)
    write_view(view)


def _gains(answers: Answers) -> Iterator[Block]:
    """Yield where the first plan gains in other precisions, where there are predictions of it in any."""
    _, cases, of_case = answers[0]
    first = of_case[0].configuration
    plans = [x.configuration for x in of_case if replace(x.configuration, precision=first.precision) == first]
    if len(plans) > 1 and not first.groups:
        evaluator = Evaluator(cases[0].problem)
        kinds = {one.precision: by_kind(kernel_rows(evaluator, one)) for one in plans}
        if any(kinds.values()):
            yield from gains_table(kinds)


_NOT_SUGGESTED = {
    "gpus_per_node": "plans use all GPUs of each node",
    "pareto": "give one group a file of its own for its front",
    "why_not": "give one group a file of its own to ask of its plans",
    "time_limit": "give fewer values of --nodes",
    "sensitivity": "give one group a file of its own to ask of its answer",
    "trials": "the search is exact",
    "study": "the search is exact",
    "deadline": "give values of --nodes",
}
"""Options of suggest that plans across groups do not have, and what to do instead."""
_IN_GROUP = ("nodes", "gpus_per_node", "sub_batch", "mini_batch", "accumulation")
"""Options of predict that --group says."""


def check_suggested(values: Values, mixed: MixedCluster) -> None:
    """Refuse what ``suggest`` does not do on several node groups."""
    _check_sync(values, mixed)
    for key, remedy in _NOT_SUGGESTED.items():
        if key in values and values[key].source == OPTION:
            raise _unsupported(key, values, mixed, remedy)
    if "search" in values and values["search"].value != "exact":
        raise _unsupported("search", values, mixed, "the search is exact")
    for key, chosen in REFINED.items():
        if key in values and chosen in values[key].value:
            raise _unsupported(key, values, mixed, "give other values, or one group a file of its own")
    if is_sum(value_of(values, "objective", "")):
        raise _unsupported("objective", values, mixed, f"ask for {' or '.join(TERMS)}")
    if "efficiency" in value_of(values, "limit", ()):
        raise _unsupported("limit", values, mixed, "any but efficiency, which node groups do not have")
    most = sum(one.cluster.nodes for one in mixed.groups)
    if "nodes" in values and max(values["nodes"].value) > most:
        raise ParameterError("--nodes", f"at most the {most} of cluster {mixed.name!r}", max(values["nodes"].value))


def _across_groups(values: Values, mixed: MixedCluster) -> Answers:
    """Return the predictions of the plan of ``--group``, of every network under every scenario."""
    from planner.steps.node_groups import AcrossGroups, in_group  # noqa: PLC0415 - few clusters have groups

    _check_sync(values, mixed)
    if "group" not in values:
        name = mixed.names[0]
        remedy = f"say what each group does: --group {name}:nodes=1,sub-batch=32"
        raise ParameterError("--group", f"given on cluster {mixed.name!r}, which has several", NOTHING, remedy)
    for key in _IN_GROUP:
        if key in values and values[key].source == OPTION:
            raise _unsupported(key, values, mixed, "--group says it")
    for axis in SPLIT_AXES:
        if axis.option in values and values[axis.option].value != (axis.default,):
            raise _unsupported(axis.option, values, mixed, "plans across groups are data-parallel")
    asked: Sequence[AskedPart] = values["group"].value
    groups = tuple(
        GroupPart(one.group, one.nodes, mixed.group(one.group).cluster.node.gpus, one.sub_batch, one.accumulation)
        for one in asked
    )
    mixed.check(groups)
    plans = [Configuration.across(groups, precision) for precision in value_of(values, "precision", ("fp32",))]
    names = [part.name for part in plans[0].groups]
    answers: Answers = []
    for question in inputs.questions(values, mixed, note):
        problems = {name: question[name].problem for name in names}
        if len(names) > 1:
            predictions = [one.prediction for one in AcrossGroups(problems).describe(plans)]
        else:
            of_group = Evaluator(problems[names[0]]).describe(Configurations.of(plans))
            predictions = [in_group(one, names[0]) for one in of_group]
        answers.append((inputs.subject_of_all(question, mixed), tuple(question.values()), predictions))
    return answers


def _check_sync(values: Values, mixed: MixedCluster) -> None:
    if "mode" in values and values["mode"].value != ("sync",):
        rule = f"sync on cluster {mixed.name!r} of several node groups"
        raise ParameterError("--mode", rule, ",".join(values["mode"].value), "give one group a file of its own")


def _unsupported(key: str, values: Values, mixed: MixedCluster, remedy: str) -> ParameterError:
    """Return that an option has no meaning across groups, with its value as it may be typed."""
    rule = f"left out on cluster {mixed.name!r} of several node groups"
    return ParameterError(OPTIONS[key].flag, rule, _typed(key, values[key].value), remedy)


def _typed(key: str, value: object) -> object:
    """Return the value of an option as it may be typed; of a switch its flag."""
    if key in ("time_limit", "deadline") and isinstance(value, float):
        return f"{value:g}s"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={one}" for name, one in value.items())
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return OPTIONS[key].flag if value is True else value


_OF_REPLICAS = ("precision", "sub_batch", "nodes", "gpus_per_node")
"""Options of a plan that inference has too: replicas share nothing."""
_OF_TRAINING = (
    "brief", "choose", "deadline", "epochs", "limit", "mini_batch", "objective", "parallelism", "pareto", "search",
    "sensitivity", "tokens", "switches", "target_batch", "tolerance", "why_not",
)  # fmt: skip
"""Options of training alone, besides the axes of its plans."""
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Samples of a batch that suggest tries."""


def _write_batches(values: Values, arguments: Mapping[str, Any]) -> None:
    """Write what batches of inference take on one device, one a precision and size."""
    if "sub_batch" not in values:
        raise ParameterError("--sub-batch", "given", NOTHING, "say the samples of a batch, as in 1:64")
    for case in _inference_cases(values):
        precisions = value_of(values, "precision", ("fp32",))
        batches = [batch for one in precisions for batch in _batches(case, one, values["sub_batch"].value)]
        view = list(batches_view(case.subject, batches, case.problem.cluster.node.accelerator.memory_bytes))
        by_size: dict[int, dict[str, Mapping[str, float]]] = {}
        for one in batches:
            by_size.setdefault(one.sub_batch, {})[one.precision] = by_kind(one.kernels)
        if sizes := [size for size, some in by_size.items() if len(some) > 1]:  # where other precisions gain
            view += gains_table(by_size[max(sizes)], f"Batch {max(sizes)}")
        _write_inference(case, [(batch, 1) for batch in batches], view, arguments)


def write_replicas(values: Values, arguments: Mapping[str, Any]) -> None:
    """Write the replicas that reach a rate within a latency on the fewest devices; NothingFitsError: none do."""
    for case in _inference_cases(values):
        cluster, sources = case.problem.cluster, Sources(case.problem)
        most = max(value_of(values, "nodes", (cluster.nodes,)))
        most *= max(value_of(values, "gpus_per_node", (cluster.node.gpus,)))
        # Of fp8 in inference nothing was measured anywhere.
        served = [name for name in PRECISIONS if name != "fp8" and why_not_precision(sources, name) is None]
        sizes, wants_all = value_of(values, "sub_batch", BATCHES), "sub_batch" in values
        precisions = value_of(values, "precision", served)
        every = [batch for one in precisions for batch in _batches(case, one, sizes, wants_all=wants_all)]
        memory_bytes = cluster.node.accelerator.memory_bytes
        fitting = [one for one in every if sum(one.memory_bytes.values()) <= memory_bytes]
        latency, rate = value_of(values, "latency"), value_of(values, "rate")
        plans = replicas_of(fitting, most, latency, rate)
        if not plans:
            raise _nothing(case, fitting, most, latency, rate)
        top = plans[: value_of(values, "top", 5)]
        view = list(replicas_view(case.subject, top, latency, rate, len(every)))
        _write_inference(case, top, view, arguments)


def _inference_cases(values: Values) -> tuple[Case, ...]:
    """Return the cases of a request of inference; ParameterError: an option is of training alone."""
    defaults = {axis.option: (axis.default,) for axis in AXES if axis.option not in _OF_REPLICAS}
    asked = {name: one for name, one in values.items() if name in defaults and one.source != DEFAULT_REQUEST}
    asked |= {name: one for name, one in values.items() if name in _OF_TRAINING and one.source == OPTION}
    for name, given in asked.items():
        if given.value != defaults.get(name):
            raise ParameterError(OPTIONS[name].flag, "left out with --task inference", _typed(name, given.value))
    several = len(values["network"].value) > 1 or len(value_of(values, "scenario", ("",))) > 1
    if several and "json" in values:
        raise ParameterError("--json", "asked of one network and scenario with --task inference", "several")
    machine = inputs.machine_of(values, note)
    inputs.check_nodes(machine.cluster, values)
    is_gpu = machine.cluster.node.accelerator.kind == "gpu"
    engine: Values = {"framework": Sourced(inputs.ENGINE, DEFAULT)} if is_gpu else {}
    cases = inputs.cases(merge(values, engine), machine)
    inputs.check_trainable(values, (one.problem.network for one in cases))
    return cases


def _batches(case: Case, precision: str, sizes: Iterable[int], *, wants_all: bool = True) -> list[Batch]:
    """Return batches of sizes; those that are not lawful are left out, unless each is wanted."""
    inference = Inference(Sources(case.problem), precision)
    return [inference.batch(size) for size in sizes if wants_all or inference.allows(size)]


def _nothing(
    case: Case, batches: Sequence[Batch], gpus: int, latency: float | None, rate: int | None
) -> NothingFitsError:
    """Return that no batch, or no number of replicas, is enough, with the nearest."""
    where = place(case.subject)
    if not batches:
        return NothingFitsError(f"no batch of {where} fits in memory; take another device")
    fastest = min(batches, key=lambda one: one.latency_s)
    if latency is not None and fastest.latency_s > latency:
        took, within = (format_duration(seconds, 3) for seconds in (fastest.latency_s, latency))
        words = f"{fastest.precision} at batch {fastest.sub_batch} takes {took}"
        return NothingFitsError(f"no batch of {where} is done within {within}; the nearest: {words}")
    fast = [one for one in batches if latency is None or one.latency_s <= latency]
    best = max(fast, key=lambda one: one.samples_per_s)
    reached = f"{best.samples_per_s * gpus:,.0f} samples/s in {best.precision} at batch {best.sub_batch}"
    needed = f"{rate:,} samples/s need {-(-(rate or 0) // best.samples_per_s):,.0f} GPUs of {case.problem.cluster.name}"
    return NothingFitsError(f"{needed}, which has {gpus}; the nearest: {reached}")


def _write_inference(
    case: Case, plans: Sequence[tuple[Batch, int]], view: list[Block], arguments: Mapping[str, Any]
) -> None:
    if "json" in arguments:
        write_document(inference_document(case.subject, plans))
        return
    for one, _ in plans if "verbose" in arguments else ():
        words = f"of a batch of {one.sub_batch} in {one.precision}"
        view += kernel_table(one.kernels, words, case.problem.cluster.node.accelerator.ridges)
    write_view(view)
