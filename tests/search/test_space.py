from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.configuration import MODES, Configurations
from planner.domain.request import SpaceRequest
from planner.errors import ParameterError, Refusal, UnknownNameError
from planner.search import block
from planner.search.exhaustive import Rules
from planner.search.ranking import ABOVE_WINDOW, BELOW_WINDOW, Order
from planner.search.space import Limits, space_of


def by_mode(**largest: int) -> dict[tuple[str, str], int]:
    """Return the largest sub-batch of each precision, the same in both modes."""
    return {(name, mode): most for name, most in largest.items() for mode in MODES}


LIMITS = Limits(
    "small", 5, 4, by_mode(fp32=7, fp16=9, int8=9), {"int8": Refusal("precision_unmeasured", "not measured")}
)


def candidates_of(request: SpaceRequest, limits: Limits = LIMITS) -> Configurations:
    chunks = [chunk.rows for chunk in space_of(request, limits).chunks()]
    zero = np.zeros(0, dtype=np.int64)
    nothing = Configurations(zero, zero, zero, zero, zero, zero, precisions=("fp32",))
    return Configurations.joined(chunks) if chunks else nothing


def rows_of(configurations: Configurations) -> set[tuple[int | str, ...]]:
    c = configurations
    columns = (c.nodes, c.gpus_per_node, c.sub_batch, c.accumulation_steps, c.precision, c.mode)
    found = [tuple(int(value) for value in row) for row in zip(*columns, strict=True)]
    assert len(set(found)) == len(found), "a candidate stands twice"
    return {(*row[:4], c.precisions[row[4]], MODES[row[5]]) for row in found}


@pytest.mark.parametrize("mode", MODES)
def test_defaults_are_all_nodes_all_gpus_and_sub_batches_to_the_largest_that_fits(mode: str) -> None:
    request = SpaceRequest(40).changed(mode=(mode,), tolerance_sync=0.5, precision=("fp16", "fp32"))
    c = candidates_of(request)
    assert set(c.nodes.tolist()) == {1, 2, 3, 4, 5}
    assert set(c.gpus_per_node.tolist()) == {4}
    for precision, largest in (("fp32", 7), ("fp16", 9)):
        assert set(c.sub_batch[c.precision == c.precisions.index(precision)].tolist()) == set(range(1, largest + 1))
    assert mode == "sync" or set(c.accumulation_steps.tolist()) == {1}


@given(st.integers(1, 300), st.floats(0, 1.5), st.sets(st.integers(1, 4), min_size=1), st.sets(st.integers(1, 5)))
def test_solved_accumulation_is_exactly_what_the_window_holds(
    target: int, tolerance: float, gpus: set[int], nodes: set[int]
) -> None:
    request = SpaceRequest(target).changed(
        tolerance_sync=tolerance,
        nodes=tuple(nodes) or None,
        gpus_per_node=tuple(gpus),
        sub_batch=(1, 2, 3, 5, 7),
        precision=("fp32",),
    )
    low, high = request.window("sync")
    c = candidates_of(request)
    inside = (c.synchronous_mini_batch >= low) & (c.synchronous_mini_batch <= high)
    expected = {
        (n, g, s, a, "fp32", "sync")
        for n in nodes or range(1, 6)
        for g in gpus
        for s in (1, 2, 3, 5, 7)
        for a in range(1, int(high) + 1)
        if low <= n * g * s * a <= high
    }
    assert rows_of(c.take(inside)) == expected


@given(st.integers(1, 300), st.floats(0, 0.3), st.sampled_from([None, (1,), (2, 3, 7)]), st.integers(0, 8))
def test_near_are_the_nearest_on_either_side_of_the_window(
    target: int, tolerance: float, steps: tuple[int, ...] | None, largest: int
) -> None:
    request = SpaceRequest(target).changed(
        tolerance_sync=tolerance, sub_batch=(3, 7), accumulation_steps=steps, precision=("fp32",)
    )
    low, high = request.window("sync")
    slack = 1e-9 * target  # the ends of a window are rounded
    below: dict[tuple[int | str, ...], float] = {}
    above: dict[tuple[int | str, ...], float] = {}
    for nodes, sub_batch in itertools.product(range(1, 6), (3, 7)):
        sizes = {a: nodes * 4 * sub_batch * a for a in steps or range(1, int(high) + 3)}
        misses = steps or not any(low - slack <= size <= high + slack for size in sizes.values())
        for a, size in sizes.items() if misses and sub_batch <= largest else ():
            row = (nodes, 4, sub_batch, a, "fp32", "sync")
            below |= {row: target - size} if size < low - slack else {}
            above |= {row: size - target} if size > high + slack else {}
    near = list(space_of(request, LIMITS).near(target, np.full((1, 2), largest)))
    for reason, sides in ((BELOW_WINDOW, below), (ABOVE_WINDOW, above)):
        found = [rows for why, rows in near if why == reason]
        best = {row for row, away in sides.items() if away == min(sides.values())}
        assert (rows_of(Configurations.joined(found)) if found else set()) == best


