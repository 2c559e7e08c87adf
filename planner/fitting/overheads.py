"""What a framework adds to its kernels, from timed training steps of small networks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.costs.terms import Work, evaluate
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.kernels import KernelCalls
from planner.domain.precision import precision_named
from planner.domain.training import TimedStep
from planner.errors import CoverageError
from planner.fitting.diagnostics import errors_of, held_out_times
from planner.fitting.layer_calls import fits_among
from planner.steps.compute import call_work
from planner.steps.layer_calls import Fits, LayerCalls
from planner.steps.overheads import EXPONENTS, exponent_name
from planner.units import format_seconds
from planner.workload.lowering import lower

__all__ = ["fit_overheads", "overheads_doubt", "times_over_kernels"]

RELATIVE_ERROR = 0.08
"""Assumed error of a step that is predicted from its kernels."""
OWN_RELATIVE_ERROR = 0.03
"""The same where its kernels were measured as they are."""
SCALE_PRIOR = 0.05
"""How far the scale of kernels is expected from 1: steps of one network share its errors."""
CPU_DRIFT = 0.03
"""By how much a CPU's speed in the seconds that its steps are timed in differs from that of the whole run: the
reference kernel's mean over ten seconds by 0.033 from that over the run (root mean square, twelve runs on an EPYC)."""
LOOKED_UP_SHARE = 0.95
"""Of a step's kernel time, from which on its kernels count as measured."""
HOST_PRIOR_S = 1e-5
"""How far the host time of a call is expected from 0 [s]."""
LEAST_NETWORKS = 3
"""From which on networks are left out in turn: with fewer, the fit to the others would be that to a single one."""
LEAST_SCALE, LARGEST_SCALE = 0.8, 1.2
"""Between which steps and their kernels go together. The scale was 0.95 to 1.11 in forty calibrations of a CPU with
little else to do, 0.50 to 0.74 in seven while other work kept it busy and in one of 20 s, with few kernels timed; it is
drawn to 1, and host time takes its part, so that steps twice as long as their kernels give 1.22."""

POOR = 0.3
"""Held-out error above which overheads are called poor: it was 0.03 to 0.25 in calibrations of a CPU, 0.47 and 0.52
in two short ones, with few kernels timed; of steps a thousand times too long it is 1."""


def overheads_doubt(overheads: Entry) -> str:
    """Return that steps and their kernels do not go together, with the likely cause and the remedy, else ''.

    So does a poor held-out error: with few steps, or steps that disagree, the scale stays near 1 whatever they say.
    """
    scale, error = overheads.coefficients["kernel_scale"], overheads.held_out_error or 0.0
    steps = f"training steps in {overheads.precision or 'fp32'}"
    again = "calibrate again on a quiet machine, or with a larger --budget"
    if not LEAST_SCALE <= scale <= LARGEST_SCALE:
        which = "kernels" if scale < 1 else "steps"
        return (
            f"{steps} take {scale:.2f} times as long as their kernels timed one by one (kernel_scale): most likely "
            f"other work slowed the machine down while {which} were timed, or too few kernels were; {again}"
        )
    if error > POOR:
        return (
            f"{steps} are {error:.0%} off what their kernels and the steps of other networks say (held-out error), so "
            f"that overheads are poor: most likely other work slowed the machine down while some were timed, or too "
            f"few kernels were; {again}"
        )
    return ""


def times_over_kernels(entries: Sequence[Entry], steps: Sequence[TimedStep]) -> FloatArray:
    """Return the time of every step over the sum of its kernels, shape (n,).

    1 between that sum and the same with HOST_PRIOR_S a call, which longer times are compared with, and where the
    entries do not price every kernel.
    """
    own = tuple(entry for entry in entries if entry.scope == "kernels")
    measured = Calibration("measured", "", own)
    factors = np.ones(len(steps))
    for at, step in enumerate(steps):
        with contextlib.suppress(CoverageError):
            kernels_s, calls, _ = _kernels(fits_among(own, step.precision), measured, step, step.precision)
            factors[at] = step.time_s / np.clip(step.time_s, kernels_s, kernels_s + HOST_PRIOR_S * calls)
    return factors


