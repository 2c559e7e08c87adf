"""``planner calibrate`` interrupted: what is kept, and that nothing is where nothing was measured."""

import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from planner.domain.network import Point
from planner.fitting.calibration import fit_calibration
from planner.fitting.next_points import NextPoints
from planner.formats.calibration import CALIBRATION
from planner.probes import calibrate as probes_calibrate
from planner.probes import steps
from planner.probes.calibrate import Measurement, Own
from planner.probes.gpu import DeviceLostError
from planner.probes.run import STRETCH_S, Measured, start_file
from planner.probes.timing import Timing

Run = Callable[..., tuple[int, str, str]]
Instruments = dict[str, Any]
POINT = Measured("a point", 1e-3, 0.0, 5, 1e-3, 1.0)


def test_an_interrupt_leaves_no_calibration_and_says_what_is_kept(run: Run, instruments: Instruments) -> None:
    def interrupted(_place: object, _budget_s: float, *, resume: Path, **given: Any) -> Measurement:
        assert given["input_folder"] == Path()
        assert given["own"] == Own()
        assert given["goal"].later
        assert callable(given["progress"])
        assert callable(given["say"])
        start_file(resume, {}, [POINT])
        raise KeyboardInterrupt

    instruments["measure"] = interrupted
    code, out, err = run("calibrate", "--out", "fit.json")
    assert (code, out) == (130, "")
    assert "what was measured so far is kept in fit.json.partial; the same command goes on from there" in err
    assert err.endswith("planner: interrupted\n")
    assert sorted(path.name for path in Path().iterdir()) == ["fit.json.partial"]


@pytest.mark.parametrize("is_started", [True, False])
def test_an_interrupt_before_the_first_point_says_that_nothing_is_kept(
    run: Run, instruments: Instruments, *, is_started: bool
) -> None:
    def interrupted(_place: object, _budget_s: float, *, resume: Path, **_named: object) -> Measurement:
        if is_started:
            start_file(resume, {}, [])
        raise KeyboardInterrupt

    instruments["measure"] = interrupted
    code, out, err = run("calibrate", "--out", "fit.json")
    assert (code, out) == (130, "")
    assert err.endswith("planner: nothing was measured yet, so nothing is kept\nplanner: interrupted\n")
    assert "goes on from there" not in err
    assert list(Path().iterdir()) == []


def test_an_interrupt_while_pytorch_is_loaded_says_that_nothing_is_kept(run: Run, instruments: Instruments) -> None:
    def interrupted(_say: object) -> str:
        raise KeyboardInterrupt

    instruments["default_device"] = interrupted
    said = "planner: nothing was measured yet, so nothing is kept\nplanner: interrupted\n"
    assert run("calibrate", "--out", "fit.json") == (130, "", said)


class Clock:
    """The time of a run in which only what is said takes any; an interrupt comes in the middle of what it is set to."""

    def __init__(self) -> None:
        self.now, self.moment = 0.0, ("", 0)
        self.counts: Counter[str] = Counter()

    def passes(self, seconds: float, doing: str) -> None:
        """Let something take so long."""
        self.counts[doing] += 1
        if (doing, self.counts[doing]) == self.moment:
            self.now += seconds / 2
            raise KeyboardInterrupt
        self.now += seconds


