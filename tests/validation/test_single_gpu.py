"""The table of steps on one GPU: coefficients from made steps, what is left out, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from planner import catalog
from planner.domain.arrays import FloatArray
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.request import Problem
from planner.fitting.observed import AloneSteps, Observed, without_end_to_end
from planner.sources.overheads import EXPONENTS
from validation import single_gpu
from validation.single_gpu_page import summary_of
from validation.single_gpu_rows import (
    Group,
    Steps,
    Two,
    family_of,
    fit_two,
    groups_of,
    measured_steps,
    whole_fits,
)

TRUTH = Two(1.15, 25e-6)
SUB_BATCHES = (1, 4, 16, 64)


def steps_of(network: str, truth: Two = TRUTH, factor: float = 1.0) -> Steps:
    """Return steps that take what the model says under known coefficients, times a factor."""
    where = catalog.find_cluster("dgx1-v100")
    calibrations = without_end_to_end(catalog.calibrations_for(where))
    settings = Settings(input="synthetic", framework=Framework.labelled("mxnet@1"))
    problem = Problem(catalog.find_network(network), None, where, calibrations, settings=settings)
    plans = Configurations.of([Configuration(1, 1, sub_batch) for sub_batch in SUB_BATCHES])
    bare = Observed.of(problem, plans, np.ones(len(SUB_BATCHES)))
    measured_s: FloatArray = AloneSteps(bare).times_s(truth.values) * factor
    return Steps("made", network, "mxnet@1", Observed.of(problem, plans, measured_s))


@pytest.fixture(scope="module")
def made() -> list[Steps]:
    return [steps_of(name) for name in ("resnet18", "resnet50", "alexnet")]


def test_known_coefficients_come_back_drawn_a_little_towards_their_priors(made: list[Steps]) -> None:
    found = fit_two(made)
    assert found.kernel_scale == pytest.approx(TRUTH.kernel_scale, rel=0.02)
    assert found.host_s_per_call == pytest.approx(TRUTH.host_s_per_call, rel=0.05)
    assert fit_two([]) == Two(1.0, 10e-6)
    assert all(abs(one.errors(TRUTH.values)).max() < 1e-9 for one in made)


def step_s(one: Steps, scale: float, host_s: float) -> FloatArray:
    """Return what steps of one pass take by the formula of a step [s], shape (n,)."""
    steps, power = one.observed.alone_steps, EXPONENTS["exponent"]
    kernels_s, calls = (
        np.sum(steps.runs * each, axis=1)
        for each in (steps.stages.matrix_s + steps.stages.traffic_s, steps.stages.calls)
    )
    return np.asarray(((scale * kernels_s) ** power + (host_s * calls) ** power) ** (1 / power))


def test_kernels_alone_know_no_coefficient(made: list[Steps]) -> None:
    """Both err by what the truth adds to them."""
    for one in made:
        true_s = step_s(one, TRUTH.kernel_scale, TRUTH.host_s_per_call)
        np.testing.assert_allclose(one.alone, step_s(one, 1.0, 0.0) / true_s - 1)
        np.testing.assert_allclose(one.assumed, step_s(one, 1.0, 10e-6) / true_s - 1)


def test_what_is_predicted_takes_no_part_in_its_fit(made: list[Steps]) -> None:
    """A network that takes ten times as long is predicted as before; so is its family where that is left out."""
    slow = [replace_measured(one, 10.0) if one.network == "resnet50" else one for one in made]
    for by in (lambda one: one.name, family_of):
        before, after = (Group(some).held_out(by) for some in (made, slow))
        at = [one.network for one in made].index("resnet50")
        np.testing.assert_allclose(10 * (after[at] + 1), before[at] + 1)
        assert not np.allclose(after[at - 1], before[at - 1])
    everything = dict(whole_fits(slow))
    assert set(everything) == set(slow)
    np.testing.assert_allclose(everything[slow[1]], dict(whole_fits(made))[made[1]] / 10 - 0.9)


def replace_measured(one: Steps, factor: float) -> Steps:
    return replace(one, observed=replace(one.observed, measured_s=one.observed.measured_s * factor))


def test_families() -> None:
    names = ("resnet34", "resnet152:stride=1x1", "vgg16", "inception-v3", "gpt:layers=2", "opt-1.3b", "bert-large")
    found = [family_of(cast(Steps, _Named(name))) for name in names]
    assert found == ["basic resnet", "bottleneck resnet", "vgg", "inception", "decoder", "decoder", "bert"]


class _Named:
    def __init__(self, network: str) -> None:
        self.name = network.partition(":")[0]


def test_summaries_by_hand() -> None:
    found = summary_of([np.array([0.1, -0.3]), np.array([0.2])])
    assert found == pytest.approx((3, 0.2, 0.2, 0.28, 0.3, 0.0))
    assert summary_of([]).rows == 0


def test_rows_of_the_page_are_of_one_gpu_and_synthetic() -> None:
    found = measured_steps(sources=("neusight-e2e", "tensorflow-2017"))
    assert {one.source for one in found} == {"neusight-e2e", "tensorflow-2017"}
    for one in found:
        assert one.observed.problem.settings.input == "synthetic"
        assert (one.observed.configurations.gpus == 1).all()
    # NeuSight: 8 on the A100 and 3 on the V100 were trained; TensorFlow on a P100: 9.
    counts = {(group.of.source, group.of.gpu): group.rows for group in groups_of(found)}
    assert counts["neusight-e2e", "a100-pcie-80gb"] == 8
    assert counts["neusight-e2e", "v100-pcie-32gb"] == 3
    assert counts["tensorflow-2017", "p100-sxm2-16gb"] == 9


def test_the_page_is_checked_against_todays_figures(
    made: list[Steps], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(single_gpu, "measured_steps", lambda: made)
    page = tmp_path / "page.md"
    assert single_gpu.main(["--out", str(page)]) == 0
    text = page.read_text()
    assert "| made | mxnet@1 | v100-sxm2-16gb | 3 | 12 |" in text
    assert single_gpu.main(["--out", str(page), "--check"]) == 0
    page.write_text(text.replace("| made | mxnet@1 | v100-sxm2-16gb | 3 | 12 |", "| made | none |"))
    assert single_gpu.main(["--out", str(page), "--check"]) == 1
    said = capsys.readouterr().err
    assert "+| made | mxnet@1 | v100-sxm2-16gb | 3 | 12 |" in said
    assert "python -m validation.single_gpu" in said
    assert page.read_text() != text
    assert single_gpu.main(["--out", str(tmp_path / "none.md"), "--check"]) != 0
