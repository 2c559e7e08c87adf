"""Kernels of a device that was not measured, from calibrations of another: scaled by specification, with scores.

Three uses. A *sibling*, a device of the same chip, serves the kernels that no calibration of the device itself does.
Convolutions that none serves, and products of matrix units, are specified by the nearest device that was measured:
they reach the share of the peak rates that they reach there, where one assumed share would not tell them apart; for
products of lanes that share misses by less (docs/transfer.md). A scenario puts another device into the cluster: then
all kernels come from the present one. In each case only kernels are taken over; what is a reconstruction of one cluster
stays there. The held-out error of a scaled entry is that of devices predicted from others as near
(:mod:`planner.domain.transfer`), or its own where that is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import log

from planner.costs.scaling import scaled_entry
from planner.costs.specified import issued
from planner.domain.calibration import Calibration, Entry
from planner.domain.calls import LOOKED_UP
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import PRODUCT_KINDS, SERVED_BY, TRAFFIC_KINDS
from planner.domain.provenance import SCALED
from planner.domain.transfer import RELATIONS, Transfers, relation, score_for
from planner.errors import ParameterError
from planner.steps.source import is_used

__all__ = ["Missing", "as_scaled", "nearest_kernels", "on_other_device", "scaled_calibration", "siblings_kernels",
           "what_misses"]  # fmt: skip

POINTWISE = "pointwise"
Missing = Callable[[str, str, str], bool]
"""Kind, direction and precision of a kernel -> whether nothing serves it."""


def as_scaled(calibration: Calibration, kind: str) -> Calibration:
    """Return a calibration as what is made of it for another device, its entries as they are."""
    file, device = calibration.name, calibration.accelerator
    name = f"scaled from {device}" if file == device else f"{file} scaled from {device}"
    return replace(calibration, name=name, made_from=replace(calibration.provenance, kind=kind, device=device))


def scaled_calibration(
    calibration: Calibration,
    source: Accelerator,
    target: Accelerator,
    known: Transfers,
    wanted: Missing = lambda *_: True,
) -> Calibration:
    """Return the kernels of a calibration as they would be on another device; those that cannot be are left out.

    Parameters
    ----------
    calibration : Calibration
        Of ``source``.
    source, target : Accelerator
    known : Transfers
    wanted : Missing, optional
        Which kernels are asked for.
    """
    near, (before, after) = relation(source, target), (issued(source), issued(target))
    entries = []
    for entry in calibration.entries:
        if entry.scope != "kernels" or entry.origin == "reconstructed" or not wanted(*entry.key[1:4]):
            continue
        try:
            entries.append(_with_score(scaled_entry(entry, before, after, calibration.entries), known, near))
        except ParameterError:  # a precision that one of them lacks, or times of calls that are not told
            continue
    return replace(
        as_scaled(calibration, SCALED),
        accelerator=target.name,
        entries=tuple(entries),
        cluster=None,
        node=None,
        warnings=(_in_words(entries, source, target, known), *calibration.warnings),
        conformal={},
    )


def _in_words(entries: Iterable[Entry], source: Accelerator, target: Accelerator, known: Transfers) -> str:
    """Return how far off products and convolutions are, and where a few measurements of the device would do better."""
    near, own = relation(source, target), {(one.kind, one.precision): one.own for one in known.own_points}
    said = {}
    for entry in entries:
        score = score_for(known.scores, near, entry.kind, entry.precision)
        if score is not None and entry.kind in PRODUCT_KINDS:
            few = own.get((score.kind, score.precision))
            said[f"{entry.kind} {entry.precision}"] = f"{score.mean:.0%}{_instead(score.mean, few, known.points)}"
    missed = ", ".join(f"{kernels} {errors}" for kernels, errors in said.items())
    scored = f", which misses other GPUs on average by so much: {missed}" if missed else ""
    return (
        f"Kernels were scaled from {source.name} to {target.name} by their data sheets{scored}. `planner calibrate "
        f"--device cuda` times those of {target.name} itself, `--samples DIR` fits what others timed."
    )


def _instead(transfer: float, few: float | None, points: int) -> str:
    """Return what a fit to so many kernels of the device alone misses by, and whether that is less, in brackets."""
    if few is None:
        return ""
    better = "better" if round(few, 2) < round(transfer, 2) else "no better"
    return f" ({few:.0%} from {points} of its own alone: {better})"


def _with_score(entry: Entry, known: Transfers, near: str) -> Entry:
    """Return a scaled entry with the error of transfers; a specified one stays as unsure as specifications are."""
    score = score_for(known.scores, near, entry.kind, entry.precision)
    if entry.origin == "specified" or score is None:
        return entry
    own = (entry.error if entry.held_out_error is None else entry.held_out_error) or 0.0
    return replace(entry, held_out_error=max(score.mean, own), held_out_by="gpu", worst_error=None)


def what_misses(calibrations: Iterable[Calibration], cluster: Cluster) -> Missing:
    """Return what tells which kernels no calibration of the cluster's device serves."""
    served = {
        entry.key[1:4]
        for one in calibrations
        if one.computes(cluster)
        for entry in one.entries
        if entry.scope == "kernels" and entry.term != LOOKED_UP and is_used(entry)
    }

    def is_missing(kind: str, direction: str, precision: str) -> bool:
        kinds = {kind, POINTWISE} if kind in TRAFFIC_KINDS else {kind}
        kinds |= {SERVED_BY[kind]} if kind in SERVED_BY else set()
        ways = {direction, ""} if direction else {way for _, way, _ in served}
        return not any((k, d, p) in served for k in kinds for d in ways for p in {precision, "any"})

    return is_missing


