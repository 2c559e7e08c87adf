"""Where each coefficient of a prediction comes from, and which precisions and devices can be priced.

Which precisions can be priced, and which of them are candidates of a search.

Eight bits (fp8, int8) are no candidate where their products were not measured: a data sheet, or another precision, says
too little of them, and the fastest guess would win every search. `--allow-specified` takes the data sheet's word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from typing import Any

import numpy as np

from planner.costs.specified import (
    in_8_bits,
    specified_copy,
    specified_entry,
    specified_host,
    specified_host_collective,
    specified_storage,
)
from planner.costs.terms import evaluate
from planner.costs.transfers import READING_TERMS
from planner.costs.work import misaligned_settings, transposition
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.calibration import ANY_ACCELERATOR, OF_STEP, Calibration, Entry
from planner.domain.cluster import LOCAL, Cluster, Link
from planner.domain.framework import UPDATE_THREADS
from planner.domain.kernels import FORWARD, PRODUCT_KINDS, SERVED_BY, TRAFFIC_KINDS, WORK_COLUMNS, KernelCalls
from planner.domain.network import LOOKED_UP, Network
from planner.domain.precision import PRECISIONS
from planner.domain.provenance import ASSUMED, DATASHEET, DERIVED, NEAREST, SAME_DIE, SCALED
from planner.domain.request import Problem
from planner.domain.samples import LOAD, LOAD_CACHED, PAGEABLE, PINNED
from planner.errors import CoverageError, ParameterError, PlannerError, Refusal
from planner.sources.devices import as_scaled
from planner.sources.layer_calls import LayerCalls, is_same_die
from planner.sources.links import (
    as_elsewhere,
    between_devices,
    beyond_measured,
    measured_inside,
    waits_elsewhere,
    with_links,
)
from planner.sources.overheads import (
    MeasuredSteps,
    Overheads,
    assumed_overheads,
    exponent_name,
    find_overheads,
    measured_steps_of,
)
from planner.sources.source import (
    KERNEL_MISSING,
    PRECISION_LOSSY,
    Source,
    absent_precision,
    is_used,
    missing_kernel,
    missing_link,
    source_of,
    unmeasured_precision,
    unpriced_precision,
)
from planner.workload.calls import lower, narrow_calls, narrow_layers, rest_precision

HOST_LIBRARY = "host"
"""Library of collective entries that are between host buffers: for asynchronous update threads only."""
TYPICAL_CALLS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "convolution": ((64, 256, 28, 28, 256, 3, 3, 1, 1, 1, 1, 1),),
    "gemm": (
        (3072, 4096, 1024, 1), (1024, 4096, 1024, 1), (4096, 4096, 1024, 1), (1024, 4096, 4096, 1),
        (512, 512, 64, 128), (512, 64, 512, 128),
    ),
}  # fmt: skip
"""Kind -> work of the calls by which fp32 and TF32 are compared: those of a block of BERT-Large for 8 samples."""
HOST_KINDS = ("update_gradient", "sum_gradient", "update_weights")


class Sources:
    """The source of every term of one problem; looked up once each."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.accelerator = problem.cluster.node.accelerator
        self._kernels: dict[tuple[str, str, str], Source | None] = {}
        self._products: dict[tuple[int, str], Source] = {}
        self._overheads: dict[tuple[str, str], Overheads] = {}
        self._speed_ups: dict[tuple[int, ...], float] = {}
        self._layer_calls: dict[str, LayerCalls] = {}
        self._measured_steps: dict[str, MeasuredSteps | None] = {}
        self._looks_up = True

    def of_network(self, network: Network) -> Sources:
        """Return the sources of the same problem with another network, such as a rank's shard of this one."""
        return self.of_problem(replace(self.problem, network=network))

    def of_parts(self) -> Sources:
        """Return the sources of parts of layers, of which no call was measured as it is."""
        other = self.of_problem(self.problem)
        other._looks_up = False  # noqa: SLF001 - its own
        return other

    def of_problem(self, problem: Problem) -> Sources:
        """Return the sources of a problem that differs in network and settings alone; kernels are found once."""
        other = copy(self)
        other.problem = problem
        other._layer_calls, other._measured_steps = {}, {}  # noqa: SLF001 - its own
        if problem.settings != self.problem.settings:
            other._overheads, other._overhead_sources = {}, self._overhead_sources  # noqa: SLF001 - as above
        return other

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster with the link values that the scenario replaces."""
        cluster = self.problem.cluster
        for (name, field), value in self.problem.scenario.link_values.items():
            link: Link | None = getattr(cluster, name)
            if link is None:
                raise missing_link(cluster, name, "the scenario replaces one of its values")
            given: dict[str, Any] = {field: value}
            links: dict[str, Any] = {name: replace(link, **given)}
            cluster = replace(cluster, **links)
        return cluster

    @cached_property
    def calibrations(self) -> tuple[Calibration, ...]:
        """The problem's calibrations, without the entries that are not used."""
        used = ((one, tuple(filter(is_used, one.entries))) for one in self.problem.calibrations)
        return tuple(one if len(some) == len(one.entries) else replace(one, entries=some) for one, some in used)

    @cached_property
    def for_accelerator(self) -> tuple[Calibration, ...]:
        """Calibrations of the cluster's accelerator, in order."""
        return tuple(c for c in self.calibrations if c.computes(self.problem.cluster))

    @cached_property
    def of_same_die(self) -> tuple[Calibration, ...]:
        """Calibrations of same-die devices, in order, named as what they serve is scaled."""
        return tuple(as_scaled(c, SAME_DIE) for c in self.calibrations if is_same_die(c, self.accelerator))

    @cached_property
    def for_cluster(self) -> tuple[Calibration, ...]:
        """Calibrations of the cluster, in order; those measured on one node serve the cluster ``local``."""
        name = self.problem.cluster.name
        return tuple(
            c
            for c in self.calibrations
            if c.cluster == name or (name == LOCAL and c.cluster is None and c.node is not None)
        )

    def find_kernel(self, kind: str, direction: str, precision: str) -> Source | None:
        """Return what serves a kernel: the first of those who may be asked that does, or None."""
        key = (kind, direction, precision)
        if key not in self._kernels:
            providers = (self._in_8_bits, self._fit, self._fit_of_like_kind, self._data_sheet)
            self._kernels[key] = next(filter(None, (provide(*key) for provide in providers)), None)
        source = self._kernels[key]
        settings = self.misaligned(self.rest_precision(precision)) if kind == "gemm" else {}
        if source is None or not settings:
            return source
        own = (id(source.entry), precision)
        if own not in self._products:  # one for all directions that the entry serves
            entry = replace(source.entry, settings={**source.entry.settings, **settings})
            self._products[own] = replace(source, entry=entry)
        return self._products[own]

    def misaligned(self, precision: str) -> Mapping[str, tuple[float, float]]:
        """Return the setting of products that are not aligned; empty where the program pads, or any side will do."""
        framework = self.problem.settings.framework
        pads = framework.pads_products or framework.pads_vocabulary
        return {} if pads else misaligned_settings(self.accelerator, precision)

    def _in_8_bits(self, kind: str, direction: str, precision: str) -> Source | None:
        """Return products in 16 bits as they are in 8; None where a fit in 8 bits misses by less, or nothing tells."""
        rest = self.rest_precision(precision)
        if rest == precision or kind not in PRODUCT_KINDS:
            return None
        self.find_kernel(kind, direction, rest)
        wide, own = self._kernels[kind, direction, rest], self._fit(kind, direction, precision)
        entry = None if wide is None else in_8_bits(wide.entry, self.accelerator, precision)
        if own is not None and own.origin == "specified":  # of another device
            own = None
        if wide is None or entry is None or (own and (own.entry.miss or 0.0) <= (entry.miss or inf)):
            return None
        made = replace(wide.provenance, kind=DERIVED, precision=rest, name=f"{precision} from {wide.calibration}")
        return replace(wide, entry=entry, provenance=made if wide.calibration else wide.provenance)

    def _fit(self, kind: str, direction: str, precision: str) -> Source | None:
        shares = kind in TRAFFIC_KINDS and kind not in SERVED_BY
        kinds = (kind, "pointwise") if shares else (kind,)
        for calibration in self.for_accelerator:
            fits = (e for e in reversed(calibration.entries) if e.scope == "kernels" and e.term != LOOKED_UP)
            entries = {e.key[1:4]: e for e in fits}
            for key in ((k, d, p) for k in kinds for p in (precision, "any") for d in (direction, "")):
                if key in entries:
                    return source_of(entries[key], calibration)
        return None

    def _fit_of_like_kind(self, kind: str, direction: str, precision: str) -> Source | None:
        return self.find_kernel(SERVED_BY[kind], direction, precision) if kind in SERVED_BY else None

    def _data_sheet(self, kind: str, direction: str, precision: str) -> Source | None:
        """Return the specification of a kernel; beside a named calibration only of those whose work is bytes."""
        if self.problem.explicit_calibration and kind not in TRAFFIC_KINDS:
            return None
        entry = specified_entry(self.accelerator, kind, direction, precision)
        return None if entry is None else source_of(entry)

    def is_calibrated(self, kind: str, direction: str, precision: str) -> bool:
        """Tell whether a calibration serves a kernel, rather than the specification or nothing."""
        source = self.find_kernel(kind, direction, precision)
        return source is not None and bool(source.calibration)

    def layer_calls(self, precision: str) -> LayerCalls:
        """Return the calls of the network that were measured as they are, which go before all fits."""
        if precision not in self._layer_calls:
            self._layer_calls[precision] = LayerCalls(
                self.problem.network,
                self.for_accelerator if self._looks_up else (),
                optimizer=self.problem.settings.optimizer,
                convolution=self.convolution_lowering(precision),
                precision=precision,
                fits=partial(self._fitted, precision=precision),
                same_die=self.of_same_die if self._looks_up else (),
            )
        return self._layer_calls[precision]

    def _fitted(self, kind: str, direction: str, precision: str) -> Entry | None:
        source = self.find_kernel(kind, direction, precision)
        return source.entry if source else None

    def kernel(self, kind: str, direction: str, precision: str) -> Source:
        """Return what serves a kernel, or raise CoverageError saying what is missing and how to get it."""
        source = self.find_kernel(kind, direction, precision)
        if source is None:
            raise CoverageError(missing_kernel(self.problem, self.for_accelerator, (kind, direction, precision)))
        return source

    def convolution_lowering(self, precision: str) -> str:
        """Return ``direct`` where convolutions have entries, else ``im2col`` where products and copies have."""
        precision = self.rest_precision(precision)  # one way for all calls of a step
        for calibration in self.for_accelerator:
            kinds = {e.kind for e in calibration.entries if e.scope == "kernels" and e.precision in (precision, "any")}
            if "convolution" in kinds:
                return "direct"
            if {"gemm", "im2col"} <= kinds:
                return "im2col"
        return "direct"

    def rest_precision(self, precision: str) -> str:
        """Return the precision of what does not run in 8 bits; any other precision is that of the whole step."""
        return rest_precision(precision, self.accelerator.peak_flop_per_s)

    def by_precision(self, calls: KernelCalls, precision: str) -> Iterator[tuple[str, BoolArray]]:
        """Yield the precisions that calls of a step run in, and which of them do, a mask of shape (k,)."""
        narrow = narrow_calls(calls, self.problem.network, precision)
        for name, own in ((precision, narrow), (self.rest_precision(precision), ~narrow)):
            if own.any():
                yield name, own

    def split(
        self, calls: KernelCalls, sub_batch: IntArray, precision: str
    ) -> Iterator[tuple[KernelCalls, Source | None, str]]:
        """Yield calls apart by the precision they run in and what they are looked up in, None: in nothing."""
        for name, own in self.by_precision(calls, precision):
            for part, looked_up in self.layer_calls(name).split(calls, sub_batch, own):
                yield part, looked_up, name

    def overheads(self, precision: str, mode: str) -> Overheads:
        """Return a framework's overheads in a precision and mode: as asked for, of any version, generic or assumed."""
        key = (precision, mode)
        if key not in self._overheads:
            peaks = self.accelerator.peak_flop_per_s
            is_faster = precision == "fp32" or peaks.get(precision, 0.0) > peaks.get("fp32", 0.0)
            entries = (  # where the device is no faster in it than in fp32, none that was pooled
                (source, is_pooled)
                for source, is_pooled in self._overhead_sources
                if source.entry.precision in ("", precision)
                if is_faster or not (is_pooled and source.entry.precision)
            )
            framework, exponent = self.problem.settings.framework, exponent_name(self.problem.network)
            specified = self.is_specified(precision)
            overheads = find_overheads(
                entries, framework.label, precision, on_specified=specified, exponent=exponent, mode=mode
            )
            scenario = self.problem.scenario
            overheads = overheads or assumed_overheads(self.accelerator.kind, exponent)
            overheads = overheads.waiting(*waits_elsewhere(self.problem.cluster, self.pooled))
            waits = float(scenario.factor("replica_wait", precision))
            overheads = overheads.scaled(scenario.kernel_factor, scenario.host_factor, waits)
            if precision == "tf32":  # a library that may use it takes kernels of fp32 where these are faster
                overheads = overheads.at_most(self.overheads("fp32", mode), *map(self._speed_up, TYPICAL_CALLS))
            self._overheads[key] = overheads
        return self._overheads[key]

    def _speed_up(self, kind: str) -> float:
        """Return the time of typical calls in fp32 over that in TF32, infinite where either is not known."""
        found = (self.find_kernel(kind, FORWARD, precision) for precision in ("fp32", "tf32"))
        entries = [None if one is None else one.entry for one in found]
        if (key := tuple(map(id, entries))) not in self._speed_ups:
            work = dict(zip(WORK_COLUMNS[kind], np.array(TYPICAL_CALLS[kind], dtype=np.float64).T, strict=True))
            more = {"itemsize": 4.0, **transposition(kind, FORWARD)}
            work |= {name: np.array(value) for name, value in more.items()}
            wide_s, narrow_s = (0.0 if one is None else float(evaluate(one, work).sum()) for one in entries)
            self._speed_ups[key] = wide_s / narrow_s if wide_s and narrow_s else inf
        return self._speed_ups[key]

    @cached_property
    def _overhead_sources(self) -> tuple[tuple[Source, bool], ...]:
        """Overheads of all frameworks, and whether they were pooled over accelerators, in order."""
        return tuple(
            (source_of(entry, calibration), is_pooled)
            for is_pooled, calibrations in ((False, self.for_accelerator), (True, self.pooled))
            for calibration in calibrations
            for entry in calibration.entries
            if entry.scope == "overheads"
        )

    def measured_steps(self, precision: str, of: str = OF_STEP) -> MeasuredSteps | None:
        """Return what timed steps or passes of plans say, None: nothing, as passes do where there are whole steps.

        Those are of this very cluster, and say nothing of it with another accelerator.
        """
        if precision not in self._measured_steps:
            problem = self.problem
            network, framework = problem.network.name, problem.settings.framework.label
            cluster = "" if problem.scenario.accelerator is not None else problem.cluster.name
            steps = measured_steps_of(self.for_accelerator, network, cluster, framework, precision)
            self._measured_steps[precision] = None if problem.network.has_frozen else steps
        steps = self._measured_steps[precision]
        return steps if steps is not None and steps.of == of else None

    @property
    def pooled(self) -> tuple[Calibration, ...]:
        """Calibrations of any accelerator: pooled over GPUs, they say nothing of a CPU."""
        is_gpu = self.accelerator.kind == "gpu"
        return tuple(c for c in self.calibrations if c.accelerator == ANY_ACCELERATOR and is_gpu)

    def is_specified(self, precision: str) -> bool:
        """Tell whether the network's matrix kernels come from the specification."""
        source = self._matrix_kernels(precision)
        return source is not None and source.origin == "specified"

    def evidence(self, precision: str) -> str:
        """Return what the network's matrix kernels rest on, one of :data:`planner.domain.provenance.EVIDENCE`.

        Of another device or precision: scaled. A data sheet, an assumption or nothing: specified.
        """
        source = self._matrix_kernels(precision)
        kind = ASSUMED if source is None else source.provenance.kind
        if kind in (SCALED, DERIVED, NEAREST):
            return "scaled"
        return "specified" if kind in (DATASHEET, ASSUMED) or self.is_specified(precision) else "measured"

    def _matrix_kernels(self, precision: str) -> Source | None:
        convolves = any(layer.kind == "convolution" for layer in self.problem.network.layers)
        if convolves and "convolution" not in narrow_layers(precision):
            precision = self.rest_precision(precision)
        return self.find_kernel("convolution" if convolves else "gemm", FORWARD, precision)

    def cluster_entry(self, scope: str, kind: str, libraries: tuple[str, ...] = ()) -> Source | None:
        """Return the entry of the cluster's calibrations, scenario applied, or None.

        The first calibration that has any serves; libraries are wanted in their order, without any every one serves.
        """
        for calibration in self.for_cluster:
            entries = [one for one in calibration.entries if (one.scope, one.kind) == (scope, kind)]
            for library in libraries or (None,):
                for entry in entries:
                    if library in (None, entry.library):
                        served = with_links(entry, self.problem.cluster, self.cluster)
                        return replace(source_of(entry, calibration), entry=served)
        return None

    @cached_property
    def device_all_reduce(self) -> Source:
        """What serves the all-reduce between devices."""
        return self._between_devices("all_reduce") or self._over_links(
            measured_inside(self.problem.cluster, self.pooled)
        )

    def _over_links(self, inside: Entry | None) -> Source:
        """Return the all-reduce over the cluster's links, as much slower as runs elsewhere were."""
        before = self.problem.cluster
        return as_elsewhere(before, between_devices(before, self.cluster, inside), inside, self.pooled)

    @property
    def is_all_reduce_unfitted(self) -> bool:
        """Whether nothing says how fast the all-reduce is on this very cluster."""
        return self._between_devices("all_reduce") is None

    def device_collective(self, operation: str) -> Source:
        """Return what serves an operation between devices: an entry of its own, else that of the all-reduce."""
        return self._between_devices(operation) or self.device_all_reduce

    def _between_devices(self, operation: str) -> Source | None:
        every = {e.library for c in self.for_cluster for e in c.entries if e.scope == "collectives"}
        of_hosts = {HOST_LIBRARY} if self.accelerator.kind == "gpu" else set()
        source = self.cluster_entry("collectives", operation, tuple(sorted(every - of_hosts)) or ("",))
        if source is None or self.problem.explicit_calibration:
            return source
        entry = beyond_measured(source.entry, lambda inside: self._over_links(inside).entry, self.cluster)
        return replace(source, entry=entry)

    @cached_property
    def host_all_reduce(self) -> Source:
        """What serves the all-reduce between the update threads of the nodes: never a library of devices."""
        return self.cluster_entry("collectives", "all_reduce", (HOST_LIBRARY,)) or source_of(
            specified_host_collective(self.cluster)
        )

    @cached_property
    def host_to_device(self) -> Source | None:
        """What serves the copy of a sub-batch to the device; None where there is no such copy."""
        if self.accelerator.kind == "cpu" or self.problem.settings.input == "synthetic":
            return None
        return self._copies("samples are copied to the device; --input synthetic leaves them out")

    @cached_property
    def offload(self) -> Source:
        """What serves copies of optimizer state or activations to the host's memory and back."""
        return self._copies("optimizer state or activations lie in host memory")

    def _copies(self, why: str) -> Source:
        source = self.cluster_entry("host", "copy", (PINNED, "", PAGEABLE))
        return source or self._over_host_link(specified_copy(self.cluster), why)

    def _over_host_link(self, sheet: Entry | None, why: str) -> Source:
        if sheet is None:
            raise missing_link(self.problem.cluster, "host", why)
        return source_of(sheet)

    @property
    def has_storage(self) -> bool:
        """Whether the cluster or a calibration says what reading from storage takes."""
        return self.cluster.storage is not None or any(self.cluster_entry("storage", x) for x in (LOAD, LOAD_CACHED))

    @cached_property
    def storage(self) -> Source | None:
        """What serves loading; None where input is synthetic or its bytes are not known."""
        if self.problem.settings.input == "synthetic":
            return None
        source, sheet = self.cluster_entry("storage", LOAD), specified_storage(self.cluster)
        if source is None and sheet is None:
            source = self.cluster_entry("storage", LOAD_CACHED)
        if source is not None:
            return None if source.entry.term in READING_TERMS and self.problem.dataset is None else source
        if sheet is None:
            name = f"storage of cluster {self.cluster.name}"
            rule = f"{name} must be described to price input from it"
            remedy = "; give a cluster file with [storage] by --cluster, or ask for --input synthetic"
            raise CoverageError(Refusal("storage_missing", rule, name, "nothing", remedy))
        return None if self.problem.dataset is None else source_of(sheet)

    def why_not_mode(self, mode: str) -> str:
        """Return why no plan of a mode can be priced, though those of the other can; empty: nothing is in the way."""
        try:
            self.check_mode(mode)
        except PlannerError as error:
            return str(error)
        return ""

    def check_mode(self, mode: str) -> None:
        """Raise what is in the way of pricing a mode: a host term of the asynchronous threads that nothing serves."""
        for kind in HOST_KINDS if mode == "async" else ():
            self.host(kind)

    def host(self, kind: str) -> Source:
        """Return what serves a host term of the asynchronous threads, or raise CoverageError.

        ParameterError: without an optimizer there are no weights to update.
        """
        framework = self.problem.settings.framework
        if framework.asynchronous != UPDATE_THREADS:
            is_served = framework.asynchronous == "parameter-server"
            why = "servers update weights by each gradient, which is not priced" if is_served else ""
            rule = f"sync in framework {framework.variant}, whose {why or 'updates are synchronous alone'}"
            raise ParameterError("mode", rule, "async", "--framework sprint has update threads" if is_served else "")
        if kind == "update_weights" and self.problem.settings.optimizer == "none":
            raise ParameterError("optimizer", "one that updates the weights of an asynchronous plan", "none")
        source = self.cluster_entry("host", kind)
        if source is not None:
            return source
        if self.problem.explicit_calibration:
            how = ", name a --cluster with [links.host]," if self.cluster.name == LOCAL else ""
            rule = f"host term {kind} must be covered by the calibration given for cluster {self.cluster.name}"
            remedy = f"; leave out --only-calibration{how} to use stated assumptions, or ask for --mode sync"
            raise CoverageError(Refusal("host_term_missing", rule, f"host term {kind}", "none", remedy))
        cluster, copy = self.cluster, self.cluster_entry("host", "copy", (PINNED, "", PAGEABLE))
        if cluster.host is None and copy is not None:  # as fast as samples were copied
            cluster = replace(cluster, host=Link("measured", 1 / copy.entry.coefficients["bytes"], 0.0))
        sheet = specified_host(cluster, kind, self.problem.settings.optimizer)
        return self._over_host_link(sheet, "gradients and weights are copied between host and device")

    def multiplied(self, term: str, seconds: FloatArray, precision: str = "", nodes: IntArray | int = 1) -> FloatArray:
        """Return the seconds of a term under the scenario; ``nodes`` broadcasts with them."""
        return seconds * self.problem.scenario.factor(term, precision, nodes)


