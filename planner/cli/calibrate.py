"""``planner calibrate``: measure this node, or read sample files, fit, write a calibration."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from planner import catalog
from planner.cli import output
from planner.cli.exclusive import held_alone
from planner.cli.kept_samples import samples_path, samples_text
from planner.cli.measure import (
    Asked,
    check_complete,
    check_device,
    check_networks,
    check_served,
    check_writable,
    measured,
)
from planner.cli.options import OPTIONS
from planner.cli.parsing import NOTHING, budget
from planner.cli.plan_runs import asking_of, refined_here
from planner.cli.sample_files import fitted_with_steps, samples_of
from planner.cli.slow_runs import with_doubts
from planner.cli.streams import note
from planner.cli.values import Values, from_options
from planner.domain.calibration import Calibration
from planner.domain.network import Network
from planner.domain.samples import COMMAND, Samples
from planner.errors import CoverageError, OutputError, ParameterError
from planner.fitting.calibration import Provenance, fit_calibration
from planner.fitting.overheads import overheads_doubt
from planner.formats.calibration import CALIBRATION, write_calibration
from planner.formats.documents import check_replaceable, write_file
from planner.probes.calibrate import WARNING_DISTURBED, Measurement, disturbed
from planner.probes.gpu import default_device
from planner.probes.resume import holds_measured, remove_if_empty
from planner.report.show import fit_view
from planner.workload.shards import has_tensor_shards, tensor_shard

__all__ = ["Target", "fitted_from_files", "fitted_here", "run", "target_of"]

_NAME = re.compile(r"[\w.+-]+", re.ASCII)
LONGEST_NAME = 100
"""With time stamp and suffix a file name, which most systems limit to 255 bytes; '..' or '-x' would be other things."""
MEASURING = ("device", "target_error", "network", "tensor_parallel", "precision")
CLASHES = (
    ("samples", (*MEASURING, "budget", "plan"), "which measures nothing"),
    ("plan", MEASURING, "which says what to measure"),
)
"""Option, options that are left out beside it, and why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a calibration goes: its name, its file, what an interrupted run keeps, whether the file may be replaced.

    ``shared``: what another process would write too: the output that was named, else what an interrupted run keeps.
    """

    name: str
    path: Path
    partial: Path
    force: bool
    shared: Path


def run(arguments: Mapping[str, Any]) -> None:
    """Calibrate: check everything that can be wrong first, then do it, one process for one output."""
    began_s = time.perf_counter()
    values = from_options(arguments)
    _check_supported(values, arguments)
    now = datetime.now().astimezone()
    target = target_of(values, now)
    check_writable("the calibration", target.path)
    with held_alone("the calibration", target.shared):
        _calibrate(values, target, f"{now:%Y-%m-%d}", began_s)


def _calibrate(values: Values, target: Target, date: str, began_s: float) -> None:
    """Measure or read, fit, write, show."""
    if "samples" in values:
        calibration, measured_rows = fitted_from_files(Path(values["samples"].value), target.name), ""
    elif "plan" in values:
        calibration, measured_rows = refined_for_plans(values, target.name, date, began_s)
    else:
        calibration, measured_rows = fitted_here(values, target, date, began_s)
    target.path.parent.mkdir(parents=True, exist_ok=True)
    write_file(target.path, write_calibration(calibration), target.force)
    if measured_rows:
        write_file(samples_path(target.path), measured_rows, target.force)
    target.partial.unlink(missing_ok=True)  # only now: an interrupt while fitting must not cost the measurements
    if "json" in values:
        output.write_document(CALIBRATION.document(calibration))
    else:
        output.write_view(fit_view(calibration, str(target.path)))


def _check_supported(values: Values, arguments: Mapping[str, Any]) -> None:
    if "device" in values:
        check_device(values["device"].value)
    for beside, clashes, why in CLASHES:
        clash = next((name for name in clashes if name in values), None)
        if clash and beside in values:
            given = arguments[clash]
            shown = given if isinstance(given, str) else given[0]
            raise ParameterError(OPTIONS[clash].flag, f"left out beside --{beside}, {why}", shown)
    if "calibration" in values and "plan" not in values:
        raise ParameterError("--calibration", "given beside --plan alone", values["calibration"].value[0])


def target_of(values: Values, now: datetime) -> Target:
    """Return where the calibration goes; an output that exists, or cannot, is refused before anything is measured."""
    out, force = _output(values), "force" in values
    name = values["name"].value if "name" in values else _default_name(values)
    if not _NAME.fullmatch(name):
        raise ParameterError("--name", "letters, digits and . _ + -", name)
    if len(name) > LONGEST_NAME or not name[0].isalnum():
        raise ParameterError("--name", f"of at most {LONGEST_NAME} characters, the first a letter or digit", name)
    said_twice = out is not None and "name" in values  # then a bundled one itself may be made again
    if name in catalog.names("calibrations") and not said_twice:
        raise ParameterError("--name", "a name of your own", name, "a bundled calibration has this one")
    if out is not None:
        return Target(name, out, _partial_of(out), force, out)
    folder = catalog.own_calibrations_folder()
    partial = folder.parent / "partial" / f"{name}.jsonl"
    return Target(name, catalog.own_calibration_file(name, now), partial, force, partial)


def _output(values: Values) -> Path | None:
    if "out" not in values:
        return None
    path = Path(values["out"].value)
    for written in (path, samples_path(path), _partial_of(path)) if path.name else ():
        check_replaceable(written, force=True)
    if not path.name or not path.parent.is_dir():
        raise OutputError(f"--out must be a file in a folder that exists, got {str(path)!r}")
    if path.suffix != ".json":
        named = path.with_suffix(".json")
        raise OutputError(f"--out must be a file whose name ends in .json, got {str(path)!r}; use {str(named)!r}")
    beside = () if "samples" in values else (samples_path(path),)
    known = next((one for one in (path, *beside) if one.exists()), None)
    if known and "force" not in values:
        raise OutputError(f"--out must be a new file, got {str(known)!r}, which exists; use --force to replace it")
    return path


def _partial_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _default_name(values: Values) -> str:
    """Return the stem of the output, else the folder of the samples, else ``local``."""
    if "out" in values:
        known = Path(values["out"].value).stem
    elif "samples" in values:
        known = Path(values["samples"].value).resolve().name
    else:
        return "local"
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", known)


def fitted_from_files(folder: Path, name: str) -> Calibration:
    """Return the calibration that the sample files of a folder give; they must be of one device.

    Say what they say, or their rows' notes, of a disturbed machine.
    """
    samples, node, steps = samples_of(folder, name)
    samples = replace(samples, circumstances={**disturbed(samples), **samples.circumstances})
    calibration = fitted_with_steps(fit_calibration(samples, name, node.accelerator, node), steps)
    _tell_disturbed(samples)
    return calibration


def _tell_disturbed(samples: Samples) -> None:
    if WARNING_DISTURBED in samples.circumstances:
        note(samples.circumstances[WARNING_DISTURBED])


def fitted_here(values: Values, target: Target, date: str, began_s: float) -> tuple[Calibration, str]:
    """Return the calibration that measuring this machine gives, and the text of a samples file of what was measured.

    An interrupt leaves what was measured, and says so.

    ``began_s``: when the command began, on :func:`time.perf_counter`.
    """
    try:
        asked = asked_of(values)
        before_s = time.perf_counter() - began_s
        made = measured(asked, target.partial, before_s)
        made = with_doubts(made, time.perf_counter() - began_s - before_s)
        provenance = Provenance(source=f"this machine: {made.accelerator.name}", date=date)
        _tell_disturbed(made.samples)
        calibration = _fitted(made, target, provenance, asked)
        for doubt in filter(None, (overheads_doubt(one) for one in calibration.entries if one.scope == "overheads")):
            note(doubt)
    except KeyboardInterrupt:
        is_kept = holds_measured(target.partial)
        kept = f"what was measured so far is kept in {target.partial}; the same command goes on from there"
        note(kept if is_kept else "nothing was measured yet, so nothing is kept")
        remove_if_empty(target.partial)
        raise
    return calibration, samples_text(made, provenance.source, date)


def refined_for_plans(values: Values, name: str, date: str, began_s: float) -> tuple[Calibration, str]:
    """Return the calibration that short runs of a suggestion's plans refine, and the text of a file of these runs."""
    calibration, made = refined_here(asking_of(values), name, _budget_s(values), began_s)
    source = f"training runs on {made.accelerator.name}"
    environment = {key: value for key, value in calibration.environment.items() if key != COMMAND}  # of the base alone
    return replace(calibration, date=date, environment=environment), samples_text(made, source, date)


