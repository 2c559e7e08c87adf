"""Errors of products and convolutions in int8 on shapes left out, by GPU: the table of docs/inference.md.

    python -m validation.int8_shapes

Rows are those of validation/kernels/deepbench-int8.csv. The shapes, at all their batches, are left out in five parts
of the bundled entry's term. Padded rows have a side that the benchmark rounds up. `--fit` fits these entries anew and
writes them into the bundled calibrations, whose other entries stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner import catalog
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.samples import Samples
from planner.fitting.gaussian_process import times_left_out
from planner.fitting.kernels import fit_kernels
from planner.formats.calibration import CALIBRATION
from planner.formats.documents import write_file
from validation.command import finished, parser_of
from validation.convert_kernels import KERNELS
from validation.kernel_boards import BOARDS, Board
from validation.kernel_rows import INT8_TABLE, int8_rows
from validation.tables import markdown_table, read_table

__all__ = ["errors_left_out", "int8_samples", "main"]

PARTS, INT8 = 5, "int8"
MEASURED = [board for board in BOARDS if board.int8_libraries[0]]
BUNDLED = Path(__file__).parent.parent / "calibrations"
HEAD = ("GPU", "kind", "rows", "mean", "median", "90 %", "padded rows", "mean", "median")


def int8_samples(board: Board) -> Samples:
    """Return the rows of a board in int8."""
    table = read_table(KERNELS / INT8_TABLE, "it belongs to this repository")
    return Samples.from_rows(list(int8_rows(table, board)), {"origin": "published"})


def errors_left_out(entry: Entry, samples: Samples) -> FloatArray:
    """Return |predicted / measured - 1| of rows of one kind, each fitted without its part of the shapes, shape (k,)."""
    shapes, which = np.unique(samples.text["group"], return_inverse=True)
    part = np.random.default_rng(0).permutation(shapes.size)[which.ravel()] % PARTS
    parts = replace(samples, text={**samples.text, "group": part.astype(str)})
    return np.asarray(np.abs(times_left_out(entry, parts)[0] / samples.time_s - 1))


def _fit(board: Board) -> None:
    """Put fits of the rows into the bundled calibration of a board."""
    samples, bundled = int8_samples(board), catalog.find_calibration(board.name)
    fits = fit_kernels(samples, catalog.find_accelerator(board.name), origin="published").entries
    others = [entry for entry in bundled.entries if entry.precision != INT8]
    made = replace(bundled, entries=tuple(sorted([*others, *fits], key=lambda one: one.key)))
    write_file(BUNDLED / f"{board.name}.json", CALIBRATION.dump(made), force=True)


def _rows() -> Iterator[tuple[str, ...]]:
    for board in MEASURED:
        every, bundled = int8_samples(board), catalog.find_calibration(board.name)
        for entry in (one for one in bundled.entries if one.precision == INT8):
            samples, kind = every.select(every.text["kind"] == entry.kind), entry.kind
            errors = errors_left_out(entry, samples)
            padded = np.char.startswith(samples.text["group"].astype(str), "padded")
            own, others = errors[~padded], errors[padded]
            figures = (own.mean(), np.median(own), np.quantile(own, 0.9))
            cells = (f"{100 * figure:.1f}" for figure in (*figures, others.mean(), np.median(others)))
            *three, four, five = cells
            yield board.name, kind, str(own.size), *three, str(others.size), four, five


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = parser_of("validation.int8_shapes", __doc__)
    parser.add_argument("--fit", action="store_true", help="fit the entries and write them into calibrations/")
    return finished(lambda: _report(fits=parser.parse_args(arguments).fit))


def _report(*, fits: bool) -> None:
    for board in MEASURED if fits else ():
        _fit(board)
    sys.stdout.write(markdown_table(HEAD, _rows()))


if __name__ == "__main__":
    sys.exit(main())
