"""Kernels of a device that was not measured, from calibrations of another, scaled by specification; entries completed.

Three uses. A same-die device serves the kernels that no calibration of the device itself does. What none serves is
specified by the nearest device that was measured, where multiplying at the peak rate is not what bounds it:
convolutions, of which libraries choose algorithms that multiply less (Winograd, FFT) or more (padded tiles), and
products of matrix units, which multiply faster than they are fed. Products on CUDA cores are bound by these, and what
moves bytes by the memory: the stated share of a peak serves, alike on all devices. A scenario puts another device into
the cluster: then all kernels come from the present one. In each case only kernels are taken over; what is a
reconstruction of one cluster stays there. Fused attention is taken over on the same chip alone: from A100 to H100 and
back it is missed by 41 to 84 %, by data sheet by 22 to 46 % (calibrations/README.md). The held-out error of a scaled
entry is that of devices predicted from others as near, by the same units (:mod:`planner.domain.calibration`), or its
own where that is larger: for single shapes the mean error, for sums over the shapes of a network what whole devices are
missed by.

What serves kernels that the calibrations at hand miss, in order, as calibrations that stand behind them.

Fits of devices with the same die, scaled; fits of either in another precision of the same units; fits of the nearest
measured device, and these in other precisions. Beside calibrations that the user named, only the first. The last are
``specified``: what was measured of other devices is no measurement of this one, and its overheads are those of
specified kernels.

Kernels in a precision that a device was not measured in are derived from one that the same units compute: the fit of
the nearest measured precision, its FLOP by the ratio of the peak rates, its tensors by the bytes of an element
(:func:`planner.costs.specified.in_precision`). Across units nothing is derived: what CUDA cores reach says less of
tensor cores, and the reverse, than their data sheet (``python -m validation.transfer``). Nor is 8 bits:
:meth:`planner.sources.sources.Sources.find_kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf, log

from planner.costs.specified import at_issue_rate, in_precision, rate_ratio, scaled_entry
from planner.domain.calibration import (
    RELATIONS,
    UNITS,
    Calibration,
    Entry,
    Transfers,
    TransferScore,
    precision_score,
    relation,
    score_for,
    units_between,
    units_of,
)
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import ATTENTION, DIRECTIONS, MATRIX_KINDS, PRODUCT_KINDS, SERVED_BY, TRAFFIC_KINDS
from planner.domain.network import LOOKED_UP
from planner.domain.precision import PRECISIONS
from planner.domain.provenance import DERIVED, NEAREST, SCALED
from planner.errors import ParameterError
from planner.sources.source import is_used, unsure

POINTWISE = "pointwise"
Pair = tuple[Accelerator, Accelerator]
"""The device that was measured, and the one that is served."""
Offer = tuple[Accelerator, Calibration]
Missing = Callable[[str, str, str], bool]
"""Kind, direction and precision of a kernel -> whether nothing serves it."""


def as_scaled(calibration: Calibration, kind: str) -> Calibration:
    """Return a calibration as what is made of it for another device, its entries as they are."""
    file, device = calibration.name, calibration.accelerator
    name = f"scaled from {device}" if file == device else f"{file} scaled from {device}"
    return replace(calibration, name=name, made_from=replace(calibration.provenance, kind=kind, device=device))


def scaled_calibration(
    calibration: Calibration, source: Accelerator, target: Accelerator, transfers: Transfers
) -> Calibration:
    """Return the kernels of a calibration of ``source`` as they would be on ``target``; those that cannot be are left.

    Their held-out errors are those of transfers between devices as near; a specified one stays as unsure as it is.
    """
    return _made(calibration, _scaled(calibration, (source, target), transfers), (source, target), transfers)


def _scaled(
    calibration: Calibration, of: Pair, transfers: Transfers, is_wanted: Callable[[Entry], bool] = lambda _: True
) -> tuple[Entry, ...]:
    before, after = map(at_issue_rate, of)
    entries = []
    for entry in calibration.entries:
        reaches = entry.kind != ATTENTION or relation(*of) == "chip"
        if entry.scope == "kernels" and entry.origin != "reconstructed" and reaches and is_wanted(entry):
            with suppress(ParameterError):  # a precision that one of them lacks, or times of calls that are not told
                there = scaled_entry(entry, before, after, calibration.entries)
                score = _score(entry, of, transfers)
                if score is not None and entry.origin != "specified":
                    there = unsure(there, score.mean, "gpu", score.bias)
                entries.append(there)
    return tuple(entries)


def _score(entry: Entry, of: Pair, transfers: Transfers) -> TransferScore | None:
    units = units_between(*of, entry.kind, entry.precision)
    return score_for(transfers.scores, relation(*of), units, entry.kind, entry.precision)


def _made(calibration: Calibration, entries: tuple[Entry, ...], of: Pair, transfers: Transfers) -> Calibration:
    return replace(
        as_scaled(calibration, SCALED), accelerator=of[1].name, entries=entries, cluster=None, node=None,
        warnings=(_in_words(entries, *of, transfers), *calibration.warnings), conformal={},
    )  # fmt: skip


def _in_words(entries: Iterable[Entry], source: Accelerator, target: Accelerator, transfers: Transfers) -> str:
    """Return how far off products and convolutions are, and where a few measurements of the device would do better."""
    own = {(one.units, one.kind, one.precision): one.own for one in transfers.own_points}
    by_kernel = {}
    for entry in entries:
        score = _score(entry, (source, target), transfers)
        if score is not None and entry.kind in PRODUCT_KINDS:
            few = own.get((units_of(target, score.kind, score.precision), score.kind, score.precision))
            better = "better" if few is not None and round(few, 2) < round(score.mean, 2) else "no better"
            instead = "" if few is None else f" ({few:.0%} from {transfers.points} of its own alone: {better})"
            by_kernel[f"{entry.kind} {entry.precision}"] = (
                f"single shapes by {score.mean:.0%}{instead}, a network's sum by {score.bias:.0%}"
            )
    errors_in_words = "; ".join(f"{kernels}: {errors}" for kernels, errors in by_kernel.items())
    clause = f", which misses other GPUs on average by so much: {errors_in_words}" if errors_in_words else ""
    return (
        f"Kernels were scaled from {source.name} to {target.name} by their data sheets{clause}. `planner calibrate "
        f"--device cuda` times those of {target.name} itself, `--samples DIR` fits what others timed."
    )


def what_misses(calibrations: Iterable[Calibration], cluster: Cluster) -> Missing:
    """Return what tells which kernels no calibration of the cluster's device serves."""
    keys = {
        entry.key[1:4]
        for one in calibrations
        if one.computes(cluster)
        for entry in one.entries
        if entry.scope == "kernels" and entry.term != LOOKED_UP and is_used(entry)
    }

    def is_missing(kind: str, direction: str, precision: str) -> bool:
        kinds = {kind, POINTWISE} if kind in TRAFFIC_KINDS else {kind}
        kinds |= {SERVED_BY[kind]} if kind in SERVED_BY else set()
        ways = {direction, ""} if direction else {way for _, way, _ in keys}
        return not any((k, d, p) in keys for k in kinds for d in ways for p in {precision, "any"})

    return is_missing


