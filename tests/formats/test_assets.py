"""Files kept from every version must stay readable; broken ones must be refused with the place.

The walk below breaks every key of every example once, so that no declared rule goes untested.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.domain.cluster import Cluster
from planner.errors import InputFileError
from planner.formats.cluster import read_cluster
from planner.formats.runs import read_runs
from planner.formats.samples import read_samples
from planner.formats.schemas import KINDS

ASSETS = Path(__file__).parents[1] / "data" / "formats"
KEPT = sorted(path for path in ASSETS.glob("*/v*/*") if path.suffix != ".csv")
FILES = [path for path in KEPT if path.stem == "example"]
"""Those that are small enough to break each of their keys."""
FREE = {"settings", "environment", "sources", "network", "cluster", "source"}
"""Tables whose keys are the user's own."""


def document_of(path: Path) -> dict[str, Any]:
    parse = json.loads if path.suffix == ".json" else tomllib.loads
    document: dict[str, Any] = parse(path.read_text())
    return document


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def named(path: Path) -> str:
    return f"{path.parent.parent.name}-{path.parent.name}-{path.stem}"


def name(place: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")


def test_every_kind_has_an_example() -> None:
    assert {path.parent.parent.name for path in ASSETS.glob("*/v1/*")} == {*KINDS, "runs", "samples"}


@pytest.mark.parametrize("path", KEPT, ids=named)
def test_kept_file_reads_and_matches_its_schema(validate: Callable[[dict[str, Any], Any], str], path: Path) -> None:
    kind = KINDS[path.parent.parent.name]
    record = kind.read(path)
    if document_of(path)["version"] == kind.version:
        assert validate(kind.schema(), document_of(path)) == ""
    if kind.name != "cluster":  # its file is resolved with the accelerators, see test_cluster.py
        assert kind.parse(kind.dump(record), "again") == record


@pytest.mark.parametrize("path", FILES, ids=named)
def test_wrong_type_anywhere_is_refused_with_its_place(path: Path) -> None:
    kind, whole = KINDS[path.parent.parent.name], document_of(path)
    for place in places(whole):
        broken = copy.deepcopy(whole)
        parent: Any = broken
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = {"zzz": [[]]}
        with pytest.raises(InputFileError) as caught:
            kind.build(broken, "x")
        # Within alternatives the place is that of the value as a whole.
        assert name(place).startswith(caught.value.where) or caught.value.where.startswith(name(place))


@pytest.mark.parametrize("path", FILES, ids=named)
def test_unknown_key_anywhere_is_refused_with_its_place(path: Path) -> None:
    kind, whole = KINDS[path.parent.parent.name], document_of(path)
    for place in [(), *places(whole)]:
        broken = copy.deepcopy(whole)
        table: Any = broken
        for key in place:
            table = table[key]
        if not isinstance(table, dict) or (place and place[-1] in FREE):
            continue
        table["zzzz"] = {"zzz": [[]]}
        with pytest.raises(InputFileError) as caught:
            kind.build(broken, "x")
        assert name((*place, "zzzz")).startswith(caught.value.where)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_truncated_file_is_refused_with_a_line(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / path.name
    text = path.read_text()
    at = text.rindex("=") + 1 if path.suffix == ".toml" else len(text) // 2
    cut.write_text(text[:at])
    with pytest.raises(InputFileError, match=r": line [0-9]+: text must be"):
        KINDS[path.parent.parent.name].read(cut)


def test_kept_samples_runs_and_cluster_read() -> None:
    assert read_samples(ASSETS / "samples" / "v1" / "example.csv")[0].size == 6
    assert len(read_runs(ASSETS / "runs" / "v1" / "example.csv").rows) == 4
    cluster = read_cluster(ASSETS / "cluster" / "v1" / "example.toml", lambda _: pytest.fail("is described"))
    assert isinstance(cluster, Cluster)
    assert cluster.nodes == 48