def _calls(sources: Sources, precision: str) -> Iterator[KernelCalls]:
    problem, one = sources.problem, np.ones(1, dtype=np.int64)
    convolution = sources.convolution_lowering(precision)
    yield from lower(problem.network, one, convolution=convolution, optimizer=problem.settings.optimizer)


def why_not_precision(sources: Sources, precision: str) -> Refusal | None:
    """Return why a precision cannot be priced; None when every kernel of the network is served."""
    if precision not in sources.accelerator.peak_flop_per_s:
        return absent_precision(precision, sources.accelerator)
    for calls in _calls(sources, precision):
        for name, own in sources.by_precision(calls, precision):
            is_looked_up = sources.layer_calls(name).covers(calls, own)
            if not is_looked_up and sources.find_kernel(calls.kind, calls.direction, name) is None:
                return missing_kernel(sources.problem, sources.for_accelerator, (calls.kind, calls.direction, name))
    return None


def why_not_candidate(
    sources: Sources, precision: str, *, allow_specified: bool = False, allow_lossy: bool = False
) -> Refusal | None:
    """Return why a precision is no candidate of a search; None when it is.

    Each product that runs in 8 bits must have been measured on the device, or on one of the same chip, unless
    ``allow_specified``. One that loses accuracy is none without ``allow_lossy``.
    """
    reason = why_not_precision(sources, precision)
    if reason is None and PRECISIONS[precision].is_lossy and not allow_lossy:
        rule = f"training in {precision} loses accuracy, and no program here starts it"
        reason = Refusal(PRECISION_LOSSY, rule, precision, rest=": --allow-lossy makes it a candidate")
    if reason or allow_specified or not PRECISIONS[precision].measured_only:
        return reason
    network = sources.problem.network
    every = [(calls, narrow_calls(calls, network, precision)) for calls in _calls(sources, precision)]
    narrow = [(calls, own) for calls, own in every if own.any()]
    if not narrow:
        return Refusal("precision_unused", f"no layer of {network.name} runs in {precision}", precision)
    for calls, own in narrow:
        if sources.layer_calls(precision).covers(calls, own):
            continue
        source = sources.find_kernel(calls.kind, calls.direction, precision)
        if source is None or source.provenance.kind == DERIVED or source.origin not in ("measured", "published"):
            return unmeasured_precision(precision, calls.kind, calls.direction, sources.accelerator)
    return None


