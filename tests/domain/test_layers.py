"""A kind of layer is one declaration: what it says is in files, shapes, price and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.kernels import BACKWARD_WEIGHT, FORWARD
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Attribute, Call, Layer, LayerKind, Share, traffic
from planner.domain.network import Network
from planner.domain.request import Problem
from planner.formats.network import NETWORK
from planner.probes.steps import build_module
from planner.steps.predict import Evaluator
from planner.workload.calls import layer_work
from planner.workload.shards import tensor_shard
from tests.workload.conftest import memory_bytes

DECLARED = LayerKind(
    {"gates": Attribute("int", 2, "gates by which every feature is scaled")},
    parameters=lambda layer, shape: (shape[-1],) * layer.integer("gates"),
    calls=lambda site, _lowering: [
        Call("activation", FORWARD, traffic(site.output_elements, site.layer.integer("gates") * site.output_elements)),
        Call("bias", BACKWARD_WEIGHT, traffic(site.output_elements, site.output_elements)),
    ],
    keeps=lambda _layer: (True, False),
    kept_besides=lambda site, itemsize: 3 * itemsize * site.output_elements,
    share=lambda _layer: Share("gates", is_rounded_up=True),
    module=lambda torch, layer, inputs: torch.nn.Sequential(
        *(torch.nn.PReLU(inputs[0][-1]) for _ in range(layer.integer("gates")))
    ),
)
TEXT = """format = "planner/network"
version = 1
name = "gated"
input = [64]

[[layers]]
name = "first"
kind = "linear"
attributes = {{ features = 32 }}
{between}
[[layers]]
name = "last"
kind = "linear"
attributes = {{ features = 8 }}
"""
BETWEEN = """
[[layers]]
name = "gate"
kind = "gated"
attributes = { gates = 5 }
"""


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Network, Network]:
    """Return a network from a file without and with a layer of the made-up kind."""
    monkeypatch.setitem(LAYER_KINDS, "gated", DECLARED)
    found = []
    for at, between in enumerate(("", BETWEEN)):
        path = tmp_path / f"{at}.toml"
        path.write_text(TEXT.format(between=between))
        found.append(NETWORK.read(path))
    return found[0], found[1]


def test_a_declared_kind_is_read_and_written(networks: tuple[Network, Network], tmp_path: Path) -> None:
    gate = networks[1].layers[1]
    assert (gate.kind, dict(gate.attributes), gate.inputs) == ("gated", {"gates": 5}, ("first",))
    path = tmp_path / "again.toml"
    path.write_text(NETWORK.dump(networks[1]))
    assert NETWORK.read(path) == networks[1]
    assert [(row.shape, row.parameters) for row in layer_work(networks[1])][1] == ((32,), 5 * 32)


def test_a_declared_kind_is_priced(networks: tuple[Network, Network]) -> None:
    """What is specified of a V100 takes 76 % of its memory bandwidth, and 10 us a call."""
    cluster = catalog.find_cluster("dgx1-v100")
    one, settings = Configurations.of([Configuration(1, 1, 1 << 20)]), Settings(input="synthetic", optimizer="none")
    without, with_it = (
        float(Evaluator(Problem(network, None, cluster, (), settings=settings)).evaluate(one).iteration_s[0])
        for network in networks
    )
    moved = 4 * (5 + 1) * 32 * (1 << 20)
    bandwidth = 0.76 * cluster.node.accelerator.memory_bytes_per_s
    assert with_it - without == pytest.approx(moved / bandwidth + 2 * 1e-5, rel=1e-6)


def test_a_declared_kind_takes_memory(networks: tuple[Network, Network]) -> None:
    without, with_it = (memory_bytes(one, np.array([7]), "fp32", "sgd", "gpu") for one in networks)
    assert with_it.weights[0] - without.weights[0] == 4 * 5 * 32
    # what it keeps besides, and the input of the last layer, which is another tensor now
    assert with_it.activations[0] - without.activations[0] == 7 * 4 * (3 * 32 + 32)


def test_a_declared_kind_is_trained(networks: tuple[Network, Network]) -> None:
    module = build_module(networks[1])
    module(torch.randn(3, 64), None).backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    assert [gradient.numel() for gradient in gradients if gradient is not None][2:-2] == [32] * 5


def test_a_declared_kind_is_split_between_ranks(networks: tuple[Network, Network]) -> None:
    gate = networks[1].layers[1]
    layers = (
        Layer("qkv", "linear", (INPUT,), {"features": 24}),
        Layer("heads", "attention", ("qkv",), {"heads": 4}),
        Layer("gate", gate.kind, ("heads",), gate.attributes),
    )
    shard = tensor_shard(Network("split", (5, 24), layers), 4)
    assert [shard.layers[1].integer("heads"), shard.layers[2].integer("gates")] == [1, 2]
