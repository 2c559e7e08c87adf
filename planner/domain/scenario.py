"""A scenario: what-if multipliers on terms and replaced link values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, frozen_map
from planner.domain.cluster import Accelerator

__all__ = ["NO_SCENARIO", "Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One alternative, as the user wrote it and as it acts.

    Attributes
    ----------
    text : empty: things as they are
    multipliers : mapping of term name to factor, applied to the seconds of a term, in every thread that has it
    link_values : mapping of (link, field) to SI value, such as ``("inter_node", "bytes_per_s"): 12.5e9``
    sub_batch_factor : applied to the largest sub-batch of fp32 plans, whose activations take as many fewer bytes a
        sample
    fp32_multipliers : mapping of term name to factor, applied besides in fp32 plans alone: what if they computed in
        fp16
    inter_node_multipliers : mapping of term name to factor, applied besides where a plan spans several nodes: what if
        the link between them were another
    kernel_factor, host_factor : applied to what kernels take on the device, and to the host time of their calls and of
        layers
    accelerator : in place of the cluster's; see :mod:`planner.sources.devices`
    """

    text: str = ""
    multipliers: Mapping[str, float] = field(default_factory=dict)
    link_values: Mapping[tuple[str, str], float] = field(default_factory=dict)
    sub_batch_factor: int = 1
    fp32_multipliers: Mapping[str, float] = field(default_factory=dict)
    inter_node_multipliers: Mapping[str, float] = field(default_factory=dict)
    accelerator: Accelerator | None = None
    kernel_factor: float = 1.0
    host_factor: float = 1.0

    def __post_init__(self) -> None:
        for name in ("multipliers", "fp32_multipliers", "inter_node_multipliers", "link_values"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))

    def factor(self, term: str, precision: str = "", nodes: IntArray | int = 1) -> FloatArray:
        """Return what the seconds of a term are multiplied by, of the shape of ``nodes``."""
        everywhere = self.multipliers.get(term, 1.0)
        if precision == "fp32":
            everywhere *= self.fp32_multipliers.get(term, 1.0)
        return np.where(np.greater(nodes, 1), everywhere * self.inter_node_multipliers.get(term, 1.0), everywhere)


NO_SCENARIO = Scenario()
