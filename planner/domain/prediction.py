"""Predictions: what a configuration takes, term by term. One is a record, many are arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from planner.domain.arrays import FloatArray, frozen_map
from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration
from planner.domain.kernels import KernelRow
from planner.domain.keys import Key
from planner.domain.provenance import NORMAL_90, Provenance
from planner.domain.split import SCHEMES
from planner.numbers import constant
from planner.units import format_count

LOSSY = "lossy"
"""Code of the warning of a precision that loses accuracy."""
LOOKUPS: Mapping[str, str] = frozen_map(
    {
        "exact": "exact calls",
        "between": "between sub-batches",
        "beyond": "beyond sub-batches",
        "regression": "regression",
        "sibling": "scaled from another GPU",
        "specification": "specification",
    }
)
"""How the time of a kernel is found -> in words; in the order in which it is looked for."""


@dataclass(frozen=True, slots=True)
class Run:
    """The whole training: so many epochs, or so many tokens of a language model where these are given."""

    epochs: int = 1
    tokens: float = 0.0

    @property
    def words(self) -> str:
        """It in words: ``15 T tokens``."""
        return (
            f"{format_count(self.tokens)} tokens" if self.tokens else f"{self.epochs:,} epoch{'s'[: self.epochs > 1]}"
        )


@dataclass(frozen=True, slots=True)
class Quantity:
    """A predicted value with its central 90 % interval (both ends, or neither) and what the interval rests on.

    ``deviation`` is the standard deviation of the value's logarithm that the fits state; None: not known.
    """

    value: Annotated[float, Key("the prediction")]
    low: Annotated[float | None, Key("lower end of the central 90% interval", null=True)] = None
    high: Annotated[float | None, Key("upper end", null=True)] = None
    interval_basis: Annotated[
        str,
        Key(
            "what the interval rests on; absent: as iteration_s, whose is none",
            absent=None,
            choices=("none", "assumed", "covariance", "conformal"),
        ),
    ] = "none"
    deviation: float | None = None


SURE_TO_FIT = 0.9
"""Probability that memory suffices, below which a plan that is predicted to fit says so."""


def share_that_fits(needed_bytes: float, capacity_bytes: float, half_width: float | None = None) -> float:
    """Return the probability that a plan of so much predicted memory runs: what it needs is lognormal about that.

    >>> share_that_fits(8.0, 8.0, 0.5), share_that_fits(1.0, 8.0, 0.5) > 0.99
    (0.5, True)
    """
    if needed_bytes <= 0:
        return 1.0
    reach = constant("memory.half_width") if half_width is None else half_width
    return 0.5 * math.erfc(math.log(needed_bytes / capacity_bytes) * NORMAL_90 / (reach * math.sqrt(2)))


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Distribution of the mini-batch [samples]."""

    mean: Annotated[float, Key("mean of the samples behind an update")]
    std: Annotated[float, Key("std of the samples behind an update")]
    p05: Annotated[float, Key("p05 of the samples behind an update")]
    p95: Annotated[float, Key("p95 of the samples behind an update")]
    probability_in_window: Annotated[
        float | None, Key("that it lies in the target's window; absent: no target", unit="share")
    ] = None


@dataclass(frozen=True, slots=True)
class Staleness:
    """Distribution of the staleness [updates]."""

    mean: Annotated[float, Key("mean of the updates between reading and applying")]
    std: Annotated[float, Key("its standard deviation; absent: that of pmf", absent=None)]
    pmf: Annotated[Mapping[int, float], Key("probability of each number of updates", pattern="[0-9]+", unit="share")]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pmf", frozen_map(self.pmf))


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a step.

    ``share`` is the exposed part of its thread's period; ``origins`` and the names of ``calibrations`` say where its
    coefficients come from; ``provenance`` holds the same as records, and nothing in a prediction that was read from a
    document.
    """

    name: Annotated[str, Key("name of the term")]
    thread: Annotated[
        str,
        Key(
            "thread that it runs in; absent: step when synchronous, gpu when asynchronous",
            absent=None,
            choices=("step", "gpu", "update"),
        ),
    ]
    seconds: Annotated[float, Key("what it takes")]
    exposed_seconds: Annotated[
        float,
        Key(
            "what it adds to the period of its thread (update_s of the thread update, else iteration_s); absent: all",
            absent=None,
        ),
    ]
    share: float
    origins: tuple[str, ...]
    calibrations: tuple[str, ...]
    extrapolated: Annotated[bool, Key("whether it lies outside what was fitted", absent=False)]
    provenance: tuple[Provenance, ...] = ()

    @property
    def origin(self) -> str:
        """The origins in one text."""
        return "+".join(self.origins)

    @property
    def calibration(self) -> str:
        """The names of calibrations in one text."""
        return ", ".join(self.calibrations)


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """Something the reader of an answer should know."""

    code: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class SharedLayers:
    """How the devices of a group share the layers of a network, and what as many data-parallel ones take.

    These have the samples of a group between them.
    """

    schemes: Annotated[Mapping[str, str], Key("of each layer with parameters", choices=SCHEMES)]
    sent_bytes: Annotated[float, Key("bytes that one device sends in a step")]
    data_sent_bytes: Annotated[float, Key("the same of as many data-parallel devices")]
    data_iteration_s: Annotated[float, Key("step of the data-parallel devices, with the same mini-batch")]


@dataclass(frozen=True, slots=True)
class Predictions:
    """n predictions as arrays of shape (n,); NaN where a quantity does not apply."""

    iteration_s: FloatArray
    update_s: FloatArray
    samples_per_s: FloatArray
    epoch_s: FloatArray
    first_epoch_s: FloatArray
    mini_batch_mean: FloatArray
    staleness_mean: FloatArray
    memory_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class LayersOfStage:
    """What a stage of a transformer's pipeline holds."""

    layers: Annotated[int, Key("layers of a transformer")]
    again: Annotated[int, Key("of these computed again, the first ones; absent: none", least=0)] = 0
    recompute: Annotated[str, Key("what of them; absent: none", choices=("none", "selective", "full"))] = "none"


