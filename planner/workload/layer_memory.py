"""Memory of one rank of plans that cut a network between any two layers, counted by stage and never fitted.

As :mod:`planner.workload.memory` counts the whole network, of the layers of a stage. Besides, of every live micro-batch
(:mod:`planner.workload.in_flight`) the tensors that a stage is given, and two buffers each way of what crosses each of
its cuts. A tensor crosses a cut that lies behind the layer that makes it and before the last one that reads it: also
one that a stage only passes on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import prod
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import OPTIMIZERS
from planner.domain.layers import LAYER_KINDS
from planner.domain.network import INPUT, Network
from planner.domain.precision import precision_named
from planner.domain.split import SplitMemoryBytes, SplitPlans
from planner.workload.in_flight import live_micro_batches
from planner.workload.memory import column_elements, kept_layer_bytes, live_gradient_elements, weight_bytes
from planner.workload.memory_rules import MemoryRules
from planner.workload.program import Program

__all__ = ["ChainMemory", "ChainSizes", "crossing_elements"]

_BUFFERS = 2
"""Of what is sent and of what is received, at each cut."""


@dataclass(frozen=True, slots=True)
class ChainSizes:
    """What each of V units needs, and each cut between them; of one sample where it grows with samples.

    Attributes
    ----------
    parameters, weight_bytes, kept_bytes : ndarray of float, shape (V,)
    gradients, columns : ndarray of float, shape (V, V + 1)
        Elements of gradients of activations, the most at one time; of the largest im2col buffer, 0 where none is used:
        of the units from one up to another.
    crossing : ndarray of float, shape (V + 1,)
        Elements that cross a cut before a unit; the first is the network's input, behind the last unit nothing.
    """

    parameters: FloatArray
    weight_bytes: FloatArray
    kept_bytes: FloatArray
    gradients: FloatArray
    columns: FloatArray
    crossing: FloatArray

    @staticmethod
    def of(program: Program, starts: IntArray, precision: str, convolution: str) -> ChainSizes:
        """Return the sizes of units that start with the layers at ``starts``, shape (V,)."""
        sizes, uses_columns = precision_named(precision), convolution == "im2col"
        by_site = [
            [float(site.parameters) for site in program.sites],
            [float(weight_bytes(site, sizes)) for site in program.sites],
            [float(kept_layer_bytes(site, sizes.activation_bytes)) for site in program.sites],
            [float(column_elements(site) * uses_columns) for site in program.sites],
        ]
        parameters, weights, kept, columns = (np.array(column)[program.site] for column in by_site)
        return ChainSizes(
            parameters=np.add.reduceat(parameters, starts),
            weight_bytes=np.add.reduceat(weights, starts),
            kept_bytes=np.add.reduceat(kept, starts),
            gradients=_largest(np.maximum.reduceat(live_gradient_elements(program).astype(np.float64), starts)),
            columns=_largest(np.maximum.reduceat(columns, starts)),
            crossing=np.append(crossing_elements(program.network, program)[starts], 0.0),
        )


def _largest(each: FloatArray) -> FloatArray:
    """Return the largest of the values from one up to another, (V,) to (V, V + 1); 0 of none."""
    number = each.size
    inside = np.where(np.tri(number, k=-1, dtype=bool), 0.0, each)
    return np.pad(np.maximum.accumulate(inside, axis=1), ((0, 0), (1, 0)))


def crossing_elements(network: Network, program: Program) -> FloatArray:
    """Return the elements per sample of all tensors that cross a cut before each layer, shape (L,)."""
    tensor, made, last_use = {INPUT: INPUT}, {INPUT: -1}, {INPUT: 0}
    elements = {INPUT: prod(network.input_shape)}
    for position, layer in enumerate(network.layers):
        for source in layer.inputs:
            last_use[tensor[source]] = position
        if LAYER_KINDS[layer.kind].is_view:
            tensor[layer.name] = tensor[layer.inputs[0]]
            continue
        tensor[layer.name] = layer.name
        made[layer.name] = last_use[layer.name] = position
        elements[layer.name] = program.sites[program.site[position]].output_elements
    changes = np.zeros(len(network.layers) + 1)
    for name, start in made.items():
        changes[start + 1] += elements[name]
        changes[last_use[name] + 1] -= elements[name]
    return np.cumsum(changes)[:-1]


class ChainMemory(NamedTuple):
    """What the memory of the stages of one network is counted by.

    Attributes
    ----------
    sizes : ChainSizes
    rules : MemoryRules
    optimizer : one of OPTIMIZERS
    shrunk : float
        By what a scenario divides activations.
    """

    sizes: ChainSizes
    rules: MemoryRules
    optimizer: str
    shrunk: float = 1.0

    def fullest(self, cuts: IntArray, plans: SplitPlans) -> SplitMemoryBytes:
        """Return the memory of the rank that needs most, of plans that are cut alike.

        Parameters
        ----------
        cuts : ndarray of int, shape (p + 1,)
            The unit that each stage starts with, and V.
        plans : SplitPlans
            n of them, all of p stages.

        Returns
        -------
        SplitMemoryBytes
            Arrays of shape (n,); of stages that need as much, the first.
        """
        of_stages = self.of_stages(plans, np.arange(cuts.size - 1)[:, None], cuts[:-1, None], cuts[1:, None])
        worst = np.argmax(of_stages.total, axis=0)[None]
        names = [one.name for one in fields(SplitMemoryBytes)]
        each = {name: np.take_along_axis(getattr(of_stages, name), worst, axis=0)[0] for name in names}
        return SplitMemoryBytes(**each)

    def of_stages(self, plans: SplitPlans, stage: IntArray, first: IntArray, end: IntArray) -> SplitMemoryBytes:
        """Return the memory of stages from one unit up to another, of the shape that all arguments broadcast to."""
        sizes, rules = self.sizes, self.rules
        precision = precision_named(rules.precision)
        e, samples = precision.activation_bytes, plans.sub_batch / self.shrunk
        live = live_micro_batches(
            stage, plans.accumulation_steps, plans.pipeline_parallel, plans.virtual_stages, plans.schedule
        )

        def summed(each: FloatArray) -> FloatArray:
            ahead = np.append(0.0, np.cumsum(each))
            return np.asarray(ahead[end] - ahead[first])

        given, passed_on = e * sizes.crossing[first], e * sizes.crossing[end]
        parameters = summed(sizes.parameters)
        values = dict.fromkeys([one.name for one in fields(SplitMemoryBytes)], np.zeros(())) | {
            "weights": summed(sizes.weight_bytes),
            "gradients": parameters * rules.parameter.gradient,
            "optimizer": parameters * (OPTIMIZERS[self.optimizer] + precision.master_bytes),
            "activations": live * samples * (summed(sizes.kept_bytes) + given),
            "workspace": samples * e * (sizes.gradients[first, end] + sizes.columns[first, end]),
            "messages": _BUFFERS * samples * (given * (stage > 0) + passed_on),
            "framework": np.float64(rules.framework_bytes),
            "stage": stage,
        }
        shape = np.broadcast_shapes(plans.shape, stage.shape, first.shape, end.shape)
        tensors = {name: np.broadcast_to(np.asarray(value), shape) for name, value in values.items()}
        of_all = SplitMemoryBytes(**tensors)
        return replace(of_all, margin=rules.margin * of_all.allocated)
