from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.collectives import (
    COLLECTIVES,
    algorithm_named,
    all_reduce_s,
    collective_s,
    parameter_server,
    ring_all_reduce,
)
from planner.costs.features import Work
from planner.costs.terms import evaluate, extrapolates
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SEND_RECEIVE, Groups
from planner.errors import CoverageError, ParameterError, UnknownNameError

NAMES = sorted(one.name for one in COLLECTIVES if one.operation == ALL_REDUCE)
BY_RANKS = [name for name in NAMES if not name.startswith("switches")]
"""Those that ranks add up, none of it in switches."""
SIZES = st.lists(st.integers(0, 2**40), min_size=1, max_size=8).map(lambda x: np.array(x, dtype=np.float64))
THETA = {"messages_inside": 3e-6, "bytes_inside": 1e-11, "messages_between": 8e-6, "bytes_between": 1e-10}
FREE_INSIDE = THETA | {"messages_inside": 0.0, "bytes_inside": 0.0, "messages_between": 0.0}


def groups(nodes: int, ranks: int, streams: float = 1.0) -> Groups:
    return Groups(np.array([nodes]), np.array([ranks]), np.array([streams]))


def entry(names: str, theta: dict[str, float] = THETA) -> Entry:
    return Entry("collectives", "all_reduce", "", "", "", "collective.alpha_beta", {"algorithms": names}, theta)


@pytest.mark.parametrize(
    ("name", "nodes", "ranks", "expected"),
    [
        ("ring", 1, 4, [6, 600, 0, 0]),
        ("ring", 4, 1, [0, 0, 6, 600]),
        ("ring", 2, 4, [12, 700, 2, 175]),
        ("recursive_doubling", 1, 8, [3, 1200, 0, 0]),
        ("recursive_doubling", 1, 6, [4, 1600, 0, 0]),
        ("recursive_doubling", 2, 4, [2, 800, 1, 400]),
        ("rabenseifner", 1, 4, [4, 600, 0, 0]),
        ("rabenseifner", 2, 4, [4, 600, 2, 100]),
        ("rabenseifner", 3, 1, [0, 0, 4, 1200]),
        ("double_binary_tree", 4, 2, [2, 800, 4, 400]),
        ("double_binary_tree", 6, 2, [2, 800, 4, 400]),
        ("hierarchical", 4, 2, [2, 400, 6, 300]),
        ("switches:intra_node", 1, 4, [6, 400 / 0.74, 0, 0]),
        ("switches:intra_node", 4, 2, [2, 400 / 0.74, 6, 350]),
        ("switches:inter_node", 4, 2, [2, 700, 4, 200 / 0.95]),
        ("switches:intra_node+inter_node", 4, 2, [2, 400 / 0.74, 4, 200 / 0.95]),
    ],
)
def test_hand_counts_of_a_buffer_of_400_bytes(name: str, nodes: int, ranks: int, expected: list[float]) -> None:
    features = algorithm_named(name).features(np.array([400.0]), groups(nodes, ranks))
    np.testing.assert_allclose(features, [[expected]])


@pytest.mark.parametrize("name", NAMES)
@given(sizes=SIZES)
def test_a_single_rank_is_free(name: str, sizes: FloatArray) -> None:
    assert not algorithm_named(name).features(sizes, groups(1, 1)).any()
    assert not all_reduce_s(entry(name), sizes, groups(1, 1)).any()


@pytest.mark.parametrize("name", BY_RANKS)
@given(v=st.floats(1, 1e12), p=st.integers(2, 4096), across=st.booleans())
def test_lower_bounds_on_equal_links(name: str, v: float, p: int, across: bool) -> None:  # noqa: FBT001 - Hypothesis
    group = groups(p, 1) if across else groups(1, p)
    messages_1, bytes_1, messages_2, bytes_2 = algorithm_named(name).features(np.array([v]), group)[0, 0]
    assert messages_1 + messages_2 >= np.ceil(np.log2(p)) - 1e-9
    assert bytes_1 + bytes_2 >= 2 * (p - 1) / p * v * (1 - 1e-12)


@pytest.mark.parametrize("name", BY_RANKS)
@given(v=st.floats(1, 1e12), n=st.integers(2, 512), r=st.integers(1, 16), nics=st.integers(1, 16))
def test_what_must_leave_a_node_passes_its_nics(name: str, v: float, n: int, r: int, nics: int) -> None:
    streams = max(1.0, r / nics)
    bytes_between = algorithm_named(name).features(np.array([v]), groups(n, r, streams))[0, 0, 3]
    assert bytes_between >= 2 * (n - 1) / n * v * streams / r * (1 - 1e-12)


