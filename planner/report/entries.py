"""One entry of a calibration, for people: formula, coefficients with errors and ranges, or measured runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from planner.domain.calibration import Entry
from planner.domain.calls import LOOKED_UP
from planner.report.blocks import Block, Line, Row, Table, given, heading
from planner.report.parts import sources_once

__all__ = ["CallWeights", "CellFigures", "Cells", "entry_view", "is_assumed", "share"]

AT_BOUND_WORDS = "held at 0"
"""What stands for the standard error of a coefficient that its bound holds."""


class CellFigures(Protocol):
    """What is shown of runs of one plan."""

    @property
    def tensor(self) -> int:
        """Tensor-parallel degree."""

    @property
    def sub_batch(self) -> int:
        """Samples a replica takes at once."""

    @property
    def factor(self) -> float:
        """Measured over predicted time, drawn towards 1."""

    @property
    def runs(self) -> int:
        """Number of runs."""


Cells = Callable[[Entry], Mapping[str, Sequence[CellFigures]]]
"""Entry -> by network the runs that it holds instead of coefficients; none of any other entry."""
CallWeights = Callable[[Entry], Collection[str]]
"""Entry -> names of the coefficients that weigh stored calls."""


def entry_view(
    entry: Entry, formula: str, cells: Mapping[str, Sequence[CellFigures]], call_weights: Collection[str]
) -> Iterator[Block]:
    """Yield one entry of a calibration: its term, how good it is, where it is from, and its coefficients or runs.

    Coefficients in ``call_weights`` weigh stored calls: hundreds that say nothing one by one, and are only counted.
    """
    yield heading(" ".join(filter(None, (*entry.key, entry.mode))).replace("_", " "))
    yield Line("training runs" if cells else f"{entry.term}: {formula}" if formula else entry.term)
    settings = {key: value for key, value in entry.settings.items() if value != "" and key not in cells}
    rows = [
        ("estimator", entry.estimator),
        ("samples", f"{entry.samples:,}" if entry.samples else ""),
        ("error", share(entry.error)),
        ("assumed error" if is_assumed(entry) else "held-out error", _held_out(entry)),
        ("worst point", entry.worst_point),
        ("condition", f"{entry.condition_number:.3g}" if entry.condition_number is not None else ""),
        ("settings", ", ".join(f"{key} {_setting(value)}" for key, value in settings.items())),
        ("fixed", ", ".join(entry.fixed)),
        ("points", f"{len(call_weights):,} stored calls, whose weights are in the file" if call_weights else ""),
        ("origin", ", ".join(filter(None, (entry.origin, sources_once(entry.source))))),
        ("notes", entry.notes),
    ]
    yield given(rows)
    if cells:
        columns = ("network", "sub-batch", "tensor\ndegree", "factor", "runs")
        of_networks = ((network, one) for network, of in cells.items() for one in of)
        of_runs = [(n, str(c.sub_batch), str(c.tensor), f"{c.factor:.3f}", str(c.runs)) for n, c in of_networks]
        yield Table(columns, of_runs, right=columns[1:])
        return
    columns = ("feature", "coefficient", "std. error", "least seen", "most seen")
    yield Table(
        columns,
        [_coefficient(entry, name) for name in entry.coefficients if name not in call_weights],
        right=columns[1:],
    )


def _coefficient(entry: Entry, name: str) -> Row:
    value, error = entry.coefficients[name], entry.standard_errors.get(name)
    low, high = entry.ranges.get(name, (None, None))
    cells = ["-" if one is None else f"{one:.3g}" for one in (error, low, high)]
    # An error of 0 is none: the fit keeps the coefficient from going below.
    return [name, f"{value:.4g}", *([AT_BOUND_WORDS] if value == error == 0 else cells[:1]), *cells[1:]]


def share(value: float | None) -> str:
    """Return a share in per cent; nothing of None."""
    return "" if value is None else f"{value:.2%}"


def is_assumed(entry: Entry) -> bool:
    """Tell whether the held-out error is assumed: of calls that were timed at too few sub-batches to leave one out."""
    return entry.term == LOOKED_UP and not entry.held_out_by and entry.held_out_error != entry.error


def _held_out(entry: Entry) -> str:
    if entry.held_out_error is None:
        return ""
    by = f" by {entry.held_out_by}" if entry.held_out_by else ""
    worst = f", worst {entry.worst_error:.2%}" if entry.worst_error is not None else ""
    sums = f", of sums {entry.sum_error:.2%}" if entry.sum_error is not None else ""
    return f"{entry.held_out_error:.2%}{by}{sums}{worst}"


def _setting(value: object) -> str:
    if isinstance(value, tuple):
        first = ", ".join(f"{one:g}" for one in value[:4])
        return f"({first}{', ...' if len(value) > 4 else ''})"
    return f"{value:g}" if isinstance(value, float) else str(value)
