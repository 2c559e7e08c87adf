"""Kernels of updates, of transposes around convolutions, of casts to 8 bits: how many there are, and what they move.

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

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import OPTIMIZERS
from planner.domain.kernels import BACKWARD_DATA, FORWARD, KernelCalls
from planner.domain.layers import LAYER_KINDS
from planner.numbers import constants
from planner.workload.lowering import UPDATE_BYTES
from planner.workload.program import Program

__all__ = ["ARITHMETIC", "OPERATIONS", "casts", "transposes", "updated_calls"]

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
    tensors = np.array(
        [len(LAYER_KINDS[sites[at].layer.kind].parameters(sites[at].layer, sites[at].inputs[0])) for at in calls.layer]
    )
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
    if calls.direction not in (FORWARD, BACKWARD_DATA):
        return None
    work, again = calls.work, int(calls.direction == FORWARD or precision == "int8")
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
    if direction == FORWARD:
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
    elements = work["images"] * (_image(work, FORWARD) + _image(work, BACKWARD_DATA))
    columns = {"elements": elements, "traffic": 2 * elements, "fixed_bytes": np.zeros_like(elements)}
    count = np.where(needs, calls.count, 0)
    return KernelCalls(
        "copy", calls.direction, calls.layer, count if calls.count.ndim > 1 else count.reshape(-1), columns
    )
