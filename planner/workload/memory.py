"""Memory of one device in training, counted and never fitted: what PyTorch keeps for the backward pass.

Activations are tensors, each counted once however many layers keep it:

- convolution, fully connected and batch normalisation keep their input (weight gradients need it);
- ReLU, tanh and sigmoid keep their output, in place or not, and so does leaky ReLU, taken to be done in place; GELU
  keeps its input;
- max-pooling keeps its input and 8-byte indices of its output, average pooling its input, dropout a 1-byte mask;
- local response normalisation, made of simple operations, keeps its input, padded squares, their mean and its power;
- the loss keeps the softmax of its input; global pooling, upsampling, add, concat and
  flatten keep nothing.

The sub-batch itself is counted with them.

In asynchronous training the host updates the weights: optimizer state and fp32 master copy lie in its memory, and are
not counted here.

Not counted: statistics of batch normalisation (16 bytes a channel), fragmentation of the allocator, workspaces that
libraries choose for themselves, communication buffers, and the prefetched next sub-batch. The workspace is the most
that gradients of activations take at one time, counted as if no activation had been freed by then, so the total
errs on the large side; im2col adds its column buffer.
"""

from __future__ import annotations

import math
from math import prod

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.configuration import MODES, OPTIMIZERS
from planner.domain.kernels import MemoryBytes
from planner.domain.network import INPUT, Network
from planner.domain.precision import Precision, precision_named
from planner.errors import ParameterError, UnknownNameError
from planner.workload.graph import Site, sites
from planner.workload.lowering import CONVOLUTIONS, needs_columns

__all__ = ["ASSUMED_CONTEXT_BYTES", "largest_sub_batch", "memory_bytes"]

ASSUMED_CONTEXT_BYTES = {"gpu": 500 * 2.0**20, "cpu": 0.0}
"""Assumed, not measured: what a CUDA context with cuBLAS and cuDNN loaded takes of a GPU before the first tensor."""

INDEX_BYTES = 8
"""Of a position in a pooling window, as PyTorch keeps it."""

_KEEPS_INPUT = frozenset({"convolution", "linear", "batch_norm", "lrn", "pool"})


def memory_bytes(
    network: Network,
    sub_batch: IntArray,
    precision: str,
    optimizer: str,
    device_kind: str,
    *,
    convolution: str = "direct",
    mode: str = "sync",
) -> MemoryBytes:
    """Return the bytes that training takes of one device, by kind.

    weights P·e_w, gradients P·e_g, optimizer P·(state + fp32 master), or 0 in an asynchronous plan, activations and
    workspace proportional to n, framework :data:`ASSUMED_CONTEXT_BYTES`. P: parameters; e: bytes of an element in the
    precision.

    Parameters
    ----------
    network : Network
    sub_batch : ndarray of int, shape (n,) [samples]
    precision : str
        Name of a precision; mixed ones keep an fp32 master copy, counted with the optimizer.
    optimizer : one of OPTIMIZERS
    device_kind : {"gpu", "cpu"}
    convolution : one of CONVOLUTIONS
        ``im2col`` adds the largest column buffer of a whole sub-batch.
    mode : one of MODES
        In ``async`` the host holds what updates the weights.

    Returns
    -------
    MemoryBytes
        Arrays of shape (n,).

    Raises
    ------
    UnknownNameError, ParameterError
        An argument breaks its rule, or a layer cannot read what it is given.
    """
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
    if device_kind not in ASSUMED_CONTEXT_BYTES:
        raise ParameterError("device kind", "gpu or cpu", device_kind)
    if convolution not in CONVOLUTIONS:
        raise UnknownNameError("convolution", convolution, CONVOLUTIONS)
    if mode not in MODES:
        raise UnknownNameError("mode", mode, MODES)
    sizes, found = precision_named(precision), sites(network)
    samples = np.asarray(sub_batch, dtype=np.float64)
    parameters = np.full_like(samples, sum(site.parameters for site in found))
    updating = OPTIMIZERS[optimizer] + sizes.master_bytes if mode == "sync" else 0
    columns = _column_elements(found) if convolution == "im2col" else 0
    return MemoryBytes(
        weights=parameters * sizes.weight_bytes,
        gradients=parameters * sizes.gradient_bytes,
        optimizer=parameters * updating,
        activations=samples * _kept_bytes(network, found, sizes),
        workspace=samples * ((_peak_gradient_elements(found) + columns) * sizes.activation_bytes),
        framework=np.full_like(samples, ASSUMED_CONTEXT_BYTES[device_kind]),
    )


