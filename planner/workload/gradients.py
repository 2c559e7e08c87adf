"""Gradient slots: the pieces in which gradients become ready and can be sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.network import Network
from planner.domain.shapes import layer_parameters

__all__ = ["GradientSlots", "gradient_slots"]


@dataclass(frozen=True, slots=True)
class GradientSlots:
    """One slot for every layer with parameters, in forward order; gradients become ready in reverse.

    Attributes
    ----------
    layer : ndarray of int, shape (j,)
        Position in ``Network.layers``.
    elements : ndarray of int, shape (j,)
        Gradient elements, as many as the layer's parameters.
    """

    layer: IntArray
    elements: IntArray


def gradient_slots(network: Network) -> GradientSlots:
    """Return the gradient slots of a network; ParameterError where a layer cannot read what it is given."""
    parameters = layer_parameters(network)
    layer = np.flatnonzero(parameters).astype(np.int64)
    return GradientSlots(layer, parameters[layer])
