import itertools

import numpy as np
import pytest
import torch

from planner.domain.kernels import KINDS
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, layer_parameters, layer_shapes
from planner.networks.zoo import build
from planner.probes.kernels import timed_call
from planner.probes.operands import Operands
from planner.probes.points import designed_points
from planner.probes.steps import build_module, gradient_time, probe_networks
from planner.workload.calls import totals
from tests.workload.closed_transformer import parameters, record_of


@pytest.mark.parametrize(
    "name",
    [
        "alexnet", "googlenet", "resnet18", "sprint-15", "yolov3",
        "megatron-22b", "llama3-70b", "mixtral-8x7b", "deepseek-v2-lite", "mpt-7b", "t5-base", "vit-b16",
        "mobilenet-v3", "efficientnet-b0", "convnext-t", "swin-t", "densenet121", "unet", "resnet110",
    ],
)  # fmt: skip
def test_module_has_the_parameters_of_the_network(name: str) -> None:
    network = build(name, {})
    module = build_module(network, "meta")
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in module.parameters()) == layer_parameters(network).sum()


def test_every_kind_of_layer_has_the_shape_that_the_network_says() -> None:
    """The last linear layer is as wide as shape inference says, so that the module runs only if PyTorch agrees."""
    layers = (
        Layer("a", "convolution", (INPUT,), {"channels": 4, "kernel": (3, 1), "padding": (1, 0)}),
        Layer("b", "pool", ("a",), {"window": 3, "stride": 2, "ceil": True}),
        Layer("c", "pool", ("b",), {"mode": "average", "window": 2, "stride": 1}),
        Layer("d", "lrn", ("c",)),
        Layer("e", "batch_norm", ("d",)),
        Layer("f", "concat", ("c", "e")),
        Layer("g", "add", ("f", "f")),
        Layer("u", "upsample", ("g",), {"factor": 2}),
        Layer("v", "activation", ("u",), {"function": "leaky_relu"}),
        Layer("h", "activation", ("v",), {"function": "gelu"}),
        Layer("i", "dropout", ("h",)),
        Layer("j", "global_pool", ("i",)),
        Layer("k", "flatten", ("j",)),
        Layer("l", "flatten", ("i",)),
        Layer("m", "linear", ("k",), {"features": 5}),
        Layer("n", "linear", ("l",), {"features": 5}),
        Layer("o", "add", ("m", "n")),
        Layer("p", "loss", ("o",)),
    )
    module = build_module(Network("all", (3, 9, 8), layers))
    loss = module(torch.randn(2, 3, 9, 8), torch.zeros(2, dtype=torch.int64))
    loss.backward()
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in module.parameters())


def windows(image: torch.Tensor) -> torch.Tensor:
    """Return windows of 2 x 2 of (n, 4, 6, c), rolled by 1, as positions, each cut out by hand."""
    rolled = image.roll((-1, -1), (1, 2))
    cut = [rolled[:, y : y + 2, x : x + 2].flatten(1, 2) for y in (0, 2) for x in (0, 2, 4)]
    return torch.cat(cut, dim=1)


def test_windows_are_cut_and_put_back() -> None:
    image = torch.randn(2, 4, 6, 3)
    there, back, merged = (
        LAYER_KINDS["windows"].module(
            torch, Layer("w", "windows", (INPUT,), sizes | {"height": 4, "side": 2}), ((24, 3),)
        )
        for sizes in ({"shift": 1}, {"shift": 1, "back": True}, {"merged": True})
    )
    assert torch.equal(there(image.flatten(1, 2)), windows(image))
    assert torch.equal(back(windows(image)), image.flatten(1, 2))
    together = image.unfold(1, 2, 2).unfold(2, 2, 2).permute(0, 1, 2, 4, 5, 3)  # n, 2, 3, 2, 2, c
    assert torch.equal(merged(image.flatten(1, 2)), together.flatten(3).flatten(1, 2))


def test_attention_sees_its_own_window_alone() -> None:
    layer = Layer("a", "attention", (INPUT,), {"heads": 2, "windows": 3, "bias": "learned", "buckets": 5})
    module = LAYER_KINDS["attention"].module(torch, layer, ((12, 24),))
    joined = torch.randn(2, 12, 24)
    other = joined.clone()
    other[:, 4:8] = 0.0
    same = module(joined).isclose(module(other)).all(dim=-1).all(dim=0)
    assert same.tolist() == [True] * 4 + [False] * 4 + [True] * 4


