import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from planner.domain.calls import LayerCall
from planner.domain.kernels import FORWARD
from planner.domain.network import INPUT, Layer
from planner.errors import MissingPackageError, ParameterError
from planner.probes import calibrate
from planner.probes.bench import undisturbed
from planner.probes.points import Point
from planner.probes.resume import read_measured
from planner.probes.run import Progress, measure_points
from planner.probes.steps import timed_steps
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


LAYER = Layer("one", "linear", (INPUT,), {"features": 8})
OWN = tuple(
    Point("gemm", FORWARD, call.at(1), call=call, sub_batch=1)
    for call in (
        LayerCall("gemm", FORWARD, {"m": (m, 0), "n": (0, 1), "k": (8, 0), "batch": (1, 0)}, LAYER, ((8,),))
        for m in (500, 300, 400)
    )
)


def test_calls_of_networks_come_first_and_in_their_order() -> None:
    bench = FakeBench()
    samples = measure_points(bench, (*POINTS, *OWN), 12.0, CIRCUMSTANCES)
    assert bench.timed[:3] == [point.name for point in OWN]
    own = samples.select(samples.text["call"] != "")
    assert own.text["call"].tolist() == [point.call.name for point in OWN if point.call]
    assert own.number["sub_batch"].tolist() == [1.0, 1.0, 1.0]
    assert own.time_s.tolist() == pytest.approx([5e-4, 3e-4, 4e-4])


def test_a_short_budget_keeps_the_calls_that_matter_most() -> None:
    samples = measure_points(FakeBench(), (*POINTS, *OWN), 0.15, CIRCUMSTANCES)
    assert samples.number["m"].tolist() == [500.0, 300.0]


def test_calls_of_networks_are_measured_again_where_disturbed_and_continued(tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    bench = FakeBench(slow=(0.0, 1.0))
    samples = measure_points(bench, (*OWN, *POINTS), 15.0, CIRCUMSTANCES, resume=file)
    assert all(bench.timed.count(point.name) > 1 for point in OWN)
    assert samples.select(samples.text["call"] != "").time_s.tolist() == pytest.approx([5e-4, 3e-4, 4e-4])
    later = FakeBench()
    measure_points(later, (*OWN, *POINTS), 15.0, CIRCUMSTANCES, resume=file)
    assert later.timed == []


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
    samples = measure_points(second, POINTS, 11.0, later, resume=file)
    assert samples.size == len(POINTS)
    assert not kept & set(second.timed[: 100 - len(kept)])


def test_time_of_an_earlier_run_counts_against_the_budget(tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    first = FakeBench(stop_after=60)
    with pytest.raises(KeyboardInterrupt):
        measure_points(first, POINTS, 15.0, CIRCUMSTANCES, resume=file)
    second = FakeBench()
    measure_points(second, POINTS, 15.0, CIRCUMSTANCES, resume=file)
    assert 0.9 * 15 <= first.now + second.now <= 1.1 * 15
    third = FakeBench()
    assert measure_points(third, POINTS, 15.0, CIRCUMSTANCES, resume=file).size == len(POINTS)
    assert third.timed == []


def test_used_up_budget_measures_no_more_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    before = measure_points(FakeBench(), POINTS, 3.0, CIRCUMSTANCES, resume=file)
    bench = FakeBench()
    assert measure_points(bench, POINTS, 3.0, CIRCUMSTANCES, resume=file).size == before.size
    assert bench.timed == []
    assert measure_points(bench, POINTS, 11.0, CIRCUMSTANCES, resume=file).size == len(POINTS)
    assert bench.now < 9


def test_other_circumstances_begin_anew(tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(FakeBench(), POINTS, 5.0, CIRCUMSTANCES, resume=file)
    bench = FakeBench()
    samples = measure_points(bench, POINTS, 5.0, {"cpu_model": "another"}, resume=file)
    assert samples.size == len(set(bench.timed))


@pytest.mark.parametrize("text", ["garbage\n", "[1]\n", '{"cpu_model": "another"}\n', "\xff\xfe"])
def test_file_of_something_else_is_set_aside_and_said(text: str, tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    for place in ("here.jsonl.old", "here.jsonl.old-2"):
        file.write_text(text, encoding="latin-1")
        earlier = read_measured(file, {"cpu_model": "test"})
        assert (earlier.measured, earlier.used_s) == ((), 0.0)
        assert earlier.note.startswith(f"starting anew: {file}, which ")
        assert earlier.note.endswith(f"is now {place}")
        assert (tmp_path / place).read_text(encoding="latin-1") == text
        assert not file.exists()


def test_what_is_continued_is_said(tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(FakeBench(), POINTS, 11.0, CIRCUMSTANCES, resume=file)
    earlier = read_measured(file, {"cpu_model": "test"})
    assert earlier.note == f"continuing from {file}: 100 points, 11 s used"
    assert read_measured(tmp_path / "none.jsonl", {}).note == ""


def test_cut_off_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(FakeBench(), POINTS, 11.0, CIRCUMSTANCES, resume=file)
    text = file.read_text()
    file.write_text(text[:-20] + "\n[1]\n")
    bench = FakeBench()
    measure_points(bench, POINTS, 11.0, CIRCUMSTANCES, resume=file)
    assert len(bench.timed) <= 8


def test_run_on_this_cpu_keeps_its_file_and_measures_peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", FakeBench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given: ())
    affinity = os.sched_getaffinity(0)
    file = tmp_path / "here.jsonl"
    measurement = calibrate.measure_cpu(160.0, resume=file)
    assert file.exists()
    assert os.sched_getaffinity(0) == affinity
    assert measurement.accelerator.source.startswith("measured")
    assert measurement.node.accelerator == measurement.accelerator
    assert {"framework", "threads", "allocator"} <= set(measurement.samples.circumstances)
    assert set(measurement.samples.text["device"].tolist()) == {measurement.accelerator.name}


@pytest.mark.parametrize("slow", [(0.0, 0.0), (60.0, 1e9)])
def test_run_on_this_cpu_warns_of_the_allocator_and_of_disturbances(
    slow: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", lambda: FakeBench(slow=slow))
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given: ())
    circumstances = calibrate.measure_cpu(140.0).samples.circumstances
    kept = circumstances["allocator"] == "freed memory kept"
    assert ("MALLOC_TRIM_THRESHOLD_=" in circumstances.get("warning_allocator", "")) == kept
    warning = circumstances.get(calibrate.DISTURBED, "")
    assert bool(warning) == (slow[1] > 0)
    assert not warning or (5 <= int(warning.partition("%")[0]) <= 90 and "run it again" in warning)


def test_steps_stop_when_the_budget_is_used_up() -> None:
    assert timed_steps(FakeBench(), 1.0, 0.0) == ()
    bench, tries = FakeBench(slow=(0.0, 1e9)), []
    assert undisturbed(lambda: tries.append(1), bench, REFERENCE_S, tries=10**6, until_s=1.0) is None
    assert 1 < len(tries) < 1 / REFERENCE_S


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
