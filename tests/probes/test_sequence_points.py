from __future__ import annotations

import numpy as np

from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.probes.points import attention_families

FAMILIES = list(attention_families(np.random.default_rng(3), 12))


def test_a_family_is_both_directions_of_one_shape() -> None:
    for forward, backward in FAMILIES:
        assert (forward.direction, backward.direction) == (FORWARD, BACKWARD_DATA)
        assert (forward.work, forward.geometry) == (backward.work, backward.geometry)
        assert forward.work["batch"] == forward.geometry["images"] * forward.geometry["heads"]
        assert forward.work["queries"] == forward.work["keys"] == forward.geometry["positions"]


def test_lengths_are_spread_over_six_octaves_causal_and_not() -> None:
    lengths = [forward.work["queries"] for forward, _ in FAMILIES]
    assert lengths == sorted(lengths)
    assert lengths[0] <= 32
    assert lengths[-1] > 700
    for causal in (0, 1):
        chosen = [family[0].work["queries"] for family in FAMILIES if family[0].work["causal"] == causal]
        assert len(chosen) == 6
        assert max(chosen) > 8 * min(chosen)
    assert [family[0].work["causal"] for family in FAMILIES[::2]] == [0, 1] * 3


def test_a_faster_device_has_longer_and_larger_ones() -> None:
    work = [family[0].work for family in attention_families(np.random.default_rng(3), 16, 4096, 4e10)]
    assert work[-1]["queries"] > 3000
    mac = [one["batch"] * one["queries"] * one["keys"] * one["width"] for one in work]
    assert 1e9 < max(mac) <= 4e10


def test_no_call_is_long() -> None:
    """Five products backward at 50 GFLOP/s."""
    for _, backward in FAMILIES:
        work = backward.work
        assert 10 * work["batch"] * work["queries"] * work["keys"] * work["width"] / 50e9 <= 0.0121
