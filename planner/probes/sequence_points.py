"""Designed points of what transformers and detectors add: attention, normalisation over features, GELU, embeddings.

Samples, positions, heads and features are drawn independently within what small to base sizes use. Traffic is counted
as a training step counts it (:mod:`planner.workload.sequences`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.probes.points import Point, geometric, traffic_work

__all__ = ["sequence_families"]

LARGEST_SCORES = 4e6
LARGEST_ELEMENTS = 8e6
TOKEN_BYTES = 8


def sequence_families(random: np.random.Generator, shapes: int) -> list[tuple[Point, ...]]:
    """Return points of so many shapes of each kind."""
    makers: tuple[Callable[[np.random.Generator], tuple[Point, ...]], ...] = (
        _attention, _layer_norm, _gelu, _embedding, _upsample, _first_position
    )  # fmt: skip
    return [make(random) for make in makers for _ in range(shapes)]


def _attention(random: np.random.Generator) -> tuple[Point, ...]:
    """Return products, softmax and dropout of one attention layer; its weights have at most LARGEST_SCORES elements."""
    while True:
        n, s = geometric(random, 1, 16), 16 * geometric(random, 1, 32)
        heads, width = int(random.choice([2, 4, 8, 12, 16])), int(random.choice([32, 64, 64, 80, 128]))
        weights = n * heads * s * s
        if weights <= LARGEST_SCORES:
            break
    geometry = {"images": n, "positions": s, "heads": heads, "width": width, "causal": int(random.random() < 0.5)}
    products = ({"m": s, "n": s, "k": width}, {"m": s, "n": width, "k": s})
    points = [
        Point("gemm", direction, {**sizes, "batch": n * heads}, geometry)
        for direction in (FORWARD, BACKWARD_DATA)
        for sizes in products
    ]
    for direction, moved in ((FORWARD, 2), (BACKWARD_DATA, 3)):
        work = {**traffic_work(weights, moved * weights), "rows": n * heads * s}
        points.append(Point("softmax", direction, work, geometry))
    return tuple(points)


def _rows(random: np.random.Generator, least: int = 64) -> dict[str, int]:
    """Return rows and features of a sequence."""
    while True:
        sizes = {"rows": geometric(random, 16, 8192), "features": 16 * geometric(random, least / 16, 256)}
        if sizes["rows"] * sizes["features"] <= LARGEST_ELEMENTS:
            return sizes


def _layer_norm(random: np.random.Generator) -> tuple[Point, ...]:
    geometry = _rows(random)
    elements = geometry["rows"] * geometry["features"]
    return tuple(
        Point("layer_norm", direction, {**traffic_work(elements, n * elements), "rows": geometry["rows"]}, geometry)
        for direction, n in ((FORWARD, 2), (BACKWARD_DATA, 5))
    )


def _gelu(random: np.random.Generator) -> tuple[Point, ...]:
    geometry = _rows(random)
    elements = geometry["rows"] * geometry["features"]
    return tuple(
        Point("gelu", direction, traffic_work(elements, n * elements), geometry)
        for direction, n in ((FORWARD, 2), (BACKWARD_DATA, 3))
    )


def _embedding(random: np.random.Generator) -> tuple[Point, ...]:
    sizes = _rows(random)
    tokens, features = sizes["rows"], sizes["features"]
    table = geometric(random, 2, min(50_000, LARGEST_ELEMENTS / features))
    geometry = {"rows": table, "tokens": tokens, "features": features, "summed": 1}
    elements, numbers = tokens * features, TOKEN_BYTES * tokens
    return (
        Point("embedding", FORWARD, traffic_work(elements, 2 * elements, numbers), geometry),
        Point("embedding", BACKWARD_WEIGHT, traffic_work(elements, table * features + 3 * elements, numbers), geometry),
    )


def _upsample(random: np.random.Generator) -> tuple[Point, ...]:
    while True:
        images, channels, side = geometric(random, 1, 8), 8 * geometric(random, 1, 64), geometric(random, 6, 60)
        geometry = {"images": images, "channels": channels, "side": side}
        read = geometry["images"] * geometry["channels"] * geometry["side"] ** 2
        if read <= LARGEST_ELEMENTS / 4:
            break
    work = traffic_work(4 * read, 5 * read)
    return tuple(Point("upsample", direction, work, geometry) for direction in (FORWARD, BACKWARD_DATA))


def _first_position(random: np.random.Generator) -> tuple[Point, ...]:
    """Return the gradient of a sequence of which the first position alone was read."""
    sizes = _rows(random)
    n = geometric(random, 1, min(16, sizes["rows"]))
    geometry = {"images": n, "positions": max(1, sizes["rows"] // n), "features": sizes["features"]}
    elements = n * geometry["positions"] * geometry["features"]
    work = traffic_work(elements, elements + 2 * n * geometry["features"])
    return (Point("copy", BACKWARD_DATA, work, geometry),)
