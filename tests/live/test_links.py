"""Links between real ranks, and steps of DDP over a delayed, rate-limited pair of network namespaces.

Figures are printed (``pytest -m live -s``). A busy machine measures worse than the figures of docs/your-machine.md.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.domain.request import Problem
from planner.formats.calibration import CALIBRATION
from planner.steps.predict import Evaluator

pytest.importorskip("torch", reason="no PyTorch: pip install 'epoch-planner[torch]'")
pytestmark = pytest.mark.live

PACKAGE = str(Path(planner.__file__).parents[1])
BY_SIZE, BY_RANKS = 0.6, 60.0
"""Mean errors of all-reduce on sizes left out, and on ranks [%], that a busy machine too may not exceed."""


def calibrate(*arguments: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Start ``planner calibrate --links``."""
    command = [sys.executable, "-m", "planner", "calibrate", "--links", "--device", "cpu", *arguments]
    environment = os.environ | {"PYTHONPATH": PACKAGE, "XDG_DATA_HOME": str(folder), **variables}
    return subprocess.Popen(
        command, env=environment, cwd=folder, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def ended(process: subprocess.Popen[str], within_s: float = 100.0) -> tuple[int, str]:
    _, err = process.communicate(timeout=within_s)
    return process.returncode, err


def interrupted_and_continued(folder: Path) -> Calibration:
    """Return the links of four ranks, measured in two goes."""
    folder.mkdir()
    asked = ("--ranks", "4", "--out", "links.json", "--budget")
    first = calibrate(*asked, "20s", folder=folder)
    partial = folder / "links.json.partial"
    while first.poll() is None and (not partial.exists() or partial.read_text().count("\n") < 12):
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    code, err = ended(first)
    assert (code, "the same command goes on from there" in err) == (130, True)
    assert not (folder / "links.json").exists()
    code, err = ended(calibrate(*asked, "20s", folder=folder))
    assert code == 0, err
    assert "continuing from links.json.partial" in err
    return CALIBRATION.read(folder / "links.json")


def missed(found: Calibration) -> tuple[float, float]:
    """Return by how much all-reduce is missed on sizes left out and on ranks left out [%], and print all."""
    by_size = {one.kind: one.held_out_error for one in found.entries if one.held_out_error is not None}
    sys.stdout.write(f"\nmissed by size left out: {', '.join(f'{k} {e:.1%}' for k, e in by_size.items())}\n")
    sys.stdout.write("".join(f"{one.kind}: {one.notes}\n" for one in found.entries if one.notes))
    notes = next((one.notes for one in found.entries if one.kind == "all_reduce"), "")
    return by_size.get("all_reduce", math.inf), float(notes.rpartition(" ")[2].rstrip("%") or math.inf)


def test_an_interrupted_run_of_four_ranks_goes_on_and_fits_sizes_and_ranks_left_out(tmp_path: Path) -> None:
    """Other work on the machine only adds to what is missed, so the better of two tries counts."""
    found = interrupted_and_continued(tmp_path / "first")
    figures = missed(found)
    if figures[0] >= BY_SIZE or figures[1] >= BY_RANKS:
        found = interrupted_and_continued(tmp_path / "second")
        figures = missed(found)
    assert {"all_reduce", "all_gather", "reduce_scatter"} <= {one.kind for one in found.entries}
    assert figures[0] < BY_SIZE
    assert figures[1] < BY_RANKS
    assert found.node is not None
    assert found.node.gpus == 4


def test_a_rank_that_dies_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    run = calibrate("--ranks", "2", "--out", "links.json", folder=tmp_path)
    partial = tmp_path / "links.json.partial"
    while run.poll() is None and (not partial.exists() or partial.read_text().count("\n") < 5):
        time.sleep(0.1)
    (child,) = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    code, err = ended(run, 30.0)
    assert code == 2, err
    assert "ranks of --links must be there to the end, got 'rank 1 ended with -9" in err
    assert not (tmp_path / "links.json").exists()


RELAY = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
/* relay DELAY_S BYTES_PER_S NS_A NS_B: an "eth0" in each of two namespaces; frames of one come out of the other after
   the delay, and no faster than the rate. */
enum { FRAMES = 8192, LONGEST = 9100, OVERHEAD = 24 };
struct frame { double due; int size; char bytes[LONGEST]; };
static struct frame *queue[2];
static unsigned head[2], tail[2];
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static int card(const char *name) {
  char path[128];
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
  snprintf(path, sizeof path, "/var/run/netns/%s", name);
  if (setns(open(path, O_RDONLY), 0)) { perror("setns"); exit(1); }
  int made = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  strcpy(request.ifr_name, "eth0");
  if (ioctl(made, TUNSETIFF, &request)) { perror("tun"); exit(1); }
  return made;
}
int main(int count, char **words) {
  if (count < 5) return 2;
  double delay = atof(words[1]), rate = atof(words[2]), free_at[2] = {0, 0};
  int cards[2] = {card(words[3]), card(words[4])};
  for (int i = 0; i < 2; i++) queue[i] = malloc(sizeof(struct frame) * FRAMES);
  puts("ready"); fflush(stdout);
  for (;;) {
    double next = now() + 1;
    for (int i = 0; i < 2; i++) {
      while (head[i] - tail[i] < FRAMES) {
        struct frame *one = &queue[i][head[i] % FRAMES];
        if ((one->size = read(cards[i], one->bytes, LONGEST)) <= 0) break;
        double start = now();
        if (free_at[i] > start) start = free_at[i];
        free_at[i] = start + (one->size + OVERHEAD) / rate;
        one->due = free_at[i] + delay;
        head[i]++;
      }
      for (; tail[i] != head[i]; tail[i]++) {
        struct frame *one = &queue[i][tail[i] % FRAMES];
        if (one->due > now()) { if (one->due < next) next = one->due; break; }
        if (write(cards[1 - i], one->bytes, one->size) < 0) break;
      }
    }
    double wait = next - now();
    if (wait > 0) {
      struct pollfd events[2] = {{cards[0], POLLIN, 0}, {cards[1], POLLIN, 0}};
      struct timespec time = {(time_t)wait, (long)(1e9 * (wait - (time_t)wait))};
      ppoll(events, 2, &time, 0);
    }
  }
}
"""
SETTINGS = [(width, layers, batch, cap) for width, layers in ((512, 6), (1024, 4)) for batch in (32, 128, 384)
            for cap in (1, 25)]  # fmt: skip
STEPS = """
import contextlib, json, os, statistics, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
found = []
for width, layers, batch, cap in json.loads(sys.argv[1]):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())))
    model, x = DDP(net, bucket_cap_mb=cap), torch.randn(batch, width)
    def passes(sends):
        with contextlib.nullcontext() if sends else model.no_sync():
            dist.barrier()
            start = time.perf_counter()
            loss = model(x).square().mean()
            middle = time.perf_counter()
            loss.backward()
            return middle - start, time.perf_counter() - middle
    passes(True), passes(True)
    rows = [(*passes(False), sum(passes(True))) for _ in range(3)]
    times = torch.tensor([statistics.median(column) for column in zip(*rows)], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    found.append(times.tolist())
if dist.get_rank() == 0:
    print(json.dumps(found), flush=True)
dist.barrier()
os._exit(0)  # DDP keeps its group, whose threads abort the process if they drop a tensor while the interpreter ends
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Give two namespaces, each with one end of a link of 1 Gbit/s that takes 1 ms one way."""
    names = tuple(f"planner-{os.getpid()}-{at}" for at in (1, 2))
    if os.geteuid() or not shutil.which("ip") or run("ip", "netns", "add", names[0]).returncode:
        pytest.skip("network namespaces are not allowed here")
    with ExitStack() as stack:
        stack.callback(run, "ip", "netns", "del", names[0])
        run("ip", "netns", "add", names[1])
        stack.callback(run, "ip", "netns", "del", names[1])
        (tmp_path / "relay.c").write_text(RELAY)
        compiler = shutil.which("gcc") or shutil.which("cc")
        if not compiler or run(compiler, "-O2", "-o", str(tmp_path / "relay"), str(tmp_path / "relay.c")).returncode:
            pytest.skip("no C compiler for the relay of the pair")
        command = [str(tmp_path / "relay"), "1e-3", "1.25e8", *names]
        relay = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(relay.kill)
        if relay.stdout is None or relay.stdout.readline() != "ready\n":
            pytest.skip("no TAP devices here")
        for at, name in enumerate(names, start=1):
            for words in (
                f"addr add 10.77.0.{at}/24 dev eth0", "link set eth0 mtu 9000 up", "link set lo up",
            ):  # fmt: skip
                assert run("ip", "-n", name, *words.split()).returncode == 0
        yield names[0], names[1]


def on_pair(pair: tuple[str, str], folder: Path, port: int, *command: str) -> list[str]:
    """Run Python in both namespaces as two ranks on nodes of their own; return what they print."""
    processes = []
    for rank, name in enumerate(pair):
        variables = {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "GROUP_RANK": str(rank), "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": PACKAGE,
        }  # fmt: skip
        environment = os.environ | variables
        words = ["ip", "netns", "exec", name, sys.executable, *command]
        processes.append(
            subprocess.Popen(
                words, env=environment, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    try:
        texts = [process.communicate(timeout=150) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], texts
    return [out for out, _ in texts]


def perceptron(width: int, layers: int) -> Network:
    """Return a network of equal linear layers and activations."""
    made = [Layer("flat", "flatten", ("input",))]
    for at in range(layers):
        made.append(Layer(f"fc{at}", "linear", (made[-1].name,), {"features": width}))
        made.append(Layer(f"relu{at}", "activation", (made[-1].name,)))
    return Network(f"mlp-{width}-{layers}", (width, 1, 1), tuple(made))


def priced(problem: Problem, links: Calibration, scale: float, plan: Configuration) -> Any:
    """Return the step of a plan with measured links, and kernels so many times as long as those of the data sheet."""
    values = {"kernel_scale": scale, "host_s_per_call": 0.0, "host_s_per_layer": 0.0, "exponent": 1.0}
    overheads = Entry("overheads", "pytorch", "", "", "", "overheads", {}, values)
    calibration = replace(links, entries=(*links.entries, overheads), cluster="pair")
    return Evaluator(replace(problem, calibrations=(calibration,))).describe(Configurations.of([plan]))[0]


def test_steps_of_ddp_over_a_slow_pair_are_predicted_from_its_measured_links(
    pair: tuple[str, str], tmp_path: Path
) -> None:
    words = ("-m", "planner", "calibrate", "--links", "--device", "cpu", "--budget", "16s", "--out", "pair.json")
    on_pair(pair, tmp_path, 29533, *words)
    links = CALIBRATION.read(tmp_path / "pair.json")
    (slowdown,) = (one for one in links.entries if one.kind == "overlap")
    sys.stdout.write(f"\nkernels take {slowdown.coefficients['beside_s']:.2f} times as long beside messages, ")
    sys.stdout.write(f"{slowdown.notes}\n")
    measured = json.loads(on_pair(pair, tmp_path, 29534, "-c", STEPS, json.dumps(SETTINGS))[0])
    assert links.node is not None
    cluster, misses, alone = Cluster("pair", 2, links.node), [], []
    for (width, layers, batch, cap), (forward_s, backward_s, step_s) in zip(SETTINGS, measured, strict=True):
        settings = Settings(optimizer="none", strategy="bucketed", input="synthetic", bucket_bytes=cap * 2.0**20)
        plan = Configuration(2, 1, batch)
        problem = Problem(perceptron(width, layers), None, cluster, (), settings=settings)
        whole = {one.name: one.seconds for one in priced(problem, links, 1.0, plan).terms}
        scale = (forward_s + backward_s) / (whole["forward"] + whole["backward"])
        predicted_s = priced(problem, links, scale, plan).iteration_s.value
        misses.append(predicted_s / step_s - 1)
        alone.append((forward_s + backward_s) / step_s - 1)
        sys.stdout.write(f"{width} x {layers}, batch {batch}, {cap} MB: {step_s * 1e3:.0f} ms, {misses[-1]:+.1%}\n")
    sys.stdout.write(f"mean miss {np.mean(np.abs(misses)):.1%}; without messages {np.mean(np.abs(alone)):.1%}\n")
    assert np.mean(np.abs(misses)) < 0.25
    assert np.mean(np.abs(misses)) < np.mean(np.abs(alone)) / 2
