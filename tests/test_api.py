"""Answers as objects of Python: those of the command, with plain attributes, a table, and errors that can be caught."""

import json
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

import planner
from planner.errors import NothingFitsError
from planner.formats.summaries import BRIEF

ASKED = {"network": "resnet18", "cluster": "dgx1-v100", "precision": "fp32", "gpus_per_node": 8}
WORDS = ("--network", "resnet18", "--cluster", "dgx1-v100", "--precision", "fp32", "--gpus-per-node", "8")


@pytest.mark.usefixtures("clean_place")
def test_a_suggestion_is_that_of_the_command(run: Callable[..., tuple[int, str, str]]) -> None:
    answer = planner.suggest(target_batch=256, **ASKED)
    document = json.loads(run("suggest", "--target-batch", "256", *WORDS, "--json")[1])
    assert answer.to_dict() == document
    brief = json.loads(run("suggest", "--target-batch", "256", *WORDS, "--json", "--brief")[1])
    chosen = {key: brief[key] for key in ("nodes", "sub_batch", "precision", "mini_batch", "memory_bytes", "framework")}
    assert {key: getattr(answer.chosen, key) for key in chosen} == chosen
    assert answer.chosen.epoch_s.value == brief["epoch_s"]["value"]
    frame = answer.to_frame()
    assert list(frame["position"]) == [plan.position for plan in answer.plans] == [1, 2, 3, 4, 5][: len(frame)]
    assert list(frame["epoch_s"]) == [one["prediction"]["epoch_s"]["value"] for one in document["plans"]]
    assert repr(answer).splitlines()[-1] == run("suggest", "--target-batch", "256", *WORDS)[1].splitlines()[-1]
    assert 3 <= answer._repr_html_().count("<tr>") <= 1 + len(answer.plans)
    assert repr(answer.plans[0]).startswith(f"Plan 1: {answer.plans[0].nodes} node")


@pytest.mark.usefixtures("clean_place")
def test_errors_name_arguments_and_have_the_exit_code() -> None:
    with pytest.raises(planner.PlannerError, match=r"^target_batch must be given, got nothing") as usage:
        planner.suggest(**ASKED)
    assert usage.value.exit_code == 2
    with pytest.raises(planner.PlannerError, match="did you mean 'target_batch'"):
        planner.suggest(target_batc=64)
    with pytest.raises(NothingFitsError, match="meets target_batch 1009"):
        planner.suggest(target_batch=1009, tolerance=0, nodes=8, **ASKED)


@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize("cluster", ["dgx1-v100", ["dgx1-v100", "dgx-a100"]])
@pytest.mark.parametrize(
    ("key", "values", "shown"),
    [
        ("network", ["resnet18", "alexnet"], "resnet18, alexnet"),
        ("target_batch", (256, 512), "256, 512"),
        ("target_batch", [256, 1], "256, 1"),
        ("scenario", ["all_reduce*=0.5", "all_reduce*=2"], "all_reduce*=0.5, all_reduce*=2"),
    ],
)
def test_each_question_is_asked_by_itself(cluster: str | list[str], key: str, values: object, shown: str) -> None:
    asked = {"target_batch": 256, **ASKED, "cluster": cluster, key: values}
    with pytest.raises(planner.PlannerError) as error:
        planner.suggest(**asked)
    assert str(error.value) == f"{key} must be one in an answer, got '{shown}'; ask for each by itself"


@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize(
    "values",
    [[16, 17, 18], (16, 17, 18), range(16, 19), np.arange(16, 19), tuple(np.arange(16, 19)), "16,17,18", "16:18"],
)
def test_several_values_may_be_any_sequence_of_numbers(values: object) -> None:
    predicted = planner.predict(sub_batch=values, **ASKED)
    assert [plan.sub_batch for plan in predicted.plans] == [16, 17, 18]


@pytest.mark.usefixtures("clean_place")
def test_numbers_may_be_those_of_numpy() -> None:
    plain = planner.suggest(target_batch=256, tolerance=0.25, nodes=[1, 2], **ASKED).to_dict()
    of_numpy = {"target_batch": np.int64(256), "tolerance": np.float32(0.25), "nodes": (np.int8(1), np.uint16(2))}
    assert planner.suggest(**of_numpy, **ASKED).to_dict() == plain


