"""Measured links: what becomes of published tables, and that bundled calibrations are made of what stands here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from planner import catalog
from planner.formats.samples import read_samples
from validation.convert_links import MACHINES, SAMPLES, collectives, host_buffers, main, traces

Run = Callable[..., tuple[int, str, str]]
NAMES = ("hkbu-k80", *MACHINES)
MESSAGES_S = {2: (0.1540,), 4: (0.2615, 0.2576), 8: (0.3107, 0.3194)}
"""Nodes -> sums of GoogLeNet's messages in each of B-Caffe's logs [s]."""


def test_bundled_links_are_fitted_to_the_samples_here(run: Run, tmp_path: Path) -> None:
    """Of one of them, as each takes a second or more."""
    path = tmp_path / "again.json"
    code, _, err = run("calibrate", "--samples", str(SAMPLES / "vista"), "--name", "vista", "--out", str(path))
    assert (code, err) == (0, "")
    made, bundled = (json.loads(one.read_text()) for one in (path, catalog.CALIBRATIONS / "vista.json"))
    for one, other in zip(made["entries"], bundled["entries"], strict=True):
        assert one["settings"] == other["settings"]
        values, expected = ([row["value"] for row in entry["coefficients"]] for entry in (one, other))
        assert values == pytest.approx(expected, rel=1e-6)


def test_sizes_left_out_are_missed_by_8_percent_and_numbers_of_nodes_by_10() -> None:
    """But for single messages of training steps, whose sums alone are predicted."""
    entries = [
        entry for name in NAMES for entry in catalog.find_calibration(name).entries if entry.library != "openmpi"
    ]
    assert max(entry.held_out_error or 1.0 for entry in entries) < 0.08
    notes = [entry.notes for entry in entries if entry.notes]
    assert len(notes) == 1
    assert float(notes[0].rpartition(" ")[2].strip("%")) < 10


def test_messages_of_a_step_over_10_gbe_are_within_15_percent(run: Run) -> None:
    arguments = (
        "--network",
        "googlenet:auxiliary=true",
        "--cluster",
        "hkbu-k80",
        "--nodes",
        "2,4,8",
        "--sub-batch",
        "64",
    )
    code, out, _ = run("predict", *arguments, "--framework", "caffe-mpi", "--input", "synthetic", "--json")
    assert code == 0
    for one in json.loads(out)["predictions"]:
        (term,) = (term for term in one["terms"] if term["name"] == "all_reduce")
        for measured_s in MESSAGES_S[one["configuration"]["nodes"]]:
            assert term["seconds"] == pytest.approx(measured_s, rel=0.15)


def test_messages_of_equal_size_count_by_their_mean_and_zeros_not_at_all() -> None:
    head = {"source": "a", "nodes": "2", "param_index": "0", "size_bytes": "256"}
    other = head | {"param_index": "1"}
    rows = [head | {"comm_us": "0"}, head | {"comm_us": "10"}, head | {"comm_us": "10"}, other | {"comm_us": "30"}]
    (row,) = traces([*rows, head | {"nodes": "?", "comm_us": "99"}])
    assert (row["bytes"], row["time_s"], row["repeats"], row["library"]) == (256, 20e-6, 2, "openmpi")


def test_tables_are_thinned_and_broken_parts_left_out() -> None:
    osu = [{"nodes": "8", "size_bytes": str(size), "time_ms": "1"} for size in range(4, 40, 4)]
    assert [row["bytes"] for row in host_buffers(osu)] == [4, 16, 28]
    of_two = {"machine": "vista", "operation": "allreduce", "nodes": "2", "gpus_per_node": "1"}
    rows = [of_two | {"elements": str(2**20 + i), "time_us": str(100 + i)} for i in range(1000)]
    rows += [of_two | {"operation": "allgather", "elements": "9", "time_us": "117"}]
    rows += [of_two | {"machine": "perlmutter", "elements": "9", "time_us": "1e6"}]
    found = list(collectives(rows, "vista"))
    assert len(found) == 32
    assert sum(row["repeats"] for row in found) == 1000
    assert list(collectives(rows, "perlmutter")) == []


def test_tables_that_are_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), str(tmp_path)]) == 3
    assert "hkbu_bcaffe_layer_traces.csv: table must be there, got nothing" in capsys.readouterr().err


def test_sample_files_are_small_and_of_their_cluster() -> None:
    for name in NAMES:
        path = SAMPLES / name / f"{name}.csv"
        samples, _ = read_samples(path)
        assert (samples.circumstances["cluster"], samples.circumstances["origin"]) == (name, "published")
        assert samples.size < 400
