"""``planner validate --plot``: the file, the sentence beside it, what is refused."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
HEADER = "id,source,network,cluster,nodes,gpus_per_node,sub_batch,precision,mode,metric,value,status"
ROWS = (
    "one,s,resnet50,dgx1-v100,1,1,64,fp32,sync,samples_per_s,350,ok",
    "eight,s,resnet50,dgx1-v100,1,8,64,fp32,sync,iteration_s,0.2,ok",
    "wanted,s,resnet50,dgx1-v100,1,8,64,fp32,sync,iteration_s,,ok",
    "out,s,resnet50,dgx1-v100,1,8,640,fp32,sync,iteration_s,,out_of_memory",
    "unknown,s,resnet51,dgx1-v100,1,8,64,fp32,sync,iteration_s,0.2,ok",
    "mean,s,resnet50,dgx1-v100,1,2,8,fp32,async,mini_batch_mean,16,ok",
)


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """Return a file of runs with two rows that can be drawn and one that is neither a time nor a rate."""
    return write(tmp_path, *ROWS)


def write(folder: Path, *rows: str) -> str:
    path = folder / "runs.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path.name


def test_rows_with_two_times_are_drawn_and_others_counted(run: Run, runs: str, tmp_path: Path) -> None:
    code, out, err = run("validate", "--runs", runs, "--plot", "plot.svg")
    assert code == 0
    assert out.startswith(f"{runs}: predicted against measured")
    assert err == "planner: rows shown in plot.svg: 2; left out, as they are neither times nor rates: 1\n"
    groups = ET.parse(tmp_path / "plot.svg").iter("{http://www.w3.org/2000/svg}g")
    drawn = [group for group in groups if group.get("id", "").startswith("held-out")]
    assert sum(len(list(group.iter("{http://www.w3.org/2000/svg}use"))) for group in drawn) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plot.svg", "runs.csv"]


def test_document_still_goes_to_standard_output(run: Run, runs: str, tmp_path: Path) -> None:
    code, out, _ = run("validate", "--runs", runs, "--plot", "plot.PNG", "--json")
    assert code == 0
    assert out == run("validate", "--runs", runs, "--json")[1]
    assert (tmp_path / "plot.PNG").read_bytes().startswith(b"\x89PNG")


def test_an_existing_file_is_replaced_only_with_force(run: Run, runs: str, tmp_path: Path) -> None:
    (tmp_path / "plot.pdf").write_text("mine")
    code, out, err = run("validate", "--runs", runs, "--plot", "plot.pdf")
    assert (code, out) == (2, "")
    assert "--plot must be a new file, got 'plot.pdf', which exists; use --force to replace it" in err
    assert (tmp_path / "plot.pdf").read_text() == "mine"
    assert run("validate", "--runs", runs, "--plot", "plot.pdf", "--force")[0] == 0
    assert (tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("path", ["plot", "plot.jpg", "folder.png", "missing/plot.png", "runs.csv/plot.png", ".png"])
def test_other_names_and_places_are_refused_before_anything_is_predicted(
    run: Run, runs: str, tmp_path: Path, path: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    code, out, err = run("validate", "--runs", runs, "--plot", path, "--force")
    assert (code, out) == (2, "")
    assert err.startswith("planner: --plot must be a file ")
    assert err.endswith(f", got {path!r}\n")
    assert not [found for found in tmp_path.rglob("*") if found.name not in ("folder.png", "runs.csv")]


def test_a_folder_that_cannot_be_written_is_refused(
    run: Run, runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    code, out, err = run("validate", "--runs", runs, "--plot", str(tmp_path / "plot.png"))
    assert (code, out) == (2, "")
    assert "in a folder that exists and can be written" in err


@pytest.mark.parametrize("rows", [ROWS[2:5], ROWS[5:]])
def test_nothing_to_plot_is_said_after_the_answer(run: Run, tmp_path: Path, rows: tuple[str, ...]) -> None:
    path = write(tmp_path, *rows)
    code, out, err = run("validate", "--runs", path, "--plot", "plot.png", "--json")
    assert code == 2
    assert len(json.loads(out)["rows"]) == len(rows)
    found = f"none in {len(rows)}\n"
    assert f"--plot must be given for rows with a predicted and a measured time, got {found}" in err
    assert not (tmp_path / "plot.png").exists()


def test_runs_that_cannot_be_read_come_first(run: Run, tmp_path: Path) -> None:
    code, _, err = run("validate", "--runs", write(tmp_path, ROWS[0].replace("350", "-1")), "--plot", "plot.png")
    assert code == 3
    assert "plot" not in err
    assert not (tmp_path / "plot.png").exists()


def test_without_matplotlib_nothing_is_predicted(run: Run, runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("validate", "--runs", runs, "--plot", "plot.png")
    assert (code, out) == (2, "")
    assert err == (
        "planner: plots must be drawn with Matplotlib, got no package matplotlib; pip install 'epoch-planner[plot]'\n"
    )
    assert run("validate", "--runs", runs)[0] == 0
