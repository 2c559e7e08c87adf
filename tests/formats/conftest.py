"""Small records that documents are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # its stubs are a separate package
import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Link, Node, Storage
from planner.domain.configuration import Configuration, Settings
from planner.domain.framework import Framework
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Quantity, Staleness, Term
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Loosening, Plan, Refused, SearchReport, Suggestion

ASSETS = Path(__file__).parents[1] / "data" / "formats"
MEMORY = ("weights", "gradients", "optimizer", "activations", "workspace", "framework", "total", "capacity")


@pytest.fixture(scope="session")
def assets() -> Path:
    """Return the folder of kept files: <kind>/v<version>/."""
    return ASSETS


def _complaint(schema: dict[str, Any], document: Any) -> str:
    validator = jsonschema.Draft202012Validator(schema)
    return next((str(error.message) for error in validator.iter_errors(document)), "")


@pytest.fixture(scope="session")
def validate() -> Callable[[dict[str, Any], Any], str]:
    """Return what a JSON Schema first complains of in a document; empty when it is valid."""
    return _complaint


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator("imagined", "gpu", 16 * 2.0**30, 9e11, {"fp32": 15.7e12, "fp16": 125e12}, 80, "made up")


@pytest.fixture
def cluster(accelerator: Accelerator) -> Cluster:
    return Cluster(
        "example",
        42,
        Node(8, accelerator, 2.0**39, 96),
        Link("nvlink", 150e9, 3e-6),
        Link("infiniband", 7e9, 2e-6, 2),
        Link("pcie3", 6.3e9, 1e-5),
        Storage(2e9, shared=True, cache_bytes=2.0**39),
        2.5,
        {"nodes": "made up", "links.host": "assumed"},
    )


@pytest.fixture
def calibration(accelerator: Accelerator) -> Calibration:
    full = Entry(
        "kernels", "gemm", "forward", "fp32", "blas", "work.linear",
        settings={"tile": 64.0, "grid": (1.0, 2.5), "link": "log"},
        coefficients={"work": 1.25e-12, "constant": 3e-6},
        standard_errors={"work": 1e-14},
        covariance=((1e-28, -1e-22), (-1e-22, 1e-13)),
        fixed=("constant",),
        ranges={"work": (1e3, 1e9)},
        samples=40, error=0.03, held_out_error=0.05, held_out_by="group", worst_error=0.2, condition_number=1.7,
        estimator="relative-nnls", origin="published", source="made up", notes="a note",
    )  # fmt: skip
    bare = Entry("storage", "load", "", "any", "", "storage.samples", {}, {"samples": 0.0263}, origin="assumed")
    return Calibration(
        "imagined", "imagined", (full, bare), "example", Node(8, accelerator, None, 4), "reconstructed", "made up",
        "2016-12-05", {"threads": "1"}, ("alexnet",), ("a warning",),
    )  # fmt: skip


def _prediction(mode: str) -> Prediction:
    is_async = mode == "async"
    return Prediction(
        Configuration(4, 2, 8, 1, "fp32", mode),
        Quantity(0.5, 0.4, 0.6, "assumed"),
        Quantity(0.2) if is_async else None,
        Quantity(1000.0),
        Quantity(1000.0),
        Quantity(128.0),
        MiniBatch(64.0, 3.0, 60.0, 70.0, 0.9 if is_async else None),
        Staleness(1.5, 0.5, {1: 0.5, 2: 0.5}) if is_async else Staleness(0.0, 0.0, {0: 1.0}),
        dict.fromkeys(MEMORY, 1e9),
        (
            Term(
                "forward",
                "gpu" if is_async else "step",
                0.3,
                0.3,
                0.6,
                ("measured",),
                ("imagined",),
                extrapolated=False,
            ),
        ),
        "forward",
        (PlanWarning("overheads_generic", "pytorch", "overheads are those of no framework"),),
    )


@pytest.fixture
def prediction() -> Callable[[str], Prediction]:
    """Return the maker of a prediction of a mode."""
    return _prediction


@pytest.fixture
def subject() -> Subject:
    return Subject(
        "alexnet", "example", "edr", Settings("adam", "no-overlap", "synthetic", Framework.labelled("mxnet@1.0")), 3.6
    )


@pytest.fixture
def suggestion() -> Callable[..., Suggestion]:
    """Return the maker of a suggestion, with plans or with none."""

    def make(*, found: bool = True, pareto: bool = False) -> Suggestion:
        plan = Plan(1, _prediction("async"), "soonest")
        request: dict[str, Sourced[object]] = {
            "target_batch": Sourced(64, "option"),
            "tolerance": Sourced({"async": 0.25}, "default request"),
            "precision": Sourced(None, "default: every one with a usable sub-model"),
            "scenario": Sourced(None, "default"),
            "nodes": Sourced(tuple(range(1, 1001)), "cluster"),
            "sub_batch": Sourced((1, 2), "default request"),
            "dataset": Sourced(None, "default"),
            "pareto": Sourced(pareto, "default"),
        }
        return Suggestion(
            request,
            "found" if found else "none_feasible",
            (plan,) if found else (),
            (plan,) if pareto else (),
            SearchReport("exhaustive", True, 10, 4, (Refused("memory", "sub-batch larger than fits in memory", 6),)),  # noqa: FBT003 - as the record has it
            () if found else (plan,),
            () if found else (Loosening((("--tolerance", "30%"),), "then 3 plans fit"),),
            (
                PlanWarning("extrapolated", "all_reduce", "beyond what was measured"),
                PlanWarning("overheads_generic", "pytorch", "overheads are those of no framework"),
            ),
        )

    return make
