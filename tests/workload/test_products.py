"""What runs in 8 bits: counted by layer and direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.catalog import find_network
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.workload.calls import lower, narrow_calls, rest_precision

ONE = np.ones(1, dtype=np.int64)
CNN = Network(
    "cnn",
    (3, 8, 8),
    (
        Layer("conv1", "convolution", ("input",), {"channels": 8, "kernel": 3, "padding": 1}),
        Layer("conv2", "convolution", ("conv1",), {"channels": 8, "kernel": 3, "padding": 1}),
        Layer("flat", "flatten", ("conv2",)),
        Layer("fc", "linear", ("flat",), {"features": 10}),
        Layer("loss", "loss", ("fc",)),
    ),
)


def narrow(network: Network, precision: str, **options: Any) -> set[tuple[str, str, str]]:
    """Return (kind, direction, layer) of what runs in the precision itself."""
    return {
        (calls.kind, calls.direction, network.layers[at].name)
        for calls in lower(network, ONE, merged=False, **options)
        for at in calls.layer[narrow_calls(calls, network, precision)].tolist()
    }


def test_fp8_runs_linear_layers_alone() -> None:
    products = {("gemm", direction, "fc") for direction in (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT)}
    assert narrow(CNN, "fp8") == products
    assert narrow(CNN, "fp8", convolution="im2col") == products  # products of convolutions stay wide


def test_int8_leaves_gradients_of_weights_in_16_bits() -> None:
    """The first layer reads three channels, too few for 8 bits."""
    assert narrow(CNN, "int8") == {
        ("gemm", FORWARD, "fc"), ("gemm", BACKWARD_DATA, "fc"),
        ("convolution", FORWARD, "conv2"), ("convolution", BACKWARD_DATA, "conv2"),
    }  # fmt: skip


@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_attention_runs_in_16_bits(precision: str) -> None:
    network = find_network("gpt:layers=1,hidden=64,heads=2,sequence=16,vocabulary=100")
    kinds = {layer.name: layer.kind for layer in network.layers}
    found = narrow(network, precision)
    assert found
    assert {kinds[layer] for _, _, layer in found} == {"linear"}


def test_any_other_precision_is_that_of_every_call() -> None:
    assert narrow(CNN, "bf16") == {
        (calls.kind, calls.direction, CNN.layers[at].name) for calls in lower(CNN, ONE) for at in calls.layer.tolist()
    }


@pytest.mark.parametrize(
    ("precision", "available", "rest"),
    [
        ("fp8", {"fp32", "fp16", "bf16", "fp8"}, "bf16"),
        ("int8", {"fp32", "fp16", "int8"}, "fp16"),
        ("int8", {"fp32", "int8"}, "fp32"),
        ("fp16", {"fp32", "fp16", "bf16"}, "fp16"),
    ],
)
def test_the_rest_runs_in_the_first_of_16_bits_that_there_is(precision: str, available: set[str], rest: str) -> None:
    assert rest_precision(precision, available) == rest
