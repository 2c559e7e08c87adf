"""MFU and HFU: published steps, and what predictions say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.catalog import find_cluster, find_network
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.prediction import Prediction
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.describe import utilization
from planner.steps.predict import Evaluator
from planner.workload.calls import lower
from planner.workload.program import block_starts

A100 = find_cluster("dgx-a100")
KORTHIKANTI = {
    "22B": (48, 6144, 64, 1.10, 8, 4, 41.65, 42.37),
    "175B": (96, 12288, 96, 13.75, 64, 64, 51.39, 51.85),
    "530B": (105, 20480, 128, 37.83, 280, 280, 56.05, 56.35),
    "1T": (128, 25600, 160, 71.49, 512, 512, 56.27, 56.51),
}
"""Layers, features, heads; seconds, GPUs and samples of measured steps of Korthikanti et al. 2022, arXiv:2205.05198,
table 5, with selective recompute on A100; MFU as printed (41.5, 51.4, 56.0, 56.3) to two digits more; HFU by
definition, where the paper counts attention three times for one repeated forward pass."""


def problem(network: str, **changed: Any) -> Problem:
    return Problem(find_network(network), None, A100, (), settings=Settings("adam", input="synthetic"), **changed)


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_measured_steps_have_the_published_utilization(name: str) -> None:
    layers, hidden, heads, seconds, gpus, samples, mfu, hfu = KORTHIKANTI[name]
    sources = Sources(problem(f"gpt:layers={layers},hidden={hidden},heads={heads},sequence=2048,vocabulary=51200"))
    one = Configuration(gpus // 8, 8, 1, precision="fp16", recompute="selective")
    found = utilization(sources, one, samples / seconds)
    assert [round(100 * share, 2) for share in found if share] == [mfu, hfu]


def described(network: str, **axes: Any) -> Prediction:
    values: dict[str, Any] = {"nodes": 1, "gpus_per_node": 8, "sub_batch": 2, "precision": "fp16"}
    one = Configuration(**(values | axes))
    (found,) = Evaluator(problem(network)).describe(Configurations.of([one]))
    return found


SMALL = "gpt:layers=4,hidden=512,heads=8,sequence=256,vocabulary=1024"


PIPELINE = {"recompute": "full", "pipeline_parallel": 2, "accumulation_steps": 2}


@pytest.mark.parametrize("axes", [{}, {"tensor_parallel": 2}, PIPELINE])
def test_predictions_tell_the_products_of_a_step_over_time_and_peak(axes: dict[str, Any]) -> None:
    """Products of the lowered network, whose attention is not fused: three times forward; full recompute a fourth."""
    found, network = described(SMALL, **axes), find_network(SMALL)
    forward = again = 0.0
    for calls in lower(network, np.array([1]), merged=False):
        if calls.kind == "gemm" and calls.direction == "forward":
            m, n, k, batch = (
                np.broadcast_to(calls.work[x], (1, calls.layer.size))[0] for x in ("m", "n", "k", "batch")
            )
            flop = 2.0 * m * n * k * batch * calls.count
            forward += float(flop.sum())
            first, *_, end = block_starts(network)
            again += float(flop[(calls.layer >= first) & (calls.layer < end)].sum())
    per_sample = found.samples_per_s.value / (8 * A100.node.accelerator.peak_flop_per_s["fp16"])
    assert found.mfu == pytest.approx(3 * forward * per_sample, rel=1e-5)
    made_again = again if axes.get("recompute") else 0.0
    assert found.hfu == pytest.approx((3 * forward + made_again) * per_sample, rel=1e-5)


def test_other_networks_have_none() -> None:
    found = described("alexnet")
    assert (found.mfu, found.hfu) == (None, None)
