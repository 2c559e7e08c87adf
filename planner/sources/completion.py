"""What serves kernels that the calibrations at hand miss, in order, as calibrations that stand behind them.

Fits of devices with the same die, scaled; fits of either in another precision of the same units; fits of the nearest
measured device, and these in other precisions. Beside calibrations that the user named, only the first. The last are
``specified``: what was measured of other devices is no measurement of this one, and its overheads are those of
specified kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import DIRECTIONS, PRODUCT_KINDS
from planner.domain.provenance import NEAREST
from planner.domain.transfer import Transfers, relation
from planner.sources.devices import Missing, Offer, distance, is_taken_over, nearest_fits, same_die_fits, what_misses
from planner.sources.precisions import derived_precisions

__all__ = ["Nearest", "Siblings", "completions"]

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
    *,
    is_named: bool,
) -> Iterator[tuple[str, tuple[Calibration, ...]]]:
    """Yield in words, and as calibrations, what each source says of kernels that all before it miss."""
    device, fits = cluster.node.accelerator, tuple(calibrations)
    misses = what_misses(fits, cluster)
    same_die = same_die_fits(device, siblings(device, misses), transfers, misses)
    yield "bundled of a sibling", same_die
    if is_named:
        return
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
