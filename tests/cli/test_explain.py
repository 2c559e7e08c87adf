"""Any part of an answer that was kept, from a file or from standard input."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest

from planner.cli.main import main

Run = Callable[..., tuple[int, str, str]]
ASKED = ("--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "1024", "--input", "synthetic")


@cache
def document() -> str:
    """Return an answer with five plans."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        assert main(["suggest", *ASKED, "--json"]) == 0
    return out.getvalue()


@pytest.fixture
def plan() -> str:
    """Return the file of an answer with five plans."""
    Path("plan.json").write_text(document())
    return "plan.json"


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def codes(text: str) -> set[str]:
    """Return the codes of the warnings of a text."""
    return set(re.findall(r"^  (\w+) \(", text, flags=re.MULTILINE))


def test_everything_is_what_v_prints(run: Run, plan: str) -> None:
    """But for the last digits of what is derived anew, and deviations, which a document does not hold."""
    code, out, err = run("explain", plan)
    assert code == 0
    asked = run("suggest", *ASKED, "-v")
    assert lines(out) == lines(asked[1])
    assert lines(err) == lines(asked[2])


def test_the_short_answer_is_printed_again(run: Run, plan: str) -> None:
    code, out, err = run("explain", plan, "--part", "answer")
    assert code == 0
    again = err.replace("--part warnings shows all", "-v shows all")  # explain has no -v
    assert [lines(out), lines(again)] == [lines(text) for text in run("suggest", *ASKED)[1:]]


def test_a_plan_is_printed_by_its_position(run: Run, plan: str) -> None:
    document = json.loads(Path(plan).read_text())
    for position in (1, 2, 3):
        code, out, _ = run("explain", plan, "--position", str(position))
        assert code == 0
        configuration = document["plans"][position - 1]["configuration"]
        assert lines(out)[0].startswith(f"Plan {position}: {configuration['nodes']} nodes x 8 GPUs, sub-batch ")
        assert {"Terms", "Where the times come from"} <= set(lines(out))
        assert "Request" not in out


def test_each_part_stands_alone(run: Run, plan: str) -> None:
    found = {}
    for part in ("plan", "terms", "sources", "request", "refusals", "warnings"):
        code, found[part], err = run("explain", plan, "--part", part)
        assert (code, err if part != "plan" else "") == (0, "")
    assert lines(found["terms"])[0] == "term takes adds share origin calibration"
    assert lines(found["terms"])[1:] == [line for line in lines(found["plan"]) if line in lines(found["terms"])[1:]]
    assert lines(found["sources"])[0].startswith("v100-sxm2-16gb published, DeepBench")
    assert "target-batch 1024 option" in lines(found["request"])
    assert lines(found["refusals"])[0].startswith("method exhaustive: ")
    assert lines(found["warnings"])[0] == "Warnings"
    chosen = run("explain", plan, "--part", "warnings", "--position", "1")[1]
    assert set() < codes(chosen) <= codes(found["warnings"])


def test_the_plan_taken_stands_for_all_where_no_position_is_given(run: Run, plan: str) -> None:
    position = json.loads(Path(plan).read_text())["chosen"]
    assert run("explain", plan, "--part", "plan") == run("explain", plan, "--position", str(position))


def test_standard_input_is_a_document(run: Run, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run("explain", plan)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(plan).read_bytes())))
    assert run("explain", "-") == expected


def test_runs_are_those_of_the_tied_plans_or_of_the_one_to_take(run: Run, plan: str) -> None:
    document = json.loads(Path(plan).read_text())
    ids = [f"plan-{one}" for one in document.get("deciding_runs", [document["chosen"]])]
    code, out, err = run("explain", plan, "--part", "runs")
    assert (code, [line.split(",")[0] for line in out.splitlines()[2:]]) == (0, ids)
    assert "planner calibrate --plan plan.json --runs FILE.csv" in err
    alone = run("suggest", *ASKED, "--nodes", "1", "--sub-batch", "128", "--precision", "fp16", "--json")[1]
    assert "deciding_runs" not in json.loads(alone)
    Path("alone.json").write_text(alone)
    assert [line[:7] for line in run("explain", "alone.json", "--part", "runs")[1].splitlines()[2:]] == ["plan-1,"]


def test_a_prediction_has_the_parts_of_a_plan(run: Run) -> None:
    asked = ("--network", "resnet50", "--cluster", "dgx1-v100", "--sub-batch", "8,16")
    Path("two.json").write_text(run("predict", *asked, "--json")[1])
    code, out, _ = run("explain", "two.json", "--position", "2", "--part", "terms")
    assert (code, lines(out)[0]) == (0, "term takes adds share origin calibration")
    assert lines(run("explain", "two.json")[1]).count("Terms") == 2
    sources = run("explain", "two.json", "--position", "2", "--part", "sources")[1]
    assert lines(sources)[0].startswith("v100-sxm2-16gb published, DeepBench")
    code, out, err = run("explain", "two.json", "--part", "request")
    assert (code, out) == (2, "")
    assert err.startswith("planner: --part must be one that a prediction has (answer, plan, terms, sources, warnings)")


def test_where_nothing_fits_the_nearest_plans_are_explained(run: Run) -> None:
    code, out, _ = run("suggest", *ASKED[:4], "--target-batch", "1000", "--nodes", "3", "--tolerance", "0", "--json")
    assert code == 4
    Path("none.json").write_text(out)
    code, out, _ = run("explain", "none.json")
    assert code == 0
    assert "no plan fits" in out
    assert run("explain", "none.json", "--position", "1")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ((), 2, "planner: ANSWER.json must be given, got nothing"),
        (("missing.json",), 3, "planner: missing.json: file must be readable, got No such file or directory"),
        (("plan.json", "--position", "9"), 2, "planner: --position must be one of the answer's (1, 2, 3, 5, 7), got 9"),
        (
            ("plan.json", "--position", "2", "--part", "request"),
            2,
            "planner: --position must be given with --part plan,",
        ),
        (("plan.json", "--part", "runs", "--position", "1"), 2, "planner: --position must be left out with"),
        (("plan.json", "--part", "cost"), 2, "planner: --part must be one of "),
        (("other.json",), 3, "planner: other.json: format: value must be one of "),
    ],
)
def test_what_cannot_be_is_one_sentence(words: tuple[str, ...], code: int, sentence: str, run: Run, plan: str) -> None:
    assert plan == "plan.json"
    Path("other.json").write_text('{"format": "planner/calibration", "version": 1}')
    found, out, err = run("explain", *words)
    assert (found, out) == (code, "")
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_an_interval_that_does_not_hold_its_figure_is_refused(plan: str, run: Run) -> None:
    document = json.loads(Path(plan).read_text())
    document["plans"][0]["prediction"]["iteration_s"]["high"] = 0
    Path(plan).write_text(json.dumps(document))
    code, _, err = run("explain", plan)
    assert (code, "low and high: values must hold" in err) == (3, True)
