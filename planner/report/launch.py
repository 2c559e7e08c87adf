"""The line that starts a plan."""

from __future__ import annotations

from planner.domain.configuration import Configuration
from planner.domain.request import Subject
from planner.report.blocks import Line

__all__ = ["launch"]

TORCHRUN = ("pytorch", "torchtitan", "fsdp", "megatron", "megatron-lm", "megatron-deepspeed", "deepspeed")
"""Frameworks whose processes ``torchrun`` starts; those of others are started by ``mpirun``."""


def launch(one: Configuration, subject: Subject) -> Line:
    """Return the command that starts the processes of a plan: one a device, or one a node where threads share it."""
    accumulate = f" x {one.accumulation_steps} accumulated" if one.accumulation_steps > 1 else ""
    what = f"sub-batch {one.sub_batch}{accumulate}, {one.precision}"
    if one.mode == "async":
        return Line(f"Start: mpirun -np {one.nodes} --map-by node PROGRAM  # {one.gpus_per_node} threads, {what}")
    if subject.settings.framework.partition("@")[0] not in TORCHRUN:
        return Line(f"Start: mpirun -np {one.gpus} --map-by ppr:{one.gpus_per_node}:node PROGRAM  # {what}")
    nodes = f"--nnodes {one.nodes}" if one.nodes > 1 else "--standalone"
    return Line(f"Start: torchrun {nodes} --nproc-per-node {one.gpus_per_node} train.py  # {what}")
