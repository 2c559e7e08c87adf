"""The model of what a framework adds to kernels, as a function of its coefficients: all fits to steps use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.steps.host_and_gpu import beside_s, composed_s, composed_slopes, together_s

__all__ = ["Passes"]


@dataclass(frozen=True, slots=True)
class Passes:
    """q passes of each of n steps by kernel_scale k, matrix_scale m and host_s_per_call h.

    Those that compose take ((Σ k·(m·matrix + traffic))^p + (Σ h·calls + launches)^p)^(1/p), each its share by GPU
    time; see :class:`planner.sources.overheads.Overheads`.

    Attributes
    ----------
    matrix_s, traffic_s, calls : ndarray of float, shape (n, q)
        Kernels of matrices and all others [s], and the number of calls.
    exponent : float, or ndarray of float, shape (n, 1)
        p.
    launches_s : float, or ndarray of float, shape (n, q)
        What the host takes besides, whatever the coefficients [s].
    beside : ndarray of bool, shape (q, q), optional
        Which passes compose with each (:func:`planner.steps.host_and_gpu.together_s`); None: all with all.
    """

    matrix_s: FloatArray
    traffic_s: FloatArray
    calls: FloatArray
    exponent: FloatArray | float
    launches_s: FloatArray | float = 0.0
    beside: BoolArray | None = None

    @classmethod
    def stacked(cls, parts: Sequence[Passes]) -> Passes:
        """Return the steps of several, one after another."""
        return cls(
            np.concatenate([one.matrix_s for one in parts]),
            np.concatenate([one.traffic_s for one in parts]),
            np.concatenate([one.calls for one in parts]),
            np.concatenate([np.broadcast_to(one.exponent, (len(one.calls), 1)) for one in parts]),
            np.concatenate([np.broadcast_to(one.launches_s, one.calls.shape) for one in parts]),
            parts[0].beside,
        )

    def times_s(self, values: FloatArray) -> FloatArray:
        """Return the times [s], shape (n, q), where (k, m, h) are ``values``, shape (3,) or (n, 3)."""
        return together_s(*self._parts_s(values), self._beside, self.exponent)

    def slopes(self, values: FloatArray) -> FloatArray:
        """Return the derivatives of :meth:`times_s` by ``values``, shape (n, q, 3)."""
        (kernel, matrix, _), beside = _columns(values), self._beside
        gpu_s, host_s = self._parts_s(values)
        gpu, host = beside_s(gpu_s, beside), beside_s(host_s, beside)
        by_gpu, by_host = composed_slopes(gpu, host, self.exponent)
        safe = np.where(gpu > 0, gpu, 1.0)
        factor, share = composed_s(gpu, host, self.exponent) / safe, gpu_s / safe
        slopes = [
            factor * own + share * (by_gpu - factor) * beside_s(own, beside)
            for own in (matrix * self.matrix_s + self.traffic_s, kernel * self.matrix_s)
        ]
        return np.stack([*slopes, share * by_host * beside_s(self.calls, beside)], axis=-1)

    @property
    def _beside(self) -> BoolArray:
        passes = self.calls.shape[1]
        return np.ones((passes, passes), dtype=np.bool_) if self.beside is None else self.beside

    def _parts_s(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return kernel and host times [s], each of shape (n, q)."""
        kernel, matrix, host = _columns(values)
        return kernel * (matrix * self.matrix_s + self.traffic_s), host * self.calls + self.launches_s


def _columns(values: FloatArray) -> FloatArray:
    """Return k, m and h, shape (3, 1), or of every step, shape (3, n, 1)."""
    return np.moveaxis(values, -1, 0)[..., None]
