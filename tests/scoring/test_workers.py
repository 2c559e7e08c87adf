"""Work over forked processes: answers in order, errors raised, nobody left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner import errors
from planner.scoring.refit import spread

SLEEPER = """
import os, signal, sys, time
from planner.cli.streams import terminated_as_interrupted
from planner.scoring.refit import spread

def job(number):
    os.write(1, f"{os.getpid()}\\n".encode())  # a line at once: two workers write
    time.sleep(600)

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background
with terminated_as_interrupted():
    try:
        spread(job, 4, 2, lambda number: None)
    except KeyboardInterrupt:
        sys.exit(130)
"""


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that waits to be reaped by who adopted it does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_answers_are_in_order_and_jobs_start_in_order(processes: int) -> None:
    started: list[int] = []
    assert spread(lambda number: number**2, 20, processes, started.append) == [number**2 for number in range(20)]
    assert started == list(range(20))
    assert multiprocessing.active_children() == []


def test_nothing_to_do_is_an_empty_list() -> None:
    assert spread(lambda number: number, 0, 2, lambda _number: None) == []


def test_workers_are_ended_by_a_request_to_terminate_whatever_the_parent_does_with_it() -> None:
    def handlers(_number: int) -> tuple[bool, bool, int]:
        at = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        return at[0] == signal.SIG_DFL, at[1] == signal.SIG_IGN, len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        assert spread(handlers, 4, 2, lambda _number: None) == [(True, True, 0)] * 4
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_error_of_a_worker_is_raised_here_with_all_its_fields() -> None:
    def refuse(number: int) -> None:
        raise errors.ParameterError("--x", "small", number, "take less")

    with pytest.raises(errors.ParameterError, match="--x must be small, got 0; take less") as caught:
        spread(refuse, 1, 1, lambda _number: None)
    with pytest.raises(errors.ParameterError, match="--x must be small") as of_worker:
        spread(refuse, 2, 2, lambda _number: None)
    assert of_worker.value.refusal.code == caught.value.refusal.code
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "error",
    [
        errors.PlannerError("a"),
        errors.UnknownNameError("a", "b", ["bc"]),
        errors.InputFileError("a", "b", "c"),
        errors.NothingFitsError("a"),
    ],
)
def test_every_error_is_the_same_after_a_journey_between_processes(error: errors.PlannerError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_worker_that_is_killed_is_noticed() -> None:
    with pytest.raises(ChildProcessError):
        spread(lambda _number: os.kill(os.getpid(), signal.SIGKILL), 4, 2, lambda _number: None)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_an_interrupt_ends_the_call_and_its_workers(stop: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(is_alive, workers))
        parent.send_signal(stop)
        if stop == signal.SIGKILL:  # workers notice when they have done their job
            for worker in workers:
                os.kill(worker, signal.SIGTERM)
        assert parent.wait() == (130 if stop != signal.SIGKILL else -signal.SIGKILL)
        parent.stdout.read()  # ends when nobody can write to it any more
    until_s = time.monotonic() + 30  # a worker closes what it writes to before it is gone
    while any(map(is_alive, workers)) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not any(map(is_alive, workers))


def test_a_command_that_is_interrupted_in_its_fits_ends_with_130(tmp_path: Path) -> None:
    """The whole command, by the signal of a batch system to its whole group."""
    pairs = [(name, n) for name in ("alexnet", "vgg16") for n in (32, 64)]
    rows = [f"{name}{n},s,{name},dgx1-v100,1,8,{n},fp32,sync,samples_per_s,{9 * n},ok,g" for name, n in pairs]
    header = "id,source,network,cluster,nodes,gpus_per_node,sub_batch,precision,mode,metric,value,status,group"
    path = tmp_path / "runs.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    script = (
        "import os, signal, sys; from planner.scoring import refit; from planner.cli.main import main\n"
        "def stop(*_): os.killpg(0, signal.SIGTERM); signal.pause()\n"
        "refit._answers = stop\n"
        f"sys.exit(main(['validate', '--hold-out', 'network', '--json', '--runs', {json.dumps(str(path))}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], start_new_session=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (130, b"")
