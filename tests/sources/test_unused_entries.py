"""Entries that miss by more than 100 % are passed over."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.network import LOOKED_UP
from planner.domain.request import Problem
from planner.errors import CoverageError
from planner.sources.sources import Sources

Make = Callable[..., Problem]


def kernel(kind: str, direction: str = "", precision: str = "any") -> Entry:
    term, coefficients = (
        ("flop.rate", {"flop": 1.0}) if kind == "gemm" else ("work.linear", {"calls": 0.0, "work": 1.0})
    )
    return Entry("kernels", kind, direction, precision, "", term, {}, coefficients)


def of(*entries: Entry, name: str = "own") -> Calibration:
    return Calibration(name, "toy", entries)


@pytest.mark.parametrize(("held_out_error", "is_used"), [(None, True), (1.0, True), (1.01, False), (15.72, False)])
def test_an_entry_that_misses_by_more_than_itself_is_passed_over(
    make_problem: Make, held_out_error: float | None, *, is_used: bool
) -> None:
    """In the same calibration, then in the next one, then by the specification where that may serve."""
    poor = replace(kernel("activation"), held_out_error=held_out_error)
    first, second = of(poor, kernel("pointwise"), name="first"), of(kernel("activation"), name="second")
    for calibrations, instead in (
        ((first, second), ("pointwise", "first")),
        ((of(poor, name="first"), second), ("activation", "second")),
        ((of(poor, name="first"),), ("activation", "")),
    ):
        found = Sources(make_problem(calibrations=calibrations, explicit_calibration=True)).kernel(
            "activation", "forward", "fp32"
        )
        assert (found.entry.kind, found.calibration) == (("activation", "first") if is_used else instead)


def test_a_product_that_only_a_poor_entry_has_is_refused_with_its_name_and_error(make_problem: Make) -> None:
    poor = replace(kernel("gemm", "forward", "fp32"), held_out_error=15.72)
    problem = make_problem(calibrations=(of(poor, kernel("pointwise")),), explicit_calibration=True)
    said = "got own without it, and gemm forward of own misses rows that were left out of its fit by 1,572%;"
    with pytest.raises(CoverageError, match=said):
        Sources(problem).kernel("gemm", "forward", "fp32")
    with pytest.raises(CoverageError, match="got own without it; measure"):
        Sources(problem).kernel("gemm", "backward_data", "fp32")


def test_overheads_and_collectives_that_miss_by_more_than_themselves_are_passed_over(make_problem: Make) -> None:
    poor = Entry("overheads", "pytorch", "", "", "", "overheads", {}, {"kernel_scale": 9.0}, held_out_error=1.2)
    problem = make_problem(calibrations=(of(poor),))
    assert Sources(problem).overheads("fp32", "sync").matched == "assumed"
    better = of(replace(poor, held_out_error=0.9))
    assert Sources(replace(problem, calibrations=(better,))).overheads("fp32", "sync").kernel_scale == 9.0
    load = Entry("storage", "load", "", "", "", "storage.samples", {}, {"samples": 1.0}, held_out_error=1.2)
    here = Calibration("here", "toy", (load,), cluster=problem.cluster.name)
    assert Sources(make_problem(calibrations=(here,))).cluster_entry("storage", "load") is None


def test_calls_that_were_measured_as_they_are_need_no_fit(make_problem: Make) -> None:
    measured = Entry("kernels", "gemm", "forward", "fp32", "", LOOKED_UP, {}, {}, held_out_error=2.0)
    sources = Sources(make_problem(calibrations=(of(measured),)))
    assert sources.for_accelerator[0].entries == (measured,)
