"""One process at a time writes a calibration."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.errors import OutputError
from planner.sessions.calibrate import held_alone

Run = Callable[..., tuple[int, str, str]]
HOLD = """
import sys
from pathlib import Path
from planner.sessions.calibrate import held_alone
with held_alone("the calibration", Path("fit.json")):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder() -> subprocess.Popen[str]:
    """Return another process that holds the lock of ``fit.json`` until its input ends."""
    made = subprocess.Popen([sys.executable, "-c", HOLD], stdin=-1, stdout=-1, text=True)
    assert made.stdout
    assert made.stdout.readline() == "held\n"
    return made


def test_a_second_process_is_refused_in_one_sentence_that_names_the_first(run: Run) -> None:
    other = holder()
    code, out, err = run("calibrate", "--out", "fit.json")
    assert (code, out) == (2, "")
    assert err == (
        f"planner: the calibration must be written by one process at a time, got 'fit.json', which process {other.pid} "
        "is writing: wait until it has ended, or name another file by --out\n"
    )
    other.communicate("")
    assert other.returncode == 0
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("text", ["", "4194304\n", "no number"])
def test_a_lock_that_a_killed_process_left_is_taken_over(text: str) -> None:
    other = holder()
    other.send_signal(signal.SIGKILL)
    other.communicate()
    lock = Path("fit.json.lock")
    assert lock.read_text() == f"{other.pid}\n"
    lock.write_text(text)
    with held_alone("it", Path("fit.json")):
        assert lock.read_text() == f"{os.getpid()}\n"
    assert list(Path().iterdir()) == []


def test_the_lock_is_gone_after_an_interrupt() -> None:
    def interrupted() -> None:
        with held_alone("it", Path("fit.json")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(Path().iterdir()) == []


def test_other_outputs_are_not_held_up() -> None:
    with held_alone("it", Path("one.json")), held_alone("it", Path("other.json")):
        assert len(list(Path().iterdir())) == 2


def test_a_lock_that_cannot_be_made_is_a_sentence() -> None:
    Path("fit.json.lock").mkdir()
    said = r"the lock of it must be writable, got fit\.json\.lock: Is a directory"
    with pytest.raises(OutputError, match=said), held_alone("it", Path("fit.json")):
        pass
