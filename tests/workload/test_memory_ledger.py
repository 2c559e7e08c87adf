"""The ledger of memory: properties of all networks, frameworks and plans, and closed forms as oracles."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configurations
from planner.domain.framework import GENERIC, PYTORCH, Framework
from planner.domain.network import Network
from planner.domain.split import MEMORY_KINDS, OFFLOADS, RECOMPUTES, SplitMemoryBytes, StageLayers
from planner.errors import ParameterError, UnknownNameError
from planner.networks.zoo import zoo_names
from planner.workload import units as unit_module
from planner.workload.fusion import with_attention
from planner.workload.lawful import is_lawful
from planner.workload.memory import Memory
from planner.workload.memory_rules import WIDE_BYTES, BytesOfParameter, MemoryRules
from planner.workload.placement import shard_ranks
from planner.workload.program import block_starts
from planner.workload.rank_sizes import MOST, SUMS, RankSizes, SizeRules
from tests.workload.closed_memory import layer_bytes, positions, stage_parameters
from tests.workload.closed_transformer import blocks, parameters, record_of
from tests.workload.conftest import NAMES, gpt_network, ledger, network_of

FULL, SELECTIVE = RECOMPUTES.index("full"), RECOMPUTES.index("selective")
FRAMEWORKS = (
    "pytorch", "pytorch:compile", "pytorch:fused-attention", "megatron-lm", "megatron-deepspeed", "torchtitan", "fsdp",
    "deepspeed", "caffe",
)  # fmt: skip
CHUNKED = [SCHEDULES.index(name) for name in ("zero-bubble-v", "interleaved")]
BARE: dict[str, Any] = {"framework_bytes": 0.0, "communicator_bytes": 0.0, "margin": 0.0}
FAMILIES = ("gpt", "bert", "opt-1.", "mpt", "llama", "llama3", "mixtral-8x7", "moe", "deepseek-v2-lite", "t5", "vit")
SPLIT = ("gpt2", "bert-base", "llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "t5-small", "vit-b16", "mpt-7b")
ALL = ("alexnet", "googlenet", "mobilenet-v2", "resnet50", "vgg16", "yolov3", "mlp", *SPLIT)


@cache
def framework_of(name: str) -> Framework:
    return catalog.find_framework(name)


def memory_of(network: str, framework: str = "pytorch", precision: str = "bf16", **rules: Any) -> Memory:
    of = framework_of(framework)
    return ledger(with_attention(network_of(network), of.fuses), of, precision, **rules)


def some_plans(network: Network, count: int = 600) -> Configurations:
    """Return lawful plans of all kinds, but for accumulation."""
    numbers, of = np.random.default_rng(0), record_of(network)

    def any_of(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return numbers.choice(values, size=count)

    p = any_of(1, 1, 2, 3, 5, min(12, of.layers))
    v = np.where(p > 1, any_of(1, 2, 3), 1)
    plans = Configurations.having(
        sub_batch=any_of(1, 2, 7),
        accumulation_steps=p * any_of(1, 2, 9),
        data_parallel=any_of(1, 4, 64),
        tensor_parallel=any_of(1, 2, 4, 8),
        context_parallel=any_of(1, 2),
        expert_parallel=any_of(1, 4) if of.experts else 1,
        pipeline_parallel=p,
        virtual_stages=v,
        sequence_parallel=any_of(0, 1),
        recompute=any_of(0, 1, 2),
        recompute_every=any_of(1, 1, 2, 3),
        sharding=any_of(0, 1, 2, 3),
        shard_group=any_of(0, 1),
        schedule=np.select([(v == 2) & (any_of(0, 1) > 0), v > 1], CHUNKED, any_of(0, 1, 3, 4, 6)),
        offload=any_of(0, 0, 1, 2),
    ).rows
    return plans.take(np.flatnonzero(is_lawful(network, GENERIC, plans, but_accumulation=True)))


def same(one: SplitMemoryBytes, other: SplitMemoryBytes, words: str = "") -> None:
    for name in (*MEMORY_KINDS, "total"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=f"{words}: {name}")


NEUTRAL: dict[str, dict[str, Any]] = {
    "sharding of one replica": {"sharding": np.arange(4)},
    "a schedule of one stage": {"schedule": np.arange(len(SCHEDULES))},
    "chunks of one stage": {"virtual_stages": np.arange(1, 5)},
    "a shard group of one node": {"shard_group": np.arange(2)},
    "shared positions of one tensor rank": {"sequence_parallel": np.arange(2)},
    "micro-batches one by one": {"accumulation_steps": np.arange(2, 6), "schedule": 1},
}


@pytest.mark.parametrize("framework", FRAMEWORKS[::2])
@pytest.mark.parametrize("network", ALL)
def test_a_value_that_does_nothing_changes_no_byte(network: str, framework: str) -> None:
    memory = memory_of(network, framework)
    plain = Configurations.having(sub_batch=4, accumulation_steps=2)
    for name, change in NEUTRAL.items():
        same(memory.fullest(plain.but(**change)), memory.fullest(plain), name)


@pytest.mark.parametrize("network", ["gpt2", "resnet50"])
def test_sharding_in_a_node_is_sharding_of_all_where_there_is_one_node(network: str) -> None:
    memory, plans = memory_of(network), Configurations.having(sub_batch=4, data_parallel=8, sharding=np.arange(4))
    same(memory.fullest(plans.but(shard_group=1)), memory.fullest(plans))


@pytest.mark.parametrize("network", ["gpt2", "resnet50"])
def test_an_optimizer_that_keeps_nothing_frees_nothing_on_the_host(network: str) -> None:
    plans = Configurations.having(sub_batch=4, offload=np.array([0, OFFLOADS.index("optimizer")]))
    found = Memory(network_of(network), MemoryRules.of("fp32", "sgd", PYTORCH)).fullest(plans)
    assert found.total[0] == found.total[1]


@pytest.mark.parametrize("framework", FRAMEWORKS[::2])
@pytest.mark.parametrize("network", SPLIT)
def test_parts_add_up_and_totals_alone_are_the_same(network: str, framework: str) -> None:
    memory, plans = memory_of(network, framework), some_plans(network_of(network))
    found = memory.fullest(plans)
    total = sum(getattr(found, name) for name in MEMORY_KINDS if name not in ("host", "trials"))
    np.testing.assert_allclose(total, found.total, rtol=1e-14)
    np.testing.assert_allclose(memory.totals(plans), found.total, rtol=1e-13)
    assert memory.totals(plans.take(np.zeros(0, dtype=np.int64))).shape == (0,)
    assert all((getattr(found, one.name) >= 0).all() for one in fields(SplitMemoryBytes))


@pytest.mark.parametrize("network", SPLIT)
def test_no_stage_needs_more_than_the_worst(network: str) -> None:
    memory, plans = memory_of(network), some_plans(network_of(network))
    worst, stages = memory.fullest(plans), np.minimum(np.arange(12)[:, None], plans.pipeline_parallel - 1)
    every = memory.of_stages(plans, stages).total
    np.testing.assert_allclose(worst.total, every.max(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(worst.total, memory.of_stages(plans, worst.stage).total)


BUFFERS = {
    "sharding": ("gathered",), "tensor_parallel": ("messages", "framework"),
    "context_parallel": ("messages", "framework"),
    "recompute": ("workspace", "gradients"), "offload": (), "sequence_parallel": ("messages",),
}  # fmt: skip
"""Axis -> terms that may grow with it: units that are gathered, what messages and communicators need, and what is made
again."""


@pytest.mark.parametrize("axis", BUFFERS)
@pytest.mark.parametrize("network", SPLIT)
def test_less_on_a_device_needs_no_more(network: str, axis: str) -> None:
    """But for buffers that a term of the ledger names."""
    made = network_of(network)
    plans = some_plans(made).but(offload=0, recompute_every=1).rows
    if axis == "recompute":
        plans = plans.but(recompute=np.minimum(plans.recompute, 1)).rows
    if axis == "tensor_parallel":  # within a node they take the place of those that share shards
        plans = plans.but(shard_group=0).rows
    has = getattr(plans, axis)
    most = {"sharding": 3, "recompute": 2, "offload": 2, "sequence_parallel": 1}.get(axis, 64)
    factor = 2 if axis in ("tensor_parallel", "context_parallel") else 1 + 1 / np.maximum(has, 1)
    more = plans.but(**{axis: np.minimum(np.maximum(has * factor, 1), most)}).rows
    both = [is_lawful(made, GENERIC, one, but_accumulation=True) for one in (plans, more)]
    rows = np.flatnonzero(both[0] & both[1])
    if axis == "context_parallel" and network == "vit-b16":
        assert not rows.size
        return
    assert rows.size > 20
    for framework in ("pytorch", "megatron-lm", "torchtitan"):
        memory = memory_of(network, framework, margin=0.0)
        before, after = (memory.of_stages(one.take(rows), 0) for one in (plans, more))
        grown = [np.maximum(getattr(after, name) - getattr(before, name), 0.0) for name in BUFFERS[axis]]
        excess = after.total - np.sum(grown, axis=0) - before.total
        worst = int(np.argmax(excess / before.total))
        assert (excess <= 1e-12 * before.total).all(), (framework, more.take(rows[[worst]]))


@pytest.mark.parametrize("network", SPLIT)
def test_a_fusion_never_needs_more(network: str) -> None:
    made, plans = network_of(network), some_plans(network_of(network))
    plans = plans.but(
        recompute=np.where(plans.recompute == SELECTIVE, 0, plans.recompute)
    ).rows  # fused attention is it
    apart = ledger(made, replace(GENERIC, loss="eager")).fullest(plans).total
    for fuses in (("activation",), ("attention",), ("activation", "attention", "residual")):
        fused = ledger(with_attention(made, fuses), replace(GENERIC, loss="eager", fuses=fuses)).fullest(plans).total
        assert (fused <= apart * (1 + 1e-12)).all(), fuses
    assert (ledger(made, replace(GENERIC, loss="fused")).fullest(plans).total <= apart).all()


@pytest.mark.parametrize("network", ALL)
def test_more_samples_never_need_less_and_narrow_products_never_less_than_16_bits(network: str) -> None:
    memory, samples = memory_of(network), np.arange(1, 9)
    total = memory.fullest(Configurations.having(sub_batch=samples)).total
    assert (np.diff(total) > 0).all()
    narrow = memory_of(network, precision="fp8").fullest(Configurations.having(sub_batch=samples)).total
    assert (narrow >= total).all()


@pytest.mark.parametrize("framework", FRAMEWORKS[::3])
@pytest.mark.parametrize("network", SPLIT)
def test_more_micro_batches_never_need_less(network: str, framework: str) -> None:
    """A search leaves out those behind the fewest that do not fit."""
    memory, plans = memory_of(network, framework), some_plans(network_of(network)).rows
    for schedule in range(len(SCHEDULES)):
        totals = [memory.totals(plans.but(schedule=schedule, accumulation_steps=m).rows) for m in (1, 2, 5, 40)]
        assert (np.diff(totals, axis=0) >= -1e-9 * totals[0]).all()


@pytest.mark.parametrize("network", ["gpt2", "mixtral-8x7b", "t5-small", "resnet50"])
def test_largest_sub_batches_by_trying_all(network: str) -> None:
    memory = memory_of(network, "megatron-lm" if network == "gpt2" else "pytorch")
    made = network_of(network)
    plans = (
        some_plans(made, 60) if block_starts(made) else Configurations.having(sharding=np.arange(4), data_parallel=8)
    )
    capacity = float(np.quantile(memory.fullest(plans).total, 0.6))
    found = memory.largest_sub_batches(plans, capacity)
    fits = memory.fullest(plans.but(sub_batch=np.arange(1, 200)[:, None])).total <= capacity
    np.testing.assert_array_equal(np.minimum(found, 199), fits.sum(axis=0))


@pytest.mark.parametrize("name", [name for name in zoo_names() if name.rstrip("0123456789b-") in FAMILIES])
def test_two_of_each_run_of_blocks_stand_for_all(name: str) -> None:
    network, rules = network_of(name), SizeRules(is_padded=True)
    degrees = (2, 1, 1, 1)
    few = unit_module.few_blocks(network)
    assert len(few[0].layers) <= len(network.layers)
    short = RankSizes.of(few, rules, degrees)
    whole = RankSizes.of((network, np.arange(few[1].size)), rules, degrees)
    for one in fields(RankSizes):
        np.testing.assert_allclose(getattr(short, one.name), getattr(whole, one.name), rtol=1e-12, err_msg=one.name)


# Closed forms

EAGER = replace(GENERIC, loss="eager", fuses=("activation",))


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_every_stage_are_the_closed_form(name: str, *, is_padded: bool) -> None:
    """Where experts are split, and where tensor ranks outnumber groups of keys, too."""
    network, of = network_of(name), record_of(network_of(name))
    memory = ledger(network, replace(EAGER, pads_vocabulary=is_padded), **BARE)
    plans = some_plans(network).but(sharding=0)
    for stage in range(5):
        at = np.minimum(stage, plans.pipeline_parallel - 1)
        closed = stage_parameters(of, plans, at, padded=is_padded)
        versions = np.where(plans.schedule == SCHEDULES.index("no-flush"), plans.pipeline_parallel - at, 1)
        found = memory.of_stages(plans, at)
        # a biased head over the vocabulary has its biases split here, and whole in the closed form
        np.testing.assert_allclose(found.weights / 2 / versions, closed.total, rtol=1e-3)
        np.testing.assert_allclose(found.gradients / 2, closed.total, rtol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_what_blocks_keep_is_the_closed_form(name: str) -> None:
    """All blocks on one stage between two others. Statistics of LayerNorm are in the ledger alone, 8 bytes a position.

    The ledger has no logits of routers, and of DeepSeek compressed keys that tensor ranks share by positions, as the
    norm behind them is; the closed form leaves these whole. Of T5 it has the masks behind both stacks besides.
    """
    network, of = network_of(name), record_of(network_of(name))
    memory, errors = ledger(network, EAGER), []
    plans = some_plans(network).but(virtual_stages=1, schedule=1, offload=0, sub_batch=3, accumulation_steps=1)
    layers = StageLayers(*(np.array(at) for at in (0, memory.blocks, memory.blocks)))
    for code in range(3):
        some = plans.but(pipeline_parallel=3, recompute=code, recompute_every=1).rows
        found = memory.of_stages(some, 1, layers).activations
        closed = np.zeros(some.shape)
        for block, count in blocks(of):
            one = layer_bytes(of, some, block)
            closed += count * (one.total, one.others, one.input)[code]
        if of.encoder_layers:
            closed += 2 * of.hidden * positions(of, some, encoder=True)[1]
        statistics = 8 * 2 * of.layers * positions(of, some)[1] * (of.norm == "layer") * (code != FULL)
        errors.append(float(np.max(np.abs(found - statistics - closed) / found)))
    assert np.all(np.array(errors) <= LIMITS.get(name, (1e-12, 1e-12, 1e-12))), errors


LIMITS = {
    "mixtral": (1e-3, 1e-3, 1e-12), "deepseek": (0.06, 0.06, 1e-12), "t5": (0.011, 0.018, 0.04),
}  # fmt: skip
"""Network -> by how much it may differ without recompute, with selective and with full recompute."""


KORTHIKANTI = {
    "22B": ((48, 6144, 64), 4, 1, 1, (1325.4, 885.0, 654.3, 213.9, 100.7), 9.57),
    "175B": ((96, 12288, 96), 1, 8, 3, (578.8, 358.6, 327.2, 107.0, 50.3), 12.38),
    "530B": ((105, 20480, 128), 1, 35, 3, (880.8, 513.8, 545.3, 178.3, 83.9), 23.25),
    "1T": ((128, 25600, 160), 1, 64, 1, (1101.0, 642.3, 681.6, 222.8, 104.9), 26.95),
}
"""Networks of Korthikanti et al. 2022, arXiv:2205.05198: layers, hidden, heads; sub-batch, stages and chunks; by its
formulas, MB of a layer split by 8 (tensor; with sequence parallelism; with selective recompute; both; full) and GiB of
the first stage with both, and with the mask behind the embedding."""


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_activations_of_a_layer_are_the_published_bytes(name: str) -> None:
    sizes, b, *_, megabytes, _ = KORTHIKANTI[name]
    memory, n, (layers, h, _a) = ledger(gpt_network(*sizes), EAGER), KORTHIKANTI[name][1] * 2048, sizes
    plans = Configurations.having(
        sub_batch=b, tensor_parallel=8, sequence_parallel=np.array([0, 1, 0, 1, 0]),
        recompute=np.array([0, 0, SELECTIVE, SELECTIVE, FULL]), pipeline_parallel=layers // (1 + layers % 2),
        accumulation_steps=1,
    )  # fmt: skip
    two, one = (
        memory.of_stages(plans, 1, StageLayers(*(np.array([at]) for at in (1, 1 + many, many)))).activations
        for many in (2, 1)
    )
    statistics = 16 * n / np.array([1, 8, 1, 8, np.inf])
    np.testing.assert_allclose((two - one - statistics) / 1e6, megabytes, atol=0.06)
    assert (one - statistics)[3] == pytest.approx(34 * n * h / 8, rel=1e-12)


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_activations_of_the_first_stage(name: str) -> None:
    """The published sum has p masks behind the embedding; interleaving keeps 2p of them, and ids of tokens are ours."""
    sizes, b, p, v, _, gib = KORTHIKANTI[name]
    plans = Configurations.having(
        sub_batch=b, tensor_parallel=8, sequence_parallel=1, recompute=SELECTIVE, pipeline_parallel=p,
        virtual_stages=v, schedule=CHUNKED[1], accumulation_steps=8 * p,
    )  # fmt: skip
    n, h, layers = b * 2048, sizes[1], sizes[0]
    ours = ledger(gpt_network(*sizes), EAGER).of_stages(plans, 0).activations
    masks = p if v == 1 else 2 * p
    live = {1: p, 3: (2 * (p - 1) + (v - 1) * p + 1) / v}[v]
    statistics = live * np.ceil(layers / p) * 16 * n / 8 + (p == 1) * 8 * n / 8
    inputs = 2 * 2 * n * h / 8 * (p == 1)  # of norm and logits, where the first stage is the last
    published = ours - 8 * n * masks - inputs - (masks - p) * n * h / 8 - statistics
    assert published / 2**30 == pytest.approx(gib, abs=0.0051)


def test_bytes_of_the_first_stage_of_gpt3() -> None:
    plans = Configurations.having(
        tensor_parallel=8, pipeline_parallel=8, virtual_stages=3, schedule=CHUNKED[1], sequence_parallel=1,
        recompute=SELECTIVE, accumulation_steps=64,
    )  # fmt: skip
    megatron = MemoryRules(BytesOfParameter.of("bf16", "adam", 4), SizeRules(), **BARE)
    memory = Memory(gpt_network(96, 12288, 96), megatron)
    counts = [int(memory.of_stages(plans, stage).weights / 2) for stage in range(8)]
    assert counts == [2_822_731_776, *6 * [2_718_922_752], 2_797_590_528]
    first = memory.fullest(plans)
    state = first.weights + first.gradients + first.optimizer
    assert first.stage == 0
    assert state / 2**30 == pytest.approx(47.32, abs=0.005)
    assert (state + first.activations) / 2**30 == pytest.approx(59.70, abs=0.05)  # masks of 2p micro-batches, not of p


@pytest.mark.parametrize(
    ("each", "at_0", "kept", "shared"),
    [
        (BytesOfParameter.of("fp16", "adam", 2), 16, (4, 2, 0), (12, 14, 16)),
        (BytesOfParameter.of("bf16", "adam", 4), 18, (6, 2, 0), (12, 16, 18)),
        (replace(BytesOfParameter.of("fp16", "adam", 2), main_gradient=4), 20, (4, 2, 0), (16, 18, 20)),
        (BytesOfParameter.of("fp32", "adam"), 16, (8, 4, 0), (8, 12, 16)),
        (replace(BytesOfParameter.of("bf16", "adam", 4), keeps_weight_shards=False), 18, (6, 2, 0), (12, 16, 16)),
        (BytesOfParameter.of("fp16", "sgd-momentum", 2), 12, (4, 2, 0), (8, 10, 12)),
        (BytesOfParameter.of("fp16", "sgd", 2), 8, (4, 2, 0), (4, 6, 8)),
        (BytesOfParameter.of("fp16", "adam-8bit", 2), 10, (4, 2, 0), (6, 8, 10)),
    ],
)
def test_bytes_of_a_parameter(
    each: BytesOfParameter, at_0: float, kept: tuple[float, ...], shared: tuple[float, ...]
) -> None:
    """Rajbhandari et al. 2020, arXiv:1910.02054, and the table of Megatron-LM's docs on its distributed optimizer.

    7.5 billion parameters on 64 ranks take 120, 31.4, 16.6 and 1.9 GB in fp16 (figure 1 of the former).
    """
    network, g = gpt_network(2, 64, 4), 64
    plans = Configurations.having(data_parallel=g, sharding=np.arange(4))
    found = Memory(network, MemoryRules(each, SizeRules(), **BARE)).fullest(plans)
    main = each.main_gradient / np.array([1, g, g, g])  # there in the update alone
    state = (found.weights + found.gradients + found.optimizer) / parameters(record_of(network)) + main
    assert state == pytest.approx([at_0, *(own + all_ranks / g for own, all_ranks in zip(kept, shared, strict=True))])
    if at_0 == 16 and each.weight == 2:
        assert np.round(7.5 * state, 1).tolist() == [120, 31.4, 16.6, 1.9]


def test_ranks_hold_each_parameter_once_where_all_is_shared() -> None:
    """Norms, routers and shares of heads are whole on tensor ranks."""
    axes = np.meshgrid([1, 2, 8], [1, 2], [1, 4, 16], [1, 2, 8], indexing="ij")
    t, c, d, x = (np.ravel(axis) for axis in axes)
    plans = Configurations.having(tensor_parallel=t, context_parallel=c, data_parallel=d, expert_parallel=x, sharding=3)
    network = network_of("mixtral")
    plans = plans.rows.take(np.flatnonzero(is_lawful(network, GENERIC, plans)))
    held = ledger(network, **BARE).fullest(plans).weights * plans.gpus / 2
    assert plans.shape[0] > 20
    np.testing.assert_allclose(held, parameters(record_of(network)), rtol=1e-3)


def test_optimizer_on_the_host() -> None:
    g = 16
    plans = Configurations.having(data_parallel=g, sharding=1, offload=np.array([0, OFFLOADS.index("optimizer")]))
    megatron = MemoryRules(BytesOfParameter.of("bf16", "adam", 4), SizeRules(is_padded=True), **BARE)
    found = Memory(network_of("gpt"), megatron).fullest(plans)
    count = found.weights[0] / 2
    np.testing.assert_allclose(found.optimizer, [12 * count / g, 0])
    np.testing.assert_allclose(found.host, [0, (12 + 4) * count / g])
    np.testing.assert_allclose(found.to_host, [0, 4 * count / g])
    np.testing.assert_allclose(found.to_device, [0, 2 * count / g])
    assert (found.gradients[0], found.weights[0]) == (found.gradients[1], found.weights[1])


def test_activations_on_the_host() -> None:
    """106.95 MB of a layer of gpt3-175b, t 8, with selective recompute; statistics of its norms are ours."""
    m, p = 32, 8
    plans = Configurations.having(
        tensor_parallel=8, sequence_parallel=1, recompute=1, pipeline_parallel=p, accumulation_steps=m,
        offload=OFFLOADS.index("activations"),
    )  # fmt: skip
    layer = 34 * 2048 * 12288 / 8
    assert layer / 1e6 == pytest.approx(106.95, abs=0.01)
    memory = ledger(gpt_network(96, 12288, 96), EAGER, **BARE)
    found, kept = (memory.of_stages(one, 0) for one in (plans, plans.but(offload=0)))
    assert kept.activations - found.activations == pytest.approx((p * 96 / p - 2) * layer, rel=1e-3)
    assert found.host == pytest.approx(p * 96 / p * layer, rel=1e-3)
    assert found.to_host == found.to_device == pytest.approx(m * 96 / p * layer, rel=1e-3)


def test_gathered_units() -> None:
    """A layer of llama3-70b is 1.711 GB in 2 bytes, its table of tokens 2.101 GB."""
    plans = Configurations.having(
        data_parallel=64, sharding=3, pipeline_parallel=np.array([1, 8]), accumulation_steps=8
    )
    units = np.array([128256 * 8192, 855_654_400])
    assert 2 * units / 1e9 == pytest.approx([2.101, 1.711], abs=0.0005)
    for ahead in (0, 1, 3):
        parameter = BytesOfParameter.of("bf16", "adam", 4)
        memory = Memory(network_of("llama3-70b"), MemoryRules(parameter, SizeRules(), prefetch=ahead, **BARE))
        found = memory.of_stages(plans, np.array([0, 3]))
        np.testing.assert_array_equal(found.gathered, ((1 + ahead) * 2 + 4) * units)


def test_logits() -> None:
    """fp32 probabilities of 8192 positions and 128256 tokens are 4.20 GB; logits of both precisions lie beside them."""
    memory, logits = ledger("llama3-8b", loss="parallel", **BARE), 8192 * 2 * 128256
    found = memory.fullest(Configurations.having(sub_batch=2)).logits
    assert found * 4 / 10 / 2 / 1e9 == pytest.approx(4.20, abs=0.005)
    per_logit = {
        loss: float(memory.with_rules(loss=loss).fullest(Configurations.having(sub_batch=2)).logits) / logits
        for loss in ("parallel", "fused", "eager", "compiled")
    }
    assert per_logit == {"parallel": 10, "fused": 2, "eager": 12, "compiled": 4}
    gpipe = Configurations.having(sub_batch=2, pipeline_parallel=4, accumulation_steps=5, schedule=0)
    waiting = memory.of_stages(gpipe, np.arange(4)).logits
    np.testing.assert_array_equal(waiting / logits, [0, 0, 0, 4 * 4 + 10])


def test_growth_with_the_sub_batch_of_a_measured_network() -> None:
    """16, 17, 20 and 25 GB for 1, 2, 4 and 8 samples: BigScience, experiments/tr3m-1B3.md, one stage on V100-32GB."""
    samples = np.array([1, 2, 4, 8])
    plans = Configurations.having(sub_batch=samples, data_parallel=8, sharding=1, recompute=FULL, accumulation_steps=8)
    total = ledger(gpt_network(24, 2048, 16, 50257), replace(EAGER, loss="parallel", pads_vocabulary=True)).fullest(
        plans
    )
    measured = np.polyfit(samples, [16e9, 17e9, 20e9, 25e9], 1)[0]
    assert np.polyfit(samples, total.total, 1)[0] == pytest.approx(measured, rel=0.05)


def test_outputs_that_a_pipeline_keeps() -> None:
    """DeepSpeed's last stage has fp32 logits of two micro-batches, softmax and a fp16 gradient: 14 bytes a logit."""
    memory = ledger("llama3-8b", loss="parallel", output_buffers=2, output_sharding=1, **BARE)
    logits = 2 * 8192 * 128256
    plans = Configurations.having(sub_batch=2, pipeline_parallel=4, accumulation_steps=np.array([1, 2, 8]))
    np.testing.assert_array_equal(memory.of_stages(plans, 3).logits / logits, [10, 14, 14])
    assert memory.of_stages(plans, np.arange(3)[:, None]).logits.max() == 0
    np.testing.assert_array_equal(memory.of_stages(plans.but(sharding=2, data_parallel=4), 3).logits / logits, 10)
    # Backward passes run beside them.
    wide = gpt_network(2, 4096, 64, 50000)
    plans = Configurations.having(pipeline_parallel=2, accumulation_steps=4, recompute=FULL)
    plain, found = (
        ledger(wide, loss="parallel", output_buffers=buffers, **BARE).of_stages(plans, 1) for buffers in (0, 2)
    )
    assert plain.workspace > 0
    assert found.total == pytest.approx(plain.total + 8 * 2048 * 50000)
    assert found.logits + found.workspace == pytest.approx(plain.logits + plain.workspace + 8 * 2048 * 50000)


