"""``planner predict`` from the command line to the answer."""

import itertools
import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import find_accelerator
from planner.formats.suggestion import parse_answers

Run = Callable[..., tuple[int, str, str]]
DGX1 = ("--network", "alexnet", "--cluster", "dgx1-v100")


def predicted(run: Run, *arguments: str) -> Any:
    """Return a document whose terms say themselves where they come from."""
    code, out, err = run("predict", *arguments, "--json")
    assert code == 0, err
    answer = json.loads(out)
    for one in answer.get("predictions", [answer]):
        for term in one["terms"]:
            term.update({"calibration": ""} | answer["sources"][term.get("source", 0)])
    return answer


def test_one_configuration_is_one_document(run: Run) -> None:
    answer = predicted(run, *DGX1, "--sub-batch", "64")
    assert (answer["format"], answer["version"]) == ("planner/prediction", 1)
    configuration = answer["subject"] | {"tensor_parallel": 1} | answer["configuration"]
    expected = {
        "nodes": 1, "gpus_per_node": 8, "sub_batch": 64, "accumulation_steps": 1, "precision": "fp32", "mode": "sync",
        "mini_batch": 512, "recompute": "none", "sharding": 0, "optimizer": "sgd-momentum", "tensor_parallel": 1,
    }  # fmt: skip
    assert {key: configuration[key] for key in expected} == expected


def origins(answer: Any) -> dict[str, str]:
    return {term["name"]: term["origin"] for term in answer["terms"]}


@pytest.mark.parametrize("name", ["gtx-1080ti", "m40", "titan-xp"])
def test_kernels_of_bytes_that_a_named_calibration_lacks_are_specified(run: Run, name: str) -> None:
    answer = predicted(run, "--network", "resnet50", "--calibration", name, "--sub-batch", "64")
    assert "specified" in origins(answer)["forward"].split("+")
    assert len(origins(answer)["forward"].split("+")) == 2
    (word,) = [one["message"] for one in answer["warnings"] if (one["code"], one["subject"]) == ("specified", name)]
    kinds = word.removeprefix("Times of ").partition(" kernels come")[0].split(", ")
    assert "bias" in kinds
    assert not {"gemm", "convolution"} & set(kinds)


def test_a_gpt_needs_no_convolutions(run: Run) -> None:
    answer = predicted(run, "--network", "gpt2", "--calibration", "a100-sxm4-80gb", "--sub-batch", "4")
    assert "a100-sxm4-80gb" in next(one["calibration"] for one in answer["terms"] if one["name"] == "forward")


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "l4"])
def test_convolutions_that_a_named_calibration_lacks_are_served_by_others_unless_it_is_the_only_one(
    run: Run, name: str
) -> None:
    asked = ("--network", "resnet50", "--sub-batch", "64", "--calibration", name)
    code, out, err = run("predict", *asked, "--only-calibration")
    assert (code, out) == (5, "")
    assert err.startswith(f"planner: kernel convolution forward in fp32 must be covered by a calibration of {name}")
    assert err.endswith(", or, to use specifications, leave out --only-calibration\n")
    answer = predicted(run, *asked)
    assert origins(answer)["forward"] == "published+specified"
    assert any(f"to {name} by their data sheets" in one["message"] for one in answer["warnings"])


@pytest.mark.parametrize(("name", "precision"), [("a40", "fp8"), ("p4", "fp16")])
def test_where_a_named_calibration_prices_no_precision_those_of_the_device_are_named_with_a_command(
    run: Run, name: str, precision: str
) -> None:
    """Neither a precision that the device lacks nor one that is never specified is offered; all others work."""
    asked = ("--network", "resnet50", "--sub-batch", "64", "--calibration", name)
    code, out, err = run("predict", *asked, "--only-calibration", "--precision", precision)
    assert (code, out) == (5, "")
    assert f"one that can be priced (none here), got {precision!r}" in err
    offered = err.rpartition("ask for --precision ")[2].partition(" and, to use specifications, leave out --only")[0]
    have = set(find_accelerator(name).peak_flop_per_s) - {"int8"}
    assert set(offered.replace(" or ", ", ").split(", ")) == have
    answer = predicted(run, *asked, "--precision", ",".join(sorted(have)))
    found = answer.get("predictions", [answer])
    assert {one["configuration"]["precision"] for one in found} == have


