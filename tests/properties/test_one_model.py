"""One plan has one price, however it is said: values that do nothing, switches and arguments that say the same."""

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from planner.cli.main import main
from planner.domain.axes import AXES
from planner.sources.sources import Sources
from planner.steps.layer_pipeline import step_pricer
from planner.steps.predict import Evaluator
from tests.properties.conftest import Options, lawful, problem_and_plans, problem_names, said, trials

SEEDS = st.integers(0, 2**32 - 1)
SAME = 1e-9
NOTHING = {
    "one GPU": (("--nodes", "1", "--gpus-per-node", "1"), (
        ("--sharding", "1"), ("--sharding", "3"), ("--shard-group", "node"), ("--schedule", "gpipe"),
        ("--sequence-parallel", "on"), ("--virtual-stages", "2"), ("--stages", "best"),
    )),
    "a node": (("--nodes", "1"), (("--schedule", "gpipe"), ("--virtual-stages", "2"), ("--sequence-parallel", "on"))),
    "sharding in a node": (("--nodes", "1", "--sharding", "2"), (("--shard-group", "node"),)),
}  # fmt: skip
"""What runs, and options that change nothing for it."""


def predicted(*arguments: str) -> Any:
    """Return the document of ``predict --json``, None where it is refused."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()):
        if main(["predict", *arguments, "--json"]):
            return None
    return json.loads(out.getvalue())


@pytest.mark.parametrize("runs", NOTHING)
@trials(2, 30)
@given(problem_names(), st.sampled_from((1, 4)))
def test_a_value_that_does_nothing_changes_nothing(runs: str, names: Options, sub_batch: int) -> None:
    network, cluster, framework, optimizer = names
    where, others = NOTHING[runs]
    common = ("--network", network, "--cluster", cluster, "--framework", framework, "--optimizer", optimizer,
              "--sub-batch", str(sub_batch), *where)  # fmt: skip
    plain = predicted(*common)
    for option in others if plain is not None else ():
        found = predicted(*common, *option)
        assert found is None or found == plain, (names, option)


@pytest.mark.parametrize(
    ("network", "split"),
    [
        ("gpt2", ()),
        ("bert", ("--sharding", "3")),
        ("vit-b16", ("--tensor", "2")),
        ("llama3-8b", ("--pipeline", "2", "--accumulation", "4")),
        ("llama3-8b", ("--tensor", "2")),
    ],
)
def test_a_switch_and_an_argument_of_the_network_that_say_the_same_are_one(
    network: str, split: tuple[str, ...]
) -> None:
    common = ("--cluster", "dgx-a100", "--nodes", "2", "--sub-batch", "2", "--precision", "bf16")
    said_by = [
        predicted("--network", f"{network}{argument}", "--framework", f"pytorch{switch}", *common, *split)
        for argument, switch in (("", ":fused-attention"), (":attention=fused", ":fused-attention"))
    ]
    assert said_by[0] is not None, split
    assert said_by[0]["iteration_s"] == said_by[1]["iteration_s"], split
    assert said_by[0]["memory_bytes"] == said_by[1]["memory_bytes"], split


@trials(3, 60)
@given(problem_names(), SEEDS)
def test_recompute_never_saves_time_nor_costs_memory(names: Options, seed: int) -> None:
    """All else equal.

    With activations on the host it may save time, as less is copied, and stages are cut by what they compute.
    """
    problem, rows = problem_and_plans(names, seed, recompute=0, recompute_every=1, offload=0, stages=0)
    axis = next(one for one in AXES if one.name == "recompute")
    full = replace(rows, recompute=np.full(rows.size, axis.code("full")))
    kept = lawful(problem, full, rows.size)
    none = replace(kept, recompute=np.full(kept.size, axis.code("none")))
    if not kept.size:
        reject()
    before, after = (Evaluator(problem).evaluate(one) for one in (none, kept))
    slower = after.iteration_s >= before.iteration_s * (1 - SAME)
    assert slower.all(), said(kept, int(np.argmin(slower)))
    less = after.memory_bytes <= before.memory_bytes * (1 + SAME)
    assert less.all(), said(kept, int(np.argmin(less)))


@trials(3, 60)
@given(problem_names(), SEEDS)
def test_sharding_needs_no_more_than_what_it_gathers(names: Options, seed: int) -> None:
    """Of any network, whole or in a pipeline, all else equal."""
    problem, rows = problem_and_plans(names, seed, sharding=0, shard_group=0, offload=0, stages=0)
    pricer = step_pricer(Sources(problem), rows.one(0).precision)
    for level in (1, 2, 3):
        sharded = lawful(problem, replace(rows, sharding=np.full(rows.size, level)), rows.size)
        if sharded.size:
            before = pricer.memory(replace(sharded, sharding=np.zeros(sharded.size, dtype=np.int64))).allocated
            after = pricer.memory(sharded)
            less = after.allocated - after.gathered <= before * (1 + SAME)
            assert less.all(), said(sharded, int(np.argmin(less)))


BOX = """format = "planner/cluster"
version = 1
name = "box"
nodes = {nodes}
[node]
gpus = {gpus}
gpu = "{gpu}"
{links}
[links.host]
kind = "pcie3"
bandwidth_GBps = 10
"""


def step_s(*arguments: str) -> float:
    """Return the seconds of a step of the only plan."""
    found = predicted(*arguments)
    assert found is not None, arguments
    return float(found["iteration_s"]["value"])


@pytest.mark.parametrize("network", ["llama:sequence=4096", "gpt2-xl"])
def test_programs_that_run_the_same_kernels_take_as_long(network: str) -> None:
    """FSDP2 with torch.compile goes by several names; what is left is how these hold gradients and losses."""
    common = ("--network", network, "--cluster", "dgx-h100", "--nodes", "1", "--sub-batch", "2", "--precision", "bf16",
              "--sharding", "3")  # fmt: skip
    times = [step_s(*common, "--framework", name) for name in ("fsdp:compile", "torchtitan:compile")]
    assert max(times) / min(times) < 1.1


@pytest.mark.parametrize("rate", [0.125, 1.25, 12.5])
def test_a_stated_rate_between_nodes_holds_but_for_protocol(tmp_path: Any, rate: float) -> None:
    """102 MB of gradients over a link: their bytes over its rate, a fifth more, and a nanosecond a byte of sockets."""
    link = f'[links.inter_node]\nkind = "ethernet"\nbandwidth_GBps = {rate}\nlatency_us = 50\nnics_per_node = 1'
    path = tmp_path / "box.toml"
    path.write_text(BOX.format(nodes=2, gpus=1, gpu="gtx-1080ti", links=link))
    found = predicted("--network", "resnet50", "--cluster", str(path), "--nodes", "2", "--sub-batch", "32",
                      "--precision", "fp32", "--framework", "pytorch", "--strategy", "no-overlap", "--input",
                      "synthetic")  # fmt: skip
    (sent,) = (one for one in found["terms"] if one["name"] == "all_reduce")
    sent_bytes = 4 * 25_557_032
    least = sent_bytes / (rate * 1e9)
    assert least <= sent["seconds"] < 1.2 * least + 1e-9 * sent_bytes


@pytest.mark.parametrize("gpu", ["rtx-4090", "a100-pcie-80gb"])
def test_generations_of_a_link_at_one_rate_are_one(tmp_path: Any, gpu: str) -> None:
    times = set()
    for kind in ("pcie", "pcie3", "pcie4", "pcie5"):
        link = f'[links.intra_node]\nkind = "{kind}"\nbandwidth_GBps = 12\nlatency_us = 10'
        path = tmp_path / f"{kind}.toml"
        path.write_text(BOX.format(nodes=1, gpus=8, gpu=gpu, links=link))
        times.add(step_s("--network", "gpt2", "--cluster", str(path), "--sub-batch", "4", "--precision", "bf16"))
    assert len(times) == 1
