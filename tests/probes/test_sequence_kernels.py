from __future__ import annotations

import math

import pytest
import torch

from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.domain.network import Point
from planner.probes.operands import Operands, fused_attention_call

OPERANDS = Operands(elements=1 << 20)
SIZES = {"images": 2, "positions": 9, "heads": 3}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD_DATA])
def test_one_fused_kernel_runs_and_none_that_makes_scores(direction: str, causal: int) -> None:
    work = {"batch": 6, "queries": 9, "keys": 9, "width": 4, "causal": causal}
    made = fused_attention_call(torch, Point("attention", direction, work, SIZES), OPERANDS)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        made.run()
    names = [event.key for event in seen.key_averages() if event.key.startswith("aten::")]
    fused = [name for name in names if "flash_attention" in name]
    assert len(fused) == 1
    assert ("backward" in fused[0]) == (direction == BACKWARD_DATA)
    assert not [name for name in names if "softmax" in name or "mm" in name]


@pytest.mark.parametrize("causal", [0, 1])
def test_forward_is_attention(causal: int) -> None:
    operands = Operands(elements=1 << 12)
    result = fused_attention_call(
        torch,
        Point("attention", FORWARD, {"batch": 6, "queries": 9, "keys": 9, "width": 4, "causal": causal}, SIZES),
        operands,
    ).run()
    joined = Operands(elements=1 << 12).warm(2, 9, 36)
    query, key, value = joined.view(2, 9, 3, 3, 4).permute(2, 0, 3, 1, 4)
    mask = torch.full((9, 9), -math.inf).triu(1) if causal else torch.zeros(9, 9)
    weights = torch.softmax(query @ key.transpose(-2, -1) / 2 + mask, dim=-1)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result.detach(), (weights @ value).transpose(1, 2).reshape(2, 9, 12))
