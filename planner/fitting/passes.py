"""The model of what a framework adds to kernels, as a function of its coefficients: all fits to steps use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray
from planner.steps.compute import composed_s, composed_slopes

__all__ = ["Passes"]


@dataclass(frozen=True, slots=True)
class Passes:
    """q passes of each of n steps by kernel_scale k, matrix_scale m and host_s_per_call h.

    One takes ((k·(m·matrix + traffic))^p + (h·calls + launches)^p)^(1/p); see
    :class:`planner.sources.overheads.Overheads`.

    Attributes
    ----------
    matrix_s, traffic_s, calls : ndarray of float, shape (n, q)
        Kernels of matrices and all others [s], and the number of calls.
    exponent : float, or ndarray of float, shape (n, 1)
        p.
    launches_s : float, or ndarray of float, shape (n, q)
        What the host takes besides, whatever the coefficients [s].
    """

    matrix_s: FloatArray
    traffic_s: FloatArray
    calls: FloatArray
    exponent: FloatArray | float
    launches_s: FloatArray | float = 0.0

    @classmethod
    def stacked(cls, parts: Sequence[Passes]) -> Passes:
        """Return the steps of several, one after another."""
        return cls(
            np.concatenate([one.matrix_s for one in parts]),
            np.concatenate([one.traffic_s for one in parts]),
            np.concatenate([one.calls for one in parts]),
            np.concatenate([np.broadcast_to(one.exponent, (len(one.calls), 1)) for one in parts]),
            np.concatenate([np.broadcast_to(one.launches_s, one.calls.shape) for one in parts]),
        )

    def times_s(self, values: FloatArray) -> FloatArray:
        """Return the times [s], shape (n, q), where (k, m, h) are ``values``, shape (3,) or (n, 3)."""
        return composed_s(*self._parts_s(values), self.exponent)

    def slopes(self, values: FloatArray) -> FloatArray:
        """Return the derivatives of :meth:`times_s` by ``values``, shape (n, q, 3)."""
        kernel, matrix, _ = _columns(values)
        by_gpu, by_host = composed_slopes(*self._parts_s(values), self.exponent)
        kernels_s = matrix * self.matrix_s + self.traffic_s
        return np.stack([by_gpu * kernels_s, by_gpu * kernel * self.matrix_s, by_host * self.calls], axis=-1)

    def _parts_s(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return kernel and host times [s], each of shape (n, q)."""
        kernel, matrix, host = _columns(values)
        return kernel * (matrix * self.matrix_s + self.traffic_s), host * self.calls + self.launches_s


def _columns(values: FloatArray) -> FloatArray:
    """Return k, m and h, shape (3, 1), or of every step, shape (3, n, 1)."""
    return np.moveaxis(values, -1, 0)[..., None]
