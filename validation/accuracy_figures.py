"""Answers to measured runs -> the figures of the accuracy page, as one document.

Only rows that no calibration behind them has seen count. Errors are those of :class:`planner.domain.runs
.ErrorSummary`; every number is rounded to DIGITS significant digits, which machines agree in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import compress
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray
from planner.domain.runs import ErrorSummary, ScoredRow
from planner.scoring.errors import Figures, summaries_by
from planner.scoring.evaluate import Answer
from validation.accuracy_answers import APART, AXES, BUNDLED, DEVELOPMENT, LOCKED, Views
from validation.accuracy_effects import effects_of
from validation.accuracy_goals import goals
from validation.accuracy_intervals import intervals_by_kind
from validation.accuracy_memory import memory_figures
from validation.accuracy_ranking import rankings

__all__ = ["FEWEST_ROWS", "NETWORK", "TARGET", "document_of", "mean_of_sources", "rounded"]

DIGITS = 4
TARGET = 0.15
"""Mean error of a network that took no part in the fit."""
WORST = 10
TERMS = 3
"""Terms of a row that are shown: those that take most."""
NETWORK = "network"
FEWEST_ROWS = 10
"""Predicted rows of a source that counts in means over sources."""
Belongs = Callable[[ScoredRow], bool]
TARGETS: Mapping[str, Belongs] = {
    "TensorFlow 2017 on P100": lambda row: row.source == "tensorflow-2017" and row.gpu.startswith("p100"),
    "Pollux ResNet-50, as many GPUs on every node": lambda row: row.source == "pollux-t4" and row.network == "resnet50",
}


def document_of(views: Views) -> dict[str, Any]:
    """Return the document ``planner/accuracy``: figures by source, GPU and target, ranking, memory, worst rows.

    ``all``, ``kernels``, ``gpus``, ``targets``, ``memory`` and ``worst`` are of the rows that fits learn from.
    """
    every = {view: [one.row for one in answers] for view, answers in views.answers.items()}
    names = [fact.name or row.source for fact, row in zip(views.facts, every[NETWORK], strict=True)]
    parts = {fact.part: _part_of(views, fact.part) for fact in views.facts}
    learned = _part_of(views, DEVELOPMENT)
    rows = {view: [one.row for one in answers] for view, answers in learned.answers.items()}
    held_out, kernels = rows[NETWORK], [fact.kernels for fact in learned.facts]
    gpus = [f"{row.gpu}, {of} kernels" for row, of in zip(held_out, kernels, strict=True)]
    found = {
        "format": "planner/accuracy",
        "version": 1,
        "all": _by(rows, [""] * len(held_out))[""],
        "parts": {name: _sums(some) for name, some in parts.items() if name != APART},
        "free_numbers": {"this program": views.free_numbers},
        "sources": _with_counts(_by(_without_locked(every, views), names), names, every[NETWORK], views),
        "effects": effects_of(held_out, learned.facts),
        "kernels": _by(rows, kernels),
        "gpus": _by(rows, gpus),
        "intervals": intervals_by_kind({axis: some for axis, some in rows.items() if axis in AXES}),
        "targets": dict(_targets(held_out)),
        "ranking": rankings(views.answers[NETWORK], views.facts),
        "memory": memory_figures(learned.answers[NETWORK], views.memory),
        "worst": _worst(learned.answers[NETWORK]),
        "refused": _refusals(every[NETWORK]),
    }
    found["goals"] = goals(found, rows)
    sorted_and_rounded: dict[str, Any] = rounded(found)
    return sorted_and_rounded


def _part_of(views: Views, part: str) -> Views:
    """Return the views of the rows of a part."""
    mask = [fact.part == part for fact in views.facts]
    answers = {view: list(compress(some, mask)) for view, some in views.answers.items()}
    return Views(answers, list(compress(views.facts, mask)))


def _without_locked(every: Mapping[str, Sequence[ScoredRow]], views: Views) -> dict[str, list[ScoredRow]]:
    """Return rows by view; a locked one is predicted as bundled, which is no view of what was left out."""
    is_locked = [fact.part == LOCKED for fact in views.facts]
    return {
        view: [
            replace(row, in_sample=row.in_sample or (locked and view != BUNDLED))
            for row, locked in zip(some, is_locked, strict=True)
        ]
        for view, some in every.items()
    }


def _sums(some: Views) -> dict[str, Any]:
    """Return the errors of a part by view: of its rows, and the mean over its sources of FEWEST_ROWS or more."""
    rows = {view: [one.row for one in answers] for view, answers in some.answers.items()}
    if {fact.part for fact in some.facts} == {LOCKED}:
        rows = {BUNDLED: rows[BUNDLED]}
    names = [fact.name or row.source for fact, row in zip(some.facts, rows[BUNDLED], strict=True)]
    by_name = _by(rows, names)
    of_all = _by(rows, [""] * len(names)).get("", {})
    return {
        view: {
            **of_all.get(view, asdict(ErrorSummary(0))),
            "of_sources": mean_of_sources({name: (one[view]["n"], one[view]["mape"]) for name, one in by_name.items()}),
        }
        for view in rows
    }


def mean_of_sources(errors: Mapping[str, tuple[int, float | None]]) -> dict[str, Any]:
    """Return the mean over sources of their mean errors, of those with FEWEST_ROWS or more, and how many these are.

    Parameters
    ----------
    errors : source -> number of its rows, their mean error
    """
    used = [mean for n, mean in errors.values() if n >= FEWEST_ROWS and mean is not None]
    return {"sources": len(used), "mape": sum(used) / len(used) if used else None}


def rounded(value: Any) -> Any:
    """Return a document with its numbers in DIGITS significant digits, and its keys sorted as in its file."""
    if isinstance(value, Mapping):
        return {key: rounded(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _by(rows: Mapping[str, Sequence[ScoredRow]], groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the errors of every group of rows that were predicted, by view."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for view, some in rows.items():
        for group, summary in summaries_by(groups, *_columns(some)).items():
            found[group][view] = asdict(summary)
    return {name: {view: one.get(view, asdict(ErrorSummary(0))) for view in rows} for name, one in found.items()}


def _columns(rows: Sequence[ScoredRow]) -> tuple[Figures, BoolArray]:
    """Return predicted, measured, low and high of rows, and which of them are held out."""
    values = [(row.predicted, row.measured if row.status_measured == "ok" else None, row.low, row.high) for row in rows]
    held = np.array([not row.in_sample for row in rows], dtype=np.bool_)
    return Figures(*np.array(values, dtype=np.float64).reshape(-1, 4).T), held


def _with_counts(
    found: Mapping[str, dict[str, Any]], names: Sequence[str], rows: Sequence[ScoredRow], views: Views
) -> dict[str, dict[str, Any]]:
    """Return errors by source beside how many of its rows are predicted; sources that are refused have no errors."""
    of_none = {view: asdict(ErrorSummary(0)) for view in views.answers}
    by_name: dict[str, list[tuple[ScoredRow, str]]] = defaultdict(list)
    for name, row, fact in zip(names, rows, views.facts, strict=True):
        by_name[name].append((row, fact.part))
    return {
        name: {
            "part": some[0][1],
            "rows": len(some),
            "predicted": sum(row.predicted is not None for row, _ in some),
            "refused": sum(row.refused is not None for row, _ in some),
            "in_sample": sum(row.in_sample for row, _ in some),
            **found.get(name, of_none),
        }
        for name, some in sorted(by_name.items())
    }


def _targets(rows: Sequence[ScoredRow]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, belongs in TARGETS.items():
        some = [row for row in rows if belongs(row)]
        found = summaries_by([""] * len(some), *_columns(some))
        yield name, {"target": TARGET, **asdict(found.get("", ErrorSummary(0)))}


def _worst(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return the row with the largest error of each network of a source, largest first; the first WORST of them.

    ``of_ten``: how many of the ten worst of all rows are of that network and source.
    """
    known = [(abs(one.row.error), one) for one in answers if not one.row.in_sample and one.row.error is not None]
    known.sort(key=lambda pair: (-pair[0], pair[1].row.id))
    alike: dict[tuple[str, str], list[tuple[float, Answer]]] = {}
    for error, one in known:
        alike.setdefault((one.row.source, one.row.network), []).append((error, one))
    ten = Counter((one.row.source, one.row.network) for _, one in known[:WORST])
    return [
        {**_row(some[0][1]), "rows": len(some), "mape": sum(error for error, _ in some) / len(some), "of_ten": ten[key]}
        for key, some in list(alike.items())[:WORST]
    ]


def _row(answer: Answer) -> dict[str, Any]:
    row = answer.row
    terms = sorted(answer.shares.items(), key=lambda pair: (-pair[1], pair[0]))[:TERMS]
    names = ("id", "source", "network", "metric", "predicted", "measured", "error", "bottleneck")
    return {name: getattr(row, name) for name in names} | {"terms": dict(terms)}


def _refusals(rows: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Return how many rows broke each rule, with their sources and the values that did so most often."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        if row.refused is not None:
            found[row.refused.rule].append((row.source, (row.refused.got or "").strip("'")))
    return [
        {
            "because": rule,
            "rows": len(pairs),
            "sources": _most(name for name, _ in pairs),
            "got": _most(x for _, x in pairs),
        }
        for rule, pairs in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _most(values: Iterator[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))[:TERMS])
