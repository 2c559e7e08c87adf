"""Transformers of one stack: decoders of the GPT family, encoders of the BERT family, vision transformers.

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

What follows the last layer is the head, its loss a softmax cross-entropy over the last axis:

- ``tokens``: the logits of the vocabulary at every position (BERT: behind a linear layer, GELU and a normalisation);
- ``labels``: two numbers at every position, as for answers in SQuAD (start and end) or for classes;
- ``pooler`` (BERT): a linear layer and tanh on the first position. The loss is over its features, without a classifier;
- ``pretraining`` (BERT): the logits at ``predictions`` masked positions alone, 20 as in the commands that BERT was
  published with (github.com/google-research/bert), and two numbers behind the pooler, on whether one sentence follows
  the other.

``attention`` says how scores, softmax and context are computed: ``unfused``, kernel by kernel, the weights dropped
between; or ``fused``, in one kernel that keeps no weights (FlashAttention, Dao et al. 2022, arXiv:2205.14135) and drops
none: PyTorch's on CPUs cannot.

``vit``: Dosovitskiy et al. (2020), arXiv:2010.11929, as torchvision ships it: a convolution turns patches into
features, a class token goes before them, learned positions are added; then blocks as in GPT, without a mask, one more
normalisation, and a linear layer on the class token. No dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from planner.domain.layers.record import AttributeValue
from planner.domain.network import Network, family_of
from planner.errors import ParameterError
from planner.networks.builder import Argument, NetworkBuilder, ZooEntry

FFN, GATED_FFN = "4 x hidden", "8/3 x hidden"
FFN_MULTIPLE = 256
"""Of GATED_FFN, as Llama 1 and 2 have it."""
HEAD_SIZE = "hidden / heads"
ATTENTION = {"attention": Argument(("fused", "unfused"), "kernels of attention; fused: one")}
_SIZE_ARGUMENTS = {
    "layers": ("transformer layers", 9999), "hidden": ("features of a position", 999_999),
    "heads": ("heads of attention", 9999), "head_size": ("features of a head; its default is rounded down", 9999),
    "ffn": ("features inside the feed-forward part", 9_999_999), "vocabulary": ("tokens told apart", 9_999_999),
}  # fmt: skip
"""Argument -> what it is, and the most that it takes."""


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): features of what keys and values are made of.

    ``plain``, ``rotary``: of a head's queries and keys, without and with positions; ``value``: of a head's values;
    ``queries``: features of what queries are made of, 0: they are not compressed.
    """

    rank: int
    plain: int
    rotary: int
    value: int
    queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the layers of a transformer; what its family does not have is 0.

    ``causal``: whether later positions are masked; ``function``: activation of the MLP, or of its gate; ``qkv_bias``,
    ``project_bias``, ``mlp_bias``: whether these linear layers have biases; ``norm``: features of a head,
    where queries and keys are normalised; ``rotated``: those of queries and keys with rotary positions; ``around``:
    whether parts are normalised behind, too; ``parallel``: whether attention and MLP read the same.
    """

    layers: int
    hidden: int
    heads: int
    head_size: int
    ffn: int
    sequence: int
    vocabulary: int = 0
    kv_heads: int = 0
    fused: bool = False
    tied: bool = False
    encoder_sequence: int = 0
    classes: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    capacity: float = 0.0
    dense_layers: int = 0
    latent: Latent | None = None
    causal: bool = False
    function: str = "gelu"
    predictions: int = 0
    qkv_bias: bool = False
    project_bias: bool = False
    mlp_bias: bool = False
    norm: int = 0
    rotated: int = 0
    around: bool = False
    parallel: bool = False

    @property
    def query_width(self) -> int:
        """Features of the queries of all heads."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Features of all keys, and of all values."""
        return self.kv_heads * self.head_size


def sizes(**defaults: object) -> dict[str, Argument]:
    """Return arguments for sizes, in order, with these defaults, which may be in words."""
    return {
        name: Argument((str(value),), _SIZE_ARGUMENTS[name][0], counts=True, most=_SIZE_ARGUMENTS[name][1])
        for name, value in defaults.items()
    }


def sequence(positions: int) -> dict[str, Argument]:
    """Return the argument for positions, with its default."""
    return {"sequence": Argument((str(positions),), "positions of a sample", counts=True, most=999_999)}


