import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.domain.samples import FREE_CIRCUMSTANCES, TimedStep
from planner.errors import MissingPackageError, ParameterError
from planner.probes import calibrate
from planner.probes.bench import DISTURBED_RATIO, least_disturbed
from planner.probes.steps import StepTimes, probe_networks, timed_steps

MakeBench = Callable[..., Any]
REFERENCE_S = 0.003
STEP = TimedStep(probe_networks()[0], 1, 1e-3, 0.0)


def test_run_on_this_cpu_keeps_its_file_and_measures_peaks(
    fake_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", fake_bench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes())
    affinity = os.sched_getaffinity(0)
    file = tmp_path / "here.jsonl"
    measurement = calibrate.measure_device(calibrate.CpuPlace(), 160.0, resume=file)
    assert file.exists()
    assert os.sched_getaffinity(0) == affinity
    assert measurement.accelerator.source.startswith("measured")
    assert measurement.node.accelerator == measurement.accelerator
    assert {"framework", "threads", "allocator"} <= set(measurement.samples.circumstances)
    assert set(measurement.samples.text["device"].tolist()) == {measurement.accelerator.name}


@pytest.mark.parametrize("slow", [(0.0, 0.0), (60.0, 1e9)])
def test_run_on_this_cpu_warns_of_the_allocator_and_of_disturbances(
    fake_bench: MakeBench, slow: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", lambda: fake_bench(slow=slow))
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes())
    circumstances = calibrate.measure_device(calibrate.CpuPlace(), 140.0).samples.circumstances
    kept = circumstances["allocator"] == "freed memory kept"
    assert ("MALLOC_TRIM_THRESHOLD_=" in circumstances.get("warning_allocator", "")) == kept
    warning = circumstances.get(calibrate.WARNING_DISTURBED, "")
    assert bool(warning) == (slow[1] > 0)
    assert not warning or (5 <= int(warning.partition("%")[0]) <= 90 and "run it again" in warning)


@pytest.mark.parametrize("is_quiet_then", [True, False])
def test_a_run_whose_steps_alone_were_quiet_is_measured_again_or_says_so(
    fake_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, *, is_quiet_then: bool
) -> None:
    """Another process computes while kernels are timed, and ends: no reference time before the steps tells."""
    bench = fake_bench(slow=(0.0, 1e9))

    def steps(*_given: object, **_named: object) -> StepTimes:
        bench.slow = (0.0, 0.0) if is_quiet_then else bench.slow
        return StepTimes(reference_s=REFERENCE_S)

    monkeypatch.setattr(calibrate, "CpuBench", lambda: bench)
    monkeypatch.setattr(calibrate, "timed_steps", steps)
    samples = calibrate.measure_device(calibrate.CpuPlace(), 140.0).samples
    assert float(samples.circumstances["reference_s"]) == pytest.approx(REFERENCE_S)
    assert any(samples.text["notes"]) != is_quiet_then
    warning = samples.circumstances.get(calibrate.WARNING_DISTURBED, "")
    assert warning.startswith("100% of the convolutions and products were") != is_quiet_then


@pytest.mark.parametrize("steps", [(), (STEP,)])
def test_a_run_without_training_steps_says_so(
    fake_bench: MakeBench, steps: tuple[TimedStep, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", fake_bench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes(steps))
    warning = calibrate.measure_device(calibrate.CpuPlace(), 140.0).samples.circumstances.get(
        calibrate.WARNING_STEPS, ""
    )
    assert ("no training step was timed" in warning) == (not steps)
    assert calibrate.WARNING_STEPS in FREE_CIRCUMSTANCES


def test_steps_that_are_left_out_are_said(fake_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, said = ("a in bf16, as PyTorch failed: no engine", "b, as one sample takes more than 1 GiB"), list[str]()
    monkeypatch.setattr(calibrate, "CpuBench", fake_bench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes((STEP,), failed))
    circumstances = calibrate.measure_device(calibrate.CpuPlace(), 140.0, say=said.append).samples.circumstances
    sentence = "training steps are left out of " + "; ".join(failed)
    assert circumstances[calibrate.WARNING_FAILED_STEPS] == sentence
    assert sentence in said
    assert calibrate.WARNING_FAILED_STEPS in FREE_CIRCUMSTANCES
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes((STEP,)))
    circumstances = calibrate.measure_device(calibrate.CpuPlace(), 140.0).samples.circumstances
    assert calibrate.WARNING_FAILED_STEPS not in circumstances


def test_steps_stop_when_the_budget_is_used_up(fake_bench: MakeBench) -> None:
    assert timed_steps(fake_bench(), 1.0, 0.0) == StepTimes()
    bench, tries = fake_bench(slow=(0.0, 1e9)), []
    _, slower = least_disturbed(lambda: tries.append(1), bench, REFERENCE_S, tries=10**6, until_s=1.0) or ((), 0.0)
    assert slower > DISTURBED_RATIO
    assert 1 < len(tries) < 1 / REFERENCE_S


def test_interrupted_run_on_this_cpu_keeps_its_file(
    fake_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", lambda: fake_bench(stop_after=30))
    with pytest.raises(KeyboardInterrupt):
        calibrate.measure_device(calibrate.CpuPlace(), 160.0, resume=tmp_path / "here.jsonl")
    assert (tmp_path / "here.jsonl").exists()


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan")])
def test_budget_must_be_positive(budget_s: float) -> None:
    with pytest.raises(ParameterError, match=r"^budget must be"):
        calibrate.measure_device(calibrate.CpuPlace(), budget_s)


def test_missing_torch_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match=r"epoch-planner\[torch\]"):
        calibrate.measure_device(calibrate.CpuPlace(), 1.0)


def test_everything_that_was_left_out_is_told_in_one_sentence(
    fake_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What did not fit while points were timed, and what failed under load."""
    said: list[str] = []
    monkeypatch.setattr(calibrate, "CpuBench", fake_bench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes((STEP,)))
    monkeypatch.setattr(calibrate, "sustained", lambda *_given: {"left_out": "under load", "sustained_bf16": "1.000"})
    place = calibrate.CpuPlace()
    monkeypatch.setattr(place, "seen", lambda: {"left_out": "points"})
    circumstances = calibrate.measure_device(place, 140.0, say=said.append).samples.circumstances
    assert (circumstances["left_out"], circumstances["sustained_bf16"]) == ("points; under load", "1.000")
    assert "points; under load" in said
