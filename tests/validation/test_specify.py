"""Calibrations of GPUs that nobody measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner import catalog
from planner.costs.features import number
from planner.costs.specified import ASSUMED_FLOP_EFFICIENCY, ISSUED_SHARE, specified_kernels
from planner.domain.cluster import Accelerator
from planner.formats.calibration import read_calibration, write_calibration
from validation.specify import main, specified_calibration, unmeasured

ASKED = ("k20x", "k40", "k80", "p40", "h200-sxm-141gb", "b200-sxm-180gb", "mi250x", "h100-pcie-80gb")


def test_every_accelerator_has_a_calibration_of_its_name() -> None:
    assert set(catalog.names("accelerators")) <= set(catalog.names("calibrations"))
    assert set(ASKED) <= set(catalog.names("accelerators"))


@pytest.mark.parametrize("device", tuple(unmeasured()), ids=lambda device: device.name)
def test_bundled_files_are_what_the_command_writes(device: Accelerator) -> None:
    found = catalog.find_calibration(device.name)
    assert found == specified_calibration(device)
    assert found.origin == "specified"


@pytest.mark.parametrize(
    ("name", "measured"),
    [("h200-sxm-141gb", ["h100-sxm5-80gb"]), ("p40", ["gtx-1080ti", "titan-x-pascal", "titan-xp"]), ("k80", [])],
)
def test_measured_gpus_of_the_chip_are_named_with_the_way_to_them(name: str, measured: list[str]) -> None:
    """The same GPU by cluster takes kernels of these, scaled."""
    device = catalog.find_accelerator(name)
    said = [line for line in specified_calibration(device).warnings if f"a --cluster of {name} without" in line]
    assert [f"({', '.join(measured)})" in line for line in said] == [True] * bool(measured)
    assert list({one.name: one for one, _ in catalog.sibling_calibrations(device, lambda *_: True)}) == measured


def test_a_measured_calibration_is_left_alone(tmp_path: Path) -> None:
    every = {one.name for one in unmeasured(tmp_path)}
    assert every == set(catalog.names("accelerators"))
    for name in ("t4", "k80"):
        (tmp_path / f"{name}.json").write_text(write_calibration(catalog.find_calibration(name)))
    assert every - {one.name for one in unmeasured(tmp_path)} == {"t4"}
    assert read_calibration(tmp_path / "k80.json").origin == "specified"


def test_the_command_writes_into_the_folder_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "t4.json").write_text(measured := write_calibration(catalog.find_calibration("t4")))
    assert main([str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == set(catalog.names("accelerators"))
    assert (tmp_path / "t4.json").read_text() == measured


@pytest.mark.parametrize("name", ASKED)
def test_every_precision_of_the_device_is_specified_and_says_what_was_assumed(name: str) -> None:
    device = catalog.find_accelerator(name)
    entries = tuple(specified_kernels(device))
    assert {entry.precision for entry in entries if entry.kind == "gemm"} == set(device.peak_flop_per_s)
    for entry in entries:
        assert entry.origin == "specified"
        if entry.kind in ("gemm", "convolution"):
            efficiency = number(entry.settings, "flop_efficiency", 0.0)
            assert efficiency >= ASSUMED_FLOP_EFFICIENCY[entry.precision] * ISSUED_SHARE.get(device.architecture, 1.0)
            assert f"assumed: {efficiency:.0%} of the peak rate" in entry.notes
    assert [entry.precision for entry in entries if entry.kind == "pointwise"] == ["any"]


def test_a_data_sheet_serves_only_where_it_is_asked_for() -> None:
    """No better than the data sheet itself, it must not stand before what siblings know."""
    cluster = catalog.find_cluster("dgx1-v100")
    for name in ("p40", "h200-sxm-141gb"):
        node = replace(cluster.node, accelerator=catalog.find_accelerator(name))
        found = catalog.calibrations_for(replace(cluster, name="own", node=node))
        assert name not in {one.name for one in found}
