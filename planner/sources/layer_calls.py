"""Times of calls of a network's layers as they were measured, and what devices of one die tell of each other.

Devices of one die differ in clocks, memory and how much of the die is on, so that their libraries choose alike, and own
times follow the other's by a ratio r. Calls that both were timed at, at the same sub-batches, tell it by their median
where there are LEAST_COMMON of them, else the own times of the device's fit over the other's; a fit that is known to
miss by less than these ratios differ serves in its place.

The fit knows of the call what the ratio does not. Times by both are brought together by their errors e and e_f on calls
that took no part, as those of two instruments are: with t the other's time and t_f the fit's, the logarithm of the own
time is log(r·t) + b·log(t_f / (r·t)), b = e² / (e² + e_f²). ``python -m validation.kernels`` scores all of it.

Of a call that the device was timed at, but not at this sub-batch, the other gives the scaling curve between or beyond
the device's own times, in place of a fit and as sure as its times are: libraries change kernels at sub-batches that no
fit foresees, but alike on one die.

What the device was not timed at, but a same-die device was, is looked up there and scaled by a ratio, or tells the
scaling curve of a call over sub-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.costs.features import vector
from planner.costs.measured_calls import CURVE, CURVE_ERROR, relative_curve
from planner.costs.terms import evaluate
from planner.costs.work import transposition
from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_values
from planner.domain.calibration import Calibration, Entry, SettingValue, relation
from planner.domain.cluster import Accelerator
from planner.domain.kernels import SERVED_BY, KernelCalls
from planner.domain.network import LOOKED_UP, LayerCall, Network, kind_of_kernel
from planner.domain.precision import precision_named
from planner.numbers import constant
from planner.sources.source import Source, source_of
from planner.workload.calls import layer_calls

LEAST_COMMON = int(constant("same_die.least_common"))
"""Times in common that say more of the ratio than a fit does (docs/numbers.md)."""
SQRT_2 = float(np.sqrt(2.0))
"""Two equal errors that know nothing of each other add up to one so many times as large."""


class Ratio(NamedTuple):
    """How own times follow from another device's.

    Attributes
    ----------
    value : own time over the other's, r
    error : mean relative error of own times by it
    weight_of_fit : share of the device's fit in the logarithm of own times, b
    """

    value: float
    error: float
    weight_of_fit: float = 0.0

    def times_s(self, theirs_s: FloatArray, fitted_s: FloatArray) -> FloatArray:
        """Return own times [s] by the other's and the fit's, shape (s,) each; not a number where no fit serves."""
        by_ratio_s = self.value * theirs_s
        fit = np.divide(fitted_s, by_ratio_s, out=np.ones(by_ratio_s.shape), where=fitted_s > 0)
        return np.asarray(by_ratio_s * fit**self.weight_of_fit)


def is_same_die(calibration: Calibration, device: Accelerator) -> bool:
    """Tell whether a calibration was measured on another device of the same chip."""
    other = None if calibration.node is None else calibration.node.accelerator
    return other is not None and other.name != device.name and relation(other, device) == "chip"


def common_ratios(tables: Iterable[Entry], other: Entry) -> FloatArray:
    """Return own times over another device's, of calls and sub-batches that both hold; the first of own ones count.

    ``tables``: of the device's measured calls, of the other's kind, direction and precision; ``other``: of measured
    calls.
    """
    own: dict[tuple[str, float], float] = {}
    for table in tables:
        for name, sub_batch, time_s in _timed(table):
            own.setdefault((name, sub_batch), time_s)
    return np.array([own[name, n] / time_s for name, n, time_s in _timed(other) if (name, n) in own])


def _timed(table: Entry) -> Iterator[tuple[str, float, float]]:
    """Yield name, sub-batch and time [s] of every measured call."""
    for name in table.settings:
        points = vector(table.settings, name).tolist()
        yield from ((name, n, time_s) for n, time_s in zip(points[::2], points[1::2], strict=True))


def ratio_of(common: FloatArray, by_fit: FloatArray, fit_error: float | None) -> Ratio | None:
    """Return how own times follow from another's; None where nothing tells it, or the fit serves in their place.

    Parameters
    ----------
    common : ndarray of shape (k,); own times over the other's, of calls that both were timed at
    by_fit : ndarray of shape (m,); times of the device's fit over the other's
    fit_error : of the fit on rows left out, which is that of its ratio too; None: it was never compared with any
    """
    if common.size >= LEAST_COMMON:
        left_out = np.array([np.median(np.delete(common, at)) for at in range(common.size)])
        error = float(np.mean(np.abs(left_out / common - 1)))
        ratio = Ratio(float(np.median(common)), error)
        if fit_error is None or not error:
            return ratio
        return Ratio(ratio.value, min(error, fit_error), error**2 / (error**2 + fit_error**2))
    if by_fit.size and fit_error is not None:
        ratio = Ratio(float(np.median(by_fit)), fit_error)
        # Its spread holds the fit's own misses: what is left of it is by how far ratios differ.
        differs = np.mean(np.abs(by_fit / ratio.value - 1)) > SQRT_2 * fit_error
        return None if differs else ratio
    return None


def same_die_curve(samples: IntArray, knots: FloatArray, points: FloatArray) -> FloatArray:
    """Return the scaling curve of a call by another device's times, shape of ``samples``; see :func:`relative_curve`.

    Not a number where the other was not timed, there or at the sub-batches of the device on both sides: what it would
    take in between is no surer than what the device would.

    ``samples``: ndarray of shape (s,), sub-batches; ``knots``: ndarray of shape (q,), at which the device was timed,
    ascending; ``points``: ndarray of shape (2p,), sub-batches of the other, ascending, each with its time [s].
    """
    times_s = dict(zip(points[::2].tolist(), points[1::2].tolist(), strict=True))
    there, at_knots = (np.array([times_s.get(n, np.nan) for n in of.tolist()]) for of in (samples, knots))
    return relative_curve(samples.astype(np.float64), there, knots, at_knots)


def scaled_table(other: Entry, ratio: Ratio, fitted_s: Mapping[str, FloatArray]) -> Entry:
    """Return the other's measured calls as they are on the device.

    Parameters
    ----------
    fitted_s : mapping of name to ndarray of shape (p,)
        What the device's fit says of calls at the sub-batches that the other was timed at [s].
    """
    times: dict[str, SettingValue] = {}
    for name in other.settings:
        sub_batch, theirs_s = vector(other.settings, name).reshape(-1, 2).T
        own_s = ratio.times_s(theirs_s, fitted_s.get(name, np.full(theirs_s.size, np.nan)))
        times[name] = tuple(np.column_stack([sub_batch, own_s]).ravel().tolist())
    error = float(np.hypot(other.held_out_error or other.error or 0.0, ratio.error))
    return replace(other, settings=times, held_out_error=error, held_out_by="gpu", worst_error=None, sum_error=None)


Key = tuple[str, str]
"""Kind and direction."""
Fits = Callable[[str, str], Entry | None]
"""Kind and direction -> what is fitted to such kernels of the device, or None."""


class _Holding(NamedTuple):
    """A table, the positions of the calls that are looked up in it, and their places in it, shape (k,) each."""

    source: Source
    calls: IntArray
    places: IntArray


class LayerCalls:
    """The measured calls of one network.

    Parameters
    ----------
    calibrations : of the accelerator, in order: of several that hold a call the first serves it
    convolution : how convolutions are done
    fits : give the scaling curve of a call between and beyond the sub-batches that it was measured at
    same_die : of same-die devices, in order; they serve the calls that the others do not hold
    """

    def __init__(
        self,
        network: Network,
        calibrations: tuple[Calibration, ...],
        *,
        optimizer: str,
        convolution: str,
        precision: str,
        fits: Fits = lambda _kind, _direction: None,
        same_die: tuple[Calibration, ...] = (),
    ) -> None:
        self._network, self._optimizer, self._convolution = network, optimizer, convolution
        self._fits, self._itemsize = fits, float(precision_named(precision).activation_bytes)
        self._own, self._same_die = _tables(calibrations, precision), _tables(same_die, precision)
        self._holdings: dict[Key, list[_Holding]] = {}
        self._scaled_tables: dict[Key, list[tuple[Source, float]]] = {}

    @cached_property
    def _calls(self) -> Mapping[Key, tuple[LayerCall, ...]]:
        return layer_calls(self._network, convolution=self._convolution, optimizer=self._optimizer)

    def _holdings_of(self, key: Key) -> list[_Holding]:
        """Return the tables that hold calls of a kind and direction, in order, each call in the first that has it."""
        if key not in self._own and key not in self._same_die:
            return []
        if key not in self._holdings:
            names = {at: call.name for at, call in enumerate(self._calls.get(key, ()))}
            self._holdings[key] = []
            for source in (*self._own.get(key, ()), *(source for source, _ in self._tables_of_same_die(key))):
                rows = {name: row for row, name in enumerate(sorted(source.entry.settings))}
                own = [at for at, name in names.items() if name in rows]
                if own:
                    places = np.array([rows[names.pop(at)] for at in own])
                    self._holdings[key].append(_Holding(source, np.array(own), places))
        return self._holdings[key]

    def _tables_of_same_die(self, key: Key) -> list[tuple[Source, float]]:
        """Return tables of same-die devices as they would be here, where that can be told, each with its error."""
        if key not in self._scaled_tables:
            own = [source.entry for source in self._own.get(key, ()) if not source.provenance.device]
            self._scaled_tables[key] = []
            for source in self._same_die.get(key, ()):
                fitted_s, error = self._fits_to_calls(key, source.entry)
                by_fit = [times / vector(source.entry.settings, name)[1::2] for name, times in fitted_s.items()]
                ratio = ratio_of(common_ratios(own, source.entry), np.concatenate([*by_fit, np.empty(0)]), error)
                if ratio is not None:
                    table = replace(source, entry=scaled_table(source.entry, ratio, fitted_s))
                    self._scaled_tables[key].append((table, ratio.error))
        return self._scaled_tables[key]

    def _fits_to_calls(self, key: Key, table: Entry) -> tuple[dict[str, FloatArray], float | None]:
        """Return what fits say of calls at the sub-batches of a table that holds them [s], and their largest error."""
        fitted_s: dict[str, FloatArray] = {}
        errors = []
        for call in (call for call in self._calls.get(key, ()) if call.name in table.settings):
            fit = self._fits(kind_of_kernel(call.kind, call.layer), call.direction)
            if fit is not None and fit.miss is not None:
                fitted_s[call.name] = self._fitted_s(fit, [call], vector(table.settings, call.name)[::2])[:, 0]
                errors.append(fit.miss)
        return fitted_s, max(errors, default=None)

    def covers(self, calls: KernelCalls, mask: BoolArray | None = None) -> bool:
        """Tell whether all calls of a kind and direction, or those of a mask of shape (k,), are looked up."""
        rest = np.ones(calls.layer.size, dtype=np.bool_) if mask is None else mask.copy()
        for holding in self._holdings_of((calls.kind, calls.direction)):
            rest[holding.calls] = False
        return not rest.any()

    def split(
        self, calls: KernelCalls, sub_batch: IntArray, mask: BoolArray | None = None
    ) -> Iterator[tuple[KernelCalls, Source | None]]:
        """Yield calls, or those of a mask of shape (k,), apart by what they are looked up in; None: in nothing.

        Those that are looked up carry their place in the table, the sub-batch, shape (s, 1), and where a fit or
        a same-die device serves any of them their scaling curve with its error, each of shape (s, k).
        """
        rest = np.ones(calls.layer.size, dtype=np.bool_) if mask is None else mask.copy()
        for source, own, places in self._holdings_of((calls.kind, calls.direction)):
            is_open = rest[own]
            positions = own[is_open]
            if positions.size:
                rest[positions] = False
                part = _some(calls, positions)
                table_calls = [self._calls[calls.kind, calls.direction][at] for at in positions.tolist()]
                curves, server = self._curves(part, table_calls, source, sub_batch)
                columns: dict[str, IntArray | FloatArray] = {
                    "call": places[is_open],
                    "samples": sub_batch[:, None],
                    **curves,
                }
                yield replace(part, looked_up=columns), server
        for kind in self._kinds(calls) if rest.any() else ():
            of_kind = rest & (self._kind_of(calls) == kind)
            if of_kind.any():
                part = calls if of_kind.all() else _some(calls, np.flatnonzero(of_kind))
                yield part if kind == calls.kind else replace(part, kind=kind), None

    def _curves(
        self, calls: KernelCalls, table_calls: list[LayerCall], source: Source, sub_batch: IntArray
    ) -> tuple[dict[str, FloatArray], Source]:
        """Return the scaling curves of calls in a table, in columns, none where none is known; and the table."""
        table, seen = source.entry, source.provenance.seen
        curve, error = np.full((2, sub_batch.size, len(table_calls)), np.nan)
        knots = [vector(table.settings, call.name)[::2] for call in table_calls]
        every = distinct_values(np.concatenate(knots))
        for kind in self._kinds(calls):
            fit, own = self._fits(kind, calls.direction), np.flatnonzero(self._kind_of(calls) == kind)
            if fit is None or fit.miss is None or not own.size:
                continue
            of_kind = [table_calls[at] for at in own.tolist()]
            at_knots, fitted_s = (self._fitted_s(fit, of_kind, samples) for samples in (every, sub_batch))
            for column, at in enumerate(own.tolist()):
                knots_s = at_knots[np.searchsorted(every, knots[at]), column]
                curve[:, at] = relative_curve(sub_batch.astype(np.float64), fitted_s[:, column], knots[at], knots_s)
            error[:, own] = fit.miss
        # At sub-batches that same-die devices were timed at curves are theirs; the first has the last word.
        for other, ratio_error in reversed(self._tables_of_same_die((calls.kind, calls.direction))):
            for at, call in enumerate(table_calls):
                if call.name in other.entry.settings:
                    own_curve = same_die_curve(sub_batch, knots[at], vector(other.entry.settings, call.name))
                    is_known = np.isfinite(own_curve)
                    seen = seen | other.provenance.seen if is_known.any() else seen
                    curve[is_known, at], error[is_known, at] = own_curve[is_known], ratio_error
        if seen != source.provenance.seen:
            source = replace(source, provenance=replace(source.provenance, seen=seen))
        return {} if np.isnan(error).all() else {CURVE: curve, CURVE_ERROR: error}, source

    def _fitted_s(self, fit: Entry, calls: list[LayerCall], samples: FloatArray | IntArray) -> FloatArray:
        """Return what a fit says that k calls of one kind take at s sub-batches [s], shape (s, k)."""
        amounts = {name: np.array([call.work[name] for call in calls]).T for name in calls[0].work}
        work = {name: base + slope * samples[:, None] for name, (base, slope) in amounts.items()}
        transposes = transposition(calls[0].kind, calls[0].direction)
        return evaluate(fit, {**work, **transposes, "itemsize": self._itemsize})

    def _kinds(self, calls: KernelCalls) -> tuple[str, ...]:
        """Return the kinds of kernels that calls of a kind may be."""
        return (calls.kind, *[kind for kind, other in SERVED_BY.items() if other == calls.kind])

    def _kind_of(self, calls: KernelCalls) -> NDArray[np.str_]:
        """Return the kind of kernel of every call, shape (k,)."""
        if calls.kind not in SERVED_BY.values():
            return np.full(calls.layer.size, calls.kind)
        return np.array([kind_of_kernel(calls.kind, self._network.layers[at]) for at in calls.layer.tolist()])


def _tables(calibrations: Iterable[Calibration], precision: str) -> dict[Key, list[Source]]:
    """Return the measured calls of calibrations by kind and direction, in order."""
    tables: dict[tuple[str, str], list[Source]] = {}
    for calibration in calibrations:
        for entry in calibration.entries:
            if entry.term == LOOKED_UP and entry.precision in (precision, "any"):
                tables.setdefault((entry.kind, entry.direction), []).append(source_of(entry, calibration))
    return tables


def _some(calls: KernelCalls, positions: IntArray) -> KernelCalls:
    """Return some of the calls."""
    size = calls.layer.size
    work = {
        name: values[..., positions] if values.shape[-1:] == (size,) else values for name, values in calls.work.items()
    }
    return replace(calls, layer=calls.layer[positions], count=calls.count[..., positions], work=work)
