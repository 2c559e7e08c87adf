"""Make calibrations/tsubame-2.5.json: a K20X from its peak rates and assumed efficiencies, links as specified.

Nothing in it is measured; of this machine only single figures were published (15-layer network, 16 nodes: 8.2 days).

    python -m validation.specify_tsubame_2_5 [FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from planner.catalog import find_cluster
from planner.costs.specified import (
    specified_collective,
    specified_copy,
    specified_entry,
    specified_host,
    specified_host_collective,
)
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster
from planner.domain.kernels import MATRIX_KINDS
from planner.domain.samples import COMMAND
from planner.formats.calibration import CALIBRATION
from planner.formats.documents import write_file
from validation.command import finished, parser_of

OUT = Path(__file__).resolve().parent.parent / "calibrations" / "tsubame-2.5.json"


def specified_kernels(accelerator: Accelerator) -> Iterator[Entry]:
    """Yield an entry of each matrix kind in every precision of the data sheet, and one of all whose work is bytes."""
    for precision in accelerator.peak_flop_per_s:
        entries = (specified_entry(accelerator, kind, "", precision) for kind in MATRIX_KINDS)
        yield from (entry for entry in entries if entry is not None)
    traffic = specified_entry(accelerator, "copy", "", "fp32")
    if traffic is not None:
        yield replace(traffic, kind="pointwise", precision="any")


def entries(cluster: Cluster) -> Iterator[Entry]:
    """Yield the specified entries of a cluster."""
    yield from specified_kernels(cluster.node.accelerator)
    yield specified_collective(cluster)
    yield specified_host_collective(cluster)
    kinds = ("update_gradient", "sum_gradient", "update_weights")
    hosts = (specified_host(cluster, kind, "sgd-momentum") for kind in kinds)
    yield from (entry for entry in (specified_copy(cluster), *hosts) if entry is not None)


def calibration() -> Calibration:
    """Return the calibration."""
    cluster = find_cluster("tsubame-2.5")
    return Calibration(
        "tsubame-2.5",
        cluster.node.accelerator.name,
        tuple(entries(cluster)),
        cluster=cluster.name,
        origin="specified",
        source=cluster.node.accelerator.source,
        environment={COMMAND: "python -m validation.specify_tsubame_2_5"},
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the file; return the exit code."""
    parser = parser_of("validation.specify_tsubame_2_5", __doc__)
    parser.add_argument("file", nargs="?", type=Path, default=OUT, help="default: calibrations/tsubame-2.5.json")
    given = parser.parse_args(arguments)
    return finished(lambda: write_file(given.file, CALIBRATION.dump(calibration()), force=True))


if __name__ == "__main__":
    sys.exit(main())
