from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from planner.domain.configuration import Configuration
from planner.domain.prediction import LOOKUPS, Citation, MiniBatch, Prediction, Quantity, Staleness
from planner.domain.request import Sourced, Subject
from planner.report.blocks import Block
from planner.report.prediction import figures, lookups, prediction_details, prediction_rest

Printed = Callable[[Iterable[Block]], str]
Values = dict[str, Sourced[object]]
CITED = [Citation("tsubame-kfc", "reconstructed", "Oyama et al. 2016", "2016-08-01")]


def test_every_figure_stands_with_its_interval(prediction: Prediction, subject: Subject, printed: Printed) -> None:
    lines = printed([figures(prediction, replace(subject, usd_per_gpu_hour=1.5))]).splitlines()
    # 64 GPUs for 1779.2 s (1650 to 1920) at 1.5 USD an hour
    assert lines == [
        "epoch                   29.7 min (27.5 to 32.0 min)",
        "cost of an epoch        47.4 USD (44.0 to 51.2)",
        "GPU thread's period     735 ms (682 to 793 ms)",
        "update thread's period  229.3 ms",
        "speed                   720 samples/s (667 to 776)",
        "mini-batch              165 ± 12 samples, 90% between 144 and 186; 73% of",
        "                        updates inside the window",
        "staleness               1.31 updates on average (1: 69%, 2: 31%)",
        "memory                  1.125 GiB of 12 GiB on one GPU: activations 1 GiB,",
        "                        weights 64 MiB, gradients 64 MiB",
        "bottleneck              all-reduce",
        "intervals               90%, from the errors of the fits",
    ]


def test_terms_stand_with_their_calibrations_and_these_with_their_sources(
    prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    text = printed(prediction_details(prediction, subject, CITED))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    at = lines.index("Terms")
    assert lines[at + 1] == "thread term takes adds share origin calibration"
    assert "update all-reduce 87.6 ms 87.6 ms 69.0% reconstructed tsubame-kfc" in lines
    assert "extrapolated" in text
    at = lines.index("Where the times come from")
    assert lines[at + 1 : at + 3] == [
        "tsubame-kfc reconstructed, Oyama et al. 2016, 2016-08-01",
        "specified update gradient: from stated figures of the hardware",
    ]


def test_the_kernel_time_is_told_by_how_it_was_found(prediction: Prediction, printed: Printed) -> None:
    shares = dict.fromkeys(LOOKUPS, 0.0) | {"exact": 0.25, "between": 0.7499, "specification": 0.0001}
    one = replace(prediction, kernel_shares=shares)
    other = replace(one, kernel_shares=shares | {"exact": 0.35, "between": 0.65, "specification": 0.0})
    said = "Kernel time: 25.0% exact calls, 75.0% between sub-batches, <0.1% specification"
    assert said in printed(lookups([one]))
    both = "Kernel time: 25.0% to 35.0% exact calls, 65.0% to 75.0% between sub-batches,"
    assert both in printed(lookups([one, prediction, other]))
    assert printed(lookups([prediction])) == ""


def test_a_synchronous_prediction_has_no_distributions(
    prediction: Prediction, subject: Subject, printed: Printed
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
    words = " ".join(printed([figures(sync, subject)]).split())
    assert words.startswith("epoch 5.556 h first epoch 5.833 h iteration 735 ms")
    assert "mini-batch 32 samples staleness 0 updates" in words
    assert "±" not in words


def test_answers_about_a_cpu_name_no_gpu(prediction: Prediction, subject: Subject, printed: Printed) -> None:
    on_cpu = replace(subject, device="CPU")
    text = printed(prediction_rest([(on_cpu, prediction)], {}, []))
    assert "8 nodes x 8 CPUs" in text
    assert "CPU thread's period" in text
    assert "CPU     load input" in text
    assert "gpu" not in text.lower()


def test_a_mixed_precision_says_once_how_large_its_gradients_are(
    prediction: Prediction, subject: Subject, printed: Printed
) -> None:
    mixed = replace(prediction, configuration=Configuration(8, 8, 8, 1, "bf16", "async"))
    words = "bf16: mixed precision, fp32 master weights, gradients sent as 4 bytes an element"
    assert " ".join(printed(prediction_details(mixed, subject, [])).split()).count(words) == 1
    assert "master" not in printed(prediction_details(prediction, subject, []))


def test_the_rest_is_every_prediction_and_the_values_they_rest_on(
    prediction: Prediction, subject: Subject, request_values: Values, printed: Printed
) -> None:
    values: Values = {**request_values, "top": Sourced(5, "default")}
    other = replace(subject, scenario="edr")
    lines = printed(prediction_rest([(subject, prediction), (other, prediction)], values, CITED)).splitlines()
    plan = "8 nodes x 8 GPUs, sub-batch 8, fp32,"
    assert lines[1] == f"sprint-15 on tsubame-kfc: {plan} asynchronous"
    assert f"sprint-15 on tsubame-kfc, scenario edr: {plan}" in lines
    assert lines[-1] == "defaults  scenario none; top 5"
    assert ["network", "sprint-15", "default", "request"] in [line.split() for line in lines]
    assert ["sub-batch", "1:11", "default", "request"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 80


BASES = [
    ("assumed", "one_gpu_measured_outside", "intervals 90%, partly from stated assumptions"),
    ("covariance", "one_gpu_measured", "intervals 90%, from the errors of the fits"),
    (
        "conformal",
        "one_gpu_measured",
        "intervals 90%, from the errors on measured runs (conformal): one GPU, kernels measured",
    ),
    (
        "conformal",
        "several_nodes_scaled_outside",
        "kernels scaled from another GPU or precision, outside the",
    ),
]


@pytest.mark.parametrize(("basis", "kind", "words"), BASES)
def test_what_an_interval_rests_on_is_said(
    basis: str, kind: str, words: str, prediction: Prediction, printed: Printed
) -> None:
    subject = Subject("sprint-15", "tsubame-kfc")
    known = replace(prediction, iteration_s=Quantity(0.7, 0.6, 0.8, basis), kind=kind)
    text = " ".join(printed([figures(known, subject)]).split())
    assert words in text
    assert ("outside the measured range" in text) == ("outside" in words)


def test_without_an_interval_nothing_is_said_of_one(prediction: Prediction, subject: Subject, printed: Printed) -> None:
    unknown = replace(prediction, iteration_s=Quantity(0.7), kind="one_gpu_measured")
    assert "intervals" not in printed([figures(unknown, subject)])
