"""``planner predict``: configurations, term by term."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.cli import inference, output
from planner.cli.options import OPTIONS
from planner.cli.request import gather, options_named, ordered, resolve, settings_named
from planner.cli.streams import note
from planner.domain.axes import AXES
from planner.domain.cluster import Cluster, MixedCluster
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import BEST_FUSION, Framework
from planner.domain.prediction import Prediction, cited
from planner.domain.request import DEFAULT, Sourced, Subject
from planner.errors import NOTHING, ParameterError
from planner.formats.prediction import prediction_document, predictions_document
from planner.report import parts
from planner.report.answer import prediction_answer, predictions_answer
from planner.report.blocks import Block, Line
from planner.report.prediction import fusion_lines, prediction_rest
from planner.report.studies import gains_table, kernel_table
from planner.sessions.inputs import (
    OPTION,
    TRAINING,
    Case,
    Values,
    merge,
    mixed_cluster,
    questions,
    subject_of_all,
    value_of,
)
from planner.steps.inference import check_batch
from planner.steps.kernel_rows import by_kind, kernel_rows
from planner.steps.predict import Evaluator

__all__ = ["completed", "configurations", "fusion_gains", "predictions", "run"]

Answers = Sequence[tuple[Subject, Sequence[Case], Sequence[Prediction]]]
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
            inference.predict(values, arguments)
        return
    with settings_named(values), options_named():
        mixed = mixed_cluster(values)
        if mixed is not None:
            _write(_across(values, mixed), values, arguments)
            return
        if "group" in values:
            rule = "left out on a cluster without node groups"
            raise ParameterError("--group", rule, values["group"].value[0].group, "use --nodes and --sub-batch")
        machine, cases = resolve(values)
        answers = []
        for case in cases:
            completed_values = completed(values, machine.cluster, case.problem.settings.framework)
            answers.append((case.subject, (case,), predictions(case, configurations(completed_values))))
        values = completed_values
    _write(answers, values, arguments)


def _across(values: Values, mixed: MixedCluster) -> Answers:
    """Return the predictions of the plan of ``--group``, of every network under every scenario."""
    from planner.cli import node_groups  # noqa: PLC0415 - few clusters have groups: commands start fast

    node_groups.check_predicted(values, mixed)
    plans = node_groups.plans_across(values, mixed)
    return [
        (subject_of_all(question, mixed), tuple(question.values()), node_groups.predictions_across(question, plans))
        for question in questions(values, mixed, note)
    ]


def completed(values: Values, cluster: Cluster, framework: Framework) -> Values:
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


def configurations(values: Values) -> list[Configuration]:
    """Return the product of all lists, the last axis fastest; with ``mini_batch`` the sub-batch follows from it."""
    lists = [values[axis.option].value if axis.option in values else (None,) for axis in AXES]
    size = math.prod(len(one) for one in lists)
    if size > MOST_CONFIGURATIONS:
        raise ParameterError("the lists and ranges", f"at most {MOST_CONFIGURATIONS} configurations together", size)
    return [_configuration(values, point) for point in itertools.product(*lists)]


def _configuration(values: Values, point: tuple[Any, ...]) -> Configuration:
    axes = {axis.name: value for axis, value in zip(AXES, point, strict=True)}
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
    return Configuration(**axes)


def predictions(case: Case, points: list[Configuration]) -> list[Prediction]:
    """Return the predictions of one network under one scenario, in order."""
    return Evaluator(case.problem).describe(Configurations.of(points))


def fusion_gains(case: Case, of_case: Sequence[Prediction]) -> list[float | None]:
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
        output.write_document(document)
        return
    answer = predictions_answer(each) if len(each) > 1 else prediction_answer(each[0][1], each[0][0])
    short = [*answer, *_gains(answers)]
    if "verbose" not in arguments:
        output.write_view(short)
        return
    warnings = parts.warnings((), [(number, one.warnings) for number, (_, one) in enumerate(each, 1)])
    request = ordered(merge(answers[0][1][0].sources, values))
    gains = [gain for _, cases, of_case in answers for gain in fusion_gains(cases[0], of_case)]
    blocks = [block for block in short if not (isinstance(block, Line) and block.aside)]
    rest = prediction_rest(each, request, citations)
    output.write_view([*warnings, *blocks, *fusion_lines(each, gains), *rest, *_kernels(answers)])


def _kernels(answers: Answers) -> Iterator[Block]:
    """Yield the kernels of every prediction on one kind of nodes."""
    for subject, cases, of_case in answers:
        for one in (x.configuration for x in of_case if not x.configuration.groups):
            device = cases[0].problem.cluster.node.accelerator
            words = f"of a micro-batch and an update, {parts.configuration_words(one, subject.device)}"
            if rows := kernel_rows(Evaluator(cases[0].problem), one):
                yield from kernel_table(rows, words, device.ridges)


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
