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
    of_two = Configurations.having(data_parallel=64, accumulation_steps=2)
    plans, state = of_two.but(sharding=np.array([0, 1, 3])), []
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
    plans = Configurations.having(data_parallel=d, accumulation_steps=2, sharding=np.array([0, *scattered]))
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


@pytest.mark.parametrize(("label", "is_there"), [("pytorch", False), ("pytorch@1.13", True), ("megatron-lm", True)])
def test_gradients_are_there_from_backward_pass_to_update(label: str, is_there: bool) -> None:  # noqa: FBT001
    """zero_grad lets them go since PyTorch 2.0: of one micro-batch none beside the largest activations."""
    memory = ledger("gpt2", catalog.find_framework(label))
    one, two, small = (
        memory.fullest(Configurations.having(sub_batch=samples, accumulation_steps=steps))
        for samples, steps in ((16, 1), (16, 2), (1, 1))
    )
    assert (one.gradients > 0) == is_there
    assert two.total - one.total == pytest.approx((not is_there) * 1.02 * two.gradients)
    assert small.total <= one.total
    uneven = ledger("vgg16", catalog.find_framework(label)).fullest(Configurations.having(sub_batch=16))
    assert uneven.gradients > 0  # of what stands behind most activations


def test_buckets_of_whole_replicas_are_a_second_copy_of_gradients() -> None:
    plans = Configurations.having(data_parallel=np.array([1, 8, 8]), sharding=np.array([0, 0, 1]))
    for label, copies in (("pytorch", 1), ("pytorch:horovod", 0), ("megatron-lm", 0)):
        found = ledger("gpt2", catalog.find_framework(label)).fullest(plans.but(accumulation_steps=2))
        np.testing.assert_allclose(found.messages, [0, copies * found.gradients[0], 0])


def test_stages_of_sharded_weights_keep_gradients_whole() -> None:
    plans = Configurations.having(data_parallel=8, pipeline_parallel=np.array([1, 4]), accumulation_steps=8, sharding=2)
    found = ledger("llama3-8b", catalog.find_framework("torchtitan")).fullest(plans)
    np.testing.assert_allclose(found.gradients, [found.weights[0] * 2 / 8, found.weights[1] * 2])


def test_buffers_of_zero_are_there_at_an_update() -> None:
    memory = ledger(gpt_network(48, 1600, 25, 512), catalog.find_framework("megatron-deepspeed"), "fp16")
    plans = Configurations.having(data_parallel=8, sharding=np.array([0, 1]), recompute=2)
    bare = memory.with_rules(buffer_elements=0).fullest(plans)
    more = memory.fullest(plans).total - bare.total
    assert more[0] == 0
    assert 0.6 * 2 * 2 * 5e8 < more[1] <= 1.02 * 2 * 2 * 5e8


def test_every_axis_in_use_has_a_communicator() -> None:
    degrees = np.array([1, 2, 4])
    plans = Configurations.having(data_parallel=degrees, tensor_parallel=np.array([1, 1, 4]))
    memory = ledger("gpt2")
    outside, rules = memory.fullest(plans.but(tensor_parallel=np.array([1, 1, 2]))).framework, memory.rules
    np.testing.assert_allclose((outside - rules.framework_bytes) / rules.communicator_bytes, [0, 1, 3])
    assert MemoryRules.of("fp32", "sgd", mode="async").communicator_bytes == 0


def test_convolutions_are_tried_in_what_is_free() -> None:
    """ResNet-50's largest: 512 x 2048 channels, 1,088 numbers of fp32 each: 4.25 GiB, and 11 MB a sample."""
    network = catalog.find_network("resnet50")
    for precision, fixed in (("fp32", 4352 * 512 * 2048), ("bf16", 0)):
        found = ledger(network, PYTORCH, precision).fullest(Configurations.having(sub_batch=np.array([1, 33])))
        assert found.trials.tolist() == pytest.approx([fixed + (fixed > 0) * n * 4352 * 2560 for n in (1, 33)])
        assert (found.total == found.allocated + found.margin + found.framework).all()
    assert not ledger(network, GENERIC, "fp32").fullest(Configurations.having()).trials


def test_a_loss_is_compiled_with_the_network_since_2025() -> None:
    labels = ("torchtitan:compile@2024-12", "torchtitan:compile@2025-06", "torchtitan", "pytorch:compile")
    losses = [MemoryRules.of("bf16", "adam", catalog.find_framework(label)).loss for label in labels]
    assert losses == ["split", "compiled", "split", "compiled"]


@pytest.mark.parametrize("label", ["pytorch", "fsdp", "torchtitan:compile", "megatron-lm:flash-attention", "generic"])
def test_eight_bits_never_take_less_than_sixteen(label: str) -> None:
    plans = Configurations.having(sub_batch=2, data_parallel=8, sharding=np.arange(4))
    sixteen, eight = (
        ledger("llama3-8b", catalog.find_framework(label), name).fullest(plans).total for name in ("bf16", "fp8")
    )
    assert (eight >= sixteen).all()
