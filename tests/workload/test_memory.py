from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.configuration import MODES, OPTIMIZERS, Configurations
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, layer_shapes
from planner.domain.precision import PRECISIONS
from planner.errors import ParameterError, UnknownNameError
from planner.networks.zoo import build
from planner.probes.steps import build_module
from planner.workload.calls import totals
from planner.workload.memory import Memory
from planner.workload.memory_rules import ASSUMED_CONTEXT_BYTES, ASSUMED_MARGIN, MemoryRules
from tests.workload.conftest import memory_bytes

PUBLISHED = json.loads((Path(__file__).parents[1] / "data/published/networks.json").read_text())
ONE = np.array([1])


def largest_sub_batch(network: Network, precision: str, optimizer: str, kind: str, capacity: float, **how: Any) -> int:
    ledger = Memory(network, MemoryRules.of(precision, optimizer, device_kind=kind, **how))
    return int(ledger.largest_sub_batches(Configurations.having(), capacity))


def every_kind() -> Network:
    layers = (
        Layer("c1", "convolution", (INPUT,), {"channels": 8, "kernel": 3, "padding": 1}),
        Layer("r1", "activation", ("c1",)),
        Layer("l1", "lrn", ("r1",), {"window": 3}),
        Layer("p1", "pool", ("l1",), {"window": 3, "stride": 2, "ceil": True}),
        Layer("c2", "convolution", ("p1",), {"channels": 8, "kernel": 1, "groups": 2, "bias": False}),
        Layer("n2", "batch_norm", ("c2",)),
        Layer("s2", "add", ("n2", "p1")),
        Layer("r2", "activation", ("s2",), {"function": "tanh"}),
        Layer("p2", "pool", ("p1",), {"window": 3, "stride": 1, "padding": 1, "mode": "average"}),
        Layer("g2", "activation", ("p2",), {"function": "gelu"}),
        Layer("j", "concat", ("r2", "g2", "s2")),
        Layer("u", "upsample", ("j",)),
        Layer("c3", "convolution", ("u",), {"channels": 4, "kernel": (1, 3)}),
        Layer("r3", "activation", ("c3",), {"function": "sigmoid"}),
        Layer("global", "global_pool", ("r3",)),
        Layer("flat1", "flatten", ("global",)),
        Layer("flat2", "flatten", ("r3",)),
        Layer("fc1", "linear", ("flat2",), {"features": 6}),
        Layer("fc2", "linear", ("flat1",), {"features": 6}),
        Layer("loss1", "loss", ("fc1",)),
        Layer("loss2", "loss", ("fc2",)),
    )
    return Network("every-kind", (3, 12, 11), layers)


