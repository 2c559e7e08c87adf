from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configurations
from planner.workload.memory_rules import (
    live_in_first_chunk,
    live_in_last_chunk,
    live_micro_batches,
    mean_staleness,
    weight_versions,
)

ZERO_BUBBLE = (("zero-bubble", 1), ("zero-bubble-h2", 1), ("zero-bubble-v", 2))


def order(stage: int, m: int, p: int, v: int, schedule: str) -> list[tuple[int, int, int]]:
    """Return (+1 forward or -1 backward, chunk, micro-batch) as a stage runs them, by the published descriptions."""
    if schedule == "gpipe":
        return [(1, 0, i) for i in range(m)] + [(-1, 0, i) for i in reversed(range(m))]
    groups = [(k // p % v, k // (p * v) * p + k % p) for k in range(m * v)]
    forward = [(1, chunk, i) for chunk, i in groups]
    backward = [(-1, v - 1 - chunk, i) for chunk, i in groups]
    ahead = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p
    ahead = min(ahead, m * v)
    ops = forward[:ahead]
    for at, there in enumerate(forward[ahead:]):
        ops += [there, backward[at]]
    return ops + backward[m * v - ahead :]


def most_live(ops: list[tuple[int, int, int]], chunk: int | None = None) -> int:
    live: Counter[tuple[int, int]] = Counter()
    most = 0
    for way, of, i in ops:
        live[of, i] += way
        most = max(most, sum(count for (at, _), count in live.items() if chunk in {None, at}))
    return most


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_live_micro_batches_are_those_of_the_order_of_passes(p: int, v: int) -> None:
    for schedule in ("gpipe", "1f1b", "interleaved"):
        chunks = v if schedule == "interleaved" and p > 1 else 1
        for m in (p, 2 * p, 5 * p):
            for stage in range(p):
                ops = order(stage, m if p > 1 else 1, p, chunks, schedule)
                code = SCHEDULES.index(schedule)
                assert live_micro_batches(stage, m, p, chunks, code) == pytest.approx(most_live(ops) / chunks)
                if stage == 0:
                    assert live_in_first_chunk(m, p, chunks, code) == most_live(ops, 0)
                if stage == p - 1:
                    assert live_in_last_chunk(m, p, code) == most_live(ops, chunks - 1)


def test_few_micro_batches() -> None:
    assert live_micro_batches(0, 3, 8, 1, SCHEDULES.index("1f1b")) == 3
    assert live_micro_batches(0, 3, 8, 1, SCHEDULES.index("zero-bubble")) == 3


def test_zero_bubble_in_units_of_1f1b() -> None:
    """Of 1F1B's p: as many, twice, as many on every stage (Qi et al. 2023, arXiv:2401.10241)."""
    stages = np.arange(8)
    h1, h2, v = (live_micro_batches(stages, 64, 8, v, SCHEDULES.index(name)) for name, v in ZERO_BUBBLE)
    assert (set(h1), set(h2), set(v)) == ({8}, {15}, {8})
    assert [float(live_in_first_chunk(64, 8, v, SCHEDULES.index(name))) for name, v in ZERO_BUBBLE] == [8, 15, 15]
    assert [float(live_in_last_chunk(64, 8, SCHEDULES.index(name))) for name, _ in ZERO_BUBBLE] == [8, 15, 1]


def test_without_a_flush_a_version_of_weights_for_every_live_micro_batch() -> None:
    """PipeDream: p - s of both, and gradients p - 1 - s updates late."""
    stages, code = np.arange(4), SCHEDULES.index("no-flush")
    plans = Configurations.having(pipeline_parallel=4, schedule=code)
    assert live_micro_batches(stages, 1, 4, 1, code).tolist() == [4, 3, 2, 1]
    assert weight_versions(stages, plans).tolist() == [4, 3, 2, 1]
    assert mean_staleness(plans) == (weight_versions(stages, plans) - 1).mean() == 1.5
    assert mean_staleness(plans.but(pipeline_parallel=1)) == 0
    assert weight_versions(stages, plans.but(schedule=SCHEDULES.index("1f1b"))).tolist() == [1, 1, 1, 1]


def test_published_factor_of_interleaving() -> None:
    """1 + (p - 1)/(p·v), Korthikanti et al. 2022, arXiv:2205.05198; 63 chunks are 21 of three."""
    interleaved = SCHEDULES.index("interleaved")
    assert live_micro_batches(0, 64, 8, 3, interleaved) == pytest.approx(8 * (1 + 7 / 24))
    assert live_micro_batches(0, 192, 16, 3, interleaved) == 21


def test_arrays_broadcast() -> None:
    found = live_micro_batches(np.arange(4)[:, None], 100, np.array([4, 8]), 1, np.array([0, 1]))
    np.testing.assert_array_equal(found, [[100, 8], [100, 7], [100, 6], [100, 5]])
