"""How far long work is, where nobody looks at a terminal."""

import time

import pytest

from planner.cli.streams import bar
from planner.probes.run import Progress
from planner.sessions.measure import _state


def test_without_a_terminal_a_line_comes_every_five_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    with bar("measuring", 20.0, "measuring for 20 s") as show:
        for at in range(21):
            now = float(at)
            show(now, f"at {at}")
    said = capsys.readouterr().err.splitlines()
    assert said == ["planner: measuring for 20 s", *(f"planner: at {at}" for at in (5, 10, 15, 20))]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Progress(12, 80, 7.6, 51.0, 0), "kernels: 12/80 points, 43 s left"),
        (Progress(80, 80, 52.0, 51.0, 3, 0.084), "kernels: 80/80 points, 3 disturbed, expected error 8.4%, 0 s left"),
        (Progress(80, 80, 45.0, 51.0, 0, None, "training steps"), "training steps: 80/80 points, 6 s left"),
    ],
)
def test_the_state_says_what_is_measured_how_many_and_what_time_is_left(now: Progress, words: str) -> None:
    assert _state(now) == words
