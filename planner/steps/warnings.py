"""What the reader of a prediction should know, one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import gcd

import numpy as np

from planner.costs.features import CALLS, FASTER
from planner.costs.specified import NARROW_MISS
from planner.costs.work import WHOLE_BYTES, kernel_width, times_as_long
from planner.domain.axes import TENSOR
from planner.domain.calibration import OF_PASSES, Calibration, Entry
from planner.domain.cluster import LINK_KINDS
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import Framework, variant_and_version
from planner.domain.layers.attentions import aligned_head_size, core_of
from planner.domain.network import Network, layer_shapes
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import SURE_TO_FIT, MiniBatch, PlanWarning, Term, share_that_fits
from planner.domain.provenance import DATASHEET
from planner.domain.samples import FREE_CIRCUMSTANCES
from planner.sources.overheads import MeasuredSteps, Overheads
from planner.sources.source import Source, is_used, measuring, miss_in_words
from planner.sources.sources import Sources
from planner.steps.epoch import CACHED_SHARE, Input, worker_threads
from planner.units import format_bytes
from planner.workload.calls import UPDATE_BYTES, lower
from planner.workload.placement import Placement
from planner.workload.shards import expert_number

LARGEST_EMPTY_SHARE = 0.01
"""Of updates that find no gradient; beyond it the mean mini-batch says little about the others."""
SMALLEST_SHARE_INSIDE = 0.1
"""Of updates inside the window that is asked for; below it the mean alone lies inside."""
SAMPLES_OF_BATCH_NORM = 8
"""Of a replica, below which statistics of a batch are poor."""
CALIBRATED_OPTIMIZER = "sgd-momentum"
"""What the weight updates of calibrations were timed with."""
COMMON_HEAD_SIZES = (32, 64, 96, 128, 192, 256)
"""Features of a head that all versions of FlashAttention-2 have kernels for: some have 160 and 224 too."""
MOST_OUTPUTS = 256
"""Of a layer whose sides are of no account: a classifier of so few outputs takes next to nothing."""
SMALLEST_SHARE_STATED = 0.0005
"""Of the kernel time; below it a share is printed as none."""
LOOKUP_WORDS = {
    "exact": "as exact calls",
    "between": "between measured sub-batches",
    "beyond": "beyond the measured sub-batches",
}
"""Where calls stand among those measured (:data:`planner.costs.measured_calls.WHEREABOUTS`) -> words."""
BY_FORMULA = ("zero-bubble", "zero-bubble-h2", "zero-bubble-v", "no-flush")
"""Schedules."""


class StepWarnings:
    """Warnings of predictions of one precision and mode; what follows from what serves them is worked out once."""

    def __init__(self, sources: Sources, precision: str, mode: str) -> None:
        self._sources, self._precision, self._mode = sources, precision, mode
        self._of_serving: dict[tuple[object, ...], tuple[tuple[Source, ...], tuple[tuple[PlanWarning, ...], ...]]] = {}
        self._of_nodes: dict[int, tuple[PlanWarning, ...]] = {}
        self._sides = tuple(_misaligned(sources, precision))

    def of(
        self,
        one: Configuration,
        terms: tuple[Term, ...],
        sources_in_use: Iterable[Source],
        of: tuple[float, float],
        *,
        interval_basis: str = "none",
        rank_order: tuple[str, ...] = (),
    ) -> tuple[PlanWarning, ...]:
        """Return the warnings of a prediction, in a fixed order; ``of``: its memory [byte] and mean mini-batch.

        ``rank_order``: how its ranks are numbered, where it is not as all are.
        """
        sources, serving, (memory_bytes, mini_batch) = self._sources, tuple(sources_in_use), of
        if one.gpus_per_node not in self._of_nodes:
            self._of_nodes[one.gpus_per_node] = (*_missing_input(sources), *_loading(sources, one))
        key = tuple((id(source.entry), source.provenance) for source in serving)
        if key not in self._of_serving:
            self._of_serving[key] = serving, self._told(serving)  # held, so that no other entry has its id
        before_runs, before_links, last = self._of_serving[key][1]
        return (
            *_memory(sources, memory_bytes),
            *self._of_nodes[one.gpus_per_node],
            *_small_dataset(sources, mini_batch),
            *_small_batch_norm(sources, one),
            *_extrapolations(terms, is_counted=interval_basis == "conformal"),
            *before_runs,
            *_measured_runs(sources, one),
            *before_links,
            *_links(sources, one),
            *last,
            *(self._sides if one.tensor_parallel == 1 else ()),
            *_tensor_across_nodes(one, rank_order or sources.problem.settings.placed_by),
            *_stale_gradients(one),
            *_formula_only(sources, one),
        )

    def _told(self, serving: tuple[Source, ...]) -> tuple[tuple[PlanWarning, ...], ...]:
        """Return the warnings of what serves: before those of runs of the plan, before those of its links, and last."""
        sources, overheads = self._sources, self._sources.overheads(self._precision, self._mode)
        distinct = tuple({(s.entry.key, s.calibration): s for s in serving}.values())
        before_runs = (
            *_origins(sources, distinct),
            *_overheads(sources, overheads),
            *_other_mode(self._mode, overheads),
            *_entries_not_used(sources, distinct, self._precision),
            *_calibrations(sources, distinct),
            *_mixed_circumstances(sources, distinct),
        )
        last = (
            *_optimizer(sources, self._mode),
            *_heads(network := sources.problem.network),
            *(PlanWarning("network_not_modelled", network.name, one) for one in network.unmodelled),
            *[PlanWarning("frozen_layers", network.name, _FROZEN)] * network.has_frozen,
            *_version(sources.problem.settings.framework),
        )
        return before_runs, tuple(_proportional(overheads, distinct)), last


_FROZEN = (
    "No step with frozen layers was measured: it is priced as full training without the kernels that frozen layers "
    "skip, with the interval of full training."
)


def _small_batch_norm(sources: Sources, one: Configuration) -> Iterator[PlanWarning]:
    """Yield a warning where a batch normalisation has few samples, as each replica's statistics are its own.

    Errors grow below 8 samples: Wu & He (2018), Group Normalization, arXiv:1803.08494, figure 1.
    """
    network = sources.problem.network
    if one.sub_batch < SAMPLES_OF_BATCH_NORM and any(layer.kind == "batch_norm" for layer in network.layers):
        message = (
            f"Batch normalisation of {network.name} has the statistics of {one.sub_batch} "
            f"sample{'s'[: one.sub_batch > 1]} of a replica; below {SAMPLES_OF_BATCH_NORM} the network learns worse, "
            "unless replicas share them (SyncBatchNorm), which is not priced."
        )
        yield PlanWarning("small_batch_norm", network.name, message)


def empty_updates(share: float, mini_batch: float) -> tuple[PlanWarning, ...]:
    """Return the warning that a share of the updates finds no gradient, where it is large; ``mini_batch``: mean."""
    if share <= LARGEST_EMPTY_SHARE:
        return ()
    message = (
        f"{100 * share:.2g}% of the updates have no gradient to apply; the mean mini-batch of the others is "
        f"{mini_batch / max(1 - share, 1e-16):.4g} samples."
    )
    return (PlanWarning("empty_updates", "mini_batch", message),)


def own_layers(shares: Mapping[str, float], network: str) -> tuple[PlanWarning, ...]:
    """Return the word that shares of the kernel time were measured with the network's own layers; none of next to none.

    A small layer may be like one of another network. Where the rest comes from stands in the prediction itself.

    ``shares``: mapping of one of LOOKUPS to float.
    """
    share = sum(shares[where] for where in LOOKUP_WORDS)
    if share < SMALLEST_SHARE_STATED:
        return ()
    parts = {words: shares[where] for where, words in LOOKUP_WORDS.items() if shares[where] >= SMALLEST_SHARE_STATED}
    how = " and ".join(words if len(parts) == 1 else f"{part:.1%} {words}" for words, part in parts.items())
    message = f"{share:.1%} of the kernel time was measured with the layers of {network} themselves, {how}."
    return (PlanWarning("own_layers", network, message),)


def window_missed(mini_batch: MiniBatch, window: tuple[float, float]) -> tuple[PlanWarning, ...]:
    """Return the warning that the mean mini-batch lies inside a window [samples] that updates hardly ever hit."""
    inside, (low, high) = mini_batch.probability_in_window, window
    if inside is None or inside >= SMALLEST_SHARE_INSIDE or not low <= mini_batch.mean <= high:
        return ()
    message = (
        f"The mean mini-batch lies inside the window {low:.6g} to {high:.6g}, but only {100 * inside:.2g}% of the "
        f"updates do: the standard deviation is {mini_batch.std:.4g} samples."
    )
    return (PlanWarning("window_missed", "mini_batch", message),)


def _memory(sources: Sources, memory_bytes: float) -> Iterator[PlanWarning]:
    capacity = sources.accelerator.memory_bytes
    if memory_bytes > capacity:
        message = (
            f"It needs {format_bytes(memory_bytes)} on each {sources.accelerator.name}; one has "
            f"{format_bytes(capacity)}."
        )
        yield PlanWarning("out_of_memory", sources.accelerator.name, message)
    elif (fits := share_that_fits(memory_bytes, capacity)) < SURE_TO_FIT:
        message = (
            f"It runs out of memory with a probability of {1 - fits:.0%}: the prediction is "
            f"{format_bytes(memory_bytes)} of {format_bytes(capacity)} on each {sources.accelerator.name}, and "
            "measured runs differ from predictions by that much."
        )
        yield PlanWarning("memory_tight", sources.accelerator.name, message)


def _missing_input(sources: Sources) -> Iterator[PlanWarning]:
    problem = sources.problem
    if problem.dataset is None:
        yield PlanWarning(
            "no_dataset", "dataset", "Without a data set there is no epoch time; give one with --dataset."
        )
    if sources.storage is None:
        why = "is synthetic" if problem.settings.input == "synthetic" else "has no data set to take its size from"
        message = f"Reading samples is left out of every time: the input {why}."
        yield PlanWarning("input_not_modelled", "input", message)


def _loading(sources: Sources, one: Configuration) -> Iterator[PlanWarning]:
    # A measured loader holds whatever its samples went through; bytes over a bandwidth do not.
    loading, node = Input(sources), sources.cluster.node
    if loading.decode is not None:
        threads = float(worker_threads(sources.cluster, one.gpus_per_node))
        of = (
            f"of the {node.cpu_threads} threads of a node"
            if node.cpu_threads
            else "the threads of a node being unknown"
        )
        notes = f"; {loading.decode.entry.notes}" if loading.decode.origin == "assumed" else ""
        message = (
            f"Assumed to read and decode samples: {threads / one.gpus_per_node:g} threads per device, {of}{notes}."
        )
        yield PlanWarning("loader_threads", "load_input", message)
    elif loading.reads_bytes:
        message = "Decoding and augmenting samples is left out of every time: loading is bytes over a bandwidth."
        yield PlanWarning("decode_not_modelled", "load_input", message)
    if loading.is_cached and sources.cluster.storage is None:
        message = (
            f"Later epochs are assumed to read {loading.later_share:.0%} of the samples from storage: "
            f"{CACHED_SHARE:.0%} of host memory caches earlier reads."
        )
        yield PlanWarning("input_cached", "load_input", message)


def _small_dataset(sources: Sources, mini_batch: float) -> Iterator[PlanWarning]:
    dataset = sources.problem.dataset
    if dataset is not None and mini_batch > dataset.samples:
        message = (
            f"The mini-batch, {mini_batch:.6g} samples, is larger than {dataset.name} of {dataset.samples:,}: an epoch "
            "is less than one update."
        )
        yield PlanWarning("mini_batch_above_dataset", "mini_batch", message)


def _extrapolations(terms: tuple[Term, ...], *, is_counted: bool) -> Iterator[PlanWarning]:
    """Yield one warning for all terms of the same calibrations; its subject lists them."""
    interval = "; the interval comes from runs that were outside too" if is_counted else ""
    names: dict[str, list[str]] = {}
    for term in terms:
        if term.extrapolated:
            names.setdefault(term.calibration, []).append(term.name)
    for calibration, terms_of_one in names.items():
        words = "time lies" if len(terms_of_one) == 1 else "times lie"
        message = f"The {' and '.join(terms_of_one)} {words} outside what {calibration} was fitted on{interval}."
        yield PlanWarning("extrapolated", ", ".join(terms_of_one), message)


def _origins(sources: Sources, sources_in_use: tuple[Source, ...]) -> Iterator[PlanWarning]:
    sheet = [s.entry for s in sources_in_use if s.provenance.kind == DATASHEET]
    kernels = sorted({_kernel_words(entry) for entry in sheet if entry.scope == "kernels"})
    if kernels:
        message = (
            f"Times of {', '.join(kernels)} kernels come from the peak rates of {sources.accelerator.name} and assumed "
            f"efficiencies, which miss by 30 to 50%; {measuring(sources.accelerator)}."
        )
        yield PlanWarning("specified", sources.accelerator.name, message)
    for one in {s.entry.precision: s for s in sources_in_use if FASTER in s.entry.settings and s.calibration}.values():
        narrow, faster = one.entry.precision, one.entry.settings[FASTER]
        message = (
            f"Times of {_kernel_words(one.entry)} kernels are those in {one.provenance.precision} divided by "
            f"{faster:.3g}, without casts; measured ones deviate by {NARROW_MISS[narrow]:.0%}. `planner calibrate "
            f"--device cuda --precision {narrow}` measures them."
        )
        yield PlanWarning("specified", sources.accelerator.name, message)
    others = {one.kind: one for one in sheet if one.scope not in ("kernels", "overheads")}
    if others:
        notes = "; ".join(sorted({one.notes for one in others.values()}))
        message = f"Times of {', '.join(sorted(others))} come from specifications; {notes}"
        yield PlanWarning("specified", sources.cluster.name, message + ".")
    for kind in sorted(
        {s.entry.kind for s in sources_in_use if s.entry.scope != "overheads" and s.origin == "assumed"}
    ):
        yield PlanWarning("assumed", kind, f"Times of {kind} are assumed, not measured.")


def _kernel_words(entry: Entry) -> str:
    """Return the kind of a kernel, with its precision where a step has others of the kind in another one."""
    is_narrow = entry.precision in PRECISIONS and PRECISIONS[entry.precision].measured_only
    return f"{entry.kind} ({entry.precision})" if is_narrow else entry.kind


def _overheads(sources: Sources, overheads: Overheads) -> Iterator[PlanWarning]:
    framework = sources.problem.settings.framework.label
    if overheads.matched == "assumed":
        message = (
            f"Overheads of {framework} were not measured on {sources.accelerator.name}: "
            f"{overheads.host_s_per_call * 1e6:.0f} us of host time per call and kernels at full speed are assumed."
        )
        yield PlanWarning("framework_overheads_assumed", framework, message)
    elif overheads.matched == "generic":
        message = (
            f"Overheads of {framework} were not measured: the generic ones of {overheads.source.calibration} are used."
        )
        yield PlanWarning("framework_overheads_generic", framework, message)
    elif overheads.matched == "without switches":
        message = f"Overheads of {framework} were not measured: those of {overheads.source.entry.kind} are used."
        yield PlanWarning("framework_overheads_without_switches", framework, message)
    elif overheads.pooled and overheads.matched != "runs":
        message = (
            f"Overheads of {framework} were not measured on {sources.accelerator.name}: those of "
            f"{overheads.source.calibration}, pooled over other GPUs, are used."
        )
        yield PlanWarning("framework_overheads_pooled", framework, message)
    elif overheads.matched == "framework" and variant_and_version(framework)[1]:
        message = f"Overheads of {framework} are those measured with {overheads.source.entry.kind}."
        yield PlanWarning("framework_overheads_other_version", framework, message)


def _other_mode(mode: str, overheads: Overheads) -> Iterator[PlanWarning]:
    if overheads.source.entry.mode not in ("", mode):
        message = (
            f"Overheads of {overheads.source.calibration} were fitted to {overheads.source.entry.mode} runs; this "
            f"{mode} plan uses them because there are no others."
        )
        yield PlanWarning("overheads_of_other_mode", overheads.source.entry.kind, message)


def _entries_not_used(sources: Sources, sources_in_use: tuple[Source, ...], precision: str) -> Iterator[PlanWarning]:
    """Yield a warning for every entry of a kernel that is passed over for its error, where another serves instead."""
    rejects = [
        (entry, calibration.name)
        for calibration in sources.problem.calibrations
        for entry in calibration.entries
        if calibration.accelerator == sources.accelerator.name
        and entry.scope == "kernels"
        and entry.precision in (precision, "any")
        and not is_used(entry)
    ]
    if not rejects:
        return
    problem, serving = sources.problem, {(source.entry.key, source.calibration) for source in sources_in_use}
    calls = lower(problem.network, np.ones(1, dtype=np.int64), optimizer=problem.settings.optimizer)
    calls_of_step = dict.fromkeys((one.kind, one.direction) for one in calls)
    for entry, name in rejects:
        ways = [way for kind, way in calls_of_step if kind == entry.kind and entry.direction in ("", way)]
        sources_of_ways = [sources.find_kernel(entry.kind, way, precision) for way in ways]
        instead = [one for one in sources_of_ways if one and (one.entry.key, one.calibration) in serving]
        if instead:
            by = " and ".join(dict.fromkeys(map(_in_words, instead)))
            message = f"{miss_in_words(entry, name)} and is not used: {by} instead."
            yield PlanWarning("entry_not_used", name, message[:1].upper() + message[1:])


def _in_words(source: Source) -> str:
    """Return what serves, in words."""
    if not source.calibration:
        return "the data sheet is used"
    entry = source.entry
    return f"{' '.join(filter(None, (entry.kind, entry.direction))).replace('_', ' ')} of {source.calibration} is used"


def _calibrations(sources: Sources, sources_in_use: tuple[Source, ...]) -> Iterator[PlanWarning]:
    for calibration in (*sources.problem.calibrations, *sources.of_same_die):
        precisions = {s.entry.precision for s in sources_in_use if s.calibration == calibration.name}
        if not precisions:
            continue
        if calibration.origin == "reconstructed":
            message = (
                f"Calibration {calibration.name} was reconstructed from published results, so agreement with those is "
                "in-sample and no evidence of accuracy."
            )
            yield PlanWarning("reconstructed", calibration.name, message)
        of_input = calibration.input_warnings if sources.storage is not None else ()
        narrow = (one for name, some in calibration.precision_warnings.items() if name in precisions for one in some)
        for sentence in (*calibration.warnings, *narrow, *of_input):
            yield PlanWarning("calibration", calibration.name, sentence)


def _mixed_circumstances(sources: Sources, sources_in_use: tuple[Source, ...]) -> Iterator[PlanWarning]:
    """Yield a warning for calibrations whose kernels add up to one step though they were measured in unlike ways."""
    names = {source.calibration for source in sources_in_use if source.entry.scope == "kernels"}
    serving = [one for one in (*sources.for_accelerator, *sources.of_same_die) if one.name in names]
    if unlike := _unlike(serving):
        message = (
            f"Kernels come from {len(serving)} calibrations, {unlike}. Each kernel is taken from the first that has "
            "it; calibrate again to have all from one."
        )
        yield PlanWarning("mixed_circumstances", ", ".join(one.name for one in serving), message)


def _unlike(calibrations: Sequence[Calibration]) -> str:
    """Return how the circumstances of calibrations differ, else ''; one that states none differs from none."""
    stated: dict[str, list[str]] = {}
    for one in calibrations:
        for key, value in one.environment.items():
            values = [] if key in FREE_CIRCUMSTANCES else stated.setdefault(key, [])
            values += [repr(value)] if repr(value) not in values else []
    differ = [f"{key} {' against '.join(values)}" for key, values in stated.items() if values[1:]]
    if differ:
        return f"measured under different conditions: {'; '.join(differ)}"
    terms = [one.environment.keys() - FREE_CIRCUMSTANCES for one in calibrations if one.environment]
    apart = any(not first & other for first, other in combinations(filter(None, terms), 2))
    return "which describe their conditions in different terms" if apart else ""


def _proportional(overheads: Overheads, sources_in_use: tuple[Source, ...]) -> Iterator[PlanWarning]:
    kernels = [source for source in sources_in_use if source.entry.scope == "kernels"]
    host_s = overheads.host_s_per_call + overheads.host_s_per_layer
    if kernels and host_s == 0 and all(_is_proportional(source) for source in kernels):
        names = " and ".join(dict.fromkeys(source.calibration for source in kernels))
        message = (
            f"Calibration {names} has no time per call, so computing is exactly proportional to the sub-batch and "
            "sub-batches can tie: small ones are less efficient on any real device."
        )
        yield PlanWarning("no_time_per_call", names, message)


def _is_proportional(source: Source) -> bool:
    """Tell whether twice the work always takes twice the time."""
    of = source.entry
    return of.term in ("flop.rate", "traffic.bytes", "work.linear") and not of.coefficients.get(CALLS.name)


def _measured_runs(sources: Sources, one: Configuration) -> Iterator[PlanWarning]:
    """Yield the word that passes of the network were measured, which correct those of a whole one."""
    steps = sources.measured_steps(one.precision, OF_PASSES)
    if steps is not None and one.replica_gpus == 1:
        yield measured_warning(steps, sources.problem.network.name, one)


def measured_warning(steps: MeasuredSteps, network: str, plan: Configuration) -> PlanWarning:
    """Return the word that measured steps, or runs of passes, correct a plan, by how many of what plans, and how."""
    is_passes, count, own = steps.of == OF_PASSES, sum(one.runs for one in steps.steps), steps.runs_of(plan)
    noun = "measured run" if is_passes else "measured step"
    runs = f"a {noun}" if count == 1 else f"{count} {noun}s"
    verb = "was" if count == 1 else "were"
    if is_passes:
        sizes = [str(size) for size in sorted({one.configuration.sub_batch for one in steps.steps})]
        several = f"es {', '.join(sizes[:-1])} and {sizes[-1]}" if sizes[1:] else f" {sizes[0]}"
        of = f" of sub-batch{several}" if sizes != [str(plan.sub_batch)] else ""
        used = f"For sub-batch {plan.sub_batch} in {plan.precision} {runs}{of} {verb} used"
    else:
        of = "none of them" if not own else "all of them" if own == count else f"{own} of them"
        used = f"In {plan.precision} {runs} {verb} used, {of} of this very plan"
    what = "forward and backward passes are" if is_passes else "the step is"
    (factor,) = steps.factors(Configurations.of([plan]))
    message = f"{used}, of calibration {' and '.join(steps.calibrations)}: {what} multiplied by {factor:.4g}."
    return PlanWarning("measured_run" if is_passes else "measured_steps", network, message)


def _links(sources: Sources, one: Configuration) -> Iterator[PlanWarning]:
    crossings = {"intra_node": one.gpus_per_node > 1, "inter_node": one.nodes > 1, "host": True}
    for name, is_crossed in crossings.items():
        link = getattr(sources.cluster, name)
        if is_crossed and link is not None and link.kind not in LINK_KINDS:
            message = f"Link kind {link.kind!r} is not known; it is modelled by its bandwidth and latency alone."
            yield PlanWarning("unknown_link_kind", f"links.{name}", message)


def _optimizer(sources: Sources, mode: str) -> Iterator[PlanWarning]:
    # A calibrated update is not scaled to another optimizer: what part of it moves bytes is not known.
    optimizer = sources.problem.settings.optimizer
    calibrated_bytes, optimizer_bytes = UPDATE_BYTES[CALIBRATED_OPTIMIZER], UPDATE_BYTES[optimizer]
    if mode != "async" or calibrated_bytes == optimizer_bytes:
        return
    calibration = sources.host("update_weights").calibration
    if calibration:
        message = (
            f"The weight update of {calibration} is that of {CALIBRATED_OPTIMIZER}, which moves {calibrated_bytes} "
            f"bytes per parameter; the {optimizer_bytes} of {optimizer} are not accounted for."
        )
        yield PlanWarning("optimizer_differs", optimizer, message)


def _heads(network: Network) -> Iterator[PlanWarning]:
    """Yield the word that heads do not divide the features that attention reads: the size of one is rounded down."""
    at = next((at for at, layer in enumerate(network.layers) if layer.kind == "attention"), None)
    if at is None:
        return
    attention, before = network.layers[at], network.layers[:at]
    by_name = {layer.name: layer for layer in before}
    source = by_name.get(attention.inputs[0])
    if source is not None and source.kind == "rotary":
        source = by_name.get(source.inputs[0])
    if source is None or source.kind != "linear":
        return
    shapes = layer_shapes(replace(network, layers=before))
    heads, hidden = attention.integer("heads"), shapes[source.inputs[0]][-1]
    width = shapes[source.name][-1] // (heads + 2 * (attention.integer("kv_heads") or heads)) * heads
    if hidden % heads and width == hidden // heads * heads:
        message = (
            f"The {heads} heads of attention do not divide the {hidden} features that they read: each has "
            f"{hidden // heads}, rounded down, {width} in total."
        )
        yield PlanWarning("head_size_rounded", network.name, message)


def _misaligned(sources: Sources, precision: str) -> Iterator[PlanWarning]:
    """Yield the word that sides of products or heads fit no kernel of matrix units, and the next that do."""
    framework, network = sources.problem.settings.framework, sources.problem.network
    if not sources.accelerator.has_matrix_units(precision):
        return
    whole = WHOLE_BYTES // PRECISIONS[precision].weight_bytes
    yield from _padded_heads(network, precision)
    if framework.pads_products or framework.pads_vocabulary:
        return
    settings, itemsize = sources.misaligned(precision), PRECISIONS[precision].activation_bytes
    sides = {layer.integer("features") for layer in network.layers if layer.kind == "linear"}
    for side in sorted(side for side in sides if side % whole and side > MOST_OUTPUTS):
        fits = f"{-(-side // whole) * whole}, a multiple of {whole}"
        message = f"Layers of {side} outputs run slower on matrix units in {precision} than layers of {fits}."
        if settings:
            times = float(times_as_long(np.array(gcd(side * itemsize, WHOLE_BYTES)), settings))
            message = f"Layers of {side} outputs take {times:g} times as long here in {precision} as layers of {fits}."
        yield PlanWarning("misaligned", str(side), message)


def _padded_heads(network: Network, precision: str) -> Iterator[PlanWarning]:
    """Yield the word that attention computes heads of more features than they have, and the next size that fits."""
    shapes, itemsize = layer_shapes(network), PRECISIONS[precision].activation_bytes
    layers = [layer for layer in network.layers if layer.kind == "attention"]
    cores = {(core_of(one, *shapes[one.inputs[0]]), bool(one.attributes["fused"]) and itemsize == 2) for one in layers}
    for width, fused in sorted({((core.width + core.values) // 2, fused) for core, fused in cores}):
        size = aligned_head_size(width, WHOLE_BYTES // itemsize)
        size, kernels = (int(kernel_width(np.array(size))), "fused attention") if fused else (size, "matrix product")
        if size > width:
            next_size = next((one for one in COMMON_HEAD_SIZES if one >= width), size) if fused else size
            message = (
                f"Heads of {width} features are computed as {size} in {precision}, {size / width - 1:.0%} more: "
                f"{next_size} is the next size that {kernels} kernels support."
            )
            yield PlanWarning("head_size_padded", str(width), message)


def _version(framework: Framework) -> Iterator[PlanWarning]:
    """Yield the word that a framework's record knows no such version."""
    if not framework.has_known_version:
        message = (
            f"Version {framework.version} of {framework.name} is not known; known are "
            f"{', '.join(sorted(framework.versions))} and the newest, as which it is treated."
        )
        yield PlanWarning("unknown_version", framework.label, message)


