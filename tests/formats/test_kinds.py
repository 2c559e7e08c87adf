"""Formats, versions and upgrades."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputFileError, VersionError
from planner.formats.fields import Field, Table
from planner.formats.kinds import Kind
from planner.formats.values import Number, Text

# A history: 1 had a speed in GB/s called "speed"; 2 named its unit; 3 added a required kind.
HISTORY = Kind(
    "link",
    3,
    "toml",
    Table(
        (Field("rate_GBps", Number("GBps"), "rate", into="bytes_per_s"), Field("kind", Text(), "kind")), dict[str, Any]
    ),
    {1: lambda keys: {"rate_GBps": keys["speed"]}, 2: lambda keys: keys | {"kind": "unknown"}},
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("version = 1\nspeed = 2", "unknown"),
        ("version = 2\nrate_GBps = 2", "unknown"),
        ('version = 3\nrate_GBps = 2\nkind = "pcie"', "pcie"),
    ],
)
def test_every_older_version_is_upgraded_step_by_step(text: str, kind: str) -> None:
    assert HISTORY.parse(f'format = "planner/link"\n{text}', "x") == {"bytes_per_s": 2e9, "kind": kind}


def test_newer_version_is_refused_and_the_file_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    text = 'format = "planner/link"\nversion = 4\nnew = "key"\n'
    path.write_text(text)
    with pytest.raises(VersionError, match="version: value must be at most 3, got 4; the file is newer") as caught:
        HISTORY.read(path)
    assert caught.value.exit_code == 3
    assert path.read_text() == text


@pytest.mark.parametrize("version", ["0", "-1", "1.0", "true", '"1"'])
def test_version_must_be_a_whole_number(version: str) -> None:
    with pytest.raises(InputFileError, match="version: value must be a whole number from 1 to 3"):
        HISTORY.parse(f'format = "planner/link"\nversion = {version}\nspeed = 2', "x")


@pytest.mark.parametrize("opening", ["", 'format = "planner/cluster"', "format = 1", 'format = "planner/lnk"'])
def test_format_must_be_that_of_the_kind(opening: str) -> None:
    with pytest.raises(InputFileError, match="format: value must be 'planner/link'"):
        HISTORY.parse(f"{opening}\nversion = 1\nspeed = 2", "x")


def test_place_and_path_are_in_the_sentence() -> None:
    with pytest.raises(InputFileError, match=r"^my\.toml: rate_GBps: value must be .*, got -2$"):
        HISTORY.parse('format = "planner/link"\nversion = 2\nrate_GBps = -2', "my.toml")


@pytest.mark.parametrize("version", ["", "version = 0"])
def test_of_a_format_with_one_version_the_rule_is_that_number(version: str) -> None:
    first = Kind("thing", 1, "toml", Table((Field("name", Text(), "a name"),), dict[str, Any]))
    with pytest.raises(InputFileError, match=r"version: value must be 1, got (nothing|0)$"):
        first.parse(f'format = "planner/thing"\n{version}\nname = "a"\n', "x")
