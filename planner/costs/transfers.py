"""Feature maps of copies, of reading samples, and of the host side of asynchronous training.

The asynchronous terms follow Oyama et al. (SPRINT slides, 2016): loading and update times are linear in samples and in
parameters, and the update thread sums as many gradient buffers as hold something.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.costs.features import (
    BYTE,
    CALL,
    CALLS,
    ELEMENT,
    HOST,
    SECOND,
    Column,
    FeatureMap,
    Settings,
    Work,
    column,
    number,
    stacked,
)
from planner.domain.arrays import FloatArray

READING_TERMS = ("storage.bytes", "storage.reads")
"""Terms of reading samples as stored; the other of storage, ``storage.samples``, is of a loader with all it does."""


def miss_fraction(read_bytes: FloatArray | float, cache_bytes: float) -> FloatArray:
    """Return the share of ``read_bytes`` per epoch that a node reads again from storage once its cache is warm.

    max(0, 1 - cache/read): a cache of random access keeps a random part. The first epoch misses everything.
    """
    size = np.asarray(read_bytes, dtype=np.float64)
    return np.maximum(0.0, 1 - cache_bytes / np.maximum(size, 1.0))


def loading_s(reading_s: FloatArray, decoding_s: FloatArray, threads: FloatArray | float) -> FloatArray:
    """Return the time [s] in which worker threads read and decode samples, one sample after another each.

    max(R, (R + D) / threads): the asymptotic bound of a closed queueing network with one server for reading (Denning
    and Buzen 1978). One thread does one after the other; many threads leave only what storage takes.

    ``reading_s``: what storage takes for all of them, one at a time [s]; ``decoding_s``: what one thread takes to
    decode all of them [s]; ``threads``: float or ndarray of float, above 0.
    """
    return np.maximum(reading_s, (reading_s + decoding_s) / threads)


def _linear_in(scope: str, per: Column, calls: Column = CALLS) -> FeatureMap:
    def features(work: Work, _settings: Settings) -> FloatArray:
        return stacked([1.0, column(work, per.name)])

    doc = f"constant + coefficient · {per.name}"
    return FeatureMap(f"{scope}.{per.name}", lambda _settings: (calls, per), features, doc=doc)


def _storage_bytes(work: Work, settings: Settings) -> FloatArray:
    readers = column(work, "nodes") if number(settings, "shared", 0) else 1.0
    return stacked([column(work, "bytes") * readers])


def _sums(*names: str) -> Callable[[Work, Settings], FloatArray]:
    return lambda work, _settings: stacked([column(work, name) for name in names])


TRANSFER_TERMS = (
    _linear_in("host", Column("parameters", ELEMENT)),
    _linear_in("storage", Column("samples", CALL)),
    _linear_in("host", Column("bytes", BYTE, HOST), Column("calls", CALL, HOST)),
    FeatureMap(
        "host.buffers",
        lambda _settings: (CALLS, Column("buffer_parameters", ELEMENT)),
        lambda work, _settings: stacked([1.0, column(work, "parameters") * column(work, "buffers")]),
        doc="constant + coefficient · parameters · gradient buffers summed",
    ),
    FeatureMap(
        "collective.overlap",
        lambda _settings: (Column("beside_s", SECOND),),
        _sums("beside_s"),
        doc="kernels beside messages: coefficient · what they take alone",
    ),
    FeatureMap(
        "storage.bytes",
        lambda _settings: (Column("bytes", BYTE),),
        _storage_bytes,
        doc="bytes of one node's read / bandwidth; times the nodes that read where the setting shared is 1",
    ),
    FeatureMap(
        "storage.reads",
        lambda _settings: (Column("samples", CALL), Column("bytes", BYTE)),
        _sums("images", "bytes"),
        doc="latency of a read · samples + bytes / bandwidth, one read at a time on a node of its own storage",
    ),
    FeatureMap(
        "storage.decode",
        lambda _settings: (Column("samples", CALL), Column("bytes", BYTE), Column("elements", ELEMENT)),
        _sums("images", "bytes", "elements"),
        doc="one thread: coefficient · samples + coefficient · encoded bytes + coefficient · elements made",
    ),
)
