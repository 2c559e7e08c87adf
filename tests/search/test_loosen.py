"""Networks beyond a device's memory: what a search tries then, and what there is to loosen where that is ruled out."""

from dataclasses import replace
from itertools import product

import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.network import Network
from planner.domain.request import Problem, SpaceRequest
from planner.search.searchable import LAST_RESORT
from planner.search.suggest import suggest
from planner.steps.predict import Evaluator
from planner.workload.lawful import is_lawful

KEPT = {"sharding": 0, "recompute": "none", "offload": "none"}


def problem(network: Network, memory_bytes: float, *, gpus: int = 2, has_host: bool = True) -> Problem:
    cluster = catalog.find_cluster("dgx1-v100")
    calibrations = catalog.calibrations_for(cluster)
    accelerator = replace(cluster.node.accelerator, memory_bytes=memory_bytes)
    small = replace(cluster, nodes=1, node=replace(cluster.node, gpus=gpus, accelerator=accelerator))
    cluster = small if has_host else replace(small, host=None)
    return Problem(network, None, cluster, calibrations, settings=Settings(input="synthetic"))


@pytest.mark.parametrize(
    ("gpus", "sub_batch", "options"),
    [(1, 512, {"recompute", "offload"}), (8, 158, {"sharding", "recompute", "offload"})],
)
def test_what_a_cnn_beyond_the_memory_can_do_is_tried_or_named_where_it_is_ruled_out(
    gpus: int, sub_batch: int, options: set[str]
) -> None:
    """One device has nothing to share."""
    of = problem(catalog.find_network("resnet152"), 16 * 2.0**30, gpus=gpus)
    asked = {"precision": ("fp16",), "sub_batch": (sub_batch,), "accumulation_steps": (1,)}
    request = SpaceRequest(gpus * sub_batch, asked=asked, parallelism=("data",))
    answer = suggest(of, request, {})
    assert {key for key, one in answer.request.items() if one.source == LAST_RESORT} == KEPT.keys()
    assert "Nothing fits in the 16 GiB of a GPU without sharding, recompute or offload: " in answer.choice
    assert answer.chosen_plan is not None
    assert any(getattr(answer.chosen_plan.prediction.configuration, key) != one for key, one in KEPT.items())
    answer = suggest(of, request.changed(**{key: (one,) for key, one in KEPT.items()}), {})
    assert answer.status == "none_feasible"
    ways = {one.option.removeprefix("--"): one.message for one in answer.loosen}
    assert options == ways.keys() & KEPT.keys()
    assert all(" samples/s" in ways[name] for name in options)


@pytest.mark.parametrize(("name", "gib"), [("alexnet", (2.0, 2.4)), ("resnet50", (1.6,)), ("gpt2", (3.0,))])
def test_there_is_an_answer_exactly_where_some_lawful_plan_fits(name: str, gib: tuple[float, ...]) -> None:
    """Whether it needs the host's memory, shares, makes activations again, or has a device's memory for all."""
    network, batches = catalog.find_network(name), (1, 4)
    asked = SpaceRequest(8, asked={"precision": ("fp32",)}, parallelism=("data",))
    ends = set()
    for size, has_host in product(gib, (True, False)):
        of = problem(network, size * 2**30, has_host=has_host)
        plans = [
            Configuration(1, 2, n, 4 // n, "fp32", sharding=share, recompute=recompute, offload=offload)
            for n, share, recompute in product(batches, range(4), ("none", "selective", "full"))
            for offload in ("none", "optimizer", "activations", "paged-activations")[: 4 if has_host else 1]
        ]
        every = Configurations.of(plans)
        lawful = every.take(is_lawful(network, of.settings.framework, every))
        needed_bytes = Evaluator(of).evaluate(lawful).memory_bytes
        fits = bool((needed_bytes <= of.cluster.node.accelerator.memory_bytes).any())
        ends.add(fits)
        assert (suggest(of, asked, {}).status == "found") == fits, (size, has_host)
    assert ends == {True, False}
