"""Measured steps: plans that were timed correct the plans near them, by log(measured / predicted).

What was timed is a plan's whole steps, or the forward and backward passes of one sub-batch on one device. Whole steps
go before passes, which hold no messages. Either way the log ratio is an effect that all plans of a network have in
common, in a framework and precision and for steps on a cluster, plus one that near plans share, plus noise of each run.
With the variance of both effects together as unit, the common one has COMMON_VARIANCE, the other falls off by
REACH_DOUBLINGS, and the noise has NOISE_VARIANCE. How far apart two plans are is a sum over axes: doublings of a count,
and one where words, or stages that begin at 0, differ. Every plan is multiplied by what is expected of its effects
given all runs (kriging with mean 0; Rasmussen & Williams 2006, eq. 2.25), so that none wins because it was not run.
The covariance that runs leave (eq. 2.26) narrows intervals and decides between plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.axes import AXES
from planner.domain.calibration import OF_PASSES, OF_STEP, Calibration, MeasuredStep
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import variant_and_version
from planner.numbers import constants

__all__ = ["COMMON_VARIANCE", "NOISE_VARIANCE", "REACH_DOUBLINGS", "MeasuredSteps", "measured_steps_of"]

_KRIGING = constants("measured_plans.kriging")
NOISE_VARIANCE = _KRIGING["noise"]
"""Variance of the noise of a run over that of effects: one run alone moves its own plan five sixths of the way."""
COMMON_VARIANCE = _KRIGING["common"]
"""Variance of the effect that all plans have in common over that of both."""
REACH_DOUBLINGS = _KRIGING["reach"]
"""Doublings over which what a plan shares with another falls to 1/e (docs/numbers.md)."""
_AXES = {
    OF_STEP: tuple(axis for axis in AXES if axis.name not in ("precision", "mode")),
    OF_PASSES: tuple(axis for axis in AXES if axis.name in ("sub_batch", "tensor_parallel")),
}
"""Axes that plans may differ in and still share an effect, by what was timed."""


class MeasuredSteps:
    """What r measured steps of a network, all of steps or all of passes, in a framework and precision, say of plans.

    Attributes
    ----------
    of : OF_STEP or OF_PASSES
    calibrations : names of those that hold them
    """

    def __init__(self, steps: Sequence[MeasuredStep], calibrations: Iterable[str]) -> None:
        self.steps, self.calibrations = steps, tuple(dict.fromkeys(calibrations))
        self.of = steps[0].of
        noise = np.diag([NOISE_VARIANCE / one.runs for one in steps])
        self._inverse = np.linalg.inv(self._covariances([one.configuration for one in steps]) + noise)
        self._weights = self._inverse @ np.log([one.factor for one in steps])

    def factors(self, plans: Configurations) -> FloatArray:
        """Return by what the times of plans are multiplied, of the shape of the plans."""
        log = np.zeros(plans.shape)
        for one, weight in zip(self.steps, self._weights.tolist(), strict=True):
            log += weight * _shared_variance(self._doublings(plans, one.configuration))
        return np.exp(log)

    def remaining(self, one: Configuration, other: Configuration) -> float:
        """Return the share of the variance of the log ratio of two plans that is left; of equal plans, of one alone."""
        plans = Configurations.of([one, other])
        near = self._covariances([one, other])
        both = _shared_variance(np.stack([self._doublings(plans, one), self._doublings(plans, other)]))
        left = both - near @ self._inverse @ near.T
        difference = np.array([1.0, 0.0 if one == other else -1.0])
        share: float = (difference @ left @ difference) / (difference @ both @ difference)
        return min(max(share, 0.0), 1.0)

    def runs_of(self, plan: Configuration) -> int:
        """Return how many of the runs were of a plan itself."""
        plans = Configurations.of([plan])
        return sum(one.runs for one in self.steps if not self._doublings(plans, one.configuration).any())

    def _covariances(self, plans: list[Configuration]) -> FloatArray:
        """Return those of the effects of plans and runs, shape (n, r)."""
        rows = Configurations.of(plans)
        return _shared_variance(np.stack([self._doublings(rows, one.configuration) for one in self.steps], axis=1))

    def _doublings(self, plans: Configurations, one: Configuration) -> FloatArray:
        """Return how far plans are from one, of the shape of the plans."""
        other = Configurations.of([one])
        apart = np.zeros(plans.shape)
        for axis in _AXES[self.of]:
            name = "schedule_run" if axis.name == "schedule" else axis.name
            column, value = getattr(plans, name), int(getattr(other, name)[0])
            is_count = axis.least > 0 and not axis.words
            apart += np.abs(np.log2(column / value)) if is_count else column != value
        return apart


def _shared_variance(doublings: FloatArray) -> FloatArray:
    """Covariance of the effects of plans that are so many doublings apart, of any shape; 1 of equal ones."""
    return np.asarray(COMMON_VARIANCE + (1 - COMMON_VARIANCE) * np.exp(-doublings / REACH_DOUBLINGS))


def measured_steps_of(
    calibrations: Iterable[Calibration], network: str, cluster: str, framework: str, precision: str
) -> MeasuredSteps | None:
    """Return what was timed in one precision: whole steps, else passes; None: neither.

    The first calibration that holds a plan serves it.

    Parameters
    ----------
    calibrations : of the accelerator, in order
    network, cluster, framework, precision : str
        A framework of a version also takes runs of no version. Passes are of no cluster.
    """
    frameworks = (framework, variant_and_version(framework)[0])
    by_plan: dict[tuple[str, Configuration], tuple[MeasuredStep, str]] = {}
    for calibration in calibrations:
        for one in calibration.measured_steps:
            is_alike = (one.network, one.configuration.precision) == (network, precision)
            if is_alike and one.framework in frameworks and (one.of == OF_PASSES or one.cluster == cluster):
                by_plan.setdefault((one.of, one.configuration), (one, calibration.name))
    for of in (OF_STEP, OF_PASSES):
        timed = [both for key, both in by_plan.items() if key[0] == of]
        if timed:
            steps, names = zip(*timed, strict=True)
            return MeasuredSteps(steps, names)
    return None
