"""``planner suggest`` where nothing fits: what is named contradicts each other, framework and optimizer included."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
ON = ("suggest", "--cluster", "dgx-a100")
BF16 = ("--precision", "bf16")
LLAMA = (*ON, "--network", "llama3-70b", "--target-batch", "512", "--offload", "none", *BF16)
CASES = (
    ((*LLAMA, "--nodes", "2", "--framework", "fsdp"), {"--framework fsdp", "--nodes 2", "--offload none"}),
    ((*LLAMA, "--nodes", "1", "--optimizer", "adam"), {"--nodes 1", "--offload none"}),
    ((*ON, "--network", "resnet50", "--target-batch", "1000", "--tolerance", "0", "--nodes", "3"), None),
    ((*ON, "--network", "resnet50", "--target-batch", "1024", "--limit", "epoch=1s", "--framework", "mxnet"), None),
)


@pytest.mark.parametrize(("words", "named"), CASES)
def test_constraints_that_contradict_each_other_do(words: tuple[str, ...], named: set[str] | None, run: Run) -> None:
    code, out, _ = run(*words, "--json")
    assert code == 4
    answer = json.loads(out)
    conflict = answer.get("conflict", [])
    assert named is None or set(conflict) == named
    options = {part.split(" ")[0] for part in conflict}
    typed = [
        word
        for option, value in zip(words[1::2], words[2::2], strict=True)
        if option in (*options, "--cluster", "--network", "--target-batch", "--tolerance")
        for word in (option, value)
    ]
    if conflict and not any("the default" in part for part in conflict):
        assert run("suggest", *typed)[0] == 4  # the constraints that are named suffice
    for one in answer["loosen"]:
        if one["option"] in ("--framework", "--optimizer"):
            given = dict(zip(words[1::2], words[2::2], strict=True)) | {one["option"]: one["value"]}
            assert run("suggest", *(word for pair in given.items() for word in pair))[0] == 0


def test_what_was_not_left_out_is_said(run: Run) -> None:
    words = (*ON, "--network", "resnet50", "--target-batch", "1024", "--limit", "epoch=1s")
    assert "epoch=1s, even with all other options left out" in " ".join(run(*words)[1].split())
    scenario = (*words, "--scenario", "inter_node.bandwidth=50GB/s")
    assert "even with all other options except --scenario left out" in " ".join(run(*scenario)[1].split())


@pytest.mark.parametrize(
    ("target", "limit", "kept"),
    [
        ("138", ("--limit", "efficiency=80%"), lambda plan: plan["efficiency"] >= 0.8),
        ("138", ("--deadline", "260s"), lambda plan: plan["prediction"]["epoch_s"]["value"] <= 260),
        ("138", ("--limit", "epoch=4.4min"), lambda plan: plan["prediction"]["epoch_s"]["value"] <= 264),
    ],
)
def test_limits_hold_for_the_nearest_mini_batch_too(
    target: str, limit: tuple[str, str], kept: Callable[[dict[str, Any]], bool], run: Run
) -> None:
    """A wider window has none nearer that keeps them; who insists on the target is refused by it."""
    asked = ("suggest", "--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", target)
    code, out, _ = run(*asked, *limit, "--json")
    answer = json.loads(out)
    assert code == 0
    assert "nearest_batch" in {one["code"] for one in answer["warnings"]}
    assert all(map(kept, answer["plans"]))
    code, out, _ = run(*asked, *limit, "--tolerance", "0")
    assert code == 4
    assert f"--target-batch {target} --tolerance 0%" in " ".join(out.split())


def test_a_limit_that_no_mini_batch_near_the_target_keeps_is_named_with_it(run: Run) -> None:
    asked = ("suggest", "--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "138")
    code, out, _ = run(*asked, "--limit", "epoch=1min")
    assert code == 4
    assert "No plan here meets --limit epoch=60s and --target-batch 138 together" in " ".join(out.split())


@pytest.mark.parametrize(
    ("limit", "typed", "words"),
    [
        (("--deadline", "90d"), "--deadline 90d", "time of the whole training 154 d 17 h, 72% above --deadline"),
        (
            ("--limit", "tokens-per-s=1e9"),
            "--limit tokens-per-s=1e9",
            "tokens a second 74,800, below the 1,000,000,000 of --limit tokens-per-s",
        ),
    ],
)
def test_a_refusal_writes_times_and_rates_as_answers_do(
    limit: tuple[str, str], typed: str, words: str, run: Run
) -> None:
    asked = ("suggest", "--network", "llama3-8b", "--cluster", "dgx-h100", *BF16, "--target-batch", "512")
    tokens = ("--tokens", "1e12") if limit[0] == "--deadline" else ()
    text = " ".join(run(*asked, "--nodes", "1", *tokens, *limit)[1].split())
    assert words in text
    assert typed in text
    assert "at 74,800 tokens/s" in text
