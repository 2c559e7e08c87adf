"""The line that starts a plan."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.configuration import Configuration
from planner.domain.request import Subject
from planner.domain.start import RENDEZVOUS, TORCHRUN, start_command, start_comment
from planner.report.blocks import Line
from planner.report.printing import LINE_WIDTH

__all__ = ["launch"]


def launch(one: Configuration, subject: Subject, rank_order: tuple[str, ...] = ()) -> Iterator[Line]:
    """Yield the command that starts the processes of a plan, in two lines where it is for several nodes.

    What the program itself must be told stands behind it as a comment, where a line holds it. ``rank_order``: of the
    plan, where it is not the subject's.
    """
    if len(one.groups) > 1:
        yield from _across_groups(one, subject)
        return
    what = start_comment(one, subject.settings, rank_order)
    before, rendezvous, program = f"Start: {start_command(one, subject.settings.framework)}".partition(RENDEZVOUS)
    if not rendezvous:
        yield _line(before, what)
    else:
        yield Line(f"{before}\\", whole=True)
        yield _line(f"  {rendezvous}{program}", what)


def _across_groups(one: Configuration, subject: Subject) -> Iterator[Line]:
    """Yield the commands of a plan across node groups: each group's ranks have passes of their own."""
    if subject.settings.framework.name not in TORCHRUN:
        slots = " + ".join(f"{part.nodes} x {part.gpus_per_node}" for part in one.groups)
        yield _line(f"Start: mpirun -np {one.gpus} --hostfile HOSTS PROGRAM", f"slots {slots}, {_passes(one)}")
        return
    yield Line(f"Start: torchrun --nnodes {one.nodes} --nproc-per-node gpu --rdzv-backend c10d \\", whole=True)
    yield _line("  --rdzv-endpoint FIRST_NODE train.py", _passes(one))


def _passes(one: Configuration) -> str:
    """Return what the ranks of each group take in a step, and the precision."""
    each = []
    for part in one.groups:
        accumulate = f" x {part.accumulation_steps}" if part.accumulation_steps > 1 else ""
        each.append(f"{part.sub_batch}{accumulate} on {part.name}")
    return f"sub-batch {', '.join(each)}, {one.precision}"


def _line(command: str, comment: str) -> Line:
    words = f"{command}  # {comment}"
    return Line(words if len(words) <= LINE_WIDTH else command, whole=True)
