from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.runs import ErrorSummary, MemoryScore, RankingSummary, ScoredRow
from planner.errors import Refusal
from planner.scoring.evaluate import score

ROW = ScoredRow(
    id="r",
    line=2,
    metric="iteration_s",
    predicted=1.1,
    low=0.9,
    high=1.3,
    measured=1.0,
    status_predicted="ok",
    status_measured="ok",
    in_sample=False,
    refused=None,
    network="alexnet",
    cluster="one",
    source="s",
    group="g",
)
REFUSED = replace(
    ROW,
    predicted=None,
    low=None,
    high=None,
    status_predicted=None,
    refused=Refusal("unknown_name", "network must be a known name"),
)


def test_only_held_out_predicted_rows_that_ran_have_errors() -> None:
    out = replace(ROW, status_measured="out_of_memory", measured=None, predicted=0.1)
    wanted = replace(ROW, status_measured=None, measured=None)
    seen = replace(ROW, in_sample=True, predicted=1.5)
    slow = replace(ROW, predicted=0.7, low=None, high=None, network="vgg16")
    found = score([ROW, REFUSED, out, wanted, seen, slow])
    assert found.summary.n == 2
    assert found.summary.mape == pytest.approx(0.2)
    assert found.summary.bias == pytest.approx(-0.1)
    assert found.summary.coverage_90 == 1.0
    assert found.by["network"]["vgg16"].coverage_90 is None
    assert {axis: list(by) for axis, by in found.by.items()} == {
        "network": ["alexnet", "vgg16"],
        "cluster": ["one"],
        "source": ["s"],
    }
    assert found.in_sample.n == 1
    assert found.in_sample.mape == pytest.approx(0.5)
    assert found.memory == MemoryScore(true_ok=3, false_ok=1)
    assert [row.error for row in found.rows] == pytest.approx([0.1, None, None, None, 0.5, -0.3])


def test_value_beside_out_of_memory_is_no_value() -> None:
    out = replace(ROW, status_measured="out_of_memory", status_predicted="out_of_memory")
    found = score([out])
    assert (found.summary.n, found.memory) == (0, MemoryScore(true_out_of_memory=1))
    assert out.error is None


def test_no_rows_and_only_refused_rows_have_no_figures() -> None:
    for rows in ([], [REFUSED]):
        found = score(rows, ("forward",), np.zeros((len(rows), 1)))
        assert found.summary == found.in_sample == ErrorSummary(0)
        assert found.ranking == RankingSummary(0)
        assert (found.groups, found.terms, found.memory) == ((), (), MemoryScore())
        assert found.by == {"network": {}, "cluster": {}, "source": {}}


def test_more_samples_per_second_are_better() -> None:
    rows = [replace(ROW, metric="samples_per_s", predicted=p, measured=v) for p, v in ((100.0, 80.0), (50.0, 60.0))]
    found = score(rows)
    assert (found.groups[0].spearman, found.groups[0].regret) == (1.0, 0.0)
    assert score([rows[0], replace(rows[1], predicted=200.0)]).groups[0].regret == pytest.approx(80 / 60 - 1)


def test_rows_of_different_metrics_are_not_ranked_against_each_other() -> None:
    times = [replace(ROW, predicted=p, measured=v) for p, v in ((1.0, 2.0), (2.0, 3.0))]
    rates = [replace(row, metric="samples_per_s") for row in times]
    found = score([*times, *rates, replace(ROW, metric="epoch_s")])
    assert [group.group for group in found.groups] == ["g (iteration_s)", "g (samples_per_s)"]


def test_terms_are_found_for_times_and_rates_alike() -> None:
    rng = np.random.default_rng(4)
    shares = rng.dirichlet([1.0, 1.0], 50)
    taken = 1 + 0.5 * shares[:, 1]  # the second term really takes half as much again
    rates = [
        replace(ROW, metric="samples_per_s", predicted=100.0, measured=100.0 / t, in_sample=False)
        for t in taken.tolist()
    ]
    best = score(rates, ("forward", "all_reduce"), shares).terms[0]
    assert best.term == "all_reduce"
    assert best.scale == pytest.approx(1.5, abs=0.05)


@pytest.mark.parametrize("metric", ["mini_batch_mean", "staleness_mean"])
def test_figures_that_are_no_times_explain_nothing(metric: str) -> None:
    shares = np.random.default_rng(4).dirichlet([1.0, 1.0], 50)
    times = [replace(ROW, predicted=1.0, measured=t, in_sample=False) for t in (1 + 0.5 * shares[:, 1]).tolist()]
    others = [replace(ROW, metric=metric, predicted=100.0, measured=2.0)] * 50
    alone = score(times, ("forward", "all_reduce"), shares)
    both = score([*times, *others], ("forward", "all_reduce"), np.concatenate([shares, shares]))
    assert both.terms == alone.terms
    assert both.terms[0].n == 50
    assert both.summary.n == 100
    assert score(others, ("forward", "all_reduce"), shares).terms == ()


def test_ten_thousand_rows_are_scored() -> None:
    rng = np.random.default_rng(6)
    rows = [
        replace(ROW, predicted=p, network=f"n{i % 50}", source=f"s{i}", group=f"g{i // 4}")
        for i, p in enumerate(rng.uniform(0.5, 2.0, 10_000).tolist())
    ]
    shares = rng.dirichlet(np.ones(12), 10_000)
    found = score(rows, [f"t{i}" for i in range(12)], shares)
    assert (found.summary.n, found.ranking.groups, len(found.by["source"])) == (10_000, 2500, 10_000)