@given(st.permutations([1, 2, 3, 5]), st.permutations(["fp32", "fp16"]), st.permutations(list(MODES)))
def test_order_and_repetition_of_values_do_not_matter(nodes: Any, precisions: Any, modes: Any) -> None:
    def flat(request: SpaceRequest) -> list[list[int]]:
        c = candidates_of(request)
        return [x.tolist() for x in (c.nodes, c.sub_batch, c.accumulation_steps, c.precision, c.mode)]

    shuffled = SpaceRequest(30).changed(nodes=(*nodes, 2), precision=tuple(precisions), mode=tuple(modes))
    plain = SpaceRequest(30).changed(nodes=(1, 2, 3, 5), precision=("fp32", "fp16"), mode=MODES)
    assert flat(shuffled) == flat(plain)


@given(st.integers(1, 200), st.floats(0, 1), st.sampled_from([None, (1,), (2, 4)]), st.integers(1, 50))
def test_count_is_the_number_of_candidates_whatever_the_chunk(
    target: int, tolerance: float, accumulation: tuple[int, ...] | None, chunk: int
) -> None:
    request = SpaceRequest(target).changed(
        tolerance_sync=tolerance, accumulation_steps=accumulation, precision=("fp32", "fp16", "int8"), mode=MODES
    )
    whole = space_of(request, LIMITS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "CHUNK", chunk)
        parts = list(whole.chunks())
        counted = space_of(request, LIMITS).candidates
    assert all(part.size <= chunk for part in parts)
    assert set().union(*map(rows_of, parts)) == rows_of(candidates_of(request))
    assert counted == sum(part.size for part in parts) + sum(whole.refused().values())


