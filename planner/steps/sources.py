"""Which coefficients serve what, and where they come from.

Precedence by term: the calibrations of the problem in their order, then the specification (peak rates and link values
with stated efficiencies). Inside a calibration an entry of the very kind, precision and direction goes before one that
serves several. Kernels and framework overheads belong to an accelerator; collectives, storage and host terms to a
cluster. What nothing serves is refused with the command that mends it, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from planner.costs.specified import (
    specified_collective,
    specified_copy,
    specified_entry,
    specified_host,
    specified_storage,
)
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster, Link
from planner.domain.kernels import TRAFFIC_KINDS
from planner.domain.precision import PRECISIONS
from planner.domain.request import Problem
from planner.errors import CoverageError
from planner.workload.lowering import lower

__all__ = ["Overheads", "Source", "Sources", "usable_precisions"]

HOST_LIBRARY = "host"
"""Library of collective entries that are between host buffers: for asynchronous update threads only."""
ASSUMED_HOST_S_PER_CALL = 10e-6
"""Host time of a kernel call on a GPU where no framework was measured (fits on public CNN tables span 8 to 42 us).

Not added to kernels that are specified: their launch is stated with them."""


@dataclass(frozen=True, slots=True)
class Source:
    """An entry and the name of the calibration that holds it; empty: taken from a specification or assumed."""

    entry: Entry
    calibration: str = ""

    @property
    def origin(self) -> str:
        """Origin of the entry."""
        return self.entry.origin


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a framework adds: a stage takes ((kernel_scale·GPU)^exponent + host^exponent)^(1/exponent).

    ``host`` is host_s_per_call x calls + host_s_per_layer x layers. ``matched`` says how the entry was found:
    ``exact``, ``framework``, ``generic`` or ``assumed``.
    """

    kernel_scale: float
    host_s_per_call: float
    host_s_per_layer: float
    exponent: float
    source: Source
    matched: str


