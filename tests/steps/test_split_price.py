"""Prices of synchronous plans: against loops over layers and calls, event counts and each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from planner.catalog import calibrations_for, find_cluster, find_network
from planner.costs.terms import evaluate
from planner.domain.axes import TENSOR
from planner.domain.cluster import Cluster, Storage
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.kernels import MATRIX_KINDS
from planner.domain.messages import ALL_REDUCE, GRADIENTS, NEIGHBOURS, REDUCE_SCATTER, SEND_RECEIVE, Groups
from planner.domain.network import Network, layer_parameters
from planner.domain.request import Problem
from planner.domain.split import SplitMemoryBytes
from planner.sources.sources import Sources
from planner.steps.compute import ComputeCases, call_times_s, host_s
from planner.steps.host_and_gpu import CallCounts, composed_s
from planner.steps.predict import Evaluator
from planner.steps.price import Priced, Pricer
from planner.steps.state import State
from planner.steps.step_costs import operation_s
from planner.steps.step_part import STEP_TERMS
from planner.steps.synchronous import units_backward_s, units_forward_s
from planner.workload.calls import lower
from planner.workload.program import block_starts
from planner.workload.shards import tensor_shard
from planner.workload.units import stage_units
from tests.simulation.events import count_events, operations

Make = Callable[..., Problem]
HIDDEN, SEQUENCE, LAYERS, TOKENS = 64, 32, 4, 128
GPT = find_network(f"gpt:layers={LAYERS},hidden={HIDDEN},heads=4,sequence={SEQUENCE},vocabulary={TOKENS}")
COPIED = 2 * SEQUENCE * 4
"""Bytes of two samples on the device."""
OWN = Framework("own")
STEP = ("forward", "backward", "update")
MESSAGES = [name for name in STEP_TERMS if name.endswith("messages") or "all_reduce" in name or "weights" in name]


@pytest.fixture
def problem(make_problem: Make) -> Problem:
    settings = Settings("adam", input="synthetic", framework=OWN)
    return make_problem(network=GPT, dataset=None, settings=settings)


def plan(**changes: Any) -> Configuration:
    return Configuration(**({"nodes": 1, "gpus_per_node": 1, "sub_batch": 2} | changes))


def priced(problem: Problem, *plans: Configuration) -> Priced:
    return Pricer(Sources(problem), plans[0].precision).price(Configurations.of(list(plans)))


def terms(problem: Problem, **changes: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Return what each term of one plan takes, and what it adds."""
    found = priced(problem, plan(**changes))
    taken, added = ({name: float(one[name][0]) for name in STEP_TERMS} for one in (found.seconds, found.exposed_s))
    return taken, added


def calls(problem: Problem, network: Network, sub_batch: int) -> Iterator[tuple[str, str, int, float]]:
    """Yield kind, direction, layer and time of every call, layer by layer, by the toy calibration."""
    entries = {entry.kind: entry for entry in problem.calibrations[0].entries}
    for group in lower(network, np.array([sub_batch]), optimizer="adam", merged=False):
        entry = entries.get(group.kind, entries["pointwise"])
        times = np.atleast_2d(evaluate(entry, {**group.work, "itemsize": 4.0}))[0]
        for layer, count, seconds in np.broadcast(group.layer, group.count, times):
            yield group.kind, group.direction, int(layer), float(count * seconds)


