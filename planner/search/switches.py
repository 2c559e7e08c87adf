"""What switches of its framework would change about a plan, and which sets of them change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import GENERIC, Framework
from planner.domain.request import Problem
from planner.errors import CoverageError, PlannerError
from planner.search.ranking import rounded
from planner.sources.sources import Sources
from planner.steps.compute import ComputeCases
from planner.steps.host_and_gpu import STAGES
from planner.steps.predict import Evaluator
from planner.steps.step_costs import StepCosts
from planner.workload.fusion import composed_kinds, idle_fusions, with_attention
from planner.workload.memory_rules import MemoryRules

__all__ = ["LEAST_GAIN", "Gains", "as_run", "different_sets", "of_tables", "one_more", "run_by", "switch_gains"]

LEAST_GAIN = 1.03
"""Times faster that a switch is told from."""
_OF_KERNELS = ("composes", "layout", "update", "launch", "pads_products", "state_type", "loss")
"""Fields of a framework that change kernels and memory alone: plans on one device tell whether they do."""
_OF_TABLES = (
    "input_gradient", "gradient_type", "state_type", "fuses", "composes", "layout", "update", "selective",
    "pads_vocabulary", "pads_products",
)  # fmt: skip
"""Fields that the tables of compute are made from, besides ``launch`` where it composes kernels."""
_SUB_BATCHES = (1, 32)
_STAGES = len(STAGES)


class Gains(Mapping[str, float]):
    """The switches that would pay for a plan, worked out when somebody asks; see :func:`switch_gains`."""

    def __init__(self, evaluator: Evaluator, plan: Configuration) -> None:
        self._of = evaluator, plan

    @cached_property
    def _gains(self) -> dict[str, float]:
        return switch_gains(*self._of)

    def __getitem__(self, switch: str) -> float:
        return self._gains[switch]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gains)

    def __len__(self) -> int:
        return len(self._gains)


def switch_gains(evaluator: Evaluator, plan: Configuration) -> dict[str, float]:
    """Return the switches that are off and would make a plan faster, each with those that it needs, the best first.

    By how many times is told to a thousandth. ``evaluator``: of the framework as it is; its tables are used.

    What a switch does to kernels and messages is counted, with the coefficients of the framework as it is: those of
    another set of switches were fitted to other runs, and would tell these apart. Where steps of both were measured on
    this accelerator, each has its own.
    """
    plans, gains = Configurations.of([plan]), dict[str, float]()
    as_it_is = float(evaluator.evaluate(plans).samples_per_s[0])
    if (plan.precision, plan.mode) not in evaluator.switched:
        evaluator.switched[plan.precision, plan.mode] = list(_switched(evaluator, plan))
    for name, other in evaluator.switched[plan.precision, plan.mode]:
        with suppress(PlannerError):  # the plan is none of the framework so switched
            gain = float(other.evaluate(plans).samples_per_s[0]) / as_it_is
            if gain >= LEAST_GAIN:
                gains[name] = round(gain, 3)
    return dict(sorted(gains.items(), key=lambda one: -one[1]))


def _switched(evaluator: Evaluator, plan: Configuration) -> Iterator[tuple[str, Evaluator]]:
    """Yield the switches that change something for plans like one, each with an evaluator; kernels are shared."""
    problem = evaluator.problem
    framework, is_measured = problem.settings.framework, _is_measured(evaluator.sources, plan)
    alike, as_it_runs = {of_tables(problem): evaluator}, as_run(problem)
    for other in dict.fromkeys(one_more(framework)):
        with_own = run_by(problem, other)
        if not (is_measured and _is_measured(Sources(with_own), plan)):
            with_own = run_by(problem, replace(other, switched=framework.switched))
            if as_run(with_own) == as_it_runs:
                continue
        switched = Evaluator(with_own, alike.get(of_tables(with_own)))
        alike.setdefault(of_tables(with_own), switched)
        yield "+".join(name for name in other.switched if name not in framework.switched), switched


def different_sets(problems: Sequence[Problem], precisions: Sequence[str], modes: Sequence[str]) -> list[int]:
    """Return the positions of problems whose set of switches may have a best plan that no other set has.

    A set is left out where a smaller set before it has the same terms, and where another set, all else of the framework
    equal, has terms of which none is larger, and the kernels of every step are shorter or every step needs less memory:
    each of its plans is slower there, or needs more. Host time alone leaves none out, as it may be hidden.

    Parameters
    ----------
    problems : that differ in the switches of a framework alone, smaller sets first
    precisions, modes : of plans
    """
    shared = _Shared({}, {})
    sources = Sources(problems[0])
    terms = [_terms(sources.of_problem(one), precisions, modes, shared) for one in problems]
    useful = [_useful(one) for one in problems]
    kept: list[int] = []
    for at, one in enumerate(problems):
        smaller = (other for other in kept if _is_more_of(one, problems[other]) and useful[at] == useful[other])
        if not any(np.array_equal(terms[at], terms[other], equal_nan=True) for other in smaller):
            kept.append(at)
    rest = [replace(one, fuses=()) for one in useful]
    return [
        at for at in kept if not any(rest[other] == rest[at] and _is_better(terms[other], terms[at]) for other in kept)
    ]


def as_run(problem: Problem) -> Framework:
    """Return a problem's framework without fusions, compositions and layouts of what its network has not."""
    framework, network = problem.settings.framework, problem.network
    idle = idle_fusions(network, framework.fuses).keys()
    composes = tuple(one for one in framework.composes if one in composed_kinds(network))
    has_layout = any(layer.kind == "convolution" for layer in network.layers)
    layout = framework.layout if has_layout else GENERIC.layout
    return replace(framework, fuses=tuple(sorted({*framework.fuses} - idle)), composes=composes, layout=layout)


