"""Asynchronous SGD: periods of the two threads, and the distributions of mini-batch size and staleness.

Every GPU thread repeats with period T_GPU and adds its gradient to a buffer on its node; the update threads of all
nodes meet every T_Update, sum what lies there and update the weights [1]_.

====  ==========================================================================
G     GPU threads in all;  N: GPU threads on a node
n     sub-batch [samples]
q     T_Update / T_GPU, gradients of one GPU per update;  r = 1 / q
f     fractional part of q or r; both count as whole when within 1e-9 of an integer
====  ==========================================================================

Phases of the GPU threads are uniform and independent and no thread waits for another. The means are exact whatever
the jitter of the periods; the standard deviations hold between runs, and within one run only if jitter mixes phases.

References
----------
.. [1] Oyama, Nomura, Sato, Nishimura, Tamatsu, Matsuoka, "Predicting Statistics of Asynchronous SGD Parameters for
   a Large-Scale Distributed Deep Learning System on GPU Supercomputers", IEEE BigData 2016 (SPRINT)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.errors import ParameterError

__all__ = ["INTEGER_GUARD", "Asynchrony", "binomial_pmf", "update_period_s", "whole_and_fraction"]

INTEGER_GUARD = 1e-9
"""A period ratio this near to an integer is one: .6 / .2 is 2.9999999999999996."""
_SUPPORT_DEVIATIONS = 40.0
"""Standard deviations from the mean beyond which a binomial probability is below 1e-300 and left out."""
_CHUNK = 1 << 18
"""Terms of the binomial sums evaluated at once; bounds memory at a few MB."""


def whole_and_fraction(ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the whole and the fractional part of ``ratio`` >= 0, of its shape; see INTEGER_GUARD."""
    nearest = np.rint(ratio)
    is_whole = np.abs(ratio - nearest) < INTEGER_GUARD
    whole = np.where(is_whole, nearest, np.floor(ratio))
    return whole, np.where(is_whole, 0.0, ratio - whole)


def update_period_s(
    fixed_s: FloatArray, per_gradient_s: FloatArray, gpus_per_node: IntArray, gpu_s: FloatArray
) -> FloatArray:
    """Return T_Update [s] where the update thread sums only the buffers in which a gradient was deposited.

    On average a node finds N·min(1, q) gradients, and q depends on T_Update itself. The one solution of
    T = C + s·N·min(1, T / T_GPU) is C + s·N when that is at least T_GPU (q >= 1), else C / (1 - s·N / T_GPU).

    Parameters
    ----------
    fixed_s : ndarray of float, C [s], > 0; what an update takes whatever was deposited: all-reduce, weights
    per_gradient_s : ndarray of float, s [s], >= 0; summing one gradient
    gpus_per_node : ndarray of int, N
    gpu_s : ndarray of float, T_GPU [s], > 0; all broadcast together

    Returns
    -------
    ndarray of float, of the common shape
    """
    summing_s = per_gradient_s * gpus_per_node
    full_s = fixed_s + summing_s
    # Where the first case holds, 1 - s·N / T_GPU may be zero or negative and is not used.
    remaining_share = np.where(full_s >= gpu_s, 1.0, 1.0 - summing_s / gpu_s)
    return np.where(full_s >= gpu_s, full_s, fixed_s / remaining_share)


_STIRLING_FROM = 16
_SMALL_LOG_FACTORIALS = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, _STIRLING_FROM)))])


def _log_factorial(n: FloatArray) -> FloatArray:
    """Return ln n! for whole n >= 0: a table below 16, Stirling's series above (relative error below 1e-15)."""
    x = np.maximum(n, float(_STIRLING_FROM))
    inverse = 1.0 / x
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    large = (x + 0.5) * np.log(x) - x + 0.5 * np.log(2 * np.pi) + series
    small = _SMALL_LOG_FACTORIALS[np.minimum(n, _STIRLING_FROM - 1).astype(np.int64)]
    return np.where(n < _STIRLING_FROM, small, large)


def binomial_pmf(k: FloatArray, trials: FloatArray, probability: FloatArray) -> FloatArray:
    """Return P(K = k) of a binomial variable, exact to about trials·1e-15; the arguments broadcast.

    Parameters
    ----------
    k : ndarray of whole numbers, 0 <= k <= trials
    trials : ndarray of whole numbers
    probability : ndarray of float in [0, 1); 0 is a point mass at 0
    """
    point_mass = probability <= 0
    p = np.where(point_mass, 0.5, probability)
    ways = _log_factorial(trials) - _log_factorial(k) - _log_factorial(trials - k)
    masses = np.exp(ways + k * np.log(p) + (trials - k) * np.log1p(-p))
    return np.where(point_mass, np.where(k == 0, 1.0, 0.0), masses)


