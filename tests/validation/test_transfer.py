"""Kernels of a GPU predicted from another: the scores, on kernels whose times are known by formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.domain.calibration import RELATIONS, OwnPoints, Transfers, TransferScore, relation
from planner.domain.samples import Samples
from validation.kernel_scores import Key
from validation.transfer import Found, differences, page
from validation.transfer_scores import FOLDS, Fitted, Transfer, few_own_points, fitted, scores_of, transfers


def rows(gpu: str, launch_s: float, slowness: float) -> Samples:
    """Return element-wise kernels of a launch and ``slowness`` times what the data sheet's bandwidth asks for."""
    device = catalog.find_accelerator(gpu)
    made = [
        {
            "kind": "pointwise", "precision": "fp32", "device": gpu, "elements": n * 1e6, "traffic": 2e6 * n,
            "fixed_bytes": 0.0, "group": f"rows {n}",
            "time_s": launch_s + slowness * 8e6 * n / device.memory_bytes_per_s,
        }
        for n in range(40, 100)
    ]  # fmt: skip
    return Samples.from_rows(list(made), {})


@pytest.fixture(scope="module")
def known() -> list[Fitted]:
    return fitted({"p100-pcie-16gb": rows("p100-pcie-16gb", 1e-5, 1.2), "p4": rows("p4", 1e-5, 1.5)})


def test_what_bandwidth_explains_is_transferred_exactly_but_for_the_efficiency(known: list[Fitted]) -> None:
    """P4 at 1.5 and P100 at 1.2 times the sheet: from P100 P4 is predicted 20 % too fast, the reverse 25 % too slow."""
    found = {one.key.gpu: one for one in transfers(known)}
    assert found["p4"].near == "architecture"
    assert np.mean(found["p4"].errors) == pytest.approx(1.2 / 1.5 - 1, abs=0.01)
    assert np.mean(found["p100-pcie-16gb"].errors) == pytest.approx(1.5 / 1.2 - 1, abs=0.01)
    (score,) = scores_of(found.values())
    assert (score.relation, score.units, score.kind, score.precision, score.pairs, score.rows) == (
        "architecture", "any", "pointwise", "any", 2, 120,
    )  # fmt: skip
    assert score.mean == pytest.approx((0.2 + 0.25) / 2, abs=0.01)
    assert score.bias == pytest.approx(score.mean)


def test_fits_of_fp32_stand_beside_those_of_other_precisions(known: list[Fitted]) -> None:
    for one in known:
        assert one.key.precision == "fp32"
        assert one.wide == one.entries


def test_units_are_scored_apart_and_pairs_weigh_the_same() -> None:
    key = Key("a", "gemm, batched", "", "fp16", "b")
    found = [
        Transfer(key, "vendor", "matrix", "fp16", np.array([0.1, -0.1])),
        Transfer(key, "vendor", "matrix", "fp16", np.array([0.3])),
        Transfer(key, "vendor", "mixed, to lanes", "fp16", np.array([-0.5])),
    ]
    scores = {one.units: one for one in scores_of(found)}
    assert scores.keys() == {"matrix", "mixed, to lanes"}
    matrix, mixed = scores["matrix"], scores["mixed, to lanes"]
    assert (matrix.kind, matrix.pairs, matrix.rows) == ("gemm", 2, 3)
    assert (matrix.mean, matrix.bias) == pytest.approx((0.2, 0.15))
    assert (mixed.mean, mixed.bias) == (0.5, 0.5)


def test_own_points_find_the_efficiency(known: list[Fitted]) -> None:
    compared = list(few_own_points(known, scores_of(transfers(known))))
    assert {one.key.other for one in compared} == {"p4", "p100-pcie-16gb"}
    for one in compared:
        assert one.transfer > 0.15
        assert one.own < 1e-6
        assert one.all_own < 1e-6
        assert one.ratio < 0.01


def test_no_row_is_predicted_from_its_own_group(known: list[Fitted]) -> None:
    for one in known:
        assert len(one.entries) == FOLDS
        for at, entry in enumerate(one.entries):
            assert entry.samples == int(np.sum(one.fold != at))
    groups = [{str(name): int(at) for name, at in zip(one.rows.text["group"], one.fold, strict=True)} for one in known]
    assert groups[0] == groups[1]


def test_differences_are_told_and_rounding_is_not() -> None:
    score = TransferScore("lanes", "gemm", "fp32", 2, 100, 0.2, 0.1, 0.4, "chip", 0.1)
    before = Transfers((score,), 20, (OwnPoints("lanes", "gemm", "fp32", 2, 0.2, 0.2, 0.1, 0.1),))
    assert differences(before, before) == []
    assert differences(before, replace(before, scores=(replace(score, mean=0.2019),))) == []
    assert differences(before, replace(before, scores=(replace(score, mean=0.21),))) == [
        "chip lanes gemm fp32: 0.2000 before, 0.2100 now"
    ]
    assert differences(before, replace(before, own_points=())) == ["own points lanes gemm fp32: only before"]


def test_the_page_has_a_row_for_every_pair(known: list[Fitted]) -> None:
    errors = list(transfers(known))
    scores = scores_of(errors)
    text = page(Found(errors, list(few_own_points(known, scores)), (), Transfers(scores, 20, ())))
    assert "| p4 | p100-pcie-16gb | architecture | any | pointwise | fp32 | 60 | 20.0 | 20.0 |" in text
    assert "better than the best transfer in 2 of 2 cases:" in text
    assert "| pointwise | architecture | 2 | 22." in text
    assert " | 0.0 | 2 |" in text


def test_bundled_scores_say_what_prediction_relies_on() -> None:
    """The nearer the GPUs the less products and convolutions are missed; bundled GPUs have chips and generations."""
    found = catalog.transfer_scores()
    means = {(one.relation, one.kind, one.precision): one.mean for one in found.scores if one.units != "matrix"}
    assert {near for near, _, _ in means} == set(RELATIONS)
    for kind in ("gemm", "convolution"):
        assert means["chip", kind, "fp32"] < means["architecture", kind, "fp32"]
        assert means["chip", kind, "fp32"] < means["vendor", kind, "fp32"]
    halves = [one for one in found.scores if (one.relation, one.precision) == ("vendor", "fp16")]
    by_units = {(one.units, one.kind): one for one in halves}
    for kind in ("gemm", "convolution"):
        matrix, mixed = by_units["matrix", kind], by_units["mixed, to matrix", kind]
        assert matrix.bias < matrix.mean < mixed.bias
        assert by_units["mixed, to lanes", kind].mean < mixed.mean
    devices = [catalog.find_accelerator(name) for name in catalog.names("accelerators")]
    assert all(one.vendor and one.architecture and one.chip for one in devices)
    assert relation(catalog.find_accelerator("p40"), catalog.find_accelerator("titan-xp")) == "chip"
