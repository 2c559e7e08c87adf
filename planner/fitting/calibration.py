"""A calibration from samples: kernels of an accelerator, collectives of a cluster, input of a node.

Entries of the input side: reads from storage, decoding, copies between host and device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Entry, by_precision
from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import (
    DECODE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    INPUT_COLUMNS,
    LOAD,
    LOAD_CACHED,
    NETWORKS,
    Samples,
)
from planner.domain.training import TimedStep
from planner.errors import CoverageError
from planner.fitting.collectives import fit_collectives, fit_overlap
from planner.fitting.gaussian_process import fit_entry
from planner.fitting.kernels import TooFew, fit_kernels
from planner.fitting.layer_calls import fit_layer_calls
from planner.fitting.overheads import fit_overheads, overheads_doubt
from planner.fitting.rows import POINTWISE, Rejected, merged, usable

__all__ = ["SampleOrigin", "fit_calibration", "fit_input", "fit_links", "with_overheads"]


class _Fit(NamedTuple):
    """How rows of a kind become an entry."""

    scope: str
    kind: str
    term: str
    least_rows: int
    notes: str = ""


COLD_NOTE = "cold for this system; what a host of virtual machines or a server of files caches is not told apart"
FITS: Mapping[str, _Fit] = {
    LOAD: _Fit("storage", LOAD, "storage.reads", 3, f"samples read in random order by one thread, {COLD_NOTE}"),
    LOAD_CACHED: _Fit("storage", LOAD_CACHED, "storage.reads", 3, "samples read again by one thread"),
    DECODE: _Fit("storage", DECODE, "storage.decode", 4, "one thread decodes, crops, resizes and normalises"),
    HOST_TO_DEVICE: _Fit("host", "copy", "host.bytes", 3),
    DEVICE_TO_HOST: _Fit("host", "copy_back", "host.bytes", 3),
}
"""Kind of rows -> its entry; every kind of INPUT_COLUMNS."""


def fit_input(
    samples: Samples, *, estimator: str = "relative-nnls", origin: str = "measured", source: str = ""
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return an entry for every kind and library of rows, and a sentence for each that has too few sizes.

    Parameters
    ----------
    samples : rows of other kinds than those of INPUT_COLUMNS are passed over
    estimator : {"relative-nnls", "least-squares"}
    origin, source : stored in every entry; a row's own ``source`` goes before ``source``
    """
    mask, _ = usable(samples)
    rows = samples.select(mask & np.isin(samples.text["kind"], list(INPUT_COLUMNS)))
    entries, missing = [], []
    for kind, library, part in _split(rows):
        fit = FITS[kind]
        if part.size < fit.least_rows:
            missing.append(f"{' '.join(filter(None, (kind, library)))}: {part.size} sizes, {fit.least_rows} needed")
            continue
        entry = fit_entry(part, (fit.scope, kind, "", "", library), fit.term, {}, estimator=estimator)
        own = "; ".join(sorted({str(name) for name in part.text["source"] if name})) or source
        entries.append(replace(entry, kind=fit.kind, origin=origin, source=own, notes=fit.notes))
    return tuple(entries), tuple(missing)


def _split(rows: Samples) -> Iterator[tuple[str, str, Samples]]:
    """Yield kind, library and their rows, sizes merged."""
    kinds, libraries = rows.text["kind"], rows.text["library"]
    for kind in INPUT_COLUMNS:
        for library in sorted(set(libraries[kinds == kind].tolist())):
            yield kind, library, merged(rows.select((kinds == kind) & (libraries == library)), kind)


