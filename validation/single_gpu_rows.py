"""Measured steps on one GPU, and what they are predicted to take without and with coefficients of whole steps.

A step takes what its kernels do times k, composed with h for every kernel call by the exponent of the network's family
(:class:`planner.sources.overheads.Overheads`). Without anything fitted to steps k is 1, and h 0 or the assumed 10 us.
The two coefficients of a source, framework, version and GPU are fitted to its other networks: they minimise

    sum over rows huber(log(predicted / measured) / ROW_DEVIATION) + (log k / 0.3)^2 + (log(h / 10 us) / 1)^2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from planner.cli.streams import note
from planner.domain.arrays import FloatArray
from planner.domain.runs import Run
from planner.fitting.end_to_end import COEFFICIENTS, fit_end_to_end
from planner.fitting.estimators import robust_least_squares
from planner.fitting.observed import AloneSteps, Observed
from planner.fitting.residuals import ROW_DEVIATION
from planner.formats.runs import read_runs
from planner.scoring.refit import Asked
from planner.sessions.runs import table_of
from planner.sources.overheads import ASSUMED_HOST_S_PER_CALL, EXPONENTS, exponent_name

__all__ = [
    "EXPONENT_GRID",
    "SOURCES",
    "TARGETED",
    "Group",
    "Steps",
    "Two",
    "family_of",
    "groups_of",
    "measured_steps",
    "whole_fits",
]

FOLDER = Path(__file__).resolve().parent
TARGETED = ("cnn-benchmarks", "tensorflow-2017", "mxnet", "timm-rtx3090", "neusight-e2e")
"""Sources that the targets were set for."""
SOURCES = (*TARGETED, "pytorch-gpu-benchmark")
DEVIATIONS = np.array([0.3, 1.0])
EXPONENT_GRID = (1.0, 1.5, 2.0, 3.0, 6.0)
BASIC_RESNETS = ("resnet18", "resnet34")
DECODERS = ("gpt", "opt")


class Two(NamedTuple):
    """The two coefficients: kernel_scale, and host_s_per_call [s]."""

    kernel_scale: float
    host_s_per_call: float

    @property
    def values(self) -> FloatArray:
        """As :class:`planner.fitting.observed.AloneSteps` takes them, shape (3,)."""
        return np.array([self.kernel_scale, 1.0, self.host_s_per_call])


@dataclass(frozen=True, eq=False)
class Steps:
    """Measured steps of one network by one source, framework, version and GPU; n of them."""

    source: str
    network: str
    framework: str
    observed: Observed

    @property
    def gpu(self) -> str:
        """The accelerator."""
        return self.observed.properties["accelerator"]

    @property
    def kernels(self) -> str:
        """Whether kernels of matrices are ``measured`` or ``specified``."""
        return self.observed.properties["kernels"]

    @property
    def name(self) -> str:
        """The network without its arguments."""
        return self.network.partition(":")[0]

    @cached_property
    def exponent(self) -> str:
        """The name of its family's exponent, one of :data:`planner.sources.overheads.EXPONENTS`."""
        return exponent_name(self.observed.problem.network)

    def at(self, exponent: float | None = None) -> AloneSteps:
        """Return the steps as functions of coefficients; without ``exponent`` at that of the family."""
        return self.observed.alone_steps.at_exponent(EXPONENTS[self.exponent] if exponent is None else exponent)

    def errors(self, values: FloatArray, exponent: float | None = None) -> FloatArray:
        """Return predicted / measured - 1 under (k, m, h), shape (n,)."""
        return self.at(exponent).times_s(values) / self.observed.measured_s - 1

    @cached_property
    def alone(self) -> FloatArray:
        """Errors of kernels alone, shape (n,)."""
        return self.errors(Two(1.0, 0.0).values)

    @cached_property
    def assumed(self) -> FloatArray:
        """Errors with the host time that is assumed; specified kernels hold their launch already."""
        return self.errors(Two(1.0, ASSUMED_HOST_S_PER_CALL if self.kernels == "measured" else 0.0).values)


