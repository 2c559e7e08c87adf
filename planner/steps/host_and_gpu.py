"""How host and GPU share the time of a step: what the host starts, and how its time and that of kernels compose.

A step takes (GPU^p + host^p)^(1/p) of all its stages (:data:`TOGETHER`): the host runs ahead from stage to stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray

STAGES = ("forward", "backward", "accumulating", "update")
WITH_RECOMPUTE = (*STAGES, "recompute")
"""Stages of a rank that may compute its forward pass again."""
_PASS, _STEP = ("forward", "accumulating", "recompute"), ("forward", "backward", "update", "recompute")
_THREAD = ("forward", "backward")


def _beside(step: tuple[str, ...]) -> BoolArray:
    with_each = [_PASS if one == "accumulating" else step if one in step else (one,) for one in WITH_RECOMPUTE]
    return np.array([[other in some for other in WITH_RECOMPUTE] for some in with_each])


TOGETHER = {"sync": _beside(_STEP), "async": _beside(_THREAD)}
"""Mode -> whose GPU and host time compose with a stage's, shape (5, 5), both in the order of WITH_RECOMPUTE: those of a
step with one pass, of each further pass those of the pass; asynchronous steps leave updates to another thread."""


class CallCounts(NamedTuple):
    """How much the host has to start.

    ``calls``, ``measured_calls``: operations of the framework in all, and without those whose kernels are specified;
    ``launches``: kernels beyond one an operation.
    """

    calls: FloatArray
    measured_calls: FloatArray
    launches: FloatArray


def composed_s(gpu_s: FloatArray, host_s: FloatArray | float, exponent: FloatArray | float) -> FloatArray:
    """Return (GPU^p + host^p)^(1/p) [s], shape of all together; see :class:`planner.sources.overheads.Overheads`."""
    longer = np.maximum(gpu_s, host_s)
    parts = np.divide(np.minimum(gpu_s, host_s), longer, out=np.zeros_like(longer), where=longer > 0)
    seconds: FloatArray = longer * (1 + parts**exponent) ** (1 / exponent)
    return seconds


def composed_slopes(
    gpu_s: FloatArray, host_s: FloatArray | float, exponent: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Return the derivatives of :func:`composed_s` by GPU and by host time, of its shape."""
    whole = composed_s(gpu_s, host_s, exponent)
    shares = (np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0) for part in (gpu_s, host_s))
    by_gpu, by_host = (share ** (exponent - 1) for share in shares)
    return by_gpu, by_host


def beside_s(seconds: FloatArray, beside: BoolArray) -> FloatArray:
    """Return the sums over the stages that compose with each, of shape (..., q) as ``seconds``; see together_s."""
    return np.stack([seconds[..., row].sum(axis=-1) for row in beside], axis=-1)


def together_s(gpu_s: FloatArray, host_s: FloatArray, beside: BoolArray, exponent: FloatArray | float) -> FloatArray:
    """Return what stages take that compose with others [s], shape (..., q).

    Parameters
    ----------
    gpu_s, host_s : ndarray of float, shape (..., q); of each stage alone [s]
    beside : ndarray of bool, shape (q, q); which stages compose with each, itself among them
    exponent : float, or ndarray of float whose shape broadcasts
    """
    gpu, host = beside_s(gpu_s, beside), beside_s(host_s, beside)
    whole, has_gpu = composed_s(gpu, host, exponent), gpu > 0
    part, of = np.where(has_gpu, gpu_s, host_s), np.where(has_gpu, gpu, host)
    seconds: FloatArray = whole * np.divide(part, of, out=np.zeros_like(whole), where=of > 0)
    return seconds
