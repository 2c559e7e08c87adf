import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from planner.domain.kernels import FORWARD
from planner.errors import MissingPackageError, ParameterError
from planner.probes import calibrate
from planner.probes.calibrate import Progress, measure_points
from planner.probes.points import Point
from planner.probes.timing import Timing

CIRCUMSTANCES = {"cpu_model": "test", "load_average": "0.1"}
POINTS = tuple(Point("gemm", FORWARD, {"m": m, "n": 8, "k": 8, "batch": 1}) for m in range(8, 108))
CALL_S = 0.1
REFERENCE_S = 0.003


class FakeBench:
    """A device whose every point takes 0.1 s to measure, its call 1 us x m; slow between two times, by a factor."""

    def __init__(self, slow: tuple[float, float] = (0.0, 0.0), factor: float = 3.0, stop_after: int = 10**9) -> None:
        self.now, self.slow, self.factor, self.stop_after = 0.0, slow, factor, stop_after
        self.timed: list[str] = []

    def _factor(self) -> float:
        return self.factor if self.slow[0] <= self.now < self.slow[1] else 1.0

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def time(self, point: Point) -> Timing:
        """Return a call's time."""
        if len(self.timed) >= self.stop_after:
            raise KeyboardInterrupt
        self.timed.append(point.name)
        self.now += CALL_S
        return Timing(1e-6 * max(point.work.values()) * self._factor(), 0.0, 5)

    def reference(self) -> float:
        """Return the reference's time."""
        self.now += REFERENCE_S
        return REFERENCE_S * self._factor()


def test_every_point_is_measured_and_the_budget_is_kept() -> None:
    bench = FakeBench()
    samples = measure_points(bench, POINTS, 15.0, CIRCUMSTANCES)
    assert samples.size == len(POINTS)
    assert 0.9 * 15 <= bench.now <= 1.1 * 15
    assert samples.time_s.tolist() == pytest.approx((1e-6 * samples.number["m"]).tolist())
    assert float(samples.circumstances["reference_s"]) == pytest.approx(REFERENCE_S)


def test_small_budget_measures_a_part_and_stops() -> None:
    bench = FakeBench()
    samples = measure_points(bench, POINTS, 3.0, CIRCUMSTANCES)
    assert 20 <= samples.size <= 30
    assert bench.now <= 1.1 * 3


def test_large_budget_ends_after_a_few_passes() -> None:
    bench = FakeBench()
    measure_points(bench, POINTS, 1e6, CIRCUMSTANCES)
    assert set(Counter(bench.timed).values()) == {3}


def test_order_is_random_and_the_same_in_every_run() -> None:
    first, second = FakeBench(), FakeBench()
    measure_points(first, POINTS, 12.0, CIRCUMSTANCES)
    measure_points(second, POINTS, 12.0, CIRCUMSTANCES)
    assert first.timed == second.timed
    assert first.timed[:100] != [point.name for point in POINTS]


def test_disturbed_stretch_is_measured_again() -> None:
    bench = FakeBench(slow=(2.0, 6.0))
    samples = measure_points(bench, POINTS, 17.0, CIRCUMSTANCES)
    assert samples.time_s.tolist() == pytest.approx((1e-6 * samples.number["m"]).tolist())
    assert not any(samples.text["notes"])


def test_point_never_measured_in_quiet_says_so() -> None:
    bench = FakeBench(slow=(5.0, 1e9))
    samples = measure_points(bench, POINTS, 11.0, CIRCUMSTANCES)
    wrong = samples.time_s > 1.5e-6 * samples.number["m"]
    assert wrong.any()
    assert (samples.text["notes"][wrong] != "").all()


def test_progress_counts_up_to_all_points() -> None:
    seen: list[Progress] = []
    measure_points(FakeBench(), POINTS, 12.0, CIRCUMSTANCES, progress=seen.append)
    assert [now.done for now in seen] == sorted(now.done for now in seen)
    assert (seen[-1].done, seen[-1].total, seen[-1].disturbed) == (100, 100, 0)


def test_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "partial" / "here.jsonl"
    first = FakeBench(stop_after=60)
    with pytest.raises(KeyboardInterrupt):
        measure_points(first, POINTS, 11.0, CIRCUMSTANCES, resume=file)
    kept = {json.loads(line)["name"] for line in file.read_text().splitlines()[1:]}
    assert 50 <= len(kept) <= 60
    second = FakeBench()
    later = {**CIRCUMSTANCES, "load_average": "7.0"}
    samples = measure_points(second, POINTS, 0.11 * (100 - len(kept)), later, resume=file)
    assert samples.size == len(POINTS)
    assert not kept & set(second.timed[: 100 - len(kept)])


def test_other_circumstances_begin_anew(tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(FakeBench(), POINTS, 5.0, CIRCUMSTANCES, resume=file)
    bench = FakeBench()
    samples = measure_points(bench, POINTS, 5.0, {"cpu_model": "another"}, resume=file)
    assert samples.size == len(set(bench.timed))


def test_cut_off_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(FakeBench(), POINTS, 11.0, CIRCUMSTANCES, resume=file)
    text = file.read_text()
    file.write_text(text[:-20] + "\n[1]\n")
    bench = FakeBench()
    measure_points(bench, POINTS, 0.2, CIRCUMSTANCES, resume=file)
    assert len(bench.timed) <= 8


def test_run_on_this_cpu_keeps_its_file_and_measures_peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", FakeBench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda _bench, _quiet_s: ())
    affinity = os.sched_getaffinity(0)
    file = tmp_path / "here.jsonl"
    measurement = calibrate.measure_cpu(160.0, resume=file)
    assert file.exists()
    assert os.sched_getaffinity(0) == affinity
    assert measurement.accelerator.source.startswith("measured")
    assert measurement.node.accelerator == measurement.accelerator
    assert {"framework", "threads", "allocator"} <= set(measurement.samples.circumstances)
    assert set(measurement.samples.text["device"].tolist()) == {measurement.accelerator.name}


def test_interrupted_run_on_this_cpu_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", lambda: FakeBench(stop_after=30))
    with pytest.raises(KeyboardInterrupt):
        calibrate.measure_cpu(160.0, resume=tmp_path / "here.jsonl")
    assert (tmp_path / "here.jsonl").exists()


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan")])
def test_budget_must_be_positive(budget_s: float) -> None:
    with pytest.raises(ParameterError, match=r"^budget must be"):
        calibrate.measure_cpu(budget_s)


def test_missing_torch_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match=r"epoch-planner\[torch\]"):
        calibrate.measure_cpu(1.0)
