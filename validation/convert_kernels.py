"""Convert published kernel times of GPUs to sample files, one folder a calibration.

    python -m validation.convert_kernels --data DIR --out FOLDER [--gpu NAME]

``DIR`` holds three tables (CSV with a header, times in ms):

``deepbench_conv.csv``, ``deepbench_gemm.csv``
    The training sheets of baidu-research/DeepBench (Apache-2.0), results/train/*.xlsx, all devices in one table each:
    gpu, N, C, H, W, K, R, S, pad_h, pad_w, stride_h, stride_w, precision, direction, time_ms, application; and gpu,
    M, N, K, transA, transB, precision, time_ms, application. Products are column-major BLAS, as a linear layer is:
    M features out, N samples, K features in. A sheet without applications takes them, by shape, from those with.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.domain.samples import Samples
from planner.errors import InputFileError, PlannerError
from planner.formats.documents import write_file
from planner.formats.samples import write_samples

__all__ = ["BOARDS", "Board", "convolution_rows", "gemm_rows", "main", "pointwise_rows"]

Table = Sequence[Mapping[str, str]]

DEEPBENCH = (
    "DeepBench (Baidu Research, Apache-2.0), github.com/baidu-research/DeepBench results/train, "
    "commit da81ba7820739e2e506dc27f382d15be5479f98f"
)
NEUSIGHT = (
    "NeuSight (Lee et al., ASPLOS 2025, MIT), github.com/sitar-lab/NeuSight scripts/asplos/data/dataset, "
    "commit 6945927d9afcca2b9daf021f8395e53edc5b4eef"
)


@dataclass(frozen=True, slots=True)
class Board:
    """Which sheets serve a calibration, and what has to be said of them.

    Attributes
    ----------
    name : str
        Of the accelerator and of the calibration.
    deepbench, neusight : str
        Name of the GPU in each table.
    libraries : tuple of str
        Of convolutions and of products.
    date : str
    devices, environment : str
        Circumstances: on what, and with which libraries.
    warning : str
        For whoever uses the calibration.
    notes, pointwise_notes : str
        Of every row of DeepBench and of NeuSight.
    """

    name: str
    deepbench: str
    neusight: str
    libraries: tuple[str, str]
    date: str
    devices: str
    environment: str
    warning: str = ""
    notes: str = ""
    pointwise_notes: str = ""


CONSTANT = (
    "on tensors of 100 MB and more, one call between two events: the constant holds host time, as it is 11 to 24 us on "
    "seven GPUs of very different speed; it is kept for small tensors"
)
P100_DEVICES = "Tesla P100, taken for PCIe (convolution, gemm), and Tesla P100-PCIe-16GB (pointwise)"
P100_LIBRARIES = "CUDA 8, cuDNN 6 (convolution, gemm) and PyTorch 2.1 (pointwise)"
P100_WARNING = (
    "FP16 is tensors of fp16 with sums in fp32, without tensor cores; its training is predicted too fast: ResNet-50 "
    "gains 1.4 to 1.5 times over FP32 at sub-batches 16 to 64 where published ratios of V100 and P100 imply 1.0 to "
    "1.4; cuDNN 6 took up to 80 times as long for backward_data of strided convolutions in fp16 as in fp32, which no "
    "term here shows."
)
"""Published: Dell EMC reference guide on deep learning; V100 over P100 and, on V100, FP16 over FP32."""
T4_WARNING = (
    "FP16 training is predicted too fast: ResNet-50 in mixed precision (apex) took 1.7 to 2.1 times what is predicted "
    "at sub-batches 200 and 20 on one T4 of an EC2 g4dn; convolutions were timed alone, without layout changes and "
    "casts."
)
"""Published: traces of Pollux (Qiao et al., OSDI 2021), github.com/petuum/adaptdl."""
BOARDS = (
    Board(
        "v100-sxm2-16gb", "Tesla V100", "Tesla V100-PCIE-32GB", ("cudnn 7.6.2", "cublas 10.1"), "2019",
        "Tesla V100-SXM2 of a DGX-1 (convolution, gemm) and Tesla V100-PCIe-32GB (pointwise)",
        "CUDA 10.1, cuDNN 7.6.2 (convolution, gemm) and PyTorch 2.1 (pointwise)",
        # Published: Dell EMC reference guide on deep learning; u39kun/deep-learning-benchmark (PyTorch 0.3, cuDNN 7.0).
        warning="FP16 training is predicted too fast: ResNet-50 gains 2.1 to 2.8 times over FP32 at sub-batches 16 to "
        "128 where 1.60 to 2.07 times was published, and forward with backward of VGG-16 and ResNet-152 at sub-batch "
        "16 took 1.9 and 1.5 times what is predicted, mostly in the backward pass; convolutions were timed alone, "
        "without layout changes and casts, by a newer cuDNN.",
        pointwise_notes="measured on a V100-PCIe-32GB, which stands in: its memory bandwidth is that of the SXM2; "
        f"{CONSTANT} because with 8 us (a small product in a loop of calls) 21 published MXNet steps on a V100 are "
        "missed by 19 % instead of 13 %",
    ),
    Board(
        "p100-pcie-16gb", "Tesla P100", "Tesla P100-PCIE-16GB", ("cudnn 6", "cublas 8"), "2017",
        P100_DEVICES, P100_LIBRARIES, warning=P100_WARNING, pointwise_notes=CONSTANT,
    ),
    Board(
        "p100-sxm2-16gb", "Tesla P100", "Tesla P100-PCIE-16GB", ("cudnn 6", "cublas 8"), "2017",
        P100_DEVICES, P100_LIBRARIES, warning=P100_WARNING,
        notes="measured on a P100 that is taken for a PCIe board, which stands in, unscaled",
        pointwise_notes="measured on a P100-PCIe-16GB, which stands in: its memory bandwidth is that of the SXM2; "
        f"{CONSTANT}",
    ),
    Board(
        "t4", "Tesla T4", "Tesla T4", ("cudnn 7", "cublas 10"), "2019",
        "Tesla T4",
        "CUDA 10, cuDNN 7 by their date (convolution, gemm) and PyTorch 2.1 (pointwise)",
        warning=T4_WARNING,
        pointwise_notes=CONSTANT,
    ),
)  # fmt: skip
DIRECTIONS = {"fwd": "forward", "bwd_data": "backward_data", "bwd_weight": "backward_weight"}
PASSES = {"add": 3, "mul": 3, "div": 3, "pow": 3} | dict.fromkeys(
    ("addu", "mulu", "divu", "powu", "relu", "gelu", "tanh"), 2
)
"""Tensors read and written; a name that ends in u has one operand."""
INPUT_CHANNELS = 4
"""A convolution that reads at most this many channels reads the network's input."""
CONVOLUTION_COLUMNS = {
    "images": "N", "in_c": "C", "in_h": "H", "in_w": "W", "out_c": "K", "k_h": "R", "k_w": "S", "pad_h": "pad_h",
    "pad_w": "pad_w", "stride_h": "stride_h", "stride_w": "stride_w",
}  # fmt: skip
GEMM_COLUMNS = {"m": "M", "n": "N", "k": "K"}


