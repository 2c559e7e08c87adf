"""Modules of operators that follow one another by chance: whatever they are, parameters and FLOP are PyTorch's."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from planner import catalog
from planner.workload.calls import totals

SHAPES = [(12, 16)], [(16,)], [(4, 16, 16)], [(12, 16), (12, 12)], [(3, 32, 32), (16,)], [(8, 24)]
"""Of inputs, a sample each."""

Make = Callable[[Callable[[], Any]], Any]
"""Returns a part of the module, which the first run makes."""
Operator = Callable[[Any, Any, Make], Any]
"""Of a tensor, one before it, and parts; what cannot be done raises RuntimeError."""


def _cut(sizes: int, by: int) -> int:
    if sizes % by:
        raise RuntimeError
    return sizes // by


def _attention(x: Any, make: Make) -> Any:
    width, features = _cut(x.shape[-1], 4), x.shape[-1]
    parts = make(lambda: nn.Linear(features, 3 * features))(x).view(*x.shape[:2], 3, 4, width).permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(x.shape)


def _gated(x: Any) -> Any:
    _cut(x.shape[-1], 2)
    values, gate = x.chunk(2, -1)
    return values * torch.tanh(gate)


ANY: list[Operator] = [
    lambda x, _, make: make(lambda: nn.Linear(x.shape[-1], 24))(x),
    lambda x, _, make: make(lambda: nn.Linear(x.shape[-1], 8, bias=False))(x),
    lambda x, _, make: make(lambda: nn.LayerNorm(x.shape[-1]))(x),
    lambda x, _, make: x * make(lambda: nn.ParameterList([torch.ones(x.shape[-1])]))[0],
    lambda x, _, make: x + make(lambda: nn.ParameterList([torch.ones(x.shape[1:])]))[0],
    lambda x, *_: functional.relu(x),
    lambda x, *_: functional.gelu(x),
    lambda x, *_: torch.sigmoid(x) * 1.5,
    lambda x, *_: x.clamp(-1, 1).neg(),
    lambda x, *_: x.softmax(-1),
    lambda x, *_: x**2,
    lambda x, *_: x - x.mean(-1, keepdim=True),
    lambda x, *_: _gated(x),
    lambda x, *_: x.flatten(1),
    lambda x, other, _: x * other,
    lambda x, other, _: x + other,
    lambda x, other, _: torch.cat([x, other], -1),
]
OF_ROWS: list[Operator] = [
    lambda x, _, make: _attention(x, make),
    lambda x, _, make: make(lambda: nn.Conv1d(x.shape[1], 12, 3, padding=1))(x),
    lambda x, *_: x.transpose(1, 2),
    lambda x, *_: x @ x.transpose(1, 2),
    lambda x, other, _: x @ other,
    lambda x, *_: x.mean(1).unsqueeze(2) * x.mean(1).unsqueeze(1),
    lambda x, *_: x.view(*x.shape[:2], 4, _cut(x.shape[-1], 4)).transpose(1, 2).flatten(1, 2),
    lambda x, *_: torch.cat([x, x.relu()], 1),
    lambda x, *_: x[:, 0],
    lambda x, *_: x[:, x.shape[1] // 2 :],
    lambda x, *_: x.amax(1),
    lambda x, *_: x.mean(1),
    lambda x, *_: functional.pad(x, (0, 0, 1, 1)),
    lambda x, *_: x.roll(1, 1),
]
OF_IMAGES: list[Operator] = [
    lambda x, _, make: make(lambda: nn.Conv2d(x.shape[1], 8, 3, padding=1))(x),
    lambda x, _, make: make(lambda: nn.BatchNorm2d(x.shape[1]))(x),
    lambda x, *_: functional.max_pool2d(x, 2),
    lambda x, *_: functional.adaptive_avg_pool2d(x, 1),
    lambda x, *_: functional.interpolate(x, scale_factor=2),
    lambda x, *_: x.flatten(2).transpose(1, 2),
    lambda x, *_: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    lambda x, *_: x.mean((2, 3)),
    lambda x, *_: x[:, :, ::2, ::2],
    lambda x, *_: x.view(x.shape[0], 2, _cut(x.shape[1], 2), *x.shape[2:]).transpose(1, 2).flatten(1, 2),
]
MOST_ELEMENTS = 4e6


class Walk(nn.Module):
    """Each operator reads the tensor before it, some an earlier one too; some parts are used again."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.parts = seed, nn.ModuleDict()

    def forward(self, *inputs: Any) -> Any:
        """Return the last tensor."""
        dice, made = random.Random(self.seed), list(inputs)  # noqa: S311 - samples
        for _ in range(10):
            x, other = made[-1], dice.choice(made)
            operators = ANY + {3: OF_ROWS, 4: OF_IMAGES}.get(x.dim(), [])
            number, is_again = dice.randrange(len(operators)), dice.random() < 0.3
            name = f"{number}of{'x'.join(map(str, x.shape))}" + "" if is_again else f"{number}at{len(made)}"

            def part(make: Callable[[], Any], name: str = name) -> Any:
                if name not in self.parts:
                    self.parts[name] = make()
                return self.parts[name]

            with suppress(RuntimeError, ValueError):
                y = operators[number](x, other, part)
                if 1 < y.numel() < MOST_ELEMENTS:
                    made.append(y)
        return made[-1]


@pytest.mark.parametrize("seed", range(120))
def test_parameters_and_flop_of_whatever_is_read_are_those_of_torch(seed: int, monkeypatch: Any) -> None:
    samples, module = [torch.randn(2, *shape) for shape in SHAPES[seed % len(SHAPES)]], Walk(seed)
    result = module(*samples)  # makes the parts
    if not result.requires_grad:
        return
    result.sum().backward()
    used = sum(one.numel() for one in module.parameters() if one.grad is not None)
    walks = types.ModuleType(f"walks{seed}")
    walks.__dict__["walk"] = lambda: (module, tuple(samples))
    monkeypatch.setitem(sys.modules, walks.__name__, walks)
    work = totals(catalog.find_network(f"{walks.__name__}:walk"))
    with FlopCounterMode(display=False) as counter:  # there attention is counted, as on GPUs
        module(*(one.to("meta") for one in samples))
    assert work.parameters == used
    assert 2 * work.forward_mac == pytest.approx(counter.get_total_flops() / 2, rel=0.01)
