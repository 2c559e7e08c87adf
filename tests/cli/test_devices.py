"""GPUs without measurements of their own, from the command line: siblings, scenarios, and specified names."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.costs.measured_calls import DOUBLINGS_BEYOND, MEASURED_S
from planner.costs.specified import specified_entry
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Node
from planner.domain.network import LOOKED_UP
from planner.formats.calibration import CALIBRATION
from planner.workload.calls import layer_calls

Run = Callable[..., tuple[int, str, str]]
ROUNDING = 1e-12
DGX1 = ("--network", "resnet50", "--cluster", "dgx1-v100", "--sub-batch", "32")
CLUSTER = """format = "planner/cluster"
version = 1
name = "mine"
nodes = 1
[node]
gpus = 1
gpu = "{gpu}"
"""


def predicted(run: Run, *arguments: str) -> Any:
    """Return a document whose terms say themselves where they come from."""
    code, out, err = run("predict", *arguments, "--json")
    assert code == 0, err
    return told(json.loads(out))


def told(answer: Any) -> Any:
    for one in answer.get("predictions", [answer]):
        for term in one["terms"]:
            term.update({"calibration": ""} | answer["sources"][term.get("source", 0)])
    return answer


def of(run: Run, gpu: str, *arguments: str) -> Any:
    Path("mine.toml").write_text(CLUSTER.format(gpu=gpu))
    return predicted(run, "--cluster", "mine.toml", *arguments)


def term(answer: Any, name: str) -> Any:
    return next(one for one in answer["terms"] if one["name"] == name)


def width(answer: Any) -> float:
    return float(answer["iteration_s"]["high"] / answer["iteration_s"]["low"])


def said(answer: Any, code: str) -> str:
    return " ".join(one["message"] for one in answer["warnings"] if one["code"] == code)


def test_another_gpu_is_priced_from_the_present_one_with_no_narrower_interval(run: Run) -> None:
    now = predicted(run, *DGX1)
    answer = predicted(run, *DGX1, "--scenario", "gpu=a100-sxm4-80gb")
    assert answer["subject"]["memory_bytes"] == catalog.find_accelerator("a100-sxm4-80gb").memory_bytes
    assert "scaled from v100-sxm2-16gb" in term(answer, "forward")["calibration"]
    assert answer["iteration_s"]["value"] < now["iteration_s"]["value"]
    assert width(answer) >= (1 - ROUNDING) * width(now)
    assert "times those of a100-sxm4-80gb itself" in said(answer, "calibration")
    assert term(answer, "all_reduce")["seconds"] == term(now, "all_reduce")["seconds"]


def test_scenarios_join_and_alternatives_are_answered_apart(run: Run) -> None:
    both = predicted(run, *DGX1, "--scenario", "gpu=t4,gpu=t4+all_reduce*=2,all_reduce*=2")["predictions"]
    t4, joined, plain = both
    assert joined["iteration_s"]["value"] >= t4["iteration_s"]["value"] > plain["iteration_s"]["value"]
    assert term(joined, "all_reduce")["seconds"] == pytest.approx(2 * term(t4, "all_reduce")["seconds"])
    assert "scaled" not in term(plain, "forward")["calibration"]


def test_the_text_names_the_source_of_scaled_kernels(run: Run) -> None:
    code, out, _ = run("predict", *DGX1, "--scenario", "gpu=p100-sxm2-16gb", "-v")
    assert code == 0
    where = out[out.index("Where the times come from") :]
    assert "scaled from v100-sxm2-16gb  published, DeepBench" in where


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--scenario", "gpu=v100-sxm"), 2, "accelerator must be a known name, got 'v100-sxm'"),
        (("--scenario", "gpu=v100-sxm2-16gb"), 2, "must be another accelerator than cluster 'dgx1-v100' has"),
        (("--scenario", "gpu=k80", "--precision", "fp16"), 5, "k80 does not have fp16"),
    ],
)
def test_scenarios_that_cannot_be_are_refused_by_a_sentence(
    run: Run, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    got, out, err = run("predict", *DGX1, *arguments)
    assert (got, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_the_price_is_not_that_of_the_other_gpu(run: Run) -> None:
    text = CLUSTER.format(gpu="v100-sxm2-16gb") + "[price]\nusd_per_gpu_hour = 2.0\n"
    Path("mine.toml").write_text(text)
    asked = ("suggest", "--network", "alexnet", "--cluster", "mine.toml", "--target-batch", "64", "--objective", "cost")
    assert run(*asked)[0] == 0
    code, _, err = run(*asked, "--scenario", "gpu=p100-pcie-16gb")
    assert code == 2
    assert "has no price of p100-pcie-16gb" in err


def test_a_gpu_of_a_calibrated_chip_takes_its_siblings_kernels(run: Run) -> None:
    answer = of(run, "p40", "--network", "resnet50", "--sub-batch", "32")
    forward = term(answer, "forward")
    # Convolutions and products of a GPU with the same die; no sibling knows what moves bytes.
    assert "scaled from" in forward["calibration"]
    assert forward["origin"] == "published+specified"
    assert "gemm" not in said(answer, "specified")
    assert "convolution" not in said(answer, "specified")
    assert "scaled from" in said(answer, "calibration")


def calibration_of(gpu: str, looked_up: tuple[Entry, ...] = ()) -> str:
    """Write a calibration of products as the data sheet has them, and of calls; return its file's name."""
    device = catalog.find_accelerator(gpu)
    products = (specified_entry(device, "gemm", way, "fp32") for way in ("forward", "backward_data", "backward_weight"))
    fits = [replace(fit, origin="measured", source="here", held_out_error=1.0) for fit in products if fit]
    made = Calibration(f"of-{gpu}", gpu, (*fits, *looked_up), node=Node(1, device))
    Path(f"{gpu}.json").write_text(CALIBRATION.dump(made))
    return f"{gpu}.json"


