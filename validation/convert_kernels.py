"""Convert published kernel times of the Tesla V100 to sample files.

    python -m validation.convert_kernels --data DIR --out FOLDER

``DIR`` holds three tables (CSV with a header, times in ms):

``deepbench_conv.csv``, ``deepbench_gemm.csv``
    The training sheets of baidu-research/DeepBench (Apache-2.0), results/train/*.xlsx, all devices in one table each:
    gpu, N, C, H, W, K, R, S, pad_h, pad_w, stride_h, stride_w, precision, direction, time_ms, application; and gpu,
    M, N, K, transA, transB, precision, time_ms, application. Products are column-major BLAS, as a linear layer is:
    M features out, N samples, K features in.
``neusight_elementwise_kernels.csv``
    The element-wise measurements of sitar-lab/NeuSight (MIT), scripts/asplos/data/dataset: gpu, op, B, H, time_ms.

What is left out, and why: a shape that stands under two applications counts once, or a hold-out by application leaks;
the gradient of a network's own input, which no training computes; layer norm and softmax, whose times depend on the row
length; NeuSight's convolutions, whose random odd channel counts are 1.4 to 3.7 times too slow for real layers.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.domain.samples import Samples
from planner.errors import InputFileError, PlannerError
from planner.formats.documents import write_file
from planner.formats.samples import write_samples

__all__ = ["convolution_rows", "gemm_rows", "main", "pointwise_rows"]

DEEPBENCH = (
    "DeepBench (Baidu Research, Apache-2.0), github.com/baidu-research/DeepBench results/train, "
    "commit da81ba7820739e2e506dc27f382d15be5479f98f"
)
NEUSIGHT = (
    "NeuSight (Lee et al., ASPLOS 2025, MIT), github.com/sitar-lab/NeuSight scripts/asplos/data/dataset, "
    "commit 6945927d9afcca2b9daf021f8395e53edc5b4eef"
)
CIRCUMSTANCES = {
    "origin": "published",
    "date": "2019",
    "devices": "Tesla V100-SXM2 of a DGX-1 (convolution, gemm) and Tesla V100-PCIe-32GB (pointwise)",
    "libraries": "CUDA 10.1, cuDNN 7.6.2 (convolution, gemm) and PyTorch 2.1 (pointwise)",
}
WARNING = (
    "FP16 training is predicted too fast: ResNet-50 gains 2.1 to 2.8 times over FP32 at sub-batches 16 to 128 where "
    "1.60 to 2.07 times was published, and forward with backward of VGG-16 and ResNet-152 at sub-batch 16 took 1.9 and "
    "1.5 times what is predicted, mostly in the backward pass; convolutions were timed alone, without layout changes "
    "and casts, by a newer cuDNN."
)
"""Published: Dell EMC reference guide on deep learning; u39kun/deep-learning-benchmark (PyTorch 0.3, cuDNN 7.0)."""
DEEPBENCH_GPU, NEUSIGHT_GPU = "Tesla V100", "Tesla V100-PCIE-32GB"
DIRECTIONS = {"fwd": "forward", "bwd_data": "backward_data", "bwd_weight": "backward_weight"}
PASSES = {"add": 3, "mul": 3, "div": 3, "pow": 3} | dict.fromkeys(
    ("addu", "mulu", "divu", "powu", "relu", "gelu", "tanh"), 2
)
"""Tensors read and written; a name that ends in u has one operand."""
POINTWISE_NOTES = (
    "measured on a V100-PCIe-32GB, which stands in: its memory bandwidth is that of the SXM2; on tensors of 100 MB and "
    "more, one call between two events: the constant holds host time, as it is 11 to 24 us on seven GPUs of very "
    "different speed; it is kept for small tensors because with 8 us (a small product in a loop of calls) 21 published "
    "MXNet steps on a V100 are missed by 22 % instead of 16 %"
)
INPUT_CHANNELS = 4
"""A convolution that reads at most this many channels reads the network's input."""


