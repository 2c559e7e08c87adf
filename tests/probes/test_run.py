import errno
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from planner.domain.kernels import FORWARD
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import LayerCall, Point
from planner.domain.samples import Samples
from planner.errors import OutputError
from planner.probes.run import Goal, Progress, Run, continued

MakeBench = Callable[..., Any]
CIRCUMSTANCES = {"cpu_model": "test", "load_average": "0.1"}
POINTS = tuple(Point("gemm", FORWARD, {"m": m, "n": 8, "k": 8, "batch": 1}) for m in range(8, 108))
NAMES = {point.name for point in POINTS}
REFERENCE_S = 0.003


def measure_points(
    bench: Any, points: Sequence[Point], budget_s: float, circumstances: Mapping[str, str], **options: Any
) -> Samples:
    """Return the samples of one run of the loop, continued where it has a file."""
    options = {"goal": None, "resume": None, "progress": None} | options
    run = Run(
        bench,
        points,
        budget_s,
        continued(options["resume"], circumstances, {point.name for point in points}),
        **options,
    )
    return run.samples("", circumstances)


def test_every_point_is_measured_and_the_budget_is_kept(fake_bench: MakeBench) -> None:
    bench = fake_bench()
    samples = measure_points(bench, POINTS, 15.0, CIRCUMSTANCES)
    assert samples.size == len(POINTS)
    assert 0.9 * 15 <= bench.now <= 1.1 * 15
    assert samples.time_s.tolist() == pytest.approx((1e-6 * samples.number["m"]).tolist())
    assert float(samples.circumstances["reference_s"]) == pytest.approx(REFERENCE_S)


def test_small_budget_measures_a_part_and_stops(fake_bench: MakeBench) -> None:
    bench = fake_bench()
    samples = measure_points(bench, POINTS, 3.0, CIRCUMSTANCES)
    assert 20 <= samples.size <= 30
    assert bench.now <= 1.1 * 3


def test_large_budget_ends_after_a_few_passes(fake_bench: MakeBench) -> None:
    bench = fake_bench()
    measure_points(bench, POINTS, 1e6, CIRCUMSTANCES)
    assert set(Counter(bench.timed).values()) == {3}


def test_order_is_random_and_the_same_in_every_run(fake_bench: MakeBench) -> None:
    first, second = fake_bench(), fake_bench()
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


def test_calls_of_networks_come_first_and_in_their_order(fake_bench: MakeBench) -> None:
    bench = fake_bench()
    samples = measure_points(bench, (*POINTS, *OWN), 12.0, CIRCUMSTANCES)
    assert bench.timed[:3] == [point.name for point in OWN]
    own = samples.select(samples.text["call"] != "")
    assert own.text["call"].tolist() == [point.call.name for point in OWN if point.call]
    assert own.number["sub_batch"].tolist() == [1.0, 1.0, 1.0]
    assert own.time_s.tolist() == pytest.approx([5e-4, 3e-4, 4e-4])


def test_a_short_budget_keeps_the_calls_that_matter_most(fake_bench: MakeBench) -> None:
    samples = measure_points(fake_bench(), (*POINTS, *OWN), 0.15, CIRCUMSTANCES)
    assert samples.number["m"].tolist() == [500.0, 300.0]


def test_calls_of_networks_are_measured_again_where_disturbed_and_continued(
    fake_bench: MakeBench, tmp_path: Path
) -> None:
    file = tmp_path / "here.jsonl"
    bench = fake_bench(slow=(0.0, 1.0))
    samples = measure_points(bench, (*OWN, *POINTS), 15.0, CIRCUMSTANCES, resume=file)
    assert all(bench.timed.count(point.name) > 1 for point in OWN)
    assert samples.select(samples.text["call"] != "").time_s.tolist() == pytest.approx([5e-4, 3e-4, 4e-4])
    later = fake_bench()
    measure_points(later, (*OWN, *POINTS), 15.0, CIRCUMSTANCES, resume=file)
    assert later.timed == []


def test_disturbed_stretch_is_measured_again(fake_bench: MakeBench) -> None:
    bench = fake_bench(slow=(2.0, 6.0))
    samples = measure_points(bench, POINTS, 17.0, CIRCUMSTANCES)
    assert samples.time_s.tolist() == pytest.approx((1e-6 * samples.number["m"]).tolist())
    assert not any(samples.text["notes"])