class Sources:
    """The source of every term of one problem; looked up once each."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.accelerator = problem.cluster.node.accelerator
        self._kernels: dict[tuple[str, str, str], Source | None] = {}

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster with the link values that the scenario replaces."""
        changed: dict[str, Link] = {}
        for (name, field), value in self.problem.scenario.link_values.items():
            link = changed.get(name, getattr(self.problem.cluster, name))
            if link is None:
                raise self.missing_link(name, "the scenario replaces one of its values")
            changed[name] = _with_value(link, field, value)
        cluster = self.problem.cluster
        return replace(
            cluster,
            intra_node=changed.get("intra_node", cluster.intra_node),
            inter_node=changed.get("inter_node", cluster.inter_node),
            host=changed.get("host", cluster.host),
        )

    @cached_property
    def for_accelerator(self) -> tuple[Calibration, ...]:
        """Calibrations of the cluster's accelerator, in order."""
        return tuple(c for c in self.problem.calibrations if c.accelerator == self.accelerator.name)

    @cached_property
    def for_cluster(self) -> tuple[Calibration, ...]:
        """Calibrations of the cluster, in order; those measured on one node serve the cluster ``local``."""
        name = self.problem.cluster.name
        return tuple(
            c
            for c in self.problem.calibrations
            if c.cluster == name or (name == "local" and c.cluster is None and c.node is not None)
        )

    def find_kernel(self, kind: str, direction: str, precision: str) -> Source | None:
        """Return what serves a kernel, or None."""
        key = (kind, direction, precision)
        if key not in self._kernels:
            self._kernels[key] = self._calibrated_kernel(*key) or self._specified_kernel(*key)
        return self._kernels[key]

    def _calibrated_kernel(self, kind: str, direction: str, precision: str) -> Source | None:
        kinds = (kind, "pointwise") if kind in TRAFFIC_KINDS else (kind,)
        for calibration in self.for_accelerator:
            entries = {e.key[1:4]: e for e in reversed(calibration.entries) if e.scope == "kernels"}
            for wanted in ((k, d, p) for k in kinds for p in (precision, "any") for d in (direction, "")):
                if wanted in entries:
                    return Source(entries[wanted], calibration.name)
        return None

    def _specified_kernel(self, kind: str, direction: str, precision: str) -> Source | None:
        if self.problem.explicit_calibration or PRECISIONS[precision].measured_only:
            return None
        entry = specified_entry(self.accelerator, kind, direction, precision)
        return None if entry is None else Source(entry)

    def kernel(self, kind: str, direction: str, precision: str) -> Source:
        """Return what serves a kernel, or raise CoverageError saying what is missing and how to get it."""
        found = self.find_kernel(kind, direction, precision)
        if found is None:
            raise CoverageError(self._missing_kernel(kind, direction, precision))
        return found

    def _missing_kernel(self, kind: str, direction: str, precision: str) -> str:
        looked_at = ", ".join(c.name for c in self.for_accelerator) or "none"
        return (
            f"kernel {kind} {direction} in {precision} must be covered by a calibration of {self.accelerator.name}, "
            f"got {looked_at} without it; measure it on that device with `planner calibrate --network NAME`"
        )

    def convolution_lowering(self, precision: str) -> str:
        """Return ``direct`` where convolutions have entries, else ``im2col`` where products and copies have."""
        for calibration in self.for_accelerator:
            kinds = {e.kind for e in calibration.entries if e.scope == "kernels" and e.precision in (precision, "any")}
            if "convolution" in kinds:
                return "direct"
            if {"gemm", "im2col"} <= kinds:
                return "im2col"
        return "direct"

    def why_not_precision(self, precision: str) -> str:
        """Return why a precision is refused; empty when every kernel of the network is served."""
        device = self.accelerator
        if precision not in device.peak_flop_per_s:
            return f"{device.name} does not have {precision}"
        measured = any(
            e.scope == "kernels" and e.kind in ("gemm", "convolution") and e.precision == precision
            for c in self.for_accelerator
            for e in c.entries
        )
        if PRECISIONS[precision].measured_only and not measured:
            return (
                f"{precision} training is never taken from specifications, and no calibration of {device.name} has it"
            )
        one = np.ones(1, dtype=np.int64)
        convolution = self.convolution_lowering(precision)
        for calls in lower(
            self.problem.network, one, convolution=convolution, optimizer=self.problem.settings.optimizer
        ):
            if self.find_kernel(calls.kind, calls.direction, precision) is None:
                return self._missing_kernel(calls.kind, calls.direction, precision)
        return ""

    def check_precision(self, precision: str) -> None:
        """Raise CoverageError when a precision is refused."""
        reason = self.why_not_precision(precision)
        if reason:
            known = ", ".join(self.accelerator.peak_flop_per_s)
            raise CoverageError(
                reason
                if reason.startswith("kernel")
                else f"precision must be one that can be priced ({known}), got {precision!r}: {reason}"
            )

    @cached_property
    def overheads(self) -> Overheads:
        """Overheads of the framework and version, else of the framework, else generic, else assumed."""
        framework = self.problem.settings.framework
        name = framework.partition("@")[0]
        for kind, matched in ((framework, "exact"), (name, "framework"), ("generic", "generic")):
            for calibration in self.for_accelerator:
                for entry in calibration.entries:
                    if entry.scope == "overheads" and entry.kind == kind:
                        return _overheads(Source(entry, calibration.name), matched)
        return _overheads(Source(self._assumed_overheads()), "assumed")

    def _assumed_overheads(self) -> Entry:
        per_call = ASSUMED_HOST_S_PER_CALL if self.accelerator.kind == "gpu" else 0.0
        values = {"kernel_scale": 1.0, "host_s_per_call": per_call, "host_s_per_layer": 0.0, "exponent": 1.0}
        return Entry(
            "overheads", "generic", "", "", "", "overheads", {}, values, fixed=tuple(values), origin="assumed",
            source="stated assumption: no framework was measured on this accelerator",
        )  # fmt: skip

    def missing_link(self, name: str, why: str) -> CoverageError:
        """Return the error that a link is not described."""
        return CoverageError(
            f"links.{name} of cluster {self.problem.cluster.name} must be described ({why}), got nothing; "
            f"give a cluster file with [links.{name}] by --cluster, or measure with `planner calibrate` under torchrun"
        )

    def cluster_entry(self, scope: str, kind: str, libraries: tuple[str, ...] = ()) -> Source | None:
        """Return the entry of the cluster's calibrations, scenario applied, or None.

        Libraries are wanted in their order; without any, every library serves.
        """
        found = [
            Source(entry, calibration.name)
            for calibration in self.for_cluster
            for entry in calibration.entries
            if (entry.scope, entry.kind) == (scope, kind) and (not libraries or entry.library in libraries)
        ]
        if not found:
            return None
        best = min(found, key=lambda source: libraries.index(source.entry.library) if libraries else 0)
        return replace(best, entry=with_links(best.entry, self.problem.cluster, self.cluster))

    @cached_property
    def device_all_reduce(self) -> Source:
        """What serves the all-reduce between devices."""
        return self.cluster_entry("collectives", "all_reduce", self._device_libraries) or Source(
            specified_collective(self.cluster)
        )

    @cached_property
    def _device_libraries(self) -> tuple[str, ...]:
        libraries = {e.library for c in self.for_cluster for e in c.entries if e.scope == "collectives"}
        return tuple(sorted(libraries - {HOST_LIBRARY})) or ("",)

    @cached_property
    def host_all_reduce(self) -> Source:
        """What serves the all-reduce between the update threads of the nodes."""
        return self.cluster_entry("collectives", "all_reduce", (HOST_LIBRARY,)) or self.device_all_reduce

    @cached_property
    def host_to_device(self) -> Source | None:
        """What serves the copy of a sub-batch to the device; None where there is no such copy."""
        if self.accelerator.kind == "cpu" or self.problem.settings.input == "synthetic":
            return None
        found = self.cluster_entry("host", "copy")
        if found is not None:
            return found
        specified = specified_copy(self.cluster)
        if specified is None:
            raise self.missing_link("host", "samples are copied to the device; --input synthetic leaves them out")
        return Source(specified)

    @cached_property
    def storage(self) -> Source | None:
        """What serves loading; None where input is synthetic or its bytes are not known."""
        if self.problem.settings.input == "synthetic":
            return None
        found = self.cluster_entry("storage", "load")
        if found is not None:
            return found
        specified = specified_storage(self.cluster)
        if specified is None:
            raise CoverageError(
                f"storage of cluster {self.cluster.name} must be described to price input from it, got nothing; "
                "give a cluster file with [storage] by --cluster, or ask for --input synthetic"
            )
        return None if self.problem.dataset is None else Source(specified)

    def host(self, kind: str) -> Source:
        """Return what serves a host term of the asynchronous threads, or raise CoverageError."""
        found = self.cluster_entry("host", kind)
        if found is not None:
            return found
        if self.problem.explicit_calibration:
            raise CoverageError(
                f"host term {kind} must be covered by the calibration given for cluster {self.cluster.name}, got none; "
                "leave out --calibration to use stated assumptions, or ask for --mode sync"
            )
        specified = specified_host(self.cluster, kind)
        if specified is None:
            raise self.missing_link("host", "gradients and weights are copied between host and device")
        return Source(specified)

    def multiplied(self, term: str, seconds: FloatArray, precision: str = "", nodes: IntArray | int = 1) -> FloatArray:
        """Return the seconds of a term under the scenario; ``nodes`` broadcasts with them."""
        return seconds * self.problem.scenario.factor(term, precision, nodes)


