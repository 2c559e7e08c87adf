"""Measuring this machine for ``planner calibrate``: the device, a progress bar, what is kept when interrupted."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from planner.cli.options import OPTIONS
from planner.cli.parsing import budget
from planner.cli.progress import bar
from planner.cli.streams import note
from planner.domain.calibration import Calibration
from planner.domain.calls import LOOKED_UP, LayerCall
from planner.domain.kernels import DIRECTIONS
from planner.domain.network import Network
from planner.domain.samples import Samples
from planner.errors import CoverageError, MissingPackageError, OutputError, ParameterError
from planner.networks.zoo import build, zoo_names
from planner.probes.calibrate import Measurement, measure_cpu
from planner.probes.layer_points import SMALL, layer_points, unmeasurable
from planner.probes.machine import describe_cpu
from planner.probes.run import Progress
from planner.probes.torch_package import check_torch, import_torch
from planner.units import format_bytes
from planner.workload.calls import distinct_calls
from planner.workload.lowering import lower
from planner.workload.memory import memory_bytes

__all__ = [
    "check_complete",
    "check_device",
    "check_measured",
    "check_networks",
    "check_writable",
    "measured",
    "needed_kernels",
]

MOST_NAMES = 4
"""Kernels that a sentence names."""


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have, or that cannot be measured yet."""
    if device == "cpu":
        return
    if not import_torch().cuda.is_available():
        raise MissingPackageError(
            f"--device must be a device that PyTorch sees, got {device!r} without CUDA; use --device cpu"
        )
    raise ParameterError("--device", "cpu, the only device that can be measured yet", device)


def check_writable(what: str, path: Path) -> None:
    """Refuse a path whose folder, or the nearest one above that exists, cannot be written; nothing is left there."""
    folder = next((above for above in path.absolute().parents if above.exists()), path.parent)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"{what} must be in a folder that can be written, got {folder}: {error.strerror}") from error


def measured(budget_s: float, partial: Path, networks: Sequence[Network] = ()) -> Measurement:
    """Return the measurements of this CPU, calls of networks first, going on from ``partial`` where it has some."""
    check_torch()
    check_writable("what is measured", partial)
    calls = distinct_calls(networks)
    for call, reason in ((call, unmeasurable(call)) for call in calls):
        if reason:
            note(f"{call.kind} {call.direction} of a {call.layer.kind} layer is not measured, as {reason}")
    points = layer_points(calls)
    with bar("measuring", budget_s, f"measuring this CPU for {budget_s:.0f} s") as show:
        return measure_cpu(
            budget_s,
            first=points,
            networks=networks,
            input_folder=Path(),
            resume=partial,
            progress=lambda now: show(now.elapsed_s, _state(now)),
            say=note,
        )


def check_networks(networks: Sequence[Network]) -> None:
    """Refuse a network that this machine cannot hold at the small sub-batch."""
    accelerator = describe_cpu()[0]
    for network in networks:
        needed = memory_bytes(network, np.array([SMALL]), "fp32", network.optimizer, accelerator.kind).total[0]
        if needed > accelerator.memory_bytes:
            raise ParameterError(
                "--network",
                f"a network that fits the {format_bytes(accelerator.memory_bytes)} of this machine at a sub-batch of "
                f"{SMALL}",
                f"{network.name}, which needs {format_bytes(needed)}",
            )


def check_measured(samples: Samples, networks: Sequence[Network], budget_s: float) -> None:
    """Refuse samples that lack a call of the networks: each must be measured at all its sub-batches.

    Raises
    ------
    CoverageError
        Says how many are missing and of what kinds; what was measured is kept.
    """
    columns = (samples.text["kind"], samples.text["direction"], samples.text["call"], samples.number["sub_batch"])
    known = set(zip(*(column.tolist() for column in columns), strict=True))
    points = layer_points(distinct_calls(networks))
    missing = [point for point in points if point.call and (*_key(point.call), float(point.sub_batch)) not in known]
    if not missing:
        return
    kinds = ", ".join(dict.fromkeys(f"{point.kind} {point.direction}".replace("_", " ") for point in missing))
    raise CoverageError(
        f"the budget must suffice for all {len(points)} timings of the networks' own calls, got {budget_s:.0f} s, "
        f"which leaves {len(missing)} ({kinds}); what was measured is kept, and the same command with --budget "
        f"{_enough_s(budget_s):.0f}s goes on from there"
    )


def _key(call: LayerCall) -> tuple[str, str, str]:
    return call.kind, call.direction, call.name


def _enough_s(budget_s: float) -> float:
    default_s = budget("--budget", OPTIONS["budget"].default)
    return default_s if budget_s < default_s else 2 * budget_s


def check_complete(calibration: Calibration, budget_s: float) -> None:
    """Refuse a calibration without every kernel of the bundled networks: it would serve none of them.

    Raises
    ------
    CoverageError
        Names what is missing, and the budget that suffices.
    """
    fitted = {
        (one.kind, way)
        for one in calibration.entries
        for way in ((one.direction,) if one.direction else DIRECTIONS)
        if one.term != LOOKED_UP
    }
    missing = [" ".join(pair).replace("_", " ") for pair in needed_kernels() if pair not in fitted]
    if not missing:
        return
    shown = ", ".join(missing[:MOST_NAMES])
    more = f" and {len(missing) - MOST_NAMES} more" if missing[MOST_NAMES:] else ""
    raise CoverageError(
        f"a calibration must hold every kernel of the bundled networks, got too few timings of {shown}{more}; "
        f"what was measured is kept, and the same command with --budget {_enough_s(budget_s):.0f}s goes on from there"
    )


def needed_kernels() -> tuple[tuple[str, str], ...]:
    """Return kind and direction of every kernel that a bundled network calls, products first."""
    one = np.ones(1, dtype=np.int64)
    pairs = {(calls.kind, calls.direction) for name in zoo_names() for calls in lower(build(name, {}), one)}
    return tuple(sorted(pairs, key=lambda pair: (pair[0] not in ("convolution", "gemm"), pair)))


def _state(now: Progress) -> str:
    disturbed = f", {now.disturbed} disturbed" if now.disturbed else ""
    return f"{now.elapsed_s:.0f} of {now.budget_s:.0f} s, {now.done}/{now.total} points{disturbed}"
