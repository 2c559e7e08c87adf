"""The runs that would decide between tied plans, as commands."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.framework import PYTORCH
from planner.domain.request import Subject
from planner.domain.suggestion import Suggestion
from planner.report.blocks import Block, Line, heading

__all__ = ["deciding_commands", "deciding_line"]

KEPT = "plan.json"
"""Name of the file that holds the answer."""
TABLE = f"planner explain {KEPT} --part runs"
RUN_HERE = f"planner calibrate --plan {KEPT}"


def deciding_line(suggestion: Suggestion, subject: Subject) -> Iterator[Line]:
    """Yield which plans to run, and the command that comes first; nothing without ties."""
    if suggestion.deciding:
        command = RUN_HERE if _run_here(suggestion, subject) else TABLE
        yield Line(f"To decide between plans {_positions(suggestion)}: `{command}`")


def deciding_commands(suggestion: Suggestion, subject: Subject) -> Iterator[Block]:
    """Yield all commands, from keeping the answer to the next one; nothing without ties."""
    if not suggestion.deciding:
        return
    yield heading(f"Runs that would decide between plans {_positions(suggestion)}")
    yield Line(f"this answer in {KEPT}: the same command with --json > {KEPT}")
    if _run_here(suggestion, subject):
        yield Line(f"{RUN_HERE} --out refined.json", whole=True)
    else:
        yield from (Line(f"plan {one.position}: {one.start(subject)}", whole=True) for one in suggestion.deciding_plans)
        yield Line(f"{TABLE} > runs.csv  # fill in value: seconds of a step", whole=True)
        yield Line(f"{RUN_HERE} --runs runs.csv --out refined.json", whole=True)
    yield Line("then the same command with --calibration refined.json")


def _run_here(suggestion: Suggestion, subject: Subject) -> bool:
    """Return whether ``planner calibrate`` itself runs the plans: those of one device, in PyTorch."""
    runs = suggestion.deciding_plans
    frameworks = {one.subject(subject).settings.framework.name for one in runs}
    return frameworks == {PYTORCH.name} and all(one.prediction.configuration.gpus == 1 for one in runs)


def _positions(suggestion: Suggestion) -> str:
    *others, last = map(str, suggestion.deciding)
    return f"{', '.join(others)} and {last}"