def usable_precisions(problem: Problem) -> dict[str, str]:
    """Return each training precision with the reason why it is refused; empty where it is usable."""
    sources = Sources(problem)
    return {name: sources.why_not_precision(name) for name in PRECISIONS}


def _overheads(source: Source, matched: str) -> Overheads:
    values = source.entry.coefficients
    return Overheads(
        values.get("kernel_scale", 1.0),
        values.get("host_s_per_call", 0.0),
        values.get("host_s_per_layer", 0.0),
        values.get("exponent", 1.0),
        source,
        matched,
    )


def _with_value(link: Link, field: str, value: float) -> Link:
    return replace(link, bytes_per_s=value) if field == "bytes_per_s" else replace(link, latency_s=value)


def with_links(entry: Entry, before: Cluster, after: Cluster) -> Entry:
    """Return a measured entry as it would be with other links.

    The coefficients per byte of a link scale with 1 / bandwidth, those per message with latency. Which link a feature
    belongs to is in its name: ``inside`` and ``1xR_`` inside a node, ``between``, ``NxR_`` and logarithms between
    nodes; a host copy is of the host link. Other entries stay.
    """
    if after == before or not (entry.scope == "collectives" or (entry.scope, entry.kind) == ("host", "copy")):
        return entry
    factors = {name: _link_factor(entry, name, before, after) for name in entry.coefficients}
    settings = dict(entry.settings)
    if isinstance(ratio := settings.get("beta_ratio"), float):
        settings["beta_ratio"] = ratio * factors["bytes_between"] / factors["bytes_inside"]
    scaled = {name: value * factors[name] for name, value in entry.coefficients.items()}
    return replace(entry, coefficients=scaled, settings=settings, covariance=None)


def _link_factor(entry: Entry, feature: str, before: Cluster, after: Cluster) -> float:
    """Return what a coefficient is multiplied by."""
    link = _link_of(entry, feature)
    old, new = getattr(before, link), getattr(after, link)
    if old == new:
        return 1.0
    if "byte" in feature or "step" in feature:
        return float(old.bytes_per_s / new.bytes_per_s)
    return float(new.latency_s / old.latency_s) if old.latency_s > 0 else 1.0


def _link_of(entry: Entry, feature: str) -> str:
    if entry.scope == "host":
        return "host"
    return "intra_node" if feature.endswith("_inside") or feature.startswith("1x") else "inter_node"
