"""Which calls of a network a calibration has measured as they are: those are looked up, the others are not.

What the device was not timed at, but another of the same chip, is looked up there and scaled by a ratio, or tells the
course of a call over sub-batches (:mod:`planner.sources.same_die`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.costs.features import vector
from planner.costs.measured_calls import COURSE, COURSE_ERROR, course
from planner.costs.terms import evaluate
from planner.costs.work import transposition
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.calls import LOOKED_UP, LayerCall, kind_of_kernel
from planner.domain.kernels import SERVED_BY, KernelCalls
from planner.domain.network import Network
from planner.domain.precision import precision_named
from planner.sources.same_die import common_times, course_of, ratio_of, scaled_table
from planner.sources.source import Source, source_of
from planner.workload.calls import layer_calls

__all__ = ["Fits", "LayerCalls"]

Fits = Callable[[str, str], Entry | None]
"""Kind and direction -> what is fitted to such kernels of the device, or None."""


class LayerCalls:
    """The measured calls of one network.

    Parameters
    ----------
    network : Network
    calibrations : tuple of Calibration
        Of the accelerator, in order: of several that hold a call the first serves it.
    optimizer : str
    convolution : str
        How convolutions are done.
    precision : str
    fits : callable, optional
        What tells the course of a call over the sub-batches between and beyond those that it was measured at.
    siblings : tuple of Calibration, optional
        Of other devices of the same chip, in order; they serve the calls that the others do not hold.
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
        siblings: tuple[Calibration, ...] = (),
    ) -> None:
        self._network, self._optimizer, self._convolution = network, optimizer, convolution
        self._fits, self._itemsize = fits, float(precision_named(precision).activation_bytes)
        self._sources = _tables(calibrations, precision)
        self._siblings = _tables(siblings, precision)
        self._places: dict[tuple[str, str], list[tuple[Source, IntArray, IntArray]]] = {}
        self._scaled: dict[tuple[str, str], list[tuple[Source, float]]] = {}

    @cached_property
    def _calls(self) -> Mapping[tuple[str, str], tuple[LayerCall, ...]]:
        return layer_calls(self._network, convolution=self._convolution, optimizer=self._optimizer)

    def _found(self, key: tuple[str, str]) -> list[tuple[Source, IntArray, IntArray]]:
        """Return (source, positions of the calls that it holds, their places in it) for a kind and direction."""
        if key not in self._sources and key not in self._siblings:
            return []
        if key not in self._places:
            names = [call.name for call in self._calls.get(key, ())]
            left = dict.fromkeys(range(len(names)))
            self._places[key] = []
            for source in (*self._sources.get(key, ()), *(source for source, _ in self._of_siblings(key))):
                place = {name: at for at, name in enumerate(sorted(source.entry.settings))}
                held = [at for at in left if names[at] in place]
                if held:
                    places = np.array([place[names[at]] for at in held])
                    self._places[key].append((source, np.array(held), places))
                left = {at: None for at in left if at not in held}
        return self._places[key]

    def _of_siblings(self, key: tuple[str, str]) -> list[tuple[Source, float]]:
        """Return the siblings' tables as they would be here, each with the error of what makes them so.

        Those are left out that nothing compares with the device, and those that the fit serves in place of.
        """
        if key not in self._scaled:
            own = [source.entry for source in self._sources.get(key, ()) if not source.provenance.device]
            self._scaled[key] = []
            for source in self._siblings.get(key, ()):
                fitted_s, error = self._fitted_as(key, source.entry)
                by_fit = [times / vector(source.entry.settings, name)[1::2] for name, times in fitted_s.items()]
                known = ratio_of(common_times(own, source.entry), np.concatenate([*by_fit, np.empty(0)]), error)
                if known is not None:
                    scaled = replace(source, entry=scaled_table(source.entry, known, fitted_s))
                    self._scaled[key].append((scaled, known.error))
        return self._scaled[key]

    def _fitted_as(self, key: tuple[str, str], table: Entry) -> tuple[dict[str, FloatArray], float | None]:
        """Return what fits say of calls at the sub-batches of a table that holds them [s], and their largest error."""
        found: dict[str, FloatArray] = {}
        errors = []
        for call in (call for call in self._calls.get(key, ()) if call.name in table.settings):
            fit = self._fits(kind_of_kernel(call.kind, call.layer), call.direction)
            error = None if fit is None else fit.miss
            if fit is not None and error is not None:
                found[call.name] = self._fitted_s(fit, [call], vector(table.settings, call.name)[::2])[:, 0]
                errors.append(error)
        return found, max(errors, default=None)

    def covers(self, calls: KernelCalls, wanted: BoolArray | None = None) -> bool:
        """Tell whether all calls of a kind and direction, or those of a mask of shape (k,), are looked up."""
        left = np.ones(calls.layer.size, dtype=np.bool_) if wanted is None else wanted.copy()
        for _, positions, _ in self._found((calls.kind, calls.direction)):
            left[positions] = False
        return not left.any()

    def split(
        self, calls: KernelCalls, sub_batch: IntArray, wanted: BoolArray | None = None
    ) -> Iterator[tuple[KernelCalls, Source | None]]:
        """Yield calls, or those of a mask of shape (k,), apart by what they are looked up in; None: in nothing.

        Those that are looked up carry their place in the table, the sub-batch, shape (s, 1), and where a fit or
        a sibling serves any of them their course with its error, each of shape (s, k).
        """
        found = self._found((calls.kind, calls.direction))
        rest = np.ones(calls.layer.size, dtype=np.bool_) if wanted is None else wanted.copy()
        for source, held, places_held in found:
            is_wanted = rest[held]
            positions, places = held[is_wanted], places_held[is_wanted]
            if not positions.size:
                continue
            rest[positions] = False
            part = _taken(calls, positions)
            made = [self._calls[calls.kind, calls.direction][at] for at in positions.tolist()]
            courses = self._courses(part, made, source.entry, sub_batch)
            yield replace(part, looked_up={"call": places, "samples": sub_batch[:, None], **courses}), source
        for kind in self._kinds(calls) if rest.any() else ():
            chosen = rest & (self._kind_of(calls) == kind)
            if chosen.any():
                part = calls if chosen.all() else _taken(calls, np.flatnonzero(chosen))
                yield part if kind == calls.kind else replace(part, kind=kind), None

    def _courses(
        self, calls: KernelCalls, made: list[LayerCall], table: Entry, sub_batch: IntArray
    ) -> dict[str, FloatArray]:
        """Return what fits say of calls that a table holds, in columns; nothing where none serves them.

        At sub-batches that a sibling was timed at, as at the measured ones around, it says so instead.
        """
        along, error = np.full((2, sub_batch.size, len(made)), np.nan)
        knots = [vector(table.settings, call.name)[::2] for call in made]
        every = np.unique(np.concatenate(knots))
        for kind in self._kinds(calls):
            fit, chosen = self._fits(kind, calls.direction), np.flatnonzero(self._kind_of(calls) == kind)
            known = None if fit is None else fit.miss
            if fit is None or known is None or not chosen.size:
                continue
            of_kind = [made[at] for at in chosen.tolist()]
            at_knots, fitted_s = (self._fitted_s(fit, of_kind, samples) for samples in (every, sub_batch))
            for column, at in enumerate(chosen.tolist()):
                known_s = at_knots[np.searchsorted(every, knots[at]), column]
                along[:, at] = course(sub_batch.astype(np.float64), fitted_s[:, column], knots[at], known_s)
            error[:, chosen] = known
        for source, unsure in reversed(self._of_siblings((calls.kind, calls.direction))):  # the first has the last word
            for at, call in enumerate(made):
                if call.name in source.entry.settings:
                    found = course_of(sub_batch, knots[at], vector(source.entry.settings, call.name))
                    told = np.isfinite(found)
                    along[told, at], error[told, at] = found[told], unsure
        return {} if np.isnan(error).all() else {COURSE: along, COURSE_ERROR: error}

    def _fitted_s(self, fit: Entry, calls: list[LayerCall], samples: FloatArray | IntArray) -> FloatArray:
        """Return what a fit says that k calls of one kind take at s sub-batches [s], shape (s, k)."""
        amounts = {name: np.array([call.work[name] for call in calls]).T for name in calls[0].work}
        work = {name: base + slope * samples[:, None] for name, (base, slope) in amounts.items()}
        sized = {**work, **transposition(calls[0].kind, calls[0].direction), "itemsize": self._itemsize}
        return evaluate(fit, sized)

    def _kinds(self, calls: KernelCalls) -> tuple[str, ...]:
        """Return the kinds of kernels that calls of a kind may be."""
        return (calls.kind, *[kind for kind, other in SERVED_BY.items() if other == calls.kind])

    def _kind_of(self, calls: KernelCalls) -> NDArray[np.str_]:
        """Return the kind of kernel of every call, shape (k,)."""
        if calls.kind not in SERVED_BY.values():
            return np.full(calls.layer.size, calls.kind)
        return np.array([kind_of_kernel(calls.kind, self._network.layers[at]) for at in calls.layer.tolist()])


def _tables(calibrations: Iterable[Calibration], precision: str) -> dict[tuple[str, str], list[Source]]:
    """Return the measured calls of calibrations by kind and direction, in order."""
    found: dict[tuple[str, str], list[Source]] = {}
    for calibration in calibrations:
        for entry in calibration.entries:
            if entry.term == LOOKED_UP and entry.precision in (precision, "any"):
                found.setdefault((entry.kind, entry.direction), []).append(source_of(entry, calibration))
    return found


def _taken(calls: KernelCalls, positions: IntArray) -> KernelCalls:
    """Return some of the calls."""
    size = calls.layer.size
    work = {
        name: values[..., positions] if values.shape[-1:] == (size,) else values for name, values in calls.work.items()
    }
    return replace(calls, layer=calls.layer[positions], count=calls.count[..., positions], work=work)