@dataclass(frozen=True, eq=False)
class Group:
    """Steps of one source, framework, version and GPU."""

    steps: Sequence[Steps]

    @property
    def of(self) -> Steps:
        """One of the steps, for what they share."""
        return self.steps[0]

    @property
    def rows(self) -> int:
        """Measured steps."""
        return sum(one.observed.measured_s.size for one in self.steps)

    def fitted(self, exponent: float | None = None) -> Two:
        """Return the two coefficients of all networks."""
        return fit_two(self.steps, exponent)

    def held_out(self, by: Callable[[Steps], str], exponent: float | None = None) -> list[FloatArray]:
        """Return the errors of every network, fitted without all that ``by`` says are like it."""
        fits = {
            name: fit_two([one for one in self.steps if by(one) != name], exponent)
            for name in sorted({by(one) for one in self.steps})
        }
        return [one.errors(fits[by(one)].values, exponent) for one in self.steps]


def family_of(steps: Steps) -> str:
    """Return the family of a network: ResNets by their blocks, VGGs, decoders."""
    if steps.name.startswith("resnet"):
        return "basic resnet" if steps.name in BASIC_RESNETS else "bottleneck resnet"
    letters = steps.name.rstrip("0123456789").partition("-")[0]
    return "decoder" if letters in DECODERS else letters


def measured_steps(folder: Path = FOLDER, sources: Sequence[str] = SOURCES) -> list[Steps]:
    """Return the synchronous steps of one GPU of the sources, without those that read their samples from storage."""
    found: list[Steps] = []
    for source in sources:
        path = folder / f"{source}.csv"
        for problem, runs in table_of(read_runs(path), folder, {}, note).problems:
            wanted = [run for run in runs if _is_wanted(run)]
            if wanted and problem.settings.input == "synthetic":
                names = source, wanted[0].network, problem.settings.framework.label
                found.extend(Steps(*names, observed) for observed in Asked(problem, wanted).observed)
    return found


def _is_wanted(run: Run) -> bool:
    return run.nodes == 1 and run.gpus_per_node == 1 and run.mode == "sync" and run.status == "ok"


def groups_of(steps: Sequence[Steps]) -> list[Group]:
    """Return the groups, those with measured kernels first."""
    found: dict[tuple[str, ...], list[Steps]] = {}
    for one in steps:
        cluster = one.observed.problem.cluster.name
        found.setdefault((one.kernels, one.source, one.gpu, cluster, one.framework), []).append(one)
    return [Group(found[key]) for key in sorted(found)]


def fit_two(steps: Sequence[Steps], exponent: float | None = None) -> Two:
    """Return k and h; those of their priors where there are no steps."""
    sets = [(np.log(one.observed.measured_s), one.at(exponent)) for one in steps]

    def valued(shift: FloatArray) -> Two:
        return Two(float(np.exp(shift[0])), ASSUMED_HOST_S_PER_CALL * float(np.exp(shift[1])))

    def residuals(shift: FloatArray) -> FloatArray:
        values = valued(shift).values
        found: FloatArray = np.concatenate([np.log(each.times_s(values)) - log_s for log_s, each in sets])
        return found / ROW_DEVIATION

    def jacobian(shift: FloatArray) -> FloatArray:
        values = valued(shift).values
        found: FloatArray = np.concatenate(
            [(each.slopes(values) * values / each.times_s(values)[:, None])[:, [0, 2]] for _, each in sets]
        )
        return found / ROW_DEVIATION

    if not sets:
        return valued(np.zeros(2))
    weights = np.ones(sum(log_s.size for log_s, _ in sets))
    return valued(robust_least_squares(residuals, jacobian, np.zeros(2), DEVIATIONS, weights)[0])


def whole_fits(steps: Sequence[Steps]) -> Iterator[tuple[Steps, FloatArray]]:
    """Yield steps with their errors when all coefficients are fitted to every other network of all sources together."""
    compute = [one.name for one in COEFFICIENTS if not one.of_several]
    for name in sorted({one.name for one in steps}):
        fitted = fit_end_to_end([one.observed for one in steps if one.name != name])
        for one in steps:
            if one.name == name:
                found = fitted.coefficients(one.observed.properties)
                exponent = fitted.exponent(one.observed.properties, one.exponent)
                yield one, one.errors(np.array([found[each] for each in compute]), exponent)