def test_lists_and_ranges_give_their_product_in_order(run: Run) -> None:
    lists = ("--nodes", "1,2", "--sub-batch", "16:32:16", "--accumulation", "1:2", "--precision", "fp32,fp16")
    answer = predicted(run, *DGX1, *lists)
    assert answer["format"] == "planner/predictions"
    keys = ("nodes", "sub_batch", "accumulation_steps", "precision")
    got = [tuple(one["configuration"][key] for key in keys) for one in answer["predictions"]]
    assert got == list(itertools.product((1, 2), (16, 32), (1, 2), ("fp32", "fp16")))


def read_many(run: Run, *arguments: str) -> tuple[object, ...]:
    return parse_answers(run("predict", *arguments, "--json")[1], "stdout").predictions


def test_one_of_many_is_the_same_as_alone(run: Run) -> None:
    many = read_many(run, *DGX1, "--nodes", "1:3", "--sub-batch", "32")
    (alone,) = read_many(run, *DGX1, "--nodes", "2", "--sub-batch", "32")
    assert many[1] == alone


def test_the_mini_batch_gives_the_sub_batch(run: Run) -> None:
    answer = predicted(run, *DGX1, "--nodes", "2", "--accumulation", "2", "--mini-batch", "512")
    assert answer["configuration"]["sub_batch"] == 512 // (2 * 8 * 2)


MULTIPLE = "--mini-batch must be a multiple of GPUs x accumulation, here 8, got"
OUTCOME = "an asynchronous mini-batch is an outcome: give --sub-batch"
ASYNC_TWICE = ("--sub-batch", "8", "--mode", "async", "--accumulation", "2")
MANY = ("--sub-batch", "1:1000", "--nodes", "1:64")
REFUSALS = {
    (): "--sub-batch must be given, got nothing; say the samples of one pass, or --mini-batch",
    ("--mini-batch", "100"): f"{MULTIPLE} 100; the nearest are 96 and 104",
    ("--mini-batch", "4"): f"{MULTIPLE} 4; the nearest are 8 and 16",
    ("--mini-batch", "64", "--sub-batch", "8"): "--mini-batch must be given without --sub-batch, got 64",
    ("--mini-batch", "64", "--mode", "async"): f"--mini-batch must be given with --mode sync, got 64; {OUTCOME}",
    ("--sub-batch", "8", "--mode", "sync,async"): "--mode must be sync or async, one of them, got 'sync,async'",
    ASYNC_TWICE: "--accumulation must be 1 in an asynchronous plan, got 2",
    MANY: "the lists and ranges must be at most 10000 configurations together, got 64000",
    ("--runs", "r.csv"): "--runs must be left out, as tables of runs are not supported yet, got 'r.csv'",
}


@pytest.mark.parametrize(("arguments", "sentence"), REFUSALS.items())
def test_what_makes_no_configuration_is_exit_2(arguments: tuple[str, ...], sentence: str, run: Run) -> None:
    assert run("predict", *DGX1, *arguments) == (2, "", f"planner: {sentence}\n")


def test_too_much_memory_is_a_warning_not_a_refusal(run: Run) -> None:
    answer = predicted(run, "--network", "vgg16", "--cluster", "dgx1-v100", "--sub-batch", "4096")
    assert answer["memory_bytes"]["total"] > answer["subject"]["memory_bytes"]
    assert "out_of_memory" in [one["code"] for one in answer["warnings"]]


def test_the_default_request_stands_behind_predict_too(run: Run) -> None:
    answer = predicted(run, "--nodes", "8", "--sub-batch", "8")
    assert answer["configuration"]["mode"] == "async"
    assert len(predicted(run, "--nodes", "8")["predictions"]) == 11


def test_scenarios_and_networks_multiply(run: Run) -> None:
    answer = predicted(run, "--nodes", "8", "--sub-batch", "8", "--scenario", "edr,all_reduce*=2")
    seconds = [
        next(term["seconds"] for term in one["terms"] if term["name"] == "all_reduce") for one in answer["predictions"]
    ]
    assert seconds[1] / seconds[0] == pytest.approx(2 / (7 / 12.5))


