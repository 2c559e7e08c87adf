"""Make calibrations/node-links.json: all-reduce inside nodes of one chip and kind of link, from published measurements.

    python -m validation.fit_node_links --data DIR [FOLDER]

``DIR`` holds ``vtrain_allreduce_lut.csv`` (VIA-Research/vTrain at f8dda84, trace/, MIT: nccl-tests on 2 to 8 A100 of a
node), ``vidur_collectives.csv`` (microsoft/vidur at 7d47513, data/profiling, MIT: 2 to 8 H100 of a DGX) and
``collectives_modern.csv`` (nccl-tests on 8 H100 of a p5.48xlarge, aws-samples/awsome-distributed-training at 7217859,
MIT-0; all_reduce_bench.py on 8 H200 and on 8 B200, stas00/ml-engineering at 744d01e, CC-BY-SA-4.0: NCCL's own choice,
NVLink SHARP among it). A ring of p ranks sends 2(p-1) messages and 2(p-1)/p V bytes; start-up and time a byte follow by
relative least squares of V from 1 MiB to 1 GiB, every number of ranks, and every doubling of V, of a table with the
same weight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from planner.costs.collectives import COLUMNS
from planner.domain.arrays import FloatArray
from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Entry
from planner.domain.samples import COMMAND
from planner.fitting.estimators import solve
from planner.formats.calibration import CALIBRATION
from planner.formats.documents import write_file
from planner.sources.links import of_node
from validation.command import existing_folder, finished, parser_of
from validation.fit_end_to_end import CALIBRATIONS
from validation.tables import read_table

__all__ = ["main"]

LEAST_BYTES, MOST_BYTES = 2**20, 2**30
DIGITS = 4
MODERN = "collectives_modern.csv"
TABLES = {
    "GA100": (("vtrain_allreduce_lut.csv", "A100", "VIA-Research/vTrain, A100, NVSwitch"),),
    "GH100": (
        ("vidur_collectives.csv", "H100-SXM", "microsoft/vidur, h100_dgx"),
        (MODERN, "H100 (p5.48xlarge)", "aws-samples/awsome-distributed-training, p5"),
        (MODERN, "H200", "stas00/ml-engineering, H200"),
    ),
    "GB100": ((MODERN, "B200", "stas00/ml-engineering, B200"),),
}
"""Chip -> tables, each with the GPU as it is written there, and the source."""
OPERATIONS, CHOSEN = (
    ("allreduce", "all_reduce"),
    ("", "NCCL default", "NCCL default (Ring LL to 1 MiB, NVLS from 2 MiB)"),
)


def _rows(name: str, gpu: str, data: Path) -> FloatArray:
    """Return ranks, bytes and seconds of all-reduces of one node, as NCCL chooses its algorithm, shape (n, 3)."""
    rows = read_table(data / name, "data/INDEX.md says where it is from")
    return np.array(
        [
            (ranks, sizes, seconds)
            for row in rows
            if row["gpu"] == gpu and row["nodes"] == "1" and row.get("algorithm", "") in CHOSEN
            and (row.get("op") or row["operation"]) in OPERATIONS
            for ranks, sizes, seconds in [_numbers(row)]
            if LEAST_BYTES <= sizes <= MOST_BYTES
        ]
    )  # fmt: skip


def _numbers(row: Mapping[str, str]) -> tuple[float, float, float]:
    """Return ranks, bytes and seconds of a row, whose bus bandwidth tells the time where nothing else does."""
    ranks, sizes = float(row.get("gpus") or row["ranks"]), float(row.get("size_bytes") or row["bytes"])
    if time_ms := row.get("time_ms_outofplace") or row.get("time_ms_median"):
        return ranks, sizes, float(time_ms) * 1e-3
    if row["time_us"]:
        return ranks, sizes, float(row["time_us"]) * 1e-6
    return ranks, sizes, 2 * (ranks - 1) / ranks * sizes / (float(row["busbw_GBps"]) * 1e9)


def _weights(ranks: FloatArray, sizes: FloatArray) -> FloatArray:
    """Return weights that add up to 1 for every number of ranks and doubling of bytes."""
    _, cell = np.unique(np.stack([ranks, np.floor(np.log2(sizes))]), axis=1, return_inverse=True)
    return np.asarray(1.0 / np.bincount(cell.ravel())[cell.ravel()])


def _entries(data: Path) -> Iterator[Entry]:
    for chip, tables in TABLES.items():
        parts = [_rows(name, gpu, data) for name, gpu, _ in tables]
        ranks, sizes, seconds = np.concatenate(parts).T
        features = np.column_stack([2 * (ranks - 1), 2 * (ranks - 1) / ranks * sizes])
        weights = np.concatenate([_weights(*one.T[:2]) for one in parts])
        fit = solve(features, seconds, weights=weights)
        error = float(np.average(np.abs(features @ fit / seconds - 1), weights=weights))
        values = dict.fromkeys((one.name for one in COLUMNS), 0.0)
        values |= {"messages_inside": _few(fit[0]), "bytes_inside": _few(fit[1])}
        yield Entry(
            "collectives", "all_reduce", "", "", of_node("nvswitch", chip), "collective.alpha_beta",
            {"algorithms": "ring"}, values, fixed=("messages_between", "bytes_between"), samples=int(seconds.size),
            error=_few(error), estimator="relative-nnls", origin="published",
            source=", ".join(source for _, _, source in tables),
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
    write_file(folder / "node-links.json", CALIBRATION.dump(made), force=True)


if __name__ == "__main__":
    sys.exit(main())
