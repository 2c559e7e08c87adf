"""How reading, decoding and worker threads make the time of loading: by hand, and on a node with a measured disk."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster, Node, Storage
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.domain.prediction import Prediction
from planner.domain.request import Dataset, Problem, Scenario
from planner.numbers import constant
from planner.sources.sources import Sources
from planner.steps.epoch import CACHED_SHARE, Input
from planner.steps.predict import Evaluator

Make = Callable[..., Problem]

SAMPLES, BYTES = 10_000, 1e5
LATENCY_S, BYTE_S = 3e-4, 2e-9
COLD_S = LATENCY_S + BYTES * BYTE_S  # 0.5 ms a sample
CACHED_S = 5e-5
DECODE_S = 4e-3
NO_OVERLAP = Settings(strategy="no-overlap")


def entry(kind: str, term: str, **coefficients: float) -> Entry:
    return Entry("storage", kind, "", "", "", term, {}, coefficients, error=0.1, ranges={"bytes": (1e3, 1e6)})


LOAD = entry("load", "storage.reads", samples=LATENCY_S, bytes=BYTE_S)
CACHED = entry("load_cached", "storage.reads", samples=0.0, bytes=CACHED_S / BYTES)
DECODE = entry("decode", "storage.decode", samples=3e-3, bytes=9e-9, elements=1e-4 / (3 * 16 * 16))


@pytest.fixture
def make(make_problem: Make, cluster: Cluster) -> Make:
    """Return a maker of problems on a node of four devices whose disk was measured."""

    def made(*entries: Entry, node: dict[str, Any] | None = None, **changes: Any) -> Problem:
        base = make_problem()
        there: Node = replace(cluster.node, **({"host_memory_bytes": 1e12, "cpu_threads": 16} | (node or {})))
        here = Calibration("disk", "toy", entries, None, there)
        local = Cluster("local", 1, there, intra_node=cluster.intra_node, host=cluster.host)
        fields: dict[str, Any] = {
            "cluster": local, "calibrations": (*base.calibrations, here), "dataset": Dataset("some", SAMPLES, BYTES),
        }  # fmt: skip
        return make_problem(**(fields | changes))

    return made


def described(problem: Problem, **plan: Any) -> Prediction:
    fields: dict[str, Any] = {"nodes": 1, "gpus_per_node": 1, "sub_batch": 8} | plan
    return Evaluator(problem).describe(Configurations.of([Configuration(**fields)]))[0]


def loads_s(problem: Problem, **plan: Any) -> tuple[float, float]:
    """Return loading [s] of the first epoch and of later ones, from plans whose parts follow each other."""
    follows, without = (
        described(replace(problem, settings=settings), **plan)
        for settings in (NO_OVERLAP, replace(NO_OVERLAP, input="synthetic"))
    )
    assert follows.first_epoch_s is not None
    h2d = next(term.seconds for term in follows.terms if term.name == "host_to_device")
    gpus = follows.configuration.gpus_per_node
    first = follows.first_epoch_s.value * 8 * gpus / SAMPLES
    work = h2d + without.iteration_s.value
    return first - work, follows.iteration_s.value - work


def test_cold_reads_in_the_first_epoch_and_cached_ones_later(make: Make) -> None:
    assert loads_s(make(LOAD, CACHED)) == pytest.approx((8 * COLD_S, 8 * CACHED_S))
    assert loads_s(make(LOAD, CACHED), gpus_per_node=4) == pytest.approx((32 * COLD_S, 32 * CACHED_S))


@pytest.mark.parametrize("times", [1.0, 1.25, 2.0, 10.0])
def test_memory_keeps_a_part_of_a_larger_data_set(make: Make, times: float) -> None:
    memory = SAMPLES * BYTES / (CACHED_SHARE * times)
    missed = 1 - 1 / times
    _, later = loads_s(make(LOAD, CACHED, node={"host_memory_bytes": memory}))
    assert later == pytest.approx(8 * (missed * COLD_S + (1 - missed) * CACHED_S))


def test_without_cached_reads_or_memory_every_epoch_is_cold(make: Make) -> None:
    for problem in (make(LOAD), make(LOAD, CACHED, node={"host_memory_bytes": None})):
        assert loads_s(problem) == pytest.approx((8 * COLD_S, 8 * COLD_S))


def test_a_disk_whose_cold_reads_are_not_known_serves_from_memory(make: Make) -> None:
    assert loads_s(make(CACHED)) == pytest.approx((8 * CACHED_S, 8 * CACHED_S))


@pytest.mark.parametrize(
    ("threads", "gpus", "cold_s", "cached_s"),
    [
        (1, 1, COLD_S + DECODE_S, CACHED_S + DECODE_S),
        (4, 1, (COLD_S + DECODE_S) / 4, (CACHED_S + DECODE_S) / 4),
        (16, 1, COLD_S, (CACHED_S + DECODE_S) / 16),  # 16 threads wait for the disk while it is read
        (16, 4, 4 * COLD_S, (CACHED_S + DECODE_S) / 4),
        (2, 4, 4 * (COLD_S + DECODE_S) / 2, 4 * (CACHED_S + DECODE_S) / 2),
        (None, 4, COLD_S + DECODE_S, CACHED_S + DECODE_S),
    ],
)
def test_worker_threads_read_and_decode(
    make: Make, threads: int | None, gpus: int, cold_s: float, cached_s: float
) -> None:
    problem = make(LOAD, CACHED, DECODE, node={"cpu_threads": threads})
    assert loads_s(problem, gpus_per_node=gpus) == pytest.approx((8 * cold_s, 8 * cached_s))


def test_a_cpu_trains_on_threads_that_do_not_load(make: Make) -> None:
    problem = make(LOAD, CACHED, DECODE)
    for threads, used, loading in ((5, None, 4), (2, None, 1), (1, None, 1), (5, 2, 3), (4, 4, 1)):
        cpu = replace(problem.cluster.node.accelerator, kind="cpu", multiprocessors=used)
        node = replace(problem.cluster.node, gpus=1, cpu_threads=threads, accelerator=cpu)
        on_cpu = replace(problem, cluster=replace(problem.cluster, node=node))
        assert load_term_s(on_cpu) == pytest.approx(8 * (CACHED_S + DECODE_S) / loading)


def load_term_s(problem: Problem) -> float:
    return next(term.seconds for term in described(problem).terms if term.name == "load_input")


def test_a_step_waits_for_slow_decoding_and_says_so(make: Make) -> None:
    """Prefetched input that takes longer than the work is the step; its thread count and its cache are assumptions."""
    found = described(make(LOAD, CACHED, DECODE, node={"cpu_threads": 1}))
    assert found.iteration_s.value == pytest.approx(8 * (CACHED_S + DECODE_S))
    assert found.bottleneck == "load_input"
    load = found.terms[0]
    assert (load.origin, load.calibration, load.extrapolated) == ("measured", "disk", False)
    said = {w.code: w.message for w in found.warnings}
    assert "1 threads per device, of the 1 threads of a node" in said["loader_threads"]
    assert "read 0% of the samples from storage: 80% of host memory" in said["input_cached"]
    assert "decode_not_modelled" not in said
    assert found.epoch_s is not None
    assert found.first_epoch_s is not None
    assert found.first_epoch_s.value == pytest.approx(SAMPLES * (COLD_S + DECODE_S))
    assert found.epoch_s.value == pytest.approx(SAMPLES * (CACHED_S + DECODE_S))


def test_samples_beyond_those_read_in_the_fit_extrapolate(make: Make) -> None:
    large = make(LOAD, CACHED, dataset=Dataset("large", 10, 1e7))
    assert [w.subject for w in described(large).warnings if w.code == "extrapolated"] == ["load_input"]


def test_only_images_are_decoded(make: Make) -> None:
    layers = (Layer("fc", "linear", ("input",), {"features": 4}), Layer("loss", "loss", ("fc",)))
    table = make(LOAD, CACHED, DECODE, network=Network("table", (768,), layers))
    assert Input(Sources(table)).decode is None
    assert Input(Sources(make(LOAD, CACHED, DECODE))).decode is not None


def test_a_measured_loader_is_not_decoded_again(make: Make) -> None:
    loader = entry("load", "storage.samples", calls=0.0, samples=1e-3)
    assert loads_s(make(loader, CACHED, DECODE)) == pytest.approx((8e-3, 8e-3))


def test_without_a_data_set_nothing_is_read(make: Make) -> None:
    found = described(make(LOAD, CACHED, DECODE, dataset=None))
    assert found.terms[0].seconds == 0
    assert {"no_dataset", "input_not_modelled"} <= {w.code for w in found.warnings}


def test_decoding_of_a_described_storage_is_that_of_the_calibration(make: Make) -> None:
    """A cluster may say what its storage reads, but not what decoding takes."""
    problem = make(DECODE, node={"cpu_threads": 1})
    cluster = replace(problem.cluster, storage=Storage(1e9))
    first, later = loads_s(replace(problem, cluster=cluster))
    assert (first, later) == pytest.approx((8 * (BYTES / 1e9 + DECODE_S), 8 * (BYTES / 1e9 + DECODE_S)))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("gpus", [1, 4])
def test_no_more_jpeg_images_are_trained_on_than_threads_decode(make: Make, mode: str, gpus: int) -> None:
    """A node of so many threads feeds no more than each of them decodes; more threads are never slower."""
    problem = make(dataset=Dataset("photos", SAMPLES, BYTES, encoding="jpeg"))
    steps = []
    for threads in (1, 2, 3, 4, 7, 16, 64, 1024):
        node = replace(problem.cluster.node, cpu_threads=threads)
        cluster = replace(problem.cluster, storage=Storage(1e11), node=node)
        found = described(replace(problem, cluster=cluster), gpus_per_node=gpus, mode=mode)
        assert found.samples_per_s.value <= threads * constant("input.decode_bytes_per_s") / BYTES * (1 + 1e-12)
        assert {"assumed decode", "loader_threads load_input"} <= {
            f"{one.code} {one.subject}" for one in found.warnings
        }
        steps.append(found.iteration_s.value)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 10 * steps[-1]


@pytest.mark.parametrize(("encoding", "threads"), [("jpeg", None), ("", 16)])
def test_decoding_that_is_not_in_the_figure_is_said(make: Make, encoding: str, threads: int | None) -> None:
    problem = make(dataset=Dataset("photos", SAMPLES, BYTES, encoding=encoding), node={"cpu_threads": threads})
    found = described(replace(problem, cluster=replace(problem.cluster, storage=Storage(1e11))))
    assert "decode_not_modelled" in {one.code for one in found.warnings}


def test_measured_decoding_goes_before_what_is_assumed(make: Make) -> None:
    for dataset in (Dataset("photos", SAMPLES, BYTES, encoding="jpeg"), Dataset("some", SAMPLES, BYTES)):
        decode = Input(Sources(make(LOAD, DECODE, dataset=dataset))).decode
        assert decode is not None
        assert decode.entry == DECODE


def test_a_scenario_multiplies_all_of_loading(make: Make) -> None:
    problem = make(LOAD, CACHED, DECODE, node={"cpu_threads": 1})
    half = replace(problem, scenario=Scenario("", {"load_input": 0.5}))
    assert load_term_s(half) == pytest.approx(load_term_s(problem) / 2)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("threads", [1, 16])
def test_what_decides_loading_adds_up_to_it(make: Make, mode: str, threads: int) -> None:
    """Doubling every coefficient of what decides doubles the time: the parts are along the path."""
    problem = make(LOAD, CACHED, DECODE, node={"cpu_threads": threads})
    loading = Input(Sources(problem))
    parts = loading.parts(8, 4, 1, first_epoch=True, alone=mode == "async")
    kinds = [part.source.entry.kind for part in parts]
    assert kinds == (["load"] if threads == 16 and mode == "sync" else ["load", "decode"])
    for part in parts:
        values = list(part.source.entry.coefficients.values())
        assert part.seconds == pytest.approx(float(part.slopes @ values))


def test_pinned_copies_go_before_pageable_ones(make: Make) -> None:
    copies = [
        Entry("host", "copy", "", "", library, "host.bytes", {}, {"calls": 0.0, "bytes": cost}, error=0.1)
        for library, cost in (("pageable", 4e-10), ("pinned", 1e-10))
    ]
    back = Entry("host", "copy_back", "", "", "pinned", "host.bytes", {}, {"calls": 0.0, "bytes": 1.0}, error=0.1)
    found = described(make(LOAD, CACHED, back, *copies))
    copied = next(term.seconds for term in found.terms if term.name == "host_to_device")
    assert copied == pytest.approx(8 * 3 * 16 * 16 * 4 * 1e-10)
