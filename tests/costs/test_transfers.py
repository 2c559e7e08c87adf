import numpy as np
import pytest

from planner.costs.features import Work
from planner.costs.terms import evaluate
from planner.costs.transfers import loading_s, miss_fraction
from planner.domain.calibration import Entry


def test_cache_saves_what_it_holds() -> None:
    np.testing.assert_allclose(miss_fraction(np.array([0.0, 50.0, 100.0, 200.0, 400.0]), 100), [0, 0, 0, 0.5, 0.75])


def test_sum_of_gradients_follows_parameters_and_buffers() -> None:
    entry = Entry("host", "sum_gradient", "", "", "", "host.buffers", {}, {"calls": 0.5, "buffer_parameters": 0.25})
    np.testing.assert_allclose(evaluate(entry, {"parameters": 8, "buffers": np.array([0.0, 1.5])}), [0.5, 3.5])


@pytest.mark.parametrize(
    ("term", "column"), [("host.parameters", "parameters"), ("storage.samples", "samples"), ("host.bytes", "bytes")]
)
def test_linear_terms(term: str, column: str) -> None:
    entry = Entry("host", "x", "", "", "", term, {}, {"calls": 2.0, column: 3.0})
    np.testing.assert_allclose(evaluate(entry, {column: np.array([0, 5])}), [2, 17])


def test_shared_storage_is_divided_by_the_nodes_that_read() -> None:
    work: Work = {"bytes": 100.0, "nodes": np.array([1, 4])}
    for shared, expected in ((0.0, 50.0), (1.0, 200.0)):
        entry = Entry("storage", "load", "", "", "", "storage.bytes", {"shared": shared}, {"bytes": 0.5})
        np.testing.assert_allclose(evaluate(entry, work).max(), expected)


def test_reads_take_a_latency_each_and_their_bytes() -> None:
    entry = Entry("storage", "load", "", "", "", "storage.reads", {}, {"samples": 0.25, "bytes": 0.5})
    np.testing.assert_allclose(evaluate(entry, {"images": np.array([0, 4]), "bytes": np.array([0.0, 6.0])}), [0, 4])


def test_decoding_takes_images_bytes_and_elements() -> None:
    entry = Entry(
        "storage", "decode", "", "", "", "storage.decode", {}, {"samples": 1.0, "bytes": 0.5, "elements": 2.0}
    )
    np.testing.assert_allclose(evaluate(entry, {"images": 3, "bytes": 4.0, "elements": 5.0}), 15)


def simulated_s(samples: int, read_s: float, decode_s: float, threads: int) -> float:
    """Return when the last thread is done: each takes the next sample, reads it when the disk is free, decodes it."""
    disk, free = 0.0, [0.0] * threads
    for _ in range(samples):
        first = free.index(min(free))
        disk = max(disk, free[first]) + read_s
        free[first] = disk + decode_s
    return max(free)


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("decode_s", [0.0, 0.1, 1.0, 7.0])
def test_threads_that_share_a_disk_take_what_a_simulation_says(threads: int, decode_s: float) -> None:
    """With equal samples the bound is met, but for the beginning and the end."""
    samples = 4096
    bound = float(loading_s(np.array(1.0 * samples), np.array(decode_s * samples), threads))
    assert bound <= simulated_s(samples, 1.0, decode_s, threads) * (1 + 1e-12)
    assert simulated_s(samples, 1.0, decode_s, threads) <= bound + 1.0 * threads + decode_s
