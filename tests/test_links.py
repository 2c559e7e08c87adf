"""Writing never follows a link: whatever lies where a file, a lock or a temporary file is written, its target stays."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import OutputError
from planner.formats.documents import TEMPORARY_PREFIX, write_file
from planner.probes.run import Measured, append, start_file
from planner.sessions.calibrate import held_alone

Run = Callable[..., tuple[int, str, str]]
TIMING = Measured("gemm", 1.0, 0.0, 1, 1.0, 1.0)


def lock(path: Path) -> None:
    with held_alone("the calibration", path):
        pass


def write_by_force(path: Path) -> None:
    write_file(path, "new", force=True)


WRITERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an output": (write_by_force, "fit.json"),
    "its temporary file": (write_by_force, f"{TEMPORARY_PREFIX}{os.getpid()}-{'0' * 16}.tmp"),
    "a lock": (lock, "fit.json.lock"),
    "partial samples": (lambda path: start_file(path, {}, ()), "fit.json"),
    "their temporary file": (lambda path: start_file(path, {}, ()), f".fit.json.{'0' * 16}.tmp"),
    "their next line": (lambda path: append(path, [TIMING]), "fit.json"),
    "a line of what failed": (lambda path: append(path, ["gemm"]), "fit.json"),
}
"""What is written -> what writes it, and the name where a link lies in wait."""


@pytest.fixture(autouse=True)
def foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let random names be foreseen: a link there is still not followed."""
    monkeypatch.setattr(secrets, "token_hex", lambda _bytes: "0" * 16)


@pytest.mark.parametrize("target", ["kept.txt", "missing.txt"])
@pytest.mark.parametrize("what", WRITERS)
def test_a_link_in_the_place_of_a_file_is_never_followed(what: str, target: str, tmp_path: Path) -> None:
    write, name = WRITERS[what]
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept.txt").write_text("precious")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / name).symlink_to(victim / target)
    try:
        write(folder / "fit.json")
    except (OutputError, OSError):
        assert (folder / name).is_symlink() or not (folder / name).exists()
    assert [(one.name, one.read_text()) for one in victim.iterdir()] == [("kept.txt", "precious")]


def test_a_lock_that_is_another_name_of_a_file_is_refused_in_a_sentence(run: Run, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    Path("kept.txt").write_text("precious")
    for lay in (Path("fit.json.lock").hardlink_to, Path("fit.json.lock").symlink_to):
        lay("kept.txt")
        code, out, err = run("calibrate", "--out", "fit.json")
        assert (code, out) == (2, "")
        assert err.startswith("planner: the lock of the calibration must be writable, got fit.json.lock: ")
        assert Path("kept.txt").read_text() == "precious"
        Path("fit.json.lock").unlink()


def test_names_of_temporary_files_cannot_be_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    names: list[str] = []

    def fsync(_descriptor: int) -> None:
        names.extend(one.name for one in tmp_path.glob("*.tmp"))
        names.extend(one.name for one in tmp_path.glob(".*.tmp"))

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        write_by_force(tmp_path / "fit.json")
    first, second = dict.fromkeys(names)
    assert first[: len(TEMPORARY_PREFIX)] == second[: len(TEMPORARY_PREFIX)] == TEMPORARY_PREFIX
