"""Memory of one device in training, counted and never fitted: what PyTorch keeps for the backward pass.

Activations are tensors, each counted once however many layers keep it (:mod:`planner.domain.layers` says which do).
The sub-batch itself is counted with them.

In asynchronous training the host updates the weights: optimizer state and fp32 master copy lie in its memory, and are
not counted here.

Not counted: statistics of batch normalisation (16 bytes a channel), fragmentation of the allocator, workspaces that
libraries choose for themselves, communication buffers, and the prefetched next sub-batch. The workspace is the most
that gradients of activations take at one time, counted as if no activation had been freed by then, so the total
errs on the large side; im2col adds its column buffer.

A transformer layer of s positions, h features and a heads so keeps n·s·h·(34 + 5·a·s/h) bytes in mixed precision with
dropout, the figure of Korthikanti et al. 2022, arXiv:2205.05198, and 16·n·s more of its two normalisations.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.configuration import MODES, OPTIMIZERS
from planner.domain.framework import GENERIC, Framework
from planner.domain.kernels import MemoryBytes
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.products import needs_columns
from planner.domain.layers.record import Site
from planner.domain.network import Network
from planner.domain.precision import Precision, precision_named
from planner.errors import ParameterError, UnknownNameError
from planner.numbers import constants
from planner.workload.lowering import CONVOLUTIONS
from planner.workload.products import narrow_layers
from planner.workload.program import Program, program

__all__ = [
    "ASSUMED_CONTEXT_BYTES",
    "column_elements",
    "kept_bytes",
    "kept_layer_bytes",
    "largest_sub_batch",
    "live_gradient_elements",
    "memory_bytes",
    "weight_bytes",
]

ASSUMED_CONTEXT_BYTES = constants("memory.context_bytes")
"""What a context with its libraries takes of a device before the first tensor, by kind of device (docs/numbers.md)."""

_RADIX = 1024
"""Three of its digits hold any sub-batch."""


def memory_bytes(
    network: Network,
    sub_batch: IntArray,
    precision: str,
    optimizer: str,
    device_kind: str,
    *,
    convolution: str = "direct",
    mode: str = "sync",
    framework: Framework = GENERIC,
) -> MemoryBytes:
    """Return the bytes that training takes of one device, by kind.

    weights P·e_w, gradients P·e_g, optimizer P·(state + fp32 master), or 0 in an asynchronous plan, activations and
    workspace proportional to n, framework :data:`ASSUMED_CONTEXT_BYTES`. P: parameters; e: bytes of an element in the
    precision; weights of layers that do not run in 8 bits have 2.

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
    framework : Framework
        Decides the bytes of a gradient.

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
    sizes, of = precision_named(precision), program(network)
    samples = np.asarray(sub_batch, dtype=np.float64)
    parameters = np.full_like(samples, of.parameters)
    update_bytes = OPTIMIZERS[optimizer] + sizes.master_bytes if mode == "sync" else 0
    columns = max(map(column_elements, of.sites)) if convolution == "im2col" else 0
    return MemoryBytes(
        weights=np.full_like(samples, sum(count * weight_bytes(site, sizes) for site, count in of.site_counts())),
        gradients=parameters * framework.gradient_bytes(precision),
        optimizer=parameters * update_bytes,
        activations=samples * kept_bytes(of, sizes.activation_bytes),
        workspace=samples * ((int(live_gradient_elements(of).max()) + columns) * sizes.activation_bytes),
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
    framework: Framework = GENERIC,
) -> int:
    """Return the largest sub-batch [samples] whose :func:`memory_bytes` fit in the capacity; 0: not even one does.

    Looked for digit by digit, so that it may grow in any way: more samples never take less.
    """
    largest, step = 0, _RADIX**2
    while step:
        sub_batches = largest + step * np.arange(1, _RADIX)
        total = memory_bytes(
            network,
            sub_batches,
            precision,
            optimizer,
            device_kind,
            convolution=convolution,
            mode=mode,
            framework=framework,
        ).total
        largest, step = int(sub_batches[total <= capacity_bytes].max(initial=largest)), step // _RADIX
    return largest


def weight_bytes(site: Site, sizes: Precision) -> int:
    """Return the bytes of a layer's weights; with 8 bits the layers that do not run in them hold 16-bit weights."""
    narrow = narrow_layers(sizes.name)
    is_wide = narrow and site.layer.kind not in narrow
    return site.parameters * (sizes.activation_bytes if is_wide else sizes.weight_bytes)


def kept_bytes(of: Program, itemsize: int) -> int:
    """Return the bytes per sample of activations, masks and indices kept for the backward pass, the input's too."""
    of_layers = sum(kept_layer_bytes(site, itemsize) * count for site, count in of.site_counts())
    return itemsize * prod(of.network.input_shape) + of_layers


def kept_layer_bytes(site: Site, itemsize: int) -> int:
    """Return the bytes per sample kept of a layer's output, and by the layer besides."""
    besides = LAYER_KINDS[site.layer.kind].kept_besides(site, itemsize) if site.has_gradient else 0
    return itemsize * site.output_elements * site.is_kept + besides


@lru_cache(maxsize=32)
def live_gradient_elements(of: Program) -> IntArray:
    """Return the elements per sample of activation gradients that exist while each layer runs backward, shape (L,).

    Backward runs in reverse order. A layer's step needs the gradient of its output and makes those of its inputs,
    which stay until the layers they belong to have run; so a shortcut's gradient waits while its branch runs. Inside of
    attention the gradients of its weights before and behind the softmax are there together; inside of fused attention,
    those of queries, keys and values before they are joined.
    """
    sizes = [site.output_elements for site in of.sites]
    inside = [LAYER_KINDS[site.layer.kind].inside(site) for site in of.sites]
    at = dict(zip((layer.name for layer in of.network.layers), of.site.tolist(), strict=True))
    live: dict[str, int] = {}
    elements = np.zeros(of.site.size, dtype=np.int64)
    for position in range(of.site.size - 1, -1, -1):
        layer = of.network.layers[position]
        site = of.sites[at[layer.name]]
        if not site.has_gradient:
            continue
        live.setdefault(layer.name, sizes[at[layer.name]])
        for source, flows in zip(layer.inputs, site.input_gradients, strict=True):
            if flows:
                live[source] = sizes[at[source]]
        elements[position] = sum(live.values()) + inside[at[layer.name]]
        del live[layer.name]
    return elements


def column_elements(site: Site) -> int:
    """Return the elements per sample of a layer's im2col buffer; 0 where it needs none."""
    if not needs_columns(site.layer):
        return 0
    return prod(site.output[1:]) * prod(site.layer.pair("kernel")) * site.inputs[0][0]
