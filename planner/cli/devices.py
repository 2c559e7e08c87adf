"""Kernels that a device was not measured at: from siblings, from other precisions, of a scenario's from the present."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from planner import catalog
from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import DIRECTIONS, PRODUCT_KINDS
from planner.domain.provenance import NEAREST
from planner.steps.hardware import nearest_kernels, on_other_device, siblings_kernels, what_misses
from planner.steps.precisions import derived_precisions

__all__ = ["from_others", "from_precisions", "from_siblings", "with_device"]

NEAR = ("architecture", "vendor")
"""Relations of devices whose fits specify the kernels of another."""


def from_siblings(cluster: Cluster, calibrations: Iterable[Calibration]) -> tuple[Calibration, ...]:
    """Return what bundled calibrations of the same chip know of kernels that the given ones miss, scaled."""
    device = cluster.node.accelerator
    missing = what_misses(calibrations, cluster)
    siblings = catalog.sibling_calibrations(device, missing)
    return siblings_kernels(device, siblings, catalog.transfer_scores(), missing) if siblings else ()


def from_others(cluster: Cluster, calibrations: Sequence[Calibration]) -> tuple[Calibration, ...]:
    """Return what specifies convolutions and products that calibrations miss: fits of the nearest measured GPUs.

    Their origin is ``specified``: what was measured of other devices is no measurement of this one, and its overheads
    are those of specified kernels.
    """
    device = cluster.node.accelerator
    misses = what_misses(calibrations, cluster)

    def is_wanted(kind: str, direction: str, precision: str) -> bool:
        can = precision in device.peak_flop_per_s and (kind == "convolution" or device.has_matrix_units(precision))
        return can and kind in PRODUCT_KINDS and misses(kind, direction, precision)

    kernels = itertools.product(PRODUCT_KINDS, ("", *DIRECTIONS[:3]), device.peak_flop_per_s)
    precisions = {kernel[2] for kernel in kernels if is_wanted(*kernel)}
    others = catalog.sibling_calibrations(device, is_wanted, NEAR, precisions) if precisions else ()
    scaled = nearest_kernels(device, others, catalog.transfer_scores(), misses)
    found = (*scaled, *from_precisions(cluster, (*calibrations, *scaled)))
    return tuple(_specifying(one) for one in found)


def _specifying(calibration: Calibration) -> Calibration:
    entries = tuple(replace(entry, origin="specified") for entry in calibration.entries)
    return replace(calibration, entries=entries, made_from=replace(calibration.provenance, kind=NEAREST))


def from_precisions(cluster: Cluster, calibrations: Iterable[Calibration]) -> tuple[Calibration, ...]:
    """Return what calibrations say of precisions that they miss."""
    known = tuple(calibrations)
    missing = what_misses(known, cluster)
    return derived_precisions(cluster.node.accelerator, known, catalog.transfer_scores(), missing)


def with_device(
    cluster: Cluster, calibrations: Iterable[Calibration], device: Accelerator
) -> tuple[Cluster, tuple[Calibration, ...]]:
    """Return a cluster with another device, and what prices it.

    Kernels are those of the present device, scaled; what it was not measured in comes from the other device's bundled
    calibrations, then from its siblings. The other device's overheads are left out: they make up for its own kernels.
    """
    there, changed = on_other_device(cluster, device, calibrations, catalog.transfer_scores())
    missing = what_misses(changed, there)
    own = tuple(_kernels_of(one) for one in catalog.calibrations_for(there) if one.accelerator == device.name)
    wanted = (replace(one, entries=tuple(entry for entry in one.entries if missing(*entry.key[1:4]))) for one in own)
    changed += tuple(one for one in wanted if one.entries)
    return there, changed + from_siblings(there, changed)


def _kernels_of(calibration: Calibration) -> Calibration:
    entries = tuple(entry for entry in calibration.entries if entry.scope == "kernels")
    return replace(calibration, entries=entries, conformal={})
