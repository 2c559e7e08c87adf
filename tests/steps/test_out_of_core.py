"""Activations beyond the memory of a device: what leaves it, and what that takes prefetched and by page faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import find_cluster, find_network
from planner.domain.configuration import Configurations, Settings
from planner.domain.request import Problem
from planner.domain.split import ACTIVATIONS_AWAY, OFFLOADS
from planner.errors import CoverageError
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer

SUB_BATCHES = np.array([8, 64, 128, 160, 192, 256, 384, 2048])


def problem(network: str, cluster: str) -> Problem:
    settings = Settings("sgd-momentum", input="synthetic")
    return Problem(find_network(network), None, find_cluster(cluster), (), settings=settings)


@pytest.mark.parametrize(("cluster", "most"), [("dgx1-v100", 1.9), ("dgx-a100", 2.1)])
@pytest.mark.parametrize("network", ["vgg16", "resnet50", "densenet121"])
def test_what_does_not_fit_leaves_and_takes_its_time(network: str, cluster: str, most: float) -> None:
    """Plans that fit are as without; of others the surplus moves, prefetched up to 1.9 times as fast over PCIe 3."""
    of = problem(network, cluster)
    capacity = of.cluster.node.accelerator.memory_bytes
    plans = Configurations.having(gpus_per_node=8, data_parallel=8, sub_batch=SUB_BATCHES)
    pricer = Evaluator(of).pricer_of(plans)
    assert isinstance(pricer, Pricer)
    kept, ahead, paged = (pricer.price(plans.but(offload=code).rows) for code in (0, *ACTIVATIONS_AWAY))
    surplus = np.maximum(kept.memory.total - capacity, 0)
    assert (surplus == 0).any()
    assert (surplus > 0).any()
    margin = 1 + pricer.ledger.rules.margin
    np.testing.assert_allclose(ahead.memory.host, surplus / margin, rtol=1e-6, atol=20)
    for one in (ahead, paged):
        assert one.memory.to_host == pytest.approx(one.memory.to_device)
        assert (one.memory.total <= kept.memory.total).all()
        np.testing.assert_allclose(one.period_s[surplus == 0], kept.period_s[surplus == 0], rtol=1e-12)
    added, moved = paged.period_s - kept.period_s, paged.memory.to_host
    np.testing.assert_allclose(added, added[-1] / moved[-1] * moved, rtol=0.01, atol=1e-12)
    ratio = paged.period_s / ahead.period_s
    assert (ratio[surplus > 0] > 1).all()
    assert ratio.max() < most


@pytest.mark.parametrize("offload", OFFLOADS[1:])
def test_nothing_leaves_without_a_link_to_the_host(offload: str) -> None:
    of = problem("resnet50", "dgx1-v100")
    evaluator = Evaluator(replace(of, cluster=replace(of.cluster, host=None)))
    plans = Configurations.having(gpus_per_node=8, data_parallel=8, sub_batch=256, offload=OFFLOADS.index(offload))
    with pytest.raises(CoverageError, match=r"links\.host of cluster dgx1-v100 must be described"):
        evaluator.evaluate(plans)
