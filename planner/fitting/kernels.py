"""Kernel entries from samples: fits, calls of networks that are looked up, and how long fits are going to take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from planner.costs.cpu import DEPTHWISE_APART, KERNELS_APART, is_depthwise
from planner.costs.features import Settings
from planner.costs.gaussian_process import ROUGH_ORDER
from planner.costs.kernels import (
    AXES,
    BETWEEN_SIZES,
    LARGEST_GRID,
    OBLONG_APART,
    ROW_BLOCKS,
    ROW_PADDING,
    ROW_REREADS,
    ROW_STEPS,
    WITHOUT_LAUNCH,
)
from planner.costs.measured_calls import DOUBLINGS_BEYOND, MARGIN_DOUBLINGS, MEASURED_S, relative_curve, times_s
from planner.costs.terms import evaluate
from planner.costs.work import BATCHED_APART, kernel_width, misaligned_settings, moved_bytes, slowdown, transposition
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator
from planner.domain.kernels import FORWARD, ROW_KINDS, SERVED_BY, TRAFFIC_KINDS, is_that_of_fp32
from planner.domain.network import LOOKED_UP, work_named
from planner.domain.samples import DISTURBED_NOTE, INPUT_COLUMNS, Samples
from planner.fitting.gaussian_process import Key, Process, fit_entry, fit_gaussian_process, times_left_out
from planner.fitting.rows import POINTWISE, Rejected, merged, take, usable, work_of
from planner.numbers import constant, constants
from planner.sources.layer_calls import Fits

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


class FittedKernels(NamedTuple):
    """Entries, and what the samples could not give; ``rejected``: rows left out, with the reason."""

    entries: tuple[Entry, ...]
    missing: tuple[TooFew, ...] = ()
    rejected: tuple[Rejected, ...] = ()


def fit_kernels(
    samples: Samples,
    accelerator: Accelerator | None = None,
    *,
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
    samples : rows that name an operation are left to :mod:`planner.fitting.calibration`, those of the input side to
        :mod:`planner.fitting.calibration`. Rows that name a call of a network take part where
        :func:`learns_from_calls`. Circumstance ``contained`` names kinds whose time is part of other rows
    accelerator : gives processor count, and for a GPU the peak rates that no predicted time may pass
    origin, source : stored in every entry; a row's own ``source`` goes before ``source``
    """
    mask, rejections = usable(samples)
    mask &= ~np.isin(samples.text["kind"], list(INPUT_COLUMNS))
    teaches = samples.text["call"] == ""
    if learns_from_calls(accelerator):  # but from none that repeats one timed in fp32, for another precision
        columns = zip(samples.text["kind"].tolist(), samples.text["precision"].tolist(), strict=True)
        teaches |= ~np.array([is_that_of_fp32(*one) for one in columns], dtype=np.bool_)
    mask &= teaches & (samples.text["operation"] == "")
    kernels = samples.select(mask & ~_misaligned(samples, mask, accelerator))
    entries, missing = [], []
    for key, rows in _split(kernels):
        least = LEAST_ROWS.get(key[1], LEAST_TRAFFIC_ROWS)
        # Copies of one size among other kernels show the memory's rate; what only networks have is looked up.
        is_rate = key[1] == "copy" and rows.size < kernels.size and np.unique(rows.number["elements"]).size == 1
        if rows.size < least and (is_rate or np.all(rows.text["call"] != "")):
            continue
        if rows.size < least:
            missing.append(TooFew(*key[1:], rows.size, least))
            continue
        own = "; ".join(sorted({str(name) for name in rows.text["source"] if name})) or source
        floor = _peaks(key[3], accelerator)
        shapes = (_attention_shapes if key[1] == "attention" else _shapes)(key, rows, accelerator)
        fits = [fit_entry(rows, key, term, {**of, **floor}) for term, of in shapes]
        grid = fit_grid(rows, key, floor) if key[1] == "gemm" else None
        best = _corrected(preferred([*fits, grid] if grid else fits), rows, accelerator)
        entries.append(replace(best, origin=origin, source=own, notes=_notes(rows, best)))
    entries += (
        Entry(
            "kernels", kind, "", "any", "", "traffic.bytes", {}, {"calls": 0.0, "bytes": 0.0},
            fixed=("calls", "bytes"), origin=origin, source=source,
            notes="contained in the calls that it was measured with",
        )
        for kind in samples.circumstances.get("contained", "").split()
    )  # fmt: skip
    return FittedKernels(tuple(entries), tuple(missing), rejections)


