"""The kernel calls of the steps that a calibration is wanted for, and what is expected of a call before it is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.costs.cpu import DEPTHWISE_APART, KERNELS_APART
from planner.costs.features import Settings
from planner.costs.kernels import BATCHED_APART, OBLONG_APART
from planner.costs.work import flop, moved_bytes
from planner.domain.arrays import FloatArray
from planner.domain.calls import LayerCall, kind_of_kernel
from planner.domain.cluster import Accelerator
from planner.domain.kernels import FORWARD, LINEAR_BIAS, TRAFFIC_KINDS
from planner.domain.network import Network
from planner.domain.precision import precision_named
from planner.workload.calls import layer_calls

__all__ = [
    "SUB_BATCHES", "Key", "WantedCall", "call_name", "expected_term", "guessed_s", "key_of", "timing_s", "wanted_calls",
]  # fmt: skip

SUB_BATCHES = (2, 8, 32)
"""Samples of the steps whose error counts: between and beyond the two sub-batches at which calls are timed."""
LAUNCH_S, PEAK_SHARE, BANDWIDTH_SHARE = 5e-6, 0.4, 0.6
"""For a first guess of a call's time: launch, and shares of the peak rates."""
BLOCK_S, BLOCKS, LONG_S, LONG_CALLS, SETTING_UP_S = 2e-3, 5, 0.01, 4, 2e-3
"""What timing a call costs: blocks of at least so long [s] and two calls before them, or of a long call four in all."""

ALWAYS_FP32 = ("embedding", "update")
"""Kinds that mixed precision of 16 bits leaves in fp32."""

Key = tuple[str, str, str]
"""Kind, direction, precision of what one fit serves; ``any`` for kinds whose work is bytes."""


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A call of wanted steps.

    Attributes
    ----------
    work : mapping of work column to (a, b) of a + b·samples
    itemsize : float
        Bytes of an element.
    counts : dict of a step's place to how often it makes the call
    """

    work: Mapping[str, tuple[int, int]]
    itemsize: float
    counts: dict[int, int] = field(default_factory=dict)


def wanted_calls(
    networks: Sequence[Network], precisions: Sequence[str], products: Sequence[str] = (), *, on_gpu: bool = False
) -> dict[Key, dict[str, WantedCall]]:
    """Return the calls of the networks' steps by what serves them, each once.

    A step is of one network in one precision, precisions of a network side by side. A call that is the same in several
    precisions is one call. Biases are left out where they are timed with the call before them: all on a CPU, those of
    linear layers on a GPU. Of ``products``, precisions behind the others, a step has the products of linear layers
    alone, and in int8 on a CPU convolutions forward.
    """
    fused_kinds = (LINEAR_BIAS,) if on_gpu else ("bias", LINEAR_BIAS)
    by_key: dict[Key, dict[str, WantedCall]] = {}
    for at, network in enumerate(networks):
        of_kinds = layer_calls(network, optimizer=network.optimizer).values()
        for call in (call for calls in of_kinds for call in calls):
            if kind_of_kernel(call.kind, call.layer) in fused_kinds:
                continue
            for by, precision in enumerate((*precisions, *products)):
                is_narrow = (call.kind, call.layer.kind) == ("gemm", "linear")
                is_narrow |= (precision, call.kind, call.direction, on_gpu) == ("int8", "convolution", FORWARD, False)
                if precision in products and not is_narrow:
                    continue
                of_key = by_key.setdefault(key_of(call, precision), {})
                own = _timed_in(call, precision)
                itemsize = float(precision_named(own).activation_bytes)
                one = of_key.setdefault(call_name(call, own), WantedCall(call.work, itemsize))
                step = at * (len(precisions) + len(products)) + by
                one.counts[step] = one.counts.get(step, 0) + call.count
    return by_key


def key_of(call: LayerCall, precision: str) -> Key:
    """Return what fit serves a call of a layer."""
    kind = kind_of_kernel(call.kind, call.layer)
    return kind, call.direction, "any" if kind in TRAFFIC_KINDS else precision


def _timed_in(call: LayerCall, precision: str) -> str:
    """Return the precision that a call of a step is timed in: TF32 and 16 bits leave some as they are in fp32."""
    is_fp32 = call.kind in ALWAYS_FP32 or (precision == "tf32" and key_of(call, precision)[2] == "any")
    return "fp32" if is_fp32 else precision


def call_name(call: LayerCall, precision: str) -> str:
    """Return what tells a call in a precision apart from others of its kind and direction."""
    return f"{precision} {call.name}"


def expected_term(key: Key, accelerator: Accelerator) -> tuple[str, Settings]:
    """Return the feature map that a fit most likely takes, and its settings."""
    kind, direction, _ = key
    if kind == "attention":
        return "cpu.attention" if accelerator.kind == "cpu" else "attention.blocks", {"direction": direction}
    if accelerator.kind == "cpu":
        cpu: Mapping[str, tuple[str, Settings]] = {
            "convolution": ("cpu.convolution", {"direction": direction, DEPTHWISE_APART: KERNELS_APART}),
            "gemm": ("cpu.product", {"direction": direction, BATCHED_APART: 1.0}),
        }
        return cpu.get(kind, ("cpu.traffic", {}))
    processors = float(accelerator.multiprocessors or 0)
    gpu: Mapping[str, tuple[str, Settings]] = {
        "convolution": ("convolution.classes", {"direction": direction, OBLONG_APART: 1.0}),
        "gemm": ("gemm.tiles", {"tiles": (128.0, 64.0), "multiprocessors": processors, BATCHED_APART: 1.0}),
    }
    return gpu.get(kind, ("traffic.bytes", {}))


def guessed_s(work: Mapping[str, FloatArray], key: Key, accelerator: Accelerator) -> FloatArray:
    """Return a first guess of times [s]: launch, FLOP and bytes at shares of the peak rates."""
    rates = accelerator.peak_flop_per_s
    rate = rates.get(key[2], max(rates.values(), default=1e11))
    guess: FloatArray = (
        LAUNCH_S
        + flop(work, key[1]) / (PEAK_SHARE * rate)
        + moved_bytes(work, key[1]) / (BANDWIDTH_SHARE * accelerator.memory_bytes_per_s)
    )
    return guess


def timing_s(time_s: FloatArray) -> FloatArray:
    """Return what it takes to time calls of so long [s]."""
    blocks = 2 * time_s + BLOCKS * np.maximum(time_s, BLOCK_S)
    return np.asarray(SETTING_UP_S + np.where(time_s >= LONG_S, LONG_CALLS * time_s, blocks))
