"""What is bundled of runs that are fitted together, from a few of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planner.domain.calibration import ANY_ACCELERATOR, Calibration
from planner.fitting.end_to_end import MEASURED_MULTIPLES
from planner.scoring.refit import fit_runs
from planner.sources.links import BETWEEN, INSIDE, MULTIPLES, multiples_of_kind
from planner.sources.overheads import MORE_REPLICA_WAIT, REPLICA_WAIT
from validation.fit_end_to_end import FOLDER, MEASURED_KINDS, asked_runs, calibrations
from validation.fitted_rows import Rows


def bundled(folder: Path, *wanted: str) -> dict[str, Calibration]:
    """Return the calibrations of the runs of the P100 and the K80 whose names begin so."""
    shutil.copytree(FOLDER / "clusters", folder / "clusters")
    lines = (FOLDER / "tensorflow-2017.csv").read_text(encoding="utf-8").splitlines()
    kept = [*lines[:2], *(line for line in lines[2:] if line.startswith(wanted))]
    (folder / "tensorflow-2017.csv").write_text("\n".join(kept), encoding="utf-8")
    asked = asked_runs(folder)
    rows = [Rows(one, (), ()) for one in asked]
    return {one.name: one for one in calibrations(fit_runs(asked), rows)}


def test_clusters_that_no_run_shows_take_what_links_of_the_others_share(tmp_path: Path) -> None:
    found = bundled(tmp_path, "tf-ec2-p2-8xlarge-distributed-resnet-50-n2", "tf-dgx1-p100-alexnet-n1-g1-")
    by_library = {one.library: one for one in found["any-steps"].entries if one.scope == "collectives"}
    kinds = {MULTIPLES, multiples_of_kind(INSIDE, "pcie3"), multiples_of_kind(BETWEEN, "ethernet")}
    measured = {multiples_of_kind(where, kind) for where, some in MEASURED_KINDS.items() for kind in some}
    assert (found["any-steps"].accelerator, set(by_library)) == (ANY_ACCELERATOR, kinds | measured)
    timed = by_library[multiples_of_kind(BETWEEN, "efa")]
    assert (timed.coefficients["bytes_between"], timed.samples) == (MEASURED_MULTIPLES["efa"], 0)
    shared, own = by_library[multiples_of_kind(BETWEEN, "ethernet")], found["ec2-p2-8xlarge-links"].entries[0]
    assert by_library[MULTIPLES].coefficients["bytes_between"] == 1.3  # of another kind nothing is known
    more = own.settings[MORE_REPLICA_WAIT]
    assert isinstance(more, float)
    assert REPLICA_WAIT not in own.settings
    assert 0 < abs(more) < 0.1
    assert {"messages_inside", "messages_between"} == set(shared.fixed)
    assert shared.coefficients["messages_between"] == 1.0
    # Half of what one cluster shows, in logarithms: a prior as wide for what it shares as for what is its own.
    alone = own.coefficients["bytes_between"] * 1.25e9 / 1.3
    assert shared.coefficients["bytes_between"] / 1.3 == pytest.approx(alone**0.5, rel=1e-3)
    assert shared.samples == own.samples > 0
    assert shared.source == "tensorflow-2017"


def test_runs_on_one_gpu_say_nothing_of_links(tmp_path: Path) -> None:
    found = bundled(tmp_path, "tf-dgx1-p100-alexnet-n1-g1-")
    assert set(found) == {"p100-sxm2-16gb-steps", "any-steps"}
    assert {one.scope for one in found["any-steps"].entries} == {"overheads"}
