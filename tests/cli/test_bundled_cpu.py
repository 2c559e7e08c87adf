"""The bundled calibration of a CPU is what its command makes of the samples that lie beside it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.domain.samples import COMMAND

NAME = "cpu-epyc-example"
SAMPLES = Path(__file__).parents[2] / "validation/samples" / NAME


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number and text of a document with its place."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(one, f"{path}/{key}")
    else:
        yield path, value


def test_it_is_made_again_within_rounding(run: Callable[..., tuple[int, str, str]]) -> None:
    made = run("calibrate", "--samples", str(SAMPLES), "--name", NAME, "--out", "again.json", "--json")
    assert made[0] == 0
    bundled = dict(leaves(json.loads(run("show", "calibrations", NAME, "--json")[1])))
    again = dict(leaves(json.loads(made[1])))
    assert COMMAND in catalog.find_calibration(NAME).environment
    assert again.keys() == bundled.keys()
    for place, value in again.items():
        same = pytest.approx(bundled[place], rel=1e-7) if isinstance(value, float) else bundled[place]
        assert value == same, place
