"""Counts that follow from the work of one kernel call: output size, products, FLOP, bytes, and rows that do not align.

A call is recognised by its columns: ``m`` a product, ``in_c`` a convolution, ``queries`` fused attention, anything else
moves bytes. Arrays broadcast; a multiply-add is 2 FLOP.

Fused attention over p pairs of a query and a key, of heads of w features, is two products of 2·p·w FLOP forward, and
five backward: the scores are made again (Dao 2023, "FlashAttention-2", arXiv:2307.08691, which counts 2.5 times the
FLOP of the forward pass, and half of all pairs where attention is causal). It moves q, k, v and the output o, backward
these and the gradients of all four, and one fp32 number a query, the logarithm of its sum.

Batches of several products in columns of their own: a library computes them with other kernels than one product.

Products whose rows do not begin at multiples of 16 bytes: matrix units of Hopper are fed by copies that want 16 bytes;
where a contiguous side of an operand or of the result is no multiple of them, the library takes a kernel of an older
generation, and where it is one of 2 bytes alone, one that loads number by number. A side along which nothing is
contiguous, such as the samples, may be any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from planner.costs.features import Column, Settings, Work, column, number, text, vector
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.cluster import Accelerator
from planner.domain.kernels import ATTENTION_COLUMNS, BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.precision import precision_named
from planner.numbers import constants

HEAD_SIZES = (32, 64, 96, 128, 160, 192, 224, 256)
"""Features of a head that kernels of fused attention are made for: multiples of 32, and none beyond."""
STATISTICS_BYTES = 4
"""Of a query that attention keeps the logarithm of a sum of."""


class Product(NamedTuple):
    """``batch`` matrix products (m x k)·(k x n)."""

    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray

    def padded_flop(self, tile_m: float, tile_n: float) -> FloatArray:
        """Return FLOP with m and n rounded up to whole tiles."""
        area = np.ceil(self.m / tile_m) * tile_m * (np.ceil(self.n / tile_n) * tile_n)
        return area * (2 * self.k * self.batch)


def is_product(work: Work) -> bool:
    """Tell whether the work is that of matrix products."""
    return "m" in work


def is_convolution(work: Work) -> bool:
    """Tell whether the work is that of a convolution."""
    return "in_c" in work


def is_attention(work: Work) -> bool:
    """Tell whether the work is that of fused attention."""
    return "queries" in work


def attended_pairs(queries: FloatArray, keys: FloatArray, causal: FloatArray) -> FloatArray:
    """Return how many pairs of a query and a key a head has; causal: query i sees keys 1 to i, as in PyTorch."""
    shorter = np.minimum(queries, keys)
    causal_pairs = shorter * (shorter + 1) / 2 + (queries - shorter) * keys
    return np.asarray(np.where(causal > 0, causal_pairs, queries * keys))


def kernel_width(width: FloatArray) -> FloatArray:
    """Return the features of a head as a kernel of fused attention computes them: the next of HEAD_SIZES.

    >>> kernel_width(np.array([64.0, 72.0, 250.0, 320.0])).tolist()
    [64.0, 96.0, 256.0, 320.0]
    """
    sizes = np.array(HEAD_SIZES, dtype=np.float64)
    at = np.searchsorted(sizes, width)
    return np.where(at < sizes.size, sizes[np.minimum(at, sizes.size - 1)], width)


def has_fast_algorithm(work: Work) -> BoolArray:
    """Tell where an algorithm needs fewer FLOP than are counted: Winograd and FFT, stride 1, kernels above 1 x 1."""
    if not is_convolution(work):
        return np.zeros((), dtype=np.bool_)
    k_h, k_w, stride_h, stride_w = (column(work, name) for name in ("k_h", "k_w", "stride_h", "stride_w"))
    return np.asarray((stride_h == 1) & (stride_w == 1) & ((k_h != 1) | (k_w != 1)))


def output_size(work: Work) -> tuple[FloatArray, FloatArray]:
    """Return height and width of a convolution's output: floor((x + 2p - c) / s) + 1."""

    def side(axis: str) -> FloatArray:
        free = column(work, f"in_{axis}") + 2 * column(work, f"pad_{axis}") - column(work, f"k_{axis}")
        return np.floor(free / column(work, f"stride_{axis}")) + 1

    return side("h"), side("w")


