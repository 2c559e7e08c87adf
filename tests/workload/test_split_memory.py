from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.split import RECOMPUTES, SCHEDULES, SplitPlans
from planner.domain.transformer import Transformer
from planner.networks.zoo import build
from planner.workload.kept_activations import layer_bytes
from planner.workload.memory import memory_bytes
from planner.workload.memory_rules import MemoryRules
from planner.workload.split_memory import split_memory, stage_memory
from planner.workload.split_parameters import BytesOfParameter, stage_parameters
from planner.workload.transformer import blocks, layer_parameters, outer_parameters, parameters
from tests.workload.conftest import EVERY, GPT_1T, LLAMA3_8B, LLAMA3_70B, LLAMA_7B, MIXTRAL, T5, gpt

INTERLEAVED = SCHEDULES.index("interleaved")
SELECTIVE, FULL = RECOMPUTES.index("selective"), RECOMPUTES.index("full")
MEGATRON = BytesOfParameter.of("bf16", "adam", 4)
BARE = MemoryRules(MEGATRON, framework_bytes=0, margin=0)

KORTHIKANTI = {
    "22B": (gpt(48, 6144, 64), 4, 1, 1, (1325.4, 885.0, 654.3, 213.9, 100.7), 9.57),
    "175B": (gpt(96, 12288, 96), 1, 8, 3, (578.8, 358.6, 327.2, 107.0, 50.3), 12.38),
    "530B": (gpt(105, 20480, 128), 1, 35, 3, (880.8, 513.8, 545.3, 178.3, 83.9), 23.25),
    "1T": (GPT_1T, 1, 64, 1, (1101.0, 642.3, 681.6, 222.8, 104.9), 26.95),
}
"""Networks of Korthikanti et al. 2022, arXiv:2205.05198: sub-batch, stages and chunks; by its formulas, MB of a layer
split by 8 (tensor; with sequence parallelism; with selective recompute; both; full) and GiB of the first stage with
both, and with the mask behind the embedding.
"""


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_activations_of_a_layer_are_the_published_formulas(name: str) -> None:
    of, b, _, _, megabytes, _ = KORTHIKANTI[name]
    n, h, s, a, t = b * of.sequence, of.hidden, of.sequence, of.heads, 8
    plain, shared = (
        layer_bytes(of, SplitPlans.of(sub_batch=b, tensor_parallel=t, sequence_parallel=which)) for which in (0, 1)
    )
    assert plain.total == pytest.approx(n * h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-14)
    assert shared.total == pytest.approx(n * h * (34 + 5 * a * s / h) / t, rel=1e-14)
    found = [plain.total, shared.total, plain.others, shared.others, plain.input]
    assert np.array(found) / 1e6 == pytest.approx(megabytes, abs=0.06)
    one = layer_bytes(of, SplitPlans.of(sub_batch=b))
    assert one.total == pytest.approx(n * h * (34 + 5 * a * s / h), rel=1e-14)


def test_share_saved_by_selective_recompute() -> None:
    """70 % of GPT-3 and 65 % of 530B: Korthikanti et al. 2022."""
    saved = {}
    for name, (of, b, *_) in KORTHIKANTI.items():
        one = layer_bytes(of, SplitPlans.of(sub_batch=b, tensor_parallel=8, sequence_parallel=1))
        saved[name] = round(100 * float(one.scores / one.total), 1)
    assert saved == {"22B": 75.8, "175B": 70.2, "530B": 65.3, "1T": 65.3}


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_activations_of_the_first_stage(name: str) -> None:
    """The published sum has p masks behind the embedding; interleaving keeps 2p of them, and ids of tokens are ours."""
    of, b, p, v, _, gib = KORTHIKANTI[name]
    plans = SplitPlans.of(
        sub_batch=b, tensor_parallel=8, sequence_parallel=1, recompute=SELECTIVE, pipeline_parallel=p,
        virtual_stages=v, schedule=INTERLEAVED, accumulation_steps=8 * p,
    )  # fmt: skip
    n, h = b * of.sequence, of.hidden
    ours = stage_memory(of, plans, 0, BARE).activations
    masks = p if v == 1 else 2 * p
    ids = 8 * n * masks
    inputs = 2 * 2 * n * h / 8 * (p == 1)  # of norm and logits, where the first stage is the last
    published = ours - ids - inputs - (masks - p) * n * h / 8
    assert published / 2**30 == pytest.approx(gib, abs=0.0051)


def test_parameters_and_bytes_of_the_stages_of_gpt3() -> None:
    of = gpt(96, 12288, 96)
    plans = SplitPlans.of(
        tensor_parallel=8, pipeline_parallel=8, virtual_stages=3, schedule=INTERLEAVED, sequence_parallel=1,
        recompute=SELECTIVE, accumulation_steps=64,
    )  # fmt: skip
    counts = [int(stage_parameters(of, plans, np.array(stage)).total) for stage in range(8)]
    assert counts == [2_822_731_776, *6 * [2_718_922_752], 2_797_590_528]
    first = split_memory(of, plans, BARE)
    state = first.weights + first.gradients + first.optimizer
    assert first.stage == 0
    assert state / 2**30 == pytest.approx(47.32, abs=0.005)
    assert (state + first.activations) / 2**30 == pytest.approx(59.70, abs=0.03)  # masks of 2p micro-batches, not of p


