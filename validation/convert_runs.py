"""Convert published measurements of training runs to files of runs.

    python -m validation.convert_runs --data DIR [--out FOLDER]

``DIR`` holds the published tables as CSV, one row a figure as printed, with a header; where each comes from is said
when it is missing, and by ``SOURCES.toml`` with commit, licence and what is assumed. Every source becomes one file
beside this script; rows left out are counted by reason on stderr. Rules that hold for all: training alone, no
inference; whole iterations, no single pass; a setting measured again becomes one row with the median (of
cnn-benchmarks the least, because its means hold outliers); seven digits.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from planner.domain.runs import Run
from planner.formats.documents import write_file
from planner.formats.runs import write_runs
from validation.command import finished, parser_of
from validation.sources import (
    data_parallel,
    image_frameworks,
    megatron,
    mixed_precision,
    modern,
    sailor,
    seeds,
    sharded,
    single_machines,
    torch7,
    transformers,
)
from validation.sources.rows import Dropped, Source
from validation.tables import read_table

__all__ = ["SOURCES", "convert", "main"]

HERE = Path(__file__).resolve().parent
SOURCES: tuple[Source, ...] = (
    image_frameworks.TENSORFLOW, image_frameworks.MXNET, image_frameworks.MXNET_LARGE, image_frameworks.TIMM,
    image_frameworks.TORCHVISION,
    mixed_precision.PADDLE, mixed_precision.PADDLE_RESNET50, torch7.CNN_BENCHMARKS, torch7.CONVNET_BENCHMARKS,
    data_parallel.POLLUX, data_parallel.ELASTICFLOW, transformers.NEUSIGHT, transformers.VTRAIN_MULTI,
    transformers.VTRAIN_SINGLE, transformers.BIGSCIENCE, megatron.MEGATRON, sharded.TORCHTITAN, sharded.TORCHTITAN_FP8,
    sharded.FMS_FSDP, modern.PRIMUS, modern.NANOTRON, modern.SUPERBENCH, sailor.SAILOR, single_machines.LAMBDA_V1,
    single_machines.LAMBDA_V2, single_machines.U39KUN, seeds.SEEDS,
)  # fmt: skip


def convert(source: Source, data: Path) -> tuple[list[Run], Counter[str]]:
    """Return the runs of a source, and how many rows are left out by reason.

    Raises
    ------
    InputFileError
        A table is missing; the error says where it comes from.
    """
    rows = [
        row for name, origin in source.tables.items() for row in read_table(data / name, f"transcribe it from {origin}")
    ]
    results = list(source.convert(rows))
    runs = [result for result in results if isinstance(result, Run)]
    dropped = Counter(result.reason for result in results if isinstance(result, Dropped))
    return [_with_strategy(run) for run in source.finish(runs)], dropped


def _with_strategy(run: Run) -> Run:
    """Return a run whose strategy is stated: gradients by layer where its source says nothing, as fits took them."""
    return run if run.strategy else replace(run, strategy="wait-free")


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("validation.convert_runs", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published tables")
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder for the files of runs; default: beside this script"
    )
    options = parser.parse_args(arguments)
    return finished(lambda: _convert_all(options.data, options.out))


def _convert_all(data: Path, out: Path) -> None:
    for source in SOURCES:
        runs, dropped = convert(source, data)
        write_file(out / f"{source.name}.csv", write_runs(runs), force=True)
        sys.stderr.write(f"{source.name}: {len(runs)} runs\n")
        for reason, count in dropped.most_common():
            sys.stderr.write(f"    {count} rows left out: {reason}\n")


if __name__ == "__main__":
    sys.exit(main())
