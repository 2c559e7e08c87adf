"""Fused attention: how rows are made, and what the bundled fits say of a few of them."""

import numpy as np
import pytest

from planner import catalog
from planner.costs.terms import evaluate
from planner.domain.calibration import Entry
from validation.attention_rows import KERNEL, attention_rows
from validation.kernel_boards import BOARDS, Board

BOARD = {board.name: board for board in BOARDS}
A100, H100 = "a100-sxm4-80gb", "h100-sxm5-80gb"
IN_FIGURE = {A100: "A100 80GB SXM4", H100: "H100 80GB SXM5"}
BARS = (
    # causal, features of a head, positions; TFLOP/s of A100 and H100 forward and backward, and of H100 forward
    (0, 64, 2048, 172, 274, 318),
    (0, 128, 8192, 201, 335, 370),
    (1, 64, 8192, 165, 273, 295),
    (1, 128, 4096, 173, 294, 319),
)
"""Of Dao-AILab/flash-attention (BSD-3-Clause), assets/*.png at 0251105a2fb1: 16384 tokens, 2048 features."""
HIGHEST = ((A100, 1024, 10240, 5120, 271.2), (H100, 2048, 2048, 13312, 794.5))
"""m, n, k and TFLOP/s in bf16 of the fastest product that a search found, mean of 100 calls: no other shape is faster.

Maximum achievable matmul FLOPS of stas00/ml-engineering (CC-BY-SA-4.0), compute/accelerator/README.md at 744d01e18b79.
"""


def row(gpu: str, direction: str, shape: tuple[int, int, int], rate: float, kernel: str = KERNEL) -> dict[str, str]:
    causal, width, positions = shape
    return {
        "gpu": gpu, "kernel": kernel, "direction": direction, "causal": str(causal), "head_dim": str(width),
        "seq_len": str(positions), "batch": f"{16384 // positions}", "heads": f"{2048 // width}.0",
        "tflops_per_s": str(rate),
    }  # fmt: skip


def table() -> list[dict[str, str]]:
    rows = []
    for *shape, a100, h100, forward in BARS:
        of = (shape[0], shape[1], shape[2])
        rows += [row(IN_FIGURE[A100], "fwd+bwd", of, a100), row(IN_FIGURE[H100], "fwd+bwd", of, h100)]
        rows += [row(IN_FIGURE[H100], "fwd", of, forward)]
    return rows


def times(board: Board, direction: str, rows: list[dict[str, str]]) -> list[float]:
    found = attention_rows(rows, board)
    return [one["time_s"] for one in found if (one["direction"], one["precision"]) == (direction, "bf16")]


def forward_flop(causal: int, width: int, positions: int) -> float:
    return 4 * positions**2 * width * (16384 // positions) * (2048 // width) * (0.5 if causal else 1)


def test_backward_is_what_forward_leaves_of_both() -> None:
    for (causal, width, positions, _, both, alone), forward, backward in zip(
        BARS, times(BOARD[H100], "forward", table()), times(BOARD[H100], "backward_data", table()), strict=True
    ):
        flop = forward_flop(causal, width, positions)
        assert forward == pytest.approx(flop / (alone * 1e12))
        assert forward + backward == pytest.approx(3.5 * flop / (both * 1e12))


def test_where_both_were_timed_alone_they_are_split_as_on_the_other_gpu() -> None:
    on = {name: [times(BOARD[name], way, table()) for way in ("forward", "backward_data")] for name in (A100, H100)}
    ratios = {name: np.divide(ways[0], ways[1]) for name, ways in on.items()}
    np.testing.assert_allclose(ratios[A100], ratios[H100])
    both = np.sum(on[A100], axis=0)
    assert both.tolist() == pytest.approx([3.5 * forward_flop(*one[:3]) / (one[3] * 1e12) for one in BARS])


def test_shapes_that_cannot_be_split_and_other_kernels_are_left_out() -> None:
    shape = (0, 64, 2048)
    others = [row(IN_FIGURE[H100], "fwd", shape, 460, "FlashAttention-3"), row("H100", "fwd", shape, 100)]
    alone = [row(IN_FIGURE[A100], "fwd+bwd", (0, 64, 1024), 160), row(IN_FIGURE[A100], "fwd+bwd", shape, 172)]
    assert times(BOARD[A100], "forward", [*alone, *others]) == []
    assert list(attention_rows(table(), BOARD["t4"])) == []
    hidden = row(IN_FIGURE[H100], "fwd", (0, 128, 512), 309) | {"tflops_per_s": ""}
    assert times(BOARD[H100], "forward", [hidden]) == []


def test_lengths_of_a_head_and_mask_are_left_out_together_and_stand_ins_say_so() -> None:
    rows = list(attention_rows(table(), BOARD["a100-sxm4-40gb"]))
    assert {one["group"] for one in rows} == {
        f"{width} features of a head, {mask}" for width in (64, 128) for mask in ("causal", "no mask")
    }
    assert all("stands in" in one["notes"] and "split as on an H100" in one["notes"] for one in rows)
    assert not any("stands in" in one["notes"] for one in attention_rows(table(), BOARD[A100]))


def entry_of(gpu: str, kind: str, direction: str) -> Entry:
    entries = catalog.find_calibration(gpu).entries
    return next(one for one in entries if one.key[1:4] == (kind, direction, "bf16"))


@pytest.mark.parametrize("gpu", [A100, H100])
def test_bundled_fits_miss_no_bar_by_more_than_they_say(gpu: str) -> None:
    for direction in ("forward", "backward_data"):
        entry = entry_of(gpu, "attention", direction)
        assert entry.held_out_by == "group"
        assert entry.worst_error is not None
        measured_s = times(BOARD[gpu], direction, table())
        for (causal, width, positions, *_), time_s in zip(BARS, measured_s, strict=True):
            work = {
                "batch": 16384 // positions * (2048 // width), "queries": positions, "keys": positions, "width": width,
                "causal": causal, "itemsize": 2,
            }  # fmt: skip
            assert float(evaluate(entry, work)) == pytest.approx(time_s, rel=entry.worst_error)


@pytest.mark.parametrize(("gpu", "m", "n", "k", "highest"), HIGHEST)
def test_no_product_is_predicted_much_faster_than_the_fastest_that_a_search_found(
    gpu: str, m: int, n: int, k: int, highest: float
) -> None:
    entry = entry_of(gpu, "gemm", "")
    sizes = np.array([(m, n, k), *((a, b, c) for a in (1024, 4096, 8192) for b in (4096, 16384) for c in (2048, 8192))])
    work = dict(zip("mnk", sizes.T.astype(float), strict=True)) | {"batch": 1.0, "itemsize": 2.0}
    work |= {"trans_a": 0.0, "trans_b": 0.0}
    rates = 2 * sizes.prod(axis=1) / evaluate(entry, work) / 1e12
    assert rates.max() < 1.1 * highest
