"""The command that starts the processes of a plan."""

from __future__ import annotations

from planner.domain.buckets import size_words
from planner.domain.configuration import Configuration, Settings
from planner.domain.framework import Framework
from planner.domain.ranks import RANK_ORDER

__all__ = ["RENDEZVOUS", "TORCHRUN", "start_command", "start_comment"]

TORCHRUN = (
    "pytorch", "torchtitan", "fsdp", "megatron", "megatron-lm",
    "megatron-deepspeed", "deepspeed", "transformers-deepspeed",
)  # fmt: skip
"""Frameworks whose processes ``torchrun`` starts; those of others are started by ``mpirun``."""
RENDEZVOUS = "--rdzv-endpoint FIRST_NODE"
"""Where processes of several nodes meet: such a command is given on each node."""


def start_command(one: Configuration, framework: Framework) -> str:
    """Return it: a process a device; in an asynchronous plan one a node, whose threads share it.

    ``train.py`` or ``PROGRAM`` stands for what the user runs.
    """
    if one.mode == "async":
        return f"mpirun -np {one.nodes} --map-by node PROGRAM"
    if framework.name not in TORCHRUN:
        return f"mpirun -np {one.gpus} --map-by ppr:{one.gpus_per_node}:node PROGRAM"
    if one.nodes == 1:
        return f"torchrun --standalone --nproc-per-node {one.gpus_per_node} train.py"
    nodes = f"--nnodes {one.nodes} --nproc-per-node {one.gpus_per_node}"
    return f"torchrun {nodes} --rdzv-backend c10d {RENDEZVOUS} train.py"


def start_comment(one: Configuration, settings: Settings, rank_order: tuple[str, ...] = ()) -> str:
    """Return what the program itself must be told, in words; ``rank_order``: of the plan, where it is chosen for it."""
    accumulate = f" x {one.accumulation_steps}" if one.accumulation_steps > 1 else ""
    order = rank_order or settings.placed_by
    ranks = () if order == RANK_ORDER else (f"ranks {','.join(order)}",)
    sizes = (f"buckets of {size_words(settings.bucket_bytes)}",) if settings.bucket_bytes else ()
    threads = (f"{one.gpus_per_node} threads",) if one.mode == "async" else ()
    where = ("on each node",) if RENDEZVOUS in start_command(one, settings.framework) else ()
    passes = f"sub-batch {one.sub_batch}{accumulate}"
    return ", ".join((*where, *threads, passes, one.precision, *one.besides, *sizes, *ranks))
