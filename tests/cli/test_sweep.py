from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.units import format_duration

RESNET = ("--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "2048")


def test_the_best_plan_is_that_of_suggest(run: Any) -> None:
    code, out, err = run("sweep", *RESNET, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    best = next(one for one in answer["plans"] if one["rank"] == 1)
    assert best["objective"] == min(one["objective"] for one in answer["plans"])
    assert answer["unit"] == "s"
    _, out, _ = run("suggest", *RESNET, "--json")
    assert best["configuration"] == json.loads(out)["plans"][0]["configuration"]


def test_the_table_fits_a_screen_and_holds_what_json_does(run: Any) -> None:
    _, out, _ = run("sweep", *RESNET)
    lines = out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    _, document, _ = run("sweep", *RESNET, "--json")
    plans = {
        (one["configuration"]["nodes"], one["configuration"]["sub_batch"]): one["objective"]
        for one in json.loads(document)["plans"]
    }
    sizes = next(line for line in lines if line.lstrip().startswith("nodes")).split()[1:-1]
    rows = [line.split() for line in lines if re.match(r"\s+\d+ ", line)]
    assert {int(row[0]) for row in rows} == {nodes for nodes, _ in plans}
    for nodes, *cells, best in rows:
        own = [plans.get((int(nodes), int(size))) for size in sizes]
        for cell, value in zip(cells, own, strict=True):
            assert cell == "-" if value is None else float(re.sub("[,*]", "", cell)) == pytest.approx(value, rel=5e-3)
        least = min(value for (n, _), value in plans.items() if n == int(nodes))
        assert float(best.replace(",", "")) == pytest.approx(least, rel=5e-3)


def test_a_picture_goes_to_its_file(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "sweep.svg"
    code, _, err = run("sweep", *RESNET, "--nodes", "1,2", "--plot", str(path))
    assert code == 0
    assert str(path) in err
    assert path.read_text(encoding="utf-8").startswith("<?xml")
    assert run("sweep", *RESNET, "--plot", str(path))[0] == 2


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("--network", "resnet50", "--cluster", "dgx1-v100"), 2, "--target-batch must be given"),
        ((*RESNET, "--network", "vgg16"), 2, "one network"),
    ],
)
def test_what_cannot_be_swept_is_said(run: Any, arguments: tuple[str, ...], exit_code: int, words: str) -> None:
    code, out, err = run("sweep", *arguments)
    assert (code, out) == (exit_code, "")
    assert words in err


def test_a_limit_that_nothing_keeps_is_exit_4_with_what_comes_nearest_as_of_suggest(run: Any) -> None:
    arguments = (*RESNET, "--nodes", "1:8", "--limit", "epoch=1s")
    assert run("sweep", *arguments) == run("suggest", *arguments)
    code, out, err = run("sweep", *arguments, "--json")
    assert code == 4
    answer = json.loads(out)
    assert (answer["format"], answer["status"], len(answer["nearest"])) == ("planner/suggestion", "none_feasible", 3)
    (way,) = answer["loosen"]
    assert way["option"] == "--limit"
    epochs = [one["prediction"]["epoch_s"]["value"] for one in answer["nearest"]]
    assert epochs == sorted(epochs)
    assert answer["nearest"][0]["why"].startswith(f"epoch time {format_duration(epochs[0], 3)}, ")
    assert err.endswith(f"the smallest change that helps: --limit {way['value']}\n")
