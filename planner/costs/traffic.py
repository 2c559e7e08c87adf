"""Feature maps of kernels whose work is bytes."""

from __future__ import annotations

import numpy as np

from planner.costs.features import (
    BYTE,
    CALLS,
    ELEMENT,
    Column,
    FeatureMap,
    Settings,
    Work,
    column,
    counting,
    number,
    stacked,
    vector,
)
from planner.costs.roofline import physical_floor
from planner.costs.work import moved_bytes
from planner.domain.arrays import FloatArray

__all__ = ["ROW_BLOCKS", "ROW_PADDING", "ROW_REREADS", "ROW_STEPS", "TRAFFIC_TERMS"]

ROW_STEPS, ROW_REREADS, ROW_PADDING, ROW_BLOCKS = "steps", "reread", "padded", "blocks"
ROW_LENGTHS = (1024.0, 4096.0, 8192.0)
"""Elements of a row beyond which libraries take another kernel, or read a row again."""
WARP_ROW, WIDEST_BLOCK_ROW, BLOCK_STEP = 1024, 4096, 2048
"""PyTorch sums rows of up to 1024 elements by warps; longer ones by blocks of 2^j threads with 4 elements each, of at
most 512 threads, so that a row takes whole steps of such a block (aten/src/ATen/native/cuda/SoftMax.cu)."""


def _bytes(work: Work, _settings: Settings) -> FloatArray:
    return stacked([1.0, moved_bytes(work)])


def _read_write(work: Work, _settings: Settings) -> FloatArray:
    """Bytes written are those of the work's elements, or the rest of those moved where that is less (pooling)."""
    total_bytes, once = moved_bytes(work), column(work, "itemsize") * column(work, "elements")
    write_bytes = np.clip(total_bytes - once, 0, once)
    return stacked([1.0, total_bytes - write_bytes, write_bytes])


def _row_columns(settings: Settings) -> tuple[Column, ...]:
    steps, reread = (
        vector(settings, name, default).tolist() for name, default in ((ROW_STEPS, ROW_LENGTHS), (ROW_REREADS, ()))
    )
    names = (*(f"bytes_beyond_{length:g}" for length in steps), *(f"bytes_reread_{length:g}" for length in reread))
    padding = ("bytes_padded",) if number(settings, ROW_PADDING, 0) else ()
    blocks = (Column("row_blocks", ELEMENT),) if number(settings, ROW_BLOCKS, 0) else ()
    return (CALLS, *counting(BYTE, "bytes", *names, *padding), *blocks)


def _rows(work: Work, settings: Settings) -> FloatArray:
    total_bytes, rows = moved_bytes(work), column(work, "rows")
    length = np.where(rows > 0, column(work, "elements") / np.maximum(rows, 1), 0.0)
    features = [
        1.0,
        total_bytes,
        *(total_bytes * (length > limit) for limit in vector(settings, ROW_STEPS, ROW_LENGTHS)),
    ]
    row_length = np.maximum(length, 1.0)
    features += [
        total_bytes * np.maximum(0.0, 1 - near_length / row_length) for near_length in vector(settings, ROW_REREADS)
    ]
    if number(settings, ROW_PADDING, 0):
        steps = np.ceil(row_length / BLOCK_STEP) * BLOCK_STEP
        whole = np.where(row_length <= WIDEST_BLOCK_ROW, 2 ** np.ceil(np.log2(row_length)), steps)
        features.append(total_bytes * np.where(row_length > WARP_ROW, whole / row_length - 1, 0.0))
    if number(settings, ROW_BLOCKS, 0):  # sums within a block, whatever the length of its row
        features.append(rows * (length > WARP_ROW))
    return stacked(features)


TRAFFIC_TERMS = (
    FeatureMap(
        "traffic.bytes",
        lambda _settings: (CALLS, Column("bytes", BYTE)),
        _bytes,
        doc="launch + bytes / bandwidth, bytes = itemsize · traffic + fixed_bytes",
        floor=physical_floor,
    ),
    FeatureMap(
        "traffic.read_write",
        lambda _settings: (CALLS, *counting(BYTE, "read_bytes", "written_bytes")),
        _read_write,
        doc="launch + bytes read / bandwidth + bytes written / bandwidth, each its own",
        floor=physical_floor,
    ),
    FeatureMap(
        "traffic.rows",
        _row_columns,
        _rows,
        doc="launch + bytes / bandwidth, dearer for rows longer than some lengths, for the part of a row beyond what "
        "stays near the processor, for the elements that whole steps of a block pad a row by, and for each block",
        floor=physical_floor,
    ),
)