def test_refused_precisions_are_counted_and_not_enumerated() -> None:
    request = SpaceRequest(16).changed(tolerance_async=1, mode=("async",), precision=("fp32", "int8"))
    whole = space_of(request, LIMITS)
    of_int8 = 5 * (9 // 4)  # whose sub-batches are multiples of 4
    assert {str(why): n for why, n in whole.refused().items()} == {"precision int8: not measured": of_int8}
    assert whole.precisions == ("fp32",)
    assert whole.candidates == 5 * 7 + of_int8


def test_refused_modes_are_counted_and_not_enumerated() -> None:
    limits = replace(LIMITS, refused_modes={"async": Refusal("mode", "no host terms")})
    whole = space_of(SpaceRequest(16).changed(mode=MODES, accumulation_steps=(1,), precision=("fp32", "int8")), limits)
    assert {(why.code, str(why)): n for why, n in whole.refused().items() if "window" not in why.code} == {
        ("mode", "mode async: no host terms"): 5 * (7 + 9 // 4),
        ("precision", "precision int8: not measured"): 5 * (9 // 4),
    }
    assert {mode for *_, mode in rows_of(Configurations.joined([chunk.rows for chunk in whole.chunks()]))} == {"sync"}


def test_modes_have_limits_of_their_own() -> None:
    limits = replace(LIMITS, largest_sub_batch={("fp32", "sync"): 2, ("fp32", "async"): 3})
    c = candidates_of(SpaceRequest(16).changed(mode=MODES, tolerance_sync=0.5, precision=("fp32",)), limits)
    assert {mode: int(c.sub_batch[c.mode == i].max()) for i, mode in enumerate(MODES)} == {"sync": 2, "async": 3}
    rules = Rules.of(SpaceRequest(16), limits, ("fp32",), Order("epoch-time", 16, has_dataset=True))
    assert rules.fits(replace(c, sub_batch=np.full(c.size, 3))).tolist() == c.is_async.tolist()


@pytest.mark.parametrize(
    ("asked", "fp32"),
    [
        (tuple(range(1, 12)), range(1, 23)),
        ((8,), (8,)),
        ((3, 8), (3, 8, 13)),
        ((2, 4, 6), range(2, 13, 2)),
        (None, range(1, 15)),
    ],
)
def test_scenario_doubles_the_largest_sub_batch_of_fp32_ranges_alone(asked: Any, fp32: Any) -> None:
    limits = Limits("small", 1, 1, by_mode(fp32=7, fp16=9), {}, sub_batch_factor=2)
    request = SpaceRequest(1000).changed(sub_batch=asked, precision=("fp32", "fp16"), mode=("async",))
    c = candidates_of(request, limits)
    assert c.sub_batch[c.precision == 0].tolist() == list(fp32)
    assert c.sub_batch[c.precision == 1].tolist() == list(asked or range(1, 10))


def test_one_stands_for_a_network_of_which_no_sample_fits() -> None:
    c = candidates_of(
        SpaceRequest(8).changed(precision=("fp32",), mode=("async",)), Limits("s", 2, 1, by_mode(fp32=0), {})
    )
    assert c.sub_batch.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"nodes": (100,)}, "nodes must be from 1 to the 5 of cluster small, got 100"),
        ({"gpus_per_node": (1, 9)}, "GPUs per node must be from 1 to the 4 of cluster small, got 9"),
        ({"nodes": (0, 1)}, "nodes must be from 1 to the 5 of cluster small, got 0"),
        ({"sub_batch": (-3,)}, "sub-batch must be from 1 to "),
        ({"accumulation_steps": ()}, "accumulation must be at least one value, got ()"),
        ({"nodes": ()}, "nodes must be at least one value"),
        ({"precision": ()}, "precision must be at least one value"),
        ({"mode": ()}, "mode must be at least one value"),
        ({"tolerance_sync": float("nan")}, "the sync tolerance must be "),
        ({"tolerance_async": -0.1, "mode": ("async",)}, "the async tolerance must be "),
        ({"target_batch": 0}, "the target batch must be "),
        ({"top": 0}, "top must be "),
    ],
)
def test_values_are_refused_by_name(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(sentence)):
        space_of(SpaceRequest(8).changed(**fields), LIMITS)


def test_unknown_words_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="mode must be a known name, got 'asink'; did you mean 'async'"):
        space_of(SpaceRequest(8).changed(mode=("asink",)), LIMITS)
    with pytest.raises(UnknownNameError, match="fp16"):
        space_of(SpaceRequest(8).changed(precision=("fp-16",)), LIMITS)


def test_spaces_of_any_size_are_counted() -> None:
    limits = Limits("vast", 10**6, 1, by_mode(fp32=10), {})
    fields: dict[str, Any] = {"sub_batch": tuple(range(1, 102)), "accumulation_steps": tuple(range(1, 1001))}
    whole = space_of(SpaceRequest(10**6).changed(precision=("fp32",), **fields), limits)
    assert whole.candidates == 10**6 * 101 * 1000
    divisors = [n for n in range(1, 10**6 + 1) if 10**6 % n == 0]
    assert whole.inside == sum(10**6 // (n * s) <= 1000 for n in divisors for s in range(1, 102) if 10**6 // n % s == 0)


def test_wide_windows_are_counted() -> None:
    whole = space_of(
        SpaceRequest(10**8).changed(precision=("fp32",), tolerance_sync=0.9), Limits("v", 4, 1, by_mode(fp32=10), {})
    )
    ends = [(-(-(10**7) // unit), 19 * 10**7 // unit) for n in range(1, 5) for s in range(1, 11) for unit in [n * s]]
    assert whole.inside == sum(last - first + 1 for first, last in ends)


def test_edges_of_the_window_belong_to_it() -> None:
    request = SpaceRequest(100).changed(
        tolerance_sync=0.07, nodes=(1,), gpus_per_node=(1,), sub_batch=(1,), precision=("fp32",)
    )
    c = candidates_of(request)  # 100 x (1 - 0.07) is a little under 93 in binary, 100 x 1.07 is 107
    assert c.accumulation_steps.tolist() == np.arange(93, 108).tolist()
