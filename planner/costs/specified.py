"""Entries from specification sheets: peak rates times assumed efficiencies, link latency and bandwidth.

The efficiencies are assumptions, named here and repeated in every entry's notes. From specifications alone published
iteration times were missed by 30 to 54 % (three GPUs, 2017 frameworks), so a calibration is always better.
"""

from __future__ import annotations

from dataclasses import replace

from planner.costs.collectives import HOSTS, algorithms_between
from planner.costs.features import INTER_NODE, INTRA_NODE
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator, Cluster, Link
from planner.domain.kernels import ATTENTION, TRAFFIC_KINDS
from planner.domain.precision import PRECISIONS
from planner.domain.samples import DECODE
from planner.numbers import constant, constants
from planner.workload.calls import UPDATE_BYTES

__all__ = [
    "ASSUMED_BYTES_EFFICIENCY", "ASSUMED_FLOP_EFFICIENCY", "ASSUMED_HOST_BYTES_PER_S", "ASSUMED_LAUNCH_S",
    "ISSUED_SHARE", "assumed_decode", "at_issue_rate", "specified_collective", "specified_copy", "specified_entry",
    "specified_host", "specified_host_collective", "specified_storage",
]  # fmt: skip

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
