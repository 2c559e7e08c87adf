"""What ``planner calibrate`` measures for, and when that is enough."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.catalog import find_accelerator, find_network
from planner.costs.measured_calls import DOUBLINGS_BEYOND, MEASURED_S
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Node
from planner.domain.kernels import BACKWARD_DATA, DIRECTIONS, FORWARD
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import LOOKED_UP, Network, Point
from planner.domain.samples import BUDGET, FREE_CIRCUMSTANCES, NETWORKS, Samples
from planner.errors import CoverageError
from planner.fitting.calibration import fit_calibration
from planner.formats.calibration import CALIBRATION
from planner.probes.calibrate import CpuPlace, Measurement, Own, Place
from planner.probes.layer_points import GPU_SUB_BATCHES, Extent, layer_points
from planner.probes.points import designed_points, gpu_points
from planner.probes.run import Goal
from planner.sessions import measure
from planner.sessions.measure import Request, Session, needed_kernels
from planner.sources.layer_calls import LayerCalls
from planner.workload.calls import distinct_calls, lower
from planner.workload.shards import tensor_shard

Run = Callable[..., tuple[int, str, str]]
Instruments = dict[str, Any]
CPU = Accelerator("cpu-made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
ROWS: list[Mapping[str, Any]] = [
    {"kind": "copy", "direction": "forward", "precision": "fp32", "device": CPU.name, "elements": n, "traffic": 2 * n,
     "fixed_bytes": 0, "time_s": 2e-6 + 8e-10 * n}
    for n in (2**at for at in range(8, 24))
]  # fmt: skip
COPIES = Samples.from_rows(ROWS, {})


@pytest.fixture(autouse=True)
def _quick(instruments: Instruments) -> None:
    """Let copies be all that is needed, and no fit be timed."""
    instruments["needed_kernels"] = lambda: (("copy", "forward"),)
    instruments["expected_fit_s"] = lambda *_given: 1.0


@pytest.mark.parametrize(
    ("expected", "words"),
    [("0.04", "is reached; steps are expected to miss by 4.0%"), ("0.06", "is not reached: a larger --budget goes on")],
)
def test_whether_the_target_error_is_reached_is_said(
    expected: str, words: str, run: Run, instruments: Instruments
) -> None:
    aims: list[float | None] = []

    def measured(_place: object, _budget_s: float, *, goal: Goal, **_named: object) -> Measurement:
        aims.append(goal.target_error)
        samples = COPIES
        circumstances = {**samples.circumstances, "expected_error": expected}
        return Measurement(replace(samples, circumstances=circumstances), (), CPU, Node(1, CPU))

    instruments["measure"] = measured
    code, _, err = run("calibrate", "--target-error", "5%", "--out", "fit.json")
    assert (code, aims) == (0, [0.05])
    assert f"planner: target error 5.0% {words}" in err
    assert CALIBRATION.read("fit.json").environment["expected_error"] == expected


def test_without_networks_the_bundled_ones_are_wanted_and_their_layers_come_last(
    run: Run, instruments: Instruments
) -> None:
    found: list[Goal] = []

    def measured(_place: object, _budget_s: float, *, goal: Goal, **_named: object) -> Measurement:
        found.append(goal)
        return Measurement(COPIES, (), CPU, Node(1, CPU))

    instruments["measure"] = measured
    assert run("calibrate", "--out", "fit.json")[0] == 0
    (goal,) = found
    layers = {point.call.layer.kind for point in goal.later if point.call}
    assert {"convolution", "linear", "attention", "embedding", "batch_norm", "layer_norm"} <= layers
    assert goal.target_error is None
    points = designed_points()
    chooser = goal.chooser((*points, *goal.later))
    needed = {kind for kind, _ in needed_kernels()} - {"bias"}
    first = set(chooser.start())
    started = [(point.kind, point.direction) for point in points if point.name in first]
    assert needed - {"activation", "gelu"} <= {kind for kind, _ in started}
    for direction in (FORWARD, BACKWARD_DATA):  # fused, which no bundled network asks for by itself
        assert started.count(("attention", direction)) == 6


def test_shards_of_transformers_are_timed_for_predictions_of_them(run: Run, instruments: Instruments) -> None:
    """Of each degree; without being asked for, a shard's products are not there, its normalisations are."""
    name = "gpt:heads=4,hidden=32,layers=1,sequence=8,vocabulary=50"
    shard = tensor_shard(find_network(name), 2)

    def measured(_place: object, _budget_s: float, *, own: Own, **_named: object) -> Measurement:
        assert [network.name for network in own.networks] == [name, "mlp"]  # no steps of shards, which need their ranks
        rows: list[Mapping[str, Any]] = [
            {"kind": p.kind, "direction": p.direction, "precision": "fp32", "device": CPU.name, "library": "pytorch",
             **p.work, "call": p.call.name, "sub_batch": p.sub_batch, "time_s": 1e-3, "spread_s": 1e-5}
            for p in own.points if p.call
        ]  # fmt: skip
        return Measurement(COPIES.joined(Samples.from_rows(rows, {})), (), CPU, Node(1, CPU))

    instruments["measure"] = measured
    for degrees, is_held in (((), False), (("--tensor-parallel", "1,2"), True)):
        out = f"own{len(degrees)}.json"
        code, _, err = run("calibrate", "--network", name, "--network", "mlp", *degrees, "--out", out)
        assert code == 0, err
        held = LayerCalls(shard, (CALIBRATION.read(out),), optimizer="adam", convolution="direct", precision="fp32")
        whole = [one for one in lower(shard, np.array([1]), optimizer="adam") if one.kind != "bias"]
        assert all(held.covers(calls) for calls in whole) == is_held
        assert held.covers(next(calls for calls in whole if calls.kind == "layer_norm"))


