"""A made-up collective, declared once: priced, named in calibration files, offered where algorithms are listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planner.costs import collectives
from planner.costs.collectives import COLLECTIVES, GPUS, HOSTS, Collective, all_reduce_s
from planner.costs.features import stacked
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration, Configurations
from planner.domain.messages import ALL_REDUCE, Groups
from planner.domain.request import Problem
from planner.errors import UnknownNameError
from planner.formats.calibration import CALIBRATION
from planner.sources.sources import Sources
from planner.steps.predict import Evaluator

Make = Callable[..., Problem]


def in_switches(buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
    """One message a level and every byte once: switches add what passes them."""
    inside, between = (np.where(ranks[:, None] > 1, 1.0, 0.0) for ranks in (groups.ranks_per_node, groups.nodes))
    return stacked([inside, inside * buffer_bytes, between, between * buffer_bytes])


MADE_UP = Collective("in_switches", ALL_REDUCE, in_switches, "sums in switches", frozenset({GPUS, HOSTS}))
PLAN = Configurations.of([Configuration(4, 4, 8)])


def all_reduced_s(problem: Problem) -> float:
    (found,) = Evaluator(problem).describe(PLAN)
    return next(term.seconds for term in found.terms if term.name == "all_reduce")


def test_one_declaration_prices_names_and_offers_a_collective(
    make_problem: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem()
    before_s = all_reduced_s(problem)
    monkeypatch.setattr(collectives, "COLLECTIVES", (*COLLECTIVES, MADE_UP))
    sources = Sources(problem)
    on_devices, on_hosts = sources.device_all_reduce.entry, sources.host_all_reduce.entry
    # offered where algorithms are listed
    assert on_devices.settings["algorithms"] == "ring double_binary_tree in_switches"
    assert on_hosts.settings["algorithms"] == "ring recursive_doubling rabenseifner in_switches"
    assert "recursive doubling, Rabenseifner and sums in switches" in on_hosts.notes
    with pytest.raises(UnknownNameError, match="did you mean 'in_switches'"):
        collectives.algorithm_named("in_switch")
    # named in a calibration file
    path = tmp_path / "own.json"
    own = Calibration("own", "toy", (on_devices,), cluster=problem.cluster.name)
    path.write_text(CALIBRATION.dump(own))
    assert '"algorithms": "ring double_binary_tree in_switches"' in path.read_text()
    (kept,) = CALIBRATION.read(path).entries
    assert kept == on_devices
    # priced: 1 us and 0.1 ns a byte inside, 5 us and 1 ns a byte between
    by_hand_s = 1e-6 + 8e6 * 1e-10 + 5e-6 + 8e6 * 1e-9
    group = Groups(np.array([4]), np.array([4]), np.array([4.0]))
    assert all_reduce_s(kept, np.array([8e6]), group)[0, 0] == pytest.approx(by_hand_s)
    assert all_reduced_s(problem) < before_s


def test_an_algorithm_of_another_operation_is_not_offered(make_problem: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Collective("chained", "broadcast", in_switches, "chained", frozenset({GPUS, HOSTS}))
    monkeypatch.setattr(collectives, "COLLECTIVES", (*COLLECTIVES, other))
    assert "chained" not in str(Sources(make_problem()).device_all_reduce.entry.settings["algorithms"])
    assert [one.name for one in collectives.algorithms_between(GPUS, "broadcast")] == ["chained"]
    with pytest.raises(UnknownNameError, match="all-reduce algorithm must be a known name, got 'chained'"):
        collectives.algorithm_named("chained")
