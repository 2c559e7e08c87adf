"""How much longer products take under lasting load than in short blocks, as the clocks of a GPU fall to its power."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from planner.probes.bench import Bench
from planner.probes.cuda_bench import CudaBench
from planner.probes.lost_device import check_computes, first_line
from planner.probes.points import Point

__all__ = ["LEFT_OUT", "SUSTAINED_SHARE", "WARNING_CLOCKS", "sustained"]

SUSTAINED_SHARE = 0.03
"""Of the budget of a GPU's calibration."""
MOST_LOAD_S, LEAST_LOAD_S = 1.0, 0.25
"""Of load in one precision; in less clocks need not have fallen."""
LARGEST_LOAD_RATIO = 1.05
LEAST_CALL_S = 2e-4
"""Of a product: nothing holds the device back under load, so that it waits for the host of shorter ones."""
WARNING_CLOCKS = "warning_clocks"
LEFT_OUT = "left_out"
"""Circumstance that says what could not be measured."""


def sustained(
    bench: Bench,
    points: Iterable[Point],
    times_s: Mapping[str, float],
    for_s: float,
    left_out: Collection[str] = (),
) -> dict[str, str]:
    """Return the ratio of the times under load and in blocks of the largest product timed in each precision but fp32.

    As circumstances ``sustained_PRECISION``, with a warning where one is above 1.05; empty where time is too short, and
    on a CPU. Precisions in which every product is shorter than LEAST_CALL_S have none. No time is changed by it. What
    the device fails in is left out, and named in ``left_out``.

    Parameters
    ----------
    bench : Bench
    points : iterable of Point
    times_s : mapping of str to float
        Of the points that were timed, by name [s].
    for_s : float
        Wall time to spend [s].
    left_out : collection of str
        What a device was lost in before, as :class:`DeviceLostError` names it: it is not tried.

    Raises
    ------
    DeviceLostError
        The device computes nothing any more.
    """
    long = (point for point in points if times_s.get(point.name, 0.0) >= LEAST_CALL_S)
    products = [point for point in long if point.kind == "gemm" and point.precision != "fp32"]
    largest = {point.precision: point for point in sorted(products, key=lambda point: math.prod(point.work.values()))}
    each_s = min(MOST_LOAD_S, for_s / max(len(largest), 1))
    if not isinstance(bench, CudaBench) or each_s < LEAST_LOAD_S:
        return {}
    ratios: dict[str, float] = {}
    failures: list[str] = []
    for name, one in largest.items():
        what = f"lasting load in {name}"
        if what in left_out:
            continue
        try:
            ratios[name] = bench.under_load(one, each_s) / times_s[one.name]
        except RuntimeError as error:  # no memory among them: what was timed before can have left it in pieces
            check_computes(bench.device, error, what)
            failures.append(f"{what} ({first_line(error)})")
    circumstances = {f"sustained_{name}": f"{ratio:.3f}" for name, ratio in ratios.items()}
    if failures:
        circumstances[LEFT_OUT] = f"what the device failed in: {'; '.join(failures)}"
    slower = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio > LARGEST_LOAD_RATIO)
    if slower:
        circumstances[WARNING_CLOCKS] = (
            "large products take longer under lasting load than in the short blocks that are fitted "
            f"({slower} times): the clocks fall, and long training steps may be slower too"
        )
    return circumstances
