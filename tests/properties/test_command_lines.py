"""Whatever a command line asks for, the answer is one with figures, or one sentence and a documented exit code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from planner.cli.main import main
from planner.cli.options import COMMANDS, OPTIONS, PARTS, Option
from tests.properties.conftest import CLUSTERS, FRAMEWORKS, NETWORKS, OPTIMIZERS, SMALL, trials

MIXED = str(Path(__file__).parents[2] / "benchmarks" / "clusters" / "mixed.toml")
BASES = {
    "suggest": ("--network", SMALL, "--cluster", "dgx-a100", "--target-batch", "64", "--nodes", "1:2"),
    "predict": ("--network", SMALL, "--cluster", "dgx-a100", "--sub-batch", "4"),
    "sweep": ("--network", SMALL, "--cluster", "dgx-a100", "--target-batch", "64", "--nodes", "1:2"),
    "why-not": ("--network", SMALL, "--cluster", "dgx-a100", "--target-batch", "64", "--nodes", "1:2"),
    "explain": (),
    "show": (),
}
"""Command -> options of a small question; what a walk draws goes before them. ``why-not`` is one of suggest."""
SUITABLE: Mapping[str, tuple[str, ...]] = {
    "network": (*NETWORKS, "gpt:layers=1", "mlp:hidden=0", "nothing.toml"),
    "dataset": ("imagenet-1k", "samples=1,bytes_per_sample=1", "samples=0,bytes_per_sample=0", "samples=1e9"),
    "cluster": (*CLUSTERS, MIXED, "local", "cluster.toml"),
    "calibration": ("tsubame-kfc", "calibration.json"),
    "framework": (*FRAMEWORKS, "pytorch,tensorflow", "pytorch@99.9", "pytorch:no-such-switch"),
    "optimizer": OPTIMIZERS,
    "strategy": ("wait-free", "bucketed:1", "bucketed:25MB", "best-fusion", "parameter-server"),
    "scenario": ("fp16", "edr", "gpu=a100-sxm4-80gb", "all_reduce*=0.5", "inter_node.bandwidth=1GB/s", "fp16,edr"),
    "rank_order": ("best", "data,tensor,context,expert,pipeline"),
    "group": ("v100:nodes=1,sub-batch=4", "a100:nodes=2,sub-batch=8,accumulation=2"),
    "sub_batch": ("1", "2", "8", "1,2", "1:4", "1:9:2"),
    "precision": ("fp32", "bf16", "fp16,bf16", "fp8", "int8,tf32"),
    "mode": ("sync", "async", "sync,async"),
    "parallelism": ("data", "pipeline", "data,hybrid", "model"),
    "schedule": ("1f1b", "gpipe", "zero-bubble,zero-bubble-h2", "no-flush", "zero-bubble-v"),
    "sharding": ("0", "1", "2,3", "0:3"),
    "virtual_stages": ("1", "2", "1,2"),
    "mini_batch": ("1", "64", "4096"),
    "target_batch": ("1", "8", "64", "1000", "100000000"),
    "recompute": ("none", "selective", "full", "every:2", "per-stage"),
    "tolerance": ("0", "10%", "50%", "100%"),
    "objective": ("epoch-time", "cost", "epoch-time:1+cost:0.2", "cost:0"),
    "limit": ("epoch=1h", "nodes=1", "gpu-hours=1,staleness=0", "cost=1", "epoch=1ms"),
    "why_not": ("nodes=2", "precision=fp16", "sub-batch=7,nodes=1", "framework=fsdp", "nodes=99"),
    "time_limit": ("1ms", "5s"),
    "trials": ("1", "3"),
    "search": ("exact",),
    "seed": ("0", "7"),
    "top": ("1", "3", "60"),
    "epochs": ("1", "90"),
    "runs": ("runs.csv",),
    "answer": ("suggestion.json", "prediction.json", "empty.json", "torn.json"),
    "item": ("resnet50", "dgx-a100", "pytorch"),
    "position": ("1", "2", "99"),
    "part": PARTS,
}
"""Option -> values that a question may well have; others have those of their form."""
SHOWN = (
    ("networks", "resnet50"), ("networks", "mlp:hidden=64"), ("clusters", "dgx-a100"), ("datasets", "imagenet-1k"),
    ("accelerators", "a100-sxm4-80gb"), ("frameworks", "pytorch"), ("calibrations", "tsubame-kfc"),
)  # fmt: skip
ODD = (
    "", " ", "0", "-1", "1", "2", "1,2", "1:4", "4:1", "1:2:0", "1,1", ",", ":", "=", "a=b", "+", "1e308", "nan", "inf",
    "-0.0", "1e-320", "9" * 30, "x" * 5000, "fp32,fp32", "on,off", "../..", "/dev/null", "\u00e9\u202e\x1b[31m", "0x10",
)  # fmt: skip
LEFT_OUT = ("study", "plot", "force", "switches", "sensitivity")
"""Options that write files, or ask dozens of questions at once; both have tests of their own."""
CODES = {"done": 0, "usage": 2, "file": 3, "nothing fits": 4, "not covered": 5}
"""Of docs/programs.md, but 1, a bug, and 130, of who interrupts."""
MAY_BE_NULL = (".request.", ".epoch_s.", ".walltime_s.")
"""Keys of documents: what a plan decides, and times of a brief answer without a data set (docs/schedulers.md)."""
LONGEST = 4_000
"""Characters of a sentence, which may list all bundled names; fewer than the longest odd value has."""


def test_exit_codes_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == {*CODES.values(), 1, 130}


def values_of(option: Option, *, odd: bool) -> st.SearchStrategy[str]:
    """Values of an option: suitable ones, or as often odd ones too."""
    words = () if option.name in SUITABLE or "A,B" in option.metavar else tuple(option.metavar.split("|"))
    suitable = st.sampled_from(SUITABLE.get(option.name) or words or SUITABLE["sub_batch"])
    lawful = option.name == "trials"  # of which any number is lawful, and work
    return suitable | st.sampled_from([one for one in ODD if not (lawful and one.isdecimal())]) if odd else suitable


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, ...]:
    """Draw a command with up to four options beside those of a small question; one of these may come twice."""
    name = draw(st.sampled_from(sorted(BASES)))
    odd = draw(st.booleans())
    command = next(one for one in COMMANDS if one.name == ("suggest" if name == "why-not" else name))
    options = [OPTIONS[one] for one in command.options if one not in LEFT_OUT]
    drawn = draw(st.lists(st.sampled_from([one for one in options if not one.positional]), max_size=4))
    drawn = drawn if odd else list({one.name: one for one in drawn}.values())
    drawn += [one for one in options if one.positional]
    drawn += [OPTIONS["why_not"]] * (name == "why-not")
    words: list[str] = []
    for option in drawn:
        value = () if option.switch else (draw(values_of(option, odd=odd)),)
        words += value if option.positional else (option.flag, *value)
    if name == "show" and not odd:
        words[-2:] = draw(st.sampled_from(SHOWN))
    base = list(zip(BASES[name][::2], BASES[name][1::2], strict=True))
    kept = [pair for pair in base if pair[0] not in words or (odd and draw(st.booleans()))]
    may_json = "json" in command.options and not {"--json", "--toml"} & {*words}
    json_too = ("--json",) if may_json and draw(st.booleans()) else ()
    return (command.name, *words, *(word for pair in kept for word in pair), *json_too)


@cache
def document(*arguments: str) -> str:
    """Return the document of a small question."""
    with contextlib.redirect_stdout(StringIO()) as out, contextlib.redirect_stderr(StringIO()):
        assert main([*arguments, *BASES[arguments[0]], "--json"]) == 0
    return out.getvalue()


@contextlib.contextmanager
def place() -> Iterator[None]:
    """Work in a folder of its own, with answers to explain, whole and not, and no calibrations of this machine."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"XDG_DATA_HOME": folder}):
        texts = {"suggestion": document("suggest"), "prediction": document("predict"), "empty": ""}
        for name, text in (texts | {"torn": texts["suggestion"][:500]}).items():
            Path(folder, f"{name}.json").write_text(text)
        with contextlib.chdir(folder):
            yield


