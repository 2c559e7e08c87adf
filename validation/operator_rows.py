"""Rows of a published table of transformer operators, forward and backward, as rows of a samples file.

    python -m validation.operator_rows --table FILE

writes ``validation/kernels/transformer-operators.csv``, the part of the table that calibrations rest on, from the
77,612 rows of github.com/DebarghaG/estimate-train-time (MIT): gpu, operator, mp, b, h, l, dim, forward_us, backward_us,
of an A100-SXM4-80GB and a GH200. Operators are those whose forward, or backward, is one kernel, or what one operator of
PyTorch launches (:data:`KEPT`); times are of kernels alone, read from PyTorch's profiler. Rows are those of lengths and
hidden sizes that are multiples of 1024 (attention: of any hidden size, softmax: any length), one of each call.

What is left out, and why: backward passes of products, which are two together; rotary embeddings, RMS norm, masks and
the vocabulary-parallel loss, which that program computes by many kernels with fp32 copies, and another by one; backward
passes of attention on the GH200, which take a tenth of what its peak rate allows: another kernel was read; embeddings,
on the GH200 faster than its memory; backward passes that repeat the time of the forward one (softmax and layer norm of
the GH200); tensors of 2 GiB and more, of whose two kernels one was read; and updates, which make the state of Adam
besides and wait for the host.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.formats.documents import write_file
from validation.command import finished, parser_of
from validation.kernel_boards import Board
from validation.tables import read_table

__all__ = ["OPERATORS", "OPERATOR_TABLE", "main", "operator_rows", "selected"]

Table = Sequence[Mapping[str, str]]

OPERATORS = (
    "estimate-train-time (arXiv:2509.22832, MIT), github.com/DebarghaG/estimate-train-time "
    "src/estimate_train_time/data/regressors, commit 1ac4d5e441169983737f4f5c1c2c3b05b618307d"
)
OPERATOR_TABLE = "transformer-operators.csv"
"""In this folder's ``kernels``."""
COLUMNS = ("gpu", "operator", "mp", "b", "h", "l", "dim", "forward_us", "backward_us")
TRAFFIC = {
    "gelu": ("gelu", 2, 3),
    "res_add": ("add", 3, 0),
    "layernorm": ("layer_norm", 2, 5),
    "softmax": ("softmax", 2, 3),
}
"""Operator -> kind, tensors that it moves forward and backward, 0: the backward pass has no kernel of its own."""
LINEAR = {"linear1": (3, 1), "linear2": (1, -1), "linear3": (4, 1), "linear4": (4, -1)}
"""Operator -> larger side over the hidden size, and whether it is that of the outputs (1) or of what is summed."""
BATCHED = ("baddbmm", "bmm")
KEPT = (*TRAFFIC, *LINEAR, *BATCHED, "flash_atten")
ANY_HIDDEN = ("softmax", "flash_atten")
WHOLE = 1024
DEGREES = {"flash_atten": ("1", "8"), "gelu": ("1", "4", "16")} | dict.fromkeys(LINEAR, ("1", "4"))
"""Operator -> tensor degrees whose rows are kept; of others 1 alone."""
PRECISIONS = ("fp16", "bf16")
"""Measured in the first: matrix units multiply both at one rate."""
PRECISION_BYTES, SPLIT_BYTES = 2, 2**31
"""Of an element; and of a tensor that PyTorch takes element by element in two kernels, of which one was read."""
WITHOUT_BACKWARD = ("gh200-96gb",)
"""GPUs whose backward pass of attention was not read; see above."""
LIBRARY, FLASH_LIBRARY = "pytorch 2", "flash-attention 2"
NOTE = "of kernels alone, by PyTorch's profiler"


def selected(table: Table) -> list[dict[str, str]]:
    """Return the rows that are kept, of the columns that are kept, one of each call."""
    kept: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in table:
        hidden = int(float(row["dim"] or WHOLE))
        wanted = row["operator"] in KEPT and row["mp"].removesuffix(".0") in (
            "", *DEGREES.get(row["operator"], ("1",))
        )  # fmt: skip
        is_whole = row["operator"] == "softmax" or not int(float(row["l"] or 1)) % WHOLE
        if wanted and is_whole and (row["operator"] in ANY_HIDDEN or not hidden % WHOLE):
            short = {name: row[name].removesuffix(".0") for name in COLUMNS}
            short |= {name: f"{float(row[name]):.4g}" for name in COLUMNS[-2:] if row[name]}
            if row["forward_us"] == row["backward_us"] and row["operator"] != "res_add":
                short["backward_us"] = ""
            kept.setdefault((row["gpu"], row["operator"], *_call(short)), short)
    return list(kept.values())


def _number(row: Mapping[str, str], name: str) -> int:
    return int(row[name] or 1)


def _call(row: Mapping[str, str]) -> tuple[int, ...]:
    """Return what the kernels of a row depend on: samples, heads of a rank, length, hidden size of a rank."""
    b, length, hidden = (_number(row, name) for name in ("b", "l", "dim"))
    degree, heads = _number(row, "mp"), _number(row, "h")
    if row["h"]:
        return b * heads // degree, length, hidden // heads if row["dim"] else 0
    return b * length, hidden, degree


