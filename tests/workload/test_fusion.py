"""Kernels that frameworks run as one: bytes counted by hand from the published kernels."""

from __future__ import annotations

import numpy as np
import pytest

from planner import catalog
from planner.domain.framework import FUSIONS
from planner.domain.kernels import BACKWARD_DATA, FORWARD, MATRIX_KINDS, KernelCalls
from planner.workload.calls import lower
from planner.workload.fusion import fused_calls, idle_fusions, uses_fused_softmax, with_attention
from planner.workload.program import program

LAYERS, HIDDEN, SEQUENCE, SAMPLES = 3, 64, 32, 2
GPT = f"gpt:layers={LAYERS},hidden={HIDDEN},heads=4,sequence={SEQUENCE},vocabulary=512"
LLAMA = f"llama:layers={LAYERS},hidden={HIDDEN},heads=4,kv_heads=4,ffn=96,sequence={SEQUENCE},vocabulary=512"
ELEMENTS = SAMPLES * SEQUENCE * HIDDEN


def calls_of(name: str, fuses: tuple[str, ...], itemsize: int = 4) -> tuple[KernelCalls, ...]:
    network = catalog.find_network(name)
    return fused_calls(lower(network, np.array([SAMPLES])), program(network), fuses, itemsize)


def moved(calls: tuple[KernelCalls, ...], kinds: tuple[str, ...], direction: str) -> tuple[float, float]:
    """Return elements of the working precision that kinds move, and their fixed bytes."""
    some = [one for one in calls if one.kind in kinds and one.direction == direction]
    traffic, fixed = (
        sum(float((one.work[name] * one.count).sum()) for one in some) for name in ("traffic", "fixed_bytes")
    )
    return traffic, fixed


def test_nothing_is_fused_unasked() -> None:
    network = catalog.find_network(GPT)
    plain = lower(network, np.array([SAMPLES]))
    assert fused_calls(plain, program(network), (), 2) is plain


def test_bias_and_gelu_are_one() -> None:
    before, after = (moved(calls_of(GPT, fuses), ("bias", "activation"), FORWARD) for fuses in ((), ("activation",)))
    assert before[0] - after[0] == LAYERS * 2 * 4 * ELEMENTS
    assert moved(calls_of(GPT, ("activation",)), ("activation",), FORWARD)[0] == LAYERS * 2 * 4 * ELEMENTS


def test_bias_dropout_and_residual_are_one() -> None:
    """Two sums a layer: 2E + (2E and a byte) + 3E become 3E and a byte; that of positions stays."""
    kinds = ("bias", "dropout", "add")
    before, after = (moved(calls_of(GPT, fuses), kinds, FORWARD) for fuses in ((), ("residual",)))
    assert before[0] - after[0] == LAYERS * 2 * 4 * ELEMENTS
    assert before[1] == after[1]


def test_backward_of_bias_dropout_and_gelu_stay() -> None:
    for kind in ("bias", "dropout", "activation"):
        before, after = (moved(calls_of(GPT, fuses), (kind,), BACKWARD_DATA) for fuses in ((), FUSIONS))
        assert before == after


def test_a_gate_and_its_product_are_one() -> None:
    inner = SAMPLES * SEQUENCE * 96
    for direction, saved in ((FORWARD, 5 - 3), (BACKWARD_DATA, 8 - 5)):
        apart, fused = (moved(calls_of(LLAMA, fuses), ("activation",), direction)[0] for fuses in ((), FUSIONS))
        assert apart - fused == pytest.approx(LAYERS * saved * inner)


def test_products_and_places_of_calls_stay() -> None:
    for one, other in zip(calls_of(GPT, ()), calls_of(GPT, FUSIONS), strict=True):
        assert (one.kind, one.direction, one.layer.tolist()) == (other.kind, other.direction, other.layer.tolist())
        if one.kind in MATRIX_KINDS:
            assert one.count.tolist() == other.count.tolist()