@pytest.mark.parametrize("name", ["mobilenet-v3", "efficientnet-b0", "convnext-t", "swin-t", "densenet121", "unet"])
def test_networks_of_every_kind_are_trained(name: str) -> None:
    """The shapes of each layer are those that the network says, and every parameter gets a gradient."""
    network = build(name, {"input": "32"} if name == "unet" else {})
    module, shapes = build_module(network), layer_shapes(network)
    targets = torch.zeros((2, *shapes[network.layers[-1].inputs[0]][:-1]), dtype=torch.int64)
    module(torch.randn(2, *network.input_shape), targets).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_loss_is_the_weighted_sum_of_cross_entropies() -> None:
    layers = (
        Layer("scores", "linear", (INPUT,), {"features": 3}),
        Layer("one", "loss", ("scores",)),
        Layer("two", "loss", ("scores",), {"weight": 0.3}),
    )
    module = build_module(Network("two-losses", (4,), layers))
    samples, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    (linear,) = (part for part in module.modules() if isinstance(part, torch.nn.Linear))
    logits = (samples @ linear.weight.T + linear.bias).detach().numpy().astype(np.float64)
    by_hand = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(5), targets.numpy()])
    assert module(samples, targets).item() == pytest.approx(1.3 * by_hand, rel=1e-5)


def test_targets_suit_losses_of_different_width() -> None:
    """They are classes of the narrowest loss, all of them among so many samples; wider ones have these classes too."""
    layers = (
        Layer("wide", "linear", (INPUT,), {"features": 9}),
        Layer("narrow", "linear", (INPUT,), {"features": 3}),
        Layer("first", "loss", ("wide",)),
        Layer("second", "loss", ("narrow",)),
    )
    for ordered in (layers, (layers[1], layers[0], layers[3], layers[2])):
        network, seen = Network("widths", (4,), ordered), list[torch.Tensor]()
        module = build_module(network)
        module.register_forward_pre_hook(lambda _module, given, seen=seen: seen.append(given[1]))
        gradient_time(module, network, 200, 1)
        assert all(targets.shape == (200,) for targets in seen)
        assert {int(target) for targets in seen for target in targets} == {0, 1, 2}


def test_gradient_time_leaves_no_gradients() -> None:
    network = probe_networks()[0]
    module = build_module(network)
    timing = gradient_time(module, network, 2, 1)
    assert timing.time_s > 0
    assert timing.repeats == 1
    assert all(parameter.grad is None for parameter in module.parameters())


def test_gradient_time_ends_when_time_is_up_but_for_one_repeat() -> None:
    network = probe_networks()[3]
    assert gradient_time(build_module(network), network, 1, 5, until_s=0.0).repeats == 1
    assert gradient_time(build_module(network), network, 1, 5).repeats == 5
    assert gradient_time(build_module(network), network, 1, 2, warm_up=1).repeats == 2
    with_update = gradient_time(build_module(network), network, 1, 2, optimizer="adam")
    assert [*with_update.parts] == ["forward", "backward", "update"]


@pytest.mark.parametrize("warm_up", [1, 3])
def test_the_time_of_a_gpu_is_up_by_the_clock_of_the_device(warm_up: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take the device 1 s and the host none, which would else hand all of them over at once."""
    network, now = probe_networks()[3], {"host": 0.0, "device": 0.0}
    parts = itertools.cycle((0.5, 0.25, 0.25))  # before a step, forward and backward

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            now["device"] = max(now["device"], now["host"]) + next(parts)
            self.at_s = now["device"]

        def synchronize(self) -> None:
            now["host"] = max(now["host"], self.at_s)

        def elapsed_time(self, end: "Event") -> float:
            return 1e3 * (end.at_s - self.at_s)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr("planner.probes.steps.time.perf_counter", lambda: now["host"])
    module = build_module(network, "meta")
    timing = gradient_time(module, network, 1, 20, until_s=6.0, warm_up=warm_up)
    assert (timing.time_s, *(one.time_s for one in timing.parts.values())) == (0.5, 0.25, 0.25)
    assert now["device"] == 6.0 + 1.0
    assert timing.repeats == 7 - warm_up


def test_gradient_time_computes_in_the_precision_asked_for() -> None:
    """A linear layer's product gives 16-bit numbers under mixed precision alone; its weights stay fp32."""
    network = Network("one", (8,), (Layer("a", "linear", (INPUT,), {"features": 4}), Layer("b", "loss", ("a",))))
    module, seen = build_module(network), []
    (linear,) = (part for part in module.modules() if isinstance(part, torch.nn.Linear))
    linear.register_forward_hook(lambda _part, _inputs, result: seen.append(result.dtype))
    for precision, expected in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("tf32", torch.float32)):
        seen.clear()
        assert gradient_time(module, network, 2, 1, precision=precision).time_s > 0
        assert set(seen) == {expected}
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_every_kind_and_direction_can_be_called() -> None:
    operands = Operands(elements=1 << 25)
    smallest = {}
    for point in sorted(designed_points(), key=lambda point: -max(point.work.values())):
        smallest[point.kind, point.direction] = point
    for point in smallest.values():
        timed_call(point, operands).run()
    assert {kind for kind, _ in smallest} <= set(KINDS)


