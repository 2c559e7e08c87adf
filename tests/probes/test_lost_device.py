"""A device that fails for good while it is measured, with made-up failures on this CPU."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner.domain.network import Network, Point
from planner.errors import ParameterError
from planner.probes import bench as benches
from planner.probes import calibrate, gpu, steps
from planner.probes.bench import CudaBench
from planner.probes.gpu import DeviceLostError, check_computes, first_line
from planner.probes.operands import Operands
from planner.probes.run import Measured, read_measured, start_file, told_when_lost
from planner.probes.steps import StepTimes, build_module, probe_networks, timed_steps
from planner.probes.timing import Timing

MakeBench = Callable[..., Any]
ILLEGAL = "CUDA error: an illegal memory access was encountered"
NAMES = {"OutOfMemoryError": torch.OutOfMemoryError}
POINT = Measured("a point", 1e-3, 0.0, 5, 1e-3, 1.0)


def cuda_error() -> RuntimeError:
    failure: Any = torch.AcceleratorError
    error: RuntimeError = failure(f"{ILLEGAL}\nCUDA kernel errors might be")
    return error


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[], RuntimeError]:
    """Return what loses every device for good, and gives the error that says so."""

    def call() -> RuntimeError:
        cuda = SimpleNamespace(synchronize=lambda _device: None, empty_cache=lambda: None)
        monkeypatch.setattr(gpu, "import_torch", lambda: SimpleNamespace(cuda=cuda, **NAMES))
        monkeypatch.setattr(gpu, "why_no_kernel", lambda _torch, _device: ILLEGAL)
        return cuda_error()

    return call


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_tiny_kernel_decides_and_what_is_still_to_be_said_does_not(
    monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    asked: list[str] = []

    def fail(device: str) -> None:
        asked.append(device)
        raise cuda_error()

    def zeros(_size: int, *, device: str) -> torch.Tensor:
        if is_lost:
            fail(device)
        return torch.zeros(1)

    made = SimpleNamespace(cuda=SimpleNamespace(synchronize=fail), zeros=zeros, **NAMES)
    monkeypatch.setattr(gpu, "import_torch", lambda: made)
    if is_lost:
        with pytest.raises(DeviceLostError, match=f"^{ILLEGAL}$") as caught:
            check_computes("cuda:1", cuda_error(), "a call")
        assert caught.value.what == "a call"
    else:
        check_computes("cuda:1", cuda_error(), "a call")
    assert asked == ["cuda:1"] * (1 + is_lost)


def test_an_error_of_a_device_that_goes_on_computing_stays_what_it_is(tmp_path: Path) -> None:
    error = cuda_error()
    with pytest.raises(RuntimeError) as caught, told_when_lost("cpu", tmp_path / "partial"):
        raise error
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_lost_device_is_a_sentence_with_a_remedy_and_the_file_is_kept(
    lose: Callable[[], RuntimeError], tmp_path: Path, *, is_measured: bool
) -> None:
    file, error = tmp_path / "partial", lose()
    start_file(file, {}, [POINT] * is_measured)
    before = file.read_text()
    with pytest.raises(ParameterError) as caught, told_when_lost("cuda:0", file):
        raise error
    said = f"--device must be a device that goes on computing, got 'cuda:0, which failed: {ILLEGAL}'"
    kept = f"what was measured is kept in {file}; the same command goes on from there"
    again = "try the same command once more; if the device fails again, name another GPU or --device cpu"
    assert str(caught.value) == f"{said}; {kept if is_measured else again}"
    assert caught.value.exit_code == 2
    assert file.read_text() == before


def test_a_device_lost_in_the_first_stretch_is_measured_without_what_lost_it_by_the_same_command(
    lose: Callable[[], RuntimeError], tmp_path: Path
) -> None:
    file, error = tmp_path / "partial", DeviceLostError(str(lose()), "a point")
    start_file(file, {}, [])
    said = r"in a point: .*'; the same command begins again without it$"
    with pytest.raises(ParameterError, match=said), told_when_lost("cuda:0", file):
        raise error
    assert read_measured(file, {}, ()).failed == ("a point",)


def test_no_memory_for_a_call_loses_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though none may be left for a tiny kernel, while an error holds what the call had taken."""
    monkeypatch.setattr(gpu, "why_no_kernel", lambda _torch, _device: "CUDA out of memory")
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")
    check_computes("cpu", error, "a call")
    assert first_line(error) == "it does not fit the memory"


