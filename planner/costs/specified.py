"""Entries from specification sheets: peak rates times efficiencies, links, and entries of one device on another.

The efficiencies are assumptions, named here and repeated in every entry's notes. From specifications alone published
iteration times were missed by 30 to 54 % (three GPUs, 2017 frameworks), so a calibration is always better.

By what a coefficient is multiplied from one device to another follows from what its column counts:

- FLOP, whole tiles and waves of them: ratio of the peak rates of the precision; waves are counted with the other
  device's number of multiprocessors;
- FLOP of convolutions that matrix units multiply on both: ratio of the peak rates, or that of multiprocessors times
  clock where it says faster, but no faster than the other device's peak. Operands are gathered by instructions that a
  multiprocessor issues at its clock, so that convolutions stay below the peak; matrix units of consumer GPUs add in
  fp32 at half the rate of those of the same die (NVIDIA, GA102 white paper), but are fed as well. Where lanes of the
  chip are not known: as all FLOP;
- bytes, elements: ratio of the memory bandwidths;
- FLOP of one multiprocessor (steps of one tile's inner loop, ``k``): ratio of the rates of one, which is that of the
  clocks where multiprocessors are alike;
- FLOP of CUDA cores (exponentials, ``pairs``): ratio of the fp32 rates, as no matrix unit computes them;
- a call: nothing, a launch is the host's.

Tiles of channels are those of matrix units (tensor cores). A device that has none for a precision multiplies halves on
CUDA cores; two at a time add in fp16, but training adds in fp32 (Micikevicius et al., Mixed Precision Training,
ICLR 2018), at the rate of fp32. So a convolution there is what the first device's own fp32 entry tells of it, with
tensors of the precision's bytes, or else has no tiles.

Of a Gaussian process the linear term that it stands around is what is scaled: how a library's kernels depart from that
says little of another device.

Stored times of calls, of a grid or of a network's own layers, are no rates: the fits beside them are scaled. Floors are
those of the other device.

Between two precisions of one device that the same units compute (:func:`rate_ratio`), FLOP, tiles, waves and the inner
loop are multiplied by the ratio of the peak rates, and tensors have the bytes of the other precision; launches stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.costs.collectives import HOSTS, algorithms_between
from planner.costs.features import (
    BYTE,
    CUDA_CORES,
    ELEMENT,
    FASTER,
    FLOP,
    INTER_NODE,
    INTRA_NODE,
    MULTIPROCESSOR,
    WORK,
    Column,
    text,
    vector,
)
from planner.costs.gaussian_process import GAUSSIAN_PROCESS
from planner.costs.terms import term_named
from planner.domain.arrays import frozen_map
from planner.domain.calibration import Entry, SettingValue
from planner.domain.cluster import Accelerator, Cluster, Link
from planner.domain.kernels import ATTENTION, TRAFFIC_KINDS, WORK_COLUMNS
from planner.domain.network import LOOKED_UP
from planner.domain.precision import PRECISIONS
from planner.domain.samples import DECODE
from planner.errors import ParameterError
from planner.numbers import constant, constants
from planner.workload.calls import UPDATE_BYTES

ASSUMED_FLOP_EFFICIENCY = constants("specified.flop_efficiency")
"""Precision -> share of the peak rate that products and convolutions reach (docs/numbers.md).

No precision is slower than fp32 on the same GPU: where its peak is hardly higher, its share is larger."""
ATTENTION_EFFICIENCY = constants("specified.attention_efficiency")
"""Architecture -> share of the peak rate that fused attention reaches in 16 bits on matrix units (docs/numbers.md).

Its kernels are written for a generation; ``other`` has none of FlashAttention's, and takes those of CUTLASS."""
ISSUED_SHARE = {"Kepler": 2 / 3}
"""Architecture -> share of its CUDA cores that are busy where a scheduler issues one instruction at a time; else all.

A Kepler multiprocessor has 192 of them and four schedulers for 32 each: the others wait for a second instruction that
does not depend on the first (NVIDIA, Kepler GK110/210 white paper)."""
ASSUMED_BYTES_EFFICIENCY = constant("specified.bytes_efficiency")
"""Share of the memory bandwidth (docs/numbers.md)."""
ASSUMED_LAUNCH_S = constant("specified.launch_s")
"""A kernel call besides its work (docs/numbers.md)."""
ASSUMED_HOST_BYTES_PER_S = constant("specified.host_bytes_per_s")
"""Memory traffic of one host thread that adds gradients or updates weights."""

