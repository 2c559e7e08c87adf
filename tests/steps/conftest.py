"""A small machine, network and calibration whose times can be worked out by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Link, Node, Storage
from planner.domain.configuration import Configurations, Settings
from planner.domain.layers.record import Layer
from planner.domain.network import Network
from planner.domain.request import Dataset, Problem

Make = Callable[..., Any]


def kernel_entry(kind: str, term: str, coefficients: dict[str, float], **keys: Any) -> Entry:
    """Return a measured kernel entry that serves all directions."""
    fields = {"direction": "", "precision": "any", "library": "", "settings": {}} | keys
    return Entry("kernels", kind, term=term, coefficients=coefficients, estimator="relative-nnls", **fields)


def _communication_end_s(backward_s: FloatArray, communication_s: FloatArray) -> float:
    now_s, free_s = 0.0, 0.0
    for computing_s, sending_s in zip(backward_s[::-1], communication_s[::-1], strict=True):
        now_s += float(computing_s)
        free_s = max(free_s, now_s) + float(sending_s)
    return free_s


@pytest.fixture(scope="session")
def communication_end_s() -> Callable[[FloatArray, FloatArray], float]:
    """Return what follows backward times and messages, in forward order, to when the last one is done [s]."""
    return _communication_end_s


@pytest.fixture
def network() -> Network:
    return Network(
        "small",
        (3, 16, 16),
        (
            Layer("conv1", "convolution", ("input",), {"channels": 8, "kernel": 3, "padding": 1}),
            Layer("relu1", "activation", ("conv1",)),
            Layer("conv2", "convolution", ("relu1",), {"channels": 8, "kernel": 3, "padding": 1}),
            Layer("relu2", "activation", ("conv2",)),
            Layer("pool", "pool", ("relu2",), {"window": 2, "stride": 2}),
            Layer("flat", "flatten", ("pool",)),
            Layer("fc", "linear", ("flat",), {"features": 10}),
            Layer("loss", "loss", ("fc",)),
        ),
    )


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator("toy", "gpu", 2.0**32, 1e11, {"fp32": 1e12, "fp16": 4e12}, 8, "made up")


@pytest.fixture
def cluster(accelerator: Accelerator) -> Cluster:
    return Cluster(
        "toys",
        8,
        Node(4, accelerator),
        Link("nvlink", 1e10, 1e-6),
        Link("infiniband", 1e9, 5e-6),
        Link("pcie3", 1e10, 1e-5),
        Storage(1e9, shared=True, cache_bytes=5e7),
    )


@pytest.fixture
def calibration() -> Calibration:
    """Kernels with covariances, no overheads of the framework: every compute time is a sum of measured terms."""
    entries = (
        kernel_entry("convolution", "flop.rate", {"flop": 2e-12}, covariance=((1e-26,),)),
        kernel_entry("gemm", "flop.rate", {"flop": 3e-12}, covariance=((4e-26,),)),
        kernel_entry("pointwise", "traffic.bytes", {"calls": 2e-6, "bytes": 1e-11},
                     covariance=((1e-14, 0.0), (0.0, 1e-26))),
        Entry("overheads", "generic", "", "", "", "overheads", {},
              {"kernel_scale": 1.0, "host_s_per_call": 0.0, "host_s_per_layer": 0.0, "exponent": 1.0}),
    )  # fmt: skip
    return Calibration("toy-kernels", "toy", entries)


@pytest.fixture
def make_problem(network: Network, cluster: Cluster, calibration: Calibration) -> Make:
    def make(**changes: Any) -> Problem:
        fields: dict[str, Any] = {
            "network": network,
            "dataset": Dataset("some", 10_000, 1e4),
            "cluster": cluster,
            "calibrations": (calibration,),
            "settings": Settings(),
        }
        return Problem(**(fields | changes))

    return make


@pytest.fixture
def every_configuration() -> Configurations:
    """All of nodes 1, 2, 3, 8 x GPUs 1, 2, 4 x sub-batch 1, 5, 32 x accumulation 1, 3 x two precisions x two modes."""
    axes = ((1, 2, 3, 8), (1, 2, 4), (1, 5, 32), (1, 3), (0, 1), (0, 1))
    columns = [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]
    nodes, gpus, sub_batch, steps, precision, mode = columns
    return Configurations(
        nodes, gpus, sub_batch, np.where(mode == 1, 1, steps), precision, mode, precisions=("fp32", "fp16")
    )


@pytest.fixture
def unslowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that take no longer beside messages, as closed forms and event counts have them."""
    monkeypatch.setattr("planner.steps.step_costs.SLOWDOWN", 1.0)