@pytest.mark.parametrize("is_memory", [True, False])
def test_a_network_that_cannot_be_made_is_left_out_and_said_unless_the_device_is_lost(
    lose: Callable[[], RuntimeError], fake_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, *, is_memory: bool
) -> None:
    first, second = probe_networks()[:2]
    lost = lose()
    error = torch.OutOfMemoryError("full") if is_memory else lost

    def failing_build(network: Network, device: str) -> torch.nn.Module:
        if network == first:
            raise error
        return build_module(network, device)

    monkeypatch.setattr(steps, "build_module", failing_build)
    monkeypatch.setattr(steps, "gradient_time", lambda *_given, **_named: Timing(1e-3, 0.0, 7))
    left_out: list[str] = []
    if not is_memory:
        with pytest.raises(DeviceLostError) as caught:
            timed_steps(fake_bench(), 1.0, 100.0, [first, second], precisions=("fp32", "bf16"))
        left_out.append(caught.value.what)
    made = timed_steps(fake_bench(), 1.0, 100.0, [first, second], precisions=("fp32", "bf16"), left_out=left_out)
    assert {(step.network.name, step.precision) for step in made.steps} == {
        (second.name, "fp32"),
        (second.name, "bf16"),
    }
    said = [
        f"{first.name} in {precision}, as PyTorch failed: it does not fit the memory" for precision in ("fp32", "bf16")
    ]
    assert list(made.failed) == (said if is_memory else [])


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_point_is_refused_where_the_device_goes_on(
    lose: Callable[[], RuntimeError], monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    error = lose() if is_lost else cuda_error()

    def call(_point: Point, _operands: Operands) -> Any:
        raise error

    bench = CudaBench(Operands(elements=1 << 16), SimpleNamespace(), side=64)
    monkeypatch.setattr(benches, "timed_call", call)
    point = Point("gemm", "forward", {"m": 8, "n": 8, "k": 8, "batch": 1})
    if is_lost:
        with pytest.raises(DeviceLostError) as caught:
            bench.time(point)
        assert caught.value.what == point.name
    else:
        assert bench.time(point) is None
    assert bench.refused == ({} if is_lost else {"kernel": 1})


def test_steps_that_lose_a_device_end_the_run_and_are_not_tried_again(
    lose: Callable[[], RuntimeError], fake_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks, tried = probe_networks()[:2], list[tuple[str, str]]()

    def gradient_time(_module: object, network: Any, *_given: object, precision: str, **_named: object) -> Timing:
        tried.append((network.name, precision))
        if precision == "bf16":
            raise lose()
        return Timing(1e-3, 0.0, 7)

    monkeypatch.setattr(steps, "gradient_time", gradient_time)
    precisions, left_out = ("fp32", "bf16"), list[str]()
    for network in networks:
        with pytest.raises(DeviceLostError) as caught:
            timed_steps(fake_bench(), 1.0, 100.0, networks, precisions=precisions, left_out=left_out)
        left_out.append(caught.value.what)
        assert left_out[-1] == f"training steps of {network.name} in bf16"
    made = timed_steps(fake_bench(), 1.0, 100.0, networks, precisions=precisions, left_out=left_out)
    assert [(step.sub_batch, step.precision) for step in made.steps] == [(2, "fp32")] * 2
    assert tried.count((networks[0].name, "bf16")) == 1


def test_a_run_goes_on_without_the_point_that_lost_the_device(
    lose: Callable[[], RuntimeError], fake_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, bench = tmp_path / "partial", fake_bench()
    time_point, lost = bench.time, list[str]()

    def loses(point: Point) -> Timing | None:
        if len(bench.timed) >= 30:
            lost.append(point.name)
            raise DeviceLostError(str(lose()), point.name)
        timing: Timing | None = time_point(point)
        return timing

    bench.time = loses
    monkeypatch.setattr(calibrate, "CpuBench", lambda: bench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes())
    with pytest.raises(ParameterError, match=r"the same command goes on from there without it$") as caught:
        calibrate.measure_device(calibrate.CpuPlace(), 160.0, resume=file)
    assert f"which failed in {lost[0]}: CUDA error" in str(caught.value)
    assert file.read_text().count("used_s") > 20

    second = fake_bench()
    monkeypatch.setattr(calibrate, "CpuBench", lambda: second)
    samples = calibrate.measure_device(calibrate.CpuPlace(), 160.0, resume=file).samples
    assert lost[0] not in second.timed
    assert len(second.timed) > 1000
    assert samples.circumstances["left_out"] == f"what the device failed in before: {lost[0]}"
    assert f'{{"failed": "{lost[0]}"}}' in file.read_text()  # a third run leaves it out too
