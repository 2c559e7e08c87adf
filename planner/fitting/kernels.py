"""Kernel entries from samples, and how long their fit is going to take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planner.costs.cpu import DEPTHWISE_APART, KERNELS_APART, is_depthwise
from planner.costs.features import Settings
from planner.costs.gaussian_process import ROUGH_ORDER
from planner.costs.kernels import OBLONG_APART
from planner.costs.roofline import (
    AXES,
    BETWEEN_SIZES,
    LARGEST_GRID,
    ROW_BLOCKS,
    ROW_PADDING,
    ROW_REREADS,
    ROW_STEPS,
    WITHOUT_LAUNCH,
)
from planner.costs.terms import evaluate
from planner.costs.work import BATCHED_APART, kernel_width, misaligned_settings, moved_bytes, slowdown, transposition
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator
from planner.domain.kernels import FORWARD, ROW_KINDS, TRAFFIC_KINDS, is_that_of_fp32
from planner.domain.samples import DISTURBED_NOTE, INPUT_COLUMNS, Samples
from planner.fitting.gaussian_process import (
    Key,
    Process,
    fit_entry,
    fit_gaussian_process,
    linear_times_left_out,
)
from planner.fitting.rows import POINTWISE, Rejected, merged, take, usable, work_of
from planner.numbers import constant

__all__ = ["FittedKernels", "expected_fit_s", "fit_kernels", "learns_from_calls", "preferred"]

LEAST_POINTS = 8


def fit_grid(samples: Samples, key: Key, settings: dict[str, float]) -> Entry | None:
    """Return an interpolating entry, or None where the rows are no full grid of single products.

    It is held out by planes: every inner value of an axis is left out once, and predicted from the others.
    """
    axes = _axes(samples)
    if axes is None:
        return None
    entry = fit_entry(samples, key, "gemm.interpolation", {**settings, **axes})
    errors = []
    for axis, values in axes.items():
        for value in values[1:-1]:
            out = samples.number[axis] == value
            rest = samples.select(~out)
            rest_axes = _axes(rest)
            if rest_axes is None:
                continue
            thinner = fit_entry(rest, key, "gemm.interpolation", {**settings, **rest_axes})
            left_out = samples.select(out)
            errors.append(np.abs(evaluate(thinner, work_of(left_out, "gemm")) / left_out.time_s - 1))
    if not errors:
        return entry
    all_ = np.concatenate(errors)
    return replace(entry, held_out_error=float(all_.mean()), worst_error=float(all_.max()), held_out_by="plane")


def _axes(samples: Samples) -> dict[str, tuple[float, ...]] | None:
    """Return the axes of a full grid, or None."""
    values: list[FloatArray] = [np.unique(samples.number[axis]) for axis in AXES]
    points = int(np.prod([axis.size for axis in values]))
    single = bool(np.all(np.nan_to_num(samples.number["batch"], nan=1.0) == 1))
    if not single or samples.size != points or not LEAST_POINTS <= points <= LARGEST_GRID:
        return None
    return {axis: tuple(column.tolist()) for axis, column in zip(AXES, values, strict=True)}


LEAST_ROWS = {"gemm": 6, "convolution": 8, "attention": 6}
LEAST_TRAFFIC_ROWS = 3
KINDS_APART = ("im2col", "col2im", "update", "softmax", "gelu")
"""Kinds of bytes that do not behave like the others; they take no part in the common ``pointwise`` entry."""
CPU_TERMS = {"convolution": "cpu.convolution", "gemm": "cpu.product"}
LEAST_GAIN, LEAST_RELATIVE_GAIN = 0.02, 0.1
"""A term of lower preference must be better by both: 2 points, and a tenth of the error; less is noise."""
AROUND_ROOFLINE = (Process("roofline"), Process("roofline", 0.5))
PROCESSES = {
    "gemm.tiles": (Process("mean"), Process("mean", order=ROUGH_ORDER)),
    "convolution.classes": (Process("mean"), *AROUND_ROOFLINE),
    "convolution.channels": (Process("mean"), *AROUND_ROOFLINE),
    "work.linear": AROUND_ROOFLINE,
}
"""Gaussian processes that compete with a linear term."""
LEAST_SPREAD = 1.1
"""Largest over smallest number of bytes below which rows are taken to move as many."""
POOR_ERROR = 0.4
"""Held-out error above which an entry is called poor."""
NEAR_ROW_LENGTHS = (1024.0, 2048.0, 4096.0, 8192.0)
"""Elements of a row that may stay near the processor between two passes."""
ROW_SHAPES: tuple[Settings, ...] = (
    {},
    {ROW_STEPS: (), ROW_REREADS: NEAR_ROW_LENGTHS},
    {ROW_REREADS: NEAR_ROW_LENGTHS},
    {ROW_STEPS: (1024.0,), ROW_REREADS: NEAR_ROW_LENGTHS, ROW_PADDING: 1.0},
    {ROW_STEPS: (), ROW_PADDING: 1.0, ROW_BLOCKS: 1.0},  # of GPUs
)
CHANNEL_TILES = ((8.0, 8.0), (32.0, 64.0), (64.0, 64.0))
"""Channels in and out that a library may round up to for tensor cores."""
TENSOR_CORE_SPEEDUP = 2.5
"""Peak rate over that of fp32 above which it is that of tensor cores: vector units do fp16 twice as fast at most."""
TILES_AND_SHAPES = ((128.0, 64.0), (128.0, 128.0, 256.0, 128.0, 64.0, 64.0))


@dataclass(frozen=True, slots=True)
class TooFew:
    """Kernels with too few rows for a fit."""

    kind: str
    direction: str
    precision: str
    library: str
    rows: int
    needed: int

    def __str__(self) -> str:
        name = " ".join(filter(None, (self.kind, self.direction, self.precision, self.library)))
        return f"{name}: {self.rows} rows, {self.needed} needed"


@dataclass(frozen=True, slots=True)
class FittedKernels:
    """Entries, and what the samples could not give.

    Attributes
    ----------
    rejected : rows left out, with the reason
    """

    entries: tuple[Entry, ...]
    missing: tuple[TooFew, ...] = ()
    rejected: tuple[Rejected, ...] = field(default=())


def fit_kernels(
    samples: Samples,
    accelerator: Accelerator | None = None,
    *,
    estimator: str = "relative-nnls",
    origin: str = "measured",
    source: str = "",
) -> FittedKernels:
    """Fit every kind of kernel that the samples hold enough rows of.

    Kinds whose work is bytes get precision ``any`` and share an entry ``pointwise`` besides, which serves the kinds and
    directions without an entry of their own; an entry of direction "" serves every direction without one. Of competing
    terms the one that says most about the kernel wins, unless the held-out error of a later one is clearly less; the
    error that is stored is the one that decided, so it is a little too good where many settings compete.

    Parameters
    ----------
    samples : rows that name an operation are left to :mod:`planner.fitting.collectives`, those of the input side to
        :mod:`planner.fitting.calibration`. Rows that name a call of a network take part where
        :func:`learns_from_calls`. Circumstance ``contained`` names kinds whose time is part of other rows
    accelerator : gives processor count, and for a GPU the peak rates that no predicted time may pass
    estimator : {"relative-nnls", "least-squares"}
    origin, source : stored in every entry; a row's own ``source`` goes before ``source``
    """
    mask, rejections = usable(samples)
    mask &= ~np.isin(samples.text["kind"], list(INPUT_COLUMNS))
    teaches = ~_stands_twice(samples) if learns_from_calls(accelerator) else samples.text["call"] == ""
    mask &= teaches & (samples.text["operation"] == "")
    kernels = samples.select(mask & ~_misaligned(samples, mask, accelerator))
    entries, missing = [], []
    for key, rows in _split(kernels):
        least = LEAST_ROWS.get(key[1], LEAST_TRAFFIC_ROWS)
        if rows.size < least and (_only_shows_a_rate(key[1], rows, kernels) or np.all(rows.text["call"] != "")):
            continue  # what only networks have is looked up
        if rows.size < least:
            missing.append(TooFew(*key[1:], rows.size, least))
            continue
        own = "; ".join(sorted({str(name) for name in rows.text["source"] if name})) or source
        best = _corrected(preferred(_candidates(key, rows, accelerator, estimator)), rows, accelerator)
        entries.append(replace(best, origin=origin, source=own, notes=_notes(rows, best)))
    entries += _contained(samples.circumstances.get("contained", "").split(), origin, source)
    return FittedKernels(tuple(entries), tuple(missing), rejections)


def learns_from_calls(accelerator: Accelerator | None) -> bool:
    """Tell whether calls of networks take part in fits: of a GPU, whose design is thin in each of many precisions."""
    return accelerator is not None and accelerator.kind == "gpu"


def _stands_twice(samples: Samples) -> BoolArray:
    """Tell which rows repeat, for a network in another precision, a call that was timed in fp32, shape (k,)."""
    columns = zip(samples.text["kind"].tolist(), samples.text["precision"].tolist(), strict=True)
    is_known = np.array([is_that_of_fp32(*one) for one in columns], dtype=np.bool_)
    twice: BoolArray = is_known & (samples.text["call"] != "")
    return twice


def _misaligned(samples: Samples, mask: BoolArray, accelerator: Accelerator | None) -> BoolArray:
    """Tell which products take longer as their sides are not aligned, shape (k,): a number of its own serves them."""
    found = np.zeros(samples.size, dtype=np.bool_)
    for precision in set(samples.text["precision"].tolist()):
        settings = misaligned_settings(accelerator, precision) if accelerator else {}
        own = np.flatnonzero(mask & (samples.text["kind"] == "gemm") & (samples.text["precision"] == precision))
        if settings and own.size:
            rows = take(samples, own)
            sides = [transposition("gemm", direction) for direction in rows.text["direction"].tolist()]
            transposed = {name: np.array([one[name] for one in sides]) for name in ("trans_a", "trans_b")}
            found[own] = slowdown({**work_of(rows, "gemm"), **transposed}, settings) > 1
    return found


def _only_shows_a_rate(kind: str, rows: Samples, kernels: Samples) -> bool:
    """Tell whether rows are copies of one size among other kernels: they show the memory's rate, and ask for no fit."""
    return kind == "copy" and rows.size < kernels.size and np.unique(rows.number["elements"]).size == 1


