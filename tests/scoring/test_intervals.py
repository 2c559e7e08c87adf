"""Scores of held-out answers, and intervals that never rest on residuals of their own group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.calibration import OUTSIDE, PREDICTION_KINDS, Calibration
from planner.domain.validation import ScoredRow
from planner.scoring.conformal import conformal_score
from planner.scoring.evaluate import Answer
from planner.scoring.intervals import rescaled, scores
from planner.steps.intervals import NORMAL_90

KINDS = ("one_gpu_measured", "several_nodes")


def row(network: str = "a", measured: float | None = 1.0, **changes: Any) -> ScoredRow:
    """Return a row predicted to take 1 s, with the deviation 0.1 and its stated interval."""
    stated = math.exp(NORMAL_90 * 0.1)
    plain = ScoredRow(
        id="", line=1, metric="iteration_s", predicted=1.0, low=1 / stated, high=stated, measured=measured,
        status_predicted="ok", status_measured="ok", in_sample=False, refused=None, network=network, gpu="g",
        kind="several_nodes", deviation=0.1,
    )  # fmt: skip
    return replace(plain, **changes)


def noisy(rng: np.random.Generator, networks: int, scale: float = 1.0) -> list[list[Answer]]:
    """Return answers by network, which miss by its own offset, and by a tenth of that row by row.

    Half of the networks have 40 rows and miss by little: row by row one would think that all do. Deviations of rows
    differ by a factor of 3, and misses go with them.
    """
    found = []
    for at in range(networks):
        easy = at % 2 == 0
        offset = rng.normal(0, 0.2 if easy else 2.0)
        size = 40 if easy else 5
        z = offset + rng.normal(0, 0.2, size)
        deviation = rng.uniform(0.05, 0.15, size)
        measured = np.exp(scale * z * deviation)
        kinds = rng.choice(["several_nodes", OUTSIDE["several_nodes"]], size)
        columns = zip(measured.tolist(), deviation.tolist(), kinds.tolist(), strict=True)
        found.append([Answer(row(f"n{at}", v, deviation=s, kind=kind)) for v, s, kind in columns])
    return found


def residual(one: ScoredRow) -> float:
    return abs(math.log(one.measured or 0)) / (one.deviation or 0)


def names(answers: Sequence[Sequence[Answer]]) -> list[str]:
    return [some[0].row.network for some in answers]


def covered(some: Sequence[Answer], *, outside: bool) -> list[bool]:
    rows = [one.row for one in some if (one.row.kind in OUTSIDE.values()) == outside]
    return [(r.low or 0) <= (r.measured or 0) <= (r.high or 0) for r in rows]


@pytest.fixture(scope="module")
def drawn() -> list[list[list[Answer]]]:
    """40 tables of 20 networks."""
    rng = np.random.default_rng(3)
    return [noisy(rng, 20) for _ in range(40)]


def test_runs_of_a_network_left_out_are_covered_at_the_level(drawn: list[list[list[Answer]]]) -> None:
    """Of 800 networks the mean share is within three binomial deviations of 90 %, or above by what 19 groups cost.

    Row-wise scores of the same data cover far less.
    """
    shares, whole, by_row = [], [], []
    for answers in drawn:
        for some in rescaled(answers, names(answers)):
            shares.append(np.mean(covered(some, outside=False) or [True]))
            whole.append(all(covered(some, outside=True)))
        z = [np.array([residual(one.row) for one in some]) for some in answers]
        flat = np.concatenate(z)
        single = conformal_score(flat, [str(i) for i in range(flat.size)]).score
        assert single is not None
        by_row += [float(np.mean(one <= single)) for one in z]
    spread = 3 * math.sqrt(0.9 * 0.1 / len(shares))
    assert 0.9 - spread <= np.mean(shares) <= 0.95 + spread
    assert 0.9 - spread <= np.mean(whole)
    assert np.mean(by_row) < 0.8


def test_intervals_never_rest_on_their_own_group() -> None:
    """Measured times of one network times 100: its intervals stay to the last bit, those of the others widen."""
    answers = noisy(np.random.default_rng(1), 12)
    own = [replace(one, row=replace(one.row, measured=100 * (one.row.measured or 0))) for one in answers[3]]
    before, after = (rescaled(some, names(answers)) for some in (answers, [*answers[:3], own, *answers[4:]]))
    ends = [[[(one.row.low, one.row.high) for one in some] for some in found] for found in (before, after)]
    assert ends[0][3] == ends[1][3]
    for at in (0, 11):
        assert all((new[1] or 0) > (old[1] or 0) for old, new in zip(ends[0][at], ends[1][at], strict=True))


def test_larger_residuals_widen_and_outside_is_never_narrower() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        seed = int(rng.integers(1 << 30))
        small, large = (
            scores([one for some in noisy(np.random.default_rng(seed), 15, scale) for one in some])
            for scale in (1.0, 3.0)
        )
        for kind, one in small.items():
            assert one.score is not None
            assert large[kind].score == pytest.approx(3 * one.score)
        inside, outside = (small[kind].score for kind in ("several_nodes", OUTSIDE["several_nodes"]))
        assert (outside or 0) >= (inside or 0) > 0
        assert Calibration("c", "any", (), conformal=small).conformal == small


def test_each_kind_has_its_own_rows_and_says_where_they_are_too_few() -> None:
    rows = [row(f"n{i}", math.exp(0.1 * (1 + k)), kind=kind) for k, kind in enumerate(KINDS) for i in range(10 - k)]
    found = scores([Answer(one) for one in rows])
    assert set(found) == {*KINDS, *(OUTSIDE[kind] for kind in KINDS)} <= set(PREDICTION_KINDS)
    assert found["one_gpu_measured"].score == pytest.approx(1.0)
    assert (found["several_nodes"].score, found["several_nodes"].groups) == (None, 9)
    assert "at least 10" in found["several_nodes"].reason
    assert {found[kind].unit for kind in KINDS} == {"group"}
    assert {found[OUTSIDE[kind]].unit for kind in KINDS} == {"maximum"}


def test_a_network_on_another_gpu_is_another_group_and_its_arguments_are_not() -> None:
    apart = [row("resnet50", 1.1, gpu=f"g{i}") for i in range(10)]
    alike = [row(f"resnet50:input={32 * i}", 1.1) for i in range(1, 11)]
    assert scores([Answer(one) for one in apart])["several_nodes"].groups == 10
    assert scores([Answer(one) for one in alike])["several_nodes"].groups == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"in_sample": True},
        {"kind": ""},
        {"deviation": None},
        {"measured": None, "status_measured": "out_of_memory"},
        {"predicted": None, "low": None, "high": None},
    ],
)
def test_rows_that_tell_nothing_do_not_count(changes: dict[str, Any]) -> None:
    some = [Answer(row(f"n{i}", 1.1)) for i in range(10)]
    odd = Answer(replace(row("odd", 5.0), **changes))
    assert scores([*some, odd]) == scores(some)
    (*_, found) = rescaled([[one] for one in (*some, odd)], [one.row.network for one in (*some, odd)])
    has_none = {"kind", "deviation", "predicted"} & set(changes)
    assert found[0].row.high == (odd.row.high if has_none else pytest.approx(1.1))


def test_with_too_few_other_groups_the_stated_interval_stays() -> None:
    answers = [[Answer(row(f"n{i}", 3.0))] for i in range(10)]
    for (before,), (after,) in zip(answers, rescaled(answers, names(answers)), strict=True):
        assert after.row.high == pytest.approx(before.row.high)
        assert after.row.low == pytest.approx(before.row.low)


def test_a_score_that_a_calibration_brought_does_not_count() -> None:
    """Ends are made of the deviation, not of what they were."""
    answers = [[Answer(row(f"n{i}", 1.2))] for i in range(12)]
    wide = [[replace(one, row=replace(one.row, low=0.01, high=100.0)) for one in some] for some in answers]
    assert rescaled(wide, names(wide)) == rescaled(answers, names(answers))
    assert scores([one for some in wide for one in some]) == scores([one for some in answers for one in some])
