"""Plans on several node groups against every plan that there is, and against each group alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner import catalog
from planner.domain.cluster import MixedCluster
from planner.domain.configuration import Settings
from planner.domain.request import Problem, SpaceRequest
from planner.domain.suggestion import Suggestion
from planner.errors import UsageError
from planner.search.node_groups import search_across, suggest_across
from planner.search.searchable import Searchable, order_and_limits
from planner.search.suggest import suggest
from planner.steps.node_groups import AcrossGroups
from planner.steps.predict import Evaluator

MIXED = Path(__file__).parents[2] / "benchmarks" / "clusters" / "mixed.toml"
SMALL = SpaceRequest(96, asked={"precision": ("fp32",)})


def problems(network: str = "alexnet", nodes: tuple[int, ...] = (4, 2), gpus: int = 8) -> dict[str, Problem]:
    """Return a network on the groups of the mixed cluster, so many of their nodes and GPUs; ``third``: V100 again."""
    mixed = catalog.find_any_cluster(str(MIXED))
    assert isinstance(mixed, MixedCluster)
    clusters = {one.name: one.cluster for one in mixed.groups}
    clusters["third"] = replace(clusters["v100"], name="third")
    found = {}
    for (name, cluster), count in zip(clusters.items(), nodes, strict=False):
        part = replace(cluster, nodes=count, node=replace(cluster.node, gpus=gpus))
        calibrations = catalog.calibrations_for(cluster)
        dataset = catalog.find_dataset("imagenet-1k")
        settings = Settings(input="synthetic")
        found[name] = Problem(catalog.find_network(network), dataset, part, calibrations, settings=settings)
    return found


def answer(of: dict[str, Problem], request: SpaceRequest) -> Suggestion:
    return suggest_across({name: (one, request) for name, one in of.items()}, {})


def searchable(of: dict[str, Problem], request: SpaceRequest) -> dict[str, Searchable]:
    found = {}
    for name, one in of.items():
        order, limits = order_and_limits(one, request)
        found[name] = Searchable(request, limits, Evaluator(one), order, one)
    return found


def best_by_brute_force(of: dict[str, Problem], request: SpaceRequest) -> dict[tuple[tuple[str, int], ...], float]:
    """Return the least time a sample of every choice of nodes of at least two groups, over all passes of each."""
    low, high = request.window("sync")
    found: dict[tuple[tuple[str, int], ...], float] = {}
    names_of_sets = [s for size in range(2, len(of) + 1) for s in itertools.combinations(of, size)]
    for names in names_of_sets:
        across = AcrossGroups({name: of[name] for name in names})
        for choice in itertools.product(*(range(1, of[name].cluster.nodes + 1) for name in names)):
            times, samples = [], []
            for name, nodes in zip(names, choice, strict=True):
                gpus = of[name].cluster.node.gpus
                pairs = [
                    (n, a) for n in range(1, int(high) + 1) for a in range(1, int(high) + 1) if n * a * gpus <= high
                ]
                n, a = (np.array(column) for column in zip(*pairs, strict=True))
                times.append(across.evaluate(name, sum(choice), n, a, "fp32").iteration_s)
                samples.append(n * a * gpus * nodes)
            total = sum(np.ix_(*samples))
            step_s = np.max(np.broadcast_arrays(*np.ix_(*times)), axis=0)
            each = np.where((total >= low) & (total <= high), step_s / total, np.inf)
            found[tuple(zip(names, choice, strict=True))] = float(each.min())
    return found


@pytest.mark.parametrize(
    ("of", "request_"),
    [
        (problems(), SMALL),
        (problems(), replace(SMALL, tolerance_sync=0.2)),
        (problems(nodes=(2, 2), gpus=3), replace(SMALL, target_batch=66)),
        (problems(nodes=(2, 1, 2), gpus=4), replace(SMALL, target_batch=48)),
    ],
    ids=["exact", "window", "three GPUs", "three groups"],
)
def test_every_choice_of_nodes_has_its_best_shares(of: dict[str, Problem], request_: SpaceRequest) -> None:
    order, _ = order_and_limits(next(iter(of.values())), request_)
    groups = searchable(of, request_)
    found = search_across(groups, request_, order)
    assert found.priced is not None
    speeds = {
        tuple((part.name, part.nodes) for part in plan.groups): 1 / speed
        for plan, speed in zip(found.plans, found.priced.predictions.samples_per_s.tolist(), strict=True)
    }
    brute = best_by_brute_force(of, request_)
    assert found.candidates == len(brute)
    possible = {key: value for key, value in brute.items() if value < np.inf}
    assert speeds.keys() == possible.keys()
    assert speeds == pytest.approx(possible, rel=1e-12)
    for plan in found.plans:
        low, high = request_.window("sync")
        assert low <= plan.samples_per_update <= high


def test_answer_has_plans_of_groups_alone_and_across_in_one_order() -> None:
    of, request = problems(), replace(SMALL, top=40)
    found = answer(of, request)
    alone = {name: suggest(one, request, {}) for name, one in of.items()}
    times = [plan.prediction.epoch_s.value for plan in found.plans if plan.prediction.epoch_s]
    assert times == sorted(times)
    for name, own in alone.items():
        of_group = [plan for plan in found.plans if [p.name for p in plan.prediction.configuration.groups] == [name]]
        assert [plan.prediction.iteration_s for plan in of_group] == [
            plan.prediction.iteration_s for plan in own.plans[: len(of_group)]
        ]
    across = [plan for plan in found.plans if len(plan.prediction.configuration.groups) > 1]
    least = min(best_by_brute_force(of, request).values())
    assert 1 / across[0].prediction.samples_per_s.value == pytest.approx(least, rel=1e-12)
    assert found.search.certified
    assert found.search.candidates == sum(one.search.candidates for one in alone.values()) + 8
    assert found.search.candidates == found.search.evaluated + sum(one.count for one in found.search.refused)


def test_described_plan_is_the_priced_one() -> None:
    found = answer(problems(), SMALL)
    for plan in found.plans:
        one = plan.prediction
        assert one.mini_batch.mean == 96
        assert one.epoch_s is not None
        assert one.epoch_s.value == pytest.approx(1_281_167 / 96 * one.iteration_s.value, rel=1e-12)


def test_faster_group_takes_more_samples() -> None:
    found = answer(problems("resnet50"), replace(SMALL, target_batch=1024))
    groups = found.plans[0].prediction.configuration.groups
    assert [part.name for part in groups] == ["v100", "a100"]
    assert groups[1].sub_batch * groups[1].accumulation_steps > groups[0].sub_batch * groups[0].accumulation_steps


def test_nodes_are_those_of_all_groups() -> None:
    found = answer(problems(), replace(SMALL, asked={**SMALL.asked, "nodes": (5,)}, top=50))
    assert {plan.prediction.configuration.nodes for plan in found.plans} == {5}
    limited = answer(problems(), replace(SMALL, most={"nodes": 2}, top=50))
    assert {plan.prediction.configuration.nodes for plan in limited.plans} == {1, 2}


def test_nothing_fits_says_what_is_near_in_each_group() -> None:
    found = answer(problems(), replace(SMALL, target_batch=97))
    assert (found.status, found.plans) == ("none_feasible", ())
    assert {part.name for plan in found.nearest for part in plan.prediction.configuration.groups} == {"v100", "a100"}
    assert all(one.message.startswith(("v100: ", "a100: ")) for one in found.loosen)
    assert [one.change for one in found.loosen] == sorted(one.change for one in found.loosen)


def test_nodes_that_no_group_has_are_loosened_to_those_of_each() -> None:
    """Six nodes of 8 GPUs have no mini-batch of 8; one node has, and is named."""
    found = answer(problems(), replace(SMALL, target_batch=8, asked={**SMALL.asked, "nodes": (6,)}))
    assert found.status == "none_feasible"
    assert {plan.prediction.configuration.groups[0].name for plan in found.nearest} == {"v100", "a100"}
    assert {way.changes for way in found.loosen} == {(("--nodes", "1:4"),), (("--nodes", "1:2"),)}
    assert all(" allows 1 node x 8 GPUs, sub-batch 1, " in way.message for way in found.loosen)


@pytest.mark.parametrize(("seed", "asked"), [(0, {}), (1, {"nodes": (7, 30, 41)})], ids=["any", "totals"])
def test_trials_come_near_the_best_of_all_choices(
    seed: int, asked: dict[str, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, request_ = problems(nodes=(32, 24)), replace(SMALL, target_batch=2048, asked={**SMALL.asked, **asked})
    order, _ = order_and_limits(of["v100"], request_)
    groups = searchable(of, request_)
    exact = search_across(groups, request_, order)
    monkeypatch.setattr("planner.search.node_groups.MOST_CHOICES", 100)
    monkeypatch.setattr("planner.search.node_groups.TRIALS", 40)
    monkeypatch.setattr("planner.search.node_groups.proportional_starts", lambda _: [])
    tried = search_across(groups, request_, order, seed)
    assert (exact.trials, tried.trials) == (0, min(40, exact.candidates))
    assert len({tuple(part.nodes for part in plan.groups) for plan in tried.plans}) == len(tried.plans)
    assert all(plan.nodes in asked.get("nodes", (plan.nodes,)) for plan in tried.plans)
    assert exact.priced is not None
    assert tried.priced is not None
    fastest, found = (one.priced.predictions.samples_per_s.max() for one in (exact, tried) if one.priced)
    assert found >= 0.98 * fastest


def test_answer_says_that_nodes_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.search.node_groups.MOST_CHOICES", 4)
    monkeypatch.setattr("planner.search.node_groups.TRIALS", 5)
    found = answer(problems(), SMALL)
    assert not found.search.certified
    assert found.search.method.endswith("optuna (TPE) for nodes of several groups, 5 trials")
    assert answer(problems(), SMALL) == found


def test_too_many_splits_are_refused() -> None:
    request = replace(SMALL, target_batch=500_000, tolerance_sync=0.5)
    with pytest.raises(UsageError, match=r"splits of mini-batches among node groups must be at most 100,000,000, got"):
        answer(problems(), request)
