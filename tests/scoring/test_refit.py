"""What is held out takes no part in the fit that predicts it, and what a fit learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.domain.calibration import Calibration
from planner.domain.configuration import Settings
from planner.domain.request import Problem
from planner.domain.runs import Run
from planner.errors import ParameterError
from planner.fitting.step_fit import ESTIMATOR, OVERHEADS, overheads_entry
from planner.scoring.errors import HOLD_OUTS
from planner.scoring.evaluate import Answer, answers_of
from planner.scoring.refit import Asked, fit_runs, group_of, held_out_answers

PLANS = ((1, 1, 8), (1, 1, 32), (1, 4, 16), (2, 8, 16))


def problem_of(network: str, cluster: str, gpu: str = "", **settings: Any) -> Problem:
    """Return a problem on a bundled cluster, under another name and with another GPU where these are given."""
    where = catalog.find_cluster("dgx1-v100")
    node = where.node
    if gpu:
        node = replace(node, accelerator=replace(node.accelerator, name=gpu, chip=""))
    where = replace(where, name=cluster, node=node)
    found = catalog.find_network(network)
    chosen = Settings(**{"input": "synthetic"} | settings)
    return Problem(found, catalog.find_dataset("imagenet-1k"), where, catalog.calibrations_for(where), settings=chosen)


def runs_of(problem: Problem, network: str, source: str, factor: float) -> list[Run]:
    """Return runs that took ``factor`` times as long as is predicted without a fit, give or take."""
    rng = np.random.default_rng(len(network + source))
    runs = [
        Run(
            id=f"{source} {network} {at}", network=network, cluster=problem.cluster.name, metric="iteration_s",
            value=1.0, nodes=nodes, gpus_per_node=gpus, sub_batch=sub_batch, source=source,
        )
        for at, (nodes, gpus, sub_batch) in enumerate(PLANS)
    ]  # fmt: skip
    return [
        replace(run, value=float(one.row.predicted * factor * rng.lognormal(0, 0.1)))
        for run, one in zip(runs, answers_of(problem, runs), strict=True)
        if one.row.predicted is not None
    ]


def asked_of(network: str, cluster: str, source: str, factor: float = 1.3, gpu: str = "") -> Asked:
    problem = problem_of(network, cluster, gpu)
    return Asked(problem, runs_of(problem, network, source, factor))


@cache
def everything() -> tuple[Asked, ...]:
    return (
        asked_of("resnet18", "first", "a", 1.2),
        asked_of("alexnet", "first", "b", 1.5),
        asked_of("resnet18:input=96", "second", "b", 1.1),
        asked_of("alexnet", "second", "a", 0.9, gpu="new"),
        asked_of("vgg11", "third", "c", 1.4, gpu="new"),
    )


GROUPS = {
    "network": ("resnet18", "alexnet", "resnet18", "alexnet", "vgg11"),
    "gpu": ("GV100", "GV100", "GV100", "new", "new"),
    "cluster": ("first", "first", "second", "second", "third"),
    "source": ("a", "b", "b", "a", "c"),
}


def predictions(asked: Sequence[Asked], axis: str) -> list[list[float | None]]:
    return [[one.row.predicted for one in some] for some in held_out_answers(asked, axis)]


@cache
def answers_of_everything(axis: str) -> tuple[tuple[Answer, ...], ...]:
    return tuple(tuple(some) for some in held_out_answers(everything(), axis))


@pytest.mark.parametrize("axis", ["gpu"])
def test_what_is_held_out_takes_no_part(axis: str) -> None:
    """Measured times of a group ten times as long: its own predictions stay, bit for bit, and others' do not."""
    before = [[one.row.predicted for one in some] for some in answers_of_everything(axis)]
    for group in GROUPS[axis][:1]:
        wrong = [
            Asked(one.problem, [replace(run, value=10 * run.value) for run in one.runs if run.value])
            if name == group
            else one
            for one, name in zip(everything(), GROUPS[axis], strict=True)
        ]
        after = predictions(wrong, axis)
        for name, old, new in zip(GROUPS[axis], before, after, strict=True):
            assert (old == new) == (name == group)


