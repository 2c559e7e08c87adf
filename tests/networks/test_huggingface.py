"""Networks of ``config.json``: parameters of published models, multiply-adds by hand, what is refused, and prices."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import find_network
from planner.domain.network import Network, layer_shapes
from planner.errors import InputFileError, ParameterError, PlannerError, UnknownNameError
from planner.networks.huggingface import MODEL_TYPES, network_of
from planner.networks.zoo import build
from planner.workload.calls import layer_work, totals
from planner.workload.shards import tensor_shard

Config = dict[str, Any]
Run = Callable[..., tuple[int, str, str]]


def decoder(  # noqa: PLR0917 - a row of a table
    model_type: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int, **others: Any
) -> Config:
    """Return the keys that decoders have in common, and others."""
    return {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocabulary,
        "max_position_embeddings": 32768, **others,
    }  # fmt: skip


def stack(  # noqa: PLR0917 - a row of a table
    model_type: str, layers: int, hidden: int, heads: int, vocabulary: int, positions: int, **others: Any
) -> Config:
    """Return the keys of a stack with as many keys as heads and an MLP of four times its features."""
    keys = decoder(model_type, layers, hidden, heads, heads, 4 * hidden, vocabulary)
    return keys | {"max_position_embeddings": positions} | others


def t5(layers: int, hidden: int, heads: int, ffn: int, **others: Any) -> Config:
    keys = {"num_layers": layers, "d_model": hidden, "num_heads": heads, "d_kv": 64, "d_ff": ffn, "vocab_size": 32128}
    return {"model_type": "t5", **keys, **others}


TIED: Config = {"tie_word_embeddings": True}
GATED: Config = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
LATENT: Config = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1,
}  # fmt: skip
V2_LITE: Config = LATENT | {
    "q_lora_rank": None, "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
    "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip
V2 = V2_LITE | {"q_lora_rank": 1536, "n_routed_experts": 160, "moe_intermediate_size": 1536}
V3 = V2 | {
    "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "num_nextn_predict_layers": 1,
}  # fmt: skip
MIXTRAL: Config = {"num_local_experts": 8, "num_experts_per_tok": 2}
A3B: Config = {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
IMAGES: Config = {"image_size": 224, "patch_size": 16, "id2label": {str(number): "" for number in range(1000)}}

# Where no other source is named: the total of the safetensors files, as huggingface.co shows it beside the model, with
# the keys of the config.json there; a tied output layer that a file holds once more is left out.
PUBLISHED: dict[str, tuple[Config, int]] = {
    "llama-7b": (decoder("llama", 32, 4096, 32, 32, 11008, 32000), 6_738_415_616),
    "Meta-Llama-3-8B": (decoder("llama", 32, 4096, 32, 8, 14336, 128256), 8_030_261_248),
    "Llama-3.2-1B": (decoder("llama", 16, 2048, 32, 8, 8192, 128256, **TIED), 1_235_814_400),
    "Llama-3.2-3B": (decoder("llama", 28, 3072, 24, 8, 8192, 128256, **TIED), 3_212_749_824),
    "Mistral-7B-v0.1": (decoder("mistral", 32, 4096, 32, 8, 14336, 32000), 7_241_732_096),
    "Qwen2-0.5B": (decoder("qwen2", 24, 896, 14, 2, 4864, 151936, **TIED), 494_032_768),
    "Qwen2-7B": (decoder("qwen2", 28, 3584, 28, 4, 18944, 152064), 7_615_616_512),
    "Qwen3-0.6B": (decoder("qwen3", 28, 1024, 16, 8, 3072, 151936, head_dim=128, **TIED), 596_049_920),
    "Qwen3-8B": (decoder("qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128), 8_190_735_360),
    "Qwen3-30B-A3B": (decoder("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, **A3B), 30_532_122_624),
    "gemma-2b": (decoder("gemma", 18, 2048, 8, 1, 16384, 256000, head_dim=256), 2_506_172_416),
    "gemma-7b": (decoder("gemma", 28, 3072, 16, 16, 24576, 256000, head_dim=256), 8_537_680_896),
    "gemma-2-2b": (decoder("gemma2", 26, 2304, 8, 4, 9216, 256000, head_dim=256), 2_614_341_888),
    "gemma-2-9b": (decoder("gemma2", 42, 3584, 16, 8, 14336, 256000, head_dim=256), 9_241_705_984),
    "gemma-2-27b": (decoder("gemma2", 46, 4608, 32, 16, 36864, 256000, head_dim=128), 27_227_128_320),
    "Mixtral-8x7B-v0.1": (decoder("mixtral", 32, 4096, 32, 8, 14336, 32000, **MIXTRAL), 46_702_792_704),
    "DeepSeek-V2-Lite": (decoder("deepseek_v2", 27, 2048, 16, 16, 10944, 102400, **V2_LITE), 15_706_484_224),
    "DeepSeek-V2": (decoder("deepseek_v2", 60, 5120, 128, 128, 12288, 102400, **V2), 235_741_434_880),
    # 671,026,419,200 in transformers' DeepseekV3ForCausalLM, with the 256 corrections of scores of each of 58 layers,
    # which are set by a rule, not by gradients.
    "DeepSeek-V3": (decoder("deepseek_v3", 61, 7168, 128, 128, 18432, 129280, **V3), 671_026_419_200 - 58 * 256),
    "gpt2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
    # Model cards of EleutherAI/pythia: parameters besides the two tables of tokens.
    "pythia-160m": (stack("gpt_neox", 12, 768, 12, 50304, 2048), 85_056_000 + 2 * 50304 * 768),
    "pythia-1.4b": (stack("gpt_neox", 24, 2048, 16, 50304, 2048), 1_208_602_624 + 2 * 50304 * 2048),
    "gpt-neox-20b": (stack("gpt_neox", 44, 6144, 64, 50432, 2048), 20_554_567_680),  # its model card
    "opt-125m": (stack("opt", 12, 768, 12, 50272, 2048, ffn_dim=3072), 125_239_296),
    "opt-1.3b": (stack("opt", 24, 2048, 32, 50272, 2048, ffn_dim=8192), 1_315_758_080),
    "bert-base-uncased": (stack("bert", 12, 768, 12, 30522, 512, architectures=["BertModel"]), 109_482_240),
    "bert-base-uncased, masked": (
        stack("bert", 12, 768, 12, 30522, 512, architectures=["BertForMaskedLM"]),
        109_514_298,
    ),
    "bert-large-uncased": (stack("bert", 24, 1024, 16, 30522, 512, architectures=["BertModel"]), 335_141_888),
    "t5-small": (t5(6, 512, 8, 2048), 60_506_624),
    "t5-base": (t5(12, 768, 12, 3072), 222_903_552),
    "flan-t5-small": (t5(8, 512, 6, 1024, num_decoder_layers=8, **GATED), 76_961_152),
    "flan-t5-base": (t5(12, 768, 12, 2048, num_decoder_layers=12, **GATED), 247_577_856),
    "vit-base-patch16-224": (stack("vit", 12, 768, 12, 1, 1, **IMAGES), 86_567_656),
    "vit-large-patch16-224": (stack("vit", 24, 1024, 16, 1, 1, **IMAGES), 304_326_632),
}


def network(config: Config, **typed: str) -> Network:
    return network_of(config, "config.json", typed)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert totals(network(config)).parameters == parameters


def test_every_model_type_has_a_published_model() -> None:
    assert {config["model_type"] for config, _ in PUBLISHED.values()} == set(MODEL_TYPES)


def macs(config: Config, positions: int) -> int:
    """Return the multiply-adds of a decoder's sample by hand, all pairs of positions."""
    hidden, heads, kv_heads = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    head = config.get("head_dim", hidden // heads)
    experts = config.get("num_experts", config.get("num_local_experts", 0))
    width = config.get("moe_intermediate_size", config["intermediate_size"]) * config.get("num_experts_per_tok", 1)
    weights = hidden * head * 2 * (heads + kv_heads) + 3 * hidden * width + hidden * experts
    attention = 2 * heads * head * positions**2
    layers, logits = config["num_hidden_layers"], hidden * config["vocab_size"]
    return int(positions * (layers * weights + logits) + layers * attention)


GROUPED = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "mixtral")


