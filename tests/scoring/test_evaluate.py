"""Rows against the prediction that each must show, and every reason why a run is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.costs.collectives import all_reduce_s
from planner.costs.measured_calls import DOUBLINGS_BEYOND, MEASURED_S
from planner.costs.specified import specified_entry
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster, Node
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.messages import Groups
from planner.domain.network import LOOKED_UP
from planner.domain.prediction import Predictions
from planner.domain.request import Problem
from planner.domain.runs import MEMORY_READINGS, RefusedRow, Run
from planner.errors import PlannerError, Refusal
from planner.scoring import evaluate
from planner.scoring.evaluate import Answer, answers_of, refused, sort_runs, unread, validation_of
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.workload.calls import layer_calls


def problem_of(cluster: str = "dgx1-v100", network: str = "resnet50", **settings: Any) -> Problem:
    found, where = catalog.find_network(network), catalog.find_cluster(cluster)
    dataset = catalog.find_dataset(found.dataset) if found.dataset else None
    chosen = Settings(**{"input": "synthetic"} | settings)
    return Problem(found, dataset, where, catalog.calibrations_for(where), settings=chosen)


PROBLEM = problem_of()
SPRINT = problem_of("tsubame-kfc", "sprint-15", input="storage")


WHY, BAD = Refusal("parameter", "why"), Refusal("row", "bad cell")


def run_of(**values: Any) -> Run:
    given: dict[str, Any] = {
        "id": "a", "network": "resnet50", "cluster": "dgx1-v100", "metric": "iteration_s", "value": 1.0,
        "sub_batch": 32, "gpus_per_node": 4, "source": "a table", "group": "g", "line": 7,
    }  # fmt: skip
    return Run(**given | values)


def sprint_of(metric: str) -> Run:
    return run_of(network="sprint-15", cluster="tsubame-kfc", mode="async", nodes=8, gpus_per_node=8, sub_batch=8,
                  metric=metric)  # fmt: skip


@pytest.mark.parametrize("metric", ["iteration_s", "samples_per_s", "epoch_s"])
def test_figures_of_a_synchronous_run_are_those_of_its_prediction(metric: str) -> None:
    (one,) = answers_of(PROBLEM, [run_of(metric=metric, accumulation_steps=2)])
    wanted = Configurations.of([Configuration(1, 4, 32, 2)])
    full = getattr(Evaluator(PROBLEM).describe(wanted)[0], metric)
    assert one.row.predicted == pytest.approx(getattr(Evaluator(PROBLEM).evaluate(wanted), metric)[0], rel=1e-12)
    assert (one.row.low, one.row.high) == (full.low, full.high)
    assert sum(one.shares.values()) == pytest.approx(1)
    assert one.row.bottleneck in one.shares
    assert (one.row.status_predicted, one.row.status_measured) == ("ok", "ok")


@pytest.mark.parametrize(
    ("metric", "terms"),
    [
        ("iteration_s", {"forward", "backward"}),
        ("epoch_s", {"forward", "backward"}),
        ("update_s", {"sum_gradient", "all_reduce"}),
        ("mini_batch_mean", set()),
        ("staleness_mean", set()),
    ],
)
def test_asynchronous_metrics_have_the_terms_of_their_thread(metric: str, terms: set[str]) -> None:
    (one,) = answers_of(SPRINT, [sprint_of(metric)])
    many = Evaluator(SPRINT).evaluate(Configurations.of([Configuration(8, 8, 8, mode="async")]))
    assert one.row.predicted == pytest.approx(getattr(many, metric)[0], rel=1e-9)
    assert terms <= set(one.shares) if terms else not one.shares


def test_gpus_of_a_node_that_are_not_given_are_all() -> None:
    all_of_them, eight = answers_of(
        PROBLEM, [run_of(gpus_per_node=None), run_of(gpus_per_node=PROBLEM.cluster.node.gpus)]
    )
    assert all_of_them.row.predicted == eight.row.predicted


def test_rows_keep_their_order_and_equal_plans_their_prediction() -> None:
    runs = [run_of(id=f"{at}", sub_batch=8 + at % 3, precision=("fp16", "fp32")[at % 2], line=at) for at in range(12)]
    found = [one.row for one in answers_of(PROBLEM, runs)]
    assert [row.line for row in found] == list(range(12))
    assert [row.predicted for row in found[:6]] == [row.predicted for row in found[6:]]
    assert found[0].predicted == answers_of(PROBLEM, runs[:1])[0].row.predicted
    assert len({row.predicted for row in found}) == 6


def placed(*counts: int) -> Run:
    even = {"nodes": len(counts), "gpus_per_node": max(counts), "metric": "iteration_s", "sub_batch": 8}
    return run_of(**even, placement=counts if len(set(counts)) > 1 else ())


def seconds_of(*runs: Run, problem: Problem = PROBLEM) -> list[float]:
    rows = [one.row for one in answers_of(problem, runs)]
    return [row.predicted for row in rows if row.predicted is not None]


def test_unequal_nodes_take_no_less_than_the_fewest_on_each_and_no_more_than_the_most() -> None:
    """With one network card a node: of several, a node with few GPUs uses few."""
    cluster = catalog.find_cluster("ec2-g4dn-12xlarge")
    problem = replace(PROBLEM, cluster=cluster, calibrations=catalog.calibrations_for(cluster))
    for counts in ((1, 2), (1, 3), (1, 1, 1, 2), (2, 4, 4), (1, 4, 2)):
        fewest, most = (placed(*(of(counts) for _ in counts)) for of in (min, max))
        low, between, again, high = seconds_of(fewest, placed(*counts), placed(*counts[::-1]), most, problem=problem)
        assert low < between == again < high, counts


def test_unequal_nodes_send_around_one_ring_of_all_gpus() -> None:
    """As nodes like the fullest, but for messages, which are those of as many nodes with the mean of their ranks."""
    like = Evaluator(PROBLEM)
    plans = Configurations.of([Configuration(nodes=4, gpus_per_node=2, sub_batch=8, precision="fp32", mode="sync")])
    like.evaluate(plans)
    uneven = Evaluator(PROBLEM, like, mean_ranks=1.25)
    assert seconds_of(placed(1, 1, 1, 2)) == pytest.approx(uneven.evaluate(plans).iteration_s.tolist(), rel=1e-12)
    pricer = uneven.pricers["fp32", "sync"]
    assert isinstance(pricer, Pricer)
    ((exchange, _),) = pricer.one_stage(plans).exchanges()
    groups = Groups(np.array([4]), np.array([1.25]), np.array([1.0]))
    assert int(groups.ranks[0]) == 5
    wanted = all_reduce_s(pricer.gradient_source.entry, exchange.bytes_of(exchange.slot), groups)
    np.testing.assert_allclose(exchange.message_s, wanted, rtol=1e-12)


def test_memory_is_called_and_the_time_is_as_if_it_sufficed() -> None:
    fits, full = answers_of(
        PROBLEM,
        [run_of(sub_batch=32), run_of(sub_batch=4096, value=None, status="out_of_memory")],
    )
    assert (fits.row.status_predicted, full.row.status_predicted) == ("ok", "out_of_memory")
    assert full.row.status_measured == "out_of_memory"
    assert fits.row.predicted is not None
    assert full.row.predicted is not None
    assert full.row.predicted > 50 * fits.row.predicted


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"context_parallel": 4}, "context_parallel must be 1"),
        ({"recompute": "selective"}, "recompute must be none or full"),
        ({"sharding": 3, "pipeline_parallel": 2}, "sharding must be 0, 1 or 2 beside a pipeline"),
        (
            {"placement": (1, 2), "nodes": 2, "gpus_per_node": 2, "metric": "samples_per_s"},
            r"placement must be as many GPUs on every node, .* got '1\+2'",
        ),
        ({"gpus_per_node": 9}, "gpus_per_node must be at most the 8 of dgx1-v100, got 9"),
        ({"nodes": 10**6}, "nodes must be at most"),
        ({"precision": "fp8"}, "precision must be one that can be priced .*, got 'fp8'"),
        ({"gpus_per_node": None, "mini_batch": 12, "sub_batch": None}, "mini_batch must be a multiple of"),
    ],
)
def test_a_refused_row_says_why_and_costs_no_other(values: dict[str, Any], reason: str) -> None:
    before, wrong, after = answers_of(PROBLEM, [run_of(), run_of(**values), run_of(gpus_per_node=2)])
    assert pytest.approx(before.row.predicted) == answers_of(PROBLEM, [run_of()])[0].row.predicted
    assert after.row.predicted is not None
    assert (wrong.row.predicted, wrong.row.status_predicted, wrong.row.in_sample) == (None, None, False)
    assert wrong.row.refused is not None
    with pytest.raises(PlannerError, match=f"^{reason}"):
        raise PlannerError(wrong.row.refused)


def test_an_epoch_and_samples_from_storage_need_a_data_set() -> None:
    bare = replace(PROBLEM, dataset=None)
    epoch, stored, rate = answers_of(
        bare,
        [run_of(metric="epoch_s", input="synthetic"), run_of(input="storage"), run_of(metric="samples_per_s")],
    )
    assert "dataset must be given for an epoch" in str(epoch.row.refused)
    assert "dataset must be given where input is storage" in str(stored.row.refused)
    assert rate.row.predicted is not None


def test_a_run_that_a_reconstruction_was_made_from_is_in_sample() -> None:
    assert answers_of(SPRINT, [sprint_of("epoch_s")])[0].row.in_sample
    assert not answers_of(PROBLEM, [run_of()])[0].row.in_sample


@pytest.mark.parametrize("label", ["a table", "g", "resnet50", "dgx1-v100"])
def test_what_a_serving_calibration_has_seen_is_in_sample(label: str) -> None:
    def seeing(calibration: Calibration) -> Calibration:
        return replace(calibration, seen=(*calibration.seen, label))

    serving = replace(PROBLEM, calibrations=tuple(seeing(one) for one in PROBLEM.calibrations))
    idle = seeing(replace(PROBLEM.calibrations[0], name="idle", entries=()))
    beside = replace(PROBLEM, calibrations=(*PROBLEM.calibrations, idle))
    assert answers_of(serving, [run_of()])[0].row.in_sample
    assert not answers_of(beside, [run_of()])[0].row.in_sample


def looked_up_on(gpu: str, network: str, **fields: Any) -> Calibration:
    """Return a calibration of a GPU that timed the forward products of a network as they are, at 1 and 64 samples."""
    calls = layer_calls(catalog.find_network(network), optimizer="sgd")["gemm", "forward"]
    timed = {call.name: (1.0, 1e-4, 64.0, 2e-4) for call in calls}
    table = Entry(
        "kernels", "gemm", "forward", "fp32", "own layers", LOOKED_UP, timed, {MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0},
        held_out_error=0.02,
    )  # fmt: skip
    return Calibration("theirs", gpu, (table,), node=Node(1, catalog.find_accelerator(gpu)), **fields)


@pytest.mark.parametrize(("gpu", "serves"), [("gtx-1080ti", True), ("m40", False)])
def test_a_run_that_the_calibration_of_a_same_die_gpu_has_seen_is_in_sample(gpu: str, *, serves: bool) -> None:
    node = Node(1, catalog.find_accelerator("titan-xp"))
    where, network = Cluster("one", 1, node), catalog.find_network("mlp")
    ways = ("forward", "backward_data", "backward_weight")
    sheet = [specified_entry(node.accelerator, "gemm", way, "fp32") for way in ways]
    own = Calibration("own", "titan-xp", tuple(replace(fit, held_out_error=1.0) for fit in sheet if fit))
    settings = Settings(optimizer="sgd", input="synthetic")
    for seen, is_seen in (((), False), (("mlp",), True)):
        theirs = looked_up_on(gpu, "mlp", seen=seen)
        problem = Problem(network, None, where, (own, theirs), settings=settings)
        run = run_of(network="mlp", cluster="one", gpus_per_node=1)
        (one,) = Evaluator(problem).describe(Configurations.of([Configuration(1, 1, 32)]))
        assert (one.kernel_shares["sibling"] > 0.1) == serves
        assert answers_of(problem, [run])[0].row.in_sample == (is_seen and serves)


def test_a_run_that_a_calibration_of_any_name_has_seen_is_in_sample() -> None:
    first, *others = PROBLEM.calibrations
    listed = replace(PROBLEM, calibrations=(replace(first, name="first, second", seen=("resnet50",)), *others))
    assert answers_of(listed, [run_of()])[0].row.in_sample


def test_all_answers_add_up() -> None:
    runs = [run_of(id=f"{n}", gpus_per_node=n, metric="samples_per_s", value=300.0 * n) for n in (1, 2, 4, 8)]
    every = [*answers_of(PROBLEM, runs), refused(run_of(), WHY), unread(RefusedRow(3, "x", BAD))]
    found = validation_of(every)
    assert (found.summary.n, found.ranking.groups, len(found.rows)) == (4, 1, 6)
    assert found.ranking.spearman == 1.0
    assert [row.refused for row in found.rows[4:]] == [WHY, BAD]
    assert found.memory.true_ok == 4


def mixed_runs(count: int) -> list[Run]:
    """Return runs of many sub-batches in no order, some of which no plan fits."""
    return [
        run_of(id=f"{at}", sub_batch=1 + at * 37 % 64, gpus_per_node=1 + at % 9, precision=("fp32", "fp8")[at % 7 == 3])
        for at in range(count)
    ]


def test_answers_do_not_depend_on_how_many_plans_are_priced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = mixed_runs(60)
    whole, plans = answers_of(PROBLEM, runs), sort_runs(PROBLEM, runs)
    monkeypatch.setattr(evaluate, "SLICE_PLANS", 7)
    parts = answers_of(PROBLEM, runs)
    assert [one.row.refused for one in parts] == [one.row.refused for one in whole]
    assert any(one.row.refused for one in whole)
    for name in ("predicted", "low", "high"):
        found, expected = ([getattr(one.row, name) for one in some if one.row.predicted] for some in (parts, whole))
        assert found == pytest.approx(expected, rel=1e-12)
    assert sort_runs(PROBLEM, runs) == plans
    assert {at for some in plans.plans.values() for at in some} | set(plans.refused) == set(range(60))
    assert all(whole[at].row.refused == reason for at, reason in plans.refused.items())


@pytest.mark.parametrize("what", [answers_of, sort_runs])
def test_tables_do_not_grow_with_the_runs(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """An evaluator tables a slice of sub-batches at most, and goes before the one after the next is made."""
    gc.freeze()  # what other tests left alive is not looked through
    alive: list[weakref.ref[Evaluator]] = []
    sizes: list[int] = []

    class Counted(Evaluator):
        def __init__(self, problem: Problem, like: Evaluator | None = None, mean_ranks: float | None = None) -> None:
            gc.collect()
            assert sum(one() is not None for one in alive) <= 1
            super().__init__(problem, like, mean_ranks)
            alive.append(weakref.ref(self))

        def evaluate(self, configurations: Configurations) -> Predictions:
            found = super().evaluate(configurations)
            sizes.extend(one.compute.cases.size for one in self.pricers.values())
            return found

    monkeypatch.setattr(evaluate, "Evaluator", Counted)
    monkeypatch.setattr(evaluate, "SLICE_PLANS", 10)
    what(PROBLEM, [run_of(sub_batch=at) for at in range(1, 26)])
    assert len(alive) == 3
    assert max(sizes) == 10


def test_rows_of_a_plan_share_one_map() -> None:
    def shares(answers: Sequence[Answer]) -> set[int]:
        return {id(one.shares) for one in answers}

    runs = [run_of(id=f"{at}", sub_batch=8 + at % 3) for at in range(30)]
    answers = answers_of(PROBLEM, runs)
    assert len(shares(answers)) == 3
    assert len(shares([refused(run_of(), WHY), unread(RefusedRow(3, "x", BAD))])) == 1
    with pytest.raises(TypeError):
        answers[0].shares["forward"] = 0.5  # type: ignore[index] # what must not be possible


@pytest.mark.parametrize("reading", MEMORY_READINGS)
def test_memory_is_compared_with_what_was_read_and_its_run_is_called_once(reading: str) -> None:
    memory = run_of(id="b", metric="memory_bytes", value=2.0**33, notes=f"{reading}, GiB", group="")
    time, one = answers_of(PROBLEM, [run_of(), memory])
    prediction = Evaluator(PROBLEM).describe(Configurations.of([Configuration(1, 4, 32)]))[0]
    kinds = prediction.memory_bytes
    tensors = kinds["total"] - kinds["framework"] - kinds.get("margin", 0.0)
    shown = {"in use": 1.12 * tensors + kinds["framework"], "reserved": 1.12 * tensors, "allocated": tensors}
    shown["trials"] = tensors + kinds.get("trials", 0.0)
    assert one.row.predicted == pytest.approx(shown[reading])
    assert one.row.low is not None
    assert one.row.predicted is not None
    assert one.row.high is not None
    assert one.row.low < one.row.predicted < one.row.high
    assert (time.row.repeats_run, one.row.repeats_run, one.shares) == (False, True, {})
    found = validation_of([time, one])
    assert found.summary.n + found.in_sample.n == 1
    assert (found.memory.n, found.memory.true_ok) == (1, 1)
    assert found.memory_by.keys() == {"a table"}
