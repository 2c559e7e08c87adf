"""Candidates that split a network, against plain loops over every axis."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import catalog
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import Framework
from planner.domain.prediction import MiniBatch, Prediction, Quantity, Staleness, Term
from planner.domain.request import SpaceRequest
from planner.errors import UsageError
from planner.search.bases import Bases, SplitBases, SplitLimits, kinds_of, kinds_to_try
from planner.search.block import Plans
from planner.search.explain import why_split
from planner.workload.memory import Memory

Plan = tuple[int, ...]
NAMES = (
    "nodes", "gpus_per_node", "tensor_parallel", "sequence_parallel", "pipeline_parallel", "virtual_stages", "sharding",
    "recompute", "sub_batch", "accumulation_steps",
)  # fmt: skip
ALL = ("data", "model", "pipeline", "hybrid")
SMALL = "gpt:layers=6,hidden=64,heads=4,sequence=32,vocabulary=128"
GPT3 = "gpt:layers=96,hidden=12288,heads=96,sequence=2048,vocabulary=51200"
MEGATRON = Framework("megatron", can=("tensor", "pipeline"), schedules=("1f1b", "interleaved"), shardings=(0, 1))


def block(name: str, framework: Framework, most: tuple[int, int], batch: int, **asked: tuple[int | str, ...]) -> Plans:
    request = SpaceRequest(batch).changed(**asked)
    cluster = dict(zip(("nodes", "gpus_per_node"), most, strict=True))
    network = catalog.find_network(name)
    bases = SplitBases(request, cluster, (batch, batch), network=network, framework=framework)
    sub_batches = request["sub_batch"]
    return Plans(bases, None if sub_batches is None else np.array(sub_batches))


def rows_of(of: Plans) -> set[Plan]:
    found: list[Plan] = []
    for some in of.candidates((0, ("fp16",))):
        found += zip(*(getattr(some, name).tolist() for name in NAMES), strict=True)
    assert len(found) == len(set(found)) == of.count()
    return set(found)


def by_loops(of: tuple[int, int], g: int, batch: int, nodes: range, sharded: int) -> Iterator[Plan]:
    """Yield every split plan that is lawful and does something that no simpler one does; ``of``: layers and heads."""
    layers, heads = of
    for n, t, p, v in product(nodes, range(1, g + 1), range(1, layers + 1), range(1, layers + 1)):
        gpus = n * g
        if heads % t or gpus % (t * p) or (v > 1 and (p == 1 or layers % (p * v) or v * 2 > layers)):
            continue
        copies = gpus // (t * p)
        if batch % copies:
            continue
        for shared, shards, again in product(range(2), range(sharded + 1), range(3)):
            if (shared and t == 1) or (shards and copies == 1) or (t, p, shards, again) == (1, 1, 0, 0):
                continue
            for sub_batch in range(1, batch // copies + 1):
                steps, rest = divmod(batch // copies, sub_batch)
                if not rest and (v == 1 or steps % p == 0):
                    yield (n, g, t, shared, p, v, shards, again, sub_batch, steps)


@pytest.mark.parametrize("batch", [8, 24])
def test_every_lawful_split_is_a_candidate_once(batch: int) -> None:
    wanted = set(by_loops((6, 4), 4, batch, range(1, 4), 3))
    assert rows_of(block(SMALL, Framework("any"), (3, 4), batch)) == wanted
    assert len(wanted) > 100


def test_candidates_of_a_large_network_are_those_of_plain_loops() -> None:
    """GPT-3 on 4,096 GPUs: every tensor and pipeline degree, interleaving, sub-batch, recompute and sharding."""
    found = rows_of(block(GPT3, MEGATRON, (512, 8), 4096, nodes=(512,)))
    assert found == set(by_loops((96, 96), 8, 4096, range(512, 513), 1))


def passes(window: tuple[int, int], sub_batches: Any = None, steps: Any = None) -> list[tuple[int, int]]:
    """Return the sub-batches and accumulation steps of one device whose product lies in a window."""
    request = SpaceRequest(1).changed(accumulation_steps=None if steps is None else tuple(steps))
    tried = None if sub_batches is None else np.array(sub_batches)
    of = Plans(Bases(request, {"nodes": 1, "gpus_per_node": 1}, window), tried)
    assert of.inside() == sum(some.size for some in of.candidates((0, ("fp32",))))
    return list(zip(*(one.tolist() for one in of.passes_of(0)), strict=True))


@given(
    st.integers(0, 40),
    st.integers(0, 60),
    *(st.none() | st.sets(st.integers(1, 70), min_size=1).map(sorted) for _ in range(2)),
)
def test_passes_are_those_of_plain_loops(low: int, wide: int, sub_batches: Any, steps: Any) -> None:
    every = range(1, 101)
    wanted = [(n, m) for n in sub_batches or every for m in steps or every if max(low, 1) <= n * m <= low + wide]
    assert passes((low, low + wide), sub_batches, steps) == wanted


def test_a_large_target_costs_the_root_and_a_wide_window_around_it_is_refused() -> None:
    tracemalloc.start()
    listed, peak = passes((10**8, 10**8)), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(n * m == 10**8 for n, m in listed)
    assert len(listed) == 81  # divisors of 2^8 5^8
    assert peak < 2**22
    for steps in (None, range(1, 10**6)):
        with pytest.raises(UsageError, match=r"at most 131,072 sub-batches .* narrow --tolerance"):
            passes((3 * 10**7, 10**8), steps=steps)


def test_a_wide_window_is_refused_where_sub_batches_are_asked_for_too() -> None:
    wide = block(SMALL, Framework("any"), (1, 1), 10**7, sub_batch=(1, 2))
    assert wide.count() > 0
    of = Plans(replace(wide.bases, window=(10**6, 10**7)), wide.sub_batches)
    with pytest.raises(UsageError, match=r"at most 131,072 sub-batches"):
        of.count()


def test_kinds_restrict_the_degrees() -> None:
    for kinds, told in ((("model",), (True, False)), (("pipeline",), (False, True)), (("hybrid",), (True, True))):
        rows = rows_of(block(SMALL, Framework("any"), (2, 4), 16, parallelism=kinds))
        assert {(one[2] > 1, one[4] > 1) for one in rows} == {told}


def test_what_is_asked_for_is_tried_alone() -> None:
    of = block(SMALL, Framework("any"), (2, 4), 16, tensor_parallel=(2,), recompute=("full",), sub_batch=(2,))
    assert {(one[2], one[7], one[8]) for one in rows_of(of)} == {(2, 2, 2)}


def test_periods_of_recompute_are_tried_where_they_are_asked_for() -> None:
    """With full recompute alone, and no longer than a stage has layers: six of them."""
    plain, several = (
        block(SMALL, Framework("any"), (1, 4), 8, **asked) for asked in ({}, {"recompute_every": (1, 2, 3, 4)})
    )
    longest = {one: -(-6 // one[4]) for one in rows_of(plain) if one[NAMES.index("recompute")] == 2}
    assert several.count() == plain.count() + sum(min(layers, 4) - 1 for layers in longest.values())
    (rows,) = several.candidates((0, ("fp16",)))
    assert set(rows.recompute[rows.recompute_every > 1].tolist()) == {2}


@pytest.mark.parametrize(("schedule", "chunks"), [("zero-bubble-v", 2), ("no-flush", 1), ("zero-bubble-h2", 1)])
def test_schedules_have_the_micro_batches_that_they_run(schedule: str, chunks: int) -> None:
    """Where a schedule is asked for; ZB-V runs 2 p and more, and an update behind every one leaves one of them."""
    found = rows_of(block(SMALL, Framework("any"), (1, 3), 24, schedule=(schedule,), pipeline_parallel=(3,)))
    ran = {"zero-bubble-v": {6, 8, 12, 24}, "no-flush": {1}, "zero-bubble-h2": {1, 2, 3, 4, 6, 8, 12, 24}}
    assert {one[NAMES.index("accumulation_steps")] for one in found} == ran[schedule]
    assert {one[NAMES.index("virtual_stages")] for one in found} == {chunks}
    assert not rows_of(block(SMALL, MEGATRON, (1, 3), 24, schedule=("gpipe",), pipeline_parallel=(3,)))


def test_schedules_are_tried_where_they_are_asked_for() -> None:
    """1f1b with virtual stages is interleaved; without a pipeline one schedule is like another."""

    def tried(**asked: tuple[int | str, ...]) -> set[tuple[int, str]]:
        rows = block(SMALL, Framework("any"), (1, 2), 8, **asked).candidates((0, ("fp16",)))
        return {
            (int(p), SCHEDULES[code])
            for one in rows
            for p, code in zip(one.pipeline_parallel, one.schedule, strict=True)
        }

    assert tried() == {(1, "1f1b"), (2, "1f1b")}
    both = tried(schedule=("gpipe", "1f1b", "zero-bubble"))
    assert both == {(1, "1f1b"), *((2, name) for name in ("gpipe", "1f1b", "zero-bubble"))}
    assert tried(schedule=("zero-bubble",)) == {(1, "1f1b"), (2, "zero-bubble")}


def test_kinds_of_networks_and_frameworks() -> None:
    gpt, cnn = catalog.find_network(SMALL), catalog.find_network("resnet18")
    assert kinds_of(cnn, Framework("any")) == ALL
    assert kinds_of(cnn, Framework("pipes", can=("pipeline", "context"))) == ("data", "pipeline")
    assert kinds_of(cnn, Framework("of-blocks", can=("pipeline",), stages="blocks")) == ("data",)
    assert kinds_to_try(SpaceRequest(8), cnn, Framework("any")) == ("data",)
    assert kinds_to_try(SpaceRequest(8), cnn, Framework("shares", shares_layers=True)) == ("data", "model", "hybrid")
    assert kinds_to_try(SpaceRequest(8).changed(tensor_parallel=(2,)), cnn, Framework("any")) == (
        "data", "model", "hybrid",
    )  # fmt: skip
    assert kinds_of(cnn, Framework("sharded", can=())) == ("data",)
    assert kinds_of(gpt, Framework("any")) == ALL
    assert kinds_of(gpt, Framework("sharded", can=())) == ("data",)
    assert kinds_of(gpt, Framework("pipes", can=("pipeline",))) == ("data", "pipeline")


def test_pipelines_of_layers_are_tried_by_frameworks_that_deal_them_out_and_where_asked_for() -> None:
    cnn, by_itself, by_hand = catalog.find_network("resnet18"), Framework("deals", stages="layers"), Framework("any")
    request, both = SpaceRequest(8), ("data", "pipeline")
    assert kinds_to_try(request, cnn, by_itself) == both
    assert kinds_to_try(request, cnn, by_hand) == ("data",)
    assert kinds_to_try(request.changed(pipeline_parallel=(2,)), cnn, by_hand) == both
    assert kinds_to_try(request.changed(schedule=("gpipe",)), cnn, by_hand) == both
    assert kinds_to_try(request.changed(parallelism=("pipeline",)), cnn, by_hand) == ("pipeline",)
    assert rows_of(block("resnet18", by_hand, (1, 4), 8)) == set()


def test_pipelines_of_layers_fill_nodes_evenly() -> None:
    """resnet18 has 20 convolutions, 20 normalisations and a linear layer: up to 41 stages."""
    rows = rows_of(block("resnet18", Framework("deals", stages="layers"), (8, 6), 48))
    assert {one[4] for one in rows} == {2, 3, 6, 12, 24}
    assert {one[2:4] + one[5:8] for one in rows} == {(1, 0, 1, 0, 0)}
    asked = rows_of(block("resnet18", Framework("any"), (1, 40), 40, pipeline_parallel=(5, 40, 50)))
    assert {one[4] for one in asked} == {5, 40}


def _no_ledger(_: str) -> Memory:
    raise AssertionError("asked only where nothing fits")


def test_memory_is_asked_by_precision() -> None:
    def memory(rows: Configurations, precision: str) -> np.ndarray:
        return rows.sub_batch * (2.0 if precision == "fp16" else 4.0)

    limits = SplitLimits(catalog.find_network(SMALL), Framework("any"), memory, 8.0, _no_ledger)
    (rows,) = block(SMALL, Framework("any"), (1, 4), 16, recompute=("full",), tensor_parallel=(4,)).candidates(
        (0, ("fp16", "fp32"))
    )
    assert limits.fits(rows).tolist() == (rows.sub_batch <= 4).tolist()


def test_why_a_plan_is_split_and_what_that_costs() -> None:
    """Shares of the step by hand: 5 + 3 % messages, 10 % bubble; a share that rounds to nothing is left out."""
    shares = {"forward": 0.5, "tensor_messages": 0.05, "all_reduce": 0.03, "bubble": 0.1, "recompute": 0.001}
    terms = tuple(
        Term(name, "step", 1.0, 1.0, share, ("fitted",), (), extrapolated=False) for name, share in shares.items()
    )
    one = Prediction(
        Configuration(1, 8, 1, tensor_parallel=8), Quantity(1.0), None, None, None, Quantity(1.0),
        MiniBatch(1, 0, 1, 1), Staleness(0, 0, {0: 1.0}), {"capacity": 80 * 2.0**30}, terms, "forward", (),
    )  # fmt: skip
    rest = ". Of the step, 8% is messages, 10% is waiting for other stages"
    assert why_split(one, 2.0**40) == f"unsplit it needs 1 TiB on each GPU; one has 80 GiB{rest}"
    assert why_split(one, 2.0**30) == "unsplit it is slower"
