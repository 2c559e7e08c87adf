"""Jobs that are started: two processes of torchrun meet over gloo; accelerate and DeepSpeed read their files."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

pytestmark = [pytest.mark.started, pytest.mark.usefixtures("clean_place")]

Run = Callable[..., tuple[int, str, str]]
PREDICT = ("predict", "--network", "gpt:layers=2,hidden=256,heads=4", "--cluster", "dgx-h100", "--precision", "bf16")
PROGRAM = """\
import json, os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ranks = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(ranks)
with open(sys.argv[sys.argv.index("--deepspeed_config") + 1]) as file:
    keys = json.load(file)
with open(sys.argv[1] + str(dist.get_rank()), "w") as file:
    json.dump([ranks.item(), keys, os.environ["PLAN_SHARDING"]], file)
dist.destroy_process_group()
"""


def test_two_processes_start_with_the_plan(run: Run, tmp_path: Path) -> None:
    program, plan, job = tmp_path / "my program.py", tmp_path / "plan.json", tmp_path / "job.sh"
    program.write_text(PROGRAM)
    asked = ("--framework", "deepspeed", "--gpus-per-node", "2", "--sharding", "2", "--sub-batch", "4", "--json")
    plan.write_text(run(*PREDICT, *asked)[1])
    words = shlex.join([str(program), f"{tmp_path}/rank "])
    assert run("render", str(plan), "--to", "torchrun", "--program", words, "-o", str(job))[0] == 0
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(f'#!/bin/bash\nexec {shlex.quote(sys.executable)} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    environment = os.environ | {"PATH": f"{torchrun.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(shutil.which("bash")), str(job)], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        total, keys, sharding = json.loads((tmp_path / f"rank {rank}").read_text())
        assert (total, sharding) == (3.0, "2")
        assert keys["train_micro_batch_size_per_gpu"] == 4
        assert keys["zero_optimization"] == {"stage": 2}


READ = """\
import sys
from accelerate.commands.config.config_args import load_config_from_file
for file in sys.argv[1:]:
    print(load_config_from_file(file).to_dict())
"""


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_reads_its_file(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    asked = ("--framework", "accelerate", "--nodes", "2", "--tensor", "2", "--sharding", "2,3", "--sub-batch", "4")
    plan.write_text(run(*PREDICT, *asked, "--shard-group", "node", "--json")[1])
    files = [str(tmp_path / f"{number}.yaml") for number in (1, 2)]
    for number, file in enumerate(files, 1):
        assert run("render", str(plan), "--to", "accelerate", "--plan", str(number), "-o", file)[0] == 0
    read = [sys.executable, "-c", READ, *files]
    done = subprocess.run(read, capture_output=True, text=True, check=True)
    common = "'num_processes': 16", "'num_machines': 2", "'distributed_type': 'FSDP'", "'parallelism_config_tp_size': 2"
    for line, gathers in zip(done.stdout.splitlines(), (False, True), strict=True):
        assert all(words in line for words in (*common, f"'fsdp_reshard_after_forward': {gathers}"))


READ_AS_DEEPSPEED = """\
import json, sys
from deepspeed import comm
from deepspeed.runtime.config import DeepSpeedConfig
class Ranks:
    get_data_parallel_world_size = staticmethod(lambda: 16)
comm.get_rank = lambda: 0  # of ranks that nobody starts here
for file in sys.argv[1:]:
    one = DeepSpeedConfig(json.load(open(file)), mpu=Ranks())
    print(json.dumps({
        "batch": one.train_batch_size, "stage": one.zero_config.stage, "bf16": one.bfloat16_config.enabled,
        "fp16": one.float16_config.enabled, "accumulates": one.gradient_accumulation_steps,
    }))
"""


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_deepspeed_reads_its_file(run: Run, tmp_path: Path) -> None:
    """Its classes refuse a key that they do not know, and a mini-batch that its parts do not make."""
    plan, stages, types = tmp_path / "plan.json", (0, 1, 2, 3), ("bf16", "fp16")
    asked = ("--framework", "deepspeed", "--nodes", "2", "--sub-batch", "4", "--accumulation", "3")
    shape = ("--sharding", ",".join(map(str, stages)), "--precision", ",".join(types))
    plan.write_text(run(*PREDICT[:-2], *asked, *shape, "--json")[1])
    plans = [one["configuration"] for one in json.loads(plan.read_text())["predictions"]]
    files = [str(tmp_path / f"{number}.json") for number in range(1, len(plans) + 1)]
    for number, file in enumerate(files, 1):
        assert run("render", str(plan), "--to", "deepspeed", "--plan", str(number), "-o", file)[0] == 0
    read = [sys.executable, "-c", READ_AS_DEEPSPEED, *files]
    done = subprocess.run(read, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"batch"')]
    assert {(one["precision"], one.get("sharding", 0)) for one in plans} == {*product(types, stages)}
    for one, seen in zip(plans, lines, strict=True):
        assert (seen["batch"], seen["accumulates"], seen["stage"]) == (16 * 4 * 3, 3, one.get("sharding", 0))
        assert (seen["bf16"], seen["fp16"]) == (one["precision"] == "bf16", one["precision"] == "fp16")