def _contained(kinds: Sequence[str], origin: str, source: str) -> Iterator[Entry]:
    """Yield entries at no cost for the kinds whose time is part of other rows: a library that fuses biases, say."""
    for kind in kinds:
        yield Entry(
            "kernels", kind, "", "any", "", "traffic.bytes", {}, {"calls": 0.0, "bytes": 0.0},
            fixed=("calls", "bytes"), origin=origin, source=source,
            notes="contained in the calls that it was measured with",
        )  # fmt: skip


def _split(samples: Samples) -> Iterator[tuple[Key, Samples]]:
    """Yield the rows of every entry, duplicates merged, in order of the keys."""
    kind, library = samples.text["kind"], samples.text["library"]
    traffic = np.isin(kind, [*TRAFFIC_KINDS, POINTWISE])
    precision = np.where(traffic, "any", samples.text["precision"])
    columns = (kind, samples.text["direction"], precision, library)
    keys = set(zip(*(column.tolist() for column in columns), strict=True))
    for key in sorted(keys):
        mask = np.logical_and.reduce([column == part for column, part in zip(columns, key, strict=True)])
        yield ("kernels", *key), merged(samples.select(mask), key[0])
    is_common = traffic & ~np.isin(kind, [*KINDS_APART, POINTWISE])
    for name in sorted(set(library[is_common].tolist())) if POINTWISE not in kind else ():
        yield ("kernels", POINTWISE, "", "any", name), merged(samples.select(is_common & (library == name)), POINTWISE)


