"""Evaluating and describing configurations: against plain loops, against each other, and as relations."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from planner.catalog import find_accelerator
from planner.costs.collectives import all_reduce_s
from planner.costs.features import Work
from planner.costs.specified import specified_collective, specified_entry
from planner.costs.terms import evaluate
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster, Storage
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import PYTORCH, STRATEGIES, Framework, Strategy
from planner.domain.messages import Groups
from planner.domain.prediction import Predictions
from planner.domain.request import Problem, Scenario
from planner.errors import CoverageError, ParameterError
from planner.formats.cluster import parse_scenarios
from planner.sources.sources import Sources
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.steps.step_part import OneStage
from planner.workload.calls import lower
from planner.workload.program import gradient_slots

Make = Callable[..., Problem]
SYNTHETIC = Settings(input="synthetic")
REPLICA_WAIT = 0.1
MEGATRON = Framework("megatron-lm")
PLAIN = replace(PYTORCH, layout="unstated", update="layer")  # so that loops over layers are plain


def one(**changes: Any) -> Configurations:
    return Configurations.of([Configuration(**({"nodes": 2, "gpus_per_node": 4, "sub_batch": 8} | changes))])


def by_layer(problem: Problem, sub_batch: int, itemsize: int) -> tuple[float, list[float], float]:
    """Return forward, backward by layer and update times [s] in plain loops."""
    entries = {entry.kind: entry for entry in problem.calibrations[0].entries}
    forward, update, backward = 0.0, 0.0, [0.0] * len(problem.network.layers)
    for calls in lower(problem.network, np.array([sub_batch]), merged=False):
        entry = entries.get(calls.kind, entries["pointwise"])
        times = np.atleast_2d(evaluate(entry, {**calls.work, "itemsize": itemsize}))
        each = np.broadcast_to(times[0], calls.layer.shape)
        for layer, count, seconds in zip(calls.layer, calls.count, each, strict=True):
            if calls.direction == "forward":
                forward += count * seconds
            elif calls.direction == "update":
                update += count * seconds
            else:
                backward[layer] += count * seconds
    return forward, backward, update


def added_s(problem: Problem, gradient_bytes: int) -> list[float]:
    """Return what adding each slot's gradient to the one that is there takes: read, read, write."""
    pointwise = next(entry for entry in problem.calibrations[0].entries if entry.kind == "pointwise")
    calls, per_byte = pointwise.coefficients.values()
    return [calls + per_byte * 3 * gradient_bytes * size for size in gradient_slots(problem.network).elements]


@pytest.mark.parametrize("case", [("fp32", MEGATRON, 4, 4), ("fp16", MEGATRON, 2, 2), ("fp16", PLAIN, 2, 4)], ids=str)
@pytest.mark.parametrize("steps", [1, 3])
def test_wait_free_step_equals_plain_loops(
    make_problem: Make, communication_end_s: Callable[..., float], case: tuple[str, Framework, int, int], steps: int
) -> None:
    precision, framework, itemsize, gradient_bytes = case
    problem = make_problem(settings=replace(SYNTHETIC, framework=framework))
    configurations = one(sub_batch=5, accumulation_steps=steps, precision=precision)
    forward, backward, update = by_layer(problem, 5, itemsize)
    slots = gradient_slots(problem.network)
    sent = all_reduce_s(
        specified_collective(problem.cluster),
        slots.elements.astype(np.float64) * gradient_bytes,
        Groups(np.array([2]), np.array([4]), np.array([4.0])),
    )[0]
    communication, first, later = np.zeros(len(backward)), np.array(backward), np.array(backward)
    communication[slots.layer] = sent
    later[slots.layer] += added_s(problem, gradient_bytes)
    before = (first.sum() + (steps - 2) * later.sum()) if steps > 1 else 0.0
    last = communication_end_s(later if steps > 1 else first, communication)
    expected = steps * forward + before + last + update
    found = Evaluator(problem).evaluate(configurations)
    assert found.iteration_s[0] == pytest.approx(expected, rel=1e-9)
    assert found.mini_batch_mean[0] == 8 * 5 * steps
    assert found.epoch_s[0] == pytest.approx(expected * 10_000 / (40 * steps), rel=1e-9)
    no_overlap = Evaluator(replace(problem, settings=replace(problem.settings, strategy="no-overlap")))
    plain = steps * forward + first.sum() + (steps - 1) * later.sum() + sent.sum() + update
    assert no_overlap.evaluate(configurations).iteration_s[0] == pytest.approx(plain, rel=1e-9)


