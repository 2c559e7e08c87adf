"""Frameworks by name: the bundled ones with their aliases, and this user's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from planner.domain.calibration import Calibration
from planner.domain.framework import Framework, framework_parts, label_of, variant_and_version
from planner.errors import InputFileError, PlannerError, UnknownNameError
from planner.formats.documents import STANDARD_INPUT, place_of
from planner.formats.framework import FRAMEWORK

FOLDER = Path(__file__).resolve().parent.parent / "_bundled" / "frameworks"


def own_folder() -> Path:
    """Return the folder of what this user has of their own; it need not exist."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "planner"


def own_framework_files() -> dict[str, Path]:
    """Return the files of this user's own frameworks by name, sorted; each is called as its framework."""
    return {path.stem: path for path in sorted((own_folder() / "frameworks").glob("*.toml"))}


def find_framework(text: str) -> Framework:
    """Return the framework of ``NAME[@version][:switch+switch]``, whatever the case, or of a TOML file and switches.

    UnknownNameError where no bundled or own framework has that name or alias, or it has no such switch; UsageError
    where switches exclude each other; InputFileError where the file is wrong.
    """
    name, version, switches = framework_parts(text)
    if is_path(name):
        return FRAMEWORK.read(name).of_version(version).with_switches(switches)
    found, on = _bundled_named(name.lower()) or _own(name)
    return found.of_version(version).with_switches([*on, *(one.lower() for one in switches)])


def recorded(framework: Framework) -> Framework:
    """Return the record of a framework that a document names by its label; itself where there is none any more."""
    try:
        return find_framework(framework.label)
    except PlannerError:
        return framework


def with_switches(text: str, framework: Framework) -> str:
    """Return what is typed for a framework that a text names, with the switches that are on in it.

    >>> with_switches("./own.toml:wide", Framework("own", switched=("wide", "deep")))
    './own.toml:wide+deep'
    """
    name = framework_parts(text)[0]
    return label_of(name if is_path(name) else framework.name, framework.version, framework.switched)


def bundled_fusions(name: str) -> tuple[str, ...]:
    """Return what the bundled framework of a name fuses without switches; none where there is no such framework."""
    bundled = _bundled_named(name)
    return bundled[0].fuses if bundled else ()


def own_frameworks(report: Callable[[InputFileError], None] = lambda _: None) -> tuple[Framework, ...]:
    """Return the user's own frameworks by name, but for those that have a bundled one's.

    ``report`` is told what is wrong with a file that cannot be used.
    """
    frameworks = []
    for name, path in own_framework_files().items():
        try:
            if name.lower() not in _bundled():
                frameworks.append(_own_framework(path))
        except InputFileError as error:
            report(error)
    return tuple(frameworks)


def unused_own_names() -> tuple[str, ...]:
    """Return a sentence for every name of the user's own frameworks under which a bundled one is found."""
    sentences = [
        f"own framework {path.name} is not used: a bundled framework has that name; rename it"
        for name, path in own_framework_files().items()
        if name.lower() in _bundled()
    ]
    for one in own_frameworks():
        sentences += [
            f"alias {alias!r} of own framework {one.name} is not used: a bundled framework has that name; rename it"
            for alias in _names_of(one)
            if alias in _bundled()
        ]
    return tuple(sentences)


def with_present_names(calibration: Calibration) -> Calibration:
    """Return a calibration whose entries and steps name frameworks as they are called now.

    What was a framework of its own may have become a switch of another.
    """

    def present(label: str) -> str:
        variant, version = variant_and_version(label)
        found, on = _bundled_named(variant) or (None, [])
        return found.of_version(version).with_switches(on).label if found and on else label

    entries = tuple(
        replace(one, kind=present(one.kind)) if one.scope == "overheads" else one for one in calibration.entries
    )
    steps = tuple(replace(one, framework=present(one.framework)) for one in calibration.measured_steps)
    return replace(calibration, entries=entries, measured_steps=steps)


def is_path(text: str, suffix: str = ".toml") -> bool:
    """Tell whether a text names a file rather than something bundled: a path, or standard input."""
    return text == STANDARD_INPUT or text.endswith(suffix) or "/" in text or os.sep in text


def _own(name: str) -> tuple[Framework, list[str]]:
    """Return the user's own framework of a name or alias, with the switches that an alias turns on."""
    files = own_framework_files()
    if name in files:
        return _own_framework(files[name]), []
    own = own_frameworks()
    for one in own:
        if name.lower() in _names_of(one):
            return one, _names_of(one)[name.lower()]
    bundled = (one.name for one, _ in _bundled().values())
    raise UnknownNameError("framework", name, {*bundled, *files, *(alias for one in own for alias in _names_of(one))})


def _names_of(framework: Framework) -> dict[str, list[str]]:
    """Return the other names of a framework, each with the switches that it turns on."""
    of_switches = {alias: [name] for name, one in framework.switches.items() for alias in one.aliases}
    return {alias: list[str]() for alias in framework.aliases} | of_switches


def _own_framework(path: Path) -> Framework:
    """Return the framework of an own file, which is called as it."""
    framework = FRAMEWORK.read(path)
    if framework.name != path.stem:
        problem = f"value must be {path.stem!r}, as the file is called, got {framework.name!r}"
        raise InputFileError(place_of(path), problem, "name")
    return framework


@cache
def _bundled_named(name: str) -> tuple[Framework, list[str]] | None:
    """Return the bundled framework of a name or alias; of a name, which is that of its file, no other file is read."""
    path = FOLDER / f"{name}.toml"
    return (FRAMEWORK.read(path), []) if path in _bundled_files() else _bundled().get(name)


@cache
def _bundled_files() -> tuple[Path, ...]:
    return tuple(sorted(FOLDER.glob("*.toml")))


@cache
def _bundled() -> Mapping[str, tuple[Framework, list[str]]]:
    """Return the bundled frameworks by name and alias, with the switches that an alias turns on."""
    frameworks = [FRAMEWORK.read(path) for path in _bundled_files()]
    names = [(one, {one.name: list[str](), **_names_of(one)}) for one in frameworks]
    return {name: (one, on) for one, each in names for name, on in each.items()}
