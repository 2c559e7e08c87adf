"""What PyTorch says of a GPU is made up: there is none here."""

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from planner.catalog import find_accelerator
from planner.errors import MissingPackageError, ParameterError
from planner.probes.calibrate import GpuPlace
from planner.probes.gpu import check_gpu, default_device, describe_gpu
from planner.probes.machine import busy, processes, states

Seen = Callable[..., SimpleNamespace]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Let PyTorch see two GPUs of some properties."""

    def see(**properties: object) -> SimpleNamespace:
        made = SimpleNamespace(
            **{"name": "NVIDIA H200", "total_memory": 143771 * 2**20, "major": 9, "minor": 0,
               "multi_processor_count": 132} | properties
        )  # fmt: skip
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: made)
        return made

    return see


def test_a_gpu_is_measured_unless_there_is_none(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch has no CUDA, or finds no driver, which it warns of, the CPU is, and nothing is said."""

    def warned() -> bool:
        warnings.warn("CUDA initialization: Found no NVIDIA driver on your system", UserWarning, stacklevel=2)
        return False

    told: list[str] = []
    devices: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", warned)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert default_device(told.append) == "cpu"
    assert said == []
    assert told == []
    seen()

    def zeros(_size: int, *, device: str) -> torch.Tensor:
        devices.append(device)
        return torch.ones(8)

    monkeypatch.setattr(torch, "zeros", zeros)
    assert default_device(told.append) == "cuda"
    assert (devices, told) == (["cuda"], [])


def test_what_this_process_holds_of_a_gpu_does_not_make_it_busy(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a container: from the trial on the driver lists this process too, by a number that only the host knows."""
    context, program = tmp_path / "context", tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f"[ -e {context} ] && used=500 pid=4711 || used=4\n"
        'case "$*" in\n'
        "*compute-apps*) echo $pid;;\n"
        '*) echo "580.1, 345, 2619, 31, 71.5, 0, $used, 8192, 0x1";;\n'
        "esac\n"
    )
    program.chmod(0o755)

    def zeros(_size: int, *, device: str) -> torch.Tensor:
        assert device == "cuda"
        context.touch()
        return torch.ones(8)

    seen(uuid="of-a-container")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(torch, "zeros", zeros)
    assert default_device(print) == "cuda"
    assert context.exists()
    place = GpuPlace("cuda")
    assert (place.warning, describe_gpu("cuda", find_accelerator).circumstances["gpu_driver"]) == ("", "580.1")
    assert busy(states("0"), processes("0")) != ""


def test_a_gpu_that_pytorch_was_not_built_for_is_not_measured_unasked(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(_size: int, *, device: str) -> torch.Tensor:
        raise RuntimeError(f"CUDA error: no kernel image is available for {device}\nCUDA kernel errors might be")

    seen()
    monkeypatch.setattr(torch, "zeros", zeros)
    told: list[str] = []
    assert default_device(told.append) == "cpu"
    (sentence,) = told
    assert sentence.endswith("computes nothing on it: CUDA error: no kernel image is available for cuda")


def test_a_known_gpu_is_the_bundled_accelerator(seen: Seen) -> None:
    seen(uuid="8d2f", L2_cache_size=60 * 2**20)
    gpu = describe_gpu("cuda:1", find_accelerator)
    assert gpu.is_known
    assert gpu.accelerator == find_accelerator("h200-sxm-141gb")
    assert (gpu.device, gpu.label, gpu.node.gpus) == ("cuda:1", "GPU-8d2f", 2)
    assert gpu.precisions == ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
    assert gpu.circumstances["gpu"] == "NVIDIA H200"
    assert gpu.cache_bytes == 60 * 2**20


def test_an_unknown_gpu_is_described_by_its_properties(seen: Seen) -> None:
    """A GeForce RTX 4090 D: 128 multiprocessors of 128 lanes at 2.52 GHz, 384 bit at 10.501 GHz doubled."""
    seen(name="NVIDIA GeForce RTX 4090 D", total_memory=24564 * 2**20, major=8, minor=9, multi_processor_count=128,
         clock_rate=2520000, memory_clock_rate=10501000, memory_bus_width=384)  # fmt: skip
    gpu = describe_gpu("cuda", lambda _name: None)
    assert not gpu.is_known
    assert (gpu.accelerator.name, gpu.accelerator.kind, gpu.device) == ("geforce-rtx-4090-d", "gpu", "cuda:0")
    assert gpu.accelerator.peak_flop_per_s["fp32"] == pytest.approx(82.6e12, rel=0.001)
    assert gpu.accelerator.memory_bytes_per_s == pytest.approx(1008e9, rel=0.001)
    assert "fp8" in gpu.precisions


def test_a_driver_that_says_little_gives_a_gpu_all_the_same(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(name="Old", total_memory=2**31, major=3, minor=5, multi_processor_count=15)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    gpu = describe_gpu("cuda:1", lambda _name: None)
    assert (gpu.label, gpu.cache_bytes, gpu.precisions) == ("5", 0, ("fp32",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert describe_gpu("cuda:1", lambda _name: None).label == "1"


def test_a_gpu_that_is_not_there_is_refused(seen: Seen) -> None:
    with pytest.raises(MissingPackageError, match=r"^--device must be a device that PyTorch sees, got 'cuda'"):
        check_gpu("cuda")
    seen()
    assert (check_gpu("cuda"), check_gpu("cuda:1")) == (0, 1)
    with pytest.raises(ParameterError, match=r"^--device must be cuda:0 to cuda:1, got 'cuda:2'"):
        check_gpu("cuda:2")
    with pytest.raises(ParameterError, match="cuda:INDEX"):
        check_gpu("gpu")