def step_end_s(step: OneStage, strategy: Strategy, begun_s: float) -> float:
    """Return when a step ends that has begun [s]: one thing after another on the device, and on the network."""
    passes, now_s, computed_s = step.passes, begun_s, 0.0
    steps = int(step.plans.accumulation_steps[0])
    first_s, later_s = (float(one) for one in (passes.backward.first_s[0], passes.last_backward_s[0, 1]))
    for backward_s in [first_s, *[later_s] * (steps - 1)]:
        now_s += float(passes.copy_s[0] + passes.forward_s[0]) + backward_s
        computed_s += float(passes.forward_s[0]) + backward_s
    ((exchange, _),), last = step.exchanges(), int(steps > 1)
    ready = now_s - step.ready[1][last] + step.ready[0][last]
    alone = step.ready[0][last]
    of = np.array([0])
    lowest = exchange.fusion(alone[None], of).slots(0) if strategy.is_timed else exchange.slot
    together, sent_s = exchange.together_s(of)[0], begun_s
    for low, high in reversed(list(pairwise([*lowest.tolist(), alone.size]))):
        ready_s = ready[low]
        if strategy.cycle_s:
            ready_s += np.ceil(alone[low] / strategy.cycle_s) * strategy.cycle_s - alone[low]
        sent_s = max(sent_s, ready_s if strategy.overlap else now_s) + together[low, high - 1]
    update_s = float(passes.update_s[0])
    share = float(step.costs.overheads.wait_share(step.plans.gpus_per_node, step.plans.nodes)[0])
    return max(now_s, sent_s) + update_s + share * (computed_s + update_s)


@pytest.mark.parametrize("bytes_per_s", [1e10, 2e8, 1e8])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_period_is_that_of_many_steps_event_by_event(
    make_problem: Make, strategy: str, steps: int, bytes_per_s: float
) -> None:
    """The next input is loaded once a step has begun, or has ended; in later epochs half of it is in a cache."""
    problem = make_problem(settings=Settings(strategy=strategy))
    (calibration,) = problem.calibrations
    *kernels, overheads = calibration.entries
    waits = replace(overheads, coefficients={**overheads.coefficients, "wait_inside": REPLICA_WAIT})
    problem = replace(
        problem,
        cluster=replace(problem.cluster, storage=Storage(bytes_per_s, shared=True, cache_bytes=5e7)),
        calibrations=(replace(calibration, entries=(*kernels, waits)),),
    )
    plans, what = one(accumulation_steps=steps), STRATEGIES[strategy]
    pricer = Pricer(Sources(problem), "fp32")
    step, priced = pricer.one_stage(plans), pricer.price(plans)
    first_s = 8 * 8 * steps * 1e4 / bytes_per_s
    for load_s, period_s in ((first_s, priced.first_period_s), (first_s / 2, priced.period_s)):
        loaded_s, ends_s = load_s, [0.0]
        for _ in range(8):
            begun_s = max(loaded_s, ends_s[-1])
            ends_s.append(step_end_s(step, what, begun_s))
            loaded_s = max(loaded_s, begun_s if what.prefetch else ends_s[-1]) + load_s
        assert period_s[0] == pytest.approx((ends_s[-1] - ends_s[-5]) / 4, rel=1e-9)


def test_input_of_a_shared_server_bounds_the_step(make_problem: Make) -> None:
    """4 GPUs x 32 samples x 10 kB on each of 2 nodes over 1 GB/s: 2.56 ms; half of 100 MB is cached later."""
    problem = make_problem(scenario=Scenario("", dict.fromkeys(("forward", "backward", "update", "all_reduce"), 1e-9)))
    found = Evaluator(problem).evaluate(one(sub_batch=32))
    steps = 10_000 / (8 * 32)
    assert found.first_epoch_s[0] == pytest.approx(steps * 2.56e-3, rel=1e-6)
    assert found.epoch_s[0] == pytest.approx(steps * 1.28e-3, rel=1e-6)
    described = Evaluator(problem).describe(one(sub_batch=32))[0]
    assert described.bottleneck == "load_input"


