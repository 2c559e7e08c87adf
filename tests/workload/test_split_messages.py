"""Messages of split transformers, against hand counts and published volumes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import CONTEXT, EXPERT, TENSOR
from planner.domain.configuration import Configurations
from planner.domain.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BOUNDARY,
    CONTEXT_NEIGHBOURS,
    CORE,
    EMBEDDING_BACKWARD,
    EMBEDDING_FORWARD,
    EXPERT_SHARDS,
    HEAD_BACKWARD,
    HEAD_FORWARD,
    INPUT_GRADIENT,
    LAYER_BACKWARD,
    LAYER_FORWARD,
    NEIGHBOURS,
    RECOMPUTED,
    REDUCE_SCATTER,
    SEND_RECEIVE,
    WEIGHT_GRADIENT,
    Message,
)
from planner.domain.split import RECOMPUTES
from planner.errors import ParameterError, UnknownNameError
from planner.workload.split_messages import (
    CONTEXT_WAYS,
    BlockSends,
    MessageRules,
    boundary_messages,
    embedding_messages,
    head_messages,
    layer_messages,
    network_sends,
)
from tests.workload.closed_transformer import Transformer
from tests.workload.conftest import LLAMA3_70B, LLAMA_7B, NAMES, network_of


def block(name: str, at: int = -2) -> BlockSends:
    """Return a block of a network; the last unless another is asked for."""
    return network_sends(network_of(name)).units[at]


GPT3 = "gpt:layers=96,hidden=12288,heads=96,sequence=2048,vocabulary=51200"
RULES = MessageRules()
NONE, SELECTIVE, FULL = (RECOMPUTES.index(word) for word in RECOMPUTES[:3])
U = 2 * 2048 * 12288
PLAIN = Configurations.having(tensor_parallel=8)
SHARED = PLAIN.but(sequence_parallel=1)


def wire(messages: Iterable[Message], ranks: int | IntArray, where: str = "") -> FloatArray:
    """Return the bytes that each rank of groups of so many sends around a ring or directly."""
    ranks, total = np.asarray(ranks), np.zeros(())
    for one in messages:
        share = np.where(ranks > 1, 1.0, 0.0) if one.operation == SEND_RECEIVE else (ranks - 1) / ranks
        times = (where in {"", one.where}) * (2 if one.operation == ALL_REDUCE else 1)
        total = total + times * one.count * one.buffer_bytes * share
    return total


def listed(messages: Iterable[Message]) -> Counter[tuple[str, str, str, float]]:
    """Return operations, where they are, under what and of how many bytes, each with how many there are."""
    found: Counter[tuple[str, str, str, float]] = Counter()
    for one in messages:
        found[one.operation, one.where, one.hidden_under, float(one.buffer_bytes)] += int(one.count)
    return found


def test_a_layer_of_gpt3_over_eight_ranks() -> None:
    """Sequence parallelism sends a quarter more, as inputs are gathered again."""
    plain, shared = (wire(layer_messages(block(GPT3), plans, RULES), 8) for plans in (PLAIN, SHARED))
    assert pytest.approx(50.33, abs=0.005) == U / 1e6
    assert plain / 1e6 == pytest.approx(352.3, abs=0.05)
    assert shared / 1e6 == pytest.approx(440.4, abs=0.05)
    assert shared / plain == pytest.approx(1.25)
    again = layer_messages(block(GPT3), PLAIN.but(recompute=FULL), RULES)
    assert wire(again, 8) == pytest.approx(12 * 7 / 8 * U)


def test_what_can_hide_which_message() -> None:
    assert listed(layer_messages(block(GPT3), PLAIN, RULES)) == {
        (ALL_REDUCE, LAYER_FORWARD, "", U): 2,
        (ALL_REDUCE, LAYER_BACKWARD, WEIGHT_GRADIENT, U): 2,
    }
    assert listed(layer_messages(block(GPT3), SHARED, RULES)) == {
        (ALL_GATHER, LAYER_FORWARD, "", U): 2,
        (REDUCE_SCATTER, LAYER_FORWARD, "", U): 2,
        (ALL_GATHER, LAYER_BACKWARD, "", U): 2,
        (ALL_GATHER, LAYER_BACKWARD, INPUT_GRADIENT, U): 2,
        (REDUCE_SCATTER, LAYER_BACKWARD, WEIGHT_GRADIENT, U): 2,
    }


def test_whole_layers_made_again_send_what_they_send_forward() -> None:
    for of in (block(GPT3), block("mixtral"), block("deepseek"), block("t5"), block("t5", 1)):
        plans = SHARED.but(recompute=FULL, expert_parallel=8, context_parallel=2)
        messages = layer_messages(of, plans, RULES)
        forward, again = (
            Counter({key[:1] + key[2:]: n for key, n in listed(messages).items() if key[1] == where})
            for where in (LAYER_FORWARD, RECOMPUTED)
        )
        assert forward == again


def test_attention_made_again_asks_for_keys_and_values_again_unless_it_is_fused() -> None:
    plans = SHARED.but(recompute=SELECTIVE, context_parallel=2)
    again = [one for one in layer_messages(block(GPT3), plans, RULES) if one.where == RECOMPUTED]
    assert [one.group for one in again] == [CONTEXT_NEIGHBOURS]
    assert all(one.where != RECOMPUTED for one in layer_messages(block("llama3-70b"), plans, RULES))


def test_a_decoder_that_reads_an_encoder_sends_its_output_too() -> None:
    of, encoder = (block("t5:sequence=1024,target=512", at) for at in (-2, 1))
    own, read = 2.0 * 512 * 768, 2.0 * 1024 * 768
    assert listed(layer_messages(of, PLAIN, RULES)) == {
        (ALL_REDUCE, LAYER_FORWARD, "", own): 3,
        (ALL_REDUCE, LAYER_BACKWARD, WEIGHT_GRADIENT, own): 3,
        (ALL_REDUCE, LAYER_BACKWARD, WEIGHT_GRADIENT, read): 1,
    }
    shared = listed(layer_messages(of, SHARED, RULES))
    assert (
        shared[ALL_GATHER, LAYER_FORWARD, "", read] == shared[REDUCE_SCATTER, LAYER_BACKWARD, "weight_gradient", read]
    )
    assert listed(layer_messages(encoder, PLAIN, RULES)) == {
        (ALL_REDUCE, LAYER_FORWARD, "", read): 2,
        (ALL_REDUCE, LAYER_BACKWARD, WEIGHT_GRADIENT, read): 2,
    }


def test_keys_and_values_go_around_a_ring() -> None:
    """Llama3-70b over 4: three transfers of 8 heads' keys and values, in backward as many and four of gradients."""
    plans = Configurations.having(context_parallel=4)
    v = 2.0 * 1024 * 2 * 8 * 128
    assert listed(layer_messages(block("llama3-70b"), plans, RULES)) == {
        (SEND_RECEIVE, LAYER_FORWARD, CORE, v): 3,
        (SEND_RECEIVE, LAYER_BACKWARD, CORE, v): 7,
    }
    # each of 16 tensor ranks has a head, as there are no halves
    split = layer_messages(block("llama3-70b"), plans.but(tensor_parallel=16), RULES)
    assert {float(one.buffer_bytes) for one in split if one.group == CONTEXT_NEIGHBOURS} == {v / 8}


