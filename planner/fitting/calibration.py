"""A calibration from samples: kernels of an accelerator, collectives of a cluster, input of a node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Entry, by_precision
from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import NETWORKS, Samples
from planner.domain.training import TimedStep
from planner.errors import CoverageError
from planner.fitting.collectives import fit_collectives, fit_overlap
from planner.fitting.kernels import TooFew, fit_kernels
from planner.fitting.layer_calls import fit_layer_calls
from planner.fitting.overheads import fit_overheads, overheads_doubt
from planner.fitting.rows import POINTWISE, Rejected, usable
from planner.fitting.storage import fit_input

__all__ = ["SampleOrigin", "fit_calibration", "fit_links", "with_overheads"]

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
    samples : Samples
    name : str
    accelerator : Accelerator
        What the kernels ran on; gives processor count and peak rates.
    node : Node
        Recorded as the node of cluster ``local``.
    origin : SampleOrigin
    estimator : {"relative-nnls", "least-squares"}
    steps : sequence of TimedStep
        Training steps timed with the same framework on the same device: its overheads in each of their precisions.

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
