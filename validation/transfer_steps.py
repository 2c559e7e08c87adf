"""Training steps of GPUs that were measured, predicted as scenarios of other GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from planner import catalog
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration, relation
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import FORWARD
from planner.domain.request import Problem
from planner.errors import CoverageError
from planner.scoring.refit import Asked
from planner.sources.devices import completions, on_other_device
from planner.sources.sources import Sources
from planner.steps.predict import Evaluator

__all__ = ["DerivedSteps", "StepScore", "derived_steps", "step_scores"]

Scenario = tuple[Cluster, tuple[Calibration, ...]]


@dataclass(frozen=True)
class StepScore:
    """Errors of n steps of ``gpu`` predicted from ``source``: |predicted / measured - 1|, its bias, share in intervals.

    ``width``: median of the upper over the lower end.
    """

    gpu: str
    source: str
    near: str
    precision: str
    rows: int
    mean: float
    median: float
    bias: float
    coverage: float
    width: float


@dataclass(frozen=True)
class DerivedSteps:
    """Relative errors predicted / measured - 1 of n steps on one GPU, shape (n,), from kernels alone.

    Products are those of another precision of ``gpu``, or, ``sheet``, of the specification.
    """

    gpu: str
    precision: str
    framework: str
    network: str
    source: str
    errors: FloatArray
    sheet: FloatArray


def derived_steps(asked: Iterable[Asked]) -> Iterator[DerivedSteps]:
    """Yield the errors of steps whose matrix kernels are derived from another precision."""
    for one in asked:
        for observed in one.observed:
            alone, precision = np.flatnonzero(observed.configurations.gpus == 1), observed.precision
            gemm = Sources(observed.problem).find_kernel("gemm", FORWARD, precision)
            is_other = any(layer.kind == "convolution" for layer in one.problem.network.layers)
            if not alone.size or gemm is None or is_other or not gemm.provenance.precision:
                continue
            plans = observed.configurations.take(alone)
            kept = tuple(c for c in observed.problem.calibrations if not c.provenance.precision)
            errors = (
                Evaluator(problem).evaluate(plans).iteration_s / observed.measured_s[alone]
                - 1 / observed.measured_s[alone]
                - 1
                for problem in (observed.problem, replace(observed.problem, calibrations=kept))
            )
            device, framework = one.problem.cluster.node.accelerator.name, one.problem.settings.framework.label
            yield DerivedSteps(device, precision, framework, one.problem.network.name, one.runs[0].source, *errors)


def _pairs() -> Iterator[tuple[Accelerator, Accelerator]]:
    """Yield the GPUs with convolutions of their own, by twos, but for those of one data sheet."""
    names = set(catalog.names("calibrations"))
    devices = [catalog.find_accelerator(name) for name in catalog.names("accelerators")]
    known = [one for one in devices if one.name in names and _convolves(one.name)]
    for target, source in permutations(known, 2):
        if (target.chip, target.memory_bytes_per_s) != (source.chip, source.memory_bytes_per_s):
            yield target, source


def _convolves(name: str) -> bool:
    found = catalog.find_calibration(name)
    return found.origin != "specified" and any(entry.kind == "convolution" for entry in found.entries)


def step_scores(asked: Iterable[Asked]) -> Iterator[StepScore]:
    """Yield the errors of all synchronous steps by GPU, source and precision."""
    runs, cells = list(asked), defaultdict(list)
    for target, source in _pairs():
        known: dict[str, Scenario] = {}
        for one in runs:
            cluster = one.problem.cluster
            if cluster.node.accelerator.name == target.name:
                if cluster.name not in known:
                    known[cluster.name] = _scenario(cluster, source, target)
                there, calibrations = known[cluster.name]
                problem = replace(one.problem, cluster=there, calibrations=calibrations)
                # What the source lacks comes from the GPU itself, and is no transfer.
                for precision, rows in (r for r in _rows(one, problem) if r[0] in source.peak_flop_per_s):
                    cells[target.name, source.name, relation(source, target), precision].append(rows)
    for cell, parts in cells.items():
        error, inside, width = np.concatenate(parts).T
        size = np.abs(error)
        figures = (size.mean(), np.median(size), error.mean(), inside.mean(), np.median(width))
        yield StepScore(*cell, error.size, *map(float, figures))


def _rows(asked: Asked, problem: Problem) -> Iterator[tuple[str, FloatArray]]:
    """Yield (precision, rows of error, whether inside the interval, its width), shape (n, 3)."""
    evaluator = Evaluator(problem)
    for one in asked.observed:
        try:
            found = evaluator.describe(one.configurations)
        except CoverageError:  # a precision that the source was not measured in
            continue
        rows = [
            (p.iteration_s.value / measured - 1, p.iteration_s.low <= measured <= p.iteration_s.high,
             p.iteration_s.high / p.iteration_s.low)
            for p, measured in zip(found, np.atleast_1d(one.measured_s).tolist(), strict=True)
            if p.iteration_s.low is not None and p.iteration_s.high is not None
        ]  # fmt: skip
        if rows:
            yield one.configurations.precisions[0], np.array(rows, dtype=np.float64)


def _scenario(cluster: Cluster, source: Accelerator, target: Accelerator) -> Scenario:
    """Return what prices a cluster for someone who has the same of another GPU."""
    owned = replace(cluster, node=replace(cluster.node, accelerator=source))
    scores = catalog.transfer_scores()
    there, known = on_other_device(
        owned, target, catalog.calibrations_for(owned), scores, catalog.calibrations_for(cluster)
    )
    of_others = catalog.sibling_calibrations, catalog.nearest_calibrations
    _, same_die = next(completions(there, known, *of_others, scores))
    return there, known + same_die