@pytest.mark.parametrize("settings", [Settings(), SYNTHETIC, Settings(strategy="no-overlap")])
def test_describe_equals_evaluate(make_problem: Make, every_configuration: Configurations, settings: Settings) -> None:
    evaluator = Evaluator(make_problem(settings=settings))
    many = evaluator.evaluate(every_configuration)
    described = evaluator.describe(every_configuration.take(slice(None, None, 5)))
    for i, prediction in zip(range(0, every_configuration.size, 5), described, strict=True):
        assert prediction.configuration == every_configuration.one(i)
        for name in ("iteration_s", "samples_per_s", "epoch_s", "first_epoch_s"):
            assert getattr(prediction, name).value == pytest.approx(getattr(many, name)[i], rel=1e-12)
        update_s = math.nan if prediction.update_s is None else prediction.update_s.value
        assert update_s == pytest.approx(many.update_s[i], rel=1e-12, nan_ok=True)
        assert prediction.mini_batch.mean == pytest.approx(many.mini_batch_mean[i], rel=1e-12)
        assert prediction.staleness.mean == pytest.approx(many.staleness_mean[i], rel=1e-12)
        assert prediction.memory_bytes["total"] == many.memory_bytes[i]


def test_plans_that_share_their_sub_batches_share_the_work(
    make_problem: Make, every_configuration: Configurations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Describing lowers the network once a precision and mode, whatever the number of plans."""
    evaluator = Evaluator(make_problem())
    evaluator.evaluate(every_configuration)
    lowered = []

    def counted(*arguments: Any, **options: Any) -> Any:
        lowered.append(arguments)
        return lower(*arguments, **options)

    monkeypatch.setattr("planner.steps.compute.lower", counted)
    evaluator.describe(every_configuration)
    assert len(lowered) == 2 * 2


def test_exposed_terms_add_up_to_their_period(make_problem: Make, every_configuration: Configurations) -> None:
    for prediction in Evaluator(make_problem()).describe(every_configuration):
        periods = {"step": prediction.iteration_s, "gpu": prediction.iteration_s, "update": prediction.update_s}
        for thread in {term.thread for term in prediction.terms}:
            own = [term for term in prediction.terms if term.thread == thread]
            period = periods[thread]
            assert period is not None
            assert sum(term.exposed_seconds for term in own) == pytest.approx(period.value, rel=1e-9)
            assert sum(term.share for term in own) == pytest.approx(1)
            assert all(term.exposed_seconds <= term.seconds * (1 + 1e-9) for term in own)


def test_one_at_a_time_equals_all_at_once(
    make_problem: Make, every_configuration: Configurations, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Evaluator(make_problem()).evaluate(every_configuration)
    single = Evaluator(make_problem())
    for i in range(0, every_configuration.size, 5):
        alone = single.evaluate(every_configuration.take(slice(i, i + 1)))
        for field in fields(Predictions):
            np.testing.assert_allclose(getattr(alone, field.name)[0], getattr(together, field.name)[i], rtol=1e-12)
    monkeypatch.setattr("planner.steps.tables._LARGEST_DENSE_TABLE", 3)
    without_dense_tables = Evaluator(make_problem()).evaluate(every_configuration)
    for field in fields(Predictions):
        np.testing.assert_allclose(getattr(without_dense_tables, field.name), getattr(together, field.name), rtol=1e-12)


def test_one_gpu_sends_nothing(make_problem: Make) -> None:
    for mode in ("sync", "async"):
        prediction = Evaluator(make_problem()).describe(one(nodes=1, gpus_per_node=1, mode=mode))[0]
        assert [term.seconds for term in prediction.terms if term.name == "all_reduce"] == [0.0]


def test_no_overlap_never_beats_wait_free(make_problem: Make, every_configuration: Configurations) -> None:
    wait_free = Evaluator(make_problem()).evaluate(every_configuration).iteration_s
    no_overlap = (
        Evaluator(make_problem(settings=Settings(strategy="no-overlap"))).evaluate(every_configuration).iteration_s
    )
    assert (no_overlap >= wait_free * (1 - 1e-12)).all()
    assert (no_overlap > wait_free * 1.01).any()


@pytest.mark.parametrize(
    ("link", "field", "better"),
    [("inter_node", "bytes_per_s", 2e9), ("inter_node", "latency_s", 1e-6), ("intra_node", "bytes_per_s", 1e11),
     ("host", "bytes_per_s", 1e11), ("host", "latency_s", 0.0)],
)  # fmt: skip
def test_a_better_link_never_costs(
    make_problem: Make, every_configuration: Configurations, link: str, field: str, better: float
) -> None:
    before = Evaluator(make_problem()).evaluate(every_configuration)
    scenario = Scenario("x", {}, {(link, field): better})
    after = Evaluator(make_problem(scenario=scenario)).evaluate(every_configuration)
    assert (after.iteration_s <= before.iteration_s * (1 + 1e-12)).all()
    changed = every_configuration.is_async & (after.update_s < before.update_s)
    assert (after.iteration_s < before.iteration_s).any() or changed.any()


def test_larger_buffers_never_take_less(make_problem: Make) -> None:
    """More samples to load and copy, on the same number of devices."""
    sizes = [Configuration(2, 4, n, mode=mode) for mode in ("sync", "async") for n in (1, 2, 4, 8, 16, 32, 64)]
    times = Evaluator(make_problem()).evaluate(Configurations.of(sizes)).iteration_s.reshape(2, -1)
    assert (np.diff(times, axis=1) >= 0).all()


@pytest.mark.parametrize("term", ["forward", "backward", "all_reduce", "update", "host_to_device", "load_input"])
def test_a_multiplier_scales_its_term_alone(make_problem: Make, cluster: Cluster, term: str) -> None:
    """Where storage is fast: else an asynchronous thread's loading is what the others leave of the node's period."""
    fast = replace(cluster, storage=Storage(1e12))
    for mode in ("sync", "async"):
        plain = Evaluator(make_problem(cluster=fast)).describe(one(mode=mode))[0]
        half = Evaluator(make_problem(cluster=fast, scenario=Scenario("x", {term: 0.5}))).describe(one(mode=mode))[0]
        for a, b in zip(plain.terms, half.terms, strict=True):
            if b.name != "sum_gradient":  # its number of buffers follows from the other periods
                assert b.seconds == pytest.approx(a.seconds * (0.5 if a.name == term else 1.0), rel=1e-9)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_fp16_scenario_halves_computation_of_fp32_plans_alone(make_problem: Make, cluster: Cluster, mode: str) -> None:
    fp16 = parse_scenarios("fp16", cluster, find_accelerator)[0]
    for precision, factor in (("fp32", 0.5), ("fp16", 1.0)):
        plan = one(mode=mode, precision=precision, nodes=1, gpus_per_node=1)
        plain, halved = (
            {term.name: term.seconds for term in Evaluator(problem).describe(plan)[0].terms}
            for problem in (make_problem(settings=SYNTHETIC), make_problem(settings=SYNTHETIC, scenario=fp16))
        )
        for name in ("forward", "backward"):
            assert halved[name] == pytest.approx(factor * plain[name], rel=1e-12)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("nodes", "factor"), [(1, 1.0), (2, 1 / 12.5)])
def test_edr_speeds_up_only_what_passes_between_nodes(
    make_problem: Make, cluster: Cluster, mode: str, nodes: int, factor: float
) -> None:
    """The link of the cluster has 1 GB/s. A multiplier that is typed acts on one node too."""
    edr, typed = parse_scenarios("edr,all_reduce*=0.25", cluster, find_accelerator)
    scenarios = (Scenario(), edr, typed)
    plain, faster, quarter = (
        {t.name: t.seconds for t in Evaluator(make_problem(scenario=s)).describe(one(nodes=nodes, mode=mode))[0].terms}[
            "all_reduce"
        ]
        for s in scenarios
    )
    assert (plain > 0) == (mode == "sync" or nodes > 1)
    assert faster == pytest.approx(factor * plain, rel=1e-12)
    assert quarter == pytest.approx(plain / 4, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_accumulation_adds_to_gradients_once_a_further_pass(make_problem: Make, steps: int) -> None:
    problem = make_problem(settings=SYNTHETIC)
    alone = one(nodes=1, gpus_per_node=1, accumulation_steps=steps)
    found = {term.name: term.seconds for term in Evaluator(problem).describe(alone)[0].terms}
    expected = steps * sum(by_layer(problem, 8, 4)[1]) + (steps - 1) * sum(added_s(problem, 4))
    assert found["backward"] == pytest.approx(expected, rel=1e-9)


def test_accumulation_falls_back_on_updates_and_is_specified_without(
    make_problem: Make, calibration: Calibration
) -> None:
    """Kernels of every kind by name, without one of sums: the small network has none of its own."""
    pointwise = next(entry for entry in calibration.entries if entry.kind == "pointwise")
    others = tuple(entry for entry in calibration.entries if entry.kind != "pointwise")
    kinds = {calls.kind for calls in lower(make_problem().network, np.array([1]))} - {"convolution", "gemm"}
    assert "add" not in kinds
    plans = [one(nodes=1, gpus_per_node=1, accumulation_steps=steps) for steps in (1, 2)]

    def problem(optimizer: str, kinds: set[str]) -> Problem:
        named = tuple(replace(pointwise, kind=kind) for kind in sorted(kinds))
        return make_problem(
            calibrations=(replace(calibration, entries=(*others, *named)),),
            settings=Settings(input="synthetic", optimizer=optimizer),
            explicit_calibration=True,
        )

    with_updates = Evaluator(problem("sgd", kinds))
    seconds = [float(with_updates.evaluate(plan).iteration_s[0]) for plan in plans]
    plain = Evaluator(make_problem(settings=Settings(input="synthetic", optimizer="sgd"))).evaluate(plans[1])
    assert seconds[1] == pytest.approx(plain.iteration_s[0], rel=1e-12)
    without = Evaluator(problem("none", kinds - {"update"}))
    assert without.evaluate(plans[0]).iteration_s[0] < seconds[0]
    sums = specified_entry(make_problem().cluster.node.accelerator, "add", "backward_data", "fp32")
    assert sums is not None
    elements = gradient_slots(make_problem().network).elements
    moved: Work = {"elements": elements, "traffic": 0 * elements, "fixed_bytes": 12 * elements, "itemsize": 4.0}
    (described,) = without.describe(plans[1])
    backward_s = {term.name: term.seconds for term in without.describe(plans[0])[0].terms}["backward"]
    (backward,) = [term for term in described.terms if term.name == "backward"]
    assert backward.seconds == pytest.approx(2 * backward_s + evaluate(sums, moved).sum(), rel=1e-9)
    assert backward.origin == "measured+specified"


def test_a_link_scales_measured_coefficients(make_problem: Make, cluster: Cluster, calibration: Calibration) -> None:
    """Bandwidth acts on the coefficients per byte of its link, latency on those per message."""
    names = ("messages_inside", "bytes_inside", "messages_between", "bytes_between")
    values = dict(zip(names, (1e-5, 1e-9, 3e-5, 2e-9), strict=True))
    entry = Entry(
        "collectives",
        "all_reduce",
        "",
        "",
        "nccl",
        "collective.alpha_beta",
        {"algorithms": "ring", "beta_ratio": 2.0},
        values,
    )
    measured = Calibration("measured-links", "toy", (entry,), cluster=cluster.name)
    scenario = Scenario("x", {}, {("inter_node", "bytes_per_s"): 4e9, ("inter_node", "latency_s"): 1e-6})
    problem = make_problem(calibrations=(calibration, measured), scenario=scenario)
    found = Evaluator(problem).sources.device_all_reduce
    assert found.calibration == "measured-links"
    assert found.entry.coefficients == pytest.approx(values | {"messages_between": 6e-6, "bytes_between": 5e-10})
    assert found.entry.settings["beta_ratio"] == pytest.approx(0.5)


def test_asynchronous_input_is_shared_by_the_threads_of_a_node(make_problem: Make) -> None:
    """A node reads 4 x 32 x 10 kB from its half of 1 GB/s; the GPU thread cannot be faster, the first epoch slower."""
    problem = make_problem(scenario=Scenario("", dict.fromkeys(("forward", "backward", "update_gradient"), 1e-9)))
    found = Evaluator(problem).evaluate(one(sub_batch=32, mode="async"))
    assert found.iteration_s[0] == pytest.approx(1.28e-3, rel=1e-2)
    assert found.first_epoch_s[0] == pytest.approx(2 * found.epoch_s[0], rel=1e-2)


def test_without_a_data_set_there_is_no_epoch(make_problem: Make) -> None:
    evaluator = Evaluator(make_problem(dataset=None))
    found = evaluator.describe(one())[0]
    assert found.epoch_s is None
    assert found.first_epoch_s is None
    assert np.isnan(evaluator.evaluate(one()).epoch_s).all()
    assert {"no_dataset", "input_not_modelled"} <= {warning.code for warning in found.warnings}


def test_window_gives_a_probability(make_problem: Make) -> None:
    def window(mode: str) -> tuple[float, float]:
        return (64, 64) if mode == "sync" else (0, 1e9)

    evaluator = Evaluator(make_problem())
    assert evaluator.describe(one(), window)[0].mini_batch.probability_in_window == 1.0
    assert evaluator.describe(one(sub_batch=9), window)[0].mini_batch.probability_in_window == 0.0
    assert evaluator.describe(one(mode="async"), window)[0].mini_batch.probability_in_window == pytest.approx(1)
    assert evaluator.describe(one())[0].mini_batch.probability_in_window is None


def test_memory_beyond_the_device_is_a_warning_not_a_refusal(make_problem: Make) -> None:
    fits, too_large = Evaluator(make_problem()).describe(
        Configurations.of([Configuration(1, 1, 1), Configuration(1, 1, 100_000)])
    )
    assert "out_of_memory" not in {warning.code for warning in fits.warnings}
    assert "out_of_memory" in {warning.code for warning in too_large.warnings}
    assert too_large.memory_bytes["total"] > too_large.memory_bytes["capacity"] == 2**32


def test_plans_larger_than_the_cluster_are_refused(make_problem: Make, cluster: Cluster) -> None:
    with pytest.raises(ParameterError, match=r"^gpus_per_node must be"):
        Evaluator(make_problem()).evaluate(one(gpus_per_node=5))
    with pytest.raises(ParameterError, match=r"^nodes must be"):
        Evaluator(make_problem()).evaluate(one(nodes=9))
    single = replace(cluster, nodes=1, inter_node=None)
    with pytest.raises(CoverageError, match=r"links\.inter_node"):
        Evaluator(make_problem(cluster=single)).evaluate(one())


def test_an_empty_set_is_priced(make_problem: Make, every_configuration: Configurations) -> None:
    assert Evaluator(make_problem()).evaluate(every_configuration.take(slice(0, 0))).iteration_s.size == 0


def test_an_unknown_kind_of_link_is_said(make_problem: Make, cluster: Cluster) -> None:
    assert cluster.inter_node is not None
    strange = replace(cluster, inter_node=replace(cluster.inter_node, kind="string"))
    codes = {w.code: w.subject for w in Evaluator(make_problem(cluster=strange)).describe(one())[0].warnings}
    assert codes["unknown_link_kind"] == "links.inter_node"


def test_calls_outside_the_fit_are_flagged(make_problem: Make, calibration: Calibration) -> None:
    narrow = tuple(
        replace(e, ranges={"flop": (0.0, 1.0)}) if e.kind == "convolution" else e for e in calibration.entries
    )
    problem = make_problem(calibrations=(replace(calibration, entries=narrow),))
    prediction = Evaluator(problem).describe(one())[0]
    assert {term.name for term in prediction.terms if term.extrapolated} == {"forward", "backward"}
    assert [w.subject for w in prediction.warnings if w.code == "extrapolated"] == ["forward, backward"]


@pytest.mark.parametrize("exponent", [1.0, 2.0, 8.0])
def test_framework_overheads_compose(make_problem: Make, calibration: Calibration, exponent: float) -> None:
    values = {"kernel_scale": 1.5, "host_s_per_call": 1e-5, "host_s_per_layer": 2e-5, "exponent": exponent}
    overheads = Entry("overheads", "generic", "", "", "", "overheads", {}, values)
    entries = (*(e for e in calibration.entries if e.scope == "kernels"), overheads)
    settings = replace(SYNTHETIC, framework=PLAIN)
    problem = make_problem(calibrations=(replace(calibration, entries=entries),), settings=settings)
    found = Evaluator(problem).describe(one(nodes=1, gpus_per_node=1, sub_batch=5))[0]
    forward, backward, update = by_layer(problem, 5, 4)
    calls = dict.fromkeys(gpu := {"forward": forward, "backward": sum(backward), "update": update}, 0)
    for group in lower(problem.network, np.array([5]), merged=False):
        calls[group.direction if group.direction in gpu else "backward"] += int(group.count.sum())
    layers = {"forward": 8, "backward": 8, "update": 3}
    total, host = 1.5 * sum(gpu.values()), 1e-5 * sum(calls.values()) + 2e-5 * sum(layers.values())
    whole = (total**exponent + host**exponent) ** (1 / exponent)
    for term in (one for one in found.terms if one.name in gpu):
        assert term.seconds == pytest.approx(whole * 1.5 * gpu[term.name] / total, rel=1e-9)
    assert found.iteration_s.value == pytest.approx(whole, rel=1e-9)
    assert found.iteration_s.interval_basis == "assumed"
