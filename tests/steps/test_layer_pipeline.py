"""Pipelines of layers: against event counts, every way to cut, and the pricer of whole networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from planner.catalog import calibrations_for, find_cluster, find_network
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.layer_pipeline import LayerPart, LayerPricer, cut_at
from planner.steps.passes import Passes
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.steps.stage_cases import laid_out
from planner.steps.state import State
from tests.simulation.events import count_events, operations

Make = Callable[..., Problem]


def bundled(name: str) -> Problem:
    cluster = find_cluster("dgx1-v100")
    settings = Settings("sgd-momentum", input="synthetic", framework=Framework("deepspeed", stages="layers"))
    return Problem(find_network(name), None, cluster, calibrations_for(cluster), settings=settings)


def plan(**changes: Any) -> Configuration:
    return Configuration(**({"nodes": 1, "gpus_per_node": 4, "sub_batch": 8} | changes))


@pytest.fixture
def problem(make_problem: Make) -> Problem:
    """Three units: two convolutions and a linear layer."""
    return make_problem(dataset=None, settings=Settings("sgd", input="synthetic", framework=Framework("own")))


def part_of(problem: Problem, one: Configuration) -> LayerPart:
    pricer, plans = LayerPricer(Sources(problem), one.precision), Configurations.of([one])
    rank, stages = pricer.ranks(plans), laid_out(pricer.layouts(plans))
    of = Passes(pricer, plans, rank, stages), State(pricer, plans, rank, stages)
    return LayerPart(pricer, plans, of, np.array([0]))


def passes_of(part: LayerPart) -> tuple[np.ndarray, np.ndarray]:
    """Return the forward and the backward pass of every stage, shape (p,)."""
    return part.passes.alone_s(np.arange(part.passes.cases.stage.size), part.m)


@pytest.mark.parametrize("name", ["alexnet", "vgg11"])
@pytest.mark.parametrize("stages", [2, 4])
def test_no_other_cuts_make_the_slowest_stage_faster(name: str, stages: int) -> None:
    pricer = LayerPricer(Sources(bundled(name)), "fp16")
    for sub_batch in (1, 32):
        cost = pricer.cuts.stage_s(sub_batch)
        units = cost.shape[0] - 1
        ways = [(0, *inner, units) for inner in combinations(range(1, units), stages - 1)]
        times = {way: max(cost[a, b] for a, b in pairwise(way)) for way in ways}
        assert times[tuple(pricer.cuts.cuts(stages, sub_batch).tolist())] == min(times.values())


@pytest.mark.parametrize("launch", ["eager", "graph"])
def test_a_stage_of_everything_takes_both_passes_of_the_whole_network(launch: str) -> None:
    problem = bundled("resnet50")
    framework = replace(problem.settings.framework, launch=launch)
    problem = replace(problem, settings=replace(problem.settings, framework=framework))
    whole = Configurations.of([Configuration(1, 1, 8, precision="fp16")])
    passes = Pricer(Sources(problem), "fp16").one_stage(whole).passes
    both = passes.forward_s[0] + passes.backward.first_s[0]
    assert LayerPricer(Sources(problem), "fp16").cuts.stage_s(8)[0, -1] == pytest.approx(both, rel=1e-9)


def test_cuts_are_laid_down_once_for_sub_batches_that_hardly_differ() -> None:
    assert cut_at(np.arange(1, 17)).tolist() == list(range(1, 17))
    assert cut_at(np.array([17, 18, 31, 32, 35, 36, 1000])).tolist() == [16, 18, 30, 32, 32, 36, 960]
    cuts = LayerPricer(Sources(bundled("vgg16")), "fp32").cuts
    assert cuts.cuts(4, 31).tolist() == cuts.cuts(4, 30).tolist()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "steps"), [(2, 1), (2, 6), (4, 3), (4, 16)])
def test_a_pipeline_is_the_event_count_of_its_stages(schedule: str, stages: int, steps: int) -> None:
    """GPipe exact, 1F1B a lower figure that misses at most what unequal stages make it (MODEL 10.9)."""
    problem = bundled("resnet50")
    one = plan(gpus_per_node=stages, pipeline_parallel=stages, schedule=schedule, accumulation_steps=steps)
    part = part_of(problem, one)
    forward, backward = (each[:, None] for each in passes_of(part))
    transfer = float(part.transfer_s[0])
    events = count_events(operations(schedule, stages, steps), forward, backward, transfer_s=transfer)
    (found,) = Evaluator(problem).describe(Configurations.of([one]))
    after = sum(term.exposed_seconds for term in found.terms if term.name in ("update", "all_reduce", "replica_wait"))
    assert found.iteration_s.value - after == pytest.approx(events.end_s, rel=1e-9 if schedule == "gpipe" else 0.05)
    assert transfer > 0


def test_two_stages_by_hand(problem: Problem) -> None:
    """GPipe of 5 micro-batches: a pass of each stage, four of the slower each way, and two transfers."""
    one = plan(gpus_per_node=2, sub_batch=2, pipeline_parallel=2, schedule="gpipe", accumulation_steps=5)
    part = part_of(problem, one)
    forward, backward = passes_of(part)
    (layout,) = part.costs.layouts(part.plans)
    (cut,) = layout.layers.first[1:].tolist()
    assert part.costs.first_layers(layout) == ("conv1", ("conv2", "fc")[cut - 1])
    crossing = 4 * 2 * {1: 8 * 16 * 16, 2: 8 * 8 * 8}[cut]
    transfer = 1e-6 + crossing / 1e10  # one NVLink
    (found,) = Evaluator(problem).describe(Configurations.of([one]))
    terms = {term.name: term.exposed_seconds for term in found.terms}
    update = part.passes.update_s.max()
    wanted = forward.sum() + backward.sum() + 4 * (forward.max() + backward.max()) + 2 * transfer
    assert part.transfer_s[0] == pytest.approx(transfer, rel=0.05)
    assert found.iteration_s.value == pytest.approx(wanted + update, rel=0.01)
    assert terms["update"] == pytest.approx(update, rel=1e-9)


def test_terms_add_up_to_the_step_and_parameters_to_the_network() -> None:
    problem = bundled("resnet50")
    for changes in ({"pipeline_parallel": 2}, {"pipeline_parallel": 4, "nodes": 2, "accumulation_steps": 7}):
        one = plan(**changes)
        (found,) = Evaluator(problem).describe(Configurations.of([one]))
        assert sum(term.exposed_seconds for term in found.terms) == pytest.approx(found.iteration_s.value, rel=1e-9)
        assert {"bubble", "stage_messages", "all_reduce", "update"} <= {term.name for term in found.terms}
        part = part_of(problem, one)
        rank = part.costs.compute.ranks[0]
        assert (part.passes.cases.counts @ rank.units.parameters).sum() == rank.program.parameters


def test_many_plans_are_priced_as_each_by_itself() -> None:
    problem = bundled("alexnet")
    plans = [
        plan(pipeline_parallel=p, sub_batch=n, accumulation_steps=m, schedule=schedule, nodes=nodes)
        for p, n, m, schedule, nodes in (
            (2, 1, 4, "1f1b", 1), (2, 48, 4, "1f1b", 2), (4, 48, 1, "gpipe", 2), (4, 5, 9, "zero-bubble", 1),
            (2, 3, 2, "1f1b", 1),
        )
    ]  # fmt: skip
    pricer = LayerPricer(Sources(problem), "fp32")
    together = pricer.price(Configurations.of(plans))
    for at, one in enumerate(plans):
        alone = LayerPricer(Sources(problem), "fp32").price(Configurations.of([one]))
        assert together.period_s[at] == pytest.approx(alone.period_s[0], rel=1e-12)
        assert together.memory.total[at] == pytest.approx(alone.memory.total[0], rel=1e-12)


def test_samples_are_loaded_by_the_ranks_of_the_first_stages_and_copied_there(make_problem: Make) -> None:
    """Two of the four GPUs load; on a machine whose storage is slow, the step waits for it."""
    fast = make_problem(settings=Settings("sgd", framework=Framework("own")))
    one = plan(sub_batch=2, pipeline_parallel=2)
    pricer = LayerPricer(Sources(fast), "fp32")
    priced = pricer.price(Configurations.of([one]))
    load = pricer.input.times(np.array([2]), np.array([2]), np.array([1]), first_epoch=False).node_s[0]
    assert priced.seconds["load_input"][0] == pytest.approx(load)
    step = priced.period_s[0] - priced.exposed_s["load_input"][0]
    assert priced.exposed_s["load_input"][0] == pytest.approx(max(load - step, 0.0))
    copy = pricer.compute.ranks[0].host_to_device_s(np.array([2]))[0]
    assert copy > 0
    assert part_of(fast, one).passes.copy_s.tolist() == [copy, 0.0]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("name", "sub_batch"), [("vgg11", 64), ("resnet18", 128)])
def test_best_stages_are_the_fastest_that_fit(name: str, sub_batch: int, schedule: str) -> None:
    """Against every way to cut, on devices of less and less memory; where none fits the fullest needs least."""
    problem, stages, steps = bundled(name), 3, 6
    values = {"sub_batch": sub_batch, "pipeline_parallel": stages, "accumulation_steps": steps, "schedule": schedule}
    plans = Configurations.of([plan(gpus_per_node=stages, precision="fp16", stages="best", **values)])
    pricer = LayerPricer(Sources(problem), "fp16")
    cost = pricer.cuts.stage_s(int(cut_at(plans.sub_batch)[0]))
    units = cost.shape[0] - 1
    ways = [np.array([0, *inner, units]) for inner in combinations(range(1, units), stages - 1)]
    times = np.array([max(cost[a, b] for a, b in pairwise(way)) for way in ways])
    full = np.array([pricer.ledger.of_cuts(way, plans).total[0] for way in ways])
    taken_of_all = set()
    for capacity in (1e18, *np.quantile(full, [1.0, 0.5, 0.1, 0.0]), full.min() - 1):
        node = problem.cluster.node
        smaller = replace(node, accelerator=replace(node.accelerator, memory_bytes=capacity))
        own = LayerPricer(Sources(replace(problem, cluster=replace(problem.cluster, node=smaller))), "fp16")
        taken = tuple(own.cuts_of(plans).tolist())
        taken_of_all.add(taken)
        at = next(at for at, way in enumerate(ways) if tuple(way.tolist()) == taken)
        fits = full <= capacity
        if not fits.any():
            assert full[at] == full.min()
            continue
        assert fits[at]
        assert times[at] == times[fits].min()
        assert full[at] == full[fits & (times == times[at])].min()
        assert own.memory(plans).total[0] == full[at]
    assert len(taken_of_all) > 1
