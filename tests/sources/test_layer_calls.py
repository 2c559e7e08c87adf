from dataclasses import replace

import numpy as np
import pytest

from planner.costs.measured_calls import DOUBLINGS_BEYOND, MARGIN_DOUBLINGS, MEASURED_S
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.domain.prediction import LOOKUPS, Prediction
from planner.domain.provenance import EXACT, FIT, SCALED, SCALING_CURVE
from planner.domain.request import Problem
from planner.steps.predict import Evaluator
from planner.workload.calls import layer_calls

CPU = Accelerator("made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
FITTED_S, MEASURED_AT_S = 1.0, (10.0, 40.0)
"""Of every call: by the fits, and as measured at sub-batches 1 and 16."""
NETWORK = Network(
    "two",
    (8,),
    (
        Layer("a", "linear", (INPUT,), {"features": 4, "bias": False}),
        Layer("gelu", "activation", ("a",), {"function": "gelu"}),
        Layer("relu", "activation", ("gelu",)),
        Layer("b", "linear", ("relu",), {"features": 2, "bias": False}),
    ),
)
KINDS = (("gemm", "forward"), ("gemm", "backward_data"), ("gemm", "backward_weight"),
         ("activation", "forward"), ("activation", "backward_data"))  # fmt: skip


def fitted(kind: str, direction: str, time_s: float = FITTED_S) -> Entry:
    return Entry(
        "kernels", kind, direction, "fp32", "", "work.linear", {}, {"calls": time_s, "work": 0.0}, held_out_error=0.2
    )


def in_proportion(kind: str, direction: str, error: float | None = 0.0) -> Entry:
    """Return a fit by which a call takes as long as it has work."""
    coefficients = {"calls": 0.0, "work": 1.0}
    return Entry("kernels", kind, direction, "fp32", "", "work.linear", {}, coefficients, held_out_error=error)


FITS = tuple(fitted(*key) for key in KINDS)
NOTHING_ADDED = Entry("overheads", "generic", "", "", "", "overheads", {}, {}, held_out_error=0.0)
"""Of a framework that was measured: else kernels of any error are as unsure as what is assumed of it."""


def looked_up(kind: str, direction: str, layers: set[str], precision: str = "fp32") -> Entry:
    calls = layer_calls(NETWORK, optimizer="none")[kind, direction]
    points = (1.0, MEASURED_AT_S[0], 16.0, MEASURED_AT_S[1])
    table = {call.name: points for call in calls if call.layer.name in layers}
    return Entry(
        "kernels", kind, direction, precision, "own layers", "calls.measured", table,
        {MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0},
        ranges={DOUBLINGS_BEYOND: (0.0, MARGIN_DOUBLINGS)}, held_out_error=0.02,
    )  # fmt: skip


def evaluator(*calibrations: tuple[Entry, ...]) -> Evaluator:
    made = tuple(Calibration(f"c{at}", CPU.name, entries) for at, entries in enumerate(calibrations))
    settings = Settings(optimizer="none", input="synthetic")
    cluster = Cluster("one", 1, Node(1, CPU))
    return Evaluator(Problem(NETWORK, None, cluster, made, explicit_calibration=True, settings=settings))


def forward_s(sub_batch: int, *calibrations: tuple[Entry, ...]) -> float:
    (one,) = evaluator(*calibrations).describe(Configurations.of([Configuration(1, 1, sub_batch)]))
    return next(term.seconds for term in one.terms if term.name == "forward")


@pytest.mark.parametrize(("sub_batch", "measured_s"), [(1, 10.0), (6, 20.0), (16, 40.0)])
def test_a_call_is_looked_up_and_the_others_of_its_kind_are_not(sub_batch: int, measured_s: float) -> None:
    own = looked_up("gemm", "forward", {"a"})
    assert forward_s(sub_batch, FITS) == pytest.approx(4 * FITTED_S)
    assert forward_s(sub_batch, (*FITS, own)) == pytest.approx(measured_s + 3 * FITTED_S)
    assert forward_s(sub_batch, FITS, (own,)) == pytest.approx(measured_s + 3 * FITTED_S)


@pytest.mark.parametrize(
    ("fit", "measured_s"),
    [
        (in_proportion("gemm", "forward"), 2 * 40.0),
        (in_proportion("gemm", "forward", error=1e6), 40.0 + 2 * 16),
        (in_proportion("gemm", "forward", error=None), 40.0 + 2 * 16),
        (fitted("gemm", "forward"), 40.0 + 2 * 16),
    ],
)
def test_what_is_looked_up_takes_its_scaling_curve_from_the_fit_to_its_kind(fit: Entry, measured_s: float) -> None:
    """At twice the larger sub-batch: twice the time by a sure fit in proportion, by none the line 8 + 2 n.

    A fit that is constant says 40; the bend, ln(40/72), is as far as 0.2 lets it be believed.
    """
    own = looked_up("gemm", "forward", {"a", "b"})
    found = forward_s(32, (fit, *FITS[1:], own)) / 2 - 1  # less two activations, each FITTED_S
    if fit == fitted("gemm", "forward"):
        bend = np.log(40.0 / 72.0)
        measured_s *= np.exp(bend**3 / (bend**2 + 0.2**2))
    assert found == pytest.approx(measured_s)


def test_fits_of_an_earlier_calibration_give_the_scaling_curve() -> None:
    own = looked_up("gemm", "forward", {"a", "b"})
    assert forward_s(32, (in_proportion("gemm", "forward"), *FITS[1:]), (own,)) == pytest.approx(2 * 80.0 + 2)


def test_the_scaling_curve_of_a_costly_activation_is_that_of_its_own_kind() -> None:
    own = looked_up("activation", "forward", {"gelu", "relu"})
    fits = (*FITS[:3], in_proportion("activation", "forward"), FITS[4], own)
    products = 2 * FITTED_S
    assert forward_s(32, fits) == pytest.approx(products + 2 * 80.0)
    of_its_own = (in_proportion("gelu", "forward", 1.0), *fits)
    assert forward_s(32, of_its_own) == pytest.approx(products + 80.0 + 72.0, rel=0.01)


def test_calls_of_another_precision_are_not_looked_up() -> None:
    assert forward_s(1, (*FITS, looked_up("gemm", "forward", {"a"}, "bf16"))) == pytest.approx(4 * FITTED_S)


def test_costly_activations_have_a_kind_of_their_own_where_it_was_measured() -> None:
    assert forward_s(1, (*FITS, fitted("gelu", "forward", 7.0))) == pytest.approx(3 * FITTED_S + 7.0)


def test_a_network_all_of_whose_calls_were_measured_needs_no_fit() -> None:
    every = tuple(looked_up(*key, {"a", "gelu", "relu", "b"}) for key in KINDS)
    assert forward_s(16, every) == pytest.approx(4 * 40.0)


def described(entries: tuple[Entry, ...], sub_batch: int) -> Prediction:
    (one,) = evaluator(entries).describe(Configurations.of([Configuration(1, 1, sub_batch)]))
    return one


def described_of(own: tuple[Entry, ...], scaled: tuple[Entry, ...], *, sub_batch: int) -> Prediction:
    """Return a prediction by entries of the device and, behind them, entries scaled from another."""
    problem = evaluator(own, scaled).problem
    first, second = problem.calibrations
    problem = replace(
        problem,
        calibrations=(first, replace(second, made_from=replace(second.provenance, kind=SCALED, device="another"))),
    )
    (one,) = Evaluator(problem).describe(Configurations.of([Configuration(1, 1, sub_batch)]))
    return one


def words(one: Prediction, code: str) -> list[str]:
    return [warning.message for warning in one.warnings if warning.code == code]


def test_the_answer_says_what_share_was_looked_up() -> None:
    own = looked_up("gemm", "forward", {"a"})
    one = described((*FITS, own), 16)
    backward = 2 + 3  # products and activations, each FITTED_S
    (word,) = words(one, "own_layers")
    assert word.startswith(f"{40 / (40 + 3 + backward):.1%} of the kernel time was measured with the layers of two")
    assert not words(described(FITS, 16), "own_layers")


@pytest.mark.parametrize(
    ("sub_batch", "where"),
    [
        (1, "as exact calls"),
        (16, "as exact calls"),
        (2, "between measured sub-batches"),
        (15, "between measured sub-batches"),
        (17, "beyond the measured sub-batches"),
        (32, "beyond the measured sub-batches"),
    ],
)
def test_the_answer_tells_exact_calls_from_those_between_and_beyond(sub_batch: int, where: str) -> None:
    every = tuple(looked_up(*key, {"a", "gelu", "relu", "b"}) for key in KINDS)
    (word,) = words(described(every, sub_batch), "own_layers")
    assert word == f"100.0% of the kernel time was measured with the layers of two themselves, {where}."


@pytest.mark.parametrize(("sub_batch", "kinds"), [(1, {EXACT}), (6, {SCALING_CURVE}), (32, {SCALING_CURVE})])
def test_provenance_tells_measured_calls_from_their_scaling_curves(sub_batch: int, kinds: set[str]) -> None:
    every = (*(looked_up(*key, {"a", "gelu", "relu", "b"}) for key in KINDS), NOTHING_ADDED)
    terms = described(every, sub_batch).terms
    assert {one.kind for term in terms for one in term.provenance if term.name != "update"} - {FIT} == kinds
    own = looked_up("gemm", "forward", {"a", "b"})
    first, second = sorted(own.settings)
    table = {first: (1.0, 5.0, 8.0, 30.0), second: (1.0, 3.0, 16.0, 18.0)}
    both = described((*FITS, replace(own, settings=table)), 8).terms
    assert {one.kind for term in both for one in term.provenance} >= {EXACT, SCALING_CURVE, FIT}


def test_the_answer_gives_the_share_of_each() -> None:
    """Of two calls one was measured at the very sub-batch, or does not depend on it; the other on both sides."""
    own = looked_up("gemm", "forward", {"a", "b"})
    first, second = sorted(own.settings)
    at_8 = (1.0, 5.0, 8.0, 30.0, 16.0, 40.0)
    for points, time_s in ((at_8, 30.0), ((1.0, 30.0), 30.0)):
        table = {first: points, second: (1.0, 3.0, 15.0, 17.0)}
        (word,) = words(described((*FITS, replace(own, settings=table)), 8), "own_layers")
        total = time_s + 10.0 + 2 + 5  # the other activations, and backward, each FITTED_S
        assert f"themselves, {time_s / total:.1%} as exact calls and {10 / total:.1%} between measured" in word


def test_every_answer_gives_the_shares_of_the_kernel_time_by_lookup() -> None:
    """Forward: a product at, between or beyond 1 and 16 samples, or fitted; one of another GPU; and specified ones."""
    assert described(FITS, 8).kernel_shares == dict.fromkeys(LOOKUPS, 0.0) | {"regression": 1.0}
    own, specified = looked_up("gemm", "forward", {"a"}), replace(fitted("activation", "forward"), origin="specified")
    others = tuple(fit for fit in FITS if fit.key[1:3] not in (("gemm", "forward"), ("activation", "forward")))
    scaled, bend = (fitted("gemm", "forward", 5.0),), np.log(40.0 / 72.0)
    beyond_s = 72.0 * np.exp(bend**3 / (bend**2 + 0.2**2))  # a fit that is constant bends the line 8 + 2 n
    for sub_batch, where, time_s in ((16, "exact", 40.0), (6, "between", 20.0), (32, "beyond", beyond_s)):
        shares = described_of((*others, own, specified), scaled, sub_batch=sub_batch).kernel_shares
        seconds = {where: time_s, "regression": 5.0, "sibling": 5.0, "specification": 2.0}
        total = sum(seconds.values())
        assert shares == pytest.approx(dict.fromkeys(LOOKUPS, 0.0) | {by: s / total for by, s in seconds.items()})


def test_what_is_specified_of_another_device_is_still_specified() -> None:
    sheet = tuple(replace(fit, origin="specified") for fit in FITS)
    assert described_of((), sheet, sub_batch=8).kernel_shares["specification"] == 1.0


def test_more_than_a_doubling_beyond_is_said() -> None:
    every = tuple(looked_up(*key, {"a", "gelu", "relu", "b"}) for key in KINDS)
    assert not words(described(every, 32), "extrapolated")
    assert words(described(every, 40), "extrapolated")


def test_what_is_looked_up_has_a_narrower_interval() -> None:
    every = tuple(looked_up(*key, {"a", "gelu", "relu", "b"}) for key in KINDS)
    own, fits = (described((*entries, NOTHING_ADDED), 8).iteration_s for entries in (every, FITS))
    widths = [np.log((one.high or np.inf) / (one.low or np.inf)) for one in (own, fits)]
    assert widths[0] < 0.3 * widths[1]


def test_every_doubling_beyond_the_measured_sub_batches_adds_as_much_to_the_interval() -> None:
    every = tuple(looked_up(*key, {"a", "gelu", "relu", "b"}) for key in KINDS)
    widths = []
    for sub_batch in (12, 16, 32, 64, 128):
        period = described((*every, NOTHING_ADDED), sub_batch).iteration_s
        widths.append(np.log((period.high or np.inf) / (period.low or np.inf)))
    assert np.array(widths) / widths[0] == pytest.approx([1, 1, 2, 3, 4], rel=1e-6)


def test_arrays_and_descriptions_agree() -> None:
    entries = (*FITS, looked_up("gemm", "forward", {"a"}), looked_up("activation", "backward_data", {"gelu"}))
    wanted = Configurations.of([Configuration(1, 1, size) for size in (1, 3, 16, 50)])
    found = evaluator(entries).evaluate(wanted).iteration_s
    said = [one.iteration_s.value for one in evaluator(entries).describe(wanted)]
    assert found.tolist() == pytest.approx(said)


def test_an_earlier_calibration_serves_a_call_that_two_hold() -> None:
    own = looked_up("gemm", "forward", {"a"})
    longer = replace(own, settings=dict.fromkeys(own.settings, (1.0, 99.0)))
    assert forward_s(1, (*FITS, own), (longer,)) == pytest.approx(10.0 + 3 * FITTED_S)
