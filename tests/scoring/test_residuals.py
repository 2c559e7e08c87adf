from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from planner.domain.arrays import FloatArray
from planner.scoring.errors import PRIOR_DEVIATION, SCALE_RANGE, explaining_terms, growths

TERMS = ("forward", "backward", "all_reduce")


def made(scale: float, n: int = 200, noise: float = 0.0) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return exposed times (n, 3), predicted and measured ones, where measured all-reduce takes ``scale`` times."""
    rng = np.random.default_rng(2)
    exposed = rng.uniform(0.1, 1.0, (n, 3))
    measured = exposed @ np.array([1.0, 1.0, scale]) * rng.normal(1, noise, n)
    return exposed, exposed.sum(axis=1), measured


def test_the_term_that_was_wrong_is_named() -> None:
    best, *_ = explaining_terms(TERMS, *made(1.4))
    assert best.term == "all_reduce"
    assert best.scale == pytest.approx(1.4, abs=0.02)
    assert best.n == 200
    assert best.scaled_mape < 0.1 * best.mape


def test_sentence_gives_both_errors() -> None:
    best, *_ = explaining_terms(TERMS, *made(1.4))
    assert best.sentence().startswith("all_reduce x 1.4 would take the mean error from 1")
    assert best.sentence().endswith("%")


def test_nothing_is_said_where_nothing_helps() -> None:
    assert explaining_terms(TERMS, *made(1.0)) == ()
    assert explaining_terms(TERMS, *made(1.0, noise=0.1)) == ()
    assert explaining_terms((), np.zeros((3, 0)), np.ones(3), np.full(3, 2.0)) == ()
    assert explaining_terms(TERMS, np.zeros((2, 3)), np.ones(2), np.full(2, 2.0)) == ()
    assert explaining_terms(TERMS, np.ones((1, 3)), np.full(1, np.nan), np.ones(1)) == ()


def test_one_row_does_not_explain_itself() -> None:
    assert explaining_terms(TERMS, np.array([[0.2, 0.2, 0.6]]), np.ones(1), np.array([1.4])) == ()


def test_scales_stay_within_their_bounds() -> None:
    found = explaining_terms(TERMS, *made(8.0, 2000))
    assert found
    assert all(SCALE_RANGE[0] <= one.scale <= SCALE_RANGE[1] for one in found)
    assert found[0].scale == SCALE_RANGE[1]


SHARES = arrays(np.float64, (8, 2), elements=st.floats(0, 1))
ERRORS = arrays(np.float64, 8, elements=st.floats(-0.9, 2).filter(lambda e: abs(e) > 1e-3))


@given(SHARES, ERRORS)
def test_scale_is_the_best_of_a_fine_search(shares: FloatArray, errors: FloatArray) -> None:
    """No scale on a grid has a smaller objective, and the error is that of leaving rows out one by one."""
    measured = 1 / (1 + errors)
    prior = np.mean(errors**2) / PRIOR_DEVIATION**2
    grid = np.linspace(SCALE_RANGE[0], SCALE_RANGE[1], 4001)

    def best(x: FloatArray, e: FloatArray) -> float:
        objective = ((e + (grid[:, None] - 1) * x) ** 2).sum(axis=1) + prior * (grid - 1) ** 2
        return float(grid[np.argmin(objective)])

    for one in explaining_terms(("a", "b"), shares, np.ones(8), measured):
        x = shares[:, "ab".index(one.term)] / measured
        assert one.scale == pytest.approx(best(x, errors), abs=1e-3)
        left = [abs(errors[i] + (best(np.delete(x, i), np.delete(errors, i)) - 1) * x[i]) for i in range(errors.size)]
        assert one.scaled_mape == pytest.approx(np.mean(left), abs=1e-3 * (1 + x.max()))
        assert one.scaled_mape < one.mape == pytest.approx(np.abs(errors).mean())


def test_units_and_order_of_rows_do_not_matter() -> None:
    exposed, predicted, measured = made(1.4, 30, 0.05)
    one = explaining_terms(TERMS, exposed, predicted, measured)
    order = np.random.default_rng(3).permutation(30)
    unit = np.logspace(-3, 3, 30)
    other = explaining_terms(
        TERMS, (exposed * unit[:, None])[order], (predicted * unit)[order], (measured * unit)[order]
    )
    assert [found.term for found in one] == [found.term for found in other]
    assert [found.scale for found in one] == pytest.approx([found.scale for found in other])


def test_masked_rows_do_not_count() -> None:
    exposed, predicted, measured = made(1.4, 40)
    mask = np.arange(40) < 20
    measured[20:] = 99.0
    expected = explaining_terms(TERMS, exposed[:20], predicted[:20], measured[:20])
    assert explaining_terms(TERMS, exposed, predicted, measured, mask) == expected


@pytest.mark.parametrize("slope", [0.08, -0.15])
def test_errors_that_grow_with_nodes_name_what_grows_with_them(slope: float) -> None:
    """Of five groups; sub-batches fall as nodes grow in some and not in others, and tell nothing."""
    rng, nodes = np.random.default_rng(0), np.tile(2 ** np.arange(5), 5)
    groups = np.repeat([f"group {at}" for at in range(5)], 5)
    measured = rng.uniform(0.5, 2.0, nodes.size)
    level = np.repeat(rng.normal(0, 0.3, 5), 5)
    predicted = measured * np.exp(level + slope * np.log2(nodes) + rng.normal(0, 0.01, nodes.size))
    axes = {"nodes": nodes, "the sub-batch": rng.integers(1, 64, nodes.size), "GPUs": np.zeros_like(nodes)}
    shares = {
        "forward": 0.5 - 0.05 * np.log2(nodes),
        "replica_wait": 0.02 * np.log2(nodes),
        "all_reduce": np.full(25, 0.1),
    }
    (found,) = growths(axes, groups.tolist(), shares, (predicted, measured), np.ones(25, dtype=np.bool_))
    assert (found.axis, found.term, found.n, found.groups) == ("nodes", "replica_wait", 25, 5)
    assert found.slope == pytest.approx(slope, abs=0.01)
    assert f"{100 * abs(np.expm1(found.slope)):.1f}% {'longer' if slope > 0 else 'shorter'}" in found.sentence()


def test_errors_of_two_groups_say_nothing_of_an_axis() -> None:
    nodes, groups = np.tile([1, 2, 4], 2), ["a"] * 3 + ["b"] * 3
    predicted = np.exp(0.3 * np.log2(nodes))
    assert not growths({"nodes": nodes}, groups, {}, (predicted, np.ones(6)), np.ones(6, dtype=np.bool_))
