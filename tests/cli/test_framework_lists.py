"""``--framework A,B``: one ranking over several frameworks in suggest, a prediction each in predict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner import catalog

Run = Callable[..., tuple[int, str, str]]
NETWORK = "gpt:layers=4,hidden=512,heads=8,sequence=256,vocabulary=8192"
ABOUT = ("--network", NETWORK, "--cluster", "dgx-a100", "--precision", "bf16")
ASKED = (
    "suggest", *ABOUT, "--target-batch", "64", "--nodes", "1,2", "--tensor", "1,2", "--sub-batch", "4,8",
    "--pipeline", "1", "--recompute", "none", "--sharding", "0",
)  # fmt: skip
FRAMEWORKS = ("megatron-lm", "fsdp")


def plans_of(run: Run, frameworks: str, *more: str) -> Any:
    code, out, _ = run(*ASKED, "--framework", frameworks, *more, "--json")
    assert code == 0
    return json.loads(out)


def speed(plan: Any) -> float:
    value: float = plan["prediction"]["samples_per_s"]["value"]
    return value


def test_plans_of_all_frameworks_are_one_ranking(run: Run) -> None:
    alone = [
        (name, plan)
        for name in FRAMEWORKS
        for plan in plans_of(run, name, "--top", "40", "--choose", "fastest")["plans"]
    ]
    in_order = sorted(alone, key=lambda one: -speed(one[1]))
    answer = plans_of(run, ",".join(FRAMEWORKS), "--top", "40", "--choose", "fastest")
    assert len(answer["plans"]) == min(len(alone), 40)
    assert [plan["configuration"]["framework"] for plan in answer["plans"]] == [name for name, _ in in_order]
    assert [speed(plan) for plan in answer["plans"]] == pytest.approx([speed(plan) for _, plan in in_order])
    assert {plan["configuration"]["framework"] for plan in answer["plans"]} == set(FRAMEWORKS)
    assert answer["request"]["framework"]["value"] == list(FRAMEWORKS)
    assert answer["subject"]["framework"] == in_order[0][0]
    counts = [plans_of(run, name)["search"] for name in FRAMEWORKS]
    assert answer["search"]["evaluated"] == sum(one["evaluated"] for one in counts)
    assert answer["search"]["candidates"] == sum(one["candidates"] for one in counts)


def test_frameworks_whose_overheads_err_apart_are_tied_farther_than_plans_of_one(run: Run) -> None:
    """What is stated of two frameworks is not one error: a plan of another is less surely slower."""
    plans = plans_of(run, ",".join(FRAMEWORKS), "--top", "40")["plans"]
    first, *others = plans
    own: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for plan in others:
        is_own = plan["configuration"]["framework"] == first["configuration"]["framework"]
        own[is_own].append((speed(first) / speed(plan), plan["probability_first_better"]))
    near = min(own[False])
    slower_of_own = [probability for ratio, probability in own[True] if ratio > 1.02]
    assert 0.5 < near[1] < max(slower_of_own)


def test_at_most_top_plans_and_25_lines_and_each_says_its_framework(run: Run, tmp_path: Path) -> None:
    at = ASKED.index("--tensor")
    names, asked = ",".join(FRAMEWORKS), (*ASKED[:at], "--tensor", "1", *ASKED[at + 2 :])
    code, out, err = run(*asked, "--framework", names)
    assert code == 0
    assert (out + err).count("\n") <= 25
    assert "framework" in out
    assert sum(line.split()[1:2] in ([name] for name in FRAMEWORKS) for line in out.splitlines()) <= 5
    answer = json.loads(run(*asked, "--framework", names, "--json")[1])
    chosen = next(plan for plan in answer["plans"] if plan["position"] == answer["chosen"])
    framework = chosen["configuration"]["framework"]
    assert f"in {framework}:" in " ".join(out.split())
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(answer))
    code, again, _ = run("explain", str(path))
    assert (code, f"in {framework}:" in " ".join(again.split())) == (0, True)
    brief = json.loads(run(*asked, "--framework", names, "--json", "--brief")[1])
    assert brief["framework"] == framework


def test_a_framework_that_cannot_is_left_out_and_said(run: Run) -> None:
    more = ("--strategy", "bucketed", "--sharding", "3")
    answer = json.loads(run(*ASKED[:-2], "--framework", "megatron-lm,fsdp", *more, "--json")[1])
    assert {plan["configuration"]["framework"] for plan in answer["plans"]} == {"fsdp"}
    said = {one["code"]: one for one in answer["warnings"]}
    rule = "--sharding must be 0 or 1 in framework megatron-lm, got '3'"
    assert said["framework_refused"]["message"] == f"It is left out: {rule}"


def test_parallelism_that_one_framework_alone_allows(run: Run) -> None:
    asked = (*ASKED[:-6], "--parallelism", "pipeline")
    answer = json.loads(run(*asked, "--framework", "fsdp,megatron-lm", "--json")[1])
    refused = [one["message"] for one in answer["warnings"] if one["code"] == "framework_refused"]
    assert len(refused) == 1
    assert refused[0].startswith("It is left out: --parallelism must be of the kinds that gpt:")
    assert {plan["configuration"]["framework"] for plan in answer["plans"]} == {"megatron-lm"}
    code, _, err = run(*asked, "--framework", "fsdp,fsdp-compile", "--json")
    assert (code, err.count("planner: ")) == (2, 1)
    assert "--parallelism must be of the kinds that gpt:" in err


def test_nothing_fits_only_where_no_framework_has_a_plan(run: Run) -> None:
    asked = ("suggest", *ABOUT, "--target-batch", "64", "--nodes", "2", "--sub-batch", "3", "--accumulation", "1")
    code, out, err = run(*asked, "--tolerance", "0", "--framework", "megatron-lm,fsdp")
    assert code == 4
    assert "no plan fits." in out
    for name in FRAMEWORKS:
        assert out.count(f"  {name}: ") == 1
    assert (out + err).count("\n") <= 25


def test_all_frameworks_without_what_they_need_are_an_error(run: Run) -> None:
    asked = ("suggest", *ABOUT[:-2], "--target-batch", "64", "--precision", "fp8")
    code, out, err = run(*asked, "--framework", "megatron-lm,fsdp")
    assert (code, out) == (5, "")
    assert err.count("planner: ") == 1


def test_predict_answers_each_in_a_table(run: Run) -> None:
    code, out, _ = run("predict", *ABOUT, "--sub-batch", "4", "--framework", "megatron-lm,fsdp")
    assert code == 0
    assert "2 predictions" in " ".join(out.split())
    for name in FRAMEWORKS:
        assert f" {name} " in out


def test_switches_make_every_lawful_set_a_candidate(run: Run) -> None:
    answer = plans_of(run, "torchtitan", "--switches", "--top", "40")
    sets = answer["request"]["framework"]["value"]
    assert {"torchtitan:compile", "torchtitan:compile+async-tensor"} < set(sets)
    assert not any("bf16-optimizer-state" in one for one in sets)  # which changes results
    assert answer["search"]["candidates"] == plans_of(run, ",".join(sets))["search"]["candidates"]
    assert plans_of(run, "nanotron", "--switches")["request"]["framework"]["value"] == "nanotron"


def test_precisions_without_a_price_are_no_obstacle_to_switches(run: Run) -> None:
    asked = ("suggest", "--network", "alexnet", "--cluster", "dgx-a100", "--nodes", "1", "--target-batch", "64")
    code, out, _ = run(*asked, "--framework", "mxnet", "--switches", "--json")
    assert code == 0
    assert len(json.loads(out)["request"]["framework"]["value"]) > 1


def test_switches_of_an_own_file_are_candidates(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a@b" / "own.toml"
    path.parent.mkdir()
    fused = '[switches.fused]\nfuses = ["activation"]\n'
    path.write_text(f'format = "planner/framework"\nversion = 1\nname = "mine"\n{fused}')
    answer = plans_of(run, str(path), "--switches")
    assert answer["request"]["framework"]["value"] == "mine:fused"
    assert plans_of(run, f"{path}:fused", "--switches")["request"]["framework"]["value"] == "mine:fused"


def test_two_names_of_a_framework_are_one(run: Run) -> None:
    """And the order is that in which each was named first."""
    answer = plans_of(run, "megatron,fsdp,megatron-lm,fsdp-compile,fsdp:compile")
    assert answer["request"]["framework"]["value"] == ["megatron-lm", "fsdp", "fsdp:compile"]
    assert answer["search"] == plans_of(run, "megatron-lm,fsdp,fsdp-compile")["search"]
    assert plans_of(run, "megatron,megatron-core") == plans_of(run, "megatron-lm")


SWITCHED = """format = "planner/framework"
version = 1
name = "mine"
can = []
shardings = [0]
[switches.norm]
fuses = ["norm"]
[switches.activation]
fuses = ["activation"]
[switches.gates]
fuses = ["activation"]
[switches.layout]
layout = "nchw"
[switches.horovod]
strategy = "tensor-fusion"
"""


def test_a_set_of_switches_that_changes_nothing_is_no_candidate(run: Run, tmp_path: Path) -> None:
    """Of a transformer: a fusion of norms, a layout of images; nor is one whose kernels all take longer."""
    path = tmp_path / "own.toml"
    path.write_text(SWITCHED)
    answer = plans_of(run, str(path), "--switches", "--top", "40", "--choose", "fastest")
    sets = ["mine:activation", "mine:gates", "mine:activation+horovod", "mine:gates+horovod"]
    assert answer["request"]["framework"]["value"] == sets
    assert answer["frameworks"] == {"mine:activation": 1, "mine:gates": 1} | {
        label: times for label, times in answer["frameworks"].items() if times > 1
    }


DECIDING = """format = "planner/framework"
version = 1
name = "mine"
update = "foreach"
can = []
shardings = [0]
[switches.activation]
fuses = ["activation", "layer_norm"]
[switches.graphs]
launch = "graph"
[switches.primitive]
update = "primitive"
[switches.horovod]
strategy = "tensor-fusion"
"""


@pytest.mark.parametrize(("network", "name"), [("resnet50", "tensorflow"), (NETWORK, "own")])
def test_no_set_of_switches_has_a_better_plan_than_those_kept(
    run: Run, tmp_path: Path, network: str, name: str
) -> None:
    """All lawful sets, as they are named in one list, against the sets that --switches keeps."""
    path = tmp_path / "own.toml"
    path.write_text(DECIDING)
    name = str(path) if name == "own" else name
    asked = (
        "suggest", "--network", network, *ABOUT[2:], "--target-batch", "64", "--nodes", "1,2", "--sub-batch", "4,8",
        "--parallelism", "data", "--sharding", "0", "--choose", "fastest", "--json",
    )  # fmt: skip

    framework = catalog.find_framework(name)
    sets = [catalog.with_switches(name, framework.with_switches(one)) for one in framework.switch_sets()]
    every, kept = (
        json.loads(run(*asked, "--framework", *words)[1]) for words in ((",".join(sets),), (name, "--switches"))
    )
    assert speed(kept["plans"][0]) == speed(every["plans"][0])
    assert len(kept["request"]["framework"]["value"]) < len(sets) == len(every["frameworks"]) > 8
    assert every["frameworks"][framework.label] > 1


def test_equal_plans_of_more_switches_are_left_out(run: Run, tmp_path: Path) -> None:
    """On one GPU nothing is sent, however it would be."""
    path = tmp_path / "own.toml"
    path.write_text(SWITCHED)
    asked = (
        "suggest", *ABOUT, "--target-batch", "8", "--nodes", "1", "--gpus-per-node", "1", "--sub-batch", "4,8",
        "--framework", f"{path},{path}:horovod", "--json",
    )  # fmt: skip
    plans = json.loads(run(*asked)[1])["plans"]
    assert [one["configuration"]["framework"] for one in plans] == ["mine"] * len(plans)
    told = [json.dumps(plan["configuration"]) for plan in plans]
    assert len(told) == len(set(told)) == 5


def test_long_names_are_letters_and_the_columns_stay(run: Run) -> None:
    about = ("--network", "resnet50", "--cluster", "dgx-a100", "--precision", "fp16", "--nodes", "2")
    asked = ("suggest", *about, "--target-batch", "1024", "--framework", "pytorch", "--switches")
    code, out, err = run(*asked)
    assert (code, (out + err).count("\n") <= 25) == (0, True)
    assert max(map(len, out.splitlines())) <= 80
    head = " ".join(out[out.index("plan 1 samples") - 90 :].split())
    for word in ("framework", "epoch", "factor", "memory"):
        assert word in head
    key = " ".join(out[out.index("Framework pytorch") :].split())
    assert key.startswith("Framework pytorch:channels-last+compile+")
    assert "fused-optimizer with A: " in key
    names = ("mxnet:channels-last+fused-norm", "mxnet:channels-last+fused-norm+graphs")
    out = run("predict", *about[:-1], "1", "--sub-batch", "64", "--framework", ",".join(names))[1]
    assert "Framework mxnet:channels-last+fused-norm with A: no other switch; B: graphs" in out
    assert "memory" in out


def test_where_rows_are_of_one_framework_the_best_of_others_are_told(run: Run) -> None:
    out = " ".join(run(*ASKED, "--framework", "megatron-lm,tensorflow", "--top", "1")[1].split())
    times = plans_of(run, "megatron-lm,tensorflow")["frameworks"]
    ((label, factor),) = [(label, factor) for label, factor in times.items() if factor > 1]
    assert f"Best of others, times as long: {label} {factor:.2g}" in out
    assert "Best of others" not in run(*ASKED, "--framework", "megatron-lm", "--top", "1")[1]


def test_own_names_of_bundled_frameworks_are_said_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    own = tmp_path / "planner" / "frameworks" / "pytorch.toml"
    own.parent.mkdir(parents=True)
    own.write_text('format = "planner/framework"\nversion = 1\nname = "pytorch"\n')
    said = "planner: own framework pytorch.toml is not used: a bundled framework has that name; rename it\n"
    for command in (("predict", *ABOUT, "--sub-batch", "4"), ("show", "frameworks"), ("show", "frameworks", "fsdp")):
        code, _, err = run(*command)
        assert (code, err.count(said)) == (0, 1)


def test_switches_that_exclude_each_other_are_a_wrong_option(run: Run) -> None:
    code, out, err = run("predict", *ABOUT, "--framework", "pytorch:primitive-optimizer+fused-optimizer")
    assert (code, out) == (2, "")
    assert err == (
        "planner: switches fused-optimizer and primitive-optimizer of framework pytorch exclude each other, "
        "got 'fused-optimizer+primitive-optimizer'; leave one of them out\n"
    )


def test_a_switch_that_would_pay_is_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'format = "planner/framework"\nversion = 1\nname = "own"\n[switches.fused]\n'
        'fuses = ["activation", "residual"]\n[switches.nothing]\n'
    )
    answer = plans_of(run, str(path))
    assert list(answer["switches"]) == ["fused"]
    faster = answer["switches"]["fused"]
    plan = next(one for one in answer["plans"] if one["position"] == answer["chosen"])
    configuration = plan["configuration"]
    tensor = str(configuration.get("tensor_parallel", 1))
    asked = (
        "predict", *ABOUT, "--nodes", str(configuration["nodes"]), "--sub-batch", str(configuration["sub_batch"]),
        "--accumulation", str(configuration["accumulation_steps"]), "--tensor", tensor,
        "--framework", f"{path}:fused", "--json",
    )  # fmt: skip
    switched = json.loads(run(*asked)[1])
    assert switched["samples_per_s"]["value"] / speed(plan) == pytest.approx(faster, abs=5e-4)
    code, out, _ = run(*ASKED, "--framework", str(path), "-v")
    said = f"Faster by a switch: fused {faster:.3g} times."
    assert (code, said in " ".join(out.split())) == (0, True)
    assert "switches" not in plans_of(run, f"{path}:fused")


def test_a_fusion_without_use_is_said_once(run: Run, tmp_path: Path) -> None:
    """Of a switch where all that it fuses is idle, of an own file fusion by fusion; not of bundled defaults."""
    about = ("predict", "--network", "gpt2", "--cluster", "dgx-a100", "--sub-batch", "1,2", "--precision", "bf16")
    norm = "gpt2 has no batch normalisation with an activation behind it"
    _, _, said = run(*about, "--framework", "mxnet:fused-norm")
    assert said.count(f"switch fused-norm of framework mxnet is ignored: {norm}") == 1
    for framework in ("pytorch:compile", "megatron-lm", "mxnet"):
        assert "is ignored" not in run(*about, "--framework", framework)[2]
    own = tmp_path / "mine.toml"
    own.write_text('format = "planner/framework"\nversion = 1\nname = "mine"\nfuses = ["activation", "norm"]\n')
    _, _, said = run(*about, "--framework", str(own))
    assert said.count("is ignored") == said.count(f"fuses 'norm' of framework mine is ignored: {norm}") == 1


@pytest.mark.parametrize("asked", ["suggest --nodes 1 --target-batch 64", "predict --nodes 1 --sub-batch 8"])
def test_a_pipeline_has_the_first_schedule_of_its_framework(run: Run, asked: str) -> None:
    common = "--network resnet50 --cluster dgx-a100 --precision fp32 --pipeline 2 --framework hypar-flow --json"
    code, out, _ = run(*asked.split(), *common.split())
    answer = json.loads(out)
    first = answer["plans"][0] if "plans" in answer else answer
    assert (code, first["configuration"]["schedule"]) == (0, "gpipe")


def test_only_plans_with_a_pipeline_have_a_schedule_in_tables(run: Run) -> None:
    common = "--network resnet50 --cluster dgx-a100 --framework hypar-flow --nodes 1 --sub-batch 8 --pipeline 1,2"
    _, out, _ = run("predict", *common.split())
    rows = [line.split() for line in out.splitlines() if line[:2] in ("1 ", "2 ")]
    assert sorted(row[7] for row in rows) == ["-", "gpipe"]
    assert "1f1b" not in out


@pytest.mark.parametrize("asked", ["suggest --nodes 1 --target-batch 64", "predict --nodes 1 --sub-batch 8"])
def test_asynchronous_plans_are_refused_where_no_threads_of_nodes_update(run: Run, asked: str) -> None:
    common = "--network resnet50 --cluster dgx-a100 --precision fp32 --mode async --framework"
    for framework, rest in (
        ("caffe", "updates are synchronous alone, got 'async'"),
        (
            "tensorflow",
            (
                "servers update weights by each gradient, which is not priced, got 'async'; "
                "--framework sprint has update threads"
            ),
        ),
    ):
        code, _, err = run(*asked.split(), *common.split(), framework)
        assert (code, err.splitlines()[-1]) == (2, f"planner: mode must be sync in framework {framework}, whose {rest}")
