"""A calibration from samples: kernels of an accelerator, collectives of a cluster, input of a node.

Entries of the input side: reads from storage, decoding, copies between host and device.

Entries of measured collectives: no formula joins numbers of ranks, each case is fitted by itself. Forms compete on
every fourth size left out: 1, sqrt V, V; and piecewise alpha-beta with up to three segments, split where that lowers
the squared relative error most, more or less readily. One line misses by 10 to 40 % where a library changes its
algorithm with the size of the message. Numbers of ranks between others are left out too, for the error that is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.costs.collectives import RANKS_POWER, breaks_key, case_list
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray
from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Entry, SettingValue, by_precision
from planner.domain.cluster import Accelerator, Node
from planner.domain.messages import OVERLAP
from planner.domain.samples import (
    BESIDE,
    DECODE,
    DEVICE_TO_HOST,
    HIDDEN,
    HOST_TO_DEVICE,
    INPUT_COLUMNS,
    LOAD,
    LOAD_CACHED,
    NETWORKS,
    Samples,
    TimedStep,
    number_in,
)
from planner.errors import CoverageError
from planner.fitting.estimators import LEAST_SHARE
from planner.fitting.gaussian_process import Key, fit_entry
from planner.fitting.kernels import fit_kernels, fit_layer_calls
from planner.fitting.overheads import fit_overheads, overheads_doubt
from planner.fitting.rows import POINTWISE, merged, take, usable, work_of


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
    samples: Samples, *, origin: str = "measured", source: str = ""
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return an entry for every kind and library of rows, and a sentence for each that has too few sizes.

    ``samples``: rows of other kinds than those of INPUT_COLUMNS are passed over; ``origin``, ``source``: stored in
    every entry, a row's own ``source`` goes before ``source``.
    """
    mask, _ = usable(samples)
    rows = samples.select(mask & np.isin(samples.text["kind"], list(INPUT_COLUMNS)))
    entries, missing = [], []
    kinds, libraries = rows.text["kind"], rows.text["library"]
    pairs = ((kind, one) for kind in INPUT_COLUMNS for one in sorted(set(libraries[kinds == kind].tolist())))
    for kind, library in pairs:
        fit, part = FITS[kind], merged(rows.select((kinds == kind) & (libraries == library)), kind)
        if part.size < fit.least_rows:
            missing.append(f"{' '.join(filter(None, (kind, library)))}: {part.size} sizes, {fit.least_rows} needed")
            continue
        entry = fit_entry(part, (fit.scope, kind, "", "", library), fit.term, {})
        own = "; ".join(sorted({str(name) for name in part.text["source"] if name})) or source
        entries.append(replace(entry, kind=fit.kind, origin=origin, source=own, notes=fit.notes))
    return tuple(entries), tuple(missing)


Case = tuple[int, int]
Form = tuple[str, float]
STRICT = 2.0
FORMS: tuple[Form, ...] = (("sqrt", STRICT), *(("segments", strictness) for strictness in (STRICT, 1.0, 0.5)))
"""Forms that compete, with how much a break of segments must gain."""
LEAST_SIZES = 2
FOLDS = 4
"""Sizes of a case from which on some are left out, one in so many at a time."""
LEAST_SEGMENTED_SIZES = 12
MOST_BREAKS = 2
MOST_CANDIDATES = 64
LEAST_IN_SEGMENT = 3
COEFFICIENTS_OF_A_BREAK = 3
NEGLIGIBLE = 1e-3
"""A relative error that no break is worth."""
RANKS_POWERS, CLEARLY = (0.0, 1.0, 2.0), 1.1
"""Of p, in which time between numbers of ranks may be a line; 0: its logarithm. By what another must be better."""
LINE_ROUNDS = 3
"""Refits of a line by the times that it gave before."""


