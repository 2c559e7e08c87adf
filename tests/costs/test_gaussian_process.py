import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.features import Settings, Work
from planner.costs.gaussian_process import PRODUCT_EXTENTS, ROUGH_ORDER, coordinates, covariances
from planner.costs.terms import TERMS, evaluate, extrapolates
from planner.costs.work import flop, moved_bytes, transposition
from planner.domain.calibration import Entry, SettingValue
from planner.errors import UnknownNameError

TERM = TERMS["gaussian.process"]
PEAKS: dict[str, SettingValue] = {"peak_flop_per_s": 1e13, "peak_bytes_per_s": 5e11}
LAUNCH_S = 1e-5
CONVOLUTION = {
    "images": 8, "in_c": 64, "in_h": 28, "in_w": 28, "out_c": 128, "k_h": 3, "k_w": 3, "stride_h": 1, "stride_w": 1,
    "pad_h": 1, "pad_w": 1, "groups": 1, "itemsize": 4.0,
}  # fmt: skip


def product_of(m: float, n: float, k: float, batch: float = 1.0, **other: float) -> Work:
    return {"m": m, "n": n, "k": k, "batch": batch, "itemsize": 4.0, **other}


POINT = product_of(1024, 64, 512)


def settings_of(work: Work, **other: SettingValue) -> dict[str, SettingValue]:
    """Return settings of a process with one point, at a call, around 10 us and 0.2 ps/FLOP."""
    points = tuple(coordinates(work, other).tolist())
    settings: dict[str, SettingValue] = {
        "mean": "work.linear", "mean_coefficients": (1e-5, 2e-13), "points": points, "lengths": (1.0,) * len(points),
    }  # fmt: skip
    return {**settings, **PEAKS, **other}


def entry_of(work: Work, level: float, weight: float, **settings: SettingValue) -> Entry:
    kind = "convolution" if "in_c" in work else "gemm"
    values = {"log_prior": 1.0, "level": level, "point_1": weight, "calls": 0.0, "work": 0.0}
    return Entry("kernels", kind, "", "fp32", "", "gaussian.process", settings_of(work, **settings), values)


def linear_s(work: Work) -> float:
    return 1e-5 + 2e-13 * float(flop(work))


def floor_s(work: Work) -> float:
    return max(float(flop(work)) / 1e13, float(moved_bytes(work)) / 5e11)


def peak_s(work: Work) -> float:
    return float(flop(work)) / 1e13 + float(moved_bytes(work)) / 5e11


def test_at_its_point_a_process_adds_level_and_weight() -> None:
    assert float(evaluate(entry_of(POINT, 0.1, 0.3), POINT)) == pytest.approx(linear_s(POINT) * np.exp(0.4))


