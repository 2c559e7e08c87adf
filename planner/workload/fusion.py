"""Point-wise kernels that a framework runs as one or as many, and forward passes of inference engines.

Kernels that a framework computes from primitives: what their calls become.

A primitive is a kernel of its own: it reads its operands from memory and writes its result there. E: elements of what
the layer gives, of softmax those of the scores; vectors of a row or a feature are small beside them, and not counted.

==========  =========================================================  ===================================  =====
kind        forward, kernel by kernel                                  backward, likewise                   moved
==========  =========================================================  ===================================  =====
gelu        x^3 2E, times .04 2E, sum 3E, times c 2E, tanh 2E,         times cdf 3E, times x 3E, half 2E,   18E,
            plus 1 2E, half 2E, times x 3E: 8                          of tanh 3E, c 2E, .04 2E, of the     26E
                                                                       power 2E + 2E + 3E, sum of three
                                                                       4E: 10
layer_norm  mean E, squared difference 2E, variance E, plus ε,         of both products 3E + 3E, shift E,   15E,
            root, times scale E, times x 3E, times mean 2E,            minus 2E, of mean 3E + E + 2E, sum   41E
            from shift 2E, sum 3E: 10                                  3E, of root 2E + E, scale 2E + E,
                                                                       root, of variance E + 2E + 2E +
                                                                       2E + 3E, of mean E + 2E, sum of
                                                                       three 4E: 21
dropout     random numbers E, compared E and a byte, x scaled 2E,      times mask 3E, scaled 2E: 2          8E,
            mask of a byte to E, product 3E: 5                                                              5E
softmax     scaled 2E, masked 2E, most E, sum E, quotient 2E: 5        product 3E, sum E, difference 2E,    8E,
                                                                       product 3E, scaled 2E: 5             11E
==========  =========================================================  ===================================  =====

As TensorFlow's graph has them: ``gelu`` and ``attention_layer`` of BERT (google-research/bert, modeling.py),
``tf.contrib.layers.layer_norm`` with ``tf.nn.moments`` and ``tf.nn.batch_normalization``, whose product of root and
scale is a whole tensor, ``tf.nn.dropout``, three kernels of ``softmax_op_gpu.cu.cc``, and the gradients of
``python/ops/*_grad.py``, but for those of constants, which the graph leaves out.

In mixed precision of 16 bits its rewrite keeps fp32 what follows a mean, a sum or a power (lists of
``grappler/optimizers/auto_mixed_precision_lists.h``): GELU and norm whole, softmax backward but for the scale. Random
numbers are fp32. Casts are not counted, nor what memory holds of tensors between primitives.

=============  ====================================================  ==========================================
fusion         forward, apart                                        forward, in one
=============  ====================================================  ==========================================
activation     bias 2E, activation 2E                                2E
... gated      5E, backward 8E                                       3E, backward 5E
residual       bias 2E, dropout 2E and a byte each, sum 3E           3E and a byte each
softmax        of 16-bit scores 29 bytes each, backward 33           2E, backward 3E
norm           batch norm 3E, activation 2E, backward 5E, 3E         3E, backward 5E
... with sum   the same and sum 3E                                   4E, backward 6E
layer_norm     sum 3E, layer norm or root norm 2E                    4E
=============  ====================================================  ==========================================

E: elements of what the activation, or the sum, gives. Backward the gradient of a bias is summed apart in either case,
a dropout is one pass, and a sum is none. As Megatron-LM's fused bias + GELU and bias + dropout + residual (Shoeybi et
al. 2019, arXiv:1909.08053; NVIDIA/Megatron-LM at d98e8a64, fusions).

A layer normalisation with the sum before it writes both (as torch.compile makes it: Ansel et al., ASPLOS 2024).
Attention that is one kernel is another layer (:func:`with_attention`).

A batch normalisation with what is behind it in one writes one output. With a sum it reads the other input
besides, and writes its gradient, that of the output where the activation lets it pass (cuDNN,
CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION).

A framework with a softmax of its own takes it for the shapes of :func:`uses_fused_softmax`; others go kernel by kernel
in fp32: cast 6 bytes, mask 9, softmax 8, cast back 6, and backward cast 6, softmax 12, mask 9, cast 6 (MODEL 10.7).
Those of other frameworks, and of fp32, are one kernel whatever their shape.

The forward pass alone, fused as inference engines fuse it.

Batch normalisation with scale g, offset b, mean m and deviation d is folded into the weights of the product before it
(w' = w·g/d, b' = b - g·m/d); bias, activation and sum of a residual are done as a product writes its result, which
then reads the other summand besides (NVIDIA TensorRT, developer guide, layer fusion). Dropout, and dropping
samples, does nothing. What is left of ResNet-50 is 57 kernels of 175.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, once_of
from planner.domain.kernels import BACKWARD_DATA, FORWARD, KernelCalls
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, layer_shapes
from planner.workload.calls import lower
from planner.workload.program import Program, program

_WIDE_BYTES = 4


class Chain(NamedTuple):
    """Primitives in place of a kernel: how many, elements that they move, those that stay fp32, and other bytes."""

    kernels: int
    moved: int
    wide: int = 0
    bytes: int = 0


CHAINS: Mapping[tuple[str, str], Chain] = {
    ("gelu", FORWARD): Chain(8, 0, 18),
    ("gelu", BACKWARD_DATA): Chain(10, 0, 26),
    ("layer_norm", FORWARD): Chain(10, 0, 15),
    ("layer_norm", BACKWARD_DATA): Chain(21, 0, 41),
    ("dropout", FORWARD): Chain(5, 6, 2, 2),
    ("dropout", BACKWARD_DATA): Chain(2, 5),
    ("softmax", FORWARD): Chain(5, 8),
    ("softmax", BACKWARD_DATA): Chain(5, 2, 9),
}
"""Kind of COMPOSED and direction -> its primitives."""
_COMPOSED = {kind for kind, _ in CHAINS}


def composed_calls(
    calls: KernelCalls, of: Program, composes: tuple[str, ...], launch: str
) -> tuple[KernelCalls, KernelCalls] | None:
    """Return calls of one kind without those made of primitives, and these; None: none is.

    Every call keeps its place: what is made otherwise is made no times. Primitives are of kind ``activation``, as the
    plainest kernel that reads and writes elements. A chain is one operation, as the kernel is that it stands for. Of
    an ``eager`` program each primitive is a call, which moves the mean of its chain. Any other starts them without
    Python, and the time that calls have whatever they move was learned of operations that Python starts: there a chain
    is one call, and each further primitive a launch.

    >>> from planner import catalog
    >>> from planner.workload.calls import lower
    >>> from planner.workload.program import program
    >>> bert = catalog.find_network("bert-base")
    >>> norms = next(one for one in lower(bert, np.array([8])) if one.kind == "layer_norm")
    >>> rest, primitives = composed_calls(norms, program(bert), ("layer_norm",), "executor")
    >>> int(norms.count.sum()), int(rest.count.sum()), int(primitives.count.sum()), int(primitives.launches.sum())
    (25, 0, 25, 225)
    """
    sites = {site.position: site.layer for site in of.sites}
    kinds = [_kind_of(calls.kind, sites[at]) for at in calls.layer.tolist()]
    chains = [CHAINS.get((kind, calls.direction)) if kind in composes else None for kind in kinds]
    if not any(chains):
        return None
    kernels, moved, wide, others = np.array([one or Chain(1, 0) for one in chains]).T
    is_chain = np.array([one is not None for one in chains])
    parts = kernels if launch == "eager" else 1
    elements = calls.work["elements"]
    work = {
        "elements": elements,
        "traffic": elements * moved / parts,
        "fixed_bytes": elements * (_WIDE_BYTES * wide + others) / parts,
    }
    operations = np.where(is_chain, calls.count, 0)
    primitives = KernelCalls(
        "activation", calls.direction, calls.layer, operations * parts, work,
        operations=operations, launches=operations * (kernels // parts - 1),
    )  # fmt: skip
    return replace(calls, count=np.where(is_chain, 0, calls.count)), primitives


@once_of
def composed_kinds(network: Network) -> frozenset[str]:
    """Return the kinds of COMPOSED that a network has."""
    layers, every = network.layers, lower(network, np.ones(1, dtype=np.int64))
    return frozenset({_kind_of(calls.kind, layers[at]) for calls in every for at in calls.layer.tolist()} & _COMPOSED)


def _kind_of(kind: str, layer: Layer) -> str:
    """Return the kind of COMPOSED of a layer's call, empty: none. A loss has a kernel of its own."""
    if kind in ("activation", "gelu"):
        return "gelu" if layer.kind == "activation" and layer.attributes["function"] == "gelu" else ""
    return "" if layer.kind == "loss" else kind