def convolution_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Return the distinct convolutions of a board; the group is the application."""
    return _once(_convolution_rows(table, board))


def _convolution_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    applications = _applications(table, CONVOLUTION_COLUMNS.values())
    for row in table:
        first = row["direction"] == "bwd_data" and int(row["C"]) <= INPUT_CHANNELS
        if row["gpu"] == board.deepbench and not first:
            work = {name: float(row[column]) for name, column in CONVOLUTION_COLUMNS.items()}
            group = row["application"] or applications[_shape(row, CONVOLUTION_COLUMNS.values())]
            yield _deepbench("convolution", row, board, group) | {
                **work, "groups": 1.0, "direction": DIRECTIONS[row["direction"]],
            }  # fmt: skip


def gemm_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Yield products of a board; the group is the layer (M, K) of an application, all batches of it together."""
    columns = (*GEMM_COLUMNS.values(), "transA", "transB")
    applications = _applications(table, columns)
    for row in table:
        if row["gpu"] == board.deepbench:
            application = row["application"] or applications[_shape(row, columns)]
            work = {name: float(row[column]) for name, column in GEMM_COLUMNS.items()}
            transposed = {"trans_a": row["transA"], "trans_b": row["transB"]}
            group = f"{application} {row['M']}x{row['K']}"
            yield _deepbench("gemm", row, board, group) | {**work, **transposed, "batch": 1.0}


