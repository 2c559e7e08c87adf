"""The line that starts a plan."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.configuration import Configuration
from planner.domain.request import Subject
from planner.domain.start import RENDEZVOUS, start_command, start_comment
from planner.report.blocks import Line
from planner.report.printing import LINE_WIDTH

__all__ = ["launch"]


def launch(one: Configuration, subject: Subject) -> Iterator[Line]:
    """Yield the command that starts the processes of a plan, in two lines where it is for several nodes.

    What the program itself must be told stands behind it as a comment, where a line holds it.
    """
    what = start_comment(one, subject.settings)
    before, rendezvous, program = f"Start: {start_command(one, subject.settings.framework)}".partition(RENDEZVOUS)
    if not rendezvous:
        yield _line(before, what)
    else:
        yield Line(f"{before}\\", whole=True)
        yield _line(f"  {rendezvous}{program}", what)


def _line(command: str, comment: str) -> Line:
    words = f"{command}  # {comment}"
    return Line(words if len(words) <= LINE_WIDTH else command, whole=True)
