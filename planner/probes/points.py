"""Points: the calls that a calibration times, drawn for generic designs of a CPU thread and of a GPU.

Sizes are geometric, so that small and large calls count alike. No network is known here: channels, sides, kernels,
strides, batches, positions and heads are drawn independently within what networks use; calls that would take too long
or too much memory are drawn again. A few are as large as those of 8 to 32 samples of 224 x 224: far beyond all caches.
What a training step makes of a layer is counted as :mod:`planner.domain.layers` says.

Those of a GPU are larger, and in every precision. Products stand on a grid of their own: square, with few rows, with
much to sum, of sizes that tensor cores take whole and of any size, batched; a linear layer's three directions are the
three layouts (weights transposed, neither, the first operand transposed).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.kernels import (
    BACKWARD_DATA,
    BACKWARD_WEIGHT,
    CONVOLUTION_COLUMNS,
    FORWARD,
    UPDATE,
    WORK_COLUMNS,
    convolution_output,
)
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, AttributeValue, Layer, Lowering, Shape, Site
from planner.domain.network import Point, kind_of_kernel
from planner.probes.precisions import has_kernel, measures

SEED = 20160705


@dataclass(frozen=True, slots=True)
class Range:
    """What convolutions and passes of one size may be: FLOP, bytes of the largest operand, elements; images, sides."""

    flop: tuple[float, float]
    operand_bytes: tuple[float, float]
    elements: tuple[float, float]
    images: tuple[int, ...]
    sides: tuple[int, int]


_USUAL_RANGE = Range((1.5e6, 2.5e9), (0, 64e6), (1e4, 8e6), (1, 1, 2, 2, 3, 4, 4, 6, 8), (5, 120))
_USUAL_PASS_RANGE = replace(_USUAL_RANGE, images=(1, 1, 2, 2, 4, 4, 8, 16, 32))
_LARGE_RANGE = Range((6.5e9, 1.6e10), (0, 110e6), (2.45e7, 2.7e7), (8, 16, 16, 32), (12, 160))
_LARGE_OPERAND_RANGE = replace(_LARGE_RANGE, operand_bytes=(1e8, 1.1e8))
_LARGE_LRN_RANGE = replace(_LARGE_RANGE, elements=(4e6, 5e6))
"""Normalisation over channels is made of many calls that each keep a result: it takes long, and much memory."""


Family = tuple[Point, ...]
"""Points that belong together, such as the directions of one layer."""


def of_layer(
    kind: str, attributes: Mapping[str, AttributeValue], shape: Shape, samples: int, geometry: Mapping[str, int]
) -> tuple[Point, ...]:
    """Return the points of the calls that a layer makes forward and backward, of samples of an input shape."""
    record, layer = LAYER_KINDS[kind], Layer("layer", kind, (INPUT,), attributes)
    site = Site(0, layer, (shape,), record.output(layer, (shape,)), 0, (True,), 1)
    return tuple(
        Point(
            kind_of_kernel(call.kind, layer),
            call.direction,
            dict(zip(WORK_COLUMNS[call.kind], (base + slope * samples for base, slope in call.work), strict=True)),
            geometry,
        )
        for call in record.calls(site, Lowering())
    )


_LARGE_CONVOLUTIONS = (
    (_LARGE_RANGE, 3), (_LARGE_RANGE, 3), (_LARGE_RANGE, 5), (_LARGE_RANGE, 1, 2), (_LARGE_OPERAND_RANGE, 1),
    (_LARGE_OPERAND_RANGE, 0),
)  # fmt: skip
LARGE_PASSES = 2


def _peaks() -> Family:
    """Return a square product and a copy beyond all caches, which show the peak rates."""
    shape = {"images": 1, "channels": 8, "side": 1024}
    elements = math.prod(shape.values()) * shape["side"]
    return (
        Point("gemm", FORWARD, {"m": 960, "n": 960, "k": 960, "batch": 1}),
        Point("copy", FORWARD, traffic_work(elements, 2 * elements), shape),
    )


def one_of(random: np.random.Generator, values: Sequence[int]) -> int:
    """Return one of some values, as ``Generator.choice`` draws it, in a fifth of the time."""
    return values[int(random.integers(len(values)))]


def geometric(random: np.random.Generator, least: float, most: float) -> int:
    """Return a whole number whose logarithm is uniform."""
    return round(math.exp(random.uniform(math.log(least), math.log(most))))


def _channels(random: np.random.Generator, least: int, most: int) -> int:
    """Return a count of channels as networks choose them: multiples of 8, of 16 above 64, of 32 above 256."""
    count = geometric(random, least, most)
    step = 8 if count < 64 else 16 if count < 256 else 32
    return max(step, round(count / step) * step)


def features(random: np.random.Generator, least: int, most: int) -> int:
    """Return a count of features as networks choose them, four to an octave: powers of two are slower in caches."""
    count = geometric(random, least, most)
    step = 1 << max(0, count.bit_length() - 3)
    return round(count / step) * step


_KERNELS = (
    ((1, 1), 0.30), ((3, 3), 0.36), ((5, 5), 0.12), ((7, 7), 0.06), ((11, 11), 0.05),
    ((1, 7), 0.03), ((7, 1), 0.03), ((1, 3), 0.025), ((3, 1), 0.025),
)  # fmt: skip
"""Kernel of a convolution, share of the design."""
FIRST_LAYER_SHARE = 0.14
MOST_SAMPLE_CHANNELS = 3


def convolution(
    random: np.random.Generator, limits: Range = _USUAL_RANGE, kernel: int | None = None, stride: int = 1
) -> Family:
    """Return the three directions of one convolution, or two of one that reads the samples: a first layer.

    ``kernel``: its side, with ``stride``; 0: a first layer; None: all of it is drawn.
    """
    while True:
        if kernel == 0 or (kernel is None and random.random() < FIRST_LAYER_SHARE):
            work = _first_convolution(random, limits)
        elif kernel is None:
            shape, _ = _KERNELS[int(random.choice(len(_KERNELS), p=[share for _, share in _KERNELS]))]
            work = _inner_convolution(random, shape, one_of(random, [1, 1, 1, 2]), limits)
        else:
            work = _inner_convolution(random, (kernel, kernel), stride, limits)
        height, width = convolution_output(work)
        input_elements = work["images"] * work["in_c"] * work["in_h"] * work["in_w"]
        output_elements = work["images"] * work["out_c"] * height * width
        flop = 2 * output_elements * work["in_c"] // work["groups"] * work["k_h"] * work["k_w"]
        least, most = limits.operand_bytes
        has_size = least < 4 * max(input_elements, output_elements) < most
        if min(height, width) >= 3 and has_size and limits.flop[0] < flop < limits.flop[1]:
            return _directions(work)


def _directions(work: Mapping[str, int]) -> Family:
    """Return a point a direction; no gradient of samples is computed."""
    reads_samples = work["in_c"] <= MOST_SAMPLE_CHANNELS
    directions = (FORWARD, BACKWARD_WEIGHT) if reads_samples else (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT)
    return tuple(Point("convolution", direction, work) for direction in directions)


def _first_convolution(random: np.random.Generator, limits: Range) -> dict[str, int]:
    """Return a convolution of few channels on a large image: kernel 3 to 11, stride 1 to 4."""
    kernel = one_of(random, [3, 3, 5, 7, 7, 11])
    stride = one_of(random, [1, 1, 2] if kernel < 7 else [2, 2, 3, 4])
    side = geometric(random, 96, 260)
    padding = one_of(random, [0, kernel // 2])
    images = one_of(random, limits.images)
    sizes = (images, one_of(random, [3, 3, 3, 1]), side, _channels(random, 16, 128))
    return _columns(sizes, (kernel, kernel), (stride, padding, padding))


def _inner_convolution(
    random: np.random.Generator, kernel: tuple[int, int], stride: int, limits: Range
) -> dict[str, int]:
    """Return a convolution of many channels, three in four padded to the same size, a few in two groups."""
    k_h, k_w = kernel
    same = random.random() < 0.75
    images, in_c = one_of(random, limits.images), _channels(random, 16, 1100)
    sizes = (images, in_c, geometric(random, *limits.sides), _channels(random, 16, 1100))
    work = _columns(sizes, (k_h, k_w), (stride, k_h // 2 * same, k_w // 2 * same))
    in_whole_blocks = work["in_c"] % 32 == 0 == work["out_c"] % 32
    return work | {"groups": 2 if random.random() < 0.08 and in_whole_blocks else 1}


def depthwise_convolution(random: np.random.Generator, limits: Range = _USUAL_RANGE) -> Family:
    """Return the three directions of a convolution that has a group a channel, of kernel 3 or 5."""
    while True:
        kernel, stride = one_of(random, [3, 3, 5]), one_of(random, [1, 1, 2])
        images, channels = one_of(random, limits.images), _channels(random, 16, 1100)
        sizes = (images, channels, geometric(random, *limits.sides), channels)
        work = _columns(sizes, (kernel, kernel), (stride, kernel // 2, kernel // 2)) | {"groups": channels}
        if limits.elements[0] <= images * channels * work["in_h"] * work["in_w"] <= limits.elements[1]:
            return _directions(work)


def _columns(sizes: tuple[int, int, int, int], kernel: tuple[int, int], steps: tuple[int, int, int]) -> dict[str, int]:
    """Return the work of images, input channels, side, output channels; kernel; stride and padding."""
    images, in_c, side, out_c = sizes
    stride, pad_h, pad_w = steps
    values = (images, in_c, side, side, out_c, *kernel, stride, stride, pad_h, pad_w, 1)
    return dict(zip(CONVOLUTION_COLUMNS, values, strict=True))


_LARGE_PRODUCT_SHARE = 0.2


def _product(random: np.random.Generator) -> Family:
    """Return the three products of a linear layer: tall and thin, with weights beyond all caches in a fifth of them."""
    large = random.random() < _LARGE_PRODUCT_SHARE
    while True:
        rows = geometric(random, 1, one_of(random, [1, 4, 16] if large else [1, 1, 8, 64, 1024]))
        wide = features(random, 1024, 8192) if large else features(random, 10, 4096)
        deep = features(random, 1024, 16384) if large else features(random, 64, 4096)
        if not large or 6e6 < wide * deep < 3.4e7:
            return linear(rows, wide, deep)


def sequence_product(random: np.random.Generator) -> Family:
    """Return the three products of a linear layer on every position of sequences: of many rows."""
    while True:
        rows, wide, deep = geometric(random, 64, 8192), features(random, 64, 4096), features(random, 64, 4096)
        if 1e7 < 2 * rows * wide * deep < 1.5e9:
            return linear(rows, wide, deep)


def linear(rows: int, wide: int, deep: int) -> Family:
    """Return the products of a linear layer from ``deep`` to ``wide`` features, of so many rows."""
    return of_layer("linear", {"features": wide, "bias": False}, (deep,), rows, {})


def traffic_work(elements: int, traffic: int, fixed_bytes: int = 0) -> dict[str, int]:
    """Return the work columns of a kind whose work is bytes."""
    return {"elements": elements, "traffic": traffic, "fixed_bytes": fixed_bytes}


def _image(random: np.random.Generator, limits: Range) -> dict[str, int]:
    """Return images x channels x side x side of as many elements in all as the limits say."""
    least, most = limits.elements
    while True:
        sizes = {
            "images": one_of(random, limits.images),
            "channels": _channels(random, 8, 1100),
            "side": geometric(random, limits.sides[0] + 1, limits.sides[1]),
        }
        if least <= sizes["images"] * sizes["channels"] * sizes["side"] ** 2 <= most:
            return sizes


_Make = Callable[[np.random.Generator, Range], Family]


def _of_image(kind: str) -> _Make:
    """Return what draws both directions of a kind that reads one image."""

    def make(random: np.random.Generator, limits: Range) -> Family:
        geometry = _image(random, limits)
        shape = (geometry["channels"], geometry["side"], geometry["side"])
        return of_layer(kind, {}, shape, geometry["images"], geometry)

    return make


def _over(kind: str, passes: int, directions: tuple[str, ...]) -> _Make:
    """Return what draws a kind that goes over all E elements, moving so many times E in each direction."""

    def make(random: np.random.Generator, limits: Range) -> Family:
        geometry = _image(random, limits)
        elements = geometry["images"] * geometry["channels"] * geometry["side"] ** 2
        work = traffic_work(elements, passes * elements)
        return tuple(Point(kind, direction, work, geometry) for direction in directions)

    return make


def _pool(random: np.random.Generator, limits: Range) -> Family:
    points: list[Point] = []
    for mode in ("max", "average"):
        geometry = _image(random, limits)
        side = geometry["side"]
        everywhere = mode == "average" and random.random() < 0.5
        window = side if everywhere else one_of(random, [2, 3, 3])
        stride = window if everywhere or window == 2 else one_of(random, [1, 2, 2])
        sizes = {"window": window, "stride": stride}
        shape = (geometry["channels"], side, side)
        points += of_layer("pool", {"mode": mode, **sizes}, shape, geometry["images"], geometry | sizes)
    return tuple(points)


def _softmax(random: np.random.Generator, limits: Range) -> Family:
    larger = limits.elements[1] / _USUAL_RANGE.elements[1]
    images, classes = geometric(random, 1, 256 * larger), geometric(random, 10, 4000 * math.sqrt(larger))
    return of_layer("loss", {}, (classes,), images, {"images": images, "classes": classes})


def _update(random: np.random.Generator, limits: Range) -> Family:
    elements = geometric(random, 64, max(4e7, limits.elements[1]))
    return (Point("update", UPDATE, traffic_work(elements, 0, 20 * elements)),)


_PASSES: Mapping[_Make, Range | None] = {
    _of_image("activation"): _LARGE_RANGE,
    _pool: _LARGE_RANGE,
    _of_image("batch_norm"): _LARGE_RANGE,
    _of_image("lrn"): _LARGE_LRN_RANGE,
    _of_image("dropout"): None,
    _over("add", 3, (FORWARD, BACKWARD_DATA)): _LARGE_RANGE,  # backward, gradients that meet
    _over("concat", 2, (FORWARD, BACKWARD_DATA)): _LARGE_RANGE,
    _over("copy", 2, (FORWARD,)): _LARGE_RANGE,
    _softmax: None,
    _update: None,
}
"""What draws the points of a kind, and what its large ones may be; None: there are none of their own."""

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


def sequence_families(random: np.random.Generator, shapes: int, sizes: Sizes = Sizes()) -> list[Family]:
    """Return points of so many shapes of each kind that transformers and detectors add."""
    makers: tuple[Callable[[np.random.Generator, Sizes], Family], ...] = (
        _attention, _of_rows("layer_norm"), _of_rows("activation", function="gelu"), _embedding, _upsample,
        _first_position,
    )  # fmt: skip
    return [make(random, sizes) for make in makers for _ in range(shapes)]


def _attention(random: np.random.Generator, sizes: Sizes) -> Family:
    """Return products and softmax of one attention layer whose weights have at most as many elements as sizes say."""
    while True:
        n, s = geometric(random, 1, sizes.samples), 16 * geometric(random, 1, sizes.positions)
        heads, width = one_of(random, [2, 4, 8, 12, 16]), one_of(random, [32, 64, 64, 80, 128])
        if n * heads * s * s <= sizes.scores:
            break
    causal = random.random() < 0.5
    geometry = {"images": n, "positions": s, "heads": heads, "width": width, "causal": int(causal)}
    return of_layer("attention", {"heads": heads, "causal": causal}, (s, 3 * heads * width), n, geometry)


def attention_families(
    random: np.random.Generator, shapes: int, longest: int = LONGEST_SEQUENCE, largest_mac: float = LARGEST_MAC
) -> Iterator[Family]:
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
        yield of_layer("attention", attributes, (length, 3 * heads * width), samples, geometry)


def _rows(random: np.random.Generator, sizes: Sizes) -> tuple[int, int]:
    while True:
        rows, width = geometric(random, 16, sizes.rows), 16 * geometric(random, 4, 256)
        if rows * width <= sizes.elements:
            return rows, width


def _of_rows(kind: str, **attributes: AttributeValue) -> Callable[[np.random.Generator, Sizes], Family]:
    """Return what draws both directions of a kind that works on each position of a sequence."""

    def make(random: np.random.Generator, sizes: Sizes) -> Family:
        rows, width = _rows(random, sizes)
        return of_layer(kind, attributes, (width,), rows, {"rows": rows, "features": width})

    return make


def _embedding(random: np.random.Generator, sizes: Sizes) -> Family:
    tokens, width = _rows(random, sizes)
    table = geometric(random, 2, min(50_000, sizes.elements / width))
    geometry = {"rows": table, "tokens": tokens, "features": width, "summed": 1}
    return of_layer("embedding", {"vocabulary": table, "features": width}, (tokens,), 1, geometry)


def _upsample(random: np.random.Generator, sizes: Sizes) -> Family:
    while True:
        images, channels = geometric(random, 1, sizes.samples / 2), 8 * geometric(random, 1, 64)
        side = geometric(random, 6, 60)
        if images * channels * side**2 <= sizes.elements / 4:
            break
    geometry = {"images": images, "channels": channels, "side": side}
    return of_layer("upsample", {}, (channels, side, side), images, geometry)


def _first_position(random: np.random.Generator, sizes: Sizes) -> Family:
    """Return the gradient of a sequence of which the first position alone was read."""
    rows, width = _rows(random, sizes)
    n = geometric(random, 1, min(sizes.samples, rows))
    positions = max(1, rows // n)
    geometry = {"images": n, "positions": positions, "features": width}
    return of_layer("first_position", {}, (positions, width), n, geometry)


DESIGN, GPU_DESIGN = f"{SEED}, large, sequences, depthwise, attention, rows", f"{SEED}, gpu"
"""Names of the designs: measurements of another one are not continued."""
FURTHER_PRECISION_STEP = 3
"""One point in so many is measured in the further precisions too."""


def designed_points(precisions: Sequence[str] = ("fp32",)) -> tuple[Point, ...]:
    """Return the points of a calibration of a CPU, kinds in turn so that any prefix is balanced.

    fp32 is first of the precisions; a third of the points that a further one has a kernel for is measured in it too,
    the same ones every time.
    """
    random = np.random.default_rng(SEED)
    families = [_peaks(), *(convolution(random) for _ in range(190)), *(_product(random) for _ in range(50))]
    for make, large in _PASSES.items():
        families += [make(random, _USUAL_PASS_RANGE) for _ in range(14)]
        families += [make(random, large) for _ in range(LARGE_PASSES) if large]
    families += [convolution(random, *shape) for shape in _LARGE_CONVOLUTIONS]
    of_sequences = np.random.default_rng(SEED + 1)
    families += sequence_families(of_sequences, shapes=14)
    families += [depthwise_convolution(of_sequences) for _ in range(24)]
    families += attention_families(of_sequences, shapes=10)
    families += [sequence_product(of_sequences) for _ in range(12)]
    points = [point for position in random.permutation(len(families)) for point in families[position]]
    whole = [*points]
    for precision in precisions[1:]:
        own = in_precision(points, precision, precisions)
        positions = np.random.default_rng(SEED + 3).permutation(len(own))[: len(own) // FURTHER_PRECISION_STEP]
        whole += [own[at] for at in sorted(positions.tolist())]
    return tuple(whole)


def in_precision(points: Iterable[Point], precision: str, precisions: Sequence[str]) -> list[Point]:
    """Return points in one of the precisions wanted that is not fp32, those that are measured in it."""
    return [
        replace(one, precision=precision)
        for one in points
        if measures(precision, precisions, (one.kind, one.direction), one.work.get("batch", 1))
    ]


GPU_RANGE = Range((3e7, 2e11), (0, 4.5e8), (1e5, 1e8), (1, 2, 4, 8, 16, 32, 32, 64, 128, 256), (5, 120))
SEQUENCE_SIZES = Sizes(scores=1e8, elements=1e8, rows=65536, samples=64, positions=128)
MOST_PRODUCT_FLOP, MOST_PRODUCT_ELEMENTS = 1.2e12, 1.2e8
LONGEST_ATTENTION, MOST_ATTENTION_MAC = 4096, 4e10
SQUARES = (256, 512, 1024, 1536, 2048, 4096, 8192)
COPY_ELEMENTS = 1 << 26
"""Elements of the copy that shows the memory's rate: far beyond any cache."""
CONVOLUTION_SHAPES, DEPTHWISE_SHAPES, LINEAR_SHAPES = 56, 8, 30
PASS_SHAPES, SEQUENCE_SHAPES, ATTENTION_SHAPES = 9, 8, 16
SKINNY_PRODUCTS, DEEP_PRODUCTS, UNALIGNED_PRODUCTS, BATCHED_PRODUCTS = 10, 6, 10, 10
GPU_PRECISION_STEP = 2
"""One in so many shapes is measured in the other precisions too."""


