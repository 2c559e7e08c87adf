"""Deviations of axes are those that made-up groups were drawn with, and no claim goes beyond what groups support."""

from __future__ import annotations

import numpy as np
import pytest

from validation.ties import Claim, Pair, claims, deviations, largest_claim, page, share_right

AXES = {"nodes": 0.08, "sub_batch": 0.05}


def drawn(groups: int, pairs: int = 40) -> list[Pair]:
    """Return pairs whose errors have the deviations of AXES, a doubling each."""
    rng = np.random.default_rng(3)
    found = []
    for group in range(groups):
        for _ in range(pairs):
            doublings = {name: float(rng.integers(1, 3)) for name in AXES if rng.random() < 0.7} or {"nodes": 1.0}
            variance = sum(AXES[name] ** 2 * count for name, count in doublings.items()) + 2 * 0.015**2 + 0.02**2
            predicted = rng.normal(0, 0.3)
            measured = predicted + rng.normal(0, np.sqrt(variance))
            found.append(Pair(f"s{group % 4}: g{group}", f"s{group % 4}", doublings, measured, predicted, 0.02))
    return found


def test_deviations_are_those_of_the_draw() -> None:
    """Squares held below their 95th percentile take a tenth away."""
    found = deviations(drawn(40), list(AXES))
    assert found == pytest.approx(AXES, rel=0.2)


def test_an_axis_that_adds_nothing_has_none() -> None:
    pairs = [Pair("g", "s", {"nodes": 1.0}, 0.1 * at, 0.1 * at, 0.05) for at in range(1, 9)]
    assert deviations(pairs, ["nodes"]) == {"nodes": 0.0}


def test_groups_have_one_vote_each() -> None:
    some = [*(Claim(0.9, is_right=True, group="many") for _ in range(9)), Claim(0.9, is_right=False, group="one")]
    assert share_right(some) == 0.5


@pytest.mark.parametrize(("groups", "largest"), [(2, 0.5), (20, 0.8), (40, 0.9), (100, 0.97), (400, 0.99)])
def test_claims_need_groups(groups: int, largest: float) -> None:
    """Without one that is wrong, n groups support 1 - 3 / n."""
    assert largest_claim([Claim(0.999, is_right=True, group=str(at)) for at in range(groups)]) == largest
    wrong = [Claim(0.999, is_right=at % 4 > 0, group=str(at)) for at in range(groups)]
    assert largest_claim(wrong) <= 0.8


def test_pairs_within_a_repeat_claim_nothing_and_the_page_has_its_tables() -> None:
    pairs = drawn(12)
    near = Pair("g", "s", {"nodes": 1.0}, 0.01, 0.3, 0.02)
    assert [*claims([near])] == []
    sure = [one.probability for one in claims(pairs, axes=False)]
    assert np.mean([one.probability for one in claims(pairs)]) < np.mean(sure)
    text = page(pairs)
    assert "| nodes | " in text
    assert "| 90 to 95 % | " in text
