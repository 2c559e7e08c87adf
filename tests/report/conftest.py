"""One made-up answer with every feature: interval, asynchronous distributions, two origins, extrapolation."""

from collections.abc import Callable, Iterable
from io import StringIO

import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Link, Node, Storage
from planner.domain.configuration import Configuration
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Quantity, Staleness, Term
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Loosening, Plan, Refused, SearchReport, Suggestion
from planner.report.blocks import Block, print_blocks

TERMS = (
    Term("load_input", "gpu", 0.2104, 0.2104, 0.28, ("reconstructed",), ("tsubame-kfc",), extrapolated=False),
    Term("forward", "gpu", 0.175, 0.175, 0.24, ("reconstructed",), ("tsubame-kfc",), extrapolated=False),
    Term("update_gradient", "gpu", 0.02, 0.02, 0.03, ("specified",), (), extrapolated=True),
    Term("sum_gradient", "update", 0.0571, 0.0571, 0.31, ("reconstructed",), ("tsubame-kfc",), extrapolated=False),
    Term("all_reduce", "update", 0.0876, 0.0876, 0.69, ("reconstructed",), ("tsubame-kfc",), extrapolated=False),
)
MEMORY = {
    "weights": 2.0**26,
    "gradients": 2.0**26,
    "activations": 2.0**30,
    "total": 2.0**30 + 2.0**27,
    "capacity": 12 * 2.0**30,
}


EPOCH = Quantity(1779.2, 1650.0, 1920.0, "covariance")
PERIOD = Quantity(0.7352, 0.6818, 0.7934, "covariance")


def make_prediction(nodes: int = 8, epoch_s: Quantity | None = EPOCH) -> Prediction:
    return Prediction(
        Configuration(nodes, 8, 8, mode="async"),
        PERIOD,
        Quantity(0.2293),
        epoch_s,
        epoch_s,
        Quantity(720.1, 667.3, 776.5, "covariance"),
        MiniBatch(165.1, 12.25, 144.0, 186.0, 0.73),
        Staleness(1.31, 0.46, {1: 0.69, 2: 0.309, 3: 0.001}),
        MEMORY,
        TERMS,
        "all_reduce",
        (PlanWarning("in_sample", "tsubame-kfc", "made from the figures that it is compared with"),),
    )


REQUEST: dict[str, Sourced[object]] = {
    "network": Sourced("sprint-15", "default request"),
    "cluster": Sourced("tsubame-kfc", "default request"),
    "target_batch": Sourced(138, "option"),
    "sub_batch": Sourced(tuple(range(1, 12)), "default request"),
    "scenario": Sourced("", "default"),
}
SEARCH = SearchReport(
    "exhaustive", certified=True, candidates=462, evaluated=440, refused=(Refused("memory", "out_of_memory", 22),)
)


@pytest.fixture
def prediction() -> Prediction:
    return make_prediction()


@pytest.fixture
def without_dataset() -> Prediction:
    return make_prediction(epoch_s=None)


@pytest.fixture
def request_values() -> dict[str, Sourced[object]]:
    return REQUEST


@pytest.fixture
def subject() -> Subject:
    return Subject("sprint-15", "tsubame-kfc")


@pytest.fixture
def suggestion(prediction: Prediction) -> Suggestion:
    plans = (
        Plan(1, make_prediction(12), "shortest epoch of 440 plans", efficiency=0.8),
        Plan(2, prediction, "3 % slower", first_is_better=0.6, efficiency=0.9),
    )
    choice = "plans 1 and 2 are tied; plan 2 has the fewest GPUs"
    return Suggestion(REQUEST, "found", plans, plans[:1], SEARCH, chosen=2, choice=choice, tied=(1, 2),
                      baseline=Configuration(1, 8, 8, mode="async"))  # fmt: skip


@pytest.fixture
def nothing_fits(prediction: Prediction) -> Suggestion:
    loosen = (Loosening((("--tolerance", "3.1%"),), "--tolerance 3.1% (now 0%) allows 8 nodes x 8 GPUs"),)
    nearest = (Plan(1, prediction, "nearest above"),)
    return Suggestion(REQUEST, "none_feasible", (), (), SEARCH, nearest, loosen)


@pytest.fixture
def cluster() -> Cluster:
    accelerator = Accelerator(
        "k80", "gpu", 12 * 2.0**30, 240e9, {"fp32": 4.37e12}, 13, "NVIDIA, Tesla K80 board specification"
    )
    link = Link("infiniband", 7e9, 2e-6)
    node = Node(8, accelerator, 64 * 2.0**30, 24)
    return Cluster("tsubame-kfc", 42, node, None, link, None, Storage(2e9, shared=True), sources={"nodes": "paper"})


@pytest.fixture
def calibration(cluster: Cluster) -> Calibration:
    entry = Entry(
        "kernels", "gemm", "forward", "fp32", "", "work.linear", {"tile": 128.0, "grid": (1.0, 2.0, 3.0, 4.0, 5.0)},
        {"alpha": 1.5e-5, "beta": 2.1e-13}, {"alpha": 2e-6}, None, ("beta",),
        {"alpha": (1.0, 1.0), "beta": (1e6, 1e11)},
        120, 0.04, 0.0512, "group", 0.21, 31.4, "relative-nnls", source="a bench",
    )  # fmt: skip
    return Calibration(
        "tsubame-kfc", "k80", (entry,), "tsubame-kfc", cluster.node, "reconstructed", "Oyama et al. 2016", "2016-08-01"
    )


@pytest.fixture
def printed() -> Callable[[Iterable[Block]], str]:
    """Return a function: view -> its text as it is printed to a file."""

    def render(view: Iterable[Block]) -> str:
        out = StringIO()
        print_blocks(view, out)
        return out.getvalue()

    return render
