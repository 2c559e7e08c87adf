"""Every command that an answer prints works, in a fresh folder with what the answer was given.

Words in capitals are what the user fills in: ``FILE.csv`` the table of ``explain --part runs`` with the seconds of
each step, ``NAME`` the network, ``DIR`` a folder of samples. Commands that measure are meant for a node of the
cluster: there its device is present, and what measures it is replaced by an instrument that says it was reached.
"""

import csv
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import find_accelerator, find_calibration, find_cluster
from planner.domain.cluster import Accelerator, Node
from planner.errors import UsageError
from planner.probes.gpu import Gpu
from planner.probes.precisions import CPU_PRECISIONS, wanted_precisions
from planner.sessions import measure

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
MIXED = "mixed.toml"
GPT = "gpt:layers=4,hidden=768,heads=8,sequence=256,vocabulary=8192"

REQUESTS = (
    "suggest --target-batch 138",
    "suggest --network resnet50 --cluster dgx-a100 --target-batch 1024",
    "suggest --network resnet50 --network vgg16 --cluster dgx1-v100 --target-batch 512",
    "suggest --network resnet50 --cluster dgx1-v100 --target-batch 512 --framework pytorch,mxnet -v",
    "suggest --network gpt2 --cluster dgx-a100 --target-batch 512 --mode async",
    f"suggest --network {GPT} --cluster dgx-a100 --target-batch 64 --nodes 1 --sub-batch 8 --framework megatron-lm -v",
    f"suggest --network resnet50 --cluster {MIXED} --target-batch 1024 -v",
    "predict --network gpt2 --cluster dgx-a100 --sub-batch 8",
    "predict --network resnet50 --cluster dgx1-v100 --sub-batch 32 --precision fp32 -v",
    *(f"show calibrations {name}" for name in ("a100-sxm4-80gb", "cpu-epyc-example", "v100-sxm2-16gb")),
    "suggest --target-batch 64 --cluster dgx-a100",
    "suggest --target-batch 64 --network resnet50",
    "suggest --network resnet50 --cluster dgx-a100 --target-batch 1024 --precision int8 --allow-lossy",
    "predict --network resnet50 --cluster dgx-a100 --sub-batch 8 --precision int8",
    "predict --network resnet50 --calibration cpu-epyc-example --sub-batch 8 --precision int8",
    "show clusters --toml",
    "explain",
    "search-worker --storage none.db --trials 1",
    "calibrate --samples strange",
)

SILENT = (
    "suggest --network resnet50 --cluster dgx-a100 --target-batch 1024 --precision int8",
    "suggest --network resnet50 --cluster dgx-a100 --target-batch 1024 --brief",
    "suggest --network resnet50 --cluster dgx-a100 --target-batch 1000 --nodes 3",
    "suggest --network resnet50 --cluster dgx-a100 --target-batch 1024 --why-not nodes=2",
    "sweep --network resnet50 --cluster dgx-a100 --target-batch 1024",
    "suggest --network gpt2 --cluster dgx-a100 --target-batch 64 --precision fp8",
    "predict --network resnet50 --calibration cpu-epyc-example --sub-batch 8 --precision fp16",
    "predict --network gpt2 --cluster dgx-a100 --calibration v100-sxm2-16gb --sub-batch 8",
    "suggest --network resnet50 --cluster no-latency.toml --target-batch 64",
)
"""Requests whose answers print no command today; one that they print tomorrow works too."""


@pytest.fixture(autouse=True)
def _files(_clean_place: None) -> None:
    """Put the files that requests name into the folder."""
    Path(MIXED).write_text((ROOT / "benchmarks" / "clusters" / MIXED).read_text())
    Path("strange").mkdir()
    Path("strange/samples.csv").write_text("# planner/samples 1\nkind,precision,m,n,k,time_s\ngemm,fp32,8,8,8,1e-5\n")
    Path("DIR").mkdir()
    Path("no-latency.toml").write_text(
        'format = "planner/cluster"\nversion = 1\nname = "x"\nnodes = 2\n[node]\ngpus = 2\ngpu = "a100-sxm4-80gb"\n'
        '[links.intra_node]\nkind = "nvlink"\nbandwidth_GBps = 300\nlatency_us = 3\n'
        '[links.inter_node]\nkind = "infiniband"\nbandwidth_GBps = 25\n'
    )


class ReachedError(UsageError):
    """The machine would be measured now."""