def test_tables_fit_80_columns(run: Run) -> None:
    for arguments in ((*DGX1, "--sub-batch", "64"), (*DGX1, "--sub-batch", "8:64:8", "--accumulation", "1:3")):
        code, out, err = run("predict", *arguments)
        assert code == 0
        assert err.startswith("warning: ")
        assert max(map(len, (out + err).splitlines())) <= 80
        assert "alexnet on dgx1-v100" in out


def test_warnings_stand_beside_the_table_and_inside_the_document(run: Run) -> None:
    arguments = (*DGX1, "--sub-batch", "64")
    _, out, err = run("predict", *arguments, "-v")
    codes = [one["code"] for one in json.loads(run("predict", *arguments, "--json")[1])["warnings"]]
    assert codes
    assert err.startswith("Warnings\n")
    assert all(f"  {code} (" in err and f"{code} (" not in out for code in codes)


def test_warnings_are_short_unless_all_is_asked_for(run: Run) -> None:
    arguments = ("predict", *DGX1, "--sub-batch", "64")
    _, short, few = run(*arguments)
    _, full, every = run(*arguments, "-v")
    assert len(few.splitlines()) <= 3 < len(every.splitlines())
    assert all(line.startswith("warning: ") for line in few.splitlines())
    assert full.startswith(short)
    for heading in ("Terms", "Where the times come from", "Values and their sources"):
        assert heading in full
        assert heading not in short