@pytest.mark.parametrize(
    ("queries", "keys", "batches", "causal", "fused"),
    [
        (2048, 2048, 96, True, True),
        (4096, 4096, 4, True, True),
        (8192, 8192, 4, True, False),  # too long
        (16, 16, 8, True, False),  # too short
        (1022, 1022, 8, True, False),  # not by 4
        (1024, 1024, 6, True, False),
        (128, 128, 8, True, True),  # two rows a warp of 4
        (128, 128, 12, True, False),
        (20, 20, 4, False, False),  # 8 rows a block do not divide 20
        (24, 20, 4, False, True),
    ],
)
def test_shapes_of_a_fused_softmax(queries: int, keys: int, batches: int, *, causal: bool, fused: bool) -> None:
    assert uses_fused_softmax(queries, keys, np.array([batches]), causal=causal).tolist() == [fused]


def test_a_softmax_that_is_not_fused_moves_what_its_kernels_do() -> None:
    """Of 5 heads, samples of 4 are fused; 32 scores a row, 29 bytes each forward and 33 backward."""
    network = catalog.find_network("gpt:layers=2,hidden=80,heads=5,sequence=32,vocabulary=512,attention=unfused")
    samples = np.array([3, 16])
    for itemsize, apart in ((2, [True, False]), (4, [False, False])):
        calls = fused_calls(lower(network, samples), program(network), ("softmax",), itemsize)
        for direction, each, passes in ((FORWARD, 29, 2), (BACKWARD_DATA, 33, 3)):
            one = next(c for c in calls if c.kind == "softmax" and c.direction == direction and c.layer.size)
            scores = samples * 5 * 32 * 32
            of_attention = one.work["elements"][:, 0].tolist() == scores.tolist()
            assert of_attention
            traffic, fixed = (
                np.broadcast_to(one.work[name], (2, one.layer.size))[:, 0] for name in ("traffic", "fixed_bytes")
            )
            assert traffic.tolist() == [
                0 if is_apart else passes * n for is_apart, n in zip(apart, scores, strict=True)
            ]
            assert fixed.tolist() == [each * n if is_apart else 0 for is_apart, n in zip(apart, scores, strict=True)]


@pytest.mark.parametrize(
    ("network", "idle"),
    [
        ("resnet50", {"activation", "residual", "softmax", "layer_norm", "attention"}),
        ("gpt2", {"norm"}),
        ("vgg16", {"residual", "softmax", "norm", "layer_norm", "attention"}),
    ],
)
def test_fusions_without_use_are_those_whose_layers_do_not_follow_each_other(network: str, idle: set[str]) -> None:
    assert set(idle_fusions(catalog.find_network(network), FUSIONS)) == idle


def test_a_layer_norm_takes_the_sum_before_it_in() -> None:
    """A pre-norm GPT: both norms of a block but the first have a sum before them, and the last one has.

    Positions are added in the embedding.
    """
    apart, together = (calls_of(GPT, fuses) for fuses in ((), ("layer_norm",)))
    sums, norms, positions = 2 * LAYERS * ELEMENTS, (2 * LAYERS + 1) * ELEMENTS, 3 * ELEMENTS
    assert moved(apart, ("add",), FORWARD)[0] == 3 * sums + positions
    assert moved(together, ("add",), FORWARD)[0] == pytest.approx(positions)
    assert moved(apart, ("layer_norm",), FORWARD)[0] == 2 * norms
    assert moved(together, ("layer_norm",), FORWARD)[0] == pytest.approx(2 * norms + 2 * sums)
    masked = calls_of(GPT, ("residual", "layer_norm"))
    assert moved(masked, ("add", "layer_norm"), FORWARD)[1] == pytest.approx(sums)  # a byte of each mask
    assert moved(apart, ("layer_norm",), BACKWARD_DATA) == moved(together, ("layer_norm",), BACKWARD_DATA)


def test_attention_in_one_kernel_is_that_of_the_network_that_has_it() -> None:
    unfused = catalog.find_network(f"{GPT},attention=unfused")
    fused = catalog.find_network(f"{GPT},attention=fused")
    assert with_attention(unfused, ()) is unfused
    assert with_attention(unfused, ("attention",)).layers == fused.layers
    assert with_attention(fused, ("attention",)) is fused
