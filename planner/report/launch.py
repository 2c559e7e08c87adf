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


def launch(one: Configuration, subject: Subject, rank_order: tuple[str, ...] = ()) -> Iterator[Line]:
    """Yield the command that starts the processes of a plan: one a device, or one a node where threads share it.

    What the program itself must be told stands behind it as a comment, where a line holds it. ``rank_order``: of the
    plan, where it is not the subject's.
    """
    accumulate = f" x {one.accumulation_steps}" if one.accumulation_steps > 1 else ""
    order = rank_order or subject.settings.placed_by
    ranks = () if order == RANK_ORDER else (f"ranks {','.join(order)}",)
    what = ", ".join((f"sub-batch {one.sub_batch}{accumulate}", one.precision, *one.besides, *ranks))
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


def _line(command: str, comment: str) -> Line:
    words = f"{command}  # {comment}"
    return Line(words if len(words) <= LINE_WIDTH else command, whole=True)