WARNING = "warning"
"""Circumstances of samples named so, or named so and more, become warnings of the calibration."""
INPUT_WARNING = "warning_input"
"""Of these, those about the input side."""
HOST_TIME = "host_s_per_call"
"""Circumstance of samples of a GPU: what the host takes for a call of a tiny kernel [s]."""
MOST_REASONS = 3
"""Reasons for rejected rows that a warning names, the most frequent first."""


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Where samples come from: origin and source of the figures, date, the cluster of collectives, circumstances.

    What is left empty is taken from the circumstances of the samples (keys ``origin``, ``source``, ``date``,
    ``cluster``; the others are the environment, but those that begin with ``warning``, sentences for whoever uses the
    calibration); the origin is else ``measured``.
    """

    origin: str = ""
    source: str = ""
    date: str = ""
    cluster: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def fit_calibration(
    samples: Samples,
    name: str,
    accelerator: Accelerator,
    node: Node,
    origin: SampleOrigin = SampleOrigin(),
    *,
    estimator: str = "relative-nnls",
    steps: Sequence[TimedStep] = (),
) -> Calibration:
    """Return the calibration that the samples give.

    Parameters
    ----------
    accelerator : what the kernels ran on; gives processor count and peak rates
    node : recorded as the node of cluster ``local``
    estimator : {"relative-nnls", "least-squares"}
    steps : training steps timed with the same framework on the same device: its overheads in each of their precisions

    Raises
    ------
    CoverageError
        No kind of kernel or input and no collective has enough usable rows.
    """
    origin = _completed(origin, samples.circumstances)
    kernels = fit_kernels(samples, accelerator, estimator=estimator, origin=origin.origin, source=origin.source)
    collectives, few = fit_collectives(samples, origin=origin.origin, source=origin.source)
    own = fit_layer_calls(samples, kernels.entries, origin=origin.origin, source=origin.source)
    loading, fewer = fit_input(samples, estimator=estimator, origin=origin.origin, source=origin.source)
    entries = (*own, *kernels.entries, *collectives, *loading)
    if not entries:
        wrong = (f"row {row + 1}: {reason}" for row, reason in kernels.rejected[:3])
        reasons = [*map(str, kernels.missing), *few, *fewer, *wrong]
        raise CoverageError(
            f"samples must hold enough usable rows of one kind, got {samples.size} rows"
            + (f" ({'; '.join(reasons)})" if reasons else "")
            + "; measure more with planner calibrate"
        )
    few = (*map(str, _of_networks(samples, kernels.missing)), *few)
    general, of_precisions = by_precision(_warnings(samples, few, kernels.rejected))
    calibration = Calibration(
        name,
        accelerator.name,
        entries,
        origin.cluster,
        node,
        origin.origin,
        origin.source,
        origin.date,
        origin.environment,
        tuple(sorted({str(group) for group in samples.text["group"] if group})),
        general,
        input_warnings=(*_stated(samples, of_input=True), *_not_fitted(fewer)),
        precision_warnings=of_precisions,
    )
    return with_overheads(calibration, steps)


def fit_links(
    samples: Samples, name: str, accelerator: Accelerator | None, node: Node | None, cluster: str | None
) -> Calibration:
    """Return the calibration of collectives alone; without an accelerator of any device.

    CoverageError: no collective has enough usable rows.
    """
    origin = _completed(SampleOrigin(cluster=cluster), samples.circumstances)
    entries, missing = fit_collectives(samples, origin=origin.origin, source=origin.source)
    entries += fit_overlap(origin.environment, origin.source)
    if not entries:
        reasons = "; ".join([*missing, *dict.fromkeys(reason for _, reason in usable(samples)[1])])
        raise CoverageError(f"samples must time an operation between ranks, got {samples.size} rows ({reasons})")
    return Calibration(
        name,
        accelerator.name if accelerator else ANY_ACCELERATOR,
        entries,
        origin.cluster,
        node,
        origin.origin,
        origin.source,
        origin.date,
        origin.environment,
        warnings=(*_stated(samples, of_input=False), *_not_fitted(missing)),
    )


def with_overheads(calibration: Calibration, steps: Sequence[TimedStep]) -> Calibration:
    """Return a calibration with the overheads that training steps on its node show, and with the doubts about them."""
    waits = calibration.node is not None and calibration.node.accelerator.kind == "cpu"
    kernels = [entry for entry in calibration.entries if entry.scope == "kernels"]
    host_s = 0.0 if waits else _host_s(calibration.environment)
    overheads, missing = _overheads(kernels, steps, waits=waits, host_s=host_s)
    doubts = filter(None, map(overheads_doubt, overheads))
    return replace(
        calibration,
        entries=(*calibration.entries, *overheads),
        warnings=(*calibration.warnings, *_not_fitted(missing), *doubts),
    )


def _of_networks(samples: Samples, missing: tuple[TooFew, ...]) -> tuple[TooFew, ...]:
    """Return what is missing; where samples were made for certain networks, of the kinds of these networks' calls.

    The entry of bytes of any kind serves them too.
    """
    if NETWORKS not in samples.circumstances:
        return missing
    kinds = {POINTWISE, *samples.text["kind"][samples.text["call"] != ""].tolist()}
    return tuple(one for one in missing if one.kind in kinds)


def _overheads(
    entries: Sequence[Entry], steps: Sequence[TimedStep], *, waits: bool, host_s: float
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return overheads for each precision of the steps, and a sentence for each whose steps cannot be priced."""
    overheads, missing = [], []
    for precision in dict.fromkeys(step.precision for step in steps):
        own = [step for step in steps if step.precision == precision]
        try:
            overheads.append(fit_overheads(entries, own, precision=precision, waits=waits, host_s=host_s))
        except CoverageError as error:
            missing.append(f"overheads in {precision}: {error}")
    return tuple(overheads), tuple(missing)


def _host_s(environment: Mapping[str, str]) -> float:
    """Return the host time of a call that was measured, the first of several runs' [s]; 0 without."""
    try:
        seconds = float(environment.get(HOST_TIME, "").partition(";")[0])
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < math.inf else 0.0


def _completed(stated: SampleOrigin, circumstances: Mapping[str, str]) -> SampleOrigin:
    rest = {key: value for key, value in circumstances.items() if not key.startswith(WARNING)}
    origin, source, date, cluster = (rest.pop(key, "") for key in ("origin", "source", "date", "cluster"))
    return SampleOrigin(
        stated.origin or origin or "measured",
        stated.source or source,
        stated.date or date,
        stated.cluster or cluster or None,
        {**rest, **stated.environment},
    )


def _warnings(samples: Samples, missing: tuple[str, ...], rows: tuple[Rejected, ...]) -> tuple[str, ...]:
    counts = Counter(reason for _, reason in rows)
    reasons = "; ".join(f"{reason}: {count}" for reason, count in counts.most_common(MOST_REASONS))
    rejections = (f"{len(rows)} of {samples.size} rows rejected ({reasons})",) if rows else ()
    return (*_stated(samples, of_input=False), *_not_fitted(missing), *rejections)


def _stated(samples: Samples, *, of_input: bool) -> Iterator[str]:
    """Yield the warnings that the circumstances state, of the input side or of everything else."""
    for key, sentence in sorted(samples.circumstances.items()):
        if sentence and key.startswith(WARNING) and key.startswith(INPUT_WARNING) == of_input:
            yield sentence


def _not_fitted(missing: Iterable[str]) -> Iterator[str]:
    return (f"not fitted: {sentence}" for sentence in missing)
