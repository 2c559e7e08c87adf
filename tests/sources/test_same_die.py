"""Calls that a same-die device was timed at: looked up there, times one ratio."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from planner.costs.measured_calls import DOUBLINGS_BEYOND, MARGIN_DOUBLINGS, MEASURED_S
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import GENERIC
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.domain.prediction import Prediction
from planner.domain.request import Problem
from planner.sources.layer_calls import (
    LEAST_COMMON,
    Ratio,
    common_ratios,
    is_same_die,
    ratio_of,
    same_die_curve,
    scaled_table,
)
from planner.steps.predict import Evaluator
from planner.workload.calls import layer_calls

MINE = Accelerator("titan-xp", "gpu", 12e9, 5e11, {"fp32": 1e13}, vendor="NVIDIA", architecture="Pascal", chip="GP102")
THEIRS = replace(MINE, name="gtx-1080ti", memory_bytes_per_s=4e11)
STRANGER = replace(THEIRS, name="p100-pcie-16gb", chip="GP100")
NETWORK = Network(
    "three",
    (8,),
    (
        Layer("a", "linear", (INPUT,), {"features": 4, "bias": False}),
        Layer("b", "linear", ("a",), {"features": 6, "bias": False}),
        Layer("c", "linear", ("b",), {"features": 2, "bias": False}),
    ),
)
THEIRS_S = {"a": (1.0, 10.0, 16.0, 40.0), "b": (1.0, 20.0, 16.0, 80.0), "c": (1.0, 30.0, 16.0, 90.0)}
RATIO = 0.5
FITTED_S = 4.0


def fits(error: float | None = 0.2) -> tuple[Entry, ...]:
    return tuple(
        Entry("kernels", "gemm", direction, "fp32", "", "work.linear", {}, {"calls": FITTED_S, "work": 0.0},
              held_out_error=error)
        for direction in ("forward", "backward_data", "backward_weight")
    )  # fmt: skip


def table(layers: str, ratio: float = 1.0, extra: Mapping[str, tuple[float, ...]] | None = None) -> Entry:
    """Return the forward products of layers, at the other's times by a ratio, with further calls by name."""
    points = {name: tuple(np.reshape(of, (-1, 2)) @ np.diag([1, ratio])) for name, of in THEIRS_S.items()}
    calls = layer_calls(NETWORK, optimizer="none")["gemm", "forward"]
    held = {call.name: tuple(np.ravel(points[call.layer.name])) for call in calls if call.layer.name in layers}
    return Entry(
        "kernels", "gemm", "forward", "fp32", "own layers", "calls.measured", {**held, **(extra or {})},
        {MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0}, ranges={DOUBLINGS_BEYOND: (0.0, MARGIN_DOUBLINGS)},
        held_out_error=0.02,
    )  # fmt: skip


def predicted(own: tuple[Entry, ...], theirs: tuple[Entry, ...], device: Accelerator = THEIRS) -> Prediction:
    calibrations = (
        Calibration("mine", MINE.name, own, node=Node(1, MINE)),
        Calibration("theirs", device.name, theirs, node=Node(1, device), warnings=("disturbed",), seen=("theirs",)),
    )
    settings = Settings(optimizer="none", input="synthetic", framework=GENERIC)
    problem = Problem(
        NETWORK, None, Cluster("one", 1, Node(1, MINE)), calibrations, explicit_calibration=True, settings=settings
    )
    (one,) = Evaluator(problem).describe(Configurations.of([Configuration(1, 1, 16)]))
    return one


def shares(one: Prediction) -> dict[str, float]:
    return {where: share for where, share in one.kernel_shares.items() if share}


def seconds(one: Prediction, name: str = "forward") -> float:
    return next(term.seconds for term in one.terms if term.name == name)


COMMON = {f"m={at} n=4 k=8n": (1.0, 8.0, 16.0, 32.0) for at in range(3)}
HALVED = dict.fromkeys(COMMON, (1.0, 4.0, 16.0, 16.0))