def bytes_kept_by_torch(network: Network, sub_batch: int) -> int:
    """Return the bytes of the distinct storages, besides the parameters', that autograd keeps for the backward pass."""
    import torch  # noqa: PLC0415 - heavy: only the test that compares with it pays

    module = build_module(network)
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, Any] = {}  # holding the tensors keeps their addresses from being used again

    def pack(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    logits = layer_shapes(network)[network.layers[-1].inputs[0]]
    targets = torch.zeros(sub_batch, *logits[:-1], dtype=torch.int64)
    reads_tokens = network.layers[0].kind == "embedding"
    shape = (sub_batch, *network.input_shape)
    samples = torch.zeros(shape, dtype=torch.int64) if reads_tokens else torch.randn(shape)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(samples, targets)
    assert loss.requires_grad
    return sum(t.untyped_storage().nbytes() for address, t in kept.items() if address not in parameters)


def without_dropout(network: Network) -> Network:
    """Return the network without dropout, whose masks PyTorch keeps in 4 bytes on a CPU and in 1 on a GPU."""
    replaced, layers = {INPUT: INPUT}, []
    for layer in network.layers:
        inputs = tuple(replaced[source] for source in layer.inputs)
        replaced[layer.name] = inputs[0] if layer.kind == "dropout" else layer.name
        if layer.kind != "dropout":
            attributes = {key: 0.0 if key == "dropout" else value for key, value in layer.attributes.items()}
            layers.append(Layer(layer.name, layer.kind, inputs, attributes))
    return Network(network.name, network.input_shape, tuple(layers))


SMALL = {"layers": "2", "hidden": "24", "heads": "3", "sequence": "10", "vocabulary": "40"}
WIDER = {**SMALL, "hidden": "48", "heads": "4"}
LATENT = {
    "kv_rank": "8", "plain_size": "6", "rotary_size": "4", "value_size": "6", "attention": "unfused",
    "expert_ffn": "16", "experts": "2", "shared_experts": "1", "dense_layers": "1",
}  # fmt: skip
IMAGES = {"layers": "2", "hidden": "48", "heads": "4", "image": "32", "patch": "8", "classes": "10"}


@pytest.mark.parametrize(
    "network",
    [
        every_kind(),
        build("resnet18", {}),
        without_dropout(build("gpt", SMALL)),
        without_dropout(build("gpt", {**SMALL, "attention": "fused"})),
        without_dropout(build("bert", SMALL)),
        without_dropout(build("bert", {**SMALL, "head": "tokens"})),
        without_dropout(build("bert", {**SMALL, "head": "pretraining", "predictions": "1"})),
        build("mpt", {**WIDER, "attention": "unfused"}),
        build("vit", IMAGES),
        build("vit", {**IMAGES, "attention": "unfused"}),
        build("llama", WIDER),
        build("llama", {**WIDER, "kv_heads": "2"}),
        build("llama", {**WIDER, "kv_heads": "2", "attention": "unfused"}),
        build("moe", {**WIDER, "kv_heads": "2", "expert_ffn": "16", "experts": "4"}),
        build("moe", {**WIDER, **LATENT}),
        without_dropout(build("t5", {**WIDER, "head_size": "8"})),
        without_dropout(build("t5", {**WIDER, "head_size": "8", "target": "7"})),
    ],
    ids=lambda network: network.name,
)
def test_activations_are_what_torch_keeps(network: Network) -> None:
    two, four = (bytes_kept_by_torch(network, sub_batch) for sub_batch in (2, 4))  # one sample's heads are not copied
    shapes = layer_shapes(network)
    targets = math.prod(shapes[network.layers[-1].inputs[0]][:-1])
    class_numbers = 8 * targets  # one a sample or position however many losses read them
    losses = sum(math.prod(shapes[one.inputs[0]]) for one in network.layers if one.kind == "loss")
    counted = memory_bytes(network, ONE, "fp32", "sgd", "cpu").activations[0] + 4 * losses  # logarithms
    # On a CPU normalisation by the root mean square is made of operators, one of which keeps another tensor.
    normed = sum(math.prod(shapes[layer.name]) for layer in network.layers if layer.kind == "rms_norm")
    assert counted == (four - two) / 2 - class_numbers - 4 * normed


def test_chain_by_hand() -> None:
    layers = (
        Layer("c", "convolution", (INPUT,), {"channels": 4, "kernel": 3}),  # 3x6x6 -> 4x4x4, 112 parameters
        Layer("r", "activation", ("c",)),
        Layer("p", "pool", ("r",), {"window": 2, "stride": 2}),  # 4x2x2
        Layer("d", "dropout", ("p",)),
        Layer("f", "flatten", ("d",)),
        Layer("fc", "linear", ("f",), {"features": 5}),  # 85 parameters
        Layer("loss", "loss", ("fc",)),
    )
    memory = memory_bytes(Network("chain", (3, 6, 6), layers), np.array([2]), "fp32", "adam", "cpu")
    kept = 4 * (108 + 64 + 16) + 8 * 16 + 16  # input, ReLU, dropped; indices; mask
    assert memory.activations[0] == 2 * kept
    logits = 2 * 5 * 12  # fp32 logarithms and two gradients
    assert memory.logits[0] == logits
    # gradients of ReLU's output and input, the largest; the input of the linear layer is gone by then
    assert memory.workspace[0] == 2 * 4 * (64 + 64 - 16) - logits
    assert (memory.weights[0], memory.gradients[0], memory.optimizer[0]) == (4 * 197, 4 * 197, 8 * 197)
    assert memory.framework[0] == 0


@pytest.mark.parametrize(("hidden", "heads", "sequence"), [(768, 12, 1024), (1024, 16, 512)])
@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_a_transformer_layer_keeps_the_published_bytes(name: str, hidden: int, heads: int, sequence: int) -> None:
    """Korthikanti et al. 2022, equation 2: s·b·h·(34 + 5·a·s/h), statistics of normalisation left out."""
    sizes = {"hidden": str(hidden), "heads": str(heads), "sequence": str(sequence)}
    kept = [
        memory_bytes(build(name, {**sizes, "layers": layers}), np.array([3]), "fp16", "adam", "gpu").activations[0]
        for layers in ("4", "5")
    ]
    published = sequence * 3 * hidden * (34 + 5 * heads * sequence / hidden)
    statistics = 2 * 3 * sequence * 8
    assert kept[1] - kept[0] == published + statistics
    assert statistics < 0.001 * published


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_a_layer_with_fused_attention_keeps_nothing_that_grows_with_the_square_of_the_sequence(name: str) -> None:
    """34·s·b·h bytes, as Korthikanti et al. 2022 have it where attention is made again, and 4 a head and position."""
    for sequence in (512, 1024):
        sizes = {"hidden": "768", "heads": "12", "sequence": str(sequence), "attention": "fused"}
        kept = [
            memory_bytes(build(name, {**sizes, "layers": layers}), np.array([3]), "fp16", "adam", "gpu").activations[0]
            for layers in ("4", "5")
        ]
        statistics = 2 * 3 * sequence * 8
        assert kept[1] - kept[0] == sequence * 3 * 768 * 34 + statistics + 4 * 12 * 3 * sequence


@pytest.mark.parametrize(("fused", "kept", "inside"), [(False, 2 * 25, 2 * 2 * 25), (True, 8 * 5 + 2 * 5, 3 * 8 * 5)])
def test_attention_by_hand(*, fused: bool, kept: int, inside: int) -> None:
    """2 heads, 5 positions of 8 features: weights are kept, or the output and a number a head and position.

    Inside are the gradients of the weights, before and behind the softmax, or of queries, keys and values.
    """
    layers = (
        Layer("qkv", "linear", (INPUT,), {"features": 24}),
        Layer("core", "attention", ("qkv",), {"heads": 2, "fused": fused}),
    )
    memory = memory_bytes(Network("core", (5, 4), layers), np.array([7]), "fp32", "sgd", "cpu")
    assert memory.activations[0] == 7 * 4 * (5 * 4 + 5 * 24 + kept)
    assert memory.workspace[0] == 7 * 4 * (8 * 5 + 24 * 5 + inside)


def test_leaky_relu_is_done_in_place() -> None:
    layers = (
        Layer("c", "convolution", (INPUT,), {"channels": 4, "kernel": 1, "bias": False}),
        Layer("n", "batch_norm", ("c",)),
        Layer("r", "activation", ("n",), {"function": "leaky_relu"}),
        Layer("s", "add", ("r", "c")),
    )
    memory = memory_bytes(Network("leaky", (3, 6, 6), layers), ONE, "fp32", "sgd", "cpu")
    assert memory.activations[0] == 4 * 36 * (3 + 4 + 4)  # input; what the normalisation reads; its result, overwritten


def test_shortcut_gradient_waits_for_its_branch() -> None:
    layers = (
        Layer("a", "convolution", (INPUT,), {"channels": 4, "kernel": 1}),  # 4 elements
        Layer("b", "convolution", ("a",), {"channels": 8, "kernel": 1}),
        Layer("c", "convolution", ("b",), {"channels": 4, "kernel": 1}),
        Layer("s", "add", ("c", "a")),
    )
    memory = memory_bytes(Network("shortcut", (3, 1, 1), layers), ONE, "fp32", "sgd", "cpu")
    assert memory.workspace[0] == 4 * (4 + 4 + 8)  # the shortcut's, c's and b's while c runs backward


@pytest.mark.parametrize("row", PUBLISHED["weights_megabytes"], ids=lambda row: row["network"])
def test_weights_are_the_published_megabytes(row: dict[str, Any]) -> None:
    weights = memory_bytes(build(row["network"], {}), ONE, "fp32", "sgd", "cpu").weights[0]
    assert abs(weights / 1e6 - row["megabytes"]) <= row["tolerance"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_of_the_optimizer(optimizer: str) -> None:
    network = build("alexnet", {})
    single, mixed = (memory_bytes(network, ONE, precision, optimizer, "gpu") for precision in ("fp32", "fp16"))
    parameters = totals(network).parameters
    assert single.optimizer[0] == parameters * OPTIMIZERS[optimizer]
    assert mixed.optimizer[0] == parameters * (OPTIMIZERS[optimizer] + 4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_host_keeps_what_updates_the_weights_of_asynchronous_plans(optimizer: str) -> None:
    network = build("alexnet", {})
    for precision in ("fp32", "fp16"):
        sync, asynchronous = (memory_bytes(network, ONE, precision, optimizer, "gpu", mode=mode) for mode in MODES)
        assert asynchronous.optimizer[0] == 0
        less = sync.optimizer[0] * (1 + ASSUMED_MARGIN)
        assert asynchronous.total[0] == pytest.approx(sync.total[0] - less, rel=1e-12)


def test_mixed_precision_adam_takes_16_bytes_a_parameter() -> None:
    network = build("resnet50", {})
    memory = memory_bytes(network, ONE, "bf16", "adam", "cpu")
    assert memory.weights[0] + memory.gradients[0] + memory.optimizer[0] == 16 * totals(network).parameters


@pytest.mark.parametrize("precision", PRECISIONS)
def test_memory_is_linear_in_the_sub_batch(precision: str) -> None:
    sub_batch = np.array([1, 2, 10, 1000])
    total = memory_bytes(build("googlenet", {}), sub_batch, precision, "sgd-momentum", "gpu").total
    np.testing.assert_allclose(np.diff(total) / np.diff(sub_batch), total[1] - total[0], rtol=1e-12)
    assert (np.diff(total) > 0).all()


def test_only_a_gpu_has_a_context() -> None:
    network = build("resnet18", {})
    gpu, cpu = (memory_bytes(network, ONE, "fp32", "sgd", kind) for kind in ("gpu", "cpu"))
    assert gpu.total[0] - cpu.total[0] == pytest.approx(ASSUMED_CONTEXT_BYTES["gpu"], rel=1e-12)


def test_im2col_adds_its_largest_buffer() -> None:
    network = build("vgg16", {})
    direct, im2col = (
        memory_bytes(network, np.array([3]), "fp32", "sgd", "gpu", convolution=convolution).workspace[0]
        for convolution in ("direct", "im2col")
    )
    # Columns of conv1_2, which reads 64 channels, with the gradients of what it reads and gives; what is kept behind is
    # gone by then. Without columns no unit needs more than those behind it have freed.
    kept = memory_bytes(network, np.array([3]), "fp32", "sgd", "gpu").activations[0]
    columns, gradients = 224 * 224 * 9 * 64, 2 * 224 * 224 * 64
    first = 3 * 224 * 224 + 2 * 224 * 224 * 64  # the input, and what both convolutions give
    indices = 8 * 112 * 112 * 64  # of the pooling behind them
    assert im2col == 3 * (4 * (columns + gradients + first) + indices) - kept - 3 * 12 * 1000 > direct


@settings(max_examples=50)
@given(
    st.sampled_from(["alexnet", "resnet50", "sprint-15"]),
    st.sampled_from(["fp32", "fp16"]),
    st.fixed_dictionaries({"convolution": st.sampled_from(["direct", "im2col"]), "mode": st.sampled_from(MODES)}),
    st.floats(1e8, 1e12),
)
def test_largest_sub_batch_fits_and_one_more_does_not(
    name: str, precision: str, how: dict[str, Any], capacity: float
) -> None:
    network = build(name, {})
    largest = largest_sub_batch(network, precision, "sgd-momentum", "gpu", capacity, **how)
    sub_batch = np.array([largest, largest + 1])
    fits, too_large = memory_bytes(network, sub_batch, precision, "sgd-momentum", "gpu", **how).total
    assert too_large > capacity
    assert fits <= capacity or largest == 0


@pytest.mark.parametrize("samples", [1, 7, 64])
def test_largest_sub_batch_of_an_exact_capacity(samples: int) -> None:
    network = build("resnet18", {})
    capacity = memory_bytes(network, np.array([samples]), "fp32", "adam", "gpu").total[0]
    assert largest_sub_batch(network, "fp32", "adam", "gpu", capacity) == samples
    assert largest_sub_batch(network, "fp32", "adam", "gpu", capacity - 1) == samples - 1


def test_nothing_fits_in_nothing() -> None:
    assert largest_sub_batch(build("vgg16", {}), "fp32", "adam", "gpu", 1e9) == 0


def test_bad_arguments() -> None:
    network = build("resnet18", {})
    with pytest.raises(UnknownNameError, match="did you mean 'fp32'"):
        memory_bytes(network, ONE, "fp33", "sgd", "gpu")
    with pytest.raises(UnknownNameError, match="did you mean 'adam'"):
        memory_bytes(network, ONE, "fp32", "adamm", "gpu")
    with pytest.raises(ParameterError, match="device kind must be gpu or cpu, got 'tpu'"):
        memory_bytes(network, ONE, "fp32", "sgd", "tpu")
    with pytest.raises(UnknownNameError, match="did you mean 'direct'"):
        memory_bytes(network, ONE, "fp32", "sgd", "gpu", convolution="dirct")
    with pytest.raises(UnknownNameError, match="did you mean 'async'"):
        memory_bytes(network, ONE, "fp32", "sgd", "gpu", mode="asynk")


def test_weights_of_layers_that_run_in_8_bits_have_narrow_copies() -> None:
    """A convolution of 3 x 3 x 3 x 8 and a linear layer of 128 x 10: fp8 copies the second alone, int8 both."""
    layers = (
        Layer("conv", "convolution", ("input",), {"channels": 8, "kernel": 3, "bias": False}),
        Layer("flat", "flatten", ("conv",)),
        Layer("fc", "linear", ("flat",), {"features": 10, "bias": False}),
    )
    network = Network("both", (3, 6, 6), layers)
    weights = {name: memory_bytes(network, ONE, name, "sgd", "gpu").weights[0] for name in ("bf16", "fp8", "int8")}
    assert weights == {"bf16": 2 * (216 + 1280), "fp8": 2 * 216 + 4 * 1280, "int8": 4 * (216 + 1280)}
