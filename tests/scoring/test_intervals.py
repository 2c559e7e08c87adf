"""Scores of held-out answers, and intervals that never rest on residuals of their own group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.calibration import Calibration
from planner.domain.provenance import NORMAL_90, PREDICTION_KINDS
from planner.domain.runs import ScoredRow
from planner.scoring.evaluate import Answer
from planner.scoring.refit import LEAST_OWN_GROUPS, conformal_score, rescaled, scores


def row(network: str = "a", measured: float | None = 1.0, **changes: Any) -> ScoredRow:
    """Return a row predicted to take 1 s, with the deviation 0.1 and its stated interval."""
    stated = math.exp(NORMAL_90 * 0.1)
    plain = ScoredRow(
        id="", line=1, metric="iteration_s", predicted=1.0, low=1 / stated, high=stated, measured=measured,
        status_predicted="ok", status_measured="ok", in_sample=False, refused=None, network=network, gpu="g",
        kind="several_nodes_measured", deviation=0.1,
    )  # fmt: skip
    return replace(plain, **changes)


def noisy(rng: np.random.Generator, networks: int, scale: float = 1.0) -> list[list[Answer]]:
    """Return answers by network, which miss by its own offset, and by a tenth of that row by row.

    Half of the networks have 40 rows and miss by little: row by row one would think that all do.
    """
    found = []
    for at in range(networks):
        easy = at % 2 == 0
        offset = rng.normal(0, 0.02 if easy else 0.2)
        size = 40 if easy else 5
        measured = np.exp(scale * (offset + rng.normal(0, 0.02, size)))
        kinds = rng.choice(["several_nodes_measured", "several_nodes_measured_outside"], size)
        found.append([Answer(row(f"n{at}", v, kind=k)) for v, k in zip(measured.tolist(), kinds.tolist(), strict=True)])
    return found


def residual(one: ScoredRow) -> float:
    return abs(math.log(one.measured or 0))


def names(answers: Sequence[Sequence[Answer]]) -> list[str]:
    return [some[0].row.network for some in answers]


def covered(some: Sequence[Answer]) -> list[bool]:
    return [(one.row.low or 0) <= (one.row.measured or 0) <= (one.row.high or 0) for one in some]


def test_runs_of_a_network_left_out_are_covered_at_the_level() -> None:
    """Of 200 networks the mean share is within three binomial deviations of 90 %, or above by what 24 groups cost.

    Row-wise scores of the same data cover far less.
    """
    rng = np.random.default_rng(3)
    shares, by_row = [], []
    for answers in (noisy(rng, 25) for _ in range(8)):
        shares += [float(np.mean(covered(some))) for some in rescaled(answers, names(answers))]
        z = [np.array([residual(one.row) for one in some]) for some in answers]
        flat = np.concatenate(z)
        single = conformal_score(flat, [str(i) for i in range(flat.size)]).half_width
        assert single is not None
        by_row += [float(np.mean(one <= single)) for one in z]
    spread = 3 * math.sqrt(0.9 * 0.1 / len(shares))
    assert 0.9 - spread <= np.mean(shares) <= 0.95 + spread
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


def test_larger_residuals_widen() -> None:
    for seed in range(20):
        small, large = (
            scores([one for some in noisy(np.random.default_rng(seed), 15, scale) for one in some])
            for scale in (1.0, 3.0)
        )
        for kind, one in small.items():
            assert one.half_width is not None
            assert large[kind].half_width == pytest.approx(3 * one.half_width)


def drawn(rng: np.random.Generator) -> list[Answer]:
    """Return rows of kinds with between none and 60 groups, each of a width of its own."""
    kinds = [kind for kind in PREDICTION_KINDS if rng.random() < 0.7]
    return [
        Answer(row(f"n{i}", math.exp(rng.normal(0, width)), kind=kind))
        for kind in kinds
        for width in [rng.uniform(0.05, 0.5)]
        for i in range(int(rng.integers(1, 60)))
    ]


def test_no_kind_is_below_a_surer_one_whatever_the_rows_say() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        found = scores(drawn(rng))
        assert set(found) == set(PREDICTION_KINDS)
        for name, kind in PREDICTION_KINDS.items():
            for other, one in PREDICTION_KINDS.items():
                if one.is_as_sure_as(kind):
                    assert (found[other].half_width or 0) <= (found[name].half_width or 0)
        assert Calibration("c", "any", (), conformal=found).conformal == found


def alike(kind: str, error: float, groups: int) -> list[Answer]:
    return [Answer(row(f"{kind} n{i}", math.exp(error), kind=kind)) for i in range(groups)]


def test_kinds_with_rows_in_order_keep_their_own_and_others_share_those_of_neighbours() -> None:
    first, second, last = "one_gpu_measured", "one_gpu_scaled", "several_nodes_specified_outside"
    in_order = scores([*alike(first, 0.1, 30), *alike(second, 0.2, 30), *alike(last, 0.4, 30)])
    assert [in_order[kind].half_width for kind in (first, second, last)] == pytest.approx([0.1, 0.2, 0.4])
    assert in_order["one_gpu_specified"].half_width == pytest.approx(0.4)  # no rows: between both, so the wider
    against = scores([*alike(first, 0.2, 30), *alike(second, 0.1, 30)])
    assert [against[kind].half_width for kind in (first, second)] == pytest.approx([0.2, 0.2])
    assert against[second].groups == 60
    few = scores([*alike(first, 0.1, 30), *alike(second, 0.3, LEAST_OWN_GROUPS - 1)])
    assert few[second].half_width == pytest.approx(0.3)
    assert few[second].groups == 30 + LEAST_OWN_GROUPS - 1


def test_where_all_rows_are_few_groups_they_are_one_and_fewer_still_are_refused() -> None:
    twelve = scores([*alike("one_gpu_measured", 0.1, 6), *alike("one_node_scaled", 0.3, 6)])
    assert [one.half_width for one in twelve.values()] == pytest.approx([0.3] * len(PREDICTION_KINDS))
    nine = scores(alike("one_node_scaled", 0.3, 9))
    assert {one.half_width for one in nine.values()} == {None}
    assert all("at least 10" in one.reason for one in nine.values())
    assert scores([]) == {}


def test_a_network_on_another_gpu_is_another_group_and_its_arguments_are_not() -> None:
    apart = [row("resnet50", 1.1, gpu=f"g{i}") for i in range(10)]
    alike = [row(f"resnet50:input={32 * i}", 1.1) for i in range(1, 11)]
    assert scores([Answer(one) for one in apart])["several_nodes_measured"].groups == 10
    assert scores([Answer(one) for one in alike])["several_nodes_measured"].groups == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"in_sample": True},
        {"kind": ""},
        {"measured": None, "status_measured": "out_of_memory"},
        {"predicted": None, "low": None, "high": None},
    ],
)
def test_rows_that_tell_nothing_do_not_count(changes: dict[str, Any]) -> None:
    some = [Answer(row(f"n{i}", 1.1)) for i in range(10)]
    odd = Answer(replace(row("odd", 5.0), **changes))
    assert scores([*some, odd]) == scores(some)
    (*_, found) = rescaled([[one] for one in (*some, odd)], [one.row.network for one in (*some, odd)])
    has_none = {"kind", "predicted"} & set(changes)
    assert found[0].row.high == (odd.row.high if has_none else pytest.approx(1.1))


def test_with_too_few_other_groups_there_is_no_interval() -> None:
    answers = [[Answer(row(f"n{i}", 3.0))] for i in range(10)]
    assert all((one.row.low, one.row.high) == (None, None) for (one,) in rescaled(answers, names(answers)))


def test_a_score_that_a_calibration_brought_does_not_count() -> None:
    answers = [[Answer(row(f"n{i}", 1.2))] for i in range(12)]
    wide = [[replace(one, row=replace(one.row, low=0.01, high=100.0)) for one in some] for some in answers]
    assert rescaled(wide, names(wide)) == rescaled(answers, names(answers))
    assert scores([one for some in wide for one in some]) == scores([one for some in answers for one in some])
