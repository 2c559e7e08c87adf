"""Forward and backward passes of image networks on one GPU: cnn-benchmarks and convnet-benchmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, digits, name_of, settled

__all__ = ["CNN_BENCHMARKS", "CONVNET_BENCHMARKS"]

CNN_NETWORKS = {
    "alexnet": "alexnet", "googlenet-v1": "googlenet", "vgg16": "vgg16", "vgg19": "vgg19", "resnet-18": "resnet18",
    "resnet-34": "resnet34", "resnet-50": "resnet50", "resnet-101": "resnet101", "resnet-152": "resnet152",
    "resnet-200": "resnet200",
}  # fmt: skip
CNN_NOTES = {
    "alexnet": "Caffe's AlexNet, run at 224 x 224",
    "googlenet-v1": "without auxiliary heads, assumed",
    "resnet-50": "stride on the 3x3 convolution assumed", "resnet-101": "stride on the 3x3 convolution assumed",
    "resnet-152": "stride on the 3x3 convolution assumed",
}  # fmt: skip
CNN_GPUS = {
    "GeForce GTX 1080": "gtx-1080", "GeForce GTX 1080 Ti": "gtx-1080ti", "GeForce GTX TITAN X": "titan-x-maxwell",
    "TITAN X": "titan-x-pascal",
}  # fmt: skip


def _cnn(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        if not row["notes"].startswith("total"):
            yield Dropped("forward or backward alone: their total is the run")
        elif row["gpu"] not in CNN_GPUS:
            yield Dropped("on a CPU")
        elif "no cuDNN" in row["framework"]:
            yield Dropped("convolutions without the vendor's library, which no calibration describes")
        else:
            yield _cnn_run(row)


def _cnn_run(row: Cells) -> Run:
    gpu, library = CNN_GPUS[row["gpu"]], row["framework"].rpartition(" ")[2]
    least = re.search(r"min ([\d.]+)", row["notes"])
    if least is None:
        raise ValueError(row["notes"])
    network = row["network"]
    return Run(
        id=name_of("cnn", gpu, library, network), source="cnn-benchmarks", network=CNN_NETWORKS[network],
        cluster=f"{gpu}-box", nodes=1, gpus_per_node=1, sub_batch=int(row["batch_per_gpu"]),
        accumulation_steps=1, optimizer="none", framework="torch7", framework_version=f"cuDNN {library}",
        metric="iteration_s", value=digits(float(least[1]) / 1e3), input="synthetic", dataset="imagenet-1k",
        notes="; ".join(filter(None, ["least of 10 passes, forward and backward", CNN_NOTES.get(network, "")])),
    )  # fmt: skip


CNN_BENCHMARKS = Source(
    "cnn-benchmarks",
    {"cnn_benchmarks.csv": "jcjohnson/cnn-benchmarks, outputs/*/*.json"},
    _cnn,
    lambda runs: settled(runs, min, "least"),
)

CONVNET_NETWORKS = {
    "AlexNet (One Weird Trick paper)": ("alexnet-owt", ""),
    "Overfeat": ("overfeat", ""),
    "OxfordNet": ("vgg11", "VGG model A"),
    "GoogleNet V1": ("googlenet", "without auxiliary heads, assumed"),
}
CONVNET_FRAMEWORKS = {"CuDNN[R4]-fp32 (Torch)": "torch7", "TensorFlow": "tensorflow", "Chainer": "chainer"}
CONVNET_VERSIONS = {"torch7": "cuDNN 4", "tensorflow": "early 2016", "chainer": "early 2016"}


def _convnet(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        library = " ".join(row["framework"].split())
        if row["notes"] != "total":
            yield Dropped("forward or backward alone: their total is the run")
        elif row["precision"] != "fp32":
            yield Dropped("fp16 storage with fp32 arithmetic, which no precision of a run says")
        elif library not in CONVNET_FRAMEWORKS:
            yield Dropped("convolutions by another library than cuDNN 4, or an older one")
        else:
            network, note = CONVNET_NETWORKS[row["network"]]
            framework = CONVNET_FRAMEWORKS[library]
            yield Run(
                id=name_of("convnet", framework, network), source="convnet-benchmarks", network=network,
                cluster="titan-x-maxwell-box", nodes=1, gpus_per_node=1,
                sub_batch=int(row["batch_per_gpu"]), accumulation_steps=1, optimizer="none", framework=framework,
                framework_version=CONVNET_VERSIONS[framework], metric="iteration_s",
                value=digits(float(row["value"]) / 1e3), input="synthetic", dataset="imagenet-1k",
                notes="; ".join(filter(None, ["forward and backward, without dropout and softmax, to 1 ms", note])),
            )  # fmt: skip


CONVNET_BENCHMARKS = Source(
    "convnet-benchmarks",
    {"convnet_benchmarks_titanx.csv": "soumith/convnet-benchmarks, README.md"},
    _convnet,
)
