"""Which points to measure next: where the expected error of wanted networks' steps falls most for the time it costs.

A sequential I-optimal design (Atkinson, Donev & Tobias 2007, "Optimum Experimental Designs, with SAS", chapter 10):
points are added one after another, each where it lowers the variance of wanted predictions most. By kind of kernel,
direction and precision:

x: features of a timed call divided by its time, shape (p,); columns scaled to length 1 over everything that may come
A = I + Σ x·x': information of what was timed, with a weak prior, whose standard deviation in every scaled column is a
    whole call's time
e: relative error of calls left out, from residuals r / (1 - x'·A⁻¹·x), with a stated prior
c: features of the calls of one wanted step that are not measured as they are, divided by the step's time, shape (p,)
s, m: shares of the step's kernel time that calls take which are not, and which are, measured as they are

Relative variance of a step = Σ e²·c'·A⁻¹·c + (e·s)² + (0.04·m)². Misses within a kind and direction are taken as fully
correlated, as intervals of predictions take them; kinds are independent. A shape that is timed adds x·x' to A (one
rank); a call of a network that is timed as it is leaves c and s and joins m. What a framework adds is not in it.

And which kernels of networks a calibration knows badly: those whose expected error costs a training step most.

A kernel's part in the error of a step is its share of the kernel time times its own expected error: the held-out error
of its entry, twice that where it lies outside the fit, and a stated one where nothing was measured. Calls that were
timed as they are, and those that cannot be, are none of these.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.costs.cpu import DEPTHWISE_APART, KERNELS_APART
from planner.costs.features import Settings, Work
from planner.costs.kernels import OBLONG_APART
from planner.costs.terms import RANGE_MARGIN, evaluate, extrapolates, features_of, term_named
from planner.costs.work import BATCHED_APART, flop, moved_bytes
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import Calibration, Entry, Gap
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.configuration import Settings as RunSettings
from planner.domain.kernels import FORWARD, LINEAR_BIAS, PRODUCT_KINDS, TRAFFIC_KINDS, KernelCalls
from planner.domain.network import LayerCall, Network, Point, kind_of_kernel
from planner.domain.precision import PRECISIONS, precision_named
from planner.domain.request import Problem
from planner.numbers import constant, constants
from planner.sources.source import Source
from planner.sources.sources import Sources
from planner.steps.compute import call_work
from planner.workload.calls import layer_calls, lower

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
    itemsize : bytes of an element
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
                is_fp32 = call.kind in ALWAYS_FP32 or (precision == "tf32" and key_of(call, precision)[2] == "any")
                own = "fp32" if is_fp32 else precision  # that the call is timed in
                itemsize = float(precision_named(own).activation_bytes)
                one = of_key.setdefault(call_name(call, own), WantedCall(call.work, itemsize))
                step = at * (len(precisions) + len(products)) + by
                one.counts[step] = one.counts.get(step, 0) + call.count
    return by_key


def key_of(call: LayerCall, precision: str) -> Key:
    """Return what fit serves a call of a layer."""
    kind = kind_of_kernel(call.kind, call.layer)
    return kind, call.direction, "any" if kind in TRAFFIC_KINDS else precision


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


PRIOR_ERROR, PRIOR_ROWS = 0.2, 3.0
"""Relative error of a fit on calls left out before anything is timed, and how many calls that counts like."""
OWN_ERROR = constants("layer_calls.between")["convolutions"]
"""Of a call timed as it is, at other sub-batches (docs/numbers.md)."""
MEAN_OF_DEVIATION = math.sqrt(2 / math.pi)
"""Mean absolute error over standard deviation of a normal distribution."""
START_POINTS = {kind: int(count) for kind, count in constants("next_points.start").items()}
START_TRAFFIC_POINTS = START_POINTS.pop("other")
"""Points of a kind and direction that are measured before any is chosen (docs/numbers.md)."""
LARGEST_GUESS_RATIO = 10.0
"""No time is expected to be farther from the first guess than by this factor."""


class NextPoints:
    """Chooses points by what is known so far; the same timings always give the same choice.

    Parameters
    ----------
    points : all that may be measured
    networks : wanted; their families' optimizers update the weights
    accelerator : with rates as stated: for first guesses, and for the features of its kind of device
    precisions : wanted. A short start has points of the first one before any of the others
    products : sequence of str
        Precisions that nothing is trained in by itself: a step's products one by one are wanted, in no expected error.
    """

    def __init__(
        self,
        points: Sequence[Point],
        networks: Sequence[Network],
        accelerator: Accelerator,
        precisions: Sequence[str] = ("fp32",),
        products: Sequence[str] = (),
    ) -> None:
        shapes: dict[Key, list[Point]] = {}
        own: dict[Key, dict[str, list[Point]]] = {}
        for point in points:
            if point.call is None:
                any_precision = point.kind in TRAFFIC_KINDS
                key = (point.kind, point.direction, "any" if any_precision else point.precision)
                shapes.setdefault(key, []).append(point)
            else:
                of_key = own.setdefault(key_of(point.call, point.precision), {})
                of_key.setdefault(call_name(point.call, point.precision), []).append(point)
        copies = [point for point in points if point.kind == "copy" and point.call is None]
        copies.sort(key=lambda point: point.work["elements"])
        self._largest_copy = tuple(point.name for point in copies[-1:])
        """It shows what the memory gives, which no fit is needed for."""
        self._parts: list[_StepPart] = []
        every = (*precisions, *products)
        self._shape = (len(networks) * len(every), len(SUB_BATCHES))
        self._is_expected = np.tile([name in precisions for name in every], len(networks))
        self._groups = {
            key: _Group(key, shapes.get(key, []), own.get(key, {}), calls, accelerator, steps=self._shape[0])
            for key, calls in wanted_calls(networks, precisions, products, on_gpu=accelerator.kind == "gpu").items()
        }
        self._first = ("any", *precisions[:1])

    def start(self) -> tuple[str, ...]:
        """Return the names of a short balanced start: the largest copy, and a few points for each fit.

        Those of the first precision, and of what moves bytes, come before all others.
        """
        groups = sorted(self._groups.items(), key=lambda item: item[0][2] not in self._first)
        few = (name for key, group in groups for name in group.few(key[0]))
        return tuple(dict.fromkeys((*self._largest_copy, *few)))

    def learn(self, times: Mapping[str, float]) -> float:
        """Take in what was timed, by name [s]; return the expected mean relative error of the wanted steps."""
        for group in self._groups.values():
            group.learn(times)
        total_s = np.zeros(self._shape)
        for group in self._groups.values():
            total_s[group.steps] += group.counts @ group.wanted_s.T
        total_s = np.maximum(total_s, 1e-12)
        self._parts = [_StepPart(group, total_s) for group in self._groups.values()]
        variance = np.zeros(self._shape)
        for part in self._parts:
            variance[part.group.steps] += part.variance()
        return MEAN_OF_DEVIATION * float(np.sqrt(variance[self._is_expected]).mean())

    def choose(self, rest: Collection[str], seconds: float, most_s: float = math.inf) -> tuple[str, ...]:
        """Return names among those left, in order, that take about so long to measure; none where nothing helps.

        By what was learned last. Nothing that is expected to take longer than ``most_s`` by itself is among them.
        """
        choices = [_Choice(part, rest, most_s) for part in self._parts]
        choice: list[str] = []
        spent_s = 0.0
        while spent_s < seconds:
            best = max(choices, key=lambda one: one.best_gain, default=None)
            if best is None or best.best_gain <= 0:
                break
            names, cost_s = best.take()
            choice += [name for name in names if name in rest]
            spent_s += cost_s
        return tuple(choice)


class _Group:
    """What one fit serves: m shapes that may be timed, k wanted calls at s sub-batches, made by n steps.

    shapes (m, p), guess_s, expected_s (m,); steps (n,): their places; counts (n, k): calls of a step; wanted (s, k, p),
    wanted_guess_s, wanted_s (s, k); units: place of a wanted call to the names of its points; inverse: A⁻¹ (p, p);
    error: e; own (k,): whether a call is measured as it is.
    """

    def __init__(
        self,
        key: Key,
        shapes: Sequence[Point],
        own: Mapping[str, Sequence[Point]],
        step_calls: Mapping[str, WantedCall],
        accelerator: Accelerator,
        *,
        steps: int,
    ) -> None:
        term, settings = expected_term(key, accelerator)
        self.names = tuple(point.name for point in shapes)
        work, wanted_work = _work_of(shapes), _wanted_work(step_calls)
        feature_map, columns = term_named(term), len(term_named(term).columns(settings))
        rows = feature_map.features(work, settings) if shapes else np.zeros((0, columns))
        shape = (len(SUB_BATCHES), len(step_calls), columns)
        wanted_rows = np.broadcast_to(feature_map.features(wanted_work, settings), shape)
        self.guess_s = guessed_s(work, key, accelerator) if shapes else np.zeros(0)
        self.wanted_guess_s = np.broadcast_to(guessed_s(wanted_work, key, accelerator), wanted_rows.shape[:-1])
        relative = (wanted_rows / self.wanted_guess_s[..., None]).reshape(-1, columns)
        relative = np.concatenate([rows / self.guess_s[:, None], relative])
        lengths = np.sqrt((relative**2).mean(axis=0))
        lengths[lengths == 0] = 1.0
        self.shapes, self.wanted = rows / lengths, wanted_rows / lengths
        self.counts = np.zeros((steps, len(step_calls)))
        self.units: dict[int, tuple[str, ...]] = {}
        self.unit_cost_s: dict[int, float] = {}
        for place, (name, call) in enumerate(step_calls.items()):
            self.counts[list(call.counts), place] = list(call.counts.values())
            if name in own:  # its points are chosen together
                by_sub_batch = sorted(own[name], key=lambda point: point.sub_batch)
                at = [point.sub_batch for point in by_sub_batch]
                guess_s = np.interp(at, SUB_BATCHES, self.wanted_guess_s[:, place])
                self.units[place] = tuple(point.name for point in (*by_sub_batch[:1], *by_sub_batch[:0:-1]))
                self.unit_cost_s[place] = float(timing_s(guess_s).sum())
        self.steps = np.flatnonzero(self.counts.any(axis=1))
        self.counts = self.counts[self.steps]

    def few(self, kind: str) -> tuple[str, ...]:
        """Return the names of the first shapes of products, and of the cheaper half of the first of what moves bytes.

        A few of these take as long as all others together: they come where they are chosen, and not without need.
        """
        if kind in START_POINTS:
            return self.names[: START_POINTS[kind]]
        cheapest = np.argsort(self.guess_s[: 2 * START_TRAFFIC_POINTS], kind="stable")[:START_TRAFFIC_POINTS]
        return tuple(self.names[place] for place in cheapest.tolist())

    def learn(self, times: Mapping[str, float]) -> None:
        """Fit what was timed: A⁻¹, the error of calls left out, expected times of everything; no time is no timing."""
        at = [place for place, name in enumerate(self.names) if times.get(name, 0.0) > 0]
        rows = self.shapes[at] / np.array([times[self.names[place]] for place in at])[:, None]
        self.inverse = np.linalg.inv(np.eye(self.shapes.shape[1]) + rows.T @ rows)
        theta = self.inverse @ rows.sum(axis=0)
        leverage = np.einsum("ij,jk,ik->i", rows, self.inverse, rows)
        misses = np.clip((1 - rows @ theta) / np.maximum(1 - leverage, 1e-3), -1, 1)
        self.error = math.sqrt((PRIOR_ROWS * PRIOR_ERROR**2 + float(misses @ misses)) / (PRIOR_ROWS + len(at)))
        if len(at) < rows.shape[1]:  # a fit with fewer rows than features says nothing
            self.expected_s, self.wanted_s = self.guess_s, self.wanted_guess_s
        else:
            self.expected_s = _near(self.shapes @ theta, self.guess_s)
            self.wanted_s = _near(self.wanted @ theta, self.wanted_guess_s)
        self.own = np.zeros(self.counts.shape[1], dtype=np.bool_)
        self.own[[place for place, names in self.units.items() if all(name in times for name in names)]] = True


def _work_of(points: Sequence[Point]) -> dict[str, FloatArray]:
    """Return the work of points of one kind, each column of shape (m,)."""
    names = points[0].work if points else ()
    itemsizes = [float(precision_named(point.precision).activation_bytes) for point in points]
    columns = {name: np.array([float(point.work[name]) for point in points]) for name in names}
    return columns | {"itemsize": np.array(itemsizes)}


def _wanted_work(of_steps: Mapping[str, WantedCall]) -> dict[str, FloatArray]:
    """Return the work of wanted calls of one kind at all sub-batches, each column of shape (s, k)."""
    calls, samples = list(of_steps.values()), np.array(SUB_BATCHES, dtype=np.float64)[:, None]
    columns: dict[str, FloatArray] = {"itemsize": np.array([call.itemsize for call in calls])}
    for name in calls[0].work:
        base, slope = np.array([call.work[name] for call in calls], dtype=np.float64).T
        columns[name] = base + slope * samples
    return columns


def _near(fitted_s: FloatArray, guess_s: FloatArray) -> FloatArray:
    """Return fitted times, kept within LARGEST_GUESS_RATIO of the first guess."""
    return np.asarray(np.clip(fitted_s, guess_s / LARGEST_GUESS_RATIO, guess_s * LARGEST_GUESS_RATIO))


class _StepPart:
    """A group's part of wanted steps: c (n, s, p), Σ c·c' (p, p), s and m (n, s), and the calls that make them up."""

    def __init__(self, group: _Group, total_s: FloatArray) -> None:
        self.group = group
        self.wanted: FloatArray = group.wanted
        self.per_second: FloatArray = group.counts[:, None, :] / total_s[group.steps, :, None]
        self.shares: FloatArray = self.per_second * group.wanted_s
        self.own: BoolArray = group.own.copy()
        self.sum_up()

    def sum_up(self) -> None:
        """Sum up over the calls that are, and that are not, measured as they are."""
        rest = ~self.own
        self.left: FloatArray = np.stack(
            [self.per_second[:, at, rest] @ self.wanted[at, rest] for at in range(self.wanted.shape[0])], axis=1
        )
        flat = self.left.reshape(-1, self.left.shape[2])
        self.squares: FloatArray = flat.T @ flat
        self.left_share: FloatArray = self.shares[:, :, rest].sum(axis=2)
        self.own_share: FloatArray = self.shares[:, :, self.own].sum(axis=2)

    def variance(self) -> FloatArray:
        """Return the group's part of the relative variance of the steps, shape (n, s)."""
        of_fit = ((self.left @ self.group.inverse) * self.left).sum(axis=2)
        scatter, own = self.left_share**2, (OWN_ERROR * self.own_share) ** 2
        return np.asarray(self.group.error**2 * (of_fit + scatter) + own)


