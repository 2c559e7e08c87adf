"""An answer fits one screen: at most 25 lines of at most 80 columns, warnings first, nothing said twice."""

import itertools
import re
from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]

LINES, COLUMNS = 25, 80
NOT_COVERED = 5
TARGETS = {
    "resnet50": "1024",
    "vgg16": "1024",
    "alexnet": "1024",
    "gpt2": "512",
    "bert-large": "512",
    "sprint-15": "1024",
}
CLUSTERS = ("tsubame-kfc", "dgx1-v100", "dgx-a100", "dgx-h100")
PAIRS = [
    (network, cluster, "async" if (i + j) % 3 == 0 else "sync")
    for (i, network), (j, cluster) in itertools.product(enumerate(TARGETS), enumerate(CLUSTERS))
]
SOME = [PAIRS[at * len(CLUSTERS) + (at + at // len(CLUSTERS)) % len(CLUSTERS)] for at in range(len(TARGETS))]
"""Every network, every cluster and both modes; of answers that take long."""
FACTOR = re.compile(r"90% interval: a factor of \d|Accuracy unknown")


def screen(result: tuple[int, str, str]) -> list[str]:
    """Return the lines of an answer, those of standard error first, as they are written."""
    code, out, err = result
    if code == NOT_COVERED:
        assert out == ""
        pytest.skip(f"refused: {err}")
    assert code == 0, err
    assert all(line.startswith("warning: ") for line in err.splitlines())
    assert len(err.splitlines()) <= 3
    lines = (err + out).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    said = [line for line in lines if line.strip()]
    assert len(said) == len(set(said))
    assert "\x1b" not in "".join(lines)
    return out.splitlines()


@pytest.mark.parametrize(("network", "cluster", "mode"), SOME)
def test_a_suggestion_fits_a_screen(network: str, cluster: str, mode: str, run: Run) -> None:
    asked = ("--network", network, "--cluster", cluster, "--target-batch", TARGETS[network], "--mode", mode)
    lines = screen(run("suggest", *asked))
    assert lines[0].startswith(f"{network} on {cluster}, target mini-batch {TARGETS[network]}: take plan ")
    rows = sum(bool(re.match(r" *\d+ +\d+ ?x ?8 ", line)) for line in lines)
    assert 1 <= rows <= 5  # plans that are alike share a row
    assert any(FACTOR.match(line) for line in lines)
    assert any(line.startswith("Start: mpirun" if mode == "async" else "Start: torchrun") for line in lines[-3:])


@pytest.mark.parametrize(
    "asked",
    [
        ("suggest", "--network", "llama3-405b", "--target-batch", "256"),
        ("suggest", "--network", "resnet50", "--cluster", "dgx-a100", "--target-batch", "1024", "--switches"),
        ("predict", "--network", "llama3-405b", "--nodes", "8", "--sub-batch", "1", "--tensor", "4",
         "--pipeline", "4", "--accumulation", "8", "--sequence-parallel", "on", "--recompute", "full"),
        ("predict", "--network", "gpt3-1t", "--cluster", "selene", "--nodes", "344", "--sub-batch", "1", "--tensor",
         "8", "--pipeline", "43", "--accumulation", "384", "--sequence-parallel", "on", "--sharding", "1",
         "--framework", "megatron", "--precision", "bf16", "--recompute", "selective"),
    ],
)  # fmt: skip
def test_an_answer_about_a_split_plan_or_switches_fits_a_screen(asked: tuple[str, ...], run: Run) -> None:
    of_cluster = () if "--cluster" in asked else ("--cluster", "dgx-h100")
    lines = screen(run(*asked, *of_cluster))
    assert "Start: planner render plan.json --to slurm -o job.sh" in lines[-1:] or "# " in lines[-1]


@pytest.mark.parametrize(("network", "cluster", "mode"), PAIRS)
def test_a_prediction_fits_a_screen(network: str, cluster: str, mode: str, run: Run) -> None:
    plan = ("--nodes", "2", "--sub-batch", "8", "--mode", mode)
    lines = screen(run("predict", "--network", network, "--cluster", cluster, *plan))
    assert lines[0].startswith(f"{network} on {cluster}, 2 nodes x 8 GPUs, sub-batch 8, fp32")
    assert any(FACTOR.match(line) for line in lines)


@pytest.mark.parametrize("command", [("suggest", "--target-batch", "32"), ("predict", "--sub-batch", "32")])
def test_an_answer_about_a_cpu_fits_a_screen(command: tuple[str, ...], run: Run) -> None:
    lines = screen(run(*command, "--network", "resnet18", "--calibration", "cpu-epyc-example"))
    assert "CPU" in " ".join(lines)
    assert "GPU" not in " ".join(lines)


@pytest.mark.parametrize(
    "several",
    [("--scenario", "all_reduce*=0.5,fp16"), ("--network", "vgg16"), ("--scenario", "fp16", "--network", "vgg16")],
)
def test_several_answers_are_one_table_on_one_screen(several: tuple[str, ...], run: Run) -> None:
    shared = ("--network", "resnet50", *several, "--cluster", "dgx1-v100")
    for command in (("suggest", "--target-batch", "1024"), ("predict", "--sub-batch", "64")):
        lines = screen(run(*command, *shared))
        rows = [line for line in lines if re.search(r" \d+ x 8 ", line)]
        assert len(rows) == 2
        assert len(lines) <= 10
