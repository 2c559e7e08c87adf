"""Rows of the published kernel tables as rows of a samples file.

Products are column-major BLAS in DeepBench, as a linear layer is: m features out, n samples, k features in; NeuSight's
and vidur's are turned to that. Batches of products stay (m x k)·(k x n), as attention asks for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from validation.attention_rows import FLASH_ATTENTION
from validation.kernel_boards import Board

__all__ = [
    "DEEPBENCH", "INT8_TABLE", "NEUSIGHT", "TABLES", "VIDUR", "Table", "convolution_rows", "deepbench_gemm_rows",
    "gemm_rows", "int8_rows", "row_rows", "shape_of",
]  # fmt: skip

Table = Sequence[Mapping[str, str]]

DEEPBENCH = (
    "DeepBench (Baidu Research, Apache-2.0), github.com/baidu-research/DeepBench results/train, "
    "commit da81ba7820739e2e506dc27f382d15be5479f98f"
)
NEUSIGHT = (
    "NeuSight (Lee et al., ASPLOS 2025, MIT), github.com/sitar-lab/NeuSight scripts/asplos/data/dataset, "
    "commit 6945927d9afcca2b9daf021f8395e53edc5b4eef"
)
VIDUR = (
    "vidur (Agrawal et al., MLSys 2024, MIT), github.com/microsoft/vidur data/profiling, "
    "commit 7d47513363ec447a741ac5e47241580b47724fbf"
)
DEEPBENCH_INT8 = DEEPBENCH.replace("results/train", "results/inference")
INT8_TABLE = "deepbench-int8.csv"
"""In this folder's ``kernels``: the sheets of inference in int8, 728 calls."""
TABLES = {
    "deepbench_conv.csv": DEEPBENCH,
    "deepbench_gemm.csv": DEEPBENCH,
    "neusight_gemm_kernels.csv": NEUSIGHT,
    "neusight_elementwise_kernels.csv": NEUSIGHT,
    "vidur_gemm_fp16.csv": VIDUR,
    "attention_modern.csv": FLASH_ATTENTION,
}
"""Tables, and where each is from."""
WHOLE_INT8 = 4
"""Bytes that DP4A takes together: the benchmark pads rows of products, and channels, height and width of images."""
DIRECTIONS = {"fwd": "forward", "bwd_data": "backward_data", "bwd_weight": "backward_weight"}
PASSES = {"add": 3, "mul": 3, "div": 3, "pow": 3} | dict.fromkeys(
    ("addu", "mulu", "divu", "relu", "gelu", "tanh", "ln", "softmax"), 2
)
"""Tensors read and written; a name that ends in u has one operand.

``powu`` is left out: a power by a scalar is bound by arithmetic on some GPUs, 12 % slower than its bytes take.
"""
KINDS = {"ln": "layer_norm", "softmax": "softmax", "add": "add", "relu": "activation", "gelu": "activation"}
"""Kinds of the planner; what is none of them serves all other kinds whose work is bytes."""
INPUT_CHANNELS = 4
"""A convolution that reads at most this many channels reads the network's input."""
STORAGE = "fp16 storage"
"""Precision of tensors of fp16 whose products and sums are those of fp32, as on CUDA cores."""
WIDE_KERNEL = (
    "where the library's choice in fp16 is slower than the fp32 kernel of the same convolution, which multiplies and "
    "adds in fp32 too, it has that one's time: programs time algorithms and take the fastest"
)
UNNAMED = "unnamed"
"""Application of a shape that only sheets without applications hold."""
CONVOLUTION_COLUMNS = {
    "images": "N", "in_c": "C", "in_h": "H", "in_w": "W", "out_c": "K", "k_h": "R", "k_w": "S", "pad_h": "pad_h",
    "pad_w": "pad_w", "stride_h": "stride_h", "stride_w": "stride_w",
}  # fmt: skip
GEMM_COLUMNS = {"m": "M", "n": "N", "k": "K"}
GEMM_SHAPE = (*GEMM_COLUMNS.values(), "transA", "transB")