@pytest.mark.parametrize("of", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("p", [1, 2, 5])
def test_ranks_hold_all_parameters_and_copies(of: Transformer, p: int) -> None:
    t, x = 4, 2 if of.experts else 1
    for degree in (1, t):
        plans = SplitPlans.of(tensor_parallel=degree, pipeline_parallel=p, expert_parallel=x, data_parallel=x)
        held = 0.0
        for stage in range(p):
            one = stage_parameters(of, plans, np.array(stage))
            held += float(degree * (one.shared + x * one.experts))
        outer = outer_parameters(of)
        whole = outer.positions + outer.buckets + outer.norms + outer.head_besides
        for kind, count in blocks(of):
            layer = layer_parameters(of, kind)
            whole += count * (layer.row_biases + layer.norms + layer.router + layer.compression)
        copied = (p > 1) * of.tied * of.vocabulary * of.hidden
        assert held == pytest.approx(parameters(of) + copied + (degree - 1) * whole, rel=1e-12)


def test_ranks_beyond_the_heads_of_keys_share_them() -> None:
    t = np.array([8, 16, 64])
    counts = stage_parameters(LLAMA3_70B, SplitPlans.of(tensor_parallel=t), np.array(0)).total
    h, d, layers = 8192, 128, 80
    without = (parameters(LLAMA3_70B) - layers * (2 * h + 2 * 8 * h * d) - h) / t + layers * 2 * h + h
    np.testing.assert_allclose(counts, without + layers * 2 * h * d)


def test_padding_of_the_vocabulary() -> None:
    of, plans = gpt(2, 64, 4, vocabulary=50257), SplitPlans.of(tensor_parallel=np.array([1, 8]))
    more = stage_parameters(of, plans, np.array(0), padded=True).total - stage_parameters(of, plans, np.array(0)).total
    np.testing.assert_array_equal(more, [64 * (50304 - 50257), 64 * (51200 / 8 - 6283)])


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
    """Rajbhandari et al. 2020, arXiv:1910.02054, and the table of Megatron-LM's docs on its distributed optimizer."""
    of, g = gpt(2, 64, 4), 64
    found = split_memory(
        of, SplitPlans.of(data_parallel=g, sharding=np.arange(4)), MemoryRules(each, framework_bytes=0, margin=0)
    )
    main = each.main_gradient / np.array([1, g, g, g])  # there in the update alone
    state = (found.weights + found.gradients + found.optimizer) / parameters(of) + main
    assert state == pytest.approx([at_0, *(own + all_ranks / g for own, all_ranks in zip(kept, shared, strict=True))])


def test_published_bytes_of_zero() -> None:
    """7.5 billion parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB, Rajbhandari et al. 2020, figure 1."""
    of = gpt(2, 64, 4)
    rules = MemoryRules(BytesOfParameter.of("fp16", "adam", 2), framework_bytes=0, margin=0)
    found = split_memory(of, SplitPlans.of(data_parallel=64, sharding=np.arange(4)), rules)
    state = (found.weights + found.gradients + found.optimizer) / parameters(of) * 7.5
    assert np.round(state, 1).tolist() == [120, 31.4, 16.6, 1.9]


@pytest.mark.parametrize(
    ("of", "per_feature"),
    [(LLAMA_7B, 32.2), (LLAMA3_8B, 34.0), (LLAMA3_70B, 33.5)],
)
def test_activations_of_llama(of: Transformer, per_feature: float) -> None:
    one = layer_bytes(of, SplitPlans.of(sub_batch=3))
    n, h, d, t = 3 * of.sequence, of.hidden, of.head_size, 4
    assert one.total / (n * h) == pytest.approx(per_feature, abs=0.05)
    split = layer_bytes(of, SplitPlans.of(sub_batch=3, tensor_parallel=t, sequence_parallel=1))
    by_hand = n * (8 * h + 4 * of.heads * d + 4 * of.kv_heads * d + 6 * of.ffn) / t + 4 * n * of.heads / t + 8 * n / t
    assert split.total == pytest.approx(by_hand)
    eager = layer_bytes(of, SplitPlans.of(sub_batch=3), fused_activation=False)
    assert eager.total - one.total == 2 * n * of.ffn


@pytest.mark.parametrize(("causal", "keys"), [(True, 512 + 512 / 2 * 3), (False, 2048)])
def test_attention_weights_of_context_ranks_by_hand(causal: bool, keys: float) -> None:  # noqa: FBT001 - a case
    """Of 4 ranks each keeps all of its own block, and half of the others where later positions are masked."""
    one = layer_bytes(replace(gpt(2, 96, 3), causal=causal), SplitPlans.of(sub_batch=3, context_parallel=4))
    assert one.scores == 5 * 3 * 512 * keys * 3


def test_parameters_that_tensor_ranks_have_whole_by_hand() -> None:
    """Mixtral: two norms and a router of h·E a layer, one norm more on the last stage; t5: the norms of both stacks."""
    plans = SplitPlans.of(tensor_parallel=2, pipeline_parallel=4)
    found = stage_parameters(MIXTRAL, plans, np.arange(4)[:, None]).whole
    each = 8 * (2 * 4096 + 4096 * 8)
    assert found.ravel().tolist() == [each, each, each, each + 4096]
    whole = stage_parameters(T5, plans.but(pipeline_parallel=1), np.array(0)).whole
    assert whole == 768 * (12 * 2 + 12 * 3 + 2)


def test_activations_of_experts_by_hand() -> None:
    n, h, f, k, experts, t = 2 * 4096, 4096, 14336, 2, 8, 4
    one = layer_bytes(MIXTRAL, SplitPlans.of(sub_batch=2), "experts")
    attention = layer_bytes(replace(MIXTRAL, experts=0, ffn=1), SplitPlans.of(sub_batch=2)).total - 6 * n
    assert one.total == attention + 2 * n * k * (h + 3 * f) + 2 * n * k * h + 8 * n * experts
    uneven = layer_bytes(MIXTRAL, SplitPlans.of(sub_batch=2), "experts", imbalance=1.5)
    assert uneven.total - one.total == n * k * (h + 3 * f)
    split = layer_bytes(MIXTRAL, SplitPlans.of(sub_batch=2, tensor_parallel=t, sequence_parallel=1), "experts")
    rest = (
        layer_bytes(
            replace(MIXTRAL, experts=0, ffn=1), SplitPlans.of(sub_batch=2, tensor_parallel=t, sequence_parallel=1)
        ).total
        - 6 * n / t
    )
    rows = 2 * n * k
    assert split.total == pytest.approx(rest + rows * (h + 3 * f / t) + rows * h / t + 8 * n / t * experts)


def test_activations_of_cross_attention_by_hand() -> None:
    n = n_e = 3 * 512
    h, a, s = 768, 12, 512
    decoder, encoder = (layer_bytes(T5, SplitPlans.of(sub_batch=3), kind).total for kind in ("dense", "encoder"))
    assert encoder == n * h * (18 + (2 + 3) * 4 + 5 * a * s / h)  # ReLU in place, mask, and what is left
    assert decoder - encoder == n * h * (2 + 2 + 2 + 2 + 1) + 4 * n_e * h + 5 * n * a * s


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "arguments", "norms"),
    [
        ("gpt", {}, 9),
        ("gpt", {"attention": "fused"}, 9),
        ("gpt", {"head_size": 24, "ffn": 70}, 9),
        ("gpt2", {}, 25),
        ("opt-1.3b", {}, 49),
        ("bert", {"head": "tokens"}, 10),
        ("bert", {"head": "labels"}, 9),
        ("gpt", {"head": "labels"}, 9),
        ("mpt", {}, 9),
    ],
)
def test_one_rank_keeps_what_the_layers_do(name: str, arguments: dict[str, object], norms: int, precision: str) -> None:
    """But the statistics of LayerNorm, 8 bytes a position, and fp32 logarithms of probabilities, counted as logits."""
    sizes = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 200} if "-" not in name else {}
    sizes = {} if name == "gpt2" else sizes
    network = build(name, {key: str(value) for key, value in (sizes | arguments).items()})
    of = network.transformer
    assert of is not None
    b = 3
    layers = memory_bytes(network, np.array([b]), precision, "adam", "gpu")
    rules = MemoryRules(BytesOfParameter.of(precision, "adam"), precision, loss="eager")
    counts = split_memory(of, SplitPlans.of(sub_batch=np.array([b])), rules)
    for part in ("weights", "gradients", "optimizer", "framework"):
        assert getattr(counts, part) == getattr(layers, part)
    classes = of.classes or of.vocabulary
    assert layers.activations - counts.activations == b * of.sequence * (8 * norms + 4 * classes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "name",
    ["llama", "llama3-8b", "moe", "mixtral-8x7b", "deepseek-v2-lite", "t5", "t5-small", "vit", "vit-b16", "mpt-7b"],
)
def test_one_rank_of_other_families_keeps_what_the_layers_do(name: str, precision: str) -> None:
    """Within 0.15 %: layers keep no logits of routers, and some statistics more; logarithms of the loss are apart."""
    network = build(name, {})
    of = network.transformer
    assert of is not None
    layers = memory_bytes(network, np.array([2]), precision, "adam", "gpu")
    rules = MemoryRules(BytesOfParameter.of(precision, "adam"), precision, loss="eager", fused_activation=False)
    counts = split_memory(of, SplitPlans.of(sub_batch=np.array([2])), rules)
    assert (counts.weights, counts.optimizer) == (layers.weights, layers.optimizer)
    logarithms = 2 * 4 * (of.sequence * of.vocabulary or of.classes)
    assert layers.activations - logarithms == pytest.approx(counts.activations, rel=1.5e-3)
