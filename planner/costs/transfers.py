"""Feature maps of copies, of reading samples, and of the host side of asynchronous training.

The asynchronous terms follow Oyama et al. (SPRINT slides, 2016): loading and update times are linear in samples and in
parameters, and the update thread sums as many gradient buffers as hold something.
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import FeatureMap, Settings, Work, column, number, stacked
from planner.domain.arrays import FloatArray

__all__ = ["TRANSFER_TERMS", "miss_fraction"]


def miss_fraction(read_bytes: FloatArray | float, cache_bytes: float) -> FloatArray:
    """Return the share of ``read_bytes`` per epoch that a node reads again from storage once its cache is warm.

    max(0, 1 - cache/read): a cache of random access keeps a random part. The first epoch misses everything.
    """
    size = np.asarray(read_bytes, dtype=np.float64)
    return np.maximum(0.0, 1 - cache_bytes / np.maximum(size, 1.0))


def _linear_in(name: str) -> FeatureMap:
    def features(work: Work, _settings: Settings) -> FloatArray:
        return stacked([1.0, column(work, name)])

    prefix = {"parameters": "host", "samples": "storage", "bytes": "host"}[name]
    return FeatureMap(
        f"{prefix}.{name}", lambda _settings: ("calls", name), features, doc=f"constant + coefficient · {name}"
    )


def _buffers(work: Work, _settings: Settings) -> FloatArray:
    return stacked([1.0, column(work, "parameters") * column(work, "buffers")])


def _storage_bytes(work: Work, settings: Settings) -> FloatArray:
    readers = column(work, "nodes") if number(settings, "shared", 0) else 1.0
    return stacked([column(work, "bytes") * readers])


TRANSFER_TERMS = (
    _linear_in("parameters"),
    _linear_in("samples"),
    _linear_in("bytes"),
    FeatureMap(
        "host.buffers",
        lambda _settings: ("calls", "buffer_parameters"),
        _buffers,
        doc="constant + coefficient · parameters · gradient buffers summed",
    ),
    FeatureMap(
        "storage.bytes",
        lambda _settings: ("bytes",),
        _storage_bytes,
        doc="bytes of one node's read / bandwidth; times the nodes that read where the setting shared is 1",
    ),
)