def _budget_s(values: Values) -> float:
    stated: float = values["budget"].value if "budget" in values else budget("--budget", OPTIONS["budget"].default)
    return stated


def asked_of(values: Values) -> Asked:
    """Return what is to be measured."""
    device = device_of(values)
    networks = networks_of(values, device)
    return Asked(
        _budget_s(values),
        networks,
        values["precision"].value if "precision" in values else (),
        values["target_error"].value if "target_error" in values else None,
        device,
        shards_of(values, networks),
    )


def shards_of(values: Values, networks: tuple[Network, ...]) -> tuple[Network, ...]:
    """Return a rank's shard of every network that is a transformer, of each degree asked for."""
    degrees = values["tensor_parallel"].value if "tensor_parallel" in values else ()
    if degrees and not networks:
        raise ParameterError("--network", "given beside --tensor-parallel", NOTHING, "name the networks to be split")
    split = [network for network in networks if has_tensor_shards(network)] or networks
    return tuple(tensor_shard(network, degree) for network in split for degree in degrees if degree > 1)


def device_of(values: Values) -> str:
    """Return the device to be measured, as PyTorch names it: a GPU if there is one, unless another is asked for."""
    return str(values["device"].value) if "device" in values else default_device(note)


def networks_of(values: Values, device: str) -> tuple[Network, ...]:
    """Return the networks whose own layers are to be measured, each once; the device holds them."""
    named = dict.fromkeys(values["network"].value) if "network" in values else {}
    networks = tuple(catalog.find_network(name) for name in named)
    check_networks(networks, device)
    return networks


def _fitted(made: Measurement, target: Target, provenance: Provenance, asked: Asked) -> Calibration:
    """Return the calibration; refuse one that would serve no network, and name the budget that suffices."""
    name = target.name
    try:
        calibration = fit_calibration(made.samples, name, made.accelerator, made.node, provenance, steps=made.steps)
    except CoverageError:
        calibration = Calibration(name, made.accelerator.name, ())
    if asked.networks:
        check_served(calibration, made.node, asked, made.precisions)
    else:
        check_complete(calibration, asked, made.precisions)
    return calibration
