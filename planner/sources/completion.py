"""What serves kernels that the calibrations at hand miss, in order, as calibrations that stand behind them.

Fits of devices with the same die, scaled; fits of either in another precision of the same units; fits of the nearest
measured device, and these in other precisions. Beside calibrations that the user named, only the first. The last are
``specified``: what was measured of other devices is no measurement of this one, and its overheads are those of
specified kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import product

from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import DIRECTIONS, PRODUCT_KINDS
from planner.domain.provenance import NEAREST
from planner.domain.transfer import Transfers
from planner.sources.devices import Missing, Offer, is_taken_over, nearest_fits, same_die_fits, what_misses
from planner.sources.precisions import derived_precisions

__all__ = ["Offers", "completions"]

SAME_DIE_RELATIONS, NEAR_RELATIONS = ("chip",), ("architecture", "vendor")
"""Relations of devices whose fits serve another, and of those whose fits specify it."""
MATRIX_DIRECTIONS = ("", *DIRECTIONS[:3])
Offers = Callable[[Accelerator, Missing, Collection[str], Collection[str]], tuple[Offer, ...]]
"""Device, missing kernels, relations, precisions of fits (none: whole calibrations) -> devices so near that hold any,
and their calibrations."""


def completions(
    cluster: Cluster, calibrations: Iterable[Calibration], offers: Offers, transfers: Transfers, *, is_named: bool
) -> Iterator[tuple[str, tuple[Calibration, ...]]]:
    """Yield in words, and as calibrations, what each source says of kernels that all before it miss."""
    device, fits = cluster.node.accelerator, tuple(calibrations)
    misses = what_misses(fits, cluster)
    same_die = same_die_fits(device, offers(device, misses, SAME_DIE_RELATIONS, ()), transfers, misses)
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
    absent = [kernel for kernel in products if misses(*kernel)]
    precisions = {precision for *_, precision in absent}
    near = offers(device, lambda *kernel: kernel in absent, NEAR_RELATIONS, precisions) if absent else ()
    nearest = nearest_fits(device, near, transfers, misses)
    fits += nearest
    nearest += derived_precisions(device, fits, transfers, what_misses(fits, cluster))
    yield "specified by another GPU", tuple(map(_specifying, nearest))


def _specifying(calibration: Calibration) -> Calibration:
    entries = tuple(replace(entry, origin="specified") for entry in calibration.entries)
    return replace(calibration, entries=entries, made_from=replace(calibration.provenance, kind=NEAREST))