def test_operands_of_two_calls_do_not_overlap() -> None:
    cold = Operands(elements=1 << 20).cold(64, 64)
    first, second = next(cold), next(cold)
    assert abs(first.data_ptr() - second.data_ptr()) >= 4 * 64 * 64


TINY = {"layers": "2", "hidden": "48", "heads": "4", "sequence": "12", "vocabulary": "60"}
LATENT = {"kv_rank": "8", "plain_size": "6", "rotary_size": "4", "value_size": "5", "shared_experts": "1"}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gpt", TINY),
        ("bert", TINY | {"head": "pretraining", "predictions": "3"}),
        ("llama", TINY | {"kv_heads": "2"}),
        ("llama", TINY | {"kv_heads": "1", "attention": "unfused", "tied": "true"}),
        ("mpt", TINY),
        ("mpt", TINY | {"attention": "unfused"}),
        ("moe", TINY | {"kv_heads": "2", "expert_ffn": "16", "experts": "3"}),
        ("moe", TINY | {"expert_ffn": "16", "capacity_factor": "1.25", "dense_layers": "1"} | LATENT),
        ("t5", TINY | {"head_size": "10", "target": "7"}),
        ("vit", {"layers": "2", "hidden": "48", "heads": "4", "image": "32", "patch": "8", "classes": "10"}),
    ],
)
def test_modules_of_transformers_have_the_parameters_that_are_counted(name: str, arguments: dict[str, str]) -> None:
    network = build(name, arguments)
    module = build_module(network)
    trained = sum(parameter.numel() for parameter in module.parameters())
    assert trained == totals(network).parameters == parameters(record_of(network))
    timed = gradient_time(module, network, 2, repeats=1, warm_up=1)
    assert timed.time_s > 0
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("llama", {"kv_heads": "2", "head_norm": "true", "head_size": "16", "attention_bias": "qkv"}),
        ("llama", {"function": "gelu", "norms": "around", "attention_bias": "all", "mlp_bias": "true"}),
        ("moe", {"expert_ffn": "16", "query_rank": "10"} | LATENT),
        ("neox", {"rotary_share": "0.5"}),
        ("neox", {"parallel": "false", "tied": "true"}),
        ("gpt", {"function": "relu", "positions": "20"}),
        ("t5", {"function": "gated-gelu", "tied": "false", "decoder_layers": "1"}),
    ],
)
def test_modules_of_variants_have_the_parameters_that_are_counted(name: str, arguments: dict[str, str]) -> None:
    network = build(name, TINY | arguments)
    module = build_module(network)
    assert sum(parameter.numel() for parameter in module.parameters()) == totals(network).parameters
    tokens = torch.randint(0, 60, (2, *network.input_shape))
    module(tokens, torch.randint(0, 60, (2, 12))).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_every_parameter_of_new_layers_gets_a_gradient() -> None:
    for name, more in (("moe", {"expert_ffn": "16", "attention": "unfused"} | LATENT), ("t5", {"head_size": "8"})):
        network = build(name, TINY | more)
        module = build_module(network)
        tokens = torch.randint(0, 60, (2, *network.input_shape))
        module(tokens, torch.randint(0, 60, (2, 12))).backward()
        assert all(parameter.grad is not None for parameter in module.parameters())
