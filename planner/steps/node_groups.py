"""Plans across groups of nodes: synchronous data parallelism, each group with passes of its own.

Replicas average gradients, weighted by their samples, so that a step updates with one mini-batch,
B = sum over groups of nodes x GPUs x sub-batch x accumulation. All ranks send each message together, at the pace of the
group whose all-reduce over all nodes takes longest, once its gradient is ready in every group. A group starts its next
step after its own update. The time of a step is then the longest that any group takes by itself with those messages:
with s_i the time of group i before a message l is ready and u_i that of its update, messages end
max_l (max_i s_i(l) + prefix(l)) = max_i max_l (s_i(l) + prefix(l)) after an update of all begins.

So a group is priced as a plan of as many nodes of its own kind as the whole plan has, by its own calibrations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.cluster import GroupPart
from planner.domain.configuration import Configuration, Configurations
from planner.domain.messages import Groups
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Predictions
from planner.domain.request import Problem
from planner.errors import ParameterError
from planner.sources.sources import Sources
from planner.steps.asynchronous import AsyncPricer
from planner.steps.describe import Description, Window
from planner.steps.intervals import reciprocal, times
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.steps.step_costs import Ring, StepCosts, operation_s
from planner.steps.step_part import bucket_bytes


class AcrossGroups:
    """Prices plans in which each of several groups of nodes takes part.

    Parameters
    ----------
    problems : mapping of group to Problem; that differ in the cluster and the calibrations; at least two
    like : mapping of group to Evaluator; of the same problems: what their kernels take is not computed again

    ParameterError: the strategy chooses messages by what is ready when: that differs between groups, and all send the
    same.

    Attributes
    ----------
    evaluators : mapping of group to Evaluator
        Of each group by itself, as many such nodes as all groups have, with the messages of all.
    """

    def __init__(self, problems: Mapping[str, Problem], like: Mapping[str, Evaluator] | None = None) -> None:
        for one in problems.values():
            if one.settings.overlap.is_timed:
                rule = "one of fixed buckets on several node groups, all of which send the same messages"
                raise ParameterError("--strategy", rule, one.settings.strategy)
        self.problems = problems
        self._nodes = sum(one.cluster.nodes for one in problems.values())
        whole = {name: replace(one, cluster=replace(one.cluster, nodes=self._nodes)) for name, one in problems.items()}
        self.evaluators = {name: _OfGroup(one, (like or {}).get(name), whole) for name, one in whole.items()}

    def evaluate(
        self, group: str, nodes: int, sub_batch: IntArray, accumulation: IntArray, precision: str
    ) -> Predictions:
        """Return what a group takes by itself, with the messages of all, n predictions.

        ``nodes``: of all groups together; ``sub_batch``, ``accumulation``: ndarray of int, shape (n,), of the group.
        """
        shape, gpus = sub_batch.shape, self.problems[group].cluster.node.gpus
        rows = Configurations(
            nodes=np.full(shape, nodes), gpus_per_node=np.full(shape, gpus), sub_batch=sub_batch,
            accumulation_steps=accumulation, precision=np.zeros(shape, dtype=np.int64), precisions=(precision,),
        )  # fmt: skip
        return self.evaluators[group].evaluate(rows)

    def describe(self, plans: Sequence[Configuration], window: Window | None = None) -> list[Description]:
        """Return the predictions of plans with every field: terms and interval are those of the slowest group.

        The memory is that of the group that has the least to spare.

        CoverageError: nothing serves a kernel, precision, link or input of some group.
        """
        each: list[dict[str, Description]] = [{} for _ in plans]
        for name, evaluator in self.evaluators.items():
            rows = [(at, part) for at, plan in enumerate(plans) for part in plan.groups if part.name == name]
            if rows:
                alone = Configurations.of([_by_itself(part, plans[at]) for at, part in rows])
                for (at, _), of_part in zip(rows, evaluator.descriptions(alone, window), strict=True):
                    each[at][name] = of_part
        return [_together(plan, of_groups, window) for plan, of_groups in zip(plans, each, strict=True)]


def _by_itself(part: GroupPart, plan: Configuration) -> Configuration:
    """Return a group's part as a plan of as many such nodes as all groups have."""
    return Configuration(
        plan.nodes, part.gpus_per_node, part.sub_batch, part.accumulation_steps, precision=plan.precision
    )


