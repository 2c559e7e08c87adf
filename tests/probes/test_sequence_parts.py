from __future__ import annotations

from typing import Any

import pytest
import torch

from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, layer_parameters
from planner.networks.zoo import build
from planner.probes.steps import build_module, gradient_time

SMALL = {"layers": "2", "hidden": "24", "heads": "3", "sequence": "10", "vocabulary": "40"}
CASES = [("gpt", "tokens"), ("gpt", "labels"), ("bert", "pooler"), ("bert", "labels"), ("bert", "tokens")]


@pytest.mark.parametrize("name", ["gpt2", "opt-1.3b", "bert-base", "bert-large"])
def test_module_has_the_parameters_of_the_network(name: str) -> None:
    network = build(name, {})
    module = build_module(network, "meta")
    assert sum(parameter.numel() for parameter in module.parameters()) == layer_parameters(network).sum()


@pytest.mark.parametrize(("name", "head"), CASES)
def test_every_head_trains(name: str, head: str) -> None:
    network = build(name, {**SMALL, "head": head})
    module = build_module(network)
    shape = (2, 10) if head != "pooler" else (2,)
    loss = module(torch.randint(0, 40, (2, 10)), torch.zeros(shape, dtype=torch.int64))
    loss.backward()
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert gradient_time(module, network, 2, 1).time_s > 0


def block(*, causal: bool, fused: bool) -> Network:
    layers = (
        Layer("norm1", "layer_norm", (INPUT,)),
        Layer("qkv", "linear", ("norm1",), {"features": 72}),
        Layer("core", "attention", ("qkv",), {"heads": 3, "causal": causal, "fused": fused}),
        Layer("project", "linear", ("core",), {"features": 24}),
        Layer("sum1", "add", ("project", INPUT)),
        Layer("norm2", "layer_norm", ("sum1",)),
        Layer("widen", "linear", ("norm2",), {"features": 40}),
        Layer("gelu", "activation", ("widen",), {"function": "gelu"}),
        Layer("narrow", "linear", ("gelu",), {"features": 24}),
        Layer("sum2", "add", ("narrow", "sum1")),
        Layer("last", "linear", ("sum2",), {"features": 1, "bias": False}),
    )
    return Network("block", (10, 24), layers)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_block_computes_what_torch_computes(*, causal: bool, fused: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(
        24, 3, 40, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    ours = build_module(block(causal=causal, fused=fused))
    copied = [
        theirs.norm1.weight, theirs.norm1.bias, theirs.self_attn.in_proj_weight, theirs.self_attn.in_proj_bias,
        theirs.self_attn.out_proj.weight, theirs.self_attn.out_proj.bias, theirs.norm2.weight, theirs.norm2.bias,
        theirs.linear1.weight, theirs.linear1.bias, theirs.linear2.weight, theirs.linear2.bias,
    ]  # fmt: skip
    *parameters, last = ours.parameters()
    with torch.no_grad():
        for parameter, source in zip(parameters, copied, strict=True):
            parameter.copy_(source)
    samples, again = (torch.randn(2, 10, 24, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    samples.requires_grad_()
    again.requires_grad_()
    value = ours(samples, None)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(10) if causal else None
    expected: Any = (theirs(again, src_mask=mask, is_causal=causal) @ last.T).mean()
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(samples.grad, again.grad)
    torch.testing.assert_close(parameters[2].grad, theirs.self_attn.in_proj_weight.grad)


def test_tied_table_gets_both_gradients() -> None:
    layers = (
        Layer("e", "embedding", (INPUT,), {"vocabulary": 5, "features": 3}),
        Layer("logits", "linear", ("e",), {"features": 5, "tied": True, "bias": False}),
        Layer("loss", "loss", ("logits",)),
    )
    module = build_module(Network("tied", (1,), layers))
    (table,) = module.parameters()
    module(torch.tensor([[2]]), torch.tensor([[4]])).backward()
    reference = table.detach().clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(reference[[2]] @ reference.T, torch.tensor([4]))
    (expected,) = torch.autograd.grad(loss, reference)
    torch.testing.assert_close(table.grad, expected)
