"""Designed points of what transformers and detectors add: attention, normalisation over features, GELU, embeddings.

Samples, positions, heads and features are drawn independently within what small to base sizes use. Traffic is counted
as a training step counts it (:mod:`planner.domain.layers.sequences`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.probes.points import Point, geometric, traffic_work

__all__ = ["Sizes", "sequence_families"]

TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """The most of each: scores of attention, elements of any tensor, rows, samples, positions in steps of 16."""

    scores: float = 4e6
    elements: float = 8e6
    rows: int = 8192
    samples: int = 16
    positions: int = 32


USUAL = Sizes()


def sequence_families(random: np.random.Generator, shapes: int, sizes: Sizes = USUAL) -> list[tuple[Point, ...]]:
    """Return points of so many shapes of each kind."""
    makers: tuple[Callable[[np.random.Generator, Sizes], tuple[Point, ...]], ...] = (
        _attention, _layer_norm, _gelu, _embedding, _upsample, _first_position
    )  # fmt: skip
    return [make(random, sizes) for make in makers for _ in range(shapes)]


def _attention(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    """Return products and softmax of one attention layer whose weights have at most as many elements as sizes say."""
    while True:
        n, s = geometric(random, 1, sizes.samples), 16 * geometric(random, 1, sizes.positions)
        heads, width = int(random.choice([2, 4, 8, 12, 16])), int(random.choice([32, 64, 64, 80, 128]))
        weights = n * heads * s * s
        if weights <= sizes.scores:
            break
    geometry = {"images": n, "positions": s, "heads": heads, "width": width, "causal": int(random.random() < 0.5)}
    products = ({"m": s, "n": s, "k": width}, {"m": s, "n": width, "k": s})
    points = [
        Point("gemm", direction, {**product, "batch": n * heads}, geometry)
        for direction in (FORWARD, BACKWARD_DATA)
        for product in products
    ]
    for direction, moved in ((FORWARD, 2), (BACKWARD_DATA, 3)):
        work = {**traffic_work(weights, moved * weights), "rows": n * heads * s}
        points.append(Point("softmax", direction, work, geometry))
    return tuple(points)


def _rows(random: np.random.Generator, sizes: Sizes) -> dict[str, int]:
    """Return rows and features of a sequence."""
    while True:
        drawn = {"rows": geometric(random, 16, sizes.rows), "features": 16 * geometric(random, 4, 256)}
        if drawn["rows"] * drawn["features"] <= sizes.elements:
            return drawn


def _layer_norm(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    geometry = _rows(random, sizes)
    elements = geometry["rows"] * geometry["features"]
    return tuple(
        Point("layer_norm", direction, {**traffic_work(elements, n * elements), "rows": geometry["rows"]}, geometry)
        for direction, n in ((FORWARD, 2), (BACKWARD_DATA, 5))
    )


def _gelu(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    geometry = _rows(random, sizes)
    elements = geometry["rows"] * geometry["features"]
    return tuple(
        Point("gelu", direction, traffic_work(elements, n * elements), geometry)
        for direction, n in ((FORWARD, 2), (BACKWARD_DATA, 3))
    )


def _embedding(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    drawn = _rows(random, sizes)
    tokens, features = drawn["rows"], drawn["features"]
    table = geometric(random, 2, min(50_000, sizes.elements / features))
    geometry = {"rows": table, "tokens": tokens, "features": features, "summed": 1}
    elements, numbers = tokens * features, TOKEN_BYTES * tokens
    return (
        Point("embedding", FORWARD, traffic_work(elements, 2 * elements, numbers), geometry),
        Point("embedding", BACKWARD_WEIGHT, traffic_work(elements, table * features + 3 * elements, numbers), geometry),
    )


def _upsample(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    while True:
        images, channels, side = (
            geometric(random, 1, sizes.samples / 2),
            8 * geometric(random, 1, 64),
            geometric(random, 6, 60),
        )
        geometry = {"images": images, "channels": channels, "side": side}
        read = geometry["images"] * geometry["channels"] * geometry["side"] ** 2
        if read <= sizes.elements / 4:
            break
    work = traffic_work(4 * read, 5 * read)
    return tuple(Point("upsample", direction, work, geometry) for direction in (FORWARD, BACKWARD_DATA))


def _first_position(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    """Return the gradient of a sequence of which the first position alone was read."""
    drawn = _rows(random, sizes)
    n = geometric(random, 1, min(sizes.samples, drawn["rows"]))
    geometry = {"images": n, "positions": max(1, drawn["rows"] // n), "features": drawn["features"]}
    elements = n * geometry["positions"] * geometry["features"]
    work = traffic_work(elements, elements + 2 * n * geometry["features"])
    return (Point("copy", BACKWARD_DATA, work, geometry),)
