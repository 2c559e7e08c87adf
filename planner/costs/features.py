"""What a feature map is, and the small tools that maps share.

Time of a term = link(Φ(work; settings) · θ). A map owns Φ and its column names; θ lives in a calibration. Fitting
stacks the same Φ over measurements that prediction multiplies by θ. What a column counts, and on which link or unit,
stands in its record: scaling to other devices and links, ranges and classes read it there, never in its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, frozen_map, once_of
from planner.domain.calibration import SettingValue
from planner.errors import ParameterError

Work = Mapping[str, FloatArray | IntArray | float]
"""Work columns by name, each broadcasting with the others; kernels also carry ``itemsize`` [byte/element]."""
Settings = Mapping[str, SettingValue]

CALL, FLOP, BYTE, ELEMENT, MESSAGE, SECOND = "call", "flop", "byte", "element", "message", "second"
WORK = "work"
"""FLOP of products, convolutions and attention; else elements."""
NUMBER = "number"
"""Counts nothing that a rate of a device applies to."""
POINT = "point"
"""Weight of a stored point."""
INTRA_NODE, INTER_NODE, HOST = "intra_node", "inter_node", "host"
"""Links of :class:`planner.domain.cluster.Cluster`."""
CUDA_CORES, MULTIPROCESSOR = "cuda_cores", "multiprocessor"
"""Units that FLOP are computed on: those of fp32 whatever the precision; one multiprocessor alone."""

FASTER = "faster"
"""Setting of an entry in 16 bits that serves 8: times as fast that it is in these."""


class Column(NamedTuple):
    """A column of a feature map: a coefficient is seconds per unit of ``quantity``.

    Attributes
    ----------
    name : key of its coefficient in calibration files
    quantity : CALL, FLOP, BYTE, ELEMENT, MESSAGE, SECOND, WORK, NUMBER or POINT
    link : the link that carries it, or the unit that computes it; empty: memory, or all units of the precision
    call_class : of FLOP of one class of calls: a call has FLOP in one of such columns. Empty: of all calls
    """

    name: str
    quantity: str
    link: str = ""
    call_class: str = ""


CALLS = Column("calls", CALL)


def counting(quantity: str, *names: str) -> tuple[Column, ...]:
    """Return columns of one quantity."""
    return tuple(Column(name, quantity) for name in names)


def classes(*names: str) -> tuple[Column, ...]:
    """Return columns of the FLOP of calls by class."""
    return tuple(Column(f"flop_{name}", FLOP, call_class=name) for name in names)


@dataclass(frozen=True, slots=True)
class FeatureMap:
    """A cost term without its coefficients.

    Attributes
    ----------
    columns : settings -> the p columns
    features : work, settings -> ndarray of shape (..., p)
    link : {"identity", "log"}; ``log``: Φ·θ is the logarithm of the time in seconds
    doc : the formula, one line
    floor : work, settings -> ndarray of shape (...) [s], or None
        A time below which no device goes; applied to every prediction of the term.
    stated : mapping of feature to coefficient; features whose coefficient follows from the formula and is never fitted
    sums : work, settings, coefficients of shape (p,) -> ndarray of shape (...), or None
        Φ·θ where that takes less than Φ.
    """

    name: str
    columns: Callable[[Settings], tuple[Column, ...]]
    features: Callable[[Work, Settings], FloatArray]
    link: str = "identity"
    doc: str = ""
    floor: Callable[[Work, Settings], FloatArray] | None = None
    stated: Mapping[str, float] = field(default_factory=dict)
    sums: Callable[[Work, Settings, FloatArray], FloatArray] | None = None

    def __post_init__(self) -> None:
        if self.link not in ("identity", "log"):
            raise ParameterError("link", "identity or log", self.link)
        object.__setattr__(self, "stated", frozen_map(self.stated))

    def names(self, settings: Settings) -> tuple[str, ...]:
        """Return the names of the p columns."""
        return tuple(one.name for one in self.columns(settings))

    def weighted(self, work: Work, settings: Settings, coefficients: FloatArray) -> FloatArray:
        """Return Φ·θ, shape (...)."""
        if self.sums:
            return self.sums(work, settings, coefficients)
        weighted: FloatArray = self.features(work, settings) @ coefficients
        return weighted


def column(work: Work, name: str) -> FloatArray:
    """Return a work column as floats, or raise ParameterError naming it."""
    if name not in work:
        raise ParameterError("work", f"given in its column {name}", ", ".join(work))
    return np.asarray(work[name], dtype=np.float64)


def stacked(features: Sequence[FloatArray | float]) -> FloatArray:
    """Return features, which broadcast with each other, as one ndarray of shape (..., p)."""
    shape = np.broadcast_shapes(*(np.shape(feature) for feature in features))
    result = np.empty((*shape, len(features)))
    for position, feature in enumerate(features):
        result[..., position] = feature
    return result


def number(settings: Settings, key: str, default: float) -> float:
    """Return a setting that is a number."""
    value = settings.get(key, default)
    if isinstance(value, str | tuple):
        raise ParameterError(f"setting {key}", "a number", value)
    return float(value)


def text(settings: Settings, key: str, default: str) -> str:
    """Return a setting that is a word."""
    value = settings.get(key, default)
    if not isinstance(value, str):
        raise ParameterError(f"setting {key}", "a word", value)
    return value


def vector(settings: Settings, key: str, default: tuple[float, ...] = (), of: int = 1) -> FloatArray:
    """Return a setting that is a list of numbers, with ``of`` above 1 of as many at a time, as an ndarray."""
    value = settings.get(key, default)
    if not isinstance(value, tuple):
        raise ParameterError(f"setting {key}", "a list of numbers", value)
    if of > 1 and (not value or len(value) % of):
        raise ParameterError(f"setting {key}", f"a list of numbers, {of} at a time", f"{len(value)} of them")
    return _long_vector(value) if len(value) >= _LONG else np.asarray(value, dtype=np.float64)


_LONG = 64
"""Numbers that take long to bring into an array."""


@once_of
def _long_vector(values: tuple[float, ...]) -> FloatArray:
    vector = np.asarray(values, dtype=np.float64)
    vector.flags.writeable = False
    return vector