@pytest.mark.parametrize("axis", HOLD_OUTS)
def test_a_held_out_group_is_predicted_by_a_fit_to_the_others(axis: str) -> None:
    asked, found = everything(), answers_of_everything(axis)
    fits = {
        left_out: fit_runs([each for each, name in zip(asked, GROUPS[axis], strict=True) if name != left_out])
        for left_out in dict.fromkeys(GROUPS[axis])
    }
    for one, answers, group in zip(asked, found, GROUPS[axis], strict=True):
        fitted = fits[group].calibrations(one.problem, one.precisions)
        changed = replace(one.problem, calibrations=(*fitted, *one.problem.calibrations))
        expected = [each.row.predicted for each in answers_of(changed, one.runs)]
        assert [each.row.predicted for each in answers] == pytest.approx(expected, rel=1e-12)


def test_a_single_group_leaves_nothing_to_fit_to() -> None:
    with pytest.raises(ParameterError, match="of alexnet alone"):
        held_out_answers([asked_of("alexnet", "first", "a", 3.0)], "network")


def test_what_a_fit_learns_from_may_be_other_runs() -> None:
    """Rows that no fit learns from are predicted by a fit to the others, whatever they say, one fit for all of them."""
    one, *others = everything()
    wrong = Asked(one.problem, [replace(run, value=9 * run.value) for run in one.runs if run.value])
    found = [
        [answer.row.predicted for answer in held_out_answers([some], "source", fit_on=others)[0]]
        for some in (one, wrong)
    ]
    assert found[0] == found[1]
    left = [each for each in others if each.runs[0].source != one.runs[0].source]
    fitted = fit_runs(left).calibrations(one.problem, one.precisions)
    expected = answers_of(replace(one.problem, calibrations=(*fitted, *one.problem.calibrations)), one.runs)
    assert found[0] == pytest.approx([answer.row.predicted for answer in expected], rel=1e-12)


def test_groups_that_no_fit_learns_from_share_a_fit() -> None:
    named: list[str] = []
    asked = [*everything(), asked_of("vgg11", "fourth", "c")]
    held_out_answers(asked, "cluster", lambda name, _number, _of: named.append(name), fit_on=asked[:3])
    assert named == ["first", "second", "fourth and third"]


def test_a_fit_to_others_comes_closer_than_none() -> None:
    """Three networks that all take 1.5 times as long: each is predicted better by what the others say."""
    asked = [asked_of(name, "first", "a", 1.5, gpu="new") for name in ("resnet18", "alexnet", "vgg11")]
    held = [abs(one.row.error or 0) for some in held_out_answers(asked, "network") for one in some]
    plain = [abs(one.row.error or 0) for each in asked for one in answers_of(each.problem, each.runs)]
    assert np.mean(held) < 0.7 * np.mean(plain)


def test_steps_are_the_same_from_rates_and_epochs() -> None:
    problem = problem_of("alexnet", "first")
    (seconds,) = runs_of(problem, "alexnet", "a", 1.0)[2:3]
    assert seconds.value is not None
    samples = 4 * 16
    assert problem.dataset is not None
    rate = replace(seconds, metric="samples_per_s", value=samples / seconds.value)
    epoch = replace(seconds, metric="epoch_s", value=seconds.value * problem.dataset.samples / samples)
    for run in (seconds, rate, epoch):
        (found,) = Asked(problem, [run]).observed
        np.testing.assert_allclose(found.measured_s, [seconds.value], rtol=1e-12)


def test_only_measured_synchronous_steps_that_can_be_priced_are_learnt_from() -> None:
    problem = problem_of("alexnet", "first")
    good, *_ = runs_of(problem, "alexnet", "a", 1.0)
    others = [
        replace(good, value=None),
        replace(good, value=None, status="out_of_memory"),
        replace(good, mode="async"),
        replace(good, precision="fp8"),
        replace(good, nodes=10**6, mini_batch=None, data_parallel=None),
        replace(good, metric="samples_per_s", value=5e-324),
        replace(good, metric="mini_batch_mean"),
    ]
    (found,) = Asked(problem, [*others, good]).observed
    assert found.measured_s.tolist() == [good.value]
    assert Asked(problem, others).observed == ()
    answers = held_out_answers([Asked(problem, [*others, good])], "network", fit_on=[asked_of("vgg11", "first", "a")])[
        0
    ]
    assert [one.row.predicted is None for one in answers] == [False] * 3 + [True] * 2 + [False] * 3


