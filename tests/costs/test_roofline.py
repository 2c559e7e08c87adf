import numpy as np
import pytest

from planner.costs.features import Work
from planner.costs.terms import evaluate
from planner.costs.work import flop, moved_bytes
from planner.domain.calibration import Entry

PUBLISHED = pytest.mark.parametrize(
    ("peak", "bandwidth", "ridge"),
    [(8.8e12, 320e9, 27.5), (75e9, 10e9, 7.5), (4600e9, 156e9, 29.5)],
    ids=["gtx1080", "xeon-e5345", "gtx980"],
)


@PUBLISHED
def test_times_bend_at_the_ridge(peak: float, bandwidth: float, ridge: float) -> None:
    """A product of side s has intensity 2s^3 / (3·4s^2) = s/6 FLOP/byte in fp32."""
    roofline = Entry(
        "kernels", "gemm", "", "fp32", "", "roofline", {"peak_flop_per_s": peak, "peak_bytes_per_s": bandwidth},
        {"calls": 0.0, "roofline_s": 1.0},
    )  # fmt: skip
    side = np.array([0.5, 0.98, 1.02, 2]) * 6 * ridge
    work: Work = {"m": side, "n": side, "k": side, "batch": 1, "itemsize": 4}
    times, by_flop, by_bytes = evaluate(roofline, work), flop(work) / peak, moved_bytes(work) / bandwidth
    np.testing.assert_allclose(times, [*by_bytes[:2], *by_flop[2:]])
