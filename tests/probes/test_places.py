"""A GPU's place with all that needs a GPU made up: its driver, its bench."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner.domain.cluster import Accelerator, Node
from planner.errors import MissingPackageError, ParameterError
from planner.probes import bench as benches
from planner.probes import calibrate
from planner.probes.bench import usable_bytes, usable_now
from planner.probes.calibrate import CpuPlace, GpuPlace, measure_device, place_of
from planner.probes.gpu import Gpu
from planner.probes.machine import GpuState
from planner.probes.points import gpu_points
from planner.probes.steps import StepTimes

MakeBench = Callable[..., Any]
PRECISIONS = ("fp32", "tf32", "bf16", "int8")
CARD = Accelerator("card", "gpu", 80 * 2.0**30, 1e12, dict.fromkeys(PRECISIONS, 1e13), 100, "stated")
SLOW = GpuState("580.1", 1.5e9, 2.6e9, 70.0, 600.0, 1.0, 1e9, 80e9, ("power limit",))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, fake_bench: MakeBench) -> dict[str, Any]:
    """Return what the made-up GPU shows; a test may change it before a place is made."""
    shown: dict[str, Any] = {"known": True, "before": (GpuState("580.1"),), "others": (), "during": [], "refused": {}}
    shown["usable"] = 0.5 * CARD.memory_bytes

    def bench(*_given: object) -> Any:
        made = fake_bench()
        made.refused = Counter(shown["refused"])
        return made

    def describe(device: str, known: Callable[[str], Accelerator | None]) -> Gpu:
        known(CARD.name)
        node = Node(4, CARD)
        facts = {"gpu": "A card", "gpu_driver": "580.1"}
        return Gpu(device, "GPU-1", PRECISIONS, 50 * 2**20, shown["known"], CARD, node, facts)

    @contextlib.contextmanager
    def watched(_label: str) -> Iterator[list[GpuState]]:
        seen: list[GpuState] = []
        yield seen
        seen += shown["during"]

    monkeypatch.setattr(calibrate, "describe_gpu", describe)
    monkeypatch.setattr(calibrate, "first_look", lambda _label: (shown["before"], shown["others"]))
    monkeypatch.setattr(calibrate, "watched", watched)
    monkeypatch.setattr(calibrate, "cuda_bench", bench)
    monkeypatch.setattr(calibrate, "usable_now", lambda _device: shown["usable"])
    monkeypatch.setattr(calibrate, "host_times", lambda _bench: {"host_s_per_call": 4.123456e-6})
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _device: 123)

    def steps(*_given: object, **named: object) -> StepTimes:
        shown["steps"] = named
        return StepTimes()

    monkeypatch.setattr(calibrate, "timed_steps", steps)
    return shown


def test_a_gpu_is_measured_in_its_own_design_and_precisions(card: dict[str, Any], tmp_path: Path) -> None:
    said: list[str] = []
    place = place_of("cuda:0", lookup=lambda _name: CARD)
    made = measure_device(place, 1000.0, resume=tmp_path / "partial", say=said.append)
    assert place.points() == gpu_points(PRECISIONS)
    assert set(made.samples.text["precision"].tolist()) == set(PRECISIONS)
    assert set(made.samples.text["device"].tolist()) == {"card"}
    assert card["steps"] == {"device": "cuda:0", "precisions": PRECISIONS, "left_out": (), "needs": {}}
    found = made.samples.circumstances
    assert (found["host_s_per_call"], found["gpu_driver"], found["gpu"]) == ("4.123e-06", "580.1", "A card")
    assert [key for key in found if key.startswith("warning")] == ["warning_steps"]  # none was timed
    assert (made.accelerator, made.node.gpus, said) == (CARD, 4, [])


def test_an_unknown_gpu_gets_the_rates_that_were_measured(card: dict[str, Any]) -> None:
    card["known"] = False
    made = measure_device(place_of("cuda"), 1000.0)
    assert made.accelerator.source == "measured: best matrix product, best copy of more than 128 MiB"
    assert set(made.accelerator.peak_flop_per_s) == set(PRECISIONS)
    rows = made.samples.select(made.samples.text["kind"] == "gemm")
    rates = 2 * rows.number["m"] * rows.number["n"] * rows.number["k"] * rows.number["batch"] / rows.time_s
    best = float(rates[rows.text["precision"] == "bf16"].max())
    assert made.accelerator.peak_flop_per_s["bf16"] == pytest.approx(best)
    assert made.node.accelerator == made.accelerator


def test_a_busy_or_throttled_gpu_is_told_and_marked(card: dict[str, Any]) -> None:
    card.update(others=(7,), during=[SLOW], refused={"memory": 3, "kernel": 1})
    said: list[str] = []
    made = measure_device(place_of("cuda"), 100.0, say=said.append)
    found = made.samples.circumstances
    assert said == [found["warning_busy"], found["left_out"], found["warning_throttled"]]
    assert "1 other process" in said[0]
    assert said[1].endswith("3 do not fit the memory, 1 have no kernel in the library")
    assert "power limit" in said[2]
    assert (found["gpu_throttle"], found["gpu_temperature_c"], found["gpu_peak_memory_bytes"]) == (
        "power limit", "70", "123"
    )  # fmt: skip


def test_precisions_asked_for_are_measured_alone_and_others_refused(card: dict[str, Any]) -> None:
    assert card["known"]
    assert place_of("cuda", ("bf16",)).precisions == ("fp32", "bf16")
    assert place_of("cuda", ("fp32",)).precisions == ("fp32",)
    assert place_of("cpu", ("bf16", "int8")).precisions == ("fp32", "bf16", "int8")
    assert place_of("cpu").precisions == ("fp32",)
    with pytest.raises(ParameterError, match="fp16"):
        place_of("cuda", ("fp16",))
    with pytest.raises(ParameterError, match="tf32"):
        place_of("cpu", ("tf32",))


def test_calls_of_networks_stay_within_the_share_of_the_free_memory(card: dict[str, Any]) -> None:
    extent = GpuPlace("cuda").extent()
    assert (extent.sub_batches, extent.precisions, extent.on_gpu) == ((1, 8, 64), PRECISIONS, True)
    assert 4 * extent.elements == 0.5 * card["usable"]
    assert extent.operand_elements == 1 << 28
    card["usable"] = 2e9
    less = GpuPlace("cuda").extent()
    assert (less.operand_elements, less.elements) == (int(0.12 * 2e9 / 4), int(0.5 * 2e9 / 4))
    here = CpuPlace().extent()
    assert (here.sub_batches, here.on_gpu) == ((1, 16), False)


def test_biases_of_convolutions_are_part_of_their_calls_on_a_cpu_alone(card: dict[str, Any]) -> None:
    assert card["known"]
    assert (CpuPlace().circumstances["contained"], GpuPlace("cuda").circumstances["contained"]) == (
        "bias", "linear_bias"
    )  # fmt: skip


def test_a_cpu_is_measured_in_bf16_and_int8_when_asked(fake_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "CpuBench", fake_bench)
    monkeypatch.setattr(calibrate, "timed_steps", lambda *_given, **_named: StepTimes())
    made = measure_device(CpuPlace(("bf16", "int8")), 250.0)
    assert set(made.samples.text["precision"].tolist()) == {"fp32", "bf16", "int8"}
    assert set(made.accelerator.peak_flop_per_s) == {"fp32", "bf16", "int8"}


def test_without_cuda_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: False))
    with pytest.raises(MissingPackageError, match=r"^--device must be a device that PyTorch sees, got 'cuda'"):
        place_of("cuda")


def test_what_may_be_taken_follows_from_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [8 * 2**30]

    def mem_get_info(_device: str) -> tuple[int, int]:
        if not free:
            raise RuntimeError("CUDA error: out of memory")
        return free.pop(), 80 * 2**30

    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(benches, "why_no_kernel", lambda _torch, _device: "")
    assert usable_now("cuda:0") == usable_bytes(8 * 2**30, 80 * 2**30) < usable_bytes(80 * 2**30, 80 * 2**30) / 9
    with pytest.raises(ParameterError, match="cuda:0: CUDA error: out of memory"):
        usable_now("cuda:0")
