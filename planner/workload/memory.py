"""Memory of one device in training, counted and never fitted: what PyTorch keeps for the backward pass.

Activations are tensors, each counted once however many layers keep it:

- convolution, fully connected and batch normalisation keep their input (weight gradients need it);
- ReLU, tanh and sigmoid keep their output and work in place where nobody else reads their input; GELU keeps its input;
- max-pooling keeps its input and 8-byte indices of its output, average pooling its input, dropout a 1-byte mask;
- local response normalisation keeps input and output, the loss the softmax of its input;
- global pooling, add, concat and flatten keep nothing. The sub-batch itself is counted wherever it is kept.

Not counted: statistics of batch normalisation (16 bytes a channel), fragmentation of the allocator, workspaces that
libraries choose for themselves, communication buffers, and the prefetched next sub-batch. The workspace is the most
that gradients of activations take at one time, counted as if no activation had been freed by then, so the total
errs on the large side; im2col adds its column buffer.
"""

from __future__ import annotations

from math import floor, prod

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.configuration import OPTIMIZERS
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
_KEEPS_OUTPUT = frozenset({"lrn", "loss"})
_OVERWRITABLE = frozenset({"convolution", "linear", "batch_norm", "add", "concat", "pool", "global_pool", "dropout"})
"""Kinds whose backward pass does not read their own output."""


def memory_bytes(
    network: Network,
    sub_batch: IntArray,
    precision: str,
    optimizer: str,
    device_kind: str,
    *,
    convolution: str = "direct",
) -> MemoryBytes:
    """Return the bytes that training takes of one device, by kind.

    weights P·e_w, gradients P·e_g, optimizer P·(state + fp32 master), activations and workspace proportional to n,
    framework :data:`ASSUMED_CONTEXT_BYTES`. P: parameters; e: bytes of an element in the precision.

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
    sizes, found = precision_named(precision), sites(network)
    samples = np.asarray(sub_batch, dtype=np.float64)
    parameters = np.full_like(samples, sum(site.parameters for site in found))
    columns = _column_elements(found) if convolution == "im2col" else 0
    return MemoryBytes(
        weights=parameters * sizes.weight_bytes,
        gradients=parameters * sizes.gradient_bytes,
        optimizer=parameters * (OPTIMIZERS[optimizer] + sizes.master_bytes),
        activations=samples * _kept_bytes(network, found, sizes),
        workspace=samples * ((_peak_gradient_elements(found) + columns) * sizes.activation_bytes),
        framework=np.full_like(samples, ASSUMED_CONTEXT_BYTES[device_kind]),
    )


def largest_sub_batch(network: Network, precision: str, optimizer: str, device_kind: str, capacity_bytes: float) -> int:
    """Return the largest sub-batch [samples] whose :func:`memory_bytes` fit in the capacity; 0: not even one does."""
    empty, one = memory_bytes(network, np.array([0, 1]), precision, optimizer, device_kind).total.tolist()
    return max(0, floor((capacity_bytes - empty) / (one - empty)))


def _kept_bytes(network: Network, found: tuple[Site, ...], sizes: Precision) -> int:
    """Return the bytes per sample of activations, masks and indices kept for the backward pass."""
    storage = {INPUT: INPUT}  # layer -> the layer whose memory its output lives in
    elements = {INPUT: prod(network.input_shape)}
    by_name = {site.layer.name: site for site in found}
    kept: set[str] = set()
    extra = 0
    for site in found:
        name, source = site.layer.name, site.layer.inputs[0]
        storage[name] = storage[source] if _shares_memory(site, by_name.get(source)) else name
        elements[name] = site.input_elements if site.layer.kind == "loss" else site.output_elements
        if site.has_gradient:
            kept.update(storage[keeper] for keeper in _kept_tensors(site))
            extra += _kept_besides(site)
    return sizes.activation_bytes * sum(elements[name] for name in kept) + extra


def _kept_tensors(site: Site) -> tuple[str, ...]:
    kind, function = site.layer.kind, site.layer.attributes.get("function")
    inputs = site.layer.inputs if kind in _KEEPS_INPUT or function == "gelu" else ()
    output = kind in _KEEPS_OUTPUT or (kind == "activation" and function != "gelu")
    return (*inputs, site.layer.name) if output else inputs


def _kept_besides(site: Site) -> int:
    if site.layer.kind == "dropout":
        return site.output_elements
    is_maximum = site.layer.kind == "pool" and site.layer.attributes["mode"] == "max"
    return INDEX_BYTES * site.output_elements if is_maximum else 0


def _shares_memory(site: Site, source: Site | None) -> bool:
    """Tell whether a layer's output lives in the memory of its input: flattened, or overwritten in place."""
    if site.layer.kind == "flatten":
        return True
    in_place = site.layer.kind == "activation" and site.layer.attributes["function"] != "gelu"
    return in_place and source is not None and source.reads == 1 and source.layer.kind in _OVERWRITABLE


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
