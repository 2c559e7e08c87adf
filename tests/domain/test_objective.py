from __future__ import annotations

import pytest

from planner.domain.objective import is_sum, weights_of
from planner.errors import ParameterError

BOUNDS = " above 0, from 1e-09 to 1e+15"


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("epoch-time", {"epoch-time": 1.0}),
        ("epoch-time:1+cost:0.2", {"epoch-time": 1.0, "cost": 0.2}),
        (" cost : 2 + epoch-time:1e+1", {"cost": 2.0, "epoch-time": 10.0}),
        ("cost:3", {"cost": 3.0}),
    ],
)
def test_each_term_has_its_weight(text: str, weights: dict[str, float]) -> None:
    assert weights_of(text) == weights
    assert is_sum(text) == (":" in text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cots:1", "term of X must be one of epoch-time, gpu-hours, cost, got 'cots'; did you mean 'cost'?"),
        (
            "cost:1+",
            ("term of X must be one of epoch-time, gpu-hours, cost, got nothing; "
            "write for example epoch-time:1+cost:0.2"),
        ),
        ("cost:1+cost:2", "X must be a sum with each term once, got 'cost:1+cost:2'"),
        ("cost+epoch-time:2", f"weight of cost in X must be a number{BOUNDS}, got nothing; write for example cost:1"),
        ("cost:0", f"weight of cost in X must be a number{BOUNDS}, got '0'; write for example cost:1"),
        ("cost:-1", f"weight of cost in X must be a number{BOUNDS}, got '-1'; write for example cost:1"),
        ("cost:nan", f"weight of cost in X must be a number{BOUNDS}, got 'nan'; write for example cost:1"),
        ("cost:1e999", f"weight of cost in X must be a number{BOUNDS}, got '1e999'; write for example cost:1"),
        ("cost:1+2", f"weight of cost in X must be a number{BOUNDS}, got '1+2'; write for example cost:1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, sentence: str) -> None:
    with pytest.raises(ParameterError) as caught:
        weights_of(text, "X")
    assert str(caught.value) == sentence