@pytest.fixture
def few_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let networks of every kind stand for the bundled ones, whose hundreds of layers take long to choose from."""
    few = tuple(map(find_network, ("alexnet", "mobilenet-v2", "bert-base", "gpt2", "gpt:attention=fused")))
    monkeypatch.setattr(measure, "_bundled", lambda *_device: few)
    monkeypatch.setattr(measure, "_bundled_layers", lambda *device: layer_points(distinct_calls(few), device[-1]))


class Card(CpuPlace):
    """A GPU's place with all that needs a GPU made up."""

    def __init__(self) -> None:
        super().__init__()
        rates = {"fp32": 1e13, "fp16": 4e13}
        self.accelerator = Accelerator("card", "gpu", 80 * 2.0**30, 1e12, rates, 100, "stated")
        self.precisions = ("fp32", "fp16")

    def points(self) -> tuple[Point, ...]:
        """Return the design of a GPU."""
        return gpu_points(self.precisions)

    def extent(self) -> Extent:
        """Return that of a large GPU."""
        return Extent(GPU_SUB_BATCHES, self.precisions, 1 << 30, 1 << 31)


@pytest.mark.usefixtures("few_bundled")
def test_on_a_gpu_too_the_layers_of_bundled_networks_come_last(
    instruments: Instruments, session: Callable[[], Session], tmp_path: Path
) -> None:
    """In all its precisions, at its sub-batches; the design holds none of them, and both may be chosen from."""
    found: list[tuple[Place, Goal]] = []

    def measured(place: Place, _budget_s: float, *, goal: Goal, **_named: object) -> Measurement:
        found.append((place, goal))
        return Measurement(COPIES, (), CPU, Node(1, CPU))

    instruments["place_of"] = lambda *_given: Card()
    instruments["measure"] = measured
    measure.measured(Request(60.0, device="cuda"), tmp_path / "partial.jsonl", session())
    measure.measured(Request(60.0, (find_network("mlp"),), device="cuda"), tmp_path / "partial.jsonl", session())
    (place, goal), (_, of_one) = found
    assert of_one.later == ()
    assert {point.precision for point in goal.later} == {"fp32", "fp16"}
    convolutions = [point for point in goal.later if point.kind == "convolution" and point.precision == "fp16"]
    assert {point.sub_batch for point in convolutions} == {1, 8, 64}
    assert not {point.name for point in goal.later} & {point.name for point in place.points()}
    chooser = goal.chooser((*place.points(), *goal.later))
    chooser.learn({point.name: 1e-4 for point in place.points()})
    assert chooser.choose([point.name for point in goal.later], 1.0, 30.0)


