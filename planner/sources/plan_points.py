"""Measured plan points: training runs that were timed at the very sub-batch, precision and division of a plan.

An entry of overheads with library ``cells`` holds, by network, what measured runs take as multiples of what their
kernels and overheads give: ``(tensor, sub_batch, factor, runs, ...)``. It corrects forward and backward passes of that
network, and nothing else; the update of weights is part of no run.

The log ratio of measured to predicted time is an effect that all sub-batches of the network have in common, plus one
that near ones share, plus noise of each run. With the variance of both effects together as unit, the common one has
COMMON_VARIANCE, the other falls off by REACH_DOUBLINGS, and the noise has NOISE_VARIANCE. Every sub-batch is multiplied
by what is expected of its effects given all runs of the network in that precision (kriging with mean 0; Rasmussen &
Williams 2006, eq. 2.25): a plan that was not run does not win for that. A stored factor is what the runs of its point
say alone, exp(m·k / (k + NOISE_VARIANCE)) of k runs with mean log ratio m.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.framework import variant_and_version
from planner.domain.kernels import FORWARD, UPDATE
from planner.numbers import constants

__all__ = [
    "COMMON_VARIANCE",
    "NOISE_VARIANCE",
    "PLAN_POINTS",
    "REACH_DOUBLINGS",
    "PlanPoint",
    "as_setting",
    "plan_point_factors",
    "plan_points_of",
    "points_of_entry",
    "runs_in_words",
    "shared_variance",
    "weight_of_runs",
]

PLAN_POINTS = "cells"
"""Library of such entries."""
POINT_FIELDS = 4
_KRIGING = constants("measured_plans.kriging")
NOISE_VARIANCE = _KRIGING["noise"]
"""Variance of the noise of a run over that of effects: one run alone moves its own point five sixths of the way."""
COMMON_VARIANCE = _KRIGING["common"]
"""Variance of the effect that all sub-batches have in common over that of both."""
REACH_DOUBLINGS = _KRIGING["reach"]
"""Doublings of the sub-batch over which what it shares with another falls to 1/e (docs/numbers.md)."""


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """What runs of one measured plan point say.

    Attributes
    ----------
    tensor, sub_batch : int
        Tensor-parallel degree, and samples of a pass.
    factor : float
        Measured over predicted time of forward and backward passes, shrunk towards 1: what its own runs say alone.
    runs : int
        Measured.
    calibration : str
        Name of the calibration that holds it.
    """

    tensor: int
    sub_batch: int
    factor: float
    runs: int
    calibration: str = ""


def as_setting(points: Iterable[PlanPoint]) -> tuple[float, ...]:
    """Return points as the setting that holds them."""
    return tuple(float(value) for one in points for value in (one.tensor, one.sub_batch, one.factor, one.runs))


def points_of_entry(entry: Entry, network: str, calibration: str = "") -> tuple[PlanPoint, ...]:
    """Return the points of a network that an entry holds; a setting that is no such list holds none."""
    values = entry.settings.get(network, ())
    if not isinstance(values, tuple) or len(values) % POINT_FIELDS:
        return ()
    rows = (values[at : at + POINT_FIELDS] for at in range(0, len(values), POINT_FIELDS))
    return tuple(
        PlanPoint(int(tensor), int(sub_batch), factor, int(runs), calibration)
        for tensor, sub_batch, factor, runs in rows
        if min(factor, sub_batch) > 0 and runs >= 1
    )


def plan_points_of(
    calibrations: Iterable[Calibration], network: str, framework: str, precision: str
) -> Mapping[tuple[int, int], PlanPoint]:
    """Return points by tensor-parallel degree and sub-batch; the first calibration that holds one serves it.

    Parameters
    ----------
    calibrations : iterable of Calibration
        Of the accelerator, in order.
    network, framework, precision : str
        A framework of a version also takes runs of no version.
    """
    kinds = (framework, variant_and_version(framework)[0])
    points: dict[tuple[int, int], PlanPoint] = {}
    for calibration in calibrations:
        for entry in calibration.entries:
            if entry.library == PLAN_POINTS and entry.kind in kinds and entry.precision == precision:
                for point in points_of_entry(entry, network, calibration.name):
                    points.setdefault((point.tensor, point.sub_batch), point)
    return points


def weight_of_runs(runs: int) -> float:
    """Return how far so many runs of one point alone move the prediction of that point, 0 to 1."""
    return runs / (runs + NOISE_VARIANCE)


def plan_point_factors(
    points: Mapping[tuple[int, int], PlanPoint], stage: str, sub_batch: IntArray, tensor: int = 1
) -> FloatArray:
    """Return by what the time of a stage is multiplied at sub-batches, both of shape (s,); 1 without any run."""
    if not points or stage == UPDATE:
        return np.ones(sub_batch.size)
    alike = [one for one in points.values() if one.tensor == tensor]
    run_sub_batches = np.array([one.sub_batch for one in alike], dtype=np.int64)
    runs = np.array([one.runs for one in alike], dtype=np.float64)
    means = np.array([math.log(one.factor) / weight_of_runs(one.runs) for one in alike])
    weights = np.linalg.solve(_shared(run_sub_batches, run_sub_batches) + np.diag(NOISE_VARIANCE / runs), means)
    return np.asarray(np.exp(_shared(sub_batch, run_sub_batches) @ weights))


def _shared(one: IntArray, other: IntArray) -> FloatArray:
    """Return covariances of the effects of sub-batches (s,) and (r,), shape (s, r)."""
    return shared_variance(np.abs(np.log2(one)[:, None] - np.log2(other)))


def shared_variance(doublings: FloatArray) -> FloatArray:
    """Return the covariance of the effects of plans that are so many doublings apart, of any shape; 1 of equal ones."""
    return np.asarray(COMMON_VARIANCE + (1 - COMMON_VARIANCE) * np.exp(-doublings / REACH_DOUBLINGS))


def runs_in_words(points: Mapping[tuple[int, int], PlanPoint], sub_batch: int, tensor: int = 1) -> str:
    """Return in words what runs were used at a sub-batch, and by what its passes are multiplied; '' without any."""
    of_degree = sorted((one for one in points.values() if one.tensor == tensor), key=lambda one: one.sub_batch)
    if not of_degree:
        return ""
    count = sum(one.runs for one in of_degree)
    runs = "a measured run" if count == 1 else f"{count} measured runs"
    sub_batches = [str(one.sub_batch) for one in of_degree]
    several = (
        f"es {', '.join(sub_batches[:-1])} and {sub_batches[-1]}" if len(sub_batches) > 1 else f" {sub_batches[0]}"
    )
    of = f" of sub-batch{several}" if sub_batches != [str(sub_batch)] else ""
    names = " and ".join(dict.fromkeys(one.calibration for one in of_degree))
    (factor,) = plan_point_factors(points, FORWARD, np.array([sub_batch]), tensor)
    return (
        f"{runs}{of} {'was' if count == 1 else 'were'} used, of calibration {names}: "
        f"forward and backward passes are multiplied by {factor:.4g}"
    )
