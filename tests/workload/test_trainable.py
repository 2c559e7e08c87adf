"""What is trained: published counts of parameters, FLOP and memory of all kinds of networks, PyTorch beside them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from planner.domain.axes import Trainable, trainable_of
from planner.domain.configuration import Configuration, Configurations
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.network import Network, layer_parameters
from planner.errors import ParameterError
from planner.networks.zoo import build
from planner.workload.calls import lower
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.program import gradient_slots, program
from planner.workload.shards import tensor_shard, trained_as, without_adapters
from planner.workload.units import units_of

SMALL = {"layers": "4", "hidden": "128", "heads": "4", "sequence": "32", "vocabulary": "256"}
NETWORKS: dict[str, tuple[str, dict[str, str]]] = {
    "llama": ("llama", SMALL | {"kv_heads": "2", "ffn": "512"}),
    "gpt": ("gpt", SMALL),
    "t5": ("t5", {}),
    "moe": ("moe", SMALL | {"experts": "4", "top_k": "2", "expert_ffn": "128"}),
    "deepseek": ("deepseek-v2-lite", {}),
    "vgg16": ("vgg16", {}),
    "resnet18": ("resnet18", {}),
}
TRANSFORMERS = ("llama", "gpt", "t5", "moe", "deepseek")
CASES = [(name, text) for name in NETWORKS for text in ("last:1", "last:2")]
CASES += [(name, text) for name in TRANSFORMERS for text in ("lora:rank=8", "lora:rank=2,targets=all")]
CASES += [("vgg16", "lora:rank=8,targets=all")]


def network_of(name: str) -> Network:
    return build(*NETWORKS[name])


def products(network: Network, *directions: str) -> float:
    """Return the multiply-adds of matrix products and convolutions of a sample."""
    total = 0.0
    for calls in lower(network, np.array([1])):
        if calls.kind == "gemm" and calls.direction in directions:
            total += float((calls.count * np.prod([calls.work[one] for one in "mnk"] + [calls.work["batch"]], 0)).sum())
    return total


@pytest.mark.parametrize(
    ("name", "text", "trained"),
    [
        ("llama-7b", "lora:rank=16", 2 * 16 * (4096 + 4096) * 32),
        ("bert-base", "lora:rank=8", 294_912),
        ("mistral-7b", "lora:rank=8", 3_407_872),
        ("t5-base", "lora:rank=8", 884_736),
        ("resnet50", "last:1", 2049 * 1000),
        ("llama-7b", "last:1", 4096 * (4 * 4096 + 3 * 11008 + 2) + 4096 * (32000 + 1)),
    ],
)
def test_trained_parameters_are_those_of_publications(name: str, text: str, trained: int) -> None:
    """What ``print_trainable_parameters`` of huggingface/peft says of its default targets."""
    assert program(trained_as(build(name, {}), text)).trained == trained


@pytest.mark.parametrize("name", NETWORKS)
def test_all_is_the_network_itself(name: str) -> None:
    network = network_of(name)
    assert trained_as(network, "all") is network
    assert program(network).trained == program(network).parameters
    assert trained_as(network, "last:1") is trained_as(network, "last:1")


@pytest.mark.parametrize(("name", "text"), CASES)
def test_frozen_layers_lack_the_gradients_and_updates_of_their_weights(name: str, text: str) -> None:
    whole, part = network_of(name), trained_as(network_of(name), text)
    of, parameters = program(part), layer_parameters(part)
    assert [one.name for one in without_adapters(part)] == [one.name for one in whole.layers]
    assert [(one.kind, one.attributes) for one in without_adapters(part)] == [
        (one.kind, one.attributes) for one in whole.layers
    ]
    is_trained = np.array([not layer.is_frozen for layer in part.layers])
    assert of.trained == (parameters * is_trained).sum()
    assert gradient_slots(part).elements.sum() == of.trained
    calls = lower(part, np.array([1]))
    for one in calls:
        if one.direction in (BACKWARD_WEIGHT, "update"):
            assert is_trained[one.layer].all()
    first = min(at for at, layer in enumerate(part.layers) if is_trained[at] and parameters[at])
    assert not any(of.sites[of.site[at]].has_gradient for at in range(first))


@pytest.mark.parametrize(("name", "text"), CASES)
def test_flop_are_those_of_full_training_less_gradients_of_frozen_weights(name: str, text: str) -> None:
    whole, part = network_of(name), trained_as(network_of(name), text)
    sites = [program(part).sites[at] for at in program(part).site]
    base = {layer.name for layer in whole.layers}
    forward = [site.forward_mac for site, layer in zip(sites, part.layers, strict=True) if layer.name in base]
    every = [program(whole).sites[at].forward_mac for at in program(whole).site]
    assert forward == every
    weights = sum(
        site.forward_mac
        for site, layer in zip(sites, part.layers, strict=True)
        if not layer.is_frozen and layer.kind in ("linear", "adapter", "experts")
    )
    assert products(part, BACKWARD_WEIGHT) == pytest.approx(weights, rel=0.01)  # experts round rows up
    if text.startswith("lora:rank=2"):
        small = products(part, FORWARD) - products(whole, FORWARD)
        extra = 2 * small + products(part, BACKWARD_WEIGHT) - small
        assert products(part, BACKWARD_DATA) <= products(whole, BACKWARD_DATA) + extra


def memories(network: Network) -> Iterator[Any]:
    ledger = Memory(network, MemoryRules.of("bf16", "adam"))
    for sharding in (0, 1, 3):
        for recompute in ("none", "full"):
            plan = Configuration(1, 8, 4, precision="bf16", sharding=sharding, recompute=recompute)
            yield ledger.fullest(Configurations.of([plan]))


@pytest.mark.parametrize(("name", "text"), CASES)
def test_memory_of_a_part_is_never_more_than_of_the_whole(name: str, text: str) -> None:
    whole, part = network_of(name), trained_as(network_of(name), text)
    small = {"lora": 1.35 if "all" in text else 1.1}.get(text[:4], 1.0)  # what adapters keep of small networks
    for one, other in zip(memories(part), memories(whole), strict=True):
        for kind in ("gradients", "optimizer"):
            assert getattr(one, kind) <= getattr(other, kind)
        assert one.activations <= other.activations * small
        assert one.total <= other.total * (1.0 if text.startswith("last") else small)


def test_frozen_weights_take_two_bytes_and_trained_ones_sixteen() -> None:
    part = trained_as(build("llama-7b", {}), "lora:rank=16")
    whole, *_, sharded = memories(part)
    assert whole.weights == 2 * program(part).parameters
    assert whole.gradients + whole.optimizer == 8_388_608 * (2 + 12)
    assert sharded.weights == whole.weights / 8
    assert sharded.optimizer == whole.optimizer / 8


def test_backward_of_lora_takes_half_the_products() -> None:
    whole = build("llama-7b", {"attention": "fused"})
    part = trained_as(whole, "lora:rank=16")
    both = [products(one, BACKWARD_DATA, BACKWARD_WEIGHT) for one in (part, whole)]
    assert both[0] / both[1] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("text", ["lora:rank=8", "lora:rank=2,targets=all"])
@pytest.mark.parametrize("name", ["llama", "gpt", "t5"])
def test_tensor_ranks_share_adapters_of_products_by_columns(name: str, text: str) -> None:
    """A rank has all of what makes R features of a whole input, and a part of what makes a part of the features."""
    part = trained_as(network_of(name), text)
    for degree in (2, 4):
        split = tensor_shard(part, degree)
        for layer, own in zip(part.layers, split.layers, strict=True):
            if layer.kind == "adapter" and layer.integer("features"):
                assert layer.integer("features") / own.integer("features") in (1, 2, 4)
                assert own.integer("features") < layer.integer("features")
        assert program(split).trained < program(part).trained


def test_units_before_the_first_trained_layer_have_no_backward_pass() -> None:
    part = trained_as(build("gpt2", {}), "last:2")
    units = units_of(part, program(part))
    reached = units.reached[units.sequence] > 0
    assert reached.tolist() == [False] * 11 + [True] * 3
    assert units.trained[units.sequence][~reached].sum() == 0


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("all", Trainable()),
        ("last:3", Trainable("last", 3)),
        ("lora:rank=16", Trainable("lora", 16)),
        ("lora:targets=all,rank=4", Trainable("lora", 4, "all")),
    ],
)
def test_what_is_trained_is_read(text: str, asked: Trainable) -> None:
    assert trainable_of(text) == asked


BAD = {
    "loar:rank=4": "did you mean 'lora'", "all:2": "^--trainable must be all,", "last": "^--trainable must be all,",
    "last:x": "^--trainable must be all,", "lora:rank=4,rank=4,targets=all": "^--trainable must be all,",
    "lora:rank=4,of=all": "^--trainable must be all,", "lora:targets=all": "^--trainable must be all,",
    "last:0": "^layers in --trainable must be at least 1, got '0'",
    "lora:rank=0": "^rank in --trainable must be at least 1, got '0'",
    "last:22": "^layers in --trainable must be at most the 21 convolutions and linear layers of resnet18, got 22",
    "lora:rank=4": "which has no products of queries and values, got 'lora'; say targets=all$",
    "lora:rank=4,targets=all": "which has no linear layers but the last, got 'lora'; train its last layers with last:K",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_trained_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ParameterError, match=BAD[text]):
        trained_as(build("resnet18", {}), text)


def test_a_rank_above_the_least_side_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"^rank in --trainable must be at most 64, the least side of product "):
        trained_as(network_of("llama"), "lora:rank=65")  # of keys and values: two heads of 32 features


def _torch_llama(torch: Any, rank: int, *, every: bool) -> Callable[[Any], Any]:
    """Return a network like ``llama`` in plain PyTorch, with trained changes of frozen products as peft adds them."""
    h, heads, kv, ffn, functional = 128, 4, 2, 512, torch.nn.functional

    class Lora(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self, into: int, out: int, *, is_target: bool) -> None:
            super().__init__()
            self.base = torch.nn.Linear(into, out, bias=False).requires_grad_(requires_grad=False)
            self.a = torch.nn.Linear(into, rank, bias=False) if is_target else None
            self.b = torch.nn.Linear(rank, out, bias=False) if is_target else None

        def forward(self, x: Any) -> Any:
            return self.base(x) if self.a is None or self.b is None else self.base(x) + self.b(self.a(x))

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            wide = h // heads * kv
            self.q, self.v = Lora(h, h, is_target=True), Lora(h, wide, is_target=True)
            self.k, self.o = Lora(h, wide, is_target=every), Lora(h, h, is_target=every)
            self.gate, self.up = Lora(h, ffn, is_target=every), Lora(h, ffn, is_target=every)
            self.down = Lora(ffn, h, is_target=every)
            self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(h) for _ in range(2)).requires_grad_(requires_grad=False)

        def forward(self, x: Any) -> Any:
            y = self.norms[0](x)
            q, k, v = (one(y).unflatten(-1, (-1, h // heads)).transpose(1, 2) for one in (self.q, self.k, self.v))
            k, v = (one.repeat_interleave(heads // kv, 1) for one in (k, v))
            weights = torch.softmax(q @ k.transpose(-1, -2), -1)
            x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
            y = self.norms[1](x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(256, h).requires_grad_(requires_grad=False)
            self.blocks = torch.nn.Sequential(*(Block() for _ in range(4)))
            self.norm = torch.nn.RMSNorm(h).requires_grad_(requires_grad=False)
            self.head = torch.nn.Linear(h, 256, bias=False).requires_grad_(requires_grad=False)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.norm(self.blocks(self.words(tokens)))).sum()

    return Model()


def _torch_cnn(torch: Any, network: Network) -> Any:
    from planner.probes.steps import build_module  # noqa: PLC0415 - PyTorch is an extra

    module = build_module(network, "cpu")
    assert any(not one.requires_grad for one in module.parameters())
    return lambda images: module(images, torch.zeros(1, dtype=torch.int64))


@pytest.mark.started
@pytest.mark.parametrize(
    ("name", "text"), [("llama", "lora:rank=8"), ("llama", "lora:rank=8,targets=all"), ("resnet18", "last:4")]
)
def test_pytorch_counts_as_many_flop_and_parameters(name: str, text: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - PyTorch is an extra

    part = trained_as(network_of(name), text)
    of = program(part)
    if name == "llama":
        module = _torch_llama(torch, 8, every="all" in text)
        sizes = [(one.numel(), one.requires_grad) for one in module.parameters()]  # type: ignore[attr-defined]
        assert sum(size for size, _ in sizes) == of.parameters
        assert sum(size for size, trained in sizes if trained) == of.trained
        sample = torch.zeros(1, 32, dtype=torch.int64)
    else:
        module, sample = _torch_cnn(torch, part), torch.zeros(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter:
        module(sample).backward()
    counted = sum(site.training_flop * count for site, count in of.site_counts())
    assert counter.get_total_flops() == pytest.approx(counted, rel=0.01)


@pytest.mark.started
@pytest.mark.parametrize(
    ("name", "text"), [("gpt", "lora:rank=8"), ("gpt", "last:2"), ("resnet18", "last:4"), ("vgg16", "last:2")]
)
def test_pytorch_keeps_the_same_share_of_activations(name: str, text: str) -> None:
    torch = pytest.importorskip("torch")
    from planner.probes.steps import build_module  # noqa: PLC0415 - PyTorch is an extra

    def kept(network: Network) -> tuple[float, float]:
        module, of_storage = build_module(network, "cpu"), dict[int, int]()
        weights = {one.untyped_storage().data_ptr() for one in module.parameters()}

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            of_storage[storage.data_ptr()] = storage.nbytes() * (storage.data_ptr() not in weights)
            return tensor

        is_text = len(network.input_shape) == 1
        shape, targets = (1, *network.input_shape), (1, 32) if is_text else (1,)
        samples = torch.zeros(shape, dtype=torch.int64 if is_text else torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = module(samples, torch.zeros(targets, dtype=torch.int64))
        ledger = Memory(network, MemoryRules.of("fp32", "adam"))
        counted = ledger.fullest(Configurations.of([Configuration(1, 1, 1)])).activations
        return float(loss.isfinite()) * sum(of_storage.values()), float(counted[0])

    whole, part = kept(network_of(name)), kept(trained_as(network_of(name), text))
    assert part[1] / whole[1] == pytest.approx(part[0] / whole[0], abs=0.04)  # masks are fp32 on a CPU