def same_die_fits(
    target: Accelerator, offers: Iterable[Offer], transfers: Transfers, missing: Missing
) -> tuple[Calibration, ...]:
    """Return what devices of the same die know of kernels that the device's own calibrations miss.

    The least unsure serves a kernel: errors are the scored ones of the transfer, unless a fit's own is worse.
    """
    return _best(
        target, offers, transfers,
        lambda _, entry: missing(*entry.key[1:4]),
        lambda _, entry: (inf if entry.held_out_error is None else entry.held_out_error,),
    )  # fmt: skip


def nearest_fits(
    target: Accelerator, offers: Iterable[Offer], transfers: Transfers, missing: Missing
) -> tuple[Calibration, ...]:
    """Return fits of convolutions, and of products of matrix units, that nothing serves, of the nearest device each.

    Nearest: see :func:`distance`.
    """
    return _best(
        target, offers, transfers,
        lambda device, entry: entry.term != LOOKED_UP and entry.origin != "specified" and missing(*entry.key[1:4])
        and distance(target, device, entry.kind, entry.precision) is not None,
        lambda device, entry: distance(target, device, entry.kind, entry.precision) or (inf,),
    )  # fmt: skip


def _best(
    target: Accelerator,
    offers: Iterable[Offer],
    transfers: Transfers,
    is_wanted: Callable[[Accelerator, Entry], bool],
    rank: Callable[[Accelerator, Entry], tuple[float, ...]],
) -> tuple[Calibration, ...]:
    """Return wanted kernels of other devices, scaled; that of the least rank serves a kernel, of these the first."""
    every = tuple(offers)
    offer_entries = [_scaled(one, (device, target), transfers, partial(is_wanted, device)) for device, one in every]
    best: dict[tuple[str, str, str], tuple[tuple[float, ...], int]] = {}
    for at, ((device, _), entries) in enumerate(zip(every, offer_entries, strict=True)):
        for entry in entries:
            place = (rank(device, entry), at)
            best[entry.key[1:4]] = min(place, best.get(entry.key[1:4], place))
    by_offer = [
        tuple(one for one in entries if best[one.key[1:4]][1] == at) for at, entries in enumerate(offer_entries)
    ]
    return tuple(
        _made(one, entries, (device, target), transfers)
        for (device, one), entries in zip(every, by_offer, strict=True)
        if entries
    )


