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

pytestmark = pytest.mark.live

RESNET = ("--network", "resnet50", "--cluster", "dgx1-v100", "--target-batch", "2048", "--tolerance", "10%")
PROGRAM = """
import sys, time
from pathlib import Path
from planner.cli.main import main
from planner.search import optuna_study
from planner.search.optuna_trials import Pricer
optuna_study.HEARTBEAT_S, optuna_study.GRACE_S = 1, 3
marker, arguments = sys.argv[1], sys.argv[2:]
price, calls = Pricer.__call__, []
def hang(self, plans, plan):
    calls.append(plan)
    if len(calls) == 5:
        Path(marker).write_text("hangs")
        time.sleep(3600)
    return price(self, plans, plan)
if marker:
    Pricer.__call__ = hang
sys.exit(main(arguments))
"""


def binary(name: str) -> str:
    found = shutil.which(name) or next(iter(sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)
    return str(found or "")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Give the URL of an empty database of a server that an unprivileged user runs in a folder of its own."""
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
        yield f"postgresql://planner@127.0.0.1:{port}/postgres"
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


def start(*arguments: str, marker: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, marker, *arguments], stdout=subprocess.DEVNULL)


def test_a_killed_worker_loses_nothing_and_nothing_is_tried_twice(url: str, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    assert start("suggest", *RESNET, "--search", "optuna", "--trials", "10", "--study", url).wait() == 0
    marker = tmp_path / "hangs"
    worker = ("search-worker", "--storage", url)
    killed, other = start(*worker, "--trials", "100", marker=str(marker)), start(*worker, "--trials", "30")
    wait_for(marker.exists)
    killed.kill()
    killed.wait()
    assert other.wait() == 0
    time.sleep(4)  # longer than the heartbeat may be missing
    assert start(*worker, "--trials", "10").wait() == 0
    storage = optuna.storages.RDBStorage(url.replace("://", "+psycopg://"))
    trials = optuna.load_study(study_name="planner", storage=storage).get_trials()
    storage.remove_session()
    storage.engine.dispose()
    done = [one for one in trials if one.state.name in ("COMPLETE", "PRUNED")]
    tried = [
        one.user_attrs["planner:plan"]
        for one in done
        if not one.user_attrs.get("planner:why", "").startswith("duplicate")
    ]
    assert len(tried) == len(set(tried)) == 10 + 4 + 30 + 10
    (failed,) = (one for one in trials if one.state.name == "FAIL" and "planner:plan" in one.user_attrs)
    assert failed.user_attrs["planner:plan"] in tried
    assert [one.state.name for one in trials if not one.state.is_finished()] == []


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
