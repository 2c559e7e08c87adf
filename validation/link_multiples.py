"""Print by what a byte of an all-reduce takes longer over links of a kind than at their stated rate, as measured.

    python -m validation.link_multiples --data DIR

``DIR`` holds ``nccl_tests_misc.csv`` and ``collectives_modern.csv``, whose sources data/INDEX.md names. The multiple is
the stated rate over the bus bandwidth of a ring, the median over buffers of 2 GiB and more: of a GPU inside a node,
without NVLink SHARP; of all NICs in use of a node, between three nodes and more. The geometric mean over the fabrics of
a kind is what ``links.multiples`` of numbers.toml says, to two decimals or so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean, median
from typing import NamedTuple

from planner.errors import InputFileError
from validation.command import existing_folder, finished, parser_of
from validation.tables import markdown_table, read_table

__all__ = ["FABRICS", "main", "multiples"]

LEAST_BYTES = 2.0**31
NCCL, MODERN = "nccl_tests_misc.csv", "collectives_modern.csv"
GBPS = 1e9


class Fabric(NamedTuple):
    """Rows of a table on links of one kind.

    Attributes
    ----------
    kind : str
        Of the links, as cluster files call it.
    table, gpu, nodes, ranks, more : str
        Where the rows are; ``more`` is part of their interconnect or algorithm.
    stated_bytes_per_s : float
        Rate of what carries the ring: NVLink of a GPU, or all NICs of a node that GPUs use, one direction.
    """

    kind: str
    table: str
    gpu: str
    nodes: str
    ranks: str
    stated_bytes_per_s: float
    more: str = ""


FABRICS = (
    Fabric("nvlink", NCCL, "V100-SXM2-16GB", "1", "4", 150 * GBPS),
    Fabric("nvlink", NCCL, "V100-SXM2-32GB", "1", "4", 150 * GBPS),
    Fabric("nvlink", NCCL, "A40", "1", "2", 56.25 * GBPS, "NVLink"),
    Fabric("nvswitch", MODERN, "A100 (NVLink 3; exact SKU not stated)", "1", "8", 300 * GBPS),
    Fabric("nvswitch", NCCL, "A100-SXM4-80GB (DGX A100)", "1", "4", 300 * GBPS),
    Fabric("nvswitch", NCCL, "NVIDIA H100 80GB HBM3", "1", "4", 450 * GBPS),
    Fabric("nvswitch", MODERN, "H200", "1", "8", 450 * GBPS, "NVLS disabled"),
    Fabric("nvswitch", MODERN, "B200", "1", "8", 900 * GBPS, "NVLS disabled"),
    Fabric("infiniband", NCCL, "NVIDIA H100 80GB HBM3", "10", "10", 50 * GBPS),
    Fabric("infiniband", NCCL, "NVIDIA H100 80GB HBM3", "10", "20", 100 * GBPS),
    Fabric("infiniband", NCCL, "NVIDIA H100 80GB HBM3", "10", "40", 200 * GBPS),
    Fabric("efa", MODERN, "B200", "4", "32", 400 * GBPS),
    Fabric("efa", MODERN, "H200 (p5en.48xlarge)", "16", "128", 400 * GBPS),
)
"""The ten H100 nodes state no fabric: a NIC of 400 Gb/s a GPU, as their rates show, which is taken for InfiniBand."""


def multiples(data: Path) -> list[tuple[Fabric, float]]:
    """Return the multiple of each fabric."""
    tables = {name: read_table(data / name, "data/INDEX.md says where it is from") for name in (NCCL, MODERN)}
    found = []
    for one in FABRICS:
        rates = [_bus_bytes_per_s(row) for row in tables[one.table] if _is_of(row, one)]
        if not rates:
            raise InputFileError(str(data / one.table), f"table must have rows of {one.gpu}, got none")
        found.append((one, one.stated_bytes_per_s / median(rates)))
    return found


def _is_of(row: Mapping[str, str], one: Fabric) -> bool:
    is_there = (row["gpu"], row["nodes"], row.get("gpus") or row["ranks"]) == (one.gpu, one.nodes, one.ranks)
    is_all_reduce = (row.get("op") or row["operation"]) == "all_reduce"
    is_large = float(row.get("size_bytes") or row.get("bytes") or 0) >= LEAST_BYTES
    return is_there and is_all_reduce and is_large and one.more in f"{row['interconnect']} {row.get('algorithm', '')}"


def _bus_bytes_per_s(row: Mapping[str, str]) -> float:
    return float(row.get("busbw_outofplace_GBps") or row["busbw_GBps"]) * GBPS


def main(arguments: list[str] | None = None) -> int:
    """Print the multiples; return the exit code."""
    parser = parser_of("validation.link_multiples", __doc__)
    parser.add_argument("--data", required=True, type=existing_folder, help="folder of the published tables")
    given = parser.parse_args(arguments)
    return finished(lambda: _print(given.data))


def _print(data: Path) -> None:
    found = multiples(data)
    rows = [(one.kind, one.gpu, one.nodes, one.ranks, f"{each:.3f}") for one, each in found]
    sys.stdout.write(markdown_table(("links", "GPU", "nodes", "ranks", "multiple"), rows))
    for kind in dict.fromkeys(one.kind for one, _ in found):
        mean = geometric_mean([each for one, each in found if one.kind == kind])
        sys.stdout.write(f"{kind}: {mean:.3f}\n")


if __name__ == "__main__":
    sys.exit(main())
