"""Make calibrations/node-links.json: all-reduce inside nodes of one chip and kind of link, from published measurements.

    python -m validation.fit_node_links --data DIR [FOLDER]

``DIR`` holds ``vtrain_allreduce_lut.csv`` (VIA-Research/vTrain at f8dda84, trace/, MIT: nccl-tests on 2 to 8 A100 of a
node) and ``vidur_collectives.csv`` (microsoft/vidur at 7d47513, data/profiling, MIT: 2 to 8 H100 of a DGX). A ring of p
ranks sends 2(p-1) messages and 2(p-1)/p V bytes; start-up and time a byte follow by relative least squares of V from
1 MiB to 1 GiB, every number of ranks and every doubling of V with the same weight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from planner.costs.collectives import COLUMNS
from planner.domain.arrays import FloatArray
from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Entry
from planner.domain.samples import COMMAND
from planner.fitting.estimators import solve
from planner.formats.calibration import write_calibration
from planner.formats.documents import write_file
from planner.sources.links import of_node
from validation.command import existing_folder, finished, parser_of
from validation.fit_end_to_end import CALIBRATIONS
from validation.tables import read_table

__all__ = ["main"]

LEAST_BYTES, MOST_BYTES = 2**20, 2**30
DIGITS = 4
TABLES = {
    "GA100": (
        "vtrain_allreduce_lut.csv",
        "A100",
        "trace of VIA-Research/vTrain",
        "VIA-Research/vTrain, A100, NVSwitch",
    ),
    "GH100": ("vidur_collectives.csv", "H100-SXM", "microsoft/vidur, data/profiling", "microsoft/vidur, h100_dgx"),
}
"""Chip -> table, GPU as it is written there, where to get it, source."""


def _rows(name: str, gpu: str, path: Path, remedy: str) -> FloatArray:
    """Return ranks, bytes and seconds of all-reduces of one node, shape (n, 3)."""
    time = "time_ms_outofplace" if "vtrain" in name else "time_ms_median"
    operations = ("allreduce", "all_reduce")
    return np.array(
        [
            (float(row["gpus"]), float(row["size_bytes"]), float(row[time]) * 1e-3)
            for row in read_table(path, remedy)
            if row["gpu"] == gpu and row["op"] in operations and row["nodes"] == "1"
            and LEAST_BYTES <= float(row["size_bytes"]) <= MOST_BYTES
        ]
    )  # fmt: skip


def _weights(ranks: FloatArray, sizes: FloatArray) -> FloatArray:
    """Return weights that add up to 1 for every number of ranks and doubling of bytes."""
    _, cell = np.unique(np.stack([ranks, np.floor(np.log2(sizes))]), axis=1, return_inverse=True)
    return np.asarray(1.0 / np.bincount(cell.ravel())[cell.ravel()])


def _entries(data: Path) -> Iterator[Entry]:
    for chip, (name, gpu, origin, source) in TABLES.items():
        ranks, sizes, seconds = _rows(name, gpu, data / name, f"get it from {origin}").T
        features = np.column_stack([2 * (ranks - 1), 2 * (ranks - 1) / ranks * sizes])
        weights = _weights(ranks, sizes)
        fit = solve(features, seconds, weights=weights)
        error = float(np.average(np.abs(features @ fit / seconds - 1), weights=weights))
        values = dict.fromkeys((one.name for one in COLUMNS), 0.0)
        values |= {"messages_inside": _few(fit[0]), "bytes_inside": _few(fit[1])}
        yield Entry(
            "collectives", "all_reduce", "", "", of_node("nvswitch", chip), "collective.alpha_beta",
            {"algorithms": "ring"}, values, fixed=("messages_between", "bytes_between"), samples=int(seconds.size),
            error=_few(error), estimator="relative-nnls", origin="published", source=source,
        )  # fmt: skip


def _few(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def main(arguments: list[str] | None = None) -> int:
    """Write the file; return the exit code."""
    parser = parser_of("validation.fit_node_links", __doc__)
    parser.add_argument("--data", required=True, type=existing_folder, help="folder of the published tables")
    parser.add_argument("folder", nargs="?", type=existing_folder, default=CALIBRATIONS, help="default: calibrations/")
    given = parser.parse_args(arguments)
    return finished(lambda: _write(given.data, given.folder))


def _write(data: Path, folder: Path) -> None:
    entries = tuple(_entries(data))
    made = Calibration(
        "node-links",
        ANY_ACCELERATOR,
        entries,
        origin="published",
        source="; ".join(one.source for one in entries),
        environment={COMMAND: "python -m validation.fit_node_links --data DIR"},
    )
    write_file(folder / "node-links.json", write_calibration(made), force=True)


if __name__ == "__main__":
    sys.exit(main())
