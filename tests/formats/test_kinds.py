"""Formats and versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputFileError, VersionError
from planner.formats.documents import Kind
from planner.formats.fields import Field, Number, Table, Text

LINK = Kind(
    "link",
    "toml",
    Table(Field("rate_GBps", Number("GBps"), "rate", into="bytes_per_s"), Field("kind", Text(), "kind")),
)


def test_newer_version_is_refused_and_the_file_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    text = 'format = "planner/link"\nversion = 2\nnew = "key"\n'
    path.write_text(text)
    with pytest.raises(VersionError, match="version: value must be at most 1, got 2; the file is newer") as caught:
        LINK.read(path)
    assert caught.value.exit_code == 3
    assert path.read_text() == text


@pytest.mark.parametrize("version", ["0", "-1", "1.0", "true", '"1"'])
def test_version_must_be_a_whole_number(version: str) -> None:
    with pytest.raises(InputFileError, match="version: value must be 1, got"):
        LINK.parse(f'format = "planner/link"\nversion = {version}\nspeed = 2', "x")


@pytest.mark.parametrize("opening", ["", 'format = "planner/cluster"', "format = 1", 'format = "planner/lnk"'])
def test_format_must_be_that_of_the_kind(opening: str) -> None:
    with pytest.raises(InputFileError, match="format: value must be 'planner/link'"):
        LINK.parse(f"{opening}\nversion = 1\nspeed = 2", "x")


def test_place_and_path_are_in_the_sentence() -> None:
    with pytest.raises(InputFileError, match=r"^my\.toml: rate_GBps: value must be .*, got -2$"):
        LINK.parse('format = "planner/link"\nversion = 1\nrate_GBps = -2', "my.toml")


@pytest.mark.parametrize("version", ["", "version = 0"])
def test_of_a_format_with_one_version_the_rule_is_that_number(version: str) -> None:
    first = Kind("thing", "toml", Table(Field("name", Text(), "a name")))
    with pytest.raises(InputFileError, match=r"version: value must be 1, got (nothing|0)$"):
        first.parse(f'format = "planner/thing"\n{version}\nname = "a"\n', "x")