_FOLLOWS = "low and high, where absent, are in the ratio to value that those of iteration_s are"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Everything about one configuration; memory in bytes on one device, by kind, with ``total`` and ``capacity``.

    ``low`` and ``high`` of the memory are the ends of the interval of the total; absent where it has none.

    ``kind`` is one of :data:`planner.domain.provenance.PREDICTION_KINDS`, or empty: no score applies.
    ``kernel_shares`` maps each of LOOKUPS to its share of the kernel time of a step; all 0 where kernels take none.
    ``doubt`` is of ``iteration_s``, the largest first; empty where there is no interval.
    ``stage_layers`` are what its stages hold where that is chosen; empty: they hold the same, and compute again alike.
    """

    configuration: Configuration
    iteration_s: Annotated[Quantity, Key("one update; asynchronous: one period of the GPU thread")]
    update_s: Annotated[
        Quantity | None, Key(f"one period of the update thread, asynchronous only; {_FOLLOWS}", absent=None)
    ]
    epoch_s: Annotated[
        Quantity | None,
        Key(f"a later epoch (samples cached as far as they fit); absent without data set; {_FOLLOWS}", absent=None),
    ]
    first_epoch_s: Annotated[Quantity | None, Key(f"the first epoch; absent: as epoch_s; {_FOLLOWS}", absent=None)]
    samples_per_s: Annotated[
        Quantity,
        Key("samples a second; low and high, where absent, are value x iteration_s.value / iteration_s.high and .low"),
    ]
    mini_batch: Annotated[
        MiniBatch, Key("distribution of the mini-batch; absent: that of the configuration", absent=None)
    ]
    staleness: Staleness
    memory_bytes: Mapping[str, float]
    terms: tuple[Term, ...]
    bottleneck: Annotated[str, Key("what to improve first", absent="")]
    warnings: tuple[PlanWarning, ...]
    kind: Annotated[str, Key("whose scores the intervals are scaled by; absent: none")] = ""
    kernel_shares: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(LOOKUPS, 0.0))
    doubt: Annotated[
        Mapping[str, float], Key("shares of the variance of the interval, by scope of coefficients", unit="share")
    ] = field(default_factory=dict)
    mfu: Annotated[
        float | None, Key("model FLOP/s of a transformer over the peak of all devices, masked pairs counted")
    ] = None
    hfu: Annotated[float | None, Key("the same with what is computed again; absent: as mfu")] = None
    stages: Annotated[tuple[str, ...], Key("layers that stages start with; absent: not cut between layers")] = ()
    stage_layers: tuple[LayersOfStage, ...] = ()
    rank_order: tuple[str, ...] = ()
    groups_s: Annotated[
        Mapping[str, float], Key("step that each node group of a plan across several needs by itself [s]")
    ] = field(default_factory=dict)
    shared_layers: Annotated[
        SharedLayers | None,
        Key("how devices share layers; absent: they do not, or layers are those of attention blocks"),
    ] = None

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "kernel_shares", "doubt", "groups_s"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))

    def memory(self, reading: str = "") -> Quantity:
        """Return what it needs, or what a reading shows, one of :data:`planner.domain.runs.MEMORY_READINGS` [bytes].

        Tensors are allocated, in first steps those of trials too; an allocator reserves more where it can; beside
        it lie a context and communicators. None of that exceeds the device.
        """
        total, low, high, capacity, outside, margin, trials = (
            self.memory_bytes.get(name)
            for name in ("total", "low", "high", "capacity", "framework", "margin", "trials")
        )
        value = total or 0.0
        if reading:
            value += (trials or 0.0) * (reading == "trials") - (outside or 0.0) - (margin or 0.0)
            value *= 1 + constant("memory.slack") * (reading in ("in use", "reserved"))
            value = min(value + (outside or 0.0) * (reading == "in use"), max(capacity or value, total or 0.0))
        if not total or low is None or high is None:
            return Quantity(value)
        return Quantity(value, value * low / total, value * high / total, "conformal")

    @property
    def empty_share(self) -> float:
        """Share of updates that find no gradient: (1 - 1/r)^G, r = mean staleness - 1, of asynchronous plans."""
        one, periods = self.configuration, self.staleness.mean - 1
        return (1 - 1 / periods) ** one.gpus if one.mode == "async" and periods > 1 else 0.0

    @property
    def fits(self) -> float | None:
        """Probability that its memory suffices: ln(needed / predicted) is normal, with the interval of ``memory``."""
        capacity, memory = self.memory_bytes.get("capacity"), self.memory()
        if capacity is None or not memory.low or not memory.high:
            return None
        return share_that_fits(memory.value, capacity, math.log(memory.high / memory.low) / 2)

    def training_s(self, run: Run, tokens: int) -> Quantity | None:
        """Return the time of a run [s], of epochs the first and then later ones; None without an epoch.

        Its ends are sums of ends, as what one epoch misses the others miss too. ``tokens``: of a sample.
        """
        later, rate, epochs = self.epoch_s, self.samples_per_s, run.epochs
        if run.tokens:
            samples = run.tokens / tokens
            ends = [end and samples / end for end in (rate.high, rate.low)]
            return replace(rate, value=samples / rate.value, low=ends[0], high=ends[1])
        if later is None:
            return None
        first = self.first_epoch_s or later
        ends = [
            None if one is None or other is None else one + (epochs - 1) * other
            for one, other in ((first.low, later.low), (first.high, later.high))
        ]
        return replace(later, value=first.value + (epochs - 1) * later.value, low=ends[0], high=ends[1])

    def steps(self, run: Run, tokens: int) -> float | None:
        """Return the updates of a run of tokens; None of one of epochs. ``tokens``: of a sample."""
        return run.tokens / tokens / self.mini_batch.mean if run.tokens else None

    def epoch_usd(self, usd_per_gpu_hour: float | None) -> Quantity | None:
        """Return the price of an epoch on all GPUs [USD]; None without a price, or without an epoch."""
        if usd_per_gpu_hour is None or self.epoch_s is None:
            return None
        rate = self.configuration.gpus * usd_per_gpu_hour / 3600
        low, high = (None if end is None else end * rate for end in (self.epoch_s.low, self.epoch_s.high))
        return replace(self.epoch_s, value=self.epoch_s.value * rate, low=low, high=high)


@dataclass(frozen=True, slots=True)
class Citation:
    """Where a calibration comes from; empty: not known."""

    name: str
    origin: Annotated[str, Key("measured, published, ...")]
    source: Annotated[str, Key("where it comes from", absent="")]
    date: Annotated[str, Key("ISO date of that", absent="")]


def cited(predictions: Iterable[Prediction], calibrations: Iterable[Calibration]) -> tuple[Citation, ...]:
    """Return the citation of every calibration that terms of predictions name, each once."""
    by_name = {one.provenance.calibration: one for one in calibrations}
    terms = (term for one in predictions for term in one.terms)
    behind = dict.fromkeys((each.name, each.calibration) for term in terms for each in term.provenance if each.name)
    calibrations_behind = ((name, by_name[file]) for name, file in behind)
    return tuple(Citation(name, one.origin, one.source, one.date) for name, one in calibrations_behind)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch of inference takes on one device.

    ``latency``: from its first kernel to its last, and what the host adds [s]; ``calibrations`` and ``origins``: what
    the times rest on.
    """

    precision: Annotated[str, Key("of the engine")]
    sub_batch: Annotated[int, Key("samples of a batch")]
    latency: Quantity
    memory_bytes: Annotated[Mapping[str, float], Key("of one device, by kind")]
    kernels: Annotated[tuple[KernelRow, ...], Key("of a batch, those of longest time first")]
    calibrations: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def latency_s(self) -> float:
        """Without its interval."""
        return self.latency.value

    @property
    def samples_per_s(self) -> float:
        """One batch behind another."""
        return self.sub_batch / self.latency_s
