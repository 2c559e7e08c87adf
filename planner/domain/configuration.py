"""Configurations: what a plan decides. One is a record, many are arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from planner.domain.arrays import BoolArray, IntArray, check_count
from planner.domain.framework import PYTORCH, STRATEGIES, Framework, Strategy
from planner.domain.precision import precision_named
from planner.errors import ParameterError

__all__ = [
    "LARGEST_MINI_BATCH",
    "MODES",
    "OPTIMIZERS",
    "Configuration",
    "Configurations",
    "Settings",
]

LARGEST_MINI_BATCH = 10**15
"""No more samples pass between two updates; far more than any data set holds, and exact in a float."""
MODES = ("sync", "async")
OPTIMIZERS = {
    "none": 0, "sgd": 0, "sgd-momentum": 4, "nesterov": 4, "adagrad": 4, "rmsprop": 4, "adam": 8, "adam-8bit": 2,
}  # fmt: skip
"""Optimizer names and bytes of fp32 state per parameter (adam-8bit: two moments of one byte)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all candidates of a request share.

    Attributes
    ----------
    optimizer : one of OPTIMIZERS
    strategy : one of STRATEGIES
        What overlaps in a synchronous step: ``wait-free``, each layer's gradient is sent when it is ready;
        ``bucketed``, so are buckets of neighbouring layers; ``no-overlap``, each layer's after the backward pass.
    input : {"storage", "synthetic"}
    framework : Framework
    """

    optimizer: str = "sgd-momentum"
    strategy: str = "wait-free"
    input: str = "storage"
    framework: Framework = PYTORCH

    def __post_init__(self) -> None:
        for what, value, known in (
            ("optimizer", self.optimizer, tuple(OPTIMIZERS)),
            ("strategy", self.strategy, tuple(STRATEGIES)),
            ("input", self.input, ("storage", "synthetic")),
        ):
            if value not in known:
                raise ParameterError(what, "one of " + ", ".join(known), value)

    @property
    def overlap(self) -> Strategy:
        """What the strategy is in the framework."""
        return self.framework.strategies.get(self.strategy, STRATEGIES[self.strategy])


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration; degrees of parallelism other than data are 1 for now."""

    nodes: int
    gpus_per_node: int
    sub_batch: int
    accumulation_steps: int = 1
    precision: str = "fp32"
    mode: str = "sync"

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "sub_batch", "accumulation_steps"):
            check_count(name, getattr(self, name))
        precision_named(self.precision)
        if self.mode not in MODES:
            raise ParameterError("mode", "sync or async", self.mode)
        if self.mode == "async" and self.accumulation_steps != 1:
            raise ParameterError("accumulation_steps", "1 in an asynchronous plan", self.accumulation_steps)
        if self.samples_per_update > LARGEST_MINI_BATCH:
            rule = f"at most {LARGEST_MINI_BATCH:,} samples (GPUs x sub-batch x accumulation)"
            raise ParameterError("the mini-batch", rule, self.samples_per_update)

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return self.nodes * self.gpus_per_node

    @property
    def samples_per_update(self) -> int:
        """GPUs x sub-batch x accumulation steps; the mini-batch where the configuration is synchronous."""
        return self.gpus * self.sub_batch * self.accumulation_steps


@dataclass(frozen=True, slots=True)
class Configurations:
    """n configurations, each field an integer ndarray of shape (n,).

    ``precision`` and ``mode`` are positions in ``precisions`` and in MODES.
    """

    nodes: IntArray
    gpus_per_node: IntArray
    sub_batch: IntArray
    accumulation_steps: IntArray
    precision: IntArray
    mode: IntArray
    precisions: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of configurations."""
        return int(self.nodes.size)

    @property
    def gpus(self) -> IntArray:
        """Accelerators in all, shape (n,)."""
        return self.nodes * self.gpus_per_node

    @property
    def is_async(self) -> BoolArray:
        """Whether each is asynchronous, shape (n,)."""
        return np.equal(self.mode, MODES.index("async"))

    @property
    def synchronous_mini_batch(self) -> IntArray:
        """GPUs x sub-batch x accumulation steps, shape (n,); the mini-batch of synchronous configurations.

        Products above LARGEST_MINI_BATCH are LARGEST_MINI_BATCH + 1, as 64 bits might not hold them.
        """
        exact = self.gpus * self.sub_batch * self.accumulation_steps
        about = self.gpus.astype(np.float64) * self.sub_batch * self.accumulation_steps
        return np.where(about > LARGEST_MINI_BATCH, LARGEST_MINI_BATCH + 1, exact)

    def take(self, chosen: IntArray | BoolArray | slice) -> Configurations:
        """Return those at positions, where a mask is true, or of a slice."""
        arrays = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "precisions"}
        return Configurations(**arrays, precisions=self.precisions)

    def one(self, position: int) -> Configuration:
        """Return the configuration at a position as a record."""
        return Configuration(
            int(self.nodes[position]),
            int(self.gpus_per_node[position]),
            int(self.sub_batch[position]),
            int(self.accumulation_steps[position]),
            self.precisions[int(self.precision[position])],
            MODES[int(self.mode[position])],
        )

    @staticmethod
    def of(configurations: list[Configuration]) -> Configurations:
        """Return records as arrays, in their order."""
        precisions = tuple(dict.fromkeys(c.precision for c in configurations))

        def column(values: list[int]) -> IntArray:
            return np.array(values, dtype=np.int64)

        return Configurations(
            column([c.nodes for c in configurations]),
            column([c.gpus_per_node for c in configurations]),
            column([c.sub_batch for c in configurations]),
            column([c.accumulation_steps for c in configurations]),
            column([precisions.index(c.precision) for c in configurations]),
            column([MODES.index(c.mode) for c in configurations]),
            precisions,
        )