SUM_BYTES = 12
"""Host bytes per parameter that adding an fp32 gradient to a buffer moves: read, read, write."""


def specified_entry(accelerator: Accelerator, kind: str, direction: str, precision: str) -> Entry | None:
    """Return the roofline of an accelerator for a kind of kernel, or None where it does not have the precision."""
    peak = accelerator.peak_flop_per_s.get(precision)
    if peak is None:
        return None
    settings: dict[str, float | str | tuple[float, ...]] = {
        "peak_bytes_per_s": accelerator.memory_bytes_per_s,
        "bytes_efficiency": ASSUMED_BYTES_EFFICIENCY,
    }
    assumptions = f"{ASSUMED_BYTES_EFFICIENCY:.0%} of memory bandwidth, {ASSUMED_LAUNCH_S * 1e6:.0f} us a call"
    if kind not in TRAFFIC_KINDS:
        # At least as much as fp32 asks for: matrix units need not be used.
        plain = ASSUMED_FLOP_EFFICIENCY["fp32"] * accelerator.peak_flop_per_s.get("fp32", 0.0)
        assumed = ASSUMED_FLOP_EFFICIENCY[precision]
        if kind == ATTENTION and PRECISIONS[precision].weight_bytes == 2 and accelerator.has_matrix_units(precision):
            assumed = ATTENTION_EFFICIENCY.get(accelerator.architecture, ATTENTION_EFFICIENCY["other"])
        share = max(assumed, plain / peak)
        efficiency = share * ISSUED_SHARE.get(accelerator.architecture, 1.0)
        settings |= {"peak_flop_per_s": peak, "flop_efficiency": efficiency, "direction": direction}
        assumptions = f"{efficiency:.0%} of the peak rate, {assumptions}"
    return Entry(
        "kernels", kind, direction, precision, "", "roofline", settings,
        {"calls": ASSUMED_LAUNCH_S, "roofline_s": 1.0},
        fixed=("calls", "roofline_s"),
        origin="specified",
        source=accelerator.source or f"peak rates of {accelerator.name}",
        notes=f"assumed: {assumptions}",
    )  # fmt: skip


def at_issue_rate(accelerator: Accelerator) -> Accelerator:
    """Return an accelerator with the rates of the CUDA cores that are busy; see :data:`ISSUED_SHARE`."""
    share = ISSUED_SHARE.get(accelerator.architecture, 1.0)
    return replace(accelerator, peak_flop_per_s={name: share * x for name, x in accelerator.peak_flop_per_s.items()})


def _alpha_beta(link: Link | None) -> tuple[float, float]:
    return (link.latency_s, 1 / link.stream_bytes_per_s) if link else (0.0, 0.0)


def specified_collective(cluster: Cluster) -> Entry:
    """Return all-reduce from the cluster's links: alpha = latency, beta = 1/bandwidth of one stream, nothing lost.

    The algorithms are those that libraries choose from between such devices. A link that is not described is named in
    the setting ``unknown_links``; using it is refused.
    """
    links = {INTRA_NODE: cluster.intra_node, INTER_NODE: (between := _between_gpus(cluster))}
    unknown = [name for name, link in links.items() if link is None]
    adding = [name for name, link in links.items() if link and link.in_network_reduction]
    algorithms = " ".join(one.name for one in algorithms_between(cluster.node.accelerator.kind, adding=adding))
    (alpha_1, beta_1), (alpha_2, beta_2) = map(_alpha_beta, links.values())
    return Entry(
        "collectives", "all_reduce", "", "", "", "collective.alpha_beta",
        {
            "algorithms": algorithms,
            "unknown_links": " ".join(unknown),
            "beta_ratio": beta_2 / beta_1 if beta_1 and beta_2 else 0.0,
            **({"pair_ratio": between.pair_ratio} if between and between.pair_ratio > 1 else {}),
        },
        {"messages_inside": alpha_1, "bytes_inside": beta_1, "messages_between": alpha_2, "bytes_between": beta_2},
        origin="specified",
        source=f"links of cluster {cluster.name}",
        notes=f"assumed: full bandwidth{_held(between)}, stated latency a message, reduction free"
        f"{', in switches too' if adding else ''}, the best algorithm chosen"
        f"{', bytes cross hosts' if between != cluster.inter_node else ''}",
    )  # fmt: skip


