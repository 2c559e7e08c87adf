from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import ParameterError
from planner.units import (
    format_bytes,
    format_duration,
    format_number,
    format_rate,
    format_seconds,
    parse_fraction,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("60s", "time", 60.0),
        ("3 us", "time", 3e-6),
        ("2min", "time", 120.0),
        ("12.5GB/s", "bandwidth", 12.5e9),
        ("16GiB", "bytes", 16 * 2**30),
        ("16GB", "bytes", 16e9),
        ("15TFLOP/s", "rate", 15e12),
        (".5e1ms", "time", 5e-3),
    ],
)
def test_parse_quantity_reads_units(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["1e999GB/s", "1e300GB/s", "1e-300GB/s", "5e-324GB/s", "999kB/s"])
def test_quantities_have_two_bounds(text: str) -> None:
    with pytest.raises(ParameterError, match=r"^bandwidth must be from 1e\+06 to 1e\+15 B/s, got '"):
        parse_quantity(text, "bandwidth", "bandwidth")


@pytest.mark.parametrize("text", ["12.5", "12.5GB", "12.5Gb/s", "-1GB/s", "0GB/s", "nanGB/s", "", "GB/s"])
def test_parse_quantity_refuses_and_names_the_argument(text: str) -> None:
    with pytest.raises(ParameterError, match=r"^bandwidth must be a positive bandwidth with a unit .*got '"):
        parse_quantity(text, "bandwidth", "bandwidth")


@pytest.mark.parametrize(("text", "value"), [("25%", 0.25), ("0.25", 0.25), ("0", 0.0), ("150%", 1.5)])
def test_parse_fraction(text: str, value: float) -> None:
    assert parse_fraction(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["-1%", "nan", "inf", "a quarter", "%", ""])
def test_parse_fraction_refuses(text: str) -> None:
    with pytest.raises(ParameterError, match="tolerance must be a fraction"):
        parse_fraction(text, "tolerance")


@given(st.floats(1e-9, 1e7))
def test_format_seconds_keeps_four_digits(value: float) -> None:
    text = format_seconds(value)
    number, unit = text.replace(",", "").split()
    factor = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * factor == pytest.approx(value, rel=6e-4)


def test_formats_for_people() -> None:
    assert format_bytes(16 * 2**30) == "16 GiB"
    assert format_bytes(100) == "100 B"
    assert format_rate(12.5e9, "B/s") == "12.5 GB/s"
    assert format_seconds(1779.4) == "1779 s"
    assert format_seconds(0) == "0 s"


DURATIONS = [
    (345600, 2, "4 d 0 h"),
    (356400, 2, "4 d 3 h"),
    (31536000.0 * 4, 2, "1,460 d 0 h"),
    (86400, 2, "1 d 0 h"),
    (86399, 2, "24 h"),
    (19440, 2, "5.4 h"),
    (7200, 2, "2.0 h"),
    (7199, 2, "120 min"),
    (1620, 2, "27 min"),
    (120, 2, "2.0 min"),
    (119.9, 2, "120 s"),
    (18, 2, "18 s"),
    (1.0, 3, "1.00 s"),
    (0.9996, 2, "1.0 s"),
    (0.9996, 4, "999.6 ms"),
    (0.04, 2, "40 ms"),
    (0.04, 4, "40.00 ms"),
    (9.9996e-4, 2, "1.0 ms"),
    (9.96e-4, 2, "1.0 ms"),
    (3e-6, 2, "3.0 us"),
    (4e-12, 2, "0.0040 ns"),
    (0, 2, "0 s"),
]


@pytest.mark.parametrize(("value", "digits", "text"), DURATIONS)
def test_durations_have_the_unit_that_people_use(value: float, digits: int, text: str) -> None:
    assert format_duration(value, digits) == text


@pytest.mark.parametrize(
    ("value", "like", "text"),
    [
        (84, 240, "1.4 min"),
        (161, 51, "160 s"),
        (72000, 200000, "0 d 20 h"),
        (0.9, 1.2, "0.90 s"),
        (11000, 600, "180 min"),
    ],
)
def test_a_duration_may_take_the_unit_of_another(value: float, like: float, text: str) -> None:
    assert format_duration(value, 2, like) == text


@given(st.floats(1e-9, 86399), st.integers(2, 5))
def test_durations_keep_their_digits(value: float, digits: int) -> None:
    number, unit = format_duration(value, digits).replace(",", "").split()
    factor = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * factor == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
    assert factor >= 1 or float(number) < 1000


@given(st.floats(86400, 1e9))
def test_days_are_told_to_the_hour(value: float) -> None:
    days, hours = (int(one) for one in format_duration(value).replace(",", "").removesuffix(" h").split(" d "))
    assert 0 <= hours < 24
    assert abs((days * 24 + hours) * 3600 - value) <= 1800


NUMBERS = [
    (0.0123, 2, "0.012"), (3.98, 2, "4.0"), (1634.2, 2, "1,600"), (12345, 3, "12,300"), (9.96, 2, "10"), (0, 2, "0"),
    (99.6, 3, "99.6"), (0.0999, 2, "0.10"), (-1.25, 3, "-1.25"), (float("inf"), 2, "inf"), (1e6, 4, "1,000,000"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "digits", "text"), NUMBERS)
def test_numbers_have_significant_digits(value: float, digits: int, text: str) -> None:
    assert format_number(value, digits) == text


@given(st.floats(1e-9, 1e12), st.integers(1, 6))
def test_numbers_are_rounded_to_their_digits(value: float, digits: int) -> None:
    text = format_number(value, digits)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
