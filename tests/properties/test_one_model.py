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


@pytest.mark.parametrize("network", ["gpt2", "bert", "vit-b16", "llama3-8b"])
@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100"])
def test_a_switch_and_an_argument_of_the_network_that_say_the_same_are_one(network: str, cluster: str) -> None:
    common = ("--cluster", cluster, "--nodes", "2", "--sub-batch", "2", "--precision", "bf16")
    for split in ((), ("--sharding", "3"), ("--tensor", "2"), ("--pipeline", "2", "--accumulation", "4")):
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
