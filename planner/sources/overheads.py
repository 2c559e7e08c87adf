"""What timed steps say: what a framework adds to its kernels, and how plans near timed ones are corrected.

Overheads: which entry of the calibrations says what a framework adds.

An entry that says nothing of the exponent of the composition leaves it at the value of the network's family: the longer
of host and GPU hides part of the other in convolutional networks, and most of it in those with attention.

The accelerator's own entries go before those of any accelerator, which were fitted to runs of all GPUs; of each those
of the framework before generic ones, and of these those of the asked precision before those of any. What a framework
does is counted: what is fitted to runs is generic. Of what was measured without the switches that are asked for, that
is said. Coefficients that were fitted on top of specified kernels make up for the errors of these and serve nothing
else (library ``specified``).

Measured steps: plans that were timed correct the plans near them, by log(measured / predicted).

What was timed is a plan's whole steps, or the forward and backward passes of one sub-batch on one device. Whole steps
go before passes, which hold no messages. Either way the log ratio is an effect that all plans of a network have in
common, in a framework and precision and for steps on a cluster, plus one that near plans share, plus noise of each run.
With the variance of both effects together as unit, the common one has COMMON_VARIANCE, the other falls off by
REACH_DOUBLINGS, and the noise has NOISE_VARIANCE. How far apart two plans are is a sum over axes: doublings of a count,
and one where words, or stages that begin at 0, differ. Every plan is multiplied by what is expected of its effects
given all runs (kriging with mean 0; Rasmussen & Williams 2006, eq. 2.25), so that none wins because it was not run.
The covariance that runs leave (eq. 2.26) narrows intervals and decides between plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES
from planner.domain.calibration import END_TO_END, OF_PASSES, OF_STEP, Calibration, Entry, MeasuredStep
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import GENERIC, framework_parts, variant_and_version
from planner.domain.kernels import class_of
from planner.domain.network import Network
from planner.errors import ParameterError
from planner.numbers import constant, constants
from planner.sources.source import Source, source_of

DATASHEET_LIBRARY = "specified"
"""Library of overheads that were fitted on top of specified kernels."""
ASSUMED_HOST_S_PER_CALL = constant("overheads.host_s_per_call")
"""Host time of a kernel call on a GPU where no framework was measured (docs/numbers.md).

