"""Keys of predictions: what is left out when, and what counts are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.domain.configuration import Configuration
from planner.domain.framework import PYTORCH, Framework
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import LOOKUPS, PlanWarning, Prediction, Quantity
from planner.domain.request import Subject
from planner.errors import InputFileError
from planner.formats.documents import dump_json
from planner.formats.parts import configuration_keys
from planner.formats.prediction import PREDICTION, prediction_document, predictions_document

SUBJECT = {
    "network", "cluster", "scenario", "device", "memory_bytes", "usd_per_gpu_hour", "optimizer", "strategy", "input",
    "framework", "parallelism", "virtual_stages", "recompute", "sharding",
}  # fmt: skip
CONFIGURATION = {
    "nodes", "gpus_per_node", "gpus", "precision", "mode", "data_parallel", "sub_batch", "accumulation_steps",
}  # fmt: skip


def test_synchronous_mini_batch_is_the_product_and_asynchronous_a_distribution(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    sync = prediction_document(subject, prediction("sync"))
    assert sync["configuration"]["mini_batch"] == 4 * 2 * 8
    assert not {"update_s", "staleness"} & sync.keys()
    asynchronous = prediction_document(subject, prediction("async"))
    assert "mini_batch" not in asynchronous["configuration"]
    assert asynchronous["mini_batch"]["mean"] == 64.0
    assert asynchronous["update_s"]["value"] == 0.2
    assert asynchronous["staleness"] == {"mean": 1.5, "pmf": {"1": 0.5, "2": 0.5}}


def test_subject_and_configuration_say_all_of_it_once(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    document = prediction_document(subject, prediction("sync"))
    assert set(document["subject"]) == SUBJECT
    assert set(document["configuration"]) == CONFIGURATION | {"mini_batch"}
    known = {"network": "alexnet", "cluster": "example", "scenario": "edr", "optimizer": "adam", "input": "synthetic"}
    assert known.items() <= document["subject"].items()


@pytest.mark.parametrize(("framework", "bytes_of_mixed"), [(Framework("megatron-lm"), 2), (PYTORCH, 4)])
def test_gradient_bytes_are_those_of_precision_and_framework(framework: Framework, bytes_of_mixed: int) -> None:
    sizes = {name: configuration_keys(Configuration(1, 1, 1, 1, name), framework) for name in PRECISIONS}
    stated = {name: keys["gradient_bytes_per_element"] for name, keys in sizes.items()}
    assert stated == {"fp32": 4, "tf32": 4} | dict.fromkeys(("fp16", "bf16", "fp8", "int8"), bytes_of_mixed)


def test_an_epoch_costs_its_gpu_hours(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    one = replace(prediction("sync"), epoch_s=Quantity(1000.0, 900.0, 1200.0, "assumed"))
    # 4 nodes x 2 GPUs at 3.6 USD an hour: 0.008 USD a second.
    assert prediction_document(subject, one)["epoch_usd"] == {"value": pytest.approx(8.0)}
    assert "epoch_usd" not in prediction_document(replace(subject, usd_per_gpu_hour=None), one)
    assert "epoch_usd" not in prediction_document(subject, replace(one, epoch_s=None))


def test_every_way_to_find_a_kernels_time_has_its_share(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    assert "kernel_shares" not in prediction_document(subject, prediction("sync"))
    shares = dict(zip(LOOKUPS, (0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125), strict=True))
    one = replace(prediction("sync"), kernel_shares=shares)
    document = prediction_document(subject, one)
    assert PREDICTION.build(document, "x")["kernel_shares"] == document["kernel_shares"] == shares
    wrong: dict[str, object] = dict(shares) | {"regression": "most"}
    with pytest.raises(InputFileError, match=r"kernel_shares\.regression"):
        PREDICTION.build(document | {"kernel_shares": wrong}, "x")


def test_interval_has_both_ends_or_neither(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    one = replace(prediction("sync"), iteration_s=Quantity(0.5, 0.4, None, "assumed"))
    found = prediction_document(subject, one)["iteration_s"]
    assert found == {"value": 0.5}


def test_nan_never_reaches_json(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    one = replace(prediction("sync"), epoch_s=Quantity(math.nan, math.nan, math.inf, "assumed"))
    text = dump_json(prediction_document(subject, one))
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["epoch_s"] == {"value": None, "interval_basis": "none"}


def test_ends_that_follow_are_left_out_and_others_told(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    """An iteration of 0.5 s, 0.4 to 0.6: epochs scale with it, samples a second against it."""
    follows = replace(
        prediction("sync"),
        epoch_s=Quantity(1000.0, 800.0, 1200.0, "assumed"),
        first_epoch_s=Quantity(1000.0, 800.0, 1200.0, "assumed"),
        samples_per_s=Quantity(128.0, 128.0 / 1.2, 160.0, "assumed"),
    )
    document = prediction_document(subject, follows)
    assert document["epoch_s"] == {"value": 1000.0}
    assert document["samples_per_s"] == {"value": 128.0}
    assert "first_epoch_s" not in document
    other = prediction_document(
        subject, replace(follows, epoch_s=Quantity(1000.0, 800.0, 1201.0, "assumed"), first_epoch_s=Quantity(1100.0))
    )
    assert other["epoch_s"] == {"value": 1000.0, "low": 800.0, "high": 1201.0, "interval_basis": "assumed"}
    assert other["first_epoch_s"] == {"value": 1100.0, "interval_basis": "none"}


def test_terms_name_their_source_once_and_leave_out_what_takes_no_time(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    (forward,) = prediction("sync").terms
    hidden = replace(
        forward, name="all_reduce", exposed_seconds=0.1, share=0.2, origins=("specified",), calibrations=()
    )
    none = replace(forward, name="load_input", seconds=0.0, exposed_seconds=0.0, share=0.0)
    document = prediction_document(subject, replace(prediction("sync"), terms=(none, forward, hidden)))
    assert document["terms"] == [
        {"name": "forward", "seconds": 0.3},
        {"name": "all_reduce", "seconds": 0.3, "exposed_seconds": 0.1, "source": 1},
    ]
    assert document["sources"] == [{"origin": "measured", "calibration": "imagined"}, {"origin": "specified"}]


def test_predictions_keep_their_order_and_share_their_subject(
    prediction: Callable[[str], Prediction], subject: Subject
) -> None:
    other = replace(subject, network="vgg16", scenario="")
    warning = PlanWarning("extrapolated", "forward", "beyond")
    second = replace(prediction("async"), warnings=(*prediction("async").warnings, warning))
    document = predictions_document([(subject, prediction("sync")), (other, second)])
    assert document["format"] == "planner/predictions"
    assert [one["configuration"]["mode"] for one in document["predictions"]] == ["sync", "async"]
    assert [one["subject"] for one in document["predictions"]] == [
        {"network": "alexnet", "scenario": "edr"},
        {"network": "vgg16"},
    ]
    assert set(document["subject"]) == SUBJECT - {"network", "scenario"}
    assert "format" not in document["predictions"][0]
    assert [one.get("predictions") for one in document["warnings"]] == [None, [2]]


def test_bytes_are_whole_numbers(prediction: Callable[[str], Prediction], subject: Subject) -> None:
    one = replace(prediction("sync"), memory_bytes=dict.fromkeys(prediction("sync").memory_bytes, 1e9 + 0.25))
    document = prediction_document(subject, one)
    found = {**document["memory_bytes"], "capacity": document["subject"]["memory_bytes"]}
    assert {type(size) for size in found.values()} == {int}
    assert set(found.values()) == {10**9}