def test_keys_and_values_are_gathered() -> None:
    messages = layer_messages(
        block("llama3-70b"), Configurations.having(context_parallel=4, sub_batch=3), MessageRules(2, "all_gather")
    )
    v = 2.0 * 2 * 3 * 4096 * 8 * 128
    assert {one.group for one in messages} == {CONTEXT}
    assert listed(messages) == {
        (ALL_GATHER, LAYER_FORWARD, "", v): 1,
        (ALL_GATHER, LAYER_BACKWARD, "", v): 1,
        (REDUCE_SCATTER, LAYER_BACKWARD, "", v): 1,
    }


@pytest.mark.parametrize(("name", "of", "equal"), [("llama", LLAMA_7B, 2), ("llama3-70b", LLAMA3_70B, 9)])
def test_heads_for_positions_are_less_than_a_ring_beyond_a_number_of_ranks(
    name: str, of: Transformer, equal: int
) -> None:
    c = np.arange(2, 20)
    plans = Configurations.having(context_parallel=c)
    ring, exchanged = (
        wire(layer_messages(block(name), plans, MessageRules(2, way)), c, LAYER_FORWARD)
        for way in ("ring", "all_to_all")
    )
    np.testing.assert_allclose(exchanged, (c - 1) / c * (2 * of.heads + 2 * of.kv_heads) * 2 * 4096 / c * of.head_size)
    np.testing.assert_array_equal(exchanged < ring * (1 - 1e-12), c > equal)


