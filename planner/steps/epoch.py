"""Input: bringing samples from storage into host memory, in the first epoch and in later ones.

A measured loader takes a time by samples, the same in every epoch. A described storage delivers bytes: those of all
devices of a node share its bandwidth, or the server's where it is shared; a node's cache keeps a random part of the
data set, so that later epochs read only what it misses (samples are shuffled over all nodes anew each epoch).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.costs.terms import evaluate
from planner.costs.transfers import miss_fraction
from planner.domain.arrays import FloatArray, IntArray
from planner.steps.sources import Sources

__all__ = ["Input", "InputTimes"]


@dataclass(frozen=True, slots=True)
class InputTimes:
    """Loading times [s], each of shape (n,).

    Attributes
    ----------
    alone_s : one device's samples while no other device of its node reads
    node_s : the samples of all devices of a node, which share what they read from
        For a measured loader, one to a device, the same as ``alone_s``.
    """

    alone_s: FloatArray
    node_s: FloatArray


class Input:
    """Loading times of a problem."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._later_share = 1.0
        storage, dataset = sources.cluster.storage, sources.problem.dataset
        if storage is not None and dataset is not None:
            size = dataset.samples * dataset.bytes_per_sample
            self._later_share = float(miss_fraction(size, storage.cache_bytes))

    @property
    def is_cached(self) -> bool:
        """Whether later epochs load faster than the first."""
        source = self._sources.storage
        return source is not None and source.entry.term == "storage.bytes" and self._later_share < 1.0

    def times(self, samples: IntArray, gpus_per_node: IntArray, nodes: IntArray, *, first_epoch: bool) -> InputTimes:
        """Return loading times where each device takes ``samples``, shape (n,), per step."""
        source, dataset = self._sources.storage, self._sources.problem.dataset
        if source is None:
            return InputTimes(np.zeros(samples.size), np.zeros(samples.size))
        if source.entry.term != "storage.bytes":
            alone = self._sources.multiplied("load_input", evaluate(source.entry, {"samples": samples}))
            return InputTimes(alone, alone)
        assert dataset is not None  # noqa: S101 - Sources.storage is None without one
        share = 1.0 if first_epoch else self._later_share
        read = samples.astype(np.float64) * (dataset.bytes_per_sample * share)
        alone = self._sources.multiplied("load_input", evaluate(source.entry, {"bytes": read, "nodes": nodes}))
        return InputTimes(alone, alone * gpus_per_node)
