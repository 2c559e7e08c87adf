"""Kernel times of a GPU in one precision predicted from those in another, and by its data sheet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner import catalog
from planner.costs.specified import in_precision, rate_ratio, specified_entry, without_process
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray
from planner.domain.calibration import UNITS, PrecisionScore
from planner.domain.kernels import PRODUCT_KINDS
from planner.domain.samples import Samples
from planner.fitting.kernels import fit_kernels
from planner.fitting.rows import merged, work_of
from planner.formats.samples import read_samples
from validation.kernel_scores import Key, populations
from validation.transfer_scores import FOLDS, LEAST_ROWS, Fitted, refitted

__all__ = ["Derived", "derived_errors", "further_rows", "precision_scores", "precisions_section"]

XLA = Path(__file__).parent / "samples" / "xla-matmul" / "xla-matmul.csv"
OTHER = "other"
"""In place of UNITS: what is predicted is computed by other units than what it is predicted from."""
UNCOMPARED = ({"fp16", "bf16"},)
"""Precisions that tables do not tell apart."""
TEXT = """## A precision from another

Products and convolutions of a GPU in one precision predicted from its fits in another, groups held out as above:
coefficients of FLOP by the ratio of the peak rates (the same rate on `lanes`, where GPUs without tensor cores multiply
halves: training adds them in fp32), those of bytes with the bytes of an element, launches as they are
(`planner/sources/devices.py`). *Sheet*: the specification on the same rows, peak rate times an assumed efficiency.
Answers derive a precision only from one of the same units, that of the nearest rate, and go by the sheet across units,
where that misses by less. An entry that was derived takes the mean of its units, kind and precision as its held-out
error, or that of the worst that comes near: no public table has convolutions in two precisions of tensor cores, nor
bf16 and fp16 apart (vidur's products stand for both, and are not compared). Besides the tables above:

- {}
"""


@dataclass(frozen=True)
class Derived:
    """Relative errors predicted / measured - 1 of the rows of ``key``, shape (k,), by fits in precision ``key.other``.

    ``units``: of both precisions, one of UNITS, or OTHER; ``sheet``: errors of the specification.
    """

    key: Key
    units: str
    errors: FloatArray
    sheet: FloatArray


def further_rows() -> list[Fitted]:
    """Return the fits of products in several precisions that no calibration is made from, a fold left out each."""
    samples, found = read_samples(XLA)[0], []
    for gpu in sorted(set(samples.text["device"].tolist())):
        device = catalog.find_accelerator(gpu)
        for key, part in populations(gpu, samples.select(samples.text["device"] == gpu)):
            rows = merged(part, "gemm")
            if rows.size >= LEAST_ROWS:
                entry = without_process(fit_kernels(rows, device).entries[0])
                found.append(Fitted(key, device, rows, *refitted(entry, rows, _folds(samples))))
    return found


def _folds(samples: Samples) -> Mapping[str, int]:
    return {name: at % FOLDS for at, name in enumerate(sorted(set(samples.text["group"].tolist())))}


def derived_errors(known: Iterable[Fitted]) -> Iterator[Derived]:
    """Yield the errors of every precision by others of the same GPU, kind and direction: of the nearest rate.

    Of those of the same units, which answers derive from, and of those across units.
    """
    alike: dict[Key, list[Fitted]] = defaultdict(list)
    for one in known:
        if one.key.kind.partition(",")[0] in PRODUCT_KINDS:
            alike[one.key._replace(precision="")].append(one)
    for precisions in alike.values():
        for target in precisions:
            others = [one for one in precisions if {target.key.precision, one.key.precision} not in UNCOMPARED]
            for crosses in (False, True):
                sources = [one for one in others if one is not target and (_units(target, one) == OTHER) == crosses]
                nearest = min((_doublings(target, one) for one in sources), default=0.0)
                yield from (_derived(target, one) for one in sources if _doublings(target, one) == nearest)


def _units(target: Fitted, source: Fitted) -> str:
    device, wanted = target.device, target.key.precision
    same = rate_ratio(device, source.key.precision, wanted)
    return OTHER if same is None else UNITS[not device.has_matrix_units(wanted)]


def _doublings(target: Fitted, source: Fitted) -> float:
    peaks = target.device.peak_flop_per_s
    return abs(float(np.log2(peaks[source.key.precision] / peaks[target.key.precision])))


def _derived(target: Fitted, source: Fitted) -> Derived:
    device, wanted, given = target.device, target.key.precision, source.key.precision
    same = rate_ratio(device, given, wanted)
    rate = device.peak_flop_per_s[given] / device.peak_flop_per_s[wanted] if same is None else same
    predicted = target.predicted_s([in_precision(entry, device, wanted, rate) for entry in source.entries])
    kind = target.entries[0].kind
    sheet = specified_entry(device, kind, target.key.direction, wanted)
    stated = np.full(target.rows.size, np.nan) if sheet is None else evaluate(sheet, work_of(target.rows, kind))
    errors = (times / target.rows.time_s - 1 for times in (predicted, stated))
    return Derived(target.key._replace(other=given), _units(target, source), *errors)


def precision_scores(found: Iterable[Derived]) -> tuple[PrecisionScore, ...]:
    """Return the scores by units, kind and precision, without those across units; batches count among products."""
    cells: dict[tuple[str, str, str], list[Derived]] = defaultdict(list)
    for one in found:
        if one.units in UNITS:
            cells[one.units, one.key.kind.partition(",")[0], one.key.precision].append(one)
    return tuple(
        PrecisionScore(*cell, len(ones), sum(one.errors.size for one in ones), *_figures(ones))
        for cell, ones in sorted(cells.items())
    )


def _figures(ones: list[Derived]) -> Iterator[float]:
    """Yield mean, median and 90th percentile of what is missed, and the mean of the sheet, over pairs."""
    figures: tuple[Callable[[FloatArray], float], ...] = (np.mean, np.median, lambda size: np.quantile(size, 0.9))
    for figure in figures:
        yield round(float(np.mean([figure(np.abs(one.errors)) for one in ones])), 4)
    yield round(float(np.mean([np.abs(one.sheet).mean() for one in ones])), 4)


def precisions_section(
    found: Iterable[Derived], table: Callable[[tuple[str, ...], Iterable[tuple[str, ...]]], str]
) -> str:
    """Return the section of the page: by units, kind and precision, then every pair."""
    ones = sorted(found, key=lambda one: ((*UNITS, OTHER).index(one.units), one.key.kind))
    cells: dict[tuple[str, str, str], list[Derived]] = defaultdict(list)
    for one in ones:
        cells[one.units, one.key.kind.partition(",")[0], one.key.precision].append(one)
    head = ("units", "kind", "precision")
    rows = (
        (*cell, str(len(some)), str(sum(one.errors.size for one in some)), *(_percent(v) for v in _figures(some)))
        for cell, some in cells.items()
    )
    each = (
        (one.units, one.key.gpu, one.key.kind, one.key.direction or "any", one.key.other, one.key.precision,
         str(one.errors.size), *(_percent(float(value)) for value in (
            np.abs(one.errors).mean(), one.errors.mean(), np.abs(one.sheet).mean(), one.sheet.mean())))
        for one in ones
    )  # fmt: skip
    source = read_samples(XLA)[0].circumstances["source"]
    return "\n".join(
        (
            TEXT.format(source),
            table((*head, "pairs", "rows", "mean", "median", "90 %", "sheet"), rows),
            table(
                ("units", "GPU", "kind", "direction", "from", "precision", "rows", "mean", "bias", "sheet", "its bias"),
                each,
            ),
        )
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
