"""Feature maps of kernels by kind: products, convolutions, fused attention and kernels whose work is bytes.

Every map takes the work of a call with ``itemsize`` (see :mod:`planner.domain.kernels`), broadcast to any shape (...),
and returns Φ of shape (..., p). Settings that a map reads have defaults; ``direction`` is the direction of the call.

The roofline: attainable times from peak rates F [FLOP/s] and B [byte/s] (Williams, Waterman, Patterson 2009).

Interpolation as a feature map: Φ holds the weights of stored points, θ what was measured there. Beyond them the
rate of the nearest one is kept, in FLOP/s, and :func:`planner.costs.terms.extrapolates` says so.

Fused attention keeps no scores in memory: a block of queries goes over the blocks of keys that it sees, each a pair of
products and a softmax in the nearest memory (Dao et al. 2022, "FlashAttention", arXiv:2205.14135; Dao 2023,
"FlashAttention-2", arXiv:2307.08691). So FLOP are those of whole blocks, on the diagonal of causal attention too; every
pair costs an exponential, which matrix units do not compute; and blocks of queries, one a processor, come in waves as
tiles of products do.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from planner.costs.features import (
    BYTE,
    CALLS,
    CUDA_CORES,
    ELEMENT,
    FLOP,
    MULTIPROCESSOR,
    NUMBER,
    POINT,
    SECOND,
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
from planner.costs.work import (
    attended_pairs,
    by_batch,
    flop,
    is_attention,
    kernel_width,
    moved_bytes,
    operand_bytes,
    output_size,
    physical_floor,
    product,
    work_amount,
)
from planner.domain.arrays import FloatArray
from planner.domain.kernels import ATTENTION_COLUMNS
from planner.errors import ParameterError

OBLONG_APART = "oblong_apart"
"""Setting of convolutions: not 0 where kernels that are oblong or strided, for which libraries have no fast algorithm,
have a class of FLOP of their own."""
WAVES_MODELLED = 4
"""A last, partly filled wave of tiles matters up to this many waves."""


def _tile_pairs(settings: Settings) -> list[tuple[int, int]]:
    flat = vector(settings, "tiles", (128.0, 64.0), of=2).astype(int).tolist()
    return list(zip(flat[::2], flat[1::2], strict=True))


def _tile_columns(settings: Settings) -> tuple[Column, ...]:
    pairs = _tile_pairs(settings)
    waves = pairs if number(settings, "multiprocessors", 0) else []
    return (
        CALLS,
        Column("flop", FLOP),
        *counting(BYTE, "a_bytes", "b_bytes", "c_bytes"),
        Column("k", FLOP, MULTIPROCESSOR),  # steps of one tile's inner loop
        *counting(FLOP, *(f"padded_flop_{m}x{n}" for m, n in pairs[:1])),
        *counting(FLOP, *(f"wave_flop_{m}x{n}" for m, n in waves)),
    )


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


def _roofline(work: Work, settings: Settings) -> FloatArray:
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
    features=_roofline,
    doc="launch + max(FLOP / (efficiency · peak), bytes / (efficiency · bandwidth)), heads of attention at the "
    "next size that kernels are made for; no tile or wave effects",
    floor=physical_floor,
    stated={"roofline_s": 1.0},
)


FLOP_BEYOND = "log_flop_beyond"
AXES = ("m", "n", "k")


def hat_weights(x: FloatArray, knots: FloatArray) -> FloatArray:
    """Return weights, shape (..., len(knots)), of piecewise-linear interpolation, constant beyond the ends.

    ``x``: ndarray of shape (...); ``knots``: ndarray of shape (q,), increasing.
    """
    if knots.size == 0 or np.any(np.diff(knots) <= 0):
        raise ParameterError("knots", "increasing, at least one", knots)
    return np.stack([np.interp(x, knots, at_knots) for at_knots in np.eye(knots.size)], axis=-1)


def grid_name(m: float, n: float, k: float) -> str:
    """Return the feature name of a grid point."""
    return f"{m:.15g}x{n:.15g}x{k:.15g}"


def _grid_columns(settings: Settings) -> tuple[Column, ...]:
    points = itertools.product(*(vector(settings, axis).tolist() for axis in AXES))
    return (*(Column(grid_name(*point), POINT) for point in points), Column(FLOP_BEYOND, NUMBER))


def _grid_features(work: Work, settings: Settings) -> FloatArray:
    """Trilinear weights of log m, log n, log k, then log(FLOP / FLOP at the nearest point of the grid's box)."""
    products = product(work)
    shape = np.broadcast_shapes(*(np.shape(part) for part in products))
    weights = np.ones((*shape, 1))
    beyond = np.broadcast_to(np.log(products.batch), shape).copy()
    for axis, size in zip(AXES, (products.m, products.n, products.k), strict=True):
        knots = np.log(vector(settings, axis))
        place = np.broadcast_to(np.log(size), shape)
        beyond += place - np.clip(place, knots[0], knots[-1])
        one = hat_weights(place, knots)
        weights = (weights[..., :, None] * one[..., None, :]).reshape(*shape, -1)
    return np.concatenate([weights, beyond[..., None]], axis=-1)


GEMM_INTERPOLATION = FeatureMap(
    "gemm.interpolation",
    _grid_columns,
    _grid_features,
    link="log",
    doc="trilinear in log m, log n, log k of the logarithm of measured times (Oyama et al., SPRINT slides, 2016)",
    floor=physical_floor,
    stated={FLOP_BEYOND: 1.0},
)
LARGEST_GRID = math.prod((16, 16, 16))
"""More points than this make Φ of one call too large; a grid is thinned before it is stored."""


BLOCK = 128.0
"""Queries and keys of a block: 64 or 128 in FlashAttention-2."""


PAIRS = Column("pairs", FLOP, CUDA_CORES)
"""An exponential each, which no matrix unit computes."""
WITHOUT_LAUNCH = "without_launch"
"""Setting: 1 where rows move as many bytes each, so that a launch cannot be told from these: they have both."""
BETWEEN_SIZES = "between_sizes"
"""Setting: 1 where the rows have heads of a size that no kernel is made for, which cost time of their own."""


def _attention_columns(settings: Settings) -> tuple[Column, ...]:
    launch = () if number(settings, WITHOUT_LAUNCH, 0) else (CALLS,)
    waves = counting(FLOP, "wave_flop") if number(settings, "multiprocessors", 0) else ()
    odd = counting(FLOP, "between_sizes_flop") if number(settings, BETWEEN_SIZES, 0) else ()
    return (*launch, *counting(FLOP, "flop", "block_flop"), PAIRS, Column("bytes", BYTE), *waves, *odd)


def _attention_features(work: Work, settings: Settings) -> FloatArray:
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
    _attention_columns,
    _attention_features,
    doc="launch, FLOP, FLOP of whole blocks, pairs of a query and a key (an exponential each), bytes of q, k, v, o and "
    "their gradients; FLOP of whole waves of blocks where the processor count is known",
    floor=physical_floor,
)


