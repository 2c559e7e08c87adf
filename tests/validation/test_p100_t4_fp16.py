"""fp16 of P100 and T4 against published training: where it is missed, the calibration says so, in figures.

Published, P100: on V100, FP16 over FP32 is 1.60 to 2.07; V100 over P100 is 1.26 (TensorFlow) and 1.52 (MXNet) in FP32,
2.03 and 2.24 in FP16 (Dell EMC reference guide on deep learning, ResNet-50). T4: seconds an iteration of ResNet-50 in
mixed precision on one GPU of an EC2 g4dn, of the Pollux traces (Qiao et al., OSDI 2021; Apache-2.0). A check of the
whole, never a fit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner import catalog
from planner.domain.arrays import FloatArray
from planner.domain.configuration import Configurations, Settings
from planner.domain.framework import GENERIC
from planner.domain.request import Problem
from planner.steps.predict import Evaluator

Run = Callable[..., tuple[int, str, str]]
P100_RATIOS = [gain * fp32 / fp16 for gain in (1.60, 2.07) for fp32, fp16 in ((1.26, 2.03), (1.52, 2.24))]
T4_STEP_S = {20: 0.14740917682647706, 200: 0.923530888557434}


def samples_per_s(accelerator: str, sub_batch: list[int]) -> FloatArray:
    """Return the speed of ResNet-50 on one GPU, shape (2, k): in fp32 and in fp16."""
    cluster = catalog.find_cluster("dgx1-v100")
    cluster = replace(cluster, node=replace(cluster.node, accelerator=catalog.find_accelerator(accelerator)))
    calibrations = (catalog.find_calibration(accelerator),)
    settings = Settings(input="synthetic", framework=GENERIC)
    problem = Problem(catalog.find_network("resnet50"), None, cluster, calibrations, settings=settings)
    count = len(sub_batch)
    one, precision = np.ones(2 * count, dtype=np.int64), np.repeat([0, 1], count)
    plans = Configurations(one, one, np.tile(sub_batch, 2), one, precision, 0 * one, precisions=("fp32", "fp16"))
    return Evaluator(problem).evaluate(plans).samples_per_s.reshape(2, count)


P100 = """format = "planner/cluster"
version = 1
name = "p100"
nodes = 2
[node]
gpus = 4
gpu = "{board}"
[links.intra_node]
kind = "pcie3"
bandwidth_GBps = 12
latency_us = 5
[links.inter_node]
kind = "infiniband"
bandwidth_GBps = 12.5
latency_us = 2
"""


@pytest.mark.parametrize("framework", ["generic", "mxnet", "pytorch"])
@pytest.mark.parametrize("board", ["p100-pcie-16gb", "p100-sxm2-16gb"])
def test_p100_in_fp16_is_as_much_faster_as_published_ratios_imply(
    run: Run, tmp_path: Path, board: str, framework: str
) -> None:
    (tmp_path / "p100.toml").write_text(P100.format(board=board))
    code, out, err = run(
        "predict", "--network", "resnet50", "--cluster", str(tmp_path / "p100.toml"), "--nodes", "1,2",
        "--precision", "fp32,fp16", "--sub-batch", "16,64", "--framework", framework, "--input", "synthetic", "--json",
    )  # fmt: skip
    assert code == 0, err
    step_s: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for plan in (one["configuration"] | one["iteration_s"] for one in json.loads(out)["predictions"]):
        step_s[plan["nodes"], plan["sub_batch"]][plan["precision"]] = plan["value"]
    assert len(step_s) == 4
    ratios = [one["fp32"] / one["fp16"] for one in step_s.values()]
    assert min(P100_RATIOS) < min(ratios)
    assert max(ratios) < 1.05 * max(P100_RATIOS)  # scales of whole steps move the ratio by a few per cent


def test_t4_says_how_far_its_fp16_is_from_measured_steps() -> None:
    _, fp16 = samples_per_s("t4", list(T4_STEP_S))
    missed = [step_s * speed / n for (n, step_s), speed in zip(T4_STEP_S.items(), fp16, strict=True)]
    assert f"{min(missed):.1f} to {max(missed):.1f} times what is predicted" in " ".join(
        catalog.find_calibration("t4").all_warnings
    )
