"""A table of runs to measure: the plans that are to be told apart, without their times."""

from __future__ import annotations

from planner.domain.axes import AXES
from planner.domain.request import Subject
from planner.domain.runs import Run
from planner.domain.suggestion import Plan, Suggestion
from planner.formats.documents import STANDARD_INPUT
from planner.formats.runs import write_runs

__all__ = ["wanted_runs"]


def wanted_runs(suggestion: Suggestion, subject: Subject) -> str:
    """Return the text of a runs file: a row a plan, its ``value`` to be filled in, its command in ``notes``.

    The runs that decide between tied plans; without any the plan to take. Empty where no plan fits, and where that one
    is asynchronous: steps of such plans correct no prediction.
    """
    plan = suggestion.chosen_plan
    chosen = (plan,) if plan and plan.prediction.configuration.mode == "sync" else ()
    rows = [_run(one, subject) for one in suggestion.deciding_plans or chosen]
    return write_runs(rows) if rows else ""


def _run(plan: Plan, subject: Subject) -> Run:
    settings = plan.subject(subject).settings
    axes = {axis.name: getattr(plan.prediction.configuration, axis.name) for axis in AXES}
    return Run(
        id=f"plan-{plan.position}",
        network=subject.network
        if subject.network_option == STANDARD_INPUT
        else subject.network_option or subject.network,
        cluster=subject.cluster,
        metric="iteration_s",
        framework=settings.framework.name,
        framework_version=settings.framework.version,
        optimizer=settings.optimizer,
        strategy=settings.strategy,
        input=settings.input,
        rank_order=plan.prediction.rank_order or (() if settings.chooses_order else settings.rank_order),
        notes=plan.start(subject),
        **axes,
    )
