"""``planner suggest`` from the command line to the answer."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its stubs are a separate package
import pytest

import planner
from planner import catalog
from planner.formats.cluster import write_cluster
from planner.units import format_duration, format_number

Run = Callable[..., tuple[int, str, str]]
DGX1 = ("--network", "resnet50", "--cluster", "dgx1-v100")
FEW = ("--nodes", "1:4", "--precision", "fp16")


def test_the_table_and_the_document_tell_the_same(run: Run) -> None:
    table = run("suggest", "--target-batch", "138")
    answer = json.loads(run("suggest", "--target-batch", "138", "--json")[1])
    assert table[0] == 0
    best = answer["plans"][0]
    lines = table[1].splitlines()
    row = next(line for line in lines if line.split()[:1] == ["1"])
    configuration = best["configuration"]
    assert row.split()[:5] == ["1", str(configuration["nodes"]), "x", "8", str(configuration["sub_batch"])]
    assert best["alike"] == {"sub_batch": ["10", "11"]}
    assert f" {format_duration(best['prediction']['epoch_s']['value'])} " in row
    assert ", target mini-batch 138: take plan " in lines[0]
    assert f"all {answer['search']['evaluated']}." in " ".join(lines)
    assert max(map(len, table[1].splitlines())) <= 80


def test_same_input_same_bytes(run: Run) -> None:
    assert run("suggest", "--target-batch", "138", "--json") == run("suggest", "--target-batch", "138", "--json")


def test_the_target_is_required_outside_the_default_request(run: Run) -> None:
    target = json.loads(run("suggest", "--json")[1])["request"]["target_batch"]
    assert target == {"value": 138, "source": "default request"}
    code, out, err = run("suggest", *DGX1)
    assert (code, out) == (2, "")
    assert err == "planner: --target-batch must be given, got nothing; say the wanted mini-batch in samples\n"


def test_an_unknown_name_is_reported_before_the_missing_target(run: Run) -> None:
    code, _, err = run("suggest", "--network", "resnet5")
    assert code == 2
    assert err.startswith("planner: network must be a known name, got 'resnet5'; did you mean 'resnet50' or")


def test_top_and_pareto(run: Run) -> None:
    answer = json.loads(run("suggest", "--target-batch", "138", "--top", "2", "--pareto", "--json")[1])
    assert [plan["position"] for plan in answer["plans"]] == [1, 3]
    assert answer["pareto"]
    assert "Pareto front" in run("suggest", "--target-batch", "138", "--pareto")[1]


def test_both_modes_share_the_ranking(run: Run) -> None:
    arguments = ("--target-batch", "128", "--mode", "sync,async", "--top", "1000", "--json")
    answer = json.loads(run("suggest", *arguments)[1])
    assert {plan["configuration"]["mode"] for plan in answer["plans"]} == {"sync", "async"}


def test_every_scenario_and_network_is_answered(run: Run) -> None:
    answer = json.loads(run("suggest", "--target-batch", "138", "--scenario", "edr,fp16", "--json")[1])
    assert answer["format"] == "planner/suggestions"
    assert [one["request"]["scenario"]["value"] for one in answer["suggestions"]] == ["edr", "fp16"]
    two = ("--network", "alexnet", "--network", "vgg16", "--cluster", "dgx1-v100", "--target-batch", "512", "--json")
    networks = [one["request"]["network"]["value"] for one in json.loads(run("suggest", *two)[1])["suggestions"]]
    assert networks == ["alexnet", "vgg16"]


def test_a_target_out_of_reach_is_exit_4_with_a_way_out(run: Run) -> None:
    # 512 GPUs and sub-batches of whole samples cannot give a prime number of samples but with one GPU of one node.
    arguments = ("suggest", *DGX1, "--nodes", "8", "--target-batch", "1009", "--tolerance", "0")
    code, out, err = run(*arguments, "--json")
    assert code == 4
    answer = json.loads(out)
    assert (answer["status"], answer["plans"]) == ("none_feasible", [])
    sizes = sorted(plan["configuration"]["mini_batch"] for plan in answer["nearest"])
    assert sizes[0] < 1009 < sizes[-1]
    assert answer["loosen"]
    assert err.startswith("planner: no plan meets --target-batch 1009; ")
    assert "--tolerance" in err
    code, out, err_table = run(*arguments)
    assert code == 4
    assert err_table.endswith(err)
    assert out.startswith("resnet50 on dgx1-v100, target mini-batch 1009: no plan fits.\nNearest plans:\n")


def test_what_to_loosen_suffices(run: Run) -> None:
    arguments = ("suggest", *DGX1, "--nodes", "8", "--target-batch", "1009", "--json")
    loosen = json.loads(run(*arguments, "--tolerance", "0")[1])["loosen"]
    way = next(one for one in loosen if one["option"] == "--tolerance")
    assert run(*arguments, "--tolerance", way["value"])[0] == 0


def test_loosening_never_worsens_the_best_plan(run: Run) -> None:
    best = [
        json.loads(run("suggest", *DGX1, *FEW, "--target-batch", "1024", "--tolerance", width, "--json")[1])["plans"][0]
        for width in ("0", "10%", "50%")
    ]
    seconds = [plan["prediction"]["epoch_s"]["value"] for plan in best]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--nodes", "43"), "--nodes must be at most 42 on cluster 'tsubame-kfc', got 43"),
        (("--gpus-per-node", "9"), "--gpus-per-node must be at most 8 on cluster 'tsubame-kfc', got 9"),
        (
            ("--parallelism", "pipeline", "--stages", "best", "--sensitivity"),
            "--stages must be of fixed values with --sensitivity, which looks at all plans, got 'best'",
        ),
        (
            ("--parallelism", "hybrid", "--framework", "mxnet"),
            "--parallelism must be of the kinds that sprint-15 and framework mxnet allow, data, got 'hybrid'",
        ),
    ],
)
def test_what_is_not_there_is_refused(arguments: tuple[str, ...], sentence: str, run: Run) -> None:
    assert run("suggest", "--target-batch", "138", *arguments) == (2, "", f"planner: {sentence}\n")


def priced(tmp_path: Path) -> str:
    """Return the file of a cluster with a price."""
    cluster = replace(catalog.find_cluster("dgx1-v100"), name="hired", usd_per_gpu_hour=2.5)
    path = tmp_path / "hired.toml"
    path.write_text(write_cluster(cluster))
    return str(path)


def test_the_cost_is_ranked_where_there_is_a_price(run: Run, tmp_path: Path) -> None:
    arguments = ("--network", "resnet50", "--cluster", priced(tmp_path), "--target-batch", "1024", "--top", "100")
    code, out, _ = run("suggest", *arguments, "--objective", "cost", "--json")
    assert code == 0
    plans = [plan["configuration"] | plan["prediction"] for plan in json.loads(out)["plans"]]
    costs = [one["epoch_usd"]["value"] for one in plans]
    assert costs == sorted(costs)
    # USD = seconds x GPUs x USD an hour / 3600, whatever the objective
    others = json.loads(run("suggest", *arguments, "--json")[1])["plans"]
    soonest = [plan["configuration"] | plan["prediction"] for plan in others]
    for one in (*plans, *soonest):
        expected = one["epoch_s"]["value"] * one["gpus"] * 2.5 / 3600
        assert one["epoch_usd"]["value"] == pytest.approx(expected)
    assert min(one["epoch_usd"]["value"] for one in soonest) == pytest.approx(costs[0])
    table = run("suggest", *arguments[:-2], "--objective", "cost")[1]
    assert "USD per" in table
    assert max(map(len, table.splitlines())) <= 80


def test_a_weighted_sum_is_ranked_and_told_wherever_an_objective_is(run: Run, tmp_path: Path) -> None:
    arguments = ("--network", "resnet50", "--cluster", priced(tmp_path), "--target-batch", "1024", *FEW)
    weighted = (*arguments, "--objective", "epoch-time:1+cost:0.2")
    answer = json.loads(run("suggest", *weighted, "--pareto", "--json")[1])
    assert answer["request"]["objective"] == {"value": "epoch-time:1+cost:0.2", "source": "option"}
    least = answer["leasts"]
    for key, name in (("epoch-time", "epoch_s"), ("cost", "epoch_usd")):
        alone = json.loads(run("suggest", *arguments, "--objective", key, "--json")[1])
        first = alone["plans"][0]["prediction"]
        assert least[key] == pytest.approx(first[name]["value"], rel=1e-8)
        assert "leasts" not in alone
        assert "objective" not in alone["plans"][0]
    for plan in answer["plans"]:
        p = plan["prediction"]
        expected = p["epoch_s"]["value"] / least["epoch-time"] + 0.2 * p["epoch_usd"]["value"] / least["cost"]
        assert plan["objective"] == pytest.approx(expected, rel=1e-8)
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    value = format_number(answer["plans"][0]["objective"], 4)
    for text in (run("suggest", *weighted)[1], run("explain", str(tmp_path / "answer.json"), "--part", "answer")[1]):
        assert re.search(r"Objective: time / \S+ s \+ 0.2 x cost / \S+ USD, over the least of all plans", text)
        assert value in text
        assert max(map(len, text.splitlines())) <= 80
    assert "Pareto front of objective, GPUs" in run("suggest", *weighted, "--pareto")[1]
    assert f": {value}" in run("suggest", *weighted, "--why-not", "mode=sync")[1]
    assert f"best objective epoch-time:1+cost:0.2 {value} with" in " ".join(run("sweep", *weighted)[1].split())
    assert json.loads(run("sweep", *weighted, "--json")[1])["unit"] == "1"
    tried = json.loads(run("suggest", *weighted, "--search", "optuna", "--trials", "3", "--json")[1])
    assert tried["plans"][0]["objective"] == answer["plans"][0]["objective"]


def test_a_sum_over_a_price_of_nothing_is_refused(run: Run, tmp_path: Path) -> None:
    path = Path(priced(tmp_path))
    path.write_text(path.read_text().replace("2.5", "0.0"))
    arguments = ("--network", "resnet50", "--cluster", str(path), "--target-batch", "1024")
    code, out, err = run("suggest", *arguments, "--objective", "epoch-time:1+cost:1")
    assert (code, out) == (2, "")
    assert err == "planner: price must be above 0 where the cost is divided by its least, got 0.0\n"


def test_sensitivity_is_told_where_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    asked = ("suggest", "--target-batch", "138")
    text = " ".join(run(*asked, "--sensitivity")[1].split())
    assert "Sensitivity: 10% less inter-node bandwidth makes 8 nodes x 8 GPUs, sub-batch 9," in text
    assert "; 6 of 10 changes leave plan 1 the best" in text
    assert "Sensitivity" not in run(*asked)[1]
    code, out, _ = run(*asked, "--sensitivity", "--json")
    document = json.loads(out)
    rows = document["sensitivity"]
    assert code == 0
    assert len(rows) == 10
    assert document["request"]["sensitivity"] == {"value": True, "source": "option"}
    assert "sensitivity" not in json.loads(run(*asked, "--json")[1])
    for row in rows:
        assert ("position" in row) != ("configuration" in row)
        assert row["is_other"] == (row.get("position") != 1)
    (tmp_path / "answer.json").write_text(out)
    again = run("explain", str(tmp_path / "answer.json"), "--part", "answer")[1]
    assert " ".join(again.split()) == text
    steady = run("suggest", *DGX1, "--target-batch", "512", "--sensitivity")[1]
    assert "Sensitivity: changing any one input by 10% leaves plan 1 the best\n" in steady
    for beside in (("--search", "optuna"), ("--time-limit", "5s")):
        code, out, err = run(*asked, "--sensitivity", *beside)
        assert (code, out) == (2, "")
        rule = "planner: --sensitivity must be of an exact search without a time limit, got "
        assert err.startswith(f"{rule}'--")


def test_the_cost_without_a_price_is_refused(run: Run) -> None:
    code, out, err = run("suggest", *DGX1, "--target-batch", "1024", "--objective", "cost")
    assert (code, out) == (2, "")
    assert err == (
        "planner: --objective must be epoch-time or gpu-hours on cluster 'dgx1-v100', which has no price, got 'cost'; "
        "give --cluster a file with [price] usd_per_gpu_hour\n"
    )
    code, out, err = run("suggest", *DGX1, "--target-batch", "1024", "--objective", "time-to-accuracy")
    rule = "epoch-time or gpu-hours or cost, the only values supported yet"
    assert (code, err) == (2, f"planner: --objective must be {rule}, got 'time-to-accuracy'\n")
    err = run("suggest", *DGX1, "--target-batch", "1024", "--objective", "time")[2]
    assert err.endswith("got 'time'; did you mean 'epoch-time'?\n")
    answer = json.loads(run("suggest", *DGX1, "--target-batch", "1024", "--json")[1])
    assert "epoch_usd" not in answer["plans"][0]["prediction"]


DEFAULT, REQUEST, OPTION = "default", "default request", "option"


@pytest.mark.parametrize(
    ("arguments", "value", "source"),
    [
        ((), {"async": 0.25}, REQUEST),
        (("--mode", "sync"), {"sync": 0.0}, DEFAULT),
        (("--mode", "sync,async"), {"sync": 0.0, "async": 0.25}, f"{DEFAULT}, {REQUEST}"),
        (("--mode", "sync,async", "--tolerance", "10%"), {"sync": 0.1, "async": 0.1}, OPTION),
        (("--mode", "sync", "--tolerance", "10%"), {"sync": 0.1}, OPTION),
    ],
)
def test_the_default_requests_tolerance_is_of_asynchronous_plans(
    arguments: tuple[str, ...], value: object, source: str, run: Run
) -> None:
    answer = json.loads(run("suggest", "--target-batch", "136", *arguments, "--top", "30", "--json")[1])
    assert {"source": DEFAULT} | answer["request"]["tolerance"] == {"value": value, "source": source}
    width = {"sync": 0.1, "async": 0.1} if "--tolerance" in arguments else {"sync": 0.0, "async": 0.25}
    for plan in answer["plans"]:
        mean = plan["configuration"].get("mini_batch") or plan["prediction"]["mini_batch"]["mean"]
        distance = abs(mean / 136 - 1)
        assert distance <= width[plan["configuration"]["mode"]] + 1e-9


def test_every_plan_is_ranked_or_refused(run: Run) -> None:
    search = json.loads(run("suggest", "--target-batch", "138", "--json")[1])["search"]
    assert search["evaluated"] + sum(one["count"] for one in search["refused"]) == search["candidates"]


def test_one_answer_without_a_plan_is_exit_4_with_all_answers(run: Run) -> None:
    # Four times the largest sub-batch of vgg16 fits alexnet: 16 GPUs and no accumulation reach it with one of the two.
    shared = ("--cluster", "dgx1-v100", "--nodes", "1", "--accumulation", "1", "--precision", "fp32")
    kept = ("--recompute", "none", "--offload", "none", "--tolerance", "0")
    arguments = ("suggest", "--network", "alexnet", "--network", "vgg16", *shared, *kept, "--target-batch", "4096")
    code, out, err = run(*arguments, "--json")
    assert code == 4
    answers = json.loads(out)["suggestions"]
    assert [one["status"] for one in answers] == ["found", "none_feasible"]
    assert answers[0]["subject"]["network"] == "alexnet"
    assert err.startswith("planner: no plan meets --target-batch 4096 for vgg16 on dgx1-v100; ")
    code, out, again = run(*arguments)
    assert code == 4
    assert again.endswith(err)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "2 networks on dgx1-v100, target mini-batch 4096: the plans to take"
    assert "vgg16 on dgx1-v100: no plan fits; the smallest change that helps: --" in " ".join(lines)


def test_answers_of_scenarios_can_be_told_apart(run: Run) -> None:
    arguments = ("suggest", "--target-batch", "138", "--scenario", "edr,fp16")
    answers = json.loads(run(*arguments, "--json")[1])["suggestions"]
    subjects = [one["subject"] for one in answers]
    assert [one["scenario"] for one in subjects] == ["edr", "fp16"]
    assert {(one["network"], one["cluster"]) for one in subjects} == {("sprint-15", "tsubame-kfc")}
    lines = run(*arguments)[1].splitlines()
    assert lines[0] == "sprint-15 on tsubame-kfc, target mini-batch 138: the plans to take"
    assert [line.split()[:2] for line in lines[3:5]] == [["1", "edr"], ["2", "fp16"]]


def test_request_values_have_one_type(run: Run) -> None:
    """Every document that is printed matches the schema that is shipped."""
    shipped = Path(planner.__file__).parent / "_bundled" / "schemas" / "suggestion.json"
    validator = jsonschema.Draft202012Validator(json.loads(shipped.read_text()))
    every = ("--mode", "sync,async", "--tensor", "1", "--seed", "3", "--pareto", "--scenario", "edr", "--top", "1")
    for arguments in ((), every, DGX1, (*DGX1, "--nodes", "1", "--precision", "fp32", "--sub-batch", "1:500")):
        code, out, err = run(
            "suggest", "--target-batch", "1024" if DGX1[0] in arguments else "138", *arguments, "--json"
        )
        assert code == 0, err
        document = json.loads(out)
        assert [error.message for error in validator.iter_errors(document)] == []
    assert document["request"]["sub_batch"]["value"] == {"first": 1, "last": 500, "step": 1}
    request = json.loads(run("suggest", *DGX1, "--target-batch", "1024", "--json")[1])["request"]
    assert request["nodes"] == {"value": list(range(1, 65)), "source": "cluster"}
    assert request["sub_batch"] == {"source": "default: 1 to the largest that fits"}
    assert request["scenario"] == {}


WHOLE = ("--parallelism", "data", "--sharding", "0", "--recompute", "none")
GPT2 = ("--network", "gpt2", "--cluster", "dgx-h100", "--nodes", "1", "--target-batch", "512", "--top", "1000", *WHOLE)


def precisions_of(answer: dict[str, Any]) -> set[str]:
    return {one for plan in answer["plans"] for one in plan.get("precisions", [plan["configuration"]["precision"]])}


def test_8_bits_are_no_candidates_by_the_data_sheet_unless_that_is_allowed(run: Run) -> None:
    """The reason is counted; what was measured goes on."""
    answer = json.loads(run("suggest", *GPT2, "--json")[1])
    assert precisions_of(answer) == {"fp32", "tf32", "fp16", "bf16"}
    assert "allow_specified" not in answer["request"]
    reasons = [one["reason"] for one in answer["search"]["refused"]]
    for precision, why in (
        ("fp8", "no gemm in fp8 was measured on h100-sxm5-80gb: measure with `planner calibrate"),
        ("int8", "training in int8 loses accuracy, and no program here starts it: --allow-lossy"),
    ):
        (reason,) = (one for one in reasons if one.startswith(f"precision {precision}: "))
        assert why in reason
    named = json.loads(run("suggest", *GPT2, "--precision", "bf16,fp8", "--json")[1])
    assert precisions_of(named) == {"bf16", "fp8"}, "which was named"
    lossless = json.loads(run("suggest", *GPT2, "--allow-specified", "--json")[1])
    assert precisions_of(lossless) == {"fp32", "tf32", "fp16", "bf16", "fp8"}
    allowed = json.loads(run("suggest", *GPT2, "--allow-specified", "--allow-lossy", "--json")[1])
    assert precisions_of(allowed) == {"fp32", "tf32", "fp16", "bf16", "fp8", "int8"}
    assert allowed["request"]["allow_specified"] == {"value": True, "source": "option"}
    shipped = Path(planner.__file__).parent / "_bundled" / "schemas" / "suggestion.json"
    jsonschema.validate(allowed, json.loads(shipped.read_text()))


@pytest.mark.parametrize("cluster", ["ec2-g4dn-12xlarge", "dgx-a100", "dgx1-v100"])
def test_training_in_int8_is_priced_and_never_chosen_unless_that_is_allowed(cluster: str, run: Run) -> None:
    request = ("suggest", "--network", "resnet50", "--cluster", cluster, "--nodes", "1", "--target-batch", "256")
    code, out, _ = run(*request, "--precision", "fp32,fp16,int8")
    assert code == 0
    words = " ".join(out.split())
    assert "Training in int8 is research and lossy, chosen with --allow-lossy alone: plan " in words
    answer = json.loads(run(*request, "--precision", "fp32,fp16,int8", "--json")[1])
    assert "int8" not in precisions_of(answer)
    _, out, _ = run(*request, "--precision", "int8", "--allow-lossy")
    assert "Start:" not in out
    assert "No start line: training in int8 is research" in " ".join(out.split())


def test_8_bits_named_alone_rest_on_the_data_sheet(run: Run) -> None:
    code, out, _ = run("suggest", *GPT2, "--precision", "fp8", "--json")
    assert (code, precisions_of(json.loads(out))) == (0, {"fp8"})


def test_the_settings_file_may_allow_what_is_specified(run: Run) -> None:
    settings = 'format = "planner/settings"\nversion = 1\nallow_specified = '
    for value, is_allowed in (("true", True), ("false", False)):
        Path("planner.toml").write_text(settings + value)
        answer = json.loads(run("suggest", *GPT2, "--json")[1])
        assert ("fp8" in precisions_of(answer)) == is_allowed
        assert answer["request"]["allow_specified"] == {"value": is_allowed, "source": "planner.toml"}
    Path("planner.toml").write_text(settings + "1")
    code, _, err = run("suggest", *GPT2)
    assert code == 3
    assert "planner.toml: allow_specified: value must be true or false, got 1" in err


def test_a_target_of_more_than_an_epoch_is_refused(run: Run) -> None:
    asked = ("--network", "resnet50", "--cluster", "dgx1-v100", "--dataset", "cifar-10")
    code, out, err = run("suggest", *asked, "--target-batch", "50001", "--precision", "fp32")
    assert (code, out) == (2, "")
    assert err.startswith(
        "planner: --target-batch must be at most the 50,000 samples of data set cifar-10, as an update is part of an "
        "epoch, got 50001"
    )
    assert run("suggest", *asked, "--target-batch", "50000", "--precision", "fp32", "--tolerance", "1%")[0] == 0


def test_values_that_a_framework_does_not_allow_are_refused_by_its_rule(run: Run) -> None:
    asked = ("--network", "gpt2", "--cluster", "dgx-a100", "--target-batch", "512", "--sharding", "3")
    code, out, err = run("suggest", *asked, "--framework", "megatron")
    assert (code, out) == (2, "")
    assert err == "planner: --sharding must be 0 or 1 in framework megatron-lm, got '3'\n"


LANGUAGE = (
    "--network", "gpt2", "--cluster", "dgx-h100", "--target-batch", "64", "--precision", "bf16", "--parallelism",
    "data", "--sharding", "0",
)  # fmt: skip


def test_language_models_speak_of_tokens_and_keep_a_deadline(run: Run) -> None:
    whole = json.loads(run("suggest", *LANGUAGE, "--tokens", "1e10", "--json")[1])
    of = whole["subject"]["tokens_per_sample"]
    assert of == 1024
    for plan in whole["plans"]:
        one = plan["prediction"]
        rate = one["tokens_per_s"]["value"]
        assert rate == pytest.approx(of * one["samples_per_s"]["value"])
        assert plan["walltime_s"]["value"] == pytest.approx(1e10 / rate)
        assert plan["walltime_s"]["low"] < plan["walltime_s"]["value"] < plan["walltime_s"]["high"]
        assert plan["steps"] == pytest.approx(1e10 / of / 64)
    slowest = max(plan["walltime_s"]["value"] for plan in whole["plans"])
    deadline = ("--tokens", "1e10", "--deadline", f"{1.001 * slowest}s")
    code, out, _ = run("suggest", *LANGUAGE, *deadline)
    assert code == 0
    text = " ".join(out.split())
    assert " tokens/s " in text
    assert "10 G tokens in 152,588 steps, " in text
    assert ("No plan on fewer nodes meets the deadline." in text) == ("take plan 1, 1 node x" not in text)
    kept = json.loads(run("suggest", *LANGUAGE, *deadline, "--json")[1])
    (nodes,) = {plan["configuration"]["nodes"] for plan in kept["plans"]}
    assert nodes <= min(plan["configuration"]["nodes"] for plan in whole["plans"])
    assert kept["request"]["nodes"] == {"value": [nodes], "source": "deadline"}
    code, out, err = run("suggest", *LANGUAGE, "--tokens", "1e10", "--deadline", "1s")
    assert (code, out.count("above --deadline")) == (4, 1)
    assert "and --deadline; the smallest change that helps: --deadline " in err
    for wrong, rule in {
        ("--tokens", "1e10", "--epochs", "2"): "--tokens must be left out with --epochs, got '1e10'",
        ("--deadline", "1h"): "--deadline must be given with --tokens or a data set",
        ("--tokens", "many"): "--tokens must be a number above 0",
    }.items():
        code, _, err = run("suggest", *LANGUAGE, *wrong)
        assert code == 2
        assert rule in err
    err = run("suggest", *DGX1, "--target-batch", "64", "--tokens", "1e9")[2]
    assert "--tokens must be left out with resnet50, got '1e9'; resnet50 is not a language model" in err


def test_each_of_several_targets_is_answered_as_it_is_alone(run: Run) -> None:
    asked = ("suggest", *DGX1, "--nodes", "2", "--precision", "fp16", "--json")
    document = json.loads(run(*asked, "--target-batch", "512,1024")[1])
    assert document["format"] == "planner/suggestions"
    alone = [json.loads(run(*asked, "--target-batch", one)[1]) for one in ("512", "1024")]
    for together, own in zip(document["suggestions"], alone, strict=True):
        assert together["request"]["target_batch"]["value"] == own["request"]["target_batch"]["value"]
        assert together["plans"] == own["plans"]
    out = run(*asked[:-1], "--target-batch", "512,1024")[1]
    assert "target mini-batch 512, 1024: the plans to take" in " ".join(out.split())
    code, _, err = run("sweep", *DGX1, "--target-batch", "512,1024")
    assert (code, "--target-batch must be one number here" in err) == (2, True)


@pytest.mark.parametrize("target", ["1", "137", "1021"])
def test_the_nearest_mini_batch_comes_with_the_gpus_per_node_that_take_it_exactly(run: Run, target: str) -> None:
    asked = ("suggest", "--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", target)
    warning = next(line for line in run(*asked)[2].splitlines() if "nearest mini-batch" in line)
    assert len(warning) <= 80
    way = re.fullmatch(rf"warning: the nearest mini-batch is \d+; (.*) takes exactly {target}", warning)
    assert way is not None
    exact = json.loads(run(*asked, *way[1].split(), "--json")[1])
    assert exact["plans"][0]["configuration"]["mini_batch"] == int(target)
    assert "nearest_batch" not in {one["code"] for one in exact["warnings"]}


@pytest.mark.parametrize(("ending", "name"), [("", "tiny"), ("/config.json", "tiny"), (":layers=4", "tiny:layers=4")])
def test_a_network_of_a_folder_has_its_name_in_the_answer(run: Run, tmp_path: Path, ending: str, name: str) -> None:
    keys = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8}
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            keys
            | {"intermediate_size": 1024, "vocab_size": 32000, "num_key_value_heads": 8, "max_position_embeddings": 512}
        )
    )
    asked = ("--network", f"{folder}{ending}", "--cluster", "dgx-h100", "--target-batch", "64")
    code, out, err = run("suggest", *asked)
    assert code == 0, err
    assert out.startswith(f"{name} on dgx-h100, target mini-batch 64: take plan")
    (tmp_path / "answer.json").write_text(run("suggest", *asked, "--json")[1])
    assert run("explain", str(tmp_path / "answer.json"))[1].startswith(f"{name} on dgx-h100, ")


@pytest.mark.parametrize(
    "words",
    [
        ("resnet50", "dgx1-v100", "1000", "--pareto"),
        ("llama3-8b", "dgx-h100", "512", "--precision", "bf16", "--pareto"),
        ("llama3-8b", "dgx-h100", "512", "--precision", "bf16", "--objective", "gpu-hours", "--tokens", "1e12"),
    ],
)
def test_a_screen_holds_an_answer_with_its_front_and_its_sentences(run: Run, words: tuple[str, ...]) -> None:
    network, cluster, target, *others = words
    asked = ("--network", network, "--cluster", cluster, "--target-batch", target, *others)
    _, out, err = run("suggest", *asked)
    lines = [*out.splitlines(), *err.splitlines()]
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
