"""Memory of stages of layers: by hand, and against that of the whole network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import find_network
from planner.domain.framework import PYTORCH
from planner.domain.network import Layer, Network
from planner.domain.split import SCHEDULES, SplitMemoryBytes, SplitPlans
from planner.workload.layer_memory import ChainMemory, ChainSizes, crossing_elements
from planner.workload.memory import memory_bytes
from planner.workload.memory_rules import ASSUMED_MARGIN, MemoryRules
from planner.workload.program import program
from planner.workload.units import units_of

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


def sizes_of(network: Network, precision: str = "fp32", convolution: str = "direct") -> ChainSizes:
    of = program(network)
    return ChainSizes.of(of, units_of(network, of).starts, precision, convolution)


def rules_of(precision: str) -> MemoryRules:
    return MemoryRules.of(precision, "sgd-momentum", PYTORCH)


def plans_of(stages: int, sub_batch: int, steps: int, schedule: str = "1f1b") -> SplitPlans:
    values = {"pipeline_parallel": stages, "sub_batch": sub_batch, "accumulation_steps": steps}
    return SplitPlans.of(**{name: np.array([value]) for name, value in values.items()}).but(
        schedule=np.array([SCHEDULES.index(schedule)])
    )


def memory(network: Network, cuts: list[int], plans: SplitPlans, precision: str = "fp32") -> SplitMemoryBytes:
    return ChainMemory(sizes_of(network, precision), rules_of(precision), "sgd-momentum").fullest(np.array(cuts), plans)


def test_what_crosses_a_cut_is_made_before_and_read_behind() -> None:
    """Before conv2 and before the sum the shortcut crosses, too; a flattened map is the map."""
    assert crossing_elements(SHORTCUT, program(SHORTCUT)).tolist() == [32, 64, 64, 128, 64, 64, 2]
    assert sizes_of(SHORTCUT).crossing.tolist() == [32, 64, 64, 0]


def test_a_shortcut_crosses_every_stage_that_it_passes() -> None:
    resnet = find_network("resnet50")
    names = [layer.name for layer in resnet.layers]
    reads = {layer.name: layer.inputs for layer in resnet.layers}
    shapes = dict(zip(names, program(resnet).site.tolist(), strict=True))
    crossing = crossing_elements(resnet, program(resnet))
    for at in range(1, len(names)):
        cut = {source for name in names[at:] for source in reads[name]} & set(names[:at])
        views = {name for name in cut if resnet.layers[names.index(name)].kind == "flatten"}
        assert crossing[at] == sum(program(resnet).sites[shapes[name]].output_elements for name in cut), (at, views)


@pytest.mark.parametrize("name", ["resnet50", "alexnet", "vgg16"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("convolution", ["direct", "im2col"])
def test_one_stage_needs_what_the_whole_network_does(name: str, precision: str, convolution: str) -> None:
    network, sizes = find_network(name), sizes_of(find_network(name), precision, convolution)
    whole = memory_bytes(
        network, np.array([4]), precision, "sgd-momentum", "gpu", convolution=convolution, framework=PYTORCH
    )
    of = ChainMemory(sizes, rules_of(precision), "sgd-momentum")
    one = of.fullest(np.array([0, sizes.parameters.size]), plans_of(1, 4, 3))
    for kind in ("weights", "gradients", "optimizer", "activations", "workspace", "framework"):
        assert getattr(one, kind)[0] == pytest.approx(getattr(whole, kind)[0], rel=1e-12), kind
    assert one.messages[0] == 0
    assert one.margin[0] == pytest.approx(ASSUMED_MARGIN * (whole.total - whole.framework)[0], rel=1e-12)


def test_two_stages_by_hand() -> None:
    """Cut before fc, 2 samples, 3 micro-batches, of which the first stage keeps two: fp32, momentum of 4 bytes.

    It keeps input, relu1 (in place of conv1), and the sum that fc reads, beside what it sends: 32 + 64 + 64 elements.
    """
    found = memory(SHORTCUT, [0, 2, 3], plans_of(2, 2, 3))
    assert found.stage[0] == 0
    assert found.weights[0] == found.gradients[0] == found.optimizer[0] == 4 * (76 + 148)
    assert found.messages[0] == 2 * 2 * 4 * 64
    kept = float(sizes_of(SHORTCUT).kept_bytes[:2].sum())
    assert found.activations[0] == 2 * 2 * (kept + 4 * 32)


def test_parameters_and_activations_of_stages_add_up() -> None:
    sizes = sizes_of(find_network("resnet50"))
    of = program(find_network("resnet50"))
    assert sizes.parameters.sum() == of.parameters
    assert sizes.parameters.size == of.slot.size
    assert sizes.crossing[0] == 3 * 224 * 224


def test_gpipe_keeps_all_micro_batches() -> None:
    few, many = (memory(SHORTCUT, [0, 2, 3], plans_of(2, 2, 8, schedule)) for schedule in ("1f1b", "gpipe"))
    assert many.activations[0] == 4 * few.activations[0]
    assert replace(many, activations=few.activations, margin=few.margin).total == pytest.approx(few.total)