def gpu_points(precisions: Sequence[str]) -> tuple[Point, ...]:
    """Return the points of a GPU: every shape in fp32, every other one in the further precisions that have its kind.

    ``precisions``: fp32 first; kinds whose work is bytes are measured in one of the 16-bit precisions besides. Of
    products of 8 bits those that have a kernel.
    """
    families = list(_families(np.random.default_rng(SEED + 2)))
    points = [point for family in families for point in family]
    fewer = [point for family in families[::GPU_PRECISION_STEP] for point in family]
    for precision in precisions[1:]:
        own = in_precision(fewer, precision, precisions)
        points += (point for point in own if has_kernel(precision, point.direction, point.work))
    return tuple(points)


def _families(random: np.random.Generator) -> Iterator[Family]:
    """Yield points that belong together, the square products and the large copy first."""
    shape = {"images": 1, "channels": COPY_ELEMENTS >> 20, "side": 1024}
    yield (Point("copy", FORWARD, traffic_work(COPY_ELEMENTS, 2 * COPY_ELEMENTS), shape),)
    for side in SQUARES:
        yield ()  # so that every square is measured in every precision
        yield linear(side, side, side)
    for _ in range(CONVOLUTION_SHAPES):
        yield convolution(random, GPU_RANGE)
    for _ in range(DEPTHWISE_SHAPES):
        yield depthwise_convolution(random, GPU_RANGE)
    yield from _products(random)
    for _ in range(PASS_SHAPES):
        activations, *others = (make(random, GPU_RANGE) for make in _PASSES)
        of_bias = activations[0].geometry  # of the output of a convolution, to which a bias is added
        elements = activations[0].work["elements"]
        biases = (
            Point("bias", direction, traffic_work(elements, passes * elements), of_bias)
            for direction, passes in ((FORWARD, 2), (BACKWARD_WEIGHT, 1))
        )
        yield from (activations, *others, tuple(biases))
    yield from sequence_families(random, SEQUENCE_SHAPES, SEQUENCE_SIZES)
    yield from attention_families(random, ATTENTION_SHAPES, LONGEST_ATTENTION, MOST_ATTENTION_MAC)


