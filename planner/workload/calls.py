"""The kernel calls of a network's layers: in what precision they run, and what they add up to.

Which calls of a step run in 8 bits, and in what the rest of it runs.

fp8: the three products of linear layers, as NVIDIA's Transformer Engine computes them (Micikevicius et al. 2022,
arXiv:2209.05433). int8: forward and input-gradient products of linear layers and convolutions; gradients of weights
need more bits (Banner et al. 2018, arXiv:1805.11046). The rest, products of attention among it, is mixed precision in
bf16, in fp16 where the device has no bf16, and fp32 where it has neither. A convolution of fewer channels than DP4A and
tensor cores take together (NVIDIA, cuDNN: NC/4HW4 and NC/32HW32 tensors) would be padded, and stays in 16 bits.

Under PyTorch's autocast an operator computes in 16 bits, in fp32, or in the widest type of its inputs; casts stand
before it where that differs from what it reads (PyTorch documentation, "Automatic Mixed Precision package", and its
lists of operators in aten/src/ATen/autocast_mode.h and .cpp, which differ between CPUs and GPUs). Normalisation over
channels takes a power on a GPU, and on a CPU a mean over volumes; a table of parameters is read as it is; attention
ends with a product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from planner.domain.arrays import BoolArray, IntArray
from planner.domain.kernels import (
    ATTENTION_COLUMNS,
    BACKWARD_DATA,
    BACKWARD_WEIGHT,
    FORWARD,
    PRODUCT_KINDS,
    UPDATE,
    WORK_COLUMNS,
    KernelCalls,
    LayerWork,
    WorkTotals,
    convolution_output,
)
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Site
from planner.domain.network import LayerCall, Network
from planner.domain.precision import precision_named
from planner.workload.lowering import ledger_of, lower
from planner.workload.program import program, wide_tensors

__all__ = [
    "distinct_calls", "layer_calls", "layer_work", "narrow_calls", "narrow_layers", "rest_precision", "totals",
]  # fmt: skip

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


def layer_calls(
    network: Network, *, convolution: str = "direct", optimizer: str = "sgd-momentum"
) -> Mapping[tuple[str, str], tuple[LayerCall, ...]]:
    """Return the calls of every kind and direction, in the order of :func:`planner.workload.lowering.lower`."""
    of = program(network)
    places = [of.sites[at] for at in of.site.tolist()]
    return {row[:2]: _calls(row, places, optimizer) for row in ledger_of(of, convolution, optimizer=optimizer).rows()}


def _calls(row: tuple[str, str, IntArray, IntArray], places: Sequence[Site], optimizer: str) -> tuple[LayerCall, ...]:
    kind, direction, layer, amounts = row
    is_update = direction == UPDATE
    calls = []
    for position, (count, *work) in zip(layer.tolist(), amounts.tolist(), strict=True):
        site = places[position]
        columns = dict(zip(WORK_COLUMNS[kind], map(tuple, work), strict=True))
        tensors = len(LAYER_KINDS[site.layer.kind].parameters(site.layer, site.inputs[0])) if is_update else 0
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
        tensors = _wide_by_layer(network)
        for call in own_calls:
            key = (call.kind, call.direction, call.name)
            calls.setdefault(key, call)
            for place, by_layer in tensors[call.layer.name].items():
                wide.setdefault(key, {}).setdefault(place, Counter()).update(by_layer)
            weights[key] = weights.get(key, 0.0) + _estimated_s(call) * call.count / total
    order = sorted((key for key in calls if key[0] != "bias"), key=lambda key: -weights[key])
    return tuple(
        replace(calls[key], wide={place: many.most_common(1)[0][0] for place, many in wide[key].items()})
        for key in order
    )


def _wide_by_layer(network: Network) -> Mapping[str, Mapping[str, Counter[tuple[bool, ...]]]]:
    """Return how many layers read and write what in fp32, by the first layer that is like them and by place."""
    of = program(network)
    by_layer: dict[str, dict[str, Counter[tuple[bool, ...]]]] = {}
    for place in ("cpu", "gpu"):
        tensors = wide_tensors(network, on_gpu=place == "gpu")
        for layer, at in zip(network.layers, of.site.tolist(), strict=True):
            counts = by_layer.setdefault(of.sites[at].layer.name, {}).setdefault(place, Counter())
            counts[tensors[layer.name]] += 1
    return by_layer


ASSUMED_FLOP_PER_S, ASSUMED_BYTES_PER_S = 5e10, 5e9
"""Of one thread, for the order of measuring only."""
ASSUMED_SUB_BATCH = 8
"""Samples of the sub-batch whose step the order is for."""


def _estimated_s(call: LayerCall) -> float:
    work = call.at(ASSUMED_SUB_BATCH)
    if "m" in work:
        return 2 * prod(work.values()) / ASSUMED_FLOP_PER_S
    if "queries" in work:
        return 4 * prod(work[name] for name in ATTENTION_COLUMNS[:4]) / ASSUMED_FLOP_PER_S
    if "in_c" not in work:
        return (4 * work["traffic"] + work["fixed_bytes"]) / ASSUMED_BYTES_PER_S
    outputs = work["images"] * work["out_c"] * prod(convolution_output(work))
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
