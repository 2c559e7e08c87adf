"""``planner report``: the page has the figures of the document, of itself alone; what it refuses is not written."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.cli.options import OPTIONS
from planner.cli.request import allowed_request, gather, provenance, resolve, values_kept
from planner.domain.objective import LIMITS
from planner.domain.request import Sourced
from planner.formats.parts import REQUEST_TABLE
from planner.report import page
from planner.units import duration_unit, format_duration, format_number

pytest.importorskip("matplotlib")
Run = Callable[..., tuple[int, str, str]]
GOLDEN = Path(__file__).parent.parent / "data" / "golden"
ANSWERS = ("suggest-split-gpt", "suggest-default", "predict-split-gpt")


def kept(name: str) -> Any:
    """Return a golden answer."""
    return json.loads((GOLDEN / f"{name}.json").read_text())["answer"]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawings, which take most of the time."""
    monkeypatch.setattr(page, "drawing", lambda *_: "<svg></svg>")


def cells(text: str, name: str) -> list[list[str]]:
    """Return the cells of the table of a part of a page, by row."""
    (part,) = re.findall(f'<(?:figure|section) id="{name}">(.*?)</(?:figure|section)>', text, re.DOTALL)
    body = part.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [html.unescape(cell) for cell in re.findall("<td[^>]*>(?:<b>)?(.*?)(?:</b>)?</td>", row)]
        for row in body.split("</tr>")[:-1]
    ]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ANSWERS)
def test_the_page_has_the_figures_of_the_document(run: Run, name: str) -> None:
    document = kept(name)
    Path("plan.json").write_text(json.dumps(document))
    assert run("report", "plan.json", "-o", "page.html") == (0, "", "")
    text = Path("page.html").read_text()
    plans = document.get("plans") or document["predictions"]
    numbers = [str(one.get("position", at)) for at, one in enumerate(plans, 1)]
    rows = {part: cells(text, part) for part in ("plans", "step", "intervals", "memory")}
    assert [row[0] for row in rows["plans"]] == numbers == [row[0] for row in rows["intervals"]]
    for number, plan, interval in zip(numbers, plans, rows["intervals"], strict=True):
        figures = plan.get("prediction", plan)
        stages = [float(row[-1]) for row in rows["memory"] if row[0] == number]
        assert max(stages) == pytest.approx(figures["memory_bytes"]["total"] / 2**30, abs=6e-3)
        speed = float(interval[-2].split()[0].replace(",", ""))
        speed *= 1e6 if interval[-2].split()[1] == "M" else 1.0
        expected = figures.get("tokens_per_s", figures["samples_per_s"])["value"]
        assert speed == pytest.approx(expected, rel=0.06)
        told = [cell.split(" + ")[0] for row in rows["step"] if row[0] == number for cell in row]
        for term in figures["terms"]:
            assert format_duration(term.get("exposed_seconds", term["seconds"]), 3) in told
    has_stages = any(one["configuration"].get("pipeline_parallel", 1) > 1 for one in plans)
    assert any(" to " in row[1] or row[1] == "1" for row in rows["memory"]) == has_stages
    assert ('id="sweep"' in text) == ("plans" in document)


def test_the_page_loads_nothing_and_its_drawings_have_the_colours_of_the_reader(run: Run) -> None:
    document = kept("predict-split-gpt")
    Path("plan.json").write_text(json.dumps(document | {"predictions": document["predictions"][:1]}))
    _, text, _ = run("report", "plan.json")
    assert text.count("<svg ") == len(re.findall('<figure id="', text)) == 5
    assert re.search("""(src|href)=["'](?!data:|#)|@import|<script|url[(](?!#)|http-equiv="refresh""", text) is None
    identifiers = re.findall(' id="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    assert {*re.findall('(?:href="|url[(])#([^")]+)', text)} <= {*identifiers}
    assert not re.findall("(?:fill|stroke): #[0-9a-f]{6}", text)