def product(work: Work, direction: str = "") -> Product:
    """Return the products of a call; a convolution's are those of im2col in the direction (empty: forward).

    With q output positions in the sub-batch, c_in and c_out channels of a group, and a kernel area a: forward
    (c_out x a·c_in)·(a·c_in x q), backward-data (a·c_in x c_out)·(c_out x q), backward-weight (c_out x q)·(q x a·c_in).
    """
    if is_product(work):
        return Product(column(work, "m"), column(work, "n"), column(work, "k"), column(work, "batch"))
    height, width = output_size(work)
    groups = column(work, "groups")
    positions = column(work, "images") * (height * width)
    inner = column(work, "in_c") / groups * (column(work, "k_h") * column(work, "k_w"))
    outer = column(work, "out_c") / groups
    if direction == BACKWARD_DATA:
        return Product(inner, positions, outer, groups)
    if direction == BACKWARD_WEIGHT:
        return Product(outer, inner, positions, groups)
    return Product(outer, positions, inner, groups)


def transposition(kind: str, direction: str) -> dict[str, float]:
    """Return which operands of a product are transposed, in columns; nothing for other kinds.

    Column-major, with weights stored by rows of features out, as PyTorch and MXNet do: y = Wᵀ·x forward, W·dy
    backward-data, dy·xᵀ backward-weight.
    """
    if kind != "gemm":
        return {}
    return {"trans_a": float(direction == FORWARD), "trans_b": float(direction == BACKWARD_WEIGHT)}


def flop(work: Work, direction: str = "") -> FloatArray:
    """Return 2·m·n·k·batch; the same number in the three directions of a convolution; 0 where bytes are the work.

    Of attention those of its two products, or of five backward (direction empty: forward).
    """
    if is_attention(work):
        batch, queries, keys, width, causal = (column(work, name) for name in ATTENTION_COLUMNS)
        products = 5 if direction == BACKWARD_DATA else 2
        return 2 * products * batch * attended_pairs(queries, keys, causal) * width
    if not (is_product(work) or is_convolution(work)):
        return np.zeros_like(column(work, "elements"))
    m, n, k, batch = product(work)
    return 2 * (m * k * batch) * n