def candidate_precisions(
    sources: Sources, *, allow_specified: bool = False, allow_lossy: bool = False, named: Sequence[str] = ()
) -> dict[str, Refusal | None]:
    """Return each training precision with the reason why it is no candidate; None where it is one.

    ``allow_specified``: 8 bits may rest on a data sheet; those that are ``named`` always may. ``allow_lossy``: those
    that lose accuracy may be candidates.
    """
    return {
        name: why_not_candidate(
            sources, name, allow_specified=allow_specified or name in named, allow_lossy=allow_lossy
        )
        for name in PRECISIONS
    }


def check_precision(sources: Sources, precision: str) -> None:
    """Raise CoverageError when a precision cannot be priced."""
    _check(sources, precision, why_not_precision(sources, precision))


def check_candidate(
    sources: Sources, precision: str, *, allow_specified: bool = False, allow_lossy: bool = False
) -> None:
    """Raise CoverageError when a precision is no candidate of a search."""
    allowed = {"allow_specified": allow_specified, "allow_lossy": allow_lossy}
    _check(sources, precision, why_not_candidate(sources, precision, **allowed))


def _check(sources: Sources, precision: str, reason: Refusal | None) -> None:
    if reason and reason.code == KERNEL_MISSING:
        raise CoverageError(reason)
    if reason:
        # In 8 bits only what was measured is offered instead.
        usable = [name for name in PRECISIONS if not why_not_candidate(sources, name)]
        raise unpriced_precision(precision, reason, usable, sources.problem.cluster)