def largest_sub_batch(
    network: Network,
    precision: str,
    optimizer: str,
    device_kind: str,
    capacity_bytes: float,
    *,
    convolution: str = "direct",
    mode: str = "sync",
) -> int:
    """Return the largest sub-batch [samples] whose :func:`memory_bytes` fit in the capacity; 0: not even one does."""
    ends = np.array([0, 1])
    both = memory_bytes(network, ends, precision, optimizer, device_kind, convolution=convolution, mode=mode).total
    empty, one = float(both[0]), float(both[1])
    return max(0, math.floor((capacity_bytes - empty) / (one - empty)))


def _kept_bytes(network: Network, found: tuple[Site, ...], sizes: Precision) -> int:
    """Return the bytes per sample of activations, masks and indices kept for the backward pass."""
    tensor = {INPUT: INPUT}  # layer -> the layer whose output it is: flattening makes no tensor of its own
    elements = {INPUT: prod(network.input_shape)}
    kept = {INPUT}
    besides = 0
    for site in found:
        name = site.layer.name
        tensor[name] = tensor[site.layer.inputs[0]] if site.layer.kind == "flatten" else name
        elements[name] = site.output_elements
        if site.has_gradient:
            kept.update(tensor[keeper] for keeper in _kept_tensors(site))
            besides += _kept_besides(site, sizes.activation_bytes)
    return sizes.activation_bytes * sum(elements[name] for name in kept) + besides


def _kept_tensors(site: Site) -> tuple[str, ...]:
    """Return the layers whose outputs a layer keeps."""
    kind = site.layer.kind
    if kind == "activation" and site.layer.attributes["function"] != "gelu":
        return (site.layer.name,)
    return site.layer.inputs if kind in _KEEPS_INPUT or kind == "activation" else ()


def _kept_besides(site: Site, itemsize: int) -> int:
    """Return the bytes per sample that a layer keeps besides layers' outputs."""
    layer = site.layer
    if layer.kind == "dropout":
        return site.output_elements
    if layer.kind == "pool" and layer.attributes["mode"] == "max":
        return INDEX_BYTES * site.output_elements
    if layer.kind == "lrn":
        return itemsize * (3 * site.output_elements + (layer.integer("window") - 1) * prod(site.output[1:]))
    return itemsize * site.input_elements if layer.kind == "loss" else 0


def _peak_gradient_elements(found: tuple[Site, ...]) -> int:
    """Return the most elements per sample of activation gradients that exist at one time.

    Backward runs in reverse order. A layer's step needs the gradient of its output and makes those of its inputs,
    which stay until the layers they belong to have run; so a shortcut's gradient waits while its branch runs.
    """
    sizes = {site.layer.name: site.output_elements for site in found}
    live: dict[str, int] = {}
    peak = 0
    for site in reversed(found):
        if not site.has_gradient:
            continue
        live.setdefault(site.layer.name, site.output_elements)
        for source, flows in zip(site.layer.inputs, site.input_gradients, strict=True):
            if flows:
                live[source] = sizes[source]
        peak = max(peak, sum(live.values()))
        del live[site.layer.name]
    return peak


def _column_elements(found: tuple[Site, ...]) -> int:
    """Return the elements per sample of the largest im2col buffer."""
    columns = (
        prod(site.output[1:]) * prod(site.layer.pair("kernel")) * site.inputs[0][0]
        for site in found
        if site.layer.kind == "convolution" and needs_columns(site)
    )
    return max(columns, default=0)
