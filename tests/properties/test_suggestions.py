"""What is true of every answer: certified, never worse with more to choose from, and the same as predictions tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import event, given, reject
from hypothesis import strategies as st

from planner.domain.arrays import IntArray
from planner.domain.axes import AXES
from planner.domain.cluster import GroupPart
from planner.domain.configuration import MODES, Configuration, Configurations, splits
from planner.domain.prediction import Prediction
from planner.domain.request import Problem, SpaceRequest
from planner.domain.suggestion import Suggestion
from planner.errors import CoverageError, UsageError
from planner.search.bases import kinds_to_try
from planner.search.node_groups import suggest_across
from planner.search.searchable import order_and_limits
from planner.search.suggest import suggest
from planner.sources.sources import Sources, candidate_precisions
from planner.steps.node_groups import AcrossGroups
from planner.steps.predict import Evaluator
from planner.workload.lawful import LAYER_AXES, is_told_apart
from planner.workload.program import block_starts
from tests.properties.conftest import (
    SMALL,
    Options,
    faster_machines,
    lawful,
    problem_names,
    problem_of,
    said,
    trials,
    with_cluster,
    with_memory,
)

SEEDS = st.integers(0, 2**32 - 1)
WHOLE = {axis.name: (axis.default,) for axis in AXES if axis.splits}
"""Values of axes of plans with the whole network on every device."""
SAME = 1e-9
"""Relative difference by rounding."""
FEW_NODES = 4
OPEN = 0.4
"""Part of the requests in which an axis of splitting has more than its default."""
MOST_WIDER = 3
"""Ways in which a request is widened, of all."""
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "nodes": (1, 2, 3, 4), "gpus_per_node": (1, 2, 3, 4, 8), "sub_batch": (1, 2, 3, 4, 6, 8, 12, 16),
    "accumulation_steps": (1, 2, 3, 4, 8), "tensor_parallel": (1, 2, 4), "context_parallel": (1, 2),
    "expert_parallel": (1, 2), "pipeline_parallel": (1, 2, 4), "virtual_stages": (1, 2), "sharding": (0, 1, 2, 3),
    "sequence_parallel": ("off", "on"), "recompute": ("none", "selective", "full"), "shard_group": ("all", "node"),
    "schedule": ("1f1b", "gpipe", "zero-bubble"), "offload": ("none", "optimizer", "activations"),
}  # fmt: skip
"""Values of axes that requests ask for; of those that are left out the default alone, so that spaces stay small."""


def small_request(problem: Problem, random: np.random.Generator) -> SpaceRequest:
    """Return a request with a few values of each of some axes."""
    asked: dict[str, tuple[Any, ...]] = {}
    axes = {axis.name: axis for axis in AXES}
    for name, values in lawful_choices(problem).items():
        chosen = random.choice(len(values), min(int(random.integers(1, 4)), len(values)), replace=False)
        some = {values[at] for at in chosen}
        if axes[name].splits:  # the default is lawful with any other axis: few requests are refused
            some = {axes[name].default} | (some if random.random() < OPEN else set())
        asked[name] = tuple(one for one in values if one in some)
    names = [name for name, why in candidate_precisions(Sources(problem), allow_specified=False).items() if why is None]
    asked["precision"] = tuple(random.permutation(names)[: int(random.integers(1, 3))].tolist())
    has_async = not Sources(problem).why_not_mode("async")
    asked["mode"] = (("sync",), ("sync",), ("async",), ("sync", "async"))[int(random.integers(4)) if has_async else 0]
    target = int(random.choice([8, 16, 24, 32, 48, 64, 96]))
    tolerance = float(random.choice([0.0, 0.0, 0.25]))
    request = SpaceRequest(target, tolerance_sync=tolerance, tolerance_async=0.5, top=3).changed(**asked)
    return with_kinds(problem, request)


def with_kinds(problem: Problem, request: SpaceRequest) -> SpaceRequest:
    """Return the request with the kinds of parallelism that its axes ask for."""
    kinds = kinds_to_try(replace(request, parallelism=()), problem.network, problem.settings.framework)
    return replace(request, parallelism=kinds)


def lawful_choices(problem: Problem) -> dict[str, tuple[Any, ...]]:
    """Return the values of CHOICES that the cluster has, of axes that may be off their default."""
    most = {"nodes": problem.cluster.nodes, "gpus_per_node": problem.cluster.node.gpus}
    found = {}
    for axis in (one for one in AXES if one.name in CHOICES):
        is_open = not axis.splits or bool(block_starts(problem.network)) or axis.name in LAYER_AXES
        values = tuple(x for x in CHOICES[axis.name] if axis.words or x <= most.get(axis.name, x))
        found[axis.name] = values if is_open else (axis.default,)
    return found


def answer(problem: Problem, request: SpaceRequest) -> Suggestion:
    """Return the answer to a request; one that is refused is no example."""
    try:
        return suggest(problem, request, {})
    except (UsageError, CoverageError) as error:
        event(str(error))
        reject()


def drawn(names: Options, seed: int) -> tuple[Problem, SpaceRequest]:
    problem = problem_of(names)
    problem = with_cluster(problem, nodes=min(FEW_NODES, problem.cluster.nodes))
    return problem, small_request(problem, np.random.default_rng(seed))


def best_s(found: Suggestion) -> float:
    """Return the time a sample of the best plan [s]; without a plan it never ends."""
    return 1 / found.plans[0].prediction.samples_per_s.value if found.plans else math.inf


def never_worse(before: Suggestion, after: Suggestion, what: object) -> None:
    told = [said(Configurations.of([one.plans[0].prediction.configuration]), 0) for one in (before, after) if one.plans]
    assert best_s(after) <= best_s(before) * (1 + SAME), (what, told)


@trials(2, 40)
@given(problem_names(), SEEDS)
def test_better_links_never_worsen_the_best_plan(names: Options, seed: int) -> None:
    problem, request = drawn(names, seed)
    # Of asynchronous plans the mini-batch changes too, so that other ones are in the window.
    request = request.changed(mode=("sync",))
    before = answer(problem, request)
    for what, cluster in list(faster_machines(problem.cluster))[seed % 2 :: 2]:
        never_worse(before, answer(replace(problem, cluster=cluster), request), what)


@trials(2, 60)
@given(problem_names(), SEEDS)
def test_more_memory_never_loses_a_plan(names: Options, seed: int) -> None:
    problem, request = drawn(names, seed)
    answers = [answer(with_memory(problem, factor), request) for factor in (0.1, 0.4, 2.0)]
    for less, more in pairwise(answers):
        never_worse(less, more, "memory")


@trials(2, 60)
@given(problem_names(), SEEDS)
def test_more_values_or_a_wider_window_are_never_worse(names: Options, seed: int) -> None:
    problem, request = drawn(names, seed)
    before = answer(problem, request)
    wider = {f"every {name}": request.changed(**{name: None}) for name in ("sub_batch", "accumulation_steps")}
    wider["tolerance"] = replace(request, tolerance_sync=request.tolerance_sync + 0.2, tolerance_async=0.7)
    wider |= {name: request.changed(**{name: values}) for name, values in lawful_choices(problem).items()}
    for what in np.random.default_rng(seed).permutation(list(wider))[:MOST_WIDER].tolist():
        never_worse(before, answer(problem, with_kinds(problem, wider[what])), what)


def whole_space(problem: Problem, request: SpaceRequest) -> Configurations:
    """Return every lawful plan of the values asked for, but for those that say what a simpler one says."""
    limits = order_and_limits(problem, request)[1]
    precisions = tuple(name for name in request["precision"] or () if name not in limits.refused_precisions)
    values: dict[str, IntArray] = {}
    for axis in AXES:
        asked = precisions if axis.name == "precision" else request[axis.name] or (axis.default,)
        codes = range(len(asked)) if axis.name == "precision" else map(axis.code, asked)
        values[axis.name] = np.array(list(codes), dtype=np.int64)
    rows = lawful(problem, Configurations.product(values, precisions).rows, 10**9)
    rows = rows.take(
        ~rows.is_async
        | np.logical_and.reduce(
            [getattr(rows, axis.name) == axis.code(axis.default) for axis in AXES if axis.only_sync]
        )
    )
    apart = ~splits(rows) | is_told_apart(problem.network, problem.settings.framework, rows)
    return rows.take(np.flatnonzero(apart))


@trials(4, 60)
@given(problem_names(), SEEDS)
def test_certified_best_plan_is_that_of_brute_force(names: Options, seed: int) -> None:
    """Every product of the values asked for, lawful, in the window and in memory, is predicted."""
    problem, request = drawn(names, seed)
    found = answer(problem, request)
    assert found.search.certified
    rows = whole_space(problem, request)
    predicted = Evaluator(problem).evaluate(rows)
    windows = np.array([request.window(mode) for mode in MODES])[rows.mode]
    mean = predicted.mini_batch_mean
    inside = (windows[:, 0] * (1 - SAME) <= mean) & (mean <= windows[:, 1] * (1 + SAME))
    inside &= ~rows.is_async | (rows.sub_batch <= windows[:, 1])
    fits = predicted.memory_bytes <= problem.cluster.node.accelerator.memory_bytes
    at = np.flatnonzero(inside & fits)
    assert bool(at.size) == bool(found.plans), said(rows, int(at[0])) if at.size else best_s(found)
    if at.size:
        best = at[np.argmax(predicted.samples_per_s[at])]
        chosen = said(Configurations.of([found.plans[0].prediction.configuration]), 0)
        least = 1 / float(predicted.samples_per_s[best])
        assert math.isclose(best_s(found), least, rel_tol=1e-8), (said(rows, int(best)), least, chosen, best_s(found))


def figures(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number and word of a record, with its place."""
    if is_dataclass(value):
        for one in fields(value):
            yield from figures(getattr(value, one.name), f"{where}.{one.name}")
    elif isinstance(value, Mapping):
        yield where, tuple(value)
        for name, one in value.items():
            yield from figures(one, f"{where}[{name}]")
    elif isinstance(value, tuple):
        yield where, len(value)
        for at, one in enumerate(value):
            yield from figures(one, f"{where}[{at}]")
    else:
        yield where, value