def _tensor_across_nodes(one: Configuration, rank_order: tuple[str, ...]) -> Iterator[PlanWarning]:
    """Yield the word that tensor-parallel groups do not stay inside a node."""
    plan = Configurations.of([one])
    if one.tensor_parallel > 1 and Placement(plan, order=rank_order).groups(TENSOR).nodes[0] > 1:
        message = (
            f"Groups of {one.tensor_parallel} tensor-parallel ranks do not fit in nodes of {one.gpus_per_node} "
            "GPUs: every layer sends messages between nodes."
        )
        yield PlanWarning("tensor_across_nodes", "tensor_parallel", message)


def _stale_gradients(one: Configuration) -> Iterator[PlanWarning]:
    if one.schedule == "no-flush" and one.pipeline_parallel > 1:
        stages = one.pipeline_parallel
        message = (
            f"Gradients of a no-flush schedule are stale: the first of {stages} stages computes with weights "
            f"{stages - 1} updates old and keeps {stages} versions of them, each later stage one fewer."
        )
        yield PlanWarning("stale_gradients", one.schedule, message)


def _formula_only(sources: Sources, one: Configuration) -> Iterator[PlanWarning]:
    """Yield the parts of a plan that no measured run has shown yet."""
    network = sources.problem.network
    parts = {
        "context parallelism": one.context_parallel > 1,
        "balance of experts": expert_number(network) > 0,
        f"{one.schedule} schedule": one.schedule in BY_FORMULA,
        f"offload of {one.offload}": one.offload != "none",
    }
    for part in (name for name, is_part in parts.items() if is_part):
        even = ", assumed even," if part.startswith("balance") else ""
        message = f"The {part}{even} is priced by formula only: no measured run has it."
        yield PlanWarning("formula_only", part, message)
