"""Kernels of a GPU in one precision predicted from another: scores on products whose times are known by formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.domain.samples import Samples
from validation.transfer_precisions import Derived, derived_errors, further_rows, precision_scores
from validation.transfer_scores import Fitted, fitted

GPU = "a100-sxm4-80gb"


def rows(precision: str, slowness: float = 1.0) -> Samples:
    """Return products that take ``slowness`` times what the peak rate asks for, and 5 us."""
    peak = catalog.find_accelerator(GPU).peak_flop_per_s[precision]
    made: list[Mapping[str, Any]] = [
        {
            "kind": "gemm", "precision": precision, "device": GPU, "m": m, "n": n, "k": 4096.0, "batch": 1.0,
            "group": f"linear {m}", "time_s": 5e-6 + slowness * 2 * m * n * 4096 / peak,
        }
        for m in (1024.0, 2048.0, 4096.0, 8192.0)
        for n in (512.0, 1024.0, 2048.0)
    ]  # fmt: skip
    return Samples.from_rows(made, {})


def fits(*samples: Samples) -> list[Fitted]:
    whole, *others = samples
    for one in others:
        whole = whole.joined(one)
    return fitted({GPU: whole})


def test_the_ratio_of_the_peaks_is_found_and_what_departs_from_it_is_missed() -> None:
    """fp32 asks for 20 % more than its peak: the lanes say nothing of tensor cores, which is told apart."""
    (to_half, to_wide) = sorted(
        derived_errors(fits(rows("bf16"), rows("fp32", 1.2))), key=lambda one: one.key.precision
    )
    assert (to_half.key.precision, to_half.key.other, to_half.units) == ("bf16", "fp32", "other")
    # The launch is in common, so that less than 20 % of the time departs.
    assert 0.1 < np.median(to_half.errors) < 0.2
    assert -0.2 < np.median(to_wide.errors) < -0.1
    assert precision_scores([to_half, to_wide]) == ()


def test_bf16_and_fp16_are_not_compared() -> None:
    assert list(derived_errors(fits(rows("bf16"), rows("fp16")))) == []


@pytest.fixture(scope="module")
def published() -> list[Derived]:
    return list(derived_errors(further_rows()))


def test_products_of_tensor_cores_tell_those_in_other_precisions_better_than_the_sheet(
    published: list[Derived],
) -> None:
    found = {one.precision: one for one in precision_scores(published)}
    assert set(found) == {"bf16", "tf32", "fp8"}
    for one in found.values():
        assert (one.units, one.kind) == ("matrix", "gemm")
        assert one.mean < one.sheet


def test_each_is_predicted_from_the_nearest_rate_alone(published: list[Derived]) -> None:
    assert {(one.key.other, one.key.precision) for one in published} <= {
        ("bf16", "tf32"), ("bf16", "fp8"), ("tf32", "bf16"), ("fp8", "bf16"),
    }  # fmt: skip


def test_bundled_scores_are_those_of_the_published_products(published: list[Derived]) -> None:
    """Those of lanes are from the tables; see python -m validation.transfer --check."""
    bundled = {one.precision: one.mean for one in catalog.transfer_scores().precisions if one.units == "matrix"}
    assert {one.precision: one.mean for one in precision_scores(published)} == pytest.approx(bundled, rel=0.02)