def test_further_precisions_lengthen_the_fit_by_the_points_that_they_have(
    instruments: Instruments, session: Callable[[], Session], tmp_path: Path
) -> None:
    """Not as much as if each had all that fp32 has, and as much less as fewer points are fitted."""
    found: list[tuple[float, Goal]] = []

    def measured(_place: Place, budget_s: float, *, goal: Goal, **_named: object) -> Measurement:
        found.append((budget_s, goal))
        return Measurement(COPIES, (), CPU, Node(1, CPU))

    instruments["place_of"] = lambda *_given: Card()
    instruments["expected_fit_s"] = lambda _accelerator, times: 100 * times
    instruments["measure"] = measured
    measure.measured(Request(1000.0, device="cuda"), tmp_path / "partial.jsonl", session())
    kept_s = 100 * len(gpu_points(("fp32", "fp16"))) / len(gpu_points(("fp32",)))
    assert 120 < kept_s < 160
    ((budget_s, goal),) = found
    assert 1000 - 60 < budget_s <= 1000
    points = len(gpu_points(("fp32", "fp16")))
    assert goal.kept_s(points) == pytest.approx(kept_s)
    assert goal.kept_s(10 * points) == 400, "networks' calls are fitted too, and take a share of the budget at most"
    assert goal.kept_s(0) == pytest.approx(0.3 * kept_s)
    assert goal.kept_s(points // 2) == pytest.approx(0.65 * kept_s, rel=0.01)


@pytest.mark.usefixtures("few_bundled")
@pytest.mark.parametrize("names", [("mlp",), ()])
def test_precisions_that_are_asked_for_come_on_top_of_fp32(
    names: tuple[str, ...], instruments: Instruments, session: Callable[[], Session], tmp_path: Path
) -> None:
    """What is measured first has products of all of them."""
    found: list[tuple[Place, Own, Goal]] = []

    def measured(place: Place, _budget_s: float, *, own: Own, goal: Goal, **_named: object) -> Measurement:
        found.append((place, own, goal))
        return Measurement(COPIES, (), CPU, Node(1, CPU))

    instruments["measure"] = measured
    asked = Request(60.0, tuple(map(find_network, names)), ("bf16", "int8"))
    measure.measured(asked, tmp_path / "partial.jsonl", session())
    ((place, own, goal),) = found
    points = (*own.points, *place.points(), *goal.later)
    by_name, chooser = {point.name: point for point in points}, goal.chooser(points)
    started = [by_name[name] for name in chooser.start()]
    counts = Counter((point.precision, point.direction) for point in started if point.kind == "gemm")
    assert counts == {
        (precision, way): 12 for precision in ("fp32", "bf16", "int8") for way in DIRECTIONS[:3]
        if (precision, way) != ("int8", DIRECTIONS[2])
    }  # fmt: skip
    chooser.learn({})
    chosen = chooser.choose([point.name for point in points], 30.0, math.inf)
    assert {by_name[name].precision for name in chosen} == {"fp32", "bf16", "int8"}


@pytest.mark.parametrize(
    ("names", "said"), [((), None), (("mlp",), "mlp"), (("mlp:hidden=256", "vgg16"), "mlp:hidden=256; vgg16")]
)
def test_measurements_name_the_networks_that_they_were_made_for(
    names: tuple[str, ...], said: str | None, instruments: Instruments, session: Callable[[], Session], tmp_path: Path
) -> None:
    made = Measurement(replace(COPIES, circumstances={"threads": "1"}), (), CPU, Node(1, CPU))
    instruments["measure"] = lambda *_given, **_named: made
    networks = tuple(find_network(name) for name in names)
    found = measure.measured(Request(60.0, networks), tmp_path / "partial.jsonl", session()).samples
    assert found.circumstances == {"threads": "1"} | ({NETWORKS: said, BUDGET: "60"} if said else {})
    assert {BUDGET, NETWORKS} <= FREE_CIRCUMSTANCES


@pytest.mark.parametrize(
    ("arguments", "gpus", "asked"),
    [
        ((), 0, ("cpu", ())),
        ((), 1, ("cuda", ())),
        (("--precision", "fp16"), 1, ("cuda", ("fp16",))),
        (("--device", "cpu"), 1, ("cpu", ())),
        (("--precision", "bf16,int8"), 0, ("cpu", ("bf16", "int8"))),
        (("--device", "cuda:1"), 2, ("cuda:1", ())),
        (("--device", "cuda", "--precision", "fp16"), 1, ("cuda", ("fp16",))),
        (("--device", "cuda", "--precision", "fp32"), 1, ("cuda", ("fp32",))),
    ],
)
def test_device_and_precisions_are_those_asked_for_else_a_gpu_if_there_is_one(
    arguments: tuple[str, ...], gpus: int, asked: tuple[str, tuple[str, ...]], run: Run, instruments: Instruments
) -> None:
    """A place with all that needs a GPU made up stands in for that of a GPU, which is not here; looked for once."""
    found: list[tuple[str, tuple[str, ...]]] = []
    looked: list[object] = []

    def counted(say: Callable[[str], object]) -> str:
        looked.append(say)
        return "cuda" if gpus else "cpu"

    def place_of(
        device: str, precisions: tuple[str, ...], known: Callable[[str], Accelerator | None], threads: int
    ) -> Place:
        assert threads == 1
        assert known("t4") == find_accelerator("t4")
        assert known("geforce-rtx-4090-d") is None
        found.append((device, precisions))
        return CpuPlace() if device == "cpu" else Card()

    def measured(place: Place, _budget_s: float, **_named: object) -> Measurement:
        assert isinstance(place, CpuPlace)
        return Measurement(COPIES, (), CPU, Node(1, CPU))

    instruments["check_gpu"] = lambda _device: 0
    instruments["default_device"] = counted
    instruments["place_of"] = place_of
    instruments["measure"] = measured
    code, _, err = run("calibrate", *arguments, "--out", "fit.json")
    assert (code, found, len(looked)) == (0, [asked], int("--device" not in arguments))
    assert err.startswith(f"planner: measuring {'this CPU' if asked[0] == 'cpu' else 'this card'} for ")


def test_products_of_8_bits_need_serve_no_step() -> None:
    """A network of one linear layer, whose kernels are measured in fp32 alone."""
    layers = (Layer("fc", "linear", (INPUT,), {"features": 64, "bias": False}),)
    network = Network("one-linear", (64,), layers, optimizer="none")
    sizes = ((m, n, k) for m in (8, 64, 256) for n in (8, 64, 256) for k in (8, 64, 256))
    rows: list[Mapping[str, Any]] = [
        {"kind": "gemm", "direction": direction, "precision": "fp32", "device": CPU.name, "m": m, "n": n, "k": k,
         "batch": 1, "time_s": 1e-6 + 2e-11 * m * n * k}
        for m, n, k in sizes for direction in DIRECTIONS
    ]  # fmt: skip
    calibration = fit_calibration(Samples.from_rows(rows, {}), "here", CPU, Node(1, CPU))
    for precisions in ((), ("fp32",), ("int8",)):
        measure.check_served(calibration, Node(1, CPU), Request(60.0, (network,), precisions), print)
    with pytest.raises(CoverageError, match=r"too few timings of gemm \(forward, backward weight\) in bf16; what was"):
        measure.check_served(calibration, Node(1, CPU), Request(60.0, (network,), ("int8", "bf16")), print)
    halves = replace(calibration, entries=tuple(replace(one, precision="bf16") for one in calibration.entries))
    with pytest.raises(CoverageError, match=r"too few timings of gemm \(forward, backward weight\); what was"):
        measure.check_served(halves, Node(1, CPU), Request(60.0, (network,), ("bf16",)), print)


@pytest.mark.parametrize("are_timed", [True, False])
def test_no_budget_is_named_for_what_is_timed_in_fp32_alone(*, are_timed: bool) -> None:
    """Products of 392 MiB: with 16 bits on a CPU they are left to fits in these at any budget."""
    layers = (Layer("fc", "linear", (INPUT,), {"features": 4096, "bias": False}),)
    network = Network("one-linear", (25088,), layers, optimizer="none")
    product = Entry("kernels", "gemm", "", "fp32", "", "work.linear", {}, {"calls": 1e-6, "mac": 1e-12, "bytes": 1e-12})
    tables = [
        replace(product, direction=call.direction, term=LOOKED_UP, settings={call.name: (1.0, 1e-3, 16.0, 1e-2)},
                coefficients={MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0})
        for call in distinct_calls([network])
    ]  # fmt: skip
    entries = (product, replace(product, precision="bf16"), *(tables if are_timed else tables[1:]))
    calibration, asked = Calibration("made-up", CPU.name, entries), Request(60.0, (network,), ("bf16",))
    notes: list[str] = []
    measure.check_served(calibration, Node(1, CPU), asked, notes.append, ("fp32", "bf16"))
    said = "3 of the 4 calls of the networks are left to fits; with --budget 120s more of them are timed"
    assert notes == ([] if are_timed else [said])


@pytest.mark.parametrize("of_networks", [True, False])
def test_what_is_missing_in_precisions_that_nobody_asked_for_is_said(*, of_networks: bool) -> None:
    """A GPU is measured in all that it has; of 8 bits products alone, which serve no step."""
    layers = (Layer("fc", "linear", (INPUT,), {"features": 64, "bias": False}),)
    network = Network("one-linear", (64,), layers, optimizer="none")
    product = Entry("kernels", "gemm", "", "fp32", "", "work.linear", {}, {"calls": 1e-6, "mac": 1e-12, "bytes": 1e-12})
    calibration = Calibration("made-up", CPU.name, (product, replace(product, precision="fp16")))
    precisions = ("fp32", "tf32", "fp16", "int8")
    notes: list[str] = []
    if of_networks:
        measure.check_served(calibration, Node(1, CPU), Request(60.0, (network,)), notes.append, precisions)
    else:
        measure.check_complete(calibration, [("gemm", FORWARD)], Request(60.0), notes.append, precisions)
    said = [note for note in notes if "too few" in note]
    assert [line.partition(" (")[0] for line in said] == ["tf32 has too few timings of gemm"]
    assert "; --budget 120s takes more" in said[0]


def test_every_kernel_that_is_missing_is_said_by_kind() -> None:
    empty = Calibration("none", CPU.name, ())
    with pytest.raises(CoverageError) as caught:
        measure.check_complete(empty, needed_kernels(), Request(15.0), print)
    sentence = str(caught.value)
    assert "too few timings of convolution, gemm (all three directions); activation, add, attention, " in sentence
    assert "; bias, embedding (forward, backward weight); copy (backward data); update; what was" in sentence
    assert {kind for kind, _ in needed_kernels() if kind.replace("_", " ") not in sentence} == set()
    assert "more" not in sentence
