"""What other links do to times: coefficients scale with the values that a scenario replaces, or by what runs showed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planner.costs.collectives import BYTES_BETWEEN, BYTES_INSIDE
from planner.costs.features import BYTE, Column
from planner.costs.terms import term_named
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster, Link
from planner.errors import ParameterError
from planner.sources.source import Source, source_of

__all__ = ["MULTIPLES", "as_elsewhere", "slower", "with_links", "with_value"]

MULTIPLES = "specified"
"""Library of pooled collectives: by what times over links as specified are multiplied."""


def with_value(link: Link, field: str, value: float) -> Link:
    """Return a link with one of its values replaced."""
    return replace(link, bytes_per_s=value) if field == "bytes_per_s" else replace(link, latency_s=value)


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
    scaled = {name: value * factors[name] for name, value in entry.coefficients.items()}
    return replace(entry, coefficients=scaled, settings=settings, covariance=None, error=None, held_out_error=None)


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


def slower(all_reduce: Entry, inside: float, between: float) -> Entry:
    """Return the specified all-reduce over links inside and between nodes that take so many times longer a byte."""
    found = dict(all_reduce.coefficients)
    found[BYTES_INSIDE.name] *= inside
    found[BYTES_BETWEEN.name] *= between
    ratio = float(found[BYTES_BETWEEN.name] / found[BYTES_INSIDE.name]) if found[BYTES_INSIDE.name] else 0.0
    return replace(all_reduce, coefficients=found, settings={**all_reduce.settings, "beta_ratio": ratio})


def as_elsewhere(all_reduce: Entry, pooled: Iterable[Calibration]) -> Source:
    """Return the specified all-reduce as much slower as runs on other clusters were, if pooled calibrations tell."""
    for one in pooled:
        for entry in one.entries:
            if (entry.scope, entry.library) == ("collectives", MULTIPLES):
                inside, between = (entry.coefficients[one.name] for one in (BYTES_INSIDE, BYTES_BETWEEN))
                said = (
                    f"as in runs elsewhere, a byte takes {inside:.3g} times as long inside nodes, {between:.3g} between"
                )
                changed = replace(slower(all_reduce, inside, between), notes=f"{all_reduce.notes}; {said}")
                return source_of(changed, one)
    return source_of(all_reduce)
