"""A Gaussian process around a physical mean, as a feature map (Rasmussen and Williams 2006, chapter 2).

x: a call; z_j: stored points; μ: time by the linear term ``mean``; τ = t_0 + FLOP/F + bytes/B: time at the peak rates;
κ: Matérn covariance of scaled coordinates, of order 3/2 or 1/2 (setting ``order``); θ: weights of points; s: setting
``share``; t_0: ``launch_s``.

    log t(x) = (1 - s) log μ(x) + s (log a(x) + level + Σ_j κ(x, z_j) θ_j)

a is μ or τ, as setting ``around`` says. With s < 1 the process and the mean are averaged. κ falls off with distance, so
far from all points the prediction is a again, times one constant; but beyond the largest m, n or k of the points the
correction at that edge holds, as a larger product of the same shape runs in the same kernels (docs/numbers.md).
Batches of several products are not corrected: they run in other kernels than single products, and take the time μ. The
features of the linear term stand behind those of the process; they cost nothing, and their ranges tell extrapolation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from planner.costs.features import NUMBER, POINT, Column, FeatureMap, Settings, Work, column, number, text, vector
from planner.costs.work import flop, is_product, moved_bytes, output_size, physical_floor, product
from planner.domain.arrays import BoolArray, FloatArray, distinct_rows
from planner.errors import named
from planner.numbers import constant

GAUSSIAN_PROCESS = "gaussian.process"
LOG_PRIOR, LEVEL = "log_prior", "level"
TILE = (128, 64)
"""Result tile of a product whose padding, alone and in whole waves, is a coordinate."""
PRODUCT_EXTENTS = int(constant("gaussian_process.extents"))
"""Leading coordinates that no product exceeds the points in: m, n, k (docs/numbers.md)."""
WIDEST_STRIDE_B = 8192
"""Powers of two in the stride of a matrix are told apart up to this many bytes."""
SMOOTH_ORDER, ROUGH_ORDER = 1.5, 0.5
"""Orders of covariances: processes that have a slope, and processes that are only continuous."""
_TILE = 1 << 14
"""Numbers of one temporary array: 128 KiB, which stay in a core's cache."""
SHORTEST_S = 1e-9
"""Means are at least this: a logarithm of 0 is none."""


def coordinates(work: Work, settings: Settings) -> FloatArray:
    """Return where calls stand among the points, shape (..., d).

    Products: log m, n, k, log of whole waves of tiles over the result, whether A and B are transposed, log of the power
    of two in the strides of A and B, log of whole tiles over m and over n; a process fitted with fewer length-scales
    takes as many of these. Strides of a large power of two meet in few channels and banks of the memory (AMD
    Accelerated Parallel Processing, OpenCL Optimization Guide, 2014, section 2.1, "channel conflicts").
    Convolutions: log of output positions, channels in and out of a group, kernel area, positions skipped by strides,
    groups, and kernel height over width.
    """
    if is_product(work):
        of_call = product(work)
        processors = max(number(settings, "processors", 1.0), 1.0)
        tiles = np.ceil(of_call.m / TILE[0]) * np.ceil(of_call.n / TILE[1])
        wave_area = np.ceil(tiles / processors) * processors * (TILE[0] * TILE[1])
        transposes = [np.asarray(work.get(name, 0.0), dtype=np.float64) for name in ("trans_a", "trans_b")]
        sizes = (of_call.m, of_call.n, of_call.k, wave_area / (of_call.m * of_call.n))
        tile_ratios = [
            np.ceil(size / tile) * tile / size for size, tile in zip((of_call.m, of_call.n), TILE, strict=True)
        ]
        ends = ((of_call.k, of_call.m), (of_call.n, of_call.k))
        steps = [np.where(is_turned > 0, *pair) for is_turned, pair in zip(transposes, ends, strict=True)]
        in_bytes = [
            np.rint(step * column(work, "itemsize")).astype(np.int64) for step in steps
        ]  # from column to column
        strides = [np.log(np.gcd(one, WIDEST_STRIDE_B)) for one in in_bytes]
        parts = [*map(np.log, sizes), *transposes, *strides, *map(np.log, tile_ratios)]
    else:
        height, width = output_size(work)
        images, in_c, out_c, groups = (column(work, name) for name in ("images", "in_c", "out_c", "groups"))
        k_h, k_w = column(work, "k_h"), column(work, "k_w")
        stride_area = column(work, "stride_h") * column(work, "stride_w")
        extents = (images * height * width, in_c / groups, out_c / groups, k_h * k_w, stride_area, groups, k_h / k_w)
        parts = [np.log(extent) for extent in extents]
    return np.stack(np.broadcast_arrays(*parts), axis=-1)


def covariances(places: FloatArray, points: FloatArray, lengths: FloatArray, order: float = SMOOTH_ORDER) -> FloatArray:
    """Return κ = (1 + √3 r) exp(-√3 r), or exp(-r) of order 1/2, shape (..., q), r the distance in lengths.

    Parameters
    ----------
    places : ndarray of shape (..., d)
    points : ndarray of shape (q, d)
    lengths : ndarray of shape (d,); length-scales of the coordinates
    order : {1.5, 0.5}
    """
    x, z = places / lengths, points / lengths
    far: FloatArray = np.sum(x**2, axis=-1)[..., None] + np.sum(z**2, axis=-1) - 2 * (x @ z.T)
    np.sqrt(np.multiply(np.maximum(far, 0.0, out=far), 2 * order, out=far), out=far)
    near = np.exp(-far)
    return near if order == ROUGH_ORDER else np.multiply(np.add(far, 1, out=far), near, out=near)


