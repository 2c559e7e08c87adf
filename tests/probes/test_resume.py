"""The file of partial measurements: what a run goes on with, what it is charged for, what is set aside."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.domain.kernels import FORWARD
from planner.domain.network import Point
from planner.domain.samples import Samples
from planner.errors import OutputError
from planner.probes.run import Measured, Progress, Run, append, continued, read_measured, seconds_used

MakeBench = Callable[..., Any]
CIRCUMSTANCES = {"cpu_model": "test", "load_average": "0.1"}
POINTS = tuple(Point("gemm", FORWARD, {"m": m, "n": 8, "k": 8, "batch": 1}) for m in range(8, 108))
NEW = tuple(Point("gemm", FORWARD, {"m": m, "n": 8, "k": 8, "batch": 1}) for m in (300, 400, 500))
NAMES = {point.name for point in POINTS}


def measure_points(
    bench: Any, points: Sequence[Point], budget_s: float, circumstances: Mapping[str, str], **options: Any
) -> Samples:
    """Return the samples of one run of the loop, continued where it has a file."""
    options = {"progress": None} | options
    run = Run(bench, points, budget_s, continued(options["resume"], circumstances, {p.name for p in points}), **options)
    return run.samples("", circumstances)


def test_other_circumstances_begin_anew(fake_bench: MakeBench, tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(fake_bench(), POINTS, 5.0, CIRCUMSTANCES, resume=file)
    bench = fake_bench()
    samples = measure_points(bench, POINTS, 5.0, {"cpu_model": "another"}, resume=file)
    assert samples.size == len(set(bench.timed))


@pytest.mark.parametrize("text", ["garbage\n", "[1]\n", '{"cpu_model": "another"}\n', "\xff\xfe"])
def test_file_of_something_else_is_set_aside_and_said(text: str, tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    for place in ("here.jsonl.old", "here.jsonl.old-2"):
        file.write_text(text, encoding="latin-1")
        earlier = read_measured(file, {"cpu_model": "test"}, NAMES)
        assert (earlier.measured, earlier.used_s) == ((), 0.0)
        assert earlier.note.startswith(f"starting anew: {file}, which ")
        assert earlier.note.endswith(f"is now {place}")
        assert (tmp_path / place).read_text(encoding="latin-1") == text
        assert not file.exists()


def test_what_is_continued_is_said(fake_bench: MakeBench, tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(fake_bench(), POINTS, 11.0, CIRCUMSTANCES, resume=file)
    earlier = read_measured(file, {"cpu_model": "test"}, NAMES)
    assert earlier.note == f"continuing from {file}: 100 points, 11 s used"
    assert read_measured(tmp_path / "none.jsonl", {}, ()).note == ""


def test_points_that_another_network_asked_for_are_kept_but_not_charged(fake_bench: MakeBench, tmp_path: Path) -> None:
    """Half of what was measured serves the new question too."""
    file = tmp_path / "here.jsonl"
    first, second = POINTS[:60], (*POINTS[30:60], *NEW, *POINTS[60:])
    measure_points(fake_bench(), first, 1e6, CIRCUMSTANCES, resume=file)
    used_s = json.loads(file.read_text().splitlines()[-1])["used_s"]
    names = {point.name for point in second}
    charged_s = seconds_used(file, CIRCUMSTANCES, names)
    assert 0.4 * used_s < charged_s < 0.7 * used_s  # larger products take longer
    assert seconds_used(file, CIRCUMSTANCES, {point.name for point in first}) == pytest.approx(used_s)
    assert seconds_used(file, CIRCUMSTANCES, {NEW[0].name}) == 0.0
    said = read_measured(file, {"cpu_model": "test"}, names).note
    kept = "; 30 points that other networks asked for are kept, not counted"
    assert said == f"continuing from {file}: 30 points, {charged_s:.0f} s used{kept}"

    shown: list[Progress] = []
    bench, budget_s = fake_bench(), charged_s + 2.0
    samples = measure_points(bench, second, budget_s, CIRCUMSTANCES, resume=file, progress=shown.append)
    assert 1.5 <= bench.now <= 2.2
    assert samples.size <= len(second)
    assert all(now.done <= now.total == len(second) for now in shown)
    assert {json.loads(line)["name"] for line in file.read_text().splitlines()[1:]} >= {point.name for point in first}
    assert json.loads(file.read_text().splitlines()[-1])["used_s"] == pytest.approx(used_s + bench.now, abs=0.05)


def test_cut_off_and_foreign_lines_are_left_out(fake_bench: MakeBench, tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(fake_bench(), POINTS, 11.0, CIRCUMSTANCES, resume=file)
    text = file.read_text()
    file.write_text(text[:-20] + "\n[1]\n")
    bench = fake_bench()
    measure_points(bench, POINTS, 11.0, CIRCUMSTANCES, resume=file)
    assert len(bench.timed) <= 8


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "append",
    [
        lambda path: append(path, [Measured("a", 1.0, 0.1, 3, 1.0, 2.0)]),
        lambda path: append(path, ["step 3"]),
    ],
)
def test_a_full_disk_names_the_file(append: Callable[[Path], None]) -> None:
    with pytest.raises(OutputError, match=r"^the file of partial samples must be writable, got /dev/full: No space"):
        append(Path("/dev/full"))
