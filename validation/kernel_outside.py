"""How much more kernel entries miss outside the range that they were fitted to, for each doubling beyond it.

Of every kind, direction and precision of a GPU the upper, or the lower, quarter of the rows by work (FLOP, else bytes)
is left out, and the entry chosen and fitted anew to the rest. A row left out lies d doublings outside (the farthest of
the features with a range, :func:`planner.costs.terms.doublings_outside`) and misses by the relative error m; e is the
entry's own error on rows left out inside. Fused attention takes no part, as all its rows are of as many tokens. Over
the entries, each with the means of its rows with d > 0, the rate is

    Σ (m - e) / Σ (e · d)

so that misses grow as e · (1 + rate · d), and entries count by what they miss, not by the ratio of two small errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner import catalog
from planner.costs.terms import doublings_outside, evaluate
from planner.costs.work import flop, is_convolution, is_product, moved_bytes
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.kernels import ATTENTION
from planner.domain.provenance import NORMAL_90
from planner.domain.samples import Samples
from planner.fitting.kernels import fit_kernels
from planner.fitting.rows import work_of
from planner.steps.intervals import (
    DOUBT_ABOVE,
    DOUBT_BELOW,
    PRODUCT_DOUBT_BELOW,
)
from validation.kernel_scores import BATCHED, ELEMENT_WISE, LEAST_ELEMENT_WISE_S, Key, populations

__all__ = ["ABOVE", "BELOW", "Outside", "held_out", "outside_range", "outside_section", "rate"]

ABOVE, BELOW = "above", "below"
QUARTERS = {ABOVE: 0.75, BELOW: 0.25}
LEAST_INSIDE, LEAST_OUTSIDE = 12, 4
"""Fewer rows are no range, or say nothing."""
STEPS = (0.0, 1.0, 2.0, 3.0, 4.0, np.inf)
"""Ends of the doublings that are shown together."""
FAMILIES = {"convolution": "convolutions", "gemm": "products", BATCHED: "batches of products"}
BYTES = "kinds of bytes"
TEXT = f"""## Shapes outside the range of the fit

