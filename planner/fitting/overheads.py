"""What a framework adds to its kernels, and the scale of kernels, from timed training steps."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.costs.features import Work
from planner.costs.terms import evaluate
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.kernels import FORWARD
from planner.domain.precision import precision_named
from planner.domain.samples import TimedStep
from planner.errors import CoverageError
from planner.fitting.estimators import errors_of, held_out_times, robust_least_squares
from planner.fitting.kernels import fits_among
from planner.numbers import constant, constants
from planner.sources.layer_calls import Fits, LayerCalls
from planner.sources.overheads import EXPONENTS, exponent_name
from planner.steps.compute import call_work
from planner.steps.host_and_gpu import composed_s, composed_slopes
from planner.units import format_seconds
from planner.workload.calls import lower

SCALE_PRIOR = 0.05
"""How far the scale of kernels is expected from 1: steps of one network share its errors."""
CPU_DRIFT = constant("step_times.cpu_drift")
"""By how much a CPU's speed in the seconds that its steps are timed in differs from that of the whole run
(docs/numbers.md)."""
HOST_PRIOR_S = 1e-5
"""How far the host time of a call is expected from 0, or at least from what was measured of a forward call [s]."""
STARTS = (1.0, 0.25, 0.05)
"""Of the host time of a call that the longest steps allow: where fits begin."""
TOLERANCE = 1e-12
"""Relative change at which a fit ends."""
FLAT_PRIOR_FACTOR = 1e6
"""So many times as wide as they are, priors say nothing."""
GRID = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
"""A sum, and up to nearly the longer of the two."""
SPAN = 8
"""Largest sub-batch of a network over its smallest, from which on steps are bound by the host here, the GPU there."""
REJECTION_LOSS = 3.84
"""Losses over the least one that reject an exponent (likelihood ratio, 95 %)."""
NORMAL_95 = 1.96
FREE_COUNT = 4
"""Coefficients of a fit, and the exponent."""


class Exponent(NamedTuple):
    """An exponent that the data tell, and its standard error."""

    value: float
    error: float


class Fitted(NamedTuple):
    """Scale of kernels and host time of a call [s], their standard errors, and exponents that the steps tell."""

    scale: float
    host_s: float
    scale_error: float
    host_error_s: float
    exponents: Mapping[str, Exponent]


class TimedSteps(NamedTuple):
    """n steps: kernel time [s] and calls of their passes, shape (n, 2), and errors assumed of each, shape (n,).

    ``host_s``: expected of a call. ``waits``: the host, for every kernel.
    """

    steps: Sequence[TimedStep]
    kernels_s: FloatArray
    calls: FloatArray
    relative: FloatArray
    waits: bool
    host_s: float

    @property
    def times_s(self) -> FloatArray:
        """Measured times [s], shape (n,)."""
        return np.array([step.time_s for step in self.steps])

    @property
    def counts(self) -> BoolArray:
        """Whether overheads are scored on a step, shape (n,): the surest are."""
        return np.asarray(self.relative == self.relative.min())

    def usual(self) -> dict[str, float]:
        """Return the exponents where the steps tell none."""
        return dict.fromkeys(EXPONENTS, 1.0) if self.waits else dict(EXPONENTS)

    def fitted(self, rows: BoolArray) -> Fitted:
        """Return what the steps of a mask, shape (n,), say."""
        exponents = {} if self.waits else self._exponents(rows)
        powers = self._powers(exponents)
        values, errors, _ = self.solved(rows, powers, self._seen(rows, powers))
        (scale, host_s, _), (scale_error, host_error_s, _) = values.tolist(), errors.tolist()
        return Fitted(scale, host_s, scale_error, host_error_s, exponents)

    def predicted(self, fit: Fitted) -> FloatArray:
        """Return the time of every step [s], shape (n,)."""
        return self._times_s(fit.scale, fit.host_s, self._powers(fit.exponents))

    def _times_s(self, scale: float, host_s: float, powers: FloatArray) -> FloatArray:
        """Return (Σ scale·kernels)^p + (Σ host_s·calls)^p)^(1/p) of every step [s], shape (n,)."""
        return composed_s(scale * self.kernels_s.sum(axis=1), host_s * self.calls.sum(axis=1), powers)

    def _exponents(self, rows: BoolArray) -> dict[str, Exponent]:
        """Return the exponents that the steps of a mask tell, one family after the other."""
        spans: dict[tuple[str, str], list[int]] = {}
        for step in itertools.compress(self.steps, rows):
            spans.setdefault((exponent_name(step.network), step.network.name), []).append(step.sub_batch)
        exponents: dict[str, Exponent] = {}
        for name in sorted({name for (name, _), some in spans.items() if max(some) >= SPAN * min(some)}):
            candidates = ({**exponents, name: Exponent(value, 0.0)} for value in GRID)
            losses = [self.solved(rows, self._powers(one), self.relative)[2] for one in candidates]
            exponent_of_runs = exponent_of_losses(losses, float(rows.sum()), EXPONENTS[name])
            exponents |= {name: exponent_of_runs} if exponent_of_runs else {}
        return exponents

    def _powers(self, exponents: Mapping[str, Exponent]) -> FloatArray:
        """Return the exponent of every step, shape (n,)."""
        values = self.usual() | {name: exponent.value for name, exponent in exponents.items()}
        return np.array([values[exponent_name(step.network)] for step in self.steps])

    def solved(
        self, rows: BoolArray, powers: FloatArray, relative: FloatArray, *, has_priors: bool = True
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return scale, host time and the shared error in its own units, (3,), their errors, (3,), and the squares.

        Parameters
        ----------
        rows : ndarray of bool, shape (n,)
        powers : ndarray of float, shape (n,); exponent of every step
        relative : ndarray of float, shape (n,); deviation of predicted over measured time
        has_priors : with priors, and on a CPU an error that all steps share
        """
        times_s, mean = self.times_s, np.array([1.0, self.host_s, 0.0])
        least = -np.append(mean[:2], np.inf)
        drift = CPU_DRIFT if self.waits and has_priors else 0.0
        deviations = np.array([SCALE_PRIOR, max(self.host_s, HOST_PRIOR_S), 1.0]) * (
            1.0 if has_priors else FLAT_PRIOR_FACTOR
        )

        def residuals(shift: FloatArray) -> FloatArray:
            scale, host_s, drift_share = (mean + shift).tolist()
            predicted = self._times_s(scale, host_s, powers)
            return np.asarray(((predicted / times_s - 1 + drift * drift_share) / relative)[rows])

        def jacobian(shift: FloatArray) -> FloatArray:
            scale, host_s, _ = (mean + shift).tolist()
            kernels, calls = self.kernels_s.sum(axis=1), self.calls.sum(axis=1)
            by_gpu, by_host = composed_slopes(scale * kernels, host_s * calls, powers)
            slopes = by_gpu * kernels / times_s, by_host * calls / times_s, np.full(len(times_s), drift)
            return np.asarray((np.column_stack(slopes) / relative[:, None])[rows])

        def search(host_s: float) -> tuple[FloatArray, FloatArray, float]:
            start, weights = np.array([0.0, host_s - self.host_s, 0.0]), np.ones(int(rows.sum()))
            shift, covariance = robust_least_squares(
                residuals, jacobian, start, deviations, weights, tolerance=TOLERANCE, huber=np.inf, least=least
            )
            squares = np.sum(residuals(shift) ** 2) + np.sum((shift / deviations) ** 2)
            return mean + shift, np.sqrt(np.diag(covariance)), float(squares)

        # From where the host rules all steps on: where it rules none, none says anything of it.
        most_s = float((times_s / self.calls.sum(axis=1))[rows].max())
        return min((search(share * most_s) for share in STARTS), key=lambda one: one[2])

    def _seen(self, rows: BoolArray, powers: FloatArray) -> FloatArray:
        """Return the relative error of every step, (n,): as assumed, or as no coefficients go with the surest steps."""
        surest = rows & (self.relative == self.relative[rows].min())
        values, _, squares = self.solved(surest, powers, np.ones_like(self.relative), has_priors=False)
        free = int(surest.sum()) - int(np.count_nonzero(values[:2]))
        return np.maximum(self.relative, float(np.sqrt(squares / max(free, 1))))