@pytest.mark.parametrize("tile", [1 << 14, 3])
def test_sums_are_those_of_features_by_coefficients(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.costs.gaussian_process._TILE", tile)
    work = dict(POINT) | {
        "m": np.arange(1, 40)[:, None] * 64,
        "n": np.array([8, 64, 640]),
        "batch": np.array([1, 2, 1]),
    }
    entry = entry_of(POINT, 0.1, 0.3, share=0.7)
    theta = np.array([entry.coefficients[name] for name in TERM.names(entry.settings)])
    expected = TERM.features(work, entry.settings) @ theta
    assert TERM.weighted(work, entry.settings, theta) == pytest.approx(expected, rel=1e-13)


def test_covariance_is_matern_of_order_three_halves() -> None:
    places, points = np.array([[0.0, 4.0], [3.0, 4.0]]), np.array([[0.0, 0.0]])
    lengths = np.array([3.0, 4.0])
    for found, distance in zip(covariances(places, points, lengths)[:, 0], (1.0, np.sqrt(2.0)), strict=True):
        far = np.sqrt(3) * distance
        assert found == pytest.approx((1 + far) * np.exp(-far))


def test_covariance_of_order_one_half_is_exponential() -> None:
    places, points = np.array([[0.0, 4.0], [3.0, 4.0]]), np.array([[0.0, 0.0]])
    found = covariances(places, points, np.array([3.0, 4.0]), ROUGH_ORDER)[:, 0]
    np.testing.assert_allclose(found, np.exp([-1.0, -np.sqrt(2.0)]))


@pytest.mark.parametrize("around", ["mean", "roofline"])
@pytest.mark.parametrize("far", range(3))
@given(st.sampled_from([1, 2**20]), st.sampled_from([1, 2**20]))
def test_far_from_all_points_it_is_what_it_is_around_times_one_constant(
    around: str, far: int, one: int, two: int
) -> None:
    m, n, k = (1 if at == far else size for at, size in enumerate((one, two, one)))
    work = product_of(m, n, k)
    before = linear_s(work) if around == "mean" else LAUNCH_S + peak_s(work)
    seconds = float(evaluate(entry_of(POINT, 0.5, 2.0, around=around, launch_s=LAUNCH_S), work))
    assert seconds == pytest.approx(max(before * np.exp(0.5), floor_s(work)), rel=0.02)


@pytest.mark.parametrize("larger", [product_of(2**20, 64, 512), product_of(2**20, 2**16, 2**19)])
def test_beyond_the_largest_product_the_correction_at_its_edge_holds(larger: Work) -> None:
    lengths = tuple(0.5 if at < PRODUCT_EXTENTS else 1e9 for at in range(10))
    entry = entry_of(POINT, 0.1, 0.3, lengths=lengths)
    assert float(evaluate(entry, larger)) == pytest.approx(linear_s(larger) * np.exp(0.4))


@pytest.mark.parametrize("column", ["images", "in_c"])
def test_larger_convolutions_are_far_from_the_points(column: str) -> None:
    entry, larger = entry_of(CONVOLUTION, 0.1, 0.3), CONVOLUTION | {column: 2**14}
    assert float(evaluate(entry, larger)) == pytest.approx(linear_s(larger) * np.exp(0.1), rel=0.01)


@pytest.mark.parametrize("work", [POINT, CONVOLUTION])
def test_half_a_share_is_the_geometric_mean_of_the_process_and_the_linear_term(work: Work) -> None:
    whole = float(evaluate(entry_of(work, 0.2, 0.1, around="roofline"), work))
    half = float(evaluate(entry_of(work, 0.2, 0.1, around="roofline", share=0.5), work))
    assert whole == pytest.approx(peak_s(work) * np.exp(0.3))
    assert half == pytest.approx(np.sqrt(whole * linear_s(work)))


@pytest.mark.parametrize("around", ["mean", "roofline"])
def test_batches_of_several_products_take_the_linear_term(around: str) -> None:
    several = product_of(1024, 64, 512, batch=np.float64(16))
    assert float(evaluate(entry_of(POINT, 0.5, 2.0, around=around), several)) == pytest.approx(linear_s(several))


def test_what_is_transposed_tells_products_apart() -> None:
    entry = entry_of(product_of(1024, 64, 512, trans_a=1.0), 0.0, 1.0)
    times = [float(evaluate(entry, {**POINT, **transposition("gemm", way)})) for way in ("forward", "backward_data")]
    assert times[0] == pytest.approx(linear_s(POINT) * np.e)
    assert times[1] < times[0]
    assert transposition("convolution", "forward") == {}


@pytest.mark.parametrize(
    ("m", "n", "k", "turned", "strides"),
    [
        (1024, 96, 1536, "NN", (4096, 2048)),  # columns of A are 1024 numbers of 4 bytes, of B 1536 = 3 x 512
        (1024, 96, 1536, "TN", (2048, 2048)),
        (1024, 96, 1536, "NT", (4096, 128)),
        (35, 8457, 2560, "TT", (2048, 4)),
        (2**20, 16, 2**20, "NN", (8192, 8192)),
    ],
)
def test_powers_of_two_in_strides_by_hand(m: int, n: int, k: int, turned: str, strides: tuple[int, int]) -> None:
    work = product_of(m, n, k, trans_a=float(turned[0] == "T"), trans_b=float(turned[1] == "T"))
    np.testing.assert_allclose(np.exp(coordinates(work, {})[6:8]), strides)


def test_tiles_by_hand() -> None:
    # 130 x 65 is computed as 256 x 128, two by two tiles, and by 3 processors as 6 tiles
    place = np.exp(coordinates(product_of(130, 65, 7), {"processors": 3.0}))
    np.testing.assert_allclose(place[[3, 8, 9]], [6 * 128 * 64 / (130 * 65), 256 / 130, 128 / 65])


def test_a_process_of_fewer_length_scales_takes_the_first_coordinates() -> None:
    entry = entry_of(POINT, 0.1, 0.3)
    points = entry.settings["points"]
    assert isinstance(points, tuple)
    older = {**entry.settings, "points": points[:6], "lengths": (1.0,) * 6}
    aligned, odd = product_of(1024, 64, 512), product_of(1025, 64, 512)
    kept = Entry(*entry.key, entry.term, older, entry.coefficients)
    assert float(evaluate(kept, aligned)) == pytest.approx(float(evaluate(entry, aligned)))
    assert float(evaluate(kept, odd)) > 1.1 * float(evaluate(entry, odd))  # it does not know that strides differ


def test_no_time_falls_below_the_peaks() -> None:
    assert float(evaluate(entry_of(POINT, -50.0, 0.0), POINT)) == pytest.approx(float(flop(POINT)) / 1e13)


def test_calls_broadcast() -> None:
    work: Work = {**CONVOLUTION, "images": np.array([[1], [2], [4]]), "in_c": np.array([64, 128])}
    assert TERM.features(work, settings_of(CONVOLUTION)).shape == (3, 2, 5)


def test_ranges_of_the_linear_term_tell_extrapolation() -> None:
    entry = entry_of(POINT, 0.0, 0.0)
    seen = Entry(*entry.key, entry.term, entry.settings, entry.coefficients, ranges={"work": (1.0, 1e9)})
    assert [bool(extrapolates(seen, product_of(m, 1024, 1024))) for m in (64, 65536)] == [False, True]


def test_a_mean_must_be_a_linear_term() -> None:
    settings: Settings = {**settings_of(POINT), "mean": "gemm.interpolation"}
    with pytest.raises(UnknownNameError, match="interpolation"):
        TERM.names(settings)
