"""Synchronous steps that send gradients in buckets, between those that send layer by layer and all at once."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from planner.domain.arrays import FloatArray
from planner.domain.cluster import Cluster, Link
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import PYTORCH, Framework, Strategy
from planner.domain.prediction import Prediction
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.steps.step_costs import SLOWDOWN

Make = Callable[..., Problem]
PLANS = [Configuration(n, g, b, a) for n in (1, 4) for g in (1, 4) for b in (1, 32) for a in (1, 3)]


def described(make_problem: Make, strategy: str, cluster: Cluster, framework: Framework = PYTORCH) -> list[Prediction]:
    settings = Settings(strategy=strategy, input="synthetic", framework=framework)
    problem = make_problem(settings=settings, cluster=cluster)
    return Evaluator(problem).describe(Configurations.of(PLANS))


def sizes(first: float, later: float) -> Framework:
    """Return a framework whose buckets are of these sizes."""
    return Framework("own", strategies={"bucketed": Strategy(first_bucket_bytes=first, bucket_bytes=later)})


def seconds(one: Prediction, name: str) -> float:
    return next(term.seconds for term in one.terms if term.name == name)


def test_buckets_of_no_size_are_wait_free(make_problem: Make, cluster: Cluster) -> None:
    own = sizes(0.0, 0.0)
    assert described(make_problem, "bucketed", cluster, own) == described(make_problem, "wait-free", cluster, own)


def test_one_bucket_is_one_message_after_the_backward_pass(make_problem: Make, cluster: Cluster) -> None:
    bucketed = described(make_problem, "bucketed", cluster, sizes(1e12, 1e12))
    for one, other in zip(bucketed, described(make_problem, "wait-free", cluster), strict=True):
        work = sum(seconds(one, name) for name in ("forward", "backward", "update", "all_reduce"))
        # the head of the backward pass has no gradient, and runs while the bucket is sent
        assert other.iteration_s.value - 1e-12 <= one.iteration_s.value + seconds(other, "all_reduce")
        assert one.iteration_s.value <= work * (1 + 1e-12)
        if one.configuration.gpus > 1:
            assert seconds(one, "all_reduce") < seconds(other, "all_reduce")  # one latency instead of three


def test_buckets_of_free_messages_lie_between_layers_and_one_message(make_problem: Make, cluster: Cluster) -> None:
    """Without latency buckets save nothing, so each merger only makes gradients wait."""
    fast = replace(cluster, intra_node=Link("nvlink", 1e8, 0.0), inter_node=Link("infiniband", 1e7, 0.0))
    found = [described(make_problem, "bucketed", fast, sizes(size, size)) for size in (0.0, 300.0, 3000.0, 1e12)]
    for before, after in pairwise(found):
        assert all(a.iteration_s.value <= b.iteration_s.value * (1 + 1e-12) for a, b in zip(before, after, strict=True))
    assert any(a.iteration_s.value < 0.999 * b.iteration_s.value for a, b in zip(found[0], found[-1], strict=True))


def test_buckets_follow_the_recurrence_of_merged_slots(
    make_problem: Make, cluster: Cluster, communication_end_s: Callable[..., float]
) -> None:
    """Slots of 224, 584 and 5130 gradients: the last alone, then the two others as one."""
    plan = Configurations.of([Configuration(4, 2, 8)])
    settings = Settings(strategy="bucketed", input="synthetic", framework=sizes(1.0, 1e12))
    problem = make_problem(settings=settings, cluster=cluster)
    (found,) = Evaluator(problem).describe(plan)
    step = Pricer(Sources(problem), "fp32").one_stage(plan)
    ((exchange, _),) = step.exchanges()
    assert (exchange.bytes_of(exchange.slot) / 4).tolist() == [224 + 584, 5130]
    ready = step.ready[0][0]
    merged = np.array([ready[0] - ready[2], ready[2]])
    end = communication_end_s(merged, exchange.message_s[0])
    exposed = max(0.0, end - seconds(found, "backward"))
    assert next(term.exposed_seconds for term in found.terms if term.name == "all_reduce") == pytest.approx(exposed)
    assert exposed > 0


def test_buckets_leave_accumulated_and_asynchronous_intervals(make_problem: Make, cluster: Cluster) -> None:
    """Fewer messages than layers: the parts of stages are still by layer."""
    plans = Configurations.of([Configuration(4, 2, 8, 3), Configuration(4, 2, 8, mode="async")])
    problem = make_problem(settings=Settings(strategy="bucketed", input="synthetic"), cluster=cluster)
    for found in Evaluator(problem).describe(plans):
        assert found.iteration_s.low is not None
        assert 0 < found.iteration_s.low < found.iteration_s.value


def slowed_end_s(ready: FloatArray, message_s: FloatArray, backward_s: float) -> float:
    """Return when pass and messages have ended, event by event; beside a message the pass gets on 1/ς as fast.

    ``ready``: how much of the pass is done when each message's gradient is there, in forward order.
    """
    now = done = 0.0
    for at in range(len(ready) - 1, -1, -1):
        now, done = now + max(ready[at] - done, 0.0), max(done, float(ready[at]))
        now, done = now + message_s[at], min(done + message_s[at] / SLOWDOWN, backward_s)
    return float(now + backward_s - done)


@pytest.mark.parametrize("bytes_per_s", [1e7, 3e7, 1e8, 1e9, 1e10, 1e11])
def test_kernels_beside_messages_take_longer(make_problem: Make, cluster: Cluster, bytes_per_s: float) -> None:
    gpu = replace(cluster.node, accelerator=replace(cluster.node.accelerator, kind="gpu"))
    assert cluster.inter_node is not None
    machine = replace(cluster, node=gpu, inter_node=replace(cluster.inter_node, bytes_per_s=bytes_per_s))
    problem = make_problem(cluster=machine, settings=Settings(input="synthetic"))
    step = Pricer(Sources(problem), "fp32").one_stage(Configurations.of([Configuration(4, 1, 32)]))
    ((exchange, _),) = step.exchanges()
    ready, backward = step.ready[0][0], float(step.ready[1][0])
    taken, added = (float(one[0]) for one in step.exchange_s)
    end_s = slowed_end_s(ready[exchange.slot], exchange.message_s[0], backward)
    assert added == pytest.approx(end_s - backward)
    assert added >= (1 - 1 / SLOWDOWN) * taken
