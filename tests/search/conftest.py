"""A synthetic machine with closed forms, a request strategy and a brute-force search to compare with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from planner.domain.arrays import FloatArray
from planner.domain.configuration import MODES, Configuration, Configurations
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import MiniBatch, Prediction, Predictions, Quantity, Staleness
from planner.domain.request import Sourced, SpaceRequest
from planner.domain.suggestion import Suggestion
from planner.errors import Refusal
from planner.search.exhaustive import Asked
from planner.search.ranking import Order, PricedPlans
from planner.search.searchable import over_leasts
from planner.search.space import Limits
from planner.search.suggest import answer_of, searched_by
from planner.steps import predict
from planner.steps.describe import Description, Deviation

GIB = 2.0**30
SPEED = {"fp32": 1.0, "fp16": 0.6}
SIZE = {"fp32": 1.0, "fp16": 0.7}


@dataclass(frozen=True)
class SyntheticMachine:
    """SPRINT's form: T_GPU = fixed + n·(load + compute·speed); T_Update = update + reduce·lg N; G = N·g GPUs.

    Synchronous: a·T_GPU + T_Update with lg G. Memory grows with the sub-batch.
    """

    fixed_s: float = 0.01
    load_s: float = 0.02
    compute_s: float = 0.07
    update_s: float = 0.05
    reduce_s: float = 0.04
    samples: int = 100_000
    capacity: float = 20.0 * GIB
    unsure: float = 0.0
    speed: Mapping[str, float] = field(default_factory=lambda: SPEED)
    size: Mapping[str, float] = field(default_factory=lambda: SIZE)

    def limits(self, nodes: int = 6, gpus: int = 3, factor: int = 1) -> Limits:
        """Return what the machine allows."""
        largest = {name: int((self.capacity / GIB - 2) / size) for name, size in self.size.items()}
        lacking = Refusal("precision_absent", "no such units")
        absent = dict.fromkeys((name for name in PRECISIONS if name not in self.size), lacking)
        largest |= dict.fromkeys(absent, 1)
        by_mode = {(name, mode): most for name, most in largest.items() for mode in MODES}
        return Limits("synthetic", nodes, gpus, by_mode, absent, factor)

    def order(self, request: SpaceRequest) -> Order:
        """Return the order of a request."""
        return Order(
            request.objective,
            request.target_batch,
            has_dataset=True,
            usd_per_gpu_hour=2.0,
            window=request.window("async"),
        )

    def one(self, c: Configuration) -> dict[str, float]:
        """Predict one configuration, by hand."""
        gpu_s = self.fixed_s + c.sub_batch * (self.load_s + self.compute_s * self.speed[c.precision])
        memory = GIB * (2 + c.sub_batch * self.size[c.precision])
        if c.mode == "async":
            update = self.update_s + self.reduce_s * math.log2(c.nodes)
            mean = c.gpus * c.sub_batch * update / gpu_s
            rate, staleness, iteration = c.gpus * c.sub_batch / gpu_s, gpu_s / update + 1, gpu_s
        else:
            update, staleness = math.nan, 0.0
            iteration = gpu_s * c.accumulation_steps + self.update_s + self.reduce_s * math.log2(c.gpus)
            mean = float(c.gpus * c.sub_batch * c.accumulation_steps)
            rate = mean / iteration
        return {
            "iteration_s": iteration,
            "update_s": update,
            "samples_per_s": rate,
            "epoch_s": self.samples / rate,
            "first_epoch_s": self.samples / rate,
            "mini_batch_mean": mean,
            "staleness_mean": staleness,
            "memory_bytes": memory,
        }

    def evaluate(self, configurations: Configurations) -> Predictions:
        """Predict configurations one after another."""
        plans = configurations.rows
        rows = [self.one(plans.one(i)) for i in range(plans.size)]
        return Predictions(**{key: np.array([row[key] for row in rows]) for key in Predictions.__dataclass_fields__})

    def least_epoch_s(self, configurations: Configurations, *, split: bool, closely: bool = False) -> FloatArray:
        """Return the time of all samples without what a step does once."""
        assert not split, closely
        plans = configurations.rows
        speed = np.array([self.speed[name] for name in plans.precisions])[plans.precision]
        gpu_s = self.fixed_s + plans.sub_batch * (self.load_s + self.compute_s * speed)
        return np.asarray(self.samples / (plans.gpus * plans.sub_batch) * gpu_s)

    def describe(
        self, configurations: Configurations, window: Callable[[str], tuple[float, float]] | None = None
    ) -> list[Prediction]:
        """Return records with what the machine knows."""
        assert window is not None
        return [self._record(configurations.one(i)) for i in range(configurations.size)]

    def compare(
        self, configurations: Configurations, window: Callable[[str], tuple[float, float]] | None = None
    ) -> tuple[list[Any], Deviation]:
        """Return records, and that ratios are unsure by ``unsure``, times the logarithm of the ratio of devices."""
        gpus = configurations.gpus
        described = [
            SimpleNamespace(configuration=one.configuration, prediction=one)
            for one in self.describe(configurations, window)
        ]
        return described, lambda one, other: self.unsure * abs(math.log(gpus[one] / gpus[other]))

    def _record(self, c: Configuration) -> Prediction:
        p = self.one(c)
        epoch, rate = Quantity(p["epoch_s"]), Quantity(p["samples_per_s"])
        mini_batch = MiniBatch(p["mini_batch_mean"], 0, p["mini_batch_mean"], p["mini_batch_mean"])
        staleness = Staleness(p["staleness_mean"], 0, {})
        memory = {"total": p["memory_bytes"], "capacity": self.capacity}
        return Prediction(
            c, Quantity(p["iteration_s"]), None, epoch, epoch, rate, mini_batch, staleness, memory, (), "", ()
        )

    def brute_force(self, request: SpaceRequest, limits: Limits) -> list[Configuration]:
        """Return everything lawful in the order of plans, by loops and decimal rounding."""
        found = []
        for c in self._all(request, limits):
            low, high = request.window(c.mode)
            mean, memory = self.one(c)["mini_batch_mean"], self.one(c)["memory_bytes"]
            # 3 x .05 / .1 is a little above 1.5: an edge belongs to its window
            if c.mode == "async" and c.sub_batch > high * (1 + 1e-12):
                continue
            if low * (1 - 1e-12) <= mean <= high * (1 + 1e-12) and memory <= self.capacity:
                found.append(c)
        return sorted(found, key=lambda c: self.key(c, request.target_batch))

    def key(self, c: Configuration, target: int) -> tuple[float, ...]:
        """Return what plans are compared by."""
        p = {name: decimally(value) for name, value in self.one(c).items()}
        away = decimally(abs(p["mini_batch_mean"] - target))
        place = (c.nodes, c.gpus_per_node, c.sub_batch, c.accumulation_steps, MODES.index(c.mode))
        precision = list(SIZE).index(c.precision)
        return (p["epoch_s"], c.gpus, p["staleness_mean"], away, p["memory_bytes"], *place, precision)

    def _all(self, request: SpaceRequest, limits: Limits) -> Iterable[Configuration]:
        nodes = set(request["nodes"] or range(1, limits.nodes + 1))
        gpus = set(request["gpus_per_node"] or (limits.gpus_per_node,))
        for mode, precision in itertools.product(request.modes, set(request["precision"] or SIZE)):
            sub_batches = set(request["sub_batch"] or range(1, limits.largest_sub_batch[precision, mode] + 1))
            high = 1 if mode == "async" else int(request.window(mode)[1])
            accumulation = set(request["accumulation_steps"] or range(1, high + 1))
            low, most = request.window(mode)
            for n, g, b, a in itertools.product(nodes, gpus, sub_batches, accumulation):
                if a == 1 if mode == "async" else low * (1 - 1e-12) <= n * g * b * a <= most * (1 + 1e-12):
                    yield Configuration(n, g, b, a, precision, mode)


def decimally(value: float) -> float:
    """Round to 9 significant digits by way of text."""
    return float(f"{value:.8e}")


@pytest.fixture(scope="session")
def machine() -> SyntheticMachine:
    return SyntheticMachine()


@pytest.fixture(scope="session")
def priced(machine: SyntheticMachine) -> Callable[[list[Configuration]], PricedPlans]:
    """Price records with the synthetic machine."""

    def price(records: list[Configuration]) -> PricedPlans:
        configurations = Configurations.of(records)
        return PricedPlans(configurations, machine.evaluate(configurations))

    return price


@pytest.fixture(scope="session")
def faster_links(machine: SyntheticMachine) -> SyntheticMachine:
    """Return the same machine with its all-reduce at 7/12.5 of the time."""
    return replace(machine, reduce_s=machine.reduce_s * 7 / 12.5)


def suggest_with(
    evaluator: Any, order: Order, limits: Limits, request: SpaceRequest, provenance: Mapping[str, Sourced[object]]
) -> Suggestion:
    """Return the answer to a request, with any evaluator."""

    def compare(_: Sequence[int], plans: Configurations) -> tuple[list[Description], Deviation]:
        if isinstance(evaluator, predict.Evaluator):
            return predict.compare_among([evaluator], request.window, [0] * plans.size, plans)
        found: tuple[list[Description], Deviation] = evaluator.compare(plans, window=request.window)
        return found

    asked = over_leasts(Asked(request, limits, evaluator, order))
    return answer_of([searched_by(asked)], provenance, compare)