def exponent_of_losses(losses: Sequence[float], rows: float, usual: float) -> Exponent | None:
    """Return the exponent that the losses of GRID tell; None where they reject none.

    ``losses``: least sum of squares of residuals over their deviations, of each exponent of GRID; ``rows``: how many
    there are, by weight; ``usual``: the family's value, which is kept where it is accepted.
    """
    excess = max(1.0, min(losses) / max(rows - FREE_COUNT, 1.0))
    passing = [one for one, loss in zip(GRID, losses, strict=True) if (loss - min(losses)) / excess <= REJECTION_LOSS]
    if len(passing) == len(GRID):
        return None
    best = GRID[int(np.argmin(losses))]
    return Exponent(usual if usual in passing else best, (passing[-1] - passing[0]) / (2 * NORMAL_95))


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
    precision: str = "fp32",
    *,
    waits: bool = False,
    host_s: float = 0,
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

    p is 1 where the host waits. Else it is that of a family of networks of which one has steps that span sub-batches by
    SPAN or more, if these tell it (:func:`exponent_of_losses`), and the family's value if not.

    Parameters
    ----------
    entries : kernel entries of the device that the steps ran on
    steps : at least one, all in ``precision``: forward and backward, without an update
    precision : what is found in fp32 serves every precision without coefficients of its own
    waits : whether the host waits for every kernel, as on a CPU: then host and kernels add up in any network
    host_s : what the host takes for a call of a forward pass alone [s]; training takes more. 0: not measured

    CoverageError: the entries price all kernels of no step. Single steps without are left out, which the notes say.
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
        "pytorch",
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
        entry = source.entry if source else fits(calls.kind, calls.direction)
        if entry is None:
            got = f"no entry for {calls.kind} {calls.direction}"
            raise CoverageError(f"kernels of a timed step must be fitted, got {got}")
        work: Work = calls.looked_up or call_work(calls, itemsize)
        each = np.broadcast_to(evaluate(entry, work), (1, calls.layer.size))
        seconds, at = float((each * calls.count).sum()), int(calls.direction != FORWARD)
        time_s[at] += seconds
        looked_up_s += seconds if source else 0.0
        count[at] += float(np.broadcast_to(calls.count, (1, calls.layer.size)).sum())
    return _Kernels(time_s, count, looked_up_s)
