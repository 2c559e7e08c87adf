"""Measured steps: plans whose whole steps were timed, degrees and all, correct the steps of plans near them.

The log ratio of measured to predicted step is what sub-batches have in :mod:`planner.sources.plan_points`, over all
axes of a plan: an effect that all plans of a network have in common on a cluster, in a framework and precision, plus
one that near plans share, plus noise of each run, with the same variances. How far apart two plans are is a sum over
axes: doublings of a count, and one where words, or stages that begin at 0, differ. So no plan wins because it was not
run. The covariance that runs leave (Rasmussen & Williams 2006, eq. 2.26) narrows intervals and decides between plans.

Whole steps go before the passes of :mod:`planner.sources.plan_points`, which hold no messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.axes import AXES
from planner.domain.calibration import Calibration, MeasuredStep
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import variant_and_version
from planner.sources.plan_points import NOISE_VARIANCE, PLAN_POINTS, shared_variance

__all__ = ["MeasuredSteps", "is_of_runs_alone", "measured_steps_of"]

_APART = tuple(axis for axis in AXES if axis.name not in ("precision", "mode"))
"""Axes that plans may differ in and still share an effect."""


class MeasuredSteps:
    """What r measured steps of a network on a cluster, in one framework and precision, say of its plans.

    Attributes
    ----------
    steps : sequence of MeasuredStep
    calibrations : tuple of str
        Names of those that hold them.
    """

    def __init__(self, steps: Sequence[MeasuredStep], calibrations: Iterable[str]) -> None:
        self.steps, self.calibrations = steps, tuple(dict.fromkeys(calibrations))
        self._runs = Configurations.of([one.configuration for one in steps])
        noise = np.diag([NOISE_VARIANCE / one.runs for one in steps])
        self._inverse = np.linalg.inv(self._covariances(self._runs) + noise)
        self._weights = self._inverse @ np.log([one.factor for one in steps])

    def factors(self, plans: Configurations) -> FloatArray:
        """Return by what the steps of plans are multiplied, of the shape of the plans."""
        log = np.zeros(plans.shape)
        for one, weight in zip(self.steps, self._weights.tolist(), strict=True):
            log += weight * shared_variance(_apart(plans, one.configuration))
        return np.exp(log)

    def remaining(self, one: Configuration, other: Configuration) -> float:
        """Return the share of the variance of the log ratio of two plans that is left; of equal plans, of one alone."""
        plans = Configurations.of([one, other])
        near = self._covariances(plans)
        both = shared_variance(np.stack([_apart(plans, one), _apart(plans, other)]))
        left = both - near @ self._inverse @ near.T
        difference = np.array([1.0, 0.0 if one == other else -1.0])
        share: float = (difference @ left @ difference) / (difference @ both @ difference)
        return min(max(share, 0.0), 1.0)

    def runs_of(self, plan: Configuration) -> int:
        """Return how many of the runs were of a plan itself."""
        return sum(one.runs for one in self.steps if not _apart(Configurations.of([plan]), one.configuration).any())

    def _covariances(self, plans: Configurations) -> FloatArray:
        """Return those of the effects of plans and runs, shape (n, r)."""
        return shared_variance(np.stack([_apart(plans, one.configuration) for one in self.steps], axis=1))


def _apart(plans: Configurations, one: Configuration) -> FloatArray:
    """Return how far plans are from one, of the shape of the plans."""
    other = Configurations.of([one])
    far = np.zeros(plans.shape)
    for axis in _APART:
        name = "schedule_run" if axis.name == "schedule" else axis.name
        column, value = getattr(plans, name), int(getattr(other, name)[0])
        counts = axis.least > 0 and not axis.words
        far += np.abs(np.log2(column / value)) if counts else column != value
    return far


def is_of_runs_alone(calibration: Calibration) -> bool:
    """Tell whether a calibration holds nothing but runs of plans: it corrects what is predicted without it."""
    return all(entry.library == PLAN_POINTS for entry in calibration.entries)


def measured_steps_of(
    calibrations: Iterable[Calibration], network: str, cluster: str, framework: str, precision: str
) -> MeasuredSteps | None:
    """Return the measured steps in one precision; the first calibration that holds a plan serves it. None: no step.

    Parameters
    ----------
    calibrations : iterable of Calibration
        Of the accelerator, in order.
    network, cluster, framework, precision : str
        A framework of a version also takes runs of no version.
    """
    frameworks = (framework, variant_and_version(framework)[0])
    by_plan: dict[Configuration, tuple[MeasuredStep, str]] = {}
    for calibration in calibrations:
        for one in calibration.measured_steps:
            is_alike = (one.network, one.cluster, one.configuration.precision) == (network, cluster, precision)
            if is_alike and one.framework in frameworks:
                by_plan.setdefault(one.configuration, (one, calibration.name))
    if not by_plan:
        return None
    steps, names = zip(*by_plan.values(), strict=True)
    return MeasuredSteps(steps, names)
