"""The table of options: each is documented, and each refuses what breaks its rule in the sentence form."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from planner.cli.options import COMMANDS, OPTIMIZERS, OPTIONS, PANELS
from planner.domain import configuration, framework
from planner.formats.parts import OPTION_KEYS

Run = Callable[..., Any]
SENTENCE = re.compile(r"planner: .+ must be .+, got .+\n")

INVALID: dict[str, tuple[str, ...]] = {
    "network": ("resnet5", "", "resnet50:strid=1x1", "missing.toml"),
    "dataset": ("imagenet", "samples=0,bytes_per_sample=1", "samples=nan,bytes_per_sample=1", "samples=5"),
    "cluster": ("tsubame", "", "missing.toml"),
    "calibration": ("tsubame", "", "missing.json"),
    "framework": ("@", ""),
    "mode": ("asynchronous", "", "sync,"),
    "nodes": ("0", "-1", "nan", "8:1", "1:", "", "99999999999", "43"),
    "gpus_per_node": ("0", "1.5", "9"),
    "sub_batch": ("0", "-8", "1:1:0"),
    "mini_batch": ("0", "1:4", "-1"),
    "accumulation": ("0", "x"),
    "group": (
        "",
        "v100",
        "v100:",
        "v100:nodes=2",
        "v100:sub-batch=0",
        "v100:sub-batch=x",
        "v100:gpus=8,sub-batch=1",
        "v100:sub-batch=8",
    ),
    "precision": ("fp23", "", "fp32;fp16"),
    "tensor": ("0", "x"),
    "sequence_parallel": ("yes", ""),
    "context": ("0", "1.5"),
    "expert": ("-1", ""),
    "tensor_parallel": ("0", "x", "1.5", ""),
    "pipeline": ("-1", "0"),
    "virtual_stages": ("x", "0"),
    "schedule": ("2f2b", ""),
    "stages": ("uneven", ""),
    "recompute": ("some", "", "every", "every:0", "every:x", "every:1.5", "none,every:2", "every:K"),
    "recompute_every": ("0", "x", ""),
    "sharding": ("4", "-1"),
    "shard_group": ("rack", ""),
    "offload": ("weights", ""),
    "rank_order": ("tensor", "tensor,tensor,context,expert,data", "tp,cp,ep,dp,pp", ""),
    "parallelism": ("tensor", "data,"),
    "optimizer": ("adm", ""),
    "trainable": ("some", "last:0"),
    "strategy": ("overlap", "bucketed:", "bucketed:25", "bucketed:1MiB:4MiB", "bucketed:best", "best-fusion:1MiB"),
    "input": ("disk",),
    "scenario": ("fp8", "all_reduce*=0", "all_reduce*=nan", "inter_node.bandwidth=12.5", "", "nowhere*=2"),
    "task": ("test", ""),
    "latency": ("10", "0ms", "-1s"),
    "rate": ("0", "x"),
    "target_batch": ("0", "-138", "1.5", "nan", "inf", "9" * 12, ""),
    "tolerance": ("25", "-1%", "nan", "101%", "1e300%"),
    "objective": ("time", "cost", "", "epoch-time:1+cots:2", "epoch-time:0+cost:1", "cost:1+cost:1"),
    "top": ("0", "-1", "1e9"),
    "runs": ("runs.csv",),
    "hold_out": ("colour", ""),
    "fit_on": ("missing.csv",),
    "ranks": ("0", "x"),
    "threads": ("0", "some"),
    "cluster_out": ("mine.json", "missing-folder/mine.toml"),
    "plot": ("plot.gif", "plot", "missing-folder/plot.png", ""),
    "device": ("tpu", "cuda:x", ""),
    "budget": ("60", "0s", "-1s", "5GB", "1ms"),
    "target_error": ("5", "0%", "-1%", "nan", "101%"),
    "plan": ("",),
    "samples": ("missing-folder",),
    "name": ("", "a/b", "two words"),
    "out": ("missing-folder/out.json",),
    "epochs": ("0", "-1", "1.5", ""),
    "tokens": ("0", "-1", "nan", "15T", ""),
    "deadline": ("", "24", "0h", "-1h", "5GB"),
    "seed": ("-1", "x"),
    "what": ("net", ""),
    "from_": ("",),
    "item": ("resnet5",),
    "choose": ("slowest", ""),
    "limit": ("", "epoch", "epoch=1", "wall=1h", "nodes=-3", "nodes=x", "epoch=1h,epoch=2h", "efficiency=50", "run=1h"),
    "why_not": ("", "nodes", "nodes=3,nodes=4"),
    "answer": ("missing.json",),
    "requests": ("missing.jsonl",),
    "search": ("guess", ""),
    "time_limit": ("", "2", "0s", "-1s", "5GB"),
    "trials": ("0", "-1", "x", "5"),
    "study": ("s.db",),
    "storage": ("nothing.db",),
    "position": ("0", "-1", "x"),
    "part": ("cost", ""),
    "to": ("lsf", ""),
    "program": ("", "it's"),
    "image": ("",),
}
SWITCHES = {
    "links",
    "work",
    "pareto",
    "force",
    "brief",
    "json",
    "toml",
    "detect",
    "allow_lossy",
    "only_calibration",
    "allow_unknown",
    "allow_specified",
    "verbose",
    "sensitivity",
    "switches",
}
BASE: dict[str, list[str]] = {
    "suggest": ["--target-batch", "138"],
    "sweep": ["--target-batch", "138"],
    "predict": ["--sub-batch", "8"],
    "validate": ["--runs", "runs.csv"],
    "show": ["networks"],
    "calibrate": ["--device", "cpu", "--budget", "2s"],
    "explain": ["answer.json"],
    "batch": [],
    "render": ["answer.json", "--to", "slurm"],
    "search-worker": ["--storage", "nothing.db"],
}


def test_every_option_is_walked() -> None:
    assert set(INVALID) | SWITCHES == set(OPTIONS)


def test_choices_are_those_of_the_records() -> None:
    assert tuple(configuration.OPTIMIZERS) == OPTIMIZERS
    assert OPTIONS["strategy"].metavar.replace("[:SIZE]", "").split("|") == list(framework.STRATEGIES)


def test_settings_files_have_options_alone() -> None:
    assert set(OPTION_KEYS) <= set(OPTIONS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_documents_every_option(command: Any, run: Run) -> None:
    code, out, err = run(command.name, "--help")
    letters = "".join(out.split())  # lines may break at a space or a hyphen
    assert (code, err) == (0, "")
    for name in command.options:
        assert f"{OPTIONS[name].flag} " in out
        assert "".join(OPTIONS[name].text(command.name).split()) in letters


@pytest.mark.parametrize("command", ["suggest", "sweep", "predict"])
def test_many_options_stand_in_panels_each_with_an_example_of_its_own_options(command: str, run: Run) -> None:
    text, names = run(command, "--help")[1], next(one.options for one in COMMANDS if one.name == command)
    panels = re.split(r"\n\n(?=\w.*:\n)", text)[1:]
    assert [panel.partition(":")[0] for panel in panels] == [one for one in PANELS if one in text]
    assert sum(len(re.findall(r"(?m)^  (?:-v, )?--[a-z]", panel)) for panel in panels) == len(names)
    for panel in panels:
        example = re.search(r"\n  Example:  (--.*(?:\n {12}\S.*)*)", panel)
        assert example is not None
        for flag in re.findall(r"--[a-z-]+", example[1]):
            assert re.search(rf"(?m)^  (?:-v, )?{flag}\b", panel), flag


def test_the_examples_of_the_panels_are_a_request_together(run: Run) -> None:
    code, out, err = run("suggest", *(word for example, _ in PANELS.values() for word in example.split()))
    assert (code, json.loads(out)["status"]) == (0, "found"), err


CASES = [
    (command.name, name, value)
    for name, values in INVALID.items()
    for command in [next(known for known in COMMANDS if name in known.options)]
    for value in values
]


@pytest.mark.parametrize(("command", "name", "value"), CASES)
def test_an_invalid_value_is_one_sentence(command: str, name: str, value: str, run: Run) -> None:
    option = OPTIONS[name]
    base = BASE[command] if OPTIONS[name].flag not in BASE[command] else BASE[command][2:]
    arguments = [*base, value] if name == "item" else [value] if option.positional else [*base, option.flag, value]
    code, out, err = run(command, *arguments)
    expected = 3 if value.startswith("missing.") else 2
    assert (code, out) == (expected, "")
    if expected == 2:
        assert SENTENCE.fullmatch(err), err