@pytest.mark.parametrize("every", [1, 2, 3, 4, 8])
def test_inputs_of_every_kth_layer(every: int) -> None:
    """A group of k keeps one input, and makes again what k layers keep but that input."""
    network, q, tensor = gpt_network(48, 6144, 64), 4, 2 * 2048 * 6144
    plans = Configurations.having(recompute=FULL, recompute_every=every, pipeline_parallel=q, accumulation_steps=q)
    found = ledger(network, EAGER, **BARE).of_stages(plans, 1)
    one = layer_bytes(record_of(network), plans)
    assert found.activations == (q - 1) * np.ceil(12 / every) * tensor
    again = every * (one.total + 16 * 2048) - tensor
    assert again + one.gradients <= found.workspace <= again + one.gradients + 4 * tensor


def test_wide_gradients_of_an_update_are_there_when_activations_are_not() -> None:
    network = with_attention(gpt_network(24, 2048, 16, 1000), ("attention",))
    plans = Configurations.having(sub_batch=np.array([1, 64]), recompute=FULL)
    narrow = BytesOfParameter.of("bf16", "adam", 2)
    without, found = (
        ledger(network, EAGER, parameter=replace(narrow, main_gradient=main), **BARE).fullest(plans)
        for main in (0, WIDE_BYTES)
    )
    count = parameters(record_of(network))
    assert found.total[0] > without.total[0]
    assert found.total[0] == pytest.approx(20 * count)
    assert found.total[1] == without.total[1] > 20 * count