def operand_bytes(work: Work) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return bytes of the two operands and of the result: A, B, C of products; w, x, y of a convolution."""
    size = column(work, "itemsize")
    if is_product(work):
        m, n, k, batch = product(work)
        return size * batch * (m * k), size * batch * (k * n), size * batch * (m * n)
    height, width = output_size(work)
    images, in_c, out_c = (column(work, name) for name in ("images", "in_c", "out_c"))
    weights = out_c * in_c / column(work, "groups") * (column(work, "k_h") * column(work, "k_w"))
    image = in_c * (column(work, "in_h") * column(work, "in_w"))
    return size * weights, size * (images * image), size * (images * (out_c * height * width))


def moved_bytes(work: Work, direction: str = "") -> FloatArray:
    """Return bytes read and written, each tensor once: itemsize · traffic + fixed_bytes, or all operands.

    Direction matters to attention alone; empty: forward.
    """
    if is_attention(work):
        batch, queries, keys, width = (column(work, name) for name in ATTENTION_COLUMNS[:4])
        times = 2 if direction == BACKWARD_DATA else 1
        return batch * (column(work, "itemsize") * (times * 2 * (queries + keys) * width) + STATISTICS_BYTES * queries)
    if is_product(work) or is_convolution(work):
        a, b, c = operand_bytes(work)
        return a + b + c
    return column(work, "itemsize") * column(work, "traffic") + column(work, "fixed_bytes")


def least_bytes(work: Work, direction: str = "") -> FloatArray:
    """Return the bytes that no kernel can avoid: those moved, less input that strides longer than the kernel skip."""
    if not is_convolution(work):
        return moved_bytes(work, direction)
    weights, x, y = operand_bytes(work)
    height, width = (np.minimum(1.0, column(work, f"k_{axis}") / column(work, f"stride_{axis}")) for axis in "hw")
    return np.asarray(weights + x * (height * width) + y)


def physical_floor(work: Work, settings: Settings) -> FloatArray:
    """Return max(FLOP/F, bytes/B) [s] with the peaks in the settings; 0 for what they do not state.

    Bytes are the least that must move. FLOP do not bound a convolution that Winograd or FFT algorithms can do in fewer
    than are counted.
    """
    compute, memory = number(settings, "peak_flop_per_s", np.inf), number(settings, "peak_bytes_per_s", np.inf)
    way = text(settings, "direction", "")
    return np.maximum(flop(work, way) * ~has_fast_algorithm(work) / compute, least_bytes(work, way) / memory)


def work_amount(work: Work) -> FloatArray:
    """Return the W of a linear model: FLOP of products, convolutions and attention forward, else elements."""
    has_flop = is_product(work) or is_convolution(work) or is_attention(work)
    return flop(work) if has_flop else column(work, "elements")


BATCHED_APART = "batched_apart"
"""Setting of terms of products: not 0 where batches of several products have coefficients of their own."""


_Columns = Callable[[Settings], tuple[Column, ...]]
_Features = Callable[[Work, Settings], FloatArray]


def by_batch(columns: _Columns, features: _Features) -> tuple[_Columns, _Features]:
    """Return columns and features of products, those of batches behind them in columns of their own where set."""

    def all_columns(settings: Settings) -> tuple[Column, ...]:
        own = columns(settings)
        batches = own if number(settings, BATCHED_APART, 0) else ()
        return (*own, *(one._replace(name=f"batched_{one.name}") for one in batches))

    def all_features(work: Work, settings: Settings) -> FloatArray:
        own = features(work, settings)
        if not number(settings, BATCHED_APART, 0):
            return own
        several = np.broadcast_to(product(work).batch > 1, own.shape[:-1])[..., None]
        return np.concatenate([own * ~several, own * several], axis=-1)

    return all_columns, all_features


MISALIGNED = "misaligned"
"""Setting of a product's entry: times as long that calls take whose sides are multiples of 4 or 8 bytes, and of 2."""
WHOLE_BYTES, LEAST_BYTES = 16, 4
ARCHITECTURES = ("Hopper", "Blackwell")
"""Measured on the first, taken to hold for what came later."""


def misaligned_settings(accelerator: Accelerator, precision: str) -> dict[str, tuple[float, float]]:
    """Return the setting of products in a precision; empty where any side will do, as for CUDA cores."""
    if accelerator.architecture not in ARCHITECTURES or not accelerator.has_matrix_units(precision):
        return {}
    if precision_named(precision).weight_bytes == 1:  # refused by libraries where they are not aligned
        return {}
    times = constants("products.misaligned")
    return {MISALIGNED: (times["by_4_bytes"], times["by_2_bytes"])}


def aligned_bytes(work: Work) -> FloatArray:
    """Return the bytes, 16 at most, of which all contiguous sides of a product are multiples, shape (...)."""
    m, n, k, _ = product(work)
    inner = np.where(column(work, "trans_a") > 0, k, m), np.where(column(work, "trans_b") > 0, n, k)
    whole = np.gcd.reduce([side.astype(np.int64) for side in np.broadcast_arrays(m, *inner)])
    return np.asarray(np.gcd((whole * column(work, "itemsize")).astype(np.int64), WHOLE_BYTES), dtype=np.float64)


def slowdown(work: Work, settings: Settings) -> FloatArray:
    """Return how many times as long as aligned ones products take, shape (...) or (): 1 where settings say nothing."""
    if MISALIGNED not in settings or not is_product(work):
        return np.ones(())
    return np.where(column(work, "batch") <= 1, times_as_long(aligned_bytes(work), settings), 1.0)


def times_as_long(aligned: FloatArray, settings: Settings) -> FloatArray:
    """Return how many times as long products take whose sides are multiples of so many bytes, shape (...)."""
    by_4, by_2 = vector(settings, MISALIGNED)
    return np.where(aligned < LEAST_BYTES, by_2, np.where(aligned < WHOLE_BYTES, by_4, 1.0))