def _together(plan: Configuration, each: Mapping[str, Description], window: Window | None) -> Description:
    """Return the description of a plan from those of its groups by themselves."""
    slowest = max(each, key=lambda name: each[name].iteration_s.value)
    finish = partial(_prediction_together, plan, each, slowest, window)
    return Description(plan, each[slowest].iteration_s, each[slowest].gradient, finish)


def _prediction_together(
    plan: Configuration, each: Mapping[str, Description], slowest: str, window: Window | None
) -> Prediction:
    one, samples = each[slowest].prediction, plan.samples_per_update
    own = one.configuration.samples_per_update
    alone = [of.prediction for of in each.values()]  # first epochs by themselves times the samples of their steps
    firsts = [times(f, of.configuration.samples_per_update) for of in alone if (f := of.first_epoch_s)]
    first = max(firsts, key=lambda value: value.value, default=None)
    inside = None if window is None else float(window("sync")[0] <= samples <= window("sync")[1])
    warnings = dict.fromkeys(warning for of in each.values() for warning in of.prediction.warnings)
    return replace(
        one,
        configuration=plan,
        samples_per_s=reciprocal(one.iteration_s, samples),
        epoch_s=one.epoch_s and times(one.epoch_s, own / samples),
        first_epoch_s=first and times(first, 1 / samples),
        mini_batch=MiniBatch(samples, 0.0, samples, samples, inside),
        memory_bytes=max((of.memory_bytes for of in alone), key=lambda by: by["total"] / by.get("capacity", np.inf)),
        warnings=(*warnings, *_weighted(plan)),
        mfu=None,
        hfu=None,
        groups_s={name: of.iteration_s.value for name, of in each.items()},
    )


def in_group(one: Prediction, group: str) -> Prediction:
    """Return the prediction of a plan on nodes of one group of several, named."""
    return replace(one, configuration=configuration_in_group(one.configuration, group))


def configuration_in_group(one: Configuration, group: str) -> Configuration:
    """Return a plan on nodes of one group of several, named."""
    part = GroupPart(group, one.nodes, one.gpus_per_node, one.sub_batch, one.accumulation_steps)
    return replace(one, groups=(part,))


class _OfGroup(Evaluator):
    """Prices the part of a group, with the messages of all groups."""

    def __init__(self, problem: Problem, like: Evaluator | None, all_groups: Mapping[str, Problem]) -> None:
        super().__init__(problem, like)
        self._all_groups = tuple(all_groups.values())

    def _made(self, precision: str, mode: str, like: StepCosts | None) -> Pricer | AsyncPricer:
        """Return the pricer of the part, as if all nodes were of the group whose messages take longest."""
        pricer = super()._made(precision, mode, like)
        buffers = bucket_bytes(pricer)
        each = [(_all_reduce_s(Sources(one), pricer.gradient_operation, buffers), one) for one in self._all_groups]
        _, slowest = max(each, key=lambda one: one[0])
        pricer.ring = Ring(Sources(slowest), slowest.cluster.node.gpus)
        return pricer


def _all_reduce_s(sources: Sources, operation: str, buffer_bytes: FloatArray) -> float:
    """Return what all messages take over all nodes of a cluster [s]."""
    cluster = sources.problem.cluster
    link = cluster.inter_node
    streams = max(cluster.node.gpus / (link.nics_per_node if link else 1), 1.0)
    groups = Groups(np.array([cluster.nodes]), np.array([cluster.node.gpus]), np.array([streams]))
    return float(operation_s(sources, operation, buffer_bytes[None], groups).sum())


def _weighted(plan: Configuration) -> tuple[PlanWarning, ...]:
    """Return what the training program must do where replicas take different numbers of samples."""
    if len({part.sub_batch * part.accumulation_steps for part in plan.groups}) == 1:
        return ()
    message = (
        "Replicas of the node groups take different numbers of samples: before gradients are averaged over ranks, "
        "those of each rank are to be multiplied by its samples over the mean of all ranks, or the update is not that "
        "of the mini-batch."
    )
    return (PlanWarning("weighted_gradients", "groups", message),)
