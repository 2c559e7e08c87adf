"""Frameworks for people: the listing, and one with every key of its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from planner.domain.framework import PARALLELISMS, STRATEGIES, Framework, Strategy
from planner.report.blocks import Block, Line, Pairs, Table, given, heading, title
from planner.units import format_bytes

__all__ = ["framework_view", "frameworks_view"]


def frameworks_view(bundled: Iterable[Framework], own: Iterable[Framework] = ()) -> Iterator[Block]:
    """Yield one line a framework, those of the user behind the bundled ones."""
    columns = ("name", "splits\nnetworks by", "sharding\nup to", "switches")
    rows = [
        (
            one.name + mark,
            "all" if set(one.can) == set(PARALLELISMS) else _list(one.can),
            str(one.most_sharded),
            _list(one.switches),
        )
        for mark, frameworks in (("", bundled), (", own", own))
        for one in frameworks
    ]
    yield Table(columns, rows, right=columns[2:3], whole=("name",))
    yield Line(f"\nall: {', '.join(PARALLELISMS)}. Switches are turned on by --framework NAME:switch+switch.")


def framework_view(framework: Framework, keys: Sequence[tuple[str, str, str, str]]) -> Iterator[Block]:
    """Yield everything about one framework; ``keys``: of its file, their values, what they mean, and sources of these.

    A source is empty where none is told.
    """
    yield title(framework.variant)
    yield given([("aliases", ", ".join(framework.aliases)), ("source", framework.source)])
    yield heading("What it does")
    yield Pairs([(key, f"{value}: {'; '.join(filter(None, words))}") for key, value, *words in keys])
    yield heading("Strategies of --strategy")
    sources = {name: framework.sources.get(f"strategies.{name}", "") for name in STRATEGIES}
    every = {**STRATEGIES, **framework.strategies}
    yield Pairs([(name, "; ".join(filter(None, (_strategy(one), sources[name])))) for name, one in every.items()])
    for version, changes in framework.versions.items():
        yield heading(f"Version {version}")
        yield given([(key, _value(value)) for key, value in changes.items()])
    for name, switch in framework.switches.items():
        is_on = ", on" if name in framework.switched else ""
        yield heading(f"Switch {name}{is_on}")
        rows = [
            *((key, _value(value)) for key, value in switch.changes.items()),
            *((key, ", ".join(getattr(switch, key))) for key in ("aliases", "needs", "excludes")),
            ("source", switch.source),
        ]
        yield given(rows)


def _list(values: Iterable[str]) -> str:
    return ", ".join(values) or "-"


def _value(value: object) -> str:
    return _list(value) if isinstance(value, (tuple, Mapping)) else str(value)


def _strategy(one: Strategy) -> str:
    if not one.overlap:
        sent = "gradients are sent after the backward pass"
    elif one.best_buckets:
        sent = "gradients are sent in those buckets that are done first"
    elif one.cycle_s:
        most = f"in messages up to {format_bytes(one.bucket_bytes)}" if one.bucket_bytes else "layer by layer"
        sent = f"gradients that are ready are sent every {1e3 * one.cycle_s:g} ms, {most}"
    elif one.servers:
        sent = "gradients of each layer are pushed to a server on each node, weights are pulled"
    elif one.bucket_bytes:
        sizes = (format_bytes(size) for size in (one.first_bucket_bytes, one.bucket_bytes))
        sent = "gradients are sent in buckets of {}, then {}".format(*sizes)
    else:
        sent = "gradients of each layer are sent as they become ready"
    return sent + (", input is loaded during the step before" if one.prefetch else ", input is not loaded ahead")
