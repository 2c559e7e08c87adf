"""Make the sample files of measured links under validation/samples, from published tables.

    python -m validation.convert_links --data DIR [FOLDER]

``DIR`` holds ``hkbu_bcaffe_layer_traces.csv`` and ``hkbu_osu_allreduce_10gbe.csv`` (hclhkbu/B-Caffe at fdb5595,
logdata/, BSD) and ``nccl_perlmutter_vista.csv`` (DebarghaG/estimate-train-time at 1ac4d5e, MIT). What is written is
thinned: the mean of equal sizes, every third size, and of long tables the median around each of SIZES sizes.
``planner calibrate --samples`` fits them; calibrations/README.md has the commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from planner.domain.samples import Samples
from planner.formats.documents import write_file
from planner.formats.samples import write_samples
from validation.command import existing_folder, finished, parser_of
from validation.tables import read_table

__all__ = ["main"]

SIZES, EVERY = 32, 3
FP16_BYTES = 2
SAMPLES = Path(__file__).parent / "samples"
REMEDY = "data/INDEX.md says where it is from"
B_CAFFE = "hclhkbu/B-Caffe at fdb5595, logdata/, BSD"
ESTIMATE = "DebarghaG/estimate-train-time at 1ac4d5e (arXiv 2509.22832), MIT"
OPERATIONS = {"allreduce": "all_reduce", "p2p": "send_receive"}
"""Of the table of two machines; whether an all-gather's elements are those of one rank or of all is not said."""
MACHINES = {"perlmutter": (1,), "vista": (2, 4, 8)}
"""Machine -> numbers of nodes whose rows are of use: between nodes Perlmutter ran over TCP, at 1.1 GB/s a port."""

Row = Mapping[str, Any]
Case = tuple[str, str, int, int]
"""Operation, library, nodes, ranks of each."""


def _row(case: Case, size: float, seconds: Sequence[float], middle: Callable[[Sequence[float]], float] = median) -> Row:
    cells = zip(("kind", "library", "nodes", "ranks_per_node"), case, strict=True)
    time_s = float(f"{middle(seconds):.4g}")
    return {**dict(cells), "operation": case[0], "bytes": size, "time_s": time_s, "repeats": len(seconds)}


def traces(rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    """Yield the messages of GoogLeNet's gradients, each tensor's own, of the dumps that hold any.

    The mean of equal sizes, not the median: what delays single messages is part of the steps that they are from.
    """
    kept = {  # one dump stands twice in a log, and one log does not say its nodes
        (row["source"], row["param_index"], row["nodes"], int(row["size_bytes"]), float(row["comm_us"]))
        for row in rows
        if float(row["comm_us"]) > 0 and row["nodes"].isdigit()
    }
    ordered = sorted((int(nodes), size, us) for _, _, nodes, size, us in kept)
    for (nodes, size), some in groupby(ordered, key=lambda one: one[:2]):
        yield _row(("all_reduce", "openmpi", nodes, 1), size, [us * 1e-6 for _, _, us in some], mean)


def host_buffers(rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    """Yield the all-reduce of host buffers by OSU's benchmark."""
    ordered = sorted((int(row["nodes"]), float(row["size_bytes"]), float(row["time_ms"]) * 1e-3) for row in rows)
    for nodes, some in groupby(ordered, key=lambda one: one[0]):
        for _, size, seconds in list(some)[::EVERY]:
            yield _row(("all_reduce", "host", nodes, 1), size, [seconds])


def collectives(rows: Sequence[Mapping[str, str]], machine: str) -> Iterator[Row]:
    """Yield all-reduce and messages of a machine."""
    ordered = sorted(
        (OPERATIONS[row["operation"]], int(row["nodes"]), int(row["gpus_per_node"]),
         float(row["elements"]) * FP16_BYTES, float(row["time_us"]) * 1e-6)
        for row in rows
        if row["machine"] == machine and row["operation"] in OPERATIONS and int(row["nodes"]) in MACHINES[machine]
    )  # fmt: skip
    for (operation, nodes, ranks), some in groupby(ordered, key=lambda one: one[:3]):
        yield from _thinned((operation, "nccl", nodes, ranks), [one[3:] for one in some])


def _thinned(case: Case, points: list[tuple[float, float]]) -> Iterator[Row]:
    """Yield SIZES rows, each the medians of the points around a size, equally far apart in its logarithm."""
    sizes = np.log([size for size, _ in points])
    part = np.minimum((sizes - sizes[0]) / (sizes[-1] - sizes[0]) * SIZES, SIZES - 1).astype(int)
    for at in np.unique(part):
        some = [point for point, own in zip(points, part == at, strict=True) if own]
        size = sorted(size for size, _ in some)[len(some) // 2]
        yield _row(case, size, [seconds * size / own for own, seconds in some])


def main(arguments: list[str] | None = None) -> int:
    """Write the files; return the exit code."""
    parser = parser_of("validation.convert_links", __doc__)
    parser.add_argument("--data", required=True, type=existing_folder, help="folder of the published tables")
    parser.add_argument("folder", nargs="?", type=existing_folder, default=SAMPLES, help="default: validation/samples")
    given = parser.parse_args(arguments)
    return finished(lambda: _write(given.data, given.folder))


def _write(data: Path, folder: Path) -> None:
    trace, osu, two = (
        read_table(data / f"{name}.csv", REMEDY)
        for name in ("hkbu_bcaffe_layer_traces", "hkbu_osu_allreduce_10gbe", "nccl_perlmutter_vista")
    )
    files = {"hkbu-k80": (B_CAFFE, [*traces(trace), *host_buffers(osu)])}
    files |= {machine: (ESTIMATE, list(collectives(two, machine))) for machine in MACHINES}
    for name, (source, rows) in files.items():
        of_name = f"validation/samples/{name} --name {name} --out calibrations/{name}.json"
        command = f"planner calibrate --samples {of_name} --force"
        circumstances = {"cluster": name, "command": command, "origin": "published", "source": source}
        path = folder / name / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        write_file(path, write_samples(Samples.from_rows(rows, circumstances)), force=True)


if __name__ == "__main__":
    sys.exit(main())
