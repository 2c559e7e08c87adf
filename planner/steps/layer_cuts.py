"""Where a pipeline cuts a network without an architecture in numbers, such as a CNN: stages of layers, by their time.

Stages are cut where the slowest is as fast as it can be: both passes, kernels and host time together. A cut may lie
before any layer with parameters. Cuts are laid down once for sub-batches that differ in their fifth significant binary
digit, or later ones.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.steps.compute import PASSES, RankCompute
from planner.steps.host_and_gpu import STAGES
from planner.steps.split_costs import StepCosts
from planner.workload.partition import Partition

__all__ = ["LayerCuts", "cut_at"]


SIGNIFICANT = 4
"""Of resnet50, vgg16 and alexnet on V100 the slowest stage is within 1 % of what cuts at each sub-batch would make it;
with one digit, powers of two, it is up to 15 % slower."""


def cut_at(sub_batch: IntArray) -> IntArray:
    """Return each sub-batch rounded down to SIGNIFICANT binary digits, at which its plans are cut."""
    _, exponent = np.frexp(sub_batch.astype(np.float64))
    dropped = np.maximum(exponent.astype(np.int64) - SIGNIFICANT, 0)
    return np.left_shift(np.right_shift(sub_batch, dropped), dropped)


class LayerCuts:
    """Cuts of one network in one precision; those that were asked for stay.

    ``crossing``: bytes of a sample that cross a cut before each unit, and behind the last nothing, shape (V + 1,).
    """

    def __init__(self, costs: StepCosts, crossing: FloatArray) -> None:
        self.costs, self.crossing = costs, crossing
        self._partitions: dict[int, Partition] = {}
        self._cuts: dict[tuple[int, int], IntArray] = {}

    @property
    def rank(self) -> RankCompute:
        """The network itself, of which a rank computes a stage."""
        return self.costs.compute.ranks[0]

    def cuts(self, stages: int, sub_batch: int) -> IntArray:
        """Return the unit that each stage starts with, and the number of units, shape (p + 1,)."""
        key = stages, int(cut_at(np.array(sub_batch)))
        if key not in self._cuts:
            if key[1] not in self._partitions:
                self._partitions[key[1]] = Partition(self.stage_s(key[1]), self.crossing)
            self._cuts[key] = self._partitions[key[1]].cuts(stages)
        return self._cuts[key]

    def stage_s(self, sub_batch: int) -> FloatArray:
        """Return both passes of a micro-batch over a stage from one unit up to another, shape (V + 1, V + 1) [s]."""
        kernels, host = np.zeros((2, *(self.rank.units.sequence.size + 1,) * 2, len(STAGES) + 1))
        for at, name in enumerate(STAGES):
            for one, each in zip((kernels, host), self.ahead_of(name, np.array([sub_batch])), strict=True):
                one[..., at] = np.maximum(each[0][None] - each[0][:, None], 0.0)
        stage_s = self.costs.stages_s(kernels, host)
        return stage_s["forward"] + stage_s["backward"]

    def ahead_of(self, name: str, sub_batch: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return kernels and host time of a pass over all that stands before each unit, shape (k, V + 1) [s]."""
        cases, of = self.costs.compute.cases, np.zeros(sub_batch.size, dtype=np.int64)
        cases.ensure(of, sub_batch)
        row, sequence, at = cases.rows(of, sub_batch), self.rank.units.sequence, PASSES.index(name)
        kernels, host = (
            np.pad(np.cumsum(each[row, at][:, sequence], axis=1), ((0, 0), (1, 0))) for each in self.costs.unit_s()
        )
        return kernels, host
