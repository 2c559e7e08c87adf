"""The line that starts a plan."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.configuration import Configuration
from planner.domain.ranks import RANK_ORDER
from planner.domain.request import Subject
from planner.report.blocks import Line
from planner.report.printing import LINE_WIDTH

__all__ = ["launch"]

TORCHRUN = (
    "pytorch", "pytorch-channels-last", "pytorch-compile", "torchtitan", "fsdp", "megatron", "megatron-lm",
    "megatron-deepspeed", "deepspeed", "transformers-deepspeed",
)  # fmt: skip
"""Frameworks whose processes ``torchrun`` starts; those of others are started by ``mpirun``."""


def launch(one: Configuration, subject: Subject) -> Iterator[Line]:
    """Yield the command that starts the processes of a plan: one a device, or one a node where threads share it.

    What the program itself must be told stands behind it as a comment, where a line holds it.
    """
    accumulate = f" x {one.accumulation_steps}" if one.accumulation_steps > 1 else ""
    order = subject.settings.placed_by
    ranks = () if order == RANK_ORDER else (f"ranks {','.join(order)}",)
    what = ", ".join((f"sub-batch {one.sub_batch}{accumulate}", one.precision, *one.besides, *ranks))
    if len(one.groups) > 1:
        yield from _across_groups(one, subject)
        return
    if one.mode == "async":
        yield _line(f"Start: mpirun -np {one.nodes} --map-by node PROGRAM", f"{one.gpus_per_node} threads, {what}")
    elif subject.settings.framework.name not in TORCHRUN:
        yield _line(f"Start: mpirun -np {one.gpus} --map-by ppr:{one.gpus_per_node}:node PROGRAM", what)
    elif one.nodes == 1:
        yield _line(f"Start: torchrun --standalone --nproc-per-node {one.gpus_per_node} train.py", what)
    else:
        nodes = f"--nnodes {one.nodes} --nproc-per-node {one.gpus_per_node}"
        yield Line(f"Start: torchrun {nodes} --rdzv-backend c10d \\", whole=True)
        yield _line("  --rdzv-endpoint FIRST_NODE train.py", f"on each node, {what}")


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