def _products(random: np.random.Generator) -> Iterator[Family]:
    draws: tuple[tuple[int, Callable[[], tuple[int, ...]]], ...] = (
        (LINEAR_SHAPES, lambda: (16 * features(random, 1, 2048), *_wide(random))),
        (SKINNY_PRODUCTS, lambda: (geometric(random, 1, 32), *_wide(random))),
        (DEEP_PRODUCTS, lambda: (geometric(random, 2**13, 2**18), 32 * geometric(random, 1, 32), 64)),
        (UNALIGNED_PRODUCTS, lambda: tuple(geometric(random, 33, 6000) | 1 for _ in range(3))),
    )
    for count, draw in draws:
        fitting = (sizes for sizes in iter(draw, None) if _fits(*sizes))
        yield from (linear(*sizes) for sizes in itertools.islice(fitting, count))
    pairs = 0
    while pairs < BATCHED_PRODUCTS:  # of small matrices, many at once
        batch, k = geometric(random, 4, 1024), 8 * features(random, 4, 64)
        m, n = (8 * features(random, 4, 256) for _ in range(2))
        if _fits(m, n, k, batch):
            yield (Point("gemm", FORWARD, {"m": m, "n": n, "k": k, "batch": batch}),)
            pairs += 1


def _wide(random: np.random.Generator) -> tuple[int, int]:
    """Return output and input features, multiples of 16 as tensor cores of 8 bits need them."""
    return 16 * features(random, 4, 1024), 16 * features(random, 4, 1024)


def _fits(m: int, n: int, k: int, batch: int = 1) -> bool:
    largest = batch * max(m * n, m * k, n * k)
    return largest <= MOST_PRODUCT_ELEMENTS and 2 * batch * m * n * k <= MOST_PRODUCT_FLOP
