from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from planner.networks.zoo import build
from planner.workload.calls import totals
from planner.workload.shards import padded_vocabulary
from tests.workload.closed_transformer import (
    Transformer,
    blocks,
    forward_flop,
    layer_forward_flop,
    layer_parameters,
    outer_parameters,
    parameters,
    record_of,
    training_flop,
)


def of(name: str, **arguments: object) -> Transformer:
    return record_of(build(name, {key: str(value) for key, value in arguments.items()}))


ODD = {"layers": 3, "hidden": 100, "heads": 3, "sequence": 40, "vocabulary": 77}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gpt2", {}),
        ("gpt", ODD),
        ("gpt", ODD | {"head_size": 16, "ffn": 70}),
        ("gpt", ODD | {"head": "labels"}),
        ("opt-1.3b", {}),
        ("bert", ODD),
        ("bert", ODD | {"head": "tokens"}),
        ("bert", ODD | {"head": "labels"}),
        ("bert-large", {}),
        ("bert", ODD | {"head": "pretraining", "predictions": 7}),
        ("llama", ODD | {"kv_heads": 1, "ffn": 90}),
        ("llama", ODD | {"head_size": 16, "tied": "true"}),
        ("moe", ODD | {"experts": 8, "top_k": 3, "expert_ffn": 30, "shared_experts": 2, "dense_layers": 1}),
        ("moe", ODD | {"kv_rank": 20, "plain_size": 10, "rotary_size": 6, "value_size": 12, "expert_ffn": 30}),
        ("mpt", ODD),
        ("t5", ODD | {"head_size": 16, "target": 25}),
        ("gpt3-175b", {}),
        ("llama3-405b", {}),
        ("mixtral-8x7b", {}),
        ("deepseek-v2-lite", {}),
        ("mpt-30b", {}),
        ("t5-large", {}),
    ],
)
def test_the_closed_form_counts_what_the_layers_do(name: str, arguments: dict[str, object]) -> None:
    network = build(name, {key: str(value) for key, value in arguments.items()})
    counted, architecture = totals(network), of(name, **arguments)
    assert parameters(architecture) == counted.parameters
    assert forward_flop(architecture) == 2 * counted.forward_mac
    assert training_flop(architecture, 7) == 7 * counted.training_flop


def test_patches_alone_have_no_gradient_of_their_input() -> None:
    network, architecture = build("vit-l16", {}), of("vit-l16")
    assert parameters(architecture) == totals(network).parameters == 304_326_632
    assert forward_flop(architecture) == 2 * totals(network).forward_mac == 123_109_425_152
    patches = 2 * 196 * 768 * 1024
    assert training_flop(architecture) - totals(network).training_flop == patches


# Counted by other means: transformers' modules on the meta device, Megatron-LM's and PyTorch's counters of FLOP.
@pytest.mark.parametrize(
    ("name", "arguments", "flop", "relative"),
    [
        ("gpt3-175b", {}, 734_851_724_476_416, 0.0),
        ("llama3-8b", {}, 1.581407e14, 5e-7),
        ("llama3-70b", {}, 1.314638e15, 5e-7),
        ("llama3-8b", {"sequence": 512}, 31.2888e12 / 4, 5e-6),
        ("mixtral-8x7b", {}, 113_232_517_791_744, 0.0),
        ("vit-b16", {}, 35_127_656_448, 0.0),
        ("bert-large", {"head": "pretraining", "predictions": 76}, 339_919_622_144, 0.0),
        ("t5-base", {}, 257_194_721_280, 0.0),
    ],
)
def test_forward_flop_of_published_networks(
    name: str, arguments: dict[str, object], flop: float, relative: float
) -> None:
    assert forward_flop(of(name, **arguments)) == pytest.approx(flop, rel=relative, abs=0)


def test_flop_where_masked_pairs_are_left_out_are_those_of_megatron() -> None:
    """Its formula, of NVIDIA/Megatron-LM at d98e8a64: 12·b·s·L·h²·((1 + κ/a + s/2h)·a·d_h/h + 3f/2h + V/2Lh)."""
    for name in ("llama-7b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b"):
        one = of(name)
        h, s = one.hidden, one.sequence
        attention = (1 + one.kv_heads / one.heads + s / (2 * h)) * one.query_width / h
        inner = attention + 3 * one.ffn / (2 * h) + one.vocabulary / (2 * one.layers * h)
        assert training_flop(one, masked=False) == pytest.approx(12 * s * one.layers * h * h * inner, rel=1e-12)
    assert forward_flop(of("llama3-8b"), masked=False) == pytest.approx(1.405485e14, rel=5e-7)


