"""What all tests share: the program in this process, with its whole output and exit code."""

import gc
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from planner.cli import calibrate
from planner.cli.main import main, run_command
from planner.cli.streams import bar, note
from planner.sessions.measure import Session

# Scripts of the checkout, such as validation, are importable; the installed package goes before the checkout's.
sys.path.append(str(Path(__file__).parent.parent))

gc.set_threshold(100_000)  # as the program does: thousands of tests are no garbage

# How long an example takes says nothing on a machine with other work. The same examples each time: few random ones
# would fail a change that is not at fault, and seldom; the long profile looks for more.
settings.register_profile("planner", deadline=None, max_examples=15, derandomize=True)
# pytest --hypothesis-profile=long: more examples a property, and whole tables where the fixture long_run is asked.
settings.register_profile("long", deadline=None, max_examples=500)
settings.load_profile("planner")


@pytest.fixture(scope="session")
def long_run() -> bool:
    """Return whether properties over a table walk the whole of it."""
    return settings().max_examples >= settings.get_profile("long").max_examples


LONG_TIMEOUT_S = 3600
"""Of a test that measures or starts real processes, and of any in the long profile; others: pyproject.toml."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give long tests a time limit of their own."""
    is_long = settings().max_examples >= settings.get_profile("long").max_examples
    for item in items:
        is_slow = is_long or any(map(item.get_closest_marker, ("live", "started")))
        if is_slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


def pytest_collection_finish() -> None:
    """Spare the tests that wait the garbage collector's looks."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a test an empty working directory and user data folder, and a plain output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def instruments() -> dict[str, Any]:
    """Return what sessions measure with instead of this machine's.

    A machine that has a GPU would measure it, a busy one would have no time left: by this clock nothing takes any.
    """
    return {"default_device": lambda _say: "cpu", "clock_s": itertools.count(0.0, 1e-3).__next__}


@pytest.fixture
def session(instruments: dict[str, Any]) -> Callable[[], Session]:
    """Return what makes a session with the instruments, which tells standard error."""
    return lambda: Session(note, bar, **instruments)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], session: Callable[[], Session]) -> Callable[..., tuple[int, str, str]]:
    """Return a function: arguments, what runs a command -> (exit code, standard output, standard error)."""

    def command(name: str, given: Mapping[str, Any]) -> None:
        if name in ("calibrate", "verify"):
            {"calibrate": calibrate.run, "verify": calibrate.verify}[name](given, session())
        else:
            run_command(name, given)

    def call(*arguments: str, by: Callable[[str, Mapping[str, Any]], None] = command) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments), by)
        return (code, *capsys.readouterr())

    return call
