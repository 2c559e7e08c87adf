"""Networks of which a part is trained: the last layers, or small products added to frozen ones (LoRA).

LoRA (Hu et al. 2021, arXiv:2106.09685) adds to a frozen product W·x of m features the product B·(A·x), A of R rows, B
of R columns, both trained. The first is a layer ``linear``, the second an ``adapter``. What is one layer here and
several in a model, such as queries, keys and values, has such a pair for each. Default targets are queries and values,
as of huggingface/peft (utils/constants.py) for Llama, Mistral, BERT, T5 and others; its GPT-2 changes the joined
product of all three, which has as many parameters and as many FLOP where heads of all are as many. All targets are all
linear layers but the output layer (its ``all-linear``); experts and convolutions have none. No dropout, its default.

Whatever stands before the first trained layer has a forward pass alone; what keeps a table of tokens as its own is
frozen with the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.domain.arrays import once_of
from planner.domain.layers import LAYER_KINDS
from planner.domain.network import Layer, Network, layer_shapes
from planner.domain.trainable import ALL, ATTENTION, LAST, Trainable, trainable_of
from planner.errors import ParameterError
from planner.workload.blocks import block_starts
from planner.workload.shards import logits_of, products_of

__all__ = ["trained_as"]

_WHAT = "--trainable"


@once_of
def _known(network: Network) -> dict[str, Network]:  # noqa: ARG001 - those made of it
    return {}


def trained_as(network: Network, text: str) -> Network:
    """Return a network of which the rest is frozen; the same one each time. ParameterError: it has no such layers."""
    asked, known = trainable_of(text), _known(network)
    if asked.kind == ALL:
        return network
    if text not in known:
        layers = _last(network, asked.number) if asked.kind == LAST else _adapted(network, asked)
        known[text] = replace(network, layers=tuple(layers))
    return known[text]


def _last(network: Network, number: int) -> Iterator[Layer]:
    """Yield the layers, all before the last blocks, or products with weights, frozen."""
    starts, what = block_starts(network)[:-1], "blocks"
    if not starts:
        kinds = {name for name, kind in LAYER_KINDS.items() if kind.outputs}
        starts = tuple(at for at, layer in enumerate(network.layers) if layer.kind in kinds)
        what = "convolutions and linear layers"
    if number > len(starts):
        raise ParameterError(f"layers in {_WHAT}", f"at most the {len(starts)} {what} of {network.name}", number)
    for at, layer in enumerate(network.layers):
        yield replace(layer, is_frozen=at < starts[-number] or bool(layer.attributes.get("tied")))


def _adapted(network: Network, asked: Trainable) -> Iterator[Layer]:
    """Yield the layers, all frozen, with those that change the targets behind each."""
    shapes, behind = layer_shapes(network), dict[str, str]()
    read = {source for layer in network.layers for source in layer.inputs}
    ends = {layer.name for layer in logits_of(network)} | {layer.name for layer in network.layers} - read
    ends |= {layer.inputs[0] for layer in network.layers if layer.kind == "loss"}
    products = products_of(network)
    for layer in network.layers:
        inputs = tuple(behind.get(source, source) for source in layer.inputs)
        yield replace(layer, inputs=inputs, is_frozen=True)
        wanted = [(role, width) for role, width in products.get(layer.name, ()) if _is_target(role, asked)]
        for role, width in () if layer.name in ends else wanted:
            least = min(width, shapes[layer.inputs[0]][-1])
            if asked.number > least:
                rule = f"at most {least}, the least side of product {layer.name} of {network.name}"
                raise ParameterError(f"rank in {_WHAT}", rule, asked.number)
            name, base = f"{layer.name}.lora_{role or 'all'}", behind.get(layer.name, layer.name)
            yield Layer(f"{name}_a", "linear", inputs, {"features": asked.number, "bias": False})
            features = 0 if len(products[layer.name]) == 1 else width
            yield Layer(f"{name}_b", "adapter", (base, f"{name}_a"), {"rank": asked.number, "features": features})
            behind[layer.name] = f"{name}_b"
    if not behind:
        what = "products of queries and values" if asked.targets == ATTENTION else "linear layers but the last"
        remedy = "say targets=all" if asked.targets == ATTENTION else "train its last layers with last:K"
        raise ParameterError(_WHAT, f"of another kind for {network.name}, which has no {what}", "lora", remedy)


def _is_target(role: str, asked: Trainable) -> bool:
    return asked.targets == ALL or role in ("query", "value")
