"""Kernels that frameworks run as one: bytes counted by hand from the published kernels."""

from __future__ import annotations

import numpy as np
import pytest

from planner import catalog
from planner.domain.framework import FUSIONS
from planner.domain.kernels import BACKWARD_DATA, FORWARD, MATRIX_KINDS, KernelCalls
from planner.workload.fusion import fused_calls
from planner.workload.lowering import lower
from planner.workload.program import program

LAYERS, HIDDEN, SEQUENCE, SAMPLES = 3, 64, 32, 2
GPT = f"gpt:layers={LAYERS},hidden={HIDDEN},heads=4,sequence={SEQUENCE},vocabulary=512"
LLAMA = f"llama:layers={LAYERS},hidden={HIDDEN},heads=4,kv_heads=4,ffn=96,sequence={SEQUENCE},vocabulary=512"
ELEMENTS = SAMPLES * SEQUENCE * HIDDEN


def calls_of(name: str, fuses: tuple[str, ...]) -> tuple[KernelCalls, ...]:
    network = catalog.find_network(name)
    return fused_calls(lower(network, np.array([SAMPLES])), program(network), fuses)


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
    assert fused_calls(plain, program(network), ()) is plain


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
