"""The README tells the truth: its commands run and print what it shows, and every command and option is documented."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
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


BLOCKS = console_blocks(README)


def test_readme_shows_commands() -> None:
    assert any(command.startswith("planner suggest --target-batch 138") for command, _ in BLOCKS)


@pytest.mark.parametrize(("command", "expected"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_readme_output_is_what_the_command_prints(command: str, expected: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    assert words[0] == "planner"
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "XDG_DATA_HOME": str(tmp_path)}
    run = subprocess.run(
        [PLANNER, *words[1:]], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert run.returncode == 0, run.stderr
    assert [line.rstrip() for line in run.stdout.splitlines()] == [line.rstrip() for line in expected.splitlines()]


def test_blocks_are_found_where_they_are() -> None:
    text = "```console\n$ planner a\nx\n$ planner b\n```\n"
    assert console_blocks(text) == [("planner a", "x\n"), ("planner b", "")]
