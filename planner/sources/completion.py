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

SAME_DIE, RELATED = ("chip",), ("architecture", "vendor")
"""Relations of devices whose fits serve another, and of those whose fits specify it."""
WAYS = ("", *DIRECTIONS[:3])
Offers = Callable[[Accelerator, Missing, Collection[str], Collection[str]], tuple[Offer, ...]]
"""Device, missing kernels, relations, precisions of fits (none: whole calibrations) -> devices so near that hold any,
and their calibrations."""


def completions(
    cluster: Cluster, calibrations: Iterable[Calibration], offers: Offers, known: Transfers, *, named: bool
) -> Iterator[tuple[str, tuple[Calibration, ...]]]:
    """Yield in words, and as calibrations, what each source says of kernels that all before it miss."""
    device, every = cluster.node.accelerator, tuple(calibrations)
    misses = what_misses(every, cluster)
    found = same_die_fits(device, offers(device, misses, SAME_DIE, ()), known, misses)
    yield "bundled of a sibling", found
    if named:
        return
    every += found
    found = derived_precisions(device, every, known, what_misses(every, cluster))
    yield "derived from another precision", found
    every += found
    misses = what_misses(every, cluster)
    products = (k for k in product(PRODUCT_KINDS, WAYS, device.peak_flop_per_s) if is_taken_over(k[0], k[2], device))
    wanted = [kernel for kernel in products if misses(*kernel)]
    near = offers(device, lambda *kernel: kernel in wanted, RELATED, {name for *_, name in wanted}) if wanted else ()
    found = nearest_fits(device, near, known, misses)
    every += found
    found += derived_precisions(device, every, known, what_misses(every, cluster))
    yield "specified by another GPU", tuple(map(_specifying, found))


def _specifying(calibration: Calibration) -> Calibration:
    entries = tuple(replace(entry, origin="specified") for entry in calibration.entries)
    return replace(calibration, entries=entries, made_from=replace(calibration.provenance, kind=NEAREST))
