"""What a change of one input does to the best plan, against answers to the changed question itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.request import Problem, Scenario, SpaceRequest
from planner.domain.suggestion import INPUTS, Sensitivity, Suggestion
from planner.search.exhaustive import Asked
from planner.search.search import search
from planner.search.searchable import order_and_limits
from planner.search.suggest import suggest, suggest_among
from planner.steps.predict import Evaluator

REQUEST = SpaceRequest(138).changed(mode=("async",), sub_batch=tuple(range(1, 12)), choose="fastest")


def problem(network: str = "sprint-15", cluster: str = "tsubame-kfc", framework: str = "pytorch") -> Problem:
    found = catalog.find_cluster(cluster)
    settings = Settings(input="synthetic", framework=catalog.find_framework(framework))
    data = catalog.find_dataset("imagenet-1k")
    return Problem(catalog.find_network(network), data, found, catalog.calibrations_for(found), settings=settings)


def asked(of: Problem, request: SpaceRequest) -> Suggestion:
    return suggest(of, request.changed(sensitivity=True), {})


@cache
def first_answer() -> Suggestion:
    return asked(problem(), REQUEST)


def of_each_input(rows: Sequence[Sensitivity]) -> list[Sensitivity]:
    """Return one row an input, with less and more of it in turn: what each factor does is tested of one question."""
    inputs = list(dict.fromkeys(one.input for one in rows))
    assert len(rows) == 2 * len(inputs)
    return [[one for one in rows if one.input == name][at % 2] for at, name in enumerate(inputs)]


def changed(of: Problem, what: str, factor: float) -> Problem:
    """Return the problem with one input multiplied, by way of what a user may write down."""
    cluster = of.cluster
    if what == "memory of a device":
        device = cluster.node.accelerator
        node = replace(cluster.node, accelerator=replace(device, memory_bytes=device.memory_bytes * factor))
        return replace(of, cluster=replace(cluster, node=node))
    if what in ("inter-node bandwidth", "intra-node bandwidth"):
        link = what.split(maxsplit=1)[0].replace("-", "_")
        values = {(link, "bytes_per_s"): getattr(cluster, link).bytes_per_s * factor}
        return replace(of, scenario=Scenario("what if", link_values=values))
    name = "kernel_factor" if what == "kernel times" else "host_factor"
    factors: dict[str, Any] = {name: factor}
    return replace(of, scenario=Scenario("what if", **factors))


def of_plan(of: Problem, request: SpaceRequest, plan: Configuration) -> float | None:
    """Return the epoch of a plan [s], None where it does not satisfy the request."""
    order, limits = order_and_limits(of, request)
    every = search(Asked(request, limits, Evaluator(of), order), keep=10_000).best
    assert every is not None
    rows = {every.configurations.one(at): float(every.predictions.epoch_s[at]) for at in range(every.size)}
    return rows.get(plan)


@pytest.mark.parametrize("what", INPUTS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_best_plan_then_is_that_of_the_changed_question(what: str, factor: float) -> None:
    of, answer = problem(), first_answer()
    (told,) = (one for one in answer.sensitivity if one.input == what and one.factor == pytest.approx(factor))
    then = changed(of, what, factor)
    best = suggest(then, REQUEST, {}).plans[0].prediction
    assert told.best == best.configuration
    assert told.is_other == (best.configuration != answer.plans[0].prediction.configuration)
    plan = answer.chosen_plan
    assert plan is not None
    seconds = of_plan(then, REQUEST, plan.prediction.configuration)
    assert (told.behind is None) == (seconds is None)
    if seconds is not None and best.epoch_s is not None:
        assert told.behind == pytest.approx(seconds / best.epoch_s.value - 1, abs=1e-8)
    position = next((one.position for one in answer.plans if one.prediction.configuration == told.best), None)
    assert told.position == position


def test_something_changes_and_something_does_not() -> None:
    """On this window a faster GPU makes mini-batches too large, which other nodes mend; memory is not short."""
    others = {one.input: one.is_other for one in first_answer().sensitivity}
    assert others["kernel times"]
    assert not others["memory of a device"]


def test_without_room_nothing_fits() -> None:
    request = SpaceRequest(1024).changed(nodes=(1,), sub_batch=(128,), accumulation_steps=(1,), precision=("fp32",))
    of = problem("resnet50", "dgx1-v100")
    needed = suggest(of, request, {}).plans[0].prediction.memory_bytes["total"]
    node = of.cluster.node
    tight = replace(node.accelerator, memory_bytes=needed * 1.05)
    answer = asked(replace(of, cluster=replace(of.cluster, node=replace(node, accelerator=tight))), request)
    (less, more) = (one for one in answer.sensitivity if one.input == "memory of a device")
    assert less == Sensitivity(
        "memory of a device", 0.9, is_other=True, best=None, framework=None, position=None, behind=None
    )
    assert (more.is_other, more.position, more.behind) == (False, 1, 0.0)


def test_links_that_are_not_there_are_not_changed() -> None:
    of = problem("resnet50", "dgx1-v100")
    alone = replace(of, cluster=replace(of.cluster, nodes=1, inter_node=None))
    request = SpaceRequest(256).changed(precision=("fp32",))
    assert {one.input for one in asked(alone, request).sensitivity} == set(INPUTS[1:])
    assert asked(alone, request.changed(nodes=(1,))).tied == asked(alone, request).tied
    assert suggest(alone, request, {}).sensitivity == ()


def test_of_several_frameworks_the_best_plan_of_all_is_told() -> None:
    request = SpaceRequest(1024).changed(precision=("fp16",), sensitivity=True)
    both = [(problem("resnet50", "dgx1-v100", name), request) for name in ("pytorch", "mxnet")]
    answer = suggest_among(both, {})
    assert answer.plans[0].framework is not None
    for one in of_each_input(answer.sensitivity):
        then = [(changed(of, one.input, one.factor), request.changed(sensitivity=False)) for of, _ in both]
        best = suggest_among(then, {}).plans[0]
        assert (one.best, one.framework) == (best.prediction.configuration, best.framework)


@pytest.mark.parametrize(
    ("of", "one"),
    [
        (problem("resnet50", "dgx1-v100"), Configuration(1, 1, 8, 1, "fp32")),
        (problem("gpt2", "dgx-a100", "megatron"), Configuration(1, 1, 2, 2, "bf16", recompute="full")),
    ],
    ids=["whole", "split"],
)
@pytest.mark.parametrize("kernels", [1.0, 1.1])
@pytest.mark.parametrize("host", [1.0, 1.1])
def test_kernels_and_host_time_are_multiplied_each_alone(
    of: Problem, one: Configuration, kernels: float, host: float
) -> None:
    """A step of one GPU is homogeneous in both: as much longer as both are, and between where one is."""
    plan = Configurations.of([one])
    before = float(Evaluator(of).evaluate(plan).iteration_s[0])
    scenario = Scenario("what if", kernel_factor=kernels, host_factor=host)
    ratio = float(Evaluator(replace(of, scenario=scenario)).evaluate(plan).iteration_s[0]) / before
    if kernels == host:
        assert ratio == pytest.approx(kernels, rel=1e-12)
    else:
        assert 1 < ratio < 1.1


def test_a_weighted_objective_is_over_the_leasts_of_the_changed_question() -> None:
    of = problem("resnet50", "dgx1-v100")
    of = replace(of, cluster=replace(of.cluster, usd_per_gpu_hour=2.5))
    request = SpaceRequest(1024).changed(precision=("fp16",), objective="epoch-time:1+cost:0.5", choose="fastest")
    for one in of_each_input(asked(of, request).sensitivity):
        answer = suggest(changed(of, one.input, one.factor), request, {})
        assert one.best == answer.plans[0].prediction.configuration


def test_prices_of_split_plans_follow_every_input() -> None:
    network = catalog.find_network("gpt:layers=4,hidden=512,heads=8,sequence=256,vocabulary=8192")
    of = replace(problem("gpt2", "dgx-a100", "megatron-lm"), network=network, dataset=None)
    request = SpaceRequest(64).changed(
        nodes=(1, 2),
        precision=("bf16",),
        tensor_parallel=(2,),
        pipeline_parallel=(1, 2),
        sharding=(0,),
        choose="fastest",
    )
    for one in of_each_input(asked(of, request).sensitivity):
        best = suggest(changed(of, one.input, one.factor), request, {}).plans[0].prediction
        assert one.best == best.configuration