_GATED = {FORWARD: 3 / 5, BACKWARD_DATA: 5 / 8}
"""Bytes of a gated activation in one kernel over those in two."""
_FUSES = {
    "activation": "linear layer with an activation behind it, or gated activation",
    "residual": "linear layer or dropout with a sum behind it",
    "softmax": "attention",
    "norm": "batch normalisation with an activation behind it",
    "layer_norm": "layer normalisation with a sum before it",
    "attention": "attention",
    "epilogue": "inference",
}
"""Fusion -> kinds of layers that must follow each other."""
ATTENTIONS = ("attention", "cross_attention")
_PARTS = ("bias", "dropout", "masked", "gated", "normed", "summed", "layer_norm", "sums", "layer_masked")
_SCORE_BYTES = 2
"""Of a score that a fused softmax takes."""
_APART_BYTES = {FORWARD: 29, BACKWARD_DATA: 33}
"""Of a score where scaling, mask and softmax are kernels of their own."""


def fused_calls(
    calls: tuple[KernelCalls, ...], of: Program, fuses: tuple[str, ...], itemsize: int
) -> tuple[KernelCalls, ...]:
    """Return the calls of a program as a framework makes them that fuses some of :data:`FUSIONS`.

    Every call keeps its place: one that is part of another is made no times. ``itemsize``: of an activation [byte].
    """
    if not fuses:
        return calls
    inside = _parts(of.network, fuses)
    one_by_one = "softmax" in fuses and itemsize == _SCORE_BYTES
    made = (_softmax(one, of) if one_by_one and one.kind == "softmax" else _fused(one, of, inside) for one in calls)
    return tuple(_layer_normed(_normed(one, of, inside), of, inside) for one in made)


