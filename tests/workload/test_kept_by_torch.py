"""What PyTorch's autograd keeps of blocks and whole networks, written here in plain operations, beside what is counted.

On a CPU, dropout keeps its mask in the tensor's type and RMSNorm runs piece by piece: masks are counted so, and the two
kernels that frameworks fuse (RMSNorm, SwiGLU) are functions that keep what those do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from planner.domain.configuration import Configurations
from planner.domain.framework import Framework
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.networks.zoo import build
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from tests.workload.closed_memory import layer_bytes
from tests.workload.closed_transformer import Transformer

torch = pytest.importorskip("torch")
F = torch.nn.functional

S, H, A, FFN, LAYERS, RATE = 256, 256, 4, 1024, 2, 0.1


class RMSNorm(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Keeps its input and fp32 statistics, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:  # noqa: D102 - torch's name
        scale = x.float().pow(2).mean(-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x, scale, weight)
        return (x * scale).to(x.dtype) * weight


class SwiGLU(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Keeps both products and not the activation between."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any) -> Any:  # noqa: D102 - torch's name
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up


def linear(*sizes: int) -> Any:
    return torch.randn(*sizes, dtype=torch.bfloat16).mul_(0.02).requires_grad_()


def heads(x: Any, width: int) -> Any:
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def attention(q: Any, k: Any, v: Any, *, fused: bool, rate: float) -> Any:
    if fused:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    scores = (q @ k.transpose(-1, -2)).mul(q.shape[-1] ** -0.5)
    weights = F.dropout(torch.softmax(scores, -1), rate)
    return (weights @ v).transpose(1, 2).flatten(2)


def gpt_block(*, fused: bool, rate: float) -> Callable[[Any], Any]:
    qkv, project, wide, narrow = linear(3 * H, H), linear(H, H), linear(FFN, H), linear(H, FFN)
    scale, shift = linear(H), linear(H)

    def norm(x: Any) -> Any:
        return F.layer_norm(x, (H,), scale, shift)

    def block(x: Any) -> Any:
        q, k, v = (heads(part, H // A) for part in F.linear(norm(x), qkv).chunk(3, -1))
        x = x + F.dropout(F.linear(attention(q, k, v, fused=fused, rate=rate), project), rate)
        return x + F.dropout(F.linear(F.gelu(F.linear(norm(x), wide)), narrow), rate)

    return block


def llama_attention(x: Any, weights: tuple[Any, ...], *, width: int) -> Any:
    q, k, v = (heads(F.linear(x, weight), width) for weight in weights)
    cosine = torch.ones(S, width, dtype=x.dtype)
    q, k = (part * cosine + part.roll(1, -1) * cosine for part in (q, k))
    return attention(q, k, v, fused=True, rate=0.0)


def llama_block(*, fused: bool) -> Callable[[Any], Any]:
    qkv, project, scale = (linear(H, H), linear(H, H), linear(H, H)), linear(H, H), linear(H)
    gate, up, down = linear(FFN, H), linear(FFN, H), linear(H, FFN)

    def block(x: Any) -> Any:
        x = x + F.linear(llama_attention(RMSNorm.apply(x, scale), qkv, width=H // A), project)
        y = RMSNorm.apply(x, scale)
        one, other = F.linear(y, gate), F.linear(y, up)
        return x + F.linear(SwiGLU.apply(one, other) if fused else F.silu(one) * other, down)

    return block


def moe_block(experts: int, k: int, inner: int) -> Callable[[Any], Any]:
    qkv, project, scale = (linear(H, H), linear(H, H), linear(H, H)), linear(H, H), linear(H)
    router = linear(experts, H)
    weights = [(linear(inner, H), linear(inner, H), linear(H, inner)) for _ in range(experts)]

    def block(x: Any) -> Any:
        x = x + F.linear(llama_attention(RMSNorm.apply(x, scale), qkv, width=H // A), project)
        y = RMSNorm.apply(x, scale).flatten(0, 1)
        chances = torch.softmax(F.linear(y, router).float(), -1)
        chance, expert = chances.topk(k, -1)
        order = expert.flatten().argsort()
        rows = y[order // k]
        counts = expert.flatten().bincount(minlength=experts).tolist()
        outputs = [
            F.linear(SwiGLU.apply(F.linear(part, gate), F.linear(part, up)), down)
            for part, (gate, up, down) in zip(rows.split(counts), weights, strict=True)
        ]
        out = torch.cat(outputs)[order.argsort()].unflatten(0, (-1, k)) * chance.to(y.dtype).unsqueeze(-1)
        return x + out.sum(1).unflatten(0, x.shape[:2])

    return block


def kept_tensors(run: Callable[[], Any]) -> list[Any]:
    """Return tensors with distinct storages that autograd keeps, weights among them."""
    kept: dict[int, Any] = {}  # holding the tensors keeps their addresses from being used again

    def pack(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return list(kept.values())


def sum_of_storages(tensors: list[Any]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def kept_by_blocks(block: Callable[[Any], Any], samples: int) -> int:
    x = torch.randn(samples, S, H, dtype=torch.bfloat16, requires_grad=True)

    def run() -> Any:
        y = x
        for _ in range(LAYERS):
            y = block(y)
        return y

    return sum_of_storages(kept_tensors(run))


def architecture(**others: Any) -> Transformer:
    return Transformer("gpt", LAYERS, H, A, A, H // A, FFN, S, 1000, **others)


LLAMA: dict[str, Any] = {"gated": True, "activation": "silu", "norm": "rms", "biases": False, "fused": True}


@pytest.mark.parametrize(
    ("block", "of", "fused_activation"),
    [
        (gpt_block(fused=False, rate=0.0), architecture(), True),
        (gpt_block(fused=False, rate=RATE), architecture(dropout=RATE), True),
        (gpt_block(fused=True, rate=0.0), architecture(fused=True), True),
        (gpt_block(fused=True, rate=RATE), architecture(fused=True, dropout=RATE), True),
        (llama_block(fused=True), architecture(**LLAMA), True),
        (llama_block(fused=False), architecture(**LLAMA), False),
        (moe_block(8, 2, 512), architecture(**LLAMA, experts=8, top_k=2, expert_ffn=512), True),
    ],
    ids=["gpt", "gpt-dropout", "gpt-fused", "gpt-fused-dropout", "llama", "llama-eager", "moe"],
)
def test_blocks_keep_what_is_counted(block: Callable[[Any], Any], of: Transformer, *, fused_activation: bool) -> None:
    """Within 1 %, by the difference of two sub-batches, so that weights and masks of positions are not in it."""
    counted = layer_bytes(
        of, Configurations.having(sub_batch=2), "experts" if of.experts else "dense", fused_activation=fused_activation
    )
    found = (kept_by_blocks(block, 4) - kept_by_blocks(block, 2)) / LAYERS
    masks = bool(of.dropout) * 2 * S * (2 * H + (not of.fused) * A * S)
    assert counted.total + masks == pytest.approx(found, rel=0.01)


def squeezed(channels: int) -> tuple[tuple[Layer, ...], Callable[[Any], Any]]:
    """Return a block of squeeze and excite as layers, and in plain operations."""
    wide, narrow, back = (linear(*sizes, 1, 1) for sizes in ((channels, 8), (4, channels), (channels, 4)))
    layers = (
        Layer("wide", "convolution", (INPUT,), {"channels": channels, "kernel": 1, "bias": False}),
        Layer("swish", "activation", ("wide",), {"function": "hard_swish"}),
        Layer("means", "global_pool", ("swish",)),
        Layer("narrow", "convolution", ("means",), {"channels": 4, "kernel": 1, "bias": False}),
        Layer("silu", "activation", ("narrow",), {"function": "silu"}),
        Layer("back", "convolution", ("silu",), {"channels": channels, "kernel": 1, "bias": False}),
        Layer("gate", "activation", ("back",), {"function": "hard_sigmoid"}),
        Layer("it", "multiply", ("swish", "gate")),
    )

    def block(x: Any) -> Any:
        x = F.hardswish(F.conv2d(x, wide))
        return x * F.hardsigmoid(F.conv2d(F.silu(F.conv2d(x.mean((2, 3), keepdim=True), narrow)), back))

    return layers, block


def scaled(channels: int) -> tuple[tuple[Layer, ...], Callable[[Any], Any]]:
    """Return channels that are normalised, scaled and doubled in size, as layers and in plain operations."""
    first, scale, up = linear(channels, 8, 1, 1), linear(channels, 1, 1), linear(channels, 6, 2, 2)
    ones, zeros = linear(channels), linear(channels)
    layers = (
        Layer("first", "convolution", (INPUT,), {"channels": channels, "kernel": 1, "bias": False}),
        Layer("pixels", "sequence", ("first",)),
        Layer("norm", "layer_norm", ("pixels",)),
        Layer("image", "image", ("norm",), {"height": 8}),
        Layer("scale", "layer_scale", ("image",)),
        Layer("it", "up_convolution", ("scale",), {"channels": 6, "bias": False}),
    )

    def block(x: Any) -> Any:
        x = F.layer_norm(F.conv2d(x, first).permute(0, 2, 3, 1), (channels,), ones, zeros).permute(0, 3, 1, 2)
        return F.conv_transpose2d(x * scale, up, stride=2)

    return layers, block


@pytest.mark.parametrize("made", [squeezed, scaled])
def test_blocks_of_images_keep_what_is_counted(made: Any) -> None:
    """To the byte; but the two statistics of a normalised position are fp32, where a CPU has those of bf16 in bf16."""
    layers, block = made(16)
    rules = MemoryRules.of("bf16", "sgd", Framework("own", casts=False))
    memory = Memory(Network("block", (8, 8, 8), layers), rules)
    counted = [float(memory.fullest(Configurations.having(sub_batch=n)).activations) for n in (2, 4)]
    images = {n: torch.randn(n, 8, 8, 8, dtype=torch.bfloat16) for n in (2, 4)}
    found = [sum_of_storages(kept_tensors(partial(block, images[n]))) for n in (2, 4)]
    statistics = 2 * 2 * 2 * 64 * any(layer.kind == "layer_norm" for layer in layers)
    assert counted[1] - counted[0] == found[1] - found[0] + statistics


def autocast_block(*, composed: bool) -> Callable[[Any], Any]:
    """Return a block of GPT whose operators cast what they read, as on a GPU: norms, powers and sums in fp32."""
    weights = [linear(3 * H, H), linear(H, H), linear(FFN, H), linear(H, FFN)]
    scale, shift = torch.ones(H, requires_grad=True), torch.zeros(H, requires_grad=True)

    def product(x: Any, weight: Any) -> Any:
        return F.linear(x.bfloat16(), weight)

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + torch.tanh(0.8 * (x.float() + 0.04 * x.float().pow(3)))) if composed else F.gelu(x)

    def block(x: Any) -> Any:
        q, k, v = (
            heads(part, H // A) for part in product(F.layer_norm(x, (H,), scale, shift), weights[0]).chunk(3, -1)
        )
        x = x + product(attention(q, k, v, fused=True, rate=0.0), weights[1])
        return x + product(gelu(product(F.layer_norm(x, (H,), scale, shift), weights[2])), weights[3])

    return block


@pytest.mark.parametrize("composed", [False, True])
def test_blocks_keep_more_where_operators_cast_what_they_read(*, composed: bool) -> None:
    """Within 1 %, as above: 36 bytes a feature, or 84 with a GELU of eight operations, where one type takes 32."""
    framework = Framework("own", casts=True, composes=("gelu",) if composed else ())
    sizes = {"hidden": H, "heads": A, "ffn": FFN, "sequence": S, "vocabulary": 512}
    kept = [
        Memory(
            build("gpt", {key: str(value) for key, value in sizes.items()} | {"layers": layers, "attention": "fused"}),
            MemoryRules.of("bf16", "adam", framework),
        ).fullest(Configurations.having(sub_batch=2))
        for layers in ("4", "5")
    ]
    masks = 2 * 2 * S * H
    counted = float(kept[1].activations - kept[0].activations) - masks
    block = autocast_block(composed=composed)

    def of(samples: int) -> int:
        x = torch.randn(samples, S, H, requires_grad=True)
        return sum_of_storages(kept_tensors(lambda: block(block(x))))

    assert counted == pytest.approx((of(4) - of(2)) / LAYERS, rel=0.01)
    assert counted / (2 * S * H) == pytest.approx(84 if composed else 36, rel=0.01)


@pytest.mark.started
def test_a_whole_network_takes_what_is_counted() -> None:
    """Weights, gradients, state of Adam and kept activations in fp32, sizes of tensors; logits are apart."""
    vocabulary, samples = 5000, 8
    table = torch.nn.Embedding(vocabulary, H)
    places = torch.nn.Parameter(torch.zeros(S, H))
    layers = [
        torch.nn.TransformerEncoderLayer(H, A, FFN, 0.0, F.gelu, batch_first=True, norm_first=True)
        for _ in range(LAYERS)
    ]
    last = torch.nn.LayerNorm(H)
    parameters = [places, *(p for module in (table, *layers, last) for p in module.parameters())]
    adam = torch.optim.Adam(parameters)
    tokens = torch.randint(vocabulary, (samples, S))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(S)

    def run() -> Any:
        x = table(tokens) + places
        for layer in layers:
            x = layer(x, src_mask=mask)
        F.cross_entropy(F.linear(last(x), table.weight).flatten(0, 1), tokens.flatten()).backward()

    run()
    adam.step()
    weights = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    tensors = [t for t in kept_tensors(run) if t.untyped_storage().data_ptr() not in weights]
    kept = sum_of_storages(tensors)
    logarithms = sum_of_storages([t for t in tensors if t.dim() and t.shape[-1] == vocabulary])
    tensors_of_state = [value for state in adam.state.values() for value in state.values()]
    held = sum(t.nbytes + t.grad.nbytes for t in parameters) + sum(t.nbytes for t in tensors_of_state)
    sizes = {"layers": LAYERS, "hidden": H, "heads": A, "ffn": FFN, "sequence": S, "vocabulary": vocabulary}
    network = build("gpt", {key: str(value) for key, value in sizes.items()} | {"attention": "fused"})
    layers = [one for one in network.layers if one.kind != "dropout"]
    behind = {one.name: one.inputs[0] for one in network.layers if one.kind == "dropout"}
    plain = tuple(replace(one, inputs=tuple(behind.get(name, name) for name in one.inputs)) for one in layers)
    undropped = replace(network, layers=plain)
    counted = Memory(undropped, MemoryRules.of("fp32", "adam")).fullest(Configurations.having(sub_batch=samples))
    state = counted.weights + counted.gradients + counted.optimizer
    assert state == pytest.approx(held, rel=1e-3)
    assert counted.activations == pytest.approx(kept - logarithms, rel=0.01)
    assert state + counted.activations == pytest.approx(held + kept - logarithms, rel=0.01)
