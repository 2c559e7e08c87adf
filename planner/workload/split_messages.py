"""What a split transformer sends: operations, bytes and counts of a layer, of the ends and of a boundary.

n = b·s/c positions of a rank and micro-batch, n_s = n/t with sequence parallelism, else n; u = e·n·h; w = e·n·d_h;
κ_t = max(κ/t, 1) heads of keys a rank; AR, AG, RS, A2A: all-reduce, all-gather, reduce-scatter, all-to-all.

=====================  ===========================================================================================
tensor                 forward 2·AR(u), backward 2·AR(u) beside weight gradients (Shoeybi et al. 2019,
                       arXiv:1909.08053)
with sequence          forward 2·AG(u) + 2·RS(u); backward as many, and 2·AG(u) of the inputs of products by
                       columns, of which a rank keeps its shard alone: beside input gradients, the RS beside weight
                       gradients (Korthikanti et al. 2022, arXiv:2205.05198; Megatron-LM's tensor_parallel/layers)
context, ring          c-1 messages of 2w·κ_t, each beside a block; backward the same of keys and values, and c of
                       their gradients (Liu et al. 2023, arXiv:2310.01889)
context, all-gather    AG of c·2w·κ_t; backward again, and RS of as much
context, all-to-all    4·A2A each way, of queries, keys, values and context (Jacobs et al. 2023, arXiv:2309.14509)
experts                2·A2A(e·n_s·k·h) each way; with sequence parallelism AG + RS over the tensor ranks of an
                       expert, each way
embedding              AR(u), or RS(u) and backward AG(u)
logits, loss           3·AR(4n); AR(u) backward, or AG(u), and backward AG(u) and RS(u)
=====================  ===========================================================================================

Whole layers that are made again send what their forward pass does; attention alone, what its context ranks do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, check_count, check_positive
from planner.domain.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BOUNDARY,
    CONTEXT,
    CONTEXT_NEIGHBOURS,
    CORE,
    EMBEDDING_BACKWARD,
    EMBEDDING_FORWARD,
    EXPERT,
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
    TENSOR,
    WEIGHT_GRADIENT,
    Message,
)
from planner.domain.split import RECOMPUTES, SplitPlans
from planner.domain.transformer import Transformer
from planner.errors import UnknownNameError
from planner.workload.transformer import DENSE, ENCODER, EXPERTS

__all__ = [
    "ATTENTION", "CONTEXT_WAYS", "FEED_FORWARD", "MessageRules", "boundary_messages", "embedding_messages",
    "head_messages", "layer_messages",
]  # fmt: skip

RING, GATHERED, EXCHANGED = "ring", "all_gather", "all_to_all"
CONTEXT_WAYS = (RING, GATHERED, EXCHANGED)
"""How ranks see the keys and values of others: passed on around a ring, gathered, or heads exchanged for positions."""
ATTENTION, CROSS_ATTENTION, FEED_FORWARD = "attention", "cross_attention", "feed_forward"
_LOSS_REDUCTIONS = 3
"""The largest logit, the sum of exponentials and the logit of the label (Megatron-LM's cross_entropy)."""
_LOSS_BYTES = 4


@dataclass(frozen=True, slots=True)
class MessageRules:
    """What all plans share, but the network.

    Attributes
    ----------
    itemsize : int
        e, bytes of an activation.
    context_way : one of CONTEXT_WAYS
    imbalance : float
        Rows of the fullest rank's experts over their mean, where no capacity limits them; 1 is assumed.
    scatters_boundary : bool
        Whether each tensor rank sends its part alone to the next stage, which gathers, without sequence parallelism
        (Narayanan et al. 2021, arXiv:2104.04473, section 4.1).
    """

    itemsize: int = 2
    context_way: str = RING
    imbalance: float = 1.0
    scatters_boundary: bool = False

    def __post_init__(self) -> None:
        check_count("bytes of an activation", self.itemsize)
        check_positive("imbalance of experts", self.imbalance, "rows a mean row")
        if self.context_way not in CONTEXT_WAYS:
            raise UnknownNameError("way of context ranks", self.context_way, CONTEXT_WAYS)


def _positions(of: Transformer, plans: SplitPlans, *, encoder: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return n, positions of a rank and micro-batch, and n_s, those between the products."""
    sequence = float(of.encoder_sequence if encoder else of.sequence)
    n = plans.sub_batch * sequence / plans.context_parallel
    return n, np.where(plans.sequence_parallel > 0, n / plans.tensor_parallel, n)


def layer_messages(of: Transformer, plans: SplitPlans, rules: MessageRules, kind: str = DENSE) -> tuple[Message, ...]:
    """Return the messages of one layer of a kind and one micro-batch; those that no plan has are left out.

    Parameters
    ----------
    kind : {"dense", "experts", "encoder"}

    Returns
    -------
    tuple of Message
        ``where`` is LAYER_FORWARD, LAYER_BACKWARD or RECOMPUTED.
    """
    sizes = _Sizes.of(of, plans, rules, encodes=kind == ENCODER)
    forward = [*_tensor_forward(of, sizes, kind), *_experts(of, sizes, rules, kind)]
    backward = [*_tensor_backward(of, sizes, kind)]
    backward += [replace(one, where=LAYER_BACKWARD) for one in _experts(of, sizes, rules, kind)]
    around = [*_CONTEXT[rules.context_way](of, sizes)]
    whole = np.where(plans.recompute == RECOMPUTES.index("full"), 1.0, 0.0)
    attention = whole + np.where(plans.recompute == RECOMPUTES.index("selective"), 1.0, 0.0) * (not of.fused)
    again = [replace(one, where=RECOMPUTED, count=one.count * whole) for one in forward]
    ahead = [one for one in around if one.where == LAYER_FORWARD]
    again += [replace(one, where=RECOMPUTED, count=one.count * attention) for one in ahead]
    return kept(plans, *forward, *around, *backward, *again)


def embedding_messages(of: Transformer, plans: SplitPlans, rules: MessageRules) -> tuple[Message, ...]:
    """Return the messages of the embedding of tokens, of one micro-batch on the first stage."""
    if not of.vocabulary:
        return ()
    sizes = _Sizes.of(of, plans, rules)
    return kept(
        plans,
        Message(ALL_REDUCE, TENSOR, sizes.u, sizes.plain, EMBEDDING_FORWARD),
        Message(REDUCE_SCATTER, TENSOR, sizes.u, sizes.shared, EMBEDDING_FORWARD),
        Message(ALL_GATHER, TENSOR, sizes.u, sizes.shared, EMBEDDING_BACKWARD),
    )


def head_messages(of: Transformer, plans: SplitPlans, rules: MessageRules) -> tuple[Message, ...]:
    """Return the messages of logits and loss over a split vocabulary, of one micro-batch on the last stage."""
    if not of.has_logits:
        return ()
    sizes = _Sizes.of(of, plans, rules)
    reductions = _LOSS_REDUCTIONS * (sizes.plain + sizes.shared)
    computed = sizes.positions * ((of.predictions or of.sequence) / of.sequence)
    return kept(
        plans,
        Message(ALL_GATHER, TENSOR, sizes.u, sizes.shared, HEAD_FORWARD),
        Message(ALL_REDUCE, TENSOR, _LOSS_BYTES * computed, reductions, HEAD_FORWARD),
        Message(ALL_REDUCE, TENSOR, sizes.u, sizes.plain, HEAD_BACKWARD, WEIGHT_GRADIENT),
        Message(ALL_GATHER, TENSOR, sizes.u, sizes.shared, HEAD_BACKWARD, INPUT_GRADIENT),
        Message(REDUCE_SCATTER, TENSOR, sizes.u, sizes.shared, HEAD_BACKWARD, WEIGHT_GRADIENT),
    )


def boundary_messages(of: Transformer, plans: SplitPlans, rules: MessageRules) -> tuple[Message, ...]:
    """Return what one rank sends to the next stage, or back, of one micro-batch.

    An encoder's output goes with what its decoder's stages send.
    """
    sizes = _Sizes.of(of, plans, rules)
    whole = sizes.u
    if of.encoder_layers:
        whole = whole + _Sizes.of(of, plans, rules, encodes=True).u
    stages = np.where(plans.pipeline_parallel > 1, 1.0, 0.0)
    scattered = sizes.plain * rules.scatters_boundary
    parts = np.where(sizes.shared + scattered > 0, sizes.tensor, 1)
    return kept(
        plans,
        Message(SEND_RECEIVE, NEIGHBOURS, whole / parts, stages, BOUNDARY),
        Message(ALL_GATHER, TENSOR, whole, stages * scattered, BOUNDARY),
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of one micro-batch on a rank, and how it is split.

    Attributes
    ----------
    positions, u : n, and e·n·h
    read_u : u of the encoder's output, where a layer reads it; else 0
    plain, shared : 1.0 where there are several tensor ranks, without and with sequence parallelism; else 0
    exchanges : 1.0 where experts lie on several ranks; else 0
    """

    itemsize: float
    positions: FloatArray
    u: FloatArray
    read_u: FloatArray
    tensor: IntArray
    context: IntArray
    plain: FloatArray
    shared: FloatArray
    exchanges: FloatArray

    @classmethod
    def of(cls, of: Transformer, plans: SplitPlans, rules: MessageRules, *, encodes: bool = False) -> _Sizes:
        n, _ = _positions(of, plans, encoder=encodes)
        read = np.zeros(n.shape) if encodes else _positions(of, plans, encoder=True)[0]
        width = float(rules.itemsize * of.hidden)
        split, shares = plans.tensor_parallel > 1, plans.sequence_parallel > 0
        plain, by_position = (np.where(split & one, 1.0, 0.0) for one in (~shares, shares))
        sizes, degrees = (n, n * width, read * width), (plans.tensor_parallel, plans.context_parallel)
        exchanges = np.where(plans.expert_parallel > 1, 1.0, 0.0)
        return cls(float(rules.itemsize), *sizes, *degrees, plain, by_position, exchanges)


def _parts(of: Transformer, sizes: _Sizes, kind: str) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Yield the parts of a layer that tensor ranks split: name, bytes of other input, 1.0 where positions are shared.

    Between experts, tokens are gathered and scattered where they go, not before.
    """
    nothing = np.zeros(sizes.u.shape)
    yield ATTENTION, nothing, sizes.shared
    if of.encoder_layers and kind != ENCODER:
        yield CROSS_ATTENTION, sizes.read_u, sizes.shared
    yield FEED_FORWARD, nothing, sizes.shared * float(kind != EXPERTS or of.shared_ffn > 0)


def _tensor_forward(of: Transformer, sizes: _Sizes, kind: str) -> Iterator[Message]:
    u, where = sizes.u, LAYER_FORWARD
    for part, other, shares in _parts(of, sizes, kind):
        yield Message(ALL_REDUCE, TENSOR, u, sizes.plain, where, part=part)
        yield Message(ALL_GATHER, TENSOR, u, shares, where, part=part)
        yield Message(ALL_GATHER, TENSOR, other, shares * np.where(other > 0, 1.0, 0.0), where, part=part)
        yield Message(REDUCE_SCATTER, TENSOR, u, shares, where, part=part)


def _tensor_backward(of: Transformer, sizes: _Sizes, kind: str) -> Iterator[Message]:
    """Yield what goes back through a layer, and inputs of products by columns that are gathered again."""
    where = LAYER_BACKWARD
    for part, other, shares in _parts(of, sizes, kind):
        yield Message(ALL_GATHER, TENSOR, sizes.u, shares, where, part=part)
        for v in (sizes.u, other):
            counts = np.where(v > 0, 1.0, 0.0)
            yield Message(ALL_REDUCE, TENSOR, v, sizes.plain * counts, where, WEIGHT_GRADIENT, part)
            yield Message(ALL_GATHER, TENSOR, v, shares * counts, where, INPUT_GRADIENT, part)
            yield Message(REDUCE_SCATTER, TENSOR, v, shares * counts, where, WEIGHT_GRADIENT, part)


def _experts(of: Transformer, sizes: _Sizes, rules: MessageRules, kind: str) -> Iterator[Message]:
    """Yield what goes to experts and back, of a forward pass; a backward pass sends as much."""
    if kind != EXPERTS:
        return
    t = np.where(sizes.shared > 0, sizes.tensor, 1)
    rows = sizes.positions / t * of.top_k * rules.imbalance
    if of.capacity:
        rows = of.experts * np.ceil(sizes.positions / t * of.top_k / of.experts * of.capacity)
    to_experts = sizes.itemsize * of.hidden * rows
    yield Message(ALL_TO_ALL, EXPERT, to_experts, 2 * sizes.exchanges, LAYER_FORWARD, part=FEED_FORWARD)
    yield Message(ALL_GATHER, EXPERT_SHARDS, to_experts * t, sizes.shared, LAYER_FORWARD, part=FEED_FORWARD)
    yield Message(REDUCE_SCATTER, EXPERT_SHARDS, to_experts * t, sizes.shared, LAYER_FORWARD, part=FEED_FORWARD)


def _keys_and_values(of: Transformer, sizes: _Sizes) -> FloatArray:
    """Return the bytes of a rank's keys and values."""
    if of.latent is not None:
        features = of.heads / sizes.tensor * (of.latent.plain + of.latent.rotary + of.latent.value)
    else:
        features = 2 * np.maximum(of.kv_heads / sizes.tensor, 1.0) * of.head_size
    return sizes.itemsize * sizes.positions * features


def _ring(of: Transformer, sizes: _Sizes) -> Iterator[Message]:
    v, several = _keys_and_values(of, sizes), sizes.context > 1
    hops = np.maximum(sizes.context - 1.0, 0.0)
    for where, count in ((LAYER_FORWARD, hops), (LAYER_BACKWARD, hops + several * sizes.context)):
        yield Message(SEND_RECEIVE, CONTEXT_NEIGHBOURS, v, count, where, CORE, ATTENTION)


def _gathered(of: Transformer, sizes: _Sizes) -> Iterator[Message]:
    v, several = _keys_and_values(of, sizes) * sizes.context, np.where(sizes.context > 1, 1.0, 0.0)
    for operation, where in (
        (ALL_GATHER, LAYER_FORWARD), (ALL_GATHER, LAYER_BACKWARD), (REDUCE_SCATTER, LAYER_BACKWARD),
    ):  # fmt: skip
        yield Message(operation, CONTEXT, v, several, where, part=ATTENTION)


def _exchanged(of: Transformer, sizes: _Sizes) -> Iterator[Message]:
    keys, several = _keys_and_values(of, sizes) / 2, np.where(sizes.context > 1, 2.0, 0.0)
    head = (of.latent.plain + of.latent.rotary + of.latent.value) / 2 if of.latent else of.head_size
    queries = sizes.itemsize * sizes.positions * of.heads / sizes.tensor * head
    for where in (LAYER_FORWARD, LAYER_BACKWARD):
        for v in (queries, keys):
            yield Message(ALL_TO_ALL, CONTEXT, v, several, where, part=ATTENTION)


_CONTEXT = {RING: _ring, GATHERED: _gathered, EXCHANGED: _exchanged}


def kept(plans: SplitPlans, *messages: Message) -> tuple[Message, ...]:
    """Return the messages that some plan has, with arrays of the shape of the plans."""
    return tuple(
        replace(
            one,
            buffer_bytes=np.broadcast_to(one.buffer_bytes, plans.shape),
            count=np.broadcast_to(one.count, plans.shape),
        )
        for one in messages
        if np.any(one.count)
    )