@pytest.mark.usefixtures("undrawn")
def test_the_curve_is_that_of_the_sweep_of_the_request(run: Run) -> None:
    Path("plan.json").write_text(json.dumps(kept("suggest-default")))
    _, text, _ = run("report", "plan.json")
    least: dict[str, float] = {}
    for one in json.loads(run("sweep", "--target-batch", "138", "--json")[1])["plans"]:
        nodes = str(one["configuration"]["nodes"])
        least[nodes] = min(least.get(nodes, one["objective"]), one["objective"])
    scale = duration_unit(min(least.values()), 3)[0]
    assert {row[0]: row[-1] for row in cells(text, "sweep")} == {
        nodes: format_number(value / scale, 3) for nodes, value in least.items()
    }


@pytest.mark.parametrize(
    "options",
    [
        {"target_batch": "138"},
        {"target_batch": "138", "nodes": "1:9:2", "tolerance": "10%", "calibration": ["tsubame-kfc"],
         "network": ["sprint-15"], "cluster": "tsubame-kfc", "mode": "async", "limit": "epoch=5h,window=0.1"},
        {"target_batch": "256", "network": ["gpt:layers=4,hidden=256,heads=4"], "cluster": "dgx-a100",
         "limit": "nodes=4", "rank_order": "tensor,pipeline,data,context,expert", "recompute": "every:2",
         "objective": "epoch-time:1+cost:0.25", "strategy": "bucketed:25MiB", "scenario": "inter_node.bandwidth=50GB/s",
         "calibration": ["any-steps"], "framework": "fsdp", "mode": "sync", "input": "synthetic"},
    ],
)  # fmt: skip
def test_a_request_that_was_kept_asks_what_was_asked(options: dict[str, Any]) -> None:
    given = gather("sweep", options)
    _, (case,) = resolve(given)
    kept = json.loads(json.dumps(REQUEST_TABLE.write(provenance(case, allowed_request(case, given)))))
    again = values_kept(REQUEST_TABLE.read(kept, ""), "sweep")
    assert {name: again[name] for name in given} == dict(given)


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"format": "planner/network"}, 3, "plan.json: format: value must be one of 'planner/suggestion', "),
        ({"version": 99}, 3, "plan.json: version: "),
        (
            {"status": "none_feasible", "plans": [], "chosen": None},
            4,
            "no plan fits in this answer; its key loosen says",
        ),
        ({}, 2, "output file must be a new one, got 'page.html', which exists; use --force to replace it"),
    ],
)
def test_what_is_no_answer_is_refused_in_a_sentence(
    run: Run, changes: dict[str, Any], code: int, sentence: str
) -> None:
    document = kept("suggest-default") | changes
    Path("plan.json").write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    if not changes:
        Path("page.html").write_text("mine")
    got, out, err = run("report", "plan.json", "-o", "page.html")
    assert (got, out) == (code, "")
    assert sentence in err
    assert not changes or not Path("page.html").exists()


@pytest.mark.usefixtures("undrawn")
def test_what_cannot_be_asked_again_is_left_out_and_said(run: Run) -> None:
    document = kept("suggest-default")
    document["request"]["network"] = {"value": "no-such.toml", "source": "option"}
    Path("plan.json").write_text(json.dumps(document))
    code, text, err = run("report", "plan.json")
    assert code == 0
    assert "planner: curves, stages and kernels are left out: " in err
    assert "Curves, stages and kernels are left out: " in text
    assert re.findall('<figure id="([a-z]+)"', text) == ["step", "intervals", "memory", "front"]


def test_every_limit_is_asked_again_as_it_was() -> None:
    text = ",".join(f"{name}={'1h' if one.unit == 's' else 0.5}" for name, one in LIMITS.items() if not one.option)
    limit: Sourced[Any] = Sourced(OPTIONS["limit"].parse("--limit", text), "option")
    assert values_kept({"limit": limit}, "sweep") == {"limit": limit}