def _table(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise InputFileError(
            str(path),
            "table must be there, got nothing; see `python -m validation.convert_kernels --help` for its source",
        )
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _precision(text: str) -> str:
    """Return ``fp16`` for tensor cores (fp16 multiply, fp32 add)."""
    return text.partition(" ")[0]


def _once(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen = set()
    for row in rows:
        key = tuple(value for name, value in row.items() if name not in ("time_s", "group", "notes"))
        if key not in seen:
            seen.add(key)
            yield row


def convolution_rows(table: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Return the distinct convolutions of the V100; the group is the application."""
    return _once(_convolution_rows(table))


def _convolution_rows(table: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    columns = {
        "images": "N", "in_c": "C", "in_h": "H", "in_w": "W", "out_c": "K", "k_h": "R", "k_w": "S", "pad_h": "pad_h",
        "pad_w": "pad_w", "stride_h": "stride_h", "stride_w": "stride_w",
    }  # fmt: skip
    for row in table:
        first = row["direction"] == "bwd_data" and int(row["C"]) <= INPUT_CHANNELS
        if row["gpu"] == DEEPBENCH_GPU and not first:
            work = {name: float(row[column]) for name, column in columns.items()}
            yield _deepbench("convolution", row, {**work, "groups": 1.0, "direction": DIRECTIONS[row["direction"]]})


def gemm_rows(table: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield products of the V100; the group is the layer (M, K) of an application, all batches of it together."""
    for row in table:
        if row["gpu"] == DEEPBENCH_GPU:
            work = {name: float(row[name.upper()]) for name in ("m", "n", "k")}
            transposed = {"trans_a": row["transA"], "trans_b": row["transB"]}
            group = f"{row['application']} {row['M']}x{row['K']}"
            yield _deepbench("gemm", row, {**work, **transposed, "batch": 1.0}) | {"group": group}


def _deepbench(kind: str, row: Mapping[str, str], work: Mapping[str, Any]) -> dict[str, Any]:
    library = "cudnn 7.6.2" if kind == "convolution" else "cublas 10.1"
    return {
        "kind": kind, "precision": _precision(row["precision"]), "device": "v100-sxm2-16gb", "library": library, **work,
        "time_s": float(row["time_ms"]) * 1e-3, "source": DEEPBENCH, "group": row["application"],
    }  # fmt: skip


def pointwise_rows(table: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield element-wise kernels, fp32; the group is the number of rows of the tensor.

    They were measured on the PCIe board and stand in for the SXM2, of the same memory: every row's notes say so, and
    what the constant of a call is.
    """
    for row in table:
        if row["gpu"] == NEUSIGHT_GPU and row["op"] in PASSES:
            elements = int(row["B"]) * int(row["H"])
            yield {
                "kind": "pointwise", "precision": "fp32", "device": "v100-sxm2-16gb", "library": "pytorch 2.1",
                "elements": float(elements), "bytes": 4.0 * PASSES[row["op"]] * elements,
                "time_s": float(row["time_ms"]) * 1e-3, "source": NEUSIGHT, "group": f"rows {row['B']}",
                "notes": POINTWISE_NOTES,
            }  # fmt: skip


TABLES = (
    ("deepbench_conv.csv", convolution_rows, "convolution.csv", {"source": DEEPBENCH, "warning": WARNING}),
    ("deepbench_gemm.csv", gemm_rows, "gemm.csv", {"source": DEEPBENCH}),
    ("neusight_elementwise_kernels.csv", pointwise_rows, "pointwise.csv", {"source": NEUSIGHT}),
)


def main(arguments: list[str] | None = None) -> int:
    """Convert the three tables; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m validation.convert_kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", required=True, type=Path, help="folder with the three tables")
    parser.add_argument("--out", required=True, type=Path, help="folder for the sample files")
    given = parser.parse_args(arguments)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        for source, rows, target, own in TABLES:
            samples = Samples.from_rows(list(rows(_table(given.data / source))), CIRCUMSTANCES | own)
            write_file(given.out / target, write_samples(samples), force=True)
            sys.stderr.write(f"{given.out / target}: {samples.size} rows\n")
    except PlannerError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
