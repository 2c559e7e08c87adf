"""Answers on several clusters in one ranking: the plan to take of each, by what is minimised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.domain.objective import TERMS
from planner.domain.prediction import PlanWarning
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, Suggestion, question_of
from planner.errors import PlannerError
from planner.search.choice import probability_better

__all__ = ["in_one_ranking"]

NORMAL_95 = 1.645
"""Standard deviations from the middle of a normal distribution to the ends of its central 90 %."""
Answers = list[tuple[Subject, Suggestion]]


def in_one_ranking(answers: Sequence[tuple[Subject, Suggestion]], refused: Mapping[str, PlannerError]) -> Answers:
    """Return answers to the same questions on several clusters: of each question the cluster with the best plan first.

    With a deadline the best is the one with the fewest GPU-hours. The errors of two clusters are taken as independent.
    ``refused``: why other clusters have no answer, which is a warning of each best one.
    """
    by_question: dict[tuple[object, ...], Answers] = {}
    for subject, one in answers:
        by_question.setdefault(question_of(subject, one), []).append((subject, one))
    warnings = tuple(PlanWarning("cluster_refused", name, f"It is left out: {why}") for name, why in refused.items())
    ranked = []
    for each in by_question.values():
        (subject, first), *others = _ranked(each)
        ranked += [(subject, replace(first, warnings=(*warnings, *first.warnings))), *others]
    return ranked


def _ranked(answers: Answers) -> Answers:
    """Return the answers to one question, the best first and those without a plan last."""
    found = [(_objective(*one), *one) for one in answers if one[1].chosen_plan]
    found.sort(key=lambda one: one[0])
    times = {subject.cluster: value / found[0][0] for value, subject, _ in found}
    ranked = []
    for value, subject, one in found:
        deviation = math.hypot(_deviation(found[0][2].chosen_plan), _deviation(one.chosen_plan))
        is_known = subject is not found[0][1] and math.isfinite(deviation)
        better = probability_better(found[0][0], value, deviation) if is_known else None
        ranked.append((subject, replace(one, clusters=times, first_cluster_is_better=better)))
    return ranked + [one for one in answers if one[1].chosen_plan is None]


def _objective(subject: Subject, one: Suggestion) -> float:
    """Return what the plan to take has of the objective, of a sample where there is no data set."""
    if (plan := one.chosen_plan) is None:
        return math.inf
    prediction, name = plan.prediction, str(one.request["objective"].value)
    seconds = prediction.epoch_s.value if prediction.epoch_s else 1 / prediction.samples_per_s.value
    term = TERMS["gpu-hours" if "deadline" in one.request else name]
    return float(seconds * term.rate(prediction.configuration.gpus, subject.usd_per_gpu_hour))


def _deviation(plan: Plan | None) -> float:
    """Return the standard deviation of the logarithm of a plan's step; infinite: it is not known."""
    step = plan.prediction.iteration_s if plan else None
    return math.log(step.high / step.low) / 2 / NORMAL_95 if step and step.low and step.high else math.inf