class _Choice:
    """What of one group is left to measure, and what of it gains most per second."""

    def __init__(self, part: _StepPart, rest: Collection[str], most_s: float) -> None:
        group = part.group
        self.error, self.inverse, self.wanted = group.error, group.inverse, copy.copy(part)
        self.wanted.own = part.own.copy()
        at = [place for place, name in enumerate(group.names) if name in rest]
        self.units = [
            place for place, names in group.units.items() if not group.own[place] and any(n in rest for n in names)
        ]
        self.names = [*((group.names[place],) for place in at), *(group.units[place] for place in self.units)]
        self.rows = group.shapes[at] / group.expected_s[at, None]
        units_s = [group.unit_cost_s[place] for place in self.units]
        self.cost_s = np.concatenate([timing_s(group.expected_s[at]), units_s])
        self.open: BoolArray = self.cost_s <= most_s
        self.find_best()

    def find_best(self) -> None:
        """Find what gains most per second; a gain of 0 where nothing is left."""
        self.best, self.best_gain = 0, 0.0
        if self.open.any():
            gains = np.where(self.open, np.concatenate([self.of_shapes(), self.of_units()]) / self.cost_s, 0.0)
            self.best = int(gains.argmax())
            self.best_gain = float(gains[self.best])

    def of_shapes(self) -> FloatArray:
        """Return by how much each shape lowers the variance, summed over the wanted steps."""
        sides = self.rows @ self.inverse
        reductions = ((sides @ self.wanted.squares) * sides).sum(axis=1) / (1 + (sides * self.rows).sum(axis=1))
        return np.asarray(self.error**2 * reductions)

    def of_units(self) -> FloatArray:
        """Return by how much each call lowers the variance once it is measured as it is."""
        if not self.units:
            return np.zeros(0)
        step = self.wanted
        rows = step.wanted[:, self.units]
        sides = rows @ self.inverse
        per_second = step.per_second[:, :, self.units]
        with_all = np.einsum("sup,nsp->nsu", sides, step.left)
        of_fit = 2 * per_second * with_all - per_second**2 * np.einsum("sup,sup->su", sides, rows)
        share = step.shares[:, :, self.units]
        scatter = 2 * share * step.left_share[..., None] - share**2
        own = OWN_ERROR**2 * (2 * share * step.own_share[..., None] + share**2)
        return np.asarray((self.error**2 * (of_fit + scatter) - own).sum(axis=(0, 1)))

    def take(self) -> tuple[tuple[str, ...], float]:
        """Return the names of what gains most and what they cost [s]; it counts as measured from now on."""
        best = self.best
        self.open[best] = False
        if best < len(self.rows):
            side = self.inverse @ self.rows[best]
            self.inverse = self.inverse - np.outer(side, side) / (1 + float(self.rows[best] @ side))
        else:
            self.wanted.own[self.units[best - len(self.rows)]] = True
            self.wanted.sum_up()
        self.find_best()
        return self.names[best], float(self.cost_s[best])


