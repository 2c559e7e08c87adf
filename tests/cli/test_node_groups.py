"""A cluster of several node groups, from the command line: answers, documents and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
CLUSTER = str(Path(__file__).parents[2] / "benchmarks" / "clusters" / "mixed.toml")
ASKED = ("--network", "resnet50", "--cluster", CLUSTER)
SUGGEST = ("suggest", *ASKED, "--target-batch", "1024", "--precision", "fp16")
BOTH = ("--group", "v100:nodes=4,sub-batch=12", "--group", "a100:nodes=2,sub-batch=40")
V100, A100 = 13, 38
"""Sub-batches of the plan that the answer takes: as many samples as each group's speed deserves."""
SUGGESTED = ("--group", f"v100:nodes=4,sub-batch={V100}", "--group", f"a100:nodes=2,sub-batch={A100}")
MOST_LINES = 25


def document(run: Run, *arguments: str) -> dict[str, Any]:
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def test_suggest_divides_the_batch_by_speed(run: Run) -> None:
    code, out, err = run(*SUGGEST, "--choose", "fastest")
    assert code == 0
    assert len((out + err).splitlines()) <= MOST_LINES
    words = " ".join(out.split())
    assert words.startswith(
        f"resnet50 on mixed, target mini-batch 1024: take plan 1, 4 nodes x 8 GPUs of v100 at sub-batch {V100} + "
        f"2 nodes x 8 GPUs of a100 at sub-batch {A100}, fp16, synchronous: an epoch in"
    )
    assert f"1 v100 + a100 4 x 8 + 2 x 8 {V100} + {A100}" in words
    assert "Each group by itself: " in words
    assert "torchrun --nnodes 6 --nproc-per-node gpu" in words
    assert f"# sub-batch {V100} on v100, {A100} on a100, fp16" in words


def test_predict_prices_the_plan_that_suggest_gives(run: Run) -> None:
    plan = document(run, *SUGGEST)["plans"][0]
    one = document(run, "predict", *ASKED, *SUGGESTED, "--precision", "fp16")
    assert one["configuration"] == plan["configuration"]
    for key in ("epoch_s", "groups_s", "memory_bytes", "samples_per_s"):
        assert one[key] == plan["prediction"][key]
    assert one["configuration"]["gpus"] == 48
    assert one["configuration"]["mini_batch"] == 4 * 8 * V100 + 2 * 8 * A100 == 1024
    assert one["configuration"]["groups"] == [
        {"name": "v100", "nodes": 4, "gpus_per_node": 8, "sub_batch": V100},
        {"name": "a100", "nodes": 2, "gpus_per_node": 8, "sub_batch": A100},
    ]
    assert one["iteration_s"]["value"] == max(one["groups_s"].values())
    assert "weighted_gradients" in [warning["code"] for warning in one["warnings"]]


def test_plan_on_one_group_is_that_of_its_cluster(run: Run, tmp_path: Path) -> None:
    alone = tmp_path / "alone.toml"
    text = Path(CLUSTER).read_text()
    first, second = text.index('[[node_groups]]\nname = "v100"'), text.index('[[node_groups]]\nname = "a100"')
    alone.write_text(text[:first] + text[second:])
    on_group = document(run, "predict", *ASKED, "--group", "a100:sub-batch=64,accumulation=2")
    passes = ("--sub-batch", "64", "--accumulation", "2")
    on_cluster = document(run, "predict", "--network", "resnet50", "--cluster", str(alone), *passes)
    for key in ("epoch_s", "iteration_s", "terms", "memory_bytes"):
        assert on_group[key] == on_cluster[key]
    assert on_group["configuration"].pop("groups")[0]["name"] == "a100"
    assert on_group["configuration"] == on_cluster["configuration"]


def test_kept_answer_is_explained_as_it_was_given(run: Run, tmp_path: Path) -> None:
    given = run(*SUGGEST, "--choose", "fastest")[1]
    kept = tmp_path / "plan.json"
    kept.write_text(run(*SUGGEST, "--choose", "fastest", "--json")[1])
    code, out, _ = run("explain", str(kept), "--part", "answer")
    assert (code, out) == (0, given)
    out = run("explain", str(kept), "--position", "1")[1]
    assert f"Plan 1: 4 nodes x 8 GPUs of v100 at sub-batch {V100}" in out


def test_brief_says_the_groups(run: Run) -> None:
    one = document(run, *SUGGEST, "--choose", "fastest", "--brief")
    assert [part["name"] for part in one["groups"]] == ["v100", "a100"]
    assert (one["ranks"], one["mini_batch"], one["certified"]) == (48, 1024, True)


def test_named_calibrations_serve_the_group_of_their_device(run: Run) -> None:
    one = document(run, *SUGGEST, "--calibration", "v100-sxm2-16gb")
    assert one["request"]["calibration"]["value"][0] == "v100-sxm2-16gb"
    assert one["plans"]
    code, out, err = run(*SUGGEST, "--calibration", "h100-sxm5-80gb")
    assert (code, out) == (5, "")
    assert "--calibration must be of v100-sxm2-16gb or a100-sxm4-40gb, the devices of cluster 'mixed'" in err