@pytest.mark.parametrize("name", NAMES)
@given(sizes=SIZES, n=st.integers(1, 64), r=st.integers(1, 16))
def test_longer_messages_never_take_less_time(name: str, sizes: FloatArray, n: int, r: int) -> None:
    times = all_reduce_s(entry(name), np.sort(sizes), groups(n, r))
    assert (np.diff(times) >= 0).all()


@given(n=st.integers(1, 1000))
def test_a_message_goes_up_and_down_the_levels_of_a_tree_over_the_nodes(n: int) -> None:
    """The last of n nodes, numbered by level, has its parent at half its number."""
    levels, node = 0, n
    while node > 1:
        levels, node = levels + 1, node // 2
    assert algorithm_named("double_binary_tree").features(np.array([0.0]), groups(n, 1))[0, 0, 2] == 2 * levels


@pytest.mark.parametrize("name", ["recursive_doubling", "rabenseifner"])
def test_seven_ranks_start_no_sooner_than_eight(name: str) -> None:
    seven, eight = (algorithm_named(name).features(np.array([0.0]), groups(1, p))[0, 0, 0] for p in (7, 8))
    assert seven >= eight


def test_the_slower_link_sets_the_pace_of_a_ring_across_nodes() -> None:
    # 700 bytes inside and 175 between: equal at a ratio of 4
    sizes, group = np.array([400.0]), groups(2, 4)
    theta = {"messages_inside": 0.0, "bytes_inside": 1.0, "messages_between": 0.0}

    def time(between: float, **settings: float) -> float:
        one = entry("ring", theta | {"bytes_between": between})
        return float(all_reduce_s(replace(one, settings={**one.settings, **settings}), sizes, group)[0, 0])

    for ratio in (0.5, 3.9, 4.1, 100.0):
        assert time(ratio, beta_ratio=ratio) == pytest.approx(max(700, 175 * ratio))
        assert time(ratio) == pytest.approx(700 + 175 * ratio)


def test_sharing_a_nic_costs_bytes_and_no_messages() -> None:
    alone, shared = (ring_all_reduce(np.array([400.0]), groups(2, 4, s))[0, 0] for s in (1.0, 4.0))
    np.testing.assert_allclose(shared - alone, [0, 0, 0, 3 * 175])


@given(sizes=SIZES, n=st.integers(1, 64), r=st.integers(1, 16))
def test_least_over_the_enabled_algorithms(sizes: FloatArray, n: int, r: int) -> None:
    every = np.stack([all_reduce_s(entry(name), sizes, groups(n, r)) for name in NAMES])
    np.testing.assert_array_equal(all_reduce_s(entry(" ".join(NAMES)), sizes, groups(n, r)), every.min(axis=0))


def test_groups_and_buffers_broadcast() -> None:
    several = Groups(np.array([1, 2, 4]), np.array([8, 8, 1]), np.array([1.0, 2.0, 1.0]))
    sizes = np.array([1e3, 1e6])
    one_by_one = [
        all_reduce_s(entry("ring hierarchical"), sizes, groups(*g)) for g in ((1, 8, 1.0), (2, 8, 2.0), (4, 1, 1.0))
    ]
    np.testing.assert_allclose(all_reduce_s(entry("ring hierarchical"), sizes, several), np.concatenate(one_by_one))


def test_fit_and_prediction_share_the_features() -> None:
    work = {"bytes": np.array([1e3, 1e6, 5.0]), "nodes": np.array([4, 2, 1]), "ranks_per_node": np.array([1, 1, 4])}
    rows = [
        float(all_reduce_s(entry("ring"), np.array([v]), groups(n, r))[0, 0])
        for v, n, r in ((1e3, 4, 1), (1e6, 2, 1), (5.0, 1, 4))
    ]
    np.testing.assert_allclose(evaluate(entry("ring"), work), rows)
    mixed = replace(entry("ring"), settings={"algorithms": "ring", "beta_ratio": 10.0})
    work = {"bytes": np.array([1e6]), "nodes": np.array([2]), "ranks_per_node": np.array([4])}
    np.testing.assert_allclose(evaluate(mixed, work), all_reduce_s(mixed, work["bytes"], groups(2, 4))[0])