def test_a_call_is_the_devices_own_then_a_same_die_devices_then_fitted() -> None:
    """Own: layer a at half the other's times, as its calls in common; b from the other; c from neither."""
    one = predicted((*fits(), table("a", RATIO, HALVED)), (table("ab", extra=COMMON),))
    assert seconds(one) == pytest.approx(RATIO * 40.0 + RATIO * 80.0 + FITTED_S, rel=1e-6)
    kernels = seconds(one) + 2 * 3 * FITTED_S - FITTED_S  # there is no gradient of the input
    found = shares(one)
    assert found["exact"] == pytest.approx(20.0 / kernels)
    assert found["sibling"] == pytest.approx(40.0 / kernels)
    assert found["regression"] == pytest.approx(1 - 60.0 / kernels)


def test_between_own_sub_batches_the_same_die_device_gives_the_scaling_curve() -> None:
    """At 16 between own times at 1 and 64: half the other's, where it was timed at all three, else as without it."""
    (name, *_) = table("a").settings
    own = (*fits(), table("", RATIO, {**HALVED, name: (1.0, 5.0, 64.0, 80.0)}))

    def first_s(points: tuple[float, ...]) -> float:
        one = predicted(own, (table("", extra={**COMMON, name: points}),))
        (forward,) = (term for term in one.terms if term.name == "forward")
        # What the other device has seen goes along where it bends the curve.
        assert any("theirs" in each.seen for each in forward.provenance) == (points[2:5:2] == (16.0, 64.0))
        return seconds(one) - 2 * FITTED_S

    assert first_s((1.0, 10.0, 16.0, 70.0, 64.0, 160.0)) == pytest.approx(35.0)
    alone = seconds(predicted(own, ())) - 2 * FITTED_S
    assert alone != pytest.approx(35.0, rel=0.1)
    assert first_s((1.0, 10.0, 16.0, 70.0)) == first_s((1.0, 10.0, 64.0, 160.0)) == alone


def test_a_curve_is_known_where_the_other_device_was_timed_as_at_own_sub_batches_around() -> None:
    samples, knots = np.array([1, 2, 4, 16, 64]), np.array([2.0, 8.0, 32.0])
    points = np.array([1.0, 5.0, 2.0, 10.0, 4.0, 12.0, 8.0, 40.0, 16.0, 70.0])
    assert same_die_curve(samples, knots, points) == pytest.approx([0.5, 1.0, 0.6, np.nan, np.nan], nan_ok=True)


def test_without_enough_calls_in_common_the_fit_tells_the_ratio() -> None:
    """Fitted 4 s over 10, 40, 20 and 80 s: the median is the mean of 0.1 and 0.2."""
    one = predicted(fits(0.6), (table("ab"),))
    assert seconds(one) == pytest.approx(0.15 * (40.0 + 80.0) + FITTED_S, rel=1e-5)
    assert set(shares(one)) == {"sibling", "regression"}


def test_the_answer_names_the_other_device() -> None:
    one = predicted(fits(0.6), (table("ab"),))
    (forward,) = (term for term in one.terms if term.name == "forward")
    assert "theirs scaled from gtx-1080ti" in forward.calibration


def test_what_is_not_of_the_same_chip_serves_nothing() -> None:
    alone = predicted(fits(), ())
    for one in (
        predicted(fits(), (table("ab"),), STRANGER),
        predicted(fits(), (table("ab"),), replace(THEIRS, chip="")),
    ):
        assert (seconds(one), shares(one)) == (seconds(alone), {"regression": 1.0})


def test_a_fit_that_ratios_differ_more_than_serves_alone() -> None:
    """They differ by 0.75 on average, of which 0.5 would be a fit's and as much the ratios'."""
    assert set(shares(predicted(fits(0.55), (table("ab"),)))) == {"sibling", "regression"}
    assert shares(predicted(fits(0.5), (table("ab"),))) == {"regression": 1.0}


def test_a_same_die_devices_warnings_are_said_where_it_serves() -> None:
    for serves in (True, False):
        said = [one.message for one in predicted(fits(0.6 if serves else 0.5), (table("ab"),)).warnings]
        assert ("disturbed" in said) == serves


def test_a_fit_that_was_never_compared_with_anything_tells_no_ratio() -> None:
    assert shares(predicted(fits(None), (table("ab"),))) == {"regression": 1.0}


def own_s(ratio: Ratio | None, theirs_s: float, fitted_s: float = np.nan) -> float:
    assert ratio is not None
    return float(ratio.times_s(np.array([theirs_s]), np.array([fitted_s]))[0])