ROW_STEPS, ROW_REREADS, ROW_PADDING, ROW_BLOCKS = "steps", "reread", "padded", "blocks"
ROW_LENGTHS = (1024.0, 4096.0, 8192.0)
"""Elements of a row beyond which libraries take another kernel, or read a row again."""
WARP_ROW, WIDEST_BLOCK_ROW, BLOCK_STEP = 1024, 4096, 2048
"""PyTorch sums rows of up to 1024 elements by warps; longer ones by blocks of 2^j threads with 4 elements each, of at
most 512 threads, so that a row takes whole steps of such a block (aten/src/ATen/native/cuda/SoftMax.cu)."""


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
        lambda work, _settings: stacked([1.0, moved_bytes(work)]),
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
        *by_batch(_tile_columns, _tile_features),
        doc="launch, FLOP, operand bytes, k, FLOP of whole tiles, and of whole waves of tiles where the processor "
        "count is known; in columns of their own for batches of several products where the samples tell them apart",
        floor=physical_floor,
    ),
    FeatureMap(
        "convolution.classes",
        lambda settings: (
            *CONVOLUTION_COLUMNS,
            *(classes("oblong_or_strided") if number(settings, OBLONG_APART, 0) else ()),
        ),
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
KERNEL_TERMS = (*LINEAR_TERMS, GEMM_INTERPOLATION, gaussian_process({term.name: term for term in LINEAR_TERMS}))