def learns_from_calls(accelerator: Accelerator | None) -> bool:
    """Tell whether calls of networks take part in fits: of a GPU, whose design is thin in each of many precisions."""
    return accelerator is not None and accelerator.kind == "gpu"


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


def _corrected(base: Entry, rows: Samples, accelerator: Accelerator | None) -> Entry:
    """Return the best Gaussian process around the linear term where it clearly betters the calls it corrects."""
    # Of GPUs alone: the terms of a CPU follow its calls closely, and its calibration has less time.
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
    return process if _is_clearly_less(least, error(times_left_out(base, rows)[0])) else base


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
    """Yield competing terms and settings: of the device, of classes of shapes, of one rate; stored points come last."""
    _, kind, direction, _, _ = key
    batched = {BATCHED_APART: 1.0} if kind == "gemm" and _tells_apart(kind, rows.number["batch"] > 1) else {}
    if accelerator is not None and accelerator.kind == "cpu":
        apart = batched
        if kind == "convolution" and _tells_apart(kind, is_depthwise(work_of(rows, kind))):
            apart = {DEPTHWISE_APART: KERNELS_APART}
        yield CPU_TERMS.get(kind, "cpu.traffic"), {"direction": direction, **apart}
    if kind == "convolution":
        yield "convolution.classes", {"direction": direction, OBLONG_APART: 1.0}
        rates = accelerator.peak_flop_per_s if accelerator else {}
        if rates.get(key[3], 0.0) > TENSOR_CORE_SPEEDUP * rates.get("fp32", np.inf):  # a rate of tensor cores
            yield from (("convolution.channels", {"tiles": tiles}) for tiles in CHANNEL_TILES)
        yield "work.linear", {}
    elif kind == "gemm":
        for tiles in TILES_AND_SHAPES:
            for count in sorted({0.0, _processors(accelerator)}):
                yield "gemm.tiles", {"tiles": tiles, "multiprocessors": count, **batched}
        yield "work.linear", {}
    else:
        if _tells_reads_apart(kind, rows):
            yield "traffic.read_write", {}
        yield "traffic.bytes", {}
        if kind in ROW_KINDS and np.all(rows.number["rows"] > 0):
            yield from (("traffic.rows", of) for of in ROW_SHAPES[: None if _processors(accelerator) else -1])


def _attention_shapes(key: Key, rows: Samples, accelerator: Accelerator | None) -> Iterator[tuple[str, Settings]]:
    """Yield the terms and settings that compete for fused attention, in order of preference."""
    if accelerator is not None and accelerator.kind == "cpu":
        yield "cpu.attention", {"direction": key[2]}
    total_bytes = moved_bytes(work_of(rows, key[1]), key[2])  # where all are equal, a launch may be of bytes too
    tells_launch = float(total_bytes.max()) > LEAST_SPREAD * float(total_bytes.min())
    launch = {} if tells_launch else {WITHOUT_LAUNCH: 1.0}
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


def _tells_apart(kind: str, mask: BoolArray) -> bool:
    """Tell whether the rows of a mask, and the others, are enough for coefficients of their own."""
    own = int(np.sum(mask))
    return min(own, mask.size - own) >= LEAST_ROWS[kind]


def _peaks(precision: str, accelerator: Accelerator | None) -> dict[str, float]:
    """Return the peaks below which no time may fall: of GPUs, with small caches; rates of CPUs are estimates."""
    if accelerator is None or accelerator.kind != "gpu":
        return {}
    peaks = {"peak_bytes_per_s": accelerator.counted_bytes_per_s(precision)}
    rate = accelerator.peak_flop_per_s.get(precision)
    return peaks | ({"peak_flop_per_s": rate} if rate else {})


