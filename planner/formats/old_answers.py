"""Predictions and suggestions of version 1: what they had to hold, and how they become those of version 2.

In version 1 every plan said all that its configuration shares with the others, and its warnings, once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from planner.domain.configuration import LARGEST_MINI_BATCH, MODES, OPTIMIZERS
from planner.domain.framework import STRATEGIES
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import LOOKUPS, PlanWarning
from planner.formats.asked import REQUEST_TABLE
from planner.formats.fields import Field, ListOf, MapOf, Nullable, Table
from planner.formats.search import LOOSENING_TABLE, SEARCH_TABLE
from planner.formats.values import Flag, Number, Text, Whole
from planner.formats.warnings import warning_keys

__all__ = ["prediction_2", "predictions_2", "suggestion_2", "suggestions_2"]

_MADE_NAME_PARTS = ("scaled from ", " derived from ")
"""In names of calibrations that version 1 lists beside those that a file holds."""
_NUMBER_OR_NULL = Nullable(Number())
_PROBABILITY = Number()
_PRODUCT = Whole(most=10**18)
_BYTES = Whole(least=0, most=10**18)
_CONFIGURATION = Table(
    (
        Field("network", Text(), "network that is trained"),
        Field("cluster", Text(), "cluster that it is trained on"),
        Field("scenario", Nullable(Text()), "what-if, as it was written; null: things as they are"),
        Field("nodes", Whole(), "computers"),
        Field("gpus_per_node", Whole(), "devices of each"),
        Field("gpus", _PRODUCT, "devices in all"),
        Field("precision", Text(tuple(PRECISIONS)), "precision of training"),
        Field("gradient_bytes_per_element", Whole(most=8), "bytes of a gradient element as it is sent"),
        Field("mode", Text(MODES), "synchronous or asynchronous updates"),
        Field("parallelism", Text(("data", "model", "pipeline", "hybrid")), "how the network is divided"),
        Field("data_parallel", _PRODUCT, "copies of the network"),
        Field("tensor_parallel", Whole(), "devices that share each layer"),
        Field("pipeline_parallel", Whole(), "stages of layers"),
        Field("virtual_stages", Whole(), "stages of layers on each pipeline rank"),
        Field("sub_batch", Whole(), "samples of one pass"),
        Field("accumulation_steps", Whole(), "passes summed up before an update"),
        Field(
            "mini_batch",
            Nullable(Whole(most=LARGEST_MINI_BATCH)),
            "samples behind an update; null when asynchronous: a distribution",
        ),
        Field("recompute", Text(("none", "selective", "full")), "activations computed again in the backward pass"),
        Field("sharding", Whole(least=0, most=3), "stage of sharded state"),
        Field("optimizer", Text(tuple(OPTIMIZERS)), "optimizer"),
        Field("strategy", Text(tuple(STRATEGIES)), "what overlaps in a synchronous step"),
        Field("input", Text(("storage", "synthetic")), "where samples come from"),
        Field("framework", Text(), "training framework"),
    ),
    dict[str, Any],
    title="configuration",
)
_QUANTITY = Table(
    (
        Field("value", _NUMBER_OR_NULL, "the prediction"),
        Field("low", _NUMBER_OR_NULL, "lower end of the central 90 % interval"),
        Field("high", _NUMBER_OR_NULL, "upper end"),
        Field("interval_basis", Text(("none", "assumed", "covariance", "conformal")), "what the interval rests on"),
    ),
    dict[str, Any],
    title="quantity",
)
_MINI_BATCH = Table(
    (
        *(Field(name, Number(), f"{name} of the samples behind an update") for name in ("mean", "std", "p05", "p95")),
        Field("probability_in_window", Nullable(_PROBABILITY), "that it lies in the target's window"),
    ),
    dict[str, Any],
)
_STALENESS = Table(
    (
        Field("mean", Number(), "mean of the updates between reading and applying"),
        Field("std", Number(), "its standard deviation"),
        Field("pmf", MapOf(_PROBABILITY, pattern="[0-9]+"), "probability of each number of updates"),
    ),
    dict[str, Any],
)
_TERM = Table(
    (
        Field("name", Text(), "name of the term"),
        Field("thread", Text(("step", "gpu", "update")), "thread that it runs in"),
        Field("seconds", Number(), "what it takes"),
        Field("exposed_seconds", Number(), "what it adds to the period of its thread"),
        Field("share", _PROBABILITY, "exposed part of that period"),
        Field("origin", Text(), "where its coefficients come from"),
        Field("calibration", Text(empty=True), "name of their calibration"),
        Field("extrapolated", Flag(), "whether it lies outside what was fitted"),
    ),
    dict[str, Any],
    title="term",
)
_WARNING = Table(
    (
        Field("code", Text(), "for programs"),
        Field("subject", Text(empty=True), "what it is about"),
        Field("message", Text(), "for people"),
    ),
    dict[str, Any],
    title="warning",
)
_MEMORY = ("weights", "gradients", "optimizer", "activations", "workspace", "framework", "total", "capacity")
_PREDICTION = Table(
    (
        Field("configuration", _CONFIGURATION, "what is predicted"),
        Field("iteration_s", _QUANTITY, "one update; asynchronous: one period of the GPU thread"),
        Field("update_s", Nullable(_QUANTITY), "one period of the update thread; null when synchronous"),
        Field(
            "epoch_s", Nullable(_QUANTITY), "a later epoch (samples cached as far as they fit); null without data set"
        ),
        Field("first_epoch_s", Nullable(_QUANTITY), "the first epoch"),
        Field("epoch_usd", Nullable(_QUANTITY), "price of epoch_s on all devices; null without a price or data set"),
        Field("samples_per_s", _QUANTITY, "samples a second"),
        Field("mini_batch", _MINI_BATCH, "distribution of the mini-batch"),
        Field("staleness", _STALENESS, "distribution of the staleness"),
        Field(
            "memory_bytes",
            Table(tuple(Field(name, _BYTES, f"{name} on one device") for name in _MEMORY), dict[str, Any]),
            "memory of one device, by kind",
        ),
        Field("terms", ListOf(_TERM), "parts of the periods"),
        Field(
            "kernel_shares",
            Table(tuple(Field(name, _PROBABILITY, words) for name, words in LOOKUPS.items()), dict[str, Any]),
            "shares of the kernel time of a step by how it was found, all 0 where kernels take none; absent: not told",
            None,
        ),
        Field("bottleneck", Text(empty=True), "what to improve first"),
        Field("warnings", ListOf(_WARNING), "what a reader should know"),
    ),
    dict[str, Any],
    title="prediction",
)
_PLAN = Table(
    (
        Field("position", Whole(), "rank"),
        Field("configuration", _CONFIGURATION, "what the plan decides"),
        Field("prediction", _PREDICTION, "what it takes"),
        Field("why", Text(empty=True), "why it stands there"),
    ),
    dict[str, Any],
    title="plan",
)
_SUGGESTION = Table(
    (
        Field("request", REQUEST_TABLE, "every value with its source"),
        Field("status", Text(("found", "none_feasible")), "whether any plan fits"),
        Field("plans", ListOf(_PLAN), "best first"),
        Field(
            "pareto", Nullable(ListOf(_PLAN)), "front of the objective, GPUs and distance from the target, where asked"
        ),
        Field("search", SEARCH_TABLE, "how the space was searched"),
        Field("nearest", ListOf(_PLAN), "plans nearest to the target, when none fits"),
        Field("loosen", ListOf(LOOSENING_TABLE), "what to loosen, when none fits"),
        Field("warnings", ListOf(_WARNING), "what a reader should know"),
    ),
    dict[str, Any],
)
_PREDICTIONS = Table((Field("predictions", ListOf(_PREDICTION), "in the order of the options"),), dict[str, Any])
_SUGGESTIONS = Table((Field("suggestions", ListOf(_SUGGESTION), "one a network and scenario"),), dict[str, Any])
_SUBJECT_KEYS = (
    "network", "cluster", "scenario", "framework", "optimizer", "strategy", "input", "parallelism", "virtual_stages",
    "recompute", "sharding",
)  # fmt: skip
"""Keys of a configuration of version 1 that stand in the subject."""
Keys = dict[str, Any]


def prediction_2(keys: Keys) -> Keys:
    """Return the keys of a prediction of version 1 as those of version 2; FieldError where they break its rules."""
    _PREDICTION.read(keys, "")
    sources: list[Keys] = []
    one = _one(keys, sources)
    return {"subject": _subject([keys], {}), "sources": sources, "warnings": keys["warnings"], **one}


def predictions_2(keys: Keys) -> Keys:
    """Return the keys of predictions of version 1 as those of version 2; FieldError where they break its rules."""
    _PREDICTIONS.read(keys, "")
    sources: list[Keys] = []
    rows = [{"subject": _subject([one], {}), **_one(one, sources)} for one in keys["predictions"]]
    warnings = _warnings((), {"predictions": {at: one["warnings"] for at, one in enumerate(keys["predictions"], 1)}})
    return {"subject": {}, "predictions": rows, "sources": sources, "warnings": warnings}


def suggestion_2(keys: Keys) -> Keys:
    """Return the keys of a suggestion of version 1 as those of version 2; FieldError where they break its rules."""
    _SUGGESTION.read(keys, "")
    return _suggestion(keys)


def suggestions_2(keys: Keys) -> Keys:
    """Return the keys of suggestions of version 1 as those of version 2; FieldError where they break its rules."""
    _SUGGESTIONS.read(keys, "")
    return {"suggestions": [_suggestion(one) for one in keys["suggestions"]]}


def _suggestion(keys: Keys) -> Keys:
    sources: list[Keys] = []
    lists_of_plans = {"plans": keys["plans"] or keys["nearest"], "pareto": keys["pareto"] or []}
    warnings = {
        key: {plan["position"]: plan["prediction"]["warnings"] for plan in plans}
        for key, plans in lists_of_plans.items()
    }
    lists = {
        key: [_plan(plan, sources) for plan in keys[key]]
        for key in ("plans", "pareto", "nearest")
        if keys[key] is not None
    }
    return {
        "subject": _subject(
            [plan["prediction"] for plans in lists_of_plans.values() for plan in plans], keys["request"]
        ),
        "sources": sources,
        "warnings": _warnings(keys["warnings"], warnings),
        **{key: keys[key] for key in ("status", "search", "loosen")},
        "request": {name: _without_empty(_given_back(name, value)) for name, value in keys["request"].items()},
        **lists,
    }


def _given_back(name: str, value: Keys) -> Keys:
    """Return a value of a request; of calibrations without those made for the answer, which no file holds."""
    if name != "calibration" or not value["value"]:
        return value
    return value | {"value": [one for one in value["value"] if not any(words in one for words in _MADE_NAME_PARTS)]}


def _plan(plan: Keys, sources: list[Keys]) -> Keys:
    prediction = _one(plan["prediction"], sources)
    return _without_empty(plan) | {"configuration": prediction.pop("configuration"), "prediction": prediction}


def _one(prediction: Keys, sources: list[Keys]) -> Keys:
    """Return the keys of a prediction without its warnings and what it shares with others; ``sources`` grow."""
    rest = _without_empty({key: value for key, value in prediction.items() if key != "warnings"})
    rest["configuration"] = {
        key: value for key, value in _without_empty(prediction["configuration"]).items() if key not in _SUBJECT_KEYS
    }
    rest["mini_batch"] = _without_empty(prediction["mini_batch"])
    rest["terms"] = [_term(term, sources) for term in prediction["terms"]]
    return rest


def _term(term: Keys, sources: list[Keys]) -> Keys:
    source = _without_empty({key: term[key] for key in ("origin", "calibration")})
    if source not in sources:
        sources.append(source)
    own = {key: term[key] for key in ("name", "thread", "seconds", "exposed_seconds", "extrapolated")}
    return own | {"source": sources.index(source)}


def _without_empty(table: Keys) -> Keys:
    """Return the keys of a table that say something."""
    return {key: value for key, value in table.items() if value is not None and value != ""}


def _subject(predictions: list[Keys], request: Keys) -> Keys:
    """Return what predictions share, their price included; without any, what the request says."""
    if not predictions:
        constants = {"parallelism": "data", "virtual_stages": 1, "recompute": "none", "sharding": 0, "device": "GPU"}
        of_request = {
            key: request[key]["value"]
            for key in _SUBJECT_KEYS
            if key in request and isinstance(request[key]["value"], str)
        }
        return constants | {key: value for key, value in of_request.items() if key != "parallelism"}
    (first, *_) = predictions
    of_configuration = {
        key: first["configuration"][key] for key in _SUBJECT_KEYS if first["configuration"][key] is not None
    }
    return of_configuration | {"device": "GPU"} | _price(first)


def _price(prediction: Keys) -> Keys:
    """Return the price of a device, which version 1 does not tell, from that of an epoch."""
    cost, epoch = prediction["epoch_usd"], prediction["epoch_s"]
    if not (cost and epoch and cost["value"] and epoch["value"]):
        return {}
    price = cost["value"] * 3600 / (epoch["value"] * prediction["configuration"]["gpus"])
    return {"usd_per_gpu_hour": float(f"{price:.12g}")}


def _warnings(first: Iterable[Keys], lists: Mapping[str, Mapping[int, list[Keys]]]) -> list[Keys]:
    """Return each warning once, with the positions in each list of what it is of unless it is of all."""
    by_place = {key: {at: _records(warnings) for at, warnings in rows.items()} for key, rows in lists.items()}
    rows = warning_keys(_records(first), by_place)
    return [
        _without_empty({**row, "also": [_without_empty(one) for one in row["also"]] if row["also"] else None})
        for row in rows
    ]


def _records(warnings: Iterable[Keys]) -> list[PlanWarning]:
    return [PlanWarning(**warning) for warning in warnings]