@pytest.mark.parametrize("absurd", [5e-324, 1.7e308])
def test_absurd_values_break_no_fit(absurd: float) -> None:
    """Neither one of them nor a table that holds nothing else."""
    problem = problem_of("alexnet", "first")
    runs = runs_of(problem, "alexnet", "a", 1.0)
    wrong = [replace(run, value=absurd) for run in runs]
    for some in ([wrong[0], *runs[1:]], wrong * 6):
        found = fit_runs([Asked(problem, some)]).values({"kernels": "measured", "precision": "fp32"})
        assert all(np.isfinite(value) for value in found.values())


def test_precisions_are_learnt_from_apart() -> None:
    problem = problem_of("alexnet", "first")
    runs = runs_of(problem, "alexnet", "a", 1.0)
    found = Asked(problem, [*runs, *(replace(run, precision="fp16") for run in runs)]).observed
    assert [one.precision for one in found] == ["fp32", "fp16"]


def test_what_was_fitted_to_runs_before_is_left_out() -> None:
    problem = problem_of("alexnet", "first")
    gpu = problem.cluster.node.accelerator.name
    entry = overheads_entry({"kernels": "measured"}, "fp32", dict.fromkeys(OVERHEADS, 9.0))
    assert entry.estimator == ESTIMATOR
    known = replace(problem, calibrations=(Calibration("known", gpu, (entry,)), *problem.calibrations))
    runs = runs_of(problem, "alexnet", "a", 1.0)
    assert Asked(known, runs).problem.calibrations == Asked(problem, runs).problem.calibrations


def test_reconstructed_kernels_stay_as_they_are() -> None:
    """They hold what a framework adds; nothing is put on top, and their rows say nothing of others."""
    where = catalog.find_cluster("tsubame-kfc")
    network = catalog.find_network("sprint-15")
    problem = Problem(
        network, catalog.find_dataset("imagenet-1k"), where, catalog.calibrations_for(where),
        settings=Settings(input="synthetic"),
    )  # fmt: skip
    run = Run(
        id="a",
        network="sprint-15",
        cluster="tsubame-kfc",
        metric="iteration_s",
        value=1.0,
        gpus_per_node=1,
        sub_batch=8,
    )
    sprint = Asked(problem, [run])
    assert sprint.observed == ()
    (answers,) = held_out_answers([sprint], "network")
    assert answers[0].row.predicted == answers_of(sprint.problem, [run])[0].row.predicted


def test_groups_are_told_and_axes_checked() -> None:
    asked = everything()
    seen: list[tuple[str, int, int]] = []
    held_out_answers(asked, "network", lambda *given: seen.append(given))
    assert seen == [("alexnet", 0, 3), ("resnet18", 1, 3), ("vgg11", 2, 3)]
    for axis, names in GROUPS.items():
        assert tuple(group_of(one, axis) for one in asked) == names
    with pytest.raises(ParameterError, match="hold-out must be one of network, gpu, cluster, source"):
        held_out_answers(asked, "colour")


def test_processes_answer_as_one_does() -> None:
    asked = [asked_of("alexnet", "first", "a", 3.0), asked_of("vgg16", "first", "a", 2.0)]
    assert held_out_answers(asked, "network", processes=2) == held_out_answers(asked, "network")


def test_boards_of_one_chip_are_left_out_together() -> None:
    one = asked_of("alexnet", "first", "a")
    board = replace(one.problem.cluster.node.accelerator, name="v100-pcie-32gb")
    other = replace(one.problem.cluster, node=replace(one.problem.cluster.node, accelerator=board))
    assert group_of(Asked(replace(one.problem, cluster=other), one.runs), "gpu") == group_of(one, "gpu")
