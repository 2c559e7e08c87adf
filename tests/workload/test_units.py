"""Units of networks, which no pipeline divides: counted by hand, and adding up to the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.catalog import find_network
from planner.domain.configuration import Configurations
from planner.domain.framework import DEALS, Framework
from planner.domain.split import even_layers
from planner.workload.lawful import starts_even
from planner.workload.program import program
from planner.workload.shards import tensor_shard
from planner.workload.units import stage_units, units_of

GPT = find_network("gpt:layers=5,hidden=64,heads=4,sequence=32,vocabulary=128")
H = 64
BLOCK = 12 * H * H + 13 * H
"""Parameters: 12h² of weights, 9h of biases, 4h of norms."""


def test_equal_blocks_are_one_unit_and_ends_their_own() -> None:
    """The last block's sum is read once, by the norm behind it; those of others twice, so that gradients meet."""
    units = units_of(GPT, program(GPT))
    assert units.sequence.tolist() == [0, 1, 1, 1, 1, 2, 3]
    assert units.layers.tolist() == [2, 12, 12, 3]
    assert units.slots.tolist() == [1, 6, 6, 1]
    assert units.parameters.tolist() == [128 * H + 32 * H, BLOCK, BLOCK, 2 * H]
    kinds = [layer.kind for layer in GPT.layers]
    assert [kinds[at] for at in np.flatnonzero(units.is_attention)] == ["attention"] * 5
    assert np.array_equal(units.repeats_attention, units.is_attention)


def test_experts_are_told_from_other_parameters() -> None:
    moe = find_network("moe:layers=2,hidden=64,heads=4,sequence=32,vocabulary=128,experts=4,expert_ffn=16")
    units = units_of(moe, program(moe))
    assert units.experts.tolist() == [0, 3 * 64 * 16 * 4, 3 * 64 * 16 * 4, 0]


def test_fused_attention_keeps_nothing_that_is_made_again() -> None:
    fused = find_network("gpt:layers=2,hidden=64,heads=4,sequence=32,vocabulary=128,attention=fused")
    units = units_of(fused, program(fused))
    assert (units.is_attention.sum(), units.repeats_attention.sum()) == (2, 0)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_hold_all_units_once_the_first_ones_more(stages: int) -> None:
    units = units_of(GPT, program(GPT))
    held = stage_units(units, stages)
    assert held.sum(axis=0).tolist() == [1, 4, 1, 1]
    assert (held[:, 1] + held[:, 2]).tolist() == {1: [5], 2: [3, 2], 3: [2, 2, 1], 5: [1] * 5}[stages]
    assert (held[0, 0], held[-1, 2], held[-1, 3]) == (1, 1, 1)
    assert (held @ units.parameters).sum() == program(GPT).parameters


def test_what_units_take_adds_up_to_what_layers_take() -> None:
    of = program(GPT)
    units = units_of(GPT, of)
    layer = np.array([site.position for site in of.sites])
    totals = np.random.default_rng(3).random((4, layer.size))
    by_unit = totals @ units.share[of.site[layer]]
    assert by_unit @ np.bincount(units.sequence) == pytest.approx(totals.sum(axis=1), rel=1e-12)
    assert by_unit == pytest.approx(of.by_segment(totals, layer) @ units.segments.T, rel=1e-12)


def test_units_of_a_shard_stand_at_the_same_layers() -> None:
    shard = tensor_shard(GPT, 4)
    units = units_of(GPT, program(shard))
    weights = 12 * H * H // 4 + (3 * H + 4 * H) // 4 + 2 * H + 4 * H
    assert units.parameters.tolist() == [128 // 4 * H + 32 * H, weights, weights, 2 * H]


def test_stacks_that_differ_are_apart() -> None:
    t5 = find_network("t5:layers=3,hidden=64,heads=4,head_size=16,sequence=32,vocabulary=128")
    units = units_of(t5, program(t5))
    # The first layer of a stack has the table of relative positions, the last is read by a norm alone.
    assert units.sequence.tolist() == list(range(2 + 6))


def test_units_of_a_network_without_blocks_start_with_its_layers_with_parameters() -> None:
    """Equal ones are one; two 512-channel convolutions of vgg16 behind each other are."""
    vgg = find_network("vgg16")
    units = units_of(vgg, program(vgg))
    assert [vgg.layers[at].kind for at in units.starts] == ["convolution"] * 13 + ["linear"] * 3
    assert units.starts[0] == 0
    assert units.distinct < units.sequence.size == 16
    assert units.parameters[units.sequence].sum() == program(vgg).parameters
    assert units.layers[units.sequence].sum() == len(vgg.layers)
    assert units.dealt.tolist() == units.sequence.tolist()


@given(st.integers(1, 140), st.integers(1, 20), st.integers(1, 6), st.sampled_from(DEALS))
def test_even_stages_hold_what_the_programs_chunks_add_up_to(blocks: int, stages: int, chunks: int, deals: str) -> None:
    """Chunks are dealt out one after the other, as each program does, and chunk j lies on stage j mod p."""
    number, framework = stages * chunks, Framework("own", deals=deals)
    plans = Configurations.having(pipeline_parallel=stages, virtual_stages=chunks)
    assume(stages <= blocks and (chunks == 1 or stages > 1) and bool(starts_even(blocks, framework, plans).all()))
    if deals == "equal":  # all but the first and the last are full
        each = -(-blocks // number)
        held = np.full(number, each)
        short = each * number - blocks
        held[0] -= short // 2
        held[-1] -= short - short // 2
    else:
        ends = 2 * (deals == "ends")
        held = np.full(number, (blocks + ends) // number) + (np.arange(number) < (blocks + ends) % number)
        held[0] -= ends // 2
        held[-1] -= ends // 2
    assert (held.sum(), held.min() >= 0) == (blocks, True)
    of_stage = held.reshape(chunks, stages).sum(axis=0)
    layers = even_layers(blocks, np.array(stages), np.arange(stages), deals)
    assert layers.again.tolist() == of_stage.tolist()
    assert (layers.first.tolist(), int(layers.end[-1])) == ([0, *np.cumsum(of_stage)[:-1]], blocks)


@pytest.mark.parametrize(("name", "most"), [("resnet110", 60), ("vgg16", 5)])
def test_very_deep_networks_are_cut_where_least_crosses(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNets between their blocks, chains anywhere; units have all that the network has."""
    network = find_network(name)
    fine = units_of(network, program(network))
    monkeypatch.setattr("planner.workload.units.MOST_UNITS", most)
    units = units_of(network, program(network))
    assert most / 2 < units.sequence.size <= most < fine.sequence.size
    if name == "resnet110":
        blocks = [f"stage{stage}.{number}.conv1" for stage in (1, 2, 3) for number in range(1, 19)]
        assert [network.layers[at].name for at in units.starts] == ["conv1", "conv1.norm", *blocks, "fc"]
    for count in ("layers", "slots", "parameters"):
        both = [getattr(one, count)[one.sequence].sum() for one in (units, fine)]
        assert both[0] == both[1]


def test_a_network_of_thousands_of_layers_has_units_that_can_be_compared() -> None:
    network = find_network("resnet5000")
    assert units_of(network, program(network)).sequence.size == 2 + 3 * 833 + 1
