from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from planner.domain.network import Network
from planner.probes import steps as module
from planner.probes.steps import (
    OWN_SUB_BATCHES,
    REFERENCE_FLOP,
    STEP_FACTOR,
    StepNeed,
    StepTimes,
    probe_networks,
    timed_steps,
)
from planner.probes.timing import Timing

MakeBench = Callable[..., Any]
REFERENCE_S = 0.003


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return how many samples a device holds, and the steps it was asked for; nothing is trained."""
    found: dict[str, Any] = {"most": 10**6, "refused": (), "asked": []}

    def gradient_time(
        _module: object, network: Network, sub_batch: int, _repeats: int, *, precision: str, until_s: float
    ) -> Timing:
        assert until_s == 100.0
        found["asked"].append((network.name, sub_batch, precision))
        if sub_batch > found["most"]:
            raise torch.OutOfMemoryError("full")
        if (network.name, precision) in found["refused"]:
            raise RuntimeError("GET was unable to find an engine to execute this computation\nat somewhere.cpp:7")
        return Timing(1e-3 * sub_batch, 0.0, 7)

    monkeypatch.setattr(module, "gradient_time", gradient_time)
    monkeypatch.setattr(module, "build_module", lambda _network, _device: torch.nn.Linear(1, 1))
    return found


def test_a_cpu_trains_in_fp32_at_two_sub_batches(fake_bench: MakeBench, held: dict[str, Any]) -> None:
    steps, failed, _ = timed_steps(fake_bench(), 1.0, 100.0)
    assert failed == ()
    assert [(s.network.name, s.sub_batch, s.precision) for s in steps] == held["asked"]
    assert {(s.sub_batch, s.precision) for s in steps} == {(1, "fp32"), (4, "fp32")}
    assert [s.network for s in steps[::2]] == list(probe_networks())


def test_every_precision_that_frameworks_train_in_is_timed(fake_bench: MakeBench, held: dict[str, Any]) -> None:
    precisions = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
    steps, _, _ = timed_steps(fake_bench(), 1.0, 100.0, probe_networks()[:1], precisions=precisions)
    assert [(s.sub_batch, s.precision) for s in steps] == [(*OWN_SUB_BATCHES["cpu"], one) for one in precisions[:4]]
    assert len(held["asked"]) == 4


def test_steps_before_a_much_faster_reference_were_disturbed(fake_bench: MakeBench, held: dict[str, Any]) -> None:
    """Two reference times a step: the machine is quiet from the end of the fourth one on, and had never been before."""
    steps, _, reference_s = timed_steps(fake_bench(slow=(0.0, 0.0225)), 3 * REFERENCE_S, 100.0)
    assert len(held["asked"]) == 2 * len(probe_networks())
    assert [(s.network.name, s.sub_batch, s.precision) for s in steps] == held["asked"][4:]
    assert reference_s == pytest.approx(REFERENCE_S)


def test_steps_beside_a_reference_that_is_a_little_slower_are_corrected_by_it(
    fake_bench: MakeBench, held: dict[str, Any]
) -> None:
    bench = fake_bench(slow=(0.0, 1e9), factor=1.4)
    steps, _, _ = timed_steps(bench, REFERENCE_S, 100.0)
    assert len(steps) == 2 * len(probe_networks())
    assert [s.time_s for s in steps] == pytest.approx([1e-3 * s.sub_batch / 1.4**0.6 for s in steps])
    assert timed_steps(fake_bench(slow=(0.0, 1e9), factor=1.6), 2.0 * REFERENCE_S / 3.0, 100.0).steps == ()
    assert held["asked"]


def test_no_network_is_begun_in_less_than_a_step_takes(held: dict[str, Any], fake_bench: MakeBench) -> None:
    """Of ten steps made, three are warm-up; the first network ends at 20 s, and a third of that is left then."""
    bench = fake_bench()

    def slow_step(*_given: Any, **_named: Any) -> Timing:
        bench.now += 10.0
        return Timing(1e-3, 0.0, 7)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "gradient_time", slow_step)
        for until_s, made in ((23.9, 2), (24.5, 3)):
            bench.now = 0.0
            steps, _, _ = timed_steps(bench, 1.0, until_s)
            assert len(steps) == made
    assert held["asked"] == []


def test_what_time_is_too_short_for_is_left_out_of_further_precisions(
    fake_bench: MakeBench, held: dict[str, Any]
) -> None:
    """Each step takes 6 ms, that of the reference before and behind it; after 10 of fp32 there is time for 5 more."""
    bench, networks = fake_bench(), probe_networks("gpu")
    bench.now = 100.0 - (len(networks) * 2 + 5) * 2 * REFERENCE_S + 1e-6
    steps, _, _ = timed_steps(bench, 1.0, 100.0, device="meta", precisions=("fp32", "tf32", "fp16"))
    assert [(s.network.name, s.sub_batch, s.precision) for s in steps] == held["asked"]
    assert held["asked"][:10] == [(network.name, size, "fp32") for network in networks for size in (1, 64)]
    first, second = networks[0].name, networks[1].name
    assert held["asked"][10:] == [
        (first, 1, "tf32"), (first, 1, "fp16"), (first, 64, "tf32"), (first, 64, "fp16"), (second, 1, "tf32"),
    ]  # fmt: skip


def test_a_step_that_does_not_fit_is_halved_until_it_does(fake_bench: MakeBench, held: dict[str, Any]) -> None:
    held["most"] = 1
    ((step,), _, _) = timed_steps(fake_bench(), 1.0, 100.0, probe_networks()[:1])
    assert (step.sub_batch, step.time_s) == (1, 1e-3)
    assert [sub_batch for _, sub_batch, _ in held["asked"]] == [2, 1]
    held["asked"].clear()
    (_, own), _, _ = timed_steps(fake_bench(), 1.0, 100.0, probe_networks()[:1], device="meta")
    assert own.sub_batch == 1
    assert [n for name, n, _ in held["asked"] if name == own.network.name] == [16, 8, 4, 2, 1]  # and 1 not again
    held["most"] = 0
    network = probe_networks()[0]
    said = f"{network.name} in fp32, as PyTorch failed: it does not fit the memory"
    assert timed_steps(fake_bench(), 1.0, 100.0, [network]) == StepTimes(failed=(said,))


def test_what_pytorch_fails_in_is_left_out_and_said_and_the_rest_is_timed(
    fake_bench: MakeBench, held: dict[str, Any]
) -> None:
    """Of a network and precision that failed no further sub-batch is tried."""
    names = [network.name for network in probe_networks()]
    held["refused"] = {(names[0], "bf16"), (names[2], "fp32")}
    steps, failed, _ = timed_steps(fake_bench(), 1.0, 100.0, precisions=("fp32", "bf16"))
    said = "as PyTorch failed: GET was unable to find an engine to execute this computation"
    assert failed == (f"{names[2]} in fp32, {said}", f"{names[0]} in bf16, {said}")
    assert Counter((s.network.name, s.precision) for s in steps) == {
        (name, precision): 2 for name in names for precision in ("fp32", "bf16")
        if (name, precision) not in held["refused"]
    }  # fmt: skip
    assert [held["asked"].count((names[0], sub_batch, "bf16")) for sub_batch in (1, 4)] == [1, 0]


def test_a_network_whose_weights_do_not_fit_is_left_out_and_said(
    fake_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(module, "build_module", full)
    network = probe_networks()[0]
    said = f"{network.name} in fp32, as PyTorch failed: it does not fit the memory"
    assert timed_steps(fake_bench(), 1.0, 100.0, [network]) == StepTimes(failed=(said,))


def test_own_networks_of_a_gpu_have_steps_of_the_host_and_of_the_device(
    fake_bench: MakeBench, held: dict[str, Any]
) -> None:
    """Every network comes in fp32 before any at the sub-batch of the host, then the other precisions, then the far."""
    first, second = probe_networks()[:2]
    block, precisions = probe_networks("gpu")[0].name, ("fp32", "bf16")
    steps, _, _ = timed_steps(fake_bench(), 1.0, 100.0, [first, second], device="meta", precisions=precisions)
    assert [(s.network.name, s.sub_batch, s.precision) for s in steps] == held["asked"]
    a, b = first.name, second.name
    assert held["asked"] == [
        (block, 1, "fp32"), (a, 16, "fp32"), (b, 16, "fp32"), (a, 1, "fp32"), (b, 1, "fp32"), (block, 1, "bf16"),
        (a, 16, "bf16"), (a, 1, "bf16"), (b, 16, "bf16"), (b, 1, "bf16"),
        (a, 64, "fp32"), (a, 64, "bf16"), (b, 64, "fp32"), (b, 64, "bf16"),
    ]  # fmt: skip


@pytest.mark.parametrize("why", ["time", "memory"])
def test_steps_of_many_samples_are_left_out_where_time_or_memory_is_too_short(
    fake_bench: MakeBench, held: dict[str, Any], why: str
) -> None:
    """64 samples take 64 ms, at least four times; each of the three steps before takes 6 ms."""
    network, bench = probe_networks()[0], fake_bench()
    if why == "memory":
        held["most"] = 8
    else:
        bench.now = 100.0 - 3 * 2 * REFERENCE_S - 4 * 64e-3 + 1e-6
    bench_again, enough = fake_bench(), 1e-3
    bench_again.now = 100.0 - 3 * 2 * REFERENCE_S - 4 * 64e-3 - enough
    steps, failed, _ = timed_steps(bench, 1.0, 100.0, [network], device="meta")
    assert ([s.sub_batch for s in steps[1:]], failed) == ([8, 1] if why == "memory" else [16, 1], ())
    if why == "time":
        steps, _, _ = timed_steps(bench_again, 1.0, 100.0, [network], device="meta")
        assert [s.sub_batch for s in steps[1:]] == [16, 1, 64]


@pytest.mark.usefixtures("held")
def test_steps_that_a_cpu_has_no_memory_or_time_for_give_way_to_those_of_the_probe_networks(
    fake_bench: MakeBench,
) -> None:
    """By the rate of the reference, and STEP_FACTOR, a sample of the slow one takes 0.25 s, four times."""
    small, large, slow = probe_networks()[:3]
    needs = {small.name: StepNeed(1e6, 9), large.name: StepNeed(1e6, 0)}
    steps, failed, _ = timed_steps(fake_bench(), REFERENCE_S, 100.0, [small, large], needs=needs)
    assert {(s.network.name, s.sub_batch) for s in steps} == {(small.name, 2)}
    assert failed == (f"{large.name}, as one sample takes more than 953.7 MiB",)
    needs = {slow.name: StepNeed(0.25 / (STEP_FACTOR * REFERENCE_S) * REFERENCE_FLOP, 9)}
    bench = fake_bench()
    bench.now = 100.0 - 0.9
    steps, failed, _ = timed_steps(bench, REFERENCE_S, 100.0, [slow], needs=needs)
    assert {s.network.name for s in steps} == {one.name for one in probe_networks()}
    assert failed == (f"{slow.name}, as one sample takes about 250 ms: give a larger --budget",)
    bench.now = 100.0 - 1.1
    steps, failed, _ = timed_steps(bench, REFERENCE_S, 100.0, [slow], needs=needs)
    assert ([(s.network.name, s.sub_batch) for s in steps], failed) == ([(slow.name, 1)], ())


def test_networks_of_a_gpu_hold_those_of_a_cpu_and_one_that_is_the_host_s() -> None:
    assert probe_networks("gpu")[1:] == probe_networks()
    tiny = probe_networks("gpu")[0]
    assert sum(layer.kind == "linear" for layer in tiny.layers) == 2