def idle_fusions(network: Network, fuses: Iterable[str]) -> dict[str, str]:
    """Return the fusions that find nothing to fuse in a network, and what each is for.

    >>> from planner import catalog
    >>> idle_fusions(catalog.find_network("gpt2"), ["activation", "norm"])
    {'norm': 'batch normalisation with an activation behind it'}
    """
    return {name: _FUSES[name] for name in fuses if not _has(program(network), name)}


@lru_cache(maxsize=64)
def _has(of: Program, fusion: str) -> bool:
    network = of.network
    if fusion == "epilogue":
        return True
    if fusion in ("softmax", "attention"):
        return any(layer.kind in ATTENTIONS for layer in network.layers)
    return any(_parts(network, (fusion,)).values())


def with_attention(network: Network, fuses: Iterable[str]) -> Network:
    """Return a network as a framework runs it that may have all of attention in one kernel.

    As FlashAttention (Dao et al. 2022, arXiv:2205.14135); dropout of weights, which is next to nothing there, is left
    out.
    """
    if "attention" not in fuses:
        return network
    layers = tuple(
        replace(one, attributes={**one.attributes, "fused": True, "dropout": 0.0}) if one.kind in ATTENTIONS else one
        for one in network.layers
    )
    return network if layers == network.layers else replace(network, layers=layers)


def uses_fused_softmax(queries: int, keys: int, batches: IntArray, *, causal: bool = True) -> BoolArray:
    """Tell whether Megatron-LM's kernel scales, masks and normalises scores in one pass, shape of ``batches``.

    ``batches``: samples times heads of a rank. Of 2-byte scores of 17 to 4096 keys, sizes and batches divisible by 4;
    and a block of 128 threads, which takes 128 / min(2^⌈log2 keys⌉, 32) rows, twice as many of up to 128 keys, divides
    the batches, or without a causal mask the queries (NVIDIA/Megatron-LM at d98e8a64, fusions/fused_softmax).

    >>> uses_fused_softmax(2048, 2048, np.array([11, 12])), uses_fused_softmax(8192, 8192, np.array([12]))
    (array([False,  True]), array([False]))
    """
    power = 1 << (keys - 1).bit_length()
    rows = 128 // min(power, 32) * (2 if power <= 128 else 1)
    in_blocks = batches % rows == 0 if causal else np.full(batches.shape, queries % rows == 0)
    is_lawful = 16 < keys <= 4096 and queries % 4 == 0 and keys % 4 == 0
    return np.asarray(in_blocks & (batches % 4 == 0) & is_lawful)


