from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.features import Settings, Work
from planner.costs.kernels import OBLONG_APART
from planner.costs.terms import TERMS, doublings_outside, evaluate, extrapolates
from planner.costs.work import flop, moved_bytes, operand_bytes, product, work_amount
from planner.domain.calibration import Entry, SettingValue
from planner.errors import ParameterError, UnknownNameError

CLASS_NAMES = TERMS["convolution.classes"].names({})
CONVOLUTION = {
    "images": 2, "in_c": 8, "in_h": 5, "in_w": 7, "out_c": 6, "k_h": 3, "k_w": 3, "stride_h": 1, "stride_w": 1,
    "pad_h": 1, "pad_w": 1, "groups": 2, "itemsize": 4,
}  # fmt: skip
GEMM = {"m": 130, "n": 65, "k": 10, "batch": 3, "itemsize": 2}


def entry(term: str, coefficients: dict[str, float], **settings: float | str | tuple[float, ...]) -> Entry:
    return Entry("kernels", "gemm", "", "fp32", "", term, settings, coefficients)


def test_convolution_counts_by_hand() -> None:
    # 70 output positions; each of 6 channels out reads 4 of a group's channels through 9 weights
    assert flop(CONVOLUTION) == 2 * 70 * 6 * 4 * 9
    assert [float(part) for part in operand_bytes(CONVOLUTION)] == [4 * 6 * 4 * 9, 4 * 2 * 8 * 35, 4 * 2 * 6 * 35]


@pytest.mark.parametrize(
    ("direction", "expected"),
    [("forward", (3, 70, 36)), ("backward_data", (36, 70, 3)), ("backward_weight", (3, 36, 70))],
)
def test_convolution_is_the_products_of_im2col(direction: str, expected: tuple[int, int, int]) -> None:
    m, n, k, batch = product(CONVOLUTION, direction)
    assert [m, n, k, batch] == [*expected, 2]
    assert 2 * m * n * k * batch == flop(CONVOLUTION)


def test_strided_output_is_rounded_down() -> None:
    strided = CONVOLUTION | {"stride_h": 2, "stride_w": 3}
    assert product(strided).n == 2 * 3 * 3


def test_gemm_counts_by_hand() -> None:
    assert flop(GEMM) == 2 * 130 * 65 * 10 * 3
    assert moved_bytes(GEMM) == 2 * 3 * (1300 + 650 + 130 * 65)


def test_bytes_of_traffic_follow_precision_but_for_the_fixed_part() -> None:
    work = {"elements": 10, "traffic": 30, "fixed_bytes": 8}
    assert [moved_bytes(work | {"itemsize": size}) for size in (2, 4)] == [68, 128]
    assert work_amount(work) == 10


def test_channels_are_rounded_up_by_hand() -> None:
    first = {**CONVOLUTION, "in_c": 3, "out_c": 96, "groups": 1}
    features = TERMS["convolution.channels"].features(first, {"tiles": (32.0, 64.0)})
    names = TERMS["convolution.channels"].names({})
    assert dict(zip(names, features.tolist(), strict=True)) == pytest.approx(
        dict(zip(names, (1.0, float(flop(first)) * (32 / 3) * (128 / 96), *operand_bytes(first)), strict=True))
    )


def test_convolution_classes_by_hand() -> None:
    settings = {"direction": "backward_data"}
    features = dict(
        zip(CLASS_NAMES, TERMS["convolution.classes"].features(CONVOLUTION, settings).tolist(), strict=True)
    )
    count = 2 * 70 * 6 * 4 * 9
    assert features["flop_3x3"] == count
    assert features["flop_1x1"] == features["flop_1x1_strided"] == features["flop_other"] == 0
    assert features["im2col_bytes"] == 4 * 2 * 35 * 8 * 9
    # one tile high and two wide for each of two groups
    assert features["padded_flop"] == 128 * 128 * 2 * 3 * 2
    assert features["y_bytes_few_channels"] == 0


@given(k=st.sampled_from([1, 2, 3, 5]), stride=st.sampled_from([1, 2]), channels=st.sampled_from([3, 8]))
def test_convolution_flop_belongs_to_one_class(k: int, stride: int, channels: int) -> None:
    work = CONVOLUTION | {"k_h": k, "k_w": k, "stride_h": stride, "stride_w": stride, "in_c": channels, "groups": 1}
    features = dict(zip(CLASS_NAMES, TERMS["convolution.classes"].features(work, {}).tolist(), strict=True))
    classes = [features[name] for name in CLASS_NAMES if name.startswith("flop_")]
    assert sorted(classes) == [0, 0, 0, flop(work)]
    assert (features["y_bytes_few_channels"] > 0) == (channels <= 4)
    assert (features["im2col_bytes"] > 0) == (k > 1)