@pytest.mark.parametrize("name", [name for name, (config, _) in PUBLISHED.items() if config["model_type"] in GROUPED])
def test_multiply_adds_are_those_by_hand(name: str) -> None:
    config, _ = PUBLISHED[name]
    assert totals(network(config)).forward_mac == macs(config, 4096)
    assert totals(network(config, sequence="512")).forward_mac == macs(config, 512)


@pytest.mark.parametrize(
    ("name", "preset", "arguments"),
    [
        ("Llama-3.2-1B", "llama3.2-1b", {"sequence": "4096"}),
        ("Llama-3.2-3B", "llama3.2-3b", {"sequence": "4096"}),
        ("Mistral-7B-v0.1", "mistral-7b", {}),
        ("Qwen2-0.5B", "qwen2-0.5b", {}),
        ("Qwen2-7B", "qwen2-7b", {}),
        ("Qwen3-0.6B", "qwen3-0.6b", {}),
        ("Qwen3-8B", "qwen3-8b", {}),
        ("gemma-2-2b", "gemma2-2b", {}),
        ("gemma-2-9b", "gemma2-9b", {}),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b", {}),
        ("DeepSeek-V2-Lite", "deepseek-v2-lite", {}),
        ("gpt2", "gpt2", {}),
        ("gpt-neox-20b", "gpt-neox-20b", {}),
        ("opt-1.3b", "opt-1.3b", {}),
        ("bert-large-uncased", "bert-large", {}),
        ("t5-base", "t5-base", {}),
        ("vit-base-patch16-224", "vit-b16", {}),
    ],
)
def test_a_file_gives_the_network_that_is_bundled(name: str, preset: str, arguments: dict[str, str]) -> None:
    assert network(PUBLISHED[name][0]).layers == build(preset, arguments).layers


