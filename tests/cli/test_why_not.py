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


@pytest.mark.parametrize("target", [139, 1021])
def test_the_nearest_mini_batch_is_that_of_suggest(run: Any, target: int) -> None:
    asked = (*RESNET[:-1], str(target))
    answer = json.loads(run(*asked, "--json")[1])
    assert answer["request"]["tolerance"]["source"] == "nearest mini-batch"
    first = answer["plans"][0]["configuration"]
    shape = f"nodes={first['nodes']},sub-batch={first['sub_batch']},precision={first['precision']}"
    why = json.loads(run(*asked, "--why-not", shape, "--json")[1])
    assert (why["status"], why["rank"]) == ("ranked", 1)
    assert why["request"]["tolerance"] == answer["request"]["tolerance"]
    assert json.loads(run(*asked, "--tolerance", "0", "--why-not", shape, "--json")[1])["status"] == "refused"


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


def test_answers_of_several_frameworks_are_told_apart(run: Any) -> None:
    asked = (*RESNET, "--framework", "pytorch,mxnet", "--precision", "fp16")
    plans = json.loads(run(*asked, "--json", "--top", "40")[1])["plans"]
    code, out, _ = run(*asked, "--why-not", "nodes=4")
    titles = [line for line in out.splitlines() if line.startswith("resnet50 on dgx1-v100 in ")]
    assert code == 0
    for framework, title in zip(("pytorch", "mxnet"), titles, strict=True):
        own = [one["configuration"] for one in plans]
        rank = next(at for at, one in enumerate(own, 1) if one["framework"] == framework and one["nodes"] == 4)
        assert title.startswith(
            f"resnet50 on dgx1-v100 in {framework}, target mini-batch 1024, nodes=4: rank {rank} of"
        )
        answer = json.loads(run(*asked, "--why-not", f"nodes=4,framework={framework}", "--json")[1])
        assert (answer["framework"], answer["rank"]) == (framework, rank)
        assert answer["best"]["configuration"]["framework"] == framework
        assert answer["first"]["configuration"] == plans[0]["configuration"]


def test_a_framework_that_is_not_searched_is_refused(run: Any) -> None:
    code, out, err = run(*RESNET, "--why-not", "framework=mxnet")
    assert (code, out) == (2, "")
    assert "framework in --why-not must be one of those of --framework, pytorch, got 'mxnet'; name it in" in err


@pytest.mark.parametrize(
    ("values", "verdict", "sentence"),
    [
        ("mode=async", "not among what the request tries", "--mode sync leaves out async"),
        ("nodes=500", "no such plan exists", "cluster dgx1-v100 has 64 nodes, not 500"),
        ("gpus-per-node=4", "not among what the request tries", "--gpus-per-node 8 leaves out 4"),
    ],
)
def test_what_the_request_does_not_try_has_no_rank(run: Any, values: str, verdict: str, sentence: str) -> None:
    words = " ".join(run(*RESNET, "--why-not", values)[1].split())
    assert words.startswith(f"resnet50 on dgx1-v100, target mini-batch 1024, {values}: {verdict} {sentence}")


LLAMA = ("suggest", "--network", "llama3-8b", "--cluster", "dgx-h100", "--target-batch", "256")


@pytest.mark.parametrize(
    ("framework", "values", "sentence"),
    [
        ("megatron-lm", "tensor=3", "--tensor must be a divisor of the 32 heads"),
        ("fsdp", "tensor=8", "--tensor must be 1 in framework fsdp"),
        ("megatron-lm", "pipeline=4,virtual-stages=3", "--virtual-stages must be such that "),
        ("megatron-lm", "recompute=selective,recompute-every=2", "--recompute-every must be 1 unless"),
    ],
)
def test_the_rule_that_no_such_plan_obeys_is_said(run: Any, framework: str, values: str, sentence: str) -> None:
    out = run(*LLAMA, "--framework", framework, "--why-not", values)[1]
    assert f"no such plan exists {sentence}" in " ".join(out.split())


def test_plans_of_a_language_model_have_tokens_a_second(run: Any) -> None:
    out = " ".join(run(*LLAMA, "--why-not", "nodes=7")[1].split())
    assert out.count("tokens/s") == 2
    assert " a sample" not in out
    swept = run("sweep", *LLAMA[1:], "--nodes", "7:8")[1]
    assert "\ntokens/s by nodes" in swept
    assert "of a sample" not in swept


def test_what_nobody_asked_for_is_said_last(run: Any) -> None:
    """Not the user's are a width that the nearest mini-batch has, and precisions that nothing was measured in."""
    out = run(*RESNET[:-1], "139", "--why-not", "nodes=3,mode=sync")[1]
    reasons = [row.split(maxsplit=1)[1] for row in out.splitlines() if row[:7].strip().replace(",", "").isdigit()]
    is_precision = [row.startswith("precision") for row in reasons]
    assert sorted(is_precision) == is_precision
    assert set(is_precision) == {False, True}
    assert "(now the nearest mini-batch, " in " ".join(out.split())