def _candidates(key: Key, rows: Samples, accelerator: Accelerator | None, estimator: str) -> list[Entry]:
    floor = _peaks(key[3], accelerator)
    fits = [
        fit_entry(rows, key, term, {**settings, **floor}, estimator=estimator)
        for term, settings in (_attention_shapes if key[1] == "attention" else _shapes)(key, rows, accelerator)
    ]
    grid = fit_grid(rows, key, floor) if key[1] == "gemm" else None
    return [*fits, grid] if grid else fits


def _corrected(base: Entry, rows: Samples, accelerator: Accelerator | None) -> Entry:
    """Return the best Gaussian process around the chosen linear term where it clearly betters the calls it corrects.

    Of GPUs alone: the terms of a CPU follow its calls closely, and its calibration has less time.
    """
    if base.term not in PROCESSES or not _peaks(base.precision, accelerator).get("peak_flop_per_s"):
        return base
    single = np.nan_to_num(rows.number["batch"], nan=1.0) <= 1
    if not single.any():
        return base

    def error(left_out: FloatArray) -> float:
        return float(np.mean(np.abs(left_out[single] / rows.time_s[single] - 1)))

    fits = (fit_gaussian_process(rows, base, process, _processors(accelerator)) for process in PROCESSES[base.term])
    scores = [(error(left_out), entry) for entry, left_out in filter(None, fits)]
    least, process = min(scores, key=lambda one: one[0], default=(np.inf, base))
    return process if _is_clearly_less(least, error(linear_times_left_out(base, rows))) else base


