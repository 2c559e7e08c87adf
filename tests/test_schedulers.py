"""The page for job schedulers tells the truth: its lines run, and its table has the keys of the schema."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from planner.formats.summaries import BRIEF

PAGE = (Path(__file__).parent.parent / "docs" / "schedulers.md").read_text()
README = (Path(__file__).parent.parent / "README.md").read_text()
LINES = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
JOB = re.compile(
    r"sbatch --nodes=\d+ --ntasks-per-node=8 --gpus-per-node=8 --time=\d+ train\.sh --batch-size \d+ --accumulate \d+ "
    r"--precision \w+\n"
)


PRINTED: dict[str, str] = {}
"""By line of the shell."""


def printed(line: str, folder: Path) -> str:
    """Return what a line of the shell prints; each runs once."""
    if line not in PRINTED:
        run = started(line, folder)
        assert run.returncode == 0, run.stderr
        PRINTED[line] = run.stdout
    return PRINTED[line]


def started(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell; the programs are those of this Python."""
    places = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"])
    environment = os.environ | {"PATH": os.pathsep.join(places), "XDG_DATA_HOME": str(folder)}
    return subprocess.run(
        [str(shutil.which("bash")), "-o", "pipefail", "-c", line],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_line_with_jq_makes_a_job(tmp_path: Path) -> None:
    (line,) = (one for one in LINES if "jq -er" in one)
    assert JOB.fullmatch(printed(line, tmp_path))


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_lines_that_render_write_a_job(tmp_path: Path) -> None:
    (of_readme,) = (one for one in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL) if "jq -e" in one)
    (of_page,) = (one for one in LINES if "planner render" in one)
    made = printed(of_readme.replace("v/bin/planner", "planner").replace("sbatch", "cat"), tmp_path)
    assert made.startswith("true\n#!/usr/bin/env bash\n#SBATCH --job-name=resnet50\n")
    assert printed(of_page, tmp_path) == "true\n"
    assert "train.py --data /data/imagenet" in (tmp_path / "job.sh").read_text()


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_nothing_is_submitted_where_nothing_fits(tmp_path: Path) -> None:
    (line,) = (one for one in LINES if "jq -er" in one)
    run = started(
        line.replace("--target-batch 1024", "--target-batch 1024 --tolerance 0 --nodes 1 --sub-batch 3"), tmp_path
    )
    assert (run.returncode != 0, run.stdout) == (True, "")


def test_the_line_with_python_makes_a_job(tmp_path: Path) -> None:
    (line,) = (one for one in LINES if "python3 -c" in one)
    assert JOB.fullmatch(printed(line, tmp_path))


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_both_lines_make_the_same_job(tmp_path: Path) -> None:
    assert len({printed(line, tmp_path) for line in LINES if "sbatch" in line}) == 1


def test_the_table_has_every_key_of_the_brief() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE, flags=re.MULTILINE)
    assert [key for key, _ in rows] == list(BRIEF.schema()["properties"])
    assert all(words for _, words in rows)