def fit_collectives(
    samples: Samples, *, origin: str = "measured", source: str = ""
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return one entry for every operation and library, and a sentence for each case that cannot be fitted."""
    mask, _ = usable(samples)
    rows = samples.select(mask & (samples.text["operation"] != ""))
    entries, missing = [], []
    kinds = np.stack([rows.text["operation"], rows.text["library"]], axis=1)
    for operation, library in np.unique(kinds, axis=0).tolist():
        own = rows.select((kinds == (operation, library)).all(axis=1))
        parts = []
        for (nodes, ranks), part in _cases(merged(own, operation)):
            case = f"{operation} on {nodes} nodes of {ranks} ranks"
            if part.size < LEAST_SIZES:
                missing.append(f"{case}: {LEAST_SIZES} sizes needed")
            elif _slope(part, ()) <= 0:
                why = "times that do not: no bandwidth is that of this link; measure it again"
                missing.append(f"{case}: times must grow with bytes, got {why}")
            else:
                parts.append(part)
        if parts:
            best = _best(reduce(Samples.joined, parts), ("collectives", operation, "", "", library))
            entries.append(replace(best, origin=origin, source=source))
    return tuple(entries), tuple(missing)


def fit_overlap(environment: Mapping[str, str], source: str = "") -> tuple[Entry, ...]:
    """Return how a step and its messages run beside each other, where ranks measured that; see HIDDEN."""
    try:
        beside, hidden = float(environment[BESIDE]), float(environment[HIDDEN])
    except (KeyError, ValueError):
        return ()
    notes = f"{hidden:.0%} of the messages of data-parallel steps were hidden"
    settings, values = {"hidden": hidden}, {"beside_s": max(beside, 1.0)}
    key = ("collectives", OVERLAP, "", "", "")
    return (Entry(*key, "collective.overlap", settings, values, origin="measured", source=source, notes=notes),)


def _cases(samples: Samples) -> Iterator[tuple[Case, Samples]]:
    """Yield (nodes, ranks per node) with its rows in order of size; one rank sends nothing."""
    nodes, ranks = (samples.number[name].astype(int) for name in ("nodes", "ranks_per_node"))
    for case in sorted(set(zip(nodes.tolist(), ranks.tolist(), strict=True))):
        mask = (nodes == case[0]) & (ranks == case[1])
        if case[0] * case[1] > 1:
            rows = np.flatnonzero(mask)
            yield case, take(samples, rows[np.argsort(samples.number["bytes"][rows], kind="stable")])


def _settings(samples: Samples, form: Form) -> dict[str, SettingValue]:
    cases = list(_cases(samples))
    name, strictness = form
    settings: dict[str, SettingValue] = {"form": name, "cases": tuple(float(x) for case, _ in cases for x in case)}
    if name == "segments":
        for case, part in cases:
            breaks = best_breaks(part.number["bytes"], part.time_s, strictness)
            while breaks and _slope(part, breaks) <= 0:  # noise at the end: no link has an infinite bandwidth
                breaks = breaks[:-1]
            settings[breaks_key(case)] = breaks
    return settings


def _slope(part: Samples, breaks: tuple[float, ...]) -> float:
    """Return what a byte takes in the last segment [s]."""
    last = part.number["bytes"] > (breaks[-1] if breaks else 0.0)
    return _line(part.number["bytes"][last], part.time_s[last])[0]


def _fit(samples: Samples, key: Key, form: Form) -> Entry:
    settings = _settings(samples, form)
    return fit_entry(samples, key, "collective.cases", settings, estimator="gamma-nnls", leaves_out=False)


def _misses(entry: Entry, out: Samples) -> FloatArray:
    return np.abs(evaluate(entry, work_of(out, entry.kind)) / out.time_s - 1)


def _by_size(samples: Samples, key: Key, form: Form) -> FloatArray:
    """Return the absolute relative errors on every fourth size, breaks and coefficients from the others, shape (k,)."""
    fold = np.concatenate([np.arange(part.size) % FOLDS - (part.size < FOLDS) * FOLDS for _, part in _cases(samples)])
    errors = [
        _misses(_fit(samples.select(fold != value), key, form), samples.select(fold == value))
        for value in range(FOLDS if (fold >= 0).any() else 0)
    ]
    return np.concatenate([np.zeros(0), *errors])


def _by_ranks(samples: Samples, key: Key, form: Form) -> tuple[float, FloatArray]:
    """Return the power of p, and the absolute relative errors on each case between two others, which alone serve it."""
    parts, errors = dict(_cases(samples)), {power: [np.zeros(0)] for power in RANKS_POWERS}
    for across, per_node in {(nodes > 1, ranks if nodes > 1 else 0) for nodes, ranks in parts}:
        line = [case for case in parts if (case[0] > 1) == across and (not across or case[1] == per_node)]
        for (low, case), (_, high) in pairwise(pairwise(line)):
            entry = _fit(parts[low].joined(parts[high]), key, form)
            for power, some in errors.items():
                some.append(_misses(replace(entry, settings={**entry.settings, RANKS_POWER: power}), parts[case]))
    every = {power: np.concatenate(some) for power, some in errors.items()}
    means = {power: float(some.mean()) * (CLEARLY if power else 1) for power, some in every.items() if some.size}
    best = min(means, key=lambda power: means[power], default=0.0)
    return best, every[best]


def _best(samples: Samples, key: Key) -> Entry:
    """Return the form whose median error on sizes left out is least, with its errors on sizes and ranks left out."""
    # The median, because no fit can place a jump beside a size left out: one such point can be 4 times off.
    forms = FORMS if all(part.size >= FOLDS for _, part in _cases(samples)) else FORMS[1:2]
    errors = {form: _by_size(samples, key, form) for form in forms}
    form = min(forms, key=lambda name: float(np.median(errors[name])) if errors[name].size else 0.0)
    entry, by_size = _fit(samples, key, form), errors[form]
    sizes = samples.number["bytes"]
    entry = replace(entry, ranges={**entry.ranges, "bytes": (float(sizes.min()), float(sizes.max()))})
    is_line = len(case_list(entry.settings)) > 2
    power, by_ranks = _by_ranks(samples, key, form) if is_line else (0.0, np.zeros(0))
    if power:
        entry = replace(entry, settings={**entry.settings, RANKS_POWER: power})
    if by_ranks.size:
        entry = replace(entry, notes=f"a number of ranks left out between others is missed by {by_ranks.mean():.1%}")
    if not by_size.size:
        return replace(entry, held_out_error=None, worst_error=None, held_out_by="", worst_point="")
    mean, worst = float(by_size.mean()), float(by_size.max())
    return replace(entry, held_out_error=mean, worst_error=worst, held_out_by="every fourth size")


def best_breaks(bytes_: FloatArray, times: FloatArray, strictness: float = STRICT) -> tuple[float, ...]:
    """Return the sizes [byte] after which a new straight line begins, at most two.

    Breaks are taken one at a time, the one that lowers the squared relative error most, while that gains more than
    ``strictness`` times what the Bayesian information criterion asks for place, step and slope (twice: the place is the
    best of many). A segment keeps at least three sizes, and fewer than twelve sizes are one segment.

    ``bytes_``: ndarray of shape (k,), increasing; ``times``: ndarray of shape (k,).
    """
    if bytes_.size < LEAST_SEGMENTED_SIZES:
        return ()
    all_places = np.arange(LEAST_IN_SEGMENT, bytes_.size - LEAST_IN_SEGMENT + 1)
    places = all_places[:: -(-all_places.size // MOST_CANDIDATES)]
    ends: list[int] = []
    error = _squares(bytes_, times, ends)
    gain = np.exp(-strictness * COEFFICIENTS_OF_A_BREAK * np.log(bytes_.size) / bytes_.size)
    while len(ends) < MOST_BREAKS and error > bytes_.size * NEGLIGIBLE**2:
        options = [place for place in places if all(abs(place - other) >= LEAST_IN_SEGMENT for other in ends)]
        scores = [(_squares(bytes_, times, sorted([*ends, int(place)])), int(place)) for place in options]
        best, place = min(scores)
        if best > gain * error:
            break
        ends, error = sorted([*ends, place]), best
    return tuple(float(bytes_[place - 1]) for place in ends)


def _squares(bytes_: FloatArray, times: FloatArray, places: list[int]) -> float:
    """Return the sum of squared relative errors of one line a segment; a segment begins at each place."""
    return sum(_line(bytes_[part], times[part])[1] for part in np.split(np.arange(bytes_.size), places))


def _line(bytes_: FloatArray, times: FloatArray) -> tuple[float, float]:
    """Return what a byte takes on a line a + b·V [s], and the sum of its squared errors over what it gave before."""
    size, given, slope = bytes_ / bytes_[-1], times, 0.0
    for _ in range(LINE_ROUNDS):
        weights = given**-2.0
        centre, level = (float(weights @ values / weights.sum()) for values in (size, times))
        spread = float(weights @ (size - centre) ** 2)
        slope = float(weights @ ((size - centre) * (times - level))) / spread if spread else 0.0
        fitted = level + slope * (size - centre)
        squares = float(np.sum(((times - fitted) / given) ** 2))
        given = np.maximum(fitted, LEAST_SHARE * times)
    return slope / float(bytes_[-1]), squares


WARNING = "warning"
"""Circumstances of samples named so, or named so and more, become warnings of the calibration."""
INPUT_WARNING = "warning_input"
"""Of these, those about the input side."""
HOST_TIME = "host_s_per_call"
"""Circumstance of samples of a GPU: what the host takes for a call of a tiny kernel [s]; of several runs the
first."""
MOST_REASONS = 3
"""Reasons for rejected rows that a warning names, the most frequent first."""


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Source of the figures, date, and the cluster of collectives; empty: what the circumstances of the samples say."""

    source: str = ""
    date: str = ""
    cluster: str = ""


def fit_calibration(
    samples: Samples,
    name: str,
    accelerator: Accelerator,
    node: Node,
    origin: SampleOrigin = SampleOrigin(),
    *,
    steps: Sequence[TimedStep] = (),
) -> Calibration:
    """Return the calibration that the samples give.

    Parameters
    ----------
    accelerator : what the kernels ran on; gives processor count and peak rates
    node : recorded as the node of cluster ``local``
    steps : training steps timed with the same framework on the same device: its overheads in each of their precisions

    CoverageError: no kind of kernel or input and no collective has enough usable rows.
    """
    bare = _without_entries(samples, name, accelerator.name, node, origin)
    kernels = fit_kernels(samples, accelerator, origin=bare.origin, source=bare.source)
    collectives, few = fit_collectives(samples, origin=bare.origin, source=bare.source)
    own = fit_layer_calls(samples, kernels.entries, origin=bare.origin, source=bare.source)
    loading, fewer = fit_input(samples, origin=bare.origin, source=bare.source)
    entries = (*own, *kernels.entries, *collectives, *loading)
    if not entries:
        wrong = (f"row {row + 1}: {reason}" for row, reason in kernels.rejected[:3])
        reasons = [*map(str, kernels.missing), *few, *fewer, *wrong]
        raise CoverageError(
            f"samples must hold enough usable rows of one kind, got {samples.size} rows"
            + (f" ({'; '.join(reasons)})" if reasons else "")
            + "; measure more with planner calibrate"
        )
    kinds = {POINTWISE, *samples.text["kind"][samples.text["call"] != ""].tolist()}
    too_few = (one for one in kernels.missing if NETWORKS not in samples.circumstances or one.kind in kinds)
    counts = Counter(reason for _, reason in kernels.rejected)
    reason = "; ".join(f"{reason}: {count}" for reason, count in counts.most_common(MOST_REASONS))
    rejections = (f"{len(kernels.rejected)} of {samples.size} rows rejected ({reason})",) if counts else ()
    not_fitted = _not_fitted((*map(str, too_few), *few))
    general, of_precisions = by_precision((*_stated(samples, of_input=False), *not_fitted, *rejections))
    calibration = replace(
        bare,
        entries=entries,
        seen=tuple(sorted({str(group) for group in samples.text["group"] if group})),
        warnings=general,
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
    device = accelerator.name if accelerator else ANY_ACCELERATOR
    bare = _without_entries(samples, name, device, node, SampleOrigin(cluster=cluster or ""))
    entries, missing = fit_collectives(samples, origin=bare.origin, source=bare.source)
    entries += fit_overlap(bare.environment, bare.source)
    if not entries:
        reasons = "; ".join([*missing, *dict.fromkeys(reason for _, reason in usable(samples)[1])])
        raise CoverageError(f"samples must time an operation between ranks, got {samples.size} rows ({reasons})")
    return replace(bare, entries=entries, warnings=(*_stated(samples, of_input=False), *_not_fitted(missing)))


def with_overheads(calibration: Calibration, steps: Sequence[TimedStep]) -> Calibration:
    """Return a calibration with the overheads that training steps on its node show, and with the doubts about them."""
    waits = calibration.node is not None and calibration.node.accelerator.kind == "cpu"
    kernels = [entry for entry in calibration.entries if entry.scope == "kernels"]
    host_s = 0.0 if waits else number_in(calibration.environment.get(HOST_TIME, "").partition(";")[0])
    overheads, missing = [], []
    for precision in dict.fromkeys(step.precision for step in steps):
        own = [step for step in steps if step.precision == precision]
        try:
            overheads.append(fit_overheads(kernels, own, precision=precision, waits=waits, host_s=host_s))
        except CoverageError as error:
            missing.append(f"overheads in {precision}: {error}")
    doubts = filter(None, map(overheads_doubt, overheads))
    return replace(
        calibration,
        entries=(*calibration.entries, *overheads),
        warnings=(*calibration.warnings, *_not_fitted(missing), *doubts),
    )


def _without_entries(
    samples: Samples, name: str, accelerator: str, node: Node | None, stated: SampleOrigin
) -> Calibration:
    """Return a calibration with nothing fitted yet, whose environment the other circumstances are, but for warnings."""
    environment = {key: value for key, value in samples.circumstances.items() if not key.startswith(WARNING)}
    origin, source, date, cluster = (environment.pop(key, "") for key in ("origin", "source", "date", "cluster"))
    return Calibration(
        name, accelerator, (), stated.cluster or cluster or None, node, origin or "measured", stated.source or source,
        stated.date or date, environment,
    )  # fmt: skip


def _stated(samples: Samples, *, of_input: bool) -> Iterator[str]:
    """Yield the warnings that the circumstances state, of the input side or of everything else."""
    for key, sentence in sorted(samples.circumstances.items()):
        if sentence and key.startswith(WARNING) and key.startswith(INPUT_WARNING) == of_input:
            yield sentence


def _not_fitted(missing: Iterable[str]) -> Iterator[str]:
    return (f"not fitted: {sentence}" for sentence in missing)
