"""What choosing among shapes by held-out error flatters: the choice made anew without each part that is scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner import catalog
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray
from planner.domain.cluster import Accelerator
from planner.domain.samples import Samples
from planner.fitting.gaussian_process import times_left_out
from planner.fitting.kernels import fit_kernels
from planner.fitting.rows import group_codes, work_of
from validation.kernel_scores import ELEMENT_WISE, Key, populations

__all__ = ["Choice", "choices"]

PARTS = 6
"""Groups are left out in this many parts at most: as many as there are applications of convolutions."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Mean errors on parts left out: shape chosen once on all rows, and chosen anew without each part."""

    key: Key
    rows: int
    once: float
    anew: float


def choices(samples: Mapping[str, Samples], gpus: Sequence[str]) -> Iterator[Choice]:
    """Yield both errors of every kind, direction and precision of some GPUs, but element-wise kernels."""
    for gpu in gpus:
        accelerator = catalog.find_accelerator(gpu)
        for key, rows in populations(gpu, samples[gpu]):
            if key.kind not in ELEMENT_WISE:
                part = _in_parts(rows)
                once, _ = times_left_out(fit_kernels(rows, accelerator).entries[0], part)
                anew = _chosen_anew(part, accelerator)
                yield Choice(key, rows.size, *(_mean_error(times, rows) for times in (once, anew)))


def _mean_error(times: FloatArray, rows: Samples) -> float:
    return float(np.mean(np.abs(times / rows.time_s - 1)))


def _in_parts(samples: Samples) -> Samples:
    """Return the rows with their groups joined to at most PARTS."""
    parts = np.array([f"part {code % PARTS}" for code in group_codes(samples).tolist()])
    return Samples({**samples.text, "group": parts}, samples.number, samples.circumstances)


def _chosen_anew(samples: Samples, accelerator: Accelerator) -> FloatArray:
    times = np.empty(samples.size)
    for part in np.unique(samples.text["group"]):
        out = samples.text["group"] == part
        entry = fit_kernels(samples.select(~out), accelerator).entries[0]
        times[out] = evaluate(entry, work_of(samples.select(out), entry.kind))
    return times
