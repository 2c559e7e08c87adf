"""The order of plans, and the Pareto front of several quantities.

Compared one after another, smaller first: the objective, GPUs, staleness, distance from the target, memory, the
configuration itself. Computed values are rounded to 9 significant digits before, so that rounding noise never decides.

Beside it what is ordered, priced plans, and why one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.axes import AXES
from planner.domain.configuration import MODES, Configurations
from planner.domain.objective import LIMITS, TERMS, is_sum, weights_of
from planner.domain.prediction import Prediction, Predictions, Run
from planner.domain.request import Problem, SpaceRequest
from planner.errors import ParameterError, Refusal, UsageError
from planner.steps.asynchronous import Asynchrony
from planner.units import duration_unit, format_duration, typed_number

__all__ = [
    "ABOVE_WINDOW", "ASYNC_ACCUMULATION", "BELOW_WINDOW", "LARGE_SUB_BATCH", "LAWFUL", "LIMIT_REASONS", "OF_LIMIT",
    "OUT_OF_MEMORY", "REASONS", "SLACK", "UNEVEN_DEGREES", "Evaluator", "Order", "PricedPlans", "Stairs",
    "check_limits", "excess", "fewest_first", "keeps", "limit_text", "limited", "order_of", "pareto_front",
    "rounded", "seconds_allowed",
]  # fmt: skip


class Evaluator(Protocol):
    """Prices configurations; searchers depend on this and not on how it is done."""

    def evaluate(self, configurations: Configurations) -> Predictions:
        """Return the predictions of n configurations as arrays of shape (n,), of a product in the order of its rows."""

    def least_epoch_s(self, configurations: Configurations, *, split: bool, closely: bool = False) -> FloatArray:
        """Return a lower bound of the epoch of every plan that may become of rows [s], shape (n,).

        Rows are synchronous and of one precision. Of a sample without a data set; 0 where no bound is known. Open is
        accumulation, and of plans that split the network not that, but sharding, offloading, fewer virtual stages, all
        recompute where the row has none, and the schedule among those with a bubble, or any where the row's has none;
        ``closely``: with a bound that is closer and takes longer.
        """

    def describe(
        self, configurations: Configurations, window: Callable[[str], tuple[float, float]] | None = None
    ) -> list[Prediction]:
        """Return the predictions with every field; ``window`` gives the accepted mini-batches of a mode."""


@dataclass(frozen=True, slots=True)
class PricedPlans:
    """n configurations with their predictions."""

    configurations: Configurations
    predictions: Predictions

    @property
    def size(self) -> int:
        """Number of configurations."""
        return self.configurations.size

    def take(self, rows: IntArray | BoolArray | slice) -> PricedPlans:
        """Return those at positions, where a mask is true, or of a slice."""
        arrays = {f.name: getattr(self.predictions, f.name)[rows] for f in fields(Predictions)}
        return PricedPlans(self.configurations.take(rows), Predictions(**arrays))

    def joined(self, other: PricedPlans) -> PricedPlans:
        """Return these, then those of ``other``."""
        columns = {
            f.name: np.concatenate([getattr(self.predictions, f.name), getattr(other.predictions, f.name)])
            for f in fields(Predictions)
        }
        return PricedPlans(Configurations.joined([self.configurations, other.configurations]), Predictions(**columns))


DIGITS = 9
SLACK = 10.0 ** (1 - DIGITS)
"""Relative; what rounding may change."""

LeadingKey = Callable[[PricedPlans], FloatArray]


@dataclass(frozen=True, slots=True)
class Order:
    """The total order of one request.

    Attributes
    ----------
    objective : one of planner.domain.objective.TERMS, or a weighted sum of them
    has_dataset : without a data set, seconds per sample stand for the epoch
    leading : callable of PricedPlans (n,) to ndarray (n,), or None, compared before all others, smaller first
    device : {"GPU", "CPU"}, what plans compute on, in the words of a sentence
    leasts : mapping of term to float, what each term of a weighted sum is divided by: its least of all plans of the
        request, in s and USD of an epoch, without a data set of a sample; 1 where it is absent
    window : (float, float), accepted mini-batches of asynchronous plans [samples]
    run, tokens : the whole training, and the tokens of a sample of a language model
    baseline : devices, and seconds of one of them a sample, of the plan that efficiencies are relative to, where they
        are limited
    """

    objective: str
    target_batch: int
    has_dataset: bool
    usd_per_gpu_hour: float | None = None
    leading: LeadingKey | None = None
    device: str = "GPU"
    leasts: Mapping[str, float] = field(default_factory=dict)
    window: tuple[float, float] = (0.0, np.inf)
    run: Run = Run()  # noqa: RUF009 - frozen, so shared safely
    tokens: int = 0
    baseline: tuple[int, float] | None = None

    @property
    def is_sum(self) -> bool:
        """Whether the objective is a weighted sum."""
        return is_sum(self.objective)

    def values(self, plans: PricedPlans) -> FloatArray:
        """Return the objective (n,), rounded: of an epoch, without a data set of a sample."""
        return rounded(self._exact_values(plans))

    def _exact_values(self, plans: PricedPlans) -> FloatArray:
        seconds = plans.predictions.epoch_s if self.has_dataset else 1.0 / plans.predictions.samples_per_s
        return self.value_of(seconds, plans.configurations.gpus)

    def value_of(self, seconds: FloatArray, gpus: IntArray) -> FloatArray:
        """Return the objective (n,) of epochs, or samples, of epochs or samples of some seconds; it grows with both."""
        if not self.is_sum:
            return self._term(self.objective, seconds, gpus)
        value: FloatArray = np.zeros(np.broadcast_shapes(seconds.shape, gpus.shape))
        for name, weight in weights_of(self.objective).items():
            value += weight / self.leasts.get(name, 1.0) * self._term(name, seconds, gpus)
        return value

    def _term(self, name: str, seconds: FloatArray, gpus: IntArray) -> FloatArray:
        return np.asarray(seconds * TERMS[name].rate(gpus, self.usd_per_gpu_hour))

    def distances(self, plans: PricedPlans) -> FloatArray:
        """Return the distance of the mean mini-batch from the target (n,) [samples], rounded."""
        return rounded(np.abs(rounded(plans.predictions.mini_batch_mean) - self.target_batch))

    def reaches(self, configurations: Configurations, mini_batch: FloatArray) -> FloatArray:
        """Return how far from the target a window must reach to hold each plan (n,) [samples], rounded.

        To the mean mini-batch, and in asynchronous plans to the sub-batch where that is farther above the target.
        """
        mean = np.abs(rounded(mini_batch) - self.target_batch)
        above = np.where(configurations.is_async, configurations.sub_batch - self.target_batch, 0)
        return rounded(np.maximum(mean, above))

    def keys(self, plans: PricedPlans) -> list[FloatArray | IntArray]:
        """Return the columns that are compared, (n,) each, the first one first; the precision is the last."""
        last = (getattr(plans.configurations, axis.name) for axis in AXES if not axis.tells_apart)
        return [*self.keys_but_precision(plans), *last]

    def keys_but_precision(self, plans: PricedPlans) -> list[FloatArray | IntArray]:
        """Return all that is compared before the precision: plans that are alike in it are equal."""
        c, p = plans.configurations, plans.predictions
        columns: list[FloatArray | IntArray] = [] if self.leading is None else [rounded(self.leading(plans))]
        columns += [self.values(plans), c.gpus, rounded(p.staleness_mean), self.distances(plans)]
        return [*columns, rounded(p.memory_bytes), *(getattr(c, axis.name) for axis in AXES if axis.tells_apart)]

    def best(self, plans: PricedPlans, keep: int) -> PricedPlans:
        """Return the first ``keep`` in order."""
        if plans.size > keep:
            first = self._exact_values(plans) if self.leading is None else self.leading(plans)
            worst = np.partition(first, keep - 1)[keep - 1]
            worst += SLACK * abs(worst)  # all that rounding may make equal
            plans = plans.take(~(first > worst))  # not "<=": NaN, which comes last, must not empty the pool
        kept = plans.take(np.lexsort(self.keys(plans)[::-1])[:keep])
        return PricedPlans(Configurations.joined([kept.configurations]), kept.predictions)  # with columns of their own


def order_of(problem: Problem, request: SpaceRequest) -> Order:
    """Return the order of a request; ParameterError, UsageError: its objective is unknown, or has no price."""
    terms = weights_of(request.objective)
    if request.objective == "time-to-accuracy":
        rest = ", which is not supported yet"
        rule, value = f"objective must be one of {', '.join(TERMS)}", "'time-to-accuracy'"
        raise UsageError(Refusal("unsupported", rule, "objective", value, rest))
    if unknown := terms.keys() - TERMS.keys():
        raise ParameterError("objective", "one of " + ", ".join(TERMS), *unknown)
    price, needs_price = problem.cluster.usd_per_gpu_hour, any(TERMS[one].needs_price for one in terms)
    if needs_price and price == 0 and is_sum(request.objective):
        raise ParameterError("price", "above 0 where the cost is divided by its least", price)
    if needs_price and price is None:
        value, rest = f"none in cluster {problem.cluster.name}", "; write usd_per_gpu_hour under [price] in its file"
        rule = f"objective {request.objective!r} must have a price"
        raise UsageError(Refusal("price_missing", rule, "objective", value, rest))
    device = problem.subject.device
    window = request.window("async")
    has_dataset = problem.dataset is not None
    if request.run.tokens and not problem.network.tokens:
        name, text = problem.network.name, typed_number(request.run.tokens)
        raise ParameterError("--tokens", f"left out with {name}", text, f"{name} is not a language model")
    order = Order(request.objective, request.target_batch, has_dataset, price, device=device, window=window)
    return replace(order, run=request.run, tokens=problem.network.tokens)


def fewest_first(order: Order) -> Order:
    """Return an order in which plans on fewer devices come first."""
    return replace(order, leading=lambda plans: plans.configurations.gpus.astype(np.float64))


def rounded(values: FloatArray) -> FloatArray:
    """Return values (n,) rounded to 9 significant digits; zero, infinity and NaN stay."""
    x = np.asarray(values, dtype=np.float64)
    ordinary = np.isfinite(x) & (x != 0)
    exponent = np.floor(np.log10(np.abs(x, where=ordinary, out=np.ones_like(x))))
    scale = 10.0 ** np.clip(DIGITS - 1 - exponent, -300, 300)
    return np.where(ordinary, np.round(x * scale) / scale, x)


MOST_CELLS = 2**20
"""Of the table of a front: fewer distances are told apart where it would have more."""


def pareto_front(value: FloatArray, gpus: IntArray, distance: FloatArray) -> IntArray:
    """Return the positions of the points that no other dominates, ascending; smaller is better in all three.

    Of equal points the first is kept; none of the three, shape (k,), has NaN. Exact, in O(k log k): sorted by (gpus,
    value, distance), a point survives within its GPU count where its distance is below the running minimum; the
    survivors of ascending GPU counts are then held against the staircase (value up, distance down) of smaller counts.
    """
    k = value.size
    if k == 0:
        return np.empty(0, dtype=np.int64)
    order = np.lexsort((distance, value, gpus))
    counts, group = np.unique(gpus[order], return_inverse=True)
    rank = np.unique(distance, return_inverse=True)[1][order]
    order = order[_below_all_before(rank - group * k)]  # every group starts below all groups before it
    parts = np.split(order, np.searchsorted(gpus[order], counts[1:]))
    survivors: list[IntArray] = []
    stairs_value, stairs_distance = np.empty(0), np.empty(0)
    for part in parts:
        step = np.searchsorted(stairs_value, value[part], side="right") - 1
        least = np.append(stairs_distance, np.inf)[step]  # step -1: no smaller count is as fast
        part = part[distance[part] < least]  # noqa: PLW2901 - the same points, fewer
        survivors.append(part)
        values = np.concatenate([stairs_value, value[part]])
        distances = np.concatenate([stairs_distance, distance[part]])
        stairs = np.lexsort((distances, values))
        stairs = stairs[_below_all_before(distances[stairs])]
        stairs_value, stairs_distance = values[stairs], distances[stairs]
    return np.sort(np.concatenate(survivors))


class Stairs:
    """The least value that a front of points, shape (k,), reaches within a number of GPUs and a distance."""

    def __init__(self, value: FloatArray, gpus: IntArray, distance: FloatArray) -> None:
        self._gpus, row = np.unique(gpus, return_inverse=True)
        every = np.unique(distance)
        self._distance = every[:: -(-self._gpus.size * every.size // MOST_CELLS) or 1]
        column = np.searchsorted(self._distance, distance)
        least = np.full((self._gpus.size + 1, self._distance.size + 1), np.inf)  # the last of each: none is as small
        known = column < self._distance.size
        np.minimum.at(least, (row[known], column[known]), value[known])
        least[:-1, :-1] = np.minimum.accumulate(np.minimum.accumulate(least[:-1, :-1], axis=0), axis=1)
        self._least = least

    def least(self, gpus: IntArray, distance: FloatArray) -> FloatArray:
        """Return the least value of points with at most so many GPUs and so far away each, (n,); inf: there is none."""
        row = np.searchsorted(self._gpus, gpus, side="right") - 1
        column = np.searchsorted(self._distance, distance, side="right") - 1
        return np.asarray(self._least[row, column])


def _below_all_before(values: FloatArray | IntArray) -> BoolArray:
    """Return where a value (k,) is below every value before it."""
    mask = np.ones(values.size, dtype=np.bool_)
    mask[1:] = values[1:] < np.minimum.accumulate(values)[:-1]
    return mask


LIMIT_REASONS = {
    name: Refusal("limit", f"{one.words} {one.side} {one.option or f'--limit {name}'}", one.words)
    for name, one in LIMITS.items()
}
"""Limit -> why a plan is refused that exceeds it."""
REASONS = (
    None,
    Refusal("accumulation", "accumulation in an asynchronous plan", "accumulation"),
    Refusal("below_window", "mini-batch below the window", "mini-batch"),
    Refusal("above_window", "mini-batch above the window", "mini-batch"),
    Refusal("memory", "sub-batch larger than fits in memory", "sub-batch"),
    Refusal("above_window", "sub-batch above the window", "sub-batch"),
    Refusal("degrees", "GPUs not a multiple of the degrees of parallelism", "the number of GPUs"),
    *LIMIT_REASONS.values(),
)
"""Why a candidate is refused, by its position in an array of reasons; None keeps it.

