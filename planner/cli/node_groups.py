"""What ``suggest`` and ``predict`` take on a cluster of several node groups, and the plans that ``--group`` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.cli.options import OPTIONS
from planner.cli.parsing import AskedPart
from planner.domain.cluster import GroupPart, MixedCluster
from planner.domain.configuration import SPLIT_AXES, Configuration, Configurations
from planner.domain.objective import TERMS, is_sum
from planner.domain.prediction import Prediction
from planner.errors import NOTHING, ParameterError
from planner.search.refine import REFINED
from planner.sessions.inputs import OPTION, Case, Values, value_of
from planner.steps.node_groups import AcrossGroups, in_group
from planner.steps.predict import Evaluator

__all__ = ["check_predicted", "check_suggested", "plans_across", "predictions_across"]

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


def check_predicted(values: Values, mixed: MixedCluster) -> None:
    """Refuse what ``predict`` does not do on several node groups."""
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


def _check_sync(values: Values, mixed: MixedCluster) -> None:
    if "mode" in values and values["mode"].value != ("sync",):
        rule = f"sync on cluster {mixed.name!r} of several node groups"
        raise ParameterError("--mode", rule, ",".join(values["mode"].value), "give one group a file of its own")


def _unsupported(key: str, values: Values, mixed: MixedCluster, remedy: str) -> ParameterError:
    flag, value = OPTIONS[key].flag, values[key].value
    rule = f"left out on cluster {mixed.name!r} of several node groups"
    return ParameterError(flag, rule, flag if value is True else _typed(key, value), remedy)


def _typed(key: str, value: object) -> object:
    """Return the value of an option as it may be typed."""
    if key == "time_limit" and isinstance(value, float):
        return f"{value:g}s"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={one}" for name, one in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def plans_across(values: Values, mixed: MixedCluster) -> list[Configuration]:
    """Return the plan that ``--group`` says, in every precision asked for."""
    asked: Sequence[AskedPart] = values["group"].value
    parts = tuple(
        GroupPart(one.group, one.nodes, mixed.group(one.group).cluster.node.gpus, one.sub_batch, one.accumulation)
        for one in asked
    )
    mixed.check(parts)
    precisions = value_of(values, "precision", ("fp32",))
    return [Configuration.across(parts, precision) for precision in precisions]


def predictions_across(question: Mapping[str, Case], plans: Sequence[Configuration]) -> list[Prediction]:
    """Return the predictions of plans that have the same groups of one network under one scenario."""
    names = [part.name for part in plans[0].groups]
    problems = {name: question[name].problem for name in names}
    if len(names) > 1:
        return [one.prediction for one in AcrossGroups(problems).describe(plans)]
    evaluator = Evaluator(problems[names[0]])
    return [in_group(one, names[0]) for one in evaluator.describe(Configurations.of(list(plans)))]