def test_the_name_of_what_was_read_builds_it() -> None:
    for config, _ in PUBLISHED.values():
        one = network(config)
        family, _, rest = one.name.partition(":")
        assert build(family, dict(part.split("=") for part in rest.split(","))).layers == one.layers


TINY = decoder("llama", 4, 64, 4, 2, 128, 256, head_dim=16) | {"max_position_embeddings": 64}
TINY_LATENT: Config = {
    "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
TINY_OF: dict[str, Config] = {
    **{name: {} for name in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gpt_neox", "bert")},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "deepseek_v2": TINY_LATENT,
    "deepseek_v3": TINY_LATENT,
    "gpt2": {"n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64},
    "opt": {"ffn_dim": 128},
    "t5": {"num_layers": 4, "d_model": 64, "num_heads": 4, "d_kv": 16, "d_ff": 128, **GATED},
    "vit": {"image_size": 32, "patch_size": 8, "id2label": {"0": "cat", "1": "dog"}},
}
EXPERTS = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3")


def tiny(model_type: str, **others: Any) -> Config:
    return TINY | TINY_OF[model_type] | {"model_type": model_type} | others


def written(folder: Path, config: Config) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


@pytest.mark.parametrize("split", [(), ("--tensor", "2", "--pipeline", "2")], ids=["data parallel", "split"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_model_type_has_a_price(model_type: str, split: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, tiny(model_type))
    if split and model_type in EXPERTS:
        split = (*split, "--sequence-parallel", "on")
    arguments = ("predict", "--network", path, "--cluster", "dgx-h100", "--nodes", "1", "--gpus-per-node", "8")
    code, answer, error = run(
        *arguments, "--sub-batch", "2", "--precision", "bf16", "--framework", "megatron", "--json", *split
    )
    assert code == 0, error
    assert json.loads(answer)["iteration_s"]["value"] > 0


WHOLE = ("compress", "router", "tokens", "pooler", "classes", "patches")
"""Ends of names of layers that every tensor rank has whole."""


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_two_tensor_ranks_halve_products(model_type: str) -> None:
    whole = network(tiny(model_type))
    for one, half in zip(layer_work(whole), layer_work(tensor_shard(whole, 2)), strict=True):
        assert half.forward_mac * (1 if one.name.endswith(WHOLE) else 2) == one.forward_mac, one.name


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_was_read_is_written_as_a_network_file(model_type: str, run: Run, tmp_path: Path) -> None:
    code, text, error = run("show", "networks", written(tmp_path, tiny(model_type)), "--toml")
    assert code == 0, error
    (tmp_path / "mine.toml").write_text(text)
    mine, read = find_network(str(tmp_path / "mine.toml")), find_network(str(tmp_path))
    assert (mine.layers, mine.input_shape, mine.name) == (read.layers, read.input_shape, read.name)


def test_positions_are_those_of_the_model_up_to_a_cap(tmp_path: Path) -> None:
    assert network(tiny("llama")).input_shape == (64,)
    assert network(tiny("llama", max_position_embeddings=131072)).input_shape == (4096,)
    assert find_network(f"{written(tmp_path, tiny('llama'))}:sequence=32").input_shape == (32,)
    assert find_network(f"{tmp_path}:sequence=32,attention=unfused").input_shape == (32,)


def test_arguments_go_before_keys() -> None:
    config = tiny("llama")
    del config["num_hidden_layers"]
    shallow = network(config, layers="2")
    assert "layers=2" in shallow.name
    assert sum(layer.kind == "attention" for layer in shallow.layers) == 2


def test_heads_of_qwen3_are_normalised_before_they_are_rotated() -> None:
    (norm,) = {layer.attributes["norm"] for layer in network(tiny("qwen3")).layers if layer.kind == "rotary"}
    assert norm == 16
    plain, normed = (totals(network(tiny(name))).parameters for name in ("llama", "qwen3"))
    assert normed == plain + 4 * 2 * 16


def test_gpt_neox_sums_attention_and_mlp_together() -> None:
    sums = [layer for layer in network(tiny("gpt_neox")).layers if layer.kind == "add"]
    apart = network(tiny("gpt_neox", use_parallel_residual=False))
    assert [len(layer.inputs) for layer in sums] == [3] * 4
    assert [len(layer.inputs) for layer in apart.layers if layer.kind == "add"] == [2] * 8
    assert totals(apart).parameters == totals(network(tiny("gpt_neox"))).parameters


def test_decoders_of_t5_may_be_of_another_depth() -> None:
    even, shallow = network(tiny("t5")), network(tiny("t5", num_decoder_layers=1))
    crossed = [sum(layer.kind == "cross_attention" for layer in one.layers) for one in (even, shallow)]
    assert crossed == [4, 1]


def test_bert_has_the_head_of_the_class_that_the_file_names() -> None:
    for name, shape in {"BertModel": (64,), "BertForMaskedLM": (64, 256), "BertForQuestionAnswering": (64, 2)}.items():
        one = network(tiny("bert", architectures=[name]))
        assert layer_shapes(one)[one.layers[-1].inputs[0]] == shape


@pytest.mark.parametrize(
    ("model_type", "keys", "clause"),
    [
        ("mistral", {"sliding_window": 32}, "Attention to all 64 positions is counted, where sliding_window is 32."),
        ("gemma2", {"final_logit_softcapping": 30.0}, "No cap of logits is counted, where final_logit_softcapping"),
        ("deepseek_v3", {"num_nextn_predict_layers": 1}, "No layer that predicts further tokens is counted"),
        ("bert", {"position_embedding_type": "relative_key"}, "A table of absolute positions is counted, where"),
        ("gpt2", {"add_cross_attention": True}, "No attention to another network is counted, where"),
        ("gpt2", {"resid_pdrop": 0.0}, "A dropout of 0.1 is counted, where resid_pdrop is 0.0"),
    ],
)
def test_what_is_not_modelled_is_said(model_type: str, keys: Config, clause: str, run: Run, tmp_path: Path) -> None:
    (sentence,) = network(tiny(model_type, **keys)).unmodelled
    assert sentence.startswith(clause)
    path = written(tmp_path, tiny(model_type, **keys))
    assert clause in " ".join(run("show", "networks", path)[1].split())
    (tmp_path / "mine.toml").write_text(run("show", "networks", path, "--toml")[1])
    assert find_network(str(tmp_path / "mine.toml")).unmodelled == (sentence,)
    arguments = ("predict", "--network", path, "--cluster", "dgx-h100", "--nodes", "1", "--sub-batch", "2", "--json")
    warnings = json.loads(run(*arguments)[1])["warnings"]
    assert sentence in {one["message"] for one in warnings if one["code"] == "network_not_modelled"}


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("mistral", {"sliding_window": 64}),  # no shorter than a sample
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": False}),
        ("gpt2", {"resid_pdrop": 0.1, "add_cross_attention": False}),
        ("bert", {"position_embedding_type": "absolute"}),
        ("opt", {"word_embed_proj_dim": 64}),
    ],
)
def test_nothing_is_said_where_all_is_modelled(model_type: str, keys: Config) -> None:
    assert not network(tiny(model_type, **keys)).unmodelled


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"model_type": "mamba"}, "model_type: value must be one of llama, mistral, .* got 'mamba'; .*hidden_size"),
        ({"model_type": "Llama"}, "model_type: value must be one of llama, .* got 'Llama'; did you mean 'llama'"),
        (
            {"model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32},
            r"word_embed_proj_dim: value must be that of hidden_size \(64\), .* got 32",
        ),
        ({"model_type": None}, "model_type: value must be one of .* got nothing"),
        ({"model_type": ["llama"]}, "model_type: value must be one of"),
        ({"hidden_size": None}, r"hidden_size: key must be given \(features of a position\), got nothing"),
        ({"hidden_size": "64"}, "hidden_size: value must be a whole number from 1 to 999999, got '64'"),
        ({"hidden_size": True}, "hidden_size: value must be a whole number from 1 to 999999, got true"),
        ({"hidden_size": 64.5}, "hidden_size: value must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: value must be a whole number from 1 to 9999, got 0"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: value must be a divisor of num_attention_heads = 4, got 3"),
        (
            {"head_dim": None, "num_attention_heads": 6},
            "num_attention_heads: .* a divisor of hidden_size = 64, .*got 6",
        ),
        ({"hidden_act": "relu"}, "hidden_act: value must be silu or swish or gelu .*, got 'relu'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: value must be false or true, got 'yes'"),
        ({"max_position_embeddings": None}, "max_position_embeddings: key must be given .*most positions"),
        ({"max_position_embeddings": -1}, "max_position_embeddings: value must be a whole number from 1"),
    ],
)
def test_keys_that_are_refused(keys: Config, sentence: str) -> None:
    with pytest.raises(InputFileError, match=f"^config.json: {sentence}") as caught:
        network(tiny("llama") | keys)
    assert caught.value.exit_code == 3
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("model_type", "keys", "sentence"),
    [
        (
            "mixtral",
            {"num_experts_per_tok": 5},
            "num_experts_per_tok: value must be at most num_local_experts = 4, got 5",
        ),
        ("deepseek_v3", {"first_k_dense_replace": 5}, "first_k_dense_replace: .* at most num_hidden_layers = 4, got 5"),
        ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq: value must be 1, got 2"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before: value must be true, got false"),
        ("vit", {"patch_size": 64}, "patch_size: value must be at most image_size = 32, got 64"),
        ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj: value must be relu or gated-gelu"),
    ],
)
def test_keys_that_contradict_each_other(model_type: str, keys: Config, sentence: str) -> None:
    with pytest.raises(InputFileError, match=f"^config.json: {sentence}"):
        network(tiny(model_type, **keys))


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 10**20), st.floats(), st.text(max_size=9), st.just([]), st.just({"a": 1})
)


