"""What the figures of the accuracy page are to reach, and what they were before programs were told by what they do.

Before: commit 9eed9b3, where fits had ten sources, or the first page that had the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from planner.domain.runs import ScoredRow
from validation.tables import markdown_table

__all__ = ["goals", "goals_page"]

Rows = Mapping[str, Sequence[ScoredRow]]
Found = Mapping[str, Any]
NVSWITCH = ("dgx-a100-40gb", "lambda-a100-sxm4-80gb", "lambda-h100-sxm5-80gb")
"""Clusters of eight GPUs behind NVSwitch that were timed with one of them and with all."""
HALF = ("-fp16-", "-amp-")
"""In names of rows in half precision."""


class Goal(NamedTuple):
    """A figure that is to be reached.

    Attributes
    ----------
    name : str
    value : document, rows by view -> float or None
    goal : float
    before : float or None
    is_least : bool
        Whether it is to be at least the goal, not at most.
    form : str
        How a figure is written.
    """

    name: str
    value: Callable[[Found, Rows], float | None]
    goal: float
    before: float | None = None
    is_least: bool = False
    form: str = "{:.1%}"


def _over_sources(axis: str) -> Callable[[Found, Rows], float | None]:
    return lambda found, _: found["parts"].get("development", {}).get(axis, {}).get("of_sources", {}).get("mape")


def _mean(axis: str, belongs: Callable[[ScoredRow], bool]) -> Callable[[Found, Rows], float | None]:
    """Return the mean error of the rows of a view that belong to a goal."""

    def value(_: Found, rows: Rows) -> float | None:
        errors = [abs(one.error) for one in rows.get(axis, ()) if belongs(one) and one.error is not None]
        return float(np.mean(errors)) if errors else None

    return value


def _ratio(ends: tuple[str, str], belongs: Callable[[ScoredRow], bool]) -> Callable[[Found, Rows], float | None]:
    """Return how far the ratio of rows whose names differ in an ending is from the measured one, network left out."""

    def value(_: Found, rows: Rows) -> float | None:
        by_id = {one.id: 1 + one.error for one in rows["network"] if belongs(one) and one.error is not None}
        pairs = [(name.replace(*ends), each) for name, each in by_id.items() if ends[0] in name]
        found = [abs(each / by_id[other] - 1) for other, each in pairs if other in by_id]
        return float(np.mean(found)) if found else None

    return value


def _times(axis: str, kind: str) -> Callable[[Found, Rows], float | None]:
    return lambda found, _: found["intervals"].get(kind, {}).get(axis, {}).get("times")


def _least_covered(found: Found, _: Rows) -> float | None:
    """Return the least share inside the interval of a source of ten predicted rows and more."""
    of_sources = (one["network"] for one in found["sources"].values() if one["part"] == "development")
    return min(
        (one["coverage_90"] for one in of_sources if one["n"] >= 10 and one["coverage_90"] is not None), default=None
    )


def _is_paddle(row: ScoredRow) -> bool:
    return row.source == "paddle-resnet50" and any(part in row.id for part in HALF)


def _in_nvswitch(row: ScoredRow) -> bool:
    is_pytorch = row.source == "lambda-v1" or "-pytorch-" in row.id
    return is_pytorch and row.cluster in NVSWITCH


def _source(name: str) -> Callable[[Found, Rows], float | None]:
    return lambda found, _: found["sources"].get(name, {}).get("network", {}).get("mape")


def _pollux(figure: str) -> Callable[[Found, Rows], float | None]:
    return lambda found, _: found["ranking"].get("pollux-t4", {}).get(figure)


def _bundled_locked(found: Found, _: Rows) -> float | None:
    locked: float | None = found["parts"].get("locked", {}).get("bundled", {}).get("mape")
    return locked


def _covered(found: Found, _: Rows) -> float | None:
    covered: float | None = found["all"]["network"]["coverage_90"]
    return covered


GOALS = (
    Goal("network left out, mean over sources", _over_sources("network"), 0.11, 0.141),
    Goal("GPU left out, mean over sources", _over_sources("gpu"), 0.15, 0.202),
    Goal("cluster left out, mean over sources", _over_sources("cluster"), 0.14, 0.183),
    Goal("fitted numbers", lambda found, _: found["free_numbers"]["this program"], 120, 467, form="{:.0f}"),
    Goal("locked source, as bundled", _bundled_locked, 0.15, 0.409),
    Goal("Paddle's ResNet-50 in half precision, GPU left out", _mean("gpu", _is_paddle), 0.12),
    Goal("Lambda's set of 2022 and 2023, GPU left out", _mean("gpu", lambda row: row.source == "lambda-v1"), 0.12),
    Goal("timm, NCHW, network left out", _mean("network", lambda row: "-nchw-" in row.id), 0.12),
    Goal("timm, NHWC, network left out", _mean("network", lambda row: "-nhwc-" in row.id), 0.12),
    Goal(
        "timm, ratio of the layouts", _ratio(("-nchw-", "-nhwc-"), lambda row: row.source == "timm-rtx3090"), 0.1, 0.218
    ),
    Goal("8 GPUs over 1 behind NVSwitch", _ratio(("-g8", "-g1"), _in_nvswitch), 0.03),
    Goal("Pollux, 272 groups: Spearman", _pollux("spearman"), 0.4, -0.06, is_least=True, form="{:.2f}"),
    Goal("Pollux, 272 groups: mean regret", _pollux("regret_mean"), 0.035, 0.119),
    Goal("rows inside their 90 %, at least", _covered, 0.86, 0.97, is_least=True),
    Goal("rows inside their 90 %, at most", _covered, 0.94, 0.97),
    Goal("the same by source, least", _least_covered, 0.75, is_least=True),
    Goal("half-width, one GPU, measured kernels", _times("network", "one_gpu, measured"), 1.25, form="x{:.2f}"),
    Goal("half-width, one node, measured kernels", _times("network", "one_node, measured"), 1.45, form="x{:.2f}"),
    Goal("half-width, several nodes", _times("network", "several_nodes, measured"), 1.6, form="x{:.2f}"),
    Goal("half-width, GPU left out", _times("gpu", "all"), 1.8, form="x{:.2f}"),
    Goal("TensorFlow of 2017, network left out", _source("tensorflow-2017"), 1.1 * 0.115, 0.115),
    Goal("MXNet, network left out", _source("mxnet"), 1.1 * 0.132, 0.132),
    Goal("cnn-benchmarks, network left out", _source("cnn-benchmarks"), 1.1 * 0.058, 0.058),
    Goal("Pollux, network left out", _source("pollux-t4"), 1.1 * 0.178, 0.178),
)


def goals(found: Found, rows: Rows) -> list[dict[str, Any]]:
    """Return every goal with its figure, given the rest of the document and the rows that fits learn from, by view."""
    values = ((one, one.value(found, rows)) for one in GOALS)
    return [{"name": one.name, "value": value, "goal": one.goal, "before": one.before} for one, value in values]


def goals_page(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the goals in Markdown."""
    by_name = {one["name"]: one for one in found}
    yield "## Goals\n"
    yield (
        "What programs told by what they do, links by kind and intervals by evidence were to bring; *before*: commit "
        "9eed9b3, with ten sources, or the first page that had the rows.\n"
    )
    yield markdown_table(
        ("figure", "before", "now", "goal", "met"),
        (_cells(goal, by_name[goal.name]) for goal in GOALS if goal.name in by_name),
    )


def _cells(goal: Goal, found: Mapping[str, Any]) -> tuple[str, ...]:
    value, before = (
        goal.form.format(each).replace("%", " %") if each is not None else "-" for each in (found["value"], goal.before)
    )
    words = f"at {'least' if goal.is_least else 'most'} {goal.form.format(goal.goal).replace('%', ' %')}"
    reached = found["value"] is not None and (
        found["value"] >= goal.goal if goal.is_least else found["value"] <= goal.goal
    )
    return goal.name, before, value, words, "yes" if reached else "no"