@pytest.fixture
def on_a_node(instruments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[Accelerator], None]:
    """Return a function that lets this machine be a node with an accelerator, which is not measured."""

    def measured(*_given: Any, **_named: Any) -> Any:
        raise ReachedError("reached")

    def call(device: Accelerator) -> None:
        own = tuple(device.peak_flop_per_s) if device.kind == "gpu" else CPU_PRECISIONS

        def place_of(_device: str, precisions: Sequence[str], *_more: object) -> Any:
            wanted_precisions(tuple(precisions), own, own)
            measured()

        gpu = Gpu("cuda:0", "GPU-1", own, 0, is_known=True, accelerator=device, node=Node(1, device), circumstances={})
        monkeypatch.setattr(measure, "describe_gpu", lambda *_given: gpu)
        kind = "cuda" if device.kind == "gpu" else "cpu"
        instruments.update(
            check_gpu=lambda _name: None, default_device=lambda _say: kind, present_gpus=lambda _known: (gpu,),
            place_of=place_of, run_plans=measured,
        )  # fmt: skip

    return call


def commands_in(text: str) -> list[str]:
    """Return the commands of this program that a text prints: between backticks or quotes, or on a line of their own.

    Those of a line of their own may be followed by a comment, and write a file.
    """
    joined = " ".join(text.split())
    quoted = [a or b for a, b in re.findall(r"`(planner [^`]+)`|'(planner [a-z][^']*)'", joined)]
    text = re.sub(r"^command\n.*\n", "", text, flags=re.MULTILINE)  # how it was made: no advice
    alone = re.findall(r"^ *(planner [a-z].*)$", text, flags=re.MULTILINE)
    after = re.findall(r"then: (planner .+)$", text, flags=re.MULTILINE)
    return list(dict.fromkeys((*quoted, *alone, *after)))


def value_of(words: Sequence[str], option: str, other: str) -> str:
    """Return the value of an option of a request, or another where it has none."""
    return words[words.index(option) + 1] if option in words else other


def device_of(words: Sequence[str]) -> Accelerator:
    """Return the accelerator of the cluster, or calibration, that a request is about."""
    cluster, calibration = value_of(words, "--cluster", "tsubame-kfc"), value_of(words, "--calibration", "")
    if words[:2] == ["show", "calibrations"]:
        calibration = words[2]
    if calibration and "--cluster" not in words:
        one = find_calibration(calibration)
        return one.node.accelerator if one.node else find_accelerator(one.accelerator)
    return find_accelerator("a100-sxm4-80gb") if cluster.endswith(".toml") else find_cluster(cluster).node.accelerator


def fill_in(path: str) -> None:
    """Give the runs of a table that ``explain --part runs`` printed the seconds of a step."""
    _, *lines = Path(path).read_text().splitlines()
    rows = list(csv.DictReader(lines))
    with Path("FILE.csv").open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "value": "0.05"} for row in rows)


def kept(run: Run, words: Sequence[str]) -> None:
    """Keep the answer to a request in plan.json, and the runs that decide, with a time of each, in FILE.csv."""
    if Path("plan.json").exists():
        return
    code, out, _ = run(*(word for word in words if word not in ("-v", "--brief")), "--json")
    assert code == 0
    Path("plan.json").write_text(out)
    code, out, err = run("explain", "plan.json", "--part", "runs")
    assert (code, out[:1]) == (0, "#"), err
    rows = list(csv.DictReader(out.splitlines()[1:]))
    with Path("FILE.csv").open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "value": "0.05"} for row in rows)


def follow(run: Run, command: str, words: Sequence[str]) -> None:
    """Run a command that the answer to a request printed; ``words``: the request."""
    given = shlex.split(command.partition(" > ")[0], comments=True)[1:]
    named = {"NAME": "dgx-a100" if "clusters" in given else value_of(words, "--network", "resnet50")}
    given = [{"runs.csv": "FILE.csv", **named}.get(word, word) for word in given]
    given += ["--trials", "1"] if "optuna" in given else []
    if "plan.json" in given:
        kept(run, words)
    code, out, err = run(*given)
    if "calibrate" in given and not {"--runs", "--samples"} & set(given):
        assert (code, err.splitlines()[-1]) == (2, "planner: reached"), (command, err)
        return
    assert code == 0, (command, err)
    for another in commands_in(out + err):  # what such a command prints is an answer too
        if "FILE.csv" in another and another != command:
            follow(run, another, words)
    if "refined.json" in given:
        if not Path("served").exists():  # the same runs refine any calibration
            assert run(*words, "--calibration", "refined.json")[0] == 0
        Path("refined.json").rename("served")


@pytest.mark.parametrize("request_words", REQUESTS + SILENT)
def test_every_command_of_an_answer_works(
    request_words: str, run: Run, on_a_node: Callable[[Accelerator], None]
) -> None:
    words = shlex.split(request_words)
    _, out, err = run(*words)
    commands = commands_in(out + err)
    assert commands or request_words in SILENT
    on_a_node(device_of(words))
    for command in commands:
        follow(run, command, words)