def pointwise_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Yield element-wise kernels, fp32; the group is the number of rows of the tensor."""
    for row in table:
        if row["gpu"] == board.neusight and row["op"] in PASSES:
            elements = int(row["B"]) * int(row["H"])
            yield {
                "kind": "pointwise", "precision": "fp32", "device": board.name, "library": "pytorch 2.1",
                "elements": float(elements), "bytes": 4.0 * PASSES[row["op"]] * elements,
                "time_s": float(row["time_ms"]) * 1e-3, "source": NEUSIGHT, "group": f"rows {row['B']}",
                "notes": board.pointwise_notes,
            }  # fmt: skip


def _deepbench(kind: str, row: Mapping[str, str], board: Board, group: str) -> dict[str, Any]:
    return {
        "kind": kind, "precision": _precision(row["precision"]), "device": board.name,
        "library": board.libraries[kind == "gemm"], "time_s": float(row["time_ms"]) * 1e-3, "source": DEEPBENCH,
        "group": group, "notes": board.notes,
    }  # fmt: skip


def _precision(text: str) -> str:
    """Return ``fp16`` for tensors of fp16 with sums in fp32: mixed precision, on tensor cores or (P100) without."""
    return text.partition(" ")[0]


def _applications(table: Table, columns: Collection[str]) -> dict[tuple[str, ...], str]:
    """Return the application of every shape that has one, the first of several."""
    found: dict[tuple[str, ...], str] = {}
    for row in table:
        if row["application"]:
            found.setdefault(_shape(row, columns), row["application"])
    return found


def _shape(row: Mapping[str, str], columns: Collection[str]) -> tuple[str, ...]:
    return tuple(row[column] for column in columns)


def _once(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen = set()
    for row in rows:
        key = tuple(value for name, value in row.items() if name not in ("time_s", "group", "notes"))
        if key not in seen:
            seen.add(key)
            yield row


TABLES = (
    ("deepbench_conv.csv", convolution_rows, "convolution.csv", DEEPBENCH),
    ("deepbench_gemm.csv", gemm_rows, "gemm.csv", DEEPBENCH),
    ("neusight_elementwise_kernels.csv", pointwise_rows, "pointwise.csv", NEUSIGHT),
)


def _table(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise InputFileError(
            str(path),
            "table must be there, got nothing; see `python -m validation.convert_kernels --help` for its source",
        )
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _convert(board: Board, tables: Mapping[str, Table], folder: Path) -> None:
    """Write the sample files of one board; the warning stands in the first of them."""
    folder.mkdir(parents=True, exist_ok=True)
    circumstances = {
        "origin": "published", "date": board.date, "devices": board.devices, "libraries": board.environment,
    }  # fmt: skip
    for table, rows, target, source in TABLES:
        warned = {"warning": board.warning} if board.warning and rows is convolution_rows else {}
        samples = Samples.from_rows(list(rows(tables[table], board)), circumstances | {"source": source} | warned)
        write_file(folder / target, write_samples(samples), force=True)
        sys.stderr.write(f"{folder / target}: {samples.size} rows\n")


def main(arguments: list[str] | None = None) -> int:
    """Convert the three tables; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m validation.convert_kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [board.name for board in BOARDS]
    parser.add_argument("--data", required=True, type=Path, help="folder with the three tables")
    parser.add_argument("--out", required=True, type=Path, help="folder for a folder of sample files for each GPU")
    parser.add_argument("--gpu", choices=names, help="only this one (default: all)")
    given = parser.parse_args(arguments)
    try:
        tables = {name: _table(given.data / name) for name, *_ in TABLES}
        for board in BOARDS:
            if given.gpu in (None, board.name):
                _convert(board, tables, given.out / board.name)
    except PlannerError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
