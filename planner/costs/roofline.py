"""The roofline: attainable rates and times from peak compute and memory rates (Williams, Waterman, Patterson 2009).

F: peak rate [FLOP/s]; B: memory bandwidth [byte/s]; I: arithmetic intensity [FLOP/byte].
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import CALLS, SECOND, Column, FeatureMap, Settings, Work, column, number, stacked, text
from planner.costs.work import flop, has_fast_algorithm, is_attention, kernel_width, least_bytes, moved_bytes
from planner.domain.arrays import FloatArray

__all__ = ["ROOFLINE", "physical_floor"]


def physical_floor(work: Work, settings: Settings) -> FloatArray:
    """Return max(FLOP/F, bytes/B) [s] with the peaks in the settings; 0 for what they do not state.

    Bytes are the least that must move. FLOP do not bound a convolution that Winograd or FFT algorithms can do in fewer
    than are counted.
    """
    compute, memory = number(settings, "peak_flop_per_s", np.inf), number(settings, "peak_bytes_per_s", np.inf)
    way = text(settings, "direction", "")
    return np.maximum(flop(work, way) * ~has_fast_algorithm(work) / compute, least_bytes(work, way) / memory)


def _features(work: Work, settings: Settings) -> FloatArray:
    rate = number(settings, "peak_flop_per_s", np.inf) * number(settings, "flop_efficiency", 1)
    bandwidth = number(settings, "peak_bytes_per_s", np.inf) * number(settings, "bytes_efficiency", 1)
    way = text(settings, "direction", "")
    count = flop(work, way)
    if is_attention(work):
        count = count * (kernel_width(column(work, "width")) / column(work, "width"))
    return stacked([1.0, np.maximum(count / rate, moved_bytes(work, way) / bandwidth)])


ROOFLINE = FeatureMap(
    name="roofline",
    columns=lambda _settings: (CALLS, Column("roofline_s", SECOND)),
    features=_features,
    doc="launch + max(FLOP / (efficiency · peak), bytes / (efficiency · bandwidth)), heads of attention at the "
    "next size that kernels are made for; no tile or wave effects",
    floor=physical_floor,
    stated={"roofline_s": 1.0},
)
