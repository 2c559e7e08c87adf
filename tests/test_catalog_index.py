"""The index of bundled calibrations says where each entry stands, and is made anew when a file changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planner import catalog
from planner.catalog import bundled_index, read_bundled, read_part
from planner.catalog.bundled_index import BundledIndex, made_index
from planner.domain.calibration import Calibration
from planner.domain.cluster import Cluster, Node
from planner.sources.devices import completions

ACCELERATORS = catalog.BUNDLED / "accelerators"
WHOLE = BundledIndex(made_index(catalog.CALIBRATIONS, ACCELERATORS, final=True))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of one calibration whose text has signs of several bytes, and whose keys are in another order."""
    keys = json.loads((catalog.CALIBRATIONS / "t4.json").read_text())
    copy = {"source": "Größe →", "entries": keys.pop("entries"), **keys}
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "t4.json").write_text(json.dumps(copy, ensure_ascii=False))
    bundled_index.cache_clear()
    yield tmp_path / "some"
    bundled_index.cache_clear()


@pytest.mark.parametrize("name", WHOLE.calibrations)
def test_every_entry_stands_where_the_index_says(name: str) -> None:
    one, path = WHOLE.calibrations[name], catalog.CALIBRATIONS / f"{name}.json"
    whole = read_bundled(path)
    assert read_part(path, one, one.entries) == whole
    assert [place.kernel for place in one.entries] == [entry.key[1:4] for entry in whole.entries]
    assert (one.accelerator, one.cluster or None, one.origin) == (whole.accelerator, whole.cluster, whole.origin)


def test_places_are_counted_in_bytes_in_any_order_of_keys(folder: Path) -> None:
    one = BundledIndex(made_index(folder, ACCELERATORS)).calibrations["t4"]
    third = read_part(folder / "t4.json", one, one.entries[2:3])
    assert third.entries == catalog.find_calibration("t4").entries[2:3]
    assert third.source == catalog.find_calibration("t4").source


def test_an_index_is_kept_and_made_anew_when_a_file_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def counted(calibrations: Path, accelerators: Path) -> dict[str, object]:
        made.append(calibrations)
        return made_index(calibrations, accelerators)

    monkeypatch.setattr(catalog, "made_index", counted)

    def asked() -> BundledIndex:
        bundled_index.cache_clear()
        return bundled_index(folder, ACCELERATORS)

    assert asked().calibrations == asked().calibrations
    assert len(made) == 1
    os.utime(folder / "t4.json", ns=(0, 0))
    asked()
    assert len(made) == 2
    (folder / "u4.json").write_text((folder / "t4.json").read_text())
    assert "u4" in asked().calibrations
    (folder.parent / "some.index").write_text("{}")
    assert "u4" in asked().calibrations
    assert len(made) == 4


def test_where_no_index_can_be_kept_it_is_made_each_time(folder: Path) -> None:
    (folder.parent / "some.index").mkdir()
    assert "t4" in bundled_index(folder, ACCELERATORS).calibrations


def test_nothing_of_other_devices_is_read_but_what_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    wholes: list[str] = []
    parts: dict[str, int] = {}

    def recording(read: Callable[..., Calibration], note: Callable[..., object]) -> Callable[..., Calibration]:
        def recorded(path: Path, *arguments: object) -> Calibration:
            note(path, *arguments)
            return read(path, *arguments)

        return recorded

    monkeypatch.setattr(catalog, "read_bundled", recording(read_bundled, lambda path: wholes.append(path.stem)))
    note = lambda path, _, places: parts.update({path.stem: len(places)})  # noqa: E731
    monkeypatch.setattr(catalog, "read_part", recording(read_part, note))
    cluster = Cluster("one", 1, Node(1, catalog.find_accelerator("a100-sxm4-80gb")))
    known = catalog.calibrations_for(cluster)
    assert set(wholes) == {one.name for one in known}
    of_others = catalog.sibling_calibrations, catalog.nearest_calibrations
    found = list(completions(cluster, known, *of_others, catalog.transfer_scores()))
    assert set(wholes) == {one.name for one in known}
    assert len(found) == 3
    assert all(count < len(catalog.find_calibration(name).entries) for name, count in parts.items())
    assert len(parts) < 4
