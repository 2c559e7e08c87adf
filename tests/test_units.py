from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import ParameterError
from planner.units import format_bytes, format_rate, format_seconds, parse_fraction, parse_quantity


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


@pytest.mark.parametrize("text", ["12.5", "12.5GB", "12.5Gb/s", "-1GB/s", "0GB/s", "nanGB/s", "1e999GB/s", "", "GB/s"])
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
