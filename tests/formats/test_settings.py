"""planner.toml and request files."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.options import OPTIONS
from planner.errors import InputFileError
from planner.formats.parts import OPTION_KEYS, REQUEST, SETTINGS


def test_keys_are_names_of_options() -> None:
    assert set(OPTION_KEYS) < set(OPTIONS)


def test_values_stay_text_numbers_and_lists(assets: Path) -> None:
    expected = {
        "network": "alexnet", "cluster": "tsubame-kfc", "mode": ["sync", "async"], "nodes": 4, "sub_batch": "1:11",
        "tolerance": 0.25,
    }  # fmt: skip
    assert REQUEST.read(assets / "request" / "v1" / "example.toml") == expected
    assert SETTINGS.read(assets / "settings" / "v1" / "example.toml") == expected
    assert REQUEST.parse(REQUEST.dump(expected), "x") == expected


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("gpus-per-node = 8", "gpus-per-node: key must be a known one.*'gpus_per_node'"),
        ("nods = 8", "nods: key must be a known one, got 'nods'; did you mean 'nodes'"),
        ("nodes = -8", "nodes: value must be"),
        ("nodes = nan", "nodes: value must be"),
        ("nodes = []", "nodes: value must be"),
        ('network = ""', "network: value must be"),
        ("[nodes]\nleast = 1", "nodes: value must be"),
    ],
)
def test_mistakes_name_the_key(line: str, sentence: str) -> None:
    with pytest.raises(InputFileError, match=sentence):
        SETTINGS.parse(f'format = "planner/settings"\nversion = 1\n{line}', "planner.toml")
