"""Answers to measured runs -> the figures of the accuracy page, as one document.

Only rows that no calibration behind them has seen count. Errors are those of :class:`planner.domain.validation
.ErrorSummary`; every number is rounded to DIGITS significant digits, which machines agree in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray
from planner.domain.validation import ErrorSummary, ScoredRow
from planner.scoring.errors import Figures, summaries_by
from planner.scoring.evaluate import Answer, validation_of
from validation.accuracy_answers import AXES, BUNDLED, UNCOUNTED, Views

__all__ = ["TARGET", "document_of", "rounded"]

DIGITS = 4
TARGET = 0.15
"""Mean error of a network that took no part in the fit."""
WORST = 10
TERMS = 3
"""Terms of a row that are shown: those that take most."""
NETWORK = "network"
Belongs = Callable[[ScoredRow], bool]
TARGETS: Mapping[str, Belongs] = {
    "TensorFlow 2017 on P100": lambda row: row.source == "tensorflow-2017" and row.gpu.startswith("p100"),
    "Pollux ResNet-50, as many GPUs on every node": lambda row: row.source == "pollux-t4" and row.network == "resnet50",
}


def document_of(views: Views) -> dict[str, Any]:
    """Return the document ``planner/accuracy``: figures by source, GPU and target, ranking, memory, worst rows."""
    every = {view: [one.row for one in answers] for view, answers in views.answers.items()}
    sources, rankings = [row.source for row in every[NETWORK]], dict(_rankings(views.answers[NETWORK]))
    views = _counted(views)
    rows = {view: [one.row for one in answers] for view, answers in views.answers.items()}
    held_out = rows[NETWORK]
    gpus = [f"{row.gpu}, {kernels} kernels" for row, kernels in zip(held_out, views.kernels, strict=True)]
    found = {
        "format": "planner/accuracy",
        "version": 1,
        "all": _by(rows, [""] * len(held_out))[""],
        "sources": _with_counts(_by(every, sources), every[NETWORK]),
        "kernels": _by(rows, list(views.kernels)),
        "gpus": _by(rows, gpus),
        "targets": dict(_targets(held_out)),
        "ranking": rankings,
        "memory": asdict(validation_of(views.answers[NETWORK], NETWORK).memory),
        "worst": _worst(views.answers[NETWORK]),
        "refused": _refusals(every[NETWORK]),
    }
    sorted_and_rounded: dict[str, Any] = rounded(found)
    return sorted_and_rounded


def _counted(views: Views) -> Views:
    """Return the views of the rows that count in sums."""
    mask = [one.row.source not in UNCOUNTED for one in views.answers[NETWORK]]
    answers = {view: list(compress(some, mask)) for view, some in views.answers.items()}
    return Views(answers, list(compress(views.kernels, mask)))


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


def _with_counts(found: Mapping[str, dict[str, Any]], rows: Sequence[ScoredRow]) -> dict[str, dict[str, Any]]:
    """Return errors by source beside how many of its rows are predicted; sources that are refused have no errors."""
    of_none = {view: asdict(ErrorSummary(0)) for view in (BUNDLED, *AXES)}
    return {
        name: {
            "rows": len(some),
            "predicted": sum(row.predicted is not None for row in some),
            "refused": sum(row.refused is not None for row in some),
            "in_sample": sum(row.in_sample for row in some),
            **found.get(name, of_none),
        }
        for name in sorted({row.source for row in rows})
        for some in [[row for row in rows if row.source == name]]
    }


def _targets(rows: Sequence[ScoredRow]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, belongs in TARGETS.items():
        some = [row for row in rows if belongs(row)]
        found = summaries_by([""] * len(some), *_columns(some))
        yield name, {"target": TARGET, **asdict(found.get("", ErrorSummary(0)))}


def _rankings(answers: Sequence[Answer]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield how well plans are ranked, of every source that has groups of plans."""
    for name in sorted({one.row.source for one in answers if one.row.group}):
        found = validation_of([one for one in answers if one.row.source == name], NETWORK).ranking
        if found.groups:
            yield name, asdict(found)


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
