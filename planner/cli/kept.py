"""Commands on an answer that was kept as JSON: ``planner explain``, ``planner render`` and ``planner report``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import catalog
from planner.cli import parsing
from planner.cli.request import allowed_request, check_not_refined, from_options, resolve, values_kept
from planner.cli.streams import note, write_text, write_views
from planner.domain.configuration import Configurations
from planner.domain.job import job_of
from planner.domain.prediction import Citation, Prediction
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Plan, Suggestion
from planner.errors import NOTHING, NothingFitsError, ParameterError, PlannerError
from planner.formats.documents import STANDARD_INPUT, check_replaceable, write_file
from planner.formats.suggestion import KeptPlans, read_answers, read_plans
from planner.report import parts
from planner.report.answer import (
    part_of_plan,
    part_of_suggestion,
    prediction_answer,
    predictions_view,
    suggestion_answer,
    suggestions_views,
)
from planner.report.blocks import Block
from planner.report.prediction import prediction_rest
from planner.sessions.inputs import OPTION, Case, mixed_cluster

if TYPE_CHECKING:
    from planner.report.page import Studied


PLAN_PARTS = ("plan", "terms", "sources")
"""Parts that a plan has; the others are of a whole suggestion."""
MORE_HINT = "--part warnings shows all"


def _values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options, the document of the answer among them."""
    values = {name: one.value for name, one in from_options(arguments).items()}
    if "answer" not in values:
        raise ParameterError("ANSWER.json", "given", NOTHING, "name a document of 'planner suggest --json', or -")
    return values


def _write_file(text: str, values: Mapping[str, Any]) -> None:
    if "out" in values:
        write_file(values["out"], text, force="force" in values)
    else:
        write_text(text)


def explain(arguments: Mapping[str, Any]) -> None:
    """Print an answer in full, one plan of it, or one part."""
    values = _values(arguments)
    answers = read_answers(values["answer"]).with_frameworks(catalog.recorded)
    part, position = values.get("part"), values.get("position")
    if part == "runs":
        suggestions = answers.of_best_cluster
        if position is not None:
            raise ParameterError("--position", "left out with --part runs", position)
        if len(suggestions) != 1:
            got = f"{len(suggestions)} of them" if suggestions else "predictions"
            raise ParameterError("--part runs", "of a suggestion alone, as planner calibrate --plan takes it", got)
        ((subject, suggestion),) = suggestions
        from planner.sessions.runs import wanted_runs  # noqa: PLC0415 - only this part needs it

        text = wanted_runs(suggestion, subject)
        if not text:
            raise ParameterError("--part runs", "of a suggestion with synchronous plans", suggestion.status)
        write_text(text)
        kept = values["answer"] if values["answer"] != STANDARD_INPUT else "plan.json"
        command = f"planner calibrate --plan {shlex.quote(kept)} --runs FILE.csv --out refined.json"
        note(f"fill in value, the seconds of a step, of each run that you make; then: {command}")
        return
    if answers.suggestions:
        write_views(_suggestions(answers.suggestions, part, position))
        return
    predictions = [(subject, one) for at, (subject, one) in enumerate(answers.predictions, 1) if position in (None, at)]
    if not predictions:
        raise ParameterError("--position", f"one of the answer's (1 to {len(answers.predictions)})", position)
    write_views(_prediction(one, answers.citations, part) for one in predictions)


def _suggestions(
    answers: Sequence[tuple[Subject, Suggestion]], part: str | None, position: int | None
) -> Iterator[Iterable[Block]]:
    if part is None and position is None:
        yield from suggestions_views(answers, in_full=True)
        return
    for subject, one in answers:
        if part == "answer":
            yield suggestion_answer(one, subject, more=MORE_HINT, is_alone=len(answers) == 1)
        elif position is not None or part in PLAN_PARTS:
            yield part_of_plan(_plan(one, position, part), subject, one.citations, part or "plan")
        else:
            yield part_of_suggestion(one, part or "request")


def _plan(suggestion: Suggestion, position: int | None, part: str | None) -> Plan:
    """Return the plan at a position; without one the chosen plan, or where nothing fits the nearest."""
    plans = suggestion.plans or suggestion.nearest
    if position is not None and part not in (None, "warnings", *PLAN_PARTS):
        raise ParameterError("--position", f"given with --part {', '.join((*PLAN_PARTS, 'warnings'))} alone", part)
    match = next((plan for plan in plans if plan.position == (position or suggestion.chosen or 1)), None)
    if match is None:
        there = ", ".join(str(plan.position) for plan in plans) or "none"
        raise ParameterError("--position", f"one of the answer's ({there})", position)
    return match


