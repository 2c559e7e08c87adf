import numpy as np
import pytest

from planner.costs.roofline import attainable_flop_per_s, ridge_flop_per_byte
from planner.errors import ParameterError


@pytest.mark.parametrize(
    ("peak", "bandwidth", "ridge"),
    [(8.8e12, 320e9, 27.5), (75e9, 10e9, 7.5), (4600e9, 156e9, 29.5)],
    ids=["gtx1080", "xeon-e5345", "gtx980"],
)
def test_ridge_of_published_rooflines(peak: float, bandwidth: float, ridge: float) -> None:
    assert round(ridge_flop_per_byte(peak, bandwidth), 1) == ridge


def test_attainable_rate_bends_at_the_ridge() -> None:
    ridge = ridge_flop_per_byte(8.8e12, 320e9)
    rates = attainable_flop_per_s(np.array([0.25, ridge, 2 * ridge]), 8.8e12, 320e9)
    np.testing.assert_allclose(rates, [80e9, 8.8e12, 8.8e12])


def test_rates_must_be_positive() -> None:
    with pytest.raises(ParameterError, match=r"^memory bandwidth must be"):
        ridge_flop_per_byte(1.0, 0.0)
