from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.domain.samples import Samples
from planner.probes import calibrate, inputs
from planner.probes.inputs import InputRows, measure_input
from planner.probes.steps import StepTimes


def test_rows_of_all_parts_are_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, float] = {}

    def images(for_s: float, **_: object) -> InputRows:
        asked["images"] = for_s
        return InputRows(({"kind": "decode", "time_s": 1.0},))

    def storage(_folder: Path, for_s: float, **_: object) -> InputRows:
        asked["storage"] = for_s
        return InputRows(({"kind": "load", "time_s": 2.0},), "too slow", {"storage": "ext4"})

    def copies(device: str, for_s: float, **_: object) -> tuple[dict[str, object], ...]:
        asked[device] = for_s
        return ({"kind": "host_to_device", "library": "pinned", "time_s": 3.0},)

    monkeypatch.setattr(inputs, "measure_images", images)
    monkeypatch.setattr(inputs, "measure_storage", storage)
    monkeypatch.setattr(inputs, "measure_copies", copies)
    found = measure_input(tmp_path, 2.0, "some-gpu", device="cuda:0", clock=lambda: 0.0)
    assert found.text["kind"].tolist() == ["load", "decode", "host_to_device"]
    assert set(found.text["device"].tolist()) == {"some-gpu"}
    assert dict(found.circumstances) == {"storage": "ext4", "warning_input_storage": "too slow"}
    assert sum(asked.values()) == pytest.approx(2.0 + (0.35 + 0.15) * 2.0)  # storage gets what the clock leaves
    assert measure_input(tmp_path, 2.0, "cpu-x", clock=lambda: 0.0).size == 2


def test_a_small_budget_measures_nothing_and_says_so(tmp_path: Path) -> None:
    found = measure_input(tmp_path, 0.0, "cpu-x")
    assert found.size == 0
    assert sorted(found.circumstances) == ["warning_input_decode", "warning_input_storage"]


def test_a_calibration_gives_the_input_its_share(
    fake_bench: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, float, str]] = []

    def measured(folder: Path, for_s: float, accelerator: str, **_: object) -> Samples:
        asked.append((folder, for_s, accelerator))
        row = {"kind": "load", "images": 1, "bytes": 100, "time_s": 1.0, "device": accelerator}
        return Samples.from_rows([row], {"warning_input_decode": "none"})

    monkeypatch.setattr(calibrate, "measure_input", measured)
    monkeypatch.setattr(calibrate, "CpuBench", fake_bench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes())
    made = calibrate.measure_device(calibrate.CpuPlace(), 100.0, input_folder=tmp_path)
    ((folder, for_s, accelerator),) = asked
    assert (folder, accelerator) == (tmp_path, made.accelerator.name)
    assert for_s == pytest.approx(6.0)
    assert made.samples.text["kind"].tolist().count("load") == 1
    assert {"warning_input_decode", "reference_s", "framework"} <= set(made.samples.circumstances)
    assert "load" not in calibrate.measure_device(calibrate.CpuPlace(), 100.0).samples.text["kind"]
    assert len(asked) == 1
