from __future__ import annotations

import json
from typing import Any

import pytest

RESNET = ("suggest", "--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "1024")


def test_a_plan_of_the_answer_is_ranked_first(run: Any) -> None:
    plan = json.loads(run(*RESNET, "--json")[1])["plans"][0]["configuration"]
    values = f"nodes={plan['nodes']},sub-batch={plan['sub_batch']},precision={plan['precision']}"
    code, out, err = run(*RESNET, "--why-not", values, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (answer["format"], answer["status"], answer["rank"]) == ("planner/why_not", "ranked", 1)
    assert answer["best"]["configuration"] == plan


def test_a_slower_plan_is_priced_and_ranked(run: Any) -> None:
    code, out, _ = run(*RESNET, "--why-not", "nodes=4,precision=fp32")
    assert code == 0
    assert "rank " in out
    assert "slower than plan 1" in " ".join(out.split())
    assert len(out.splitlines()) <= 25


def test_the_constraint_is_named_with_what_would_help(run: Any) -> None:
    code, out, _ = run(*RESNET, "--why-not", "nodes=3")
    words = " ".join(out.split())
    assert code == 0
    assert "mini-batch above the window" in words
    assert "what would help: --tolerance" in words
    assert len(out.splitlines()) <= 25


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node=3", "did you mean 'nodes'"),
        ("nodes", "a list key=value"),
        ("nodes=3,nodes=4", "each key once"),
        ("nodes=x", "nodes in --why-not"),
        ("precision=fp23", "precision in --why-not"),
        ("", "a list key=value"),
    ],
)
def test_bad_values_are_said(run: Any, text: str, words: str) -> None:
    code, out, err = run(*RESNET, "--why-not", text)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("option", [("--pareto",), ("--brief",), ("--search", "optuna"), ("--time-limit", "1s")])
def test_options_of_a_ranking_are_refused(run: Any, option: tuple[str, ...]) -> None:
    code, out, err = run(*RESNET, "--why-not", "nodes=16", *option)
    assert (code, out) == (2, "")
    assert f"--why-not must be given without options of a ranking, got '{option[0]}'" in err
