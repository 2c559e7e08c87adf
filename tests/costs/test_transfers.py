import numpy as np
import pytest

from planner.costs.terms import Work, evaluate
from planner.costs.transfers import miss_fraction
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
