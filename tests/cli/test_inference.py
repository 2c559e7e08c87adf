"""``--task inference`` from the command line to the answer."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
T4 = ("--network", "resnet50", "--task", "inference", "--calibration", "t4")
CNN = ("predict", "--network", "resnet50", "--sub-batch", "32")
CLUSTER = ("suggest", "--network", "resnet50", "--task", "inference", "--cluster", "ec2-g4dn-12xlarge")


def batches(run: Run, *arguments: str) -> list[dict[str, Any]]:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out)["batches"]
    return found


def test_larger_batches_take_longer_and_yield_more(run: Run) -> None:
    for precision in ("fp32", "fp16", "int8"):
        each = batches(run, "predict", *T4, "--precision", precision, "--sub-batch", "4:64:20")
        for values in ([one["latency_s"]["value"] for one in each], [one["samples_per_s"] for one in each]):
            assert values == sorted(values)
        assert all(one["latency_s"]["low"] < one["latency_s"]["value"] < one["latency_s"]["high"] for one in each)
        assert all({"gradients", "optimizer"}.isdisjoint(one["memory_bytes"]) for one in each)


def test_kernels_add_up_to_no_more_than_the_latency(run: Run) -> None:
    for one in batches(run, "predict", *T4, "--precision", "fp16,int8", "--sub-batch", "8,64"):
        assert sum(row["seconds"] for row in one["kernels"]) <= one["latency_s"]["value"]


def test_kernels_are_a_table_and_gains_are_told_by_kind(run: Run) -> None:
    code, out, _ = run("predict", *T4, "--precision", "fp32,int8", "--sub-batch", "64", "-v")
    assert code == 0
    assert "Batch 64, kernel by kernel" in out
    assert "Ridge of the roofline" in out


def test_the_fewest_gpus_for_a_rate_within_a_latency(run: Run) -> None:
    (first, *others) = batches(run, *CLUSTER, "--latency", "10ms", "--rate", "5000")
    assert first["latency_s"]["value"] <= 0.01
    assert first["samples_per_s"] >= 5000
    assert all(first["gpus"] <= one["gpus"] for one in others)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((*CLUSTER, "--latency", "1us"), 4, "the nearest: "),
        ((*CLUSTER, "--rate", "100000000"), 4, "which has 64; the nearest: "),
        (("predict", *T4, "--precision", "int8", "--sub-batch", "6"), 2, "the nearest are 4 and 8"),
        (("predict", *T4, "--precision", "int8", "--sub-batch", "3"), 2, "the nearest is 4"),
        (("predict", *T4, "--precision", "fp8", "--sub-batch", "8"), 5, "one that t4 has"),
        (("predict", *T4, "--sub-batch", "8", "--tensor", "2"), 2, "--tensor must be left out with --task inference"),
        (("predict", *T4), 2, "--sub-batch must be given"),
        ((*CLUSTER, "--pareto"), 2, "--pareto must be left out with --task inference, got '--pareto'"),
        ((*CLUSTER, "--target-batch", "64"), 2, "inference, got 64"),
        ((*CNN, "--cluster", "dgx1-v100", "--precision", "fp8"), 5, "v100-sxm2-16gb does not have fp8"),
        ((*CNN, "--cluster", "stampede2", "--offload", "paged-activations"), 5, "links.host of cluster stampede2 must"),
        (
            ("predict", "--network", "vgg16", "--framework", "tensorrt", "--cluster", "dgx-a100", "--sub-batch", "8"),
            2, "one that is for training",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_nearest(
    arguments: tuple[str, ...], code: int, words: str, run: Run
) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert words in err
