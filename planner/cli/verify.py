"""``planner verify``: a few real steps of a plan's per-GPU part here, beside their prediction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from planner.cli import output
from planner.cli.calibrate import target_of, written
from planner.cli.request import from_options
from planner.cli.streams import bar, note
from planner.errors import NOTHING, ParameterError
from planner.formats.summaries import verification_document
from planner.report.parts import configuration_words
from planner.report.studies import verified_view
from planner.sessions.calibrate import with_runs
from planner.sessions.inputs import value_of
from planner.sessions.measure import Session
from planner.sessions.measure_next import DEFAULT_BUDGET_S
from planner.sessions.plan_runs import kept_runs, timed_here
from planner.sessions.runs import kept_plan
from planner.sessions.verify import asking_for, compared

__all__ = ["run"]


def run(arguments: Mapping[str, Any], session: Session | None = None) -> None:
    """Check everything that can be wrong, run the steps, compare, and write a calibration where one is wanted."""
    loading_s = 0.0 if session else time.process_time()
    session = session or Session(note, bar)
    began_s = session.clock_s() - loading_s
    values = from_options(arguments)
    if "answer" not in values:
        raise ParameterError("ANSWER.json", "given", NOTHING, "name a document of 'planner suggest --json', or -")
    now = datetime.now().astimezone()
    target = target_of(values, now) if "out" in values else None
    plan = kept_plan(values["answer"].value, value_of(values, "position"), "ANSWER.json")
    asking, predicted = asking_for(plan, values, session, is_kept=target is not None)
    budget_s = value_of(values, "budget", DEFAULT_BUDGET_S)
    (result,), enough = timed_here(asking, session, budget_s=budget_s, began_s=began_s)
    if result.step is None or target:
        runs = kept_runs(asking, (result,), enough, session.say)
    if target:
        written(target, *with_runs(asking, runs, target.name, f"{now:%Y-%m-%d}"))
        session.say(f"{target.path}: the calibration with these steps; --calibration {target.path} uses it")
    elif result.is_disturbed:
        session.say(f"the machine was {result.slower:.2g} times slower than in quiet: measured times are too long")
    verified = compared(plan, asking, predicted, result)
    if "json" in values:
        output.write_document(verification_document(verified))
        return
    subject = plan.subject
    words = configuration_words(plan.configuration, subject.device, (), subject.settings.framework)
    output.write_view(verified_view(verified, f"{subject.network} on {subject.cluster}, {words}"))
    if not target:
        note("--out FILE.json adds these steps to the calibration")
