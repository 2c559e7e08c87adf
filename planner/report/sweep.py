"""A sweep for people: a table of nodes and sub-batches, and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from planner.domain.objective import is_sum
from planner.domain.request import Subject
from planner.domain.why_not import Sweep, SweptPlan
from planner.report import parts
from planner.report.blocks import Block, Line, Table, title
from planner.report.plots import BESIDE, SERIES_LOOKS, picture
from planner.report.prediction import place
from planner.units import duration_unit, format_number

__all__ = ["sweep_plot", "sweep_view"]

MOST_ROWS, MOST_COLUMNS = 12, 8
"""Numbers of nodes and sub-batches that a table shows."""


def sweep_view(sweep: Sweep, subject: Subject) -> Iterator[Block]:
    """Yield the best plan in a sentence, and the objective by nodes and sub-batch; at most 25 lines."""
    best = sweep.best
    words = parts.configuration_words(best.configuration, subject.device)
    value = parts.objective(best.objective, _objective(sweep))
    yield title(f"{place(subject)}: best {_what(sweep)} {value} with {words}")
    nodes = _spread([one.configuration.nodes for one in sweep.plans], MOST_ROWS, best.configuration.nodes)
    sizes = _spread([one.configuration.sub_batch for one in sweep.plans], MOST_COLUMNS, best.configuration.sub_batch)
    of = {(one.configuration.nodes, one.configuration.sub_batch): one for one in sweep.plans}
    least = sweep.of_nodes
    scale, unit = duration_unit(best.objective, 3) if _unit(sweep) == "s" else (1.0, _unit(sweep))

    def cell(one: SweptPlan | None, marked: SweptPlan | None = None) -> str:
        return "-" if one is None else format_number(one.objective / scale, 3) + ("*" if one is marked else "")

    rows = [[str(n), *(cell(of.get((n, size)), least[n]) for size in sizes), cell(least[n])] for n in nodes]
    columns = ["nodes", *(str(size) for size in sizes), "best"]
    yield Line(f"\n{_with_unit(sweep, unit)} by nodes (down) and sub-batch (across); *: best of its row")
    others = [str(size) for size in sizes if size != best.configuration.sub_batch]
    strong = [nodes.index(best.configuration.nodes)]
    yield Table(columns, rows, columns, strong=strong, fixed=True, dropped=others[1:-1:2])
    nodes_in_all, sizes_in_all = (
        len({getattr(one.configuration, name) for one in sweep.plans}) for name in ("nodes", "sub_batch")
    )
    if (len(nodes), len(sizes)) != (nodes_in_all, sizes_in_all):
        yield Line(
            f"shown: {len(nodes)} of {nodes_in_all:,} numbers of nodes, {len(sizes)} of {sizes_in_all:,} sub-batches; "
            "--json has all"
        )
    more = "" if sweep.is_complete else "; it was interrupted, and others may be better"
    yield Line(f"{sweep.evaluated:,} plans of {sweep.candidates:,} candidates priced{more}")


def sweep_plot(sweep: Sweep, subject: Subject, form: str) -> bytes:
    """Return a picture of the objective against nodes, a line a sub-batch, and the best of all.

    Raises
    ------
    MissingPackageError
        Matplotlib is not installed.
    """
    sizes = _spread([one.configuration.sub_batch for one in sweep.plans], MOST_COLUMNS)

    def draw(axes: Any) -> None:
        least = sweep.of_nodes
        line = {"color": "#404040", "linewidth": 1.4, "label": "best"}
        axes.plot(list(least), [one.objective for one in least.values()], **line)
        for size, look in zip(sizes, SERIES_LOOKS, strict=False):
            some = [one for one in sweep.plans if one.configuration.sub_batch == size]
            nodes = [one.configuration.nodes for one in some]
            axes.plot(nodes, [one.objective for one in some], label=f"{size:,}", markersize=4, linewidth=0.7, **look)
        axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel=_with_unit(sweep, _unit(sweep)))
        axes.set_title(place(subject), loc="left")
        axes.legend(title="sub-batch", **BESIDE)

    return picture(draw, form)


def _spread(values: Sequence[int], most: int, kept: int | None = None) -> list[int]:
    """Return at most ``most`` of the distinct values, the ends and ``kept`` among them, by even ratios."""
    distinct = np.unique(np.array(values, dtype=np.int64))
    if distinct.size > most:
        aims = np.geomspace(distinct[0], distinct[-1], most - (kept is not None))
        distinct = np.unique(distinct[np.abs(np.log(distinct)[:, None] - np.log(aims)).argmin(axis=0)])
        distinct = distinct if kept is None else np.union1d(distinct, [kept])
    return [int(one) for one in distinct]


def _objective(sweep: Sweep) -> str:
    return str(sweep.request["objective"].value)


def _what(sweep: Sweep) -> str:
    if is_sum(_objective(sweep)):
        return f"objective {_objective(sweep)}"
    quantity = "cost" if _objective(sweep) == "cost" else "time"
    return f"epoch {quantity}" if sweep.plans[0].epoch_s is not None else f"{quantity} of a sample"


def _unit(sweep: Sweep) -> str:
    """Return the unit of the objective; empty: it has none."""
    return "" if is_sum(_objective(sweep)) else "USD" if _objective(sweep) == "cost" else "s"


def _with_unit(sweep: Sweep, unit: str) -> str:
    return f"{_what(sweep)} [{unit}]" if unit else _what(sweep)
