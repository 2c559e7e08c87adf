"""What serves kernels that the calibrations at hand miss, in order, as calibrations that stand behind them.

Fits of devices with the same die, scaled; fits of either in another precision of the same units; fits of the nearest
measured device, and these in other precisions. Beside calibrations that the user named, only the first. The last are
``specified``: what was measured of other devices is no measurement of this one, and its overheads are those of
specified kernels.

Kernels in a precision that a device was not measured in are derived from one that the same units compute: the fit of
the nearest measured precision, its FLOP by the ratio of the peak rates, its tensors by the bytes of an element
(:func:`planner.costs.scaling.in_precision`). Across units nothing is derived: what CUDA cores reach says less of tensor
cores, and the reverse, than their data sheet (``python -m validation.transfer``). Nor is 8 bits:
:meth:`planner.sources.sources.Sources.find_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import log

from planner.costs.scaling import in_precision, rate_ratio
from planner.domain.calibration import Calibration, Entry
from planner.domain.calls import LOOKED_UP
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import ATTENTION, DIRECTIONS, MATRIX_KINDS, PRODUCT_KINDS
from planner.domain.precision import PRECISIONS
from planner.domain.provenance import DERIVED, NEAREST
from planner.domain.transfer import UNITS, Transfers, precision_score, relation
from planner.errors import ParameterError
from planner.sources.devices import Missing, Offer, distance, is_taken_over, nearest_fits, same_die_fits, what_misses
from planner.sources.source import unsure

__all__ = ["Nearest", "Siblings", "completions", "derived_precisions"]


def derived_precisions(
    device: Accelerator, calibrations: Iterable[Calibration], transfers: Transfers, missing: Missing
) -> tuple[Calibration, ...]:
    """Return what calibrations of a device say of its other precisions: one for each precision and what it is from.

    Of several precisions, or calibrations, that of the nearest rate serves a kernel that is missing, of these the
    first. Calibrations of other devices are passed over.
    """
    best: dict[tuple[str, str, str], tuple[float, Calibration, Entry]] = {}
    for calibration in (one for one in calibrations if one.accelerator == device.name):
        for entry in calibration.entries:
            for precision, rate in _within_reach(entry, device):
                key = (entry.kind, entry.direction, precision)
                if missing(*key) and (key not in best or abs(log(rate)) < abs(log(best[key][0]))):
                    best[key] = (rate, calibration, entry)
    parts: dict[tuple[str, str, str], tuple[Calibration, list[Entry]]] = {}
    for (_, _, precision), (rate, calibration, entry) in best.items():
        with suppress(ParameterError):  # a term that cannot be told in another precision
            there = in_precision(entry, device, precision, rate)
            units = UNITS[not device.has_matrix_units(precision)]
            score = precision_score(transfers.precisions, units, entry.kind, precision)
            scored_entry = there if score is None else unsure(there, score.mean, "precision")
            parts.setdefault((calibration.name, precision, entry.precision), (calibration, []))[1].append(scored_entry)
    return tuple(_calibration(one, entries, source) for (_, _, source), (one, entries) in parts.items())


def _within_reach(entry: Entry, device: Accelerator) -> Iterator[tuple[str, float]]:
    """Yield the other precisions that the units of a fit compute, and by what their FLOP take longer."""
    is_fit = entry.scope == "kernels" and entry.term != LOOKED_UP and entry.origin not in ("specified", "reconstructed")
    if not is_fit or entry.kind not in MATRIX_KINDS:
        return
    is_flash = entry.kind == ATTENTION and device.kind == "gpu"  # whose kernels compute in 16 bits alone
    for name in device.peak_flop_per_s:
        rate = rate_ratio(device, entry.precision, name)
        reaches = not is_flash or PRECISIONS[name].activation_bytes == PRECISIONS[entry.precision].activation_bytes
        if reaches and name != entry.precision and not PRECISIONS[name].measured_only and rate is not None:
            yield name, rate


def _calibration(calibration: Calibration, entries: list[Entry], source: str) -> Calibration:
    """Return derived entries as a calibration whose name and warning say from which precision."""
    precision = entries[0].precision
    errors = {f"{one.kind} {one.held_out_error:.0%}" for one in entries if one.held_out_error is not None}
    misses = f", and are expected to miss by so much: {', '.join(sorted(errors))}" if errors else ""
    warning = (
        f"{precision} kernels ({', '.join(dict.fromkeys(one.kind for one in entries))}) were derived from those in "
        f"{source}, which the same units compute, by the ratio of the peak rates and the bytes of an element{misses}; "
        f"`planner calibrate --device cuda --precision {precision}` measures them."
    )
    origin = calibration.provenance
    of = (
        "" if origin.device and origin.device == origin.calibration else "of "
    )  # else it begins with what was done to it
    return replace(
        calibration,
        name=f"{precision} derived from {source} {of}{calibration.name}",
        made_from=replace(origin, kind=DERIVED, precision=source),
        entries=tuple(entries),
        cluster=None,
        warnings=(warning, *calibration.warnings),
        conformal={},
    )


NEAR_RELATIONS = ("architecture", "vendor")
"""Relations of devices whose fits specify another."""
MATRIX_DIRECTIONS = ("", *DIRECTIONS[:3])
Distance = Callable[[Accelerator, str, str], tuple[float, ...] | None]
Siblings = Callable[[Accelerator, Missing], tuple[Offer, ...]]
"""Device, missing kernels -> devices of the same chip that hold any, and their calibrations."""
Nearest = Callable[[Accelerator, Missing, Distance], tuple[Offer, ...]]
"""Device, missing kernels, distance of another device for a kind and a precision (None: it does not serve) -> devices
that are nearest of any, and fits of what is missing."""


def completions(
    cluster: Cluster,
    calibrations: Iterable[Calibration],
    siblings: Siblings,
    nearest: Nearest,
    transfers: Transfers,
) -> Iterator[tuple[str, tuple[Calibration, ...]]]:
    """Yield in words, and as calibrations, what each source says of kernels that all before it miss."""
    device, fits = cluster.node.accelerator, tuple(calibrations)
    misses = what_misses(fits, cluster)
    same_die = same_die_fits(device, siblings(device, misses), transfers, misses)
    yield "bundled of a sibling", same_die
    fits += same_die
    from_precisions = derived_precisions(device, fits, transfers, what_misses(fits, cluster))
    yield "derived from another precision", from_precisions
    fits += from_precisions
    misses = what_misses(fits, cluster)
    products = (
        (kind, way, precision)
        for kind, way, precision in product(PRODUCT_KINDS, MATRIX_DIRECTIONS, device.peak_flop_per_s)
        if is_taken_over(kind, precision, device)
    )
    absent = {kernel for kernel in products if misses(*kernel)}

    def distance_if_near(other: Accelerator, kind: str, precision: str) -> tuple[float, ...] | None:
        return distance(device, other, kind, precision) if relation(other, device) in NEAR_RELATIONS else None

    near = nearest(device, lambda *kernel: kernel in absent, distance_if_near) if absent else ()
    specifying = nearest_fits(device, near, transfers, misses)
    fits += specifying
    specifying += derived_precisions(device, fits, transfers, what_misses(fits, cluster))
    yield "specified by another GPU", tuple(map(_specifying, specifying))


def _specifying(calibration: Calibration) -> Calibration:
    entries = tuple(replace(entry, origin="specified") for entry in calibration.entries)
    return replace(calibration, entries=entries, made_from=replace(calibration.provenance, kind=NEAREST))
