"""Statistics of asynchronous SGD against closed forms, exact sums and the published table."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import calibrations_for, find_accelerator, find_cluster, find_network
from planner.domain.configuration import Configuration, Configurations
from planner.domain.request import NO_SCENARIO, Problem, SpaceRequest
from planner.errors import ParameterError
from planner.fitting.estimators import solve
from planner.formats.cluster import parse_scenarios
from planner.steps.asynchronous import (
    INTEGER_GUARD,
    Asynchrony,
    AsyncPrices,
    binomial_pmf,
    update_period_s,
    whole_and_fraction,
)
from planner.steps.epoch import InputTimes
from planner.steps.predict import Evaluator

PUBLISHED = json.loads((Path(__file__).parent.parent / "data" / "published" / "sprint.json").read_text())
ROWS = PUBLISHED["rows"]
PERIODS = st.floats(1e-4, 1e3)


def asynchrony(gpus: Any, sub_batch: Any, gpu_s: Any, update_s: Any) -> Asynchrony:
    return Asynchrony(
        np.atleast_1d(np.asarray(gpus, dtype=np.int64)),
        np.atleast_1d(np.asarray(sub_batch, dtype=np.int64)),
        np.atleast_1d(np.asarray(gpu_s, dtype=np.float64)),
        np.atleast_1d(np.asarray(update_s, dtype=np.float64)),
    )


def test_published_speedups_are_quotients_of_published_epochs() -> None:
    for row in ROWS[1:]:
        assert round(ROWS[0]["epoch_s"] / row["epoch_s"], 2) == row["speedup"]


def test_published_mini_batches_lie_in_the_published_window() -> None:
    low, high = SpaceRequest(PUBLISHED["target_mini_batch"], tolerance_async=PUBLISHED["tolerance"]).window("async")
    assert (low, high) == (103.5, 172.5)
    assert all(low <= row["mini_batch_mean"] <= high for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
@pytest.mark.parametrize("gpus_per_node", [1, 2, 3, 4, 8, 16])
def test_published_rows_satisfy_the_identities_for_any_node(row: dict[str, Any], gpus_per_node: int) -> None:
    samples = PUBLISHED["samples"]
    update_s = row["epoch_s"] * row["mini_batch_mean"] / samples
    gpus = row["nodes"] * gpus_per_node
    gpu_s = row["sub_batch"] * gpus * row["epoch_s"] / samples
    found = asynchrony(gpus, row["sub_batch"], gpu_s, update_s)
    assert found.mini_batch_mean[0] == pytest.approx(row["mini_batch_mean"], rel=1e-9)
    assert found.epoch_s(samples)[0] == pytest.approx(row["epoch_s"], rel=1e-9)
    little = found.mini_batch_mean[0] * (found.staleness_mean[0] - 1)
    assert little == pytest.approx(gpus * row["sub_batch"], rel=1e-9)


def repeated_s(threads: int, load: float, computing: float, repetitions: int = 200) -> float:
    """Return how long threads take to repeat that load one at a time, whoever is ready first, and then compute."""
    ready, free, begun = [0.0] * threads, 0.0, []
    for _ in range(threads * repetitions):
        thread = ready.index(min(ready))
        begin = max(ready[thread], free)
        free, ready[thread] = begin + load, begin + load + computing
        begun.append(begin)
    half = threads * repetitions // 2
    return (begun[-1] - begun[-1 - half]) / (repetitions // 2)


@given(st.integers(1, 5), st.lists(PERIODS, min_size=6, max_size=6))
def test_threads_of_a_node_wait_for_the_storage_that_they_share(threads: int, seconds: list[float]) -> None:
    first, later, *own = seconds
    loads = {one: InputTimes(np.array([one]), np.array([threads * one])) for one in (later, first)}
    computing = {str(at): np.array([one]) for at, one in enumerate(own)}
    prices = AsyncPrices(computing, {}, loads[later], loads[first], np.zeros(1))
    assert prices.period_s[0] == pytest.approx(repeated_s(threads, later, sum(own)), rel=1e-9)
    assert prices.first_period_s[0] == pytest.approx(repeated_s(threads, first, sum(own)), rel=1e-9)


def test_worked_example_of_64_gpus() -> None:
    found = asynchrony(64, 8, 0.711, 0.22925)
    assert found.mini_batch_mean[0] == pytest.approx(165.1, abs=0.05)
    assert found.mini_batch_std[0] == pytest.approx(29.9, abs=0.05)
    assert found.staleness_mean[0] == pytest.approx(4.101, abs=5e-4)
    assert found.staleness_pmf(0) == {4: pytest.approx(0.899, abs=5e-4), 5: pytest.approx(0.101, abs=5e-4)}
    assert found.empty_probability[0] == pytest.approx(1.5e-11, rel=0.05)


def test_edr_divides_only_the_all_reduce() -> None:
    """An update of .0514 s and an all-reduce of .17785 s between 8 nodes, lg 8 = 3."""
    cluster = find_cluster("tsubame-kfc")
    times = {
        ("host", "sum_gradient"): {"calls": 0.0, "buffer_parameters": 0.0},
        ("host", "update_weights"): {"calls": 0.0514, "parameters": 0.0},
        ("collectives", "all_reduce"): {"log2_ranks": 0.17785 / 3, "byte_log2_ranks": 0.0},
    }
    reconstructed, *_ = calibrations_for(cluster)
    entries = tuple(
        replace(entry, coefficients=times.get((entry.scope, entry.kind), entry.coefficients))
        for entry in reconstructed.entries
    )
    timed = Problem(find_network("sprint-15"), None, cluster, (replace(reconstructed, entries=entries),))
    plan = Configurations.of([Configuration(8, 8, 8, mode="async")])
    faster = replace(timed, scenario=parse_scenarios("edr", cluster, find_accelerator)[0])
    assert Evaluator(timed).evaluate(plan).update_s[0] == pytest.approx(0.22925)
    assert Evaluator(faster).evaluate(plan).update_s[0] == pytest.approx(0.1510, abs=5e-5)


def test_three_terms_reconstruct_the_published_update_periods() -> None:
    """A demonstration by regression, four equations in three unknowns: suggestive, no proof.

    A constant, a part by deposited gradient and one by lg N; the last two come back through the coupled update period.
    """
    cluster = find_cluster("tsubame-kfc")
    update_s = np.array([row["epoch_s"] * row["mini_batch_mean"] / PUBLISHED["samples"] for row in ROWS])
    deposited = np.array([row["mini_batch_mean"] / (row["nodes"] * row["sub_batch"]) for row in ROWS])
    nodes = np.array([row["nodes"] for row in ROWS])
    scenarios = [
        parse_scenarios(row["scenario"], cluster, find_accelerator)[0] if row["scenario"] else NO_SCENARIO
        for row in ROWS
    ]
    faster = np.array([float(s.factor("all_reduce", nodes=int(n))) for s, n in zip(scenarios, nodes, strict=True)])
    columns = np.column_stack([np.ones(4), deposited, np.log2(nodes) * faster])
    constant_s, per_gradient_s, per_level_s = solve(columns, update_s, "relative-nnls")
    assert min(constant_s, per_gradient_s, per_level_s) > 0
    np.testing.assert_allclose(columns @ [constant_s, per_gradient_s, per_level_s], update_s, rtol=2e-3)
    gpus = np.full(4, PUBLISHED["gpus_per_node"])
    gpu_s = np.array([row["epoch_s"] * row["sub_batch"] for row in ROWS]) * nodes * gpus / PUBLISHED["samples"]
    found = update_period_s(constant_s + per_level_s * columns[:, 2], np.full(4, per_gradient_s), gpus, gpu_s)
    np.testing.assert_allclose(found, update_s, rtol=2e-3)


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.6 / 0.2, (3, 0)), (0.3 / 0.1, (3, 0)), (2.25, (2, 0.25)), (0, (0, 0))]
)
def test_ratios_near_integers_are_integers(ratio: float, expected: tuple[float, float]) -> None:
    assert tuple(float(part) for part in whole_and_fraction(np.array(ratio))) == expected


@given(st.integers(1, 60), st.floats(0, 1, exclude_max=True).map(Fraction))
def test_binomial_equals_exact_arithmetic(trials: int, p: Fraction) -> None:
    k = np.arange(trials + 1.0)
    exact = [float(math.comb(trials, int(i)) * p ** int(i) * (1 - p) ** (trials - int(i))) for i in k]
    np.testing.assert_allclose(
        binomial_pmf(k, np.array(float(trials)), np.array(float(p))), exact, rtol=1e-9, atol=1e-280
    )


@given(st.integers(1, 5000), st.integers(1, 512), PERIODS, PERIODS)
def test_distribution_has_the_stated_moments(gpus: int, sub_batch: int, gpu_s: float, update_s: float) -> None:
    found = asynchrony(gpus, sub_batch, gpu_s, update_s)
    values, p = found.mini_batch_pmf(0)
    mean = float(values @ p)
    assert p.sum() == pytest.approx(1, abs=1e-9)
    assert mean == pytest.approx(found.mini_batch_mean[0], rel=1e-7, abs=1e-6 * gpus * sub_batch)
    spread = math.sqrt(float(((values - mean) ** 2) @ p))
    assert spread == pytest.approx(found.mini_batch_std[0], rel=1e-5, abs=1e-5 * gpus * sub_batch)
    staleness = found.staleness_pmf(0)
    assert sum(staleness.values()) == pytest.approx(1)
    assert sum(s * weight for s, weight in staleness.items()) == pytest.approx(found.staleness_mean[0], rel=1e-8)
    assert min(staleness) >= 1


@given(st.integers(1, 5000), st.integers(1, 512), PERIODS, PERIODS, st.integers(1, 10**8))
def test_identities(gpus: int, sub_batch: int, gpu_s: float, update_s: float, samples: int) -> None:
    found = asynchrony(gpus, sub_batch, gpu_s, update_s)
    in_flight = found.mini_batch_mean[0] * (found.staleness_mean[0] - 1)
    assert in_flight == pytest.approx(gpus * sub_batch, rel=1e-6)
    assert found.epoch_s(samples)[0] * found.mini_batch_mean[0] == pytest.approx(samples * update_s, rel=1e-9)
    assert found.staleness_mean[0] == pytest.approx(1 + 1 / found.q[0], rel=1e-9)
    assert found.epoch_s(samples)[0] * found.samples_per_s[0] == pytest.approx(samples, rel=1e-9)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 64), PERIODS, PERIODS), min_size=1, max_size=6), st.data()
)
def test_window_probability_is_the_sum_over_the_window(
    rows: list[tuple[int, int, float, float]], data: st.DataObject
) -> None:
    found = asynchrony(*zip(*rows, strict=True))
    low = data.draw(st.floats(0, 2 * float(found.mini_batch_mean.max())))
    high = data.draw(st.floats(low, 4 * float(found.mini_batch_mean.max()) + 1))
    expected = []
    for i in range(len(rows)):
        values, p = found.mini_batch_pmf(i)
        guard = INTEGER_GUARD * rows[i][1]
        expected.append(p[(values >= low - guard) & (values <= high + guard)].sum())
    np.testing.assert_allclose(found.window_probability(low, high), expected, atol=1e-9)


def test_window_probability_of_thousands_of_configurations_matches_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    found = asynchrony(
        rng.integers(1, 400, 3000), rng.integers(1, 65, 3000), rng.uniform(0.1, 2, 3000), rng.uniform(0.1, 2, 3000)
    )
    whole = found.window_probability(103.5, 172.5)
    monkeypatch.setattr("planner.steps.asynchronous._CHUNK", 7)
    np.testing.assert_array_equal(found.window_probability(103.5, 172.5), whole)
    assert whole.min() == 0
    assert whole.max() > 0.99


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 9), st.sampled_from([0.1, 0.2, 0.3, 0.7]))
def test_whole_q_is_a_point_mass(gpus: int, sub_batch: int, q: int, gpu_s: float) -> None:
    found = asynchrony(gpus, sub_batch, gpu_s, gpu_s * q)
    values, p = found.mini_batch_pmf(0)
    assert p[values == gpus * sub_batch * q] == 1
    assert found.mini_batch_std[0] == 0
    assert found.mini_batch_quantile(0, 0.05) == found.mini_batch_quantile(0, 0.95) == gpus * sub_batch * q
    assert found.empty_probability[0] == 0


@given(st.integers(1, 9), st.sampled_from([0.1, 0.2, 0.3, 0.7]))
def test_whole_r_is_a_point_mass(r: int, update_s: float) -> None:
    found = asynchrony(8, 4, update_s * r, update_s)
    assert found.staleness_pmf(0) == {r + 1: 1.0}
    assert found.staleness_std[0] == 0


def test_one_gpu() -> None:
    found = asynchrony(1, 8, 1.0, 0.25)
    values, p = found.mini_batch_pmf(0)
    np.testing.assert_array_equal(values, [0, 8])
    np.testing.assert_allclose(p, [0.75, 0.25])
    assert found.empty_probability[0] == pytest.approx(0.75)


@given(st.integers(1, 400), st.integers(1, 64), PERIODS, PERIODS, st.floats(0.01, 0.99))
def test_quantile_is_the_first_value_to_reach_its_level(
    gpus: int, sub_batch: int, gpu_s: float, update_s: float, level: float
) -> None:
    found = asynchrony(gpus, sub_batch, gpu_s, update_s)
    values, p = found.mini_batch_pmf(0)
    quantile = found.mini_batch_quantile(0, level)
    assert p[values <= quantile].sum() >= level - 1e-9
    assert p[values < quantile].sum() < level + 1e-9


@given(st.floats(1e-3, 1), st.floats(0, 1), st.integers(1, 16), st.floats(1e-3, 10))
def test_update_period_solves_its_equation(fixed_s: float, per_gradient_s: float, gpus: int, gpu_s: float) -> None:
    period = float(update_period_s(np.array(fixed_s), np.array(per_gradient_s), np.array(gpus), np.array(gpu_s)))
    assert period >= fixed_s
    assert period == pytest.approx(fixed_s + per_gradient_s * gpus * min(1, period / gpu_s), rel=1e-6)


def test_update_period_is_continuous_where_every_gpu_deposits_once() -> None:
    below, at, above = update_period_s(np.array(0.6), np.array(0.05), np.array(8), np.array([1 + 1e-9, 1.0, 1 - 1e-9]))
    assert below == pytest.approx(at, rel=1e-7)
    assert above == pytest.approx(at, rel=1e-7)


def test_update_period_stays_finite_where_summing_outlasts_the_gpu_thread() -> None:
    assert update_period_s(np.array(0.1), np.array(0.5), np.array(8), np.array(4.0)) == pytest.approx(4.1)


@pytest.mark.parametrize(
    ("gpu_s", "update_s", "name"), [(0.0, 1.0, "gpu_s"), (1.0, -1.0, "update_s"), (math.nan, 1.0, "gpu_s")]
)
def test_periods_are_checked(gpu_s: float, update_s: float, name: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name} must be"):
        asynchrony(1, 1, gpu_s, update_s)
