"""Totals of a network per sample, and the table of its layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.kernels import WorkTotals
from planner.domain.network import Network, Shape
from planner.workload.lowering import lower
from planner.workload.program import program

__all__ = ["LayerWork", "layer_work", "totals"]


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer of a network: output shape, parameters, those trained, multiply-adds forward, FLOP of a training pass.

    All per sample.
    """

    name: str
    kind: str
    shape: Shape
    parameters: int
    trained: int
    forward_mac: int
    training_flop: int


def layer_work(network: Network) -> tuple[LayerWork, ...]:
    """Return one record a layer, in order; ParameterError where a layer cannot read what it is given."""
    of = program(network)
    sites = ((layer, of.sites[at]) for layer, at in zip(network.layers, of.site.tolist(), strict=True))
    return tuple(
        LayerWork(
            layer.name, layer.kind, site.output, site.parameters, site.trained, site.forward_mac, site.training_flop
        )
        for layer, site in sites
    )


def totals(network: Network, *, convolution: str = "direct") -> WorkTotals:
    """Return parameters, multiply-adds forward and FLOP of a training pass per sample, and kernel calls a step.

    FLOP are those of convolutions, fully connected layers and attention, two a multiply-add: forward and the gradients
    of both operands, wherever one is passed on (so 6·MAC less the backward-data of the first layer).
    """
    of = program(network)
    calls = lower(network, np.ones(1, dtype=np.int64), convolution=convolution)
    return WorkTotals(
        parameters=of.parameters,
        trained=of.trained,
        forward_mac=sum(site.forward_mac * count for site, count in of.site_counts()),
        training_flop=sum(site.training_flop * count for site, count in of.site_counts()),
        kernel_calls=sum(int(call.count.sum()) for call in calls),
    )