class SlowBench:
    """A CPU of the made-up clock: 20 ms to measure a point."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def clock(self) -> float:
        """Return the time."""
        return self._clock.now

    def time(self, point: Point) -> Timing:
        """Return a call's time."""
        self._clock.passes(0.02, "points")
        return Timing(1e-6 + 1e-9 * max(point.work.values()), 0.0, 5)

    def reference(self) -> float:
        """Return the reference's time."""
        self._clock.passes(0.003, "references")
        return 0.003


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, instruments: Instruments) -> Clock:
    """Return the clock of everything that measures: loading, choosing and fitting take 2 s each, a step 0.2 s."""
    made = Clock()

    def slowly(seconds: float, doing: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*given: Any, **named: Any) -> Any:
            made.passes(seconds, doing)
            return call(*given, **named)

        return slow

    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    instruments["clock_s"] = lambda: made.now
    monkeypatch.setattr(probes_calibrate, "CpuBench", lambda: SlowBench(made))
    instruments["expected_fit_s"] = slowly(2.0, "loading", lambda *_given: 3.0)
    instruments["next_points"] = slowly(2.0, "choosing", NextPoints)
    monkeypatch.setattr(probes_calibrate, "measure_input", slowly(0.9, "input", lambda *_given, **_named: None))
    monkeypatch.setattr(steps, "build_module", lambda *_given: torch.nn.Linear(1, 1))
    monkeypatch.setattr(steps, "gradient_time", slowly(0.2, "steps", lambda *_given, **_named: Timing(1e-2, 0.0, 7)))
    instruments["fit"] = slowly(2.0, "fit", fit_calibration)
    return made


COMMAND = ("calibrate", "--network", "mlp", "--device", "cpu", "--budget", "16s")


@pytest.fixture(scope="module")
def points() -> list[int]:
    """Return how many points a run measures that nothing interrupts, once one has."""
    return []


@pytest.fixture
def whole(run: Run, clock: Clock, points: list[int]) -> int:
    """Return the points of a run that nothing interrupts."""
    if not points:
        assert run(*COMMAND, "--out", "whole.json")[0] == 0
        points.append(clock.counts["points"])
    return points[0]


@pytest.mark.parametrize(
    "moments",
    [
        [("points", 60), ("points", 60)],
        [("choosing", 1), ("points", 150), ("steps", 1), ("steps", 1)],
        [("fit", 1), ("fit", 1)],
    ],
)
def test_a_short_run_that_is_interrupted_ends_well_when_it_is_continued(
    moments: list[tuple[str, int]], run: Run, clock: Clock, whole: int
) -> None:
    """Each command keeps within its budget, and time that measured nothing is not charged to the next one."""
    assert whole > 200
    measured = 0
    for moment in moments:
        began_s, clock.moment = clock.now, moment
        clock.counts.clear()
        assert run(*COMMAND, "--out", "fit.json")[0] == 130
        assert clock.now - began_s <= 1.1 * 16
        measured += clock.counts["points"]
    began_s = clock.now
    clock.counts.clear()
    clock.moment = ("", 0)
    code, _, err = run(*COMMAND, "--out", "fit.json")
    assert code == 0, err
    assert clock.now - began_s <= 1.1 * 16
    assert clock.counts["steps"] >= 1
    assert "no training step" not in err
    again = math.ceil(STRETCH_S / 0.02) * len(moments)  # of a stretch that is interrupted nothing is kept
    assert 0.9 * whole <= measured + clock.counts["points"] <= 1.05 * whole + again
    assert {one.scope for one in CALIBRATION.read("fit.json").entries} == {"kernels", "overheads"}


def test_a_device_that_is_lost_is_a_sentence_and_the_next_run_goes_on_without_what_lost_it(
    run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    class Lost(SlowBench):
        def time(self, point: Point) -> Timing:
            """Return a call's time, of the first sixty."""
            if clock.counts["points"] == 60:
                lost.append(point.name)
                raise DeviceLostError("CUDA error: unspecified launch failure", point.name)
            return super().time(point)

    command = (*COMMAND, "--out", "fit.json")
    with monkeypatch.context() as patch:
        patch.setattr(probes_calibrate, "CpuBench", lambda: Lost(clock))
        code, out, err = run(*command)
    assert (code, out) == (2, "")
    said = f"computing, got 'cpu, which failed in {lost[0]}: CUDA error: unspecified launch failure'; what was measured"
    assert err.endswith(f"{said} is kept in fit.json.partial; the same command goes on from there without it\n")
    assert sorted(path.name for path in Path().iterdir()) == ["fit.json.partial"]
    code, _, err = run(*command)
    assert code == 0
    assert f"planner: what the device failed in before: {lost[0]}\n" in err