A sub-batch above the window is refused in asynchronous plans whatever their mean: an update holds whole sub-batches, so
that every one that is not empty exceeds the window."""

SMALLEST_SHARE = 1e-9
RATES = {"samples-per-s", "tokens-per-s"}
"""Limits of a rate."""
_WINDOW_REMEDY = "every update has the same mini-batch there, which --tolerance bounds"

LAWFUL, ASYNC_ACCUMULATION, BELOW_WINDOW, ABOVE_WINDOW, OUT_OF_MEMORY, LARGE_SUB_BATCH, UNEVEN_DEGREES = range(7)
OF_LIMIT = {name: at for at, name in enumerate(LIMIT_REASONS, start=7)}
"""Limit -> position in REASONS of what exceeds it."""


def limited(name: str, plans: PricedPlans, order: Order) -> FloatArray:
    """Return what a limit is of, (n,): s, hours, USD, or a number."""
    if name in _QUANTITIES:
        return _QUANTITIES[name](plans, order)
    rate = TERMS[LIMITS[name].term].rate(plans.configurations.gpus, order.usd_per_gpu_hour)
    return np.asarray(plans.predictions.epoch_s * rate)


def keeps(name: str, plans: PricedPlans, order: Order, limit: float) -> BoolArray:
    """Return which plans keep to a limit, (n,); what is not known does not."""
    values = limited(name, plans, order)
    return values >= limit if LIMITS[name].is_least else values <= limit


def excess(name: str, values: FloatArray, limit: float) -> FloatArray:
    """Return how far values are beyond a limit, as a factor above 1; of a limit of nothing the values themselves."""
    if LIMITS[name].is_least:
        return limit / np.maximum(values, SMALLEST_SHARE)
    return values / (limit or 1.0)


def seconds_allowed(limits: Mapping[str, float], order: Order) -> float:
    """Return the most seconds of an epoch, without a data set of a sample, of a plan that keeps to limits; inf: any."""
    run, most = order.run, [math.inf]
    if order.has_dataset:
        most += [
            limits.get("epoch", math.inf),
            limits.get("run", math.inf) / run.epochs if not run.tokens else math.inf,
        ]
    else:
        most += [1 / limits[name] * (order.tokens or 1) ** (name == "tokens-per-s") for name in RATES & limits.keys()]
        most += [limits.get("run", math.inf) * order.tokens / run.tokens if run.tokens else math.inf]
    return min(most)


def check_limits(limits: Mapping[str, float], order: Order, modes: Collection[str] = MODES) -> None:
    """Raise ParameterError where what is limited is not known: an epoch without a data set, a cost without a price.

    Nor is the share of updates inside the window, which is a question of asynchronous plans alone.
    """
    for name in limits:
        if name == "window" and "async" not in modes:
            raise ParameterError("--limit", "any but window in synchronous mode", name, _WINDOW_REMEDY)
        if name == "tokens-per-s" and not order.tokens:
            raise ParameterError("--limit", "samples-per-s of a network that is no language model", name)
        if LIMITS[name].of_epoch and not order.has_dataset and not (name == "run" and order.run.tokens):
            if name == "run":
                rule = "given with --tokens or a data set, as no epoch is known"
                raise ParameterError("--deadline", rule, format_duration(limits[name]))
            rule = f"{', '.join(one for one, of in LIMITS.items() if not of.of_epoch)} without a data set"
            raise ParameterError("--limit", rule, name, "name one with --dataset")
        if LIMITS[name].term and TERMS[LIMITS[name].term].needs_price and order.usd_per_gpu_hour is None:
            remedy = "give --cluster a file with [price] usd_per_gpu_hour"
            raise ParameterError("--limit", "any but cost on a cluster without a price", name, remedy)


def limit_text(name: str, value: float) -> str:
    """Return a limit as it may be typed, four digits, rounded to what keeps it: ``1.001h``, ``90d``, ``80%``."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    second, unit = {"s": duration_unit(value, 3), "share": (0.01, "%")}.get(LIMITS[name].unit, (1.0, ""))
    if unit in ("min", "h") and value >= 3600:
        is_days = value >= 86400 and (value % 86400 == 0 or value % 3600 > 0)
        second, unit = (86400.0, "d") if is_days else (3600.0, "h")
    scale = 10.0 ** (3 - math.floor(math.log10(value / second))) / second
    least = LIMITS[name].is_least
    rounded = (math.floor(value * scale * (1 + 1e-12)) if least else math.ceil(value * scale * (1 - 1e-12))) / scale
    return f"{typed_number(rounded / second)}{unit}"


