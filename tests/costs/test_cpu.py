import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.cpu import CPU_TERMS
from planner.costs.work import flop

TERMS = {term.name: term for term in CPU_TERMS}
CONVOLUTION = {
    "images": 2, "in_c": 16, "in_h": 12, "in_w": 12, "out_c": 32, "k_h": 3, "k_w": 3, "stride_h": 1, "stride_w": 1,
    "pad_h": 1, "pad_w": 1, "groups": 1, "itemsize": 4.0,
}  # fmt: skip


def features(term: str, work: dict[str, float]) -> dict[str, float]:
    """Return the features of one call by name."""
    return dict(zip(TERMS[term].names({}), TERMS[term].features(work, {}).tolist(), strict=True))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "flop_3x3"),
        ({"k_h": 1, "k_w": 1, "pad_h": 0, "pad_w": 0}, "flop_1x1"),
        ({"k_h": 1, "k_w": 1, "pad_h": 0, "pad_w": 0, "stride_h": 2, "stride_w": 2}, "flop_1x1_strided"),
        ({"in_c": 3}, "flop_few_channels"),
        ({"stride_h": 2, "stride_w": 2}, "flop_other"),
        ({"k_w": 1, "pad_w": 0}, "flop_other"),
    ],
)
def test_flop_stand_in_exactly_one_class(changes: dict[str, float], name: str) -> None:
    work = CONVOLUTION | changes
    found = features("cpu.convolution", work)
    classes = {key: value for key, value in found.items() if key.startswith("flop_") and value}
    assert classes == {name: float(flop(work))}


def test_convolution_by_hand() -> None:
    found = features("cpu.convolution", CONVOLUTION)
    assert found["calls"] == 1
    assert found["flop_3x3"] == 2 * 2 * 12 * 12 * 16 * 32 * 9
    assert found["blocked_flop"] == found["flop_3x3"]
    assert found["blocked_width_flop"] == found["flop_3x3"]
    assert found["x_bytes"] == 4 * 2 * 16 * 144
    assert found["im2col_bytes"] == 4 * 2 * 144 * 16 * 9
    assert found["y_bytes_few_channels"] == 0


@given(st.integers(5, 300), st.integers(5, 300), st.integers(7, 40))
def test_whole_blocks_are_never_less_than_the_flop(in_c: int, out_c: int, side: int) -> None:
    work = CONVOLUTION | {"in_c": in_c, "out_c": out_c, "in_h": side, "in_w": side}
    found = features("cpu.convolution", work)
    assert float(flop(work)) <= found["blocked_flop"] <= found["blocked_width_flop"]


def test_product_with_a_vector_has_features_of_its_own() -> None:
    matrix = features("cpu.product", {"m": 1024, "n": 4, "k": 2048, "batch": 1, "itemsize": 4.0})
    vector = features("cpu.product", {"m": 1024, "n": 1, "k": 2048, "batch": 1, "itemsize": 4.0})
    assert matrix["a_bytes"] == vector["a_bytes_vector"] == matrix["a_bytes_far"] == 4 * 1024 * 2048
    assert vector["a_bytes"] == vector["blocked_flop"] == matrix["a_bytes_vector"] == 0
    assert matrix["blocked_flop"] == 2 * 1024 * 16 * 2048


def test_rows_whole_pages_apart_are_noted() -> None:
    aligned = features("cpu.product", {"m": 64, "n": 1024, "k": 4, "batch": 1, "itemsize": 4.0})
    other = features("cpu.product", {"m": 64, "n": 1000, "k": 4, "batch": 1, "itemsize": 4.0})
    assert aligned["c_bytes_aliased"] == 4 * 64 * 1024
    assert other["c_bytes_aliased"] == 0


def test_pooling_tells_elements_read_from_elements_written() -> None:
    work = {"elements": 1000, "traffic": 1250, "fixed_bytes": 1000, "itemsize": 4.0}
    assert features("cpu.traffic", work) == {"calls": 1, "elements": 1000, "other_elements": 250}