def _notes(rows: Samples, entry: Entry) -> str:
    """Return the notes that the rows carry, each once, behind a word about an entry that predicts badly."""
    poor = f"poor: {_error(entry):.0%} off on rows left out" if POOR_ERROR < _error(entry) < np.inf else ""
    if poor and entry.kind == POINTWISE:
        poor += "; serves only kinds without an entry of their own"
    noisy = int(np.sum(rows.text["notes"] == DISTURBED_NOTE))
    counts = {DISTURBED_NOTE: f"{noisy} of {rows.size} rows {DISTURBED_NOTE}"} if noisy < rows.size else {}
    notes = dict.fromkeys(map(str, rows.text["notes"].tolist()))
    return "; ".join(filter(None, (poor, *(counts.get(note, note) for note in notes))))


LIBRARY = "own layers"
_BETWEEN = constants("layer_calls.between")
ERROR_BETWEEN, PRODUCT_ERROR_BETWEEN = _BETWEEN["convolutions"], _BETWEEN["products"]
"""Mean error between two measured sub-batches where no third was measured (docs/numbers.md)."""


class _Timed(NamedTuple):
    """A call at a sub-batch: its time, the spread of repeats, and what a fit gives it, not a number without one [s]."""

    time_s: float
    spread_s: float
    fitted_s: float


def fit_layer_calls(
    samples: Samples, fits: Sequence[Entry] = (), *, origin: str = "measured", source: str = ""
) -> tuple[Entry, ...]:
    """Return an entry for every kind, direction, precision and library of rows that name a call.

    A call whose work depends on the sub-batch takes part only where it was timed at two: one would say nothing of the
    others, and a fit serves the call better. So a run that ends between two does no harm.
    Its error holds the spread of repeats (median over the rows) and what predictions from the other sub-batches miss
    those left out by, or a stated one where there are but two, as independent.

    Parameters
    ----------
    fits : fitted to kernels of the same device: they give the scaling curves of calls
    origin, source : stored in every entry
    """
    mask, _ = usable(samples)
    rows = samples.select(mask & (samples.text["call"] != "") & ~np.isnan(samples.number["sub_batch"]))
    columns = [rows.text[name].tolist() for name in ("kind", "direction", "precision", "library", "call")]
    tables: dict[tuple[str, str, str, str], dict[str, dict[float, list[_Timed]]]] = {}
    numbers = (rows.number[name].tolist() for name in ("sub_batch", "time_s", "spread_s"))
    fitted_s, fit_errors = _fitted(rows, fits)
    of_rows = zip(zip(*columns, strict=True), *numbers, fitted_s.tolist(), strict=True)
    for (*key, call), sub_batch, *figures in of_rows:
        table = tables.setdefault((key[0], key[1], key[2], key[3]), {})
        table.setdefault(call, {}).setdefault(sub_batch, []).append(_Timed(*figures))
    whole = {
        key: {call: of for call, of in table.items() if len(of) > 1 or not any(b for _, b in work_named(call).values())}
        for key, table in sorted(tables.items())
    }
    return tuple(
        _entry(key, table, fit_errors.get(key[:3], np.nan), (origin, source)) for key, table in whole.items() if table
    )


def fits_among(entries: Sequence[Entry], precision: str) -> Fits:
    """Return what finds the entry that serves kernels of a kind and direction in a precision, the very kind first."""
    fits = [entry for entry in entries if entry.term != LOOKED_UP and entry.precision in (precision, "any")]
    by_key = {(entry.kind, entry.direction): entry for entry in fits}

    def found(kind: str, direction: str) -> Entry | None:
        instead = (SERVED_BY[kind],) if kind in SERVED_BY else ()
        kinds = (kind, *instead, POINTWISE) if kind in TRAFFIC_KINDS else (kind,)
        keys = ((one, way) for one in kinds for way in (direction, ""))
        return next((by_key[key] for key in keys if key in by_key), None)

    return found


