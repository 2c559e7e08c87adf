"""``planner render`` from the kept answer to the file, and what it refuses without writing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("clean_place")

Run = Callable[..., tuple[int, str, str]]
SPLIT = ("--network", "gpt:layers=4,hidden=256,heads=4", "--cluster", "dgx-h100", "--precision", "bf16")
SUGGEST = ("suggest", *SPLIT, "--target-batch", "64", "--framework", "fsdp,megatron", "--nodes", "2", "--top", "30",
           "--json")  # fmt: skip
PREDICT = ("predict", *SPLIT, "--sub-batch", "2,4", "--strategy", "wait-free", "--framework", "megatron", "--json")


ANSWERS: dict[tuple[str, ...], str] = {}
"""What was answered, by the words that were typed."""


@pytest.fixture
def kept(run: Run) -> Callable[..., str]:
    """Return what keeps an answer in a file, and names it."""

    def keep(*arguments: str, **changes: Any) -> str:
        answer = ANSWERS.setdefault(arguments, ANSWERS.get(arguments) or run(*arguments)[1])
        Path("plan.json").write_text(json.dumps(json.loads(answer) | changes))
        return "plan.json"

    return keep


def test_a_suggestion_is_a_job_in_the_framework_that_is_asked_for(run: Run, kept: Callable[..., str]) -> None:
    name = kept(*SUGGEST)
    assert run("render", name, "--to", "slurm", "--framework", "megatron", "-o", "job.sh")[:2] == (0, "")
    text = Path("job.sh").read_text()
    assert text.startswith(
        "#!/usr/bin/env bash\n#SBATCH --job-name=gpt-heads-4-hidden-256-layers-4\n#SBATCH --nodes=2\n"
    )
    assert "pretrain_gpt.py --micro-batch-size " in text
    _, other, _ = run("render", name, "--to", "torchrun", "--framework", "fsdp", "--program", "go.py")
    assert "go.py" in other
    assert "PLAN_SUB_BATCH" in other


def test_a_number_takes_a_plan_of_the_answer(run: Run, kept: Callable[..., str]) -> None:
    name = kept(*SUGGEST)
    plans = json.loads(Path(name).read_text())["plans"]
    for plan in plans[:3]:
        code, text, _ = run("render", name, "--to", "torchrun", "--plan", str(plan["position"]))
        assert code == 0
        assert f", plan {plan['position']}: 2 nodes x 8 GPUs, sub-batch {plan['configuration']['sub_batch']}," in text


def test_predictions_are_numbered_in_their_order_with_the_strategy_asked_for(
    run: Run, kept: Callable[..., str]
) -> None:
    name = kept(*PREDICT)
    for number, size in (("1", 2), ("2", 4)):
        _, text, _ = run("render", name, "--to", "megatron", "--plan", number)
        assert f"--micro-batch-size {size} " in text
        assert "--overlap-grad-reduce" in text


def test_the_brief_says_the_same_job_as_the_answer(run: Run, kept: Callable[..., str]) -> None:
    """With the time of the training, as the same number of epochs is asked for."""
    asked = ("suggest", "--target-batch", "138", "--mode", "sync,async", "--top", "1", "--json")
    _, of_answer, _ = run("render", kept(*asked), "--to", "slurm", "--epochs", "90")
    _, of_brief, _ = run("render", kept(*asked, "--brief", "--epochs", "90"), "--to", "slurm")
    assert of_brief == of_answer
    assert "90 epochs" in of_brief
    assert "#SBATCH --time=" in of_brief


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--to", "lsf"], 2, "--to must be one of torchrun, slurm, kubernetes, ray, "),
        ([], 2, "--to must be given, got nothing; name one of torchrun, slurm, "),
        (["--to", "slurm", "--plan", "3"], 2, "--plan must be one of the answer's (1, 2), got 3"),
        (["--to", "slurm"], 2, "--plan must be one of the answer's (1, 2), got nothing"),
        (["--to", "slurm", "--plan", "x"], 2, "--plan must be a whole number"),
        (["--to", "slurm", "--framework", "fsdp"], 2,
         "--framework must be a framework of the answer's plans (megatron-lm), got 'fsdp'"),
        (["--to", "deepspeed", "--plan", "1"], 2, "--to of a plan in megatron-lm must be a target of its framework"),
        (["--to", "slurm", "--plan", "1", "--program", "a 'b"], 2, "--program must be words as a shell reads them"),
    ],
)  # fmt: skip
def test_what_cannot_be_rendered_is_said_and_nothing_is_written(
    run: Run, kept: Callable[..., str], arguments: list[str], code: int, sentence: str
) -> None:
    done, out, error = run("render", kept(*PREDICT), *arguments, "-o", "job.sh")
    assert (done, out) == (code, "")
    assert error.startswith(f"planner: {sentence}")
    assert error.count("\n") == 1
    assert not Path("job.sh").exists()


@pytest.mark.parametrize(("network", "option"), [("llama3.2-1b", "--tokens"), ("mlp", "--dataset")])
def test_the_option_that_gives_a_time_limit_is_one_of_the_network(network: str, option: str, run: Run) -> None:
    plan = ("--network", network, "--cluster", "dgx-a100", "--sub-batch", "4", "--json")
    Path("p.json").write_text(run("predict", *plan)[1])
    assert f"as the plan has no epoch: give {option} to planner suggest" in run("render", "p.json", "--to", "slurm")[2]


def test_of_one_plan_no_other_is_taken_instead(run: Run) -> None:
    plan = ("--network", "gpt2", "--cluster", "dgx-a100", "--sub-batch", "4", "--framework", "megatron")
    Path("p.json").write_text(run("predict", *plan, "--offload", "activations", "--json")[1])
    assert run("render", "p.json", "--to", "slurm")[2].endswith("; ask for more plans: planner suggest --top N\n")


def test_the_help_of_render_is_of_its_own_options(run: Run) -> None:
    words = " ".join(run("render", "--help")[1].split())
    assert "--plan N " in words
    assert "ranked together" not in words


BRIEF = {
    "format": "planner/brief", "version": 1, "network": "n", "cluster": "c", "framework": "fsdp", "status": "found",
    "warnings": [],
}  # fmt: skip


def test_wrong_documents_are_exit_3_or_4(run: Run, kept: Callable[..., str]) -> None:
    name = kept(*PREDICT, version=99)
    for text, code, words in (
        (Path(name).read_text(), 3, "version"),
        ('{"format": "planner/network", "version": 1}', 3, "format: value must be one of 'planner/suggestion'"),
        ("no", 3, "text must be JSON"),
        (json.dumps(BRIEF | {"status": "none_feasible"}), 4, "no plan fits in this answer"),
        (json.dumps(BRIEF), 3, "position: key must be given, as a plan was found"),
    ):  # fmt: skip
        Path(name).write_text(text)
        done, out, error = run("render", name, "--to", "slurm", "--plan", "1", "-o", "job.sh")
        assert (done, out, Path("job.sh").exists()) == (code, "", False)
        assert words in error


def test_a_file_is_not_overwritten_unless_forced(run: Run, kept: Callable[..., str]) -> None:
    job = ("render", kept(*PREDICT), "--to", "slurm", "--plan", "1", "-o", "job.sh")
    Path("job.sh").write_text("mine")
    code, _, error = run(*job)
    assert (code, Path("job.sh").read_text()) == (2, "mine")
    assert "use --force to replace it" in error
    assert run(*job, "--force")[0] == 0
    assert "#SBATCH" in Path("job.sh").read_text()
