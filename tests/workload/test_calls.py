import numpy as np
import pytest

from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, work_named
from planner.networks.zoo import build
from planner.workload.calls import distinct_calls, layer_calls, lower
from planner.workload.program import wide_tensors

NAMES = ("resnet18", "googlenet", "mobilenet-v2", "mlp", "gpt", "bert", "yolov3")


@pytest.mark.parametrize("name", NAMES)
def test_work_at_any_sub_batch_is_that_of_lowering(name: str) -> None:
    network = build(name, {})
    found = layer_calls(network, optimizer="adam")
    for calls in lower(network, np.array([7]), optimizer="adam"):
        made = found[calls.kind, calls.direction]
        for at, call in enumerate(made):
            assert network.layers[calls.layer[at]] is call.layer
            lowered = {key: int(np.broadcast_to(v, (1, calls.layer.size))[0, at]) for key, v in calls.work.items()}
            assert call.at(7) == lowered


@pytest.mark.parametrize("name", NAMES)
def test_distinct_calls_hold_every_call_once_but_biases(name: str) -> None:
    network = build(name, {})
    every = [call for calls in layer_calls(network, optimizer=network.optimizer).values() for call in calls]
    keys = [(call.kind, call.direction, call.name) for call in distinct_calls([network, network])]
    assert len(keys) == len(set(keys)) < len(every)
    assert set(keys) == {(call.kind, call.direction, call.name) for call in every if call.kind != "bias"}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_call_gives_back_its_work(name: str) -> None:
    for calls in layer_calls(build(name, {}), optimizer="adam").values():
        for call in calls:
            assert {column: work_named(call.name)[column] for column in call.work} == dict(call.work)
            assert any(slope for _, slope in work_named(call.name).values()) == call.depends_on_sub_batch


def test_equal_layers_of_two_networks_are_one_call() -> None:
    small, large = build("resnet18", {}), build("resnet34", {})
    kinds = ("convolution", "batch_norm")
    of_small, of_both = (
        {call.name for call in distinct_calls(networks) if call.kind in kinds} for networks in ([small], [small, large])
    )
    assert of_small == of_both


def test_work_that_hides_a_difference_does_not_make_calls_equal() -> None:
    """GELU and ReLU, and pooling of other windows, move as many bytes."""
    layers = (
        Layer("first", "convolution", (INPUT,), {"channels": 8, "kernel": 1}),
        Layer("relu", "activation", ("first",)),
        Layer("gelu", "activation", ("relu",), {"function": "gelu"}),
        Layer("three", "pool", ("gelu",), {"mode": "max", "window": 3, "stride": 2, "padding": 1}),
        Layer("again", "activation", ("gelu",)),
        Layer("two", "pool", ("again",), {"mode": "max", "window": 2, "stride": 2}),
    )
    names = [(c.kind, c.name) for c in distinct_calls([Network("one", (3, 8, 8), layers)]) if c.direction == "forward"]
    assert [kind for kind, _ in names].count("activation") == 2
    assert [kind for kind, _ in names].count("max_pool") == 2


def test_what_takes_most_of_a_step_comes_first() -> None:
    kinds = [call.kind for call in distinct_calls([build("resnet18", {})])]
    assert set(kinds[:10]) == {"convolution"}
    assert kinds.index("softmax") > len(kinds) // 2


def test_a_call_that_a_network_makes_of_both_types_is_as_most_often() -> None:
    """Dropout follows the embedding, which is fp32, once, and linear layers, which are of 16 bits, in every layer."""
    network = build("gpt", {"layers": "2"})
    tensors = wide_tensors(network, on_gpu=False)
    wide = {tensors[layer.name] for layer in network.layers if layer.kind == "dropout"}
    assert wide == {(True, True), (False, False)}
    found = distinct_calls([network])
    assert {call.wide["cpu"] for call in found if call.kind == call.layer.kind == "dropout"} == {(False, False)}
    norms = [call for call in found if call.kind == "layer_norm"]
    assert {call.wide[place] for call in norms for place in ("cpu", "gpu")} == {(True, True)}