@given(st.sampled_from(list(MODEL_TYPES)), st.data())
def test_any_value_is_read_or_refused(model_type: str, data: st.DataObject) -> None:
    kind, config = MODEL_TYPES[model_type], tiny(model_type)
    names = [key.name for key in kind.keys if key.argument != "layers"] + [*kind.counted, "sliding_window"]
    changed = data.draw(st.dictionaries(st.sampled_from([*names, "architectures"]), VALUES, max_size=3))
    with suppress(InputFileError):
        assert totals(network(config | changed)).parameters > 0


@pytest.mark.parametrize(
    ("typed", "error", "sentence"),
    [
        ({"sequence": "128"}, InputFileError, "max_position_embeddings: value must be at least sequence = 128, got 64"),
        ({"sequence": "0"}, ParameterError, "argument sequence of network llama must be a whole number"),
        ({"kv_heads": "3"}, ParameterError, "argument kv_heads of network llama must be a divisor of heads = 4, got 3"),
        ({"depth": "2"}, UnknownNameError, "argument of network llama must be a known name, got 'depth'"),
    ],
)
def test_arguments_that_are_refused(typed: dict[str, str], error: type[PlannerError], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        network(tiny("llama"), **typed)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "text must be JSON"), ("[1]", "must be"), ('{"model_type": "llama", "model_type": "opt"}', "model_type")],
)
def test_files_that_are_no_config(text: str, sentence: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    code, _, error = run("show", "networks", str(tmp_path / "config.json"))
    assert (code, len(error.splitlines()) <= 3) == (3, True)
    assert sentence in error


def test_a_folder_without_a_config_is_refused(run: Run, tmp_path: Path) -> None:
    code, _, error = run("show", "networks", str(tmp_path))
    assert code == 3
    assert "config.json" in " ".join(error.split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"bits": 4}}, "No quantization of weights is counted, where quantization_config is"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "The output layers of ForCausalLM are counted, where"),
        ({"architectures": ["LlamaForCausalLM"]}, ""),
    ],
)
def test_what_a_file_has_otherwise_is_said(changes: Config, words: str) -> None:
    notes = network(TINY | changes).unmodelled
    assert [note[: len(words)] for note in notes] == [words] * bool(words)
