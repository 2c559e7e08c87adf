"""Which precisions can be priced, which are candidates, and what a step in 8 bits is made of."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.domain.prediction import Prediction
from planner.domain.provenance import DERIVED
from planner.domain.request import Problem, Scenario
from planner.errors import CoverageError
from planner.sources.sources import Sources, candidate_precisions, check_candidate, check_precision, why_not_precision
from planner.steps.predict import Evaluator

Make = Callable[..., Problem]
PEAKS = {"fp32": 1e12, "bf16": 4e12, "fp8": 8e12, "int8": 8e12}
LINEAR = Network(
    "plain",
    (3, 4, 4),
    (
        Layer("flat", "flatten", ("input",)),
        Layer("a", "linear", ("flat",), {"features": 9, "bias": False}),
        Layer("b", "linear", ("a",), {"features": 9, "bias": False}),
    ),
)
DIRECTIONS = ("forward", "backward_data", "backward_weight")


def kernel(kind: str, direction: str = "", precision: str = "any", rate: float = 1.0, **keys: Any) -> Entry:
    term, name = ("flop.rate", "flop") if kind in ("gemm", "convolution") else ("work.linear", "work")
    coefficients = {name: rate} if name == "flop" else {"calls": 0.0, name: rate}
    return Entry("kernels", kind, direction, precision, "", term, {}, coefficients, **keys)


def of(*entries: Entry, **keys: Any) -> Calibration:
    return Calibration("own", "toy", entries, **keys)


@pytest.fixture
def able(accelerator: Accelerator, cluster: Cluster) -> Cluster:
    """Nodes of a device with 8 bits."""
    return replace(cluster, node=Node(4, replace(accelerator, peak_flop_per_s=PEAKS)))


def described(problem: Problem, precision: str) -> Prediction:
    return Evaluator(problem).describe(Configurations.of([Configuration(1, 1, 8, precision=precision)]))[0]


def test_a_precision_that_the_device_lacks_or_a_named_calibration_has_not_cannot_be_priced(
    make_problem: Make, able: Cluster
) -> None:
    sources = Sources(make_problem(cluster=able))
    assert {name: why_not_precision(sources, name) for name in PEAKS} == dict.fromkeys(PEAKS)
    assert str(why_not_precision(sources, "fp16")) == "toy does not have fp16"
    named = Sources(make_problem(calibrations=(of(kernel("pointwise")),), explicit_calibration=True))
    assert str(why_not_precision(named, "fp32")).startswith("kernel gemm forward in fp32 must be covered")


def test_a_precision_that_cannot_be_priced_is_answered_with_those_that_can(make_problem: Make, able: Cluster) -> None:
    """In 8 bits only what was measured is offered."""
    sources = Sources(make_problem(cluster=able, calibrations=()))
    offer = r"can be priced \(fp32, bf16\), got 'fp16': toy does not have fp16; ask for --precision fp32 or bf16$"
    with pytest.raises(CoverageError, match=offer):
        check_precision(sources, "fp16")
    for precision in PEAKS:
        check_precision(sources, precision)


def test_a_cpu_that_was_not_measured_in_a_precision_is_not_said_to_lack_it(
    make_problem: Make, accelerator: Accelerator, cluster: Cluster
) -> None:
    """Of a CPU the precisions that were measured are known, and PyTorch trains in bf16 on all."""
    cpu = replace(accelerator, kind="cpu", peak_flop_per_s={"fp32": 1e11})
    sources = Sources(make_problem(cluster=replace(cluster, node=Node(1, cpu))))
    for precision in ("bf16", "int8"):
        command = rf"`planner calibrate --device cpu --network NAME --precision {precision}`"
        with pytest.raises(
            CoverageError, match=rf"toy was not measured in {precision}; ask for --precision fp32, or .* {command}$"
        ):
            check_precision(sources, precision)
    with pytest.raises(CoverageError, match=r"toy was not measured in fp16; ask for --precision fp32$"):
        check_precision(sources, "fp16")


MEASURED = [kernel("gemm", direction, "fp8") for direction in DIRECTIONS]


@pytest.mark.parametrize("entries", [MEASURED, [kernel("gemm", "", "fp8", origin="published")]])
def test_fp8_is_a_candidate_where_its_products_were_measured(
    make_problem: Make, able: Cluster, entries: list[Entry]
) -> None:
    sources = Sources(make_problem(network=LINEAR, cluster=able, calibrations=(of(*entries),)))
    assert candidate_precisions(sources)["fp8"] is None
    check_candidate(sources, "fp8")


@pytest.mark.parametrize(
    "entries", [[], [kernel("gemm", "", "bf16")], MEASURED[:2], [kernel("gemm", "", "fp8", origin="specified")]]
)
def test_fp8_is_else_one_by_the_data_sheet_alone(make_problem: Make, able: Cluster, entries: list[Entry]) -> None:
    sources = Sources(make_problem(network=LINEAR, cluster=able, calibrations=(of(*entries),)))
    sentence = (
        "no gemm in fp8 was measured on toy: measure with `planner calibrate --device cuda --precision fp8`, or take "
        "the data sheet's word with --allow-specified"
    )
    assert str(candidate_precisions(sources)["fp8"]) == sentence
    with pytest.raises(CoverageError, match=r"got 'fp8': no gemm .*; ask for --precision fp32 or bf16$"):
        check_candidate(sources, "fp8")
    assert candidate_precisions(sources, allow_specified=True)["fp8"] is None
    check_candidate(sources, "fp8", allow_specified=True)


def test_int8_needs_products_and_convolutions_that_the_network_has(
    make_problem: Make, able: Cluster, network: Network
) -> None:
    """`planner calibrate` times the products; weight gradients run in 16 bits and need none in int8."""
    products = [kernel("gemm", direction, "int8") for direction in DIRECTIONS[:2]]
    measured = of(*products, kernel("pointwise"))
    plain = Sources(make_problem(network=LINEAR, cluster=able, calibrations=(measured,)))
    assert candidate_precisions(plain, allow_lossy=True)["int8"] is None
    convolving = Sources(make_problem(network=network, cluster=able, calibrations=(measured,)))
    assert "no convolution in int8 was measured on toy: measure with `planner calibrate --samples DIR`" in str(
        candidate_precisions(convolving, allow_lossy=True)["int8"]
    )
    both = of(*measured.entries, *(kernel("convolution", direction, "int8") for direction in DIRECTIONS[:2]))
    whole = Sources(make_problem(network=network, cluster=able, calibrations=(both,)))
    assert candidate_precisions(whole, allow_lossy=True)["int8"] is None
    assert "--allow-lossy" in str(candidate_precisions(whole)["int8"])


def test_a_network_without_linear_layers_is_no_candidate_in_fp8(make_problem: Make, able: Cluster) -> None:
    layer = Layer("conv", "convolution", ("input",), {"channels": 8, "kernel": 3})
    sources = Sources(make_problem(network=Network("convolving", (3, 16, 16), (layer,)), cluster=able))
    assert str(candidate_precisions(sources)["fp8"]) == "no layer of convolving runs in fp8"


def test_a_named_calibration_prices_8_bits_by_its_own_16_alone(make_problem: Make, able: Cluster) -> None:
    """Beside it no product is specified, even where that is allowed; what it holds in 16 bits tells of 8."""
    wide = kernel("gemm", "", "bf16")
    bare = make_problem(network=LINEAR, cluster=able, calibrations=(of(),), explicit_calibration=True)
    reason = candidate_precisions(Sources(bare), allow_specified=True)["fp8"]
    assert str(reason).startswith("kernel gemm forward in fp8 must be covered by a calibration of toy")
    half = replace(bare, calibrations=(of(wide, kernel("pointwise")),))
    assert candidate_precisions(Sources(half))["fp8"] is not None
    assert candidate_precisions(Sources(half), allow_specified=True)["fp8"] is None
    whole = replace(bare, calibrations=(of(wide, *MEASURED, kernel("pointwise")),))
    assert candidate_precisions(Sources(whole))["fp8"] is None


@pytest.mark.parametrize(("own", "wide", "is_derived"), [(0.1, 0.05, False), (0.2, 0.05, True), (0.2, 0.3, False)])
def test_a_fit_in_8_bits_serves_where_it_misses_by_less_than_16_bits_at_their_ratio(
    make_problem: Make, able: Cluster, own: float, wide: float, *, is_derived: bool
) -> None:
    entries = (kernel("gemm", "", "bf16", held_out_error=wide), kernel("gemm", "", "fp8", held_out_error=own))
    sources = Sources(make_problem(network=LINEAR, cluster=able, calibrations=(of(*entries),)))
    served = sources.kernel("gemm", "forward", "fp8")
    assert (served.provenance.kind == DERIVED) == is_derived
    assert (served.provenance.precision, served.calibration) == (
        ("bf16", "fp8 from own") if is_derived else ("", "own")
    )


def forward_s(problem: Problem, precision: str) -> float:
    return next(term.seconds for term in described(problem, precision).terms if term.name == "forward")


def test_each_product_takes_the_time_of_the_precision_it_runs_in(make_problem: Make, able: Cluster) -> None:
    """By hand: FLOP of the two convolutions and of the linear layer, 8 samples; all else takes no time."""
    entries = [
        kernel(kind, "", precision, rate)
        for kind in ("convolution", "gemm")
        for precision, rate in (("bf16", 2e-12), ("fp8", 3e-9), ("int8", 5e-12))
    ]
    still = kernel("pointwise", rate=0.0)
    added = Entry("overheads", "generic", "", "", "", "overheads", {}, {"exponent": 1.0})
    problem = make_problem(
        cluster=able, calibrations=(of(*entries, still, added),), settings=Settings(input="synthetic"),
        scenario=Scenario("no launches of casts", host_factor=1e-9),
    )  # fmt: skip
    convolutions, linear = 2 * 8 * 16 * 16 * 8 * 9 * (3 + 8), 2 * 8 * 512 * 10
    assert forward_s(problem, "bf16") == pytest.approx(2e-12 * (convolutions + linear))
    assert forward_s(problem, "fp8") == pytest.approx(2e-12 * convolutions + 3e-9 * linear)
    first = convolutions * 3 / 11  # reads three channels, and stays in 16 bits
    assert forward_s(problem, "int8") == pytest.approx(2e-12 * first + 5e-12 * (convolutions - first + linear))
    backward_s = {
        precision: next(t.seconds for t in described(problem, precision).terms if t.name == "backward")
        for precision in ("bf16", "int8")
    }
    data = 2 * 8 * 16 * 16 * 8 * 9 * 8 + linear  # nothing is passed back to the input
    assert backward_s["int8"] - backward_s["bf16"] == pytest.approx((5e-12 - 2e-12) * data)


@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_without_measurements_8_bits_are_answered_from_16_at_the_ratio_of_the_peaks(
    make_problem: Make, able: Cluster, precision: str
) -> None:
    measured = of(kernel("gemm", "", "bf16", 1e-12), kernel("pointwise"))
    found = described(make_problem(network=LINEAR, cluster=able, calibrations=(measured,)), precision)
    (word,) = [one.message for one in found.warnings if (one.code, one.subject) == ("specified", "toy")]
    faster = {"fp8": "1.85", "int8": "1.79"}[precision]
    sentence = f"Times of gemm ({precision}) kernels are those in bf16 divided by {faster}, without casts; "
    assert word.startswith(sentence)
    assert found.iteration_s.low is not None
    assert found.iteration_s.high is not None
    assert found.iteration_s.low < found.iteration_s.value < found.iteration_s.high
