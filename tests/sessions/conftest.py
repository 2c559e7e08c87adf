"""Sessions in this process, away from the user's own files and settings."""

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _clean_place(clean_place: None) -> None:
    """Give every test an empty working directory and user data folder, and a plain output."""


def as_version_1(document: Any) -> Any:
    """Return a suggestion as version 1 had it: every plan says all, and its configuration twice."""
    shared = ("network", "cluster", "framework", "optimizer", "strategy", "input", "parallelism", "virtual_stages")
    rest = {key: document["subject"][key] for key in (*shared, "recompute", "sharding")}
    rest |= {"scenario": None, "gradient_bytes_per_element": 4, "tensor_parallel": 1, "pipeline_parallel": 1}
    plans = []
    for plan in document["plans"]:
        told, configuration = plan["prediction"], rest | plan["configuration"]
        size, bare = configuration["mini_batch"], {"low": None, "high": None, "interval_basis": "none"}
        kinds = ("weights", "gradients", "optimizer", "activations", "workspace", "framework")
        memory = {**dict.fromkeys(kinds, 0), "capacity": document["subject"]["memory_bytes"], **told["memory_bytes"]}
        prediction = {
            "configuration": configuration,
            **{key: bare | {"value": told[key]["value"]} for key in ("iteration_s", "samples_per_s")},
            **dict.fromkeys(("update_s", "epoch_s", "first_epoch_s", "epoch_usd")),
            "mini_batch": {"mean": size, "std": 0, "p05": size, "p95": size, "probability_in_window": 1.0},
            "staleness": {"mean": 0, "std": 0, "pmf": {"0": 1.0}},
            "memory_bytes": memory,
            "terms": [
                {
                    "name": term["name"], "thread": "step", "seconds": term["seconds"], "exposed_seconds": 0.0,
                    "share": 0.0, "extrapolated": False, "calibration": "",
                    "origin": document["sources"][term.get("source", 0)]["origin"],
                }
                for term in told["terms"]
            ],
            "bottleneck": told["bottleneck"],
            "warnings": [],
        }  # fmt: skip
        plans.append(
            {"position": plan["position"], "why": "", "configuration": configuration, "prediction": prediction}
        )
    request = {key: {"value": None, "source": "default"} | one for key, one in document["request"].items()}
    empty: dict[str, list[Any]] = {"nearest": [], "loosen": [], "warnings": []}
    own = {"version": 1, "request": request, "plans": plans, "pareto": None} | empty
    return {key: document[key] for key in ("format", "status", "search")} | own
