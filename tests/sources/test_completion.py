"""Who serves kernels that no calibration of the GPU holds: in what order, and with what record."""

from __future__ import annotations

import pytest

from planner import catalog
from planner.domain.calibration import Calibration
from planner.domain.cluster import Cluster, Node
from planner.domain.provenance import DATASHEET, DERIVED, FIT, NEAREST, SCALED, Provenance
from planner.domain.request import Problem
from planner.sources.devices import completions
from planner.sources.sources import Sources

NETWORK = catalog.find_network("mlp")


def completed(gpu: str) -> Sources:
    """Return the sources of one GPU with all that completes its bundled calibrations."""
    cluster = Cluster("one", 1, Node(1, catalog.find_accelerator(gpu)))
    known: tuple[Calibration, ...] = catalog.calibrations_for(cluster)
    scores = catalog.transfer_scores()
    of_others = catalog.sibling_calibrations, catalog.nearest_calibrations
    found = completions(cluster, known, *of_others, scores)
    return Sources(Problem(NETWORK, None, cluster, (*known, *(one for _, some in found for one in some))))


def served(sources: Sources, kind: str, precision: str) -> Provenance:
    return sources.kernel(kind, "forward", precision).provenance


@pytest.mark.parametrize(
    ("gpu", "kind", "precision", "wanted"),
    [
        ("a100-sxm4-40gb", "gemm", "bf16", (FIT, "a100-sxm4-40gb", "", "")),
        ("h200-sxm-141gb", "gemm", "bf16", (SCALED, "gh200-96gb", "gh200-96gb", "")),
        ("a100-sxm4-40gb", "gemm", "tf32", (DERIVED, "a100-sxm4-40gb", "", "bf16")),
        ("h200-sxm-141gb", "gemm", "tf32", (DERIVED, "gh200-96gb", "gh200-96gb", "bf16")),
        ("k80", "convolution", "fp32", (NEAREST, "m40", "m40", "")),
        ("a100-sxm4-40gb", "convolution", "bf16", (NEAREST, "v100-sxm2-16gb", "v100-sxm2-16gb", "fp16")),
        ("k80", "gemm", "fp32", (DATASHEET, "", "", "")),
    ],
)
def test_the_first_who_can_serves_a_kernel_and_leaves_a_record(
    gpu: str, kind: str, precision: str, wanted: tuple[str, ...]
) -> None:
    found = served(completed(gpu), kind, precision)
    assert (found.kind, found.calibration, found.device, found.precision) == wanted
    # What was seen travels, whatever was made of it: through another device and another precision.
    seen = catalog.find_calibration(wanted[1]).seen if wanted[1] else ()
    assert found.seen == frozenset(seen)
