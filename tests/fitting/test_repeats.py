"""Samples judged before a fit by each other: contradictions told from spreads."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from planner.domain.samples import INPUT_COLUMNS, Samples
from planner.fitting.screening import contradictions, repeated, runs_apart, undisputed


def timed(*times: tuple[float, float], **other: Any) -> Samples:
    """Return one call timed several times: (time, spread)."""
    rows: list[Mapping[str, Any]] = [
        {"kind": "gemm", "m": 8, "n": 8, "k": 8, "time_s": t, "spread_s": s, **other} for t, s in times
    ]
    return Samples.from_rows(rows, {})


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (((1.0, 0.0), (1.09, 0.0)), ()),  # a tenth is allowed whatever the spread
        (((1.0, 0.0), (1.11, 0.0)), ((0, 1),)),
        (((1.0, 0.03), (1.2, 0.04)), ()),  # hypot 0.05, five times that is 0.25
        (((1.0, 0.03), (1.26, 0.04)), ((0, 1),)),
        (((1.0, np.nan), (1.49, 0.0)), ()),
        (((1.0, np.nan), (1.51, np.nan)), ((0, 1),)),
    ],
)
def test_times_of_a_call_may_differ_by_their_spread(
    times: tuple[tuple[float, float], ...], expected: tuple[tuple[int, int], ...]
) -> None:
    assert contradictions(timed(*times)) == expected
    assert contradictions(timed(*reversed(times))) == tuple((b, a) for a, b in expected)


def test_fastest_and_slowest_are_named_the_worst_call_first() -> None:
    other = timed((2.0, 0.0), (8.0, 0.0), library="other")
    both = timed((3.0, 0.0), (1.0, 0.0), (2.0, 0.0)).joined(other)
    assert contradictions(both) == ((3, 4), (1, 0))
    assert repeated(both) == 3


def test_no_rows_contradict_nothing() -> None:
    none = timed((1.0, 0.0)).select(np.array([False]))
    nothing = np.zeros(0, dtype=np.bool_)
    assert (contradictions(none), repeated(none)) == ((), 0)
    assert undisputed(none, nothing).size == 0
    assert runs_apart(none, nothing.astype(np.int64), nothing) is None


@pytest.mark.parametrize("column", ["library", "source", "precision", "direction", "trans_a", "call", "device"])
def test_other_circumstances_are_another_call(column: str) -> None:
    both = timed((1.0, 0.0)).joined(timed((9.0, 0.0), **{column: "x"}))
    assert (contradictions(both), repeated(both)) == ((), 0)


@pytest.mark.parametrize("column", ["group", "notes"])
def test_where_a_row_is_held_out_makes_no_other_call(column: str) -> None:
    both = timed((1.0, 0.0)).joined(timed((9.0, 0.0), **{column: "x"}))
    assert (contradictions(both), repeated(both)) == (((0, 1),), 1)


def runs(*times: Sequence[float], kind: str = "gemm") -> tuple[Samples, Any]:
    """Return the times of calls in several runs, a sequence a run, and each row's run."""
    columns = INPUT_COLUMNS.get(kind, ("m", "n", "k"))
    rows: list[Mapping[str, Any]] = [
        {"kind": kind, **dict.fromkeys(columns, 8 + call), "time_s": t, "spread_s": 0.0}
        for own in times
        for call, t in enumerate(own)
    ]
    return Samples.from_rows(rows, {}), np.repeat(np.arange(len(times)), [len(own) for own in times])


@pytest.mark.parametrize(
    ("times", "disturbed", "expected"),
    [
        ((1.0, 1.05), (False, False), (True, True)),
        ((2.0, 1.0), (False, False), (False, True)),
        ((2.0, 1.0), (False, True), (True, False)),  # the undisturbed one, though it is slower
        ((2.0, 1.0), (True, True), (False, True)),
        ((2.0, 1.0, 1.08, 1.9), (True, False, False, True), (False, True, True, False)),
    ],
)
def test_rows_that_agree_with_the_best_of_their_call_are_kept(
    times: tuple[float, ...], disturbed: tuple[bool, ...], expected: tuple[bool, ...]
) -> None:
    samples = timed(*((one, 0.0) for one in times)).joined(timed((9.0, 0.0), library="other"))
    assert undisputed(samples, np.array([*disturbed, True])).tolist() == [*expected, True]


@pytest.mark.parametrize(
    ("ratios", "is_gross"),
    [
        ([1.4] * 10, False),
        ([1.6] * 10, True),
        ([1 / 1.6] * 10, True),
        ([1.0] * 8 + [2.9] * 2, False),
        ([1.0] * 8 + [3.1] * 2, True),
        ([1.0] * 9 + [3.1], False),  # one call in ten
        ([1.9] * 2, False),  # too few for a median
        ([3.1], True),
        ([], False),
    ],
)
def test_runs_contradict_each_other_grossly_or_not(ratios: list[float], *, is_gross: bool) -> None:
    samples, of_run = runs([2.0] * 10, [2.0 * one for one in ratios])
    quiet = np.zeros(samples.size, dtype=np.bool_)
    found = runs_apart(samples, of_run, quiet)
    assert (found is not None) == is_gross
    if found is not None:
        assert found.common == len(ratios)
        assert found.far == sum(one > 3 for one in ratios)
        assert samples.time_s[found.slow] / samples.time_s[found.fast] == pytest.approx(
            max(*ratios, *(1 / one for one in ratios))
        )
    assert runs_apart(samples, np.zeros_like(of_run), quiet) is None


def test_disturbed_rows_and_storage_contradict_no_run() -> None:
    samples, of_run = runs([1.0] * 5, [9.0] * 5)
    quiet = timed(*[(1.0, 0.0)]).select(np.array([False])).joined(runs([1.0] * 5)[0])
    both, disturbed = samples.joined(quiet), np.array([False] * 5 + [True] * 5 + [False] * 5)
    assert runs_apart(both, np.append(of_run, [1] * 5), disturbed) is None
    assert runs_apart(both, np.append(of_run, [1] * 5), ~disturbed) is not None
    for kind in INPUT_COLUMNS:
        samples, of_run = runs([1.0] * 5, [9.0] * 5, kind=kind)
        assert runs_apart(samples, of_run, np.zeros(10, dtype=np.bool_)) is None


@pytest.mark.parametrize("kind", INPUT_COLUMNS)
def test_storage_and_links_may_take_any_time(kind: str) -> None:
    rows: list[Mapping[str, Any]] = [
        {"kind": kind, **dict.fromkeys(INPUT_COLUMNS[kind], 8), "time_s": t, "spread_s": 0.0} for t in (1e-9, 1e-3, 9.0)
    ]
    assert contradictions(Samples.from_rows(rows, {})) == ()