The entries of all GPUs, fitted anew without the upper, or the lower, quarter of their rows by work: mean error of the
rows left out, by how many doublings they lie outside what the entry was fitted to, and *inside* that of the same
entries on rows left out within it. *More*: by which share of its error an entry misses more for every doubling, and the
least and the most of it where one GPU is left out (validation/kernel_outside.py). Intervals take that of all kinds
together, {DOUBT_ABOVE:g} above and {DOUBT_BELOW:g} below, but for single products below: {PRODUCT_DOUBT_BELOW:g}.
"""
HELD_OUT = """Every GPU in turn told by the rates of the others, by one for all kinds together (*one*) and by that of
the same kinds (*own*): *loss*, the mean of log s + |error| / s over the rows of an entry, s the error that the rate
expects there, and how many percent of the rows an interval of 90 % holds. A rate of its own is taken where the loss
falls by 0.1 or more.
"""
WITHIN = 1.25 * NORMAL_90
"""Mean errors to either end of a central 90 %; see :mod:`planner.steps.intervals`."""


class Outside(NamedTuple):
    """Rows outside the range of one entry: doublings and relative errors, shape (k,) each, and the error inside."""

    key: Key
    side: str
    doublings: FloatArray
    errors: FloatArray
    inside: float


def outside_range(samples: Mapping[str, Samples]) -> Iterator[Outside]:
    """Yield what every kind, direction and precision of every GPU misses above and below; only where rows lie there."""
    for gpu, rows in samples.items():
        accelerator = catalog.find_accelerator(gpu)
        for key, part in ((key, part) for key, part in populations(gpu, rows) if key.kind != ATTENTION):
            work = _amount(part)
            for side, share in QUARTERS.items():
                end = np.quantile(work, share)
                inside: BoolArray = work <= end if side == ABOVE else work >= end
                if inside.sum() < LEAST_INSIDE or (~inside).sum() < LEAST_OUTSIDE:
                    continue
                for entry in fit_kernels(part.select(inside), accelerator).entries[:1]:
                    rest = part.select(~inside)
                    calls = work_of(rest, entry.kind)
                    doublings = np.broadcast_to(doublings_outside(entry, calls)[side == BELOW], rest.time_s.shape)
                    counts = doublings > 0
                    if key.kind in ELEMENT_WISE:
                        counts &= rest.time_s >= LEAST_ELEMENT_WISE_S
                    if entry.held_out_error and counts.any():
                        errors = np.abs(evaluate(entry, calls) / rest.time_s - 1)
                        yield Outside(key, side, doublings[counts], errors[counts], entry.held_out_error)


def _amount(samples: Samples) -> FloatArray:
    """Return FLOP of products and convolutions, bytes of all others, shape (k,)."""
    work = work_of(samples, str(samples.text["kind"][0]))
    return flop(work) if is_product(work) or is_convolution(work) else moved_bytes(work)


def rate(found: Iterable[Outside]) -> float:
    """Return the share of its error by which an entry misses more for every doubling; see the module."""
    means = [(one.errors.mean() - one.inside, one.inside * one.doublings.mean()) for one in found]
    more, expected = np.sum(means, axis=0)
    return float(more / expected)


def outside_section(samples: Mapping[str, Samples]) -> str:
    """Return the section of the page."""
    found = list(outside_range(samples))
    names = [f"{int(low)} to {high:g}" if np.isfinite(high) else f"over {low:g}" for low, high in pairwise(STEPS)]
    head = ("side", "kinds", "entries", "rows", "inside", *names, "more", "least", "most")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for side in QUARTERS:
        for name in (*FAMILIES.values(), BYTES, "all"):
            some = [one for one in found if one.side == side and name in ("all", _family(one))]
            if some:
                lines.append("| " + " | ".join([side, name, *_cells(some)]) + " |")
    head = ("side", "kinds", "entries", "loss, one", "loss, own", "held, one", "held, own")
    held = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    held += ["| " + " | ".join(row) + " |" for side in QUARTERS for row in held_out(found, side)]
    return "\n".join((TEXT, *lines, "", HELD_OUT, *held, ""))


def _family(one: Outside) -> str:
    return FAMILIES.get(one.key.kind, BYTES)


def held_out(found: Iterable[Outside], side: str) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the page on how rates of other GPUs tell rows of entries, of families that two GPUs have."""
    figures: dict[str, list[tuple[float, ...]]] = {name: [] for name in (*FAMILIES.values(), BYTES)}
    some = [one for one in found if one.side == side]
    for one in some:
        rest = [other for other in some if other.key.gpu != one.key.gpu]
        alike = [other for other in rest if _family(other) == _family(one)]
        if alike:
            both = [_told(one, rate(those)) for those in (rest, alike)]
            figures[_family(one)].append((*(loss for loss, _ in both), *(held for _, held in both)))
    for name, rows in figures.items():
        if rows:
            *losses, one, own = np.mean(rows, axis=0).tolist()
            yield (side, name, str(len(rows)), *(f"{loss:.2f}" for loss in losses), _percent(one), _percent(own))


def _told(one: Outside, more: float) -> tuple[float, float]:
    """Return the loss of an entry's rows by a rate, and the share of them inside an interval."""
    expected = one.inside * (1 + max(more, 0.0) * one.doublings)
    loss = np.log(expected) + one.errors / expected
    return float(loss.mean()), float((one.errors <= WITHIN * expected).mean())


def _cells(found: Sequence[Outside]) -> Iterator[str]:
    doublings, errors = (np.concatenate([one[place] for one in found]) for place in (2, 3))
    yield from (str(len(found)), str(errors.size))
    yield _percent(float(np.average([one.inside for one in found], weights=[one.errors.size for one in found])))
    for low, high in pairwise(STEPS):
        at = (doublings > low) & (doublings <= high)
        yield _percent(float(errors[at].mean())) if at.any() else ""
    gpus = {one.key.gpu for one in found}
    without = [rate(one for one in found if one.key.gpu != gpu) for gpu in gpus] if len(gpus) > 1 else [rate(found)]
    yield from (f"{value:.2f}" for value in (rate(found), min(without), max(without)))


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
