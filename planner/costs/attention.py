"""The feature map of fused attention, which works block by block and keeps no scores in memory.

A block of queries goes over the blocks of keys that it sees, each a pair of products and a softmax in the nearest
memory (Dao et al. 2022, "FlashAttention", arXiv:2205.14135; Dao 2023, "FlashAttention-2", arXiv:2307.08691). So FLOP
are those of whole blocks, on the diagonal of causal attention too; every pair costs an exponential, which matrix units
do not compute; and blocks of queries, one a processor, come in waves as tiles of products do.
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import (
    BYTE,
    CALLS,
    CUDA_CORES,
    FLOP,
    Column,
    FeatureMap,
    Settings,
    Work,
    column,
    counting,
    number,
    stacked,
    text,
)
from planner.costs.roofline import physical_floor
from planner.costs.work import attended_pairs, flop, kernel_width, moved_bytes
from planner.domain.arrays import FloatArray
from planner.domain.kernels import ATTENTION_COLUMNS

__all__ = ["ATTENTION", "BETWEEN_SIZES", "WITHOUT_LAUNCH"]

BLOCK = 128.0
"""Queries and keys of a block: 64 or 128 in FlashAttention-2."""


PAIRS = Column("pairs", FLOP, CUDA_CORES)
"""An exponential each, which no matrix unit computes."""
WITHOUT_LAUNCH = "without_launch"
"""Setting: 1 where rows move as many bytes each, so that a launch cannot be told from these: they have both."""
BETWEEN_SIZES = "between_sizes"
"""Setting: 1 where the rows have heads of a size that no kernel is made for, which cost time of their own."""


def _columns(settings: Settings) -> tuple[Column, ...]:
    launch = () if number(settings, WITHOUT_LAUNCH, 0) else (CALLS,)
    waves = counting(FLOP, "wave_flop") if number(settings, "multiprocessors", 0) else ()
    odd = counting(FLOP, "between_sizes_flop") if number(settings, BETWEEN_SIZES, 0) else ()
    return (*launch, *counting(FLOP, "flop", "block_flop"), PAIRS, Column("bytes", BYTE), *waves, *odd)


def _features(work: Work, settings: Settings) -> FloatArray:
    way, processors = text(settings, "direction", ""), number(settings, "multiprocessors", 0)
    batch, queries, keys, width, causal = (column(work, name) for name in ATTENTION_COLUMNS)
    pairs = attended_pairs(queries, keys, causal)
    query_blocks, key_blocks = np.ceil(queries / BLOCK), np.ceil(keys / BLOCK)
    kernel_size = kernel_width(width)
    block_pairs = BLOCK**2 * attended_pairs(query_blocks, key_blocks, causal)
    block_flop = flop(work, way) / pairs * block_pairs * (kernel_size / width)
    features: list[FloatArray | float] = [] if number(settings, WITHOUT_LAUNCH, 0) else [1.0]
    features += [flop(work, way), block_flop, batch * pairs, moved_bytes(work, way)]
    if processors:
        blocks = batch * query_blocks
        features.append(block_flop * (np.ceil(blocks / processors) * processors / blocks))
    if number(settings, BETWEEN_SIZES, 0):
        features.append(block_flop * (kernel_size != width))
    return stacked(features)


ATTENTION = FeatureMap(
    "attention.blocks",
    _columns,
    _features,
    doc="launch, FLOP, FLOP of whole blocks, pairs of a query and a key (an exponential each), bytes of q, k, v, o and "
    "their gradients; FLOP of whole waves of blocks where the processor count is known",
    floor=physical_floor,
)
