"""Steps as frameworks make them: layouts, fused norms, graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.kernels import MATRIX_KINDS
from planner.domain.request import Problem
from planner.domain.scenario import Scenario
from planner.sources.sources import Sources
from planner.steps.compute import GRAPH_S_PER_CALL, LAUNCH_S, Compute, call_times_s
from planner.steps.host_and_gpu import CallCounts, call_counts
from planner.steps.predict import Evaluator

BATCH = np.array([64])


def problem_of(framework: Framework, cluster: str = "dgx1-v100", network: str = "resnet50") -> Problem:
    found, machine = catalog.find_network(network), catalog.find_cluster(cluster)
    settings = Settings("sgd-momentum", "wait-free", "synthetic", framework)
    return Problem(found, None, machine, catalog.calibrations_for(machine), settings=settings)


def kernels_s(framework: Framework, precision: str) -> tuple[float, float]:
    """Return what products and all other kernels of a step take by themselves."""
    compute = Compute(Sources(problem_of(framework)), precision)
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
    eager, graph = (Compute(Sources(problem_of(Framework("own", launch=how))), "fp16") for how in ("eager", "graph"))
    counts = CallCounts(90, 90, 10)
    assert graph.host_s("forward", counts) == pytest.approx(100 * GRAPH_S_PER_CALL)
    assert graph.host_s("forward", counts) < eager.host_s("forward", counts)
    compiled = Compute(Sources(problem_of(Framework("own", launch="compiled"))), "fp16")
    assert compiled.host_s("forward", counts) == pytest.approx(100 * LAUNCH_S)
    small = Configurations.of([Configuration(nodes=1, gpus_per_node=1, sub_batch=1, precision="fp16")])
    rates = [
        float(Evaluator(problem_of(Framework("own", launch=how))).evaluate(small).samples_per_s[0])
        for how in ("eager", "graph")
    ]
    assert rates[1] > 1.2 * rates[0]


def test_the_host_takes_a_launch_for_each_further_kernel_of_an_operation() -> None:
    """Not what was learned of operations that start one: a chain of primitives would take as many times as long."""
    compute = Compute(Sources(problem_of(Framework("own"))), "fp16")
    one, chain = (compute.host_s("forward", counts) for counts in (CallCounts(1, 1, 0), CallCounts(1, 1, 7)))
    assert chain - one == pytest.approx(7 * LAUNCH_S)
    twice = replace(problem_of(Framework("own")), scenario=Scenario("", host_factor=2.0))
    doubled = Compute(Sources(twice), "fp16")
    assert doubled.host_s("forward", CallCounts(1, 1, 7)) == pytest.approx(2 * chain)


def test_primitives_of_a_transformer_are_launched_and_no_operations() -> None:
    whole, chains = (
        Compute(Sources(problem_of(Framework("own", composes=composes), network="bert-base")), "fp16")
        for composes in ((), ("gelu", "layer_norm", "dropout", "softmax"))
    )
    counts = [call_counts(one.calls_with_sources(BATCH)["forward"]) for one in (whole, chains)]
    assert counts[0].calls == counts[1].calls
    assert counts[0].launches == 0
    assert counts[1].launches > counts[1].calls


def test_transposes_of_a_layout_are_counted_for_16_bits_but_not_for_tf32() -> None:
    """Kernels of 16 bits take channels last alone."""
    for precision, differs in (("tf32", False), ("fp16", True)):
        moved = []
        for layout in ("nchw", "channels-last"):
            compute = Compute(Sources(problem_of(Framework("own", layout=layout), cluster="dgx-a100")), precision)
            by_stage = compute.calls_with_sources(BATCH)
            moved.append(sum(int(calls.count.sum()) for calls, _ in by_stage["forward"] if calls.kind == "copy"))
        assert (moved[0] > moved[1]) == differs