def _fitted(rows: Samples, fits: Sequence[Entry]) -> tuple[FloatArray, dict[tuple[str, str, str], float]]:
    """Return what fits that were scored say of the calls of rows [s], shape (k,), else nan, and their errors by key."""
    fitted_s, errors = np.full(rows.size, np.nan), {}
    columns = [rows.text[name] for name in ("kind", "direction", "precision")]
    for key in sorted(set(zip(*(column.tolist() for column in columns), strict=True))):
        kind, direction, precision = key
        fit = fits_among(fits, precision)(kind, direction)
        error = None if fit is None else fit.miss
        if fit is not None and error is not None:
            own = np.logical_and.reduce([column == part for column, part in zip(columns, key, strict=True)])
            work = {**work_of(rows.select(own), kind), **transposition(kind, direction)}
            fitted_s[own], errors[key] = evaluate(fit, work), error
    return fitted_s, errors


def _entry(
    key: tuple[str, str, str, str],
    table: Mapping[str, Mapping[float, list[_Timed]]],
    fit_error: float,
    provenance: tuple[str, str],
) -> Entry:
    kind, direction, precision, library = key
    origin, source = provenance
    settings: dict[str, tuple[float, ...]] = {}
    spreads: list[float] = []
    misses: list[float] = []
    calls_of_misses: list[str] = []
    for call, timings in sorted(table.items()):
        points = sorted((n, *np.median(np.array(of_n)[:, [0, 2]], axis=0).tolist()) for n, of_n in timings.items())
        settings[call] = tuple(value for point in points for value in point[:2])
        spreads += [one.spread_s / one.time_s for of_n in timings.values() for one in of_n if np.isfinite(one.spread_s)]
        misses += _missed(np.array(points).T, fit_error, beside=kind != "convolution")
        calls_of_misses += [call] * (len(misses) - len(calls_of_misses))
    assumption = (
        0.0 if all(len(t) == 1 for t in table.values()) else PRODUCT_ERROR_BETWEEN if kind == "gemm" else ERROR_BETWEEN
    )
    between = float(np.mean(misses)) if misses else assumption
    spread = float(np.median(spreads)) if spreads else 0.0
    note = (
        f"{assumption:.0%} between sub-batches, as of such calls elsewhere, since no third one was timed"
        if assumption
        else ""
    )
    return Entry(
        "kernels", kind, direction, precision, f"{library} {LIBRARY}".strip(), LOOKED_UP, settings,
        {MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0},
        fixed=(MEASURED_S, DOUBLINGS_BEYOND),
        ranges={DOUBLINGS_BEYOND: (0.0, MARGIN_DOUBLINGS)},
        samples=sum(map(len, table.values())),
        error=spread,
        held_out_error=float(np.hypot(spread, between)),
        held_out_by="sub-batch" if misses else "",
        worst_error=max(misses, default=None),
        origin=origin,
        source=source,
        worst_point=calls_of_misses[int(np.argmax(misses))] if misses else "",
        notes="" if misses else note,
    )  # fmt: skip


def _missed(points: FloatArray, fit_error: float, *, beside: bool) -> Iterator[float]:
    """Yield the relative errors at inner sub-batches, ``beside`` others too, of predictions from all others."""
    # Convolutions are timed one sample apart where a library computes them in another way from there on, so that what
    # lies between has the times of its own way at both sides.
    knots, measured_s, fitted_s = points
    for at in range(1, knots.size - 1):
        if not beside and np.diff(knots)[at - 1 : at + 1].min() <= 1:
            continue
        rest = np.arange(knots.size) != at
        curve = relative_curve(knots[at], fitted_s[at], knots[rest], fitted_s[rest])
        time_s = times_s(knots[at], knots[rest], measured_s[rest], curve, np.array(fit_error))
        yield abs(float(time_s) / measured_s[at] - 1)


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
