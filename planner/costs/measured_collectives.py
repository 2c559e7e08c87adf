"""Feature map of collectives measured at given numbers of nodes and ranks: no formula joins the cases.

Settings: ``cases``, flat (nodes, ranks per node) pairs; ``form``: ``sqrt`` for 1, sqrt V, V, or ``segments`` for
piecewise alpha-beta; ``breaks_NxR`` [byte], the ends of all but the last segment of a case.

A segmented case has the features 1; for each segment the part of V that lies in it; for each break b the step V > b.
The feature ``unmeasured`` is 1 for a case that was not measured and is scaled from another; its coefficient is 0: it is
there so that such a prediction counts as extrapolated.

The segments span all piecewise lines, and with coefficients >= 0 a longer message never takes less time.
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import (
    BYTE,
    INTER_NODE,
    INTRA_NODE,
    MESSAGE,
    NUMBER,
    Column,
    FeatureMap,
    Settings,
    Work,
    column,
    text,
    vector,
)
from planner.domain.arrays import FloatArray
from planner.errors import CoverageError, Refusal

__all__ = ["CASES", "COLLECTIVE_CASES", "breaks_key", "case_features", "case_list"]

CASES, UNMEASURED = "collective.cases", "unmeasured"


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


def nearest_case(nodes: float, ranks_per_node: float, cases: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the measured case nearest in log ranks, of the same sort: inside one node, or across nodes.

    Raises
    ------
    CoverageError
        No case of that sort was measured.
    """
    same = [case for case in cases if (case[0] > 1) == (nodes > 1) and case[0] * case[1] > 1]
    if not same:
        where = "across nodes" if nodes > 1 else "inside one node"
        rule, got = f"collectives must be measured {where}", f"only (nodes, ranks per node) {cases}"
        remedy = "; describe the links of the cluster, or leave out the calibration that holds them"
        raise CoverageError(Refusal("collective_unmeasured", rule, "collectives", got, remedy))
    ranks = nodes * ranks_per_node
    return min(same, key=lambda case: (abs(np.log2(case[0] * case[1] / ranks)), abs(case[1] - ranks_per_node), case))


def _features(work: Work, settings: Settings) -> FloatArray:
    """Features of the nearest case, its bytes scaled by (p-1)/p and its start-up by log2 p where p was not measured."""
    arrays = (column(work, name) for name in ("bytes", "nodes", "ranks_per_node"))
    v, n, r = np.broadcast_arrays(*arrays)
    cases = case_list(settings)
    widths = [len(_columns(case, settings)) for case in cases]
    result = np.zeros((*v.shape, sum(widths) + 1))
    for nodes, ranks in sorted(set(zip(n.ravel().tolist(), r.ravel().tolist(), strict=True))):
        if nodes * ranks == 1:
            continue
        case = nearest_case(nodes, ranks, cases)
        rows = (n == nodes) & (r == ranks)
        start = sum(widths[: cases.index(case)])
        p, q = nodes * ranks, float(case[0] * case[1])
        block = case_features(v[rows], case, settings)
        scale = np.full(block.shape[-1], (1 - 1 / p) / (1 - 1 / q))
        scale[0] = np.log2(p) / np.log2(q)
        result[rows, -1] = case != (nodes, ranks)
        result[rows, start : start + block.shape[-1]] = block * scale
    return result


COLLECTIVE_CASES = FeatureMap(
    CASES,
    lambda settings: (
        *(one for case in case_list(settings) for one in _columns(case, settings)),
        Column(UNMEASURED, NUMBER),
    ),
    _features,
    doc="for each measured (nodes, ranks per node): 1, sqrt V, V, or piecewise alpha-beta",
    stated={UNMEASURED: 0.0},
)
