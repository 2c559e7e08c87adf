"""The kernel calls of a network's training step: how many, of what work, in what precision, and what they add up to.

Calls of layers are as the records of their kinds say. To these come the sums of gradients that meet, and the update of
the parameters: 12, 20 or 28 bytes a parameter by SGD, with momentum, by Adam. A ledger of calls is written layer by
layer, and read as arrays over sub-batches.

In 8 bits run, of fp8, the three products of linear layers, as NVIDIA's Transformer Engine computes them (Micikevicius
et al. 2022, arXiv:2209.05433); of int8, forward and input-gradient products of linear layers and convolutions;
gradients of weights need more bits (Banner et al. 2018, arXiv:1805.11046). The rest, products of attention among it, is
mixed precision in bf16, in fp16 where the device has no bf16, and fp32 where it has neither. A convolution of fewer
channels than DP4A and tensor cores take together (NVIDIA, cuDNN: NC/4HW4 and NC/32HW32 tensors) would be padded, and
stays in 16 bits.

Under PyTorch's autocast an operator computes in 16 bits, in fp32, or in the widest type of its inputs; casts stand
before it where that differs from what it reads (PyTorch documentation, "Automatic Mixed Precision package", and its
lists of operators in aten/src/ATen/autocast_mode.h and .cpp, which differ between CPUs and GPUs). Normalisation over
channels takes a power on a GPU, and on a CPU a mean over volumes; a table of parameters is read as it is; attention
ends with a product.

How many kernels an update is, by how a framework writes it:

==============  ========================================================================================
``layer``       one kernel a layer: about one a tensor (an operator of TensorFlow, MXNet, Caffe)
``list``        one kernel over many tensors (FusedAdam of apex, ``fused=True`` of PyTorch)
``primitive``   a kernel an operation and tensor (PyTorch before 2.0)
``foreach``     a kernel an operation over many tensors (PyTorch since 2.0)
``arithmetic``  a kernel of each tensor's sum, product, quotient or root (an optimizer of TensorFlow written in Python)
==============  ========================================================================================

An operation reads its operands and writes its result. With momentum v and decay d of the weights w, gradient g:
g + d·w, µ·v, v + g, w - r·v; Adam's: g + d·w, two means of two operations in all three, a root, a quotient, a sum, and
the step (torch/optim, ``_multi_tensor_sgd`` and ``_multi_tensor_adam``). Operations of ``arithmetic`` have one operand
or two: a product and a sum in place of each that scales and adds, four for a mean of squares; Adam has 14 of them
(AdamWeightDecayOptimizer of github.com/google-research/bert). Nothing is copied where a variable is assigned. For the
host these are one operation a layer and launches besides, as primitives of a layer are. A kernel over lists takes up
to 320 blocks of 65536 elements, of up to 30 tensors (ATen, MultiTensorApply.cuh).

Transposes: where tensors of 16 bits lie image by channel by row (NCHW), a library transposes what a convolution of
matrix units reads, and what it gives back: cuDNN's ``nchwToNhwc`` and ``nhwcToNchw`` kernels. Each element of input and
output is read and written once more in each direction: of a step, three times. Weights are small beside them. Tensor
cores take channels in eights; other convolutions, those of each channel by itself among them, run on CUDA cores as they
are. None are counted for TF32: some of its kernels write NCHW themselves, and what others transpose is not known; with
none, networks, GPUs and clusters left out are predicted nearer.

Casts: the forward product casts weights and input, that of input gradients the gradient of the output. With one scale
a tensor, of the present step, the largest value is read first and the rest in a second pass. fp8 writes both layouts,
as each operand feeds two products and Hopper's read one layout; int8 one, the weights again in the other backward, and
keeps gradients of weights in 16 bits. A pass is one kernel in every program: Transformer Engine has its own, and
torchao asks to be compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.domain import kernels
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import OPTIMIZERS
from planner.domain.kernels import KernelCalls, LayerWork, WorkTotals
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Amount, Call, Lowering, Site, fixed, tensors_of, traffic
from planner.domain.network import LayerCall, Network
from planner.domain.precision import precision_named
from planner.errors import ParameterError, UnknownNameError
from planner.numbers import constants
from planner.workload.program import Program, program, wide_tensors

LARGEST_WHOLE = 2.0**62
"""Amounts above this are not whole numbers of 64 bits, which would wrap, but floating-point ones."""


class _Column(NamedTuple):
    """Amounts base + slope·n of k layers, shape (k,) each, the most of either, and whether any slope is not 0."""

    base: IntArray
    slope: IntArray
    most_base: float
    most_slope: float
    varies: bool

    def of(self, sub_batch: IntArray, most: float) -> IntArray:
        """Return the amounts at sub-batches (s,) of at most so many samples: (s, k), or (1, k) where all are alike."""
        is_whole = self.most_base + self.most_slope * most <= LARGEST_WHOLE
        base, slope = (one if is_whole else one.astype(np.float64) for one in (self.base, self.slope))
        amounts: NDArray[Any] = base + slope * sub_batch[:, None] if self.varies else base[None, :]
        return amounts


class Ledger:
    """Collects the calls of a program's layers; kinds and directions in the order of KINDS and DIRECTIONS."""

    def __init__(self, of: Program) -> None:
        self._program = of
        self._rows: dict[tuple[str, str], list[tuple[int, list[Amount]]]] = {}

    def add(self, position: int, call: Call) -> None:
        """Note the calls of one layer like that at ``position``."""
        self._rows.setdefault((call.kind, call.direction), []).append((position, [call.count, *call.work]))

    def rows(self) -> Iterator[tuple[str, str, IntArray, IntArray]]:
        """Yield kind, direction, positions of layers, shape (k,), and amounts, (a, b) each, shape (k, 1 + columns, 2).

        The first amount is the count of all layers that are like the one at a position.
        """
        for kind, direction in ((kind, direction) for kind in kernels.KINDS for direction in kernels.DIRECTIONS):
            if rows := self._rows.get((kind, direction)):
                layer = np.array([position for position, _ in rows], dtype=np.int64)
                amounts = np.array([amounts for _, amounts in rows], dtype=np.int64)
                amounts[:, 0] *= self._program.layers[self._program.site[layer], None]
                yield kind, direction, layer, amounts

    @cached_property
    def _columns(self) -> list[tuple[str, str, IntArray, list[_Column]]]:
        """The rows by column: the ledger is written before it is read."""
        return [
            (kind, direction, layer, [_column(*amounts[:, at].T) for at in range(amounts.shape[1])])
            for kind, direction, layer, amounts in self.rows()
        ]

    def calls(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the calls for sub-batches of shape (s,)."""
        return tuple(_record(*row, sub_batch) for row in self._columns)


def _column(base: IntArray, slope: IntArray) -> _Column:
    most = float(base.max()), float(slope.max())
    return _Column(np.ascontiguousarray(base), np.ascontiguousarray(slope), *most, bool(slope.any()))


def _record(kind: str, direction: str, layer: IntArray, columns: list[_Column], sub_batch: IntArray) -> KernelCalls:
    most = float(sub_batch.max(initial=0))
    count, *work = (one.of(sub_batch, most) for one in columns)
    of_all = count if columns[0].varies else count[0]
    return KernelCalls(kind, direction, layer, of_all, dict(zip(kernels.WORK_COLUMNS[kind], work, strict=True)))


CONVOLUTIONS = ("direct", "im2col")
"""How a convolution is done: by one kernel of a library, or by im2col, matrix products and col2im."""

UPDATE_BYTES: Mapping[str, int] = {
    "none": 0,
    "sgd": 12,
    "sgd-momentum": 20,
    "nesterov": 20,
    "adagrad": 20,
    "rmsprop": 20,
    "adam": 28,
    "adam-8bit": 16,
}
"""Bytes that an update moves per parameter, the same in mixed precision: there the fp32 master is read and written (8),
the 2-byte gradient read and the 2-byte weight written (4), where fp32 reads and writes the weight (8) and reads the
gradient (4). Each fp32 moment adds 8; adam-8bit reads and writes two moments of one byte, adding 4."""


def lower(
    network: Network,
    sub_batch: IntArray,
    *,
    convolution: str = "direct",
    per_image: bool = False,
    optimizer: str = "sgd-momentum",
    input_gradient: bool = False,
    merged: bool = True,
) -> tuple[KernelCalls, ...]:
    """Return the kernel calls of one step, those of equal layers once: forward, backward, update.

    Nothing is passed back to the network's input, unless ``input_gradient`` asks for it: the first trained layer has no
    backward-data, nor has anything before it; frozen layers have no backward-weight and no update. With im2col, the
    columns are made again for the weight gradient, as Caffe does, because one buffer serves all layers; a 1 x 1
    convolution of stride 1 without padding needs none.

    Parameters
    ----------
    sub_batch : ndarray of int, shape (s,), n [samples], >= 1
    convolution : one of CONVOLUTIONS
    per_image : with im2col, whether images go through it one at a time; then each kernel is called n times as often
    optimizer : one of OPTIMIZERS; ``none``: no update calls
    input_gradient : whether the framework computes the gradient of the input too
    merged : whether equal layers stand once; else every layer makes its own calls

    Returns
    -------
    tuple of KernelCalls : one a kind and direction, in the order of KINDS and DIRECTIONS; ``count`` is of all equal
        layers. A column that does not depend on the sub-batch has shape (1, k), the others (s, k); ``count`` has shape
        (k,), or (s, k) where it depends on it.

    ParameterError, UnknownNameError: an argument breaks its rule, or a layer cannot read what it is given.
    """
    if sub_batch.ndim != 1 or not (sub_batch >= 1).all():
        raise ParameterError("sub_batch", "a vector of whole numbers, at least 1", sub_batch)
    of = program(network, input_gradient=input_gradient, merged=merged)
    return ledger_of(of, convolution, per_image=per_image, optimizer=optimizer).calls(sub_batch)


@lru_cache(maxsize=32)
def ledger_of(
    of: Program, convolution: str = "direct", *, per_image: bool = False, optimizer: str = "sgd-momentum"
) -> Ledger:
    """Return the calls of a program whatever the sub-batch; see :func:`lower`."""
    if convolution not in CONVOLUTIONS:
        raise UnknownNameError("convolution", convolution, CONVOLUTIONS)
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
    ledger, lowering = Ledger(of), Lowering(convolution == "im2col", per_image)
    for site in of.sites:
        for call in LAYER_KINDS[site.layer.kind].calls(site, lowering):
            is_left_out = not site.has_gradient or (call.direction == kernels.BACKWARD_WEIGHT and site.layer.is_frozen)
            if call.direction == kernels.FORWARD or not is_left_out:
                ledger.add(site.position, call)
        if site.has_gradient and site.reads > 1:
            sum_work = traffic(site.output_elements, 3 * site.output_elements)
            ledger.add(site.position, Call("add", kernels.BACKWARD_DATA, sum_work, fixed(site.reads - 1)))
        if site.trained and optimizer != "none":
            count = site.trained
            work = (fixed(count), fixed(0), fixed(UPDATE_BYTES[optimizer] * count))
            ledger.add(site.position, Call("update", kernels.UPDATE, work))
    return ledger


OPERATIONS: Mapping[str, tuple[int, int]] = {
    "sgd": (2, 24),
    "sgd-momentum": (4, 44),
    "nesterov": (5, 56),
    "adagrad": (5, 56),
    "rmsprop": (6, 64),
    "adam": (8, 84),
}
"""Optimizer -> operations of an update, and the bytes that they move per parameter, in fp32."""
ARITHMETIC: Mapping[str, tuple[int, int]] = {
    "sgd": (4, 40),
    "sgd-momentum": (6, 60),
    "nesterov": (8, 80),
    "adagrad": (8, 80),
    "rmsprop": (11, 104),
    "adam": (14, 132),
}
"""The same where every operation has one or two operands."""
_IN_PARTS = {"primitive": OPERATIONS, "foreach": OPERATIONS, "arithmetic": ARITHMETIC}
BLOCK_ELEMENTS, MOST_TENSORS = 320 * 65536, 30


def updated_calls(
    calls: KernelCalls, of: Program, update: str, optimizer: str, *, narrow_state: bool = False
) -> KernelCalls:
    """Return the calls of an update, one a layer, as a framework makes them; a layer's share of calls over lists.

    ``narrow_state``: whether moments that are read and written have 16 bits.
    """
    operations, moved = _IN_PARTS.get(update, {}).get(optimizer, (1, UPDATE_BYTES[optimizer]))
    moved -= OPTIMIZERS[optimizer] * narrow_state
    work: dict[str, IntArray | FloatArray] = dict(calls.work)
    if update == "layer":
        share = moved / UPDATE_BYTES[optimizer]
        work["fixed_bytes"] = np.asarray(calls.work["fixed_bytes"] * share, dtype=np.float64)
        return replace(calls, work=work) if narrow_state else calls
    sites = {site.position: site for site in of.sites}
    tensors = np.array([len(tensors_of(sites[at].layer, sites[at].inputs[0])) for at in calls.layer])
    elements = np.asarray(calls.work["elements"], dtype=np.float64)
    each = tensors.astype(np.float64)
    if update in ("list", "foreach"):
        each = np.maximum(elements / BLOCK_ELEMENTS, tensors / MOST_TENSORS)
    each = operations * each
    work["elements"] = operations * elements / each
    work["fixed_bytes"] = calls.work["fixed_bytes"] * (moved / UPDATE_BYTES[optimizer]) / each
    count: FloatArray = (calls.count * each).reshape(calls.layer.shape)
    made = calls.count if update == "arithmetic" else calls.operations
    return replace(calls, count=count, work=work, operations=made)


PASSES = 2


def casts(calls: KernelCalls, precision: str) -> KernelCalls | None:
    """Return the casts that products of a direction need to run in 8 bits, an operand and pass each; None: no more."""
    if calls.direction not in (kernels.FORWARD, kernels.BACKWARD_DATA):
        return None
    work, again = calls.work, int(calls.direction == kernels.FORWARD or precision == "int8")
    if calls.kind == "gemm":
        weights, others = work["m"] * work["k"] * work["batch"], work["k"] * work["n"] * work["batch"]
    else:
        taps = work["out_c"] * work["k_h"] * work["k_w"]
        weights, others = taps * work["in_c"] // work["groups"], work["images"] * _image(work, calls.direction)
    elements = np.atleast_2d((weights * again + others) / (1 + again))
    moved = constants("products.cast_bytes")[precision] / PASSES * elements
    columns = {"elements": elements, "traffic": np.zeros_like(elements), "fixed_bytes": moved}
    count = calls.count * ((1 + again) * PASSES)
    return KernelCalls("copy", calls.direction, calls.layer, count, columns, operations=np.zeros_like(count))


def _image(work: Mapping[str, IntArray | FloatArray], direction: str) -> IntArray | FloatArray:
    """Return the elements of a convolution's input, or backward of its output."""
    if direction == kernels.FORWARD:
        return work["in_c"] * work["in_h"] * work["in_w"]
    height, width = (
        (work[f"in_{axis}"] + 2 * work[f"pad_{axis}"] - work[f"k_{axis}"]) // work[f"stride_{axis}"] + 1
        for axis in "hw"
    )
    return work["out_c"] * height * width


CHANNELS = 8
"""Of a group in and out, that matrix units take together."""


def transposes(calls: KernelCalls) -> KernelCalls | None:
    """Return the transposes of convolutions in their direction, a call each; None: none needs any."""
    work = calls.work
    needs = (work["in_c"] // work["groups"] % CHANNELS == 0) & (work["out_c"] // work["groups"] % CHANNELS == 0)
    needs = np.broadcast_to(needs, np.broadcast_shapes(needs.shape, calls.count.shape))
    if not needs.any():
        return None
    elements = work["images"] * (_image(work, kernels.FORWARD) + _image(work, kernels.BACKWARD_DATA))
    columns = {"elements": elements, "traffic": 2 * elements, "fixed_bytes": np.zeros_like(elements)}
    count = np.where(needs, calls.count, 0)
    return KernelCalls(
        "copy", calls.direction, calls.layer, count if calls.count.ndim > 1 else count.reshape(-1), columns
    )


NARROW_LAYERS = {"fp8": ("linear",), "int8": ("linear", "convolution")}
NARROW_DIRECTIONS = {
    "fp8": (kernels.FORWARD, kernels.BACKWARD_DATA, kernels.BACKWARD_WEIGHT),
    "int8": (kernels.FORWARD, kernels.BACKWARD_DATA),
}
LEAST_CHANNELS = 4
"""Of a group, that a convolution in 8 bits reads."""
REST_PRECISIONS = ("bf16", "fp16", "fp32")


def rest_precision(precision: str, available: Collection[str]) -> str:
    """Return the precision of what does not run in 8 bits; any other precision is that of the whole step.

    ``available``: precisions that the device has.

    >>> rest_precision("fp8", {"fp32", "bf16", "fp8"}), rest_precision("tf32", {"fp32", "tf32"})
    ('bf16', 'tf32')
    """
    if not precision_named(precision).measured_only:
        return precision
    return next((name for name in REST_PRECISIONS if name in available), REST_PRECISIONS[-1])


def narrow_layers(precision: str) -> tuple[str, ...]:
    """Return the kinds of layers whose products run in a precision of 8 bits; empty for any other."""
    return NARROW_LAYERS.get(precision, ())


def narrow_calls(calls: KernelCalls, network: Network, precision: str) -> BoolArray:
    """Return which of k calls run in the precision itself, shape (k,); the others run in its :func:`rest_precision`."""
    if precision not in NARROW_LAYERS:
        return np.ones(calls.layer.size, dtype=np.bool_)
    if calls.kind not in kernels.PRODUCT_KINDS or calls.direction not in NARROW_DIRECTIONS[precision]:
        return np.zeros(calls.layer.size, dtype=np.bool_)
    kinds = np.isin([network.layers[at].kind for at in calls.layer.tolist()], NARROW_LAYERS[precision])
    if calls.kind == "convolution":
        kinds &= np.ravel(calls.work["in_c"] // calls.work["groups"] >= LEAST_CHANNELS)
    return kinds


def layer_calls(
    network: Network, *, convolution: str = "direct", optimizer: str = "sgd-momentum"
) -> Mapping[tuple[str, str], tuple[LayerCall, ...]]:
    """Return the calls of every kind and direction, in the order of :func:`planner.workload.calls.lower`."""
    of = program(network)
    places = [of.sites[at] for at in of.site.tolist()]
    return {row[:2]: _calls(row, places, optimizer) for row in ledger_of(of, convolution, optimizer=optimizer).rows()}


def _calls(row: tuple[str, str, IntArray, IntArray], places: Sequence[Site], optimizer: str) -> tuple[LayerCall, ...]:
    kind, direction, layer, amounts = row
    is_update = direction == kernels.UPDATE
    calls = []
    for position, (count, *work) in zip(layer.tolist(), amounts.tolist(), strict=True):
        site = places[position]
        columns = dict(zip(kernels.WORK_COLUMNS[kind], map(tuple, work), strict=True))
        tensors = len(tensors_of(site.layer, site.inputs[0])) if is_update else 0
        call_optimizer = optimizer if is_update else ""
        calls.append(LayerCall(kind, direction, columns, site.layer, site.inputs, call_optimizer, tensors, sum(count)))
    return tuple(calls)


def distinct_calls(networks: Sequence[Network]) -> tuple[LayerCall, ...]:
    """Return the calls of networks, each once, those first that take most of the time of a step as far as is known.

    Each with the optimizer of its family. ``bias`` is left out: it is part of the product before it, or left to fits.
    """
    calls: dict[tuple[str, str, str], LayerCall] = {}
    weights: dict[tuple[str, str, str], float] = {}
    wide: dict[tuple[str, str, str], dict[str, Counter[tuple[bool, ...]]]] = {}
    for network in networks:
        own_calls = [call for calls in layer_calls(network, optimizer=network.optimizer).values() for call in calls]
        total = sum(_estimated_s(call) * call.count for call in own_calls)
        of, alike = program(network), dict[str, dict[str, Counter[tuple[bool, ...]]]]()
        for place in ("cpu", "gpu"):  # how many layers read and write what in fp32, by the first one that is like them
            tensors = wide_tensors(network, on_gpu=place == "gpu")
            for layer, at in zip(network.layers, of.site.tolist(), strict=True):
                counts = alike.setdefault(of.sites[at].layer.name, {}).setdefault(place, Counter())
                counts[tensors[layer.name]] += 1
        for call in own_calls:
            key = (call.kind, call.direction, call.name)
            calls.setdefault(key, call)
            for place, by_layer in alike[call.layer.name].items():
                wide.setdefault(key, {}).setdefault(place, Counter()).update(by_layer)
            weights[key] = weights.get(key, 0.0) + _estimated_s(call) * call.count / total
    order = sorted((key for key in calls if key[0] != "bias"), key=lambda key: -weights[key])
    return tuple(
        replace(calls[key], wide={place: many.most_common(1)[0][0] for place, many in wide[key].items()})
        for key in order
    )


ASSUMED_FLOP_PER_S, ASSUMED_BYTES_PER_S = 5e10, 5e9
"""Of one thread, for the order of measuring only."""
ASSUMED_SUB_BATCH = 8
"""Samples of the sub-batch whose step the order is for."""


def _estimated_s(call: LayerCall) -> float:
    work = call.at(ASSUMED_SUB_BATCH)
    if "m" in work:
        return 2 * prod(work.values()) / ASSUMED_FLOP_PER_S
    if "queries" in work:
        return 4 * prod(work[name] for name in kernels.ATTENTION_COLUMNS[:4]) / ASSUMED_FLOP_PER_S
    if "in_c" not in work:
        return (4 * work["traffic"] + work["fixed_bytes"]) / ASSUMED_BYTES_PER_S
    outputs = work["images"] * work["out_c"] * prod(kernels.convolution_output(work))
    macs = outputs * work["in_c"] // work["groups"] * work["k_h"] * work["k_w"]
    return 2 * macs / ASSUMED_FLOP_PER_S


def layer_work(network: Network) -> tuple[LayerWork, ...]:
    """Return one record a layer, in order; ParameterError where a layer cannot read what it is given."""
    of = program(network)
    sites = ((layer, of.sites[at]) for layer, at in zip(network.layers, of.site.tolist(), strict=True))
    return tuple(
        LayerWork(
            site.parameters, site.trained, site.forward_mac, site.training_flop, layer.name, layer.kind, site.output
        )
        for layer, site in sites
    )


def totals(network: Network, *, convolution: str = "direct") -> WorkTotals:
    """Return parameters, multiply-adds forward and FLOP of a training pass per sample, and kernel calls a step.

    FLOP are those of convolutions, fully connected layers and attention, two a multiply-add: forward and the gradients
    of both operands, wherever one is passed on (so 6·MAC less the backward-data of the first layer).
    """
    of = program(network)
    calls = lower(network, np.ones(1, dtype=np.int64), convolution=convolution)
    return WorkTotals(
        parameters=of.parameters,
        trained=of.trained,
        forward_mac=sum(site.forward_mac * count for site, count in of.site_counts()),
        training_flop=sum(site.training_flop * count for site, count in of.site_counts()),
        kernel_calls=sum(int(call.count.sum()) for call in calls),
    )
