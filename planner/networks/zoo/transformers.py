"""Transformers: decoders of the GPT family and encoders of the BERT family, of any size.

``gpt``: Radford et al. (2019), "Language models are unsupervised multitask learners", as Megatron-LM trains it:
normalisation before attention and before the feed-forward part, one more at the end, learned positions, dropout of 0.1,
and an output layer that shares the table of the embedding. ``gpt2`` is its smallest published size, with 1024 learned
positions however short the sequence; ``gpt2-medium``, ``gpt2-large`` and ``gpt2-xl`` are the others. ``gpt3-175b``:
Brown et al. (2020), arXiv:2005.14165, with the 51200 tokens of Megatron-LM's padded table; ``megatron-22b``,
``megatron-530b`` and ``gpt3-1t``: Korthikanti et al. (2022), arXiv:2205.05198. ``opt-1.3b``: Zhang et al. (2022),
arXiv:2205.01068: the same with ReLU and 2050 positions.

``bert``: Devlin et al. (2018), arXiv:1810.04805: normalisation behind each sum, 512 learned positions, two types of
token. ``bert-base`` and ``bert-large`` are its published sizes.

Queries, keys and values come from one linear layer, as in GPT-2 and Megatron-LM; three of a third the width have the
same parameters and FLOP. A head has hidden / heads features, rounded down where heads do not divide hidden, or
``head_size``; the projection behind attention leads from those of all heads back to hidden.

What follows the last layer is the head:

- ``tokens``: the logits of the vocabulary at every position (BERT: behind a linear layer, GELU and a normalisation);
- ``labels``: two numbers at every position, as for answers in SQuAD (start and end) or for classes;
- ``pooler`` (BERT): a linear layer and tanh on the first position. The loss is over its features, without a classifier;
- ``pretraining`` (BERT): the logits at ``predictions`` masked positions alone, 20 as in the commands that BERT was
  published with (github.com/google-research/bert), and two numbers behind the pooler, on whether one sentence follows
  the other.

``attention`` says how scores, softmax and context are computed: ``unfused``, kernel by kernel, the weights dropped
between; or ``fused``, in one kernel that keeps no weights (FlashAttention, Dao et al. 2022, arXiv:2205.14135) and drops
none: PyTorch's on CPUs cannot.

The loss is a softmax cross-entropy over the last axis wherever the head gives numbers; tasks that have targets at a few
positions alone need less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from planner.domain.network import Network, family_of
from planner.errors import ParameterError
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import Argument, ZooEntry
from planner.networks.zoo.transformer_arguments import Sizes, preset, sequence, sizes

__all__ = ["ENTRIES"]

_RATE = 0.1
_LABELS = 2
_TYPES = 2
_FFN = "4 x hidden"
_HEAD_SIZE = "hidden / heads"
_UNFUSED, _FUSED = "unfused", "fused"
_PRETRAINING = "pretraining"
_MOST_MASKED = 20
_MASKED = f"{_MOST_MASKED}, or all of a shorter sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes(Sizes):
    """Sizes of a transformer of one stack; ``causal`` masks later positions, ``function`` stands in its MLP."""

    causal: bool
    function: str = "gelu"
    predictions: int = 0

    @property
    def notes(self) -> str:
        own = "" if self.heads * self.head_size == self.hidden else f" of {self.head_size}"
        return f"{self.layers} layers, {self.hidden} features, {self.heads} heads{own}, {self.sequence} positions"


def _sizes(name: str, arguments: Mapping[str, str], *, causal: bool, function: str = "gelu") -> _Sizes:
    hidden, heads, head_size = int(arguments["hidden"]), int(arguments["heads"]), arguments["head_size"]
    if head_size == _HEAD_SIZE and heads > hidden:
        what = f"argument heads of network {family_of(name)}"
        raise ParameterError(what, f"at most hidden = {hidden} unless head_size is given", heads)
    ffn = 4 * hidden if arguments["ffn"] == _FFN else int(arguments["ffn"])
    return _Sizes(
        layers=int(arguments["layers"]),
        hidden=hidden,
        heads=heads,
        head_size=hidden // heads if head_size == _HEAD_SIZE else int(head_size),
        ffn=ffn,
        sequence=int(arguments["sequence"]),
        vocabulary=int(arguments["vocabulary"]),
        causal=causal,
        fused=arguments["attention"] == _FUSED,
        function=function,
    )


def _gpt(name: str, arguments: Mapping[str, str], *, positions: int = 0, function: str = "gelu") -> Network:
    """Return a decoder; its table of positions has as many rows as a sample needs, and at least ``positions``."""
    sizes = _sizes(name, arguments, causal=True, function=function)
    net = NetworkBuilder()
    rows = {"vocabulary": sizes.vocabulary, "positions": max(positions, sizes.sequence)}
    top = net.add("embedding", "embedding", "input", features=sizes.hidden, **rows)
    top = net.add("dropout", "embedding.dropout", top, rate=_RATE)
    for number, (name_of_part, part) in product(range(1, sizes.layers + 1), _PARTS.items()):
        block = f"layer{number}.{name_of_part}"
        branch = part(net, block, net.add("layer_norm", f"{block}.norm", top), sizes)
        top = net.add("add", f"{block}.add", (branch, top))
    top = net.add("layer_norm", "norm", top)
    if arguments["head"] == "tokens":
        net.add("loss", "loss", net.linear("logits", top, sizes.vocabulary, tied=True, bias=False))
    else:
        net.add("loss", "loss", net.linear("labels", top, _LABELS, bias=False))
    notes = f"decoder of {sizes.notes}"
    return net.network(name, (sizes.sequence,), notes, dataset=None, optimizer="adam")


def _bert(name: str, arguments: Mapping[str, str]) -> Network:
    sizes = _sizes(name, arguments, causal=False)
    if arguments["head"] == _PRETRAINING:
        sizes = replace(sizes, predictions=_predictions(arguments["predictions"], sizes.sequence))
    net = NetworkBuilder()
    rows = {"vocabulary": sizes.vocabulary, "positions": max(_BERT_POSITIONS, sizes.sequence), "types": _TYPES}
    top = net.add("embedding", "embedding", "input", features=sizes.hidden, **rows)
    top = net.add("layer_norm", "embedding.norm", top)
    top = net.add("dropout", "embedding.dropout", top, rate=_RATE)
    for number, (name_of_part, part) in product(range(1, sizes.layers + 1), _PARTS.items()):
        block = f"layer{number}.{name_of_part}"
        branch = part(net, block, top, sizes)
        top = net.add("layer_norm", f"{block}.norm", net.add("add", f"{block}.add", (branch, top)))
    net.add("loss", "loss", _BERT_HEADS[arguments["head"]](net, top, sizes))
    notes = f"encoder of {sizes.notes}"
    return net.network(name, (sizes.sequence,), notes, dataset=None, optimizer="adam")


def _attention(net: NetworkBuilder, name: str, source: str, sizes: _Sizes) -> str:
    joined = net.linear(f"{name}.qkv", source, 3 * sizes.heads * sizes.head_size)
    rate = 0.0 if sizes.fused else _RATE
    how = {"heads": sizes.heads, "causal": sizes.causal, "dropout": rate, "fused": sizes.fused}
    core = net.add("attention", f"{name}.core", joined, **how)
    return net.add("dropout", f"{name}.dropout", net.linear(f"{name}.project", core, sizes.hidden), rate=_RATE)


def _feed_forward(net: NetworkBuilder, name: str, source: str, sizes: _Sizes) -> str:
    wide = net.linear(f"{name}.widen", source, sizes.ffn)
    wide = net.add("activation", f"{name}.{sizes.function}", wide, function=sizes.function)
    return net.add("dropout", f"{name}.dropout", net.linear(f"{name}.narrow", wide, sizes.hidden), rate=_RATE)


_PARTS = {"attention": _attention, "mlp": _feed_forward}


def _pooler(net: NetworkBuilder, source: str, sizes: _Sizes) -> str:
    pooled = net.linear("pooler", net.add("first_position", "first", source), sizes.hidden)
    return net.add("activation", "pooler.tanh", pooled, function="tanh")


def _labels(net: NetworkBuilder, source: str, _sizes: _Sizes) -> str:
    return net.linear("labels", source, _LABELS)


def _predictions(typed: str, sequence: int) -> int:
    count = min(_MOST_MASKED, sequence) if typed == _MASKED else int(typed)
    if count > sequence:
        raise ParameterError("argument predictions of network bert", f"at most sequence = {sequence}", count)
    return count


def _pretraining(net: NetworkBuilder, source: str, sizes: _Sizes) -> str:
    """Append the loss over whether sentences follow each other; what is returned are the logits of masked tokens."""
    net.add("loss", "next_sentence.loss", net.linear("next_sentence", _pooler(net, source, sizes), _LABELS))
    masked = net.add("positions", "masked", source, count=sizes.predictions, scattered=True)
    return _masked_tokens(net, masked, sizes)


def _masked_tokens(net: NetworkBuilder, source: str, sizes: _Sizes) -> str:
    top = net.add("activation", "tokens.gelu", net.linear("tokens", source, sizes.hidden), function="gelu")
    return net.linear("logits", net.add("layer_norm", "tokens.norm", top), sizes.vocabulary, tied=True)


_BERT_POSITIONS = 512
_BERT_HEADS = {"pooler": _pooler, "labels": _labels, "tokens": _masked_tokens, _PRETRAINING: _pretraining}


def _arguments(positions: int, *heads: str) -> dict[str, Argument]:
    return {
        **sequence(positions),
        "head": Argument(heads, "what is computed of the last layer"),
        "attention": Argument((_UNFUSED, _FUSED), "kernels of attention; fused: one, which drops no weights"),
    }


def _sized(vocabulary: int) -> dict[str, Argument]:
    return sizes(layers=12, hidden=768, heads=12, head_size=_HEAD_SIZE, ffn=_FFN, vocabulary=vocabulary)


def _published(layers: int, hidden: int, heads: int, vocabulary: int) -> dict[str, object]:
    values = {"layers": layers, "hidden": hidden, "heads": heads, "vocabulary": vocabulary}
    return {"head_size": _HEAD_SIZE, "ffn": _FFN, **values}


_GPT2 = partial(_gpt, positions=1024)
_OPT = partial(_gpt, positions=2050, function="relu")
_GPT3 = partial(_gpt, positions=2048)
_PREDICTIONS = Argument((_MASKED,), "positions that pretraining predicts", counts=True, most=999_999)
_OF_GPT, _OF_BERT = _arguments(1024, "tokens", "labels"), _arguments(512, *_BERT_HEADS) | {"predictions": _PREDICTIONS}
_OF_GPT3 = _arguments(2048, "tokens", "labels")
ENTRIES = {
    "gpt": ZooEntry(_gpt, _sized(50257) | _OF_GPT),
    "gpt2": preset(_GPT2, _OF_GPT, **_published(12, 768, 12, 50257)),
    "gpt2-medium": preset(_GPT2, _OF_GPT, **_published(24, 1024, 16, 50257)),
    "gpt2-large": preset(_GPT2, _OF_GPT, **_published(36, 1280, 20, 50257)),
    "gpt2-xl": preset(_GPT2, _OF_GPT, **_published(48, 1600, 25, 50257)),
    "megatron-22b": preset(_GPT3, _OF_GPT3, **_published(48, 6144, 64, 51200)),
    "gpt3-175b": preset(_GPT3, _OF_GPT3, **_published(96, 12288, 96, 51200)),
    "megatron-530b": preset(_GPT3, _OF_GPT3, **_published(105, 20480, 128, 51200)),
    "gpt3-1t": preset(_GPT3, _OF_GPT3, **_published(128, 25600, 160, 51200)),
    "opt-1.3b": preset(_OPT, _arguments(2048, "tokens", "labels"), **_published(24, 2048, 32, 50272)),
    "bert": ZooEntry(_bert, _sized(30522) | _OF_BERT),
    "bert-base": preset(_bert, _OF_BERT, **_published(12, 768, 12, 30522)),
    "bert-large": preset(_bert, _OF_BERT, **_published(24, 1024, 16, 30522)),
}