def convolution_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Return the distinct convolutions of a board; the group is the application.

    DeepBench timed what cuDNN's heuristics choose, which in fp16 storage on a P100 is up to 80 times as slow as the
    fp32 kernel (data gradients of strided convolutions); see WIDE_KERNEL.
    """
    return _once(_convolution_rows(table, board))


def _convolution_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    applications = _applications(table, CONVOLUTION_COLUMNS.values())
    call = (*CONVOLUTION_COLUMNS.values(), "direction")
    own = [row for row in table if board.deepbench and row["gpu"] == board.deepbench]
    wide = {shape_of(row, call): float(row["time_ms"]) for row in own if row["precision"] == "fp32"}
    for row in own:
        first = row["direction"] == "bwd_data" and int(row["C"]) <= INPUT_CHANNELS
        if not first:
            by_wide = min(float(row["time_ms"]), wide.get(shape_of(row, call), inf))
            narrow = row["precision"].startswith(STORAGE)
            notes = "; ".join(filter(None, (board.note("deepbench"), WIDE_KERNEL)))
            fastest = {"time_s": by_wide * 1e-3, "notes": notes} if narrow else {}
            work = {name: float(row[column]) for name, column in CONVOLUTION_COLUMNS.items()}
            group = row["application"] or applications.get(shape_of(row, CONVOLUTION_COLUMNS.values()), UNNAMED)
            yield _deepbench("convolution", row, board, group) | {
                **work, "groups": 1.0, "direction": DIRECTIONS[row["direction"]], **fastest,
            }  # fmt: skip


def deepbench_gemm_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Yield products of a board; the group is the layer (M, K) of an application, all batches of it together."""
    applications = _applications(table, GEMM_SHAPE)
    for row in table:
        if board.deepbench and row["gpu"] == board.deepbench:
            application = row["application"] or applications.get(shape_of(row, GEMM_SHAPE), UNNAMED)
            work = {name: float(row[column]) for name, column in GEMM_COLUMNS.items()}
            transposed = {"trans_a": row["transA"], "trans_b": row["transB"]}
            group = f"{application} {row['M']}x{row['K']}"
            yield _deepbench("gemm", row, board, group) | {**work, **transposed, "batch": 1.0}


def int8_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Return products and forward convolutions of a board in int8, as they were computed, padded; see WHOLE_INT8.

    The group is the layer, at all its batches. Marked as padded are those of a side that is no multiple.
    """
    return _once(_int8_rows(table, board))


def _int8_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    for row in table:
        if not board.deepbench or row["gpu"] != board.deepbench:
            continue
        is_product = row["op"] == "gemm"
        kind, columns = ("gemm", GEMM_COLUMNS) if is_product else ("convolution", CONVOLUTION_COLUMNS)
        padded = ("m",) if is_product else ("in_c", "in_h", "in_w")
        work = {name: float(row[column]) for name, column in columns.items()}
        work |= {name: -(-work[name] // WHOLE_INT8) * WHOLE_INT8 for name in padded}
        layer = "x".join(f"{size:g}" for name, size in work.items() if name not in ("n", "images"))
        extra = {"batch": 1.0, "trans_a": row["transA"], "trans_b": row["transB"]} if is_product else {"groups": 1.0}
        yield _common(kind, board, "int8", DEEPBENCH_INT8, row["time_ms"]) | work | extra | {
            "precision": "int8", "direction": "" if is_product else "forward",
            "library": board.int8_libraries[is_product],
            "group": f"{'padded' if int(row['padded']) else 'layer'} {layer}",
        }  # fmt: skip


def gemm_rows(neusight: Table, vidur: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Yield products of language models: linear layers and batches in fp32 (NeuSight), linear layers in fp16 (vidur).

    The group is the layer, whatever the number of tokens, or of batches. NeuSight's random shapes (split ``train``)
    are left out: on P4, P100, V100 and T4 they ran at another clock than its shapes of models.
    """
    for row in neusight:
        wanted = {"linear": board.linear, "bmm": board.batched}.get(row["op"])
        if wanted and row["gpu"] == wanted and row["split"] == "test":
            yield _neusight_product(row, board)
    for row in vidur:
        if board.vidur and row["gpu"] == board.vidur:
            for precision in row["precision"].split("/"):
                yield _common("gemm", board, "vidur", VIDUR, row["time_ms"]) | {
                    "precision": precision, "library": board.libraries[1], "batch": 1.0,
                    "m": float(row["N"]), "n": float(row["M"]), "k": float(row["K"]),
                    "group": f"linear {row['N']}x{row['K']}",
                }  # fmt: skip


