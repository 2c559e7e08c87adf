"""How far the V100's fp16 is from published training.

Published: ResNet-50 in FP16 trains 1.60 to 2.07 times as fast as in FP32 on V100 (Dell EMC reference guide on deep
learning). The ratio is a check of the whole, never a fit: while it is missed, the calibration must say so, with today's
figures.
"""

from __future__ import annotations

import numpy as np

from planner import catalog
from planner.domain.configuration import Configurations, Settings
from planner.domain.framework import GENERIC
from planner.domain.request import Problem
from planner.steps.predict import Evaluator

PUBLISHED = (1.60, 2.07)


def ratios() -> list[float]:
    """Return the speed of ResNet-50 in fp16 over that in fp32 on one V100, at sub-batches 16 to 128."""
    cluster = catalog.find_cluster("dgx1-v100")
    calibrations = (catalog.find_calibration("v100-sxm2-16gb"),)
    synthetic = Settings(input="synthetic", framework=GENERIC)
    problem = Problem(catalog.find_network("resnet50"), None, cluster, calibrations, settings=synthetic)
    sub_batch, precision = np.tile([16, 32, 64, 128], 2), np.repeat([0, 1], 4)
    one, none = np.ones(8, dtype=np.int64), np.zeros(8, dtype=np.int64)
    plans = Configurations(one, one, sub_batch, one, precision, none, precisions=("fp32", "fp16"))
    fp32, fp16 = Evaluator(problem).evaluate(plans).samples_per_s.reshape(2, 4)
    found: list[float] = (fp16 / fp32).tolist()
    return found


def test_fp16_beyond_the_published_ratio_is_said_with_its_figures() -> None:
    found = ratios()
    warnings = " ".join(catalog.find_calibration("v100-sxm2-16gb").all_warnings)
    if min(found) < PUBLISHED[0] or max(found) > PUBLISHED[1]:
        assert f"{min(found):.1f} to {max(found):.1f} times" in warnings
        assert "1.60 to 2.07" in warnings
    else:
        assert "1.60 to 2.07" not in warnings
