"""Rows of the published table of fused attention as rows of a samples file.

FlashAttention-2 was timed forward and backward together, and on one GPU (SPLIT_BY) forward alone too. There the
backward pass is what is left; elsewhere the sum is split in the same ratio, shape by shape: two of seven products are
the forward pass's, but it takes 0.22 to 0.28 of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, FORWARD
from validation.kernel_boards import Board

__all__ = ["FLASH_ATTENTION", "attention_rows"]

Table = Sequence[Mapping[str, str]]
Shape = tuple[int, int, int, int, int]
"""Causal, features of a head, positions, samples, heads."""

FLASH_ATTENTION = (
    "FlashAttention (Dao-AILab, BSD-3-Clause), github.com/Dao-AILab/flash-attention assets, "
    "flash2_a100_fwd_bwd_benchmark.png, flash2_h100_fwd_bwd_benchmark.png and flash3_fp16_fwd.png, "
    "commit 0251105a2fb19d2957484b7f023cd8c115286ced"
)
KERNEL, KERNEL_LIBRARY = "FlashAttention-2", "flash-attention 2"
SPLIT_BY = "H100 80GB SXM5"
"""Name of the GPU whose forward passes were timed alone too."""
BOTH, ALONE = "fwd+bwd", "fwd"
PASSES = {ALONE: 1.0, BOTH: 3.5}
"""FLOP over those of a forward pass, as the figures count them: two products forward, five backward."""
ATTENTION_PRECISIONS = ("fp16", "bf16")


def attention_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Yield fused attention of a board, forward and backward; the group is a head's features and the mask.

    All lengths of a group are left out together: they have as many tokens, so that one tells of the next.
    """
    if not board.attention:
        return
    both = _times_s(table, board.attention, BOTH)
    alone, of_both = _times_s(table, SPLIT_BY, ALONE), _times_s(table, SPLIT_BY, BOTH)
    shapes = [shape for shape in both if shape in alone and shape in of_both]
    forward = {shape: both[shape] * alone[shape] / of_both[shape] for shape in shapes}
    backward = {shape: both[shape] - forward[shape] for shape in shapes}
    if board.attention == SPLIT_BY:
        forward = alone
    for precision in ATTENTION_PRECISIONS:
        for direction, times_s in ((FORWARD, forward), (BACKWARD_DATA, backward)):
            for shape, time_s in times_s.items():
                yield _attention(shape, time_s, board) | {"precision": precision, "direction": direction}


def _times_s(table: Table, gpu: str, direction: str) -> dict[Shape, float]:
    """Return the time of every shape that has a rate: 4·s²·d FLOP a head forward, half of them behind a mask."""
    times = {}
    for row in table:
        if (row["gpu"], row["kernel"], row["direction"]) == (gpu, KERNEL, direction) and row["tflops_per_s"]:
            causal, width, positions, samples, heads = shape = _shape(row)
            flop = 4 * positions**2 * width * heads * samples * (0.5 if causal else 1.0) * PASSES[direction]
            times[shape] = flop / (float(row["tflops_per_s"]) * 1e12)
    return times


def _shape(row: Mapping[str, str]) -> Shape:
    causal, width, positions, samples, heads = (
        int(float(row[name])) for name in ("causal", "head_dim", "seq_len", "batch", "heads")
    )
    return causal, width, positions, samples, heads


def _attention(shape: Shape, time_s: float, board: Board) -> dict[str, Any]:
    causal, width, positions, samples, heads = shape
    return {
        "kind": "attention", "device": board.name, "time_s": time_s, "source": FLASH_ATTENTION,
        "library": KERNEL_LIBRARY, "notes": board.note("attention"), "batch": float(samples * heads),
        "queries": float(positions), "keys": float(positions), "width": float(width), "causal": float(causal),
        "group": f"{width} features of a head, {'causal' if causal else 'no mask'}",
    }  # fmt: skip
