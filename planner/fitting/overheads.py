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
from planner.domain.kernels import FORWARD, KernelCalls
from planner.domain.precision import precision_named
from planner.domain.training import TimedStep
from planner.errors import CoverageError
from planner.fitting.diagnostics import errors_of, held_out_times
from planner.fitting.layer_calls import fits_among
from planner.fitting.step_times import HOST_PRIOR_S, TimedSteps
from planner.numbers import constant, constants
from planner.sources.layer_calls import Fits, LayerCalls
from planner.steps.compute import call_work
from planner.units import format_seconds
from planner.workload.lowering import lower

__all__ = ["fit_overheads", "overheads_doubt", "times_over_kernels"]

RELATIVE_ERROR = 0.08
"""Assumed error of a step that is predicted from its kernels."""
OWN_RELATIVE_ERROR = 0.03
"""The same where its kernels were measured as they are."""
WEAK_RELATIVE_ERROR = 0.3
"""The same of others beside those: such a step still tells roughly what the host takes for a call."""
LOOKED_UP_SHARE = 0.95
"""Of a step's kernel time, from which on its kernels count as measured."""
LEAST_NETWORKS = 3
"""From which on networks are left out in turn: with fewer, the fit to the others would be that to a single one."""
SCALE_RANGE = constants("own_overheads.scale_range")
LEAST_SCALE, LARGEST_SCALE = SCALE_RANGE["least"], SCALE_RANGE["largest"]
"""Between which steps and their kernels go together (docs/numbers.md)."""
POOR_ERROR = constant("own_overheads.poor")
"""Held-out error above which overheads are called poor (docs/numbers.md)."""


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
    if error > POOR_ERROR:
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
    calibration = Calibration("measured", "", own)
    factors = np.ones(len(steps))
    for at, step in enumerate(steps):
        with contextlib.suppress(CoverageError):
            kernels = _kernels(fits_among(own, step.precision), calibration, step, step.precision)
            kernels_s, host_s = kernels.time_s.sum(), HOST_PRIOR_S * kernels.calls.sum()
            factors[at] = step.time_s / np.clip(step.time_s, kernels_s, kernels_s + host_s)
    return factors


def fit_overheads(
    entries: Sequence[Entry],
    steps: Sequence[TimedStep],
    framework: str = "pytorch",
    precision: str = "fp32",
    *,
    waits: bool = False,
    host_s: float = 0.0,
) -> Entry:
    """Return the overheads s, h, p for which step time = ((s·kernels)^p + (h·calls)^p)^(1/p).

    Kernels and calls are those of its forward and backward pass. Minimises Σ (predicted/t - 1)²/0.08² +
    (s - 1)²/0.05² + ((h - m)/max(m, 10 us))², h >= 0: coefficients that the steps do not tell stay near 1 and the host
    time m that was measured for a call, 0 without. On a CPU what all steps have in common is partly the minute they
    were timed in: an error of 0.03 that they share. Steps that no s, h and p go with within 0.08 have the error that
    this shows, and say less: their kernels were timed too little. Host time by layer is not fitted. Where steps are
    there whose kernels were measured as they are, these have 0.03 for 0.08, as their scale is free of errors of fits,
    and all others 0.3. Steps of three networks or more give a held-out error besides: all steps of a network are
    predicted by the fit to those of the others.

    p is 1 where the host waits. Else it is that of :mod:`planner.fitting.exponents` for a family of networks of which
    one has steps that span sub-batches by SPAN or more, if these tell it, and the family's value if not.

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
    host_s : float
        What the host takes for a call of a forward pass alone [s]; training takes more. 0: not measured.

    Raises
    ------
    CoverageError
        The entries price all kernels of no step. Single steps without are left out, which the notes say.
    """
    timed, left_out = _timed(entries, steps, precision, waits=waits, host_s=host_s)
    fit = timed.fitted(np.ones(len(timed.steps), dtype=np.bool_))
    error = np.mean(np.abs(timed.predicted(fit) / timed.times_s - 1)[timed.counts])
    names = sorted({step.network.name for step in timed.steps})
    of_runs = fit.exponents
    exponents = {name: of_runs[name].value if name in of_runs else value for name, value in timed.usual().items()}
    words = (f"{name} {'fitted' if name in of_runs else 'kept at the value of its family'}" for name in exponents)
    notes = (
        f"drawn towards 1 and {'the measured host time of a call' if host_s else '0'}",
        *(("host and device are one: times add",) if waits else words),
        *((f"without steps of {', '.join(left_out)}, whose kernels are not all fitted",) if left_out else ()),
    )
    entry = Entry(
        "overheads",
        framework,
        "",
        "" if precision == "fp32" else precision,
        "",
        "overheads",
        {},
        {"kernel_scale": fit.scale, "host_s_per_call": fit.host_s, "host_s_per_layer": 0.0, **exponents},
        {
            "kernel_scale": fit.scale_error,
            "host_s_per_call": fit.host_error_s,
            **{name: exponent.error for name, exponent in of_runs.items()},
        },
        fixed=("host_s_per_layer", *(name for name in exponents if name not in of_runs)),
        samples=len(timed.steps),
        error=float(error),
        estimator="ridge",
        source=f"training steps of {', '.join(names)}",
        notes="; ".join(notes),
    )
    return _scored(entry, timed)


