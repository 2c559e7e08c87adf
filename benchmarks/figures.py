"""What is measured, and what of the reference it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["FIGURES", "Figure"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: processor time over that of the fixed workload.

    Attributes
    ----------
    name, words : str
        What it is called, and what is done.
    command : tuple of str
        Arguments of ``planner``, run as a process of its own; empty: the work is done inside a process.
    work : str
        Name in :data:`benchmarks.works.WORKS`.
    arguments : mapping
        Of the work.
    most : float
        Largest share of the reference's ratio.
    has_memory : bool
        Whether the most memory that the process holds is a figure of its own.
    """

    name: str
    words: str
    command: tuple[str, ...] = ()
    work: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    most: float = 1.0
    has_memory: bool = False


def _axes(*, nodes: int = 1, gpus: tuple[int, int] = (8, 8), sub_batch: int, accumulation: int = 1) -> dict[str, Any]:
    return {"nodes": (1, nodes), "gpus": gpus, "sub_batch": (1, sub_batch), "accumulation": (1, accumulation)}


CLUSTERS = Path(__file__).parent / "clusters"
ROOM = 1.5
"""Share that parts of an answer may take, whose time is short and scatters."""

FIGURES = (
    Figure(
        "gpt-96", "price 128 sub-batches of gpt:layers=96 on dgx1-v100, fp32", work="plans", most=1 / 30,
        arguments={
            "network": "gpt:layers=96", "cluster": "dgx1-v100", "axes": _axes(sub_batch=128), "precisions": ("fp32",),
        },
    ),
    Figure(
        "million", "price 1 048 576 plans of resnet50 on dgx1-v100", work="plans", has_memory=True,
        arguments={
            "network": "resnet50", "cluster": "dgx1-v100", "precisions": ("fp32", "fp16"),
            "axes": _axes(nodes=64, gpus=(1, 8), sub_batch=256, accumulation=4),
        },
    ),
    Figure(
        "split-plans", "memory of 380 832 plans of gpt3-175b, price of 107 316 that fit", work="split_plans", most=0.8,
        arguments={
            "network": "gpt3-175b", "cluster": str(CLUSTERS / "a100-16384.toml"), "precision": "bf16",
            "mini_batch": 4096,
        },
    ),
    Figure(
        "split-space", "memory of 1 356 775 candidates of gpt3-175b, price of 277 625 that fit", work="split_space",
        most=0.6, has_memory=True,
        arguments={
            "network": "gpt3-175b", "cluster": str(CLUSTERS / "a100-4096.toml"), "framework": "megatron",
            "precision": "fp16", "nodes": (64, 128, 256, 512), "mini_batch": 4096, "within": 0.25,
        },
    ),
    Figure(
        "suggest-dgx-a100", "suggest for resnet50 on dgx-a100, mini-batch 1024", most=0.7,
        command=("suggest", "--network", "resnet50", "--cluster", "dgx-a100", "--target-batch", "1024", "--json"),
    ),
    Figure(
        "suggest-default", "suggest for the default request", most=0.7,
        command=("suggest", "--target-batch", "138", "--json"),
    ),
    Figure("help", "planner --help", command=("--help",)),
    Figure(
        "shapes", "build resnet50 with its shapes, 50 times", work="shapes", most=ROOM,
        arguments={"network": "resnet50", "times": 50},
    ),
    Figure(
        "lowering", "lower resnet50 at 256 sub-batches, 20 times", work="lowering", most=ROOM,
        arguments={"network": "resnet50", "sub_batches": 256, "times": 20},
    ),
    Figure(
        "convolutions", "evaluate 53 convolutions at 256 sub-batches, 20 times", work="convolutions", most=ROOM,
        arguments={"layers": 53, "sub_batches": 256, "times": 20},
    ),
    Figure("scoring", "score 10 000 rows of a validation", work="scoring", most=ROOM, arguments={"rows": 10_000}),
    Figure(
        "runs", "read a table of 10 000 runs", work="runs_file", most=ROOM,
        arguments={"rows": 10_000, "folder": "."},
    ),
)  # fmt: skip
