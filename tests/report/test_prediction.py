from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration
from planner.domain.prediction import MiniBatch, Prediction, Quantity, Staleness
from planner.domain.request import Sourced
from planner.report.blocks import Block
from planner.report.prediction import prediction_view, predictions_view

Printed = Callable[[Iterable[Block]], str]
Values = dict[str, Sourced[object]]


def test_a_prediction_shows_time_with_mini_batch_and_staleness(
    prediction: Prediction, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    text = printed(prediction_view(prediction, request_values, [calibration]))
    assert text.splitlines()[0] == "sprint-15 on tsubame-kfc: 8 nodes x 8 GPUs, sub-batch 8, fp32, asynchronous"
    words = " ".join(text.split())
    assert "epoch 1779 s (1650 s to 1920 s)" in words
    assert "mini-batch 165.1 ± 12 samples, 90 % between 144 and 186; 73% of updates inside the window" in words
    assert "staleness 1.31 updates on average (1: 69%, 2: 31%)" in words
    assert "memory 1.125 GiB of 12 GiB on one GPU: activations 1 GiB, weights 64 MiB, gradients 64 MiB" in words
    assert "update all reduce 87.6 ms 87.6 ms 69.0% reconstructed tsubame-kfc" in words
    assert "tsubame-kfc reconstructed, Oyama et al. 2016, 2016-08-01" in words
    assert "in_sample (tsubame-kfc): made from the figures that it is compared with" in words
    assert "sub batch 1:11 default request" in words


def test_an_extrapolated_term_says_so(
    prediction: Prediction, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    marked = " ".join(printed(prediction_view(prediction, request_values, [calibration])).split())
    assert "extrapolated" in marked
    known = replace(prediction, terms=tuple(replace(term, extrapolated=False) for term in prediction.terms))
    assert "extrapolated" not in printed(prediction_view(known, request_values, [calibration]))


def test_a_synchronous_prediction_has_no_distributions(
    prediction: Prediction, request_values: Values, printed: Printed
) -> None:
    sync = replace(
        prediction,
        configuration=Configuration(1, 1, 8, 4, "fp16"),
        update_s=None,
        epoch_s=Quantity(20000.0),
        first_epoch_s=Quantity(21000.0),
        mini_batch=MiniBatch(32, 0, 32, 32),
        staleness=Staleness(0, 0, {0: 1.0}),
    )
    text = printed(prediction_view(sync, request_values, []))
    words = " ".join(text.split())
    assert "1 node x 1 GPU, sub-batch 8, accumulation 4, fp16, synchronous" in words
    assert "epoch 20,000 s first epoch 21,000 s iteration" in words
    assert "mini-batch 32 samples staleness 0 updates" in words
    assert "±" not in text


def test_without_a_data_set_the_table_shows_samples_per_second(
    without_dataset: Prediction, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    text = printed(predictions_view([without_dataset] * 2, request_values, [calibration]))
    assert "samples/s" in text
    assert "epoch" not in text
    assert [line.split()[0] for line in text.splitlines()[3:5]] == ["1", "2"]


def test_intervals_stand_beside_times_in_per_cent(
    prediction: Prediction, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    slow = replace(prediction, epoch_s=Quantity(74467.0, 71000.0, 78000.0, "covariance"))
    rows = printed(predictions_view([prediction, slow], request_values, [calibration])).splitlines()[3:5]
    assert [" ".join(row.split()[-6:]) for row in rows] == ["1779 s -7% +8% 1.12 GiB", "74,467 s -5% +5% 1.12 GiB"]


def test_more_memory_than_there_is_is_marked(
    prediction: Prediction, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    large = replace(prediction, memory_bytes={"total": 13 * 2.0**30, "capacity": 12 * 2.0**30})
    text = printed(predictions_view([prediction, large], request_values, [calibration]))
    assert ["13 GiB !" in line for line in text.splitlines()[3:5]] == [False, True]


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_wider_than_80_columns(
    count: int, prediction: Prediction, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    wide = replace(prediction, configuration=Configuration(1408, 16, 1024, mode="sync", accumulation_steps=64))
    for view in (
        predictions_view([wide] * count, request_values, [calibration]),
        prediction_view(wide, request_values, [calibration]),
    ):
        text = printed(view)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
