"""Quantities with units: read what people write, print what people read.

Inside the program everything is SI (s, byte, FLOP/s, byte/s); GB is 10^9 bytes and GiB 2^30 bytes. Bits are refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from planner.errors import NOTHING, ParameterError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BYTES = {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
_LATENCIES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
UNITS: dict[str, dict[str, float]] = {
    "time": {**_LATENCIES, "d": 86_400.0},
    "latency": _LATENCIES,
    "bytes": _BYTES,
    "bandwidth": {f"{unit}/s": factor for unit, factor in _BYTES.items()},
    "rate": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
}
BOUNDS = {
    "": (1e-100, 1e100),  # coefficients, variances, answers: the product of any three is finite
    "time": (1e-9, 1e10),  # light along 30 cm, to three centuries
    "latency": (1e-9, 10.0),  # to four times as long as light takes to the moon and back
    "bytes": (2.0**10, 2.0**57),  # a bucket or a device, to the storage of a hundred of the largest computers
    "bandwidth": (1e6, 1e15),  # slow networks, to ten thousand times what the fastest memory delivers
    "rate": (1e6, 1e19),  # a microcontroller, to ten times the largest computer
    "sample": (1e-3, 1e15),  # bytes of one: a hundredth of a bit, compressed, to a petabyte
    "price": (1e-6, 1e6),  # USD an hour of a device
    "count": (1e-9, 1e15),  # of what is limited or weighted: GPU-hours, USD, nodes, updates
    "share": (0.0, 1 + 1e-9),  # a sum of shares may be rounded up; what underflows is nothing
}
"""Dimension -> least and largest number in SI that is believed, other than 0. What lies beyond is a slip."""
_EXAMPLES = {"time": "60s", "latency": "2us", "bytes": "16GiB", "bandwidth": "12.5GB/s", "rate": "15TFLOP/s"}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*")


@dataclass(frozen=True, slots=True)
class KeyUnit:
    """SI value = number x times / over, two exact factors; a number is 0, or from ``least`` to ``most``."""

    dimension: str
    least: float
    most: float
    times: float
    over: float


def _unit(dimension: str, times: float = 1.0, over: float = 1.0) -> KeyUnit:
    least, most = (bound * over / times for bound in BOUNDS[dimension])
    return KeyUnit(dimension, least, most, times, over)


KEY_UNITS = {
    "GBps": _unit("bandwidth", 1e9),
    "GiB": _unit("bytes", 2.0**30),
    "MiB": _unit("bytes", 2.0**20),
    "ms": _unit("latency", over=1e3),
    "us": _unit("latency", over=1e6),
    "TFLOPps": _unit("rate", 1e12),
    **{name: _unit(name) for name in ("", "sample", "price", "share")},
}
"""Suffix of a key, or kind of a number without one -> its unit."""


def parse_quantity(text: str, dimension: str, what: str = "the quantity") -> float:
    """Return the SI value, within BOUNDS, of a number with its unit.

    Parameters
    ----------
    text : such as ``12.5GB/s``; the unit is required
    dimension : time, latency, bytes, bandwidth or rate: results are s, s, byte, byte/s, FLOP/s
    what : the argument's name, for the error

    ParameterError: not a number, beyond the bounds of the dimension, or a missing or wrong unit.
    """
    units = UNITS[dimension]
    rule = f"a positive {dimension} with a unit ({', '.join(sorted(units, key=lambda u: (units[u], u)))})"
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise ParameterError(what, rule, text, f"write it like {_EXAMPLES[dimension]}")
    value = float(match[1]) * units[match[2]]
    least, most = BOUNDS[dimension]
    if value <= 0:
        raise ParameterError(what, rule, text, f"write it like {_EXAMPLES[dimension]}")
    if not least <= value <= most:
        base = next(unit for unit, factor in units.items() if factor == 1)
        raise ParameterError(what, f"from {least:.3g} to {most:.3g} {base}", text)
    return value


def parse_number(text: str, what: str, remedy: str = "") -> float:
    """Return a number within the BOUNDS of counts, else ParameterError."""
    least, most = BOUNDS["count"]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ParameterError(what, f"a number above 0, from {least:g} to {most:g}", text or NOTHING, remedy)
    return value


def parse_fraction(text: str, what: str = "the fraction") -> float:
    """Return ``25%`` or ``0.25`` as 0.25; finite and not negative, else ParameterError."""
    rule = "a fraction such as 25% or 0.25, at least 0"
    body, factor = (text.strip()[:-1], 0.01) if text.strip().endswith("%") else (text, 1.0)
    try:
        value = float(body) * factor
    except ValueError:
        raise ParameterError(what, rule, text) from None
    if not (math.isfinite(value) and value >= 0):
        raise ParameterError(what, rule, text)
    return value


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    factor, suffix = next(((f, s) for f, s in steps if abs(value) >= f), steps[-1])
    return f"{value / factor:,.4g} {suffix}".strip()


def format_seconds(value: float) -> str:
    """Return a time for people, four significant digits: ``1.779 ks`` never, ``1779 s`` always."""
    if value == 0:
        return "0 s"
    if abs(value) >= 1:
        return f"{value:.4g} s" if abs(value) < 9999.5 else f"{value:,.0f} s"
    return _scaled(value, ((1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def format_duration(value: float, digits: int = 2, like: float | None = None) -> str:
    """Return a time for people in the unit they would use: ``4 d 0 h``, ``5.4 h``, ``27 min``, ``18 s``, ``40 ms``.

    Minutes from two of them on. ``digits``: significant digits. ``like``: a time that chooses the unit instead [s].
    """
    size = abs(value if like is None else like)
    if not value:
        return "0 s"
    if size >= 86400:
        hours = round(value / 3600)
        return f"{hours // 24:,} d {hours % 24} h"
    scale, unit = duration_unit(size, digits)
    return f"{format_number(value / scale, digits)} {unit}"


def duration_unit(size: float, digits: int) -> tuple[float, str]:
    """Return the seconds and the name of the unit in which a time is written: 999.9 ms, to three digits, is 1.00 s."""
    if size >= 120:
        return (60.0, "min") if size < 7200 else (3600.0, "h")
    return next((one for one in _SECONDS if float(f"{size / one[0]:.{digits - 1}e}") >= 1), _SECONDS[-1])


_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def typed_number(value: float) -> str:
    """Return a number as it may be typed, to six digits: ``74810``, ``1e9``."""
    return f"{value:g}".replace("e+0", "e").replace("e+", "e")


def format_number(value: float, digits: int = 2) -> str:
    """Return a number to significant digits, without an exponent: ``1.6``, ``1,600``.

    >>> format_number(0.0123), format_number(3.98), format_number(1634.2), format_number(12345, 4)
    ('0.012', '4.0', '1,600', '12,340')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    number = float(f"{value:.{digits - 1}e}")
    places = max(digits - 1 - math.floor(math.log10(abs(number))), 0)
    return f"{number:,.{places}f}"


def format_samples(value: float) -> str:
    """Return a mini-batch for people, without an exponent; of one below a million six significant digits.

    >>> format_samples(1024.0), format_samples(150.5441), format_samples(1048573.0)
    ('1024', '150.544', '1048573')
    """
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def format_bytes(value: float) -> str:
    """Return a size for people in binary units."""
    return _scaled(value, ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")))


def format_rate(value: float, unit: str) -> str:
    """Return a rate for people in decimal units, such as ``12.5 GB/s`` for unit ``B/s``."""
    return _scaled(value, tuple((f, p + unit) for f, p in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))))


def format_count(value: float) -> str:
    """Return a count for people, such as ``25.56 M``."""
    return _scaled(value, ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")))
