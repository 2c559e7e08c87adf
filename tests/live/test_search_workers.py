"""Two workers on a PostgreSQL of their own, one of them killed: nothing lost, nothing twice.

Skipped where there is no PostgreSQL, or no driver for it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.started

RESNET = ("--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "2048", "--tolerance", "10%")
PROGRAM = """
import sys, time
from pathlib import Path
from planner.cli.main import main
from planner.search import optuna_study
optuna_study.GRACE_S = 3
marker, arguments = sys.argv[1], sys.argv[2:]
claim, calls = optuna_study.SharedStudy.claim, []
def hang(self, *of):
    calls.append(of)
    number = claim(self, *of)
    if len(calls) == 5:
        Path(marker).write_text("hangs")
        time.sleep(3600)
    return number
if marker:
    optuna_study.SharedStudy.claim = hang
sys.exit(main(arguments))
"""


def binary(name: str) -> str:
    found = shutil.which(name) or next(iter(sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    return str(found or "")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Give the URL of an empty database, and its server, which an unprivileged user runs in a folder of its own."""
    pytest.importorskip("psycopg", reason="no driver of PostgreSQL: pip install 'epoch-planner[postgres]'")
    if not binary("initdb") or not binary("postgres"):
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    users = {one.pw_name for one in pwd.getpwall()}
    user = next(one for one in ("postgres", "nobody") if one in users) if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="planner-postgres-"))
    if user:
        shutil.chown(folder, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    of_user: dict[str, Any] = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    data = str(folder / "data")
    subprocess.run([binary("initdb"), "-D", data, "-U", "planner", "-A", "trust"], check=True, **of_user)
    options = ["-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", str(folder)]
    server = subprocess.Popen([binary("postgres"), *options], **of_user)
    try:
        wait_for(lambda: answers(port))
        yield f"postgresql://planner@127.0.0.1:{port}/postgres", server
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
        shutil.rmtree(folder)


def answers(port: int) -> bool:
    psycopg = pytest.importorskip("psycopg")
    try:
        psycopg.connect(f"host=127.0.0.1 port={port} user=planner dbname=postgres").close()
    except psycopg.OperationalError:
        return False
    return True


def wait_for(condition: Any, most_s: float = 120.0) -> None:
    end = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def start(*arguments: str, marker: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, marker, *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    errors = process.communicate()[1]
    return process.returncode, errors


def test_a_killed_worker_loses_nothing_and_nothing_is_tried_twice(
    server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Two starts on an empty database, then two workers of which one is killed, then another; and no server."""
    optuna = pytest.importorskip("optuna")
    url = server[0]
    starts = [start("suggest", *RESNET, "--search", "optuna", "--trials", "10", "--study", url) for _ in range(2)]
    assert [ended(one)[0] for one in starts] == [0, 0]
    marker = tmp_path / "hangs"
    worker = ("search-worker", "--storage", url, "--seed", "1")
    killed, other = start(*worker, "--trials", "100", marker=str(marker)), start(*worker, "--trials", "30")
    wait_for(marker.exists)
    killed.kill()
    ended(killed)
    assert ended(other)[0] == 0
    time.sleep(4)  # longer than a claim without a result holds its plan
    assert ended(start(*worker, "--trials", "10"))[0] == 0
    storage = optuna.storages.RDBStorage(url.replace("://", "+psycopg://"))
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    trials = study.get_trials()
    tried = [str(one.params) for one in trials if one.state.name in ("COMPLETE", "PRUNED")]
    assert len(tried) == len(set(tried))
    assert (
        20 + 30 + 10 <= len(tried) <= 20 + 4 + 30 + 10
    )  # of the five of the killed one some may be claimed by another
    assert {str(one.params) for one in trials} == set(tried)
    assert [one.state.name for one in trials if not one.state.is_finished()] == []
    hanging = start(*worker, "--trials", "100000")
    wait_for(lambda: len(study.get_trials()) > len(trials) + 5)
    storage.remove_session()
    storage.engine.dispose()
    server[1].send_signal(signal.SIGINT)
    code, errors = ended(hanging)
    assert (code, len(errors.splitlines())) == (2, 1)
    assert errors.startswith("planner: --storage must be a storage that answers, got 'postgresql://planner@127.0.0.1")


def test_a_server_that_is_down_is_told_in_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="no driver of PostgreSQL: pip install 'epoch-planner[postgres]'")
    arguments = ("suggest", *RESNET, "--search", "optuna", "--study", "postgresql://me:secret@127.0.0.1:9/x")
    command = [sys.executable, "-m", "planner", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(
        "planner: --study must be a storage that answers, got 'postgresql://me:***@127.0.0.1"
    )
    assert len(ended.stderr.splitlines()) == 1
