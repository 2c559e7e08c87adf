"""Feature maps of kernels on a CPU, whose cost differs in kind from a GPU's.

Three effects are modelled besides arithmetic and traffic:

- vector instructions: channels come in blocks of ``lanes`` (setting; 16 fp32 numbers of 512 bits), so FLOP count with
  channels rounded up to whole blocks;
- products with a vector: where a side of the product is 1 the library takes another path, bound by memory;
- caches: operands of a product of more than ``cache_bytes`` (setting; 1 MiB) come from further away, and rows of the
  result that lie whole pages apart push each other out.
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import (
    BYTE,
    CALL,
    CALLS,
    CUDA_CORES,
    ELEMENT,
    FLOP,
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
)
from planner.costs.work import attended_pairs, by_batch, flop, moved_bytes, operand_bytes, output_size, product
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.kernels import ATTENTION_COLUMNS

DEPTHWISE_APART = "depthwise_apart"
"""Setting of ``cpu.convolution``: not 0 where depthwise convolutions have coefficients of their own; from
KERNELS_APART on the FLOP of those with kernels larger than 3x3 too: oneDNN has other code for the gradient of their
weights, which took 8 to 15 times as long."""
KERNELS_APART = 2.0

LANES = 16.0
CACHE_BYTES = 2.0**20
PAGE_BYTES = 4096
"""Rows that start this far apart share the same few cache lines, and pages."""
FEW_CHANNELS = 4
SMALL_KERNEL = 9
"""Numbers of a kernel of 3x3."""
WIDTH_BLOCK = 6
"""Output columns that a convolution kernel keeps in registers at once."""

CONVOLUTION_COLUMNS = (
    CALLS,
    *classes("3x3", "1x1", "1x1_strided", "few_channels", "other"),
    *counting(BYTE, "x_bytes", "y_bytes", "w_bytes", "im2col_bytes"),
    *counting(FLOP, "blocked_flop", "blocked_width_flop"),
    Column("y_bytes_few_channels", BYTE),
)
DEPTHWISE_CALLS = Column("depthwise_calls", CALL)
DEPTHWISE_COLUMNS = (
    DEPTHWISE_CALLS,
    Column("depthwise_flop", FLOP),
    *counting(BYTE, "depthwise_x_bytes", "depthwise_y_bytes"),
)
BY_KERNEL_COLUMNS = (
    DEPTHWISE_CALLS,
    *counting(FLOP, "depthwise_flop_3x3", "depthwise_flop_larger"),
    Column("depthwise_x_bytes", BYTE),
)
"""FLOP of kernels of one size are a multiple of the bytes of y, which therefore have no coefficient beside them."""
PRODUCT_COLUMNS = (
    CALLS,
    *counting(FLOP, "flop", "blocked_flop"),
    *counting(BYTE, "a_bytes", "b_bytes", "c_bytes", "a_bytes_vector", "c_bytes_vector"),
    *counting(BYTE, "a_bytes_far", "c_bytes_far", "a_bytes_far_vector", "c_bytes_far_vector", "c_bytes_aliased"),
)

ATTENTION_FEATURES = (
    CALLS,
    Column("flop", FLOP),
    Column("pairs", FLOP, CUDA_CORES),
    Column("bytes", BYTE),
    Column("blocks", FLOP),  # of queries: how long one takes follows the rate of the processor
)
KEY_BLOCK = 512
QUERY_BLOCKS = ((768, 256), (192, 64), (1, 32))
"""From so many queries on, queries of a block, which goes over the keys in blocks of KEY_BLOCK: as in PyTorch 2,
aten/src/ATen/native/cpu/FlashAttentionKernel.cpp."""


def _far(operand_bytes: FloatArray, settings: Settings) -> FloatArray:
    """Return the bytes of an operand that is larger than the cache, else 0."""
    return operand_bytes * (operand_bytes > number(settings, "cache_bytes", CACHE_BYTES))


def _blocks(count: FloatArray, block: float) -> FloatArray:
    """Return a count rounded up to whole blocks."""
    return np.ceil(count / block) * block


def _convolution_columns(settings: Settings) -> tuple[Column, ...]:
    apart = number(settings, DEPTHWISE_APART, 0)
    own = BY_KERNEL_COLUMNS if apart >= KERNELS_APART else DEPTHWISE_COLUMNS
    return (*CONVOLUTION_COLUMNS, *own) if apart else CONVOLUTION_COLUMNS


def _convolution(work: Work, settings: Settings) -> FloatArray:
    """Return the features of convolutions; with ``depthwise_apart`` depthwise ones have columns of their own."""
    features, apart = _convolution_features(work, settings), number(settings, DEPTHWISE_APART, 0)
    if not apart:
        return features
    _, x_bytes, y_bytes = operand_bytes(work)
    own = stacked([1.0, flop(work), x_bytes, y_bytes])
    if apart >= KERNELS_APART:
        is_larger = column(work, "k_h") * column(work, "k_w") > SMALL_KERNEL
        own = stacked([1.0, flop(work) * ~is_larger, flop(work) * is_larger, x_bytes])
    depthwise = np.broadcast_to(is_depthwise(work), features.shape[:-1])[..., None]
    return np.concatenate([features * ~depthwise, own * depthwise], axis=-1)


def is_depthwise(work: Work) -> BoolArray:
    """Tell where every channel in is a group of its own."""
    groups = column(work, "groups")
    return np.asarray((groups > 1) & (groups == column(work, "in_c")))


def _convolution_features(work: Work, settings: Settings) -> FloatArray:
    size = column(work, "itemsize")
    w_bytes, x_bytes, y_bytes = operand_bytes(work)
    images, in_c, out_c, groups, k_h, k_w, stride_h, stride_w = (
        column(work, name)
        for name in ("images", "in_c", "out_c", "groups", "k_h", "k_w", "stride_h", "stride_w")
    )  # fmt: skip
    height, width = output_size(work)
    count, few = flop(work), in_c <= FEW_CHANNELS
    point, unit_stride = (k_h == 1) & (k_w == 1), (stride_h == 1) & (stride_w == 1)
    is_3x3 = (k_h == 3) & (k_w == 3) & unit_stride & ~few
    lanes = number(settings, "lanes", LANES)
    inner = np.where(few, in_c / groups, _blocks(in_c / groups, lanes))
    block_flop = inner * _blocks(out_c / groups, lanes) * groups * (2 * images * height * width * k_h * k_w)
    return stacked(
        [
            1.0,
            count * is_3x3,
            count * (point & unit_stride & ~few),
            count * (point & ~unit_stride & ~few),
            count * few,
            count * ~(is_3x3 | point | few),
            x_bytes,
            y_bytes,
            w_bytes,
            size * images * (height * width * (in_c * k_h * k_w)) * ~point,
            block_flop,
            block_flop * (_blocks(width, WIDTH_BLOCK) / width),
            y_bytes * few,
        ]
    )


def _product(work: Work, settings: Settings) -> FloatArray:
    m, n, k, batch = product(work)
    a_bytes, b_bytes, c_bytes = operand_bytes(work)
    lanes = number(settings, "lanes", LANES)
    vector = np.minimum(np.minimum(m, n), k) == 1
    far_a, far_c = _far(a_bytes, settings), _far(c_bytes, settings)
    return stacked(
        [
            1.0,
            flop(work),
            2 * k * batch * (_blocks(m, lanes) * _blocks(n, lanes)) * ~vector,
            a_bytes * ~vector,
            b_bytes,
            c_bytes * ~vector,
            a_bytes * vector,
            c_bytes * vector,
            far_a * ~vector,
            far_c * ~vector,
            far_a * vector,
            far_c * vector,
            c_bytes * ~vector * (n * column(work, "itemsize") % PAGE_BYTES == 0),
        ]
    )


def _traffic(work: Work, _settings: Settings) -> FloatArray:
    elements = column(work, "elements")
    return stacked([1.0, elements, np.maximum(column(work, "traffic") - elements, 0)])


def _attention(work: Work, settings: Settings) -> FloatArray:
    """Return the features of fused attention; a block of keys that a causal mask cuts is computed whole."""
    batch, queries, keys, _, causal = (column(work, name) for name in ATTENTION_COLUMNS)
    way = text(settings, "direction", "")
    visible = np.minimum(queries, keys)
    whole = np.floor(visible / KEY_BLOCK)
    below = KEY_BLOCK**2 * whole * (whole + 1) / 2
    last = (visible - KEY_BLOCK * whole) * np.minimum(keys, KEY_BLOCK * (whole + 1))
    pairs = np.where(causal > 0, below + last + (queries - visible) * keys, queries * keys)
    per_pair = flop(work, way) / attended_pairs(queries, keys, causal)
    in_block = np.select([queries >= least for least, _ in QUERY_BLOCKS], [size for _, size in QUERY_BLOCKS])
    blocks = batch * np.ceil(queries / in_block)
    return stacked([1.0, per_pair * pairs, batch * pairs, moved_bytes(work, way), blocks])


CPU_TERMS = (
    FeatureMap(
        "cpu.convolution",
        _convolution_columns,
        _convolution,
        doc="launch, FLOP by class (3x3, 1x1, 1x1 strided, at most 4 channels in, other), bytes of x, y, w and of "
        "im2col, FLOP of whole channel blocks and of whole blocks of output columns",
    ),
    FeatureMap(
        "cpu.product",
        *by_batch(lambda _settings: PRODUCT_COLUMNS, _product),
        doc="launch, FLOP, FLOP of whole blocks, operand bytes apart for products with a vector, bytes of operands "
        "beyond the cache",
    ),
    FeatureMap(
        "cpu.attention",
        lambda _settings: ATTENTION_FEATURES,
        _attention,
        doc="launch, FLOP and pairs of a query and a key in whole blocks of keys, bytes of q, k, v, o and their "
        "gradients, blocks of queries",
    ),
    FeatureMap(
        "cpu.traffic",
        lambda _settings: (CALLS, *counting(ELEMENT, "elements", "other_elements")),
        _traffic,
        doc="launch, elements, further elements read or written (of pooling: those written), bytes of operands "
        "beyond the cache",
    ),
)