def test_logarithmic_host_all_reduce() -> None:
    host = Entry(
        "collectives", "all_reduce", "", "", "", "collective.logarithmic", {},
        {"log2_ranks": 0.5, "byte_log2_ranks": 0.25},
    )  # fmt: skip
    several = Groups(np.array([1, 2, 8]), np.array([1, 1, 1]), np.ones(3))
    np.testing.assert_allclose(all_reduce_s(host, np.array([2.0]), several), [[0], [1], [3]])


CASES = Entry(
    "collectives", "all_reduce", "", "", "", "collective.cases", {"form": "sqrt", "cases": (1.0, 4.0, 1.0, 8.0)},
    {f"1x{p}_{name}": value for p in (4, 8) for name, value in {"calls": p, "sqrt_bytes": 0, "bytes": 0.5}.items()}
    | {"unmeasured": 0.0},
    ranges={"unmeasured": (0.0, 0.0)},
)  # fmt: skip


def test_measured_cases_are_looked_up_and_the_nearest_is_scaled() -> None:
    times = all_reduce_s(CASES, np.array([8.0]), Groups(np.array([1, 1, 1]), np.array([4, 8, 16]), np.ones(3)))
    np.testing.assert_allclose(times[:, 0], [4 + 4, 8 + 4, 8 * 4 / 3 + 4 * (15 / 16) / (7 / 8)])


def test_a_case_that_was_not_measured_is_flagged() -> None:
    work: Work = {"bytes": 8.0, "nodes": 1.0, "ranks_per_node": np.array([1.0, 2.0, 4.0, 8.0, 16.0])}
    assert extrapolates(CASES, work).tolist() == [False, True, False, False, True]


def test_a_sort_of_placement_that_was_never_measured_is_refused() -> None:
    with pytest.raises(CoverageError, match=r"^collectives must be measured across nodes"):
        all_reduce_s(CASES, np.array([8.0]), groups(2, 4))


@pytest.mark.parametrize("sizes", [[-1.0], [np.nan], [[[1.0]]]])
def test_bad_buffers_are_named(sizes: list[float]) -> None:
    with pytest.raises(ParameterError, match=r"^buffer_bytes must be"):
        ring_all_reduce(np.array(sizes), groups(1, 2))


def test_bad_groups_and_unknown_algorithms_are_named() -> None:
    with pytest.raises(ParameterError, match=r"^groups must be"):
        ring_all_reduce(np.array([1.0]), groups(0, 2))
    with pytest.raises(UnknownNameError, match="did you mean 'ring'"):
        all_reduce_s(entry("rinq"), np.array([1.0]), groups(1, 2))


@pytest.mark.parametrize(
    ("operation", "nodes", "ranks", "streams", "expected"),
    [
        (ALL_GATHER, 1, 4, 1, [3, 300, 0, 0]),
        (REDUCE_SCATTER, 4, 1, 1, [0, 0, 3, 300]),
        # 350 bytes along the ring, through half a NIC: two of a node's four ranks are of another group
        (ALL_GATHER, 4, 2, 4, [4, 350, 3, 700]),
        # of 8 parts of 50 bytes one stays, three go to the node, four leave it, as those of the three neighbours do
        (ALL_TO_ALL, 2, 4, 4, [3, 150, 4, 800]),
        (ALL_TO_ALL, 1, 8, 8, [7, 350, 0, 0]),
        (SEND_RECEIVE, 1, 2, 1, [1, 400, 0, 0]),
        (SEND_RECEIVE, 2, 1, 8, [0, 0, 1, 3200]),
        (SEND_RECEIVE, 1, 1, 1, [0, 0, 0, 0]),
    ],
)
def test_hand_counts_of_other_operations_of_400_bytes(
    operation: str, nodes: int, ranks: int, streams: float, expected: list[float]
) -> None:
    (one,) = (one for one in COLLECTIVES if one.operation == operation)
    sizes, group = np.array([400.0]), groups(nodes, ranks, streams)
    np.testing.assert_allclose(one.features(sizes, group), [[expected]])
    # the entry of all-reduce serves it, whichever algorithms of all-reduce it enables
    by_hand = float(np.dot(expected, list(THETA.values())))
    assert collective_s(entry("double_binary_tree"), operation, sizes, group)[0, 0] == pytest.approx(by_hand)