@pytest.mark.parametrize(
    ("k_h", "k_w", "stride", "is_apart"), [(5, 5, 1, False), (5, 5, 2, True), (1, 7, 1, True), (7, 1, 1, True)]
)
def test_oblong_and_strided_kernels_have_a_class_where_it_is_set(
    k_h: int,
    k_w: int,
    stride: int,
    is_apart: bool,  # noqa: FBT001 - a pytest parameter
) -> None:
    work = CONVOLUTION | {"k_h": k_h, "k_w": k_w, "stride_h": stride, "stride_w": stride, "groups": 1}
    term, settings = TERMS["convolution.classes"], {OBLONG_APART: 1.0}
    features = dict(zip(term.names(settings), term.features(work, settings).tolist(), strict=True))
    counts = {False: features["flop_other"], True: features["flop_oblong_or_strided"]}
    assert counts == {is_apart: flop(work), not is_apart: 0}
    assert term.features(work, {}).tolist()[4] == flop(work)


def test_gemm_tiles_by_hand() -> None:
    settings: Settings = {"tiles": (128.0, 64.0), "multiprocessors": 5.0}
    term = TERMS["gemm.tiles"]
    features = dict(zip(term.names(settings), term.features(GEMM, settings).tolist(), strict=True))
    assert (features["a_bytes"], features["b_bytes"], features["c_bytes"], features["k"]) == (7800, 3900, 50700, 10)
    assert features["padded_flop_128x64"] == 256 * 128 * 2 * 10 * 3
    # 12 tiles on 5 processors: three waves of five
    assert features["wave_flop_128x64"] == 3 * 5 * 128 * 64 * 2 * 10


def test_batches_of_several_products_have_columns_of_their_own() -> None:
    term = TERMS["gemm.tiles"]
    settings: dict[str, SettingValue] = {"tiles": (128.0, 64.0), "multiprocessors": 80.0}
    apart: dict[str, SettingValue] = {**settings, "batched_apart": 1.0}
    work: Work = {"m": np.array([512, 512]), "n": 128, "k": 64, "batch": np.array([1, 96]), "itemsize": 4.0}
    whole, split = term.features(work, settings), term.features(work, apart)
    names = term.names(settings)
    assert term.names(apart) == (*names, *(f"batched_{name}" for name in names))
    one, several = split[:, : len(names)], split[:, len(names) :]
    np.testing.assert_array_equal(one + several, whole)
    assert not one[1].any()
    assert not several[0].any()


def test_gemm_tiles_without_processor_count_has_no_waves() -> None:
    assert not [name for name in TERMS["gemm.tiles"].names({"tiles": (64.0, 64.0)}) if name.startswith("wave")]


def test_linear_model_of_sprint() -> None:
    linear = entry("work.linear", {"calls": 3.0, "work": 0.5})
    assert evaluate(linear, {"elements": np.array([0, 4]), "traffic": 0, "fixed_bytes": 0, "itemsize": 4}).tolist() == [
        3,
        5,
    ]


def test_evaluate_broadcasts_sub_batches_and_layers() -> None:
    rate = entry("flop.rate", {"flop": 1e-12})
    work: Work = {
        "m": np.array([4, 5, 6]),
        "n": np.array([[1], [2]]),
        "k": np.array([[7, 8, 9]]),
        "batch": 1,
        "itemsize": 4,
    }
    expected = 2e-12 * np.array([[1], [2]]) * np.array([28, 40, 54])
    np.testing.assert_allclose(evaluate(rate, work), expected)


def test_floor_holds_products_and_traffic() -> None:
    peaks = {"peak_flop_per_s": 1.0, "peak_bytes_per_s": 1.0}
    nothing = {"calls": 0.0, "work": 0.0}
    assert evaluate(entry("work.linear", nothing, **peaks), GEMM) == flop(GEMM)
    assert evaluate(entry("traffic.bytes", {"calls": 0.0, "bytes": 0.0}, **peaks), GEMM) == flop(GEMM)
    traffic = {"elements": 10, "traffic": 30, "fixed_bytes": 8, "itemsize": 4}
    assert evaluate(entry("work.linear", nothing, **peaks), traffic) == 128


@pytest.mark.parametrize("term", ["convolution.classes", "work.linear"])
@pytest.mark.parametrize(
    ("kernel", "stride", "counted"),
    [((1, 1), (1, 1), 1), ((3, 3), (2, 2), 1), ((3, 3), (1, 2), 1), ((3, 3), (1, 1), 0), ((1, 7), (1, 1), 0)],
)
def test_peak_rate_bounds_convolutions_without_a_fast_algorithm(
    term: str, kernel: tuple[int, int], stride: tuple[int, int], counted: int
) -> None:
    work = CONVOLUTION | dict(zip(("k_h", "k_w", "stride_h", "stride_w"), (*kernel, *stride), strict=True))
    free = dict.fromkeys(TERMS[term].names({}), 0.0)
    assert evaluate(entry(term, free, peak_flop_per_s=10.0), work) == counted * flop(work) / 10


