"""``planner calibrate --samples``: what is wrong with the folder, or with what stands beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
RULE = "a file or folder of samples (*.csv), or of logs of tests of links"


@pytest.mark.parametrize(
    ("made", "remedy"),
    [
        ("", "there is no such folder"),
        ("folder", "it is empty"),
    ],
)
def test_what_is_no_folder_of_samples_is_exit_2(run: Run, made: str, remedy: str) -> None:
    if made:
        Path("x").mkdir()
    code, out, err = run("calibrate", "--samples", "x", "--out", "fit.json")
    assert (code, out) == (2, "")
    assert err.startswith(f"planner: --samples must be {RULE}, got 'x'; {remedy}")


def test_a_folder_of_other_files_says_so(run: Run) -> None:
    Path("x").mkdir()
    Path("x/notes.txt").touch()
    assert "got 'x'; no such file is in it; put the files of one device there" in run("calibrate", "--samples", "x")[2]


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        (("a100",), "x/a100"),
        (("v100", "a100", "t4"), "x/a100, x/t4, x/v100"),
        (("v100", "a100", "t4", "k80", "p4"), "x/a100, x/k80, x/p4 and 2 more"),
    ],
)
def test_a_folder_of_folders_with_samples_names_them(folders: tuple[str, ...], named: str, run: Run) -> None:
    """Those that hold no sample files are not named."""
    for folder in (*folders, "docs", "empty"):
        Path("x", folder).mkdir(parents=True)
    for folder in folders:
        Path("x", folder, "Times.CSV").write_text("", encoding="utf-8")
    Path("x/docs/README.md").write_text("", encoding="utf-8")
    code, out, err = run("calibrate", "--samples", "x", "--out", "fit.json")
    assert (code, out) == (2, "")
    said = f"got 'x'; no such file is in it; give one of its folders: {named}"
    assert err == f"planner: --samples must be {RULE}, {said}\n"
    assert not Path("fit.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--samples", "x"), "--tensor-parallel must be left out with --samples, which measures nothing, got "),
        (("--plan", "x"), "--tensor-parallel must be left out with --plan, which says what to measure, got "),
        ((), "--network must be given with --tensor-parallel, got nothing; name the networks to be split"),
        (("--network", "mlp"), "tensor-parallel degree must be 1 of a network without attention, of which no shards "),
        (
            ("--network", "gpt"),
            "tensor-parallel degree must be a divisor of the 12 heads of layer layer1.attention.core",
        ),
    ],
)
def test_networks_that_cannot_be_split_are_exit_2(arguments: tuple[str, ...], words: str, run: Run) -> None:
    code, out, err = run("calibrate", *arguments, "--tensor-parallel", "5", "--out", "fit.json")
    assert (code, out) == (2, "")
    assert err.startswith(f"planner: {words}")


def test_a_folder_called_like_a_file_is_refused(run: Run) -> None:
    Path("x/a.csv").mkdir(parents=True)
    code, _, err = run("calibrate", "--samples", "x", "--out", "fit.json")
    assert (code, err) == (3, "planner: x/a.csv: file must be a regular one, got a directory\n")


@pytest.mark.parametrize(("rows", "got"), [(1, "1 row of kind step alone"), (2, "2 rows of kind step alone")])
def test_a_folder_of_training_steps_alone_says_what_is_needed(run: Run, rows: int, got: str) -> None:
    Path("x").mkdir()
    line = "step,p40,mlp,4,0.001\n"
    Path("x/a.csv").write_text("# planner/samples 1\nkind,device,call,sub_batch,time_s\n" + rows * line)
    code, out, err = run("calibrate", "--samples", "x", "--out", "fit.json")
    assert (code, out) == (3, "")
    assert err.startswith(f"planner: x/a.csv: rows of kernels must follow the header, got {got}, whole training steps")
    assert "; put a samples file of the same device's kernels beside it" in err
