"""``planner suggest`` from the command line to the answer."""

import json
from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]
DGX1 = ("--network", "resnet50", "--cluster", "dgx1-v100")


def test_the_table_and_the_document_tell_the_same(run: Run) -> None:
    table = run("suggest", "--target-batch", "138")
    answer = json.loads(run("suggest", "--target-batch", "138", "--json")[1])
    assert table[0] == 0
    best = answer["plans"][0]
    row = table[1].splitlines()[3].split()
    configuration = best["configuration"]
    assert row[:5] == ["1", str(configuration["nodes"]), "x", "8", str(configuration["sub_batch"])]
    assert f"{best['prediction']['epoch_s']['value']:.4g} s" in table[1].splitlines()[3]
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
    assert err.startswith("planner: network must be a known name, got 'resnet5'; did you mean 'resnet50'?")


def test_top_and_pareto(run: Run) -> None:
    answer = json.loads(run("suggest", "--target-batch", "138", "--top", "2", "--pareto", "--json")[1])
    assert [plan["position"] for plan in answer["plans"]] == [1, 2]
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
    arguments = ("suggest", *DGX1, "--nodes", "8", "--target-batch", "1009")
    code, out, err = run(*arguments, "--json")
    assert code == 4
    answer = json.loads(out)
    assert (answer["status"], answer["plans"]) == ("none_feasible", [])
    sizes = sorted(plan["prediction"]["mini_batch"]["mean"] for plan in answer["nearest"])
    assert sizes[0] < 1009 < sizes[-1]
    assert answer["loosen"]
    assert err.startswith("planner: no plan of the space reaches --target-batch 1009; ")
    assert "--tolerance" in err
    code, out, err_table = run(*arguments)
    assert (code, err_table) == (4, err)
    assert "No plan fits." in out
    assert "Nearest plans" in out


def test_what_to_loosen_suffices(run: Run) -> None:
    arguments = ("suggest", *DGX1, "--nodes", "8", "--target-batch", "1009", "--json")
    loosen = json.loads(run(*arguments)[1])["loosen"]
    way = next(one for one in loosen if one["option"] == "--tolerance")
    assert run(*arguments, "--tolerance", way["value"])[0] == 0


def test_loosening_never_worsens_the_best_plan(run: Run) -> None:
    best = [
        json.loads(run("suggest", *DGX1, "--target-batch", "1024", "--tolerance", width, "--json")[1])["plans"][0]
        for width in ("0", "10%", "50%")
    ]
    seconds = [plan["prediction"]["epoch_s"]["value"] for plan in best]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--nodes", "43"), "--nodes must be at most 42 on cluster 'tsubame-kfc', got 43"),
        (("--gpus-per-node", "9"), "--gpus-per-node must be at most 8 on cluster 'tsubame-kfc', got 9"),
        (("--task", "inference"), "--task must be training, the only value supported yet, got 'inference'"),
        (("--parallelism", "hybrid"), "--parallelism must be data, the only value supported yet, got 'hybrid'"),
    ],
)
def test_what_is_not_there_is_refused(arguments: tuple[str, ...], sentence: str, run: Run) -> None:
    assert run("suggest", "--target-batch", "138", *arguments) == (2, "", f"planner: {sentence}\n")