def _is_clearly_less(error: float, other: float) -> bool:
    return error < min(other - LEAST_GAIN, other * (1 - LEAST_RELATIVE_GAIN))


def preferred(candidates: Sequence[Entry]) -> Entry:
    """Return the first of the candidates that none behind it clearly betters on rows left out.

    Of settings of one term the best is taken.
    """
    best_of: dict[str, Entry] = {}
    for entry in candidates:
        best_so_far = best_of.setdefault(entry.term, entry)
        if _error(entry) < _error(best_so_far):
            best_of[entry.term] = entry
    best, *others = best_of.values()
    for entry in others:
        if _is_clearly_less(_error(entry), _error(best)):
            best = entry
    return best


def _error(entry: Entry) -> float:
    return np.inf if entry.held_out_error is None else entry.held_out_error


def _shapes(key: Key, rows: Samples, accelerator: Accelerator | None) -> Iterator[tuple[str, Settings]]:
    """Yield the terms and settings that compete for a key, in order of preference.

    First the terms of the very kind of device, then those that tell classes of shapes apart, then one rate for all;
    stored points, which say nothing beyond themselves, come last.
    """
    _, kind, direction, _, _ = key
    if accelerator is not None and accelerator.kind == "cpu":
        apart = {BATCHED_APART: 1.0} if kind == "gemm" and _tells_batches_apart(rows) else {}
        if kind == "convolution" and _tells_depthwise_apart(rows):
            apart = {DEPTHWISE_APART: KERNELS_APART}
        yield CPU_TERMS.get(kind, "cpu.traffic"), {"direction": direction, **apart}
    if kind == "convolution":
        yield "convolution.classes", {"direction": direction, OBLONG_APART: 1.0}
        rates = accelerator.peak_flop_per_s if accelerator else {}
        if rates.get(key[3], 0.0) > TENSOR_CORE_SPEEDUP * rates.get("fp32", np.inf):  # a rate of tensor cores
            yield from (("convolution.channels", {"tiles": tiles}) for tiles in CHANNEL_TILES)
        yield "work.linear", {}
    elif kind == "gemm":
        apart = {BATCHED_APART: 1.0} if _tells_batches_apart(rows) else {}
        for tiles in TILES_AND_SHAPES:
            for count in sorted({0.0, _processors(accelerator)}):
                yield "gemm.tiles", {"tiles": tiles, "multiprocessors": count, **apart}
        yield "work.linear", {}
    else:
        yield from _traffic_shapes(kind, rows, ROW_SHAPES[: None if _processors(accelerator) else -1])


def _traffic_shapes(kind: str, rows: Samples, of_rows: Sequence[Settings]) -> Iterator[tuple[str, Settings]]:
    if _tells_reads_apart(kind, rows):
        yield "traffic.read_write", {}
    yield "traffic.bytes", {}
    if kind in ROW_KINDS and np.all(rows.number["rows"] > 0):
        yield from (("traffic.rows", shape) for shape in of_rows)


def _attention_shapes(key: Key, rows: Samples, accelerator: Accelerator | None) -> Iterator[tuple[str, Settings]]:
    """Yield the terms and settings that compete for fused attention, in order of preference."""
    if accelerator is not None and accelerator.kind == "cpu":
        yield "cpu.attention", {"direction": key[2]}
    launch = {} if _tells_launch_apart(key, rows) else {WITHOUT_LAUNCH: 1.0}
    width = rows.number["width"]
    launch |= {BETWEEN_SIZES: 1.0} if np.any(kernel_width(width) != width) else {}
    for count in sorted({0.0, _processors(accelerator)}):
        yield "attention.blocks", {"direction": key[2], "multiprocessors": count, **launch}
    yield "work.linear", {"direction": key[2]}