@pytest.mark.parametrize(("sibling", "serves"), [("gtx-1080ti", True), ("m40", False)])
def test_calls_that_a_sibling_timed_go_before_the_devices_fits(run: Run, sibling: str, *, serves: bool) -> None:
    calls = layer_calls(catalog.find_network("mlp"), optimizer="sgd")["gemm", "forward"]
    timed = Entry(
        "kernels", "gemm", "forward", "fp32", "own layers", LOOKED_UP,
        {call.name: (1.0, 1e-4, 64.0, 2e-4) for call in calls}, {MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0},
        held_out_error=0.02, origin="measured", source="here",
    )  # fmt: skip
    Path("mine.toml").write_text(CLUSTER.format(gpu="titan-xp"))
    both = ("--calibration", calibration_of("titan-xp"), "--calibration", calibration_of(sibling, (timed,)))
    asked = (
        "predict",
        "--cluster",
        "mine.toml",
        "--network",
        "mlp",
        *both,
        "--sub-batch",
        "32",
        "--input",
        "synthetic",
    )
    code, out, err = run(*asked, "--json")
    answer = told(json.loads(out))
    assert code == 0
    assert (answer["kernel_shares"].get("sibling", 0.0) > 0.1) == serves
    assert ("scaled from gtx-1080ti" in term(answer, "forward")["calibration"]) == serves
    assert ("so no kernel is priced by it" in err) != serves


@pytest.mark.parametrize("gpu", ["v100-sxm2-16gb", "p100-pcie-16gb", "t4"])
def test_a_gpu_with_kernels_of_its_own_takes_none(run: Run, gpu: str) -> None:
    answer = of(run, gpu, "--network", "resnet50", "--sub-batch", "32")
    assert not any("scaled" in one["calibration"] for one in answer["terms"])


BERT = ("--network", "bert-base:sequence=128", "--sub-batch", "96", "--precision", "tf32")


def test_a_precision_that_was_not_measured_is_derived_from_one_that_was(run: Run) -> None:
    answer = of(run, "a100-sxm4-40gb", *BERT)
    assert "tf32 derived from bf16 of a100-sxm4-40gb" in term(answer, "forward")["calibration"]
    assert answer["kernel_shares"].get("specification", 0.0) < 0.05
    assert "were derived from those in bf16" in said(answer, "calibration")
    half, full = (of(run, "a100-sxm4-40gb", *BERT[:-1], precision) for precision in ("bf16", "fp32"))
    slowest_first = [one["samples_per_s"]["value"] for one in (full, answer, half)]
    assert sorted(slowest_first) == slowest_first
    assert "derived" not in term(half, "forward")["calibration"]
    assert width(answer) >= (1 - ROUNDING) * width(half)


def test_beside_the_only_calibration_nothing_is_derived(run: Run) -> None:
    Path("mine.toml").write_text(CLUSTER.format(gpu="a100-sxm4-40gb"))
    asked = ("predict", "--cluster", "mine.toml", *BERT, "--calibration", "a100-sxm4-40gb")
    assert run(*asked)[0] == 0
    code, _, err = run(*asked, "--only-calibration")
    assert code == 5
    assert "kernel gemm forward in tf32 must be covered" in err
    code, _, err = run(*asked[:-2], "--only-calibration")
    assert (code, err) == (2, "planner: --only-calibration must be given with --calibration, got nothing\n")


