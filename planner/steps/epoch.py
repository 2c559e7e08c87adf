"""Input: bringing samples from storage into host memory, in the first epoch and in later ones.

A measured loader takes a time by samples, the same in every epoch. Storage, described or measured, delivers bytes:
those of all devices of a node share its bandwidth, or the server's where it is shared; a node's cache keeps a random
part of the data set, so that later epochs read only what it misses (samples are shuffled over all nodes anew each
epoch), and the rest from memory, where that was measured. A node whose storage was measured keeps what fits its memory.

Where decoding was measured, or of JPEG images where the threads of a node are known, worker threads read and decode
images, one after another each (:func:`planner.costs.transfers.loading_s`). Assumed are as many as the node has threads,
shared by the devices that a plan uses; a CPU that trains keeps one thread for that. Where threads are not known, there
is one a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from planner.costs.features import Work
from planner.costs.specified import assumed_decode
from planner.costs.terms import evaluate, extrapolates, features_of
from planner.costs.transfers import READING_TERMS, loading_s, miss_fraction
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.cluster import Cluster
from planner.domain.samples import DECODE, JPEG, LOAD_CACHED
from planner.numbers import constant
from planner.sources.source import Source, source_of
from planner.sources.sources import Sources
from planner.steps.intervals import Gradient

CACHED_SHARE = constant("input.cached_share")
"""Of the memory of a node whose storage was measured, left to what the system keeps of read files (docs/numbers.md)."""
IMAGE_SIDES = 3
"""Of an input of images: channels, height, width."""


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


class InputPart(NamedTuple):
    """What serves a part of loading, seconds of it, and their derivatives by the coefficients, shape (p,)."""

    source: Source
    seconds: float
    slopes: FloatArray


def worker_threads(cluster: Cluster, gpus_per_node: IntArray | int) -> FloatArray:
    """Return how many threads of a node are assumed to load samples, shape of ``gpus_per_node``."""
    gpus = np.asarray(gpus_per_node, dtype=np.float64)
    if cluster.node.cpu_threads is None:
        return gpus
    device = cluster.node.accelerator
    training = gpus * (device.multiprocessors or 1) if device.kind == "cpu" else 0.0
    return np.maximum(cluster.node.cpu_threads - training, 1.0)


class Input:
    """Loading times of a problem, and what serves them.

    A closed form of samples, devices and nodes, without a case table: plans share hardly any case of the three, as
    samples are sub-batch x accumulation, and to look one up takes longer than its few products.

    Attributes
    ----------
    reads_bytes : bool
        Whether samples are read as stored; else a loader was measured with all it does, or there is no storage.
    decode : what serves decoding; None where it was neither measured nor can be assumed, or samples are no images
    later_share : of the data set, that a later epoch reads from storage
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._dataset = sources.problem.dataset
        source = sources.storage
        self.reads_bytes = source is not None and source.entry.term in READING_TERMS
        is_image = len(sources.problem.network.input_shape) == IMAGE_SIDES
        self.decode = sources.cluster_entry("storage", DECODE) if self.reads_bytes and is_image else None
        is_jpeg = is_image and self._dataset is not None and self._dataset.encoding == JPEG
        if self.decode is None and self.reads_bytes and is_jpeg and sources.cluster.node.cpu_threads is not None:
            self.decode = source_of(assumed_decode())
        self._cached = sources.cluster_entry("storage", LOAD_CACHED) if self.reads_bytes else None
        self.later_share = self._later_share() if self.reads_bytes else 1.0

    def _later_share(self) -> float:
        """Return the share of the data set that a later epoch reads from storage."""
        cluster, dataset = self._sources.cluster, self._dataset
        if dataset is None or self._cached == self._sources.storage:
            return 1.0
        if cluster.storage is not None:
            cache_bytes = cluster.storage.cache_bytes
        else:
            cache_bytes = CACHED_SHARE * (cluster.node.host_memory_bytes or 0.0) if self._cached else 0.0
        return float(miss_fraction(dataset.samples * dataset.bytes_per_sample, cache_bytes))

    @property
    def is_cached(self) -> bool:
        """Whether later epochs read less from storage than the first."""
        return self.later_share < 1.0

    @property
    def used(self) -> tuple[Source, ...]:
        """What serves loading in later epochs."""
        source = self._sources.storage
        if source is None or not self.reads_bytes:
            return () if source is None else (source,)
        one = np.ones(1)
        return tuple(part for part, _ in (*self._reads(one, one, self.later_share), *self._decoding(one)))

    @property
    def extrapolates(self) -> bool:
        """Whether a sample lies outside what its reads or its decoding were fitted on."""
        one = np.ones(1)
        parts = (*self._reads(one, one, 1.0), *self._decoding(one)) if self.reads_bytes else ()
        return any(bool(extrapolates(source.entry, work).any()) for source, work in parts)

    def times(self, samples: IntArray, gpus_per_node: IntArray, nodes: IntArray, *, first_epoch: bool) -> InputTimes:
        """Return loading times where each device takes ``samples`` per step, of the shape that all broadcast to."""
        source = self._sources.storage
        if source is None:
            return InputTimes(np.zeros(samples.shape), np.zeros(samples.shape))
        if not self.reads_bytes:
            alone = self._sources.multiplied("load_input", evaluate(source.entry, {"samples": samples}))
            return InputTimes(alone, alone)
        count, share = samples.astype(np.float64), 1.0 if first_epoch else self.later_share
        reading_s, decoding_s = (
            sum((evaluate(part.entry, work) for part, work in parts), np.zeros(samples.shape))
            for parts in (self._reads(count, nodes, share), self._decoding(count))
        )
        both = (self._node_s(reading_s, decoding_s, gpus_per_node, alone=alone)[1] for alone in (True, False))
        return InputTimes(*(self._sources.multiplied("load_input", seconds) for seconds in both))

    def parts(
        self, samples: int, gpus_per_node: int, nodes: int, *, first_epoch: bool, alone: bool
    ) -> tuple[InputPart, ...]:
        """Return what decides the time of loading one device's ``samples``: storage, or the worker threads.

        Seconds are in proportion alone: those that a device's node takes are another multiple of them.
        """
        source, count = self._sources.storage, np.array([float(samples)])
        if source is None:
            return ()
        if not self.reads_bytes:
            return (_part(source, {"samples": count}),)
        share = 1.0 if first_epoch else self.later_share
        reading = tuple(_part(*one) for one in self._reads(count, np.array([float(nodes)]), share))
        decoding = tuple(_part(*one) for one in self._decoding(count))
        reading_s, decoding_s = (np.array([sum(part.seconds for part in parts)]) for parts in (reading, decoding))
        storage_s, all_s = self._node_s(reading_s, decoding_s, np.array([gpus_per_node]), alone=alone)
        return reading if all_s[0] <= storage_s[0] else (*reading, *decoding)

    def add_to(
        self,
        gradient: Gradient,
        seconds: float,
        samples: int,
        gpus_per_node: int,
        nodes: int,
        *,
        first_epoch: bool,
        alone: bool,
    ) -> None:
        """Add what loading takes to the gradient of a period: so many seconds, in the proportions of :meth:`parts`."""
        parts = self.parts(samples, gpus_per_node, nodes, first_epoch=first_epoch, alone=alone)
        whole = sum(part.seconds for part in parts)
        for part in parts if whole else ():
            factor = seconds / whole
            gradient.add_vector(part.source.entry, factor * part.slopes, factor * part.seconds)

    def _node_s(
        self, reading_s: FloatArray, decoding_s: FloatArray, gpus_per_node: IntArray, *, alone: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return how long storage takes for a device ``alone`` or all of a node, and how long loading takes [s]."""
        devices: IntArray = np.ones_like(gpus_per_node) if alone else gpus_per_node
        storage_s = reading_s * devices  # which decides where the two are equal; else the threads that devices share
        if self.decode is None:
            return storage_s, storage_s
        threads = worker_threads(self._sources.cluster, gpus_per_node) * devices / gpus_per_node
        return storage_s, loading_s(storage_s, decoding_s * devices, threads)

    def _reads(
        self, samples: FloatArray, nodes: FloatArray | IntArray, share: float
    ) -> Iterator[tuple[Source, Mapping[str, FloatArray | IntArray]]]:
        """Yield what serves reading samples, of which a share comes from storage, with the work of each."""
        dataset, cached = self._dataset, self._cached if share < 1 else None
        for source, part in ((self._sources.storage, share), (cached, 1.0 - share)):
            if source is not None and dataset is not None:
                read_bytes = samples * (dataset.bytes_per_sample * part)
                yield source, {"images": samples * part, "bytes": read_bytes, "nodes": nodes}

    def _decoding(self, samples: FloatArray) -> Iterator[tuple[Source, Mapping[str, FloatArray | IntArray]]]:
        """Yield what serves decoding, with its work; nothing where it was not measured or samples are no images."""
        dataset = self._dataset
        if self.decode is not None and dataset is not None:
            elements = samples * float(prod(self._sources.problem.network.input_shape))
            yield self.decode, {"images": samples, "bytes": samples * dataset.bytes_per_sample, "elements": elements}


def _part(source: Source, work: Work) -> InputPart:
    return InputPart(source, float(evaluate(source.entry, work)[0]), features_of(source.entry, work)[0])
