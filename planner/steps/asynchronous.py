"""Asynchronous plans: periods of the two threads, and the distributions of mini-batch size and staleness.

Every GPU thread repeats with period T_GPU and adds its gradient to a buffer on its node; the update threads of all
nodes meet every T_Update, sum what lies there and update the weights (SPRINT: Oyama, Nomura, Sato, Nishimura, Tamatsu,
Matsuoka, "Predicting Statistics of Asynchronous SGD Parameters for a Large-Scale Distributed Deep Learning System on
GPU Supercomputers", IEEE BigData 2016).

====  ==========================================================================
G     GPU threads in all;  N: GPU threads on a node
n     sub-batch [samples]
q     T_Update / T_GPU, gradients of one GPU per update;  r = 1 / q
f     fractional part of q or r; both count as whole when within 1e-9 of an integer
====  ==========================================================================

Phases of the GPU threads are uniform and independent and no thread waits for another. The means are exact whatever
the jitter of the periods; the standard deviations hold between runs, and within one run only if jitter mixes phases.

A GPU thread loads its samples, computes their gradient and adds it to a buffer of its node; those of a node read from
the same storage, so that none repeats faster than storage serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.costs.features import Work
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configuration, Configurations
from planner.domain.prediction import MiniBatch, Staleness, Term
from planner.domain.split import MEMORY_KINDS
from planner.errors import ParameterError
from planner.sources.source import Source
from planner.sources.sources import Sources
from planner.steps.describe import (
    Description,
    Rest,
    Told,
    Updates,
    Window,
    add_parts,
    check_bounds,
    described,
    term_of_sources,
)
from planner.steps.epoch import Input, InputTimes
from planner.steps.intervals import Gradient, derivatives, quantity
from planner.steps.passes import Passes
from planner.steps.stages import Held, Stage, kernel_shares, stages_of
from planner.steps.step_costs import StepCosts, host_all_reduce_s, host_gradient
from planner.steps.warnings import StepWarnings, empty_updates, window_missed

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

    ``k``: ndarray of whole numbers, 0 <= k <= trials; ``trials``: ndarray of whole numbers; ``probability``: ndarray of
    float in [0, 1), 0 is a point mass at 0.
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


@dataclass(frozen=True, slots=True)
class AsyncPrices:
    """Asynchronous plans of one precision, n of them or a product, to whose shape arrays broadcast.

    Attributes
    ----------
    computing_s, updating_s : task -> ndarray of float
        What a GPU thread does with a sub-batch once it is there, and what an update thread does, one after another [s].
    load, first_load : in later epochs, and in the first
    """

    computing_s: Mapping[str, FloatArray]
    updating_s: Mapping[str, FloatArray]
    load: InputTimes
    first_load: InputTimes
    memory_bytes: FloatArray

    def chain_s(self, load: InputTimes) -> FloatArray:
        """Return what a GPU thread does one after another [s], loading for itself alone."""
        return np.asarray(sum(self.computing_s.values(), load.alone_s))

    @property
    def period_s(self) -> FloatArray:
        """How long a GPU thread takes to repeat, in later epochs [s]."""
        return np.maximum(self.chain_s(self.load), self.load.node_s)

    @property
    def first_period_s(self) -> FloatArray:
        """The same in the first epoch."""
        return np.maximum(self.chain_s(self.first_load), self.first_load.node_s)

    @property
    def update_s(self) -> FloatArray:
        """How long an update thread takes to repeat [s]."""
        return np.asarray(sum(self.updating_s.values()))


class AsyncPricer(StepCosts):
    """Prices asynchronous plans of one precision; what a GPU takes of a sub-batch stays for later calls."""

    def __init__(self, sources: Sources, precision: str, like: StepCosts | None = None) -> None:
        super().__init__(sources, precision, like.compute if like else None, mode="async")
        self.input = Input(sources)

    @property
    def parameters(self) -> int:
        """Trained parameters of the network."""
        return self.compute.ranks[0].program.parameters

    def price(self, plans: Configurations) -> AsyncPrices:
        """Price rows, or a product."""
        passes = Passes(self, plans, self.ranks(plans))
        at = passes.cases.case
        first, later = (
            self.input.times(plans.sub_batch, plans.gpus_per_node, plans.nodes, first_epoch=one)
            for one in (True, not self.input.is_cached)
        )
        computing = {
            "host_to_device": passes.copy_s[at],
            "forward": passes.forward_s[at],
            "backward": passes.backward.first_s[at],
            "update_gradient": np.full(at.shape, self.host_s("update_gradient", 1.0)),
        }
        gpu = AsyncPrices(computing, {}, later, first, self.ledger.totals(plans))
        empty_sum = self.host_s("sum_gradient", 0.0)
        per_gradient = self.host_s("sum_gradient", 1.0) - empty_sum
        all_reduce = host_all_reduce_s(self.sources, self.parameters, plans.nodes)
        weights = self.host_s("update_weights", 1.0)
        period = update_period_s(
            empty_sum + all_reduce + weights, np.full(at.shape, per_gradient), plans.gpus_per_node, gpu.period_s
        )
        gradients = np.minimum(period / gpu.period_s, 1.0) * plans.gpus_per_node
        updating = {
            "sum_gradient": per_gradient * gradients + empty_sum,
            "host_all_reduce": all_reduce,
            "update_weights": np.full(at.shape, weights),
        }
        return AsyncPrices(computing, updating, later, first, gpu.memory_bytes)

    def host_s(self, kind: str, buffers: float) -> float:
        """Return a host term [s] where so many gradient buffers are summed."""
        work = {"parameters": float(self.parameters), "buffers": buffers}
        seconds = np.atleast_1d(evaluate(self.sources.host(kind).entry, work))
        return float(self.sources.multiplied(kind, seconds)[0])


def asynchrony_of(gpus: IntArray, sub_batch: IntArray, prices: AsyncPrices) -> Asynchrony:
    """Return the statistics of priced plans, arrays that broadcast."""
    columns = np.broadcast_arrays(gpus, sub_batch, prices.period_s, prices.update_s)
    return Asynchrony(*columns)


def async_descriptions(pricer: AsyncPricer, plans: Configurations, window: Window | None) -> list[Description]:
    """Return the descriptions of asynchronous plans of one precision, rows."""
    prices, memory = pricer.price(plans), pricer.ledger.fullest(plans)
    warnings = StepWarnings(pricer.sources, pricer.precision, "async")
    units = pricer.compute.ranks[0].units
    number = np.bincount(units.sequence, minlength=units.distinct).astype(np.float64)
    every = [Held(0, sub_batch, number, np.zeros_like(number)) for sub_batch in plans.sub_batch.tolist()]
    descriptions = []
    for row, stages in enumerate(stages_of(pricer, every)):
        case = _Case(pricer, plans.one(row), stages, prices, row)
        sizes = {name: float(getattr(memory, name)[row]) for name in (*MEMORY_KINDS, "total")}
        descriptions.append(described(case.told(sizes, window, warnings)))
    return descriptions


class _Served(NamedTuple):
    """What a task of a thread takes and what serves it; ``add`` puts its derivatives into a gradient."""

    term: str
    seconds: float
    sources: Sequence[Source]
    add: Callable[[Gradient], None]
    extrapolated: bool = False


class _Case:
    """One plan, at a row of prices, and the stages of its sub-batch."""

    def __init__(
        self, pricer: AsyncPricer, one: Configuration, stages: dict[str, Stage], prices: AsyncPrices, row: int
    ) -> None:
        self.pricer, self.one, self.stages, self.row = pricer, one, stages, row
        self.prices = prices
        self.period_s, self.first_s, self.update_s = (
            self._of_row(each) for each in (prices.period_s, prices.first_period_s, prices.update_s)
        )
        self.computing = [self._computing(name, self._of_row(seconds)) for name, seconds in prices.computing_s.items()]
        self.updating = [self._updating(name, self._of_row(seconds)) for name, seconds in prices.updating_s.items()]

    def _of_row(self, of_plans: FloatArray) -> float:
        return float(np.broadcast_to(of_plans, self.prices.period_s.shape)[self.row])

    def told(self, memory: dict[str, float], window: Window | None, warnings: StepWarnings) -> Told:
        """Return what is told of the plan."""
        pricer, one, gradient = self.pricer, self.one, self._gradient(self.prices.load, first_epoch=False)
        loads = pricer.input
        chain_s = self._of_row(self.prices.chain_s(self.prices.load))
        load_s = self._of_row(self.prices.load.alone_s) + max(self.period_s - chain_s, 0.0)
        load = _Served("load_input", load_s, loads.used if load_s > 0 else (), lambda _: None, loads.extrapolates)
        terms = [*self._terms("gpu", [load, *self.computing]), *self._terms("update", self.updating)]

        def rest() -> Rest:
            first = gradient
            if self.first_s != self.period_s:
                first = self._gradient(self.prices.first_load, first_epoch=True)
            updates = self._updates(gradient, window)
            return Rest((self.first_s, first), memory, kernel_shares(self.stages, 1), updates)

        return Told(
            sources=pricer.sources,
            overheads=pricer.overheads,
            one=one,
            period_s=self.period_s,
            gradient=gradient,
            terms=tuple(terms),
            in_use=tuple(source for one in (load, *self.computing, *self.updating) for source in one.sources),
            thread="gpu",
            warnings=warnings,
            rest=rest,
            is_unseen=one.gpus > 1 and pricer.sources.device_all_reduce.origin == "specified",
        )

    @staticmethod
    def _terms(thread: str, tasks: Sequence[_Served]) -> Iterable[Term]:
        period = sum(one.seconds for one in tasks)
        for one in tasks:
            seconds = one.seconds, one.seconds, one.seconds / period if period > 0 else 0.0
            yield term_of_sources(one.term, thread, seconds, one.sources, extrapolated=one.extrapolated)

    def _multiplier(self, term: str, nodes: int = 1) -> float:
        return float(self.pricer.sources.problem.scenario.factor(term, self.pricer.precision, nodes))

    def _computing(self, name: str, seconds: float) -> _Served:
        """Return a task of the GPU thread."""
        if name in self.stages:
            stage, held = self.stages[name], self.pricer.compute.ranks[0].program.repeats.astype(np.float64)
            return _Served(
                name, seconds, stage.sources, lambda of: add_parts(of, stage.parts, held), stage.extrapolated
            )
        if name == "host_to_device":
            work = {"bytes": self.pricer.compute.ranks[0].input_bytes * self.one.sub_batch}
            return self._call(name, seconds, self.pricer.sources.host_to_device, work)
        return self._host(name, seconds)

    def _updating(self, name: str, seconds: float) -> _Served:
        """Return a task of the update thread."""
        if name == "host_all_reduce":
            source, factor = self.pricer.sources.host_all_reduce, self._multiplier("all_reduce", self.one.nodes)

            def add(gradient: Gradient) -> None:
                slopes, taken_s = host_gradient(self.pricer.sources, self.pricer.parameters, self.one.nodes)
                gradient.add_vector(source.entry, factor * slopes, factor * taken_s)

            return _Served("all_reduce", seconds, (source,) if seconds > 0 else (), add)
        gradients = min(self.update_s / self.period_s, 1.0) * self.one.gpus_per_node
        return self._host(name, seconds, gradients if name == "sum_gradient" else 1.0)

    def _host(self, kind: str, seconds: float, buffers: float = 1.0) -> _Served:
        work = {"parameters": float(self.pricer.parameters), "buffers": buffers}
        return self._call(kind, seconds, self.pricer.sources.host(kind), work)

    def _call(self, term: str, seconds: float, source: Source | None, work: Work) -> _Served:
        """Return a task that is one call of an entry."""
        if source is None or seconds <= 0:
            return _Served(term, seconds, (), lambda _: None)
        factor = self._multiplier(term)

        def add(gradient: Gradient) -> None:
            taken_s = float(evaluate(source.entry, work))
            gradient.add_vector(source.entry, factor * derivatives(source.entry, work), factor * taken_s)

        return _Served(term, seconds, (source,), add)

    def _gradient(self, load: InputTimes, *, first_epoch: bool) -> Gradient:
        """Return the gradient of the GPU thread's period, along what decides it: storage, or the thread itself."""
        gradient, one = Gradient(), self.one
        is_storage = self._of_row(load.node_s) > self._of_row(self.prices.chain_s(load))
        seconds = self._of_row(load.node_s if is_storage else load.alone_s)
        if seconds > 0:
            samples = one.sub_batch, one.gpus_per_node, one.nodes
            self.pricer.input.add_to(gradient, seconds, *samples, first_epoch=first_epoch, alone=not is_storage)
        for task in () if is_storage else self.computing:
            if task.seconds > 0:
                task.add(gradient)
        return gradient

    def _update_gradient(self, of_gpu: Gradient) -> Gradient:
        """Return the gradient of the update thread's period, given that of the GPU thread's.

        Where q < 1, T = C / (1 - s·N / T_GPU): deviations of C and s grow by T / C, and those of T_GPU enter with the
        opposite sign: the longer it is, the fewer gradients are summed.
        """
        gradient, growth, own = Gradient(), 1.0, Gradient()
        if self.update_s < self.period_s:
            summing = self._of_row(self.prices.updating_s["sum_gradient"]) - self.pricer.host_s("sum_gradient", 0.0)
            growth = self.update_s / (self.update_s - summing)
            gradient.add_scaled(of_gpu, -growth * summing / self.period_s)
        for task in self.updating:
            if task.seconds > 0:
                task.add(own)
        gradient.add_scaled(own, growth)
        return gradient

    def _updates(self, gradient: Gradient, window: Window | None) -> Updates:
        """Return what lies behind an update."""
        one = np.array([self.one.gpus]), np.array([self.one.sub_batch])
        statistics = Asynchrony(*one, np.array([self.period_s]), np.array([self.update_s]))
        check_bounds(float(statistics.update_s[0]), "time", "an update", "s")
        check_bounds(float(statistics.mini_batch_mean[0]), "count", "a mini-batch", "samples")
        mini_batch = MiniBatch(
            float(statistics.mini_batch_mean[0]),
            float(statistics.mini_batch_std[0]),
            statistics.mini_batch_quantile(0, 0.05),
            statistics.mini_batch_quantile(0, 0.95),
            None if window is None else float(statistics.window_probability(*window("async"))[0]),
        )
        staleness = Staleness(
            float(statistics.staleness_mean[0]), float(statistics.staleness_std[0]), statistics.staleness_pmf(0)
        )
        notes = (
            *empty_updates(float(statistics.empty_probability[0]), mini_batch.mean),
            *(() if window is None else window_missed(mini_batch, window("async"))),
        )
        update = quantity(float(statistics.update_s[0]), self._update_gradient(gradient).spread())
        return Updates(update, mini_batch, staleness, notes)
