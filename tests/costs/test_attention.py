from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.specified import ASSUMED_BYTES_EFFICIENCY, ASSUMED_FLOP_EFFICIENCY, ASSUMED_LAUNCH_S, specified_entry
from planner.costs.terms import TERMS, evaluate
from planner.costs.work import attended_pairs, flop, moved_bytes, work_amount
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator
from planner.domain.kernels import BACKWARD_DATA, FORWARD

WORK = {"batch": 6, "queries": 5, "keys": 7, "width": 4, "causal": 0, "itemsize": 2}
GPU = Accelerator("gpu", "gpu", 16e9, 900e9, {"fp32": 15e12, "fp16": 120e12}, 80)


def features(work: dict[str, int], **settings: float | str) -> dict[str, float]:
    term = TERMS["attention.blocks"]
    return dict(zip(term.names(settings), term.features(work, settings).tolist(), strict=True))


def test_flop_and_bytes_by_hand() -> None:
    """4·b·q·k·w forward and 2.5 times that backward; q, k, v, o, and backward their gradients."""
    assert flop(WORK) == work_amount(WORK) == 4 * 6 * 5 * 7 * 4
    assert flop(WORK, BACKWARD_DATA) == 2.5 * flop(WORK, FORWARD)
    once = 6 * (5 + 7 + 7 + 5) * 4
    assert moved_bytes(WORK) == 2 * once + 4 * 6 * 5
    assert moved_bytes(WORK, BACKWARD_DATA) == 2 * 2 * once + 4 * 6 * 5


@given(st.integers(1, 40), st.integers(1, 40))
def test_causal_pairs_are_those_at_and_below_the_diagonal(queries: int, keys: int) -> None:
    mask = np.tril(np.ones((queries, keys)))
    pairs = attended_pairs(np.array(float(queries)), np.array(float(keys)), np.array([0.0, 1.0]))
    assert pairs.tolist() == [mask.size, mask.sum()]


def test_blocks_are_counted_whole() -> None:
    """300 queries and keys are 3 x 3 blocks of 128, 6 of them at and below the diagonal."""
    work = WORK | {"queries": 300, "keys": 300}
    full, causal = features(work), features(work | {"causal": 1})
    assert full["pairs"] == 6 * 300**2
    assert full["block_flop"] == 4 * 6 * 4 * 9 * 128**2
    assert causal["pairs"] == 6 * 300 * 301 / 2
    assert causal["block_flop"] == pytest.approx(4 * 6 * 4 * 6 * 128**2)
    assert "wave_flop" not in full


def test_blocks_come_in_waves() -> None:
    """6 heads of 3 blocks of queries are 18 blocks: two waves of 16 processors."""
    work = WORK | {"queries": 300, "keys": 300}
    found = features(work, multiprocessors=16.0, direction=BACKWARD_DATA)
    assert found["wave_flop"] == pytest.approx(found["block_flop"] * 32 / 18)
    assert found["flop"] == 10 * 6 * 300**2 * 4


@given(st.integers(1, 600), st.integers(1, 600), st.sampled_from([0, 1]))
def test_whole_blocks_are_never_less_than_the_flop(queries: int, keys: int, causal: int) -> None:
    found = features(WORK | {"queries": queries, "keys": keys, "causal": causal})
    assert found["block_flop"] >= found["flop"] * (1 - 1e-12)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD_DATA])
def test_specification_is_the_roofline_of_the_direction(direction: str) -> None:
    entry = specified_entry(GPU, "attention", direction, "fp16")
    assert entry is not None
    assert "of the peak rate" in entry.notes
    long, short = (WORK | {"queries": s, "keys": s, "width": 64} for s in (4096, 8))
    compute = flop(long, direction) / (ASSUMED_FLOP_EFFICIENCY["fp16"] * 120e12)
    memory = moved_bytes(short, direction) / (ASSUMED_BYTES_EFFICIENCY * 900e9)
    np.testing.assert_allclose(evaluate(entry, long), compute + ASSUMED_LAUNCH_S)
    np.testing.assert_allclose(evaluate(entry, short), memory + ASSUMED_LAUNCH_S)


def test_no_time_is_below_the_peaks_of_the_direction() -> None:
    term = TERMS["attention.blocks"]
    settings: dict[str, float | str | tuple[float, ...]]
    settings = {"direction": BACKWARD_DATA, "peak_flop_per_s": 1e12, "peak_bytes_per_s": 1e15}
    nothing = dict.fromkeys(term.names(settings), 0.0)
    entry = Entry("kernels", "attention", BACKWARD_DATA, "fp16", "", "attention.blocks", settings, nothing)
    assert evaluate(entry, WORK) == flop(WORK, BACKWARD_DATA) / 1e12
