"""Switches that change nothing of a network are not priced, and those that change no kernel share its tables."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import Settings
from planner.domain.request import Problem
from planner.search import searchable
from planner.sources.sources import Sources
from planner.steps.compute import ComputeCases
from planner.steps.predict import Evaluator

NETWORKS = ("vgg16", "gpt2", "llama-7b")
FRAMEWORKS = ("pytorch", "tensorflow", "mxnet", "fsdp")
SUB_BATCHES = np.array([1, 4])


def problems(network: str, framework: str) -> tuple[Problem, list[Problem]]:
    """Return a problem as its framework is, and with each switch on, by coefficients of the framework as it is."""
    cluster, own = catalog.find_cluster("dgx-a100"), catalog.find_framework(framework)
    settings = Settings(framework=own, strategy=own.strategy, input="synthetic")
    calibrations = catalog.calibrations_for(cluster)
    one = Problem(catalog.find_network(network), None, cluster, calibrations, settings=settings)
    others = (replace(other, switched=own.switched) for other in dict.fromkeys(searchable.one_more(own)))
    return one, [searchable.run_by(one, other) for other in others]


def tables(problem: Problem) -> list[np.ndarray]:
    """Return what kernels of a rank take."""
    cases = ComputeCases(Sources(problem), "fp16").cases
    cases.ensure(np.zeros(2, dtype=np.int64), SUB_BATCHES)
    return [getattr(cases.columns, column.name) for column in fields(cases.columns)]


@pytest.mark.parametrize("network", NETWORKS)
def test_tables_are_shared_where_they_are_equal(network: str) -> None:
    shared = 0
    for framework in FRAMEWORKS:
        one, others = problems(network, framework)
        for other in others:
            if searchable.of_tables(other) == searchable.of_tables(one):
                shared += 1
                assert all(map(np.array_equal, tables(one), tables(other)))
    assert shared >= 3


@pytest.mark.parametrize("network", NETWORKS)
def test_a_switch_that_is_left_out_changes_no_price(network: str) -> None:
    places = product((1, 2), SUB_BATCHES.tolist())
    plans = Configurations.of([Configuration(nodes, 8, sub_batch, precision="fp16") for nodes, sub_batch in places])
    left_out = []
    for framework in FRAMEWORKS:
        one, others = problems(network, framework)
        idle = [other for other in others if searchable.as_run(other) == searchable.as_run(one)]
        before = Evaluator(one).evaluate(plans).samples_per_s
        assert all(np.array_equal(Evaluator(other).evaluate(plans).samples_per_s, before) for other in idle)
        left_out += idle
    assert left_out


LESS, EQUAL, MORE = 0.9, 1.0, 1.1
GROUPS: dict[str, slice | int] = {
    "kernels": slice(0, 4),
    "host": slice(4, 8),
    "waits": slice(8, 10),
    "exponent": slice(10, 12),
    "memory": 12,
}
"""Terms of a set of switches on one device."""


def terms(factors: dict[str, float], *, of_second: float | None) -> np.ndarray:
    """Return terms of two sub-batches in two precisions; ``of_second``: kernels of the second, None: no price."""
    found = np.ones((2, 13, 2))
    for name, factor in factors.items():
        found[:, GROUPS[name]] = factor
    if of_second is None:
        found[..., 1] = np.nan
    else:
        found[:, GROUPS["kernels"], 1] = of_second
    return found


@pytest.mark.parametrize("of_second", [LESS, EQUAL, MORE, None])
@pytest.mark.parametrize("factors", list(product((LESS, EQUAL, MORE), repeat=len(GROUPS))))
def test_a_set_is_better_with_no_term_larger_and_kernels_or_memory_less(
    factors: tuple[float, ...], of_second: float | None
) -> None:
    named = dict(zip(GROUPS, factors, strict=True))
    priced = [] if of_second is None else [of_second]
    kernels = [named["kernels"], *priced]
    is_better = max(*factors, *priced) <= EQUAL and (max(kernels) < EQUAL or named["memory"] < EQUAL)
    usual = terms({}, of_second=None if of_second is None else EQUAL)
    assert searchable._is_better(terms(named, of_second=of_second), usual) == is_better  # noqa: SLF001
    assert not searchable._is_better(terms(named, of_second=of_second), terms({}, of_second=None)) or not priced  # noqa: SLF001
