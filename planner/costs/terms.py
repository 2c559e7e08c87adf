"""The registry of cost terms, and what prediction does with an entry of a calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from planner.costs.collectives import COLLECTIVE_TERMS
from planner.costs.cpu import CPU_TERMS
from planner.costs.features import FASTER, FeatureMap, Work, column, number
from planner.costs.kernels import KERNEL_TERMS
from planner.costs.measured_calls import MEASURED_CALLS
from planner.costs.transfers import TRANSFER_TERMS
from planner.costs.work import slowdown
from planner.domain.arrays import BoolArray, FloatArray, frozen_map, once_of
from planner.domain.calibration import Entry
from planner.errors import ParameterError, named

TERMS: Mapping[str, FeatureMap] = frozen_map(
    {term.name: term for term in (*KERNEL_TERMS, *CPU_TERMS, MEASURED_CALLS, *COLLECTIVE_TERMS, *TRANSFER_TERMS)}
)

RANGE_MARGIN = 0.05
"""A feature may lie outside the range of the fit by this fraction of it before a prediction counts as extrapolated."""


def term_named(name: str) -> FeatureMap:
    """Return a feature map, or raise UnknownNameError."""
    return named("cost term", name, TERMS)


def features_of(entry: Entry, work: Work) -> FloatArray:
    """Return Φ(work; settings) of an entry's term, shape (..., p)."""
    return term_named(entry.term).features(work, entry.settings)


def evaluate(entry: Entry, work: Work, features: FloatArray | None = None) -> FloatArray:
    """Return times [s] = max(link(Φ·θ), floor)·slowdown/faster, shape (...), the broadcast shape of the work columns.

    The slowdown is that of products that are not aligned (:mod:`planner.costs.work`), which stay in 16 bits where
    others run ``faster`` in 8 (:func:`planner.costs.specified.in_8_bits`).

    ``features``: Φ of these calls, where it is known.

    ParameterError: the entry's coefficients are not those of its term, or a work column is missing.
    """
    term, coefficients = term_named(entry.term), _coefficients(entry)
    weighted = term.weighted(work, entry.settings, coefficients) if features is None else features @ coefficients
    times: FloatArray = np.exp(weighted) if term.link == "log" else weighted
    times = np.maximum(times, term.floor(work, entry.settings)) if term.floor else times
    times = times * (slower := slowdown(work, entry.settings))
    return np.where(slower > 1, times, times / number(entry.settings, FASTER, 1)) if FASTER in entry.settings else times


def check_coefficients(entry: Entry) -> None:
    """Raise UsageError where an entry has other coefficients than its term's columns, or the term is unknown."""
    _coefficients(entry)


@once_of
def _names(entry: Entry) -> tuple[str, ...]:
    return term_named(entry.term).names(entry.settings)


@once_of
def _coefficients(entry: Entry) -> FloatArray:
    """Return the coefficients in the order of the features."""
    names = _names(entry)
    if set(names) != set(entry.coefficients):
        raise ParameterError(f"coefficients of {entry.term}", ", ".join(names), ", ".join(entry.coefficients))
    return np.array([entry.coefficients[name] for name in names])


def extrapolates(entry: Entry, work: Work, features: FloatArray | None = None) -> BoolArray:
    """Tell where a feature lies outside what the fit has seen, shape (...); False for an entry without ranges.

    A range that names no feature is of the work column of that name. ``features`` as of :func:`evaluate`.
    """
    features = features_of(entry, work) if features is None else features
    outside = np.zeros(features.shape[:-1], dtype=np.bool_)
    for values, low, high in _seen(entry, work, features):
        margin = RANGE_MARGIN * max(abs(low), abs(high)) + 1e-9
        outside |= (values < low - margin) | (values > high + margin)
    return outside


def doublings_outside(entry: Entry, work: Work, features: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
    """Return by how many doublings a call lies above, and by how many below, what the fit has seen, shape (...) each.

    Of several features the farthest counts; those within RANGE_MARGIN of either end lie inside. A feature that is 0,
    or of which the fit has seen only 0, lies nowhere. ``features`` as of :func:`evaluate`.
    """
    features = features_of(entry, work) if features is None else features
    above, below = np.zeros((2, *features.shape[:-1]))
    for values, low, high in _seen(entry, work, features):
        place = np.log2(values, out=np.full(values.shape, np.nan), where=values > 0)
        if high > 0:
            above = np.fmax(above, place - np.log2(high * (1 + RANGE_MARGIN)))
        if low > 0:
            below = np.fmax(below, np.log2(low * (1 - RANGE_MARGIN)) - place)
    return above, below


def _seen(entry: Entry, work: Work, features: FloatArray) -> Iterator[tuple[FloatArray, float, float]]:
    """Yield the values of what has a range, broadcasting to (...), with the least and the most of it."""
    names = _names(entry)
    for name, ends in entry.ranges.items():
        if name in names:
            yield features[..., names.index(name)], *ends
        elif name in work:
            yield column(work, name), *ends
