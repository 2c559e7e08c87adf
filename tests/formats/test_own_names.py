"""Files with names of bundled things: a copy may keep the name, what was edited needs one of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from planner import catalog
from planner.errors import InputFileError
from planner.formats.calibration import CALIBRATION
from planner.formats.cluster import write_cluster
from planner.formats.network import DATASET, NETWORK


def _copy(tmp_path: Path, text: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "copy.toml"
    path.write_text(text)
    return str(path)


def test_a_copy_of_a_bundled_thing_may_keep_its_name(tmp_path: Path) -> None:
    network, cluster = catalog.find_network("resnet50:stride=1x1"), catalog.find_cluster("dgx1-v100")
    assert catalog.find_network(_copy(tmp_path, NETWORK.dump(network))) == network
    assert catalog.find_cluster(_copy(tmp_path, write_cluster(cluster))) == cluster
    dataset = catalog.find_dataset("cifar-10")
    other_source = replace(dataset, source="my own words")
    assert catalog.find_dataset(_copy(tmp_path, DATASET.dump(other_source))) == other_source
    assert catalog.find_calibration(str(catalog.CALIBRATIONS / "t4.json")) == catalog.find_calibration("t4")


@pytest.mark.parametrize("name", ["resnet18", "resnet18:stride=1x1", "resnet18:no=such"])
def test_a_network_that_differs_from_the_bundled_one_of_its_name_is_refused(tmp_path: Path, name: str) -> None:
    text = NETWORK.dump(catalog.find_network("resnet18"))
    edits = ('name = "resnet18"', f'name = "{name}"'), ("features = 1000", "features = 10")
    with pytest.raises(InputFileError, match=rf"name: value must be a name of your own.*got '{name}'; call it .*-mine"):
        catalog.find_network(_copy(tmp_path, text, *edits))
    mine = catalog.find_network(_copy(tmp_path, text, ('name = "resnet18"', 'name = "mine"'), edits[1]))
    assert mine.name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("nodes = 1\n", "nodes = 2\n", "name: value must be a name of your own, as this cluster differs"),
        (
            "\nmemory_GiB = 16.0\n",
            "\nmemory_GiB = 32.0\n",
            "accelerator: value must be a name of your own.* 'v100-sxm2-16gb'",
        ),
    ],
)
def test_a_cluster_that_differs_from_the_bundled_one_of_its_name_is_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    text = write_cluster(replace(catalog.find_cluster("dgx1-v100"), nodes=1))
    bundled = write_cluster(catalog.find_cluster("dgx1-v100"))
    with pytest.raises(InputFileError, match=problem):
        catalog.find_cluster(_copy(tmp_path, bundled if "GiB" in old else text, (old, new)))


def test_a_data_set_that_differs_from_the_bundled_one_of_its_name_is_refused(tmp_path: Path) -> None:
    text = DATASET.dump(replace(catalog.find_dataset("cifar-10"), samples=7))
    with pytest.raises(InputFileError, match="as this data set differs from the bundled one of that name"):
        catalog.find_dataset(_copy(tmp_path, text))


def test_a_calibration_that_differs_from_the_bundled_one_of_its_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    other = replace(catalog.find_calibration("t4"), environment={"threads": "7"})
    path = catalog.own_calibration_file("t4", datetime(2026, 1, 1, tzinfo=UTC))
    path.parent.mkdir(parents=True)
    path.write_text(CALIBRATION.dump(other))
    with pytest.raises(InputFileError, match="as this calibration differs from the bundled one of that name"):
        catalog.find_calibration(str(path))
    told: list[InputFileError] = []
    assert catalog.newest_own_calibrations([other.accelerator], told.append) == ()
    assert len(told) == 1