def _between_gpus(cluster: Cluster) -> Link | None:
    """Return the link between nodes at the rate that GPUs reach it."""
    # Without direct access to their memory a byte goes to the host and from there to the adapter: twice over a PCIe
    # switch that both share, so at half its rate (NVIDIA/nccl #465: 6 of 12.5 GB/s); over another link at its rate.
    link, host = cluster.inter_node, cluster.host
    if link is None or host is None or link.gpu_direct is not False or cluster.node.accelerator.kind != "gpu":
        return link
    through_host = host.bytes_per_s / (2 if host.kind.startswith("pcie") else 1)
    return replace(link, bytes_per_s=min(link.bytes_per_s, through_host))


def _held(link: Link | None) -> str:
    """Return what holds a link below its bandwidth, in words; empty: nothing."""
    if link is None or link.stream_bytes_per_s == link.bytes_per_s:
        return ""
    return f" (between nodes that of one stream, {link.stream_bytes_per_s * 8e-9:.0f} Gb/s)"


def specified_host_collective(cluster: Cluster) -> Entry:
    """Return all-reduce between host buffers, one rank a node, over the inter-node link alone.

    Using a link that is not described is refused.
    """
    alpha, beta = _alpha_beta(link := cluster.inter_node)
    algorithms = algorithms_between(HOSTS, adding=[INTER_NODE] if link and link.in_network_reduction else ())
    *others, last = (one.words for one in algorithms)
    return Entry(
        "collectives", "all_reduce", "", "", "host", "collective.alpha_beta",
        {
            "algorithms": " ".join(one.name for one in algorithms),
            "unknown_links": "" if cluster.inter_node else "inter_node",
        },
        {"messages_inside": 0.0, "bytes_inside": 0.0, "messages_between": alpha, "bytes_between": beta},
        origin="specified",
        source=f"links of cluster {cluster.name}",
        notes=f"assumed between hosts: one rank a node, the best of {', '.join(others)} and {last}, full "
        f"bandwidth{_held(cluster.inter_node)}, stated latency a message",
    )  # fmt: skip


def specified_copy(cluster: Cluster) -> Entry | None:
    """Return the copy between host and device (work: bytes), or None where the host link is not described."""
    if cluster.host is None:
        return None
    alpha, beta = _alpha_beta(cluster.host)
    return Entry(
        "host", "copy", "", "", "", "host.bytes", {}, {"calls": alpha, "bytes": beta},
        origin="specified", source=f"links of cluster {cluster.name}", notes="assumed: full bandwidth of the host link",
    )  # fmt: skip


def specified_host(cluster: Cluster, kind: str, optimizer: str) -> Entry | None:
    """Return a host term of asynchronous training, ``update_gradient``, ``sum_gradient`` or ``update_weights``.

    ``update_gradient`` copies fp32 gradients out and weights in over the host link, None where it is not described; a
    CPU copies them in its own memory.
    ``update_weights`` moves the bytes of the optimizer (:data:`planner.workload.calls.UPDATE_BYTES`).
    """
    traffic = UPDATE_BYTES[optimizer] if kind == "update_weights" else SUM_BYTES
    per_parameter = traffic / ASSUMED_HOST_BYTES_PER_S
    if kind == "update_gradient":
        if cluster.host is None and cluster.node.accelerator.kind != "cpu":
            return None
        per_parameter += 8 / (cluster.host.bytes_per_s if cluster.host else ASSUMED_HOST_BYTES_PER_S)
    term, name = ("host.buffers", "buffer_parameters") if kind == "sum_gradient" else ("host.parameters", "parameters")
    return Entry(
        "host", kind, "", "", "", term, {}, {"calls": 0.0, name: per_parameter},
        origin="specified",
        source=f"links of cluster {cluster.name}",
        notes=f"assumed: {ASSUMED_HOST_BYTES_PER_S / 1e9:.0f} GB/s of host memory traffic in one thread",
    )  # fmt: skip


