"""Feature map of collectives measured at given numbers of nodes and ranks: no formula joins the cases.

Settings: ``cases``, flat (nodes, ranks per node) pairs; ``form``: ``sqrt`` for 1, sqrt V, V, or ``segments`` for
piecewise alpha-beta; ``breaks_NxR`` [byte], the ends of all but the last segment of a case.

A segmented case has the features 1; for each segment the part of V that lies in it; for each break b the step V > b.
The feature ``unmeasured`` is 1 for a case that was not measured; its coefficient is 0: it is there so that such a
prediction counts as extrapolated. Between measured numbers of ranks time is a line in log2 p or a power of p; beyond
them it is that of the nearest case, its bytes times (p-1)/p and its start-up times log2 p over the same of that case.

The segments span all piecewise lines, and with coefficients >= 0 a longer message never takes less time.
"""

from __future__ import annotations

import itertools

import numpy as np

from planner.costs.features import (
    BYTE,
    INTER_NODE,
    INTRA_NODE,
    MESSAGE,
    NUMBER,
    Column,
    Settings,
    Work,
    column,
    number,
    text,
    vector,
)
from planner.domain.arrays import BoolArray, FloatArray
from planner.errors import CoverageError, Refusal

__all__ = [
    "BEYOND", "CASES", "RANKS_POWER", "UNMEASURED", "breaks_key", "case_columns", "case_features", "case_list",
    "covers", "measured_features",
]  # fmt: skip

CASES, UNMEASURED = "collective.cases", "unmeasured"
RANKS_POWER = "ranks_power"
"""Setting: the power of p in which time between measured numbers of ranks is a line; 0: their logarithm."""
BEYOND = "algorithms"
"""Setting of an entry whose other coefficients serve what was not measured at all: inside nodes, or across them."""


def case_list(settings: Settings) -> list[tuple[int, int]]:
    """Return the measured (nodes, ranks per node)."""
    flat = vector(settings, "cases", of=2).astype(int).tolist()
    return list(zip(flat[::2], flat[1::2], strict=True))


def breaks_key(case: tuple[int, int]) -> str:
    """Return the setting that holds the breaks of a case."""
    return f"breaks_{case[0]}x{case[1]}"


def _columns(case: tuple[int, int], settings: Settings) -> list[Column]:
    """Return the columns of one case; a step scales as bytes do: it is where a library moves them in another way."""
    if text(settings, "form", "sqrt") == "sqrt":
        parts = ["sqrt_bytes", "bytes"]
    else:
        breaks = vector(settings, breaks_key(case)).tolist()
        parts = [*(f"bytes_{i}" for i in range(len(breaks) + 1)), *(f"step_{i}" for i in range(len(breaks)))]
    of_case, link = f"{case[0]}x{case[1]}", INTRA_NODE if case[0] == 1 else INTER_NODE
    bytes_ = (Column(f"{of_case}_{part}", BYTE, link) for part in parts)
    return [Column(f"{of_case}_calls", MESSAGE, link), *bytes_]


def case_features(bytes_: FloatArray, case: tuple[int, int], settings: Settings) -> FloatArray:
    """Return the features of one case, shape (..., q), of messages of shape (...)."""
    if text(settings, "form", "sqrt") == "sqrt":
        return np.stack([np.ones_like(bytes_), np.sqrt(bytes_), bytes_], axis=-1)
    breaks = vector(settings, breaks_key(case))
    lower, upper = np.concatenate([[0.0], breaks]), np.concatenate([breaks, [np.inf]])
    pieces = np.clip(bytes_[..., None] - lower, 0.0, upper - lower)
    return np.concatenate([np.ones_like(bytes_)[..., None], pieces, bytes_[..., None] > breaks], axis=-1)


def covers(settings: Settings, nodes: FloatArray) -> BoolArray:
    """Tell whether a case of the same sort was measured, inside one node or across nodes, shape of ``nodes``."""
    inside, across = (any((case[0] > 1) == sort for case in case_list(settings)) for sort in (False, True))
    return np.where(np.asarray(nodes) > 1, across, inside)


def _weights(nodes: float, ranks_per_node: float, settings: Settings) -> dict[tuple[int, int], FloatArray | float]:
    """Return measured cases, each with what its features are multiplied by, for a group of p = nodes x ranks per node.

    A line in log2 p, or in a power of p (setting ``ranks_power``), between the two cases around p, inside a node or
    with as many ranks a node; else the nearest case in log2 p, scaled.

    Raises
    ------
    CoverageError
        No case of that sort was measured.
    """
    ranks, cases = nodes * ranks_per_node, case_list(settings)
    same = [case for case in cases if (case[0] > 1) == (nodes > 1) and case[0] * case[1] > 1]
    if not same:
        where = "across nodes" if nodes > 1 else "inside one node"
        rule, got = f"collectives must be measured {where}", f"only (nodes, ranks per node) {cases}"
        remedy = "; describe the links of the cluster, or leave out the calibration that holds them"
        raise CoverageError(Refusal("collective_unmeasured", rule, "collectives", got, remedy))
    line = sorted(
        (case for case in same if nodes == 1 or case[1] == ranks_per_node), key=lambda case: case[0] * case[1]
    )
    power = number(settings, RANKS_POWER, 0.0)
    for low, high in itertools.pairwise(line):
        every = np.array([low[0] * low[1], ranks, high[0] * high[1]], dtype=np.float64)
        start, at, end = every**power if power else np.log2(every)
        if start <= at <= end:
            share = float((at - start) / (end - start))
            return {case: weight for case, weight in ((low, 1 - share), (high, share)) if weight}
    near = min(same, key=lambda case: (abs(np.log2(case[0] * case[1] / ranks)), abs(case[1] - ranks_per_node), case))
    of_near = near[0] * near[1]
    scale = np.full(len(_columns(near, settings)), (1 - 1 / ranks) / (1 - 1 / of_near))
    scale[0] = np.log2(ranks) / np.log2(of_near)
    return {near: scale}


def measured_features(work: Work, settings: Settings) -> FloatArray:
    """Return the features of messages between groups, those of cases around them weighted; see the module."""
    v, n, r = np.broadcast_arrays(*(column(work, name) for name in ("bytes", "nodes", "ranks_per_node")))
    cases = case_list(settings)
    starts = dict(zip(cases, np.cumsum([0, *(len(_columns(case, settings)) for case in cases)]).tolist(), strict=False))
    result = np.zeros((*v.shape, len(case_columns(settings))))
    known = covers(settings, n) | (BEYOND not in settings)
    for nodes, ranks in sorted(set(zip(n.ravel().tolist(), r.ravel().tolist(), strict=True))):
        rows = (n == nodes) & (r == ranks)
        result[rows, -1] = nodes * ranks > 1 and (nodes, ranks) not in cases
        if nodes * ranks > 1 and known[rows].all():
            for case, weight in _weights(nodes, ranks, settings).items():
                block = case_features(v[rows], case, settings) * weight
                result[rows, starts[case] : starts[case] + block.shape[-1]] = block
    return result


def case_columns(settings: Settings) -> tuple[Column, ...]:
    """Return the columns of all measured cases, then that of what was not measured."""
    return *(one for case in case_list(settings) for one in _columns(case, settings)), Column(UNMEASURED, NUMBER)
