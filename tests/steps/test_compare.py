"""The doubt which of two plans is faster against periods computed anew with coefficients drawn from their errors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.costs.terms import evaluate
from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.provenance import NORMAL_90, PREDICTION_KINDS, ConformalScore
from planner.domain.request import Problem
from planner.steps.describe import deviation_of_axes, doublings_of
from planner.steps.intervals import RECONSTRUCTED_DEVIATION, STATED_DEVIATION, Gradient
from planner.steps.predict import Evaluator, compare_among

Make = Callable[..., Problem]
Calls = list[tuple[str, Mapping[str, float], float]]
"""Entry by name, work of a call and its weight."""
DRAWS = 2500
WITHIN = 0.05


def entry(kind: str, samples: float, byte: float, **fields: Any) -> Entry:
    """Return an entry of two coefficients: seconds a sample and a byte."""
    given = {"scope": "kernels", "estimator": "relative-nnls"} | fields
    return Entry(
        given.pop("scope"), kind, "", "any", "", "storage.reads", {}, {"samples": samples, "bytes": byte}, **given
    )


def correlated(samples: float, byte: float, correlation: float) -> tuple[tuple[float, float], ...]:
    """Return the covariance of two coefficients of these standard deviations."""
    both = correlation * samples * byte
    return ((samples**2, both), (both, byte**2))


ENTRIES = {
    "gemm": entry("gemm", 3e-4, 2e-10, covariance=correlated(3e-5, 2e-11, 0.0)),
    "pointwise": entry("pointwise", 2e-4, 1e-10, covariance=correlated(3e-5, 2e-11, -0.8)),
    "missed": entry("convolution", 1e-4, 2e-10, covariance=correlated(5e-6, 1e-11, 0.3), held_out_error=0.08),
    "table": entry("norm", 1e-4, 1e-10, origin="reconstructed"),
    "assumed": entry("load", 1e-5, 1e-10, scope="storage"),
}
SCATTER = {"missed": 1.25 * 0.08}
STATED = {"table": RECONSTRUCTED_DEVIATION, "assumed": STATED_DEVIATION["storage"]}
"""Standard deviations of factors: of what a fit missed, and of what was never compared with measurements."""


def calls(*samples_and_bytes: tuple[float, float]) -> Calls:
    """Return one call an entry."""
    works = [{"images": samples, "bytes": byte} for samples, byte in samples_and_bytes]
    return [(name, work, 2.0) for name, work in zip(ENTRIES, works, strict=True)]


FIRST = calls((40, 1e8), (90, 1e8), (60, 2e8), (50, 1e8), (9, 1e8))
OTHER = calls((90, 2e8), (30, 4e8), (90, 1e8), (20, 3e7), (9, 3e8))


def period(of: Calls, entries: Mapping[str, Entry], factors: Mapping[str, float]) -> float:
    return sum(w * factors.get(name, 1.0) * float(evaluate(entries[name], work)) for name, work, w in of)


def gradient(of: Calls, entries: Mapping[str, Entry] = ENTRIES) -> Gradient:
    found = Gradient()
    for name, work, weight in of:
        found.add(entries[name], work, weight)
    return found


def formula(these: Calls, others: Calls) -> float:
    first, second = period(these, ENTRIES, {}), period(others, ENTRIES, {})
    found = gradient(these).relative_difference(first, gradient(others), second)
    assert found is not None
    return found


def drawn(rng: np.random.Generator, *, lognormal: bool) -> tuple[dict[str, Entry], dict[str, float]]:
    """Return entries with coefficients from their covariances, and a factor of each that misses or is stated."""
    entries = {}
    for name, one in ENTRIES.items():
        coefficients = np.array(list(one.coefficients.values()))
        if one.covariance is not None:
            coefficients = rng.multivariate_normal(coefficients, np.array(one.covariance), method="cholesky")
        entries[name] = replace(one, coefficients=dict(zip(one.coefficients, coefficients.tolist(), strict=True)))
    errors = {name: deviation * rng.standard_normal() for name, deviation in (SCATTER | STATED).items()}
    return entries, {name: math.exp(error) if lognormal else 1.0 + error for name, error in errors.items()}


@pytest.mark.parametrize(
    ("left_out", "lognormal"),
    [((), True), ((), False), (("assumed", "table"), True), (("gemm", "pointwise"), False), (("missed",), True)],
)
def test_the_formula_is_what_drawn_coefficients_do(left_out: tuple[str, ...], *, lognormal: bool) -> None:
    these, others = ([call for call in of if call[0] not in left_out] for of in (FIRST, OTHER))
    rng = np.random.default_rng(20261122)
    ratios = []
    for _ in range(DRAWS):
        entries, factors = drawn(rng, lognormal=lognormal)
        ratios.append(math.log(period(these, entries, factors) / period(others, entries, factors)))
    assert float(np.std(ratios)) == pytest.approx(formula(these, others), rel=WITHIN)


def test_parts_of_an_entry_miss_for_reasons_of_their_own() -> None:
    """Of an entry given in two parts each has a factor of its own, the same in both periods."""
    one = ENTRIES["missed"]
    parts = np.array([[0.03, 0.01], [0.01, 0.05]])
    found = [Gradient(), Gradient()]
    for at, seconds in enumerate(parts):
        found[at].add_vector(one, np.zeros(2), seconds)
    totals = parts.sum(axis=1)
    said = found[0].relative_difference(float(totals[0]), found[1], float(totals[1]))
    factors = np.exp(SCATTER["missed"] * np.random.default_rng(7).standard_normal((200_000, 2)))
    first, second = (factors @ seconds for seconds in parts)
    assert said == pytest.approx(float(np.std(np.log(first / second))), rel=WITHIN)


def test_equal_plans_are_equally_fast_for_sure() -> None:
    assert formula(FIRST, FIRST) == 0.0


def test_what_both_share_cancels() -> None:
    """Twice the work by the same entries: whatever they miss by, the ratio stays; by other entries it does not."""
    twice = [(name, work, 2.0 * weight) for name, work, weight in FIRST]
    assert formula(FIRST, twice) == pytest.approx(0.0, abs=1e-12)
    own = {name: replace(one, source="another fit") for name, one in ENTRIES.items()}
    seconds = period(FIRST, ENTRIES, {})
    apart = gradient(FIRST).relative_difference(seconds, gradient(FIRST, own), seconds)
    assert apart is not None
    assert apart > 0.01


def test_it_is_the_same_from_either_side() -> None:
    assert formula(FIRST, OTHER) == pytest.approx(formula(OTHER, FIRST))


def test_without_any_part_nothing_is_known() -> None:
    assert Gradient().relative_difference(1.0, Gradient(), 1.0) is None


def plans(*of: dict[str, Any]) -> Configurations:
    base = {"nodes": 1, "gpus_per_node": 1, "sub_batch": 8}
    return Configurations.of([Configuration(**(base | one)) for one in of])


def log_ratio(problem: Problem, both: Configurations) -> float:
    seconds = Evaluator(problem).evaluate(both).iteration_s
    return math.log(float(seconds[0]) / float(seconds[1]))


def linear_response(problem: Problem, both: Configurations) -> float:
    """Return the standard deviation of the logarithm of the ratio by central differences of every coefficient."""
    (kernels,), total = problem.calibrations, 0.0
    for at, one in enumerate(kernels.entries):
        if one.covariance is None:
            continue
        slope = []
        for name, value in one.coefficients.items():
            ends = []
            for factor in (1.0001, 0.9999):
                changed = replace(one, coefficients=dict(one.coefficients) | {name: factor * value})
                entries = (*kernels.entries[:at], changed, *kernels.entries[at + 1 :])
                ends.append(log_ratio(replace(problem, calibrations=(replace(kernels, entries=entries),)), both))
            slope.append((ends[0] - ends[1]) / (2e-4 * value))
        total += float(np.array(slope) @ np.array(one.covariance) @ np.array(slope))
    return math.sqrt(total)


@pytest.mark.parametrize("other", [{"sub_batch": 32}, {"sub_batch": 1, "accumulation_steps": 3}])
def test_plans_of_a_network_differ_by_the_linear_response(make_problem: Make, other: dict[str, Any]) -> None:
    problem = make_problem(settings=Settings(input="synthetic"))
    both = plans({}, other)
    found, deviation = compare_among([Evaluator(problem)], None, [0] * both.size, both)
    against = deviation(0, 1)
    assert deviation(0, 0) == 0.0
    assert deviation(1, 0) == pytest.approx(against)
    assert found[0].iteration_s.interval_basis == "covariance"
    of_axes = deviation_of_axes(doublings_of(both.one(0), both.one(1)))
    assert against == pytest.approx(math.hypot(linear_response(problem, both), of_axes), rel=1e-3)
    assert 0.0 < linear_response(problem, both) < found[0].iteration_s.deviation  # type: ignore[operator]  # is known


def test_measured_runs_widen_a_ratio_as_they_widen_the_intervals(make_problem: Make) -> None:
    """By the larger share of the two: half-width needed, 0.2 on one GPU and 0.5 on several, over the stated one."""
    problem = make_problem(settings=Settings(input="synthetic"))
    scores = {kind: ConformalScore(0.5 if "one_gpu" not in kind else 0.2, 0.9, 20, 100) for kind in PREDICTION_KINDS}
    scored = replace(problem, calibrations=(*problem.calibrations, Calibration("shared", "any", (), conformal=scores)))
    for other, width in (({"sub_batch": 32}, 0.2), ({"gpus_per_node": 2}, 0.5)):
        both = plans({}, other)
        each = (compare_among([Evaluator(one)], None, [0] * both.size, both) for one in (problem, scored))
        (found, plain_of), (_, wide_of) = each
        of_axes = deviation_of_axes(doublings_of(both.one(0), both.one(1)))
        plain, wide = (math.sqrt((of(0, 1) or 0.0) ** 2 - of_axes**2) for of in (plain_of, wide_of))
        stated = [one.iteration_s.deviation for one in found]
        assert plain
        assert wide == pytest.approx(plain * max(0.2 / (stated[0] or 0), width / (stated[1] or 0)) / NORMAL_90)
