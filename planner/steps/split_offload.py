"""What lies in host memory: copies over the host link, and an update that the host's processors make.

Of an optimizer on the host, gradients go down and weights come up at the same time, once a step, and the host updates
the parameters of all ranks of a node (Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840). Kept activations go down beside
the forward pass that makes them and come up beside the backward pass that reads them: only what takes longer than the
pass adds to the step. By formula only: no measured run shows either.
"""

from __future__ import annotations

import numpy as np

from planner.costs.specified import specified_copy
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray
from planner.domain.configuration import Configurations
from planner.domain.split import OFFLOADS, SplitMemoryBytes
from planner.sources.refusals import missing_link
from planner.sources.source import Source, source_of
from planner.sources.sources import Sources
from planner.workload.lowering import UPDATE_BYTES

__all__ = ["offload_s", "offload_source"]


HOST_BYTES_PER_S = 100e9
"""Assumed of a node's memory: half of what eight channels of DDR4-3200 carry, 204.8 GB/s."""


def offload_source(sources: Sources) -> Source:
    """Return what serves copies to the host and back, or raise CoverageError."""
    entry = specified_copy(sources.cluster)
    if entry is None:
        raise missing_link(sources.problem.cluster, "host", "optimizer state or activations lie in host memory")
    return source_of(entry)


def offload_s(
    sources: Sources,
    plans: Configurations,
    memory: SplitMemoryBytes,
    updated: FloatArray,
    passes_s: tuple[FloatArray, ...],
) -> FloatArray:
    """Return what offloading adds to the step [s], shape (n,); 0 where nothing is offloaded.

    Parameters
    ----------
    sources : Sources
    plans : Configurations
    memory : SplitMemoryBytes
        Bytes that move in a step, of each rank.
    updated : ndarray of float, shape (n,)
        Parameters that a rank updates.
    passes_s : forward and backward pass of one micro-batch [s], (n,) each

    Raises
    ------
    CoverageError
        The cluster says nothing of the link to the host.
    """
    result = np.zeros(plans.shape)
    if not plans.offload.any():
        return result
    copies = offload_source(sources).entry
    down, up = (evaluate(copies, {"bytes": size}) for size in (memory.to_host, memory.to_device))
    on_node = np.minimum(plans.gpus_per_node, plans.gpus)
    updating = updated * on_node * UPDATE_BYTES[sources.problem.settings.optimizer] / HOST_BYTES_PER_S
    m = plans.accumulation_steps
    late = sum(m * np.maximum(copied / m - pass_s, 0.0) for copied, pass_s in zip((down, up), passes_s, strict=True))
    by_kind = {"optimizer": np.maximum(down, up) + updating, "activations": np.asarray(late)}
    for kind, seconds in by_kind.items():
        result = np.where(plans.offload == OFFLOADS.index(kind), seconds, result)
    return result