def test_latent_attention_sends_what_its_heads_attend_to() -> None:
    ring = layer_messages(block("deepseek"), Configurations.having(context_parallel=2), RULES)
    assert {float(one.buffer_bytes) for one in ring} == {2.0 * 2048 * 16 * (128 + 64 + 128)}
    exchanged = layer_messages(
        block("deepseek"), Configurations.having(context_parallel=2), MessageRules(2, "all_to_all")
    )
    assert wire(exchanged, 2, LAYER_FORWARD) == pytest.approx(2.0 * 2048 * 16 * (192 + 192 + 128 + 128) / 2)


def test_tokens_go_to_their_experts_and_back() -> None:
    sent = 2.0 * 4096 * 2 * 4096
    whole = layer_messages(block("mixtral"), Configurations.having(expert_parallel=8), MessageRules(imbalance=1.25))
    assert listed(whole) == {
        (ALL_TO_ALL, LAYER_FORWARD, "", 1.25 * sent): 2,
        (ALL_TO_ALL, LAYER_BACKWARD, "", 1.25 * sent): 2,
    }
    assert {one.group for one in whole} == {EXPERT}
    limited = block(
        "mixtral-8x7b:sequence=4096,capacity_factor=1.1"
    )  # at most ceil(8192 / 8 · 1.1) = 1127 tokens an expert
    padded = layer_messages(limited, Configurations.having(expert_parallel=8), MessageRules(imbalance=1.25))
    assert float(padded[0].buffer_bytes) == 2 * 8 * 1127 * 4096
    assert layer_messages(block("llama"), Configurations.having(expert_parallel=8), RULES) == ()


def test_tensor_ranks_share_tokens_and_experts() -> None:
    """Each dispatches a fourth of the tokens; what arrives is gathered over the ranks of an expert, and scattered."""
    messages = layer_messages(block("mixtral"), SHARED.but(tensor_parallel=4, expert_parallel=2), RULES)
    forward = [one for one in messages if one.where == LAYER_FORWARD]
    ahead = {(one.operation, one.group, float(one.buffer_bytes)): int(one.count) for one in forward}
    u, sent = 2.0 * 4096 * 4096, 2.0 * 1024 * 2 * 4096
    assert ahead == {
        (ALL_GATHER, TENSOR, u): 1,
        (REDUCE_SCATTER, TENSOR, u): 1,
        (ALL_TO_ALL, EXPERT, sent): 2,
        (ALL_GATHER, EXPERT_SHARDS, 4 * sent): 1,
        (REDUCE_SCATTER, EXPERT_SHARDS, 4 * sent): 1,
    }
    # an expert that all tokens pass is split as any feed-forward part is
    dense = [one for one in layer_messages(block("deepseek"), SHARED, RULES) if one.group == TENSOR]
    assert listed(dense) == listed(layer_messages(block("deepseek", 1), SHARED, RULES))


