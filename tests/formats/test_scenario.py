"""Scenarios as typed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import find_accelerator
from planner.domain.cluster import Accelerator, Cluster, Link, Node
from planner.domain.precision import PRECISIONS
from planner.errors import UnknownNameError, UsageError
from planner.formats.cluster import TERM_NAMES, parse_scenarios


def test_fp16_halves_computation_and_doubles_the_sub_batch(cluster: Cluster) -> None:
    (one,) = parse_scenarios("fp16", cluster, find_accelerator)
    assert (one.text, one.sub_batch_factor) == ("fp16", 2)
    assert {precision: float(one.factor("forward", precision, 9)) for precision in PRECISIONS} == {
        precision: 0.5 if precision == "fp32" else 1.0 for precision in PRECISIONS
    }
    assert one.factor("backward", "fp32") == 0.5
    assert one.factor("update", "fp32") == 1


def test_edr_is_the_published_factor(cluster: Cluster) -> None:
    # 4X FDR 7 GB/s -> 4X EDR 12.5 GB/s: all-reduce divided by 12.5/7 (Oyama et al., SPRINT slides, 2016).
    (one,) = parse_scenarios("edr", cluster, find_accelerator)
    np.testing.assert_array_equal(one.factor("all_reduce", nodes=np.array([1, 2, 9])), [1, 7 / 12.5, 7 / 12.5])
    assert one.factor("sum_gradient", nodes=9) == 1
    assert one.sub_batch_factor == 1


def test_alternatives_and_items(cluster: Cluster) -> None:
    scenarios = parse_scenarios(
        "fp16, edr ,fp16 + edr+all_reduce*=0.5,inter_node.latency=1us+host.bandwidth=24GB/s", cluster, find_accelerator
    )
    assert [one.text for one in scenarios] == [
        "fp16", "edr", "fp16 + edr+all_reduce*=0.5", "inter_node.latency=1us+host.bandwidth=24GB/s",
    ]  # fmt: skip
    assert scenarios[2].factor("forward", "fp32") == 0.5
    np.testing.assert_allclose(scenarios[2].factor("all_reduce", nodes=np.array([1, 2])), [0.5, 7 / 12.5 / 2])
    assert scenarios[3].link_values == {("inter_node", "latency_s"): 1e-6, ("host", "bytes_per_s"): 24e9}
    assert scenarios[3].multipliers == {}


@given(name=st.sampled_from(TERM_NAMES), factor=st.floats(1e-6, 1e6))
def test_any_term_takes_any_factor_above_zero(name: str, factor: float) -> None:
    text = f"{name}*={factor!r}"
    if "+" not in text:  # 1e+06 would read as two items
        (one,) = parse_scenarios(text, _bare(), find_accelerator)
        assert one.multipliers == {name: factor}


def _bare() -> Cluster:
    return Cluster("bare", 1, Node(1, Accelerator("a", "cpu", 1.0, 1.0, {"fp32": 1.0})))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fp8", "item must be fp16, edr, .* got 'fp8'"),
        ("", "item must be .* got ''"),
        ("fp16,", "item must be .* got ''"),
        ("fp16+", "item must be .* got ''"),
        ("fp16+fp16", "made of different items, got 'fp16'"),
        ("al_reduce*=2", "term of --scenario item 'al_reduce.=2' .* did you mean 'all_reduce'"),
        ("forward*=0", "factor of --scenario item 'forward.=0' must be a number from 1e-06 to 1e.06"),
        ("forward*=-1", "must be a number from 1e-06 to 1e.06"),
        ("forward*=nan", "must be a number from 1e-06 to 1e.06"),
        ("forward*=inf", "must be a number from 1e-06 to 1e.06"),
        ("forward*=x", "must be a number from 1e-06 to 1e.06, got 'x'"),
        ("forward*=1e-300", "must be a number from 1e-06 to 1e.06"),
        ("internode.bandwidth=12.5GB/s", "link of .* did you mean 'inter_node'"),
        ("inter_node.bandwith=12.5GB/s", "key of .* did you mean 'bandwidth'"),
        ("inter_node=12.5GB/s", "key of .* got ''"),
        ("inter_node.bandwidth=12.5", "value of --scenario item .* with a unit"),
        ("inter_node.bandwidth=100Gb/s", "with a unit"),
        ("inter_node.bandwidth=1us", "with a unit"),
        ("inter_node.latency=0us", "positive latency"),
        ("inter_node.latency=1us+inter_node.latency=2us", "without two values for one key"),
        ("edr+inter_node.bandwidth=25GB/s", "either edr or inter_node.bandwidth"),
    ],
)
def test_mistakes_name_the_item_and_what_is_allowed(cluster: Cluster, text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        parse_scenarios(text, cluster, find_accelerator)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("bandwidth", [12.5e9, 25e9])
def test_edr_is_refused_where_the_link_is_as_fast(cluster: Cluster, bandwidth: float) -> None:
    fast = replace(cluster, inter_node=Link("infiniband", bandwidth, 1e-6))
    with pytest.raises(UsageError, match=r"less than 12.5 GB/s, got '(12.5|25) GB/s on example'"):
        parse_scenarios("edr", fast, find_accelerator)


@pytest.mark.parametrize("text", ["edr", "inter_node.bandwidth=1GB/s"])
def test_a_missing_link_cannot_be_changed(text: str) -> None:
    with pytest.raises(UsageError, match="'bare'"):
        parse_scenarios(text, _bare(), find_accelerator)


def test_an_alternative_given_twice_is_one(cluster: Cluster) -> None:
    assert [one.text for one in parse_scenarios("edr, fp16,edr ,fp16", cluster, find_accelerator)] == ["edr", "fp16"]


NEW = Accelerator("new", "gpu", 80e9, 2e12, {"fp32": 20e12})


def _find(name: str) -> Accelerator:
    known = {"new": NEW, "host": Accelerator("host", "cpu", 80e9, 2e11, {"fp32": 1e12})}
    if name not in known:
        raise UnknownNameError("accelerator", name, known)
    return known[name]


def test_another_accelerator_joins_other_items(cluster: Cluster) -> None:
    one, both = parse_scenarios("gpu=new, edr + gpu = new", cluster, _find)
    assert (one.accelerator, one.multipliers, one.text) == (NEW, {}, "gpu=new")
    assert both.accelerator == NEW
    assert float(both.factor("all_reduce", nodes=9)) == pytest.approx(7 / 12.5)
    (plain,) = parse_scenarios("edr", cluster, _find)
    assert plain.accelerator is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpu=newest", "accelerator must be a known name, got 'newest'"),
        ("gpu=imagined", "another accelerator than cluster 'example' has, got 'imagined'"),
        ("gpu=host", 'used where the cluster has devices of kind cpu: a gpu tells nothing of it, got "imagined'),
        ("gpu=new+gpu=new ", "made of different items"),
        ("gpu=new+gpu= new", "without two accelerators"),
        ("gpu*=2", "term of --scenario item"),
    ],
)
def test_an_accelerator_that_makes_no_scenario_is_refused(cluster: Cluster, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_scenarios(text, cluster, _find)
    assert sentence in str(error.value)