def test_operators_that_selective_recompute_leaves_out() -> None:
    """Of torchtitan outputs of attention and of each first of two products stay, besides what a block is given.

    Of llama3-8b these are queries, values, the gate and the last product: 4096, 1024, 14336 and 4096 features.
    """
    found = memory_of("llama3-8b", "torchtitan").fullest(Configurations.having(recompute=np.arange(3))).activations
    kept = 2 * (4096 + 1024 + 14336 + 4096 + 4096) + 4 * 32
    assert found[1] - found[2] == 32 * 8192 * kept
    assert found[1] < found[0]


def test_ranks_that_share() -> None:
    plans = Configurations.having(
        data_parallel=np.array([64, 64, 2]), context_parallel=2, tensor_parallel=np.array([1, 4, 1]), expert_parallel=2
    )
    assert shard_ranks(plans).tolist() == [128, 128, 4]
    assert shard_ranks(plans, experts=True).tolist() == [64, 64, 2]
    inside = plans.but(shard_group=1)
    assert shard_ranks(inside).tolist() == [8, 2, 4]
    assert shard_ranks(inside, experts=True).tolist() == [4, 1, 2]


def test_absurd_sizes_do_not_overflow() -> None:
    most = 10**9
    huge = network_of("gpt:layers=99,hidden=999900,heads=9999,sequence=999999,vocabulary=9999999")
    plans = Configurations.having(
        sub_batch=most, accumulation_steps=most, data_parallel=np.array([1, most]), sharding=2
    )
    with np.errstate(all="raise"):
        found = ledger(huge).fullest(plans)
        assert ledger(huge).largest_sub_batches(plans, 80e9).tolist() == [0, 0]
    assert np.isfinite(found.total).all()
    assert (found.total > 1e27).all()
    assert ledger(gpt_network(128, 25600, 160)).fullest(Configurations.having()).weights == 2 * 1_008_038_758_400


def test_rules_are_checked() -> None:
    rules = MemoryRules.of("bf16", "adam")
    with pytest.raises(UnknownNameError, match="loss"):
        replace(rules, loss="none")
    with pytest.raises(UnknownNameError, match="optimizer"):
        BytesOfParameter.of("bf16", "lion")
    for wrong in ({"margin": -0.1}, {"framework_bytes": -1.0}):
        with pytest.raises(ParameterError):
            replace(rules, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="tensor-parallel degree"):
        ledger("gpt2").fullest(Configurations.having(tensor_parallel=5))
    with pytest.raises(ParameterError, match="tensor"):
        Configurations.having(tensor=3)


def test_every_size_has_a_row() -> None:
    whole = ledger("resnet50").whole
    assert (whole.sums.shape[0], whole.most.shape[0]) == (len(SUMS), len(MOST))