Not added to kernels that are specified: their launch is stated with them."""
DEVIATION_SETTING = "deviation"
"""Setting of what is assumed: its relative standard deviation."""
ASSUMED_SCALE_DEVIATION = constants("overheads.scale_deviation")
"""Of a stage's kernels at their full speed where no framework was measured, by kind of device (docs/numbers.md)."""
WAITS = ("wait_inside", "wait_between")
"""Coefficients of waits for other replicas: spreads of steps among GPUs of a node, and among nodes. Where overheads
state none they are those of the kinds of the cluster's links."""
NEUTRAL_COEFFICIENTS: Mapping[str, float] = {
    "kernel_scale": 1.0,
    "convolution_scale": 1.0,
    "product_scale": 1.0,
    "host_s_per_call": 0.0,
    "host_s_per_layer": 0.0,
    **dict.fromkeys(WAITS, 0.0),
}
"""Coefficient -> the value at which it changes nothing."""
EXPONENTS = constants("overheads.exponents")
"""Exponent of the composition where nothing tells it, of networks with attention and of all others (docs/numbers.md).
"""
ATTENTION = "exponent_attention"
EXACT, OF_FRAMEWORK, WITHOUT_SWITCHES, GENERIC_MATCH = "exact", "framework", "without switches", "generic"
OF_RUNS = "runs"
"""Of generic entries that were fitted to whole steps of all frameworks."""
MATCHES = (
    (EXACT, False),
    (OF_FRAMEWORK, False),
    (WITHOUT_SWITCHES, False),
    (OF_FRAMEWORK, True),
    (GENERIC_MATCH, False),
)
"""How an entry's framework matches, and whether it is of another version; best first."""
FORMULA = (
    "a step takes ((kernel_scale·(convolution_scale·C + product_scale·M + K))^exponent + (host_s_per_call·calls + "
    "host_s_per_layer·layers)^exponent)^(1/exponent), C = seconds of its convolutions, M = of its products and "
    "attention, K = of its other kernels, of which forward, backward and update have shares by their seconds; on "
    "several GPUs 1 + wait_inside·e(GPUs a node) + wait_between·e(nodes) times that, e(p) = expected largest of p "
    "standard normals; a scale that is not stated is 1, a time or spread is 0; exponent_attention is that of networks "
    "with attention"
)
"""What the coefficients of an entry stand for, in a line."""


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a framework adds: a step takes (GPU^exponent + host^exponent)^(1/exponent).

    Attributes
    ----------
    kernel_scale, convolution_scale, product_scale : float
        GPU is kernel_scale x the sum of the step's kernels, convolutions and products times their own scale first.
    host_s_per_call, host_s_per_layer : host is host_s_per_call x calls + host_s_per_layer x layers [s]
    exponent : 1 adds, a large one takes the longer
    wait_inside, wait_between : spread of the compute of a step, as a share of it, among GPUs of a node and among nodes
    matched : str
        How the entry was found: ``exact``, ``framework``, ``without switches``, ``generic``, ``runs`` or ``assumed``.
    pooled : the entry is one of any accelerator
    scale_doubt : what kernels at their full speed are unsure by, in its setting ``deviation``; None where a fit tells
    """

    kernel_scale: float
    convolution_scale: float
    product_scale: float
    host_s_per_call: float
    host_s_per_layer: float
    wait_inside: float
    wait_between: float
    exponent: float
    source: Source
    matched: str
    pooled: bool = False
    scale_doubt: Entry | None = None

    def scale_of(self, kind: str) -> float:
        """Return by what the times of a kernel kind are multiplied."""
        return float(self.scales[class_of(kind)])

    @property
    def scales(self) -> FloatArray:
        """By what the times of each of CLASSES are multiplied, shape (3,)."""
        return self.kernel_scale * np.array([self.convolution_scale, self.product_scale, 1.0])

    def wait_share(self, gpus_per_node: IntArray, nodes: IntArray) -> FloatArray:
        """Return by which share of itself the compute of a step takes longer as replicas wait for the slowest of them.

        The largest of p times with a spread is expected so many spreads above their mean as of p standard normals.
        """
        if not (self.wait_inside or self.wait_between):
            return np.zeros(np.broadcast_shapes(np.shape(gpus_per_node), np.shape(nodes)))
        inside, between = expected_largest(gpus_per_node), expected_largest(nodes)
        return np.asarray(self.wait_inside * inside + self.wait_between * between)

    def scaled(self, kernels: float, host: float, waits: float) -> Overheads:
        """Return the same with kernels, host time, and waits for other replicas multiplied."""
        return replace(
            self,
            kernel_scale=self.kernel_scale * kernels,
            host_s_per_call=self.host_s_per_call * host,
            host_s_per_layer=self.host_s_per_layer * host,
            wait_inside=self.wait_inside * waits,
            wait_between=self.wait_between * waits,
        )

    def at_most(self, other: Overheads, convolutions: float, products: float) -> Overheads:
        """Return the same where no kernel takes longer than ``other`` makes it.

        Other kernels are the same there; its convolutions and products take so many times as long before any scale.
        """
        least = np.minimum(self.scales, other.scales * (convolutions, products, 1.0)).tolist()
        scales = {
            "kernel_scale": least[2],
            "convolution_scale": least[0] / least[2],
            "product_scale": least[1] / least[2],
        }
        return replace(self, **scales)

    def waiting(self, inside: float, between: float) -> Overheads:
        """Return the same with the waits of a cluster's kinds of links, so far as its entry states none."""
        stated, (first, second) = self.source.entry.coefficients, WAITS
        inside, between = stated.get(first, inside), stated.get(second, between)
        return replace(self, wait_inside=inside, wait_between=between)

    @property
    def leaves_kernels(self) -> bool:
        """Whether every kernel's time is multiplied by 1."""
        return self.kernel_scale == self.convolution_scale == self.product_scale == 1


def check_overheads(entry: Entry) -> None:
    """Raise ParameterError where a coefficient of a framework is out of its nature: stages would take no time, or less.

    Exponents below 1 make two that overlap longer than both one after the other.
    """
    for name, value in entry.coefficients.items():
        if name in EXPONENTS and value < 1:
            raise ParameterError(f"coefficient {name}", "at least 1", value)
        if value < 0 or (name.endswith("_scale") and not value):
            raise ParameterError(f"coefficient {name}", "above 0" if name.endswith("_scale") else "at least 0", value)


def exponent_name(network: Network) -> str:
    """Return the coefficient, one of EXPONENTS, that is the exponent of a network's family."""
    attends = any(layer.kind == "attention" for layer in network.layers)
    return "exponent_attention" if attends else "exponent"


_LARGEST = (0.0, 0.0, 0.5642, 0.8463, 1.0294, 1.1630, 1.2672, 1.3522, 1.4236)
"""Expected largest of 0 to 8 standard normals."""
_DOUBLED = (1.4236, 1.7660, 2.0697, 2.3437, 2.5946, 2.8269, 3.0439, 3.2482, 3.4418, 3.6261, 3.8023, 3.9714, 4.1341)
"""The same of 8, 16 and so on to 32,768."""


