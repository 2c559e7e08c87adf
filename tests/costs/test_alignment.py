"""Products whose contiguous sides are no multiple of 16 bytes, on devices whose matrix units want that."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.cli.main import main
from planner.costs.features import vector
from planner.costs.terms import evaluate
from planner.costs.work import MISALIGNED, aligned_bytes, misaligned_settings, slowdown, transposition
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator


def bundled(name: str) -> Accelerator:
    found = catalog.known_accelerator(name)
    assert found is not None
    return found


H200, A100, MI = (bundled(name) for name in ("h200-sxm-141gb", "a100-sxm4-80gb", "mi250x"))


def work(m: int, n: int, k: int, direction: str = "forward", *, itemsize: int = 2, batch: int = 1) -> dict[str, Any]:
    sides = {"m": m, "n": n, "k": k, "batch": batch}
    columns = {name: np.array([float(value)]) for name, value in sides.items()}
    return {**columns, **transposition("gemm", direction), "itemsize": float(itemsize)}


@pytest.mark.parametrize(
    ("sides", "direction", "itemsize", "expected"),
    [
        ((50257, 8192, 1024), "forward", 2, 2),  # rows of logits
        ((50264, 8192, 1024), "forward", 2, 16),
        ((50258, 8192, 1024), "forward", 2, 4),
        ((4096, 8191, 4096), "forward", 2, 16),  # samples lie along nothing contiguous
        ((1024, 8191, 50257), "backward_data", 2, 2),  # gradients of logits
        ((1024, 50257, 8191), "backward_weight", 2, 2),
        ((1024, 4096, 8191), "backward_weight", 2, 16),
        ((50258, 8192, 1024), "forward", 4, 8),
    ],
)
def test_the_sides_that_count_are_those_along_which_numbers_lie_side_by_side(
    sides: tuple[int, int, int], direction: str, itemsize: int, expected: int
) -> None:
    assert aligned_bytes(work(*sides, direction, itemsize=itemsize)).tolist() == [expected]


def test_only_matrix_units_of_hopper_and_later_want_sixteen_bytes() -> None:
    """8-bit products that are not aligned are refused by libraries, and CUDA cores take any."""
    assert {precision: bool(misaligned_settings(H200, precision)) for precision in ("fp32", "tf32", "bf16", "fp8")} == {
        "fp32": False, "tf32": True, "bf16": True, "fp8": False,
    }  # fmt: skip
    assert not misaligned_settings(A100, "bf16")
    assert not misaligned_settings(MI, "bf16")


def test_a_product_takes_as_many_times_as_long_as_its_entry_says() -> None:
    entry = Entry("kernels", "gemm", "forward", "bf16", "", "work.linear", {}, {"calls": 1e-6, "work": 1e-12})
    slow = replace(entry, settings=misaligned_settings(H200, "bf16"))
    odd, even, whole, batched = (work(m, 64, 64, batch=b) for m, b in ((1001, 1), (1002, 1), (1000, 1), (1001, 4)))
    by_4, by_2 = vector(slow.settings, MISALIGNED)
    for one, factor in ((odd, by_2), (even, by_4), (whole, 1.0), (batched, 1.0)):
        assert evaluate(slow, one) / evaluate(entry, one) == pytest.approx(factor)
    assert slowdown(odd, {}) == 1.0


@pytest.mark.parametrize(
    ("framework", "precision", "is_said"),
    [
        ("pytorch", "bf16", True),
        ("pytorch:compile", "bf16", False),
        ("megatron", "bf16", False),
        ("pytorch", "fp32", False),
    ],
)
def test_a_program_that_pads_neither_pays_nor_is_warned(
    framework: str,
    precision: str,
    capsys: pytest.CaptureFixture[str],
    *,
    is_said: bool,
) -> None:
    arguments = ["predict", "--cluster", "dgx-h100", "--nodes", "1", "--sub-batch", "8", "--json",
                 "--framework", framework, "--precision", precision, "--network"]  # fmt: skip
    assert main([*arguments, "gpt2"]) == 0
    said = capsys.readouterr().out
    assert ('"misaligned"' in said) == is_said
    assert ("a multiple of 8" in said and "50264" in said) == is_said


def warned(
    capsys: pytest.CaptureFixture[str], network: str, *, cluster: str, framework: str, precision: str
) -> dict[str, str]:
    """Return subject and message of every warning of sides and heads that fit no kernel."""
    arguments = ["predict", "--network", network, "--cluster", cluster, "--nodes", "1", "--sub-batch", "1", "--json"]
    assert main([*arguments, "--framework", framework, "--precision", precision]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    return {one["subject"]: one["message"] for one in warnings if one["code"] in ("misaligned", "head_size_padded")}


FUSED, APART = ("llama", "pytorch:compile"), ("gpt", "pytorch:compile")
"""Network and program: attention in one kernel, and by products and softmax."""


@pytest.mark.parametrize(
    ("width", "of", "precision", "sizes"),
    [
        (64, FUSED, "bf16", None),
        (100, FUSED, "bf16", (128, 128)),
        (132, FUSED, "fp16", (160, 192)),
        (132, ("gpt", "megatron-lm:flash-attention"), "bf16", (160, 192)),
        (192, FUSED, "fp16", None),
        (100, APART, "bf16", (104, 104)),
        (104, APART, "bf16", None),
        (100, APART, "tf32", None),
        (102, FUSED, "tf32", (104, 104)),
        (100, APART, "fp32", None),
    ],
)
def test_heads_that_no_kernel_is_made_for_are_named_with_the_next_size(
    capsys: pytest.CaptureFixture[str], width: int, of: tuple[str, str], precision: str, sizes: tuple[int, int] | None
) -> None:
    network = f"{of[0]}:layers=2,heads=8,hidden={8 * width},vocabulary=1024,sequence=128"
    found = warned(capsys, network, cluster="dgx-a100", framework=of[1], precision=precision)
    assert found.keys() == ({str(width)} if sizes else set())
    if sizes:
        assert f"computed as {sizes[0]} in {precision}" in found[str(width)]
        assert f"{sizes[1]} is the next size" in found[str(width)]


@pytest.mark.parametrize(
    ("vocabulary", "precision", "next_side"),
    [(50257, "fp16", 50264), (50257, "tf32", 50260), (50264, "fp16", 0), (50257, "fp32", 0)],
)
def test_a_side_that_matrix_units_take_slowly_is_named_on_every_generation(
    capsys: pytest.CaptureFixture[str], vocabulary: int, precision: str, next_side: int
) -> None:
    network = f"gpt:layers=1,heads=8,hidden=512,vocabulary={vocabulary}"
    found = warned(capsys, network, cluster="dgx-a100", framework="pytorch", precision=precision)
    assert found.keys() == ({str(vocabulary)} if next_side else set())
    assert all(f"{next_side}, a multiple of" in message for message in found.values())
    assert not warned(capsys, network, cluster="dgx-a100", framework="pytorch:compile", precision=precision)
