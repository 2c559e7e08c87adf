"""Layers of stages and what they compute again: no other cut and no other recompute that fits is faster."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from planner.catalog import find_cluster, find_network
from planner.domain.arrays import FloatArray
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.request import Problem
from planner.domain.split import BEST_STAGES, PER_STAGE, RECOMPUTES, StageLayers, even_layers
from planner.sources.sources import Sources
from planner.steps.open_choices import StageLayouts
from planner.steps.passes import Passes
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.steps.stage_cases import StageLayout, laid_out, layout_memory
from planner.steps.state import State

NONE, SELECTIVE, FULL = (RECOMPUTES.index(name) for name in ("none", "selective", "full"))
GPT = "gpt:layers=5,hidden=256,heads=4,sequence=128,vocabulary=8192"
LONG = "gpt:layers=8,hidden=256,heads=4,sequence=128,vocabulary=8192"
T5 = "t5:layers=3,hidden=128,heads=4,sequence=64,vocabulary=512"
MOE = "moe:layers=5,hidden=64,heads=4,ffn=512,experts=4,expert_ffn=96,dense_layers=1,sequence=64,vocabulary=512"
KINDS = {"none": NONE, "selective": SELECTIVE, "full": FULL, "per-stage": PER_STAGE}


def problem_of(network: str) -> Problem:
    settings = Settings("adam", input="synthetic")
    return Problem(find_network(network), None, find_cluster("dgx-a100"), (), settings=settings)


def pricer_of(network: str) -> Pricer:
    return Pricer(Sources(problem_of(network)), "fp16")


def plan_of(**values: int) -> Configurations:
    plans = Configurations.having(sub_batch=4, accumulation_steps=6, data_parallel=2, **values)
    return plans.rows


def times(costs: Pricer, plan: Configurations, layout: StageLayout) -> FloatArray:
    """Return both passes of each stage of a layout, gathers of sharded weights included."""
    stages, rank, at = laid_out([layout]), costs.ranks(plan), np.arange(layout.stage.size)
    forward, backward = Passes(costs, plan, rank, stages).alone_s(at, plan.accumulation_steps.astype(float))
    if plan.sharding[0] == 3:
        forward, backward = State(costs, plan, rank, stages).gathered_s(at, forward, backward)
    return np.asarray(forward + backward)


def options_of(layers: int, recompute: int) -> list[tuple[int, int]]:
    """Return every kind of recompute with the number of layers that a stage could compute again."""
    if recompute != PER_STAGE:
        return [(recompute, layers)]
    return [(NONE, 0), (SELECTIVE, layers), *((FULL, again) for again in range(1, layers + 1))]


def every_layout(plan: Configurations, number: int) -> list[StageLayout]:
    stages, kind = int(plan.pipeline_parallel[0]), int(plan.recompute[0])
    chunks = int(plan.virtual_stages[0])
    inner = combinations(range(chunks, number, chunks), stages - 1)
    even = even_layers(number, plan.pipeline_parallel, np.arange(stages))
    ways = [(0, *some, number) for some in inner] if plan.stages[0] == BEST_STAGES else [(*even.first, number)]
    layouts = []
    for way in ways:
        held = np.diff(way)
        for some in product(*(options_of(int(one), kind) for one in held)):
            kinds, again = (np.array(column) for column in zip(*some, strict=True))
            layers = StageLayers(np.array(way[:-1]), np.array(way[1:]), again)
            layouts.append(StageLayout(np.arange(stages), layers, kinds))
    return layouts


def every_price(costs: Pricer, plan: Configurations, number: int) -> tuple[FloatArray, FloatArray]:
    """Return times and memory of the stages of every layout, (layouts, p), fullest stage of each last."""
    layouts = every_layout(plan, number)
    joined = StageLayout(
        np.concatenate([one.stage for one in layouts]),
        StageLayers(*(np.concatenate(column) for column in zip(*(one.layers for one in layouts), strict=True))),
        np.concatenate([one.recompute for one in layouts]),
    )
    shape = len(layouts), int(plan.pipeline_parallel[0])
    return times(costs, plan, joined).reshape(shape), layout_memory(costs, plan, joined).total.reshape(shape)


CASES = [
    (GPT, 5, {"pipeline_parallel": 3}),
    (LONG, 8, {"pipeline_parallel": 2, "virtual_stages": 2}),
    (LONG, 8, {"pipeline_parallel": 3, "virtual_stages": 2}),
    (GPT, 5, {"pipeline_parallel": 2, "tensor_parallel": 2, "sequence_parallel": 1}),
    (GPT, 5, {"pipeline_parallel": 1}),
    (GPT, 5, {"pipeline_parallel": 4, "schedule": 0}),
    (GPT, 5, {"pipeline_parallel": 3, "sharding": 3}),
    (T5, 6, {"pipeline_parallel": 3}),
    (MOE, 5, {"pipeline_parallel": 3}),
]


@pytest.mark.parametrize(("network", "number", "values"), CASES)
@pytest.mark.parametrize("is_best", [0, 1])
@pytest.mark.parametrize("recompute", ["none", "per-stage"])
def test_no_other_layout_that_fits_is_faster(
    network: str, number: int, values: dict[str, int], is_best: int, recompute: str
) -> None:
    costs = pricer_of(network)
    plan = plan_of(**values, stages=is_best * (values["pipeline_parallel"] > 1), recompute=KINDS[recompute])
    seconds, memory = every_price(costs, plan, number)
    fullest = np.unique(memory.max(axis=1))
    capacities = {fullest[0] - 1, *np.quantile(fullest, [0.0, 0.2, 0.5, 0.9, 1.0])}
    for capacity in capacities:
        layout = StageLayouts(costs, float(capacity)).of(plan, costs.ranks(plan))[0]
        own_s, own = times(costs, plan, layout), layout_memory(costs, plan, layout).total
        fits = memory.max(axis=1) <= capacity
        if not fits.any():
            assert own.max() == pytest.approx(fullest[0], rel=1e-12)
            continue
        assert (own <= capacity).all()
        if is_best:
            assert own_s.max() == pytest.approx(seconds[fits].max(axis=1).min(), rel=1e-12)
        else:  # stages do not depend on each other
            np.testing.assert_allclose(own_s, seconds[fits].min(axis=0), rtol=1e-12)


def test_of_cuts_as_fast_the_one_is_taken_whose_fullest_stage_needs_least() -> None:
    costs = pricer_of(GPT)
    plan = plan_of(pipeline_parallel=3, stages=1)
    seconds, memory = every_price(costs, plan, 5)
    layout = StageLayouts(costs, np.inf).of(plan, costs.ranks(plan))[0]
    equal = seconds.max(axis=1) <= times(costs, plan, layout).max() * (1 + 1e-12)
    assert layout_memory(costs, plan, layout).total.max() == memory[equal].max(axis=1).min()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("network", "stages"), [(GPT, 3), (T5, 4), (MOE, 2)])
def test_stages_laid_out_evenly_cost_what_even_stages_do(network: str, stages: int, recompute: str) -> None:
    """The formulas of stages by themselves are those of stages that are alike."""
    costs, number = pricer_of(network), {GPT: 5, T5: 6, MOE: 5}[network]
    plan = plan_of(pipeline_parallel=stages, recompute=KINDS[recompute])
    stage = np.arange(stages)
    layers = even_layers(number, plan.pipeline_parallel, stage)
    layout = StageLayout(stage, layers, np.full(stages, KINDS[recompute]))
    rank = costs.ranks(plan)
    alike = Passes(costs, plan, rank)
    at = alike.cases.at(np.array([0]))[:, 0]
    np.testing.assert_allclose(times(costs, plan, layout), sum(alike.alone_s(at, np.array([6.0]))), rtol=1e-12)
    assert layout_memory(costs, plan, layout).total.max() == pytest.approx(costs.memory(plan).total[0], rel=1e-12)


def test_a_plan_is_priced_with_the_layout_that_its_answer_tells() -> None:
    """With memory for all nothing is computed again; with less, the first stages recompute more than the last."""
    problem = problem_of("gpt2-xl")
    one = Configuration(
        nodes=1, gpus_per_node=8, sub_batch=8, accumulation_steps=16, precision="fp16", pipeline_parallel=8,
        recompute="per-stage",
    )  # fmt: skip
    prediction = Evaluator(problem).describe(Configurations.of([one]))[0]
    again = [stage.again for stage in prediction.stage_layers]
    assert [stage.layers for stage in prediction.stage_layers] == [6] * 8
    assert again == sorted(again, reverse=True)
    assert prediction.memory_bytes["total"] <= prediction.memory_bytes["capacity"]
    assert prediction.hfu is not None
    assert prediction.mfu is not None
    assert (prediction.hfu > prediction.mfu) == any(again)