def expected_largest(number: IntArray) -> FloatArray:
    """Return the expected largest of so many standard normals; between powers of 2 by their logarithm.

    Errors are below 0.4 % (tests/sources/test_overheads.py has the integral).

    >>> expected_largest(np.array([1, 2, 32])).round(3).tolist()
    [0.0, 0.564, 2.07]
    """
    every = np.arange(int(np.max(number, initial=0)) + 1)
    many = np.interp(np.log2(np.maximum(every, 8)), 3 + np.arange(len(_DOUBLED)), _DOUBLED)
    many[: len(_LARGEST)] = _LARGEST[: every.size]
    return np.asarray(many[number])


def find_overheads(
    sources: Iterable[tuple[Source, bool]],
    framework: str,
    precision: str,
    *,
    on_specified: bool,
    exponent: str = "exponent",
    mode: str = "sync",
) -> Overheads | None:
    """Return the overheads of a framework, as asked for, of any version, or generic; None where there are none.

    Parameters
    ----------
    sources : (Source, whether it was pooled over accelerators), in the order of precedence
    framework : name, or ``name@version``
    on_specified : whether matrix kernels come from the specification
    exponent : one of EXPONENTS; of the network's family
    mode : one of MODES; entries of it go before those of any mode, these before those of the other
    """
    libraries = (DATASHEET_LIBRARY, "") if on_specified else ("",)
    best: tuple[tuple[int, ...], Source] | None = None
    for place, (source, pooled) in enumerate(sources):
        entry = source.entry
        match = _match(entry, framework)
        if match is None or entry.precision not in ("", precision) or entry.library not in libraries:
            continue
        at = (mode, "", entry.mode).index(entry.mode)
        of_library = libraries.index(entry.library)
        rank = (int(pooled), MATCHES.index(match), at, of_library, int(entry.precision != precision), place)
        if best is None or rank < best[0]:
            best = (rank, source)
    if best is None:
        return None
    matched, _ = MATCHES[best[0][1]]
    is_of_runs = best[1].entry.kind == GENERIC.name and best[1].entry.estimator == END_TO_END
    matched = OF_RUNS if is_of_runs else matched
    return _overheads(best[1], matched, exponent, EXPONENTS[exponent], pooled=bool(best[0][0]))


def _match(entry: Entry, framework: str) -> tuple[str, bool] | None:
    """Return how an entry's framework matches, one of MATCHES: of several versions one without a number goes first."""
    name, version, switches = framework_parts(framework)
    entry_name, entry_version, entry_switches = framework_parts(entry.kind)
    if entry_name != name or entry_switches not in (switches, ()):
        return MATCHES[-1] if entry.kind == GENERIC.name else None
    if entry_switches != switches:
        return WITHOUT_SWITCHES, False
    if entry_version == version:
        return EXACT, False
    return OF_FRAMEWORK, bool(entry_version)


def assumed_overheads(device_kind: str, exponent: str = "exponent") -> Overheads:
    """Return what is assumed where no framework was measured."""
    values = {
        **{name: value for name, value in NEUTRAL_COEFFICIENTS.items() if name not in WAITS},
        **EXPONENTS,
        "host_s_per_call": ASSUMED_HOST_S_PER_CALL if device_kind == "gpu" else 0.0,
    }
    entry = Entry(
        "overheads", "generic", "", "", "", "overheads", {}, values, fixed=tuple(values), origin="assumed",
        source="stated assumption: no framework was measured on this accelerator",
    )  # fmt: skip
    doubt = replace(
        entry, settings={DEVIATION_SETTING: ASSUMED_SCALE_DEVIATION[device_kind]}, coefficients={}, fixed=()
    )
    return _overheads(source_of(entry), "assumed", exponent, EXPONENTS[exponent], scale_doubt=doubt)


def _overheads(
    source: Source, matched: str, exponent: str, usual: float, *, pooled: bool = False, scale_doubt: Entry | None = None
) -> Overheads:
    coefficients = source.entry.coefficients
    values = {name: coefficients.get(name, value) for name, value in NEUTRAL_COEFFICIENTS.items()}
    power = coefficients.get(exponent, coefficients.get("exponent", usual))
    return Overheads(**values, exponent=power, source=source, matched=matched, pooled=pooled, scale_doubt=scale_doubt)


