"""Copies through the code that times a GPU's, here from memory to memory."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from planner.domain.samples import Samples
from planner.fitting.calibration import fit_input
from planner.probes.inputs import _copying, measure_copies
from planner.probes.precisions import import_torch

SIZES = (2**10, 2**14, 2**18)


def test_both_ways_are_timed_at_every_size() -> None:
    rows = measure_copies("cpu", 10.0, sizes=SIZES, memories=("pageable",))
    assert [(row["kind"], row["bytes"]) for row in rows] == [
        (kind, size) for size in SIZES for kind in ("host_to_device", "device_to_host")
    ]
    assert all(row["time_s"] > 0 for row in rows)
    entries, missing = fit_input(Samples.from_rows([dict(row) for row in rows], {}))
    assert [(one.kind, one.library) for one in entries] == [("copy", "pageable"), ("copy_back", "pageable")]
    assert missing == ()


def test_the_time_is_that_of_one_copy() -> None:
    """By a clock that moves 1 ms at every look, a block takes 1 ms: two copies fill one, each of half of that."""
    ticks = count(0.0, 1e-3)
    rows = measure_copies("cpu", 10.0, sizes=SIZES[:1], memories=("pageable",), clock=lambda: next(ticks))
    assert [row["time_s"] for row in rows] == pytest.approx([5e-4, 5e-4])


def test_no_copy_begins_after_the_time() -> None:
    ticks = count(0.0, 1.0)
    assert measure_copies("cpu", 0.5, sizes=SIZES, memories=("pageable",), clock=lambda: next(ticks)) == ()


def test_what_memory_does_not_hold_is_left_out() -> None:
    rows = measure_copies("cpu", 10.0, sizes=(2**10, 2**60), memories=("pageable",))
    assert [row["bytes"] for row in rows] == [2**10, 2**10]


def test_a_copy_arrives() -> None:
    torch = import_torch()
    here, there = torch.arange(8), torch.zeros(8, dtype=torch.int64)
    _copying(torch, there, here, "pageable")(1)
    assert torch.equal(here, there)


def test_copies_of_a_gpu_are_queued_and_waited_for_once() -> None:
    """With a GPU that only writes down what it is asked."""
    asked: list[Any] = []
    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda device: asked.append(f"wait {device.name}")))
    gpu = SimpleNamespace(device=SimpleNamespace(type="cuda", name="gpu"))
    gpu.copy_ = lambda _source, *, non_blocking: asked.append(non_blocking)
    host = SimpleNamespace(device=SimpleNamespace(type="cpu", name="host"))
    _copying(torch, gpu, host, "pinned")(3)
    _copying(torch, gpu, host, "pageable")(1)
    assert asked == [True, True, True, "wait gpu", False, "wait gpu"]
