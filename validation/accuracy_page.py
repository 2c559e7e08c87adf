"""The accuracy page, in Markdown, from its document and this folder's tables of reasons, rivals, noise and choices."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from validation.accuracy_answers import APART, AXES, BUNDLED, DEVELOPMENT, LEFT_OUT, LOCKED, NEW
from validation.accuracy_effects import effects_page
from validation.accuracy_figures import FEWEST_ROWS
from validation.accuracy_goals import goals_page
from validation.accuracy_intervals import intervals_page
from validation.accuracy_memory import memory_page
from validation.accuracy_ranking import FEWEST_PLANS, OURS
from validation.tables import markdown_table

__all__ = ["NOT_EXPLAINED", "page_of", "reason_of", "table_named"]

FOLDER = Path(__file__).resolve().parent
NOT_EXPLAINED = "not explained yet"
NOT_PREDICTED = "not predicted yet"
Cells = Sequence[str]
PARTS = (DEVELOPMENT, NEW, LOCKED)
"""Parts of the rows that have sums, in the order of the page."""
HEAD = """# How accurate is it?

Predicted against measured training runs of public sources, held out: the coefficients of whole steps (host time a
kernel call, speed of links, how well kernels run in whole steps) are fitted again without the network that is
predicted, in all sources together. Rows that a calibration has seen in any other way do not count. Errors are
|predicted / measured - 1| of the row's own figure, a time or a rate; bias is the same without the bars; *covered* is
the share of rows inside their 90 % interval. What stands for *new GPU*, *new cluster* and *new source* is fitted
without any run of that GPU, cluster or source: expect it of hardware, and of programs, that no row here has.

Rows fall into four parts. *Development* rows are those that fits learn from, and all figures but those that say another
part are of them. *New* rows came later: no fit has learned from them, neither the bundled calibrations nor those that
hold out, though half-widths of bundled intervals count their residuals too; their networks are known from other
sources. One source is *locked*: no fit ever learns from it, nobody looks at it row by row, and only its sums are
printed, as bundled. The others are shown apart.

Written by `python -m validation` from the files in `validation/`, whose sources, licences and assumptions stand in
`validation/SOURCES.toml`; figures for programs are in `accuracy.json`. Kernels alone:
`python -m validation.kernels`.
"""
ERRORS = ("mean", "median", "90 %", "bias", "covered")
NEW_HEADS = tuple(f"new {LEFT_OUT[axis]}" for axis in AXES[1:])
"""Of the mean errors of views but the first."""


@cache
def table_named(name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of ``NAME.toml`` under each of its keys, with the key as ``kind``."""
    found = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return tuple({"kind": kind, **one} for kind, some in found.items() for one in some)


def reason_of(row: str, reasons: Iterable[Mapping[str, Any]]) -> str:
    """Return the likely reason for the error of a row, with its evidence; NOT_EXPLAINED where none fits."""
    for one in reasons:
        if fnmatchcase(row, one["rows"]):
            return f"{one['because']} ({one['evidence']})"
    return NOT_EXPLAINED


def page_of(document: Mapping[str, Any]) -> str:
    """Return the page of a document as :func:`validation.accuracy_figures.document_of` makes it."""
    parts = [
        HEAD,
        *_headline(document),
        *goals_page(document["goals"]),
        *_targets(document["targets"]),
        *_sources(document),
        *_gpus(document),
        *effects_page(document["effects"], table_named("effects")),
        *intervals_page(document["intervals"]),
        *_ranking(document),
        *memory_page(document["memory"]),
        *_rivals(document["sources"]),
        *_worst(document["worst"]),
        *_noise(),
        *_deviations(),
        *_choices(),
        *_refused(document),
    ]
    return "\n".join(parts)


