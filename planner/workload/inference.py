"""The forward pass alone, fused as inference engines fuse it.

Batch normalisation with scale g, offset b, mean m and deviation d is folded into the weights of the product before it
(w' = w·g/d, b' = b - g·m/d); bias, activation and sum of a residual are done as a product writes its result, which
then reads the other summand besides (NVIDIA TensorRT, developer guide, layer fusion). Dropout, and dropping
samples, does nothing. What is left of ResNet-50 is 57 kernels of 175.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np

from planner.domain.arrays import once_of
from planner.domain.kernels import FORWARD, KernelCalls
from planner.domain.layers import LAYER_KINDS
from planner.domain.network import INPUT, Network, layer_shapes
from planner.workload.fusion import share_of
from planner.workload.program import Program

__all__ = ["forward_calls", "in_epilogues", "live_elements"]

EPILOGUE = ("batch_norm", "activation", "add", "dropout", "drop_path", "layer_scale")
"""Layers that a product does as it writes its result."""
PRODUCTS = ("convolution", "linear")
_BIASES = ("bias", "linear_bias")


@once_of
def in_epilogues(network: Network) -> frozenset[str]:
    """Return the layers that are part of the product before them."""
    readers = Counter(source for layer in network.layers for source in layer.inputs)
    written = {layer.name for layer in network.layers if layer.kind in PRODUCTS}
    inside: set[str] = set()
    for layer in network.layers:
        is_part = layer.kind in EPILOGUE or LAYER_KINDS[layer.kind].is_view
        if is_part and any(one in written and readers[one] == 1 for one in layer.inputs):
            inside.add(layer.name)
            written.add(layer.name)
    return frozenset(inside)


def forward_calls(calls: tuple[KernelCalls, ...], of: Program, *, is_fused: bool) -> tuple[KernelCalls, ...]:
    """Return the calls of the forward pass; sums in an epilogue are left as what they read besides, without a launch.

    Calls of these sums have no operations; see :class:`planner.domain.kernels.KernelCalls`.
    """
    inside = set(in_epilogues(of.network)) if is_fused else set()
    made = []
    for one in calls:
        if one.direction != FORWARD or one.kind == "dropout" or (is_fused and one.kind in _BIASES):
            continue
        kinds = np.array([of.network.layers[at].kind for at in one.layer.tolist()])
        part = share_of(one, of, inside)
        apart = one.count * (1 - part) * (kinds != "drop_path")
        if apart.any():
            made.append(replace(one, count=apart))
        part = part * (kinds == "add")
        if part.any():
            elements = one.work["elements"]
            work = {**one.work, "traffic": elements, "fixed_bytes": np.zeros_like(elements)}
            made.append(replace(one, count=one.count * part, work=work, operations=np.zeros(part.shape)))
    return tuple(made)


def live_elements(network: Network) -> int:
    """Return the most elements of tensors of one sample that are there at once.

    A tensor is there from the layer that writes it to the last that reads it; an epilogue writes over its input.
    """
    shapes, inside = layer_shapes(network), in_epilogues(network)
    last = {source: at for at, layer in enumerate(network.layers) for source in layer.inputs}
    there, most = {INPUT: prod(network.input_shape)}, prod(network.input_shape)
    for at, layer in enumerate(network.layers):
        size = prod(shapes[layer.name])
        is_in_place = layer.name in inside or LAYER_KINDS[layer.kind].is_view
        freed = [source for source in {*layer.inputs} if last[source] == at and source in there]
        if is_in_place and freed:
            there.pop(freed.pop(0))
        there[layer.name] = size
        most = max(most, sum(there.values()))
        for source in freed:
            there.pop(source)
    return most
