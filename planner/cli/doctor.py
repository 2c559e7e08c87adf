"""``planner doctor``: what is installed, found and missing, for what.

Versions are those of metadata: no optional package is imported, and nothing before the required ones were looked at.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planner import __version__
from planner.cli.streams import write_document, write_view
from planner.errors import InputFileError, MissingPackageError, PlannerError

PACKAGE = "epoch-planner"
EXTRAS = {
    "torch": "calibrate, own modules",
    "pillow": "calibrate, images",
    "onnx": "--network X.onnx",
    "matplotlib": "report, --plot",
    "psycopg": "--study postgres",
}
"""Optional package -> what needs it."""
PROGRAMS = {"sbatch": "jobs of Slurm", "jq": "answers in scripts"}
SCOPES = {"kernels": "kernels", "collectives": "links"}
READY, MISSING, BROKEN = "ready", "missing", "broken"


@dataclass(frozen=True, slots=True)
class Check:
    """State of one part: what needs it, what was found, and the remedy where it is missing."""

    part: str
    needed_for: str
    state: str
    found: str
    remedy: str = ""
    required: bool = False


def run(arguments: Mapping[str, Any]) -> None:
    """Print all checks; exit code 2 where a required part is broken."""
    checks = [*_packages()]
    _refuse_broken(checks)
    from planner.formats.summaries import DOCTOR  # noqa: PLC0415 - needs the required packages, as what follows
    from planner.report.blocks import Block, Line, Table, title  # noqa: PLC0415 - as above

    checks += [_bundled(), *_own(), *_machine()]
    if "json" in arguments:
        write_document(DOCTOR.document({"checks": [asdict(one) for one in checks]}))
    else:
        versions = f"planner {__version__}, Python {platform.python_version()}"
        states = [(one.part, one.needed_for, f"{one.state}: {one.found}") for one in checks]
        view: list[Block] = [title(f"{versions}, {platform.system()} {platform.machine()}"), Line("")]
        view.append(Table(("part", "for", "state"), states))
        if remedies := [(one.part, one.remedy) for one in checks if one.remedy]:
            view += [Line(""), Table(("part", "to do"), remedies)]
        write_view(view)
    _refuse_broken(checks)


def _refuse_broken(checks: Iterable[Check]) -> None:
    for one in checks:
        if one.required and one.state == BROKEN:
            sentence = f"{one.part} must be installed for planner to work, got {one.found}; {one.remedy}"
            raise MissingPackageError(sentence)


def _packages() -> Iterator[Check]:
    """Yield the required packages as one check, and each optional one."""
    try:
        requirements = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        yield Check(PACKAGE, "everything", BROKEN, "no metadata", f"pip install {PACKAGE}", required=True)
        return
    wanted: dict[str, tuple[str, str]] = {}
    for one in requirements:
        requirement, _, condition = one.partition(";")
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        least, extra = "".join(re.findall(r"[=>]=([\d.]+)", requirement)[:1]), condition.partition("'")[2].rstrip("'")
        if extra != "test" and name not in wanted:
            wanted[name] = least, extra
    bad = [f"{name} {found or 'absent'}" for name, (least, extra) in wanted.items()
           if not extra and not _is_enough(found := _version(name), least)]  # fmt: skip
    number = sum(not extra for _, extra in wanted.values())
    state, remedy = (BROKEN, f"pip install --upgrade {PACKAGE}") if bad else (READY, "")
    yield Check("packages", "everything", state, ", ".join(bad) or f"all {number}", remedy, required=True)
    for name, needed_for in EXTRAS.items():
        least, extra = wanted[name]
        found = _version(name)
        state = READY if _is_enough(found, least) else BROKEN if found else MISSING
        remedy = "" if state == READY else f"pip install '{PACKAGE}[{extra}]'"
        words = f"{found}{_backend() if name == 'torch' and found else ''}"
        yield Check(name, needed_for, state, words or "not installed", remedy)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _is_enough(found: str, least: str) -> bool:
    """Compare two versions by their leading numbers."""
    numbers = [[int(part) for part in re.findall(r"\d+", one.partition("+")[0])] for one in (found, least)]
    return bool(found) and numbers[0] >= numbers[1]


def _backend() -> str:
    """Return what PyTorch was built for, as its file of versions says."""
    spec, built = find_spec("torch"), None
    if spec is not None and spec.origin is not None:
        with suppress(OSError):
            text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
            built = re.search(r"(?m)^(cuda|hip)\b.*= '([\d.]+)", text)
    return f", {built[1].upper()} {built[2]}" if built else ", CPU alone"


def _bundled() -> Check:
    from planner import catalog  # noqa: PLC0415 - needs the required packages

    remedy = f"pip install --force-reinstall {PACKAGE}"
    try:
        words = f"{len(catalog.names('calibrations'))} calibrations, {len(catalog.names('clusters'))} clusters"
        catalog.default_request()
    except (PlannerError, OSError, ValueError) as error:
        return Check("bundled data", "everything", BROKEN, str(error), remedy, required=True)
    return Check("bundled data", "everything", READY, words, required=True)


def _own() -> Iterator[Check]:
    """Yield the user's own files: calibrations, their folder, and settings."""
    from planner import catalog  # noqa: PLC0415 - needs the required packages
    from planner.probes.machine import present_accelerators  # noqa: PLC0415 - as above

    needed_for, errors = "no --cluster", list[InputFileError]()
    newest = catalog.newest_own_calibrations(present_accelerators(), errors.append)
    folder, remedy = catalog.own_calibrations_folder(), "planner calibrate"
    for one in newest:
        entries = {entry.scope for entry in one.entries}
        what = " and ".join(word for scope, word in SCOPES.items() if scope in entries)
        with_version = one.environment.get("framework", "").removeprefix("pytorch ")
        is_old = bool(with_version) and with_version != _version("torch")
        words = f"{what} of {one.accelerator}, {one.date or 'no date'}{f', by torch {with_version}' if is_old else ''}"
        yield Check("own calibration", needed_for, READY, words, remedy if is_old else "")
    others = len(list(folder.glob("*.json"))) - len(newest)
    if not newest or errors:
        words = str(errors[0]) if errors else f"none of this machine{f', {others} others' if others else ''}"
        yield Check("own calibrations", needed_for, BROKEN if errors else MISSING, words, remedy)
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(place, os.W_OK):
        yield Check("own folder", "calibrate without --out", BROKEN, f"{place} is not writable", "set XDG_DATA_HOME")
    try:
        settings = catalog.read_settings(Path.cwd())
        found = str(settings[0]) if settings else "none"
        yield Check("planner.toml", "defaults of a folder", READY if settings else MISSING, found)
    except InputFileError as error:
        yield Check("planner.toml", "defaults of a folder", BROKEN, str(error), "mend or remove it")


def _machine() -> Iterator[Check]:
    """Yield GPUs and programs of this machine."""
    from planner.probes.machine import PROGRAM, gpu_name, installed_gpus  # noqa: PLC0415 - needs NumPy

    gpus = Counter(gpu_name(name, size) for name, size in installed_gpus())
    is_there = shutil.which(PROGRAM) is not None
    words = ", ".join(f"{count} x {name}" for name, count in gpus.items())
    state = READY if gpus else BROKEN if is_there else MISSING
    absent = f"{PROGRAM} lists none" if is_there else f"no {PROGRAM}"
    remedy = f"see what {PROGRAM} says" if is_there and not gpus else ""
    yield Check("GPUs", "calibrate of a GPU", state, words or absent, remedy)
    for name, needed_for in PROGRAMS.items():
        path = shutil.which(name)
        yield Check(name, needed_for, READY if path else MISSING, path or "not found")