def nulls(value: Any, place: str = "") -> list[str]:
    """Return the places of keys that are null."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [
        one for key, inner in items for one in ([f"{place}.{key}"] if inner is None else nulls(inner, f"{place}.{key}"))
    ]


@trials(10, 500)
@given(command_lines())
def test_every_command_line_is_answered_with_figures_or_refused_in_a_sentence(words: tuple[str, ...]) -> None:
    with place(), contextlib.redirect_stdout(StringIO()) as out, contextlib.redirect_stderr(StringIO()) as err:
        code = main(list(words))
    said = [line for line in err.getvalue().splitlines() if line.startswith("planner: ")]
    assert code in CODES.values(), err.getvalue()
    assert "Traceback" not in out.getvalue() + err.getvalue()
    if code in (CODES["usage"], CODES["file"], CODES["not covered"]):
        assert said, "a refusal is said"
        assert 20 < len(said[-1]) <= LONGEST
        assert said[-1].isprintable()
    if code in (CODES["done"], CODES["nothing fits"]):
        assert out.getvalue().strip()
    if "--json" in words and out.getvalue():
        of_all = json.loads(out.getvalue())
        for one in next((of_all[key] for key in ("suggestions", "predictions", "briefs") if key in of_all), [of_all]):
            unknown = [place for place in nulls(one) if not place.startswith(MAY_BE_NULL)]
            assert unknown == [] or one["status"] == "none_feasible", unknown