def test_update_writes_nothing_else() -> None:
    work = {"elements": 1000, "traffic": 0, "fixed_bytes": 20000, "itemsize": 4.0}
    assert features("cpu.traffic", work)["other_elements"] == 0


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("cpu.convolution", CONVOLUTION),
        ("cpu.product", {"m": 64.0, "n": 4.0, "k": 8.0, "batch": 2.0, "itemsize": 4.0}),
        ("cpu.attention", {"batch": 4.0, "queries": 40.0, "keys": 50.0, "width": 8.0, "causal": 1.0, "itemsize": 4.0}),
        ("cpu.traffic", {"elements": 10.0, "traffic": 20.0, "fixed_bytes": 0.0, "itemsize": 4.0}),
    ],
)
def test_features_broadcast_and_are_not_negative(name: str, work: dict[str, float]) -> None:
    found = TERMS[name].features({key: np.full((2, 3), value) for key, value in work.items()}, {})
    assert found.shape == (2, 3, len(TERMS[name].names({})))
    assert (found >= 0).all()


@pytest.mark.parametrize(
    ("queries", "keys", "pairs", "blocks"),
    [
        (100, 100, 100 * 100, 4),
        (700, 700, 512 * 512 + 188 * 700, 11),
        (1024, 1024, 512 * 512 + 512 * 1024, 4),
        (1100, 600, 512 * 512 + 588 * 600, 5),
        (600, 1100, 512 * 512 + 88 * 1024, 10),
    ],
)
def test_causal_attention_computes_whole_blocks_of_512_keys(queries: int, keys: int, pairs: int, blocks: int) -> None:
    work = {"batch": 3.0, "queries": queries, "keys": keys, "width": 8.0, "causal": 1.0, "itemsize": 4.0}
    found, full = features("cpu.attention", work), features("cpu.attention", work | {"causal": 0.0})
    assert (found["pairs"], found["blocks"]) == (3 * pairs, 3 * blocks)
    assert found["flop"] == pytest.approx(4 * 8 * 3 * pairs)
    assert (full["pairs"], full["blocks"]) == (3 * queries * keys, 3 * blocks)
    assert found["bytes"] == full["bytes"] == 3 * (4 * 2 * (queries + keys) * 8 + 4 * queries)


@pytest.mark.parametrize(
    ("kernel", "own"), [(3, "depthwise_flop_3x3"), (5, "depthwise_flop_larger")], ids=["3x3", "5x5"]
)
def test_depthwise_kernels_larger_than_3x3_have_a_rate_of_their_own_where_asked_for(kernel: int, own: str) -> None:
    names = ("images", "in_c", "in_h", "in_w", "out_c", "k_h", "k_w", "stride_h", "stride_w", "pad_h", "pad_w")
    sizes = (2, 32, 10, 10, 32, kernel, kernel, 1, 1, kernel // 2, kernel // 2)
    work = dict(zip(names, sizes, strict=True)) | {"groups": 32, "itemsize": 4.0}
    term, apart = TERMS["cpu.convolution"], {"depthwise_apart": 2.0}
    found = dict(zip(term.names(apart), term.features(work, apart).tolist(), strict=True))
    flop = 2 * 2 * 32 * 10 * 10 * kernel**2
    expected = {"depthwise_calls": 1.0, own: flop, "depthwise_x_bytes": 4 * 2 * 32 * 100}
    assert {name: value for name, value in found.items() if value} == expected


def test_depthwise_convolutions_have_columns_of_their_own_where_asked_for() -> None:
    names = ("images", "in_c", "in_h", "in_w", "out_c", "k_h", "k_w", "stride_h", "stride_w", "pad_h", "pad_w")
    shape = dict(zip(names, (2, 32, 10, 10, 32, 3, 3, 1, 1, 1, 1), strict=True)) | {"itemsize": 4.0}
    term, apart = TERMS["cpu.convolution"], {"depthwise_apart": 1.0}
    columns = term.names(apart)
    plain, depthwise = (
        dict(zip(columns, term.features({**shape, "groups": groups}, apart).tolist(), strict=True))
        for groups in (1, 32)
    )
    own = [name for name in columns if name.startswith("depthwise_")]
    assert [plain[name] for name in own] == [0.0] * 4
    assert all(value == 0 for name, value in depthwise.items() if name not in own)
    flop = 2 * 2 * 32 * 10 * 10 * 9
    assert [depthwise[name] for name in own] == [1.0, flop, 4 * 2 * 32 * 100, 4 * 2 * 32 * 100]
    assert tuple(term.names({})) == columns[: -len(own)]
