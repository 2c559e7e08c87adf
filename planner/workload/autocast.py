"""What stays fp32 in mixed precision of 16 bits, as PyTorch's autocast decides it, carried along a network.

An operator computes in 16 bits, in fp32, or in the widest type of its inputs; casts stand before it where that differs
from what it reads (PyTorch documentation, "Automatic Mixed Precision package", and its lists of operators in
aten/src/ATen/autocast_mode.h and .cpp, which differ between CPUs and GPUs). Normalisation over channels takes a power
on a GPU, and on a CPU a mean over volumes; a table of parameters is read as it is; attention ends with a product.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.layers import LAYER_KINDS
from planner.domain.network import INPUT, Network

__all__ = ["wide_tensors"]


def wide_tensors(network: Network, *, on_gpu: bool) -> Mapping[str, tuple[bool, ...]]:
    """Return for every layer whether each of its inputs, and last its output, is fp32; the network's input is."""
    wide, tensors = {INPUT: True}, {}
    for layer in network.layers:
        inputs = [wide[source] for source in layer.inputs]
        computes = LAYER_KINDS[layer.kind].computes
        in_fp32 = computes == "fp32" or (on_gpu and computes == "fp32 on gpu")
        wide[layer.name] = in_fp32 or (computes != "16 bits" and any(inputs))
        tensors[layer.name] = (*inputs, wide[layer.name])
    return tensors