def _softmax(calls: KernelCalls, of: Program) -> KernelCalls:
    """Return softmax calls, those of attention that the fused kernel does not take with the bytes of each kernel."""
    sites = {site.position: site for site in of.sites}
    rows, elements = np.broadcast_arrays(calls.work["rows"], calls.work["elements"])
    is_fused = np.ones(rows.shape, dtype=np.bool_)
    for at, position in enumerate(calls.layer.tolist()):
        site = sites[position]
        if site.layer.kind in ATTENTIONS:
            queries, keys = site.inputs[0][0], int(elements[0, at] // rows[0, at])
            is_causal = bool(site.layer.attributes["causal"])
            is_fused[:, at] = uses_fused_softmax(queries, keys, rows[:, at] // queries, causal=is_causal)
    fixed = np.where(is_fused, calls.work["fixed_bytes"], _APART_BYTES[calls.direction] * elements)
    return replace(
        calls, work={**calls.work, "traffic": np.where(is_fused, calls.work["traffic"], 0), "fixed_bytes": fixed}
    )


def _fused(calls: KernelCalls, of: Program, inside: Mapping[str, set[str]]) -> KernelCalls:
    """Return calls without those that are part of another kernel in all layers like theirs, or as they take part."""
    name = calls.kind if calls.direction == FORWARD else ""
    if name in ("bias", "linear_bias", "dropout"):
        is_part = share_of(calls, of, inside["dropout" if name == "dropout" else "bias"]) == 1
        return replace(calls, count=np.where(is_part, 0, calls.count)) if is_part.any() else calls
    if name == "add" and (masked := share_of(calls, of, inside["masked"]) == 1).any():
        work = dict(calls.work)
        work["fixed_bytes"] = work["fixed_bytes"] + np.where(masked, work["elements"], 0)
        return replace(calls, work=work)
    is_gated = calls.kind == "activation" and calls.direction in _GATED
    if is_gated and (gated := share_of(calls, of, inside["gated"]) == 1).any():
        part = np.where(gated, _GATED[calls.direction], 1.0)
        return replace(calls, work={**calls.work, "traffic": calls.work["traffic"] * part})
    return calls


def _parts(network: Network, fuses: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the layers that take part in fusions, by how.

    ``bias``, ``dropout``: theirs is part of what reads them; ``masked``: sums with a mask of dropout; ``gated``
    activations. ``normed``: part of a batch normalisation before them; ``summed``: these normalisations, with a sum.
    ``sums`` before layer normalisations, ``layer_norm``, and of these ``layer_masked``: with a mask.
    """
    readers = Counter(source for layer in network.layers for source in layer.inputs)
    by_name = {layer.name: layer for layer in network.layers}
    parts = {name: set[str]() for name in _PARTS}
    for layer in network.layers:
        if layer.kind == "activation" and "activation" in fuses:
            parts["bias"].update(one.name for one in _alone(layer, "linear", by_name, readers))
        elif layer.kind == "gated_activation" and "activation" in fuses and not layer.attributes["fused"]:
            parts["gated"].add(layer.name)
        elif layer.kind == "add" and "residual" in fuses:
            dropped = list(_alone(layer, "dropout", by_name, readers))
            parts["dropout"].update(one.name for one in dropped)
            parts["masked"].update([layer.name] * bool(dropped))
            for one in (layer, *dropped):
                parts["bias"].update(each.name for each in _alone(one, "linear", by_name, readers))
        if layer.kind == "activation" and "norm" in fuses:
            if any(_alone(layer, "batch_norm", by_name, readers)):
                parts["normed"].add(layer.name)
            for add in _alone(layer, "add", by_name, readers):
                for norm in list(_alone(add, "batch_norm", by_name, readers))[:1]:
                    parts["normed"].update((layer.name, add.name))
                    parts["summed"].add(norm.name)
        before = by_name.get(layer.inputs[0]) if layer.inputs and "layer_norm" in fuses else None
        if layer.kind in ("layer_norm", "rms_norm") and before is not None and before.kind == "add":
            if before.name not in parts["sums"]:
                parts["layer_norm"].add(layer.name)
                parts["layer_masked"].update([layer.name] * (before.name in parts["masked"]))
            parts["sums"].add(before.name)
    return parts


def _alone(layer: Layer, kind: str, by_name: Mapping[str, Layer], readers: Mapping[str, int]) -> Iterator[Layer]:
    """Yield the inputs of a kind that nothing else reads."""
    inputs = (by_name[source] for source in layer.inputs if source in by_name)
    yield from (one for one in inputs if one.kind == kind and readers[one.name] == 1)


def _normed(calls: KernelCalls, of: Program, inside: Mapping[str, set[str]]) -> KernelCalls:
    """Return calls without those that are part of a normalisation, whose own move a sum's input besides."""
    if not inside["normed"]:
        return calls
    if calls.kind == "activation" or (calls.kind, calls.direction) == ("add", FORWARD):
        part = share_of(calls, of, inside["normed"])
        return replace(calls, count=calls.count * (1 - part)) if part.any() else calls
    if calls.kind == "batch_norm" and (part := share_of(calls, of, inside["summed"])).any():
        traffic = calls.work["traffic"] + part * calls.work["elements"]
        return replace(calls, work={**calls.work, "traffic": traffic})
    return calls


def _layer_normed(calls: KernelCalls, of: Program, inside: Mapping[str, set[str]]) -> KernelCalls:
    """Return calls without sums that are part of a layer normalisation, which moves both their inputs, and masks."""
    if not inside["layer_norm"] or calls.direction != FORWARD:
        return calls
    if calls.kind == "add":
        part = share_of(calls, of, inside["sums"])
        return replace(calls, count=calls.count * (1 - part)) if part.any() else calls
    if calls.kind == "layer_norm" and (part := share_of(calls, of, inside["layer_norm"])).any():
        elements = calls.work["elements"]
        traffic = calls.work["traffic"] + 2 * part * elements
        fixed = calls.work["fixed_bytes"] + share_of(calls, of, inside["layer_masked"]) * elements
        return replace(calls, work={**calls.work, "traffic": traffic, "fixed_bytes": fixed})
    return calls


def share_of(calls: KernelCalls, of: Program, names: set[str]) -> FloatArray:
    """Return which part of the layers that are like those of calls is named, shape (k,)."""
    return _shares(of, frozenset(names))[of.site[calls.layer]]


@lru_cache(maxsize=64)
def _shares(of: Program, names: frozenset[str]) -> FloatArray:
    """Return which part of the layers of every site is named, shape (S,)."""
    is_named = np.array([layer.name in names for layer in of.network.layers], dtype=np.float64)
    return np.bincount(of.site, is_named, minlength=of.layers.size) / of.layers


EPILOGUE = ("batch_norm", "activation", "add", "dropout", "drop_path", "layer_scale")
"""Layers that a product does as it writes its result."""
PRODUCTS = ("convolution", "linear")
_BIASES = ("bias", "linear_bias")


@once_of
def in_epilogues(network: Network) -> frozenset[str]:
    """Return the layers that are part of the product before them."""
    readers = Counter(source for layer in network.layers for source in layer.inputs)
    written = {layer.name for layer in network.layers if layer.kind in PRODUCTS}
    inside: set[str] = set()
    for layer in network.layers:
        is_part = layer.kind in EPILOGUE or LAYER_KINDS[layer.kind].is_view
        if is_part and any(one in written and readers[one] == 1 for one in layer.inputs):
            inside.add(layer.name)
            written.add(layer.name)
    return frozenset(inside)


def forward_calls(calls: tuple[KernelCalls, ...], of: Program, *, is_fused: bool) -> tuple[KernelCalls, ...]:
    """Return the calls of the forward pass; sums in an epilogue are left as what they read besides, without a launch.

    Calls of these sums have no operations; see :class:`planner.domain.kernels.KernelCalls`.
    """
    inside = set(in_epilogues(of.network)) if is_fused else set()
    made = []
    for one in calls:
        if one.direction != FORWARD or one.kind == "dropout" or (is_fused and one.kind in _BIASES):
            continue
        kinds = np.array([of.network.layers[at].kind for at in one.layer.tolist()])
        part = share_of(one, of, inside)
        apart = one.count * (1 - part) * (kinds != "drop_path")
        if apart.any():
            made.append(replace(one, count=apart))
        part = part * (kinds == "add")
        if part.any():
            elements = one.work["elements"]
            work = {**one.work, "traffic": elements, "fixed_bytes": np.zeros_like(elements)}
            made.append(replace(one, count=one.count * part, work=work, operations=np.zeros(part.shape)))
    return tuple(made)


def live_elements(network: Network) -> int:
    """Return the most elements of tensors of one sample that are there at once.

    A tensor is there from the layer that writes it to the last that reads it; an epilogue writes over its input.
    """
    shapes, inside = layer_shapes(network), in_epilogues(network)
    last = {source: at for at, layer in enumerate(network.layers) for source in layer.inputs}
    there, most = {INPUT: prod(network.input_shape)}, prod(network.input_shape)
    for at, layer in enumerate(network.layers):
        size = prod(shapes[layer.name])
        is_in_place = layer.name in inside or LAYER_KINDS[layer.kind].is_view
        freed = [source for source in {*layer.inputs} if last[source] == at and source in there]
        if is_in_place and freed:
            there.pop(freed.pop(0))
        there[layer.name] = size
        most = max(most, sum(there.values()))
        for source in freed:
            there.pop(source)
    return most
