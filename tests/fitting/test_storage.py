"""Coefficients that rows were made from come back, and only rows of the input side count."""

from collections.abc import Mapping
from typing import Any

import pytest

from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import INPUT_COLUMNS, Samples
from planner.fitting.calibration import FITS, fit_calibration, fit_input
from planner.formats.samples import read_samples, write_samples

SIZES = (16_384, 65_536, 114_688, 524_288)
DEVICE = Accelerator("toy", "cpu", 2.0**30, 1e10, {"fp32": 1e11})


def reads(kind: str, latency_s: float, bytes_per_s: float) -> list[Mapping[str, Any]]:
    return [{"kind": kind, "images": 1, "bytes": n, "time_s": latency_s + n / bytes_per_s} for n in SIZES]


def decodes() -> list[Mapping[str, Any]]:
    """Return rows of 2 ms an image, 10 ns a byte and 5 ns an element made."""
    cases = ((1_000, 3_072), (27_000, 150_528), (110_000, 150_528), (110_000, 602_112), (420_000, 150_528))
    return [
        {"kind": "decode", "images": 1, "bytes": b, "elements": e, "time_s": 2e-3 + 1e-8 * b + 5e-9 * e}
        for b, e in cases
    ]


def test_every_kind_of_row_has_a_fit() -> None:
    assert set(FITS) == set(INPUT_COLUMNS)


def test_latency_and_bandwidth_come_back() -> None:
    entries, missing = fit_input(Samples.from_rows([*reads("load", 2e-4, 5e8), *reads("load_cached", 1e-6, 4e9)], {}))
    assert missing == ()
    cold, cached = entries
    assert (cold.key[:2], cached.key[:2]) == (("storage", "load"), ("storage", "load_cached"))
    assert dict(cold.coefficients) == pytest.approx({"samples": 2e-4, "bytes": 2e-9})
    assert dict(cached.coefficients) == pytest.approx({"samples": 1e-6, "bytes": 2.5e-10})
    assert cold.ranges["bytes"] == (SIZES[0], SIZES[-1])


def test_decoding_is_by_image_byte_and_element() -> None:
    (entry,), _ = fit_input(Samples.from_rows(decodes(), {}))
    assert dict(entry.coefficients) == pytest.approx({"samples": 2e-3, "bytes": 1e-8, "elements": 5e-9})


def test_pinned_and_pageable_copies_are_apart() -> None:
    rows: list[Mapping[str, Any]] = [
        {"kind": kind, "library": library, "bytes": n, "time_s": 1e-5 + n / rate}
        for kind, library, rate in (
            ("host_to_device", "pinned", 2e10), ("host_to_device", "pageable", 5e9), ("device_to_host", "pinned", 1e10),
        )
        for n in SIZES
    ]  # fmt: skip
    entries, _ = fit_input(Samples.from_rows(rows, {}))
    found = {(one.kind, one.library): 1 / one.coefficients["bytes"] for one in entries}
    expected = {("copy", "pinned"): 2e10, ("copy", "pageable"): 5e9, ("copy_back", "pinned"): 1e10}
    assert found == pytest.approx(expected)
    assert {one.term for one in entries} == {"host.bytes"}


def test_too_few_sizes_are_said() -> None:
    entries, missing = fit_input(Samples.from_rows([*reads("load", 1e-4, 1e9)[:2], *reads("load", 1e-4, 1e9)[:1]], {}))
    assert entries == ()
    assert missing == ("load: 2 sizes, 3 needed",)


def test_rows_of_samples_files_become_entries_of_the_calibration(tmp_path: Any) -> None:
    rows: list[Mapping[str, Any]] = [
        *reads("load", 2e-4, 5e8),
        *decodes(),
        {"kind": "load", "images": 1, "time_s": 1.0},
    ]
    path = tmp_path / "rows.csv"
    path.write_text(write_samples(Samples.from_rows(rows, {"source": "made up"})))
    made = fit_calibration(read_samples(path)[0], "here", DEVICE, Node(1, DEVICE))
    assert [one.kind for one in made.entries] == ["load", "decode"]
    assert made.entries[0].coefficients["samples"] == pytest.approx(2e-4)
    assert made.entries[0].source == "made up"
    assert [warning.startswith("1 of 10 rows rejected") for warning in made.warnings] == [True]