def _prediction(answer: tuple[Subject, Prediction], citations: Sequence[Citation], part: str | None) -> Iterable[Block]:
    subject, one = answer
    if part == "answer":
        return prediction_answer(one, subject, more=MORE_HINT)
    if part == "warnings":
        return parts.warnings(one.warnings, result=True)
    if part in ("request", "refusals"):
        raise ParameterError("--part", f"one that a prediction has (answer, {', '.join(PLAN_PARTS)}, warnings)", part)
    if part is None:
        return predictions_view([answer], citations, in_full=True)
    return part_of_plan(Plan(1, one, ""), subject, citations, part)


IMAGE = "pytorch/pytorch"


def render(arguments: Mapping[str, Any]) -> None:
    """Read the plan of a document, and write the file of a target; nothing is written where it cannot say the plan.

    Without a number it is the plan to take, or the first of the framework.
    """
    from planner.render import jobs  # noqa: PLC0415 - only this command needs it

    values = _values(arguments)
    if "to" not in values:
        raise ParameterError("--to", "given", NOTHING, f"name one of {', '.join(jobs.TARGETS)}")
    answer = KeptPlans.alone(read_plans(values["answer"], values.get("epochs"), catalog.recorded), "ANSWER.json")
    if "framework" in values and answer.plans:
        asked = catalog.find_framework(values["framework"])
        own = [(one, one.subject.settings.framework) for one in answer.plans]
        plans = tuple(one for one, of in own if of.name == asked.name and asked.label in {of.label, of.name})
        if not plans:
            labels = dict.fromkeys(of.label for _, of in own)
            rule = f"a framework of the answer's plans ({', '.join(labels)})"
            raise ParameterError("--framework", rule, values["framework"], "more of them: planner suggest --top N")
        positions = [one.position for one in plans]
        answer = KeptPlans(plans, answer.chosen if answer.chosen in positions else positions[0])
    number: Any = parsing.whole(1, 10_000)("--plan", values["plan"]) if "plan" in values else None
    plan = answer.plan(number, "--plan")
    subject = plan.subject
    words = parts.configuration_words(plan.configuration, subject.device, (), subject.settings.framework)
    job, name = job_of(plan, values.get("program", ())), values.get("name", subject.network)
    remedy = "take another plan, by --plan" if len(answer.plans) > 1 else "ask for more plans: planner suggest --top N"
    text = jobs.render(values["to"], jobs.Task(plan, job, words, name, values.get("image", IMAGE), remedy))
    if values["to"] in ("slurm", "kubernetes") and jobs.time_limit_s(plan) is None:
        option = "--tokens" if subject.tokens else "--dataset"
        note(f"the file has no time limit, as the plan has no epoch: give {option} to planner suggest")
    _write_file(text, values)


EQUAL = 1e-6
"""Relative difference up to which a step that is predicted anew is that of the document."""


def report(arguments: Mapping[str, Any]) -> None:
    """Read the answer of a document, work out what it does not hold, as other commands do, and write the page."""
    from planner.report.page import page  # noqa: PLC0415 - only this command needs it
    from planner.report.plots import check_matplotlib  # noqa: PLC0415 - as above

    values = _values(arguments)
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
        rest = prediction_rest(answers.predictions, {}, answers.citations)
        blocks = predictions_view(answers.predictions, beside=rest)
    _write_file(page(subject, plans, chosen, blocks, _studied(subject, plans, chosen, request)), values)


def _studied(
    subject: Subject, plans: Sequence[Plan], chosen: int | None, request: Mapping[str, Sourced[object]]
) -> Studied:
    """Compute the sweep, stage memory and kernels of an answer; where that fails, say why they are missing."""
    from planner.report.page import Studied  # noqa: PLC0415 - only pages need it
    from planner.search.studies import sweep  # noqa: PLC0415 - as above
    from planner.steps.kernel_rows import kernel_rows  # noqa: PLC0415 - as above
    from planner.steps.predict import Evaluator  # noqa: PLC0415 - as above

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
        "network": subject.network_option or subject.network, "cluster": subject.cluster,
        "scenario": subject.scenario or None,
        "optimizer": settings.optimizer, "trainable": settings.trainable, "strategy": settings.strategy,
        "input": settings.input,
    }  # fmt: skip
    known: dict[str, Sourced[Any]] = {key: Sourced(value, OPTION) for key, value in named.items() if value}
    values = {**values_kept({**known, **request}, "sweep"), "framework": Sourced(settings.framework.label, OPTION)}
    if mixed_cluster(values) is not None:
        raise ParameterError("the cluster", "of one kind of nodes", subject.cluster)
    _, (case,) = resolve(values)
    return case, values