def operator_rows(table: Table, board: Board) -> Iterator[dict[str, Any]]:
    """Yield the operators of a board; the group is the hidden size, the length of a row, or a head's features.

    Additions serve as what is left of kinds whose work is bytes too, where no other table has these. Linear layers are
    left to another table where the board has one.
    """
    for row in table:
        if row["gpu"] == board.operators and not (board.vidur and row["operator"] in LINEAR):
            for one in _rows(row, board):
                if one["kind"] in board.operator_kinds or not board.operator_kinds:
                    yield one
                if one["kind"] == "add" and not board.rows:
                    yield one | {"kind": "pointwise", "direction": ""}


def _rows(row: Mapping[str, str], board: Board) -> Iterator[dict[str, Any]]:
    operator = row["operator"]
    forward_s, backward_s = (float(row[name] or 0) * 1e-6 for name in COLUMNS[-2:])
    if operator in TRAFFIC:
        kind, forward, backward = TRAFFIC[operator]
        work, group = _traffic_work(row)
        if work["elements"] * PRECISION_BYTES >= SPLIT_BYTES and "rows" not in work:
            return
        for direction, tensors, time_s in ((FORWARD, forward, forward_s), (BACKWARD_DATA, backward, backward_s)):
            if tensors and time_s:
                moved = {"traffic": float(tensors * work["elements"]), "fixed_bytes": 0.0}
                yield _common(kind, board, time_s) | work | moved | {
                    "precision": "fp16", "direction": direction, "library": LIBRARY, "group": group,
                }  # fmt: skip
        return
    for precision in PRECISIONS:
        if operator == "flash_atten":
            heads, length, width = _call(row)
            work = {"batch": heads, "queries": length, "keys": length, "width": width, "causal": 0}
            times = {FORWARD: forward_s} | ({} if row["gpu"] in WITHOUT_BACKWARD else {BACKWARD_DATA: backward_s})
            for direction, time_s in times.items():
                yield _common("attention", board, time_s) | {name: float(size) for name, size in work.items()} | {
                    "precision": precision, "direction": direction, "library": FLASH_LIBRARY,
                    "group": f"{width} features of a head, no mask",
                }  # fmt: skip
        else:
            sides, group = _product(row)
            yield _common("gemm", board, forward_s) | sides | {
                "precision": precision, "library": board.libraries[1], "group": group,
            }  # fmt: skip


def _traffic_work(row: Mapping[str, str]) -> tuple[dict[str, float], str]:
    """Return elements, of kinds in rows also rows, and the group."""
    if row["operator"] == "softmax":
        heads, length, _ = _call(row)
        return {"elements": float(heads * length * length), "rows": float(heads * length)}, f"length {length}"
    tokens, hidden, degree = _call(row)
    inside = 4 * hidden // degree if row["operator"] == "gelu" else hidden
    rows = {"rows": float(tokens)} if row["operator"] == "layernorm" else {}
    return {"elements": float(tokens * inside), **rows}, f"length {inside}" if rows else f"rows {tokens}"


def _product(row: Mapping[str, str]) -> tuple[dict[str, float], str]:
    """Return the sides of a product and its group: the layer, or the sides of one of a batch."""
    if row["operator"] in BATCHED:
        batch, length, width = _call(row)
        n, k = (length, width) if row["operator"] == "baddbmm" else (width, length)
        group = "batched " + "x".join(map(str, sorted((length, n, k))))
        return {"m": float(length), "n": float(n), "k": float(k), "batch": float(batch)}, group
    tokens, hidden, degree = _call(row)
    times, outwards = LINEAR[row["operator"]]
    m, k = (times * hidden // degree, hidden)[:: 1 if outwards > 0 else -1]
    return {"m": float(m), "n": float(tokens), "k": float(k), "batch": 1.0}, f"linear {m}x{k}"


def _common(kind: str, board: Board, time_s: float) -> dict[str, Any]:
    notes = "; ".join(filter(None, (NOTE, board.note("operators"))))
    return {"kind": kind, "device": board.name, "time_s": time_s, "source": OPERATORS, "notes": notes}


def main(arguments: list[str] | None = None) -> int:
    """Write the table that is kept; return the exit code."""
    parser = parser_of("validation.operator_rows", __doc__)
    parser.add_argument("--table", required=True, type=Path, help="the table as published, all operators in one")
    given = parser.parse_args(arguments)

    def write() -> None:
        rows = selected(read_table(given.table, f"make it from {OPERATORS}"))
        lines = [",".join(COLUMNS), *(",".join(row[name] for name in COLUMNS) for row in rows)]
        write_file(Path(__file__).parent / "kernels" / OPERATOR_TABLE, "\n".join(lines) + "\n", force=True)

    return finished(write)


if __name__ == "__main__":
    sys.exit(main())