IMAGES, SEQUENCES = {"gpu": 32, "cpu": 8}, {"gpu": 8, "cpu": 2}
"""Samples of the step whose shares are taken, by kind of device."""
STATED_ERROR = constants("intervals.stated")["kernels"] * math.sqrt(2 / math.pi)
"""Mean error of kernels from data sheets, and of an entry that states none on rows left out (docs/numbers.md)."""
OUTSIDE_FACTOR = constant("gaps.outside")
"""Times the held-out error, outside the fit (docs/numbers.md)."""
POOR_ERROR = 0.25
"""Held-out error from which an entry is poor."""
LEAST_WEIGHT = 0.001
"""Of the step's time: less is not worth a measurement."""
UNTIMED_PRECISIONS = ("int8",)
"""PyTorch has no int8 convolutions to time on a GPU, nor backward on a CPU."""


CanMeasure = Callable[[LayerCall, str], bool]
"""Call of a network's layer, precision -> whether it can be timed as it is."""


def gaps_of(
    calibration: Calibration, networks: Sequence[Network], can_measure: CanMeasure = lambda *_: True
) -> tuple[Gap, ...]:
    """Return what a calibration knows badly of networks, what costs their steps most first.

    A precision of the device that the calibration has neither products nor convolutions in is one gap a network.

    ``calibration``: one without kernels, or of no known device, has no gaps.
    """
    precisions = {entry.precision for entry in calibration.entries if entry.kind in PRODUCT_KINDS}
    if calibration.node is None or not precisions:
        return ()
    device = calibration.node.accelerator
    gaps: list[Gap] = []
    for network in networks:
        cluster = Cluster(calibration.cluster or "local", 1, calibration.node)
        settings = RunSettings(optimizer=network.optimizer, input="synthetic")
        sources = Sources(Problem(network, None, cluster, (calibration,), settings=settings))
        device_precisions = [
            name for name in PRECISIONS if name in device.peak_flop_per_s and name not in UNTIMED_PRECISIONS
        ]
        gaps += [
            gap for name in PRECISIONS if name in precisions for gap in _of_step(sources, network, name, can_measure)
        ]
        gaps += _of_precisions(sources, network, [name for name in device_precisions if name not in precisions])
    return tuple(sorted((gap for gap in gaps if gap.weight >= LEAST_WEIGHT), key=lambda gap: -gap.weight))


