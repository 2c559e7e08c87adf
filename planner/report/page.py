"""An answer as one page to look at: drawings and, for who does not see them, their figures. It loads nothing.

A drawing is SVG whose colours are variables of the style sheet, so that a reader's dark or light holds for it too.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from planner.domain.cluster import Accelerator
from planner.domain.configuration import Configuration
from planner.domain.kernels import KernelRow
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, Sweep
from planner.report import parts
from planner.report.blocks import Block, Line, Table, html_of, listing
from planner.report.plots import LINE_COLOUR, OTHERS_LOOK, SERIES_LOOKS, VARIABLES, drawing, plain_logarithms
from planner.report.prediction import entries_of, place, plan_table
from planner.report.studies import kernel_table, sweep_lines, sweep_view
from planner.units import duration_unit, format_duration, format_number

TEMPLATE = Path(__file__).with_name("page.html")
MOST_DRAWN = 8
"""Plans in a drawing, the one to take among them; tables have all."""
MOST_BARS = 24
"""In a drawing of memory: where stages are more, it has the fullest of each plan alone."""
LEAST_APART = 0.1
"""Of points whose numbers are both drawn, as the logarithm of a ratio."""
MOST_ROWS = 1000
"""Numbers of nodes in a table."""
NOT_DRAWN = ("host", "trials", "total", "low", "high", "capacity")
"""Of memory: what is no part of the total of a device."""
LEAST_HIDDEN = 0.005
"""Share of a term from which what is hidden of it is told."""
GIB, TERA = 2.0**30, 1e12
Draw = Callable[[Any], None]
Stages = Mapping[int, Sequence[Mapping[str, float]]]
"""Position of a plan -> the memory of a rank of each stage, by kind [bytes]."""


@dataclass(frozen=True, slots=True)
class Studied:
    """Figures that the page computes because the answer does not hold them.

    Attributes
    ----------
    sweep : of the request
    kernels, accelerator : of the plan to take
    missing : in sentences, what could not be worked out, and why
    """

    sweep: Sweep | None = None
    stages: Stages = field(default_factory=dict)
    kernels: Sequence[KernelRow] = ()
    accelerator: Accelerator | None = None
    missing: Sequence[str] = ()


class _Chart(NamedTuple):
    """``legend``: name -> colour; ``figures``: what it draws, as tables."""

    name: str
    title: str
    words: str
    draw: Draw
    height: float
    legend: Mapping[str, str]
    figures: Sequence[Block]


def page(subject: Subject, plans: Sequence[Plan], chosen: int | None, answer: Iterable[Block], studied: Studied) -> str:
    """Return the page of plans; ``chosen``: the number of the one to take; ``answer``: it in full, as it is printed.

    MissingPackageError where Matplotlib is not installed.
    """
    blocks = [block for block in answer if not (isinstance(block, Line) and block.text == "")]
    said = [block for block in blocks if not (isinstance(block, Line) and block.aside)]
    first = next((at for at, block in enumerate(said) if not isinstance(block, Line)), len(said))
    lead = [*said[:first], *(Line(sentence) for sentence in studied.missing)]
    some = sorted(plans, key=lambda one: one.position != chosen)[:MOST_DRAWN]
    drawn = sorted(some, key=lambda one: one.position)
    charts = [
        _step(plans, drawn),
        _intervals(plans, drawn, subject),
        _memory(plans, drawn, studied.stages),
        *_sweep(studied.sweep, subject),
        *_front(plans, studied.sweep, subject),
        *_roofline(studied, chosen),
    ]
    table = html_of(plan_table(entries_of(plans, subject), chosen))
    links = {"plans": "Plans", **{one.name: one.title for one in charts}, "answer": "The answer in full"}
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=html.escape(place(subject)),
        links="".join(f'<li><a href="#{name}">{html.escape(title)}</a></li>' for name, title in links.items()),
        lead=html_of(lead),
        plans=_scrolled(table, "Plans"),
        charts="".join(map(_figure, charts)),
        answer=_scrolled(html_of(blocks), "The answer in full"),
    )


def _figure(one: _Chart) -> str:
    title = html.escape(one.title)
    keys = "".join(
        f'<li><i style="background:var({VARIABLES[colour]})"></i>{html.escape(name)}</li>'
        for name, colour in one.legend.items()
    )
    picture = drawing(one.draw, one.name, one.height, f"{one.title}. {one.words}")
    table = _scrolled(html_of(one.figures), f"Figures: {one.title}")
    return (
        f'<figure id="{one.name}"><h2>{title}</h2><p>{html.escape(one.words)}</p>{picture}'
        f"<ul>{keys}</ul><details><summary>Figures</summary>{table}</details></figure>"
    )


def _scrolled(inner: str, words: str) -> str:
    """Return what may be wider than the page, in a box that a keyboard scrolls."""
    return f'<div class="scrolled" tabindex="0" role="region" aria-label="{html.escape(words)}">{inner}</div>'


def _colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name; those beyond the colours there are share one."""
    looks = [look["color"] for look in SERIES_LOOKS]
    return {name: looks[at] if at < len(looks) else OTHERS_LOOK["color"] for at, name in enumerate(names)}


