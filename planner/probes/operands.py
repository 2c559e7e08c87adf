"""Operands of timed calls, and the products, convolutions, attention and embeddings that take them.

In a training step the input of a kernel has just been written, while weights and saved activations were last touched
a whole pass ago. So operands come warm (one view, used by every call) or cold (views in turn that together overflow
the last cache).

Mixed precision of 16 bits keeps weights and some values in fp32: a product casts its weights once a step, what it reads
where that is fp32, and backward the gradients of both (PyTorch documentation, "Automatic Mixed Precision package").
These casts are part of the timed call that they belong to.

Products are timed in the layouts of their directions, batched and of 8 bits. Biases are part of the calls, which fuse
them. On a GPU those of convolutions are not: behind cuDNN's kernels PyTorch adds them, and sums their gradients, in
passes of their own. Calls of a network's layers in 16 bits have the types and casts of mixed precision, those of the
generic design operands of one type.

Tensor cores take 8-bit operands with the summed dimension contiguous in both, so the second one is the transpose of a
matrix with that dimension last, of which a training step keeps a copy (NVIDIA Transformer Engine documentation, "FP8
primer"). No bias is added to them.

Attention is that of :mod:`planner.domain.layers.sequences`, with scaling, masking and copies of heads. Its four
products backward are timed together, as autograd runs them, and share their time. Of fused attention queries, keys and
values are views of one tensor, and backward their gradients are joined in one, as autograd does.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, convolution_output
from planner.domain.layers.attentions import fused_attention
from planner.domain.network import Point
from planner.probes.precisions import COMPUTING, import_torch, product_sizes
from planner.probes.timing import Call, give_back_memory

if TYPE_CHECKING:
    import torch


POOL_ELEMENTS = 1 << 26
"""256 MiB of fp32: larger than the last cache of current CPUs, and two of the largest operands of a designed point."""
COLD_BYTES = 96 * 2**20
"""Views in turn cover this much before the first is used again."""
MOST_VIEWS = 64
MOST_GPU_VIEWS = 1024
"""Of small operands: a GPU needs more calls in a row to be timed."""
MOST_GRAPHS, MOST_GPU_GRAPHS = 8, 64
"""Of autograd, of a CPU and of a GPU, whose last cache holds eight of most layers."""
CACHE_LINE_BYTES, GPU_ALIGNMENT_BYTES = 64, 512
"""Where operands begin; PyTorch's allocator of device memory gives out multiples of 512."""
_INT8_DEVIATION = 32
"""Standard deviation of whole numbers of 8 bits, random as those of fp32: the power that a product takes depends on
its numbers."""


