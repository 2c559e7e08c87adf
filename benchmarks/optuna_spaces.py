"""How near trials of Optuna come to the exact optimum, on spaces where both searches run.

    python -m benchmarks.optuna_spaces

A line a space: plans that satisfy the request, and for each seed the best of TRIALS trials over the exact optimum. The
trials do not start from the exact solution. Exit code 1 if the best of any is not within WITHIN times the optimum.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner import catalog
from planner.domain.configuration import Settings
from planner.domain.request import Problem, SpaceRequest
from planner.search.exhaustive import Asked
from planner.search.optuna_search import OptunaSearch
from planner.search.search import search
from planner.search.searchable import order_and_limits
from planner.steps import predict

__all__ = ["SPACES", "main"]

TRIALS, SEEDS, WITHIN = 300, (0, 1, 2), 1.01


@dataclass(frozen=True, slots=True)
class OneSpace:
    """A network on a cluster, and what is asked besides the mini-batch."""

    network: str
    cluster: str
    target_batch: int
    asked: Mapping[str, Any] = field(default_factory=dict)


SPACES = (
    OneSpace("resnet50", "dgx1-v100", 2048, {"gpus_per_node": tuple(range(1, 9))}),
    OneSpace("vgg16", "dgx-a100", 4096, {"tolerance_sync": 0.1}),
    OneSpace("sprint-15", "tsubame-kfc", 138, {"mode": ("sync", "async"), "tolerance_sync": 0.25}),
    OneSpace("gpt2", "dgx-h100", 512, {"nodes": (1, 2, 4, 8)}),
    OneSpace("bert-large", "dgx-a100", 1024, {"nodes": (2, 4, 8), "precision": ("bf16", "fp32")}),
)


def ratios(space: OneSpace) -> tuple[int, list[float]]:
    """Return the plans that satisfy the request, and the best of the trials over the optimum, by seed."""
    cluster, network = catalog.find_cluster(space.cluster), catalog.find_network(space.network)
    settings = Settings(input="synthetic", optimizer=network.optimizer)
    problem = Problem(network, None, cluster, tuple(catalog.calibrations_for(cluster)), settings=settings)
    request = SpaceRequest(space.target_batch).changed(**space.asked)
    (order, limits), evaluator = order_and_limits(problem, request), predict.Evaluator(problem)
    asked = Asked(request, limits, evaluator, order)
    exact = search(asked, keep=1)
    reached = []
    for seed in SEEDS:
        trials = OptunaSearch(TRIALS, seed=seed, starts=False)
        outcome = trials(asked, keep=1, pareto=False)
        if exact.best is None or outcome.best is None:
            reached.append(float("inf"))
        else:
            reached.append(float(order.values(outcome.best)[0] / order.values(exact.best)[0]))
    return exact.evaluated, reached


def main() -> int:
    """Run all spaces, print, and return the exit code."""
    missed = 0
    for space in SPACES:
        plans, reached = ratios(space)
        missed += max(reached) > WITHIN
        words = " ".join(f"{one:.4f}" for one in reached)
        name = f"{space.network} on {space.cluster}, {space.target_batch}"
        sys.stdout.write(f"{name:36} {plans:>9,} plans, best of {TRIALS} over optimum: {words}\n")
        sys.stdout.flush()
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
