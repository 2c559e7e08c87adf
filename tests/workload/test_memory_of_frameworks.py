"""Bytes that programs keep of a parameter: what their own pages state, by precision and sharding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Configurations
from planner.domain.framework import GENERIC, PYTORCH, Framework
from planner.errors import UnknownNameError
from planner.workload.memory_rules import MemoryRules
from tests.workload.conftest import gpt_network, ledger


def test_rules_of_frameworks() -> None:
    plans, state = Configurations.having(data_parallel=64, sharding=np.array([0, 1, 3])), []
    frameworks = (catalog.find_framework("megatron-lm"), PYTORCH, GENERIC)
    for framework in frameworks:
        memory = ledger(gpt_network(2, 64, 4), framework, "fp16")
        found = memory.fullest(plans)
        state.append((found.weights + found.gradients + found.optimizer) / found.weights[0] * 2)
    np.testing.assert_allclose(state[0], [16, 4 + 12 / 64, 16 / 64])
    np.testing.assert_allclose(state[1], [18, 6 + 12 / 64, 16 / 64])
    np.testing.assert_allclose(state[2], [16, 4 + 12 / 64, 16 / 64])
    rules = [MemoryRules.of("fp16", "adam", framework) for framework in frameworks]
    assert [(one.loss, one.sizes.is_padded, one.parameter.main_gradient) for one in rules] == [
        ("parallel", True, 4), ("eager", False, 0), ("eager", False, 0),
    ]  # fmt: skip
    wide = MemoryRules.of("fp32", "adam", PYTORCH).parameter
    assert (wide.master, wide.keeps_weight_shards) == (0, True)
    assert MemoryRules.of("fp32", "adam", Framework("other", main_gradients=True)).parameter.main_gradient == 0
    with pytest.raises(UnknownNameError, match="loss"):
        Framework("other", loss="none")


@pytest.mark.parametrize(
    ("name", "precision", "whole", "scattered"),
    [
        ("megatron-lm", "bf16", 18, {1: (6, 12)}),
        ("megatron-lm", "fp16", 20, {1: (4, 16)}),
        ("megatron-lm", "fp32", 16, {1: (8, 8)}),
        ("deepspeed", "bf16", 20, {1: (4, 16), 2: (2, 18), 3: (0, 20)}),
        ("megatron-deepspeed", "bf16", 20, {1: (8, 12)}),
        ("fsdp", "bf16", 18, {2: (2, 16), 3: (0, 16)}),
        ("torchtitan", "bf16", 18, {2: (2, 16), 3: (0, 16)}),
        ("nanotron", "bf16", 20, {1: (8, 12)}),
    ],
)  # fmt: skip
def test_bytes_of_a_parameter_are_those_of_the_program_and_the_precision(
    name: str, precision: str, whole: float, scattered: Mapping[int, tuple[float, float]]
) -> None:
    """Megatron Core's dist_optimizer page; DeepSpeed's stages, fp32 gradients in the step; FSDP, fp32 shards."""
    memory, d = ledger(gpt_network(2, 64, 4), catalog.find_framework(name), precision), 64
    plans = Configurations.having(data_parallel=d, sharding=np.array([0, *scattered]))
    found, each = memory.fullest(plans), memory.rules.parameter
    count = found.weights[0] / each.weight
    shares = np.where(plans.sharding > 0, d, 1)
    of_step = each.main_gradient * count / shares
    kept = (found.weights + found.gradients + found.optimizer + of_step) / count
    np.testing.assert_allclose(kept, [whole, *(own + shared / d for own, shared in scattered.values())])


def test_gradients_are_held_and_sent_in_types_of_their_own() -> None:
    sizes = {
        name: (catalog.find_framework(name).gradient_bytes("bf16"), catalog.find_framework(name).message_bytes("bf16"))
        for name in ("megatron-lm", "fsdp", "torchtitan", "pytorch", "deepspeed")
    }
    assert sizes == {
        "megatron-lm": (4, 4), "fsdp": (4, 2), "torchtitan": (4, 4), "pytorch": (4, 4), "deepspeed": (2, 2),
    }  # fmt: skip
    assert catalog.find_framework("megatron-lm").message_bytes("fp16") == 2
    assert MemoryRules.of("bf16", "adam", Framework("own", state_type="bf16")).parameter.state == 4