def specified_storage(cluster: Cluster) -> Entry | None:
    """Return reading from storage (work: bytes that one node reads, nodes), or None without storage."""
    if cluster.storage is None:
        return None
    return Entry(
        "storage", "load", "", "", "", "storage.bytes", {"shared": float(cluster.storage.shared)},
        {"bytes": 1 / cluster.storage.read_bytes_per_s},
        origin="specified", source=f"storage of cluster {cluster.name}", notes="assumed: full bandwidth",
    )  # fmt: skip


def assumed_decode() -> Entry:
    """Return decoding, cropping and resizing of JPEG images by one thread, in proportion to their bytes."""
    rate = constant("input.decode_bytes_per_s")
    return Entry(
        "storage", DECODE, "", "", "", "storage.decode", {}, {"samples": 0.0, "bytes": 1 / rate, "elements": 0.0},
        origin="assumed", source="docs/numbers.md",
        notes=f"assumed: {rate / 113e3:.0f} JPEG images of 113 kB a second and thread",
    )  # fmt: skip


ANY_PRECISION, WIDEST_PRECISION = "any", "fp32"
LANES_OF_CHIP: Mapping[str, int] = frozen_map(
    dict.fromkeys(("GV100", "TU102", "TU104", "GA100"), 64)
    | dict.fromkeys(("GA102", "AD102", "AD104", "GH100", "GB100", "GB202"), 128)
)
"""Chip with matrix units -> CUDA cores of a multiprocessor: its fp32 multiply-adds of a clock, by which the peak rate
tells the clock (NVIDIA, CUDA C++ Programming Guide, Throughput of native arithmetic instructions)."""
NARROW_MISS = constants("products.narrow_miss")
"""Precision -> relative error of products in 8 bits by those in 16 (docs/numbers.md)."""
CHANNEL_TERM = "convolution.channels"
PROCESS_SETTINGS = (
    "mean", "mean_coefficients", "around", "share", "processors", "launch_s", "points", "lengths", "nugget",
)  # fmt: skip
"""Settings of a Gaussian process that its linear term does not read."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """What times are multiplied by from one device to another: the first's rate over the second's.

    Attributes
    ----------
    flop : of the precision's peak rates
    wide : of the fp32 peak rates
    bytes : of the memory bandwidths
    processor : of the precision's peak rates of one multiprocessor
    fed : of multiprocessors times clocks, or of peak rates where these say faster, where matrix units compute the
        precision on both; None: not, or not known
    least_s : what one FLOP takes at the second's peak rate [s]
    """

    flop: float
    wide: float
    bytes: float
    processor: float
    fed: float | None = None
    least_s: float = 0.0


def ratios(source: Accelerator, target: Accelerator, precision: str) -> Ratios:
    """Return the ratios of a precision (``any``: fp32).

    ParameterError: one of the two does not have the precision.
    """
    name = WIDEST_PRECISION if precision == ANY_PRECISION else precision
    for device in (source, target):
        if name not in device.peak_flop_per_s:
            names = ", ".join(device.peak_flop_per_s)
            raise ParameterError("precision", f"one that {device.name} has ({names})", name)
    compute = source.peak_flop_per_s[name] / target.peak_flop_per_s[name]
    processors, fed = (target.multiprocessors or 1) / (source.multiprocessors or 1), None
    if all(one.has_matrix_units(name) and one.chip in LANES_OF_CHIP for one in (source, target)):
        here, there = (one.widest_flop_per_s / LANES_OF_CHIP[one.chip] for one in (source, target))
        fed = min(here / there, compute)
    return Ratios(
        compute,
        source.widest_flop_per_s / target.widest_flop_per_s,
        source.memory_bytes_per_s / target.memory_bytes_per_s,
        compute * (processors if source.multiprocessors and target.multiprocessors else 1.0),
        fed,
        1.0 / target.peak_flop_per_s[name],
    )


def scaled_entry(entry: Entry, source: Accelerator, target: Accelerator, beside: Iterable[Entry] = ()) -> Entry:
    """Return a kernel entry of ``source`` as it would be on ``target``; ``beside`` are others of ``source``.

    One in tiles of matrix units that the target lacks gives way to the fp32 entry of the same kernel beside it.
    Standard errors and covariance are scaled along; origin and held-out error stay those of the fit: how far a scaled
    entry is off is for the caller to say. Its notes name the device that it is from, and the ratios.

    ParameterError: the entry is of no kernel, or holds times as they were measured, or one of the devices lacks the
    precision.
    """
    if entry.scope != "kernels":
        raise ParameterError("entry to scale to another device", "one of kernels", entry.scope)
    of = ratios(source, target, entry.precision)
    if entry.term == LOOKED_UP or term_named(without_process(entry).term).link == "log":
        raise ParameterError("term to scale to another device", "a linear one", entry.term)
    of_flop = f"{of.flop:.3g}" if entry.kind != "convolution" or of.fed is None else f"{of.fed:.3g} up to the peak"
    origin = f"scaled from {source.name}: FLOP x {of_flop}, bytes x {of.bytes:.3g}"
    entry = without_process(entry)
    has_units = tuple(one.has_matrix_units(entry.precision) for one in (source, target))
    if entry.term == CHANNEL_TERM and has_units == (True, False):
        alike = (one for one in beside if replace(one, precision=entry.precision).key[:4] == entry.key[:4])
        wide = next((one for one in alike if one.precision == WIDEST_PRECISION and one.term != LOOKED_UP), None)
        if wide is not None:
            return _narrow(scaled_entry(wide, source, target), entry, target)
        entry = replace(entry, settings={**entry.settings, "tiles": (1.0, 1.0)})
    entry = replace(entry, settings=_settings(entry, target), notes="; ".join(filter(None, (origin, entry.notes))))
    return _multiplied(entry, of)


def rate_ratio(device: Accelerator, source: str, target: str) -> float | None:
    """Return the rate of FLOP in one precision over that in another; None where not the same units compute both.

    Halves on CUDA cores add in fp32 when they train, at its rate.
    """
    has_units = {device.has_matrix_units(name) for name in (source, target)}
    if device.kind != "gpu" or len(has_units) > 1 or not {source, target} <= device.peak_flop_per_s.keys():
        return None
    return device.peak_flop_per_s[source] / device.peak_flop_per_s[target] if has_units == {True} else 1.0


def in_8_bits(entry: Entry, device: Accelerator, precision: str) -> Entry | None:
    """Return a product's entry in 16 bits as it would be in 8, all else alike; None: other units compute these.

    Times are those in 16 bits of the very shape over the ratio of the peak rates, of which a share is reached
    (docs/numbers.md); casts of operands are kernels by themselves. None is known of its error where none is in 16 bits.
    """
    rate = rate_ratio(device, entry.precision, precision)
    if rate is None or not device.has_matrix_units(precision):
        return None
    faster = constants("products.narrow_share")[precision] / rate
    error = None if entry.miss is None else float(np.hypot(entry.miss, NARROW_MISS[precision]))
    notes = "; ".join(filter(None, (f"{faster:.3g} times as fast as in {entry.precision}", entry.notes)))
    return replace(
        entry, precision=precision, settings={**entry.settings, FASTER: faster}, notes=notes,
        held_out_error=error, held_out_by="precision", worst_error=None, sum_error=None,
    )  # fmt: skip


def in_precision(entry: Entry, device: Accelerator, precision: str, rate: float) -> Entry:
    """Return a kernel entry as it would be in another precision of its device, where FLOP take ``rate`` times as long.

    One of the same rate and bytes stays as it is. Ranges of bytes become those of the same shapes. Origin and held-out
    error stay those of the fit: how far a derived entry is off is for the caller to say.

    ParameterError: the entry holds times as they were measured.
    """
    sizes = PRECISIONS[precision].activation_bytes / PRECISIONS[entry.precision].activation_bytes
    is_alike = (rate, sizes) == (1.0, 1.0)
    linear = entry if is_alike else without_process(entry)
    if linear.term == LOOKED_UP or not (is_alike or term_named(linear.term).link == "identity"):
        raise ParameterError(f"term to derive {precision} from", "a linear one", linear.term)
    origin = f"derived from {entry.precision}: FLOP x {rate:.3g}, tensors x {sizes:.3g}"
    in_bytes = {one.name for one in term_named(linear.term).columns(linear.settings) if one.quantity == BYTE}
    ranges = {
        name: (low * sizes, high * sizes) if name in in_bytes else (low, high)
        for name, (low, high) in linear.ranges.items()
    }
    linear = replace(linear, precision=precision, ranges=ranges, notes="; ".join(filter(None, (origin, entry.notes))))
    return _multiplied(replace(linear, settings=_settings(linear, device)), Ratios(rate, 1.0, 1.0, rate))


def _multiplied(entry: Entry, of: Ratios) -> Entry:
    columns = term_named(entry.term).columns(entry.settings)
    factors = {one.name: _factor(one, of, moves_bytes=entry.kind in (*TRAFFIC_KINDS, "pointwise")) for one in columns}
    for name in (one.name for one in columns if one.quantity in (FLOP, WORK)):
        # No faster than the peak; one that is faster, as an algorithm that multiplies less makes it, stays as much so.
        if entry.kind == "convolution" and of.fed is not None:
            seconds = entry.coefficients[name]
            factors[name] = max(of.fed, min(of.flop, of.least_s / seconds) if seconds > 0 else of.flop)
    scale = np.array(list(factors.values()))
    covariance = None if entry.covariance is None else np.asarray(entry.covariance) * np.outer(scale, scale)
    return replace(
        entry,
        coefficients={name: value * factors[name] for name, value in entry.coefficients.items()},
        standard_errors={name: value * factors[name] for name, value in entry.standard_errors.items()},
        covariance=None if covariance is None else tuple(map(tuple, covariance.tolist())),
    )


def without_process(entry: Entry) -> Entry:
    """Return the linear entry that a Gaussian process stands around, without covariance; another entry as it is."""
    if entry.term != GAUSSIAN_PROCESS:
        return entry
    mean = term_named(text(entry.settings, "mean", ""))
    settings = {name: value for name, value in entry.settings.items() if name not in PROCESS_SETTINGS}
    names, values = mean.names(settings), vector(entry.settings, "mean_coefficients").tolist()
    ranges = {name: ends for name, ends in entry.ranges.items() if name in names or name in WORK_COLUMNS[entry.kind]}
    return replace(
        entry, term=mean.name, settings=settings, coefficients=dict(zip(names, values, strict=True)),
        standard_errors={}, covariance=None, fixed=tuple(name for name in entry.fixed if name in names), ranges=ranges,
    )  # fmt: skip


def _narrow(wide: Entry, entry: Entry, target: Accelerator) -> Entry:
    """Return an entry in fp32 for the key of another, with the floor of the other's precision."""
    floor = {"peak_flop_per_s": target.peak_flop_per_s[entry.precision]}
    settings = {name: floor.get(name, value) for name, value in wide.settings.items()}
    notes = f"as in fp32; {wide.notes}"
    return replace(wide, precision=entry.precision, library=entry.library, settings=settings, notes=notes)


def _settings(entry: Entry, target: Accelerator) -> dict[str, SettingValue]:
    """Return the settings with the peaks and the processor count of the other device, where they state any."""
    precision = WIDEST_PRECISION if entry.precision == ANY_PRECISION else entry.precision
    values: dict[str, SettingValue] = {
        "peak_flop_per_s": target.peak_flop_per_s[precision],
        "peak_bytes_per_s": target.counted_bytes_per_s(precision),
    }
    if entry.settings.get("multiprocessors") and target.multiprocessors:
        values["multiprocessors"] = float(target.multiprocessors)
    return {name: values.get(name, value) for name, value in entry.settings.items()}


def _factor(column: Column, of: Ratios, *, moves_bytes: bool) -> float:
    """Return what a column's coefficient is multiplied by, of a kind of kernels whose work is bytes, or is FLOP."""
    quantity = column.quantity
    if quantity == WORK:
        quantity = ELEMENT if moves_bytes else FLOP
    if quantity == FLOP:
        return {MULTIPROCESSOR: of.processor, CUDA_CORES: of.wide}.get(column.link, of.flop)
    return of.bytes if quantity in (BYTE, ELEMENT) else 1.0
