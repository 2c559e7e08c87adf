"""A real slurmctld, with fake nodes of fake GPUs, takes and runs what ``planner render --to slurm`` writes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from planner.formats.calibration import CALIBRATION

pytestmark = [
    pytest.mark.started,
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("slurmctld", "slurmd", "sbatch", "munged")) or os.getuid() != 0,
        reason="Slurm and munge are not installed, or this is not root",
    ),
]

NODES, GPUS = 2, 8
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=16 CoresPerSocket=16 \
RealMemory=1000 Gres=gpu:h100:{gpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def slurm() -> Iterator[Callable[..., str]]:
    """Start a cluster and return what runs a command in it."""
    folder = Path(mkdtemp())  # paths of sockets must be short
    host, first = socket.gethostname().split(".")[0], free_port()
    text = CONFIGURATION.format(
        host=host, port=free_port(), folder=folder, nodes=NODES, first=first, last=first + NODES - 1, gpus=GPUS
    )
    (folder / "slurm.conf").write_text(text)
    gres = f"AutoDetect=off\nNodeName=n[1-{NODES}] Name=gpu Type=h100 File={folder}/nvidia[0-{GPUS - 1}]\n"
    (folder / "gres.conf").write_text(gres)
    (folder / "state").mkdir()
    for gpu in range(GPUS):
        os.mknod(folder / f"nvidia{gpu}", 0o20666, os.makedev(1, 3))
    environment = os.environ | {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def call(*words: str) -> str:
        done = subprocess.run(
            words, capture_output=True, text=True, env=environment, check=False, timeout=60, cwd=folder
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    folder.chmod(0o755)  # as munged wants it
    files = [
        f"--{name}={folder}/munge.{ending}"
        for name, ending in (
            ("key-file", "key"),
            ("socket", "socket"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        )
    ]
    call("munged", "--force", *files)
    call("slurmctld")
    for node in range(1, NODES + 1):
        call("slurmd", "-N", f"n{node}")
    try:
        end = time.monotonic() + 15
        while "idle*" in (state := call("sinfo", "--noheader", "--format=%T %D")) or f"idle {NODES}" not in state:
            assert time.monotonic() < end, state + (folder / "slurmctld.log").read_text()
            time.sleep(0.2)
        yield call
    finally:
        for file in sorted(folder.glob("*.pid")):
            with_number = file.read_text().strip()
            os.kill(int(with_number), 15)
        time.sleep(0.5)
        shutil.rmtree(folder, ignore_errors=True)


PLANS = (
    *("predict", "--network", "gpt:layers=2,hidden=256,heads=4", "--cluster", "dgx-h100", "--precision", "bf16"),
    *("--nodes", f"{NODES},4", "--tensor", "2", "--sub-batch", "4", "--framework", "megatron", "--json"),
)


@pytest.fixture
def script(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> Callable[..., Path]:
    """Return what writes the job of a plan, by its number: of two nodes, or of four."""
    plan, job = tmp_path / "plan.json", tmp_path / "job.sh"
    plan.write_text(run(*PLANS)[1])

    def write(number: int, *options: str) -> Path:
        assert run("render", str(plan), "--plan", str(number), "--to", "slurm", "-o", str(job), *options)[0] == 0
        return job

    return write


def test_the_scheduler_takes_the_job_of_a_plan(slurm: Callable[..., str], script: Callable[..., Path]) -> None:
    assert f"using {NODES * 16} processors on nodes n[1-{NODES}]" in slurm("sbatch", "--test-only", str(script(1)))


def test_a_plan_of_more_nodes_than_there_are_is_not_taken(
    slurm: Callable[..., str], script: Callable[..., Path]
) -> None:
    with pytest.raises(AssertionError, match="node configuration is not available"):
        slurm("sbatch", "--test-only", str(script(2)))


def test_the_job_runs_the_program_on_all_nodes_with_the_plan(
    slurm: Callable[..., str], script: Callable[..., Path], tmp_path: Path
) -> None:
    """``torchrun`` is one that prints what it was given: two nodes here have one address and one port."""
    printed = tmp_path / "printed"
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    torchrun = bin_folder / "torchrun"
    torchrun.write_text(
        f"#!/bin/bash\nfile={printed}.$SLURM_NODEID\n"
        'echo "$SLURM_NODEID $CUDA_VISIBLE_DEVICES: $*" > $file.new\nmv $file.new $file\n'
    )
    torchrun.chmod(0o755)
    job = script(1, "--program", "my train.py --data 'a b; $(c)'")
    text = job.read_text().replace("set -euo pipefail\n", f"set -euo pipefail\nexport PATH={bin_folder}:$PATH\n", 1)
    job.write_text(text)
    slurm("sbatch", f"--output={tmp_path}/log", str(job), "--more")
    files, end = [Path(f"{printed}.{node}") for node in range(NODES)], time.monotonic() + 30
    while not all(file.exists() for file in files):
        assert time.monotonic() < end, slurm("squeue") + (tmp_path / "log").read_text()
        time.sleep(0.1)
    lines = [file.read_text() for file in files]
    for node, line in enumerate(lines):
        assert line.startswith(f"{node} 0,1,2,3,4,5,6,7: --nnodes {NODES} --nproc-per-node {GPUS} --rdzv-backend c10d ")
        assert "my train.py --data a b; $(c) --micro-batch-size 4 --global-batch-size 32 --bf16" in line
        assert "--tensor-model-parallel-size 2" in line
        assert line.endswith(" --more\n")


def test_a_cluster_file_is_detected_from_the_scheduler(slurm: Callable[..., str], tmp_path: Path) -> None:
    """Nodes and GPUs are facts, and the same whichever command says so; this machine is none of the nodes."""
    printed = slurm("planner", "show", "cluster", "--detect")
    nodes, gpus = rf"nodes = {NODES} +# sinfo: n\[1-{NODES}\]", rf"gpus = {GPUS} +# sinfo: gpu:h100:{GPUS}"
    lines = nodes, gpus, "# gpu = . +# h100: "
    for line in lines:
        assert re.search(rf"(?m)^{line}", printed), printed
    for name, words in (("json", ("sinfo", "--json")), ("nodes", ("scontrol", "show", "node"))):
        (tmp_path / name).write_text(slurm(*words))
        again = slurm("planner", "show", "cluster", "--detect", "--from", str(tmp_path / name))
        assert again.replace(str(tmp_path / name), "sinfo") == printed


def test_ranks_that_srun_starts_on_two_nodes_measure_their_links(slurm: Callable[..., str], tmp_path: Path) -> None:
    """Names of these nodes have no address, so it is given; elsewhere it is the first node's name."""
    pytest.importorskip("torch", reason="no PyTorch: pip install 'epoch-planner[torch]'")
    out = tmp_path / "links.json"
    measure = f"MASTER_ADDR=127.0.0.1 planner calibrate --links --device cpu --budget 10s --out {out}"
    slurm("srun", f"--nodes={NODES}", f"--ntasks={NODES}", "bash", "-c", measure)
    found = CALIBRATION.read(str(out))
    assert {"all_reduce", "all_gather", "send_receive"} <= {one.kind for one in found.entries}
    assert found.node is not None
    assert found.node.gpus == 1
