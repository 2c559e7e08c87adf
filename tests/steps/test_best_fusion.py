"""Messages of neighbouring gradients, against every way to group them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from planner.catalog import find_cluster, find_network
from planner.domain.arrays import FloatArray
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework, Strategy
from planner.domain.prediction import Prediction
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.pipeline_runs import exchange_s
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.steps.synchronous import Runs, backward_end_s, best_fusion, communication_prefix_s, ready_s

Make = Callable[..., Problem]
PLANS = [Configuration(n, g, b, a) for n in (1, 4) for g in (1, 4) for b in (1, 32) for a in (1, 3)]


def linear(bytes_: FloatArray, start_s: float, byte_s: float) -> FloatArray:
    """Return a + b V of slots l to k together, (J, J)."""
    ahead = np.concatenate([[0.0], np.cumsum(bytes_)])
    return np.asarray(start_s + byte_s * (ahead[None, 1:] - ahead[:-1, None]))


def end_of(ready: FloatArray, message: FloatArray, ends: tuple[int, ...]) -> float:
    """Return when the last message is done, one after the other from the highest slots."""
    done = 0.0
    for low, high in reversed(list(pairwise(ends))):
        done = max(done, float(ready[low])) + float(message[low, high - 1])
    return done


def every_way(slots: int) -> list[tuple[int, ...]]:
    inner = [some for number in range(slots) for some in combinations(range(1, slots), number)]
    return [(0, *some, slots) for some in inner]


def test_the_vector_of_the_model() -> None:
    """Layer by layer 10, one message 9, the best 8: {3}, {2, 1}."""
    ready = ready_s(np.array([[2.0, 1.0, 1.0]]))
    message = linear(np.ones(3), 2.0, 1.0)
    ways = {way: end_of(ready[0], message, way) for way in every_way(3)}
    assert ways[0, 1, 2, 3] == 10
    assert ways[0, 3] == 9
    best = best_fusion(ready, message)
    assert (best.end_s[0], best.taken_s[0], best.slots(0).tolist()) == (8, 7, [0, 2])


@pytest.mark.parametrize("seed", range(40))
def test_no_other_groups_are_done_earlier(seed: int) -> None:
    """Start-up and bytes, or any times at all, as where a library changes its algorithm with the size."""
    draw = np.random.default_rng(seed)
    slots, cases = int(draw.integers(1, 8)), 3
    ready = ready_s(draw.exponential(1.0, (cases, slots)))
    message = linear(draw.exponential(1.0, slots), *draw.exponential(1.0, 2)) if seed % 2 else draw.random((slots,) * 2)
    best = best_fusion(ready, message)
    for case in range(cases):
        least = min(end_of(ready[case], message, way) for way in every_way(slots))
        assert best.end_s[case] == pytest.approx(least, rel=1e-12)
        own = (*best.slots(case).tolist(), slots)
        assert end_of(ready[case], message, own) == pytest.approx(least, rel=1e-12)
        assert best.taken_s[case] == pytest.approx(sum(message[a, b - 1] for a, b in pairwise(own)))


def test_it_is_never_later_than_layer_by_layer_or_one_message() -> None:
    draw = np.random.default_rng(1)
    ready = ready_s(draw.exponential(1.0, (50, 30)))
    message = linear(draw.exponential(1.0, 30), 0.7, 0.4)
    alone = backward_end_s(
        ready, communication_prefix_s(np.diag(message)[None]), np.arange(50), np.zeros(50, dtype=int)
    )
    end = best_fusion(ready, message).end_s
    assert (end <= alone + 1e-12).all()
    assert (end <= ready[:, 0] + message[0, -1] + 1e-12).all()


def test_nothing_to_send_is_done_at_once() -> None:
    best = best_fusion(np.zeros((2, 0)), np.zeros((0, 0)))
    assert best.end_s.tolist() == [0.0, 0.0]
    assert best.slots(0).size == 0


def described(make_problem: Make, strategy: str, cluster: Cluster) -> list[Prediction]:
    settings = Settings(strategy=strategy, input="synthetic")
    return Evaluator(make_problem(settings=settings, cluster=cluster)).describe(Configurations.of(PLANS))


def test_a_plan_with_the_best_messages_is_never_slower(make_problem: Make, cluster: Cluster) -> None:
    """Than layer by layer, in buckets and all at once; and steps that are told are those that are priced."""
    best = described(make_problem, "best-fusion", cluster)
    others = [described(make_problem, name, cluster) for name in ("wait-free", "bucketed", "no-overlap")]
    for one, *rest in zip(best, *others, strict=True):
        assert one.iteration_s.value <= min(other.iteration_s.value for other in rest) * (1 + 1e-12)
    settings = Settings(strategy="best-fusion", input="synthetic")
    priced = Evaluator(make_problem(settings=settings, cluster=cluster)).evaluate(Configurations.of(PLANS))
    np.testing.assert_allclose(priced.iteration_s, [one.iteration_s.value for one in best], rtol=1e-12)
    axes = {"nodes": (1, 4), "gpus_per_node": (1, 4), "sub_batch": (1, 32), "accumulation_steps": (1, 3)}
    product = Configurations.product({name: np.array(values) for name, values in axes.items()}, ("fp32",))
    together = Evaluator(make_problem(settings=settings, cluster=cluster)).evaluate(product)
    np.testing.assert_array_equal(together.iteration_s, priced.iteration_s)
    faster = [
        one.iteration_s.value < 0.999 * other.iteration_s.value for one, other in zip(best, others[0], strict=True)
    ]
    assert any(faster)


@pytest.mark.usefixtures("unslowed")
def test_messages_that_take_longer_never_end_earlier(make_problem: Make, cluster: Cluster) -> None:
    settings = Settings(strategy="best-fusion", input="synthetic")
    problem = make_problem(settings=settings, cluster=cluster)
    step = Pricer(Sources(problem), "fp32").one_stage(Configurations.of([Configuration(4, 4, 32)]))
    ((exchange, _),) = step.exchanges()
    entry, case = step.costs.gradient_source.entry, np.array([0])
    before = exchange.fused_s(*step.ready, case, case)[0][0]
    assert before == step.exchange_s[1][0] > 0
    for name, value in entry.coefficients.items():
        more = replace(entry, coefficients=dict(entry.coefficients) | {name: value * (1 + 1e-6) + 1e-18})
        other = copy(exchange)
        for derived in ("message_s", "prefix_s"):
            other.__dict__.pop(derived, None)
        other._costs = copy(exchange._costs)  # noqa: SLF001
        other._costs.gradient_entry = more  # noqa: SLF001
        assert other.fused_s(*step.ready, case, case)[0][0] >= before


@pytest.mark.usefixtures("unslowed")
@pytest.mark.parametrize("stages", [1, 2])
def test_split_plans_send_as_many_equal_messages_as_are_best(stages: int) -> None:
    """No slower than one message a layer, and faster than one in all."""
    network = find_network("gpt:layers=6,hidden=64,heads=4,sequence=32,vocabulary=128")
    periods = {}
    for name, framework in {
        "best-fusion": Framework("own"),
        "wait-free": Framework("own"),
        "bucketed": Framework("own", strategies={"bucketed": Strategy(first_bucket_bytes=1e12, bucket_bytes=1e12)}),
    }.items():
        settings = Settings("adam", name, "synthetic", framework)
        problem = Problem(network, None, find_cluster("dgx1-v100"), (), settings=settings)
        one = Configuration(64, 8, 1, 1, precision="fp16", tensor_parallel=2, pipeline_parallel=stages)
        periods[name] = float(Evaluator(problem).evaluate(Configurations.of([one])).iteration_s[0])
    assert periods["best-fusion"] <= min(periods.values())
    assert periods["best-fusion"] < periods["bucketed"]


def test_a_stage_takes_the_number_of_equal_messages_that_is_done_first() -> None:
    """Six layers of 1 s on one stage, start-up 2 s and 6 s of bytes."""
    backward = np.array([[6.0]])
    ways = [Runs.equal(np.array([[2.0 + 6.0 / k]]), np.array([[float(k)]])) for k in range(1, 7)]
    alone = [float(exchange_s(backward, 0.0, [way], overlaps=True, schedule="1f1b")[1][0]) for way in ways]
    taken, late = exchange_s(backward, 0.0, ways, overlaps=True, schedule="1f1b")
    assert late[0] == min(alone)
    best = alone.index(min(alone))
    assert 0 < best < 5
    assert taken[0] == float(ways[best].sent_s[0, 0])
    behind = exchange_s(backward, 0.0, ways, overlaps=False, schedule="1f1b")
    assert (behind[0][0], behind[1][0]) == (8.0, 8.0)