def _of_precisions(sources: Sources, network: Network, absent: Sequence[str]) -> Iterator[Gap]:
    """Yield the gap that products were measured in none of these precisions, of that where they take most of a step."""
    shares: dict[str, float] = {}
    kinds: dict[str, None] = {}
    for precision in absent:
        seconds = {True: 0.0, False: 0.0}
        for calls, _, _, times, _ in _timed(sources, network, precision):
            seconds[calls.kind in PRODUCT_KINDS] += float(times.sum())
            kinds |= {calls.kind: None} if calls.kind in PRODUCT_KINDS else {}
        shares[precision] = seconds[True] / (sum(seconds.values()) or 1.0)
    if kinds:
        worst, *others = sorted(shares, key=lambda name: -shares[name])
        nor = f"nor in {', '.join(others)}" if others else ""
        yield Gap(network.name, " and ".join(kinds), "", worst, "missing", shares[worst], STATED_ERROR, nor)


def _of_step(sources: Sources, network: Network, precision: str, can_measure: CanMeasure) -> Iterator[Gap]:
    """Yield a gap for every kind and direction of kernels in a step of a network; two where part lies outside."""
    parts = list(_timed(sources, network, precision, can_measure))
    total = sum(float(times.sum()) for *_, times, _ in parts)
    for calls, source, work, every_s, is_open in parts:
        times = every_s * is_open
        entry, key = source.entry, (network.name, calls.kind, calls.direction, precision)
        if source.origin == "specified":
            yield Gap(*key, "missing", float(times.sum()) / total, STATED_ERROR)
            continue
        error = STATED_ERROR if entry.held_out_error is None else entry.held_out_error
        outside = np.broadcast_to(extrapolates(entry, work), times.shape) if entry.ranges else np.zeros_like(times)
        far_s = float((times * outside).sum())
        if far_s:
            yield Gap(*key, "outside", far_s / total, OUTSIDE_FACTOR * error, _farthest(entry, work))
        yield Gap(*key, "poor" if error >= POOR_ERROR else "worst known", (float(times.sum()) - far_s) / total, error)


