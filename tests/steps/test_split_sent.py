"""Messages of tensor ranks beside products: what a framework's record says of them changes a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.compute import BESIDE
from planner.steps.price import Pricer

GPT = catalog.find_network("gpt:layers=8,hidden=2048,heads=16,sequence=1024,vocabulary=50304")
PLANS = Configurations.of(
    [
        Configuration(2, 8, 2, accumulation_steps=4, precision="fp16", tensor_parallel=t, pipeline_parallel=p)
        for t, p in ((2, 2), (4, 2), (8, 2), (8, 1))
    ]
)


def terms(framework: Framework) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    problem = Problem(
        GPT,
        None,
        catalog.find_cluster("dgx-a100"),
        (),
        settings=Settings("adam", input="synthetic", framework=framework),
    )
    priced = Pricer(Sources(problem), "fp16").price(PLANS)
    return priced.period_s, dict(priced.exposed_s)


def test_messages_beside_products_are_cheaper_and_those_of_the_forward_pass_stay() -> None:
    plain, own = Framework("own"), Framework("own", overlaps_tensor=True)
    (_, alone), (_, beside) = terms(plain), terms(own)
    sent, left = alone["tensor_messages"], beside["tensor_messages"]
    assert (left < sent).all()
    # Of as many messages forward as backward, and one of the logits, those of the forward pass are waited for.
    assert (left >= 0.45 * sent).all()
    for name in ("forward", "backward"):
        assert np.array_equal(alone[name], beside[name])


def test_parts_of_a_boundary_are_cheaper_than_the_whole_sent_by_every_rank() -> None:
    (_, whole), (_, parts) = terms(Framework("own")), terms(Framework("own", scatters_boundary=True))
    assert (parts["stage_messages"][:3] < whole["stage_messages"][:3]).all()
    assert parts["stage_messages"][3] == whole["stage_messages"][3] == 0


def test_products_beside_messages_are_those_of_the_layer() -> None:
    """Weight and input gradients of QKV, of h x 3h, take as long as each other, and less than all of the layer."""
    problem = Problem(GPT, None, catalog.find_cluster("dgx-a100"), (), settings=Settings("adam", input="synthetic"))
    compute = Pricer(Sources(problem), "fp16").compute
    rank = compute.rank_of(2, 0)
    compute.cases.ensure(np.array([rank]), np.array([4]))
    table, block = compute.cases.columns, int(compute.ranks[rank].units.sequence[1])
    both = dict(zip(BESIDE, table.products_s[0, :, block], strict=True))
    assert both["weight_gradient", "attention"] == pytest.approx(both["input_gradient", "attention"], rel=0.3)
    assert 0 < sum(both.values()) < table.kernel_s[0, 2, :, block].sum()
    assert both["weight_gradient", "head"] == 0


def test_an_unknown_kind_of_framework_fuses_nothing() -> None:
    slow, _ = terms(Framework("own"))
    fast, _ = terms(replace(Framework("own"), fuses=("activation", "residual")))
    assert (fast < slow).all()
