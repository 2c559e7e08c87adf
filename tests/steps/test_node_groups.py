"""Steps across groups of nodes: against plans on equal nodes, and against messages counted one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import catalog
from planner.domain.cluster import Cluster, GroupPart, Link
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.prediction import Prediction
from planner.domain.request import Problem
from planner.steps.node_groups import AcrossGroups
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer

NETWORK = "alexnet"


def problem(cluster: str, nodes: int, **changes: object) -> Problem:
    """Return a network on some nodes of a bundled cluster, its links or settings changed."""
    found: Cluster = replace(catalog.find_cluster(cluster), nodes=nodes, name=f"{cluster}, part")
    settings = {"strategy": changes.pop("strategy", "wait-free"), "input": "synthetic"}
    return Problem(
        catalog.find_network(NETWORK),
        catalog.find_dataset("imagenet-1k"),
        replace(found, **changes),  # type: ignore[arg-type]
        catalog.calibrations_for(found),
        settings=Settings(**settings),  # type: ignore[arg-type]
    )


def plan(*parts: tuple[str, int, int, int], precision: str = "fp32") -> Configuration:
    """Return a plan of groups: name, nodes, sub-batch, accumulation."""
    return Configuration.across(tuple(GroupPart(name, nodes, 8, *passes) for name, nodes, *passes in parts), precision)


def predicted(problems: dict[str, Problem], one: Configuration) -> Prediction:
    return AcrossGroups(problems).describe([one], lambda _: (1, 10**6))[0].prediction


@pytest.mark.parametrize("passes", [(16, 1), (8, 3)])
@pytest.mark.parametrize("strategy", ["wait-free", "no-overlap"])
def test_groups_of_equal_nodes_are_one_cluster(passes: tuple[int, int], strategy: str) -> None:
    halves = {name: problem("dgx1-v100", nodes, strategy=strategy) for name, nodes in (("a", 3), ("b", 2))}
    across = predicted(halves, plan(("a", 3, *passes), ("b", 2, *passes)))
    whole = Evaluator(problem("dgx1-v100", 5, strategy=strategy)).describe(
        Configurations.of([Configuration(5, 8, *passes)]), lambda _: (1, 10**6)
    )[0]
    assert across.groups_s == {"a": whole.iteration_s.value, "b": whole.iteration_s.value}
    names = ("iteration_s", "epoch_s", "first_epoch_s", "samples_per_s")
    for name in names:
        assert getattr(across, name).value == pytest.approx(getattr(whole, name).value, rel=1e-12)
        assert getattr(across, name).high == pytest.approx(getattr(whole, name).high, rel=1e-12)
    assert across.mini_batch == whole.mini_batch
    assert across.memory_bytes == whole.memory_bytes
    assert all(warning.code != "weighted_gradients" for warning in across.warnings)


def counted_step_s(across: AcrossGroups, one: Configuration, steps: int = 6) -> float:
    """Return the period of a step, every group and message one by one: a second algorithm.

    A message starts when its gradient is ready in all groups and the one before it is done; a group starts its next
    step after its own update and what it waits for replicas.
    """
    parts, free_s, ends = {}, {}, []
    for part in one.groups:
        own = Configuration(one.nodes, 8, part.sub_batch, part.accumulation_steps, precision=one.precision)
        plans = Configurations.of([own])
        pricer = across.evaluators[part.name].pricer_of(plans)
        assert isinstance(pricer, Pricer)
        seconds = {name: float(value[0]) for name, value in pricer.price(plans).seconds.items()}
        step = pricer.one_stage(plans)
        ((exchange, _),) = step.exchanges()
        adding = int(part.accumulation_steps > 1)
        ready, last_s = step.ready[0][adding][exchange.slot], step.ready[1][adding]
        before = sum(seconds[name] for name in ("host_to_device", "forward", "backward")) - last_s
        after = seconds["update"] + seconds["replica_wait"]
        parts[part.name] = before + ready, before + last_s, after, exchange.message_s[0]
        free_s[part.name] = 0.0
    sent = next(iter(parts.values()))[3]
    for _ in range(steps):
        network_s = 0.0
        for slot in reversed(range(sent.size)):
            ready_s = max(free_s[name] + ready[slot] for name, (ready, *_) in parts.items())
            network_s = max(network_s, ready_s) + sent[slot]
        free_s = {
            name: max(network_s, free_s[name] + computed) + after
            for name, (_, computed, after, _) in parts.items()
        }  # fmt: skip
        ends.append(network_s)
    return float(ends[-1] - ends[-2])


@pytest.mark.parametrize(
    "one",
    [
        plan(("v100", 4, 16, 1), ("a100", 2, 32, 1)),
        plan(("v100", 1, 64, 1), ("a100", 2, 8, 2), precision="fp16"),
        plan(("v100", 4, 1, 4), ("a100", 1, 2, 1)),
        plan(("v100", 2, 2, 1), ("a100", 2, 48, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("bytes_per_s", [2e9, 12.5e9])
def test_step_is_that_of_messages_one_by_one(one: Configuration, bytes_per_s: float) -> None:
    link = Link("infiniband", bytes_per_s, 5e-6)
    across = AcrossGroups(
        {"v100": problem("dgx1-v100", 4, inter_node=link), "a100": problem("dgx-a100", 2, inter_node=link)}
    )
    step_s = across.describe([one])[0].prediction.iteration_s.value
    assert step_s == pytest.approx(counted_step_s(across, one), rel=1e-9)


def test_slowest_group_sets_the_step_and_the_samples_are_of_all() -> None:
    problems = {"v100": problem("dgx1-v100", 4), "a100": problem("dgx-a100", 2)}
    one = predicted(problems, plan(("v100", 4, 64, 1), ("a100", 2, 8, 1)))
    assert one.iteration_s.value == max(one.groups_s.values()) == one.groups_s["v100"]
    assert one.mini_batch.mean == 4 * 8 * 64 + 2 * 8 * 8
    assert one.samples_per_s.value == pytest.approx(one.mini_batch.mean / one.iteration_s.value)
    assert one.epoch_s is not None
    assert one.epoch_s.value == pytest.approx(1_281_167 / one.mini_batch.mean * one.iteration_s.value)
    assert sum(term.exposed_seconds for term in one.terms) == pytest.approx(one.iteration_s.value)
    assert one.memory_bytes["capacity"] == problems["v100"].cluster.node.accelerator.memory_bytes
    assert [warning.code for warning in one.warnings].count("weighted_gradients") == 1


def test_messages_go_at_the_pace_of_the_slowest_links() -> None:
    slow = Link("infiniband", 1e9, 5e-6)
    parts = plan(("v100", 2, 4, 1), ("a100", 2, 4, 1))
    times = [
        predicted({"v100": problem("dgx1-v100", 2, **v), "a100": problem("dgx-a100", 2, **a)}, parts).groups_s
        for v, a in (({}, {}), ({"inter_node": slow}, {}), ({}, {"inter_node": slow}))
    ]
    assert all(times[at][name] > times[0][name] for at in (1, 2) for name in ("v100", "a100"))