def of_tables(problem: Problem) -> Framework:
    """Return what the tables of compute read of a problem's framework as it runs the network."""
    framework = as_run(problem)
    launch = framework.launch if framework.composes else GENERIC.launch
    return replace(GENERIC, launch=launch, **{name: getattr(framework, name) for name in _OF_TABLES})


def _is_better(one: FloatArray, other: FloatArray) -> bool:
    """Tell whether no term of one set is larger than the other's, and its kernels, or its memory, are less."""
    priced = ~np.isnan(one[0, 0])
    if not np.array_equal(priced, ~np.isnan(other[0, 0])) or not priced.any():
        return False
    mine, its = one[..., priced], other[..., priced]
    is_less = mine < its
    return bool((mine <= its).all() and (is_less[:, :_STAGES].any(axis=1).all() or is_less[:, -1].all()))


def _is_more_of(one: Problem, other: Problem) -> bool:
    """Tell whether a problem's framework is another's with more switches."""
    mine, its = one.settings.framework, other.settings.framework
    return (mine.name, mine.version) == (its.name, its.version) and set(its.switched) < set(mine.switched)


def _useful(problem: Problem) -> Framework:
    """Return a problem's framework as it runs the network, without its switches and kernels.

    Fused attention is in the network by now.
    """
    usual: dict[str, Any] = {one.name: one.default for one in fields(Framework) if one.name in _OF_KERNELS}
    framework = as_run(problem)
    return replace(framework, switched=(), fuses=tuple(one for one in framework.fuses if one != "attention"), **usual)


class _Shared(NamedTuple):
    """What sets of switches have in common: kernels by framework and precision, memory by network and rules.

    None: these kernels have no price.
    """

    compute: dict[tuple[Framework, str], ComputeCases | None]
    memory: dict[tuple[int, MemoryRules], FloatArray]


def _terms(sources: Sources, precisions: Sequence[str], modes: Sequence[str], shared: _Shared) -> FloatArray:
    """Return terms of plans on one device, rounded, shape (sub-batches, 13, precisions x modes); NaN: not priced.

    Columns are those of :meth:`planner.steps.step_costs.StepCosts.on_one_device`, and memory. ``shared``: what computes
    the same kernels, and memory by the same rules.
    """
    columns, alike = [], of_tables(sources.problem)
    for precision, mode in product(precisions, modes):
        key, costs = (alike, precision), None
        if shared.compute.get(key) is not None or key not in shared.compute:
            with suppress(CoverageError):
                costs = StepCosts(sources, precision, shared.compute.get(key), mode=mode)
        shared.compute.setdefault(key, costs.compute if costs else None)
        if costs is None:
            columns.append(np.full((len(_SUB_BATCHES), 2 * _STAGES + 5), np.nan))
            continue
        rules = id(sources.problem.network), costs.ledger.rules
        if rules not in shared.memory:
            shared.memory[rules] = costs.ledger.totals(Configurations.having(sub_batch=np.array(_SUB_BATCHES)))
        columns.append(np.column_stack([costs.on_one_device(np.array(_SUB_BATCHES)), shared.memory[rules]]))
    return rounded(np.stack(columns, axis=-1))


def one_more(framework: Framework) -> Iterator[Framework]:
    """Yield the framework with each switch on that is off, may be, and changes no result."""
    for name in framework.switches:
        if name not in framework.switched and not framework.switches[name].changes_results:
            try:
                yield framework.with_switches([name])
            except PlannerError:
                continue


def run_by(problem: Problem, framework: Framework) -> Problem:
    """Return a problem as another set of switches runs it; gradients go its way where no other was asked for."""
    settings = problem.settings.trained_in(framework)
    return replace(problem, network=with_attention(problem.network, framework.fuses), settings=settings)


def _is_measured(sources: Sources, plan: Configuration) -> bool:
    """Tell whether the overheads of a problem's framework were measured on its accelerator."""
    overheads = sources.overheads(plan.precision, plan.mode)
    return overheads.matched in ("exact", "framework") and not overheads.pooled
