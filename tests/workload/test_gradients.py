"""Buckets of gradients: hand counts, and what holds for any sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.framework import STRATEGIES
from planner.networks.zoo import build
from planner.workload.program import gradient_buckets, gradient_slots

SIZES = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=20).map(np.array)


@pytest.mark.parametrize(
    ("first", "later", "lowest"),
    [
        (0.0, 0.0, [0, 1, 2, 3, 4]),
        (1.0, 0.0, [0, 1, 2, 3, 4]),
        (1.0, 6.0, [0, 1, 4]),  # 1; then 2 + 3 + 4 = 9 reach 6; 5 is left
        (3.0, 7.0, [0, 1, 3]),  # 1 + 2; 3 + 4 = 7 reach 7; 5 is left
        (1e9, 0.0, [0]),
    ],
)
def test_buckets_by_hand(first: float, later: float, lowest: list[int]) -> None:
    assert gradient_buckets(np.array([5.0, 4, 3, 2, 1]), first, later).tolist() == lowest


def test_no_slots_make_no_buckets() -> None:
    assert gradient_buckets(np.zeros(0), 1.0, 1.0).size == 0


@given(SIZES, st.integers(0, 60), st.integers(0, 200))
def test_buckets_hold_everything_and_are_full_but_for_the_last(
    sizes: np.ndarray[tuple[int], np.dtype[np.float64]], first: int, later: int
) -> None:
    lowest = gradient_buckets(sizes, first, later)
    assert lowest[0] == 0
    assert (np.diff(lowest) > 0).all()
    held = np.add.reduceat(sizes, lowest)
    assert held.sum() == sizes.sum()
    wanted = [later] * (lowest.size - 1) + [first]
    assert (held[1:] >= wanted[1:]).all()
    for i in range(lowest.size):  # without its lowest slot a bucket was not full yet
        last = sizes.size if i == lowest.size - 1 else int(lowest[i + 1])
        assert sizes[lowest[i] + 1 : last].sum() < wanted[i] or last == lowest[i] + 1


def test_layers_without_gradients_fill_no_bucket() -> None:
    """Those of frozen layers, before and between trained ones."""
    assert gradient_buckets(np.array([0.0, 0, 3, 0, 1, 0]), 0.0, 0.0).tolist() == [2, 4]
    assert gradient_buckets(np.zeros(3), 1.0, 1.0).size == 0


def test_resnet50_in_the_default_buckets() -> None:
    """97.5 MiB in fp32: the classifier fills the first one, then three of 25 MiB or a little more, then the rest."""
    default = STRATEGIES["bucketed"]
    gradients = gradient_slots(build("resnet50", {})).elements.astype(np.float64) * 4
    lowest = gradient_buckets(gradients, default.first_bucket_bytes, default.bucket_bytes)
    held = np.add.reduceat(gradients, lowest)[::-1] / 2**20
    assert held[0] == pytest.approx(2049 * 1000 * 4 / 2**20)
    assert held.size == pytest.approx(1 + (97.5 - held[0]) / 25, abs=1)
    assert held.sum() == pytest.approx(25_557_032 * 4 / 2**20)
