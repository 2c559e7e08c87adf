"""Networks of Hugging Face's ``config.json``: each model type is a family of the zoo, each key an argument of it.

A key that is absent has the value of transformers' own class (github.com/huggingface/transformers,
``configuration_<type>.py``); where that is the size of one published model, the key must be given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.domain.network import Network
from planner.errors import NOTHING, InputFileError, ParameterError, nearest_name, shown
from planner.networks.builder import Argument
from planner.networks.zoo import build, zoo_entry
from planner.networks.zoo.transformers import HEAD_SIZE


@dataclass(frozen=True, slots=True)
class Key:
    """A key of ``config.json``.

    Attributes
    ----------
    argument : of the family that it gives; empty: it gives none, and must have one of ``words``
    absent : value of the argument where the key is absent or null; None: it must be given
    words : value -> that of the argument, where others cannot be read; empty: the argument's own rule holds
    """

    name: str
    argument: str = ""
    absent: str | None = None
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelType:
    """What networks of a ``model_type`` are.

    Attributes
    ----------
    family : of the zoo
    keys : read, in order
    fixed : arguments that no key gives
    positions : key with the most positions of a sample; empty: there is none
    cap : positions of a sample by default, where the model takes as many
    table : rows of a table of positions besides ``positions``; None: there is no such table
    counted : key -> values that are modelled, and what is counted in the place of any other
    same : key -> another one whose value it must have, where it is given
    """

    family: str
    keys: tuple[Key, ...]
    fixed: Mapping[str, str] = field(default_factory=dict)
    positions: str = "max_position_embeddings"
    cap: int = 4096
    table: int | None = None
    counted: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)


def _only(name: str, *values: str) -> Key:
    """Return a key that must have one of these values, or be absent."""
    return Key(name, "", "", dict.fromkeys(values, ""))


_FLAG = {"false": "false", "true": "true"}
_GELU = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
_GATES = {"silu": "silu", "swish": "silu", **_GELU}
_STACK = (
    Key("num_hidden_layers", "layers"),
    Key("hidden_size", "hidden"),
    Key("num_attention_heads", "heads"),
    Key("intermediate_size", "ffn"),
    Key("vocab_size", "vocabulary"),
)
_GROUPED = (*_STACK, Key("num_key_value_heads", "kv_heads"))
_HEAD, _OWN_HEAD = Key("head_dim", "head_size", HEAD_SIZE), Key("head_dim", "head_size")
_GATE, _UNTIED = Key("hidden_act", "function", "silu", _GATES), Key("tie_word_embeddings", "tied", "false", _FLAG)
_TIED = replace(_UNTIED, absent="true")
_BIAS = Key("attention_bias", "attention_bias", "none", {"false": "none", "true": "all"})
_LLAMA = (*_STACK, Key("num_key_value_heads", "kv_heads", "heads"), _HEAD, _GATE, _UNTIED, _BIAS)
_MISTRAL = (*_GROUPED, _HEAD, _GATE, _UNTIED)
_QWEN3 = (*_GROUPED, _OWN_HEAD, _GATE, _UNTIED, _BIAS)
_GEMMA = (*_GROUPED, _OWN_HEAD, Key("hidden_activation", "function", "gelu", _GELU), _TIED, _BIAS)
_TOP, _WIDTH = Key("num_experts_per_tok", "top_k"), Key("moe_intermediate_size", "expert_ffn")
_MIXTRAL = (
    *(replace(key, argument="expert_ffn") if key.argument == "ffn" else key for key in _MISTRAL),
    Key("num_local_experts", "experts"),
    _TOP,
)
_QWEN3_MOE = (
    *_GROUPED,
    _HEAD,
    _GATE,
    _UNTIED,
    _BIAS,
    Key("num_experts", "experts"),
    _TOP,
    _WIDTH,
    _only("decoder_sparse_step", "1"),
)
_DEEPSEEK = (
    *_STACK,
    _GATE,
    _UNTIED,
    Key("kv_lora_rank", "kv_rank"),
    Key("q_lora_rank", "query_rank", "none"),
    Key("qk_nope_head_dim", "plain_size"),
    Key("qk_rope_head_dim", "rotary_size"),
    Key("v_head_dim", "value_size"),
    Key("n_routed_experts", "experts"),
    _TOP,
    _WIDTH,
    Key("n_shared_experts", "shared_experts", "0"),
    Key("first_k_dense_replace", "dense_layers", "0"),
    _only("moe_layer_freq", "1"),
)
_GPT_ACT = Key("activation_function", "function", "gelu", {"relu": "relu", **_GELU})
_GPT2 = (
    Key("n_layer", "layers"),
    Key("n_embd", "hidden"),
    Key("n_head", "heads"),
    Key("n_inner", "ffn", "4 x hidden"),
    Key("vocab_size", "vocabulary"),
    _GPT_ACT,
    _only("tie_word_embeddings", "true"),
)
_OPT = (
    *_STACK[:3],
    Key("ffn_dim", "ffn"),
    _STACK[4],
    replace(_GPT_ACT, absent="relu"),
    *(_only(name, "true") for name in ("do_layer_norm_before", "enable_bias", "tie_word_embeddings")),
)
_NEOX = (
    *_STACK,
    Key("rotary_pct", "rotary_share", "0.25"),
    Key("use_parallel_residual", "parallel", "true", _FLAG),
    _only("hidden_act", *_GELU),
    _only("attention_bias", "true"),
    _UNTIED,
)
_BERT = (*_STACK, Key("type_vocab_size", "types", "2"), _only("hidden_act", *_GELU))
_T5 = (
    Key("num_layers", "layers"),
    Key("num_decoder_layers", "decoder_layers", "layers"),
    Key("d_model", "hidden"),
    Key("num_heads", "heads"),
    Key("d_kv", "head_size"),
    Key("d_ff", "ffn"),
    Key("vocab_size", "vocabulary"),
    Key("feed_forward_proj", "function", "relu", {"relu": "relu", "gated-gelu": "gated-gelu"}),
    _TIED,
    _only("relative_attention_num_buckets", "32"),
)
_VIT = (
    *_STACK[:4],
    Key("image_size", "image"),
    Key("patch_size", "patch"),
    Key("id2label", "classes", "2"),
    _only("num_channels", "3"),
    _only("qkv_bias", "true"),
    _only("hidden_act", *_GELU),
)
WINDOW = "sliding_window"
"""Key with the positions that attention sees back, looked at in every model type."""
_DROPS, _DROPS_NONE = ((0.1,), "A dropout of 0.1"), ((0, 0.0), "No dropout")
_PLAIN = {"attention_dropout": _DROPS_NONE}
_CAPPED = {"attn_logit_softcapping": ((), "No cap of scores"), "final_logit_softcapping": ((), "No cap of logits")}
_EVERY: Mapping[str, tuple[tuple[Any, ...], str]] = {"mlp_only_layers": (([],), "An expert part in every layer")}
_ALONE = {"add_cross_attention": ((False,), "No attention to another network")}
_ABSOLUTE = {"position_embedding_type": (("absolute",), "A table of absolute positions")}
_AS_PLANNED = {"quantization_config": ((), "No quantization of weights")}
"""Of every model type."""
_NEXT = {"num_nextn_predict_layers": ((0,), "No layer that predicts further tokens")}
MODEL_TYPES: Mapping[str, ModelType] = {
    "llama": ModelType("llama", (*_LLAMA, Key("mlp_bias", "mlp_bias", "false", _FLAG)), counted=_PLAIN),
    "mistral": ModelType("llama", _MISTRAL, counted=_PLAIN),
    "qwen2": ModelType("llama", (*_GROUPED, _GATE, _UNTIED), {"attention_bias": "qkv"}, counted=_PLAIN),
    "qwen3": ModelType("llama", _QWEN3, {"head_norm": "true"}, counted=_PLAIN),
    "gemma": ModelType("llama", _GEMMA, counted=_PLAIN),
    "gemma2": ModelType("llama", _GEMMA, {"norms": "around"}, counted=_PLAIN | _CAPPED),
    "mixtral": ModelType("moe", _MIXTRAL, counted=_PLAIN),
    "qwen3_moe": ModelType("moe", _QWEN3_MOE, {"head_norm": "true"}, counted={**_PLAIN, **_EVERY}),
    "deepseek_v2": ModelType("moe", _DEEPSEEK, counted=_PLAIN),
    "deepseek_v3": ModelType("moe", _DEEPSEEK, counted=_PLAIN | _NEXT),
    "gpt2": ModelType(
        "gpt", _GPT2, positions="n_positions", cap=1024, table=0, counted={"resid_pdrop": _DROPS} | _ALONE
    ),
    "gpt_neox": ModelType("neox", _NEOX, cap=2048, counted=_PLAIN | {"hidden_dropout": _DROPS_NONE}),
    "opt": ModelType(
        "gpt", _OPT, cap=2048, table=2, counted={"dropout": _DROPS}, same={"word_embed_proj_dim": "hidden_size"}
    ),
    "bert": ModelType("bert", _BERT, cap=512, table=0, counted={"hidden_dropout_prob": _DROPS} | _ALONE | _ABSOLUTE),
    "t5": ModelType("t5", _T5, positions="", counted={"dropout_rate": _DROPS}),
    "vit": ModelType("vit", _VIT, positions="", counted={"hidden_dropout_prob": _DROPS_NONE}),
}
"""By ``model_type``."""
_HEADS = {
    "BertModel": "pooler", "BertForMaskedLM": "tokens", "BertForPreTraining": "pretraining",
    "BertForQuestionAnswering": "labels", "BertForTokenClassification": "labels",
}  # fmt: skip
_OUTPUTS = {"bert": tuple(_HEADS), "t5": ("ForConditionalGeneration",), "vit": ("ForImageClassification",)}
"""Family -> ends of the names of classes whose output layers are counted; of others those of logits of tokens."""
_MOST_POSITIONS = Argument(("",), "most positions of a sample", counts=True, most=9_999_999)


def network_of(document: Mapping[str, Any], path: str, typed: Mapping[str, str]) -> Network:
    """Return the network of a ``config.json``; ``typed``: arguments of its family, which go before its keys.

    Its name is the family's, with the arguments that differ from its defaults. InputFileError where a key is missing,
    breaks its rule or contradicts another; ParameterError or UnknownNameError where an argument does.
    """
    model_type = document.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        sizes = ", ".join(key.name for key in _LLAMA if key.absent is None)
        got = NOTHING if model_type is None else shown(model_type)
        near = nearest_name(str(model_type).lower(), MODEL_TYPES)
        guess = f"; did you mean {near!r}?" if near else ""
        remedy = f"for a model built like one of these, write its model_type and its keys: of llama {sizes}"
        problem = f"value must be one of {', '.join(MODEL_TYPES)}, got {got}{guess}; {remedy}"
        raise InputFileError(path, problem, "model_type")
    kind = MODEL_TYPES[model_type]
    for name, other in kind.same.items():
        if document.get(name, document.get(other)) != document.get(other):
            rule = f"that of {other} ({shown(document.get(other))}), as nothing between them is modelled"
            raise InputFileError(path, f"value must be {rule}, got {shown(document[name])}", name)
    options = zoo_entry(kind.family).arguments
    keys = [key for key in kind.keys if key.argument not in typed]
    values = {key.argument: _value(key, document, path, options.get(key.argument)) for key in keys}
    values.pop("", None)
    values |= {**kind.fixed, **_positions(kind, document, path, typed), **_head(kind, document), **typed}
    given = {key: value for key, value in values.items() if key not in options or value != options[key].values[0]}
    try:
        if not typed.keys() & {"hidden", "heads"}:
            _check_heads(values)
        network = build(kind.family, given)
    except ParameterError as error:
        raise _named(error, kind, path, typed) from None
    return replace(network, unmodelled=tuple(_differences(kind, document, network.input_shape[0])))


def _value(key: Key, document: Mapping[str, Any], path: str, argument: Argument | None) -> str:
    """Return the value of an argument that a key gives."""
    value = document.get(key.name)
    if value is None:
        if key.absent is None:
            doc = argument.doc if argument else ""
            raise InputFileError(path, f"key must be given ({doc}), got {NOTHING}", key.name)
        return key.absent
    if key.words:
        word = str(value).lower() if isinstance(value, bool) else str(value)
        if word not in key.words:
            raise InputFileError(path, f"value must be {' or '.join(key.words)}, got {shown(value)}", key.name)
        return key.words[word]
    return _number(key.name, len(value) if isinstance(value, dict) else value, path, argument)


def _number(name: str, value: Any, path: str, argument: Argument | None) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if argument is not None and not (is_number and argument.takes(str(value))):
        raise InputFileError(path, f"value must be {argument.rule.partition(', or ')[0]}, got {shown(value)}", name)
    return str(value)


def _positions(kind: ModelType, document: Mapping[str, Any], path: str, typed: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that the most positions of a sample give."""
    if not kind.positions:
        return {}
    most = int(_value(Key(kind.positions), document, path, _MOST_POSITIONS))
    wanted = typed.get("sequence", "")
    if wanted.isdecimal() and int(wanted) > most:
        raise InputFileError(path, f"value must be at least sequence = {wanted}, got {most}", kind.positions)
    table = {} if kind.table is None else {"positions": str(most + kind.table)}
    return {"sequence": str(min(most, kind.cap)), **table}