def _headline(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## In short\n"
    yield (
        f"Means over sources of at least {FEWEST_ROWS} predicted rows, each source once; behind them means over rows. "
        f"{_fitted(document)}\n"
    )
    parts = document["parts"]
    views = {BUNDLED: "as bundled"} | {axis: f"{LEFT_OUT[axis]} left out" for axis in AXES}
    rows = [
        (
            f"{part}, {words}",
            *_of_sources(parts[part][view]),
            *_of_rows(parts[part][view]),
            f"{parts[part][view]['n']:,}",
        )
        for part in PARTS
        if part in parts
        for view, words in views.items()
        if view in parts[part] and parts[part][view]["n"]
    ]
    yield markdown_table(("rows", "sources", "mean over sources", "mean over rows", "covered", "rows"), rows)


def _of_sources(one: Mapping[str, Any]) -> tuple[str, str]:
    return f"{one['of_sources']['sources']:,}", _percent(one["of_sources"]["mape"])


def _of_rows(one: Mapping[str, Any]) -> tuple[str, str]:
    return _percent(one["mape"]), _percent(one["coverage_90"], places=0)


def _fitted(document: Mapping[str, Any]) -> str:
    """Return how many numbers the errors rest on, in a sentence that stands beside them."""
    return f"Fitted numbers of the step model behind these errors: {document['free_numbers']['this program']:,}."


def _targets(targets: Mapping[str, Any]) -> Iterator[str]:
    yield "## Targets\n"
    yield markdown_table(
        ("rows", "n", "mean", "target", "met"),
        (
            (name, str(one["n"]), _percent(one["mape"]), f"at most {_percent(one['target'], places=0)}", _met(one))
            for name, one in targets.items()
        ),
    )


def _met(one: Mapping[str, Any]) -> str:
    return "yes" if one["mape"] is not None and one["mape"] <= one["target"] else "no"


def _sources(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## By source\n"
    yield f"{_fitted(document)}\n"
    sources = document["sources"]
    head = ("source", "rows", "predicted", "refused", "as bundled", *ERRORS, *NEW_HEADS)
    counts = ("rows", "predicted", "refused")
    words = {
        DEVELOPMENT: "",
        NEW: "New rows, which no fit has learned from:\n",
        LOCKED: "Locked, as bundled:\n",
        APART: "Shown apart, in no sum, and predicted as bundled in all columns:\n",
    }
    for part, sentence in words.items():
        some = {name: one for name, one in sources.items() if one["part"] == part}
        rows = [((name, *(f"{one[key]:,}" for key in counts)), one) for name, one in some.items()]
        if part == DEVELOPMENT:
            rows.append((("all", *(f"{sum(one[key] for one in some.values()):,}" for key in counts)), document["all"]))
        if some and sentence:
            yield sentence
        if some:
            yield markdown_table(head, ((*cells, _percent(one[BUNDLED]["mape"]), *_views(one)) for cells, one in rows))
    seen = sum(one["in_sample"] for one in sources.values())
    yield (
        "*As bundled*: with the calibrations that come with the program, where they have not seen the row; - where "
        f"they have seen all or predict none. {seen:,} predicted rows are left out everywhere: what predicts them was "
        "reconstructed from them.\n"
    )


def _gpus(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## By GPU\n"
    yield (
        "Kernels are *measured* where a calibration of the GPU holds timed kernels in that precision, *specified* "
        "where they are taken from its data sheet, convolutions and products of matrix units from the nearest GPU. "
        f"{_fitted(document)}\n"
    )
    both = {f"all, {name} kernels": one for name, one in document["kernels"].items()}
    named = [*document["gpus"].items(), *both.items()]
    rows = (
        (*name.removesuffix(" kernels").split(", "), f"{one['network']['n']:,}", *_views(one)) for name, one in named
    )
    yield markdown_table(("GPU", "kernels", "rows", *ERRORS, *NEW_HEADS), rows)


def _views(one: Mapping[str, Any]) -> tuple[str, ...]:
    first, *others = (one[axis] for axis in AXES)
    found = [_percent(first[key]) for key in ("mape", "median_ape", "p90_ape")]
    found += [_percent(first["bias"], "+"), _percent(first["coverage_90"], places=0)]
    return (*found, *(_percent(other["mape"]) for other in others))


def _ranking(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## Ranking of plans\n"
    yield (
        "Groups of plans for the same network, GPUs and mini-batch. Spearman: rank correlation (1 is perfect, 0 "
        "chance); regret: how much longer the chosen plan takes than the best. Beside the step model stand an order by "
        f"chance and rules of one line, on the same groups. {_fitted(document)}\n\n"
        f"Groups of at least {FEWEST_PLANS} plans, those on unequal nodes among them:\n"
    )
    large = {name: one["of_five"] for name, one in document["ranking"].items() if "of_five" in one}
    yield _ranking_table(large)
    yield "All groups of plans on nodes with equal numbers of GPUs; those of Pollux have two to four plans:\n"
    yield _ranking_table({name: {OURS: one, **one["rules"]} for name, one in document["ranking"].items()})


def _ranking_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    keys = ("top1", "regret_mean", "regret_max", "regret_best3", "regret_best3_max")
    return markdown_table(
        (
            "source", "order", "groups", "Spearman", "fastest first", "regret", "worst", "regret, best of first three",
            "worst",
        ),
        (
            (name, order, f"{one['groups']:,}", _number(one["spearman"]), *(_percent(one[key]) for key in keys))
            for name, by_order in found.items()
            for order, one in sorted(by_order.items(), key=lambda pair: (pair[0] != OURS, pair[0]))
        ),
    )  # fmt: skip


def _rivals(sources: Mapping[str, Any]) -> Iterator[str]:
    yield "## Beside other tools\n"
    yield "On the same rows:\n"
    found: list[Cells] = []
    for name in dict.fromkeys(one["rows"] for one in table_named("rivals") if one["kind"] == "same"):
        found.append((name, "this program", _ours(sources.get(name)), "held out, on this page", ""))
        found += [
            (name, one["tool"], _stated(one) + _also(one), one["by"], one["source"])
            for one in table_named("rivals")
            if one["kind"] == "same" and one["rows"] == name
        ]
    yield markdown_table(("rows", "tool", "mean error", "by", "source"), found)
    yield (
        "`vtrain-single` was composed by a formula from 32 cells, not measured row by row: it tests neither "
        "pipelines nor scaling. `vtrain-multi` are 109 rows where others count, as one setting was timed twice.\n\n"
        "Claimed by their authors, on runs that are not here:\n"
    )
    elsewhere = [one for one in table_named("rivals") if one["kind"] == "elsewhere"]
    yield markdown_table(
        ("tool", "mean error", "on", "source"),
        ((one["tool"], _stated(one), one["on"], one["source"]) for one in elsewhere),
    )
    for one in elsewhere:
        if "rows" in one:
            ours = _ours(sources.get(one["rows"]))
            yield f"Ours on the rows of {one['tool']}'s authors that we have (`{one['rows']}`): {ours}.\n"


def _ours(one: Mapping[str, Any] | None) -> str:
    if one is None or one["network"]["mape"] is None:
        return NOT_PREDICTED
    return f"{_percent(one['network']['mape'])} of {one['predicted']:,} of {one['rows']:,} rows"


def _stated(one: Mapping[str, Any]) -> str:
    """Return an error in as many digits as it is stated in."""
    return f"{100 * one['mape']:.4g} %"


def _also(one: Mapping[str, Any]) -> str:
    return f"; {one['also']}" if "also" in one else ""


def _worst(worst: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Worst rows\n"
    where = [f"{one['of_ten']} of `{one['network']}` ({one['source']})" for one in worst if one["of_ten"]]
    yield (
        f"The ten rows with the largest errors: {', '.join(where)}. So that one network does not hide the others, the "
        "table has the worst row of each network of a source; *alike* are all predicted rows of that network and "
        "source, with their mean error.\n"
    )
    reasons = table_named("reasons")
    yield markdown_table(
        ("row", "predicted", "measured", "error", "takes most", "alike", "likely reason, and what shows it"),
        (
            (
                f"`{one['id']}`",
                *(
                    f"{_short(one[key])} {_UNITS.get(one['metric'], one['metric'])}"
                    for key in ("predicted", "measured")
                ),
                _percent(one["error"], "+"),
                ", ".join(
                    f"{term.replace('_', ' ')} {_percent(share, places=0)}"
                    for term, share in _largest_first(one["terms"])
                ),
                f"{one['rows']:,}: {_percent(one['mape'])}",
                reason_of(one["id"], reasons),
            )
            for one in worst
        ),
    )


_UNITS = {"samples_per_s": "samples/s", "iteration_s": "s", "epoch_s": "s an epoch", "update_s": "s an update"}


def _noise() -> Iterator[str]:
    yield "## Noise floor\n"
    yield "What measurements of the same thing differ by. Errors below this are luck.\n"
    yield markdown_table(
        ("same", "differs by", "source"), ((one["what"], one["differs"], one["source"]) for one in table_named("noise"))
    )


def _deviations() -> Iterator[str]:
    yield "## How the deviations of the fits were chosen\n"
    (first,) = (one for one in table_named("choices") if one["kind"] == "deviations")
    yield f"{first['what']}\n"


def _choices() -> Iterator[str]:
    yield "## Choices made after seeing errors\n"
    yield (
        "Rows are held out of coefficients, not of what was settled with their errors in view. Those of plans that "
        "split a network: [split-plans.md](split-plans.md#choices-made-after-seeing-errors).\n"
    )
    seen = [one for one in table_named("choices") if one["kind"] == "seen"]
    yield markdown_table(("choice", "errors of", "so"), ((one["what"], one["errors"], one["so"]) for one in seen))


def _refused(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## Refused rows\n"
    yield (
        markdown_table(
            ("rows", "because", "most often", "in"),
            (
                (f"{one['rows']:,}", one["because"], _counted(one["got"]), _counted(one["sources"]))
                for one in document["refused"]
            ),
        ).rstrip("\n")
        + "\n"
    )


def _counted(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in _largest_first(found) if name)


def _largest_first(found: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _percent(share: float | None, sign: str = "", places: int = 1) -> str:
    return "-" if share is None else f"{100 * share:{sign}.{places}f} %"
