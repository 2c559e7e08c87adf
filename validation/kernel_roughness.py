"""How much of a kernel score is roughness of the measured rows: what stays where all but a single row is known.

r: logarithm of measured time over that of the entry fitted without the layer; three neighbouring batches of one shape
have r_1, r_2, r_3, and s is the share of the way from the first to the third at which the logarithm of the second lies.

d = r_2 - (1 - s) r_1 - s r_3 is 0 where r follows a line. Where rows go up and down on their own, each with deviation
e, d has deviation e √(1 + s² + (1 - s)²); d over that root is therefore as large as the deviation of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner import catalog
from planner.domain.samples import Samples
from planner.fitting.gaussian_process import times_left_out
from planner.fitting.kernels import fit_kernels
from validation.kernel_scores import RATIO, Batches, Key, Score, populations

__all__ = ["Roughness", "batch_roughness_section", "roughness", "roughness_section"]

TEXT = """## What the rows that miss their target leave to any model

For each row above that misses its target. *One row*: the same entry where a single row is left out, not its whole
layer or application: what is missed even with all shapes around it known. *Batches*: how far single rows lie off the
course between the next smaller and the next larger batch of the same shape, after the entry has explained what it can,
as mean of absolute deviations (validation/kernel_roughness.py). Times that do so on their own leave this error to any
model that is smooth in the batch. *Others*: the median of the same on all other GPUs. Where *batches* is far above
*others* and near the error, as for products on Titan Xp and Titan X (Maxwell) and batches of them on T4 and L4, the
rows are the limit; where it is small, as for convolutions, it is applications that are unlike each other.
"""
BATCH_TEXT = """### What single rows leave

For each row above that misses: *a row*, how far single rows lie off their course over batches, as further up. Were that
chance, a model that knew the course exactly would miss by as much, and one that has it from two neighbours, as rough as
the row, by 1.2 to 1.4 times that, as the ratio does. It looks like chance for batches of products on L4 and T4. Where
two GPUs of one chip were timed it is mostly the library's choice of kernels: their products lie off alike (M40 and
Titan X (Maxwell), Titan Xp and GTX 1080 Ti, MI25 and Vega FE, the two A100: correlations of 0.7 to 0.9). No table holds
a call twice; beside each other the two A100 lie off by 1.2 % for products, and by 3.4 % for batches of them.

Tried on the 29 products above whose times differ, of which the ratio misses 7.2 %, with settings chosen on the other
GPUs: the log-ratio drawn towards 0 (7.0 %); a Gaussian process over the logarithm of the batch, from the same two
batches (7.2 %), from all of the shape (7.0 %), and from those of other layers besides, with covariances of shape, of
batch and of both (6.8 %: 5.1 instead of 6.3 % on vidur's rows, 9.1 instead of 8.9 % on DeepBench's); the tile of 32 to
256 a side by which the two neighbours agree (8.1 %); bounds by the two times (10.1 %); every other entry that competes,
for all GPUs, with all of c (7.2 % instead of 7.1 % for products one by one). DeepBench's rows gain by the same layer
otherwise transposed at that very batch (7.8 %), which a training step times together with it, and by a sibling.
"""


@dataclass(frozen=True, slots=True)
class Roughness:
    """Mean absolute relative errors of one kind on one GPU; None without batches between two others.

    Attributes
    ----------
    score : Score
        With whole groups left out.
    target : float
    one_row : float
        With single rows left out.
    batches, others : float or None
        Deviation of a row from its course over batches, here and in the median of the other GPUs.
    """

    score: Score
    target: float
    one_row: float
    batches: float | None
    others: float | None


def roughness(
    samples: Mapping[str, Samples], missed: Sequence[tuple[Score, float]], batches: Iterable[Batches]
) -> Iterator[Roughness]:
    """Yield the roughness of each score that misses its target.

    Parameters
    ----------
    samples : rows by GPU
    missed : scores for shapes never measured, each with its target
    batches : shapes measured at three batches, of all GPUs
    """
    of_key = {one.key: _deviation(one) for one in batches}
    for score, target in missed:
        key = score.key
        others = [value for other, value in of_key.items() if other[1:] == key[1:] and other.gpu != key.gpu]
        middle = float(np.median(others)) if others else None
        yield Roughness(score, target, _one_row(key, samples[key.gpu]), of_key.get(key), middle)


def _deviation(one: Batches) -> float:
    low, at, high = np.log(one.batch).T
    first, middle, last = np.log(one.time_s / one.fitted_s).T
    share = (at - low) / (high - low)
    off = middle - (1 - share) * first - share * last
    return float(np.mean(np.abs(off) / np.sqrt(1 + share**2 + (1 - share) ** 2)))


def _one_row(key: Key, samples: Samples) -> float:
    rows = dict(populations(key.gpu, samples))[key]
    entry = fit_kernels(rows, catalog.find_accelerator(key.gpu)).entries[0]
    alone = np.array([f"row {place}" for place in range(rows.size)])
    single = Samples({**rows.text, "group": alone}, rows.number, rows.circumstances)
    return float(np.mean(np.abs(times_left_out(entry, single)[0] / rows.time_s - 1)))


def roughness_section(
    samples: Mapping[str, Samples],
    scores: Iterable[Score],
    target: Callable[[Key], float],
    batches: Iterable[Batches],
) -> str:
    """Return the section of the page."""
    missed = [(score, target(score.key)) for score in scores if score.mean > target(score.key)]
    head = ("GPU", "kind", "direction", "precision", "target", "mean", "one row", "batches", "others")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for found in roughness(samples, missed, batches):
        _, kind, direction, precision, _ = found.score.key
        numbers = (found.target, found.score.mean, found.one_row, found.batches, found.others)
        cells = [found.score.key.gpu, kind, direction or "any", precision]
        lines.append("| " + " | ".join([*cells, *map(_percent, numbers)]) + " |")
    return TEXT + "\n" + "\n".join(lines) + "\n"


def batch_roughness_section(scores: Iterable[Score], target: float, batches: Iterable[Batches]) -> str:
    """Return the section on products and convolutions at other batches that miss their target by the ratio."""
    of_key = {one.key: _deviation(one) for one in batches}
    lines = ["| GPU | kind | direction | precision | mean | a row |", "|" + "---|" * 6]
    for score in (score for score in scores if score.key.other == RATIO and score.mean > target):
        gpu, kind, direction, precision, _ = score.key
        cells = [gpu, kind, direction or "any", precision]
        numbers = map(_percent, (score.mean, of_key[score.key._replace(other="")]))
        lines.append("| " + " | ".join([*cells, *numbers]) + " |")
    return BATCH_TEXT + "\n" + "\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}" if value < 0.0095 else f"{100 * value:.1f}"
