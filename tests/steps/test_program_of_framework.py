"""Steps as frameworks make them: layouts, fused norms, graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.kernels import MATRIX_KINDS
from planner.domain.request import Problem, Scenario
from planner.sources.sources import Sources
from planner.steps.compute import GRAPH_S_PER_CALL, LAUNCH_S, PASSES, ComputeCases, RankCompute, call_times_s, host_s
from planner.steps.host_and_gpu import CallCounts
from planner.steps.predict import Evaluator

BATCH = np.array([64])


def problem_of(framework: Framework, cluster: str = "dgx1-v100", network: str = "resnet50") -> Problem:
    found, machine = catalog.find_network(network), catalog.find_cluster(cluster)
    settings = Settings("sgd-momentum", "wait-free", "synthetic", framework)
    return Problem(found, None, machine, catalog.calibrations_for(machine), settings=settings)


def whole(problem: Problem, precision: str) -> RankCompute:
    return ComputeCases(Sources(problem), precision).ranks[0]


def host_of(problem: Problem, calls: int, launches: int) -> float:
    """Return the host time of a pass of so many operations, and kernels beyond one each [s]."""
    made, more = (np.array([float(count)]) for count in (calls, launches))
    sources = Sources(problem)
    (seconds,) = np.atleast_1d(host_s(sources, sources.overheads("fp16", "sync"), CallCounts(made, made, more), 0.0))
    return float(seconds)


def kernels_s(framework: Framework, precision: str) -> tuple[float, float]:
    """Return what products and all other kernels of a step take by themselves."""
    compute = whole(problem_of(framework), precision)
    matrix_s = traffic_s = 0.0
    for stage, served in compute.calls_with_sources(BATCH).items():
        for calls, source in served if stage != "accumulating" else ():
            seconds = float(call_times_s(source.entry, calls, compute.itemsize).sum())
            matrix_s += seconds * (calls.kind in MATRIX_KINDS)
            traffic_s += seconds * (calls.kind not in MATRIX_KINDS)
    return matrix_s, traffic_s


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_channels_last_saves_the_transposes_of_matrix_units_alone(precision: str) -> None:
    plain, last = (kernels_s(Framework("own", layout=layout), precision) for layout in ("nchw", "channels-last"))
    assert plain[0] == last[0]
    assert (plain[1] > 1.2 * last[1]) if precision == "fp16" else (plain == last)


def test_norms_in_one_kernel_with_activations_take_less_than_apart() -> None:
    apart, together = (kernels_s(Framework("own", fuses=fuses), "fp32") for fuses in ((), ("norm",)))
    assert apart[0] == together[0]
    assert 0.5 * apart[1] < together[1] < 0.8 * apart[1]


def test_a_replayed_graph_takes_a_microsecond_of_the_host_a_call() -> None:
    eager, graph, compiled = (
        host_of(problem_of(Framework("own", launch=how)), 90, 10) for how in ("eager", "graph", "compiled")
    )
    assert graph == pytest.approx(100 * GRAPH_S_PER_CALL)
    assert graph < eager
    assert compiled == pytest.approx(100 * LAUNCH_S)
    small = Configurations.of([Configuration(nodes=1, gpus_per_node=1, sub_batch=1, precision="fp16")])
    rates = [
        float(Evaluator(problem_of(Framework("own", launch=how))).evaluate(small).samples_per_s[0])
        for how in ("eager", "graph")
    ]
    assert rates[1] > 1.2 * rates[0]


def test_the_host_takes_a_launch_for_each_further_kernel_of_an_operation() -> None:
    """Not what was learned of operations that start one: a chain of primitives would take as many times as long."""
    problem = problem_of(Framework("own"))
    one, chain = (host_of(problem, 1, launches) for launches in (0, 7))
    assert chain - one == pytest.approx(7 * LAUNCH_S)
    twice = replace(problem, scenario=Scenario("", host_factor=2.0))
    assert host_of(twice, 1, 7) == pytest.approx(2 * chain)


def test_primitives_of_a_transformer_are_launched_and_no_operations() -> None:
    started = []
    for composes in ((), ("gelu", "layer_norm", "dropout", "softmax")):
        compute = ComputeCases(Sources(problem_of(Framework("own", composes=composes), network="bert-base")), "fp16")
        compute.cases.ensure(np.zeros(1, dtype=np.int64), BATCH)
        units, counts = compute.ranks[0].units.sequence, compute.cases.columns.counts
        both = (one[0, PASSES.index("forward")][units].sum() for one in (counts.calls, counts.launches))
        started.append(tuple(both))
        by_call = compute.ranks[0].calls_with_sources(BATCH)["forward"]
        assert sum(started[-1]) == sum(calls.count.sum() for calls, _ in by_call)
    (operations, apart), (chains, launches) = started
    assert operations == chains
    assert apart == 0
    assert launches > chains


def test_transposes_of_a_layout_are_counted_for_16_bits_but_not_for_tf32() -> None:
    """Kernels of 16 bits take channels last alone."""
    for precision, differs in (("tf32", False), ("fp16", True)):
        moved = []
        for layout in ("nchw", "channels-last"):
            compute = whole(problem_of(Framework("own", layout=layout), cluster="dgx-a100"), precision)
            by_stage = compute.calls_with_sources(BATCH)
            moved.append(sum(int(calls.count.sum()) for calls, _ in by_stage["forward"] if calls.kind == "copy"))
        assert (moved[0] > moved[1]) == differs


def exchanged(framework: Framework, cluster: str, nodes: int, context: int = 1) -> dict[str, tuple[float, float]]:
    """Return what each term of a step of a small transformer in bf16 takes and adds [s]."""
    network = catalog.find_network("gpt:layers=8,hidden=2048,heads=16,sequence=1024,vocabulary=8192")
    machine = catalog.find_cluster(cluster)
    settings = Settings("adam", "wait-free", "synthetic", framework)
    problem = Problem(network, None, machine, catalog.calibrations_for(machine), settings=settings)
    plan = Configuration(nodes=nodes, gpus_per_node=8, sub_batch=1, precision="bf16", context_parallel=context)
    described = Evaluator(problem).describe(Configurations.of([plan]))[0]
    return {term.name: (term.seconds, term.exposed_seconds) for term in described.terms}


def test_context_ranks_of_heads_exchange_them_all_to_all_and_wait() -> None:
    """A ring's messages run beside blocks of attention, exchanges of heads before and behind it."""
    ring, ulysses = (Framework("own", context=what) for what in ("positions", "heads"))
    (sent, hidden), (taken, exposed) = (
        exchanged(one, "dgx-h100", 2, context=8)["context_messages"] for one in (ring, ulysses)
    )
    assert hidden < sent
    assert exposed == taken > 0


def test_buckets_that_grow_with_ranks_expose_more_on_many() -> None:
    own = catalog.find_framework("megatron-lm")
    fixed = replace(own.strategies["wait-free"], rank_parameters=0.0)
    still = replace(own, strategies={**own.strategies, "wait-free": fixed})
    few, many = ([exchanged(one, "selene", nodes)["all_reduce"][1] for one in (still, own)] for nodes in (4, 64))
    assert few[0] == few[1]
    assert many[0] < many[1]
