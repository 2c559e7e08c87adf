"""What a split network sends: operations, bytes and counts of a block, of the ends and of a boundary.

n = b·s/c positions of a rank and micro-batch, n_s = n/t with sequence parallelism, else n; u = e·n·h of what a part
reads, or gives; w = e·n·d_h; κ_t = max(κ/t, 1) heads of keys a rank; AR, AG, RS, A2A: all-reduce, all-gather,
reduce-scatter, all-to-all. Below are those of a block of two parts, attention and feed-forward.

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

Whole blocks that are made again send what their forward pass does; attention alone, what its context ranks do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, check_count, check_positive, once_of
from planner.domain.axes import CONTEXT, EXPERT, TENSOR
from planner.domain.configuration import Configurations
from planner.domain.layers.attentions import core_of
from planner.domain.layers.record import Layer, Shape
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
from planner.domain.network import Network, layer_shapes
from planner.domain.split import RECOMPUTES
from planner.errors import UnknownNameError
from planner.workload.program import block_starts, crossing
from planner.workload.shards import columns_of, logits_of, without_adapters

RING, GATHERED, EXCHANGED = "ring", "all_gather", "all_to_all"
CONTEXT_WAYS = (RING, GATHERED, EXCHANGED)
"""How ranks see the keys and values of others: passed on around a ring, gathered, or heads exchanged for positions."""
ATTENTION, CROSS_ATTENTION, FEED_FORWARD = "attention", "cross_attention", "feed_forward"
_MIDDLES = (ATTENTION, CROSS_ATTENTION, "activation", "gated_activation")
"""Kinds of layers between products by columns and by rows."""
_LOSS_REDUCTIONS = 3
"""The largest logit, the sum of exponentials and the logit of the label (Megatron-LM's cross_entropy)."""
_LOSS_BYTES = 4


@dataclass(frozen=True, slots=True)
class MessageRules:
    """What all plans share, but the network.

    Attributes
    ----------
    itemsize : e, bytes of an activation
    context_way : one of CONTEXT_WAYS
    imbalance : rows of the fullest rank's experts over their mean, where no capacity limits them; 1 is assumed
    scatters_boundary : whether each tensor rank sends its part alone to the next stage, which gathers, without sequence
        parallelism (Narayanan et al. 2021, arXiv:2104.04473, section 4.1).
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


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a block that tensor ranks split: by columns what reads its input, by rows what gives its output.

    Attributes
    ----------
    name : {"attention", "cross_attention", "feed_forward"}
    reads, gives : elements of its input and of its output, of a sample
    other : elements of a sample that it reads of another sequence
    by_positions : whether ranks that share positions gather what it reads: not before experts, which tokens are sent to
    """

    name: str
    reads: int
    gives: int
    other: int = 0
    by_positions: bool = True


class Attending(NamedTuple):
    """A layer of attention: positions of a sample, heads, those of keys and values, features of a key and a value."""

    positions: int
    heads: int
    kv_heads: int
    key: int
    value: int
    is_fused: bool


class Routing(NamedTuple):
    """A layer of experts: positions of a sample, their features, E, k, and the most rows in means; 0: no most."""

    positions: int
    features: int
    experts: int
    top_k: int
    capacity: float


@dataclass(frozen=True, slots=True)
class BlockSends:
    """What a block sends by: its parts, and its layers of attention and of experts."""

    parts: tuple[Part, ...] = ()
    attending: tuple[Attending, ...] = ()
    routing: tuple[Routing, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkSends:
    """What a network with V - 2 blocks sends by.

    Attributes
    ----------
    units : of the head, of each block, and of the tail
    embedded : elements of a sample that each table of tokens gives
    logits : elements of a sample that each product of logits reads, and positions of which it makes them
    boundary : the most elements of a sample that cross a cut between blocks
    """

    units: tuple[BlockSends, ...]
    embedded: tuple[int, ...]
    logits: tuple[tuple[int, int], ...]
    boundary: int


@once_of
def network_sends(network: Network) -> NetworkSends:
    """Return what a network sends by, as its graph says."""
    shapes, inner = layer_shapes(network), block_starts(network)
    ends, parts = [0, *inner, len(network.layers)], dict(_parts_of(network, shapes))
    crosses = crossing(network, {name: prod(shape) for name, shape in shapes.items()})
    return NetworkSends(
        tuple(_block(network.layers[first:end], parts, shapes) for first, end in pairwise(ends)),
        tuple(prod(shapes[layer.name]) for layer in network.layers if layer.kind == "embedding"),
        tuple((prod(shapes[one.inputs[0]]), shapes[one.name][0]) for one in logits_of(network)),
        int(max((crosses[cut] for cut in inner[1:-1]), default=0)),
    )


def _block(layers: tuple[Layer, ...], parts: Mapping[str, Part], shapes: Mapping[str, Shape]) -> BlockSends:
    attending, routing = list[Attending](), list[Routing]()
    for layer in layers:
        positions, features = (*shapes[layer.inputs[0]], 1)[:2]
        if layer.kind == "attention":
            core, is_fused = core_of(layer, positions, features), bool(layer.attributes["fused"])
            attending.append(Attending(positions, core.heads, core.kv_heads, core.width, core.values, is_fused))
        elif layer.kind == "experts":
            rows = layer.integer("experts"), layer.integer("top_k"), layer.number("capacity")
            routing.append(Routing(positions, features, *rows))
    mine = tuple(parts[layer.name] for layer in layers if layer.name in parts)
    return BlockSends(mine, tuple(attending), tuple(routing))


def _parts_of(network: Network, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Part]]:
    """Yield the parts that tensor ranks split, each with the layer in its middle; experts with what stands beside."""
    by_name, products = {layer.name: layer for layer in without_adapters(network)}, dict[str, list[tuple[Layer, str]]]()
    for name, behind in columns_of(network):
        if behind[0].kind != "loss":
            at, middle = next((at, one.name) for at, one in enumerate(behind) if one.kind in _MIDDLES)
            rows = next((one.name for one in behind[at:] if one.kind == "linear"), middle)
            products.setdefault(middle, []).append((by_name[name], rows))
    fed = set[str]()
    for middle, some in products.items():
        kind, reads = by_name[middle].kind, [one.inputs[0] for one, _ in some]
        part, others = kind if kind in (ATTENTION, CROSS_ATTENTION) else FEED_FORWARD, set[str]()
        if part == CROSS_ATTENTION:
            others = {one.inputs[0] for one, _ in some if one.name != by_name[middle].inputs[0]}
        elif part == FEED_FORWARD:
            fed.update(reads)
        own, other = (
            max((prod(shapes[one]) for one in reads if (one in others) == is_other), default=0)
            for is_other in (False, True)
        )
        yield middle, Part(part, own, prod(shapes[some[0][1]]), other)
    for layer in network.layers:
        if layer.kind == "experts" and layer.inputs[0] not in fed:
            read, given = (prod(shapes[name]) for name in (layer.inputs[0], layer.name))
            yield layer.name, Part(FEED_FORWARD, read, given, by_positions=False)


def layer_messages(of: BlockSends, plans: Configurations, rules: MessageRules) -> tuple[Message, ...]:
    """Return the messages of one block and one micro-batch; those that no plan has are left out.

    Their ``where`` is LAYER_FORWARD, LAYER_BACKWARD or RECOMPUTED.
    """
    split = _Split(plans, float(rules.itemsize))
    forward = [*_tensor_forward(of, split), *_experts(of, split, rules)]
    backward = [*_tensor_backward(of, split)]
    backward += [replace(one, where=LAYER_BACKWARD) for one in _experts(of, split, rules)]
    whole = np.where(plans.recompute == RECOMPUTES.index("full"), 1.0, 0.0)
    attention = whole + np.where(plans.recompute == RECOMPUTES.index("selective"), 1.0, 0.0)
    again = [replace(one, where=RECOMPUTED, count=one.count * whole) for one in forward]
    around = list[Message]()
    for layer in of.attending:
        of_layer = [*_CONTEXT[rules.context_way](layer, split)]
        around += of_layer
        repeated = whole if layer.is_fused else attention
        ahead = [one for one in of_layer if one.where == LAYER_FORWARD]
        again += [replace(one, where=RECOMPUTED, count=one.count * repeated) for one in ahead]
    return kept(plans, *forward, *around, *backward, *again)


def embedding_messages(of: NetworkSends, plans: Configurations, rules: MessageRules) -> tuple[Message, ...]:
    """Return the messages of tables of tokens, of one micro-batch on the first stage."""
    split = _Split(plans, float(rules.itemsize))
    return kept(
        plans,
        *(
            Message(operation, TENSOR, split.bytes_of(elements), count, where)
            for elements in of.embedded
            for operation, count, where in (
                (ALL_REDUCE, split.plain, EMBEDDING_FORWARD), (REDUCE_SCATTER, split.shared, EMBEDDING_FORWARD),
                (ALL_GATHER, split.shared, EMBEDDING_BACKWARD),
            )
        ),
    )  # fmt: skip


def head_messages(of: NetworkSends, plans: Configurations, rules: MessageRules) -> tuple[Message, ...]:
    """Return the messages of logits and loss over a split vocabulary, of one micro-batch on the last stage."""
    split = _Split(plans, float(rules.itemsize))
    plain, shared = split.plain, split.shared
    messages = list[Message]()
    for elements, positions in of.logits:
        u, reduced = split.bytes_of(elements), _LOSS_BYTES * split.part_of(positions)
        messages += [
            Message(ALL_GATHER, TENSOR, u, shared, HEAD_FORWARD),
            Message(ALL_REDUCE, TENSOR, reduced, _LOSS_REDUCTIONS * (plain + shared), HEAD_FORWARD),
            Message(ALL_REDUCE, TENSOR, u, plain, HEAD_BACKWARD, WEIGHT_GRADIENT),
            Message(ALL_GATHER, TENSOR, u, shared, HEAD_BACKWARD, INPUT_GRADIENT),
            Message(REDUCE_SCATTER, TENSOR, u, shared, HEAD_BACKWARD, WEIGHT_GRADIENT),
        ]
    return kept(plans, *messages)


def boundary_messages(of: NetworkSends, plans: Configurations, rules: MessageRules) -> tuple[Message, ...]:
    """Return what one rank sends to the next stage, or back, of one micro-batch.

    An encoder's output goes with what its decoder's stages send.
    """
    split = _Split(plans, float(rules.itemsize))
    whole = split.bytes_of(of.boundary)
    stages = np.where(plans.pipeline_parallel > 1, 1.0, 0.0)
    scattered = split.plain * rules.scatters_boundary
    parts = np.where(split.shared + scattered > 0, plans.tensor_parallel, 1)
    return kept(
        plans,
        Message(SEND_RECEIVE, NEIGHBOURS, whole / parts, stages, BOUNDARY),
        Message(ALL_GATHER, TENSOR, whole, stages * scattered, BOUNDARY),
    )


class _Split:
    """How one micro-batch on a rank is split.

    ``plain``, ``shared``: 1.0 where there are several tensor ranks, without and with sequence parallelism; else 0.
    """

    def __init__(self, plans: Configurations, itemsize: float) -> None:
        self.plans, self.itemsize = plans, itemsize
        split, shares = plans.tensor_parallel > 1, plans.sequence_parallel > 0
        self.plain, self.shared = (np.where(split & one, 1.0, 0.0) for one in (~shares, shares))

    def part_of(self, of_sample: int) -> FloatArray:
        """Return the positions, or elements, of a micro-batch that a context rank has, of those of a sample."""
        return np.asarray(self.plans.sub_batch * float(of_sample) / self.plans.context_parallel)

    def bytes_of(self, elements: int) -> FloatArray:
        """Return their bytes."""
        return self.part_of(elements) * self.itemsize


def _tensor_forward(of: BlockSends, split: _Split) -> Iterator[Message]:
    where = LAYER_FORWARD
    for part in of.parts:
        read, other, given = (split.bytes_of(one) for one in (part.reads, part.other, part.gives))
        shares = split.shared * part.by_positions
        yield Message(ALL_REDUCE, TENSOR, given, split.plain, where, part=part.name)
        yield Message(ALL_GATHER, TENSOR, read, shares, where, part=part.name)
        yield Message(ALL_GATHER, TENSOR, other, shares * bool(part.other), where, part=part.name)
        yield Message(REDUCE_SCATTER, TENSOR, given, shares, where, part=part.name)


def _tensor_backward(of: BlockSends, split: _Split) -> Iterator[Message]:
    """Yield what goes back through a block, and inputs of products by columns that are gathered again."""
    where = LAYER_BACKWARD
    for part in of.parts:
        shares, name = split.shared * part.by_positions, part.name
        yield Message(ALL_GATHER, TENSOR, split.bytes_of(part.gives), shares, where, part=name)
        for elements in filter(None, (part.reads, part.other)):
            v = split.bytes_of(elements)
            yield Message(ALL_REDUCE, TENSOR, v, split.plain, where, WEIGHT_GRADIENT, name)
            yield Message(ALL_GATHER, TENSOR, v, shares, where, INPUT_GRADIENT, name)
            yield Message(REDUCE_SCATTER, TENSOR, v, shares, where, WEIGHT_GRADIENT, name)


def _experts(of: BlockSends, split: _Split, rules: MessageRules) -> Iterator[Message]:
    """Yield what goes to experts and back, of a forward pass; a backward pass sends as much."""
    exchanges = np.where(split.plans.expert_parallel > 1, 1.0, 0.0)
    t = np.where(split.shared > 0, split.plans.tensor_parallel, 1)
    for layer in of.routing:
        positions = split.part_of(layer.positions)
        rows = positions / t * layer.top_k * rules.imbalance
        if layer.capacity:
            rows = layer.experts * np.ceil(positions / t * layer.top_k / layer.experts * layer.capacity)
        to_experts = split.itemsize * layer.features * rows
        yield Message(ALL_TO_ALL, EXPERT, to_experts, 2 * exchanges, LAYER_FORWARD, part=FEED_FORWARD)
        yield Message(ALL_GATHER, EXPERT_SHARDS, to_experts * t, split.shared, LAYER_FORWARD, part=FEED_FORWARD)
        yield Message(REDUCE_SCATTER, EXPERT_SHARDS, to_experts * t, split.shared, LAYER_FORWARD, part=FEED_FORWARD)


def _keys_and_values(of: Attending, split: _Split) -> FloatArray:
    """Return the bytes of a rank's keys and values."""
    heads = np.maximum(of.kv_heads / split.plans.tensor_parallel, 1.0)
    return np.asarray(split.itemsize * split.part_of(of.positions) * (heads * (of.key + of.value)))


def _ring(of: Attending, split: _Split) -> Iterator[Message]:
    c = split.plans.context_parallel
    v, several = _keys_and_values(of, split), c > 1
    hops = np.maximum(c - 1.0, 0.0)
    for where, count in ((LAYER_FORWARD, hops), (LAYER_BACKWARD, hops + several * c)):
        yield Message(SEND_RECEIVE, CONTEXT_NEIGHBOURS, v, count, where, CORE, ATTENTION)


def _gathered(of: Attending, split: _Split) -> Iterator[Message]:
    c = split.plans.context_parallel
    v, several = _keys_and_values(of, split) * c, np.where(c > 1, 1.0, 0.0)
    for operation, where in (
        (ALL_GATHER, LAYER_FORWARD), (ALL_GATHER, LAYER_BACKWARD), (REDUCE_SCATTER, LAYER_BACKWARD),
    ):  # fmt: skip
        yield Message(operation, CONTEXT, v, several, where, part=ATTENTION)


def _exchanged(of: Attending, split: _Split) -> Iterator[Message]:
    keys, several = _keys_and_values(of, split) / 2, np.where(split.plans.context_parallel > 1, 2.0, 0.0)
    heads = of.heads / split.plans.tensor_parallel
    queries = split.itemsize * split.part_of(of.positions) * heads * ((of.key + of.value) / 2)
    for where in (LAYER_FORWARD, LAYER_BACKWARD):
        for v in (queries, keys):
            yield Message(ALL_TO_ALL, CONTEXT, v, several, where, part=ATTENTION)


_CONTEXT = {RING: _ring, GATHERED: _gathered, EXCHANGED: _exchanged}


def kept(plans: Configurations, *messages: Message) -> tuple[Message, ...]:
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