def test_one_layer_of_gpt3_and_its_parameters_by_vocabulary() -> None:
    assert layer_forward_flop(of("gpt3-175b")) == 7_627_861_917_696
    assert parameters(of("gpt3-175b")) == 174_615_846_912
    assert parameters(replace(of("gpt3-175b"), vocabulary=50257)) == 174_604_259_328


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "step_s", "mfu"),
    [
        ("megatron-22b", 8, 4, 1.10, 41.5),
        ("gpt3-175b", 64, 64, 13.75, 51.4),
        ("megatron-530b", 280, 280, 37.83, 56.0),
        ("gpt3-1t", 512, 512, 71.49, 56.3),
    ],
)
def test_utilisation_that_was_published_follows(name: str, gpus: int, batch: int, step_s: float, mfu: float) -> None:
    """Korthikanti et al. 2022, arXiv:2205.05198, table 5: times and share of 312e12 FLOP/s, printed to a tenth."""
    assert 100 * training_flop(of(name), batch) / (step_s * gpus * 312e12) == pytest.approx(mfu, abs=0.2)


def test_order_of_kinds_of_layers() -> None:
    assert blocks(of("deepseek-v2-lite")) == (("dense", 1), ("experts", 26))
    assert blocks(of("t5-small")) == (("encoder", 6), ("dense", 6))
    part = layer_parameters(of("mixtral-8x7b"), "experts")
    assert (part.router, part.experts) == (4096 * 8, 8 * 3 * 4096 * 14336)
    latent = layer_parameters(of("deepseek-v2-lite"))
    assert (latent.compression, latent.norms) == (2048 * (512 + 64), 2 * 2048 + 512)


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(24, 1024, 16), (96, 12288, 96), (128, 25600, 160)])
def test_training_flop_of_gpt_is_the_published_formula(layers: int, hidden: int, heads: int) -> None:
    s, vocabulary, samples = 2048, 51200, 3
    gpt = of("gpt", layers=layers, hidden=hidden, heads=heads, sequence=s, vocabulary=vocabulary)
    published = 72 * samples * s * layers * hidden**2 * (1 + s / (6 * hidden) + vocabulary / (12 * layers * hidden))
    assert training_flop(gpt, samples) == pytest.approx(published, rel=1e-14)


def test_masked_pairs_are_half_of_the_square_of_decoders_alone() -> None:
    gpt, bert = of("gpt2"), of("bert-base")
    core = 4 * 1024**2 * 768 * 12
    assert forward_flop(gpt) - forward_flop(gpt, masked=False) == core // 2
    assert forward_flop(bert) == forward_flop(bert, masked=False)


def test_parts_of_a_layer_of_gpt() -> None:
    h = 768
    part = layer_parameters(of("gpt2"))
    assert (part.products, part.column_biases, part.row_biases, part.norms) == (12 * h * h, 7 * h, 2 * h, 4 * h)
    assert part.total == 12 * h * h + 13 * h
    outer = outer_parameters(of("gpt2"))
    assert (outer.tokens, outer.positions, outer.norms, outer.head) == (50257 * h, 1024 * h, 2 * h, 0)
    assert blocks(of("gpt2")) == (("dense", 12),)


@pytest.mark.parametrize(
    ("vocabulary", "tensor", "padded"),
    [
        (50257, 1, 50304),
        (50257, 8, 51200),
        (128256, 8, 129024),
        (30522, 8, 30720),
        (32000, 8, 32768),
        (51200, 8, 51200),
    ],
)
def test_padded_vocabulary(vocabulary: int, tensor: int, padded: int) -> None:
    assert padded_vocabulary(vocabulary, tensor) == padded


def test_rounding_takes_arrays() -> None:
    assert padded_vocabulary(50257, np.array([1, 2, 8])).tolist() == [50304, 50432, 51200]


def test_absurd_sizes_neither_wrap_nor_round() -> None:
    most = 10**9
    huge = Transformer("gpt", most, most, most, most, 1, most, most, most)
    assert parameters(huge) == most * (6 * most**2 + 10 * most) + most**2 + 2 * most
    assert forward_flop(huge, most) == most * prod((2, most, most, 6, most, most)) + most * (4 * most**4 + 2 * most**3)
