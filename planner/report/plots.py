"""Predicted against measured times as a picture: PNG, SVG or PDF, the same bytes for the same rows."""

from __future__ import annotations

import html
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.runs import ScoredRow
from planner.errors import MissingPackageError

PICTURE_FORMS: Mapping[str, Mapping[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Form of a picture -> what it must not say, because it would differ the next time."""
TIME_OF_METRIC = {"iteration_s": "step", "update_s": "update", "epoch_s": "epoch", "samples_per_s": "sample"}
"""Metric -> what its times are of; the time of a rate is 1 / rate."""
MISSING_PACKAGE = "plots must be drawn with Matplotlib, got no package matplotlib; pip install 'epoch-planner[plot]'"
SVG_SALT = "planner"
"""Of the names of things in SVG, which would be random."""
COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#1a237e",
)  # fmt: skip
SERIES_LOOKS = tuple({"color": colour, "marker": marker} for colour, marker in zip(COLOURS, "os^DvP<X>p", strict=True))
OTHERS_LOOK = {"color": "#8a8a8a", "marker": "o"}
MARKER_FILLINGS = {
    "held out": {"markeredgecolor": "white", "markeredgewidth": 0.3},
    "in-sample": {"markerfacecolor": "none", "markeredgewidth": 0.9},
}
"""What is known of a row -> how its marker is filled."""
LINE_COLOUR = "#404040"
GRID_COLOUR = "#e4e4e4"
DRAWING_WIDTH = 3.6
"""Of a drawing in a page [inch]: on a phone its letters keep their size."""
SETTINGS: Mapping[Any, Any] = {
    "svg.hashsalt": SVG_SALT, "text.parse_math": False, "font.size": 9.0, "savefig.dpi": 150.0, "savefig.bbox": "tight",
}  # fmt: skip
DRAWING_SETTINGS: Mapping[Any, Any] = {
    **SETTINGS, "savefig.bbox": None, "figure.constrained_layout.use": True, "svg.fonttype": "none",
    "savefig.facecolor": "none", "axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True, "grid.color": GRID_COLOUR, "text.color": LINE_COLOUR, "axes.labelcolor": LINE_COLOUR,
    "axes.edgecolor": LINE_COLOUR, "xtick.color": LINE_COLOUR, "ytick.color": LINE_COLOUR,
}  # fmt: skip
VARIABLES = {LINE_COLOUR: "--ink", GRID_COLOUR: "--grid", "#ffffff": "--paper", OTHERS_LOOK["color"]: "--dim"} | {
    colour: f"--series-{at}" for at, colour in enumerate(COLOURS)
}
"""Colour of a picture -> the variable of a page's style sheet that takes its place."""
MARKER_SIZES = ((100, 6.0), (1000, 4.5), (math.inf, 3.0))
"""Rows up to which a marker has this size, in points."""
LINE_MARGIN = 0.2
"""Error at which a line runs on either side of the diagonal."""
LONGEST_NAME = 48
"""Letters of a name in the legend."""
LARGEST_EXPONENT = 200
"""Axes go from 10^-LARGEST_EXPONENT to 10^LARGEST_EXPONENT at most, as ticks beyond their ends must be numbers too."""
LONGEST_FINE_AXIS = 2.5
"""Where axes span less, 2 and 5 of each decade are ticks too."""


@dataclass(frozen=True, slots=True)
class Points:
    """What is drawn: n rows, at least 1, and their times in seconds, above 0, shape (n,).

    ``omitted`` other rows were predicted and measured, but are neither times nor rates.
    """

    rows: Sequence[ScoredRow]
    predicted_s: FloatArray
    measured_s: FloatArray
    omitted: int = 0


def check_matplotlib() -> None:
    """Raise MissingPackageError where Matplotlib is not installed, without the time that importing it takes."""
    if find_spec("matplotlib") is None:
        raise MissingPackageError(MISSING_PACKAGE)


def validation_plot(points: Points, form: str) -> bytes:
    """Return a picture (png, svg or pdf) of predicted against measured times, both axes logarithmic and of one scale.

    One colour and marker a source, or a network where there is one source; held-out rows are filled, in-sample ones
    hollow. MissingPackageError where Matplotlib is not installed.
    """
    return picture(lambda axes: _draw(axes, points), form)


def picture(
    draw: Callable[[Any], None],
    form: str,
    size: tuple[float, float] = (5.4, 5.4),
    settings: Mapping[Any, Any] = SETTINGS,
) -> bytes:
    """Return a picture of what ``draw`` puts on the axes it is given, the same bytes every time; raise as above.

    ``size``: of the axes with their ticks [inch]; ``settings``: of Matplotlib.
    """
    check_matplotlib()
    from matplotlib import rc_context, style  # noqa: PLC0415 - heavy, and optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    file = BytesIO()
    with style.context("default", after_reset=True), rc_context({**settings}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # letters that the font lacks become boxes
        figure = Figure(figsize=size)
        draw(figure.add_subplot())
        figure.savefig(file, format=form, metadata=dict(PICTURE_FORMS[form]))
    return file.getvalue()


def drawing(draw: Callable[[Any], None], name: str, height: float, words: str) -> str:
    """Return what ``draw`` puts on axes as an element of a page, in the colours of its style sheet.

    ``name``: begins its identifiers; ``height`` [inch]; ``words``: for who does not see it.
    """
    text = picture(draw, "svg", (DRAWING_WIDTH, height), DRAWING_SETTINGS).decode()
    box = re.search('viewBox="[^"]*"', text)
    inner = text[text.index("</metadata>") + len("</metadata>") :]
    inner = re.sub("<defs>\\s*<style.*?</defs>", "", inner, count=1, flags=re.DOTALL)
    inner = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", inner)
    inner = re.sub('font: ([0-9.]+px) [^;"]*', r"font-size: \1", inner)
    inner = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda one: f"var({VARIABLES.get(one[0], one[0])})", inner)
    return f'<svg {box[0] if box else ""} role="img" aria-label="{html.escape(words)}">{inner}'


def _draw(axes: Any, points: Points) -> None:
    logarithms = np.log10(np.concatenate([points.predicted_s, points.measured_s]))
    logarithms = logarithms.clip(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    low, high = float(logarithms.min()), float(logarithms.max())
    room = max(0.05 * (high - low), 0.1)
    ends = np.array([10 ** (low - room), 10 ** (high + room)])
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    plain_logarithms(axes)
    axes.grid(visible=True, which="major", color=GRID_COLOUR, linewidth=0.6)
    axes.set_axisbelow(True)
    line: dict[str, Any] = {"color": LINE_COLOUR, "zorder": 1.5, "linewidth": 0.9}
    equal = axes.plot(ends, ends, label="predicted = measured", **line)
    above, _ = (axes.plot(ends, share * ends, linestyle="--", **line) for share in (1 + LINE_MARGIN, 1 - LINE_MARGIN))
    above[0].set_label(f"\N{PLUS-MINUS SIGN}{LINE_MARGIN:.0%}")
    axis = "source" if len({row.source for row in points.rows}) > 1 else "network"
    series = _series(axes, points, axis)
    fillings = []
    if any(row.in_sample for row in points.rows):  # otherwise all markers are filled
        look = {"color": LINE_COLOUR, "marker": "o", "linestyle": "", "markersize": _size(points)}
        fillings = [axes.plot([], [], label=kind, **look, **one)[0] for kind, one in MARKER_FILLINGS.items()]
    metrics = {row.metric for row in points.rows}
    *others, last = [name for metric, name in TIME_OF_METRIC.items() if metric in metrics]
    unit = f"seconds per {', '.join(others)}{' or ' if others else ''}{last}"
    axes.set(xlabel=f"measured {unit}", ylabel=f"predicted {unit}")
    axes.set_title(_title(points), loc="left")
    axes.legend(handles=[*series, *fillings, *equal, *above], title=axis, **BESIDE)


BESIDE: Mapping[str, Any] = {
    "loc": "upper left", "bbox_to_anchor": (1.02, 1.0), "borderaxespad": 0.0, "alignment": "left", "frameon": False,
}  # fmt: skip
"""Where a legend stands."""


def _title(points: Points) -> str:
    """Return how many rows there are and their mean error, held-out ones apart from in-sample ones."""
    sources = {row.source for row in points.rows}
    parts = []
    for words, in_sample in (("held out", False), ("in-sample", True)):
        errors = [abs(row.error) for row in points.rows if row.in_sample == in_sample and row.error is not None]
        if errors:
            parts.append(f"{_rows(len(errors))} {words}, mean error {np.mean(errors):.1%}")
    rest = f"\n{_rows(points.omitted)} left out: neither times nor rates" if points.omitted else ""
    name = _short(sources.pop()) + ": " if len(sources) == 1 else ""
    return name + "; ".join(parts) + rest


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def plain_logarithms(axes: Any) -> None:
    """Let both axes be logarithmic, with plain numbers at the ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - heavy, and optional

    axes.set(xscale="log", yscale="log")
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        steps = (1.0, 2.0, 5.0) if np.log10(high) - np.log10(low) < LONGEST_FINE_AXIS else (1.0,)
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _series(axes: Any, points: Points, axis: str) -> list[Any]:
    """Draw the rows in a colour by ``axis``, the most frequent name below; return what the legend names."""
    names = [str(getattr(row, axis)) for row in points.rows]
    counts = Counter(names)
    frequent = sorted(counts, key=lambda name: (-counts[name], name))
    handles = []
    for name, look in zip(sorted(frequent[: len(SERIES_LOOKS)]), SERIES_LOOKS, strict=False):
        use = [one == name for one in names]
        handles.append(_markers(axes, points, use, look | {"zorder": 3 + frequent.index(name)}))
        handles[-1].set_label(f"{_short(name)} ({counts[name]:,})")
    if rest := frozenset(frequent[len(SERIES_LOOKS) :]):
        use = [one in rest for one in names]
        handles.append(_markers(axes, points, use, OTHERS_LOOK | {"zorder": 2}))
        handles[-1].set_label(f"{len(rest):,} others ({sum(use):,})")
    return handles


def _markers(axes: Any, points: Points, use: Sequence[bool], look: Mapping[str, Any]) -> Any:
    """Draw some rows, held-out ones filled and in-sample ones hollow; return one of the two."""
    in_sample = np.array([row.in_sample for row in points.rows])
    handles = []
    for kind, some in (("held out", ~in_sample & use), ("in-sample", in_sample & use)):
        if some.any():
            x, y = points.measured_s[some], points.predicted_s[some]
            handles += axes.plot(x, y, linestyle="", markersize=_size(points), **MARKER_FILLINGS[kind], **look)
            handles[-1].set_gid(f"{kind.replace(' ', '-')}-{len(axes.lines)}")
    return handles[0]


def _size(points: Points) -> float:
    return next(size for most, size in MARKER_SIZES if len(points.rows) <= most)


def _short(name: str) -> str:
    """Return a name of one line; the legend leaves out what begins with an underscore."""
    line = " ".join(name.split()) or "-"
    line = line if len(line) <= LONGEST_NAME else line[: LONGEST_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return " " + line if line.startswith("_") else line
