from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration
from planner.domain.prediction import LOOKUPS, MiniBatch, Prediction, Quantity, Staleness
from planner.domain.request import Sourced, Subject
from planner.report.blocks import Block
from planner.report.prediction import overview, prediction_view, predictions_view

Printed = Callable[[Iterable[Block]], str]
Values = dict[str, Sourced[object]]


def test_a_prediction_shows_time_with_mini_batch_and_staleness(
    prediction: Prediction, subject: Subject, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    text = printed(prediction_view(prediction, subject, request_values, [calibration]))
    assert text.splitlines()[0] == "sprint-15 on tsubame-kfc: 8 nodes x 8 GPUs, sub-batch 8, fp32, asynchronous"
    words = " ".join(text.split())
    assert "epoch 1779 s (1650 s to 1920 s)" in words
    assert "mini-batch 165.1 ± 12 samples, 90 % between 144 and 186; 73% of updates inside the window" in words
    assert "staleness 1.31 updates on average (1: 69%, 2: 31%)" in words
    assert "memory 1.125 GiB of 12 GiB on one GPU: activations 1 GiB, weights 64 MiB, gradients 64 MiB" in words
    assert "update all reduce 87.6 ms 87.6 ms 69.0% reconstructed tsubame-kfc" in words
    assert "tsubame-kfc reconstructed, Oyama et al. 2016, 2016-08-01" in words
    assert "in_sample (tsubame-kfc): made from the figures that it is compared with" in words
    assert "sub-batch 1:11 default request" in words


def test_the_kernel_time_is_told_by_how_it_was_found(
    prediction: Prediction, subject: Subject, request_values: Values, printed: Printed
) -> None:
    shares = dict.fromkeys(LOOKUPS, 0.0) | {"exact": 0.25, "between": 0.7499, "specification": 0.0001}
    one, without = replace(prediction, kernel_shares=shares), prediction
    other = replace(one, kernel_shares=shares | {"exact": 0.35, "between": 0.65, "specification": 0.0})
    said = "Kernel time: 25.0% exact calls, 75.0% between sub-batches, <0.1% specification"
    assert said in printed(prediction_view(one, subject, request_values, []))
    both = "Kernel time: 25.0% to 35.0% exact calls, 65.0% to 75.0% between sub-batches,"
    assert both in printed(predictions_view([one, without, other], subject, request_values, []))
    assert "Kernel time" not in printed(prediction_view(without, subject, request_values, []))


def test_an_extrapolated_term_says_so(
    prediction: Prediction, subject: Subject, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    marked = " ".join(printed(prediction_view(prediction, subject, request_values, [calibration])).split())
    assert "extrapolated" in marked
    known = replace(prediction, terms=tuple(replace(term, extrapolated=False) for term in prediction.terms))
    assert "extrapolated" not in printed(prediction_view(known, subject, request_values, [calibration]))


def test_a_synchronous_prediction_has_no_distributions(
    prediction: Prediction, subject: Subject, request_values: Values, printed: Printed
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
    text = printed(prediction_view(sync, subject, request_values, []))
    words = " ".join(text.split())
    assert "1 node x 1 GPU, sub-batch 8, accumulation 4, fp16, synchronous" in words
    assert "epoch 20,000 s first epoch 21,000 s iteration" in words
    assert "mini-batch 32 samples staleness 0 updates" in words
    assert "±" not in text


def test_without_a_data_set_the_table_shows_samples_per_second(
    without_dataset: Prediction, subject: Subject, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    text = printed(predictions_view([without_dataset] * 2, subject, request_values, [calibration]))
    assert "samples/s" in text
    assert "epoch" not in text
    assert [line.split()[0] for line in text.splitlines()[3:5]] == ["1", "2"]


def test_intervals_stand_beside_times_in_per_cent(
    prediction: Prediction, subject: Subject, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    slow = replace(prediction, epoch_s=Quantity(74467.0, 71000.0, 78000.0, "covariance"))
    rows = printed(predictions_view([prediction, slow], subject, request_values, [calibration])).splitlines()[3:5]
    assert [" ".join(row.split()[-7:-1]) for row in rows] == ["1779 s -7% +8% 1.12 GiB", "74,467 s -5% +5% 1.12 GiB"]


def test_rows_that_extrapolate_or_exceed_the_memory_are_marked(
    prediction: Prediction, subject: Subject, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    known = replace(prediction, terms=tuple(replace(term, extrapolated=False) for term in prediction.terms))
    large = {"total": 13 * 2.0**30, "capacity": 12 * 2.0**30}
    rows = [known, prediction, replace(known, memory_bytes=large), replace(prediction, memory_bytes=large)]
    lines = printed(predictions_view(rows, subject, request_values, [calibration])).splitlines()
    assert [line.rpartition("GiB")[2].strip() for line in lines[3:7]] == ["", "*", "!", "*!"]
    legend = ["* extrapolated: a time lies outside what was fitted", "! needs more memory than one GPU has"]
    assert lines[7:9] == legend
    plain = printed(predictions_view([known, known], subject, request_values, [calibration]))
    assert not [one for one in legend if one in plain]


def test_answers_about_a_cpu_name_no_gpu(
    prediction: Prediction, subject: Subject, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    on_cpu = replace(subject, device="CPU")
    large = replace(prediction, memory_bytes={"total": 13 * 2.0**30, "capacity": 12 * 2.0**30})
    one = printed(prediction_view(large, on_cpu, request_values, [calibration]))
    many = printed(predictions_view([large, large], on_cpu, request_values, [calibration]))
    both = printed(overview([(on_cpu, large), (on_cpu, None)]))
    assert "8 nodes x 8 CPUs" in one
    assert "13 GiB of 12 GiB on one CPU" in " ".join(one.split())
    assert "CPU thread's period" in one
    assert "x CPUs" in many
    assert "! needs more memory than one CPU has" in many
    assert not [text for text in (one, many, both) if "GPU" in text]


def test_what_no_calibration_gives_says_where_it_is_from(
    prediction: Prediction, subject: Subject, request_values: Values, calibration: Calibration, printed: Printed
) -> None:
    text = printed(prediction_view(prediction, subject, request_values, [calibration]))
    assert "specified    update gradient: from stated figures of the hardware" in text
    assert "no calibration" not in text


@pytest.mark.parametrize("usd_per_gpu_hour", [None, 123.0])
def test_nothing_is_wider_than_80_columns(
    usd_per_gpu_hour: float | None,
    prediction: Prediction,
    subject: Subject,
    request_values: Values,
    printed: Printed,
) -> None:
    epoch = Quantity(74467.0, 71000.0, 78000.0, "covariance")
    wide = replace(prediction, configuration=Configuration(1408, 16, 1024, 64), epoch_s=epoch)
    priced = replace(subject, usd_per_gpu_hour=usd_per_gpu_hour)
    for view in (
        predictions_view([wide], priced, request_values, []),
        predictions_view([wide] * 10, priced, request_values, []),
        prediction_view(wide, priced, request_values, []),
        overview([(priced, wide), (replace(priced, scenario="inter_node.bandwidth=12.5GB/s"), None)]),
    ):
        text = printed(view)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_a_price_shows_what_an_epoch_costs(
    prediction: Prediction, subject: Subject, request_values: Values, printed: Printed
) -> None:
    # 64 GPUs for 1779.2 s (1650 to 1920) at 1.5 USD an hour
    priced = replace(subject, usd_per_gpu_hour=1.5)
    words = " ".join(printed(prediction_view(prediction, priced, request_values, [])).split())
    assert "cost of an epoch 47.45 (44 to 51.2) USD" in words
    assert "47.45" in printed(predictions_view([prediction] * 2, priced, request_values, [])).splitlines()[4]
    assert "USD" not in printed(predictions_view([prediction] * 2, subject, request_values, []))


def test_a_mixed_precision_says_how_large_its_gradients_are(
    prediction: Prediction, subject: Subject, request_values: Values, printed: Printed
) -> None:
    mixed = replace(prediction, configuration=Configuration(8, 8, 8, 1, "bf16", "async"))
    words = "bf16: mixed precision, fp32 master weights, gradients sent as 4 bytes an element"
    for view in (
        prediction_view(mixed, subject, request_values, []),
        predictions_view([prediction, mixed, mixed], subject, request_values, []),
    ):
        assert " ".join(printed(view).split()).count(words) == 1
    assert "master" not in printed(prediction_view(prediction, subject, request_values, []))


def test_plain_defaults_stand_together(
    prediction: Prediction, subject: Subject, request_values: Values, printed: Printed
) -> None:
    values: Values = {**request_values, "top": Sourced(5, "default")}
    lines = printed(prediction_view(prediction, subject, values, [])).splitlines()
    assert lines[-1] == "defaults  scenario none; top 5"
    assert ["network", "sprint-15", "default", "request"] in [line.split() for line in lines]


def test_several_answers_are_told_apart(
    prediction: Prediction, without_dataset: Prediction, subject: Subject, printed: Printed
) -> None:
    answers = [(subject, prediction), (replace(subject, scenario="edr"), None), (subject, without_dataset)]
    lines = [" ".join(line.split()) for line in printed(overview(answers)).splitlines()]
    assert lines[0] == "3 answers on tsubame-kfc"
    assert any(line.startswith("sprint-15 none 8 nodes x 8 GPUs") and line.endswith("1779 s") for line in lines)
    assert "sprint-15 edr no plan fits - -" in lines
    assert "samples/s" in " ".join(lines)


BASES = [
    ("assumed", "one_gpu_measured_outside", "intervals 90 %, in part by stated assumptions"),
    ("covariance", "one_gpu_measured", "intervals 90 %, by the errors of the fits"),
    ("conformal", "one_gpu_measured", "intervals 90 %, scaled by what predictions of measured runs missed (conformal)"),
    ("conformal", "one_gpu_measured_outside", "missed (conformal); wider, as outside of what was seen"),
]


def test_what_an_interval_rests_on_is_said(
    prediction: Prediction, subject: Subject, request_values: Values, printed: Printed
) -> None:
    for basis, kind, words in BASES:
        known = replace(prediction, iteration_s=Quantity(0.7, 0.6, 0.8, basis), kind=kind)
        text = " ".join(printed(prediction_view(known, subject, request_values, [])).split())
        assert words in text
        assert ("wider" in text) == ("wider" in words)
    unknown = replace(prediction, iteration_s=Quantity(0.7), kind="one_gpu_measured")
    assert "intervals 90 %" not in " ".join(printed(prediction_view(unknown, subject, request_values, [])).split())
