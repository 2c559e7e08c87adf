"""What stays fp32 in mixed precision of 16 bits, as PyTorch's autocast decides it, carried along a network.

An operator computes in 16 bits, in fp32, or in the widest type of its inputs; casts stand before it where that differs
from what it reads (PyTorch documentation, "Automatic Mixed Precision package", and its lists of operators in
aten/src/ATen/autocast_mode.h and .cpp, which differ between CPUs and GPUs).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import INPUT, Network

__all__ = ["wide_tensors"]

_HALF = ("convolution", "linear", "attention")
"""Kinds of layers whose output is of 16 bits whatever they read: attention ends with a product."""
_FP32 = ("embedding", "loss", "lrn")
"""Those whose output is fp32: a table of parameters is read as it is; normalisation over channels takes a power on a
GPU, and on a CPU a mean over volumes."""
_FP32_ON_GPU = ("layer_norm", "upsample")


def wide_tensors(network: Network, *, on_gpu: bool) -> Mapping[str, tuple[bool, ...]]:
    """Return for every layer whether each of its inputs, and last its output, is fp32; the network's input is."""
    wide, found = {INPUT: True}, {}
    for layer in network.layers:
        read = [wide[source] for source in layer.inputs]
        in_fp32 = layer.kind in _FP32 or (on_gpu and layer.kind in _FP32_ON_GPU)
        wide[layer.name] = in_fp32 or (layer.kind not in _HALF and any(read))
        found[layer.name] = (*read, wide[layer.name])
    return found
