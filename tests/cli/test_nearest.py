"""Products and convolutions of GPUs that nobody measured: fits of the nearest one that was, as a specification."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
CLUSTER = """format = "planner/cluster"
version = 1
name = "mine"
nodes = 1
[node]
gpus = 1
gpu = "{gpu}"
"""


def predicted(run: Run, gpu: str, *arguments: str, network: str = "resnet50") -> Any:
    Path("mine.toml").write_text(CLUSTER.format(gpu=gpu))
    given = ("--cluster", "mine.toml", "--network", network, "--sub-batch", "32", "--input", "synthetic")
    code, out, err = run("predict", *given, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def forward(answer: Any) -> str:
    return str(next(one["calibration"] for one in answer["terms"] if one["name"] == "forward"))


@pytest.mark.parametrize(("gpu", "source"), [("k80", "m40"), ("gtx-1080", "titan-x-pascal"), ("rtx-2080ti", "t4")])
def test_convolutions_are_those_of_the_nearest_measured_gpu(run: Run, gpu: str, source: str) -> None:
    answer = predicted(run, gpu)
    assert f"scaled from {source}" in forward(answer)
    assert answer["iteration_s"]["interval_basis"] == "conformal"
    told = " ".join(one["message"] for one in answer["warnings"])
    assert f"Kernels were scaled from {source} to {gpu} by their data sheets" in told
    assert "Times of convolution" not in told


def test_a_precision_that_no_gpu_was_measured_in_follows_from_another(run: Run) -> None:
    assert "bf16 derived from fp16 scaled from v100" in forward(predicted(run, "a100-sxm4-40gb", "--precision", "bf16"))


@pytest.mark.parametrize("gpu", ["titan-xp", "t4"])
def test_measured_gpus_take_nothing_over(run: Run, gpu: str) -> None:
    assert "scaled" not in forward(predicted(run, gpu))


def test_a_scenario_specifies_the_other_gpu_not_the_present_one_again(run: Run) -> None:
    known = predicted(run, "k80", "--scenario", "gpu=m40")
    assert "scaled" not in forward(known)
    assert not any("m40 to k80" in one["message"] for one in known["warnings"])
    other = forward(predicted(run, "k80", "--scenario", "gpu=gtx-1080"))
    assert "scaled from titan-x-pascal" in other
    assert "k80" not in other


def test_a_data_sheet_that_is_asked_for_stays_one(run: Run) -> None:
    answer = predicted(run, "k80", "--calibration", "k80")
    assert "scaled" not in forward(answer)
