from __future__ import annotations

from typing import Any

import pytest

from planner.domain.configuration import Configuration, Configurations
from planner.domain.suggestion import Plan
from planner.search.choice import deciding_plans


def plans(machine: Any, modes: str) -> list[Plan]:
    """Return plans, at positions from 1: s synchronous, a asynchronous."""
    configurations = [
        Configuration(1, 2, at, 1, "fp32", {"s": "sync", "a": "async"}[mode]) for at, mode in enumerate(modes, 1)
    ]
    predictions = machine.describe(Configurations.of(configurations), lambda _: (0.0, 1.0))
    return [Plan(at, one, "") for at, one in enumerate(predictions, 1)]


@pytest.mark.parametrize(
    ("modes", "chosen", "positions"),
    [
        ("ss", 1, (1, 2)),
        ("sssss", 2, (1, 2, 3)),
        ("sssss", 5, (1, 2, 5)),
        ("s", 1, ()),
        ("asas", 4, (2, 4)),
        ("ass", 1, ()),
        ("sa", 1, ()),
    ],
)
def test_the_first_tied_plans_and_the_chosen_one_are_run(
    machine: Any, modes: str, chosen: int, positions: tuple[int, ...]
) -> None:
    tied = plans(machine, modes)
    assert deciding_plans(tied, tied, tied[chosen - 1]) == positions


def test_plans_that_are_not_reported_are_not_run(machine: Any) -> None:
    tied = plans(machine, "sssss")
    assert deciding_plans(tied, [tied[0], tied[3]], tied[3]) == (1, 4)
    assert deciding_plans(tied, tied[:1], tied[0]) == ()
