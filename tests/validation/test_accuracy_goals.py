"""Goals of the accuracy page, on made-up rows."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.runs import ScoredRow
from validation.accuracy_goals import goals, goals_page


def row(name: str, error: float, source: str, cluster: str = "") -> ScoredRow:
    return ScoredRow(
        name, 2, "iteration_s", 1 + error, None, None, 1.0, "ok", "ok", in_sample=False, refused=None, source=source,
        cluster=cluster,
    )  # fmt: skip


def document(mean: float | None = 0.1, spearman: float | None = 0.5) -> dict[str, Any]:
    of = {"of_sources": {"mape": mean}}
    return {
        "parts": {"development": dict.fromkeys(("network", "gpu", "cluster"), of)},
        "free_numbers": {"this program": 100},
        "all": {"network": {"coverage_90": 0.9}},
        "sources": {"pollux-t4": {"part": "development", "network": {"n": 20, "coverage_90": 0.8, "mape": 0.2}}},
        "intervals": {},
        "ranking": {"pollux-t4": {"spearman": spearman, "regret_mean": 0.03}},
    }


ROWS = {
    "network": [
        row("timm-a-nchw-b1", 0.2, "timm-rtx3090"),
        row("timm-a-nhwc-b1", 0.0, "timm-rtx3090"),
        row("lambda-v1-x-g1", 0.1, "lambda-v1", "lambda-h100-sxm5-80gb"),
        row("lambda-v1-x-g8", 0.21, "lambda-v1", "lambda-h100-sxm5-80gb"),
        row("lambda-v1-y-g8", 5.0, "lambda-v1", "lambda-rtx-3090"),
    ],
    "gpu": [row("lambda-v1-x-g1", -0.3, "lambda-v1"), row("paddle-x-fp16-g1", 0.4, "paddle-resnet50")],
}


def test_each_goal_has_the_figure_of_its_rows() -> None:
    found = {one["name"]: one["value"] for one in goals(document(), ROWS)}
    assert found["GPU left out, mean over sources"] == 0.1
    assert found["Lambda's set of 2022 and 2023, GPU left out"] == pytest.approx(0.3)
    assert found["Paddle's ResNet-50 in half precision, GPU left out"] == pytest.approx(0.4)
    assert found["timm, NCHW, network left out"] == pytest.approx(0.2)
    assert found["timm, ratio of the layouts"] == pytest.approx(0.2)
    assert found["8 GPUs over 1 behind NVSwitch"] == pytest.approx(0.1)
    assert found["the same by source, least"] == 0.8
    assert found["half-width, GPU left out"] is None


def test_a_goal_is_met_from_its_own_side() -> None:
    lines = "".join(goals_page(goals(document(0.11, 0.3), ROWS))).splitlines()
    by_name = {line.split(" | ")[0].removeprefix("| "): line.removesuffix(" |").rpartition(" ")[2] for line in lines}
    assert by_name["network left out, mean over sources"] == "yes"
    assert by_name["Pollux, 272 groups: Spearman"] == "no"
    assert by_name["rows inside their 90 %, at least"] == by_name["rows inside their 90 %, at most"] == "yes"
    assert by_name["half-width, GPU left out"] == "no"


def test_a_check_of_one_axis_has_no_figures_of_the_others() -> None:
    one = document()
    one["parts"]["development"] = {"network": {"of_sources": {"mape": 0.1}}}
    found = {each["name"]: each["value"] for each in goals(one, {"network": ROWS["network"]})}
    assert found["network left out, mean over sources"] == 0.1
    assert found["GPU left out, mean over sources"] is None
    assert found["Lambda's set of 2022 and 2023, GPU left out"] is None