_KRIGING = constants("measured_plans.kriging")
NOISE_VARIANCE = _KRIGING["noise"]
"""Variance of the noise of a run over that of effects: one run alone moves its own plan five sixths of the way."""
COMMON_VARIANCE = _KRIGING["common"]
"""Variance of the effect that all plans have in common over that of both."""
REACH_DOUBLINGS = _KRIGING["reach"]
"""Doublings over which what a plan shares with another falls to 1/e (docs/numbers.md)."""
_AXES = {
    OF_STEP: tuple(axis for axis in AXES if axis.name not in ("precision", "mode")),
    OF_PASSES: tuple(axis for axis in AXES if axis.name in ("sub_batch", "tensor_parallel")),
}
"""Axes that plans may differ in and still share an effect, by what was timed."""


class MeasuredSteps:
    """What r measured steps of a network, all of steps or all of passes, in a framework and precision, say of plans.

    ``of``: OF_STEP or OF_PASSES; ``calibrations``: names of those that hold them.
    """

    def __init__(self, steps: Sequence[MeasuredStep], calibrations: Iterable[str]) -> None:
        self.steps, self.calibrations = steps, tuple(dict.fromkeys(calibrations))
        self.of = steps[0].of
        noise = np.diag([NOISE_VARIANCE / one.runs for one in steps])
        self._inverse = np.linalg.inv(self._covariances([one.configuration for one in steps]) + noise)
        self._weights = self._inverse @ np.log([one.factor for one in steps])

    def factors(self, plans: Configurations) -> FloatArray:
        """Return by what the times of plans are multiplied, of the shape of the plans."""
        log = np.zeros(plans.shape)
        for one, weight in zip(self.steps, self._weights.tolist(), strict=True):
            log += weight * _shared_variance(self._doublings(plans, one.configuration))
        return np.exp(log)

    def remaining(self, one: Configuration, other: Configuration) -> float:
        """Return the share of the variance of the log ratio of two plans that is left; of equal plans, of one alone."""
        plans = Configurations.of([one, other])
        near = self._covariances([one, other])
        both = _shared_variance(np.stack([self._doublings(plans, one), self._doublings(plans, other)]))
        left = both - near @ self._inverse @ near.T
        difference = np.array([1.0, 0.0 if one == other else -1.0])
        share: float = (difference @ left @ difference) / (difference @ both @ difference)
        return min(max(share, 0.0), 1.0)

    def runs_of(self, plan: Configuration) -> int:
        """Return how many of the runs were of a plan itself."""
        plans = Configurations.of([plan])
        return sum(one.runs for one in self.steps if not self._doublings(plans, one.configuration).any())

    def _covariances(self, plans: list[Configuration]) -> FloatArray:
        """Return those of the effects of plans and runs, shape (n, r)."""
        rows = Configurations.of(plans)
        return _shared_variance(np.stack([self._doublings(rows, one.configuration) for one in self.steps], axis=1))

    def _doublings(self, plans: Configurations, one: Configuration) -> FloatArray:
        """Return how far plans are from one, of the shape of the plans."""
        other = Configurations.of([one])
        apart = np.zeros(plans.shape)
        for axis in _AXES[self.of]:
            name = "schedule_run" if axis.name == "schedule" else axis.name
            column, value = getattr(plans, name), int(getattr(other, name)[0])
            is_count = axis.least > 0 and not axis.words
            apart += np.abs(np.log2(column / value)) if is_count else column != value
        return apart


def _shared_variance(doublings: FloatArray) -> FloatArray:
    """Covariance of the effects of plans that are so many doublings apart, of any shape; 1 of equal ones."""
    return np.asarray(COMMON_VARIANCE + (1 - COMMON_VARIANCE) * np.exp(-doublings / REACH_DOUBLINGS))


def measured_steps_of(
    calibrations: Iterable[Calibration], network: str, cluster: str, framework: str, precision: str
) -> MeasuredSteps | None:
    """Return what was timed in one precision: whole steps, else passes; None: neither.

    The first calibration that holds a plan serves it.

    Parameters
    ----------
    calibrations : of the accelerator, in order
    network, cluster, framework, precision : str
        A framework of a version also takes runs of no version. Passes are of no cluster.
    """
    frameworks = (framework, variant_and_version(framework)[0])
    by_plan: dict[tuple[str, Configuration], tuple[MeasuredStep, str]] = {}
    for calibration in calibrations:
        for one in calibration.measured_steps:
            is_alike = (one.network, one.configuration.precision) == (network, precision)
            if is_alike and one.framework in frameworks and (one.of == OF_PASSES or one.cluster == cluster):
                by_plan.setdefault((one.of, one.configuration), (one, calibration.name))
    for of in (OF_STEP, OF_PASSES):
        timed = [both for key, both in by_plan.items() if key[0] == of]
        if timed:
            steps, names = zip(*timed, strict=True)
            return MeasuredSteps(steps, names)
    return None
