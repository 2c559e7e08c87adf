"""What columns of feature maps say of themselves."""

from __future__ import annotations

import pytest

from planner.costs.features import (
    BYTE,
    CALL,
    CUDA_CORES,
    ELEMENT,
    FLOP,
    HOST,
    INTER_NODE,
    INTRA_NODE,
    MESSAGE,
    MULTIPROCESSOR,
    NUMBER,
    POINT,
    SECOND,
    WORK,
    Column,
    Settings,
)
from planner.costs.terms import TERMS

SETTINGS: dict[str, Settings] = {
    "gemm.tiles": {"multiprocessors": 8.0, "batched_apart": 1.0},
    "gemm.interpolation": {"m": (1.0, 2.0), "n": (1.0,), "k": (3.0,)},
    "gaussian.process": {"mean": "work.linear", "points": (1.0, 2.0), "lengths": (1.0,)},
    "convolution.classes": {"oblong_apart": 1.0},
    "cpu.convolution": {"depthwise_apart": 2.0},
    "cpu.product": {"batched_apart": 1.0},
    "collective.cases": {"cases": (1.0, 4.0, 2.0, 4.0), "form": "segments", "breaks_1x4": (9.0,), "breaks_2x4": ()},
}
QUANTITIES = {CALL, FLOP, BYTE, ELEMENT, MESSAGE, SECOND, WORK, NUMBER, POINT}
LINKS = {INTRA_NODE, INTER_NODE, HOST}


def columns_of(name: str) -> tuple[Column, ...]:
    return TERMS[name].columns(SETTINGS.get(name, {}))


@pytest.mark.parametrize("name", TERMS)
def test_every_column_counts_something_under_a_name_of_its_own(name: str) -> None:
    columns = columns_of(name)
    assert len({one.name for one in columns}) == len(columns)
    assert {one.quantity for one in columns} <= QUANTITIES
    assert {one.quantity for one in columns if one.link in (CUDA_CORES, MULTIPROCESSOR)} <= {FLOP}
    assert {one.quantity for one in columns if one.call_class} <= {FLOP}
    assert set(TERMS[name].stated) <= {one.name for one in columns if one.quantity in (NUMBER, SECOND)}


@pytest.mark.parametrize(
    "name", [name for name in TERMS if name.startswith("collective.") and name != "collective.overlap"]
)  # which sends nothing
def test_whatever_a_collective_sends_names_its_link(name: str) -> None:
    assert {one.link for one in columns_of(name) if one.quantity != NUMBER} <= LINKS


def test_cases_are_of_the_link_that_they_cross() -> None:
    links = {one.name: one.link for one in columns_of("collective.cases")}
    assert (links["1x4_step_0"], links["2x4_calls"], links["unmeasured"]) == (INTRA_NODE, INTER_NODE, "")
