"""What is bundled of runs that are fitted together, from a few of them."""

from __future__ import annotations

from pathlib import Path

from planner.domain.calibration import ANY_ACCELERATOR, Calibration
from planner.fitting.step_fit import MEASURED_MULTIPLES
from planner.scoring.refit import fit_runs
from planner.sources.links import BETWEEN, INSIDE, WAIT, multiples_of_kind
from validation.fit_end_to_end import FOLDER, KINDS, asked_runs, calibration


def bundled(folder: Path, *wanted: str) -> Calibration:
    """Return what runs of the P100 and the K80 whose names begin so tell."""
    lines = (FOLDER / "tensorflow-2017.csv").read_text(encoding="utf-8").splitlines()
    kept = [*lines[:2], *(line for line in lines[2:] if line.startswith(wanted))]
    (folder / "tensorflow-2017.csv").write_text("\n".join(kept), encoding="utf-8")
    asked = asked_runs(folder)
    return calibration(fit_runs(asked), asked, {})


def test_clusters_that_no_run_shows_take_what_links_of_their_kind_share(tmp_path: Path) -> None:
    found = bundled(tmp_path, "tf-ec2-p2-8xlarge-distributed-resnet-50-n2", "tf-dgx1-p100-alexnet-n1-g1-")
    by_library = {one.library: one for one in found.entries if one.scope == "collectives"}
    measured = {multiples_of_kind(where, kind) for where, some in KINDS.items() for kind in some}
    shown = {multiples_of_kind(INSIDE, "pcie3"), multiples_of_kind(BETWEEN, "ethernet")}
    assert (found.accelerator, set(by_library)) == (ANY_ACCELERATOR, shown | measured)
    timed = by_library[multiples_of_kind(BETWEEN, "efa")]
    assert (timed.coefficients["bytes_between"], timed.samples) == (MEASURED_MULTIPLES["efa"], 0)
    shared = by_library[multiples_of_kind(BETWEEN, "ethernet")]
    assert shared.samples > 0
    assert float(str(shared.settings[WAIT])) >= 0
    assert {"messages_inside", "messages_between"} == set(shared.fixed)
    assert (shared.coefficients["messages_between"], shared.source) == (1.0, "tensorflow-2017")


def test_runs_on_one_gpu_say_nothing_of_links(tmp_path: Path) -> None:
    found = bundled(tmp_path, "tf-dgx1-p100-alexnet-n1-g1-")
    assert {one.samples for one in found.entries if one.scope == "collectives"} == {0}
