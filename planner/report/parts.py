"""Pieces that several reports share: tables without lines, quantities with intervals, origins, warnings, sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Quantity, Term
from planner.domain.request import Sourced
from planner.units import format_bytes, format_seconds

__all__ = [
    "Row",
    "configuration_words",
    "heading",
    "interval",
    "memory_line",
    "mini_batch",
    "origins",
    "pairs",
    "quantity",
    "request_values",
    "speed",
    "table",
    "terms",
    "title",
    "warnings",
]

Row = Sequence[str]


def title(words: str) -> Text:
    """Return the first line of an answer."""
    return Text(words, style="bold")


def heading(words: str) -> Text:
    """Return a heading with an empty line before it."""
    return title(f"\n{words}")


def table(columns: Sequence[str], rows: Iterable[Row], right: Iterable[str] = (), gap: int = 2) -> Table:
    """Return a table without lines, ``gap`` spaces between columns; those in ``right`` are numbers: never wrapped."""
    chosen = set(right)
    view = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column in columns:
        numeric = column in chosen
        view.add_column(
            column, justify="right" if numeric else "left", no_wrap=numeric, vertical="top", overflow="fold"
        )
    for row in rows:
        view.add_row(*row)
    return view


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Return names and texts side by side; long texts wrap in their own column."""
    view = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    view.add_column(no_wrap=True, style="dim")
    view.add_column(overflow="fold")
    for row in rows:
        view.add_row(*row)
    return view


def quantity(value: Quantity | None, write: Callable[[float], str]) -> str:
    """Return a quantity, with its central 90 % interval when there is one; a dash when it does not apply."""
    if value is None:
        return "-"
    bounds = interval(value, write)
    return write(value.value) + (f" ({bounds})" if bounds else "")


def interval(value: Quantity | None, write: Callable[[float], str]) -> str:
    """Return ``low to high``, or '' without an interval."""
    if value is None or value.low is None or value.high is None:
        return ""
    return f"{write(value.low)} to {write(value.high)}"


def mini_batch(batch: MiniBatch) -> str:
    """Return the mean, with its standard deviation where the mini-batch is random."""
    return f"{batch.mean:.5g}" + (f" ± {batch.std:.2g}" if batch.std else "")


def speed(prediction: Prediction) -> str:
    """Return samples per second for people."""
    return quantity(prediction.samples_per_s, lambda value: f"{value:.4g}")


def configuration_words(configuration: Configuration) -> str:
    """Return a configuration as one line."""
    accumulation = configuration.accumulation_steps
    parts = [
        f"{_many(configuration.nodes, 'node')} x {_many(configuration.gpus_per_node, 'GPU')}",
        f"sub-batch {configuration.sub_batch}",
        *([f"accumulation {accumulation}"] if accumulation > 1 else []),
        configuration.precision,
        "asynchronous" if configuration.mode == "async" else "synchronous",
    ]
    return ", ".join(parts)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def terms(shown: Iterable[Term], bottleneck: str) -> Table:
    """Return terms by thread: what each takes, what it adds after overlap, its share and where it comes from."""
    chosen = list(shown)
    threads = list(dict.fromkeys(term.thread for term in chosen))
    columns = (["thread"] if len(threads) > 1 else []) + ["term", "takes", "adds", "share", "origin", "calibration"]
    rows = [
        [
            *([term.thread] if len(threads) > 1 else []),
            term.name.replace("_", " "),
            format_seconds(term.seconds),
            format_seconds(term.exposed_seconds),
            f"{term.share:.1%}",
            term.origin + (", extrapolated" if term.extrapolated else ""),
            term.calibration,
        ]
        for term in chosen
    ]
    view = table(columns, rows, right=("takes", "adds", "share"))
    for at, term in enumerate(chosen):
        if bottleneck in (term.name, f"{term.thread}.{term.name}", f"{term.thread}:{term.name}"):
            view.rows[at].style = "bold"
    return view


def memory_line(memory_bytes: Mapping[str, float]) -> str:
    """Return needed of available memory, then the kinds from large to small."""
    total, capacity = memory_bytes["total"], memory_bytes.get("capacity")
    kinds = {key: size for key, size in memory_bytes.items() if key not in ("total", "capacity") and size > 0}
    listed = ", ".join(f"{key} {format_bytes(kinds[key])}" for key in sorted(kinds, key=lambda key: -kinds[key]))
    of = f" of {format_bytes(capacity)}" if capacity else ""
    return f"{format_bytes(total)}{of} on one GPU" + (f": {listed}" if listed else "")


def origins(used: Iterable[Term], calibrations: Iterable[Calibration]) -> Table:
    """Return, for every calibration that the terms name, its origin and source."""
    by_name = {calibration.name: calibration for calibration in calibrations}
    rows = []
    for name, origin in dict.fromkeys((term.calibration, term.origin) for term in used if term.calibration):
        known = by_name.get(name)
        detail = [known.source, known.date] if known else []
        rows.append((name, ", ".join([origin, *filter(None, detail)])))
    return pairs(rows)


def warnings(shown: Iterable[PlanWarning]) -> Iterable[Padding]:
    """Yield each distinct warning as an indented paragraph."""
    for warning in dict.fromkeys(shown):
        subject = f" ({warning.subject})" if warning.subject else ""
        line = Text.assemble((f"{warning.code}{subject}: ", "yellow"), warning.message)
        yield Padding(line, (0, 0, 0, 2))


def request_values(request: Mapping[str, Sourced[object]]) -> Table:
    """Return every value of a request with its source."""
    rows = [(name.replace("_", " "), _plain(value.value), value.source) for name, value in request.items()]
    return table(("value of", "is", "from"), rows)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, tuple | list):
        return _numbers(value) if all(isinstance(one, int) for one in value) else ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _numbers(values: Sequence[int]) -> str:
    """Return evenly spaced numbers as a range, as they may be typed."""
    steps = {after - before for before, after in pairwise(values)}
    if len(values) > 2 and len(steps) == 1 and min(steps) > 0:
        step = steps.pop()
        return f"{values[0]}:{values[-1]}" + (f":{step}" if step > 1 else "")
    return ",".join(map(str, values))
