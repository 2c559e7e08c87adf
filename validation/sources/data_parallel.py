"""Data-parallel PyTorch jobs on clusters: the traces of Pollux and of ElasticFlow."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, digits, grouped, name_of

__all__ = ["ELASTICFLOW", "POLLUX"]

VERSION = "1.x"
"""Of PyTorch: both traces are older than its second version, of March 2023."""

POLLUX_NETWORKS = {
    "ResNet-50": ("resnet50", "sgd-momentum", "imagenet-1k"),
    "ResNet-18": ("resnet18:input=32,classes=10,stem=cifar", "sgd-momentum", "cifar-10"),
    "YOLOv3": ("yolov3:input=480", "sgd-momentum", ""),
    "BERT-base finetune": ("bert-base:head=labels,sequence=384", "adam", ""),
    "DeepSpeech2": ("deepspeech2", "", ""),
    "NeuMF": ("neumf", "adam", ""),
}
"""Network, optimizer (empty: not looked up) and data set."""


def _pollux(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        network, optimizer, dataset = POLLUX_NETWORKS[row["network"]]
        nodes, gpus, batch = int(row["nodes"]), int(row["gpus"]), int(row["batch_per_gpu"])
        stated = tuple(int(digit) for digit in row["placement_gpus_on_each_node"])
        placement = stated or tuple(gpus // nodes + (at < gpus % nodes) for at in range(nodes))
        even = len(set(placement)) == 1
        where = "".join(str(count) for count in placement) if stated else f"n{nodes}-g{gpus}"
        yield Run(
            id=name_of("pollux", row["network"].partition(" ")[0], where, f"b{batch}"),
            source="pollux-t4", network=network, cluster="ec2-g4dn-12xlarge", nodes=nodes,
            gpus_per_node=max(placement), sub_batch=batch, accumulation_steps=1, data_parallel=gpus,
            precision="fp16" if row["precision"].startswith("mixed") else "fp32", optimizer=optimizer,
            framework="pytorch", framework_version=VERSION, strategy="bucketed", metric="iteration_s",
            value=digits(float(row["iter_s"])), dataset=dataset,
            placement=() if even else placement,
            notes="" if stated else "GPUs spread over the nodes as evenly as they can be, assumed",
        )  # fmt: skip


POLLUX = Source(
    "pollux-t4",
    {"pollux_traces_t4.csv": "petuum/adaptdl, branch osdi21-artifact, sched/traces/*/{placements,scalability}.csv"},
    _pollux,
    grouped,
)

ELASTICFLOW_NETWORKS = {
    "resnet50": "resnet50", "vgg16": "vgg16", "inception3": "inception-v3", "bert": "bert-base:sequence=64",
    "gpt2": "gpt2:head=labels,sequence=60", "deepspeech2": "deepspeech2", "resnet50_cifar10": "resnet50-cifar10",
}  # fmt: skip
ON_IMAGENET = ("resnet50", "vgg16", "inception-v3")


def _elasticflow(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        if not row["gpu"].startswith("A100"):
            yield Dropped("T4 rows, which are those of Pollux again")
            continue
        network, batch = ELASTICFLOW_NETWORKS[row["network"]], int(row["global_batch"])
        nodes, gpus = int(row["nodes"]), int(row["gpus_per_node"])
        yield Run(
            id=name_of("elasticflow", row["network"], f"b{batch}", f"n{nodes}", f"g{gpus}"),
            source="elasticflow", network=network, cluster="a100-40gb-hdr", nodes=nodes,
            gpus_per_node=gpus, mini_batch=batch, accumulation_steps=1, framework="pytorch", framework_version=VERSION,
            precision="tf32", strategy="bucketed", metric="iteration_s", value=digits(float(row["value"])),
            dataset="imagenet-1k" if network in ON_IMAGENET else "",
            notes="the source states no precision: TF32 assumed, the default of PyTorch on an A100 at that time",
        )  # fmt: skip


ELASTICFLOW = Source(
    "elasticflow",
    {"elasticflow.csv": "pkusys/ElasticFlow, ElasticFlow/scheduler/throughputs_*"},
    _elasticflow,
)
