"""Make calibrations/tsubame-kfc.json: coefficients that reproduce the published table of the SPRINT work.

The table (Oyama et al., SPRINT slides, 2016) holds four predicted optima: nodes N, sub-batch n, mean mini-batch and
epoch time. Five coefficients are solved for by least squares of the relative errors of these eight figures, with
8 GPUs a node (inferred), k = 2 where computation is halved (fp16), and e = 0.56 where all-reduce is sped up (EDR):

    T_GPU    = (b/k + c)·n
    T_Update = C + s·(gradients deposited on a node) + e·K·log2 N

A reconstruction, not a measurement: agreement with the table is in-sample. The coefficients are then written for the
parameters and FLOP of the stand-in network sprint-15: b as one rate of products and convolutions, with everything else
on the device in it; c as loading; C, s and K per parameter.

    python -m validation.reconstruct_tsubame_kfc [FILE]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from planner.catalog import find_network
from planner.costs.work import flop
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.network import Network
from planner.domain.samples import COMMAND
from planner.formats.calibration import CALIBRATION
from planner.formats.documents import write_file
from planner.steps.asynchronous import update_period_s
from planner.workload.calls import lower
from planner.workload.program import gradient_slots
from validation.command import finished, parser_of

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "calibrations" / "tsubame-kfc.json"
SOURCE = (
    "reconstructed from the table of predicted optima on TSUBAME-KFC/DL in Oyama, Nomura, Sato, Nishimura, Tamatsu, "
    "Matsuoka, SPRINT slides (IEEE BigData 2016)"
)
START = np.array([0.1, 0.01, 0.05, 0.02, 0.02])
"""b, c, C, s, K [s]; the solution does not depend on it within a factor of two."""


def predicted(coefficients: FloatArray, published: dict[str, Any]) -> FloatArray:
    """Return epoch times [s], then mean mini-batches, of the rows of the table."""
    b, c, fixed_s, summing_s, reduce_s = coefficients
    rows, gpus = published["rows"], published["gpus_per_node"]
    nodes = np.array([row["nodes"] for row in rows], dtype=np.float64)
    sub_batch = np.array([row["sub_batch"] for row in rows], dtype=np.float64)
    speed = np.array([2.0 if "fp16" in row["scenario"] else 1.0 for row in rows])
    link = np.array([published["edr_factor"] if "edr" in row["scenario"] else 1.0 for row in rows])
    gpu_s: FloatArray = (b / speed + c) * sub_batch
    fixed = fixed_s + link * reduce_s * np.log2(nodes)
    update_s = update_period_s(fixed, np.full(nodes.size, summing_s), np.full(nodes.size, gpus), gpu_s)
    in_flight = nodes * gpus * sub_batch
    figures: FloatArray = np.concatenate([published["samples"] * gpu_s / in_flight, in_flight * update_s / gpu_s])
    return figures


def solved(published: dict[str, Any], start: FloatArray = START) -> FloatArray:
    """Return b, c, C, s, K [s] > 0 by Levenberg-Marquardt steps in their logarithms."""
    rows = published["rows"]
    measured = np.array([row["epoch_s"] for row in rows] + [row["mini_batch_mean"] for row in rows])

    def residuals(logarithms: FloatArray) -> FloatArray:
        found: FloatArray = predicted(np.exp(logarithms), published) / measured - 1
        return found

    x, damping = np.log(start), 1e-3
    current = residuals(x)
    for _ in range(200):
        jacobian = np.column_stack(
            [(residuals(x + step) - residuals(x - step)) / 2e-6 for step in 1e-6 * np.eye(x.size)]
        )
        normal = jacobian.T @ jacobian
        move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -jacobian.T @ current)
        tried = residuals(x + np.clip(move, -0.5, 0.5))
        better = tried @ tried < current @ current
        if better:
            x, current = x + np.clip(move, -0.5, 0.5), tried
        damping = damping / 3 if better else damping * 4
    found: FloatArray = np.exp(x)
    return found


def training_flop(network: Network) -> float:
    """Return the FLOP of products and convolutions in one training pass of one sample."""
    calls = lower(network, np.array([1]))
    return sum(float(np.sum(flop(c.work) * c.count)) for c in calls if c.kind in ("gemm", "convolution"))


def stated(scope: str, kind: str, term: str, coefficients: dict[str, float], **keys: str) -> Entry:
    """Return an entry of the reconstruction."""
    return Entry(
        scope, kind, "", keys.get("precision", ""), keys.get("library", ""), term, {}, coefficients,
        fixed=tuple(name for name, value in coefficients.items() if value == 0),
        origin="reconstructed", source=SOURCE, notes=keys.get("notes", ""),
    )  # fmt: skip


def calibration(network: Network, coefficients: FloatArray) -> Calibration:
    """Return the calibration that turns the coefficients [s] into those of cost terms for a network."""
    b, c, fixed_s, summing_s, reduce_s = (float(f"{value:.6g}") for value in coefficients)
    parameters = float(gradient_slots(network).elements.sum())
    rate = {"flop": b / training_flop(network)}
    whole = "all time on the device is in this rate: the table does not tell kernels apart"
    inside = "not told apart by the table: part of "
    return Calibration(
        "tsubame-kfc",
        "k80",
        (
            stated("kernels", "convolution", "flop.rate", rate, precision="fp32", notes=whole),
            stated("kernels", "gemm", "flop.rate", rate, precision="fp32", notes=whole),
            stated("kernels", "pointwise", "traffic.bytes", {"calls": 0.0, "bytes": 0.0}, precision="any",
                   notes=inside + "the rate of products and convolutions"),
            stated("overheads", "generic", "overheads",
                   {"kernel_scale": 1.0, "host_s_per_call": 0.0, "host_s_per_layer": 0.0, "exponent": 1.0},
                   notes=inside + "the rate of products and convolutions"),
            stated("storage", "load", "storage.samples", {"calls": 0.0, "samples": c}),
            stated("host", "copy", "host.bytes", {"calls": 0.0, "bytes": 0.0}, notes=inside + "loading"),
            stated("host", "update_gradient", "host.parameters", {"calls": 0.0, "parameters": 0.0},
                   notes=inside + "loading; a constant part of the GPU thread's period came out negative"),
            stated("host", "sum_gradient", "host.buffers", {"calls": 0.0, "buffer_parameters": summing_s / parameters}),
            stated("host", "update_weights", "host.parameters", {"calls": 0.0, "parameters": fixed_s / parameters}),
            stated("collectives", "all_reduce", "collective.logarithmic",
                   {"log2_ranks": 0.0, "byte_log2_ranks": reduce_s / (4 * parameters)}, library="host",
                   notes="between the update threads of nodes"),
        ),
        cluster="tsubame-kfc",
        origin="reconstructed",
        source=SOURCE,
        date="2016-12",
        environment={
            "network": network.name,
            "gpus_per_node": "8 (inferred)",
            "software": "CUDA 7.0, MVAPICH2 2.0rc1",
            COMMAND: "python -m validation.reconstruct_tsubame_kfc",
        },
        seen=(network.name, "tsubame-kfc"),
        warnings=(
            f"The coefficients are scaled to the stand-in network {network.name}: that of the table is not known.",
        ),
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Solve, print the errors, write the file; return the exit code."""
    parser = parser_of("validation.reconstruct_tsubame_kfc", __doc__)
    parser.add_argument("file", nargs="?", type=Path, default=OUT, help="default: calibrations/tsubame-kfc.json")
    given = parser.parse_args(arguments)
    return finished(lambda: _write(given.file))


def _write(path: Path) -> None:
    published = json.loads((ROOT / "tests" / "data" / "published" / "sprint.json").read_text())
    coefficients = solved(published)
    figures = predicted(coefficients, published).reshape(2, -1)
    for row, epoch_s, mini_batch in zip(published["rows"], *figures, strict=True):
        errors = (epoch_s / row["epoch_s"] - 1, mini_batch / row["mini_batch_mean"] - 1)
        epoch = f"epoch {epoch_s:6.0f} s {errors[0]:+6.1%}"
        sys.stdout.write(f"{row['name']:9} {epoch}   mini-batch {mini_batch:6.1f} {errors[1]:+6.1%}\n")
    write_file(path, CALIBRATION.dump(calibration(find_network("sprint-15"), coefficients)), force=True)


if __name__ == "__main__":
    sys.exit(main())