def _neusight_product(row: Mapping[str, str], board: Board) -> dict[str, Any]:
    m, n, k = (row[name] for name in ("M", "N_out", "K_reduce"))
    sides = "x".join(sorted((m, n, k), key=int))
    table, group = ("linear", f"linear {n}x{k}") if row["op"] == "linear" else ("batched", f"batched {sides}")
    if table == "linear":
        m, n = n, m
    return _common("gemm", board, table, NEUSIGHT, row["time_ms"]) | {
        "precision": "fp32", "library": board.libraries[1], "m": float(m), "n": float(n), "k": float(k),
        "batch": float(row["B"]), "group": group,
    }  # fmt: skip


def row_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Yield element-wise kernels, layer normalisation and softmax, fp32.

    The group is the number of rows of the tensor for element-wise kernels, else the length of a row: a hidden size, or
    a sequence length.
    """
    for row in table:
        if board.rows and row["gpu"] == board.rows and row["op"] in PASSES:
            kind, elements = KINDS.get(row["op"], "pointwise"), int(row["B"]) * int(row["H"])
            by_length = kind in ("layer_norm", "softmax")
            yield _common(kind, board, "rows", NEUSIGHT, row["time_ms"]) | {
                "precision": "fp32", "library": "pytorch 2.1", "direction": "" if kind == "pointwise" else "forward",
                "elements": float(elements), "traffic": float(PASSES[row["op"]] * elements), "fixed_bytes": 0.0,
                "group": f"length {row['H']}" if by_length else f"rows {row['B']}",
            } | ({"rows": float(row["B"])} if by_length else {})  # fmt: skip


def _common(kind: str, board: Board, table: str, source: str, time_ms: str) -> dict[str, Any]:
    return {
        "kind": kind, "device": board.name, "time_s": float(time_ms) * 1e-3, "source": source,
        "notes": board.note(table),
    }  # fmt: skip


def _deepbench(kind: str, row: Mapping[str, str], board: Board, group: str) -> dict[str, Any]:
    return _common(kind, board, "deepbench", DEEPBENCH, row["time_ms"]) | {
        "precision": _precision(row["precision"]), "library": board.libraries[kind == "gemm"], "group": group,
    }  # fmt: skip


def _precision(text: str) -> str:
    """Return ``fp16`` for tensors of fp16 with sums in fp32: mixed precision, on tensor cores or (P100) without."""
    return text.partition(" ")[0]


def _applications(table: Table, columns: Collection[str]) -> dict[tuple[str, ...], str]:
    """Return the application of every shape that has one, the first of several."""
    found: dict[tuple[str, ...], str] = {}
    for row in table:
        if row["application"]:
            found.setdefault(shape_of(row, columns), row["application"])
    return found


def shape_of(row: Mapping[str, str], columns: Collection[str]) -> tuple[str, ...]:
    """Return the cells of columns, in their order."""
    return tuple(row[column] for column in columns)


def _once(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen = set()
    for row in rows:
        key = tuple(value for name, value in row.items() if name not in ("time_s", "group", "notes"))
        if key not in seen:
            seen.add(key)
            yield row
