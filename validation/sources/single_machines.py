"""Reference scripts on one machine of one to eight GPUs: Lambda's two sets, and u39kun's passes on four GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, digits, name_of, settled

__all__ = ["LAMBDA_V1", "LAMBDA_V2", "LOCKED_SET", "U39KUN"]

LOCKED_SET = "(v2 set)"
"""In the framework's name of rows that no fit learns from and nobody looks at one by one."""
LAMBDA_NETWORKS = {
    "ResNet-50 v1.5": ("resnet50", "sgd-momentum", "imagenet-1k"),
    "BERT-base": ("bert-base:head=labels,sequence=384", "adam", ""),
    "BERT-large": ("bert-large:head=labels,sequence=384", "adam", ""),
}
"""Network, optimizer and data set of NVIDIA's reference scripts."""
LAMBDA_GPUS = {
    "A10": "a10", "A100 40GB PCIe": "a100-pcie-40gb", "A100 80GB PCIe": "a100-pcie-80gb",
    "A100 80GB SXM4": "a100-sxm4-80gb", "H100 80GB PCIe": "h100-pcie-80gb", "H100 80GB PCIe Gen5": "h100-pcie-80gb",
    "H100 80GB SXM5": "h100-sxm5-80gb", "H200 140GB SXM": "h200-sxm-141gb", "GH200 96GB": "gh200-96gb",
    "B200 192GB": "b200-sxm-180gb", "Quadro RTX 8000": "quadro-rtx-8000", "RTX 3090": "rtx-3090",
    "RTX 4090": "rtx-4090", "RTX 6000 Ada": "rtx-6000-ada", "RTX A6000": "rtx-a6000", "V100 16GB": "v100-sxm2-16gb",
}  # fmt: skip
LAMBDA_UPDATES = ("primitive-optimizer", "fused-optimizer")
"""Switches of BERT's optimizer, which is one of its own but apex' FusedAdam in mixed precision (run_squad.py of
LambdaLabsML/DeepLearningExamples); its bias and GELU are scripted in all."""
WITHOUT_TF32 = ("quadro-rtx-8000", "v100-sxm2-16gb")


def _lambda(rows: Sequence[Cells], name: str, *, is_locked: bool) -> Converted:
    for row in rows:
        gpus = int(row["gpus_per_node"])
        if (LOCKED_SET in row["framework"]) != is_locked:
            yield Dropped("a row of the other set in the same table")
        elif row["network"] not in LAMBDA_NETWORKS:
            yield Dropped(f"a network that the zoo does not know: {row['network']}")
        elif "FLAG" in row["notes"] or (row["network"] == "BERT-base" and gpus > 2):
            yield Dropped("an epoch of few steps, whose timer shows more than 1.1 times the best GPU a GPU")
        elif row["gpu"] not in LAMBDA_GPUS:
            yield Dropped(f"a memory size that no data sheet has: {row['gpu']}")
        else:
            yield _lambda_run(row, name, LAMBDA_GPUS[row["gpu"]])


def _lambda_run(row: Cells, name: str, gpu: str) -> Run:
    network, optimizer, dataset = LAMBDA_NETWORKS[row["network"]]
    gpus, batch = int(row["gpus_per_node"]), int(row["batch_per_gpu"])
    precision = "fp16" if row["precision"].startswith("amp") else "fp32" if gpu in WITHOUT_TF32 else "tf32"
    notes = "automatic mixed precision" if precision == "fp16" else ""
    switches = f":fused-activation+{LAMBDA_UPDATES[precision == 'fp16']}"
    return Run(
        id=name_of(name, gpu, network.partition(":")[0], precision, f"g{gpus}"), source=name, network=network,
        cluster=f"lambda-{gpu}", nodes=1, gpus_per_node=gpus, sub_batch=batch, accumulation_steps=1,
        precision=precision, optimizer=optimizer, framework=f"pytorch{switches if optimizer == 'adam' else ''}",
        framework_version="NGC 24.10" if "24.10" in row["framework"] else "NGC 2022 to 2023",
        strategy="bucketed", metric="samples_per_s", value=float(row["value"]), input="synthetic", dataset=dataset,
        notes="; ".join(filter(None, [notes, "NCHW" if network == "resnet50" else ""])),
    )  # fmt: skip


LAMBDA_TABLE = {"lambda_dl_benchmark.csv": "lambdal/deeplearning-benchmark, pytorch/*.csv and pytorch/scripts"}
LAMBDA_V1 = Source("lambda-v1", LAMBDA_TABLE, lambda rows: _lambda(rows, "lambda-v1", is_locked=False), settled)
LAMBDA_V2 = Source("lambda-v2", LAMBDA_TABLE, lambda rows: _lambda(rows, "lambda-v2", is_locked=True), settled)

U39KUN_CLUSTERS = {
    "Titan V": "titan-v-box", "1080 Ti": "gtx-1080ti-box", "2080 Ti": "rtx-2080ti-box", "V100": "ec2-p3-2xlarge",
}  # fmt: skip
U39KUN_NETWORKS = {"vgg16": "vgg16", "resnet152": "resnet152"}


def _u39kun(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        if not row["notes"].startswith("forward+backward"):
            yield Dropped("a forward pass alone")
        elif row["network"] not in U39KUN_NETWORKS:
            yield Dropped(f"a network that the zoo does not know: {row['network']}")
        elif row["gpu"] == "1080 Ti" and row["precision"] == "fp16":
            yield Dropped("fp16 on a GPU that computes it slower than fp32")
        else:
            framework, _, version = row["framework"].lower().partition(" ")
            network, cluster = U39KUN_NETWORKS[row["network"]], U39KUN_CLUSTERS[row["gpu"]]
            yield Run(
                id=name_of("u39kun", framework, version, cluster, network, row["precision"]), source="u39kun",
                network=network, cluster=cluster, nodes=1, gpus_per_node=1,
                sub_batch=int(row["batch_per_gpu"]), accumulation_steps=1, precision=row["precision"],
                optimizer="none", framework=framework, framework_version=version,
                metric="iteration_s", value=digits(float(row["value"]) / 1e3), input="synthetic",
                dataset="imagenet-1k",
                notes="forward and backward" + "; weights in fp16 too" * (row["precision"] == "fp16"),
            )  # fmt: skip


U39KUN = Source("u39kun", {"u39kun_titanv.csv": "u39kun/deep-learning-benchmark, README.md"}, _u39kun)