def _processors(accelerator: Accelerator | None) -> float:
    """Return the number of multiprocessors, 0 where it is not known."""
    return float(accelerator.multiprocessors or 0) if accelerator else 0.0


def _tells_reads_apart(kind: str, rows: Samples) -> bool:
    """Tell whether calls move unequal numbers of tensors."""
    work = work_of(rows, kind)
    elements = np.asarray(work["elements"])
    tensors = moved_bytes(work)[elements > 0] / (np.asarray(work["itemsize"]) * elements)[elements > 0]
    return tensors.size == rows.size and np.unique(np.round(tensors, 6)).size > 1


def _tells_launch_apart(key: Key, rows: Samples) -> bool:
    """Tell whether calls move unequal numbers of bytes: else a time that all have may be of the launch, or of bytes."""
    total_bytes = moved_bytes(work_of(rows, key[1]), key[2])
    return float(total_bytes.max()) > LEAST_SPREAD * float(total_bytes.min())


def _tells_batches_apart(rows: Samples) -> bool:
    """Tell whether products one by one and batches of several both have enough rows for coefficients of their own."""
    several = int(np.sum(rows.number["batch"] > 1))
    return min(several, rows.size - several) >= LEAST_ROWS["gemm"]


def _tells_depthwise_apart(rows: Samples) -> bool:
    """Tell whether depthwise convolutions and others both have enough rows for coefficients of their own."""
    depthwise = int(np.sum(is_depthwise(work_of(rows, "convolution"))))
    return min(depthwise, rows.size - depthwise) >= LEAST_ROWS["convolution"]


def _peaks(precision: str, accelerator: Accelerator | None) -> dict[str, float]:
    """Return the peaks below which no time may fall: those of GPUs, whose caches are small against the work.

    A CPU has none: its rates are estimates.
    """
    if accelerator is None or accelerator.kind != "gpu":
        return {}
    peaks = {"peak_bytes_per_s": accelerator.counted_bytes_per_s(precision)}
    rate = accelerator.peak_flop_per_s.get(precision)
    return peaks | ({"peak_flop_per_s": rate} if rate else {})


def _notes(rows: Samples, entry: Entry) -> str:
    """Return the notes that the rows carry, each once, behind a word about an entry that predicts badly.

    Of disturbed rows it says how many there are.
    """
    poor = f"poor: {_error(entry):.0%} off on rows left out" if POOR_ERROR < _error(entry) < np.inf else ""
    if poor and entry.kind == POINTWISE:
        poor += "; serves only kinds without an entry of their own"
    noisy = int(np.sum(rows.text["notes"] == DISTURBED_NOTE))
    counts = {DISTURBED_NOTE: f"{noisy} of {rows.size} rows {DISTURBED_NOTE}"} if noisy < rows.size else {}
    notes = dict.fromkeys(map(str, rows.text["notes"].tolist()))
    return "; ".join(filter(None, (poor, *(counts.get(note, note) for note in notes))))


ROWS = 32
WHOLE_FITS = constant("duration.whole_fits")
"""What fitting the fp32 rows of a design is taken to need, in fits of ROWS products (docs/numbers.md)."""
SEED = 1


def expected_fit_s(accelerator: Accelerator, times: float = 1.0) -> float:
    """Return the time [s] that fitting a whole calibration is expected to take; loads what fitting needs.

    Parameters
    ----------
    times : rows of the design over those of it that are fp32: few shapes are measured in further precisions
    """
    random = np.random.default_rng(SEED)
    sizes = np.exp2(random.uniform(3, 11, (ROWS, 3))).round()
    rows: list[Mapping[str, Any]] = [
        {"kind": "gemm", "direction": FORWARD, "precision": "fp32", "m": m, "n": n, "k": k, "batch": 1,
         "time_s": 1e-5 + 2e-11 * m * n * k} for m, n, k in sizes.tolist()
    ]  # fmt: skip
    samples = Samples.from_rows(rows, {})
    fit_kernels(samples.select(np.arange(ROWS) < ROWS // 2), accelerator)  # not timed: it loads packages
    start = time.perf_counter()
    fit_kernels(samples, accelerator)
    return WHOLE_FITS * times * (time.perf_counter() - start)