def test_a_plan_has_every_key_of_the_brief_that_is_about_plans() -> None:
    answer = planner.suggest(network="gpt2", cluster="dgx-a100", target_batch=512, tokens=1e9)
    of_answers = {"status", "certified", "loosen", "warnings"}
    keys = set(BRIEF.schema()["properties"]) - of_answers - {"format", "version"}
    for plan in (*answer.plans, *planner.predict(network="gpt2", cluster="dgx-a100", sub_batch=8).plans):
        assert keys <= vars(plan).keys()
    plan = answer.chosen
    assert (plan.network, plan.tokens) == ("gpt2", 1e9)
    assert plan.walltime_s.value == pytest.approx(1e9 / plan.tokens_per_s, rel=0.01)


def test_importing_loads_nothing_else() -> None:
    script = "import sys, planner; print(*(x for x in sys.modules if x.split('.')[0] in ('planner', 'numpy')))"
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["planner"]


@pytest.mark.usefixtures("clean_place")
def test_a_network_of_405_billion_parameters_is_read_back_and_its_reason_is_a_prediction() -> None:
    """What the plan to take would need without offload is what predict says of it."""
    asked = {"network": "llama3-405b", "cluster": "dgx-h100"}
    frozen = planner.suggest(**asked, target_batch=64, trainable="last:1", precision="bf16", nodes=8)
    assert frozen.to_dict()["subject"]["parameters"] > 4e11
    answer = planner.suggest(**asked, target_batch=256)
    words = re.search(r"without offload: without it, this plan needs ([0-9.]+) GiB", answer.to_dict()["choice"])
    assert words is not None
    one = answer.to_dict()["plans"][[plan.position for plan in answer.plans].index(answer.chosen.position)]
    keys = one["configuration"]
    shape = {name: keys[f"{name}_parallel"] for name in ("tensor", "pipeline", "context") if f"{name}_parallel" in keys}
    shape |= {name: keys[name] for name in ("nodes", "sub_batch", "precision", "sharding", "recompute") if name in keys}
    shape |= {
        "accumulation": keys["accumulation_steps"],
        "sequence_parallel": "on" if "sequence_parallel" in keys else "off",
    }
    (without,) = planner.predict(**asked, **shape).plans
    assert without.prediction.memory_bytes["total"] / 2**30 == pytest.approx(float(words[1]), rel=0.001)


def test_the_less_is_trained_the_less_a_step_takes() -> None:
    asked = {"network": "gpt2", "cluster": "dgx-a100", "nodes": 2, "sub_batch": 4, "precision": "bf16"}
    made = [planner.predict(**asked, trainable=one).to_dict() for one in ("last:1", "last:2", "lora:rank=8", "all")]
    seconds = [one["iteration_s"]["value"] for one in made]
    assert seconds == sorted(seconds)
    terms = [{term["name"]: term["seconds"] for term in one["terms"]} for one in made]
    for name in ("backward", "all_reduce", "update"):
        assert max(one[name] for one in terms[:3]) < terms[3][name]
    assert "trainable" not in made[3]["subject"]
    assert made[2]["subject"]["trained_parameters"] == 294_912


@pytest.mark.usefixtures("clean_place")
def test_an_answer_says_where_python_has_its_warnings_and_what_one_plan_needs() -> None:
    """The command has -v for them, which is no word of Python."""
    cluster, batch = {"network": "llama3-70b", "cluster": "dgx-h100"}, {"sub_batch": 8, "precision": "bf16"}
    one = planner.predict(**cluster, **batch)
    several = planner.predict(**cluster, **{**batch, "sub_batch": [8, 16]})
    answers = (one, several, planner.suggest(target_batch=256, **ASKED))
    for answer in answers:
        text = repr(answer)
        assert "-v" not in text.replace("dgx1-v100", "")
        told = [line for line in text.splitlines() if line.startswith("warning: ")]
        assert len(answer.warnings) == len(set(answer.warnings)) >= len(told) - 1
        if len(answer.warnings) > len(told):
            assert told[-1].endswith("more; .warnings has all")
        assert "table" in answer._repr_html_()
    assert "1 predictions" not in repr(one)
    assert "1 node x 8 GPUs" in repr(one)
    assert "2 predictions" in repr(several)
