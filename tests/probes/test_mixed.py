"""What stays fp32 under autocast is what PyTorch keeps so in whole networks, and timed calls make its casts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from planner.domain.kernels import FP32_KINDS
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, Point, layer_shapes
from planner.networks.zoo import build
from planner.probes.kernels import timed_call
from planner.probes.operands import Operands
from planner.probes.steps import build_module
from planner.workload.calls import distinct_calls, layer_calls
from planner.workload.program import wide_tensors

SAMPLES = 2
SMALL = {"layers": "1", "hidden": "24", "heads": "2", "sequence": "16", "vocabulary": "64"}
FUSED = {**SMALL, "attention": "fused"}
IMAGES = Network(
    "images",
    (3, 16, 16),
    (
        Layer("first", "convolution", (INPUT,), {"channels": 8, "kernel": 3, "padding": 1}),
        Layer("norm", "batch_norm", ("first",)),
        Layer("relu", "activation", ("norm",)),
        Layer("again", "convolution", ("relu",), {"channels": 8, "kernel": 3, "padding": 1, "bias": False}),
        Layer("over", "lrn", ("again",)),
        Layer("wider", "convolution", ("over",), {"channels": 8, "kernel": 1}),
        Layer("sum", "add", ("wider", "over")),
        Layer("mean", "global_pool", ("sum",)),
        Layer("flat", "flatten", ("mean",)),
        Layer("logits", "linear", ("flat",), {"features": 10}),
        Layer("loss", "loss", ("logits",)),
    ),
)


def samples_of(network: Network) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples and targets."""
    shape, shapes = (SAMPLES, *network.input_shape), layer_shapes(network)
    samples = torch.randint(0, 64, shape) if network.layers[0].kind == "embedding" else torch.randn(shape)
    logits = min(shapes[layer.inputs[0]] for layer in network.layers if layer.kind == "loss")
    return samples, torch.zeros((SAMPLES, *logits[:-1]), dtype=torch.int64)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[bool, ...]]:
    """Return a table that layers of modules made from now on enter whether what they read and give is fp32."""
    found: dict[str, tuple[bool, ...]] = {}

    def watched(plain: Callable[..., Any], library: Any, layer: Layer, inputs: Any) -> Any:
        part = plain(library, layer, inputs)

        def note(_part: Any, given: tuple[Any, ...], made: Any) -> None:
            read = (layer.kind == "embedding" or value.dtype == torch.float32 for value in given[: len(layer.inputs)])
            found[layer.name] = (*read, made.dtype == torch.float32)

        def run(*given: Any) -> Any:
            made = part(*given)
            note(part, given, made)
            return made

        if not isinstance(part, torch.nn.Module):
            return run
        part.register_forward_hook(note)
        return part

    for kind, declared in LAYER_KINDS.items():
        module = partial(watched, declared.module)
        monkeypatch.setitem(LAYER_KINDS, kind, replace(declared, module=module))
    return found


NETWORKS: Mapping[str, Mapping[str, str]] = {
    "gpt": SMALL,
    "bert": SMALL,
    "vit": {"layers": "1"},
    "resnet18": {},
    "mobilenet-v2": {},
    "googlenet": {},
    "yolov3": {},
    "mlp": {},
}
IMAGE = (3, 64, 64)
"""Small: types do not depend on the size."""


@pytest.mark.parametrize("name", NETWORKS)
def test_a_cpu_keeps_in_fp32_what_the_rule_says(name: str, seen: dict[str, tuple[bool, ...]]) -> None:
    network = build(name, NETWORKS[name])
    network = replace(network, input_shape=IMAGE if len(network.input_shape) == 3 else network.input_shape)
    module = build_module(network)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        module(*samples_of(network))
    assert seen == wide_tensors(network, on_gpu=False)


@pytest.mark.parametrize("name", ["gpt", "googlenet", "mlp"])
def test_a_gpu_keeps_in_fp32_what_the_rule_says(name: str, seen: dict[str, tuple[bool, ...]]) -> None:
    """PyTorch decides it for tensors without numbers that take themselves for those of a GPU, where there is none."""
    network = build(name, FUSED if name == "gpt" else {})
    module = build_module(network, "meta")
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
        return FakeTensor(mode, tensor.detach().to("meta"), torch.device("cuda:0"))

    parameters = {key: on_gpu(parameter) for key, parameter in module.named_parameters()}
    given = tuple(on_gpu(tensor) for tensor in samples_of(network))
    torch.set_autocast_enabled("cuda", enabled=True)
    try:
        with mode, torch.no_grad():
            torch.func.functional_call(module, parameters, given)
    finally:
        torch.set_autocast_enabled("cuda", enabled=False)
    assert seen == wide_tensors(network, on_gpu=True)


TYPED = ("aten._softmax", "aten.gelu", "aten.native_layer_norm", "aten._to_copy")


def types_of(run: Callable[[], object]) -> Counter[str]:
    """Return how often each type and number of elements was cast to another type, or went through some operators."""
    found: Counter[str] = Counter()

    class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, operator: Any, _types: Any, given: Any = (), options: Any = None) -> Any:
            made = operator(*given, **(options or {}))
            first = made[0] if isinstance(made, tuple) else made
            is_cast = "_to_copy" in str(operator)
            if str(operator).startswith(TYPED) and not (is_cast and first.dtype == given[0].dtype):
                found[f"{operator} of {given[0].dtype} to {first.dtype}: {first.numel()}"] += 1
            return made

    with Watching():  # type: ignore[no-untyped-call]
        run()
    return found


@pytest.mark.parametrize(
    "network",
    [IMAGES, build("gpt", SMALL), build("gpt", FUSED), build("bert", SMALL), build("bert", FUSED)],
    ids=["images", "gpt", "gpt fused", "bert", "bert fused"],
)
def test_types_and_casts_of_a_step_are_those_of_its_timed_calls(network: Network) -> None:
    module = build_module(network)
    samples, targets = samples_of(network)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module(samples, targets)
        loss.backward()

    times: Counter[tuple[str, str, str]] = Counter()
    for calls in layer_calls(network).values():
        for call in calls:
            times[call.kind, call.direction, call.name] += call.count
    operands = Operands(elements=1 << 20)
    made: dict[str, float] = {}
    for call in distinct_calls([network]):
        precision = "fp32" if call.kind in FP32_KINDS else "bf16"
        point = Point(call.kind, call.direction, call.at(SAMPLES), call=call, sub_batch=SAMPLES, precision=precision)
        timed = timed_call(point, operands)
        for types, count in types_of(timed.run).items():
            share = times[call.kind, call.direction, call.name] / timed.calls
            made[types] = made.get(types, 0.0) + count * share
    assert made == types_of(step)
