"""What every command of the validation folder answers to --help, to no data and to an error."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import validation
from planner.errors import CoverageError
from validation.command import finished

FOLDER = Path(validation.__file__).parent
COMMANDS = sorted(
    path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text() or path.stem == "__main__"
)
OF_TABLES = ("convert_kernels", "convert_runs", "kernels", "transfer")
INTO_FOLDERS = ("fit_end_to_end",)


def command(name: str) -> Any:
    return importlib.import_module(f"validation.{name}").main


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_command_and_says_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        command(name)(["--help"])
    out = capsys.readouterr().out
    called = "validation" if name == "__main__" else f"validation.{name}"
    assert out.startswith(f"usage: python -m {called} ")
    assert str(importlib.import_module(f"validation.{name}").__doc__).splitlines()[0] in out


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_missing_folder_of_tables_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = () if name == "transfer" else ("--out", str(tmp_path / "out"))
    assert command(name)(["--data", str(tmp_path / "missing"), *out]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'missing'}")
    assert "table must be there, got nothing; " in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", INTO_FOLDERS)
def test_a_folder_that_is_not_there_is_refused_at_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command(name)(["nowhere"])
    assert capsys.readouterr().err.endswith("error: argument folder: must be a folder that exists, got 'nowhere'\n")


def test_errors_become_one_sentence_and_their_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise CoverageError("samples must cover the request, got none")

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert [finished(lambda: None), finished(lambda: 1)] == [0, 1]
    assert (finished(fail), capsys.readouterr().err) == (5, "error: samples must cover the request, got none\n")
    assert (finished(interrupt), capsys.readouterr().err.startswith("error: interrupted; ")) == (130, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--axes", "network"), "--axes must be given with --check: a page has all of them"),
        (
            ("--check", "--axes", "gpu"),
            "--axes must name network, got gpu: targets, rankings and memory are of networks left out",
        ),
    ],
)
def test_axes_that_no_page_or_check_can_have_are_refused(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command("__main__")(list(arguments))
    assert capsys.readouterr().err.endswith(f"error: {sentence}\n")
