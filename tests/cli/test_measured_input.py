"""A calibration whose input side was measured: what ``predict`` answers with it, and what ``show`` prints of it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.costs.specified import specified_entry
from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Node
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, TRAFFIC_KINDS, UPDATE
from planner.domain.samples import Samples
from planner.fitting.calibration import fit_input
from planner.formats.calibration import CALIBRATION

Run = Callable[..., tuple[int, str, str]]
CPU = Accelerator("this-cpu", "cpu", 64 * 2.0**30, 50e9, {"fp32": 200e9})
COLD_S, CACHED_S, DECODE_S = 0.2, 0.01, 0.5
BYTES = 100_000
PREDICT = ("predict", "--network", "resnet18", "--sub-batch", "8", "--calibration", "here.json", "--json")
SMALL_SET = ("--dataset", f"samples=1000,bytes_per_sample={BYTES}")


def rows() -> list[Mapping[str, Any]]:
    """Return rows of a disk and a decoder whose times are by bytes alone, so that a sample takes what is stated."""
    sizes = [{"images": 1, "bytes": size} for size in (BYTES // 10, BYTES, 2 * BYTES, 4 * BYTES)]
    per_sample = {"load": COLD_S, "load_cached": CACHED_S, "decode": DECODE_S}
    return [
        {"kind": kind, "time_s": seconds * size["bytes"] / BYTES, **size}
        for kind, seconds in per_sample.items()
        for size in sizes
    ]


@pytest.fixture(autouse=True)
def _calibration(tmp_path: Path) -> None:
    directions = [FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT]
    keys = [(kind, direction) for kind in ("gemm", "convolution", *TRAFFIC_KINDS) for direction in directions]
    found = [specified_entry(CPU, *key, "fp32") for key in [*keys, ("update", UPDATE)]]
    kernels = tuple(replace(entry, origin="measured") for entry in found if entry is not None)
    entries, missing = fit_input(Samples.from_rows(rows(), {}))
    assert missing == ()
    made = Calibration("here", CPU.name, (*kernels, *entries), node=Node(1, CPU, 64 * 2.0**30, 3))
    (tmp_path / "here.json").write_text(CALIBRATION.dump(made))


def test_a_measured_disk_makes_storage_the_input(run: Run) -> None:
    """Two of the three threads load: a sub-batch of 8 takes four times what one reads and decodes."""
    code, out, err = run(*PREDICT, *SMALL_SET)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["subject"]["input"] == "storage"
    load = next(term for term in answer["terms"] if term["name"] == "load_input")
    assert answer["sources"][load.get("source", 0)] == {"origin": "measured", "calibration": "here"}
    assert load["seconds"] == pytest.approx(4 * (CACHED_S + DECODE_S))
    assert answer["bottleneck"] == "load_input"
    assert answer["epoch_s"]["value"] == pytest.approx(1000 / 2 * (CACHED_S + DECODE_S))
    assert answer["first_epoch_s"]["value"] == pytest.approx(1000 / 2 * (COLD_S + DECODE_S))
    assert not {"input_not_modelled", "decode_not_modelled"} & {one["code"] for one in answer["warnings"]}
    asked = json.loads(run(*PREDICT, *SMALL_SET, "--input", "storage")[1])
    assert asked == answer


def test_a_data_set_beyond_memory_is_read_again(run: Run) -> None:
    large = ("--dataset", f"samples=10000000,bytes_per_sample={BYTES}")
    answer = json.loads(run(*PREDICT, *large)[1])
    missed = 1 - 0.8 * 64 * 2**30 / 1e12
    load = next(term for term in answer["terms"] if term["name"] == "load_input")
    assert load["seconds"] == pytest.approx(4 * (missed * COLD_S + (1 - missed) * CACHED_S + DECODE_S))


def test_show_prints_the_input_side(run: Run) -> None:
    code, out, err = run("show", "calibrations", "here.json")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for name in ("storage load", "storage load cached", "storage decode"):
        assert name in lines
    assert "elements" in out
