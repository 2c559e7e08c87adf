"""Convert published kernel times of GPUs to sample files, one folder a calibration.

    python -m validation.convert_kernels --data DIR --out FOLDER [--gpu NAME]

``DIR`` holds six tables (CSV with a header, times in ms, rates in TFLOP/s):

``deepbench_conv.csv``, ``deepbench_gemm.csv``
    The training sheets of baidu-research/DeepBench (Apache-2.0), results/train/*.xlsx, all devices in one table each:
    gpu, N, C, H, W, K, R, S, pad_h, pad_w, stride_h, stride_w, precision, direction, time_ms, application; and gpu,
    M, N, K, transA, transB, precision, time_ms, application. A sheet without applications takes them, by shape, from
    those with.
``neusight_gemm_kernels.csv``, ``neusight_elementwise_kernels.csv``
    The measurements of sitar-lab/NeuSight (MIT), scripts/asplos/data/dataset: gpu, op, B, M, K_reduce, N_out, time_ms,
    split; and gpu, op, B, H, time_ms.
``vidur_gemm_fp16.csv``
    Linear layers of microsoft/vidur (MIT), data/profiling: gpu, M, N, K, precision, time_ms.
``attention_modern.csv``
    FlashAttention-2 in figures of Dao-AILab/flash-attention (BSD-3-Clause), assets/*.png: gpu, kernel, direction,
    causal, head_dim, seq_len, batch, heads, tflops_per_s; direction is fwd or fwd+bwd, causal 0 or 1.

The sheets of DeepBench's inference in int8 lie in validation/kernels/deepbench-int8.csv. The benchmark pads rows of
products, and channels, height and width of images, to multiples of 4: rows hold what was computed.

Transformer operators of an A100 and a GH200 lie in validation/kernels/transformer-operators.csv
(`python -m validation.operator_rows --help`); what a board was timed at there goes before what another stood in for.

What is left out, and why: a shape that stands under two applications counts once, or a hold-out by application leaks;
the gradient of a network's own input, which no training computes; rows that a sibling GPU shows to be stale, which
``rejected.txt`` lists; NeuSight's convolutions, whose random odd channel counts are 1.4 to 3.7 times too slow for real
layers, and its random products, which ran at another clock; vidur's and NeuSight's repeated rows are merged by the fit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.domain.samples import COMMAND, Samples
from planner.formats.documents import write_file
from planner.formats.samples import write_samples
from validation.attention_rows import attention_rows
from validation.command import finished, parser_of
from validation.kernel_boards import BOARDS, Board
from validation.kernel_outliers import LIMIT, Stale, stale_cells
from validation.kernel_rows import (
    CONVOLUTION_COLUMNS,
    GEMM_SHAPE,
    INT8_TABLE,
    TABLES,
    Table,
    convolution_rows,
    deepbench_gemm_rows,
    gemm_rows,
    int8_rows,
    row_rows,
)
from validation.operator_rows import OPERATOR_TABLE, operator_rows
from validation.tables import read_table

__all__ = ["BOARDS", "Board", "board_samples", "command", "main", "read_tables"]

KERNELS = Path(__file__).parent / "kernels"
CALLS = {"deepbench_conv.csv": tuple(CONVOLUTION_COLUMNS.values()), "deepbench_gemm.csv": GEMM_SHAPE}
"""Columns that say which call a row of DeepBench timed."""


def read_tables(folder: Path) -> dict[str, Table]:
    """Return the tables by name, or raise InputFileError saying where to get the one that is missing."""
    columns = "with the columns that `python -m validation.convert_kernels --help` names"
    tables: dict[str, Table] = {
        name: read_table(folder / name, f"make it from {source}, {columns}") for name, source in TABLES.items()
    }
    own = {name: read_table(KERNELS / name, "it belongs to this repository") for name in (INT8_TABLE, OPERATOR_TABLE)}
    return {**tables, **own}


def board_samples(board: Board, tables: Mapping[str, Table]) -> tuple[dict[str, Samples], tuple[str, ...]]:
    """Return the samples of a board by file name, and one line for each row that was rejected as stale.

    The board's warning, how many rows were rejected, and the command that makes the calibration stand in the first
    file.
    """
    kept, listed = dict(tables), []
    for (name, shape), sibling in zip(CALLS.items(), board.siblings, strict=True):
        stale = stale_cells(tables[name], board.deepbench, sibling, shape)
        places = {cell.place for cell in stale}
        kept[name] = [row for place, row in enumerate(tables[name]) if place not in places]
        listed += [_line(name, tables[name][cell.place], cell, shape) for cell in stale]
    narrow = list(int8_rows(tables.get(INT8_TABLE, ()), board))
    operators = list(operator_rows(tables.get(OPERATOR_TABLE, ()), board))
    of_own = {row["kind"] for row in operators} - {"gemm", "attention"}
    files: dict[str, list[Mapping[str, Any]]] = {
        "convolution.csv": [
            *convolution_rows(kept["deepbench_conv.csv"], board),
            *(row for row in narrow if row["kind"] == "convolution"),
        ],
        "gemm.csv": [
            *deepbench_gemm_rows(kept["deepbench_gemm.csv"], board),
            *gemm_rows(kept["neusight_gemm_kernels.csv"], kept["vidur_gemm_fp16.csv"], board),
            *(row for row in [*narrow, *operators] if row["kind"] == "gemm"),
        ],
        "pointwise.csv": [
            *(row for row in row_rows(kept["neusight_elementwise_kernels.csv"], board) if row["kind"] not in of_own),
            *(row for row in operators if row["kind"] in of_own),
        ],
        "attention.csv": [
            *attention_rows(kept["attention_modern.csv"], board),
            *(row for row in operators if row["kind"] == "attention"),
        ],
    }
    circumstances = {"origin": "published", "devices": board.devices, "libraries": board.environment}
    once = {
        "date": board.date,
        "warning": board.warning,
        "rejected": _counted(board, len(listed)),
        COMMAND: command(board.name),
    }
    samples: dict[str, Samples] = {}
    for name, rows in files.items():
        if rows:
            sources = "; ".join(sorted({row["source"] for row in rows}))
            said = {key: value for key, value in once.items() if value and not samples}
            samples[name] = Samples.from_rows(rows, circumstances | said | {"source": sources})
    return samples, tuple(listed)


def command(name: str) -> str:
    """Return what makes a calibration of the bundled ones again, from a folder ``DIR`` with the tables."""
    return (
        f"python -m validation.convert_kernels --data DIR --out samples --gpu {name} && "
        f"planner calibrate --samples samples/{name} --name {name} --out calibrations/{name}.json --force"
    )


def _counted(board: Board, count: int) -> str:
    sibling = board.siblings[0]
    return f"{count} rows of DeepBench at least {LIMIT} times off the median ratio to {sibling}" if sibling else ""


def _line(name: str, row: Mapping[str, str], cell: Stale, shape: tuple[str, ...]) -> str:
    call = " ".join(f"{column}={row[column]}" for column in shape)
    what = f"{row['precision']} {row.get('direction', '')}".strip()
    return f"{name}: {row['gpu']} {what} {call} {row['time_ms']} ms, {cell.factor:.2f} times the usual ratio"


def _convert(board: Board, tables: Mapping[str, Table], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    samples, rejected = board_samples(board, tables)
    for name, rows in samples.items():
        write_file(folder / name, write_samples(rows), force=True)
        sys.stderr.write(f"{folder / name}: {rows.size} rows\n")
    if rejected:
        write_file(folder / "rejected.txt", "\n".join(rejected) + "\n", force=True)
        sys.stderr.write(
            f"{folder / 'rejected.txt'}: {len(rejected)} rows left out, {_counted(board, len(rejected))}\n"
        )


def main(arguments: list[str] | None = None) -> int:
    """Convert the tables; return the exit code."""
    parser = parser_of("validation.convert_kernels", __doc__)
    names = [board.name for board in BOARDS]
    parser.add_argument("--data", required=True, type=Path, help="folder with the tables")
    parser.add_argument("--out", required=True, type=Path, help="folder for a folder of sample files for each GPU")
    parser.add_argument("--gpu", choices=names, help="only this one (default: all)")
    given = parser.parse_args(arguments)
    return finished(lambda: _convert_all(given.data, given.out, given.gpu))


def _convert_all(data: Path, out: Path, only: str | None) -> None:
    tables = read_tables(data)
    for board in BOARDS:
        if only in (None, board.name):
            _convert(board, tables, out / board.name)


if __name__ == "__main__":
    sys.exit(main())