def test_an_absurd_mini_batch_is_refused(run: Run) -> None:
    arguments = (*DGX1, "--nodes", "64", "--sub-batch", "1000000000", "--accumulation", "1000000000")
    code, out, err = run("predict", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("planner: the mini-batch must be at most 1,000,000,000,000,000 samples")


def test_a_network_file_whose_layers_do_not_fit_is_exit_3(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "flat.toml"
    layer = '[[layers]]\nname = "fc"\nkind = "linear"\nattributes = { features = 10 }\n'
    path.write_text(f'format = "planner/network"\nversion = 1\nname = "n"\ninput = [3, 8, 8]\n{layer}')
    code, out, err = run("predict", "--network", str(path), "--cluster", "dgx1-v100", "--sub-batch", "8")
    assert (code, out) == (3, "")
    assert err.startswith(f"planner: {path}: layer fc: input shape must be a vector (features)")


@pytest.mark.parametrize(("flag", "values"), [("--sub-batch", ("32", "64")), ("--scenario", ("fp16", "forward*=2"))])
def test_an_option_of_one_value_given_twice_is_exit_2(flag: str, values: tuple[str, str], run: Run) -> None:
    arguments = [*DGX1, "--nodes", "1", flag, values[0], flag, values[1]]
    assert run("predict", *arguments) == (2, "", f"planner: {flag} must be given once, got '{' and '.join(values)}'\n")


def test_the_same_network_or_scenario_twice_is_answered_once(run: Run) -> None:
    arguments = ("--sub-batch", "8", "--scenario", "fp16,fp16")
    once = predicted(run, *DGX1, "--sub-batch", "8", "--scenario", "fp16")
    assert predicted(run, *DGX1, "--network", "alexnet", *arguments) == once
    both = predicted(run, *DGX1, "--network", "vgg16", "--network", "alexnet", *arguments)["predictions"]
    assert [one["subject"]["network"] for one in both] == ["alexnet", "vgg16"]


RESNET = ("--network", "resnet50", "--cluster", "dgx1-v100", "--sub-batch", "64", "--input", "synthetic")


def test_a_framework_is_a_known_name_whatever_the_case(run: Run) -> None:
    """A slip would change the time: nothing is measured of a framework that does not exist."""
    plain = predicted(run, *RESNET)
    for name in ("PyTorch", "torch", "pytorch"):
        answer = predicted(run, *RESNET, "--framework", name)
        assert answer["subject"]["framework"] == "pytorch"
        assert answer["iteration_s"] == plain["iteration_s"]
    assert predicted(run, *RESNET, "--framework", "generic")["iteration_s"] != plain["iteration_s"]
    code, out, err = run("predict", *RESNET, "--framework", "pytroch")
    assert (code, out) == (2, "")
    assert err.startswith("planner: framework must be a known name, got 'pytroch'; did you mean 'pytorch'?")


def test_a_file_declares_a_framework_of_whose_overheads_nothing_is_known(run: Run, tmp_path: Path) -> None:
    text = 'format = "planner/framework"\nversion = 1\nname = "own"\n'
    (tmp_path / "own.toml").write_text(text)
    answer = predicted(run, *RESNET, "--framework", "own.toml")
    assert answer["subject"]["framework"] == "own"
    assert answer["iteration_s"] == predicted(run, *RESNET, "--framework", "generic")["iteration_s"]
    (tmp_path / "own.toml").write_text(text + "input_gradient = true\n")
    assert predicted(run, *RESNET, "--framework", "own.toml")["iteration_s"]["value"] > answer["iteration_s"]["value"]
    assert run("predict", *RESNET, "--framework", "missing.toml")[0] == 3
    settings = 'format = "planner/settings"\nversion = 1\nframework = '
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "planner.toml").write_text(settings + '"own.toml"\n')
    with chdir(below):
        assert predicted(run, *RESNET)["subject"]["framework"] == "own"
        (tmp_path / "planner.toml").write_text(settings + '"pytroch"\n')
        code, _, err = run("predict", *RESNET)
    assert code == 3
    assert "framework must be a known name, got 'pytroch'; did you mean 'pytorch'?" in err


def test_a_full_answer_says_what_the_fastest_buckets_of_gradients_would_save(run: Run) -> None:
    where = ("--network", "googlenet", "--cluster", "tsubame-kfc", "--nodes", "2", "--sub-batch", "2")
    asked = (*where, "--input", "synthetic", "--precision", "fp32")
    words = "With --strategy best-fusion, gradients in the fastest buckets, it would save"
    told = " ".join(run("predict", *asked, "-v")[1].split())
    saved = float(told.partition(f"{words} ")[2].split()[0])
    times = [
        json.loads(run("predict", *asked, "--strategy", name, "--json")[1])["iteration_s"]["value"]
        for name in ("bucketed", "best-fusion")
    ]
    assert saved == pytest.approx(1e3 * (times[0] - times[1]), rel=0.05)
    for others in (("--strategy", "best-fusion"), ("--strategy", "no-overlap"), ("--mode", "async")):
        assert words not in " ".join(run("predict", *asked, *others, "-v")[1].split())


ONE_A100 = ("--cluster", "dgx-a100", "--nodes", "1", "--gpus-per-node", "1", "--precision", "bf16", "--sub-batch", "1")


def codes_of(run: Run, *arguments: str) -> set[str]:
    code, out, _ = run("predict", *ONE_A100, *arguments, "--json")
    assert code == 0
    return {one["code"] for one in json.loads(out)["warnings"]}


@pytest.mark.parametrize("network", ["gpt", "bert", "vit", "llama", "moe", "mpt"])
@pytest.mark.parametrize(("hidden", "said"), [(768, False), (769, True)])
def test_every_family_says_that_heads_do_not_divide(run: Run, network: str, hidden: int, *, said: bool) -> None:
    codes = codes_of(run, "--network", f"{network}:hidden={hidden},heads=12,layers=1")
    assert ("head_size_rounded" in codes) == said


@pytest.mark.parametrize(("version", "said"), [("1.12", False), ("2.13.0", False), ("99.9", True)])
def test_a_version_that_no_record_knows_is_said(run: Run, version: str, *, said: bool) -> None:
    codes = codes_of(run, "--network", "gpt2", "--framework", f"pytorch@{version}")
    assert ("unknown_version" in codes) == said


def test_a_scenario_multiplies_waits_and_each_kind_of_message(run: Run) -> None:
    names = ("replica_wait", "stage_messages", "tensor_messages")
    network = ("--network", "gpt:layers=4,hidden=256,heads=8,sequence=128,vocabulary=1000", "--sub-batch", "2")
    split = ("--cluster", "dgx-a100", "--nodes", "2", "--accumulation", "8", "--pipeline", "4", "--tensor", "2")
    scenarios = ",".join(("forward*=1", *(f"{one}*=2" for one in names)))
    answer = predicted(
        run, *network, *split, "--framework", "megatron", "--input", "synthetic", "--scenario", scenarios
    )
    before, *after = ({term["name"]: term["seconds"] for term in one["terms"]} for one in answer["predictions"])
    for changed, name in zip(after, names, strict=True):
        assert {one: changed[one] / before[one] for one in names} == pytest.approx(
            {one: 1 + (one == name) for one in names}
        )
