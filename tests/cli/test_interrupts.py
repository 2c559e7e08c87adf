"""``planner calibrate`` interrupted: what is kept, and that nothing is where nothing was measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.cli import calibrate, measure
from planner.probes.calibrate import Measurement, Own
from planner.probes.resume import Measured, start_file

Run = Callable[..., tuple[int, str, str]]
POINT = Measured("a point", 1e-3, 0.0, 5, 1e-3, 1.0)


def test_an_interrupt_leaves_no_calibration_and_says_what_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_place: object, _budget_s: float, *, resume: Path, **given: Any) -> Measurement:
        assert given["input_folder"] == Path()
        assert given["own"] == Own()
        assert given["wanted"].later
        assert callable(given["progress"])
        assert callable(given["say"])
        start_file(resume, {}, [POINT])
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure_device", interrupted)
    code, out, err = run("calibrate", "--out", "fit.json")
    assert (code, out) == (130, "")
    assert "what was measured so far is kept in fit.json.partial; the same command goes on from there" in err
    assert err.endswith("planner: interrupted\n")
    assert sorted(path.name for path in Path().iterdir()) == ["fit.json.partial"]


@pytest.mark.parametrize("is_started", [True, False])
def test_an_interrupt_before_the_first_point_says_that_nothing_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch, *, is_started: bool
) -> None:
    def interrupted(_place: object, _budget_s: float, *, resume: Path, **_named: object) -> Measurement:
        if is_started:
            start_file(resume, {}, [])
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure_device", interrupted)
    code, out, err = run("calibrate", "--out", "fit.json")
    assert (code, out) == (130, "")
    assert err.endswith("planner: nothing was measured yet, so nothing is kept\nplanner: interrupted\n")
    assert "goes on from there" not in err


def test_an_interrupt_while_pytorch_is_loaded_says_that_nothing_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_say: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "default_device", interrupted)
    said = "planner: nothing was measured yet, so nothing is kept\nplanner: interrupted\n"
    assert run("calibrate", "--out", "fit.json") == (130, "", said)
