"""``planner predict``: configurations, term by term."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.cli import output
from planner.cli.options import OPTIONS
from planner.cli.request import gather, ordered, resolve
from planner.cli.values import DEFAULT, OPTION, Values, merge, settings_named
from planner.domain.axes import AXES
from planner.domain.citation import cited
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations
from planner.domain.prediction import Prediction
from planner.domain.request import Sourced
from planner.errors import NOTHING, ParameterError
from planner.formats.prediction import prediction_document, predictions_document
from planner.report import parts
from planner.report.answer import prediction_answer, predictions_answer
from planner.report.blocks import Line
from planner.report.prediction import prediction_rest
from planner.sessions.inputs import Case
from planner.steps.predict import Evaluator

__all__ = ["completed", "configurations", "predictions", "run"]

MOST = 10_000
"""Configurations predicted in full at once; more are a search."""


def run(arguments: Mapping[str, Any]) -> None:
    """Predict: gather values, resolve names, multiply the lists out, evaluate, write."""
    if "runs" in arguments:
        given = ", ".join(arguments["runs"])
        raise ParameterError("--runs", "left out, as tables of runs are not supported yet", given)
    values = gather("predict", arguments)
    with settings_named(values):
        machine, resolved = resolve(values)
        values = completed(values, machine.cluster)
        wanted = configurations(values)
        answers = [(case, predictions(case, wanted)) for case in resolved]
    _write(answers, values, arguments)


def completed(values: Values, cluster: Cluster) -> Values:
    """Return the values with the defaults of one configuration; ``mini_batch`` replaces a weaker ``sub_batch``."""
    defaults = {axis.option: Sourced((axis.default,), DEFAULT) for axis in AXES if axis.default is not None}
    every_gpu = {"gpus_per_node": Sourced((cluster.node.gpus,), "cluster")}
    chosen = dict(merge(values, defaults, every_gpu))
    if len(chosen["mode"].value) != 1:
        raise ParameterError("--mode", "sync or async, one of them", ",".join(chosen["mode"].value))
    if "mini_batch" not in chosen:
        if "sub_batch" not in chosen:
            raise ParameterError("--sub-batch", "given", NOTHING, "say the samples of one pass, or --mini-batch")
        return chosen
    if "sub_batch" in chosen and chosen["sub_batch"].source == OPTION:
        raise ParameterError("--mini-batch", "given without --sub-batch", chosen["mini_batch"].value)
    if chosen["mode"].value != ("sync",):
        remedy = "an asynchronous mini-batch is an outcome: give --sub-batch"
        raise ParameterError("--mini-batch", "given with --mode sync", chosen["mini_batch"].value, remedy)
    chosen.pop("sub_batch", None)
    return chosen


def configurations(values: Values) -> list[Configuration]:
    """Return the product of all lists, the last axis fastest; with ``mini_batch`` the sub-batch follows from it."""
    tried = [values[axis.option].value if axis.option in values else (None,) for axis in AXES]
    size = math.prod(len(one) for one in tried)
    if size > MOST:
        raise ParameterError("the lists and ranges", f"at most {MOST} configurations together", size)
    return [_configuration(values, point) for point in itertools.product(*tried)]


def _configuration(values: Values, point: tuple[Any, ...]) -> Configuration:
    chosen = {axis.name: value for axis, value in zip(AXES, point, strict=True)}
    for axis in AXES:
        if chosen["mode"] == "async" and axis.only_sync and chosen[axis.name] != axis.default:
            flag, rule = OPTIONS[axis.option].flag, f"{axis.default} in an asynchronous plan"
            raise ParameterError(flag, rule, chosen[axis.name])
    if chosen["sub_batch"] is None:
        one = Configuration(**chosen | {"sub_batch": 1})
        passes, mini_batch = one.samples_per_update, values["mini_batch"].value
        if mini_batch % passes:
            rule = f"a multiple of GPUs x accumulation, here {passes}"
            near = max(mini_batch // passes, 1) * passes
            raise ParameterError("--mini-batch", rule, mini_batch, f"the nearest are {near} and {near + passes}")
        chosen["sub_batch"] = mini_batch // passes
    return Configuration(**chosen)


def predictions(case: Case, wanted: list[Configuration]) -> list[Prediction]:
    """Return the predictions of one network under one scenario, in order."""
    return Evaluator(case.problem).describe(Configurations.of(wanted))


def _write(answers: Sequence[tuple[Case, Sequence[Prediction]]], values: Values, arguments: Mapping[str, Any]) -> None:
    each = [(case.subject, one) for case, found in answers for one in found]
    known = [calibration for case, _ in answers for calibration in case.problem.calibrations]
    citations = cited([one for _, one in each], known)
    if "json" in arguments:
        alone = len(each) == 1
        document = prediction_document(*each[0], citations) if alone else predictions_document(each, citations)
        output.write_document(document)
        return
    short = predictions_answer(each) if len(each) > 1 else prediction_answer(each[0][1], each[0][0])
    if "verbose" not in arguments:
        output.write_view(short)
        return
    warnings = parts.warnings((), [(number, one.warnings) for number, (_, one) in enumerate(each, 1)])
    request = ordered(merge(answers[0][0].sources, values))
    shown = [block for block in short if not (isinstance(block, Line) and block.aside)]
    output.write_view([*warnings, *shown, *prediction_rest(each, request, citations)])
