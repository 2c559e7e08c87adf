"""Feature maps of kernels by kind.

Every map takes the work of a call with ``itemsize`` (see :mod:`planner.domain.kernels`), broadcast to any shape (...),
and returns Φ of shape (..., p). Settings that a map reads have defaults; ``direction`` is the direction of the call.
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import (
    BYTE,
    CALLS,
    FLOP,
    MULTIPROCESSOR,
    WORK,
    Column,
    FeatureMap,
    Settings,
    Work,
    classes,
    column,
    counting,
    number,
    stacked,
    text,
    vector,
)
from planner.costs.gaussian_process import gaussian_process
from planner.costs.roofline import ATTENTION, GEMM_INTERPOLATION, ROOFLINE, TRAFFIC_TERMS, physical_floor
from planner.costs.work import (
    BATCHED_APART,
    apart,
    flop,
    operand_bytes,
    output_size,
    product,
    with_batched,
    work_amount,
)
from planner.domain.arrays import FloatArray

__all__ = ["BATCHED_APART", "KERNEL_TERMS", "OBLONG_APART"]

OBLONG_APART = "oblong_apart"
"""Setting of convolutions: not 0 where kernels that are oblong or strided, for which libraries have no fast algorithm,
have a class of FLOP of their own."""
WAVES_MODELLED = 4
"""A last, partly filled wave of tiles matters up to this many waves."""


def _tile_pairs(settings: Settings) -> list[tuple[int, int]]:
    flat = vector(settings, "tiles", (128.0, 64.0), of=2).astype(int).tolist()
    return list(zip(flat[::2], flat[1::2], strict=True))


def _gemm_columns(settings: Settings) -> tuple[Column, ...]:
    pairs = _tile_pairs(settings)
    waves = pairs if number(settings, "multiprocessors", 0) else []
    columns = (
        CALLS,
        Column("flop", FLOP),
        *counting(BYTE, "a_bytes", "b_bytes", "c_bytes"),
        Column("k", FLOP, MULTIPROCESSOR),  # steps of one tile's inner loop
        *counting(FLOP, *(f"padded_flop_{m}x{n}" for m, n in pairs[:1])),
        *counting(FLOP, *(f"wave_flop_{m}x{n}" for m, n in waves)),
    )
    return with_batched(columns) if number(settings, BATCHED_APART, 0) else columns


def _gemm_tiles(work: Work, settings: Settings) -> FloatArray:
    features = _tile_features(work, settings)
    return apart(features, work) if number(settings, BATCHED_APART, 0) else features


def _tile_features(work: Work, settings: Settings) -> FloatArray:
    products = product(work, text(settings, "direction", ""))
    pairs, processors = _tile_pairs(settings), number(settings, "multiprocessors", 0)
    features: list[FloatArray | float] = [1.0, flop(work), *operand_bytes(work), products.k]
    features += [products.padded_flop(*pair) for pair in pairs[:1]]
    for tile_m, tile_n in pairs if processors else []:
        tiles = np.ceil(products.m / tile_m) * np.ceil(products.n / tile_n) * products.batch
        waves = np.where(tiles < WAVES_MODELLED * processors, np.ceil(tiles / processors), tiles / processors)
        features.append(waves * (processors * tile_m * tile_n * 2) * products.k)
    return stacked(features)


CONVOLUTION_COLUMNS = (
    CALLS,
    *classes("3x3", "1x1", "1x1_strided", "other"),
    *counting(BYTE, "x_bytes", "w_bytes", "y_bytes", "im2col_bytes"),
    Column("padded_flop", FLOP),
    Column("y_bytes_few_channels", BYTE),
)
FEW_CHANNELS = 4


def _convolution_columns(settings: Settings) -> tuple[Column, ...]:
    further = classes("oblong_or_strided") if number(settings, OBLONG_APART, 0) else ()
    return (*CONVOLUTION_COLUMNS, *further)


def _convolution_classes(work: Work, settings: Settings) -> FloatArray:
    count = flop(work)
    w_bytes, x_bytes, y_bytes = operand_bytes(work)
    k_h, k_w, stride_h, stride_w = (column(work, name) for name in ("k_h", "k_w", "stride_h", "stride_w"))
    unit_stride = (stride_h == 1) & (stride_w == 1)
    point = (k_h == 1) & (k_w == 1)
    is_3x3 = (k_h == 3) & (k_w == 3) & unit_stride
    height, width = output_size(work)
    other = ~(is_3x3 | point)
    apart = (k_h != k_w) | ~unit_stride if number(settings, OBLONG_APART, 0) else np.zeros((), dtype=np.bool_)
    im2col_elements = column(work, "images") * (height * width * (column(work, "in_c") * k_h * k_w))
    features = [
        1.0,
        count * is_3x3,
        count * (point & unit_stride),
        count * (point & ~unit_stride),
        count * (other & ~apart),
        x_bytes,
        w_bytes,
        y_bytes,
        column(work, "itemsize") * im2col_elements * ~point,
        product(work, text(settings, "direction", "")).padded_flop(128, 64),
        y_bytes * (column(work, "in_c") <= FEW_CHANNELS),
    ]
    return stacked([*features, count * (other & apart)] if number(settings, OBLONG_APART, 0) else features)


def _channel_tiles(work: Work, settings: Settings) -> FloatArray:
    """Return features of convolutions whose channels, of all groups together, are computed in whole tiles."""
    tile_flop = flop(work)
    for name, tile in zip(("in_c", "out_c"), vector(settings, "tiles", (8.0, 8.0), of=2), strict=False):
        channels = column(work, name)
        tile_flop = tile_flop * (np.ceil(channels / tile) * tile / channels)
    return stacked([1.0, tile_flop, *operand_bytes(work)])


LINEAR_TERMS = (
    FeatureMap(
        "work.linear",
        lambda _settings: (CALLS, Column("work", WORK)),
        lambda work, _settings: stacked([1.0, work_amount(work)]),
        doc="beta + alpha·W, W = FLOP of products and convolutions, else elements (Oyama et al., SPRINT slides, 2016)",
        floor=physical_floor,
    ),
    FeatureMap(
        "flop.rate",
        lambda _settings: (Column("flop", FLOP),),
        lambda work, _settings: stacked([flop(work)]),
        doc="FLOP times one coefficient [s/FLOP]",
    ),
    *TRAFFIC_TERMS,
    FeatureMap(
        "gemm.tiles",
        _gemm_columns,
        _gemm_tiles,
        doc="launch, FLOP, operand bytes, k, FLOP of whole tiles, and of whole waves of tiles where the processor "
        "count is known; in columns of their own for batches of several products where the samples tell them apart",
        floor=physical_floor,
    ),
    FeatureMap(
        "convolution.classes",
        _convolution_columns,
        _convolution_classes,
        doc="launch, FLOP by class (3x3, 1x1, 1x1 strided, other; oblong or strided apart where set), bytes of x, w "
        "and y, im2col bytes, FLOP of whole tiles of the direction's product, bytes of y behind at most 4 channels",
        floor=physical_floor,
    ),
    FeatureMap(
        "convolution.channels",
        lambda _settings: (CALLS, Column("channel_flop", FLOP), *counting(BYTE, "w_bytes", "x_bytes", "y_bytes")),
        _channel_tiles,
        doc="launch, FLOP with channels in and out rounded up to whole tiles, bytes of w, x and y: tensor cores take "
        "channels by eights, and kernels for them larger tiles (NVIDIA, Convolutional Layers User's Guide)",
        floor=physical_floor,
    ),
    ATTENTION,
    ROOFLINE,
)
KERNEL_TERMS = (
    *LINEAR_TERMS,
    GEMM_INTERPOLATION,
    gaussian_process({term.name: term for term in LINEAR_TERMS}),
)
