from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from planner.domain.framework import GENERIC, PYTORCH, Framework
from planner.domain.network import INPUT, Layer, Network
from planner.domain.split import OFFLOADS, RECOMPUTES, SCHEDULES, SHARD_GROUPS, SplitMemoryBytes, SplitPlans
from planner.domain.transformer import Transformer
from planner.errors import ParameterError, UnknownNameError
from planner.workload.kept_activations import layer_bytes
from planner.workload.lawful import is_lawful
from planner.workload.memory_rules import MemoryRules
from planner.workload.split_fit import fullest_bytes, largest_sub_batches
from planner.workload.split_memory import split_memory, stage_memory
from planner.workload.split_parameters import BytesOfParameter, shard_ranks, stage_blocks, stage_parameters
from planner.workload.transformer import blocks, parameters
from tests.workload.conftest import DEEPSEEK, EVERY, GPT_1T, LLAMA3_8B, LLAMA3_70B, MIXTRAL, T5, gpt

FULL = RECOMPUTES.index("full")
MEGATRON = BytesOfParameter.of("bf16", "adam", 4)
RULES = MemoryRules(MEGATRON, padded=True)
BARE = replace(RULES, framework_bytes=0, margin=0)


CHUNKED = [SCHEDULES.index(name) for name in ("zero-bubble-v", "interleaved")]