def distance(target: Accelerator, device: Accelerator, kind: str, precision: str) -> tuple[float, ...] | None:
    """Return how far a device is from another that its kernels may specify.

    By whether the same units multiply, by relation, then by the data sheets.

    None: kernels of that kind and precision do not specify it.
    """
    both = precision in device.peak_flop_per_s.keys() & target.peak_flop_per_s.keys()
    of_both = all(is_taken_over(kind, precision, one) for one in (device, target))
    if device.kind != target.kind or not both or not of_both:
        return None
    is_other = units_of(device, kind, precision) != units_of(target, kind, precision)
    of_flop = log(device.peak_flop_per_s[precision] / target.peak_flop_per_s[precision])
    apart = abs(of_flop) + abs(log(device.memory_bytes_per_s / target.memory_bytes_per_s))
    return is_other, RELATIONS.index(relation(device, target)), apart


def is_taken_over(kind: str, precision: str, device: Accelerator) -> bool:
    """Tell whether a kind of kernel is bound by other than the rate of the units: see the head of the module."""
    return kind == "convolution" or (kind == "gemm" and device.has_matrix_units(precision))


def on_other_device(
    cluster: Cluster,
    target: Accelerator,
    calibrations: Iterable[Calibration],
    transfers: Transfers,
    own: Iterable[Calibration] = (),
) -> tuple[Cluster, tuple[Calibration, ...]]:
    """Return a cluster with another device, and its calibrations with kernels of the present one scaled to it.

    What the present device was not measured in comes from ``own`` calibrations of the other; not its overheads, which
    make up for its own kernels. Links, storage and what the framework adds stay those of the cluster and of the present
    device: its hosts are the same. The price is not: it is that of another device, and not known.
    """
    source, there_calibrations = cluster.node.accelerator, []
    for one in calibrations:
        if one.accelerator != source.name:
            there_calibrations.append(one)
            continue
        rest = tuple(entry for entry in one.entries if entry.scope != "kernels")
        others = replace(one, accelerator=target.name, entries=rest, node=None, conformal={})
        there_calibrations += [scaled_calibration(one, source, target, transfers), others]
    there = replace(cluster, node=replace(cluster.node, accelerator=target), usd_per_gpu_hour=None)
    missing = what_misses(there_calibrations, there)
    for one in (one for one in own if one.accelerator == target.name):
        kernels = tuple(x for x in one.entries if x.scope == "kernels" and missing(*x.key[1:4]))
        there_calibrations.append(replace(one, entries=kernels, conformal={}))
    return there, tuple(one for one in there_calibrations if one.entries)


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
    is_scaled = origin.device and origin.device == origin.calibration  # then its name begins with that
    of = "" if is_scaled else "of "
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
    cluster: Cluster, calibrations: Iterable[Calibration], siblings: Siblings, nearest: Nearest, transfers: Transfers
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
    entries = (tuple(replace(entry, origin="specified") for entry in one.entries) for one in specifying)
    yield (
        "specified by another GPU",
        tuple(
            replace(one, entries=own, made_from=replace(one.provenance, kind=NEAREST))
            for one, own in zip(specifying, entries, strict=True)
        ),
    )
