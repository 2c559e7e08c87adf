"""Designed points of what transformers and detectors add: attention, normalisation over features, GELU, embeddings.

Samples, positions, heads and features are drawn independently within what small to base sizes use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from planner.probes.points import Point, geometric, of_layer, one_of

__all__ = ["Sizes", "attention_families", "sequence_families"]

LENGTH_STEP, LONGEST_SEQUENCE = 16, 1024
LARGEST_MAC = 6e7
"""Of one product, heads x queries x keys x features: the backward pass takes some 10 ms of one thread."""
WIDTHS = (32, 64, 80, 128)
"""Features of a head in use: 64 in GPT-2 and BERT, 80 in GPT-3 2.7B, 128 in larger ones."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The most of each: scores of attention, elements of any tensor, rows, samples, positions in steps of 16."""

    scores: float = 4e6
    elements: float = 8e6
    rows: int = 8192
    samples: int = 16
    positions: int = 32


USUAL_SIZES = Sizes()


def sequence_families(random: np.random.Generator, shapes: int, sizes: Sizes = USUAL_SIZES) -> list[tuple[Point, ...]]:
    """Return points of so many shapes of each kind."""
    makers: tuple[Callable[[np.random.Generator, Sizes], tuple[Point, ...]], ...] = (
        _attention, _layer_norm, _gelu, _embedding, _upsample, _first_position
    )  # fmt: skip
    return [make(random, sizes) for make in makers for _ in range(shapes)]


def _attention(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    """Return products and softmax of one attention layer whose weights have at most as many elements as sizes say."""
    while True:
        n, s = geometric(random, 1, sizes.samples), 16 * geometric(random, 1, sizes.positions)
        heads, width = one_of(random, [2, 4, 8, 12, 16]), one_of(random, [32, 64, 64, 80, 128])
        weights = n * heads * s * s
        if weights <= sizes.scores:
            break
    causal = random.random() < 0.5
    geometry = {"images": n, "positions": s, "heads": heads, "width": width, "causal": int(causal)}
    return of_layer("attention", {"heads": heads, "causal": causal}, ((s, 3 * heads * width),), n, geometry)


def attention_families(
    random: np.random.Generator, shapes: int, longest: int = LONGEST_SEQUENCE, largest_mac: float = LARGEST_MAC
) -> Iterator[tuple[Point, ...]]:
    """Yield both directions of so many shapes of fused attention, two in four causal: every other one as often as all.

    Lengths are geometric, one from each of as many equal stretches as there are shapes; samples, heads and features of
    a head are drawn independently of them within the multiply-adds that a call may have.
    """
    steps = longest / LENGTH_STEP
    for number in range(shapes):
        length = LENGTH_STEP * geometric(random, *(steps ** (end / shapes) for end in (number, number + 1)))
        while True:
            samples, heads = geometric(random, 1, 16), geometric(random, 1, 16)
            width = one_of(random, WIDTHS)
            if samples * heads * length**2 * width <= largest_mac:
                break
        geometry = {"images": samples, "positions": length, "heads": heads}
        attributes = {"heads": heads, "causal": bool(number // 2 % 2), "fused": True}
        yield of_layer("attention", attributes, ((length, 3 * heads * width),), samples, geometry)


def _rows(random: np.random.Generator, sizes: Sizes) -> dict[str, int]:
    """Return rows and features of a sequence."""
    while True:
        geometry = {"rows": geometric(random, 16, sizes.rows), "features": 16 * geometric(random, 4, 256)}
        if geometry["rows"] * geometry["features"] <= sizes.elements:
            return geometry


def _layer_norm(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    geometry = _rows(random, sizes)
    return of_layer("layer_norm", {}, ((geometry["features"],),), geometry["rows"], geometry)


def _gelu(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    geometry = _rows(random, sizes)
    return of_layer("activation", {"function": "gelu"}, ((geometry["features"],),), geometry["rows"], geometry)


def _embedding(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    sizes_of_rows = _rows(random, sizes)
    tokens, features = sizes_of_rows["rows"], sizes_of_rows["features"]
    table = geometric(random, 2, min(50_000, sizes.elements / features))
    geometry = {"rows": table, "tokens": tokens, "features": features, "summed": 1}
    return of_layer("embedding", {"vocabulary": table, "features": features}, ((tokens,),), 1, geometry)


def _upsample(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    while True:
        images, channels, side = (
            geometric(random, 1, sizes.samples / 2),
            8 * geometric(random, 1, 64),
            geometric(random, 6, 60),
        )
        geometry = {"images": images, "channels": channels, "side": side}
        elements = geometry["images"] * geometry["channels"] * geometry["side"] ** 2
        if elements <= sizes.elements / 4:
            break
    return of_layer("upsample", {}, ((channels, side, side),), images, geometry)


def _first_position(random: np.random.Generator, sizes: Sizes) -> tuple[Point, ...]:
    """Return the gradient of a sequence of which the first position alone was read."""
    sizes_of_rows = _rows(random, sizes)
    n = geometric(random, 1, min(sizes.samples, sizes_of_rows["rows"]))
    geometry = {"images": n, "positions": max(1, sizes_of_rows["rows"] // n), "features": sizes_of_rows["features"]}
    shape = (geometry["positions"], geometry["features"])
    return of_layer("first_position", {}, (shape,), n, geometry)