def test_point_never_measured_in_quiet_says_so(fake_bench: MakeBench) -> None:
    bench = fake_bench(slow=(5.0, 1e9))
    samples = measure_points(bench, POINTS, 11.0, CIRCUMSTANCES)
    wrong = samples.time_s > 1.5e-6 * samples.number["m"]
    assert wrong.any()
    assert (samples.text["notes"][wrong] != "").all()


@pytest.mark.parametrize("quiet_from_s", [7.0, 8.0, 9.5])
def test_a_machine_that_was_quiet_for_a_short_while_alone_was_disturbed_before(
    quiet_from_s: float, fake_bench: MakeBench
) -> None:
    """The fastest quarter of the reference times is disturbed too, beside the fastest one."""
    bench = fake_bench(slow=(0.0, quiet_from_s))
    samples = measure_points(bench, POINTS, 10.5, CIRCUMSTANCES)
    wrong = samples.time_s > 1.5e-6 * samples.number["m"]
    assert 0.6 < wrong.mean() < 1
    assert (samples.text["notes"][wrong] != "").all()
    assert float(samples.circumstances["reference_s"]) == pytest.approx(REFERENCE_S)


@pytest.mark.parametrize(("slow_s", "times"), [(0.0, 1.0), (6.0, 1.0), (8.3, 1.15), (1e9, 1.15)])
def test_a_quarter_of_the_reference_timings_is_the_quiet_part(
    slow_s: float, times: float, fake_bench: MakeBench
) -> None:
    """Of 10.5 s; fewer that were faster by less than a disturbance is were luck."""
    bench = fake_bench(slow=(0.0, slow_s), factor=1.15)
    samples = measure_points(bench, POINTS, 10.5, CIRCUMSTANCES)
    assert float(samples.circumstances["reference_s"]) == pytest.approx(times * REFERENCE_S, rel=1e-4)
    assert not any(samples.text["notes"])


@pytest.mark.parametrize(("seconds", "share"), [(0.0, 1.0), (5.0, 0.5), (20.0, 0.0)])
def test_a_run_disturbed_throughout_is_measured_again_as_far_as_time_allows(
    seconds: float, share: float, fake_bench: MakeBench
) -> None:
    """Once a much faster reference is seen; what is not measured again says so."""
    bench = fake_bench(slow=(0.0, 20.0))
    run = Run(bench, POINTS, 11.0, continued(None, {}, ()), goal=Goal(InOrder), resume=None, progress=None)
    assert not any(run.samples("", {}).text["notes"])
    bench.now, timed = 20.0, len(bench.timed)
    run.measure_again(3 * REFERENCE_S / 1.1, 20.0 + seconds)
    assert len(bench.timed) == timed  # no faster than in quiet parts
    run.measure_again(REFERENCE_S, 20.0 + seconds)
    samples = run.samples("", {})
    wrong = samples.time_s > 1.5e-6 * samples.number["m"]
    assert (wrong == (samples.text["notes"] != "")).all()
    assert wrong.mean() == pytest.approx(share, abs=0.08)
    assert bench.now <= 20.0 + seconds + 0.2
    assert float(samples.circumstances["reference_s"]) == pytest.approx(REFERENCE_S)


def test_calls_of_networks_are_measured_again_first(fake_bench: MakeBench) -> None:
    """Those that the run is for, not those that were kept for later."""
    own, later = OWN[:2], OWN[2]
    bench = fake_bench(slow=(0.0, 1e3))
    goal = Goal(InOrder, later=(later,))
    run = Run(bench, (*POINTS, *own), 1e2, continued(None, {}, ()), goal=goal, resume=None, progress=None)
    assert later.name in bench.timed
    bench.now, timed = 1e3, len(bench.timed)
    run.measure_again(REFERENCE_S, 2e3)
    assert bench.timed[timed : timed + 2] == [point.name for point in own]
    assert len(bench.timed) == timed + len(POINTS) + len(OWN)
    assert bench.timed[timed + 2] != later.name


def test_a_target_that_disturbed_timings_reached_ends_no_measuring_again(fake_bench: MakeBench) -> None:
    bench = fake_bench(slow=(0.0, 20.0))
    goal = Goal(InOrder, target_error=0.1)
    run = Run(bench, POINTS, 11.0, continued(None, {}, ()), goal=goal, resume=None, progress=None)
    assert run.is_reached
    bench.now = 20.0
    run.measure_again(REFERENCE_S, 40.0)
    assert not any(run.samples("", {}).text["notes"])


