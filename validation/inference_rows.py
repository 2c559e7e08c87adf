"""Errors of inference against measured batches: the table of docs/inference.md.

    python -m validation.inference_rows

Rows are those of validation/inference: ResNet-50 on a V100 in TensorRT 4 (a gist of 1duo, from an excerpt: whose V100
is not said; the PCIe board is taken), and PyTorch 2.11 on an H100. No row took part in a fit but, of eager ResNet-50
and BERT-large on the H100, in the share of host time (docs/numbers.md).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from planner import catalog
from planner.domain.cluster import Cluster, Node
from planner.domain.configuration import Settings
from planner.domain.request import Problem, Sourced
from planner.sessions.inputs import machine_of
from planner.sources.sources import Sources
from planner.steps.inference import Inference
from planner.workload.fusion import with_attention
from validation.command import finished, parser_of
from validation.tables import markdown_table, read_table

__all__ = ["errors", "main"]

FOLDER = Path(__file__).parent / "inference"
GPUS = {"v100-tensorrt4.csv": "v100-pcie-16gb", "h100-sxm5-80gb.csv": "h100-sxm5-80gb"}
SWITCHES = {"graph": "graphs", "compiled": "compile"}
HEAD = ("GPU", "program", "network", "precision", "rows", "mean", "bias", "worst", "within 20 %", "inside")
Key = tuple[str, str, str, str]


def _framework(row: Mapping[str, str]) -> str:
    """Return the program of a row: an engine where its software is TensorRT, else PyTorch as it was launched."""
    if "software" in row:
        return "tensorrt"
    names = [SWITCHES[row["launch"]]] if row["launch"] in SWITCHES else []
    names += ["channels-last"] if row["channels_last"] == "1" else []
    names += ["fused-attention"] if row["sequence"] and not row["note"] else []
    return ":".join(filter(None, ("pytorch", "+".join(names))))


@cache
def _inference(gpu: str, network_name: str, framework_name: str, precision: str) -> Inference:
    accelerator = catalog.find_accelerator(gpu)
    cluster = Cluster("one", 1, Node(1, accelerator))
    machine = machine_of({"cluster": Sourced("one", "option"), "network": Sourced((), "option")}, print, found=cluster)
    framework = catalog.find_framework(framework_name)
    network = with_attention(catalog.find_network(network_name), framework.fuses)
    problem = Problem(network, None, cluster, machine.calibrations, settings=Settings(framework=framework))
    return Inference(Sources(problem), precision)


def errors() -> dict[Key, list[tuple[float, bool]]]:
    """Return predicted over measured latency, less 1, by GPU, program, network and precision; lawful batches alone.

    And whether what was measured lies inside the 90 % interval.
    """
    found: dict[Key, list[tuple[float, bool]]] = defaultdict(list)
    for name, gpu in GPUS.items():
        for row in read_table(FOLDER / name, "it belongs to this repository"):
            network = f"{row['network']}:sequence={row['sequence']}" if row.get("sequence") else row["network"]
            key = gpu, _framework(row), row["network"], row["precision"]
            inference = _inference(gpu, network, key[1], key[3])
            if inference.allows(int(row["sub_batch"])):
                latency, measured = inference.batch(int(row["sub_batch"])).latency, float(row["latency_s"])
                inside = (latency.low or 0.0) <= measured <= (latency.high or np.inf)
                found[key].append((latency.value / measured - 1, inside))
    return found


def _rows() -> Iterator[tuple[str, ...]]:
    for key, values in errors().items():
        each = np.array([error for error, _ in values])
        worst = each[np.argmax(np.abs(each))]
        figures = (f"{100 * np.abs(each).mean():.0f}", f"{100 * each.mean():+.0f}", f"{100 * worst:+.0f}")
        yield (
            *key,
            str(each.size),
            *figures,
            str(int((np.abs(each) <= 0.2).sum())),
            str(sum(inside for _, inside in values)),
        )


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser_of("validation.inference_rows", __doc__).parse_args(arguments)
    return finished(lambda: sys.stdout.write(markdown_table(HEAD, _rows())) * 0)


if __name__ == "__main__":
    sys.exit(main())
