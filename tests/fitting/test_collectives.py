import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from planner.costs.collectives import all_reduce_s
from planner.domain.arrays import FloatArray
from planner.domain.messages import Groups
from planner.domain.samples import Samples
from planner.fitting.calibration import best_breaks, fit_collectives
from planner.fitting.estimators import solve

PUBLISHED = Path(__file__).parent.parent / "data" / "published" / "bcaffe_osu_allreduce_10gbe.csv"


def published(nodes: int) -> tuple[FloatArray, FloatArray]:
    lines = [line for line in PUBLISHED.read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if int(row["nodes"]) == nodes]
    return np.array([float(row["bytes"]) for row in rows]), np.array([float(row["time_s"]) for row in rows])


def samples(nodes: int, ranks: int, sizes: FloatArray, times: FloatArray) -> Samples:
    rows = [
        {
            "kind": "all_reduce",
            "operation": "all_reduce",
            "nodes": nodes,
            "ranks_per_node": ranks,
            "bytes": v,
            "time_s": t,
        }
        for v, t in zip(sizes.tolist(), times.tolist(), strict=True)
    ]
    return Samples.from_rows(list(rows), {})


def powers_of_two(low: int, high: int) -> FloatArray:
    return np.exp2(np.arange(low, high, dtype=np.float64))


def line_error(sizes: FloatArray, times: FloatArray) -> float:
    design = np.column_stack([np.ones_like(sizes), sizes])
    return float(np.mean(np.abs(design @ solve(design, times, "least-squares") / times - 1)))


@pytest.mark.parametrize("nodes", [2, 8])
def test_piecewise_lines_on_published_times(nodes: int) -> None:
    """OSU all-reduce over 10GbE: the library changes its algorithm, one line cannot follow it."""
    sizes, times = published(nodes)
    edges = [0, 8192, 262144, np.inf]
    for low, high in itertools.pairwise(edges):
        part = (sizes > low) & (sizes <= high)
        assert line_error(sizes[part], times[part]) <= 0.13
    assert line_error(sizes, times) >= 0.10


def test_fit_finds_the_jump_and_follows_both_sides() -> None:
    sizes, times = published(8)
    entry = fit_collectives(samples(8, 1, sizes, times))[0][0]
    breaks = entry.settings["breaks_8x1"]
    assert isinstance(breaks, tuple)
    assert 8192 in breaks
    assert entry.error is not None
    assert entry.error <= 0.13


def test_longer_messages_never_take_less_time() -> None:
    two, eight = published(2), published(8)
    entry = fit_collectives(samples(2, 1, *two).joined(samples(8, 1, *eight)))[0][0]
    sizes = np.linspace(1, 2**21, 500)
    times = all_reduce_s(entry, sizes, Groups(np.array([2, 8]), np.array([1, 1]), np.ones(2)))
    assert (np.diff(times, axis=1) >= 0).all()


def test_known_latency_and_bandwidth_come_back() -> None:
    sizes = powers_of_two(8, 26)
    rows = samples(1, 4, sizes, 1e-5 + 2e-10 * sizes).joined(samples(2, 4, sizes, 3e-5 + 9e-10 * sizes))
    (entry,), missing = fit_collectives(rows)
    groups = Groups(np.array([1, 2]), np.array([4, 4]), np.ones(2))
    times = all_reduce_s(entry, np.array([12345.0]), groups)
    np.testing.assert_allclose(times[:, 0], [1e-5 + 2e-10 * 12345, 3e-5 + 9e-10 * 12345], rtol=1e-4)
    assert missing == ()


def test_too_few_sizes_are_reported_and_one_rank_is_ignored() -> None:
    sizes = np.array([1e3])
    entries, missing = fit_collectives(samples(1, 2, sizes, sizes * 1e-9).joined(samples(1, 1, sizes, sizes)))
    assert entries == ()
    assert missing == ("all_reduce on 1 nodes of 2 ranks: 2 sizes needed",)


def test_noise_on_a_straight_line_seldom_looks_like_a_break() -> None:
    sizes = powers_of_two(5, 25)
    noise = np.random.default_rng(1).normal(1, 0.03, (50, sizes.size))
    found = [best_breaks(sizes, (1e-5 + 1e-9 * sizes) * row) for row in noise]
    assert sum(bool(breaks) for breaks in found) <= 10


def test_a_real_break_is_found_in_noise() -> None:
    sizes = powers_of_two(5, 25)
    times = np.where(sizes > 2.0**14, 1e-4 + 1e-9 * sizes, 1e-5 + 2e-9 * sizes)
    noise = np.random.default_rng(2).normal(1, 0.03, (20, sizes.size))
    assert all(2.0**14 in best_breaks(sizes, times * row) for row in noise)
