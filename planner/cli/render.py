"""``planner render``: a plan that was kept as a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner import catalog
from planner.cli import output, parsing
from planner.cli.request import from_options
from planner.cli.streams import note
from planner.domain.job import PlanToStart, job_of
from planner.errors import NOTHING, ParameterError
from planner.formats.documents import write_file
from planner.formats.suggestion import KeptPlans, read_plans
from planner.render.jobs import TARGETS, Task, render, time_limit_s
from planner.report.parts import configuration_words

__all__ = ["run"]

IMAGE = "pytorch/pytorch"


def run(arguments: Mapping[str, Any]) -> None:
    """Read the plan of a document, and write the file of a target; nothing is written where it cannot say the plan."""
    values = {name: one.value for name, one in from_options(arguments).items()}
    if "answer" not in values:
        raise ParameterError("ANSWER.json", "given", NOTHING, "name a document of 'planner suggest --json', or -")
    if "to" not in values:
        raise ParameterError("--to", "given", NOTHING, f"name one of {', '.join(TARGETS)}")
    answers = read_plans(values["answer"], values.get("epochs"), catalog.recorded)
    plan = _plan(KeptPlans.alone(answers, "ANSWER.json"), values)
    subject = plan.subject
    task = Task(
        plan,
        job_of(plan, values.get("program", ())),
        configuration_words(plan.configuration, subject.device, (), subject.settings.framework),
        values.get("name", subject.network),
        values.get("image", IMAGE),
    )
    text = render(values["to"], task)
    if values["to"] in ("slurm", "kubernetes") and time_limit_s(plan) is None:
        note("the file has no time limit, as the plan has no epoch: give --dataset to planner suggest")
    if "out" in values:
        write_file(values["out"], text, force="force" in values)
    else:
        output.write_text(text)


def _plan(answer: KeptPlans, values: Mapping[str, Any]) -> PlanToStart:
    """Return the plan that was asked for; without a number the one to take, or the first of the framework."""
    if "framework" in values and answer.plans:
        asked = catalog.find_framework(values["framework"])
        own = ((one, one.subject.settings.framework) for one in answer.plans)
        plans = tuple(one for one, of in own if of.name == asked.name and asked.label in {of.label, of.name})
        if not plans:
            labels = dict.fromkeys(one.subject.settings.framework.label for one in answer.plans)
            rule = f"a framework of the answer's plans ({', '.join(labels)})"
            raise ParameterError("--framework", rule, values["framework"], "more of them: planner suggest --top N")
        positions = [one.position for one in plans]
        answer = KeptPlans(plans, answer.chosen if answer.chosen in positions else positions[0])
    number: Any = parsing.whole(1, 10_000)("--plan", values["plan"]) if "plan" in values else None
    return answer.plan(number, "--plan")