def siblings_kernels(
    target: Accelerator,
    siblings: Iterable[tuple[Accelerator, Calibration]],
    known: Transfers,
    missing: Missing,
) -> tuple[Calibration, ...]:
    """Return what siblings know of kernels that the device's own calibrations miss, the least unsure of each first.

    Of several siblings that of the smallest error serves a kernel; it is the scored one of the transfer, unless the
    sibling's own fit is worse.
    """
    scaled = [scaled_calibration(one, device, target, known, missing) for device, one in siblings]
    best: dict[tuple[str, str, str], tuple[float, int]] = {}
    for at, one in enumerate(scaled):
        for entry in one.entries:
            rank = (_rank(entry), at)
            best[entry.key[1:4]] = min(rank, best.get(entry.key[1:4], rank))
    chosen = (
        replace(one, entries=tuple(entry for entry in one.entries if best[entry.key[1:4]][1] == at))
        for at, one in enumerate(scaled)
    )
    return tuple(one for one in chosen if one.entries)


def _rank(entry: Entry) -> float:
    return float("inf") if entry.held_out_error is None else entry.held_out_error


def nearest_kernels(
    target: Accelerator, others: Iterable[tuple[Accelerator, Calibration]], known: Transfers, missing: Missing
) -> tuple[Calibration, ...]:
    """Return fits of convolutions, and of products of matrix units, that nothing serves, of the nearest device each.

    Nearest: by relation, then by the data sheets (:func:`_apart`).
    """
    best: dict[tuple[str, str, str], tuple[int, float, int]] = {}
    found = tuple(others)
    for at, (device, one) in enumerate(found):
        for entry in one.entries:
            kernel = entry.key[1:4]
            if _can_specify(entry, device, target) and missing(*kernel):
                far = (RELATIONS.index(relation(device, target)), _apart(device, target, entry.precision), at)
                best[kernel] = min(far, best.get(kernel, far))
    chosen = []
    for at, (device, one) in enumerate(found):
        mine = tuple(
            entry
            for entry in one.entries
            if _can_specify(entry, device, target) and best.get(entry.key[1:4], (0, 0.0, -1))[-1] == at
        )
        if mine:
            chosen.append(scaled_calibration(replace(one, entries=mine), device, target, known))
    return tuple(one for one in chosen if one.entries)


def _can_specify(entry: Entry, device: Accelerator, target: Accelerator) -> bool:
    is_fit = entry.scope == "kernels" and entry.term != LOOKED_UP and entry.origin not in ("specified", "reconstructed")
    both = entry.precision in device.peak_flop_per_s.keys() & target.peak_flop_per_s.keys()
    of_units = all(one.has_matrix_units(entry.precision) for one in (device, target))
    is_wanted = entry.kind == "convolution" or (entry.kind == "gemm" and of_units)
    return device.kind == target.kind and is_fit and both and is_wanted


def _apart(one: Accelerator, other: Accelerator, precision: str) -> float:
    """Return how far two devices are apart: logarithms of their peak rates and memory bandwidths."""
    of_flop = log(one.peak_flop_per_s[precision] / other.peak_flop_per_s[precision])
    return abs(of_flop) + abs(log(one.memory_bytes_per_s / other.memory_bytes_per_s))


def on_other_device(
    cluster: Cluster,
    target: Accelerator,
    calibrations: Iterable[Calibration],
    known: Transfers,
) -> tuple[Cluster, tuple[Calibration, ...]]:
    """Return a cluster with another device, and its calibrations with kernels of the present one scaled to it.

    Links, storage and what the framework adds stay those of the cluster and of the present device: its hosts are the
    same. The price is not: it is that of another device, and not known.
    """
    source = cluster.node.accelerator
    changed: list[Calibration] = []
    for one in calibrations:
        if one.accelerator != source.name:
            changed.append(one)
            continue
        scaled = scaled_calibration(one, source, target, known)
        rest = tuple(entry for entry in one.entries if entry.scope != "kernels")
        kept = replace(one, accelerator=target.name, entries=rest, node=None, conformal={})
        changed += [*([scaled] if scaled.entries else []), *([kept] if rest else [])]
    node = replace(cluster.node, accelerator=target)
    return replace(cluster, node=node, usd_per_gpu_hour=None), tuple(changed)