def test_several_scenarios_are_answered(run: Run) -> None:
    slow = "inter_node.bandwidth=0.5GB/s"
    found = document(run, "predict", *ASKED, *BOTH, "--scenario", f"all_reduce*=1,{slow}")
    fast, slowed = (one["iteration_s"]["value"] for one in found["predictions"])
    assert slowed > fast


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--mode", "async"), "--mode must be sync on cluster 'mixed' of several node groups, got 'async'"),
        (("--pareto",), "--pareto must be left out on cluster 'mixed' of several node groups, got '--pareto'"),
        (
            ("--time-limit", "1ms"),
            "--time-limit must be left out on cluster 'mixed' of several node groups, got '0.001s'",
        ),
        (
            ("--objective", "cost"),
            "--objective must be epoch-time or gpu-hours on cluster 'mixed', which has no price, got 'cost'",
        ),
        (
            ("--why-not", "nodes=3"),
            "on cluster 'mixed' of several node groups, got 'nodes=3'",
        ),
        (("--gpus-per-node", "4"), "--gpus-per-node must be left out on cluster 'mixed' of several node groups"),
        (("--stages", "best"), "--stages must be left out on cluster 'mixed' of several node groups, got 'best'; give"),
        (("--strategy", "best-fusion"), "--strategy must be one of fixed buckets on several node groups"),
        (("--search", "optuna"), "--search must be left out on cluster 'mixed' of several node groups"),
        (("--framework", "pytorch,mxnet"), "--framework must be one framework on cluster 'mixed'"),
        (("--nodes", "7"), "--nodes must be at most the 6 of cluster 'mixed', got 7"),
        (("--scenario", "gpu=h100-sxm5-80gb"), "--scenario must be without another GPU on cluster 'mixed'"),
    ],
)
def test_what_suggest_does_not_do_across_groups(arguments: tuple[str, ...], sentence: str, run: Run) -> None:
    code, out, err = run(*SUGGEST, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "--group must be given on cluster 'mixed', which has several, got nothing; say what each group does"),
        (("--nodes", "2", *BOTH), "--nodes must be left out on cluster 'mixed' of several node groups"),
        (("--tensor", "2", *BOTH), "--tensor must be left out on cluster 'mixed' of several node groups"),
        (("--mini-batch", "8", *BOTH), "--mini-batch must be left out on cluster 'mixed'"),
        (("--strategy", "best-fusion", *BOTH), "--strategy must be one of fixed buckets on several node groups"),
        ((*BOTH[:2], "--group", "v100:sub-batch=1"), "--group must be given once for each group, got 'v100, v100'"),
        ((*BOTH, *BOTH[:2]), "--group must be given once for each group, got 'v100, a100, v100'"),
        (("--group", "a100:nodes=3,sub-batch=1"), "nodes of group a100 must be at most 2, got 3"),
        (("--group", "h100:sub-batch=1"), "node group of cluster mixed must be a known name, got 'h100'"),
    ],
)
def test_what_predict_does_not_take_across_groups(arguments: tuple[str, ...], sentence: str, run: Run) -> None:
    code, out, err = run("predict", *ASKED, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


def test_groups_of_a_cluster_are_shown_with_their_price(run: Run, tmp_path: Path) -> None:
    priced = tmp_path / "priced.toml"
    priced.write_text(Path(CLUSTER).read_text() + "\n[price]\nusd_per_gpu_hour = 2.5\n")
    code, out, err = run("show", "clusters", str(priced))
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    for name, nodes in (("v100", "4 x 8 v100-sxm2-16gb"), ("a100", "2 x 8 a100-sxm4-40gb")):
        assert f"mixed, group {name} nodes {nodes}" in words
    assert words.count("price 2.5 USD per GPU hour") == 2
    code, out, err = run("show", "clusters", CLUSTER, "--json")
    assert (code, json.loads(out)["exit_code"]) == (2, 2)
    assert "--json or --toml must be used with clusters of one node group, not of v100 and a100" in err


def test_sweep_takes_one_group(run: Run) -> None:
    code, out, err = run("sweep", "--target-batch", "1024", *ASKED)
    assert (code, out) == (2, "")
    assert "--cluster must be of one node group in this command, not of v100 and a100" in err


def test_groups_are_of_clusters_that_have_them(run: Run) -> None:
    code, out, err = run("predict", "--network", "resnet50", "--cluster", "dgx1-v100", *BOTH[:2])
    assert (code, out) == (2, "")
    assert "--group must be left out on a cluster without node groups, got 'v100'" in err


def test_no_plan_exits_with_what_to_loosen(run: Run) -> None:
    code, out, _ = run("suggest", *ASKED, "--target-batch", "1027", "--precision", "fp16")
    assert code == 4
    assert "no plan fits" in out
    assert "v100: " in out


def test_a_limit_that_nothing_keeps_is_told_of_each_group_on_a_screen(run: Run) -> None:
    code, out, err = run("suggest", *ASKED, "--target-batch", "1024", "--limit", "epoch=1s")
    assert code == 4
    assert "v100: --limit epoch=" in out
    assert "a100: --limit epoch=" in out
    assert len((out + err).splitlines()) <= MOST_LINES