@given(sizes=SIZES, n=st.integers(1, 64), r=st.integers(1, 16))
def test_a_ring_scatters_then_gathers(sizes: FloatArray, n: int, r: int) -> None:
    halves = sum(collective_s(entry("ring"), one, sizes, groups(n, r)) for one in (REDUCE_SCATTER, ALL_GATHER))
    np.testing.assert_allclose(halves, all_reduce_s(entry("ring"), sizes, groups(n, r)))


def test_an_entry_of_the_operation_itself_names_its_algorithms() -> None:
    own = replace(entry("ring"), kind=ALL_GATHER)
    measured = collective_s(own, ALL_GATHER, np.array([400.0]), groups(1, 4))
    np.testing.assert_allclose(measured, collective_s(entry("ring"), ALL_GATHER, np.array([400.0]), groups(1, 4)))
    with pytest.raises(UnknownNameError, match="all-gather algorithm must be a known name, got 'hierarchical'"):
        collective_s(replace(own, settings={"algorithms": "hierarchical"}), ALL_GATHER, np.ones(1), groups(1, 4))


def test_each_group_may_have_buffers_of_its_own() -> None:
    several = Groups(np.array([1, 2, 4]), np.array([8, 8, 1]), np.array([1.0, 2.0, 1.0]))
    own = np.array([1e3, 1e6, 1e9])
    for one in (entry("ring double_binary_tree"), CASES):
        part = several.rows(np.array([0])) if one is CASES else several
        sizes = own[: part.nodes.size]
        product = all_reduce_s(one, sizes, part)
        np.testing.assert_allclose(all_reduce_s(one, sizes[:, None], part)[:, 0], np.diagonal(product))


def test_measured_all_reduce_serves_other_operations() -> None:
    sizes, group = np.array([8.0]), groups(1, 4)
    whole = all_reduce_s(CASES, sizes, group)
    for operation in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        np.testing.assert_allclose(collective_s(CASES, operation, sizes, group), whole / 2)
    np.testing.assert_allclose(collective_s(CASES, SEND_RECEIVE, sizes, groups(1, 2)), 4 * 1 / 2 + 4 * 0.5 / 0.75)
    # across nodes the same links carry what all ranks of a node send away, where a ring sends it once
    across = replace(
        CASES,
        settings={"form": "sqrt", "cases": (2.0, 4.0)},
        coefficients={"2x4_calls": 0.0, "2x4_sqrt_bytes": 0.0, "2x4_bytes": 1.0, "unmeasured": 0.0},
    )
    gathered, exchanged = (collective_s(across, one, sizes, groups(2, 4))[0, 0] for one in (ALL_GATHER, ALL_TO_ALL))
    by_links = [
        collective_s(entry("ring", FREE_INSIDE), one, sizes, groups(2, 4, 4.0))[0, 0]
        for one in (ALL_GATHER, ALL_TO_ALL)
    ]
    assert exchanged / gathered == pytest.approx(by_links[1] / by_links[0])
    own = replace(CASES, kind=ALL_GATHER)
    np.testing.assert_allclose(collective_s(own, ALL_GATHER, sizes, group), whole)


def test_unequal_parts_of_a_group_are_looked_up_by_their_mean() -> None:
    one_and_a_half = Groups(np.array([2]), np.array([1.5]), np.array([1.0]))
    assert one_and_a_half.ranks.tolist() == [3]
    across = replace(
        CASES,
        settings={"form": "sqrt", "cases": (2.0, 2.0)},
        coefficients={"2x2_calls": 0.0, "2x2_sqrt_bytes": 0.0, "2x2_bytes": 0.75, "unmeasured": 0.0},
    )
    np.testing.assert_allclose(all_reduce_s(across, np.array([6.0]), one_and_a_half), 6 * 2 / 3)


@pytest.mark.parametrize("one", [entry("ring"), CASES], ids=["links", "table"])
def test_an_operation_that_nobody_knows_is_named(one: Entry) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'all_gather'"):
        collective_s(one, "allgather", np.array([1.0]), groups(1, 4))


def test_parameter_servers_move_the_bytes_of_a_ring_in_two_messages() -> None:
    """4 nodes of 2 ranks that share a NIC: a node pushes and pulls 3/4 of its sum, its ranks half of it."""
    groups = Groups(np.array([1, 4, 4]), np.array([2, 1, 2]), np.array([1.0, 1.0, 2.0]))
    features = parameter_server(np.array([100.0]), groups)[:, 0]
    assert features[0].tolist() == [2, 100, 0, 0]
    assert features[1].tolist() == [0, 0, 2, 150]
    assert features[2].tolist() == [2, 100, 2, 150]