def test_both_ends_of_a_split_vocabulary() -> None:
    gpt3, vit = (network_sends(network_of(name)) for name in (GPT3, "vit"))
    assert listed(embedding_messages(gpt3, PLAIN, RULES)) == {(ALL_REDUCE, EMBEDDING_FORWARD, "", U): 1}
    assert listed(embedding_messages(gpt3, SHARED, RULES)) == {
        (REDUCE_SCATTER, EMBEDDING_FORWARD, "", U): 1,
        (ALL_GATHER, EMBEDDING_BACKWARD, "", U): 1,
    }
    loss = (ALL_REDUCE, HEAD_FORWARD, "", 4.0 * 2048)
    assert listed(head_messages(gpt3, PLAIN, RULES)) == {
        loss: 3,
        (ALL_REDUCE, HEAD_BACKWARD, WEIGHT_GRADIENT, U): 1,
    }
    assert listed(head_messages(gpt3, SHARED, RULES)) == {
        (ALL_GATHER, HEAD_FORWARD, "", U): 1,
        loss: 3,
        (ALL_GATHER, HEAD_BACKWARD, INPUT_GRADIENT, U): 1,
        (REDUCE_SCATTER, HEAD_BACKWARD, WEIGHT_GRADIENT, U): 1,
    }
    assert embedding_messages(vit, PLAIN, RULES) == head_messages(vit, PLAIN, RULES) == ()


def test_what_passes_a_boundary_between_stages() -> None:
    gpt3 = network_sends(network_of(GPT3))
    plans = Configurations.having(tensor_parallel=8, context_parallel=2, sub_batch=2, pipeline_parallel=4)
    assert listed(boundary_messages(gpt3, plans, RULES)) == {(SEND_RECEIVE, BOUNDARY, "", U): 1}
    assert listed(boundary_messages(gpt3, plans.but(sequence_parallel=1), RULES)) == {
        (SEND_RECEIVE, BOUNDARY, "", U / 8): 1
    }
    scattered = boundary_messages(gpt3, plans, MessageRules(scatters_boundary=True))
    assert listed(scattered) == {(SEND_RECEIVE, BOUNDARY, "", U / 8): 1, (ALL_GATHER, BOUNDARY, "", U): 1}
    assert [one.group for one in scattered] == [NEIGHBOURS, TENSOR]
    assert boundary_messages(gpt3, plans.but(pipeline_parallel=1), RULES) == ()
    with_encoder = network_sends(network_of("t5:sequence=1024,target=512"))
    with_memory = boundary_messages(with_encoder, Configurations.having(pipeline_parallel=2), RULES)
    assert listed(with_memory) == {(SEND_RECEIVE, BOUNDARY, "", 2.0 * (512 + 1024) * 768): 1}


@pytest.mark.parametrize("way", CONTEXT_WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_plans_are_counted_as_each_by_itself(name: str, way: str) -> None:
    """And one that is not split sends nothing."""
    rules = MessageRules(2, way, scatters_boundary=True)
    columns = {
        "tensor_parallel": [1, 2, 4, 1, 4], "sequence_parallel": [0, 1, 0, 0, 1], "context_parallel": [1, 1, 2, 4, 2],
        "pipeline_parallel": [1, 1, 2, 4, 8], "recompute": [2, 0, 1, 2, 2], "sub_batch": [1, 2, 3, 4, 8],
        "expert_parallel": [1, 2, 4, 1, 2],
    }  # fmt: skip
    plans = Configurations.having(**{name: np.array(values) for name, values in columns.items()})
    of = network_sends(network_of(name))

    def every(some: Configurations) -> list[Message]:
        outer = (embedding_messages, head_messages, boundary_messages)
        layers = [one for sends in dict.fromkeys(of.units) for one in layer_messages(sends, some, rules)]
        return layers + [one for make in outer for one in make(of, some, rules)]

    whole = every(plans)
    assert all(one.count.shape == one.buffer_bytes.shape == (5,) for one in whole)
    for row in range(5):
        single = Configurations.having(**{name: values[row] for name, values in columns.items()})
        found = Counter(
            (one.operation, one.group, one.where, one.hidden_under, one.part, float(one.buffer_bytes[row]), n)
            for one in whole
            if (n := float(one.count[row]))
        )
        expected = Counter(
            (one.operation, one.group, one.where, one.hidden_under, one.part, float(one.buffer_bytes), float(one.count))
            for one in every(single)
        )
        assert found == expected
        if row == 0:
            assert not every(single)


def test_bad_rules_are_named() -> None:
    with pytest.raises(UnknownNameError, match="way of context ranks must be a known name, got 'rings'"):
        MessageRules(context_way="rings")
    with pytest.raises(ParameterError, match="imbalance of experts must be a finite number"):
        MessageRules(imbalance=0)
