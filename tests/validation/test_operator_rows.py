"""Transformer operators of an A100 and a GH200: what is kept, and how calibrations and data sheets meet it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner import catalog
from planner.costs.specified import specified_entry
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.kernels import WORK_COLUMNS
from validation.kernel_boards import BOARDS
from validation.operator_rows import KEPT, OPERATOR_TABLE, main, operator_rows, selected
from validation.tables import read_table

TABLE = read_table(Path(__file__).parents[2] / "validation" / "kernels" / OPERATOR_TABLE, "it is of this repository")
OWN = {name: next(one for one in BOARDS if one.name == name) for name in ("a100-sxm4-80gb", "gh200-96gb")}
LIMITS = {"add": 0.06, "attention": 0.13, "gelu": 0.05, "gemm": 0.12, "layer_norm": 0.1, "softmax": 0.25}
"""Kind -> mean relative error of the bundled fits to these rows, or to these and others of the chip."""


def misses(entry: Entry, rows: list[dict[str, object]]) -> FloatArray:
    """Return predicted over measured less 1 of rows of a kind, shape (k,)."""
    columns = [name for name in WORK_COLUMNS[entry.kind] if name in rows[0]]
    work: dict[str, FloatArray | float] = {
        name: np.array([row[name] for row in rows], dtype=np.float64) for name in columns
    }
    times_s = np.array([row["time_s"] for row in rows], dtype=np.float64)
    return np.asarray(evaluate(entry, {**work, "itemsize": 2.0}) / times_s - 1)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("kind", LIMITS)
def test_bundled_calibrations_meet_the_rows_that_they_rest_on(name: str, kind: str) -> None:
    entries = [one for one in catalog.find_calibration(name).entries if one.kind == kind]
    rows = [row for row in operator_rows(TABLE, OWN[name]) if row["kind"] == kind and row["precision"] == "fp16"]
    assert rows
    for direction in {row.get("direction", "") for row in rows}:
        own = [row for row in rows if row.get("direction", "") == direction]
        entry = next(one for one in entries if one.direction == direction and one.precision in ("fp16", "any"))
        assert np.abs(misses(entry, own)).mean() < LIMITS[kind]
        assert entry.held_out_error is not None
        assert entry.held_out_by == "group"


@pytest.mark.parametrize("name", OWN)
def test_attention_by_data_sheet_is_met_where_its_kernels_are_those_of_the_generation(name: str) -> None:
    rows = [row for row in operator_rows(TABLE, OWN[name]) if row["kind"] == "attention" and row["precision"] == "fp16"]
    for direction in {row["direction"] for row in rows}:
        entry = specified_entry(catalog.find_accelerator(name), "attention", direction, "fp16")
        assert entry is not None
        own = [row for row in rows if row["direction"] == direction]
        assert abs(np.median(misses(entry, own))) < 0.25


def test_attention_of_an_h100_follows_from_a_gh200_of_the_same_chip() -> None:
    """An H100's forward passes took no part in the GH200's fit: 36 bars of figures of FlashAttention-3."""
    own, other = (
        next(
            one
            for one in catalog.find_calibration(name).entries
            if (one.kind, one.direction, one.precision) == ("attention", "forward", "bf16")
        )
        for name in ("h100-sxm5-80gb", "gh200-96gb")
    )
    heads, length, width, causal = (
        axis.ravel() for axis in np.meshgrid([64.0, 256.0], [1024.0, 4096.0, 16384.0], [64.0, 128.0], [0.0, 1.0])
    )
    work: dict[str, FloatArray | float] = {
        "batch": heads,
        "queries": length,
        "keys": length,
        "width": width,
        "causal": causal,
        "itemsize": 2.0,
    }
    assert np.abs(evaluate(other, work) / evaluate(own, work) - 1).mean() < 0.12


def test_the_kept_part_of_the_table_is_what_its_rule_keeps(tmp_path: Path) -> None:
    assert selected(TABLE) == [dict(row) for row in TABLE]
    assert {row["operator"] for row in TABLE} == set(KEPT)
    assert all(row["gpu"] in OWN for row in TABLE)
    assert main(["--table", str(tmp_path / "none.csv")]) != 0
