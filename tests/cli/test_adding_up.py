"""Calibrations add up, entry by entry: named ones in order, this machine's own, bundled ones, the data sheet."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.domain.calibration import Calibration, Entry, SettingValue
from planner.domain.cluster import Node
from planner.formats.calibration import CALIBRATION

Run = Callable[..., tuple[int, str, str]]
V100 = "v100-sxm2-16gb"
VGG = ("predict", "--network", "vgg16", "--cluster", "dgx1-v100", "--sub-batch", "32", "--nodes", "2", "--json")


def links(name: str, s_per_byte: float) -> Calibration:
    """Return a calibration of two nodes of 8 V100 that holds all-reduce alone."""
    cases: dict[str, SettingValue] = {
        "form": "segments",
        "cases": (1.0, 8.0, 2.0, 8.0),
        "breaks_1x8": (),
        "breaks_2x8": (),
    }
    slope = {"1x8_calls": 1e-5, "1x8_bytes_0": 1e-11, "2x8_calls": 1e-4, "2x8_bytes_0": s_per_byte, "unmeasured": 0.0}
    entry = Entry("collectives", "all_reduce", "", "", "", "collective.cases", cases, slope)
    return Calibration(name, V100, (entry,), node=Node(8, catalog.find_accelerator(V100)))


@pytest.fixture
def files() -> tuple[str, str]:
    """Write two files of measured links, of which the second is ten times slower."""
    for one in (links("quick", 1e-10), links("slow", 1e-9)):
        Path(f"{one.name}.json").write_text(CALIBRATION.dump(one))
    return "quick.json", "slow.json"


def answer(run: Run, *arguments: str) -> tuple[Any, str]:
    code, out, err = run(*arguments)
    assert code == 0, err
    return json.loads(out), err


def served(found: Any) -> dict[str, str]:
    return {term["name"]: found["sources"][term.get("source", 0)].get("calibration", "") for term in found["terms"]}


def test_own_links_go_with_bundled_kernels_and_the_first_named_serves(run: Run, files: tuple[str, str]) -> None:
    plain = served(answer(run, *VGG)[0])
    for first, second, times in ((*files, "7.2"), (*files[::-1], "0.14")):
        found, err = answer(run, *VGG, "--calibration", first, "--calibration", second)
        assert served(found) == plain | {"all_reduce": Path(first).stem}
        words = (
            f"between nodes are those of {Path(first).stem}, named first: in {Path(second).stem} 1 MiB takes all-reduce"
        )
        assert f"{words} {times} times as long\n" in err
        assert "inside nodes" not in err
    assert "named first" not in answer(run, *VGG, "--calibration", files[0])[1]
    code, _, err = run(*VGG, "--calibration", files[0], "--only-calibration")
    assert (code, "must be covered by a calibration of v100" in err) == (5, True)


def test_own_links_go_with_asynchronous_training(run: Run, files: tuple[str, str]) -> None:
    found, _ = answer(run, *VGG[:-1], "--mode", "async", "--framework", "sprint", "--calibration", files[0], "--json")
    source = next(one.get("source", 0) for one in found["terms"] if one["name"] == "update_gradient")
    assert found["sources"][source]["origin"] == "specified"


def test_links_alone_imply_as_many_nodes_as_they_join(run: Run, files: tuple[str, str]) -> None:
    found, _ = answer(run, *VGG[:3], *VGG[5:], "--calibration", files[0])
    assert (found["subject"]["cluster"], found["configuration"]["gpus"]) == ("local", 16)
    assert served(found)["all_reduce"] == "quick"


def test_a_device_that_was_calibrated_is_known_to_cluster_files(run: Run, files: tuple[str, str]) -> None:
    made = links("made-up", 1e-9)
    assert made.node is not None
    device = replace(made.node.accelerator, name="made-up-gpu")
    text = CALIBRATION.dump(replace(made, accelerator=device.name, node=Node(1, device)))
    Path("device.json").write_text(text)
    lines = ('format = "planner/cluster"', "version = 1", 'name = "mine"', "nodes = 1", "node = {{gpus = 1, gpu = {}}}")
    asked = ("predict", "--network", "vgg16", "--cluster", "mine.toml", "--sub-batch", "8", "--json")
    Path("mine.toml").write_text("\n".join(lines).format('"device.json"'))
    by_file = answer(run, *asked)[0]
    catalog.own_calibrations_folder().mkdir(parents=True)
    (catalog.own_calibrations_folder() / "20260101T000000-made-up.json").write_text(text)
    Path("mine.toml").write_text("\n".join(lines).format('"made-up-gpu"'))
    assert answer(run, *asked)[0]["iteration_s"] == by_file["iteration_s"]
    Path("device.json").write_text(CALIBRATION.dump(replace(made, node=None)))
    Path("mine.toml").write_text("\n".join(lines).format('"device.json"'))
    code, _, err = run(*asked)
    assert (code, "node must be recorded to be a device of a cluster, got none" in err) == (3, True)
    assert files
