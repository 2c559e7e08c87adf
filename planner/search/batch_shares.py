"""How to divide a mini-batch among groups of devices that step together: exactly, for any number of groups.

Group i has c_i devices, each of which takes m_i samples a step and needs P_i(m_i) s for them; a step takes as long as
the slowest group, T = max_i P_i(m_i), for B = sum_i c_i·m_i samples. Wanted are the m_i with the least T / B, the time
a sample takes, of all B in a window. P_i need not grow with m: some sample counts have no good sub-batch.

Totals are what groups have in common: D_j(s), the shortest step in which the first j groups take s samples, is
min over m of max(D_(j-1)(s - c_j·m), P_j(m)). Of two groups this looks at every split of every total of the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["BatchShares", "best_shares"]

_LARGEST_TABLE = 1 << 20
"""Splits looked at at once: temporary arrays of 8 MB."""


@dataclass(frozen=True, slots=True)
class BatchShares:
    """What each device of each group takes a step [samples], and how long the step takes [s]."""

    samples: tuple[int, ...]
    step_s: float

    def total(self, devices: Sequence[int]) -> int:
        """Return the mini-batch of groups of so many devices."""
        return sum(count * each for count, each in zip(devices, self.samples, strict=True))


def best_shares(step_s: Sequence[FloatArray], devices: Sequence[int], window: tuple[int, int]) -> BatchShares | None:
    """Return the shares with the least time a sample; None where no total of the window can be divided.

    Of equal ones that with the fewest samples in all.

    Parameters
    ----------
    step_s : p_i(m) at place m [s], infinity where a device cannot take m samples; at least one sample each: place 0 is
        not looked at
    window : (int, int), least and largest accepted mini-batch [samples]
    """
    unit = math.gcd(*devices)
    counts = [count // unit for count in devices]
    low, high = max(-(-window[0] // unit), sum(counts)), window[1] // unit
    if low > high:
        return None
    shortest = [_alone(step_s[0], counts[0], high)]
    for of_group, count in zip(step_s[1:-1], counts[1:-1], strict=True):
        shortest.append(_joined(shortest[-1], of_group, count, np.arange(high + 1))[0])
    totals = np.arange(low, high + 1)
    times, taken = _joined(shortest[-1], step_s[-1], counts[-1], totals)
    at = int(np.argmin(times / totals))
    if not math.isfinite(times[at]):
        return None
    left, samples = int(totals[at]), [int(taken[at])]
    for of_group, count, before in zip(step_s[-2:0:-1], counts[-2:0:-1], shortest[-2::-1], strict=True):
        left -= samples[-1] * counts[len(counts) - len(samples)]
        samples.append(int(_joined(before, of_group, count, np.array([left]))[1][0]))
    left -= samples[-1] * counts[1]
    return BatchShares((left // counts[0], *reversed(samples)), float(times[at]))


def _alone(step_s: FloatArray, count: int, high: int) -> FloatArray:
    """Return the step of one group by its samples in all, in units, shape (high + 1,); infinity where there is none."""
    shortest = np.full(high + 1, np.inf)
    most = min(step_s.size - 1, high // count)
    shortest[count : count * most + 1 : count] = step_s[1 : most + 1]
    return shortest


def _joined(before: FloatArray, step_s: FloatArray, count: int, totals: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the shortest step of some groups and one more by samples in all, and what a device of that one takes."""
    taken = np.arange(1, max(min(step_s.size - 1, int(totals.max()) // count), 1) + 1)
    own = step_s[taken] if step_s.size > 1 else np.full(1, np.inf)
    times, best = np.empty(totals.size), np.empty(totals.size, dtype=np.int64)
    rows = max(1, _LARGEST_TABLE // taken.size)
    for start in range(0, totals.size, rows):
        part = slice(start, start + rows)
        left = totals[part, None] - count * taken
        each = np.where(left >= 0, np.maximum(before[np.maximum(left, 0)], own), np.inf)
        place = np.argmin(each, axis=1)
        times[part], best[part] = np.take_along_axis(each, place[:, None], axis=1)[:, 0], taken[place]
    return times, best