class Operands:
    """A source of operands: of fp32, and by :meth:`of` of any other precision; ``itemsize`` [byte] of a number.

    ``elements``: of the block of random numbers; ``cold_bytes``: what views in turn cover, more than the last cache;
    ``beyond``: whether operands larger than the block are made, each for its call alone.
    """

    def __init__(
        self,
        seed: int = 0,
        elements: int = POOL_ELEMENTS,
        *,
        device: str = "cpu",
        cold_bytes: int = COLD_BYTES,
        beyond: bool = False,
    ) -> None:
        self._torch = import_torch()
        generator = self._torch.Generator().manual_seed(seed)
        self._piece = self._torch.randn(1 << 20, generator=generator)
        self._elements, self._cold_bytes, self.device, self._beyond = elements, cold_bytes, device, beyond
        self._set_block("float32")
        self._sources = {"float32": self}

    def _set_block(self, type_name: str) -> None:
        self.dtype: Any = getattr(self._torch, type_name)
        piece = (self._piece * _INT8_DEVIATION).clamp(-127, 127) if type_name == "int8" else self._piece
        self._tile = piece.to(self.dtype).to(self.device)
        self._pool = self._numbers(self._elements)
        self.itemsize: int = self._pool.element_size()
        self._next = 0

    def _numbers(self, size: int) -> torch.Tensor:
        """Return so many random numbers in memory of their own."""
        numbers: torch.Tensor = self._tile.repeat(math.ceil(size / self._tile.numel()))[:size]
        return numbers

    def of(self, precision: str) -> Operands:
        """Return the source of operands stored as a precision stores them; each has a block of its own."""
        type_name = COMPUTING[precision].stored
        if type_name not in self._sources:
            other = copy.copy(self)
            other._set_block(type_name)  # noqa: SLF001 - of this class
            self._sources[type_name] = other
        return self._sources[type_name]

    def warm(self, *shape: int) -> torch.Tensor:
        """Return one operand.

        torch.OutOfMemoryError: it is larger than the block of random numbers, which is as large as the device's memory
        allows, and none such is made.
        """
        size = math.prod(shape)
        if size > self._pool.numel():
            if self._beyond:
                give_back_memory()  # pieces too small for it
                return self._numbers(size).view(shape)
            too_large = f"an operand of {size} elements does not fit a block of {self._pool.numel()}"
            raise self._torch.OutOfMemoryError(too_large)
        if self._next + size > self._pool.numel():
            self._next = 0
        view: torch.Tensor = self._pool[self._next : self._next + size].view(shape)
        step = (CACHE_LINE_BYTES if self.device == "cpu" else GPU_ALIGNMENT_BYTES) // self.itemsize
        self._next += -(-size // step) * step
        return view

    def cold(self, *shape: int) -> Iterator[torch.Tensor]:
        """Return operands without end, each as if last touched long ago."""
        size = self.itemsize * math.prod(shape)
        most = MOST_VIEWS if self.device == "cpu" else MOST_GPU_VIEWS
        views = min(most, max(1, self._cold_bytes // size))
        return itertools.cycle([self.warm(*shape) for _ in range(views)])

    def graphs(self, saved_bytes: int) -> int:
        """Return how many graphs in turn find what they saved, ``saved_bytes`` each, as if last touched long ago."""
        most = MOST_GRAPHS if self.device == "cpu" else MOST_GPU_GRAPHS
        return min(most, max(1, self._cold_bytes // max(saved_bytes, 1)))


def backward_call(torch: Any, graphs: Iterable[tuple[Any, Any]], gradients: Any, calls: int = 1) -> Call:
    """Return the backward pass of graphs (outputs, inputs) in turn, as autograd makes it: so many kernel calls."""
    turn = itertools.cycle(list(graphs))

    def backward() -> object:
        outputs, inputs = next(turn)
        return torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)

    return Call(backward, calls=calls)


HALF_BYTES = 2


def is_mixed(point: Point, operands: Operands) -> bool:
    """Tell whether a call is a layer's in mixed precision of 16 bits; the generic design has none."""
    return point.call is not None and operands.itemsize == HALF_BYTES


def wide_tensors(point: Point, operands: Operands) -> tuple[bool, ...]:
    """Return whether each input of a layer, and last its output, is fp32 though the precision has 16 bits."""
    call = point.call
    if call is None:
        return ()
    none = (False,) * (len(call.inputs) + 1)
    return call.wide.get("cpu" if operands.device == "cpu" else "gpu", none) if is_mixed(point, operands) else none


def kept(operands: Operands, *, wide: bool) -> Operands:
    """Return the source of operands that are fp32 where they are wide."""
    return operands.of("fp32") if wide else operands


def gradients_in_fp32(torch: Any, gradients: Callable[[], Iterable[Any]]) -> Callable[[], object]:
    """Return what casts the gradients made; those that are left out are None."""
    return lambda: [gradient.to(torch.float32) for gradient in gradients() if gradient is not None]


def _shapes(work: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...], list[int], list[int]]:
    """Return the shapes of images and weights of a convolution, its stride and its padding."""
    images = (work["images"], work["in_c"], work["in_h"], work["in_w"])
    weights = (work["out_c"], work["in_c"] // work["groups"], work["k_h"], work["k_w"])
    return images, weights, [work["stride_h"], work["stride_w"]], [work["pad_h"], work["pad_w"]]


def convolution(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a convolution, or one of its gradients."""
    work, (inputs, weights, stride, padding) = point.work, _shapes(point.work)
    adds = operands.device == "cpu" and _adds_bias(point)
    mixed = is_mixed(point, operands)
    reads_fp32 = mixed and wide_tensors(point, operands)[0]
    single, half = kept(operands, wide=mixed), operands.dtype
    weight = (single if point.direction == FORWARD else operands).cold(*weights)
    if point.direction == FORWARD:
        x, bias = kept(operands, wide=reads_fp32).warm(*inputs), single.warm(work["out_c"]) if adds else None
        convolve = torch.ops.aten.convolution
        rest = (stride, padding, [1, 1], False, [0, 0], work["groups"])
        if mixed:
            return Call(
                lambda: convolve(x.to(half), next(weight).to(half), None if bias is None else bias.to(half), *rest)
            )
        return Call(lambda: convolve(x, next(weight), bias, *rest))
    gradient = operands.warm(work["images"], work["out_c"], *convolution_output(work))
    activations, backward = operands.cold(*inputs), torch.ops.aten.convolution_backward
    masks = {BACKWARD_DATA: [True, False, False], BACKWARD_WEIGHT: [False, True, adds]}
    biases = [work["out_c"]] if adds else None
    options = (biases, stride, padding, [1, 1], False, [0, 0], work["groups"], masks[point.direction])
    kept_bytes = single.itemsize * math.prod(weights) if point.direction == BACKWARD_WEIGHT else 0

    def gradients() -> Any:
        return backward(gradient, next(activations), next(weight), *options)

    is_cast = mixed and (reads_fp32 or point.direction == BACKWARD_WEIGHT)
    return Call(gradients_in_fp32(torch, gradients) if is_cast else gradients, kept_bytes)


def quantised_convolution(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a convolution forward of a CPU in int8, quantised from tensor to tensor, its weights packed before.

    Images lie position by position, as the libraries take them (PyTorch documentation, "Quantization").
    """
    work, scale, (images, weights, stride, padding) = point.work, 0.05, _shapes(point.work)
    single, quantised = operands.of("fp32"), torch.ops.quantized
    inputs, bias = single.warm(*images).contiguous(memory_format=torch.channels_last), single.warm(work["out_c"])

    def packed() -> Any:
        weight = torch.quantize_per_tensor(single.warm(*weights), scale, 0, torch.qint8)
        return quantised.conv2d_prepack(weight, bias, stride, padding, [1, 1], work["groups"])

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        x = torch.quantize_per_tensor(inputs, scale, 64, torch.quint8)
        cold = itertools.cycle([packed() for _ in range(operands.graphs(math.prod(weights)))])
    return Call(lambda: quantised.conv2d(x, next(cold), scale, 64))


def product(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a linear layer's product of a direction, x·Wᵀ + b, g·W or gᵀ·x, weights of shape (out, in); or batched."""
    m, n, k, batch = (point.work[name] for name in ("m", "n", "k", "batch"))
    if batch > 1:
        x, weight = operands.warm(batch, n, k), operands.cold(batch, m, k)
        return Call(lambda: x.bmm(next(weight).transpose(1, 2)))
    adds, mixed, half = _adds_bias(point), is_mixed(point, operands), operands.dtype
    reads_fp32 = mixed and wide_tensors(point, operands)[0]
    single, linear = kept(operands, wide=mixed), torch.nn.functional.linear
    if point.direction == FORWARD:
        x, bias = kept(operands, wide=reads_fp32).warm(n, k), single.warm(m) if adds else None
        weight = single.cold(m, k)
        if mixed:
            return Call(lambda: linear(x.to(half), next(weight).to(half), None if bias is None else bias.to(half)))
        return Call(lambda: linear(x, next(weight), bias))
    if point.direction == BACKWARD_DATA:
        gradient, weight = operands.warm(n, k), operands.cold(k, m)
        if reads_fp32:
            return Call(lambda: gradient.mm(next(weight)).to(torch.float32))
        return Call(lambda: gradient.mm(next(weight)))
    gradient, activations = operands.warm(k, m), operands.cold(k, n)

    def gradients() -> tuple[Any, ...]:
        return gradient.t().mm(next(activations)), gradient.sum(0) if adds else None

    return Call(gradients_in_fp32(torch, gradients) if mixed else gradients, single.itemsize * m * n)


def _adds_bias(point: Point) -> bool:
    """Tell whether the layer of a point adds a bias; all do of the generic design."""
    return point.call is None or bool(point.call.layer.attributes["bias"])


def narrow_product(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a linear layer's product of a direction: int8 summed to int32, fp8 (e4m3) to bf16.

    Weights come cold, as saved activations do; what was just written comes warm.
    """
    rows, columns, depth = product_sizes(point.direction, point.work)
    first, second = operands.warm(rows, depth), operands.cold(columns, depth)
    is_kept = point.direction not in (FORWARD, BACKWARD_DATA)
    kept_bytes = is_kept * COMPUTING[point.precision].result_bytes * rows * columns
    if point.precision == "int8":
        multiply = torch._int_mm  # noqa: SLF001 - the operator has no other name
        return Call(lambda: multiply(first, next(second).t()), kept_bytes)
    scale = torch.ones((), device=operands.device)
    multiply = torch._scaled_mm  # noqa: SLF001 - the operator has no other name
    return Call(lambda: multiply(first, next(second).t(), scale, scale, out_dtype=torch.bfloat16), kept_bytes)


PRODUCTS_BACKWARD = 4


def _attention_sizes(point: Point) -> tuple[int, int, int, int]:
    geometry = point.geometry
    return geometry["images"], geometry["positions"], geometry["heads"], geometry["width"]


def _has_wide_weights(point: Point, operands: Operands) -> bool:
    """Tell whether attention weights are fp32 though products are of 16 bits; ``wide`` may say that they are not."""
    return operands.itemsize == HALF_BYTES and bool(point.geometry.get("wide", 1))


def attention_product(torch: Any, point: Point, operands: Operands) -> Call:
    """Return scores (q/√w)·kᵀ or context p·v, forward; or all four products backward.

    ``wide``: the weights p are fp32 though products are not, and are cast before them, as their gradients are after.
    """
    n, s, heads, width = _attention_sizes(point)
    is_wide = bool(point.geometry.get("wide"))
    source = kept(operands, wide=is_wide)

    def parts(projections: Any) -> Any:
        return projections.view(n, s, 3, heads, width).permute(2, 0, 3, 1, 4)

    def scores(split: Any) -> Any:
        return (split[0] / math.sqrt(width)) @ split[1].transpose(-2, -1)

    def context(split: Any, weights: Any) -> Any:
        return (weights @ split[2]).transpose(1, 2).reshape(n, s, heads * width)

    if point.direction == FORWARD:
        projections = operands.warm(n, s, 3 * heads * width)
        if point.work["n"] == s:
            return Call(lambda: scores(parts(projections)))
        weights = source.warm(n, heads, s, s)
        return Call(lambda: context(parts(projections), weights.to(operands.dtype) if is_wide else weights))
    graphs = []
    for _ in range(operands.graphs(operands.itemsize * n * s * heads * (3 * width + s))):
        projections = operands.warm(n, s, 3 * heads * width).detach().requires_grad_()
        weights = source.warm(n, heads, s, s).detach().requires_grad_()
        split = parts(projections)  # once, as in a training step
        outputs = scores(split), context(split, weights.to(operands.dtype))
        graphs.append((outputs, (projections, weights)))
    gradients = (operands.warm(n, heads, s, s), operands.warm(n, s, heads * width))
    return backward_call(torch, graphs, gradients, PRODUCTS_BACKWARD)


def attention_softmax(torch: Any, point: Point, operands: Operands) -> Call:
    """Return the softmax of scores, masked where attention is causal; ``wide``: of 16-bit scores too it is fp32."""
    n, s, heads, _ = _attention_sizes(point)
    is_wide = _has_wide_weights(point, operands)
    mask = None
    if point.geometry["causal"]:
        mask = torch.full((s, s), -math.inf, device=operands.device).triu(1)

    def softmax(scores: Any) -> Any:
        return torch.softmax(scores if mask is None else scores + mask, dim=-1, dtype=torch.float32)

    shape = (n, heads, s, s)
    if point.direction == FORWARD:
        scores = operands.warm(*shape)
        if is_wide:
            return Call(lambda: softmax(scores))
        return Call(lambda: torch.softmax(scores if mask is None else scores + mask, dim=-1))
    gradient = kept(operands, wide=is_wide).warm(*shape)
    if is_wide:
        leaves = [operands.warm(*shape).detach().requires_grad_() for _ in range(operands.graphs(gradient.nbytes))]
        return backward_call(torch, ((softmax(leaf), leaf) for leaf in leaves), gradient)
    weights = operands.cold(*shape)
    backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001 - an operator has no other name
    return Call(lambda: backward(gradient, next(weights), -1, operands.dtype))


def attention_dropout(torch: Any, point: Point, operands: Operands) -> Call:
    """Return dropout of attention weights; ``wide``: they are fp32 in 16-bit precisions too."""
    n, s, heads, _ = _attention_sizes(point)
    weights = kept(operands, wide=_has_wide_weights(point, operands)).warm(n, heads, s, s)
    if point.direction == FORWARD:
        leaf = weights.detach().requires_grad_()
        return Call(lambda: torch.nn.functional.dropout(leaf, 0.1, training=True))
    drop = torch.ops.aten.native_dropout_backward
    shape, turns = (n, heads, s, s), operands.graphs(torch.bool.itemsize * n * heads * s * s)
    masks = itertools.cycle([torch.rand(shape, device=operands.device) > 0.1 for _ in range(turns)])
    return Call(lambda: drop(weights, next(masks), 1.1))


def fused_attention_call(torch: Any, point: Point, operands: Operands) -> Call:
    """Return the forward or backward pass; ``geometry`` says how many samples and heads ``batch`` stands for."""
    n, s, heads = (point.geometry[name] for name in ("images", "positions", "heads"))
    shape = (n, s, 3 * heads * point.work["width"])
    attend = fused_attention(torch, s, heads, causal=bool(point.work["causal"]))
    if point.direction == FORWARD:
        leaf = operands.warm(*shape).detach().requires_grad_()
        return Call(lambda: attend(leaf))
    turns = operands.graphs(operands.itemsize * math.prod(shape))
    leaves = [operands.warm(*shape).detach().requires_grad_() for _ in range(turns)]
    return backward_call(torch, [(attend(leaf), leaf) for leaf in leaves], operands.warm(n, s, shape[2] // 3))


def embedding(torch: Any, point: Point, operands: Operands) -> Call:
    """Return looking up ``tokens`` rows of a table, or adding up their gradients in one that is cleared before.

    ``summands``: how many gradients of each row are summed before, as those of a table of positions are.
    """
    geometry = point.geometry
    rows, tokens, features, summands = (geometry[key] for key in ("rows", "tokens", "features", "summed"))
    numbers = torch.randint(0, rows, (tokens,)) if summands == 1 else torch.arange(tokens) % rows
    numbers = numbers.to(operands.device)
    if point.direction == FORWARD:
        table = operands.warm(rows, features)
        return Call(lambda: torch.nn.functional.embedding(numbers, table))
    gradient = operands.warm(summands, tokens, features)
    add_up = torch.ops.aten.embedding_dense_backward

    def backward() -> object:
        return add_up(gradient.sum(0) if summands > 1 else gradient[0], numbers, rows, -1, False)  # noqa: FBT003

    return Call(backward, operands.itemsize * rows * features)