class _Process(NamedTuple):
    """Arguments of :func:`covariances`."""

    places: FloatArray
    points: FloatArray
    lengths: FloatArray
    order: float

    def weighted(self, weights: FloatArray) -> FloatArray:
        """Return Σ κ θ of weights of shape (q,), shape (...): some calls at a time, of many each distinct one once."""
        places, step = self.places.reshape(-1, self.lengths.size), max(1, _TILE // max(1, weights.size))
        first, number = distinct_rows(*places.T) if len(places) > step else (slice(None), slice(None))
        sums = np.empty(len(places := places[first]))
        for part in (slice(start, start + step) for start in range(0, sums.size, step)):
            np.matmul(covariances(places[part], *self[1:]), weights, out=sums[part])
        return sums[number].reshape(self.places.shape[:-1])


def is_corrected(work: Work) -> BoolArray:
    """Tell which calls the process corrects, and is fitted to: all but batches of several products."""
    return product(work).batch == 1 if is_product(work) else np.ones((), dtype=np.bool_)


def log_prior(mean: FeatureMap, work: Work, settings: Settings) -> FloatArray:
    """Return log a: what the process returns to far from its points, less the level."""
    times = mean.features(work, settings) @ vector(settings, "mean_coefficients")
    return _log_prior(work, settings, np.log(np.maximum(times, SHORTEST_S)))


def _log_prior(work: Work, settings: Settings, log_mean: FloatArray) -> FloatArray:
    if text(settings, "around", "mean") == "mean":
        return log_mean
    compute = flop(work) / number(settings, "peak_flop_per_s", np.inf)
    memory = moved_bytes(work) / number(settings, "peak_bytes_per_s", np.inf)
    return np.log(np.maximum(number(settings, "launch_s", 0.0) + compute + memory, SHORTEST_S))


def stored_points(settings: Settings) -> tuple[Column, ...]:
    """Return the columns of the weights of stored points."""
    dimensions = vector(settings, "lengths").size
    count = vector(settings, "points", of=dimensions).size // max(dimensions, 1)
    return tuple(Column(f"point_{place + 1}", POINT) for place in range(count))


def _parts(mean: FeatureMap, work: Work, settings: Settings) -> tuple[FloatArray, FloatArray, _Process, FloatArray]:
    """Return log a where the process counts and log μ where not, its share, itself, and features of the mean."""
    share, lengths = number(settings, "share", 1.0), vector(settings, "lengths")
    points = vector(settings, "points").reshape(-1, lengths.size)
    places = coordinates(work, settings)[..., : lengths.size]
    if is_product(work):
        extents = places[..., :PRODUCT_EXTENTS]
        np.minimum(extents, points[:, :PRODUCT_EXTENTS].max(axis=0), out=extents)
    is_single = np.broadcast_to(is_corrected(work), places.shape[:-1])
    of_mean = mean.features(work, settings)
    log_mean = np.log(np.maximum(of_mean @ vector(settings, "mean_coefficients"), SHORTEST_S))
    base: FloatArray = np.where(
        is_single, (1 - share) * log_mean + share * _log_prior(work, settings, log_mean), log_mean
    )
    process = _Process(places, points, lengths, number(settings, "order", SMOOTH_ORDER))
    return base, share * is_single.astype(np.float64), process, of_mean


def gaussian_process(means: Mapping[str, FeatureMap]) -> FeatureMap:
    """Return the feature map, whose means are linear terms by name."""

    def mean_of(settings: Settings) -> FeatureMap:
        return named("mean of a Gaussian process", text(settings, "mean", ""), means)

    def columns(settings: Settings) -> tuple[Column, ...]:
        return (
            Column(LOG_PRIOR, NUMBER),
            Column(LEVEL, NUMBER),
            *stored_points(settings),
            *mean_of(settings).columns(settings),
        )

    def features(work: Work, settings: Settings) -> FloatArray:
        base, ours, process, of_mean = _parts(mean_of(settings), work, settings)
        weights = covariances(*process) * ours[..., None]
        return np.concatenate([base[..., None], ours[..., None], weights, of_mean], axis=-1)

    def sums(work: Work, settings: Settings, coefficients: FloatArray) -> FloatArray:
        base, ours, process, of_mean = _parts(mean_of(settings), work, settings)
        stated, level = coefficients[:2]
        of_points, rest = np.split(coefficients[2:], [len(process.points)])
        weighted: FloatArray = base * stated + ours * (level + process.weighted(of_points)) + of_mean @ rest
        return weighted

    return FeatureMap(
        GAUSSIAN_PROCESS,
        columns,
        features,
        link="log",
        doc="(1 - s)·log μ + s·(log a + level + Σ κ(x, z)·θ): Matérn process of order 3/2 or 1/2 around a linear term "
        "μ or around launch + FLOP/F + bytes/B, of single products and convolutions (Rasmussen and Williams 2006)",
        floor=physical_floor,
        stated={LOG_PRIOR: 1.0},
        sums=sums,
    )
