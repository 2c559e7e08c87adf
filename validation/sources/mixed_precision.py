"""BERT and ResNet-50 in several frameworks, in fp32, TF32 and mixed precision: Paddle beside NVIDIA's containers."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, name_of, settled

__all__ = ["PADDLE", "PADDLE_RESNET50"]

BERT = ("Bert", "bert-base:sequence=128", "adam", "")
RESNET50 = ("ResNet50V1.5", "resnet50", "sgd-momentum", "imagenet-1k")
"""Name in the tables, network, optimizer and data set."""
FRAMEWORKS = {
    "PaddlePaddle": ("paddlepaddle", ""),
    "NGC TensorFlow 1.15": ("tensorflow", "NGC 1.15"),
    "NGC PyTorch": ("pytorch", "1.x (NGC)"),
    "NGC MXNet": ("mxnet", "NGC"),
}
SWITCHES = {
    ("tensorflow", "Bert"): ("xla", ("fp32", "tf32", "fp16")),
    ("tensorflow", "ResNet50V1.5"): ("xla", ("fp32", "tf32", "fp16")),
    ("pytorch", "Bert"): ("fused-activation+fused-optimizer", ("fp32", "tf32", "fp16")),
    ("mxnet", "ResNet50V1.5"): ("channels-last+fused-norm", ("fp32", "tf32", "fp16")),
    ("paddlepaddle", "ResNet50V1.5"): ("channels-last+fused-norm", ("fp16",)),
}
"""Framework and network -> what the program turns on, and in which precisions.

The source turns XLA on in TensorFlow throughout (OtherReports/TensorFlow: README.md of BERT and its logs, "XLA
activated"; scripts/tf_test_all.sh of ResNet-50).
NVIDIA's DeepLearningExamples have BERT's bias and GELU scripted and apex' FusedAdam, and ResNet-50 of MXNet by position
with fused norms; Paddle's ResNet-50 has both in pure fp16."""
BERT_BATCH = 67584
"""Samples between updates of BERT that NVIDIA's programs accumulate, whatever the GPUs; Paddle's as many as of 8 GPUs
(scripts in its README.md and OtherReports/*/README.md, ``expr 67584 / $batch_size``)."""
CLUSTERS = {"V100-SXM2-32GB": "v100-sxm2-32gb-box", "A100-SXM4-40GB": "dgx-a100-40gb"}


def _precision(said: str) -> str:
    return "fp16" if said.startswith("mixed") else "tf32" if "TF32" in said else "fp32"


def _paddle(rows: Sequence[Cells], source: str, wanted: tuple[str, str, str, str]) -> Converted:
    kind, network, optimizer, dataset = wanted
    for row in rows:
        if row["network"] != kind:
            yield Dropped("a network that the zoo does not know, or of the other file of this table")
        elif row["nodes"] != "1":
            yield Dropped("several nodes, of which the network is not stated")
        else:
            framework, version = FRAMEWORKS[row["framework"]]
            cluster, precision = CLUSTERS[row["gpu"]], _precision(row["precision"])
            gpus, batch = int(row["gpus_per_node"]), int(row["batch_per_gpu"])
            in_step = batch * (8 if framework == "paddlepaddle" else gpus)
            steps = BERT_BATCH // in_step if kind == BERT[0] else 1
            switches, of_precisions = SWITCHES.get((framework, kind), ("", ()))
            yield Run(
                id=name_of("paddle", framework, cluster, kind, precision, f"g{gpus}"), source=source,
                network=network, cluster=cluster, nodes=1, gpus_per_node=gpus,
                sub_batch=batch, accumulation_steps=steps, precision=precision, optimizer=optimizer,
                framework=f"{framework}:{switches}" if precision in of_precisions else framework,
                framework_version=version, strategy="bucketed", metric="samples_per_s", value=float(row["value"]),
                input="synthetic", dataset=dataset,
            )  # fmt: skip


TABLE = {"paddle_perf.csv": "PaddlePaddle/Perf, */README.md"}
PADDLE = Source("paddle-perf", TABLE, lambda rows: _paddle(rows, "paddle-perf", BERT), settled)
PADDLE_RESNET50 = Source("paddle-resnet50", TABLE, lambda rows: _paddle(rows, "paddle-resnet50", RESNET50), settled)