def _run_s(plans: PricedPlans, order: Order) -> FloatArray:
    """Return the time of the whole training, (n,) [s]."""
    p, run = plans.predictions, order.run
    if run.tokens:
        return run.tokens / order.tokens / p.samples_per_s
    return p.first_epoch_s + (run.epochs - 1) * p.epoch_s


def _efficiency(plans: PricedPlans, order: Order) -> FloatArray:
    """Return samples a second and device over those of the baseline, (n,)."""
    of_device_s = plans.configurations.gpus / plans.predictions.samples_per_s
    return np.full(plans.size, np.nan) if order.baseline is None else order.baseline[1] / of_device_s


def _inside(plans: PricedPlans, order: Order) -> FloatArray:
    """Return the share of updates inside the window, (n,); of a synchronous plan all: its mini-batch is one number."""
    of_async, inside = np.flatnonzero(plans.configurations.is_async), np.ones(plans.size)
    if of_async.size:
        some, predicted = plans.configurations.take(of_async), plans.predictions
        periods = (getattr(predicted, name)[of_async] for name in ("iteration_s", "update_s"))
        inside[of_async] = Asynchrony(some.gpus, some.sub_batch, *periods).window_probability(*order.window)
    return inside


_QUANTITIES: Mapping[str, Callable[[PricedPlans, Order], FloatArray]] = {
    "nodes": lambda plans, _: plans.configurations.nodes.astype(float),
    "staleness": lambda plans, _: plans.predictions.staleness_mean,
    "window": _inside,
    "samples-per-s": lambda plans, _: plans.predictions.samples_per_s,
    "tokens-per-s": lambda plans, order: plans.predictions.samples_per_s * order.tokens,
    "run": _run_s,
    "efficiency": _efficiency,
}