@dataclass(frozen=True, slots=True)
class Asynchrony:
    """The statistics of n asynchronous configurations; every field and every result has shape (n,).

    Attributes
    ----------
    gpus : ndarray of int, G >= 1
    sub_batch : ndarray of int, n [samples]
    gpu_s, update_s : ndarray of float, T_GPU and T_Update [s], > 0
    """

    gpus: IntArray
    sub_batch: IntArray
    gpu_s: FloatArray
    update_s: FloatArray

    def __post_init__(self) -> None:
        for name in ("gpu_s", "update_s"):
            periods: FloatArray = getattr(self, name)
            if not bool(np.all(np.isfinite(periods) & (periods > 0))):
                raise ParameterError(name, "finite periods above 0 s", periods)

    @property
    def q(self) -> FloatArray:
        """T_Update / T_GPU."""
        return self.update_s / self.gpu_s

    @property
    def r(self) -> FloatArray:
        """T_GPU / T_Update."""
        return self.gpu_s / self.update_s

    @property
    def samples_per_s(self) -> FloatArray:
        """G·n / T_GPU: the update thread does not slow the GPU threads down."""
        return self.gpus * self.sub_batch / self.gpu_s

    def epoch_s(self, samples: int) -> FloatArray:
        """Return N_S·T_GPU / (G·n) [s], of N_S samples."""
        return samples * self.gpu_s / (self.gpus * self.sub_batch)

    @property
    def mini_batch_mean(self) -> FloatArray:
        """n·G·q [samples]."""
        return self.q * self.gpus * self.sub_batch

    @property
    def mini_batch_std(self) -> FloatArray:
        """n·sqrt(G·f·(1 - f)) [samples], f of q."""
        f = whole_and_fraction(self.q)[1]
        return np.sqrt(f * (1 - f) * self.gpus) * self.sub_batch

    @property
    def staleness_mean(self) -> FloatArray:
        """R + 1 [updates]; never below 1: the update in flight when a gradient is deposited."""
        return self.r + 1

    @property
    def staleness_std(self) -> FloatArray:
        """sqrt(f·(1 - f)) [updates], f of r."""
        f = whole_and_fraction(self.r)[1]
        return np.sqrt(f * (1 - f))

    @property
    def empty_probability(self) -> FloatArray:
        """(1 - q)^G for q < 1, else 0: an update that finds no gradient."""
        whole, f = whole_and_fraction(self.q)
        return np.where(whole > 0, 0.0, np.exp(self.gpus * np.log1p(-f)))

    def staleness_pmf(self, position: int) -> dict[int, float]:
        """Return {staleness: probability}: Z + floor(r) + 1 with Z ~ Bernoulli(f); one entry when r is whole."""
        whole, f = (float(part[position]) for part in whole_and_fraction(self.r))
        least = int(whole) + 1
        return {least: 1.0} if f == 0 else {least: 1 - f, least + 1: f}

    def mini_batch_pmf(self, position: int) -> tuple[IntArray, FloatArray]:
        """Return possible mini-batches [samples] and their probabilities: n·(G·floor(q) + Binomial(G, f)).

        Values with a probability below 1e-300 are left out.
        """
        whole, f = (part[position : position + 1] for part in whole_and_fraction(self.q))
        trials = self.gpus[position : position + 1].astype(np.float64)
        low, high = _support(trials, f)
        k = np.arange(low[0], high[0] + 1)
        values = self.sub_batch[position] * (trials * whole + k).astype(np.int64)
        return values, binomial_pmf(k, trials, f)

    def mini_batch_quantile(self, position: int, level: float) -> float:
        """Return the least mini-batch m [samples] with P(mini-batch <= m) >= level."""
        values, probabilities = self.mini_batch_pmf(position)
        below = np.searchsorted(np.cumsum(probabilities), level * (1 - 1e-12))
        return float(values[min(int(below), values.size - 1)])

    def window_probability(self, low: FloatArray | float, high: FloatArray | float) -> FloatArray:
        """Return P(low <= mini-batch <= high), shape (n,), the bounds [samples] included."""
        whole, f = whole_and_fraction(self.q)
        trials = self.gpus.astype(np.float64)
        least, most = _support(trials, f)
        offset = trials * whole
        first = np.maximum(np.ceil(low / self.sub_batch - offset - INTEGER_GUARD), least)
        last = np.minimum(np.floor(high / self.sub_batch - offset + INTEGER_GUARD), most)
        terms = np.maximum(last - first + 1, 0).astype(np.int64)
        probabilities = np.zeros(terms.size)
        for chunk in _chunks(terms):
            sizes = terms[chunk]
            owner = np.repeat(np.arange(sizes.size), sizes)
            within = np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            pmf = binomial_pmf(first[chunk][owner] + within, trials[chunk][owner], f[chunk][owner])
            probabilities[chunk] = np.bincount(owner, weights=pmf, minlength=sizes.size)
        return np.minimum(probabilities, 1.0)


def _support(trials: FloatArray, probability: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the least and largest count worth evaluating."""
    mean = trials * probability
    width = _SUPPORT_DEVIATIONS * (np.sqrt(mean * (1 - probability)) + _SUPPORT_DEVIATIONS)
    return np.maximum(np.floor(mean - width), 0.0), np.minimum(np.ceil(mean + width), trials)


def _chunks(terms: IntArray) -> Iterator[slice]:
    """Yield slices of rows whose terms add up to about _CHUNK."""
    ends = np.cumsum(terms)
    start = 0
    while start < terms.size:
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + _CHUNK, side="right")), start + 1)
        yield slice(start, stop)
        start = stop