def _by_size(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the names of parts, those that are most first."""
    sums: dict[str, float] = {}
    for row in rows:
        for name, size in row.items():
            sums[name] = sums.get(name, 0.0) + size
    return sorted((name for name, size in sums.items() if size > 0), key=lambda name: -sums[name])


def _bars(rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str], words: tuple[str, str]) -> Draw:
    """Return what draws a bar a row of parts side by side; ``words``: along the bars, and before the rows."""

    def draw(axes: Any) -> None:
        left = [0.0] * len(rows)
        for name, colour in colours.items():
            sizes = [row.get(name, 0.0) for row in rows.values()]
            axes.barh(range(len(rows)), sizes, 0.75, left, color=colour, edgecolor="#ffffff", linewidth=0.4)
            left = [a + b for a, b in zip(left, sizes, strict=True)]
        _down(axes, list(rows), words)

    return draw


def _down(axes: Any, names: Sequence[str], words: tuple[str, str]) -> None:
    """Let rows stand one below the other."""
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel=words[0], ylabel=words[1], ylim=(len(names) - 0.4, -0.6))
    axes.grid(visible=True, axis="x")


def _height(rows: int) -> float:
    return 0.62 + 0.26 * max(rows, 2)


def _step(plans: Sequence[Plan], drawn: Sequence[Plan]) -> _Chart:
    every = [one for plan in plans for one in plan.prediction.terms]
    colours = _colours(_by_size({one.name: one.exposed_seconds} for one in every))
    behind = (name for name in _by_size({one.name: one.seconds} for one in every) if name not in colours)
    names, rows, cells = [*colours, *behind], {}, []
    for plan in plans:
        for thread in dict.fromkeys(one.thread for one in plan.prediction.terms):
            terms = {one.name: one for one in plan.prediction.terms if one.thread == thread}
            exposed = {name: one.exposed_seconds for name, one in terms.items()}
            told = dict.fromkeys(names, "-")
            for name, one in terms.items():
                hidden = one.seconds - one.exposed_seconds
                beside = f" + {format_duration(hidden, 3)} hidden" if hidden > LEAST_HIDDEN * one.seconds else ""
                told |= {name: f"{format_duration(one.exposed_seconds, 3)}{beside}"} if name in told else {}
            cells.append([str(plan.position), thread, *told.values(), format_duration(sum(exposed.values()), 4)])
            if plan in drawn:
                rows[f"{plan.position}" + ("" if thread == "step" else f" {thread}")] = exposed
    scale, unit = duration_unit(max((sum(row.values()) for row in rows.values()), default=1.0), 3)
    scaled = {label: {name: seconds / scale for name, seconds in row.items()} for label, row in rows.items()}
    columns = ["plan", "thread", *map(parts.term_words, names), "sum"]
    words = "What each term adds to an update of the weights; what is hidden behind others stands in the figures."
    draw = _bars(scaled, colours, (f"exposed time [{unit}]", "plan"))
    legend = {parts.term_words(name): colour for name, colour in colours.items()}
    figures = [Table(columns, cells, ["plan", *columns[2:]])]
    return _Chart("step", "Step by term", words, draw, _height(len(rows)), legend, figures)


def _intervals(plans: Sequence[Plan], drawn: Sequence[Plan], subject: Subject) -> _Chart:
    epochs = [one.prediction.epoch_s for one in drawn if one.prediction.epoch_s]
    rates = [parts.in_tokens(one.prediction.samples_per_s, subject) for one in drawn]
    each = epochs if len(epochs) == len(drawn) else [one for one, _ in rates]
    scale, unit = duration_unit(max(one.value for one in each), 3) if each is epochs else (1.0, rates[0][1])
    what = "Epoch time" if each is epochs else "Speed"

    def draw(axes: Any) -> None:
        for at, one in enumerate(each):
            ends = [(one.value if end is None else end) / scale for end in (one.low, one.high)]
            axes.plot(ends, [at, at], color=LINE_COLOUR, linewidth=1.2, marker="|")
            axes.plot([one.value / scale], [at], **SERIES_LOOKS[0], linestyle="")
        axes.set_xlim(left=0)
        _down(axes, [str(one.position) for one in drawn], (f"{what.lower()} [{unit}]", "plan"))

    cells: dict[str, Callable[[Plan], str]] = {
        "plan": lambda one: str(one.position),
        "epoch": lambda one: parts.duration(one.prediction.epoch_s),
        "step": lambda one: parts.duration(one.prediction.iteration_s),
        "speed": lambda one: parts.speed(one.prediction.samples_per_s, subject),
        "memory of a device": lambda one: parts.memory_needed(one.prediction),
    }
    cells = {name: cell for name, cell in cells.items() if any(map(cell, plans))}
    table = listing(plans, cells, ["plan", "epoch", "step", "speed"])
    words = f"{what} of each plan with its 90% interval."
    legend = {"predicted": SERIES_LOOKS[0]["color"], "90% interval": LINE_COLOUR}
    return _Chart("intervals", f"{what} and its interval", words, draw, _height(len(drawn)), legend, [table])


def _memory(plans: Sequence[Plan], drawn: Sequence[Plan], stages: Stages) -> _Chart:
    every: dict[int, list[tuple[str, dict[str, float]]]] = {}
    for plan in plans:
        of_stages = stages.get(plan.position) or [plan.prediction.memory_bytes]
        sizes = [{name: size / GIB for name, size in one.items() if name not in NOT_DRAWN} for one in of_stages]
        every[plan.position], at = [], 1
        for row, some in groupby(sizes):
            last = at + len(list(some)) - 1
            stages_of = "" if len(sizes) == 1 else f"{at}" if last == at else f"{at} to {last}"
            every[plan.position].append((stages_of, row))
            at = last + 1
    names = _by_size(row for rows in every.values() for _, row in rows)
    colours = _colours(names)
    bars = {one.position: every[one.position] for one in drawn}
    if sum(map(len, bars.values())) > MOST_BARS:
        bars = {at: [max(some, key=lambda row: sum(row[1].values()))] for at, some in bars.items()}
    rows = {f"{at}{stage and ': '}{stage}": row for at, some in bars.items() for stage, row in some}
    capacity = max(one.prediction.memory_bytes.get("capacity", 0.0) for one in plans) / GIB

    def draw(axes: Any) -> None:
        axes.axvline(capacity, color=LINE_COLOUR, linestyle="--", linewidth=1)
        _bars(rows, colours, ("GiB", "plan: stage"))(axes)

    cells = [
        [str(at), stage or "all", *(f"{row.get(name, 0.0):.2f}" for name in names), f"{sum(row.values()):.2f}"]
        for at, some in every.items()
        for stage, row in some
    ]
    columns = ["plan", "stages", *names, "total"]
    words = "Memory of one device by what it is for, of each stage of a pipeline; equal ones in a row once."
    words += f" The line is what a device has, {format_number(capacity, 3)} GiB."
    table = Table(columns, cells, ["plan", *columns[2:]])
    return _Chart("memory", "Memory by stage", words, draw, _height(len(rows)), colours, [Line("GiB"), table])


def _sweep(sweep: Sweep | None, subject: Subject) -> Iterator[_Chart]:
    if sweep is None or not sweep.plans:
        return

    def draw(axes: Any) -> None:
        sweep_lines(sweep, axes, subject)
        axes.grid(visible=True)

    blocks = list(sweep_view(sweep, subject, MOST_ROWS))
    table = next(block for block in blocks if isinstance(block, Table))
    sizes = zip(table.columns[1:-1], SERIES_LOOKS, strict=False)
    legend = {"best": LINE_COLOUR} | {f"sub-batch {size}": look["color"] for size, look in sizes}
    words = "The best plan of each number of nodes and sub-batch, as planner sweep finds it for the same request."
    yield _Chart("sweep", "Nodes and sub-batch", words, draw, 2.9, legend, blocks[1:3])


class _Point(NamedTuple):
    """A plan: seconds of an epoch, without a data set of a sample; ``number``: in the answer, 0: it is not there."""

    seconds: float
    configuration: Configuration
    memory_bytes: float
    number: int = 0

    @property
    def device_s(self) -> float:
        return self.seconds * self.configuration.gpus

    def apart(self, other: _Point) -> float:
        """How far two points lie from each other, as the logarithm of a ratio."""
        return max(abs(math.log(getattr(self, name) / getattr(other, name))) for name in ("seconds", "device_s"))


def _front(plans: Sequence[Plan], sweep: Sweep | None, subject: Subject) -> Iterator[_Chart]:
    of_epochs = all(one.prediction.epoch_s for one in plans)
    told = []
    for plan in plans:
        one, epoch = plan.prediction, plan.prediction.epoch_s
        seconds = epoch.value if of_epochs and epoch else 1 / (one.samples_per_s.value or math.inf)
        if seconds > 0:  # a document may hold others
            told.append(_Point(seconds, one.configuration, one.memory_bytes["total"], plan.position))
    swept = [
        _Point((of_epochs and one.epoch_s) or 1 / one.samples_per_s, one.configuration, one.memory_bytes)
        for one in (sweep.plans if sweep else ())
    ]
    front: list[_Point] = []
    for point in sorted([*told, *swept], key=lambda one: (one.seconds, one.device_s, -one.number)):
        if not front or point.device_s < front[-1].device_s:
            front.append(point)
    if not front:
        return
    what = "epoch" if of_epochs else "sample"
    scale, unit = duration_unit(front[0].seconds, 3)
    per, of_device = (3600.0, "hours") if of_epochs else duration_unit(front[-1].device_s, 3)
    of = f"{subject.device}-{of_device}"

    def draw(axes: Any) -> None:
        for some, look in (
            (swept, {**OTHERS_LOOK, "linestyle": "", "markersize": 3}),
            (front, {"color": LINE_COLOUR, "linewidth": 1, "drawstyle": "steps-post"}),
            (told, {**SERIES_LOOKS[0], "linestyle": "", "markersize": 4}),
        ):
            axes.plot([one.device_s / per for one in some], [one.seconds / scale for one in some], **look)
        for at, one in enumerate(told[:MOST_DRAWN]):
            if all(one.apart(other) > LEAST_APART for other in told[:at]):
                where = one.device_s / per, one.seconds / scale
                axes.annotate(str(one.number), where, (4, 3), textcoords="offset points")
        axes.set(xlabel=f"{of}, {what}", ylabel=f"{what} time [{unit}]")
        plain_logarithms(axes)
        axes.grid(visible=True)

    cells: dict[str, Callable[[_Point], str]] = {
        "plan": lambda one: str(one.number or "-"),
        "configuration": lambda one: parts.configuration_words(one.configuration, subject.device),
        what: lambda one: format_duration(one.seconds, 3),
        of: lambda one: format_number(one.device_s / per, 3),
        "memory GiB": lambda one: format_number(one.memory_bytes / GIB, 3),
    }
    words = f"{what.title()} time against {subject.device} time: no plan looked at lies below and left of the line."
    legend = {"plans of the answer": SERIES_LOOKS[0]["color"], "front": LINE_COLOUR}
    legend |= {"best by nodes and sub-batch": OTHERS_LOOK["color"]} if swept else {}
    figures = [listing(front, cells, ["plan", what, of, "memory GiB"])]
    yield _Chart("front", "Pareto front", words, draw, 2.9, legend, figures)


def _roofline(studied: Studied, chosen: int | None) -> Iterator[_Chart]:
    device = studied.accelerator
    points = [one for one in studied.kernels if one.flop and one.seconds]
    if device is None or not points:
        return
    colours = _colours(_by_size({one.kind: one.seconds} for one in points))
    names = dict.fromkeys(one.precision for one in points if one.precision in device.ridges)
    ridges = {name: device.ridges[name] for name in names}
    speed, longest = device.memory_bytes_per_s / TERA, max(one.seconds for one in points)

    def draw(axes: Any) -> None:
        intensities = [one.flop / one.bytes for one in points]
        least, most = min(intensities) / 2, max(*intensities, *(2 * ridge for ridge in ridges.values()))
        for name, ridge in ridges.items():
            roof = [least * speed, ridge * speed, ridge * speed]
            axes.plot([least, ridge, most], roof, color=LINE_COLOUR, linewidth=1)
            axes.annotate(name, (most, ridge * speed), (0, 3), textcoords="offset points", ha="right")
        for kind, colour in colours.items():
            some = [one for one in points if one.kind == kind]
            x, y = [one.flop / one.bytes for one in some], [one.flop / one.seconds / TERA for one in some]
            sizes = [4 + 60 * one.seconds / longest for one in some]
            axes.scatter(x, y, sizes, color=colour, edgecolors="#ffffff", linewidths=0.3)
        axes.set(xlabel="FLOP a byte", ylabel="TFLOP/s")
        plain_logarithms(axes)
        axes.grid(visible=True)

    of_plan = f"of a micro-batch and an update of plan {chosen or 1}"
    words = f"Kernels {of_plan}, larger where they take longer; lines: what {device.name} reaches at most. Those that "
    words += "compute nothing stand in the figures alone."
    legend = {kind.replace("_", " "): colour for kind, colour in colours.items()}
    figures = list(kernel_table(studied.kernels, of_plan, device.ridges))
    yield _Chart("roofline", "Roofline of the kernels", words, draw, 2.9, legend, figures)