def _timed(
    entries: Sequence[Entry], steps: Sequence[TimedStep], precision: str, *, waits: bool, host_s: float
) -> tuple[TimedSteps, tuple[str, ...]]:
    """Return what a fit takes of the steps, and the networks whose kernels are not all priced."""
    fits, calibration = fits_among(entries, precision), Calibration("measured", "", tuple(entries))
    priceable, kernels, missing = [], [], {}
    for step in steps:
        try:
            kernels.append(_kernels(fits, calibration, step, precision))
        except CoverageError as error:
            missing[step.network.name] = error
        else:
            priceable.append(step)
    if not priceable:
        raise next(iter(missing.values()))
    own = np.array([0 < one.time_s.sum() * LOOKED_UP_SHARE <= one.looked_up_s for one in kernels])
    relative = np.where(own, OWN_RELATIVE_ERROR, WEAK_RELATIVE_ERROR if own.any() else RELATIVE_ERROR)
    times, calls = (np.array([one[at] for one in kernels]) for at in (0, 1))
    return TimedSteps(priceable, times, calls, relative, waits, host_s), tuple(missing)


def _scored(entry: Entry, timed: TimedSteps) -> Entry:
    """Return an entry with its error on each network's steps by the fit to all others; as it is with too few."""
    sure = np.flatnonzero(timed.counts)
    steps = [timed.steps[at] for at in sure.tolist()]
    names, network = np.unique([step.network.name for step in steps], return_inverse=True)
    if names.size < LEAST_NETWORKS:
        return entry

    def refit(rows: BoolArray) -> Callable[[BoolArray], FloatArray]:
        rest = ~timed.counts
        rest[sure[rows]] = True
        left_out_s = timed.predicted(timed.fitted(rest))[sure]
        return lambda out: left_out_s[out]

    left_out_s, _ = held_out_times(refit, len(steps), network.astype(np.int64))
    errors = errors_of(left_out_s, "network", timed.times_s[sure])
    worst = steps[errors.worst_row]
    poor = f"poor: {errors.mean:.0%} off on networks left out; " if errors.mean > POOR_ERROR else ""
    return replace(
        entry,
        notes=f"{poor}{entry.notes}",
        held_out_error=errors.mean,
        held_out_by=errors.by,
        worst_error=errors.worst,
        worst_point=f"{worst.network.name} at sub-batch {worst.sub_batch}: {format_seconds(worst.time_s)}",
    )


class _Kernels(NamedTuple):
    """Kernel times [s] and their number in a step's forward and backward pass, shape (2,); what was looked up [s]."""

    time_s: FloatArray
    calls: FloatArray
    looked_up_s: float


def _kernels(fits: Fits, calibration: Calibration, step: TimedStep, precision: str) -> _Kernels:
    """Return the kernels of a step."""
    time_s, count, looked_up_s = np.zeros(2), np.zeros(2), 0.0
    sub_batch, itemsize = np.array([step.sub_batch]), precision_named(precision).activation_bytes
    own = LayerCalls(
        step.network, (calibration,), optimizer="none", convolution="direct", precision=precision, fits=fits
    )
    groups = lower(step.network, sub_batch, optimizer="none")
    for calls, source in (part for group in groups for part in own.split(group, sub_batch)):
        entry = source.entry if source else _entry_of(fits, calls)
        work: Work = calls.looked_up or call_work(calls, itemsize)
        each = np.broadcast_to(evaluate(entry, work), (1, calls.layer.size))
        seconds, at = float((each * calls.count).sum()), int(calls.direction != FORWARD)
        time_s[at] += seconds
        looked_up_s += seconds if source else 0.0
        count[at] += float(np.broadcast_to(calls.count, (1, calls.layer.size)).sum())
    return _Kernels(time_s, count, looked_up_s)


def _entry_of(fits: Fits, calls: KernelCalls) -> Entry:
    """Return what serves calls that are not looked up."""
    entry = fits(calls.kind, calls.direction)
    if entry is None:
        raise CoverageError(f"kernels of a timed step must be fitted, got no entry for {calls.kind} {calls.direction}")
    return entry