def test_bandwidth_bounds_every_convolution_by_what_it_must_touch() -> None:
    classes = entry("convolution.classes", dict.fromkeys(CLASS_NAMES, 0.0), peak_bytes_per_s=10.0)
    assert evaluate(classes, CONVOLUTION) == moved_bytes(CONVOLUTION) / 10
    # one weight reads every third row and every second column of x, 2 x 8 x 5 x 7 numbers
    skipping = CONVOLUTION | {"k_h": 1, "k_w": 1, "stride_h": 3, "stride_w": 2, "pad_h": 0, "pad_w": 0}
    assert evaluate(classes, skipping) == pytest.approx((6 * 4 + 560 / 6 + 2 * 6 * 2 * 4) * 4 / 10)


def test_extrapolates_outside_the_ranges_of_the_fit() -> None:
    seen = replace(
        entry("work.linear", {"calls": 0.0, "work": 1.0}), ranges={"calls": (1.0, 1.0), "work": (10.0, 20.0)}
    )

    def work(elements: list[int]) -> Work:
        return {"elements": np.array(elements), "traffic": 0, "fixed_bytes": 0, "itemsize": 4}

    assert extrapolates(seen, work([8, 10, 15, 20, 22])).tolist() == [True, False, False, False, True]
    assert not extrapolates(replace(seen, ranges={}), work([1000])).any()


def test_doublings_are_counted_from_either_end_of_the_farthest_range() -> None:
    seen = replace(
        entry("work.linear", {"calls": 0.0, "work": 1.0}),
        ranges={"calls": (1.0, 1.0), "work": (100.0, 200.0), "fixed_bytes": (1.0, 1.0), "traffic": (0.0, 0.0)},
    )
    elements, fixed = np.array([25 * 0.95, 96, 100, 209, 1.05 * 800, 200]), np.array([0, 1, 1, 1, 2.1, 1.05 * 16])
    work: Work = {"elements": elements, "traffic": 5, "fixed_bytes": fixed, "itemsize": 4}
    above, below = doublings_outside(seen, work)
    assert above == pytest.approx([0, 0, 0, 0, 2, 4])  # what was never seen but as 0 lies nowhere
    assert below == pytest.approx([2, 0, 0, 0, 0, 0])  # and so does what is 0
    assert not np.any(doublings_outside(replace(seen, ranges={}), work))


def test_range_of_a_work_column_counts_too() -> None:
    ungrouped = replace(entry("convolution.classes", dict.fromkeys(CLASS_NAMES, 1.0)), ranges={"groups": (1.0, 1.0)})
    work: Work = CONVOLUTION | {"groups": np.array([1, 2, 8])}
    assert extrapolates(ungrouped, work).tolist() == [False, True, True]


def test_class_without_rows_counts_as_extrapolation() -> None:
    term = TERMS["convolution.classes"]
    at_3x3 = term.features(CONVOLUTION, {})
    ranges = {name: (0.0, 10 * float(value)) for name, value in zip(CLASS_NAMES, at_3x3, strict=True)}
    seen = replace(entry("convolution.classes", dict.fromkeys(CLASS_NAMES, 1.0)), ranges=ranges)
    assert not extrapolates(seen, CONVOLUTION)
    assert extrapolates(seen, CONVOLUTION | {"k_h": 5, "k_w": 5, "pad_h": 2, "pad_w": 2})


def test_wrong_coefficients_and_unknown_terms_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"^coefficients of work.linear must be calls, work"):
        evaluate(entry("work.linear", {"calls": 1.0}), GEMM)
    with pytest.raises(UnknownNameError, match=r"did you mean 'gemm\.tiles'"):
        evaluate(entry("gemm.tile", {}), GEMM)
    with pytest.raises(ParameterError, match=r"^work must be given in its column itemsize"):
        evaluate(entry("traffic.bytes", {"calls": 0.0, "bytes": 0.0}), {"traffic": 1, "elements": 1, "fixed_bytes": 0})


def test_convolutions_of_a_whole_search_are_evaluated_at_once() -> None:
    layers = np.arange(1, 54)
    work = CONVOLUTION | {"images": np.arange(1, 257)[:, None], "in_c": 2 * layers, "out_c": 4 * layers}
    classes = entry("convolution.classes", dict.fromkeys(CLASS_NAMES, 1e-12), direction="forward")
    assert evaluate(classes, work).shape == (256, 53)
