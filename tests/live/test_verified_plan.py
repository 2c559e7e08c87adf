"""``planner verify`` for real, on one thread of this CPU."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.live
def test_steps_of_a_plan_for_gpus_run_on_this_cpu_beside_its_prediction(run: Run, clean_place: None) -> None:
    """The data sheet of a CPU is rough: the time is of its order, and the parts make the step."""
    del clean_place
    network = "gpt:layers=2,hidden=64,heads=4,sequence=32,vocabulary=128"
    words = ("--network", network, "--cluster", "dgx-a100", "--sub-batch", "4", "--tensor", "2", "--json")
    Path("plan.json").write_text(run("predict", *words)[1])
    code, out, _ = run("verify", "plan.json", "--device", "cpu", "--budget", "10s", "--json")
    terms = {one["name"]: one for one in json.loads(out)["terms"]}
    assert (code, [*terms]) == (0, ["forward", "backward", "update", "step"])
    assert json.loads(out)["ran"] == "the part of one of 2 tensor-parallel ranks"
    parts_s = sum(one["measured_s"] for name, one in terms.items() if name != "step")
    assert terms["step"]["measured_s"] == pytest.approx(parts_s)
    assert 1e-2 < terms["step"]["ratio"] < 1e2
