"""The README tells the truth: its commands run and print what it shows.

``python tests/test_docs.py`` writes today's output into it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sysconfig
import tempfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PLANNER = Path(sysconfig.get_path("scripts")) / "planner"


def console_blocks(text: str) -> list[tuple[str, str]]:
    """Return (command, expected output) of every ``$ planner ...`` in fenced ``console`` blocks."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def printed(command: str, folder: Path) -> str:
    """Return what a command prints at 80 columns on a machine without calibrations of its own."""
    words = shlex.split(command)
    assert words[0] == "planner"
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "XDG_DATA_HOME": str(folder)}
    run = subprocess.run(
        [PLANNER, *words[1:]], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    assert run.returncode == 0, run.stderr
    return "".join(f"{line.rstrip()}\n" for line in run.stdout.splitlines())


def rewritten(text: str, folder: Path) -> str:
    """Return the text with every console block as its commands print now."""

    def block(match: re.Match[str]) -> str:
        commands = [command for command, _ in console_blocks(match[0])]
        return "```console\n" + "".join(f"$ {one}\n{printed(one, folder)}" for one in commands) + "```"

    return re.sub(r"```console\n.*?```", block, text, flags=re.DOTALL)


BLOCKS = console_blocks(README)


def test_readme_shows_commands() -> None:
    assert any(command.startswith("planner suggest --target-batch 138") for command, _ in BLOCKS)


@pytest.mark.parametrize(("command", "expected"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_readme_output_is_what_the_command_prints(command: str, expected: str, tmp_path: Path) -> None:
    assert printed(command, tmp_path) == expected


def toml_blocks(text: str) -> dict[str, str]:
    """Return the TOML files that the text shows, by kind; one each."""
    blocks = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    found = {tomllib.loads(block)["format"].removeprefix("planner/"): block for block in blocks}
    assert len(found) == len(blocks)
    return found


def test_files_that_the_readme_shows_work(tmp_path: Path) -> None:
    files = toml_blocks(README)
    assert set(files) == {"network", "cluster", "settings"}
    for kind, text in files.items():
        (tmp_path / ("planner.toml" if kind == "settings" else f"{kind}.toml")).write_text(text)
    document = json.loads(printed("planner suggest --target-batch 256 --network network.toml --json", tmp_path))
    sources = {key: document["request"][key]["source"] for key in ("cluster", "precision")}
    assert sources == dict.fromkeys(sources, "planner.toml")
    command = "planner predict --network network.toml --cluster cluster.toml --sub-batch 32 --precision fp32 --json"
    prediction = json.loads(printed(command, tmp_path))
    subject = prediction["subject"]
    assert (subject["network"], subject["cluster"], subject["input"]) == ("small", "mine", "storage")
    assert prediction["epoch_usd"]["value"] > 0


def test_tables_of_runs_and_their_sources_are_counted() -> None:
    """The README and the changelog say how many there are."""
    words = {12: "twelve", 13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen"}
    folder = ROOT / "validation"
    tables, sources = (
        words[len(list(folder.glob("*.csv")))],
        words[len(tomllib.loads((folder / "SOURCES.toml").read_text()))],
    )
    assert f"training runs of {sources} public sources in {tables} tables" in " ".join(README.split())
    changes = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    assert f"{tables} tables of such runs, from {sources} public sources" in changes


def test_blocks_are_found_where_they_are() -> None:
    text = "```console\n$ planner a\nx\n$ planner b\n```\n"
    assert console_blocks(text) == [("planner a", "x\n"), ("planner b", "")]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as empty:
        (ROOT / "README.md").write_text(rewritten(README, Path(empty)))
