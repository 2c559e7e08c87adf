"""Image networks in frameworks: TensorFlow 2017, MXNet, PyTorch image models (timm), and torchvision on one GPU."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.runs import Run
from validation.sources.rows import Cells, Converted, Dropped, Source, digits, name_of, settled

__all__ = ["MXNET", "MXNET_LARGE", "TENSORFLOW", "TIMM", "TORCHVISION"]

LEFT_OUT = "a network that the zoo does not know, or came to know after these rows were fitted"
TF_NETWORKS = {
    "InceptionV3": "inception-v3", "ResNet-50": "resnet50:stride=1x1", "ResNet-152": "resnet152:stride=1x1",
    "AlexNet": "alexnet-owt", "VGG16": "vgg16",
}  # fmt: skip
TF_NOTES = {
    "ResNet-50": "stride on the 1x1 convolution, as in the benchmark's own ResNet",
    "ResNet-152": "stride on the 1x1 convolution, as in the benchmark's own ResNet",
    "AlexNet": "convolutions 4 and 5 of the benchmark take 384 channels, 0.84 G multiply-adds instead of 0.71 G",
}
TF_CLUSTERS = {
    "P100-SXM2-16GB (DGX-1)": "dgx1-p100", "K80 (GCE n1-standard-32-k80x8)": "gce-k80",
    "K80 (EC2 p2.8xlarge)": "ec2-p2-8xlarge",
}  # fmt: skip


def _tensorflow(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        real = row["dataset"].endswith("real")
        cluster = TF_CLUSTERS[row["gpu"]]
        update = row["notes"].partition(" (")[0]
        kind = "distributed" if update.startswith("distributed") else ""
        where = (
            cluster,
            kind,
            row["network"],
            f"n{row['nodes']}",
            f"g{row['gpus_per_node']}",
            f"b{row['batch_per_gpu']}",
        )
        yield Run(
            id=name_of("tf", *where, "real" if real else "synthetic"),
            source="tensorflow-2017", network=TF_NETWORKS[row["network"]], cluster=cluster,
            nodes=int(row["nodes"]), gpus_per_node=int(row["gpus_per_node"]), sub_batch=int(row["batch_per_gpu"]),
            accumulation_steps=1, optimizer="sgd", framework="tensorflow", framework_version="b1e174e (May 2017)",
            metric="samples_per_s", value=float(row["value"]), input="storage" if real else "synthetic",
            dataset="imagenet-1k",
            notes="; ".join(filter(None, [f"variables: {row['notes']}", TF_NOTES.get(row["network"], "")])),
        )  # fmt: skip


TENSORFLOW = Source(
    "tensorflow-2017",
    {"tensorflow_benchmarks_2017.csv": "tensorflow/docs, site/en/r1/guide/performance/benchmarks.md"},
    _tensorflow,
)

MXNET_NETWORKS = {
    "alexnet": "alexnet-mxnet", "inception-v3": "inception-v3", "resnet 50": "resnet50",
    "resnet-152": "resnet152",
}  # fmt: skip
MXNET_CLUSTERS = {
    "K80 (EC2 p2.16xlarge)": "ec2-p2-16xlarge", "K80 (EC2 p2.2xlarge as written)": "ec2-p2-xlarge",
    "M60 (EC2 g3.4xlarge)": "ec2-g3-4xlarge", "V100 (EC2 p3.2xlarge)": "ec2-p3-2xlarge",
}  # fmt: skip
MXNET_NOTES = {
    "resnet 50": "stride on the 3x3 convolution assumed", "resnet-152": "stride on the 3x3 convolution assumed",
}  # fmt: skip


LARGE = 256
"""Images beyond which the rate of AlexNet falls on the V100, for a reason that the source does not state."""


def _mxnet(rows: Sequence[Cells], source: str, *, is_large: bool) -> Converted:
    for row in rows:
        network, batch = row["network"].lower(), int(row["batch_per_gpu"])
        if "INFERENCE" in row["notes"]:
            yield Dropped("inference: runs are of training")
            continue
        if (row["gpu"].startswith("V100") and network == "alexnet" and batch > LARGE) != is_large:
            yield Dropped("a row of the other file of this table")
            continue
        cluster = MXNET_CLUSTERS[row["gpu"]]
        scaling = "parameter server" in row["notes"]
        server = "parameter server (kv-store dist_device_sync), not a ring" if scaling else ""
        where = (cluster, network, f"n{row['nodes']}", f"g{row['gpus_per_node']}", f"b{batch}")
        yield Run(
            id=name_of("mxnet", *where), source=source, network=MXNET_NETWORKS[network],
            cluster=cluster, nodes=int(row["nodes"]), gpus_per_node=int(row["gpus_per_node"]),
            sub_batch=batch, accumulation_steps=1, optimizer="sgd-momentum", framework="mxnet",
            framework_version="CUDA 7.5, cuDNN 5.1" if scaling else "1.2.0rc1 (cuDNN 7.0.5)",
            metric="samples_per_s", value=float(row["value"]), input="synthetic", dataset="imagenet-1k",
            notes="; ".join(filter(None, [server, MXNET_NOTES.get(network, "")])),
        )  # fmt: skip


MXNET_TABLE = {
    "mxnet.csv": "apache/mxnet, docs/static_site/src/pages/api/faq/perf.md and example/image-classification/README.md"
}
MXNET = Source("mxnet", MXNET_TABLE, lambda rows: _mxnet(rows, "mxnet", is_large=False))
MXNET_LARGE = Source("mxnet-large", MXNET_TABLE, lambda rows: _mxnet(rows, "mxnet-large", is_large=True))

TIMM_NETWORKS = {
    "resnet18": "resnet18", "gluon_resnet18_v1b": "resnet18", "resnet34": "resnet34", "tv_resnet34": "resnet34",
    "gluon_resnet34_v1b": "resnet34", "resnet50": "resnet50", "tv_resnet50": "resnet50",
    "gluon_resnet50_v1b": "resnet50", "resnet101": "resnet101", "tv_resnet101": "resnet101",
    "gluon_resnet101_v1b": "resnet101", "resnet152": "resnet152", "tv_resnet152": "resnet152",
    "gluon_resnet152_v1b": "resnet152",
    "vgg11": "vgg11", "vgg16": "vgg16", "vgg19": "vgg19", "mobilenetv2_100": "mobilenet-v2",
    "inception_v3": "inception-v3",
    "tf_inception_v3": "inception-v3", "gluon_inception_v3": "inception-v3",
}  # fmt: skip
"""Names of one architecture with different weights stand for the same network."""


def _timm(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        if row["network"] not in TIMM_NETWORKS:
            yield Dropped(LEFT_OUT)
            continue
        network, batch = TIMM_NETWORKS[row["network"]], int(row["batch_per_gpu"])
        layout = row["framework"].rpartition(" ")[2]
        yield Run(
            id=name_of("timm", network, layout, f"b{batch}"), source="timm-rtx3090", network=network,
            cluster="rtx-3090-box", nodes=1, gpus_per_node=1, sub_batch=batch, accumulation_steps=1,
            precision="fp16", optimizer="sgd-momentum",
            framework="pytorch" if layout == "nchw" else "pytorch-channels-last", framework_version="1.12 (CUDA 11.3)",
            metric="samples_per_s", value=float(row["value"]), input="synthetic", dataset="imagenet-1k",
            notes=f"automatic mixed precision; {layout.upper()}; optimizer assumed: the default of the benchmark",
        )  # fmt: skip


TIMM = Source(
    "timm-rtx3090",
    {"timm_train_rtx3090.csv": "huggingface/pytorch-image-models, results/benchmark-train-amp-*-rtx3090.csv"},
    _timm,
    settled,
)

TORCHVISION_NETWORKS = {
    name: name for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg11", "vgg16", "vgg19")
} | {"mobilenet_v2": "mobilenet-v2"}
TORCHVISION_CLUSTERS = {
    "TITAN Xp": "titan-xp-box", "GeForce RTX 2080 Ti": "rtx-2080ti-box", "TITAN RTX": "titan-rtx-box",
    "A100-SXM4-40GB": "dgx-a100-40gb",
}  # fmt: skip


def _torchvision(rows: Sequence[Cells]) -> Converted:
    for row in rows:
        if row["mode"] != "train":
            yield Dropped("inference: runs are of training")
        elif "new_results" in row["source"]:
            yield Dropped("a copy of the rows of 2080ti(2)")
        elif row["gpus_per_node"] != "1":
            yield Dropped("torch.nn.DataParallel: one process that copies the weights to all GPUs every step")
        elif row["network"] not in TORCHVISION_NETWORKS:
            yield Dropped(LEFT_OUT)
        elif row["gpu"] == "TITAN Xp" and row["precision"].startswith("fp16"):
            yield Dropped("fp16 on a GPU that computes it slower than fp32")
        else:
            yield _torchvision_run(row)


def _torchvision_run(row: Cells) -> Run:
    network, cluster = TORCHVISION_NETWORKS[row["network"]], TORCHVISION_CLUSTERS[row["gpu"]]
    narrow = row["precision"].startswith("fp16")
    precision = "fp16" if narrow else "tf32" if cluster.startswith("dgx-a100") else "fp32"
    folder = row["source"].partition(" ")[2]
    return Run(
        id=name_of("torchvision", cluster, folder, network, precision), source="pytorch-gpu-benchmark",
        network=network, cluster=cluster, nodes=1, gpus_per_node=1,
        sub_batch=int(row["batch_per_gpu"]), accumulation_steps=1, precision=precision, optimizer="none",
        framework="pytorch", framework_version=f"unstated ({folder})", metric="iteration_s",
        value=digits(float(row["value"]) / 1e3), input="synthetic", dataset="imagenet-1k",
        notes="; ".join(filter(None, ["median of 50 passes, forward and backward", "weights in fp16 too" * narrow])),
    )  # fmt: skip


TORCHVISION = Source(
    "pytorch-gpu-benchmark",
    {"pytorch_gpu_benchmark.csv": "ryujaehun/pytorch-gpu-benchmark, results/ and new_results/"},
    _torchvision,
)