APART = np.array([0.4, 0.5, 0.5, 0.5, 1.0])
"""Each is missed by the median of the others: two of them, by 0.25 and 0.5."""
ERROR = (0.25 + 0.5) / 5
NONE = np.empty(0)


def test_a_ratio_of_times_in_common_is_as_unsure_as_they_differ() -> None:
    for ratios, value, error in (
        ([0.5] * LEAST_COMMON, 0.5, 0.0), (APART, 0.5, ERROR), ([0.5] * 3 + [1.0] * 3, 0.75, (1.0 + 0.5) / 2),
    ):  # fmt: skip
        ratio = ratio_of(np.array(ratios), NONE, None)
        assert own_s(ratio, 3.0) == own_s(ratio, 3.0, 99.0) == pytest.approx(3 * value)
        assert ratio is not None
        assert ratio.error == pytest.approx(error)


def test_without_enough_times_in_common_the_median_ratio_of_the_fit_serves() -> None:
    few = np.full(LEAST_COMMON - 1, 0.5)
    ratio = ratio_of(few, np.array([0.25, 0.3, 0.35]), 0.2)
    assert own_s(ratio, 10.0) == own_s(ratio, 10.0, 99.0) == pytest.approx(3.0)
    assert ratio is not None
    assert ratio.error == 0.2
    assert ratio_of(NONE, np.array([0.2, 0.3, 0.4]), 0.15) is None
    assert ratio_of(few, NONE, 0.2) is None


def test_times_by_the_ratio_and_by_the_fit_are_weighed_by_their_errors() -> None:
    """Twice the error, a fourth of the other's weight."""
    for fit_error, weight in ((ERROR, 0.5), (2 * ERROR, 0.2), (ERROR / 2, 0.8)):
        ratio = ratio_of(APART, NONE, fit_error)
        assert own_s(ratio, 8.0, 6.0) == pytest.approx(4.0 ** (1 - weight) * 6.0**weight)
        assert own_s(ratio, 8.0) == own_s(ratio, 8.0, 0.0) == pytest.approx(4.0)  # no fit serves this call
        assert ratio is not None
        assert ratio.error == pytest.approx(min(ERROR, fit_error))


def test_a_prediction_weighs_the_other_devices_time_with_the_fit() -> None:
    """Five of six ratios are 0.0625, one 0.1: missed by 0.0625 on average, as much as by the fit, 5 s against 4 s."""
    theirs = {f"m={at} n=4 k=8n": (1.0, 8.0, 16.0, 8.0) for at in range(3)}
    own = {**dict.fromkeys(theirs, (1.0, 0.5, 16.0, 0.5)), "m=0 n=4 k=8n": (1.0, 0.5, 16.0, 0.8)}
    one = predicted((*fits(0.0625), table("", extra=own)), (table("b", extra=theirs),))
    assert seconds(one) - 2 * FITTED_S == pytest.approx(np.sqrt(5.0 * FITTED_S), rel=1e-5)
    assert shares(one)["sibling"] > 0


def test_the_interval_is_wider_than_that_of_own_calls() -> None:
    own = predicted((*fits(), table("abc", RATIO)), ()).iteration_s
    scaled = predicted(fits(), (table("abc", RATIO),)).iteration_s
    widths = [np.log((one.high or np.inf) / (one.low or np.inf)) for one in (own, scaled)]
    assert widths[0] < widths[1]
    ratio = Ratio(0.5, 0.1)
    assert scaled_table(table("abc"), ratio, {}).held_out_error == pytest.approx(np.hypot(0.02, 0.1))


def test_times_in_common_are_of_the_very_sub_batches() -> None:
    own, theirs = {"x": (2.0, 1.0, 8.0, 3.0)}, {"x": (1.0, 5.0, 8.0, 6.0), "y": (8.0, 1.0)}
    tables = [table("", extra=of) for of in (own, {"x": (8.0, 99.0)})]
    assert common_ratios(tables, table("", extra=theirs)).tolist() == [0.5]
    assert common_ratios([], table("", extra=theirs)).size == 0


def test_a_device_is_not_its_own_same_die_device() -> None:
    assert is_same_die(Calibration("theirs", THEIRS.name, (), node=Node(1, THEIRS)), MINE)
    assert not is_same_die(Calibration("mine", MINE.name, (), node=Node(1, MINE)), MINE)
    assert not is_same_die(Calibration("theirs", THEIRS.name, ()), MINE)
