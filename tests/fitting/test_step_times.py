"""What steps on a device that runs beside its host tell: made as the longer of both, pass by pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Node
from planner.domain.kernels import FORWARD
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.domain.samples import TimedStep
from planner.fitting.calibration import with_overheads
from planner.fitting.overheads import TimedSteps, fit_overheads
from planner.sources.overheads import EXPONENTS, exponent_name
from planner.steps.host_and_gpu import composed_s
from planner.workload.calls import lower

HOST_S = 12e-6
"""Of a call: 4 ms for the calls of NETWORK."""
LONGER = 60.0
"""An exponent at which the longer of two is all."""
SUB_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
NETWORK = Network(
    "deep",
    (64,),
    (
        *(Layer(f"l{at}", "linear", (f"l{at - 1}" if at else INPUT,), {"features": 64}) for at in range(68)),
        Layer("loss", "loss", ("l67",)),
    ),
)
GPT = catalog.find_network("gpt:layers=4,hidden=128,heads=4,sequence=64,vocabulary=1024")
BYTES = Entry("kernels", "pointwise", "", "any", "", "traffic.bytes", {}, {"calls": 0.0, "bytes": 1e-16})
FLOP = Entry("kernels", "gemm", "", "fp32", "", "flop.rate", {}, {"flop": 1.0})


def of_passes(entries: Sequence[Entry], network: Network, sub_batch: int) -> FloatArray:
    """Return kernel time [s] and calls, the rows, of forward and backward, the columns."""
    found = np.zeros((2, 2))
    for calls in lower(network, np.array([sub_batch]), optimizer="none", merged=False):
        entry = entries[calls.kind != "gemm"]
        each = np.broadcast_to(evaluate(entry, {**calls.work, "itemsize": 4.0}), (1, calls.layer.size))
        counts = np.broadcast_to(calls.count, (1, calls.layer.size))
        found[:, int(calls.direction != FORWARD)] += float((each * counts).sum()), float(counts.sum())
    return found


def device(network: Network, balance: float) -> tuple[Entry, Entry]:
    """Return entries by which kernels take what the host takes at a sub-batch."""
    kernels_s, calls = of_passes((FLOP, BYTES), network, 1).sum(axis=1)
    return replace(FLOP, coefficients={"flop": HOST_S * calls / kernels_s / balance}), BYTES


def time_s(
    entries: Sequence[Entry], network: Network, sub_batch: int, values: Mapping[str, float], exponent: float
) -> float:
    """Return the time of a step as predictions compose it [s]."""
    kernels_s, calls = of_passes(entries, network, sub_batch)
    whole = composed_s(values["kernel_scale"] * kernels_s.sum(), values["host_s_per_call"] * calls.sum(), exponent)
    return float(whole)


def steps(entries: Sequence[Entry], network: Network, sub_batches: Sequence[int], exponent: float) -> list[TimedStep]:
    known = {"kernel_scale": 1.0, "host_s_per_call": HOST_S}
    return [TimedStep(network, n, time_s(entries, network, n, known, exponent)) for n in sub_batches]


def largest_error(found: Entry, entries: Sequence[Entry], network: Network, exponent: float) -> float:
    """Return by how much the steps of all sub-batches are missed at most."""
    values, own = found.coefficients, found.coefficients[exponent_name(network)]
    measured = steps(entries, network, SUB_BATCHES, exponent)
    return max(abs(time_s(entries, network, one.sub_batch, values, own) / one.time_s - 1) for one in measured)


@pytest.mark.parametrize("balance", [12, 24, 40])
def test_of_a_host_beside_its_device_the_longer_counts(balance: float) -> None:
    """Steps at 16 are the device's time, or the host's; a sum fitted to the same steps misses others by far."""
    entries = device(NETWORK, balance)
    measured = steps(entries, NETWORK, (16, 1, 64), LONGER)
    found = fit_overheads(entries, measured)
    assert found.coefficients["exponent"] > 3
    assert largest_error(found, entries, NETWORK, LONGER) < 0.08
    assert largest_error(fit_overheads(entries, measured, waits=True), entries, NETWORK, LONGER) > 0.15
    assert found.standard_errors["exponent"] > 0
    assert found.fixed == ("host_s_per_layer", "exponent_attention")
    assert found.notes == ("drawn towards 1 and 0; exponent fitted; exponent_attention kept at the value of its family")


@pytest.mark.parametrize(("network", "exponent"), [(NETWORK, 6.0), (GPT, 1.0), (GPT, 3.0)], ids=str)
def test_a_known_exponent_comes_back(network: Network, exponent: float) -> None:
    entries = device(network, 12)
    found = fit_overheads(entries, steps(entries, network, (16, 1, 64), exponent))
    assert found.coefficients[exponent_name(network)] == exponent
    assert exponent_name(network) not in found.fixed
    assert largest_error(found, entries, network, exponent) < 0.02


@pytest.mark.parametrize(("network", "usual"), [(NETWORK, EXPONENTS["exponent"]), (GPT, 3.0)], ids=["linear", "gpt"])
@pytest.mark.parametrize("sub_batches", [(16,), (16, 4)])
def test_few_steps_keep_the_exponent_of_the_family(network: Network, usual: float, sub_batches: tuple[int]) -> None:
    """The coefficients are those that go with it: steps that were timed are met."""
    entries = device(network, 12)
    measured = steps(entries, network, sub_batches, usual)
    found = fit_overheads(entries, measured)
    assert {name: found.coefficients[name] for name in EXPONENTS} == EXPONENTS
    assert {"exponent", "exponent_attention"} < set(found.fixed)
    assert found.notes.count("kept at the value of its family") == 2
    again = [time_s(entries, network, one.sub_batch, found.coefficients, usual) for one in measured]
    assert again == pytest.approx([one.time_s for one in measured], rel=0.05)


def test_a_device_that_rules_every_step_tells_no_exponent() -> None:
    entries = device(NETWORK, 1 / 4)
    found = fit_overheads(entries, steps(entries, NETWORK, (16, 1, 64), LONGER))
    assert (found.coefficients["exponent"], found.fixed[1:]) == (
        EXPONENTS["exponent"],
        ("exponent", "exponent_attention"),
    )


def test_host_and_device_that_are_one_add_in_every_network() -> None:
    entries = device(GPT, 12)
    found = fit_overheads(entries, steps(entries, GPT, (16, 1, 64), LONGER), waits=True)
    assert {found.coefficients[name] for name in EXPONENTS} == {1.0}
    assert found.notes == "drawn towards 1 and 0; host and device are one: times add"


def test_a_fit_finds_the_least_squares() -> None:
    """Steps of any kind, also such as no overheads go with: no scale and host time of a grid has less."""
    random = np.random.default_rng(1)
    scales, hosts = np.meshgrid(np.linspace(0.5, 1.5, 101), np.geomspace(1e-7, 1e-3, 201))
    for _ in range(20):
        n = int(random.integers(2, 9))
        kernels_s, calls = 10 ** random.uniform(-4, -1, (n, 2)), random.integers(10, 600, (n, 2)).astype(float)
        noise = np.exp(random.normal(0, 0.3, n))
        times_s = noise * np.maximum(kernels_s, 10 ** random.uniform(-6, -4) * calls).sum(axis=1)
        timed = [TimedStep(NETWORK, 1, float(one)) for one in times_s]
        some = TimedSteps(timed, kernels_s, calls, np.full(n, 0.03), waits=False, host_s=0.0)
        for power in (1.0, 3.0, 6.0):
            _, _, loss = some.solved(np.ones(n, dtype=np.bool_), np.full(n, power), some.relative)
            at = composed_s(scales[..., None] * kernels_s.sum(axis=1), hosts[..., None] * calls.sum(axis=1), power)
            misses = ((at / times_s - 1) / 0.03) ** 2
            least = (misses.sum(axis=-1) + ((scales - 1) / 0.05) ** 2 + (hosts / 1e-5) ** 2).min()
            assert loss <= least


def of_a_gpu(host_s: str, kind: str = "gpu") -> Calibration:
    node = Node(1, Accelerator("made-up", kind, 1e9, 1e10, {"fp32": 1e11}))
    environment = {"host_s_per_call": host_s} if host_s else {}
    return Calibration("here", "made-up", device(NETWORK, 1 / 4), node=node, environment=environment)


@pytest.mark.parametrize(
    ("said", "kind", "measured_s"),
    [("4e-06", "gpu", 4e-6), ("4e-06; 9e-06", "gpu", 4e-6), ("20e-06", "gpu", 20e-6)]
    + [(said, "gpu", 0.0) for said in ("", "unknown", "nan", "-1", "0")]
    + [("4e-06", "cpu", 0.0)],
)
def test_the_measured_host_time_of_a_call_is_expected(said: str, kind: str, measured_s: float) -> None:
    """Under the exponent of a GPT a step that the device rules says next to nothing of its host."""
    entries = device(GPT, 1 / 64)
    one = replace(of_a_gpu(said, kind), entries=entries)
    step = TimedStep(GPT, 16, float(of_passes(entries, GPT, 16)[0].sum()))
    found = with_overheads(one, [step]).entries[-1]
    assert found.coefficients["host_s_per_call"] == pytest.approx(measured_s, abs=1e-9)
    assert found.notes.startswith(
        "drawn towards 1 and the measured host time of a call; " if measured_s else "drawn towards 1 and 0; "
    )
    if kind == "gpu":
        assert found.standard_errors["host_s_per_call"] == pytest.approx(max(measured_s, 1e-5), rel=1e-3)