def fit_overheads(
    entries: Sequence[Entry],
    steps: Sequence[TimedStep],
    framework: str = "pytorch",
    precision: str = "fp32",
    *,
    waits: bool = False,
) -> Entry:
    """Return the overheads s, h for which step time = s · sum of kernel times + h · kernel calls.

    Minimises Σ ((s·K + h·N)/t - 1)²/0.08² + (s - 1)²/0.05² + (h/10 us)², h >= 0: coefficients that the steps do not
    tell stay near 1 and 0. On a CPU what all steps have in common is partly the minute they were timed in: an error of
    0.03 that they share. Steps that no s and h go with within 0.08 have the error that this shows, and say less: their
    kernels were timed too little. Host time by layer and the exponent of the composition are not fitted. Where steps
    are there whose kernels were measured as they are, those alone count, with 0.03 for 0.08: their scale is free of
    errors of fits. Steps of three networks or more give a held-out error besides: all steps of a network are predicted
    by the fit to those of the others.

    Parameters
    ----------
    entries : sequence of Entry
        Kernel entries of the device that the steps ran on.
    steps : sequence of TimedStep
        At least one, all in ``precision``: forward and backward, without an update.
    framework, precision : str
        What is found in fp32 serves every precision without coefficients of its own.
    waits : bool
        Whether the host waits for every kernel, as on a CPU: then host and kernels add up in any network.

    Raises
    ------
    CoverageError
        The entries do not price every kernel of a step.
    """
    steps, timed = _timed(entries, steps, precision, CPU_DRIFT if waits else 0.0)
    fitted = timed.fitted(np.ones(len(steps), dtype=np.bool_))
    error = np.mean(np.abs(timed.predicted(fitted) / timed.times_s - 1))
    names = sorted({step.network.name for step in steps})
    exponents = _exponents(steps, waits=waits)
    entry = Entry(
        "overheads",
        framework,
        "",
        "" if precision == "fp32" else precision,
        "",
        "overheads",
        {},
        {"kernel_scale": fitted.scale, "host_s_per_call": fitted.host_s, "host_s_per_layer": 0.0, **exponents},
        {"kernel_scale": fitted.scale_error, "host_s_per_call": fitted.host_error_s},
        fixed=("host_s_per_layer", *exponents),
        samples=len(steps),
        error=float(error),
        estimator="ridge",
        source=f"training steps of {', '.join(names)}",
        notes="drawn towards 1 and 0",
    )
    return _scored(entry, steps, timed)


class _Fitted(NamedTuple):
    """Scale of kernels and host time of a call [s], and their standard errors."""

    scale: float
    host_s: float
    scale_error: float
    host_error_s: float


class _Timed(NamedTuple):
    """Kernel time [s], kernel calls and time [s] of n steps, shape (n,) each, and errors assumed of each and of all."""

    kernels_s: FloatArray
    calls: FloatArray
    times_s: FloatArray
    relative: float
    drift: float

    def fitted(self, rows: BoolArray) -> _Fitted:
        """Return what the steps of a mask, shape (n,), say: the shared error, in units of its own, is fitted along."""
        relative = max(self.relative, self._apart(rows))
        shared = np.full(self.times_s.size, self.drift) * self.times_s
        design = np.column_stack([self.kernels_s, self.calls, shared])[rows]
        design = np.vstack(
            [
                design / (relative * self.times_s[rows])[:, None],
                np.diag([1 / SCALE_PRIOR, 1 / HOST_PRIOR_S, 1.0]),
            ]
        )
        target = np.concatenate([np.full(int(rows.sum()), 1 / relative), [1 / SCALE_PRIOR, 0.0, 0.0]])
        errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design))).tolist()
        return _Fitted(*_solved(design, target)[:2], *errors[:2])

    def _apart(self, rows: BoolArray) -> float:
        """Return the relative error that steps show which no scale and host time go with, root mean square."""
        design = np.column_stack([self.kernels_s, self.calls])[rows] / self.times_s[rows][:, None]
        found = _solved(design, np.ones(len(design)))
        misses = design @ np.array(found) - 1
        free = len(design) - sum(value != 0 for value in found)
        return float(np.sqrt(misses @ misses / max(free, 1)))

    def predicted(self, fitted: _Fitted) -> FloatArray:
        """Return the time of every step [s], shape (n,)."""
        return fitted.scale * self.kernels_s + fitted.host_s * self.calls


