"""Prices of plans that cut a network without an architecture in numbers, such as a CNN, into stages of layers.

Stages are cut where the slowest is as fast as it can be, its kernels and host time of both passes together; a cut
may lie before any layer with parameters. Cuts are laid down once for all sub-batches from a power of two up to the
next, as a user would lay them down once: at that power.

A stage sends on every tensor that was made before its end and is read behind it, and is sent as many bytes of their
gradients. GPipe takes the sum over all cuts, so that their mean serves; of other schedules the widest cut stands for
all, an upper figure. The first stage copies its samples to the device; loading them is hidden behind the step before
where input is prefetched.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_rows
from planner.domain.configuration import Configurations
from planner.domain.messages import NEIGHBOURS, SEND_RECEIVE
from planner.domain.precision import precision_named
from planner.domain.split import SplitMemoryBytes, SplitPlans
from planner.sources.sources import Sources
from planner.steps.compute import composed_s
from planner.steps.epoch import Input
from planner.steps.split_compute import PASSES
from planner.steps.split_part import SplitPart
from planner.steps.split_price import SplitPricer
from planner.steps.split_sent import Sent
from planner.workload.layer_memory import ChainSizes, chain_memory
from planner.workload.memory import ASSUMED_CONTEXT_BYTES
from planner.workload.partition import Partition
from planner.workload.units import cut_units

__all__ = ["LayerPart", "LayerPricer", "split_pricer"]


def split_pricer(sources: Sources, precision: str, like: SplitPricer | None = None) -> SplitPricer:
    """Return the pricer of plans that split the network of a problem."""
    kind = LayerPricer if sources.problem.network.transformer is None else SplitPricer
    return kind(sources, precision, like)


def cut_at(sub_batch: IntArray) -> IntArray:
    """Return the largest powers of two up to each, at which plans of these sub-batches are cut."""
    _, exponent = np.frexp(sub_batch.astype(np.float64))
    return np.left_shift(np.int64(1), exponent.astype(np.int64) - 1)


class LayerPricer(SplitPricer):
    """Prices plans whose stages hold layers.

    Attributes
    ----------
    sizes : ChainSizes
        Of every unit, and of what crosses the cuts between them.
    input : Input
    """

    def __init__(self, sources: Sources, precision: str, like: SplitPricer | None = None) -> None:
        super().__init__(sources, precision, like)
        self.input = Input(sources)
        self._partitions: dict[int, Partition] = {}

    @cached_property
    def sizes(self) -> ChainSizes:
        """What each unit needs."""
        rank = self.compute.ranks[0]
        return ChainSizes.of(rank.program, rank.units.starts, self.precision, rank.convolution)

    def cuts(self, stages: int, sub_batch: int) -> IntArray:
        """Return the unit that each stage starts with, and V, shape (p + 1,)."""
        power = int(cut_at(np.array(sub_batch)))
        if power not in self._partitions:
            self._partitions[power] = Partition(self.stage_s(power), self.sizes.crossing)
        return self._partitions[power].cuts(stages)

    def stage_s(self, sub_batch: int) -> FloatArray:
        """Return the time of a micro-batch, both passes, on a stage from one unit up to another, (V + 1, V + 1) [s]."""
        cases, sequence = self.compute.cases, self.compute.ranks[0].units.sequence
        one = np.zeros(1, dtype=np.int64), np.array([sub_batch])
        cases.ensure(*one)
        row = int(cases.rows(*one)[0])
        kernels, host = (
            np.pad(np.cumsum(table[row][:, sequence], axis=1), ((0, 0), (1, 0)))
            for table in (cases.columns.kernels_s(self.overheads), cases.columns.host_s(self.overheads))
        )
        total = np.zeros((sequence.size + 1,) * 2)
        for name in ("forward", "backward"):
            at = PASSES.index(name)
            gpu_s, host_s = (np.maximum(to[at][None] - to[at][:, None], 0.0) for to in (kernels, host))
            total += self.sources.multiplied(name, composed_s(gpu_s, host_s, self.overheads.exponent), self.precision)
        return total

    def memory(self, plans: SplitPlans) -> SplitMemoryBytes:
        """Return the memory of each plan's fullest rank."""
        problem = self.sources.problem
        shrunk = problem.scenario.sub_batch_factor if self.precision == "fp32" else 1
        rules = replace(self.memory_rules, framework_bytes=ASSUMED_CONTEXT_BYTES[self.sources.accelerator.kind])
        first, which = distinct_rows(plans.pipeline_parallel, cut_at(plans.sub_batch))
        order, parts = np.argsort(which, kind="stable"), []
        for at, row in enumerate(first.tolist()):
            cuts = self.cuts(int(plans.pipeline_parallel[row]), int(plans.sub_batch[row]))
            some = plans.rows(np.flatnonzero(which == at))
            parts.append(chain_memory(self.sizes, cuts, some, rules, problem.settings.optimizer, shrunk=shrunk))
        back = np.argsort(order)
        names = [one.name for one in fields(SplitMemoryBytes)]
        return SplitMemoryBytes(**{name: np.concatenate([getattr(one, name) for one in parts])[back] for name in names})

    def part(self, plans: SplitPlans) -> SplitPart:
        """Return plans of one number of stages, schedule and place of cuts."""
        return LayerPart(self, plans)

    def _alike(self, plans: SplitPlans) -> list[IntArray]:
        return [*super()._alike(plans), cut_at(plans.sub_batch)]

    def _load(self, chosen: Configurations, terms: dict[str, FloatArray]) -> None:
        """Put loading into the terms: ranks of the first stages load, which stand next to each other."""
        copies, gpus = chosen.gpus // chosen.pipeline_parallel, chosen.gpus_per_node
        samples = chosen.sub_batch * chosen.accumulation_steps
        load = self.input.times(samples, np.minimum(copies, gpus), -(-copies // gpus), first_epoch=False).node_s
        step = np.sum([exposed for _, exposed in terms.values()], axis=0)
        terms["load_input"][:] = load, np.maximum(load - step, 0.0) if self.strategy.prefetch else load


class LayerPart(SplitPart):
    """Plans of one number of stages, schedule and place of cuts."""

    def __init__(self, costs: LayerPricer, plans: SplitPlans) -> None:
        self.layers = costs
        self.cuts = costs.cuts(int(plans.pipeline_parallel[0]), int(plans.sub_batch[0]))
        super().__init__(costs, plans, costs.compute, np.zeros(plans.sub_batch.size, dtype=np.int64))

    @property
    def first_layers(self) -> tuple[str, ...]:
        """Names of the layers that stages start with."""
        starts = self.rank.units.starts[self.cuts[:-1]]
        return tuple(self.rank.network.layers[at].name for at in starts.tolist())

    def _counts(self) -> FloatArray:
        return cut_units(self.rank.units, self.cuts)

    def _sent(self) -> dict[str, Sent]:
        copy = np.zeros((self.stages, self.m.size))
        copy[0] = self.rank.host_to_device_s(self.plans.sub_batch)
        return {"host_to_device": Sent(copy, copy, np.zeros_like(copy))}

    def _parameters(self, counts: FloatArray) -> FloatArray:
        return np.asarray(counts @ self._parameters_of_unit.T)

    def _transfer_s(self) -> FloatArray:
        crossing = self.layers.sizes.crossing[self.cuts[1:-1]]
        if not crossing.size:
            return np.zeros(self.m.size)
        itemsize = precision_named(self.costs.precision).activation_bytes
        one = crossing.mean() if self.schedule == "gpipe" else crossing.max()
        return self.costs.operation_s(SEND_RECEIVE, itemsize * one * self.plans.sub_batch, self._groups(NEIGHBOURS))

    def _tied_s(self) -> FloatArray:
        return np.zeros(self.m.size)
