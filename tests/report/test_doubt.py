from dataclasses import replace

import pytest

from planner.domain.configuration import Configuration
from planner.domain.prediction import LOOKUPS, PlanWarning, Prediction, Quantity
from planner.domain.request import Subject
from planner.report.doubt import goodness

PERIOD = Quantity(0.1, 0.05, 0.2, "covariance")
RUN, LAYERS = "planner calibrate --plan plan.json", "planner calibrate --network sprint-15"


@pytest.fixture
def measured(prediction: Prediction) -> Prediction:
    """Return a prediction of one node that rests on no reconstruction."""
    terms = tuple(replace(term, origins=("measured",)) for term in prediction.terms)
    return replace(prediction, configuration=Configuration(1, 8, 8), terms=terms, iteration_s=PERIOD)


def shares(**of: float) -> dict[str, float]:
    return dict.fromkeys(LOOKUPS, 0.0) | of


CAUSES = [
    ({"overheads": 0.9}, {}, "the error on measured steps"),
    (
        {"collectives": 0.6, "kernels": 0.4},
        {},
        "because messages between GPUs of tsubame-kfc were measured with some error",
    ),
    ({"storage": 1.0}, {}, "because reading and copying samples was not measured"),
    ({"host": 1.0}, {}, "because copies between host and device were not measured"),
    ({"kernels": 1.0}, {"regression": 1.0}, "because the layers of sprint-15 were not timed"),
    ({"kernels": 1.0}, {"exact": 0.3, "regression": 0.7}, "because only some layers of sprint-15 were timed"),
    ({"kernels": 1.0}, {"specification": 0.6, "exact": 0.4}, "because most kernel times come from data sheets"),
    ({"kernels": 1.0}, {"sibling": 0.6, "exact": 0.4}, "because most kernel times are those of another GPU"),
    ({}, {}, "because every part is uncertain"),
]


@pytest.mark.parametrize(("doubt", "kernels", "why"), CAUSES)
def test_the_largest_part_of_the_variance_is_named(
    doubt: dict[str, float], kernels: dict[str, float], why: str, measured: Prediction, subject: Subject
) -> None:
    one = replace(measured, doubt=doubt, kernel_shares=shares(**kernels))
    assert goodness(one, subject).text == f"90% interval: a factor of 2.0 either way, {why}. To narrow it: `{LAYERS}`"


def test_a_framework_that_was_not_measured_here_is_said(measured: Prediction, subject: Subject) -> None:
    pooled = PlanWarning("framework_overheads_pooled", "pytorch", "of other GPUs")
    one = replace(measured, doubt={"overheads": 1.0}, warnings=(pooled,))
    assert "because steps of pytorch were not measured on this GPU." in goodness(one, subject).text
    several = replace(one, configuration=Configuration(2, 8, 8))
    assert "steps of pytorch on several nodes were not measured on this GPU." in goodness(several, subject).text
    assert "on this CPU." in goodness(one, replace(subject, device="CPU")).text


def test_a_reconstruction_is_said_first(prediction: Prediction, subject: Subject) -> None:
    text = goodness(replace(prediction, doubt={"kernels": 1.0}), subject).text
    assert text.startswith("90% interval: a factor of 1.1 either way, from a reconstruction of published results.")


def test_layers_are_timed_before_runs_of_the_plan(measured: Prediction, subject: Subject) -> None:
    for own, command in ((0.49, LAYERS), (0.51, RUN)):
        one = replace(measured, doubt={"overheads": 1.0}, kernel_shares=shares(between=own, regression=1 - own))
        assert goodness(one, subject, is_kept=True).text.endswith(f"To narrow it: `{command}`")
        alone = goodness(one, subject).text  # no file keeps the plan: there are no runs of it
        assert alone.endswith("measured steps.") == (command == RUN)


def test_a_network_of_a_file_is_named_as_the_option_takes_it(measured: Prediction, subject: Subject) -> None:
    one = replace(measured, doubt={"kernels": 1.0}, kernel_shares=shares(regression=1.0))
    text = goodness(one, replace(subject, network_option="my net.toml")).text
    assert "the layers of sprint-15 were" in text
    assert text.endswith("To narrow it: `planner calibrate --network 'my net.toml'`")


def test_without_an_interval_nothing_is_claimed(measured: Prediction, subject: Subject) -> None:
    text = goodness(replace(measured, iteration_s=Quantity(0.1)), subject).text
    assert text == (f"Accuracy unknown: no part of it was compared with measured runs. To narrow it: `{LAYERS}`")