def _timed(
    sources: Sources, network: Network, precision: str, can_measure: CanMeasure = lambda *_: True
) -> Iterator[tuple[KernelCalls, Source, Work, FloatArray, BoolArray]]:
    """Yield calls of a step that are served, work, times [s] of shape (1, k), and which could be timed but were not."""
    is_image = len(network.input_shape) > 1
    sub_batch = np.array([(IMAGES if is_image else SEQUENCES)[sources.accelerator.kind]])
    itemsize = precision_named(precision).activation_bytes
    convolution = sources.convolution_lowering(precision)
    by_kernel = layer_calls(network, convolution=convolution, optimizer=network.optimizer)
    for calls in lower(network, sub_batch, convolution=convolution, optimizer=network.optimizer):
        of_layers = zip(calls.layer.tolist(), by_kernel[calls.kind, calls.direction], strict=True)
        can = {(layer, *call.at(int(sub_batch[0])).values()): can_measure(call, precision) for layer, call in of_layers}
        for part, looked_up, runs_in in sources.split(calls, sub_batch, precision):
            source = looked_up or sources.find_kernel(part.kind, part.direction, runs_in)
            if source is not None:
                work = call_work(part, itemsize)
                times = np.broadcast_to(evaluate(source.entry, work), (1, part.layer.size)) * part.count
                columns = [np.broadcast_to(one, times.shape)[0].tolist() for one in part.work.values()]
                keys = zip(part.layer.tolist(), *columns, strict=True)
                is_open = looked_up is None and runs_in == precision
                yield part, source, work, times, np.array([is_open and can[key] for key in keys])


def _farthest(entry: Entry, work: Work) -> str:
    """Return which feature of calls lies farthest outside the fit, and the end of the range that was seen."""
    features = features_of(entry, work)
    names = term_named(entry.term).names(entry.settings)
    values = {name: np.asarray(work[name], dtype=np.float64) for name in entry.ranges if name in work}
    values |= {name: features[..., at] for at, name in enumerate(names) if name in entry.ranges}
    far: list[tuple[float, str]] = []
    for name, of_calls in values.items():
        low, high = entry.ranges[name]
        margin = RANGE_MARGIN * max(abs(low), abs(high))
        least, most = float(of_calls.min()), float(of_calls.max())
        if most > high + margin:
            far.append((most / high if high else np.inf, f"{name} up to {most:.3g}, seen to {high:.3g}"))
        elif least < low - margin:
            far.append((low / least if least else np.inf, f"{name} down to {least:.3g}, seen from {low:.3g}"))
    return max(far)[1] if far else ""
