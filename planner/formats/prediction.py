"""Predictions as documents (JSON).

History, newest first
---------------------
prediction 1, predictions 1 : first versions; those without ``kernel_shares`` are older.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from planner.domain.configuration import LARGEST_MINI_BATCH, MODES, OPTIMIZERS, STRATEGIES, Configuration
from planner.domain.precision import PRECISIONS, gradient_bytes
from planner.domain.prediction import LOOKUPS, Prediction, Quantity
from planner.domain.request import Subject
from planner.formats.fields import Field, ListOf, MapOf, Nullable, Table
from planner.formats.kinds import Kind
from planner.formats.values import Flag, Number, Text, Whole

__all__ = [
    "CONFIGURATION_TABLE",
    "PREDICTION",
    "PREDICTIONS",
    "PREDICTION_TABLE",
    "WARNING_TABLE",
    "configuration_keys",
    "prediction_document",
    "prediction_keys",
    "predictions_document",
]

_MAYBE = Nullable(Number())
_PROBABILITY = Number()
_PRODUCT = Whole(most=10**18)
_BYTES = Whole(least=0, most=10**18)
CONFIGURATION_TABLE = Table(
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
        Field("strategy", Text(STRATEGIES), "what overlaps in a synchronous step"),
        Field("input", Text(("storage", "synthetic")), "where samples come from"),
        Field("framework", Text(), "training framework"),
    ),
    dict[str, Any],
    title="configuration",
)
_QUANTITY = Table(
    (
        Field("value", _MAYBE, "the prediction"),
        Field("low", _MAYBE, "lower end of the central 90 % interval"),
        Field("high", _MAYBE, "upper end"),
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
WARNING_TABLE = Table(
    (
        Field("code", Text(), "for programs"),
        Field("subject", Text(empty=True), "what it is about"),
        Field("message", Text(), "for people"),
    ),
    dict[str, Any],
    title="warning",
)
_MEMORY = ("weights", "gradients", "optimizer", "activations", "workspace", "framework", "total", "capacity")
PREDICTION_TABLE = Table(
    (
        Field("configuration", CONFIGURATION_TABLE, "what is predicted"),
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
        Field("warnings", ListOf(WARNING_TABLE), "what a reader should know"),
    ),
    dict[str, Any],
    title="prediction",
)
PREDICTION = Kind("prediction", 1, "json", PREDICTION_TABLE)
PREDICTIONS = Kind(
    "predictions",
    1,
    "json",
    Table((Field("predictions", ListOf(PREDICTION_TABLE), "in the order of the options"),), dict[str, Any]),
)


def prediction_document(subject: Subject, prediction: Prediction) -> dict[str, Any]:
    """Return the document of one prediction."""
    return PREDICTION.document(prediction_keys(subject, prediction))


def predictions_document(predictions: Iterable[tuple[Subject, Prediction]]) -> dict[str, Any]:
    """Return the document of predictions and what each is about, in their order."""
    return PREDICTIONS.document({"predictions": [prediction_keys(*one) for one in predictions]})


def configuration_keys(subject: Subject, configuration: Configuration) -> dict[str, Any]:
    """Return the keys of a configuration, with those of what it is about."""
    c = configuration
    return asdict(subject.settings) | {
        "network": subject.network,
        "cluster": subject.cluster,
        "scenario": subject.scenario or None,
        "gradient_bytes_per_element": gradient_bytes(c.precision, subject.settings.framework),
        "nodes": c.nodes,
        "gpus_per_node": c.gpus_per_node,
        "gpus": c.gpus,
        "precision": c.precision,
        "mode": c.mode,
        "parallelism": "data",
        "data_parallel": c.gpus,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "virtual_stages": 1,
        "sub_batch": c.sub_batch,
        "accumulation_steps": c.accumulation_steps,
        "mini_batch": None if c.mode == "async" else c.samples_per_update,
        "recompute": "none",
        "sharding": 0,
    }


def prediction_keys(subject: Subject, prediction: Prediction) -> dict[str, Any]:
    """Return the keys of a prediction: those of its document, but format and version."""
    p = prediction
    return {
        "configuration": configuration_keys(subject, p.configuration),
        "iteration_s": _quantity_keys(p.iteration_s),
        "update_s": _quantity_keys(p.update_s),
        "epoch_s": _quantity_keys(p.epoch_s),
        "first_epoch_s": _quantity_keys(p.first_epoch_s),
        "epoch_usd": _quantity_keys(p.epoch_usd(subject.usd_per_gpu_hour)),
        "samples_per_s": _quantity_keys(p.samples_per_s),
        "mini_batch": p.mini_batch,
        "staleness": p.staleness,
        "memory_bytes": {kind: round(size) for kind, size in p.memory_bytes.items()},
        "terms": p.terms,
        "kernel_shares": p.kernel_shares,
        "bottleneck": p.bottleneck,
        "warnings": p.warnings,
    }


def _quantity_keys(quantity: Quantity | None) -> Mapping[str, Any] | None:
    if quantity is None:
        return None
    ends = (quantity.low, quantity.high)
    both = all(end is not None and math.isfinite(end) for end in (quantity.value, *ends))
    low, high = ends if both else (None, None)
    basis = quantity.interval_basis if both else "none"
    return {"value": quantity.value, "low": low, "high": high, "interval_basis": basis}