def stage_times(problem: Problem, stages: int, sub_batch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return forward, backward, weight gradients and update of each stage [s], from sums over its layers."""
    first = np.array(block_starts(GPT))
    each = LAYERS // stages
    found = np.zeros((4, stages))
    for _, direction, layer, seconds in calls(problem, GPT, sub_batch):
        block = int(np.searchsorted(first, layer, side="right")) - 1
        stage = min(max(block, 0) // each, stages - 1)
        found[{"forward": 0, "update": 3}.get(direction, 1), stage] += seconds
        found[2, stage] += seconds * (direction == "backward_weight")
    return found[0], found[1], found[2], found[3]


def accumulated(problem: Problem, stages: int) -> np.ndarray:
    """Return what adding gradients to those that are there takes on each stage: read, read, write."""
    pointwise = next(one for one in problem.calibrations[0].entries if one.kind == "pointwise")
    start, per_byte = pointwise.coefficients.values()
    each, first = LAYERS // stages, np.array(block_starts(GPT))
    found = np.zeros(stages)
    for layer, parameters in enumerate(layer_parameters(GPT).tolist()):
        if parameters:
            block = int(np.searchsorted(first, layer, side="right")) - 1
            found[min(max(block, 0) // each, stages - 1)] += start + per_byte * 3 * 4 * parameters
    return found


def test_a_plan_that_splits_nothing_costs_what_its_layers_do(problem: Problem) -> None:
    (forward,), (backward,), _, (update,) = stage_times(problem, 1, 2)
    (adding,) = accumulated(problem, 1)
    for steps in (1, 3):
        expected = {"forward": steps * forward, "backward": steps * backward + (steps - 1) * adding, "update": update}
        taken, added = terms(problem, accumulation_steps=steps)
        assert taken == added == pytest.approx(dict.fromkeys(STEP_TERMS, 0.0) | expected, rel=1e-9)
        found = priced(problem, plan(accumulation_steps=steps))
        assert found.period_s[0] == pytest.approx(sum(expected.values()), rel=1e-9)


def stages_alone(problem: Problem, sub_batch: int) -> dict[str, tuple[float, float]]:
    """Return what kernels and host take of each stage of the whole network in fp16 [s], call by call."""
    sources, compute = Sources(problem), ComputeCases(Sources(problem), "fp16").ranks[0]
    overheads, units, found = sources.overheads("fp16", "sync"), compute.units, {}
    for stage, served in compute.calls_with_sources(np.array([sub_batch])).items():
        kernels_s, started = 0.0, np.zeros(3)
        for each, source in served:
            scale = overheads.scale_of("gemm") if each.kind in MATRIX_KINDS else overheads.kernel_scale
            kernels_s += scale * float(call_times_s(source.entry, each, compute.itemsize).sum())
            made = float((each.count if each.operations is None else each.operations).sum())
            started += made, made * (source.origin != "specified"), float(each.count.sum()) - made
        layers = (units.slots if stage == "update" else units.layers)[units.sequence].sum()
        counts = CallCounts(*(np.array([one]) for one in started))
        found[stage] = kernels_s, float(np.atleast_1d(host_s(sources, overheads, counts, layers))[0])
    return found


def computed_s(problem: Problem, sub_batch: int, steps: int, updated: float = 1.0) -> float:
    """Return what kernels and host take together in a step that updates a share of the parameters [s].

    The forward pass takes its part of a step with one pass, adding to gradients its part of a further pass.
    """
    (forward, backward, accumulating, update), hosts = zip(*stages_alone(problem, sub_batch).values(), strict=True)
    exponent = Sources(problem).overheads("fp16", "sync").exponent
    kernels_s = np.array([forward + backward + updated * update, forward + accumulating])
    both = composed_s(kernels_s, np.array([hosts[0] + hosts[1] + hosts[3], hosts[0] + hosts[2]]), exponent)
    slower = both / kernels_s
    return float(both[0] + (steps - 1) * (forward * slower[0] + accumulating * slower[1]))


@pytest.mark.parametrize("launch", ["eager", "graph", "compiled"])
def test_the_host_composes_with_all_stages_of_a_step_and_with_those_of_each_further_pass(launch: str) -> None:
    cluster = find_cluster("dgx-a100")
    network = find_network("gpt:layers=3,hidden=1024,heads=16,sequence=512,vocabulary=50304")
    settings = Settings("adam", input="synthetic", framework=Framework("own", launch=launch))
    asked = Problem(network, None, cluster, calibrations_for(cluster), settings=settings)
    for steps in (1, 2):
        found = priced(asked, plan(precision="fp16", sub_batch=4, accumulation_steps=steps))
        taken = sum(float(found.seconds[name][0]) for name in STEP)
        assert taken == pytest.approx(computed_s(asked, 4, steps), rel=1e-5)  # calls over lists are rounded


@pytest.mark.parametrize("bytes_per_s", [1e9, 1e6])
@pytest.mark.parametrize("strategy", ["wait-free", "no-overlap"])
def test_samples_are_read_and_copied(make_problem: Make, cluster: Cluster, strategy: str, bytes_per_s: float) -> None:
    """Two sub-batches of two samples of 10 kB, half of them from a cache later; 32 tokens of 4 bytes are copied."""
    where = replace(cluster, storage=Storage(bytes_per_s, shared=True, cache_bytes=5e7))
    asked = make_problem(network=GPT, cluster=where, settings=Settings("adam", strategy, framework=OWN))
    still = replace(asked, settings=replace(asked.settings, input="synthetic"))
    one = plan(accumulation_steps=2)
    found, quiet = priced(asked, one), priced(still, one)
    load = 4 * 1e4 / bytes_per_s
    copies = found.seconds["host_to_device"][0]
    assert copies == found.exposed_s["host_to_device"][0] == pytest.approx(2 * (1e-5 + COPIED / 1e10), rel=1e-9)
    step = float(quiet.period_s[0]) + copies
    periods = [max(step, load_s) if strategy == "wait-free" else step + load_s for load_s in (load / 2, load)]
    assert [found.period_s[0], found.first_period_s[0]] == pytest.approx(periods, rel=1e-9)
    assert found.seconds["load_input"][0] == pytest.approx(load / 2, rel=1e-9)
    is_all = strategy == "no-overlap" or load / 2 > step
    assert found.exposed_s["load_input"][0] == pytest.approx(load / 2 if is_all else 0.0, rel=1e-9)
    later, first, _ = Pricer(Sources(asked), "fp32").totals(Configurations.of([one]))
    assert (later[0], first[0]) == pytest.approx((found.period_s[0], found.first_period_s[0]), rel=1e-12)


def test_a_smaller_update_hides_less_of_the_host() -> None:
    """Of four ranks that share an update each takes what a step with a quarter of its kernels would."""
    cluster = find_cluster("dgx-a100")
    network = find_network("gpt:layers=3,hidden=1024,heads=16,sequence=512,vocabulary=50304")
    asked = Problem(network, None, cluster, calibrations_for(cluster), settings=Settings("adam", input="synthetic"))
    found = priced(asked, plan(precision="fp16", gpus_per_node=4, sub_batch=1, sharding=1))
    taken = sum(float(found.seconds[name][0]) for name in STEP)
    assert taken == pytest.approx(computed_s(asked, 1, 1, updated=0.25), rel=2e-3)  # calls over lists are rounded


def test_a_single_rank_sends_nothing_and_waits_for_nothing(problem: Problem) -> None:
    taken, added = terms(problem, accumulation_steps=3, recompute="full")
    assert [name for name in (*MESSAGES, "bubble") if taken[name] or added[name]] == []


def test_recompute_adds_the_forward_kernels_of_the_blocks_or_of_their_attention(problem: Problem) -> None:
    first, last = block_starts(GPT)[0], block_starts(GPT)[-1]
    attention = {at for at, layer in enumerate(GPT.layers) if layer.kind == "attention"}
    forward = [(layer, seconds) for _, way, layer, seconds in calls(problem, GPT, 2) if way == "forward"]
    plain, _ = terms(problem, accumulation_steps=3)
    for recompute, again in (
        ("full", sum(seconds for layer, seconds in forward if first <= layer < last)),
        ("selective", sum(seconds for layer, seconds in forward if layer in attention)),
    ):
        taken, added = terms(problem, accumulation_steps=3, recompute=recompute)
        assert taken["recompute"] == added["recompute"] == pytest.approx(3 * again, rel=1e-9)
        assert {name: one for name, one in taken.items() if name != "recompute"} == pytest.approx(
            {name: one for name, one in plain.items() if name != "recompute"}, rel=1e-9
        )


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_is_the_event_count_of_its_stages(problem: Problem, stages: int, steps: int, schedule: str) -> None:
    """One copy: passes of stages, transfers between them, the sum of the tied table, and the slowest update."""
    forward, backward, _, update = stage_times(problem, stages, 2)
    backward = backward + accumulated(problem, stages) * (steps - 1) / steps
    transfer = float(sent(problem, SEND_RECEIVE, 4 * 2 * SEQUENCE * HIDDEN, NEIGHBOURS, stages=stages)[0])
    events = count_events(operations(schedule, stages, steps), forward[:, None], backward[:, None], transfer_s=transfer)
    found = priced(problem, plan(
        gpus_per_node=stages, pipeline_parallel=stages, schedule=schedule, accumulation_steps=steps
    ))  # fmt: skip
    after = sum(float(found.exposed_s[name][0]) for name in ("update", "embedding_all_reduce"))
    assert found.seconds["update"][0] == pytest.approx(update.max(), rel=1e-9)
    assert found.period_s[0] - after == pytest.approx(events.end_s, rel=0.02)
    assert found.period_s[0] - after <= events.end_s * (1 + 1e-9)
    slowest = int(np.argmax(forward + backward))
    assert found.seconds["forward"][0] == pytest.approx(steps * forward[slowest], rel=1e-9)
    assert found.seconds["backward"][0] == pytest.approx(steps * backward[slowest], rel=1e-9)


def sent(problem: Problem, operation: str, bytes_: float, group: str, *, stages: int = 1, **degrees: int) -> np.ndarray:
    one = Configurations.of([plan(gpus_per_node=4 if stages < 3 else stages, pipeline_parallel=stages, **degrees)])
    pricer = Pricer(Sources(problem), "fp32")
    groups = pricer.placement(one).groups(group)
    return operation_s(pricer.sources, operation, np.array([float(bytes_)]), groups)


@pytest.mark.parametrize(
    ("head", "sums"), [("tokens", True), ("pretraining", True), ("labels", False), ("pooler", False)]
)
def test_the_table_of_tokens_is_summed_between_ends_that_both_have_it(
    problem: Problem,
    head: str,
    sums: bool,  # noqa: FBT001 - a case
) -> None:
    """A head without logits of tokens has no copy: nothing to sum, and as many parameters as the whole network."""
    text = f"bert:layers={LAYERS},hidden={HIDDEN},heads=4,sequence={SEQUENCE},vocabulary={TOKENS},head={head}"
    network = find_network(text)
    asked = replace(problem, network=network)
    _, added = terms(asked, gpus_per_node=2, pipeline_parallel=2)
    assert (added["embedding_all_reduce"] > 0) == sums
    pricer = Pricer(Sources(asked), "fp32")
    plans = Configurations.of([plan(gpus_per_node=2, pipeline_parallel=2)])
    held = State(pricer, plans, pricer.ranks(plans)).parameters.total.sum()
    assert held == layer_parameters(network).sum() + TOKENS * HIDDEN * sums


def test_two_stages_by_hand(problem: Problem) -> None:
    """1F1B of two stages: m times the slower one, and one pass each way of the other, transfers apart."""
    forward, backward, _, _ = stage_times(problem, 2, 2)
    fast = replace(problem, cluster=faster(problem.cluster))
    steps = 5
    backward = backward + accumulated(problem, 2) * (steps - 1) / steps
    slow = int(np.argmax(forward + backward))
    other = forward[1 - slow] + backward[1 - slow]
    _, added = terms(fast, gpus_per_node=2, pipeline_parallel=2, accumulation_steps=steps)
    assert added["forward"] + added["backward"] == pytest.approx(steps * (forward + backward)[slow], rel=1e-9)
    assert added["bubble"] == pytest.approx(other, rel=1e-6)


def faster(cluster: Cluster) -> Cluster:
    links = {
        name: replace(getattr(cluster, name), bytes_per_s=1e30, latency_s=0.0)
        for name in ("intra_node", "inter_node", "host")
        if getattr(cluster, name)
    }
    return replace(cluster, **links)


def test_zero_bubble_delays_the_gradients_of_weights_alone(problem: Problem) -> None:
    """Against an event count: w is the backward-weight kernels, whatever else the backward pass holds."""
    forward, backward, weight, _ = stage_times(problem, 2, 2)
    fast = replace(problem, cluster=faster(problem.cluster))
    found = priced(fast, plan(gpus_per_node=2, pipeline_parallel=2, schedule="zero-bubble", recompute="full"))
    plain = priced(fast, plan(gpus_per_node=2, pipeline_parallel=2, recompute="full"))
    again = float(found.exposed_s["recompute"][0])
    blocks = np.array([again, again])  # each stage has two of four equal blocks
    b = backward - weight + blocks
    order = operations("zero-bubble", 2, 1)
    events = count_events(order, forward[:, None], b[:, None], weight[:, None])
    after = sum(float(found.exposed_s[name][0]) for name in ("update", "embedding_all_reduce"))
    assert found.period_s[0] - after == pytest.approx(events.end_s, rel=1e-6)
    assert found.period_s[0] <= plain.period_s[0] * (1 + 1e-9)


def test_both_ends_of_a_v_are_on_its_first_stage(problem: Problem) -> None:
    """Against an event count of four parts on two stages, 0 and 3 on the first; its table of tokens is there once."""
    fast, steps = replace(problem, cluster=faster(problem.cluster)), 4
    forward, backward, weight, update = stage_times(problem, 4, 2)
    backward = backward + accumulated(problem, 4) * (steps - 1) / steps
    parts = np.array([[0, 3], [1, 2]])
    order = operations("zero-bubble-v", 2, steps, 2)
    events = count_events(order, forward[parts], (backward - weight)[parts], weight[parts], v_shaped=True)
    split = {"gpus_per_node": 2, "pipeline_parallel": 2, "virtual_stages": 2, "accumulation_steps": steps}
    v_shaped, interleaved = plan(schedule="zero-bubble-v", **split), plan(schedule="interleaved", **split)
    found = priced(fast, v_shaped, interleaved)
    assert found.exposed_s["embedding_all_reduce"][0] == 0 < found.exposed_s["embedding_all_reduce"][1]
    assert found.seconds["update"][0] == pytest.approx(update[[0, 3]].sum(), rel=1e-9)
    assert found.period_s[0] - found.exposed_s["update"][0] == pytest.approx(events.end_s, rel=0.05)
    assert found.memory.stage.tolist() == [0, 0]
    assert found.memory.logits[0] > found.memory.logits[1] == 0


def test_without_a_flush_stages_never_wait_and_keep_versions_of_weights(problem: Problem) -> None:
    fast = replace(problem, cluster=faster(problem.cluster))
    forward, backward, _, _ = stage_times(problem, 4, 2)
    split = {"gpus_per_node": 4, "pipeline_parallel": 4}
    found = priced(fast, plan(schedule="no-flush", **split), plan(**split))
    slowest = int(np.argmax(forward + backward))
    passes = sum(float(found.exposed_s[name][0]) for name in ("forward", "backward", "bubble", "stage_messages"))
    assert passes == pytest.approx((forward + backward)[slowest], rel=1e-6)
    assert found.memory.weights[0] == pytest.approx(4 * found.memory.weights[1])
    [stale, flushed] = Evaluator(fast).describe(Configurations.of([plan(schedule="no-flush", **split), plan(**split)]))
    assert (stale.staleness.mean, stale.staleness.pmf) == (1.5, dict.fromkeys(range(4), 0.25))
    assert (flushed.staleness.mean, flushed.staleness.pmf) == (0, {0: 1})
    predicted = Evaluator(fast).evaluate(Configurations.of([plan(schedule="no-flush", **split), plan(**split)]))
    assert predicted.staleness_mean.tolist() == [1.5, 0]


def test_messages_of_tensor_ranks_by_hand(problem: Problem) -> None:
    """All-reduces of b·s·h: two a layer each way, one of the table, one of the logits; three of 4·b·s of the loss."""
    taken, added = terms(problem, gpus_per_node=2, tensor_parallel=2, accumulation_steps=3)
    groups = Groups(np.array([1]), np.array([2]), np.array([1.0]))
    sources = Sources(problem)
    whole, small = (
        float(operation_s(sources, ALL_REDUCE, np.array([bytes_]), groups)[0])
        for bytes_ in (4.0 * 2 * SEQUENCE * HIDDEN, 4.0 * 2 * SEQUENCE)
    )
    expected = 3 * ((4 * LAYERS + 2) * whole + 3 * small)
    assert taken["tensor_messages"] == pytest.approx(expected, rel=1e-9)
    assert added["tensor_messages"] == pytest.approx(expected, rel=1e-9)
    assert all(taken[name] == 0 for name in ("all_reduce", "stage_messages", "bubble", "context_messages"))


def test_tensor_ranks_that_share_positions_sum_gradients_of_what_they_have_whole(problem: Problem) -> None:
    """Once a step, of the fullest stage: 4h of norms and 2h of biases behind rows a layer, and 2h of the last norm."""
    degrees = {"gpus_per_node": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": "on"}
    once, thrice = (terms(problem, **degrees, accumulation_steps=steps) for steps in (1, 3))
    elements = LAYERS / 2 * 6 * HIDDEN + 2 * HIDDEN
    seconds = sent(problem, ALL_REDUCE, 4.0 * elements, TENSOR, stages=2, tensor_parallel=2)[0]
    for one, three in zip(once, thrice, strict=True):
        each = (three["tensor_messages"] - one["tensor_messages"]) / 2
        assert one["tensor_messages"] - each == pytest.approx(seconds, rel=1e-6)
    plain = [terms(problem, **degrees | {"sequence_parallel": "off"}, accumulation_steps=m)[0] for m in (1, 3)]
    assert plain[1]["tensor_messages"] == pytest.approx(3 * plain[0]["tensor_messages"], rel=1e-9)


@pytest.mark.usefixtures("unslowed")
@pytest.mark.parametrize("degrees", [{}, {"tensor_parallel": 2}, {"tensor_parallel": 2, "sharding": 1}], ids=str)
@pytest.mark.parametrize("bytes_per_s", [1e10, 1e9, 1e8])
def test_gradients_of_a_shard_are_sent_behind_its_layers(
    problem: Problem, communication_end_s: Callable[..., float], degrees: dict[str, int], bytes_per_s: float
) -> None:
    """Message by message; what a pass waits for tensor ranks makes each of its kernels as much longer."""
    assert problem.cluster.intra_node is not None
    link = replace(problem.cluster.intra_node, bytes_per_s=bytes_per_s)
    asked = replace(problem, cluster=replace(problem.cluster, intra_node=link))
    tensor, pricer = degrees.get("tensor_parallel", 1), Pricer(Sources(asked), "fp32")
    shard, plans = tensor_shard(GPT, tensor), Configurations.of([plan(gpus_per_node=4, **degrees)])
    backward, messages = np.zeros(len(shard.layers)), np.zeros(len(shard.layers))
    for _, direction, layer, seconds in calls(asked, shard, 2):
        backward[layer] += seconds * direction.startswith("backward")
    sizes = layer_parameters(shard)
    operation, placement = REDUCE_SCATTER if "sharding" in degrees else ALL_REDUCE, pricer.placement(plans)

    def sent_s(operation: str, elements: float, group: str) -> float:
        return float(operation_s(pricer.sources, operation, np.array([4.0 * elements]), placement.groups(group))[0])

    for layer in np.flatnonzero(sizes).tolist():
        messages[layer] = sent_s(operation, sizes[layer], GRADIENTS)
    waits = (2 * LAYERS + 1) * sent_s(ALL_REDUCE, 2 * SEQUENCE * HIDDEN, TENSOR)  # of blocks, and of the logits
    whole = backward.sum() + (waits if tensor > 1 else 0.0)
    end = communication_end_s(backward * whole / backward.sum(), messages)
    found = pricer.price(plans)
    assert found.seconds["all_reduce"][0] == pytest.approx(messages.sum(), rel=1e-9)
    assert found.exposed_s["all_reduce"][0] == pytest.approx(end - whole, rel=1e-9)
    assert 0 < end - whole < messages.sum()


@pytest.mark.usefixtures("unslowed")
def test_sharded_weights_wait_for_gathers_as_layer_by_layer(problem: Problem) -> None:
    slow = replace(problem, cluster=replace(problem.cluster, intra_node=problem.cluster.inter_node))
    whole, _ = terms(slow, gpus_per_node=4)
    taken, added = terms(slow, gpus_per_node=4, sharding=3)
    units = LAYERS + 2  # the blocks, and what stands before and behind them
    pricer = Pricer(Sources(slow), "fp32")
    groups = pricer.placement(Configurations.of([plan(gpus_per_node=4, sharding=3)])).groups(GRADIENTS)
    parameters = pricer.compute.ranks[0].program.parameters
    gather, scatter = (
        operation_s(pricer.sources, operation, np.array([4.0 * parameters / units]), groups)
        for operation in ("all_gather", "reduce_scatter")
    )
    each = [np.full((units, 1), whole[name] / units) for name in ("forward", "backward")]
    gather, scatter = (np.broadcast_to(one, (units, 1)) for one in (gather, scatter))
    ahead = units_forward_s(each[0], gather)[0] - whole["forward"]
    back = units_backward_s(each[1], gather, scatter)[0] - whole["backward"]
    assert added["sharded_weights"] == pytest.approx(ahead + back, rel=1e-9)
    assert taken["all_reduce"] == taken["updated_weights"] == 0
    assert taken["update"] == pytest.approx(whole["update"] / 4, rel=0.5)


def test_an_exchange_behind_the_pass_is_hidden_by_what_stages_above_still_compute(problem: Problem) -> None:
    """Without overlap: stage s begins behind its last backward, s (b + x) before the end of the pipeline."""
    plain = replace(problem, settings=replace(problem.settings, strategy="no-overlap"))
    _, backward, _, _ = stage_times(plain, 2, 2)
    taken, added = terms(plain, gpus_per_node=4, pipeline_parallel=2)
    one = Configurations.of([plan(gpus_per_node=4, pipeline_parallel=2)])
    pricer = Pricer(Sources(plain), "fp32")
    units, groups = pricer.compute.ranks[0].units, pricer.placement(one).groups(GRADIENTS)
    parameters = stage_units(units, 2) @ units.parameters + np.array([0, TOKENS * HIDDEN])  # the last has a copy
    x = float(sent(plain, SEND_RECEIVE, 4 * 2 * SEQUENCE * HIDDEN, NEIGHBOURS, stages=2)[0])
    exchange = [
        float(operation_s(pricer.sources, ALL_REDUCE, np.array([4.0 * count]), groups)[0]) for count in parameters
    ]
    assert taken["all_reduce"] == pytest.approx(max(exchange), rel=1e-9)
    assert added["all_reduce"] == pytest.approx(max(exchange[0], exchange[1] - backward[0] - x, 0.0), rel=1e-9)


def test_chunks_that_end_early_send_early(problem: Problem) -> None:
    """Interleaved, all chunks but the last have their gradients before."""
    shared = {"gpus_per_node": 4, "pipeline_parallel": 2, "accumulation_steps": 4}
    _, plain = terms(problem, **shared)
    taken, chunked = terms(problem, **shared, virtual_stages=2)
    assert 0 < chunked["all_reduce"] < taken["all_reduce"]
    assert chunked["bubble"] < plain["bubble"]


def test_memory_is_that_of_the_fullest_rank(problem: Problem) -> None:
    rows = [
        plan(gpus_per_node=4, tensor_parallel=2, sharding=2),
        plan(gpus_per_node=4, pipeline_parallel=4, recompute="full", accumulation_steps=8),
        plan(gpus_per_node=4, context_parallel=2, sub_batch=4),
    ]
    found = priced(problem, *rows)
    pricer = Pricer(Sources(problem), "fp32")
    expected = pricer.ledger.fullest(Configurations.of(rows))
    for one in fields(SplitMemoryBytes):
        assert np.array_equal(getattr(found.memory, one.name), getattr(expected, one.name)), one.name


@pytest.mark.usefixtures("unslowed")
def test_context_ranks_compute_their_positions_and_hide_what_they_pass_on(problem: Problem) -> None:
    """Products take half; a ring of slow links exposes what outlasts the blocks of attention."""
    whole, _ = terms(problem)
    taken, _ = terms(problem, gpus_per_node=2, context_parallel=2)
    of_products = sum(s for kind, way, _, s in calls(problem, GPT, 2) if kind == "gemm" and way == "forward")
    assert whole["forward"] - taken["forward"] >= of_products / 2 * (1 - 1e-9)
    fast = replace(problem, cluster=faster(problem.cluster))
    _, added = terms(fast, gpus_per_node=2, context_parallel=2)
    assert added["context_messages"] == 0
    assert problem.cluster.intra_node is not None
    link = replace(problem.cluster.intra_node, bytes_per_s=1e3)
    slow = replace(problem, cluster=replace(problem.cluster, intra_node=link))
    sent_s, exposed = terms(slow, gpus_per_node=2, context_parallel=2)
    keys = 4.0 * 2 * SEQUENCE / 2 * HIDDEN * 2
    each = keys / 1e3
    # Forward one message of keys and values, backward one and two of their gradients, of each layer.
    assert sent_s["context_messages"] == pytest.approx(LAYERS * 4 * each, rel=0.01)
    assert 0.99 * sent_s["context_messages"] < exposed["context_messages"] < sent_s["context_messages"]


def test_gradients_of_experts_are_summed_by_the_ranks_that_have_them(problem: Problem) -> None:
    """With x = D every expert is on one rank: what is left to sum is all other parameters."""
    text = f"moe:layers=2,hidden={HIDDEN},heads=4,sequence={SEQUENCE},vocabulary={TOKENS},experts=4,expert_ffn=512"
    moe = replace(problem, network=find_network(text), settings=replace(problem.settings, strategy="no-overlap"))
    taken, _ = terms(moe, gpus_per_node=4, expert_parallel=4)
    whole, _ = terms(moe, gpus_per_node=4, sharding=0, recompute="full")
    pricer = Pricer(Sources(moe), "fp32")
    groups = pricer.placement(Configurations.of([plan(gpus_per_node=4)])).groups(GRADIENTS)
    sizes = layer_parameters(moe.network).tolist()
    every = [n for n in sizes if n]
    others = [n for one, n in zip(moe.network.layers, sizes, strict=True) if n and one.kind != "experts"]
    for found, some in ((whole, every), (taken, others)):
        each = [operation_s(pricer.sources, ALL_REDUCE, np.array([4.0 * n]), groups)[0] for n in some]
        assert found["all_reduce"] == pytest.approx(sum(each), rel=1e-9)
    assert taken["expert_messages"] > 0


def test_tensor_groups_are_innermost(problem: Problem) -> None:
    one = Configurations.of([plan(nodes=2, gpus_per_node=4, tensor_parallel=4)])
    groups = Pricer(Sources(problem), "fp32").placement(one).groups(TENSOR)
    assert (groups.nodes.tolist(), groups.ranks.tolist()) == ([1], [4])