def test_kernels_of_a_sibling_tell_other_precisions_too(run: Run) -> None:
    found = term(of(run, "h200-sxm-141gb", *BERT), "forward")["calibration"]
    assert "tf32 derived from bf16 scaled from gh200-96gb" in found


def test_under_a_scenario_what_the_other_gpu_was_not_measured_in_is_derived_there(run: Run) -> None:
    Path("mine.toml").write_text(CLUSTER.format(gpu="a100-sxm4-40gb"))
    found = predicted(run, "--cluster", "mine.toml", *BERT, "--scenario", "gpu=h100-sxm5-80gb")
    assert "tf32 derived from bf16 scaled from a100-sxm4-40gb" in term(found, "forward")["calibration"]


@pytest.mark.parametrize("gpu", ["a100-sxm4-40gb", "h100-sxm5-80gb", "a40"])
def test_a_derived_precision_is_no_slower_than_fp32(run: Run, gpu: str) -> None:
    wide, narrow = (of(run, gpu, *BERT[:-1], name)["iteration_s"]["value"] for name in ("fp32", "tf32"))
    assert narrow < wide


def nearest(run: Run, gpu: str, *arguments: str) -> Any:
    return of(run, gpu, "--network", "resnet50", "--sub-batch", "32", "--input", "synthetic", *arguments)


def forward(answer: Any) -> str:
    return str(term(answer, "forward")["calibration"])


@pytest.mark.parametrize(("gpu", "source"), [("k80", "m40"), ("gtx-1080", "titan-x-pascal"), ("rtx-2080ti", "t4")])
def test_convolutions_are_those_of_the_nearest_measured_gpu(run: Run, gpu: str, source: str) -> None:
    answer = nearest(run, gpu)
    assert f"scaled from {source}" in forward(answer)
    assert answer["iteration_s"]["interval_basis"] == "conformal"
    told = " ".join(one["message"] for one in answer["warnings"])
    assert f"Kernels were scaled from {source} to {gpu} by their data sheets" in told
    assert "Times of convolution" not in told


def test_a_precision_that_no_gpu_was_measured_in_follows_from_another(run: Run) -> None:
    assert "bf16 derived from fp16 scaled from v100" in forward(nearest(run, "a100-sxm4-40gb", "--precision", "bf16"))


@pytest.mark.parametrize("gpu", ["titan-xp", "t4"])
def test_measured_gpus_take_nothing_over(run: Run, gpu: str) -> None:
    assert "scaled" not in forward(nearest(run, gpu))


def test_a_scenario_specifies_the_other_gpu_not_the_present_one_again(run: Run) -> None:
    known = nearest(run, "k80", "--scenario", "gpu=m40")
    assert "scaled" not in forward(known)
    assert not any("m40 to k80" in one["message"] for one in known["warnings"])
    other = forward(nearest(run, "k80", "--scenario", "gpu=gtx-1080"))
    assert "scaled from titan-x-pascal" in other
    assert "from k80" not in other


ONE_GPU = """format = "planner/cluster"
version = 1
name = "one"
nodes = 1
[node]
gpus = 1
gpu = "{gpu}"
"""
WITH_TF32 = [name for name in catalog.names("accelerators") if "tf32" in catalog.find_accelerator(name).peak_flop_per_s]


@pytest.mark.parametrize("gpu", WITH_TF32[::4])
def test_tf32_is_no_slower_than_fp32_on_the_same_chip(run: Run, gpu: str) -> None:
    """A library that may use TF32 takes kernels of fp32 where these are faster; by typical calls, so within 5 %."""
    Path("one.toml").write_text(ONE_GPU.format(gpu=gpu))
    images, texts = (("resnet50", "32"), ("vgg16", "64")), (("bert-large", "8"), ("gpt2", "4"))
    at = WITH_TF32.index(gpu) // 4 % 2
    for network, sub_batch in (images[at], texts[at]):
        found = predicted(
            run, "--network", network, "--cluster", "one.toml", "--sub-batch", sub_batch, "--precision", "fp32,tf32",
            "--input", "synthetic",
        )  # fmt: skip
        wide_s, narrow_s = (one["iteration_s"]["value"] for one in found["predictions"])
        assert narrow_s < 1.05 * wide_s
