"""An axis is one declaration: a made-up degree of parallelism is seen wherever axes are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DECLARED = """
from dataclasses import dataclass
from planner.domain import axes

@dataclass(frozen=True, slots=True)
class WithOneMore(axes.Axes[axes.Count, axes.Word]):
    made_up: axes.Count = axes.axis(
        default=1, is_degree=True, only_sync=True, title="made-up degree", option="made_up",
        help="Devices that share a copy.", doc="devices that share a copy", asked="degrees to try", heading="made\\nup",
    )

axes.Axes, axes.AXES = WithOneMore, axes.axes_of(WithOneMore)
"""
"""The declaration, as if it stood in the module: everything else is imported after it."""

COMMAND = "import sys\nfrom planner.cli.main import main\nsys.exit(main(sys.argv[1:]))"
PROBLEM = ("--network", "resnet50", "--cluster", "dgx1-v100", "--nodes", "1", "--precision", "fp32")


def python(code: str, *arguments: str) -> str:
    run = [sys.executable, "-c", DECLARED + code, *arguments]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def predictions() -> list[dict[str, Any]]:
    options = ("--sub-batch", "32", "--made-up", "1,2,4", "--input", "synthetic", "--json")
    found: list[dict[str, Any]] = json.loads(python(COMMAND, "predict", *PROBLEM, *options))["predictions"]
    return found


def test_it_is_an_option() -> None:
    shown = " ".join(python(COMMAND, "predict", "--help").split())
    assert "--made-up A,B|LO:HI[:STEP] Devices that share a copy. [default: 1]" in shown


def test_it_is_a_key_and_copies_of_the_network_follow_from_it(predictions: Any) -> None:
    keys = [one["configuration"] for one in predictions]
    assert [one.get("made_up", 1) for one in keys] == [1, 2, 4]
    assert [one["data_parallel"] for one in keys] == [8, 4, 2]
    assert [one["mini_batch"] for one in keys] == [256, 128, 64]


def test_it_is_priced(predictions: Any) -> None:
    one, two, four = (
        prediction["samples_per_s"]["value"] * prediction["iteration_s"]["value"] for prediction in predictions
    )
    assert (one, two, four) == pytest.approx((256, 128, 64))


def test_it_is_searched_ranked_and_shown() -> None:
    options = ("--target-batch", "64", "--sub-batch", "8,16", "--made-up", "1,2,3", "--accumulation", "1", "--json")
    answer = json.loads(python(COMMAND, "suggest", *PROBLEM, *options))
    assert answer["request"]["made_up"] == {"source": "option", "value": [1, 2, 3]}
    # 8 GPUs: 8 copies x 8 samples and 4 x 16; 8 is no multiple of 3
    plans = [(one["configuration"].get("made_up", 1), one["configuration"]["sub_batch"]) for one in answer["plans"]]
    assert sorted(plans) == [(1, 8), (2, 16)]
    refused = {one["reason"]: one["count"] for one in answer["search"]["refused"]}
    assert refused["GPUs not a multiple of the degrees of parallelism"] == 2
    table = python(COMMAND, "suggest", *PROBLEM, *options[:-1])
    assert any({"sub-", "made", "preci-"} <= set(line.split()) for line in table.splitlines()), table


def test_it_is_loosened_where_nothing_fits() -> None:
    code = COMMAND.replace("sys.exit(main(sys.argv[1:]))", "main(sys.argv[1:])")
    options = (
        "--target-batch", "64", "--tolerance", "0", "--sub-batch", "8", "--made-up", "2", "--accumulation", "1",
        "--json",
    )  # fmt: skip
    answer = json.loads(python(code, "suggest", *PROBLEM, *options))
    assert {one["option"]: one["value"] for one in answer["loosen"]}["--made-up"] == "1"


def test_the_smaller_stands_first_where_plans_are_equal_otherwise() -> None:
    code = """
import numpy as np
from planner.domain.configuration import Configuration, Configurations
from planner.domain.prediction import Predictions
from planner.search.ranking import PricedPlans
from planner.search.ranking import Order
plans = Configurations.of([Configuration(1, 4, 8, made_up=made_up) for made_up in (4, 1, 2)])
same = Predictions(**{name: np.ones(3) for name in Predictions.__dataclass_fields__})
best = Order("epoch-time", 8, has_dataset=True).best(PricedPlans(plans, same), 3)
print(best.configurations.made_up.tolist())
"""
    assert python(code).strip() == "[1, 2, 4]"


def test_it_is_a_column_of_runs(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(
        "id,network,cluster,metric,value,nodes,gpus_per_node,sub_batch,made_up\n"
        "a,resnet50,dgx1-v100,iteration_s,0.2,1,8,16,2\nb,resnet50,dgx1-v100,iteration_s,0.2,1,8,16,3\n"
    )
    code = """
import sys
from planner.formats.runs import read_runs, write_runs
runs = read_runs(sys.argv[1])
print(runs.rows[0].data_parallel, runs.rows[0].mini_batch, runs.refused[0].reason, sep="|")
print(write_runs(runs.rows))
"""
    found, *written = python(code, str(file)).splitlines()
    product = "tensor_parallel x context_parallel x pipeline_parallel x made_up"
    assert found == f"4|64|the number of GPUs must be a multiple of {product} = 3, got 8"
    assert ("made_up", "2") in zip(written[1].split(","), written[2].split(","), strict=True)
