from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import catalog
from planner.costs.specified import (
    ASSUMED_BYTES_EFFICIENCY,
    ASSUMED_LAUNCH_S,
    ATTENTION_EFFICIENCY,
    specified_entry,
)
from planner.costs.terms import TERMS, evaluate
from planner.costs.work import HEAD_SIZES, attended_pairs, flop, kernel_width, moved_bytes, work_amount
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator
from planner.domain.kernels import BACKWARD_DATA, FORWARD

WORK = {"batch": 6, "queries": 5, "keys": 7, "width": 32, "causal": 0, "itemsize": 2}
GPU = Accelerator("gpu", "gpu", 16e9, 900e9, {"fp32": 15e12, "fp16": 120e12}, 80)


def features(work: dict[str, int], **settings: float | str) -> dict[str, float]:
    term = TERMS["attention.blocks"]
    return dict(zip(term.names(settings), term.features(work, settings).tolist(), strict=True))


def test_flop_and_bytes_by_hand() -> None:
    """4·b·q·k·w forward and 2.5 times that backward; q, k, v, o, and backward their gradients."""
    assert flop(WORK) == work_amount(WORK) == 4 * 6 * 5 * 7 * 32
    assert flop(WORK, BACKWARD_DATA) == 2.5 * flop(WORK, FORWARD)
    once = 6 * (5 + 7 + 7 + 5) * 32
    assert moved_bytes(WORK) == 2 * once + 4 * 6 * 5
    assert moved_bytes(WORK, BACKWARD_DATA) == 2 * 2 * once + 4 * 6 * 5


@given(st.integers(1, 40), st.integers(1, 40))
def test_causal_pairs_are_those_at_and_below_the_diagonal(queries: int, keys: int) -> None:
    mask = np.tril(np.ones((queries, keys)))
    pairs = attended_pairs(np.array(float(queries)), np.array(float(keys)), np.array([0.0, 1.0]))
    assert pairs.tolist() == [mask.size, mask.sum()]


def test_blocks_are_counted_whole() -> None:
    """300 queries and keys are 3 x 3 blocks of 128, 6 of them at and below the diagonal."""
    work = WORK | {"queries": 300, "keys": 300}
    full, causal = features(work), features(work | {"causal": 1})
    assert full["pairs"] == 6 * 300**2
    assert full["block_flop"] == 4 * 6 * 32 * 9 * 128**2
    assert causal["pairs"] == 6 * 300 * 301 / 2
    assert causal["block_flop"] == pytest.approx(4 * 6 * 32 * 6 * 128**2)
    assert "wave_flop" not in full


def test_blocks_come_in_waves() -> None:
    """6 heads of 3 blocks of queries are 18 blocks: two waves of 16 processors."""
    work = WORK | {"queries": 300, "keys": 300}
    found = features(work, multiprocessors=16.0, direction=BACKWARD_DATA)
    assert found["wave_flop"] == pytest.approx(found["block_flop"] * 32 / 18)
    assert found["flop"] == 10 * 6 * 300**2 * 32


@given(st.integers(1, 600), st.integers(1, 600), st.sampled_from([0, 1]))
def test_whole_blocks_are_never_less_than_the_flop(queries: int, keys: int, causal: int) -> None:
    found = features(WORK | {"queries": queries, "keys": keys, "causal": causal})
    assert found["block_flop"] >= found["flop"] * (1 - 1e-12)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD_DATA])
def test_specification_is_the_roofline_of_the_direction(direction: str) -> None:
    entry = specified_entry(GPU, "attention", direction, "fp16")
    assert entry is not None
    assert "of the peak rate" in entry.notes
    long, short = (WORK | {"queries": s, "keys": s, "width": 64} for s in (4096, 8))
    compute = flop(long, direction) / (ATTENTION_EFFICIENCY["other"] * 120e12)
    memory = moved_bytes(short, direction) / (ASSUMED_BYTES_EFFICIENCY * 900e9)
    np.testing.assert_allclose(evaluate(entry, long), compute + ASSUMED_LAUNCH_S)
    np.testing.assert_allclose(evaluate(entry, short), memory + ASSUMED_LAUNCH_S)


@given(st.integers(1, 256))
def test_a_head_is_computed_at_the_next_size_that_kernels_are_made_for(width: int) -> None:
    size = int(kernel_width(np.array([float(width)]))[0])
    assert size == min(one for one in HEAD_SIZES if one >= width)
    work = WORK | {"queries": 256, "keys": 256}
    own, whole = features(work | {"width": width}, between_sizes=1.0), features(work | {"width": size})
    assert own["block_flop"] == pytest.approx(whole["block_flop"])
    assert own["between_sizes_flop"] == (0 if width == size else own["block_flop"])
    entry = specified_entry(GPU, "attention", FORWARD, "fp16")
    assert entry is not None
    long = work | {"queries": 8192, "keys": 8192}
    assert evaluate(entry, long | {"width": width}) == pytest.approx(evaluate(entry, long | {"width": size}))


@pytest.mark.parametrize(
    ("gpu", "precision", "direction", "share"),
    [
        ("a100-sxm4-80gb", "fp16", FORWARD, "Ampere"),
        ("rtx-3090", "bf16", BACKWARD_DATA, "Ampere"),
        ("h100-pcie-80gb", "bf16", FORWARD, "Hopper"),
        ("v100-sxm2-16gb", "fp16", FORWARD, "other"),
        ("t4", "fp16", BACKWARD_DATA, "other"),
    ],
)
def test_attention_is_specified_by_the_generation_of_its_kernels(
    gpu: str, precision: str, direction: str, share: str
) -> None:
    entry = specified_entry(catalog.find_accelerator(gpu), "attention", direction, precision)
    assert entry is not None
    assert entry.settings["flop_efficiency"] == ATTENTION_EFFICIENCY[share]


@pytest.mark.parametrize(
    ("gpu", "precision"), [("p100-pcie-16gb", "fp16"), ("a100-sxm4-80gb", "fp32"), ("v100-sxm2-16gb", "fp32")]
)
def test_attention_on_cuda_cores_is_specified_as_products_are(gpu: str, precision: str) -> None:
    device = catalog.find_accelerator(gpu)
    attention, product = (specified_entry(device, kind, FORWARD, precision) for kind in ("attention", "gemm"))
    assert attention is not None
    assert product is not None
    assert attention.settings["flop_efficiency"] == product.settings["flop_efficiency"]


def test_no_time_is_below_the_peaks_of_the_direction() -> None:
    term = TERMS["attention.blocks"]
    settings: dict[str, float | str | tuple[float, ...]]
    settings = {"direction": BACKWARD_DATA, "peak_flop_per_s": 1e12, "peak_bytes_per_s": 1e15}
    nothing = dict.fromkeys(term.names(settings), 0.0)
    entry = Entry("kernels", "attention", BACKWARD_DATA, "fp16", "", "attention.blocks", settings, nothing)
    assert evaluate(entry, WORK) == flop(WORK, BACKWARD_DATA) / 1e12
