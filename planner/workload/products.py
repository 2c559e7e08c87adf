"""Which calls of a step run in 8 bits, and in what the rest of it runs.

fp8: the three products of linear layers, as NVIDIA's Transformer Engine computes them (Micikevicius et al. 2022,
arXiv:2209.05433). int8: forward and input-gradient products of linear layers and convolutions; gradients of weights
need more bits (Banner et al. 2018, arXiv:1805.11046). The rest, products of attention among it, is mixed precision in
bf16, in fp16 where the device has no bf16, and fp32 where it has neither. A convolution of fewer channels than DP4A and
tensor cores take together (NVIDIA, cuDNN: NC/4HW4 and NC/32HW32 tensors) would be padded, and stays in 16 bits.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from planner.domain.arrays import BoolArray
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, PRODUCT_KINDS, KernelCalls
from planner.domain.network import Network
from planner.domain.precision import precision_named

__all__ = ["narrow_calls", "narrow_layers", "rest_precision"]

LAYERS = {"fp8": ("linear",), "int8": ("linear", "convolution")}
DIRECTIONS = {"fp8": (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT), "int8": (FORWARD, BACKWARD_DATA)}
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
    return LAYERS.get(precision, ())


def narrow_calls(calls: KernelCalls, network: Network, precision: str) -> BoolArray:
    """Return which of k calls run in the precision itself, shape (k,); the others run in its :func:`rest_precision`."""
    if precision not in LAYERS:
        return np.ones(calls.layer.size, dtype=np.bool_)
    if calls.kind not in PRODUCT_KINDS or calls.direction not in DIRECTIONS[precision]:
        return np.zeros(calls.layer.size, dtype=np.bool_)
    kinds = np.isin([network.layers[at].kind for at in calls.layer.tolist()], LAYERS[precision])
    if calls.kind == "convolution":
        kinds &= np.ravel(calls.work["in_c"] // calls.work["groups"] >= LEAST_CHANNELS)
    return kinds