@trials(4, 60)
@given(problem_names(), SEEDS)
def test_prediction_of_a_suggested_plan_is_the_plan(names: Options, seed: int) -> None:
    problem, request = drawn(names, seed)
    for plan in answer(problem, request).plans:
        rows = Configurations.of([plan.prediction.configuration])
        (alone,) = Evaluator(problem).describe(rows, request.window)
        for (where, one), (_, other) in zip(figures(alone), figures(plan.prediction), strict=True):
            is_same = math.isclose(one, other, rel_tol=SAME, abs_tol=1e-15) if isinstance(one, float) else one == other
            assert is_same, (where, one, other, said(rows, 0))


@trials(3, 40)
@given(problem_names(("alexnet", "resnet50", "vgg16", "mlp", SMALL, "gpt2")), SEEDS)
def test_node_groups_permuted_or_cut_are_the_same_plans(names: Options, seed: int) -> None:
    """A group of nodes is as fast as two of half the nodes each with the same samples, in any order."""
    problem, random = problem_of(names), np.random.default_rng(seed)
    if problem.settings.overlap.is_timed:
        reject()
    nodes, others = 2 * int(random.integers(1, 3)), int(random.integers(1, 3))
    slow = replace(problem.cluster.inter_node, latency_s=1e-4) if problem.cluster.inter_node else None
    half, rest = with_cluster(problem, nodes=nodes // 2), with_cluster(problem, nodes=others, inter_node=slow)
    gpus, each = problem.cluster.node.gpus, (int(random.integers(1, 9)), int(random.integers(1, 4)))
    own = (int(random.integers(1, 9)), int(random.integers(1, 4)))

    def described(groups: dict[str, Problem], *parts: GroupPart) -> Prediction:
        return AcrossGroups(groups).describe([Configuration.across(parts, "fp32")])[0].prediction

    whole = with_cluster(problem, nodes=nodes)
    last = GroupPart("z", others, gpus, *own)
    one = described({"a": whole, "z": rest}, GroupPart("a", nodes, gpus, *each), last)
    turned = described({"z": rest, "a": whole}, last, GroupPart("a", nodes, gpus, *each))
    cut = described(
        {"a": half, "b": half, "z": rest},
        GroupPart("a", nodes // 2, gpus, *each), GroupPart("b", nodes // 2, gpus, *each), last,
    )  # fmt: skip
    for other in (turned, cut):
        assert math.isclose(one.iteration_s.value, other.iteration_s.value, rel_tol=SAME)
        assert math.isclose(one.samples_per_s.value, other.samples_per_s.value, rel_tol=SAME)
        assert (one.memory_bytes, one.mini_batch) == (other.memory_bytes, other.mini_batch)


@trials(1, 25)
@given(problem_names(("alexnet", "resnet50", "mlp", SMALL)), SEEDS)
def test_answers_on_node_groups_do_not_depend_on_their_order_or_cut(names: Options, seed: int) -> None:
    """The best time is the same in any order; cut in two it is no worse, as the halves may take other samples."""
    problem, random = problem_of(names), np.random.default_rng(seed)
    if problem.settings.overlap.is_timed:
        reject()
    slow = replace(problem.cluster.inter_node, latency_s=1e-4) if problem.cluster.inter_node else None
    of = {name: with_cluster(problem, nodes=2) for name in ("a", "b")}
    of["z"] = with_cluster(problem, nodes=1, inter_node=slow)
    target = int(random.choice([24, 48, 96])) * problem.cluster.node.gpus // 2
    request = SpaceRequest(target, tolerance_sync=0.25, top=3, asked={"precision": ("fp32",), **WHOLE})

    def best(*groups: tuple[str, Problem]) -> float:
        try:
            return best_s(suggest_across({name: (one, request) for name, one in groups}, {}))
        except (UsageError, CoverageError):
            reject()

    every = tuple(of.items())
    least = best(*every)
    assert math.isclose(best(*every[::-1]), least, rel_tol=SAME)
    assert least <= best(("a", with_cluster(problem, nodes=4)), every[-1]) * (1 + SAME)
