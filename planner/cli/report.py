"""``planner report``: an answer that was kept, as one page to look at.

What the document does not hold is worked out from its request, as ``planner sweep`` and ``planner predict`` do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import catalog
from planner.cli import output
from planner.cli.request import allowed_request, check_not_refined, from_options, resolve, values_kept
from planner.cli.streams import note
from planner.domain.configuration import Configurations
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Plan
from planner.errors import NOTHING, NothingFitsError, ParameterError, PlannerError
from planner.formats.documents import check_replaceable, write_file
from planner.formats.suggestion import read_answers
from planner.report.answer import prediction_answer, predictions_answer, suggestions_views
from planner.report.page import Studied, page
from planner.report.plots import check_matplotlib
from planner.report.prediction import prediction_rest
from planner.search.studies import sweep
from planner.sessions.inputs import OPTION, Case, mixed_cluster
from planner.steps.kernel_rows import kernel_rows
from planner.steps.predict import Evaluator

__all__ = ["run"]

EQUAL = 1e-6
"""Relative difference up to which a step that is predicted anew is that of the document."""


def run(arguments: Mapping[str, Any]) -> None:
    """Read the answer of a document, work out what it does not hold, and write the page."""
    values = {name: one.value for name, one in from_options(arguments).items()}
    if "answer" not in values:
        raise ParameterError("ANSWER.json", "given", NOTHING, "name a document of 'planner suggest --json', or -")
    check_matplotlib()
    if "out" in values:
        check_replaceable(Path(values["out"]), force="force" in values)
    answers = read_answers(values["answer"]).with_frameworks(catalog.recorded)
    subjects = [subject for subject, _ in (*answers.suggestions, *answers.predictions)]
    if len(answers.of_best_cluster) > 1 or len({(one.network, one.scenario) for one in subjects}) > 1:
        raise ParameterError("ANSWER.json", "of one network and scenario", f"{len(subjects)} answers", "ask for one")
    if answers.suggestions:
        ((subject, one),) = answers.of_best_cluster
        if not one.plans:
            raise NothingFitsError("no plan fits in this answer; its key loosen says what to change")
        plans, chosen, request = one.plans, one.chosen, one.request
        (blocks,) = suggestions_views(answers.of_best_cluster, in_full=True)
    else:
        subject, several = subjects[0], len({one.settings.framework.label for one in subjects}) > 1
        plans = tuple(
            Plan(at, one, "", framework=own.settings.framework if several else None)
            for at, (own, one) in enumerate(answers.predictions, 1)
        )
        chosen, request = (1 if len(plans) == 1 else None), {}
        head = prediction_answer(plans[0].prediction, subject) if chosen else predictions_answer(answers.predictions)
        blocks = [*head, *prediction_rest(answers.predictions, {}, answers.citations)]
    text = page(subject, plans, chosen, blocks, _studied(subject, plans, chosen, request))
    if "out" in values:
        write_file(values["out"], text, force="force" in values)
    else:
        output.write_text(text)


def _studied(
    subject: Subject, plans: Sequence[Plan], chosen: int | None, request: Mapping[str, Sourced[object]]
) -> Studied:
    """Compute the sweep, stage memory and kernels of an answer; where that fails, say why they are missing."""
    plan = next((one for one in plans if one.position == chosen), plans[0])
    one, own = plan.prediction, [one for one in plans if one.framework in (None, plan.framework)]
    try:
        case, values = _case(plan.subject(subject), request)
        evaluator = Evaluator(case.problem)
        now = float(evaluator.evaluate(Configurations.of([one.configuration])).iteration_s[0])
        studied = Studied(
            stages={each.position: evaluator.stage_memory(each.prediction) for each in own},
            kernels=kernel_rows(evaluator, one.configuration),
            accelerator=case.problem.cluster.node.accelerator,
        )
    except PlannerError as error:
        return _without(Studied(), f"curves, stages and kernels are left out: {str(error).partition('. Known: ')[0]}")
    if abs(now - one.iteration_s.value) > EQUAL * now:
        words = f"the step of plan {plan.position} is {now:.6g} s here, {one.iteration_s.value:.6g} s in the answer"
        studied = _without(studied, f"{words}: curves, stages and kernels are of the calibrations here")
    if not request:
        return studied
    try:
        asked = allowed_request(case, values)
        check_not_refined(asked, "a curve")
        return replace(studied, sweep=sweep(case.problem, asked, request))
    except PlannerError as error:
        return _without(studied, f"times against nodes and sub-batch are left out: {error}")


def _without(studied: Studied, sentence: str) -> Studied:
    note(sentence)
    return replace(studied, missing=(*studied.missing, f"{sentence[0].upper()}{sentence[1:].rstrip('.')}."))


def _case(subject: Subject, request: Mapping[str, Sourced[Any]]) -> tuple[Case, Mapping[str, Sourced[Any]]]:
    """Rebuild the case from the request of a document, or from its subject where it has no request."""
    settings = subject.settings
    named = {
        "network": subject.network, "cluster": subject.cluster, "scenario": subject.scenario or None,
        "optimizer": settings.optimizer, "trainable": settings.trainable, "strategy": settings.strategy,
        "input": settings.input,
    }  # fmt: skip
    known: dict[str, Sourced[Any]] = {key: Sourced(value, OPTION) for key, value in named.items() if value}
    values = {**values_kept({**known, **request}, "sweep"), "framework": Sourced(settings.framework.label, OPTION)}
    if mixed_cluster(values) is not None:
        raise ParameterError("the cluster", "of one kind of nodes", subject.cluster)
    _, (case,) = resolve(values)
    return case, values