def test_progress_counts_up_to_all_points(fake_bench: MakeBench) -> None:
    seen: list[Progress] = []
    measure_points(fake_bench(), POINTS, 12.0, CIRCUMSTANCES, progress=seen.append)
    assert [now.done for now in seen] == sorted(now.done for now in seen)
    assert (seen[-1].done, seen[-1].total, seen[-1].disturbed) == (100, 100, 0)


def test_interrupted_run_goes_on_where_it_stopped(fake_bench: MakeBench, tmp_path: Path) -> None:
    file = tmp_path / "partial" / "here.jsonl"
    first = fake_bench(stop_after=60)
    with pytest.raises(KeyboardInterrupt):
        measure_points(first, POINTS, 11.0, CIRCUMSTANCES, resume=file)
    kept = {json.loads(line)["name"] for line in file.read_text().splitlines()[1:]}
    assert 50 <= len(kept) <= 60
    second = fake_bench()
    later = {**CIRCUMSTANCES, "load_average": "7.0"}
    samples = measure_points(second, POINTS, 11.0, later, resume=file)
    assert samples.size == len(POINTS)
    assert not kept & set(second.timed[: 100 - len(kept)])


def test_time_of_an_earlier_run_counts_against_the_budget(fake_bench: MakeBench, tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    first = fake_bench(stop_after=60)
    with pytest.raises(KeyboardInterrupt):
        measure_points(first, POINTS, 15.0, CIRCUMSTANCES, resume=file)
    second = fake_bench()
    measure_points(second, POINTS, 15.0, CIRCUMSTANCES, resume=file)
    assert 0.9 * 15 <= first.now + second.now <= 1.1 * 15
    third = fake_bench()
    assert measure_points(third, POINTS, 15.0, CIRCUMSTANCES, resume=file).size == len(POINTS)
    assert third.timed == []


def test_used_up_budget_measures_no_more_and_a_larger_one_goes_on(fake_bench: MakeBench, tmp_path: Path) -> None:
    file = tmp_path / "here.jsonl"
    before = measure_points(fake_bench(), POINTS, 3.0, CIRCUMSTANCES, resume=file)
    bench = fake_bench()
    assert measure_points(bench, POINTS, 3.0, CIRCUMSTANCES, resume=file).size == before.size
    assert bench.timed == []
    assert measure_points(bench, POINTS, 11.0, CIRCUMSTANCES, resume=file).size == len(POINTS)
    assert bench.now < 9


def test_an_earlier_run_is_lost_by_no_failure_to_write_it_anew(
    fake_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "here.jsonl"
    measure_points(fake_bench(), POINTS, 5.0, CIRCUMSTANCES, resume=file)
    before, plain = file.read_text(), cast("Any", Path.open)

    def full_disk(path: Path, mode: str = "r", **named: str) -> Any:
        new = plain(path, mode, **named)
        if mode == "x":
            write = new.write

            def half(text: str) -> int:
                write(text[: len(text) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(new, "write", half)
        return new

    monkeypatch.setattr(Path, "open", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        measure_points(fake_bench(), POINTS, 5.0, CIRCUMSTANCES, resume=file)
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]


def test_what_does_not_fit_is_left_out(fake_bench: MakeBench) -> None:
    run = Run(fake_bench(most=97), POINTS, 15.0, continued(None, {}, ()), resume=None, progress=None)
    samples = run.samples("here", CIRCUMSTANCES)
    assert sorted(samples.number["m"].tolist()) == list(range(8, 98))


def test_a_device_that_nothing_more_fits_ends_its_passes(fake_bench: MakeBench) -> None:
    bench = fake_bench(most=8)
    assert measure_points(bench, POINTS, 15.0, CIRCUMSTANCES).number["m"].tolist() == [8.0]
    assert bench.timed == [POINTS[0].name] * 3


class InOrder:
    """Wants the points of largest m first, two at a time; the error that it expects is 1 over those that it knows."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = sorted((point for point in points if point.work["m"] >= 50), key=lambda point: -point.work["m"])
        self.known: list[int] = []

    def start(self) -> list[str]:
        """Return the first two."""
        return [point.name for point in self.points[:2]]

    def learn(self, timed: Mapping[str, float]) -> float:
        """Return 1 / number known."""
        self.known.append(len(timed))
        return 1 / max(len(timed), 1)

    def choose(self, left: Collection[str], seconds: float, most_s: float) -> list[str]:
        """Return two that are left."""
        assert seconds > 0
        assert most_s > 0
        return [point.name for point in self.points if point.name in left][:2]


def size(name: str) -> int:
    return int(name.split("m=")[1].split(maxsplit=1)[0])


def test_points_come_in_the_order_of_the_chooser_then_the_rest(fake_bench: MakeBench) -> None:
    bench = fake_bench()
    samples = measure_points(bench, POINTS, 12.0, CIRCUMSTANCES, goal=Goal(InOrder))
    assert [size(name) for name in bench.timed[:58]] == list(range(107, 49, -1))
    assert samples.size == len(POINTS)
    assert float(samples.circumstances["expected_error"]) == pytest.approx(0.01)


@pytest.mark.parametrize("choice_s", [0.0, 0.05, 0.5])
def test_more_is_chosen_at_once_where_a_choice_takes_long(choice_s: float, fake_bench: MakeBench) -> None:
    """A choice names every point twice, as one that serves two calls may be; it is measured once."""
    bench, asked = fake_bench(), list[float]()

    class Slow(InOrder):
        def choose(self, left: Collection[str], seconds: float, most_s: float) -> list[str]:
            asked.append(seconds)
            bench.now += choice_s
            return 2 * super().choose(left, seconds, most_s)

    measure_points(bench, POINTS[-10:], 12.0, CIRCUMSTANCES, goal=Goal(Slow))
    assert asked[0] == 1.5
    assert asked[1:] == pytest.approx([max(1.5, 20 * choice_s)] * (len(asked) - 1))
    assert len(asked) > 2
    assert len(set(bench.timed[:10])) == 10


@pytest.mark.parametrize("target_error", [0.1, 0.021])
def test_the_run_stops_when_the_target_error_is_reached(target_error: float, fake_bench: MakeBench) -> None:
    seen: list[Progress] = []
    bench = fake_bench()
    run = Run(
        bench, POINTS, 1e6, continued(None, {}, ()), goal=Goal(InOrder, target_error=target_error), resume=None,
        progress=seen.append,
    )  # fmt: skip
    assert run.is_reached
    assert 1 / target_error <= len(bench.timed) <= 1 / target_error + 2
    assert seen[-1].expected_error == pytest.approx(1 / (len(bench.timed) - 2))


def test_a_budget_that_ends_first_leaves_the_target_unreached(fake_bench: MakeBench) -> None:
    bench = fake_bench()
    goal = Goal(InOrder, target_error=1e-6)
    run = Run(bench, POINTS, 3.0, continued(None, {}, ()), goal=goal, resume=None, progress=None)
    assert not run.is_reached
    assert bench.now <= 1.1 * 3


@pytest.mark.parametrize("budget_s", [11.0, 33.0, 1000.0])
def test_points_for_later_wait_for_the_passes_of_all_others(budget_s: float, fake_bench: MakeBench) -> None:
    bench = fake_bench()
    samples = measure_points(bench, POINTS, budget_s, CIRCUMSTANCES, goal=Goal(InOrder, later=OWN))
    own = [point.name for point in OWN]
    first = min((bench.timed.index(name) for name in own if name in bench.timed), default=len(bench.timed))
    counts = Counter(bench.timed[:first])
    if budget_s < 30:
        assert first == len(bench.timed)
        assert samples.size == len(POINTS)
    else:
        assert set(counts.values()) == {3}
    if budget_s > 100:
        assert {bench.timed.count(name) for name in own} == {3}


def test_points_for_later_come_before_passes_where_an_error_is_aimed_at(fake_bench: MakeBench) -> None:
    bench = fake_bench()
    goal = Goal(InOrder, later=OWN, target_error=1e-6)
    measure_points(bench, POINTS, 12.0, CIRCUMSTANCES, goal=goal)
    assert {point.name for point in OWN} <= set(bench.timed[:103])


def test_a_continued_run_chooses_from_what_it_kept(tmp_path: Path, fake_bench: MakeBench) -> None:
    file, goal = tmp_path / "here.jsonl", Goal(InOrder, later=OWN)
    whole = fake_bench()
    measure_points(whole, POINTS, 1000.0, CIRCUMSTANCES, goal=goal)
    first = fake_bench(stop_after=31)
    with pytest.raises(KeyboardInterrupt):
        measure_points(first, POINTS, 1000.0, CIRCUMSTANCES, goal=goal, resume=file)
    kept = len(file.read_text().splitlines()) - 1
    second = fake_bench()
    samples = measure_points(second, POINTS, 1000.0, CIRCUMSTANCES, goal=goal, resume=file)
    assert second.timed[:20] == whole.timed[kept : kept + 20]
    third = fake_bench()
    again = measure_points(third, POINTS, 1000.0, CIRCUMSTANCES, goal=goal, resume=file)
    assert (third.timed, again.size) == ([], samples.size)