def _timed(
    entries: Sequence[Entry], steps: Sequence[TimedStep], precision: str, drift: float
) -> tuple[Sequence[TimedStep], _Timed]:
    """Return the steps that count, and what a fit takes of them."""
    fits, measured = fits_among(entries, precision), Calibration("measured", "", tuple(entries))
    table = np.array([_kernels(fits, measured, step, precision) for step in steps])
    own = (table[:, 2] > 0) & (table[:, 2] >= LOOKED_UP_SHARE * table[:, 0])
    if own.any():
        steps, table = [step for step, is_own in zip(steps, own, strict=True) if is_own], table[own]
    relative = OWN_RELATIVE_ERROR if own.any() else RELATIVE_ERROR
    return steps, _Timed(table[:, 0], table[:, 1], np.array([step.time_s for step in steps]), relative, drift)


def _scored(entry: Entry, steps: Sequence[TimedStep], timed: _Timed) -> Entry:
    """Return an entry with its error on each network's steps by the fit to all others; as it is with too few."""
    names, network = np.unique([step.network.name for step in steps], return_inverse=True)
    if names.size < LEAST_NETWORKS:
        return entry

    def refit(rows: BoolArray) -> Callable[[BoolArray], FloatArray]:
        fitted = timed.fitted(rows)
        return lambda out: timed.predicted(fitted)[out]

    predicted, _ = held_out_times(refit, len(steps), network.astype(np.int64))
    found = errors_of(predicted, "network", timed.times_s)
    worst = steps[found.worst_row]
    poor = f"poor: {found.mean:.0%} off on networks left out; " if found.mean > POOR else ""
    return replace(
        entry,
        notes=f"{poor}{entry.notes}",
        held_out_error=found.mean,
        held_out_by=found.by,
        worst_error=found.worst,
        worst_point=f"{worst.network.name} at sub-batch {worst.sub_batch}: {format_seconds(worst.time_s)}",
    )


def _exponents(steps: Sequence[TimedStep], *, waits: bool) -> dict[str, float]:
    """Return the exponents that go with coefficients of a sum: 1, but the family's value where no step is of it."""
    fitted = set(EXPONENTS) if waits else {exponent_name(step.network) for step in steps}
    return {name: 1.0 if name in fitted else value for name, value in EXPONENTS.items()}


def _solved(design: FloatArray, target: FloatArray) -> list[float]:
    """Return the least-squares solution, p numbers; host time, the second, is 0 where it would be negative."""
    found: list[float] = np.linalg.lstsq(design, target, rcond=None)[0].tolist()
    if found[1] < 0:
        scale, *others = np.linalg.lstsq(np.delete(design, 1, axis=1), target, rcond=None)[0].tolist()
        found = [scale, 0.0, *others]
    return found


def _kernels(fits: Fits, measured: Calibration, step: TimedStep, precision: str) -> tuple[float, float, float]:
    """Return the sum of a step's kernel times [s], their number, and what of the sum was looked up [s]."""
    time_s, count, looked_up_s = 0.0, 0.0, 0.0
    sub_batch, itemsize = np.array([step.sub_batch]), precision_named(precision).activation_bytes
    own = LayerCalls(step.network, (measured,), optimizer="none", convolution="direct", precision=precision, fits=fits)
    lowered = lower(step.network, sub_batch, optimizer="none")
    for calls, source in (part for group in lowered for part in own.split(group, sub_batch)):
        entry = source.entry if source else _entry_of(fits, calls)
        work: Work = calls.looked_up or call_work(calls, itemsize)
        each = np.broadcast_to(evaluate(entry, work), (1, calls.layer.size))
        seconds = float((each * calls.count).sum())
        time_s += seconds
        looked_up_s += seconds if source else 0.0
        count += float(np.broadcast_to(calls.count, (1, calls.layer.size)).sum())
    return time_s, count, looked_up_s


def _entry_of(fits: Fits, calls: KernelCalls) -> Entry:
    """Return what serves calls that are not looked up."""
    entry = fits(calls.kind, calls.direction)
    if entry is None:
        raise CoverageError(f"kernels of a timed step must be fitted, got no entry for {calls.kind} {calls.direction}")
    return entry
