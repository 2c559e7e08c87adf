"""Distinct stages of distinct plans: every plan finds its own stages among them, each once."""

from __future__ import annotations

import numpy as np

from planner.catalog import find_cluster, find_network
from planner.domain.configuration import Configurations, Settings
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.price import Pricer
from planner.steps.stage_cases import StageCases
from planner.workload.units import stage_units

GPT = find_network("gpt:layers=7,hidden=64,heads=4,sequence=32,vocabulary=128")
PROBLEM = Problem(GPT, None, find_cluster("dgx-a100"), (), settings=Settings("adam", input="synthetic"))


def cases_of(stages: list[int], steps: list[int]) -> StageCases:
    columns = {"pipeline_parallel": np.array(stages), "accumulation_steps": np.array(steps)}
    plans = Configurations.having(**columns)
    pricer = Pricer(Sources(PROBLEM), "fp32")
    return StageCases(pricer, plans, pricer.ranks(plans), ("accumulation_steps",))


def test_every_plan_finds_the_units_of_its_stages() -> None:
    cases = cases_of([1, 3, 7, 3, 2], [1, 1, 1, 5, 2])
    assert cases.case.tolist()[1] == cases.case.tolist()[3]
    assert cases.rank.size == 4
    for row, stages in enumerate((1, 3, 7, 3, 2)):
        at = cases.at(np.array([row]))[:, 0]
        np.testing.assert_array_equal(cases.counts[at], stage_units(cases.units, stages))
        assert np.unique(cases.of[at]).tolist() == [cases.case[row]]
        of_runs, repeats = cases.runs(np.array([row]))
        assert np.repeat(of_runs[:, 0], repeats[:, 0]).tolist() == at.tolist()
        assert cases.is_last[at].tolist() == [False] * (stages - 1) + [True]


def test_equal_stages_stand_once_and_ends_alone() -> None:
    """Seven layers on seven stages: the first, the five between, and the last; on three 3, 2 and 2, each its own."""
    cases = cases_of([7, 3], [1, 1])
    assert np.bincount(cases.of).tolist() == [3, 3]
    assert cases.stage[cases.of == cases.case[0]].tolist() == [0, 1, 6]


def test_the_most_of_a_case_is_that_of_its_stages() -> None:
    cases = cases_of([1, 2, 7], [1, 1, 1])
    values = np.arange(cases.of.size, dtype=np.float64)[::-1]
    expected = [max(values[cases.of == case]) for case in range(3)]
    assert cases.most(values).tolist() == expected


def test_rows_of_plans_are_those_at_positions() -> None:
    plans = cases_of([1, 2, 7], [1, 1, 1]).plans
    assert plans.take(np.array([2, 0])).pipeline_parallel.tolist() == [7, 1]
