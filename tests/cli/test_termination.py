"""SIGTERM ends a command as Ctrl-C does."""

import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.cli.streams import terminated_as_interrupted

Run = Callable[..., tuple[int, str, str]]


def test_termination_leaves_whole_files_alone(run: Run) -> None:
    def terminated(_name: str, _given: Mapping[str, Any]) -> None:
        try:
            Path("half").write_text("")
            signal.raise_signal(signal.SIGTERM)
        finally:
            Path("half").unlink()

    before = signal.getsignal(signal.SIGTERM)
    assert run("calibrate", by=terminated) == (130, "", "planner: interrupted\n")
    assert list(Path().iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_another_thread_runs_without() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["--version"])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_only_inside() -> None:
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