def sizes_of(name: str, arguments: Mapping[str, str], **others: Any) -> Sizes:
    """Return the sizes that arguments of a network give, and others; ParameterError where heads have no features."""
    hidden, heads, ffn = int(arguments["hidden"]), int(arguments["heads"]), arguments.get("ffn", FFN)
    typed = arguments.get("head_size", "")
    head_size = hidden // heads if typed in ("", HEAD_SIZE) else int(typed)
    if not head_size:
        rule = f"at most hidden = {hidden}" + (" unless head_size is given" if typed else "")
        raise ParameterError(f"argument heads of network {family_of(name)}", rule, heads)
    widths = {FFN: 4 * hidden, GATED_FFN: -(-(8 * hidden // 3) // FFN_MULTIPLE) * FFN_MULTIPLE}
    given: dict[str, Any] = {
        "layers": int(arguments["layers"]), "hidden": hidden, "heads": heads, "head_size": head_size,
        "ffn": widths[ffn] if ffn in widths else int(ffn), "sequence": int(arguments.get("sequence", "0")),
        "vocabulary": int(arguments.get("vocabulary", "0")), "fused": arguments.get("attention") == "fused",
        "tied": arguments.get("tied") == "true", "function": arguments.get("function", "gelu"),
    }  # fmt: skip
    return Sizes(**given | others)


def preset(
    make: Callable[[str, Mapping[str, str]], Network], arguments: Mapping[str, Argument], **values: object
) -> ZooEntry:
    """Return a published network, which has these values of arguments and still takes ``arguments``."""
    fixed = {name: str(value) for name, value in values.items()}
    return ZooEntry(lambda name, others: make(name, {**fixed, **others}), arguments)


_RATE = 0.1
_LABELS = 2
_AS_SEQUENCE = "sequence"
_PRETRAINING = "pretraining"
_MOST_MASKED = 20
_MASKED = f"{_MOST_MASKED}, or all of a shorter sequence"


def _notes(of: Sizes) -> str:
    own = "" if of.query_width == of.hidden else f" of {of.head_size}"
    return f"{of.layers} layers, {of.hidden} features, {of.heads} heads{own}, {of.sequence} positions"


def _rows(arguments: Mapping[str, str]) -> int:
    """Return the rows of the table of positions: as many as a sample needs, and at least ``positions``."""
    sequence, positions = int(arguments["sequence"]), arguments["positions"]
    return sequence if positions == _AS_SEQUENCE else max(sequence, int(positions))


def _gpt(name: str, arguments: Mapping[str, str]) -> Network:
    sizes = sizes_of(name, arguments, causal=True)
    net = NetworkBuilder()
    rows = {"vocabulary": sizes.vocabulary, "positions": _rows(arguments)}
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
    return net.network(name, (sizes.sequence,), f"decoder of {_notes(sizes)}", dataset=None, optimizer="adam")


def _bert(name: str, arguments: Mapping[str, str]) -> Network:
    predictions, positions = 0, int(arguments["sequence"])
    if arguments["head"] == _PRETRAINING:
        typed = arguments["predictions"]
        predictions = min(_MOST_MASKED, positions) if typed == _MASKED else int(typed)
        if predictions > positions:
            raise ParameterError("argument predictions of network bert", f"at most sequence = {positions}", predictions)
    sizes = sizes_of(name, arguments, predictions=predictions)
    net = NetworkBuilder()
    rows = {"vocabulary": sizes.vocabulary, "positions": _rows(arguments), "types": int(arguments["types"])}
    top = net.add("embedding", "embedding", "input", features=sizes.hidden, **rows)
    top = net.add("layer_norm", "embedding.norm", top)
    top = net.add("dropout", "embedding.dropout", top, rate=_RATE)
    for number, (name_of_part, part) in product(range(1, sizes.layers + 1), _PARTS.items()):
        block = f"layer{number}.{name_of_part}"
        branch = part(net, block, top, sizes)
        top = net.add("layer_norm", f"{block}.norm", net.add("add", f"{block}.add", (branch, top)))
    net.add("loss", "loss", _BERT_HEADS[arguments["head"]](net, top, sizes))
    return net.network(name, (sizes.sequence,), f"encoder of {_notes(sizes)}", dataset=None, optimizer="adam")


def _attention(net: NetworkBuilder, name: str, source: str, sizes: Sizes) -> str:
    joined = net.linear(f"{name}.qkv", source, 3 * sizes.heads * sizes.head_size)
    rate = 0.0 if sizes.fused else _RATE
    how = {"heads": sizes.heads, "causal": sizes.causal, "dropout": rate, "fused": sizes.fused}
    core = net.add("attention", f"{name}.core", joined, **how)
    return net.add("dropout", f"{name}.dropout", net.linear(f"{name}.project", core, sizes.hidden), rate=_RATE)


def _feed_forward(net: NetworkBuilder, name: str, source: str, sizes: Sizes) -> str:
    wide = net.linear(f"{name}.widen", source, sizes.ffn)
    wide = net.add("activation", f"{name}.{sizes.function}", wide, function=sizes.function)
    return net.add("dropout", f"{name}.dropout", net.linear(f"{name}.narrow", wide, sizes.hidden), rate=_RATE)


_PARTS = {"attention": _attention, "mlp": _feed_forward}


def _pooler(net: NetworkBuilder, source: str, sizes: Sizes) -> str:
    pooled = net.linear("pooler", net.add("first_position", "first", source), sizes.hidden)
    return net.add("activation", "pooler.tanh", pooled, function="tanh")


def _pretraining(net: NetworkBuilder, source: str, sizes: Sizes) -> str:
    """Append the loss over whether sentences follow each other; what is returned are the logits of masked tokens."""
    net.add("loss", "next_sentence.loss", net.linear("next_sentence", _pooler(net, source, sizes), _LABELS))
    masked = net.add("positions", "masked", source, count=sizes.predictions, scattered=True)
    return _masked_tokens(net, masked, sizes)


def _masked_tokens(net: NetworkBuilder, source: str, sizes: Sizes) -> str:
    top = net.add("activation", "tokens.gelu", net.linear("tokens", source, sizes.hidden), function="gelu")
    return net.linear("logits", net.add("layer_norm", "tokens.norm", top), sizes.vocabulary, tied=True)


_BERT_HEADS: Mapping[str, Callable[[NetworkBuilder, str, Sizes], str]] = {
    "pooler": _pooler,
    "labels": lambda net, source, _: net.linear("labels", source, _LABELS),
    "tokens": _masked_tokens,
    _PRETRAINING: _pretraining,
}


def _arguments(positions: int, *heads: str) -> dict[str, Argument]:
    return {
        **sequence(positions),
        "head": Argument(heads, "what is computed of the last layer"),
        "attention": Argument(("unfused", "fused"), "kernels of attention; fused: one, which drops no weights"),
    }


_FUNCTION = {"function": Argument(("gelu", "relu"), "activation of the feed-forward part")}


def _sized(vocabulary: int, positions: str) -> dict[str, Argument]:
    rows = Argument((positions,), "rows of the table of positions; of a longer sequence as many", counts=True)
    every = sizes(layers=12, hidden=768, heads=12, head_size=HEAD_SIZE, ffn=FFN, vocabulary=vocabulary)
    return every | {"positions": replace(rows, most=999_999)}


_PREDICTIONS = Argument((_MASKED,), "positions that pretraining predicts", counts=True, most=999_999)
_OF_GPT, _OF_BERT = _arguments(1024, "tokens", "labels"), _arguments(512, *_BERT_HEADS) | {"predictions": _PREDICTIONS}
_OF_GPT3 = _arguments(2048, "tokens", "labels")
_GPT_SIZES = _sized(50257, _AS_SEQUENCE) | _FUNCTION
_BERT_SIZES = _sized(30522, "512") | {"types": Argument(("2",), "rows of the table of types of token", counts=True)}


def _published(layers: int, hidden: int, heads: int, **others: object) -> dict[str, object]:
    values = {"layers": layers, "hidden": hidden, "heads": heads}
    return {**{name: one.values[0] for name, one in (_GPT_SIZES | _BERT_SIZES).items()}, **values, **others}


_GPT2, _GPT3 = {"vocabulary": 50257, "positions": 1024}, {"vocabulary": 51200, "positions": 2048}
_OPT = {"vocabulary": 50272, "positions": 2050, "function": "relu"}
GPT = {
    "gpt": ZooEntry(_gpt, _GPT_SIZES | _OF_GPT),
    "gpt2": preset(_gpt, _OF_GPT, **_published(12, 768, 12, **_GPT2)),
    "gpt2-medium": preset(_gpt, _OF_GPT, **_published(24, 1024, 16, **_GPT2)),
    "gpt2-large": preset(_gpt, _OF_GPT, **_published(36, 1280, 20, **_GPT2)),
    "gpt2-xl": preset(_gpt, _OF_GPT, **_published(48, 1600, 25, **_GPT2)),
    "megatron-22b": preset(_gpt, _OF_GPT3, **_published(48, 6144, 64, **_GPT3)),
    "gpt3-175b": preset(_gpt, _OF_GPT3, **_published(96, 12288, 96, **_GPT3)),
    "megatron-530b": preset(_gpt, _OF_GPT3, **_published(105, 20480, 128, **_GPT3)),
    "gpt3-1t": preset(_gpt, _OF_GPT3, **_published(128, 25600, 160, **_GPT3)),
    "opt-1.3b": preset(_gpt, _arguments(2048, "tokens", "labels"), **_published(24, 2048, 32, **_OPT)),
    "bert": ZooEntry(_bert, _BERT_SIZES | _OF_BERT),
    "bert-base": preset(_bert, _OF_BERT, **_published(12, 768, 12)),
    "bert-large": preset(_bert, _OF_BERT, **_published(24, 1024, 16)),
}


_CHANNELS = 3
_IMAGENET_CLASSES = 1000


def _vit(name: str, arguments: Mapping[str, str]) -> Network:
    side, patch, classes = (int(arguments[key]) for key in ("image", "patch", "classes"))
    of = sizes_of(name, arguments, sequence=(side // patch) ** 2 + 1, classes=classes)
    if patch > side:
        raise ParameterError(f"argument patch of network {family_of(name)}", f"at most image = {side}", patch)
    net = NetworkBuilder()
    top = net.convolution("patches", "input", of.hidden, patch, stride=patch)
    top = net.add("class_token", "class_token", top)
    for number in range(1, of.layers + 1):
        top = plain_block(net, f"layer{number}", top, of, heads=of.heads, fused=of.fused)
    top = net.add("first_position", "first", net.add("layer_norm", "norm", top))
    net.add("loss", "loss", net.linear("classes", top, of.classes))
    notes = f"encoder of {of.layers} layers, {of.hidden} features, {of.heads} heads, patches of {patch} x {patch}"
    dataset = "imagenet-1k" if of.classes == _IMAGENET_CLASSES else None
    return net.network(name, (_CHANNELS, side, side), notes, dataset, optimizer="adam")


def plain_block(
    net: NetworkBuilder, name: str, source: str, of: Sizes, *, biases: bool = True, **how: AttributeValue
) -> str:
    """Append attention (``how``: its attributes) and an MLP, each behind a normalisation, without dropout."""
    bias: dict[str, AttributeValue] = {} if biases else {"bias": False}
    shift: dict[str, AttributeValue] = {} if biases else {"shift": False}
    part = f"{name}.attention"
    normed = net.add("layer_norm", f"{part}.norm", source, **shift)
    joined = net.linear(f"{part}.qkv", normed, 3 * of.query_width, **bias)
    if of.rotated:
        joined = net.add("rotary", f"{part}.rotary", joined, features=of.rotated)
    core = net.add("attention", f"{part}.core", joined, **how)
    attended = (net.linear(f"{part}.project", core, of.hidden, **bias), source)
    source = source if of.parallel else net.add("add", f"{part}.add", attended)
    part = f"{name}.mlp"
    wide = net.linear(f"{part}.widen", net.add("layer_norm", f"{part}.norm", source, **shift), of.ffn, **bias)
    wide = net.add("activation", f"{part}.{of.function}", wide, function=of.function)
    narrow = net.linear(f"{part}.narrow", wide, of.hidden, **bias)
    return net.add("add", f"{part}.add", (narrow, *(attended if of.parallel else (source,))))


_OF_VIT = {
    "image": Argument(("224",), "height and width of the image", counts=True),
    "classes": Argument(("1000",), "classes told apart", counts=True, most=999_999),
    **ATTENTION,
}
_PATCH = {"patch": Argument(("16",), "height and width of a patch", counts=True)}
VIT = {
    "vit": ZooEntry(_vit, sizes(layers=12, hidden=768, heads=12, ffn=FFN) | _PATCH | _OF_VIT),
    "vit-b16": preset(_vit, _OF_VIT, layers=12, hidden=768, heads=12, ffn=FFN, patch=16),
    "vit-l16": preset(_vit, _OF_VIT, layers=24, hidden=1024, heads=16, ffn=FFN, patch=16),
}
