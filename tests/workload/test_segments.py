"""Recompute of a chain: against brute force, and the numbers of equal layers."""

from itertools import product

import numpy as np
import pytest

from planner.workload.schemes import BINS, segments_of


def brute_force(own: np.ndarray, joined: np.ndarray, crossing: np.ndarray, forward: np.ndarray) -> list:  # type: ignore[type-arg]
    ways = []
    for marks in product((False, True), repeat=own.size):
        bytes_, largest, run = 0.0, 0.0, 0.0
        for at, again in enumerate(marks):
            begins = again and (at == 0 or not marks[at - 1])
            run = 0.0 if not again else own[at] + (0.0 if begins else run + joined[at])
            largest = max(largest, run)
            bytes_ += crossing[at] * begins if again else own[at] + (joined[at] if at else crossing[0])
        ends = [marks[at] and (at + 1 == own.size or not marks[at + 1]) and own[at] == 0 for at in range(own.size)]
        ways.append((bytes_ + largest, float(forward @ (np.array(marks) & ~np.array(ends)))))
    return ways


@pytest.mark.parametrize("seed", range(40))
def test_it_is_that_of_brute_force_but_for_rounding(seed: int) -> None:
    """Runs of neighbours are one run: two of them next to each other are never better by more than their rounding."""
    random = np.random.default_rng(seed)
    number = int(random.integers(1, 9))
    own, joined, crossing, forward = random.integers(0, 9, (4, number)).astype(float)
    forward += 1.0
    crossing = np.sort(crossing)[::-1]  # so that every cut is one
    found = segments_of(own, joined, crossing, forward)
    every = brute_force(own, joined, crossing, forward)
    whole = crossing[0] + own.sum() + joined[1:].sum()
    slack = 2 * (number + 1) * whole / BINS
    for room in np.linspace(found.kept_bytes[0], whole, 7):
        mine = found.again_s[int(found.fitting(np.array(room)))]
        lean = [time for bytes_, time in every if bytes_ <= room - slack]
        assert mine <= min(lean, default=np.inf) + 1e-9
        assert mine >= 0
    assert found.again_s[-1] == 0
    assert (np.diff(found.kept_bytes) > 0).all()
    assert (np.diff(found.again_s) < 0).all()


@pytest.mark.parametrize(("room", "again"), [(64, 0), (32, 34), (24, 42), (17, 51), (16, 53), (15, 56)])
def test_equal_layers(room: int, again: int) -> None:
    """64 tensors of one unit each, the last of which is kept, the others kept or made again."""
    nothing, ones = np.zeros(64), np.ones(64)
    given = np.concatenate([[0.0], np.ones(63)])  # the input is there
    found = segments_of(nothing, given, given, ones, runs=64)
    assert found.again_s[int(found.fitting(np.array(room - 1.0)))] == again
