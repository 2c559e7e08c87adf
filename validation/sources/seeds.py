"""Figures of the talks that the planner was made from, typed in: SPRINT, MVAPICH2-GDR on Summit, Dell EMC on V100."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Source

__all__ = ["SEEDS"]

SPRINT = (
    "the optimum that the authors' model predicts, not a measurement; 8 GPUs a node assumed; sprint-15 stands in for "
    "their unpublished CNN, and the calibration of tsubame-kfc was reconstructed from this figure"
)
"""Of the four published optima only the baseline is a run: the others suppose FP16 or EDR InfiniBand."""
SUMMIT = (
    "printed as 3.6 s, and as 332 s for 90 epochs, which is 3.7 s: the middle; sub-batch, precision, stride on the 1x1 "
    "and memory of 16 GB assumed"
)
DELL = "table 7 of the guide, one node reading from Isilon; framework and optimizer assumed"
DELL_ROWS = (
    ("alexnet-owt", 1024, 7095.0, "; sub-batch as in its figure 14"),
    ("resnet50:stride=1x1", 256, 2940.0, "; sub-batch as in its figure 14"),
    ("vgg16", 128, 1590.0, "; sub-batch assumed"),
)


def _seeds(_: Sequence[Cells]) -> Converted:
    for metric, value in (("epoch_s", 1779.0), ("mini_batch_mean", 165.1)):
        yield Run(
            id=f"sprint-baseline-{metric.replace('_', '-')}", source="sprint", network="sprint-15",
            cluster="tsubame-kfc", nodes=8, gpus_per_node=8, sub_batch=8, mode="async", framework="sprint",
            metric=metric, value=value, input="storage", dataset="imagenet-1k", notes=SPRINT,
        )  # fmt: skip
    yield Run(
        id="summit-resnet50-1536", source="osu-summit", network="resnet50:stride=1x1", cluster="summit",
        nodes=256, gpus_per_node=6, sub_batch=64, framework="tensorflow", framework_version="MVAPICH2-GDR, CUDA 9.2",
        metric="epoch_s", value=3.65, input="synthetic", dataset="imagenet-1k", notes=SUMMIT,
    )  # fmt: skip
    for network, batch, value, note in DELL_ROWS:
        yield Run(
            id=f"dell-sxm2-{network.partition(':')[0]}", source="dell-v100", network=network,
            cluster="dell-c4140-sxm2", nodes=1, gpus_per_node=4, sub_batch=batch, precision="fp16",
            framework="tensorflow", metric="samples_per_s", value=value, input="storage", dataset="imagenet-1k",
            notes=DELL + note,
        )  # fmt: skip


SEEDS = Source("seeds", {}, _seeds)