def some_plans(of: Transformer, count: int = 300) -> SplitPlans:
    """Return plans of all kinds; not all are lawful, all have a memory."""
    numbers = np.random.default_rng(0)

    def any_of(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return numbers.choice(values, size=count)

    p = any_of(1, 2, 3, 5, min(12, of.layers))
    v = np.where(p > 1, any_of(1, 2, 3), 1)
    return SplitPlans.of(
        sub_batch=any_of(1, 2, 7),
        accumulation_steps=p * any_of(1, 2, 9),
        data_parallel=any_of(1, 4, 64),
        tensor_parallel=any_of(1, 2, 8),
        context_parallel=any_of(1, 2),
        expert_parallel=any_of(1, 4) if of.experts else 1,
        pipeline_parallel=p,
        virtual_stages=v,
        sequence_parallel=any_of(0, 1),
        recompute=any_of(0, 1, 2),
        recompute_every=any_of(1, 2, 3, 100),
        sharding=any_of(0, 1, 2, 3),
        shard_group=any_of(0, 1),
        schedule=np.select([(v == 2) & (any_of(0, 1) > 0), v > 1], CHUNKED, any_of(0, 1, 3, 4, 6)),
        offload=any_of(0, 0, 1, 2),
    )


@pytest.mark.parametrize("of", EVERY.values(), ids=EVERY)
def test_no_stage_needs_more_than_the_worst(of: Transformer) -> None:
    plans = some_plans(of)
    worst = split_memory(of, plans, RULES)
    stages = np.minimum(np.arange(12)[:, None], plans.pipeline_parallel - 1)
    np.testing.assert_allclose(worst.total, stage_memory(of, plans, stages, RULES).total.max(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(worst.total, stage_memory(of, plans, worst.stage, RULES).total)
    assert {one.name: getattr(worst, one.name).shape for one in fields(SplitMemoryBytes)} == {
        one.name: (300,) for one in fields(SplitMemoryBytes)
    }


@pytest.mark.parametrize(
    "rules",
    [
        RULES,
        BARE,
        replace(RULES, output_buffers=3, output_sharding=1),
        replace(RULES, parameter=replace(MEGATRON, gradient=2, main_gradient=4)),
        replace(RULES, bucket_bytes=1e8),
    ],
    ids=["all", "bare", "logits are buffered", "wide gradients", "buckets"],
)
@pytest.mark.parametrize("of", EVERY.values(), ids=EVERY)
def test_totals_alone_are_those_of_split_memory(of: Transformer, rules: MemoryRules) -> None:
    plans = some_plans(of, 2000).rows
    np.testing.assert_allclose(fullest_bytes(of, plans, rules), split_memory(of, plans, rules).total, rtol=1e-14)
    assert fullest_bytes(of, plans.take(np.zeros(0, dtype=np.int64)), rules).shape == (0,)


@pytest.mark.parametrize("of", EVERY.values(), ids=EVERY)
def test_stages_have_all_layers(of: Transformer) -> None:
    for p in (1, 2, 5, 7):
        each = [stage_blocks(of, np.array(p), np.array(stage)) for stage in range(p)]
        assert tuple((kind, sum(dict(one)[kind] for one in each)) for kind, _ in blocks(of)) == blocks(of)
        totals = [sum(count for _, count in one) for one in each]
        assert totals == sorted(totals, reverse=True)
        assert max(totals) - min(totals) <= 1


@pytest.mark.parametrize("of", EVERY.values(), ids=EVERY)
def test_splitting_more_never_takes_more(of: Transformer) -> None:
    plans = some_plans(of).but(offload=0, recompute_every=1)
    total = split_memory(of, plans, BARE).total
    for name in ("context_parallel", "sharding", "recompute"):
        more = np.minimum(getattr(plans, name) + 1, {"sharding": 3, "recompute": 2}.get(name, 99))
        after = split_memory(of, plans.but(**{name: more}), BARE)
        gathered = after.gathered if name == "sharding" else 0
        again = after.workspace if name == "recompute" else 0
        assert (after.total - gathered - again <= total).all(), name
    for name in ("sub_batch", "accumulation_steps"):
        assert (split_memory(of, plans.but(**{name: 2 * getattr(plans, name)}), BARE).total >= total).all(), name


@pytest.mark.parametrize("of", [gpt(6, 768, 12), MIXTRAL, T5], ids=["gpt", "moe", "t5"])
def test_largest_sub_batches_by_trying_all(of: Transformer) -> None:
    plans = some_plans(of, 60)
    capacity = np.quantile(split_memory(of, plans, RULES).total, 0.4)
    found = largest_sub_batches(of, plans, RULES, capacity)
    tried = np.arange(1, 400)[:, None]
    fits = split_memory(of, plans.but(sub_batch=tried), RULES).total <= capacity
    np.testing.assert_array_equal(np.minimum(found, 399), fits.sum(axis=0))
    assert 0 in found
    assert (found > 1).any()
    bounds = split_memory(of, plans.but(sub_batch=found), RULES).total[found > 0]
    assert (bounds <= capacity).all()


def test_optimizer_on_the_host() -> None:
    of, g = gpt(6, 768, 12), 16
    plans = SplitPlans.of(data_parallel=g, sharding=1, offload=np.array([0, OFFLOADS.index("optimizer")]))
    found = split_memory(of, plans, BARE)
    count = stage_parameters(of, plans, np.array(0), padded=True).total[0]
    np.testing.assert_array_equal(found.optimizer, [12 * count / g, 0])
    np.testing.assert_array_equal(found.host, [0, (12 + 4) * count / g])
    np.testing.assert_array_equal(found.to_host, [0, 4 * count / g])
    np.testing.assert_array_equal(found.to_device, [0, 2 * count / g])
    assert (found.gradients[0], found.weights[0]) == (found.gradients[1], found.weights[1])


def test_activations_on_the_host() -> None:
    """106.95 MB of a layer of gpt3-175b, t 8, with selective recompute."""
    of, m, p = gpt(96, 12288, 96), 32, 8
    plans = SplitPlans.of(
        tensor_parallel=8, sequence_parallel=1, recompute=1, pipeline_parallel=p, accumulation_steps=m,
        offload=OFFLOADS.index("activations"),
    )  # fmt: skip
    layer = 34 * 2048 * 12288 / 8
    assert layer / 1e6 == pytest.approx(106.95, abs=0.01)
    found = stage_memory(of, plans, 0, BARE)
    kept = stage_memory(of, plans.but(offload=0), 0, BARE)
    assert kept.activations - found.activations == pytest.approx((p * 96 / p - 2) * layer)
    assert found.host == pytest.approx(p * 96 / p * layer)
    assert found.to_host == found.to_device == pytest.approx(m * 96 / p * layer)


def test_gathered_units() -> None:
    """A layer of llama3-70b is 1.711 GB in 2 bytes, its table of tokens 2.101 GB."""
    plans = SplitPlans.of(data_parallel=64, sharding=3, pipeline_parallel=np.array([1, 8]), accumulation_steps=8)
    units = stage_parameters(LLAMA3_70B, plans, np.array([0, 3])).largest_unit
    np.testing.assert_array_equal(units, [128256 * 8192, 855_654_400])
    assert 2 * units / 1e9 == pytest.approx([2.101, 1.711], abs=0.0005)
    for ahead in (0, 1, 3):
        found = stage_memory(LLAMA3_70B, plans, np.array([0, 3]), replace(BARE, prefetch=ahead, padded=False))
        np.testing.assert_array_equal(found.gathered, ((1 + ahead) * 2 + 4) * units)


def test_logits() -> None:
    """fp32 probabilities of 8192 positions and 128256 tokens are 4.20 GB; logits of both precisions lie beside them."""
    rules = replace(BARE, padded=False)
    found = split_memory(LLAMA3_8B, SplitPlans.of(sub_batch=2), rules).logits
    assert found * 4 / 10 / 1e9 == pytest.approx(4.20, abs=0.005)
    of_loss = {loss: split_memory(LLAMA3_8B, SplitPlans.of(sub_batch=2), replace(rules, loss=loss)) for loss in (
        "parallel", "fused", "eager")}  # fmt: skip
    per_logit = {loss: float(found.logits) / (8192 * 128256) for loss, found in of_loss.items()}
    assert per_logit == {"parallel": 10, "fused": 2, "eager": 14}
    gpipe = SplitPlans.of(sub_batch=2, pipeline_parallel=4, accumulation_steps=5, schedule=0)
    waiting = stage_memory(LLAMA3_8B, gpipe, np.arange(4), rules).logits
    np.testing.assert_array_equal(waiting / (8192 * 128256), [0, 0, 0, 4 * 4 + 10])


def test_growth_with_the_sub_batch_of_a_measured_network() -> None:
    """16, 17, 20 and 25 GB for 1, 2, 4 and 8 samples: BigScience, experiments/tr3m-1B3.md, one stage on V100-32GB."""
    of = replace(gpt(24, 2048, 16, vocabulary=50257), dropout=0.1)
    samples = np.array([1, 2, 4, 8])
    plans = SplitPlans.of(sub_batch=samples, data_parallel=8, sharding=1, recompute=FULL, accumulation_steps=8)
    total = split_memory(of, plans, RULES).total
    measured = np.polyfit(samples, [16e9, 17e9, 20e9, 25e9], 1)[0]
    assert np.polyfit(samples, total, 1)[0] == pytest.approx(measured, rel=0.05)


def test_outputs_that_a_pipeline_keeps() -> None:
    """DeepSpeed's last stage has fp32 logits of two micro-batches, softmax and a fp16 gradient: 14 bytes a logit."""
    rules = replace(BARE, padded=False, output_buffers=2, output_sharding=1)
    plans = SplitPlans.of(sub_batch=2, pipeline_parallel=4, accumulation_steps=np.array([1, 2, 8]))
    found = stage_memory(LLAMA3_8B, plans, 3, rules)
    np.testing.assert_array_equal(found.logits / (8192 * 128256), [10, 14, 14])
    assert stage_memory(LLAMA3_8B, plans, np.arange(3)[:, None], rules).logits.max() == 0
    without = stage_memory(LLAMA3_8B, plans.but(sharding=2), 3, rules)
    np.testing.assert_array_equal(without.logits / (8192 * 128256), 10)


def test_backward_passes_run_beside_the_outputs_that_a_pipeline_keeps() -> None:
    of, logits = replace(gpt(2, 4096, 64, vocabulary=50000), dropout=0.1), 2048 * 50000
    plans = SplitPlans.of(pipeline_parallel=2, accumulation_steps=4, recompute=FULL)
    rules = replace(BARE, padded=False, parameter=replace(MEGATRON, main_gradient=0))
    plain = stage_memory(of, plans, 1, rules)
    found = stage_memory(of, plans, 1, replace(rules, output_buffers=2))
    working = plain.logits + plain.workspace
    assert plain.workspace > 0
    assert found.total == plain.total + 8 * logits
    assert found.logits + found.workspace == working + 8 * logits


@pytest.mark.parametrize("every", [1, 2, 3, 4, 8])
def test_inputs_of_every_kth_layer(every: int) -> None:
    of, q = gpt(48, 6144, 64), 4
    plans = SplitPlans.of(recompute=FULL, recompute_every=every, pipeline_parallel=q, accumulation_steps=q)
    found = stage_memory(of, plans, 1, BARE)
    one = layer_bytes(of, plans)
    assert found.activations == (q - 1) * np.ceil(12 / every) * 2 * 2048 * 6144
    assert found.workspace == every * one.total + one.gradients


def test_ranks_hold_each_parameter_once_where_all_is_shared() -> None:
    """Of lawful plans; norms, routers and shares of heads are whole on tensor ranks."""
    axes = np.meshgrid([1, 2, 8], [1, 2], [1, 4, 16], [1, 2, 8], indexing="ij")
    t, c, d, x = (np.ravel(axis) for axis in axes)
    plans = SplitPlans.of(tensor_parallel=t, context_parallel=c, data_parallel=d, expert_parallel=x, sharding=3)
    network = Network("any", (4096,), (Layer("all", "flatten", (INPUT,)),), transformer=MIXTRAL)
    lawful = is_lawful(network, GENERIC, plans)
    held = split_memory(MIXTRAL, plans, replace(BARE, padded=False)).weights * plans.gpus / 2
    assert 20 < lawful.sum() < lawful.size
    np.testing.assert_allclose(held[lawful], parameters(MIXTRAL), rtol=1e-3)


def test_ranks_that_share() -> None:
    plans = SplitPlans.of(
        data_parallel=np.array([64, 64, 2]), context_parallel=2, tensor_parallel=np.array([1, 4, 1]), expert_parallel=2
    )
    assert shard_ranks(plans).tolist() == [128, 128, 4]
    assert shard_ranks(plans, experts=True).tolist() == [64, 64, 2]
    inside = plans.but(shard_group=SHARD_GROUPS.index("node"))
    assert shard_ranks(inside).tolist() == [8, 2, 4]
    assert shard_ranks(inside, experts=True).tolist() == [4, 1, 2]


def test_absurd_sizes_do_not_overflow() -> None:
    most = 10**9
    of = replace(gpt(most, 10**8, 10**8, vocabulary=most), sequence=most)
    plans = SplitPlans.of(sub_batch=most, accumulation_steps=most, data_parallel=np.array([1, most]), sharding=2)
    with np.errstate(all="raise"):
        found = split_memory(of, plans, RULES)
        assert largest_sub_batches(of, plans, RULES, 80e9).tolist() == [0, 0]
    assert np.isfinite(found.total).all()
    assert (found.total > 1e27).all()
    assert (split_memory(DEEPSEEK, plans, RULES).total > 0).all()
    assert split_memory(GPT_1T, SplitPlans.of(), BARE).weights == 2 * 1_008_038_758_400


def test_rules_of_frameworks() -> None:
    megatron, fsdp, generic = (
        MemoryRules.of("fp16", "adam", framework)
        for framework in (
            Framework("megatron-lm", loss="parallel", pads_vocabulary=True, main_gradients=True), PYTORCH, GENERIC,
        )
    )  # fmt: skip
    of, plans = gpt(2, 64, 4), SplitPlans.of(data_parallel=64, sharding=np.array([0, 1, 3]))
    state = []
    for rules in (megatron, fsdp, generic):
        found = split_memory(of, plans, replace(rules, padded=False))
        state.append((found.weights + found.gradients + found.optimizer) / found.weights[0] * 2)
    np.testing.assert_allclose(state[0], [16, 4 + 12 / 64, 16 / 64])
    assert megatron.parameter.main_gradient == 4
    np.testing.assert_allclose(state[1], [18, 6 + 12 / 64, 16 / 64])
    np.testing.assert_allclose(state[2], [16, 4 + 12 / 64, 16 / 64])
    assert [(rules.loss, rules.padded) for rules in (megatron, fsdp)] == [("parallel", True), ("eager", False)]
    wide = MemoryRules.of("fp32", "adam", PYTORCH).parameter
    assert (wide.master, wide.keeps_weight_shards) == (0, True)
    assert MemoryRules.of("fp32", "adam", Framework("other", main_gradients=True)).parameter.main_gradient == 0
    with pytest.raises(UnknownNameError, match="loss"):
        Framework("other", loss="none")


def test_wide_gradients_of_an_update_are_there_when_activations_are_not() -> None:
    rules = replace(BARE, parameter=replace(MEGATRON, main_gradient=4, gradient=2), padded=False)
    of = replace(gpt(24, 2048, 16, vocabulary=1000), fused=True)
    plans = SplitPlans.of(sub_batch=np.array([1, 64]), recompute=FULL)
    without = split_memory(of, plans, replace(rules, parameter=replace(MEGATRON, gradient=2)))
    found = split_memory(of, plans, rules)
    assert found.total[0] > without.total[0]
    assert found.total[0] == pytest.approx(20 * parameters(of))
    assert found.total[1] == without.total[1] > 20 * parameters(of)


def test_rules_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="loss"):
        MemoryRules(MEGATRON, loss="none")
    with pytest.raises(UnknownNameError, match="precision"):
        MemoryRules(MEGATRON, precision="fp12")
    with pytest.raises(UnknownNameError, match="optimizer"):
        BytesOfParameter.of("bf16", "lion")
    wrongs: tuple[dict[str, Any], ...] = ({"margin": -0.1}, {"imbalance": 0.0}, {"framework_bytes": -1.0})
    for wrong in wrongs:
        with pytest.raises(ParameterError):
            replace(RULES, **wrong)
    with pytest.raises(ParameterError, match="tensor"):
        SplitPlans.of(tensor=3)
