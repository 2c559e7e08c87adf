"""What other links do to times: coefficients scale with the values that a scenario replaces, or by what runs showed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from planner.costs.collectives import (
    ALPHA_BETA,
    BYTES_BETWEEN,
    BYTES_INSIDE,
    CASES,
    COLUMNS,
    MESSAGES_INSIDE,
    case_list,
    collective_s,
    covers,
)
from planner.costs.features import BYTE, Column
from planner.costs.specified import specified_collective
from planner.costs.terms import term_named
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster, Link
from planner.domain.messages import ALL_REDUCE, OVERLAP, SEND_RECEIVE, Groups
from planner.errors import CoverageError, ParameterError
from planner.sources.source import Source, source_of

MULTIPLES = "specified"
"""Library of pooled collectives: by what times over links as specified are multiplied."""
INSIDE, BETWEEN = PLACES = "inside", "between"
"""Nodes: where a link runs."""
SOCKET = "socket_s_per_byte"
"""Setting of multiples: what the host takes to send a byte through a socket [s], where links have no direct access."""
RING_BYTES = (2.0**20, 2.0**28)
"""Buffers whose times tell the rate of a ring, where no range of a fit is known."""
SOCKETS = ("ethernet",)
"""Kinds of links whose messages go through sockets of the host."""
LARGE_BYTES = 2.0**24
COMPARED_BYTES, ALIKE = 2.0**20, 1.1
"""Buffer at which measured collectives are compared, and the ratio up to which they agree."""
WAIT = "wait"
"""Setting of multiples: the spread of steps among what links of a kind join."""


def with_links(entry: Entry, before: Cluster, after: Cluster) -> Entry:
    """Return a measured entry as it would be with other links.

    The coefficients per byte of a link scale with 1 / bandwidth, those per message or call with latency. Other entries
    than collectives and host copies stay. How far a scaled entry is off is not known.
    """
    if after == before or not (entry.scope == "collectives" or (entry.scope, entry.kind) == ("host", "copy")):
        return entry
    columns = term_named(entry.term).columns(entry.settings)
    factors = {one.name: _link_factor(one, before, after) for one in columns}
    settings = dict(entry.settings)
    if isinstance(ratio := settings.get("beta_ratio"), float):
        settings["beta_ratio"] = ratio * factors[BYTES_BETWEEN.name] / factors[BYTES_INSIDE.name]
    coefficients = {name: value * factors[name] for name, value in entry.coefficients.items()}
    return replace(
        entry, coefficients=coefficients, settings=settings, covariance=None, error=None, held_out_error=None
    )


def _link_factor(column: Column, before: Cluster, after: Cluster) -> float:
    """Return what a coefficient is multiplied by; ParameterError where that cannot be told."""
    link = column.link
    if not link:
        return 1.0
    old, new = getattr(before, link), getattr(after, link)
    if old == new:
        return 1.0
    if column.quantity == BYTE:
        return float(old.stream_bytes_per_s / new.stream_bytes_per_s)
    if old.latency_s == new.latency_s:
        return 1.0
    if old.latency_s == 0:
        remedy = "state it in the cluster's file, or leave the latency out of --scenario"
        raise ParameterError(
            f"latency of links.{link} of cluster {before.name}", "above 0 to scale measured times by another", 0, remedy
        )
    return float(new.latency_s / old.latency_s)


def slower(all_reduce: Entry, inside: float, between: float, socket_s: float = 0.0) -> Entry:
    """Return the specified all-reduce over links inside and between nodes that take so many times longer a byte.

    ``socket_s``: what a byte between nodes takes of the host besides [s].
    """
    coefficients = dict(all_reduce.coefficients)
    coefficients[BYTES_INSIDE.name] *= inside
    coefficients[BYTES_BETWEEN.name] = coefficients[BYTES_BETWEEN.name] * between + socket_s
    return _with_ratio(replace(all_reduce, coefficients=coefficients))


def _with_ratio(all_reduce: Entry) -> Entry:
    """Return an all-reduce with the ratio of its bytes between nodes and inside, by which the slower link is told."""
    inside, between = (all_reduce.coefficients[one.name] for one in (BYTES_INSIDE, BYTES_BETWEEN))
    ratio = float(between / inside) if inside else 0.0
    return replace(all_reduce, settings={**all_reduce.settings, "beta_ratio": ratio})


def of_node(kind: str, chip: str) -> str:
    """Return the library of collectives that were measured inside nodes of a chip and kind of link."""
    return f"{kind}:{chip}"


def measured_inside(cluster: Cluster, pooled: Iterable[Calibration]) -> Entry | None:
    """Return the all-reduce that was measured inside nodes of the same chip and kind of link, or None."""
    chip = cluster.node.accelerator.chip
    if cluster.intra_node is None or not chip:
        return None
    key = "collectives", of_node(cluster.intra_node.kind, chip)
    return next((one for some in pooled for one in some.entries if (one.scope, one.library) == key), None)


def between_devices(before: Cluster, after: Cluster, inside: Entry | None) -> Entry:
    """Return the all-reduce over the links of a cluster, as specified; inside nodes as it was measured, if it was.

    ``after`` is the cluster with the links that a scenario gives it.
    """
    entry, link, now = specified_collective(after), before.intra_node, after.intra_node
    if inside is None or link is None or now is None:
        return entry
    coefficients = dict(entry.coefficients)
    coefficients[BYTES_INSIDE.name] = inside.coefficients[BYTES_INSIDE.name] * (
        link.stream_bytes_per_s / now.stream_bytes_per_s
    )
    slower_start = now.latency_s / link.latency_s if link.latency_s else 1.0
    coefficients[MESSAGES_INSIDE.name] = inside.coefficients[MESSAGES_INSIDE.name] * slower_start
    notes = f"{entry.notes}; inside nodes as measured ({inside.source})"
    return _with_ratio(replace(entry, coefficients=coefficients, notes=notes))


def multiples_of_kind(where: str, kind: str) -> str:
    """Return the library of multiples that runs over links of one kind, INSIDE or BETWEEN nodes, showed."""
    return f"{MULTIPLES}:{where}:{without_generation(kind)}"


def without_generation(kind: str) -> str:
    """Return a kind of link without its generation, which its stated rate tells.

    >>> without_generation("pcie4"), without_generation("nvlink")
    ('pcie', 'nvlink')
    """
    return kind.rstrip("0123456789")


def beyond_measured(measured: Entry, sheet: Callable[[Entry | None], Entry], cluster: Cluster) -> Entry:
    """Return a measured collective that says nothing of groups across nodes, or inside them, with what serves those.

    ``sheet``: the all-reduce over a cluster's links, inside nodes as an all-reduce that was measured there, if any.
    """
    links = {1.0: cluster.intra_node, 2.0: cluster.inter_node}
    if measured.term != CASES or all(covers(measured.settings, np.array(nodes)) for nodes in links if links[nodes]):
        return measured
    inside = _ring(measured) if measured.kind == ALL_REDUCE and covers(measured.settings, np.array(1)) else None
    other = sheet(inside)
    return replace(
        measured,
        settings={**other.settings, **measured.settings},
        coefficients={**measured.coefficients, **other.coefficients},
        covariance=None,
    )


def _ring(measured: Entry) -> Entry:
    """Return the start-up of a message and the time of a byte of a ring, as the most ranks inside a node show them."""
    ranks = max(case[1] for case in case_list(measured.settings) if case[0] == 1)
    groups = Groups(np.ones(1, dtype=np.int64), np.array([ranks]), np.ones(1))
    sizes = np.array([0.0, *measured.ranges.get("bytes", RING_BYTES)])
    times = collective_s(measured, measured.kind, sizes, groups)[0]
    slope = float((times[2] - times[1]) / (sizes[2] - sizes[1])) if sizes[2] > sizes[1] else 0.0
    values = dict.fromkeys((one.name for one in COLUMNS), 0.0)
    values[MESSAGES_INSIDE.name] = float(times[0]) / (2 * (ranks - 1))
    values[BYTES_INSIDE.name] = slope * ranks / (2 * (ranks - 1))
    return replace(measured, term=ALPHA_BETA, coefficients=values, settings={}, covariance=None)


def as_elsewhere(cluster: Cluster, all_reduce: Entry, inside: Entry | None, pooled: Iterable[Calibration]) -> Source:
    """Return the all-reduce as much slower as runs over its kinds of links were, if pooled calibrations tell.

    Links of other kinds, and nodes whose links were measured, stay as they are.
    """
    found = dict(_of_kinds(cluster, pooled))
    if inside is not None:
        found.pop(INSIDE, None)
    if not found:
        return source_of(all_reduce)
    times = [
        found[where][1].coefficients[column.name] if where in found else 1.0
        for where, column in ((INSIDE, BYTES_INSIDE), (BETWEEN, BYTES_BETWEEN))
    ]
    socket_s = _setting(found[BETWEEN][1], SOCKET) if BETWEEN in found else 0.0
    parts = [f"{times[at]:.3g} times as long {where} nodes" for at, where in enumerate(PLACES) if where in found]
    words = f"as in runs elsewhere, a byte takes {' and '.join(parts)}"
    words += f" and {socket_s * 1e9:.3g} ns of the host besides" if socket_s else ""
    entry = replace(slower(all_reduce, times[0], times[1], socket_s), notes=f"{all_reduce.notes}; {words}")
    return source_of(entry, next(iter(found.values()))[0])


def contradictions(calibrations: Iterable[Calibration], cluster: Cluster) -> Iterator[str]:
    """Yield a sentence for calibrations that measured links of a cluster unequally: the first serves each."""
    first: dict[tuple[str, str, int], tuple[str, float]] = {}
    ratios: dict[tuple[str, str, str], list[str]] = {}
    timed = (
        (one.name, entry, nodes, ranks)
        for one in calibrations
        for entry in one.entries
        if one.cluster == cluster.name and entry.scope == "collectives" and entry.kind != OVERLAP
        for nodes, ranks in ((1, 2), (2, 1))
    )
    for name, entry, nodes, ranks in timed:
        groups = Groups(np.array([nodes]), np.array([ranks]), np.ones(1))
        with suppress(CoverageError):
            seconds = float(collective_s(entry, entry.kind, np.array([COMPARED_BYTES]), groups)[0, 0])
            serves, by_first_s = first.setdefault((entry.kind, entry.library, nodes), (name, seconds))
            ratio = seconds / by_first_s if by_first_s else 1.0
            if name != serves and not 1 / ALIKE < ratio < ALIKE:
                where = "between nodes" if nodes > 1 else "inside nodes"
                ratios.setdefault((serves, name, where), []).append(f"{entry.kind.replace('_', '-')} {ratio:.2g}")
    for (serves, name, where), some in ratios.items():
        ours, theirs = (
            f"messages {where} are those of {serves}, named first",
            f"in {name} 1 MiB takes {', '.join(some)}",
        )
        yield f"{ours}: {theirs} times as long"


def with_measured_links(cluster: Cluster, calibration: Calibration) -> tuple[Cluster, str]:
    """Return a cluster with links as fast as one message was measured over them, and what it has in words.

    Of several devices whose links were not measured one is kept: nothing would be known of what joins them.
    """
    fits = {(one.scope, one.kind): one for one in calibration.entries}
    message, links = fits.get(("collectives", SEND_RECEIVE)), dict[str, Any]()
    is_cpu = cluster.node.accelerator.kind == "cpu"
    kinds = {"intra_node": "memory" if is_cpu else "pcie", "inter_node": "ethernet"}
    for name, nodes, ranks in (("intra_node", 1, cluster.node.gpus), ("inter_node", cluster.nodes, 1)):
        if nodes * ranks > 1 and message is not None:
            groups = Groups(np.array([min(nodes, 2)]), np.array([min(ranks, 2)]), np.ones(1))
            start_s, whole_s = collective_s(message, SEND_RECEIVE, np.array([0.0, LARGE_BYTES]), groups)[0]
            links[name] = Link(kinds[name], float(LARGE_BYTES / max(whole_s - start_s, 1e-12)), float(start_s))
    if (copy := fits.get(("host", "copy"))) is not None:
        links["host"] = Link("pcie", 1 / copy.coefficients["bytes"], copy.coefficients["calls"])
    if message is None and cluster.node.gpus > 1:
        cluster = replace(cluster, node=replace(cluster.node, gpus=1))
    sources = {f"links.{name}": f"measured, calibration {calibration.name}" for name in links}
    what = f"{cluster.nodes} x {cluster.node.gpus} {cluster.node.accelerator.name}"
    words = f"{what}, links {', '.join(links) or 'none (--links measures them)'}"
    return replace(cluster, **links, sources=sources), words


def waits_elsewhere(cluster: Cluster, pooled: Iterable[Calibration]) -> tuple[float, float]:
    """Return the spreads of steps among GPUs of a node and among nodes that runs over its kinds of links showed."""
    found = dict(_of_kinds(cluster, pooled))
    inside, between = (_setting(found[where][1], WAIT) if where in found else 0.0 for where in PLACES)
    return inside, between


def _setting(entry: Entry, name: str) -> float:
    value = entry.settings.get(name)
    return value if isinstance(value, float) else 0.0


def _of_kinds(cluster: Cluster, pooled: Iterable[Calibration]) -> Iterator[tuple[str, tuple[Calibration, Entry]]]:
    """Yield what pooled calibrations say of the links of a cluster, by where these run."""
    fits = {entry.library: (one, entry) for one in pooled for entry in one.entries if entry.scope == "collectives"}
    for where, link in zip(PLACES, (cluster.intra_node, cluster.inter_node), strict=True):
        if link is not None and (library := multiples_of_kind(where, link.kind)) in fits:
            yield where, fits[library]
