"""The exponent of host and GPU time, from steps that were made with a known one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.request import Problem
from planner.fitting.end_to_end import EndToEnd, fit_end_to_end
from planner.fitting.observed import Observed, calibrations_of, overheads_entry, properties_of, without_end_to_end
from planner.scoring.errors import relative_errors
from planner.sources.overheads import EXPONENTS, exponent_name
from planner.sources.sources import Sources
from planner.steps.predict import Evaluator

SPANNING = (1, 2, 4, 8, 16, 32, 64) * 2
CNNS = ("resnet50", "resnet18", "vgg16", "inception-v3")
GPTS = tuple(f"gpt:layers=4,hidden={hidden},heads=4,sequence=128,vocabulary=8192" for hidden in (128, 256, 512, 1024))


def problem_of(network: str, *, specified: bool = False) -> Problem:
    where = catalog.find_cluster("dgx1-v100")
    if specified:
        node = where.node
        where = replace(where, node=replace(node, accelerator=replace(node.accelerator, name="another")))
    calibrations = without_end_to_end(catalog.calibrations_for(where))
    return Problem(catalog.find_network(network), None, where, calibrations, settings=Settings(input="synthetic"))


def made(problem: Problem, sub_batches: Sequence[int], exponent: float) -> Observed:
    """Return steps that took what the problem predicts with 60 us of host time a call and an exponent."""
    values = {"kernel_scale": 1.0, "matrix_scale": 1.0, "host_s_per_call": 60e-6, "exponent": exponent}
    entry = overheads_entry("pytorch", "fp32", properties_of(problem, "fp32")["kernels"], values)
    changed = replace(problem, calibrations=(*calibrations_of(problem, [entry], (1.0, 1.0)), *problem.calibrations))
    plans = Configurations.of([Configuration(1, 1, sub_batch) for sub_batch in sub_batches])
    return Observed.of(problem, plans, Evaluator(changed).evaluate(plans).iteration_s)


def fixed(fitted: EndToEnd, observed: Observed) -> tuple[str, ...]:
    return fitted.overheads(observed.properties, "fp32").fixed


@pytest.mark.parametrize("exponent", [1.0, 3.0])
@pytest.mark.parametrize("networks", [CNNS, GPTS], ids=["cnn", "gpt"])
def test_a_known_exponent_is_found_and_predicts(networks: Sequence[str], exponent: float) -> None:
    observed = [made(problem_of(network), SPANNING, exponent) for network in networks]
    fitted = fit_end_to_end(observed)
    name = exponent_name(observed[0].problem.network)
    entry = fitted.overheads(observed[0].properties, "fp32")
    # A neighbour on the grid may explain steps as well.
    assert entry.coefficients[name] == pytest.approx(exponent, rel=0.35)
    assert entry.fixed == tuple(one for one in EXPONENTS if one != name)
    assert entry.standard_errors[name] >= 0
    for one in observed:
        mine = fitted.calibrations(one.problem, ["fp32"])
        again = replace(one.problem, calibrations=(*mine, *one.problem.calibrations))
        assert Sources(again).overheads("fp32", "sync").exponent == entry.coefficients[name]
        found_s = Evaluator(again).evaluate(one.configurations).iteration_s
        assert abs(relative_errors(found_s, one.measured_s)).max() < 0.08


@pytest.mark.parametrize(
    ("sub_batches", "specified"), [((32, 64), False), ((1, 4), False), ((64,), False), (SPANNING, True)]
)
def test_where_steps_do_not_tell_the_usual_value_is_kept_and_said(
    sub_batches: Sequence[int],
    specified: bool,  # noqa: FBT001 - pytest passes parameters by name
) -> None:
    for network, value in ((CNNS[0], EXPONENTS["exponent"]), (GPTS[0], 3.0)):
        observed = made(problem_of(network, specified=specified), sub_batches, 1.5)
        fitted = fit_end_to_end([observed])
        entry = fitted.overheads(observed.properties, "fp32")
        assert fixed(fitted, observed) == tuple(EXPONENTS)
        assert entry.coefficients[exponent_name(observed.problem.network)] == value
        assert not set(EXPONENTS) & set(entry.standard_errors)


def test_what_one_family_tells_says_nothing_of_the_other() -> None:
    observed = [made(problem_of(network), SPANNING, 3.0) for network in CNNS]
    fitted, properties = fit_end_to_end(observed), dict(observed[0].properties)
    assert fitted.exponent(properties, "exponent") > 1.5
    assert fitted.exponent(properties, "exponent_attention") == EXPONENTS["exponent_attention"]
    for other in ({"accelerator": "none yet"}, {"program": "mxnet"}):
        assert fitted.exponent(properties | other, "exponent") == EXPONENTS["exponent"]
