"""The program in this process: whole output and exit code, away from the user's own files and settings."""

from collections.abc import Callable
from pathlib import Path

import pytest

from planner.cli.main import main

Result = tuple[int, str, str]


@pytest.fixture(autouse=True)
def _clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test an empty working directory and user data folder, and a plain output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    # A machine that has a GPU would measure it.
    monkeypatch.setattr("planner.cli.calibrate.default_device", lambda _say: "cpu")
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Return a function: arguments -> (exit code, standard output, standard error)."""

    def call(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(list(arguments))
        return (code, *capsys.readouterr())

    return call
