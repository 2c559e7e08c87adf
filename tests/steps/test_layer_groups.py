"""Groups of devices that share the layers of a CNN: chosen schemes, their messages, memory and steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.cli.main import main
from planner.domain.configuration import Configuration, Configurations
from planner.domain.split import SCHEMES
from planner.sources.sources import Sources
from planner.steps.layer_pipeline import step_pricer
from planner.workload.schemes import SAMPLES, lawful_schemes
from tests.properties.conftest import asked

CASES = [
    ("vgg16", "dgx1-v100", "fp16", 8, 256), ("alexnet", "ec2-g4dn-12xlarge", "fp32", 4, 512),
    ("resnet50", "dgx-a100", "bf16", 4, 64), ("googlenet", "tsubame-kfc", "fp32", 2, 32),
    ("mobilenet-v2", "dgx1-v100", "fp16", 2, 64), ("mlp", "dgx-a100", "bf16", 8, 128),
]  # fmt: skip


def pricer_and_plan(network: str, cluster: str, precision: str, tensor: int, samples: int) -> Any:
    problem, _ = asked("--network", network, "--cluster", cluster, "--framework", "generic", "--target-batch", "512")
    gpus = problem.cluster.node.gpus
    one = Configuration(2, gpus, samples, precision=precision, tensor_parallel=tensor)
    return step_pricer(Sources(problem), precision), Configurations.of([one])


@pytest.mark.parametrize("case", CASES)
def test_every_layer_has_a_scheme_that_it_can_have(case: tuple[Any, ...]) -> None:
    pricer, plans = pricer_and_plan(*case)
    groups = pricer.groups
    rank = groups.compute.ranks[int(groups.ranks(plans)[0])]
    whole = groups.compute.ranks[0].program
    for site, scheme in zip(whole.sites, rank.schemes, strict=True):
        assert scheme in lawful_schemes(site, case[3])


@pytest.mark.parametrize("case", CASES)
def test_schemes_are_no_slower_than_samples_of_every_layer(case: tuple[Any, ...]) -> None:
    """Which are data parallel: a group of them takes as long as that many devices, but for buckets and halos."""
    pricer, plans = pricer_and_plan(*case)
    alone = plans.but(tensor_parallel=1, data_parallel=plans.gpus, sub_batch=case[4] // case[3])
    both = [float(pricer.totals(one)[0][0]) for one in (plans, alone)]
    assert both[0] <= 1.02 * both[1]
    (shared,) = pricer.groups.shared_layers(plans)
    assert shared.data_iteration_s == pytest.approx(both[1])
    assert set(shared.schemes.values()) <= set(SCHEMES)


@pytest.mark.parametrize("case", CASES)
def test_samples_of_every_layer_take_the_memory_of_data_parallelism(case: tuple[Any, ...]) -> None:
    pricer, plans = pricer_and_plan(*case)
    groups = pricer.groups
    samples = groups.compute.of((SAMPLES,) * len(groups.compute.ranks[0].program.sites), case[3])
    shared = groups._ledger(samples).fullest(plans)  # noqa: SLF001 - what memory() reads
    alone = plans.but(tensor_parallel=1, data_parallel=plans.gpus, sub_batch=case[4] // case[3])
    assert shared.allocated == pytest.approx(pricer.memory(alone).allocated, rel=0.03)  # beside communicators


def test_a_bound_is_below_every_step() -> None:
    pricer, _ = pricer_and_plan(*CASES[0])
    some = Configurations.of([
        Configuration(2, 8, samples, precision="fp16", tensor_parallel=tensor)
        for samples, tensor in ((8, 2), (24, 4), (96, 8), (256, 8))
    ])  # fmt: skip
    assert (pricer.groups.least_pass_s(some) <= pricer.totals(some)[0]).all()


def test_an_answer_says_which_layers_do_what(capsys: pytest.CaptureFixture[str]) -> None:
    """And what data parallelism alone takes, in words and in JSON; a program that cannot has no line to start it."""
    common = ("--network", "vgg16", "--cluster", "dgx1-v100", "--nodes", "1", "--precision", "fp16", "--sub-batch",
              "256", "--tensor", "8")  # fmt: skip
    assert main(["predict", *common, "--framework", "generic"]) == 0
    out = capsys.readouterr().out
    assert "groups share" in out
    assert "layers by samples" in " ".join(out.split())
    assert "Start: " in out
    assert main(["predict", *common, "--framework", "pytorch"]) == 0
    assert "No start line: pytorch does not share layers" in capsys.readouterr().out
    assert main(["predict", *common, "--framework", "generic", "--json"]) == 0
    shared = json.loads(capsys.readouterr().out)["shared_layers"]
    assert shared["schemes"]["fc6"] in {"filters", "inputs"}
    assert shared["sent_bytes"] < shared["data_sent_bytes"]


@pytest.mark.parametrize("network", ["vgg16", "resnet50"])
def test_gathers_of_unequal_layers_slow_what_runs_beside_them(network: str) -> None:
    """As those of equal blocks: by up to 1 - 1 / 1.13 of what is sent, gathered twice and scattered once."""
    problem, _ = asked("--network", network, "--cluster", "dgx-a100", "--framework", "fsdp", "--target-batch", "512")
    plans = Configurations.of([Configuration(4, 8, 16, precision="bf16", sharding=3)])
    steps, sent = [], []
    for slowdown in (1.0, 1.13):
        pricer = step_pricer(Sources(problem), "bf16")
        pricer.slowdown = slowdown
        steps.append(float(pricer.totals(plans)[0][0]))
        gather, scatter, across = pricer.one_stage(plans).state.gathers_by_unit
        sent.append(float((2 * gather + scatter + across).sum()))
    assert steps[0] < steps[1] <= steps[0] + 1.2 * (1 - 1 / 1.13) * sent[0]  # replicas wait for what is slower
