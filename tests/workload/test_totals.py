from __future__ import annotations

import numpy as np
import pytest

from planner.networks.zoo import arguments_of, build, zoo_names
from planner.workload.calls import layer_work, lower, totals
from planner.workload.program import gradient_slots


@pytest.mark.parametrize("name", zoo_names())
def test_training_flop_is_that_of_the_products(name: str) -> None:
    network = build(name, {"attention": "unfused"} if "attention" in arguments_of(name) else {})
    calls = lower(network, np.ones(1, dtype=np.int64), convolution="im2col")
    flop = sum(
        int((2 * c.work["m"] * c.work["n"] * c.work["k"] * c.work["batch"] * c.count).sum())
        for c in calls
        if c.kind == "gemm"
    )
    assert totals(network).training_flop == flop


@pytest.mark.parametrize("name", zoo_names())
def test_training_is_three_passes_less_the_first_backward_data(name: str) -> None:
    network = build(name, {})
    counted = totals(network)
    assert counted.training_flop == 6 * counted.forward_mac - 2 * layer_work(network)[0].forward_mac


def test_totals_are_sums_over_layers() -> None:
    network = build("googlenet", {})
    rows, counted = layer_work(network), totals(network)
    assert [row.name for row in rows] == [layer.name for layer in network.layers]
    assert sum(row.parameters for row in rows) == counted.parameters
    assert sum(row.forward_mac for row in rows) == counted.forward_mac
    assert all(row.forward_mac == 0 for row in rows if row.kind not in ("convolution", "linear"))


def test_im2col_makes_more_calls() -> None:
    network = build("alexnet", {})
    direct, im2col = totals(network), totals(network, convolution="im2col")
    # im2col forward and again backward for 5 convolutions, col2im for 4; and 3 grouped convolutions double 3 products
    assert im2col.kernel_calls - direct.kernel_calls == 2 * 5 + 4 + 3 * 3


def test_gradient_slots_are_the_layers_with_parameters() -> None:
    network = build("resnet18", {})
    slots, rows = gradient_slots(network), layer_work(network)
    assert slots.elements.sum() == totals(network).parameters
    assert [rows[layer].parameters for layer in slots.layer] == slots.elements.tolist()
    assert (slots.elements > 0).all()
    assert (np.diff(slots.layer) > 0).all()
    assert slots.layer.size == 20 + 20 + 1  # convolutions, their normalisations, the classifier
