"""Memory of stages of a network without blocks: by hand, and counted tensor by tensor for every cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest

from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configurations
from planner.domain.framework import PYTORCH
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Layer
from planner.domain.network import Network, layer_shapes
from planner.domain.split import SplitMemoryBytes, StageLayers
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.program import program
from planner.workload.rank_sizes import SUMS
from planner.workload.units import units_of
from tests.workload.conftest import network_of

SHORTCUT = Network(
    "shortcut",
    (2, 4, 4),
    (
        Layer("conv1", "convolution", ("input",), {"channels": 4, "kernel": 3, "padding": 1}),
        Layer("relu1", "activation", ("conv1",)),
        Layer("conv2", "convolution", ("relu1",), {"channels": 4, "kernel": 3, "padding": 1}),
        Layer("add", "add", ("conv2", "relu1")),
        Layer("flat", "flatten", ("add",)),
        Layer("fc", "linear", ("flat",), {"features": 2}),
        Layer("loss", "loss", ("fc",)),
    ),
)
"""conv1: 4·(2·9 + 1) = 76 parameters, conv2: 4·(4·9 + 1) = 148, fc: 65·2 = 130; maps of 64 elements."""


def ledger_of(network: Network, precision: str = "fp32") -> Memory:
    return Memory(network, MemoryRules.of(precision, "sgd-momentum", PYTORCH))


def plans_of(stages: int, sub_batch: int, steps: int, schedule: str = "1f1b") -> Configurations:
    values = {"pipeline_parallel": stages, "sub_batch": sub_batch, "accumulation_steps": steps}
    return Configurations.having(**{name: np.array([value]) for name, value in values.items()}).but(
        schedule=np.array([SCHEDULES.index(schedule)])
    )


def memory(network: Network, cuts: list[int], plans: Configurations) -> SplitMemoryBytes:
    return ledger_of(network).of_cuts(np.array(cuts), plans)


def test_what_crosses_a_cut_is_made_before_and_read_behind() -> None:
    """Before conv2 and fc: the shortcut's sum is in conv2's unit; a flattened map is the map."""
    assert (ledger_of(SHORTCUT).whole.crossing / 4).tolist() == [32, 64, 64, 0]


def tensors_of(network: Network) -> dict[str, tuple[int, int, int | None, set[int]]]:
    """Return of each tensor its elements, the unit that makes it, the last that reads it, and those that keep it."""
    of = program(network)
    unit = np.searchsorted(units_of(network, of).starts, np.arange(len(network.layers)), side="right") - 1
    shapes, root = layer_shapes(network), {"input": "input"}
    found: dict[str, list[object]] = {"input": [prod(network.input_shape), -1, 0, set()]}
    for at, layer in enumerate(network.layers):
        kind, mine = LAYER_KINDS[layer.kind], int(unit[at])
        root[layer.name] = root[layer.inputs[0]] if kind.is_view else layer.name
        if not kind.is_view:
            found[layer.name] = [prod(shapes[layer.name]), mine, mine, set()]
        for source in layer.inputs:
            found[root[source]][2] = mine
        if of.sites[of.site[at]].has_gradient:
            inputs, output = kind.keeps(layer)
            for name in (*layer.inputs * inputs, *(layer.name,) * output):
                found[root[name]][3].add(mine)  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["resnet50", "googlenet", "alexnet", "inception-v3", "yolov3"])
def test_stages_of_any_cuts_keep_each_tensor_once(name: str) -> None:
    """Those that it is given, and those that its layers make and keep; the ledger against a set of tensors."""
    network = network_of(name)
    ledger, tensors = ledger_of(network), tensors_of(network)
    starts = [*units_of(network, program(network)).starts.tolist(), len(network.layers)]
    of = program(network)
    besides = [
        LAYER_KINDS[site.layer.kind].kept_besides(site, 4) * site.has_gradient
        for site in (of.sites[at] for at in of.site.tolist())
    ]
    number = len(starts) - 1
    for cut in ([0, 1, number], [0, number // 3, number // 2, number], [0, 2, 3, 5, number - 1, number]):
        for first, end in pairwise(cut):
            layers = StageLayers(np.array([first]), np.array([end]), np.array([0]))
            found = ledger.of_stages(plans_of(1, 1, 1), np.array([0]), layers)
            held = sum(
                size
                for size, made, last, keepers in tensors.values()
                if (made < first <= (last or 0)) or (made >= first and any(first <= one < end for one in keepers))
            )
            assert found.activations[0] == 4 * held + sum(besides[starts[first] : starts[end]]), (first, end)


def test_two_stages_by_hand() -> None:
    """Cut before fc, 2 samples, 3 micro-batches, of which the first stage keeps two: fp32, momentum of 4 bytes.

    It keeps the input and relu1, in place of conv1: 32 + 64 elements. The sum that fc reads is kept where fc is.
    """
    found = memory(SHORTCUT, [0, 2, 3], plans_of(2, 2, 3))
    assert found.stage[0] == 0
    assert found.weights[0] == found.gradients[0] == found.optimizer[0] == 4 * (76 + 148)
    assert found.messages[0] == 2 * 2 * 4 * 64
    assert found.activations[0] == 2 * 2 * 4 * (32 + 64)


def test_parameters_of_units_add_up() -> None:
    whole, of = ledger_of(network_of("resnet50")).whole, program(network_of("resnet50"))
    assert whole.sums[SUMS.index("shared")].sum() == of.parameters
    assert whole.sums.shape[1] == of.slot.size
    assert whole.crossing[0] == 4 * 3 * 224 * 224


def test_gpipe_keeps_all_micro_batches() -> None:
    few, many = (memory(SHORTCUT, [0, 2, 3], plans_of(2, 2, 8, schedule)) for schedule in ("1f1b", "gpipe"))
    assert many.activations[0] == 4 * few.activations[0]
    assert replace(many, activations=few.activations, margin=few.margin).total == pytest.approx(few.total)