def _head(kind: ModelType, document: Mapping[str, Any]) -> dict[str, str]:
    """Return what a BERT computes of its last layer, by the class that the file names."""
    names = document.get("architectures") if kind.family == "bert" else None
    heads = [_HEADS[one] for one in names if one in _HEADS] if isinstance(names, list) else []
    return {"head": heads[0]} if heads else {}


def _check_heads(values: Mapping[str, str]) -> None:
    """Refuse heads that do not divide the features, where no key says how wide one is."""
    if values.get("head_size", HEAD_SIZE) == HEAD_SIZE and "kv_rank" not in values:
        hidden, heads = int(values["hidden"]), int(values["heads"])
        if hidden % heads:
            raise ParameterError("argument heads", f"a divisor of hidden = {hidden}", heads)


def _named(error: ParameterError, kind: ModelType, path: str, typed: Mapping[str, str]) -> Exception:
    """Return the error of an argument as that of the key that gave it, if one did."""
    keys = {key.argument: key.name for key in kind.keys if key.argument}
    name = error.what.removeprefix("argument ").partition(" ")[0]
    if name in typed or (name not in keys and typed):
        return error
    rule = re.sub(r"([a-z_]+) =", lambda word: f"{keys.get(word[1], word[1])} =", error.rule)
    what = "value" if name in keys else error.what
    return InputFileError(path, f"{what} must be {rule}, got {shown(error.value)}", keys.get(name, ""))


def _differences(kind: ModelType, document: Mapping[str, Any], positions: int) -> Iterator[str]:
    """Yield a sentence for each key whose value is not modelled."""
    window, is_used = document.get(WINDOW), document.get("use_sliding_window", True) is not False
    if isinstance(window, int) and is_used and window < positions:
        yield f"Attention to all {positions} positions is counted, where {WINDOW} is {window}."
    names, ends = document.get("architectures"), _OUTPUTS.get(kind.family, ("ForCausalLM", "LMHeadModel"))
    if isinstance(names, list) and names and not any(str(name).endswith(ends) for name in names):
        yield f"The output layers of {ends[0]} are counted, where architectures is {shown(names)}."
    for key, (modelled, words) in {**kind.counted, **_AS_PLANNED}.items():
        if document.get(key) is not None and document[key] not in modelled:
            yield f"{words} is counted, where {key} is {shown(document[key])}."
