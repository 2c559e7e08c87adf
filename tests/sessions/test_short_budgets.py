"""``planner calibrate`` with too little time: what is kept for the fit, and what is said to be missing."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import find_calibration
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import Samples
from planner.errors import CoverageError
from planner.probes.calibrate import CpuPlace, Measurement, Place
from planner.probes.points import designed_points
from planner.probes.run import Goal, Measured, start_file
from planner.sessions import measure
from planner.sessions.measure import Request, Session, needed_kernels

Run = Callable[..., tuple[int, str, str]]
Instruments = dict[str, Any]
CPU = Accelerator("cpu-made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
NOTHING = Samples.from_rows([], {})


def test_a_fit_is_kept_no_more_than_a_part_of_the_budget_for(
    instruments: Instruments, session: Callable[[], Session], tmp_path: Path
) -> None:
    kept: list[float] = []

    def measured(_place: Place, _budget_s: float, *, goal: Goal, **_named: object) -> Measurement:
        kept.append(goal.kept_s(10**6))
        return Measurement(NOTHING, (), CPU, Node(1, CPU))

    instruments["expected_fit_s"] = lambda *_given: 1e3
    instruments["measure"] = measured
    measure.measured(Request(50.0), tmp_path / "partial.jsonl", session())
    assert kept == [0.4 * 50.0]


def test_what_the_whole_budget_was_too_short_for_is_named_before_anything_is_fitted(
    run: Run, instruments: Instruments
) -> None:
    points = [point for point in designed_points() if point.kind in ("gemm", "activation")]

    def measured(_place: Place, _budget_s: float, **_named: object) -> Measurement:
        return Measurement(NOTHING, (), CPU, Node(1, CPU), missing=tuple(points))

    instruments["measure"] = measured
    instruments["fit"] = lambda *_given, **_named: pytest.fail("fitted")
    code, out, err = run("calibrate", "--budget", "30s", "--out", "fit.json")
    assert (code, out) == (5, "")
    assert err.endswith(
        "planner: a calibration must hold every kernel of the bundled networks, got too few timings of gemm (all three "
        "directions); activation (forward, backward data); what was measured is kept, and the same command with "
        "--budget 60s goes on from there\n"
    )


@pytest.mark.parametrize(("kind", "is_refused"), [("gemm", True), ("concat", False)])
def test_a_fit_that_is_not_used_is_as_good_as_none_where_nothing_else_serves(kind: str, *, is_refused: bool) -> None:
    def of(entry: Entry) -> Entry:
        return replace(entry, held_out_error=1.5) if entry.kind == kind else entry

    known = find_calibration("cpu-epyc-example")
    whole = replace(known, entries=tuple(map(of, known.entries)))
    refused = pytest.raises(CoverageError, match="too few timings of gemm") if is_refused else nullcontext()
    with refused:
        measure.check_complete(whole, needed_kernels(), Request(60.0), print)


@pytest.mark.parametrize(
    ("used_s", "is_kept", "is_refused"), [(3.0, False, False), (9.0, False, True), (9.0, True, False)]
)
def test_a_budget_that_loading_takes_most_of_is_refused_before_anything_is_chosen(
    used_s: float,
    instruments: Instruments,
    session: Callable[[], Session],
    tmp_path: Path,
    *,
    is_kept: bool,
    is_refused: bool,
) -> None:
    """Not where an earlier run has measured what is needed."""
    partial = tmp_path / "partial.jsonl"
    if is_kept:
        start_file(partial, {}, [Measured("a point", 1e-3, 0.0, 5, 1e-3, 1.0)])
    place = CpuPlace()
    instruments["place_of"] = lambda *_given: place
    instruments["measure"] = lambda *_given, **_named: Measurement(NOTHING, (), CPU, Node(1, CPU))
    said = "must leave time to measure, got 12 s, of which loading PyTorch took 9 s; use --budget 60s, or wait"
    with pytest.raises(CoverageError, match=said) if is_refused else nullcontext():
        measure.measured(Request(12.0), partial, session(), used_s)
