"""From names and paths to records: the only place that knows what is bundled and where a user's own files are.

A text with a folder in it, or with the suffix of its kind of file, is a path, ``-`` is standard input; anything else is
a name, and where no such name is known, the file that is called so. A file with a bundled name must describe the same.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from planner.catalog.bundled_index import BundledCalibration, BundledIndex, EntryPlace, made_index
from planner.catalog.frameworks import (
    bundled_fusions,
    find_framework,
    is_path,
    own_folder,
    own_frameworks,
    recorded,
    unused_own_names,
    with_present_names,
    with_switches,
)
from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Transfers, relation
from planner.domain.cluster import Accelerator, Cluster, MixedCluster
from planner.domain.network import LOOKED_UP, Network, family_of
from planner.domain.request import Dataset
from planner.domain.samples import JPEG
from planner.errors import InputFileError, OutputError, ParameterError, UnknownNameError, UsageError, nearest_names
from planner.formats.calibration import CALIBRATION, TRANSFER
from planner.formats.cluster import ACCELERATOR, read_cluster
from planner.formats.documents import STANDARD_INPUT, parse_text, place_of, read_text, write_file
from planner.formats.fields import LONGEST_NAME
from planner.formats.network import DATASET, NETWORK
from planner.formats.parts import REQUEST, SETTINGS
from planner.networks.zoo import build, zoo_names
from planner.units import BOUNDS

__all__ = [
    "allowing_unknown", "arguments", "bundled_fusions", "calibrations_for", "default_request", "find_accelerator",
    "find_any_cluster", "find_calibration", "find_cluster", "find_dataset", "find_framework", "find_network",
    "known_accelerator", "names", "nearest_calibrations", "newest_own_calibrations", "own_calibration_file",
    "own_calibrations", "own_calibrations_folder", "own_frameworks", "read_settings", "recorded",
    "sibling_calibrations", "transfer_scores", "typed_dataset", "unused_own_names", "with_switches",
]  # fmt: skip

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".gguf", ".h5")
"""Suffixes of files that hold weights alone, not the layers of a network."""
OWN_NETWORK = (
    "'planner show networks' lists them; a model of your own is given as the config.json of its folder, as "
    "FILE.py:FACTORY or as an ONNX file."
)

PACKAGE = Path(__file__).resolve().parent.parent
BUNDLED = PACKAGE / "_bundled"
# A wheel carries the calibrations inside; in a checkout they stand beside the package.
CALIBRATIONS = next(
    folder for folder in (BUNDLED / "calibrations", PACKAGE.parent / "calibrations", BUNDLED) if folder.is_dir()
)
SETTINGS_FILE = "planner.toml"
SINGULAR = {"datasets": "data set", "accelerators": "accelerator", "clusters": "cluster"}
FILE_KEYS: Mapping[str, str] = {
    "network": ".toml", "dataset": ".toml", "cluster": ".toml", "calibration": ".json", "framework": ".toml",
}  # fmt: skip
"""Settings whose value may be a file, and its suffix."""


def names(what: str) -> tuple[str, ...]:
    """Return the bundled names, sorted, of networks, clusters, calibrations, datasets, accelerators or frameworks."""
    if what == "networks":
        return tuple(sorted(zoo_names()))
    if what == "calibrations":
        return tuple(sorted(_calibration_files()))
    folders = ("clusters", "datasets", "accelerators", "frameworks")
    if what not in folders:
        raise UnknownNameError("what", what, ("networks", "calibrations", *folders))
    return tuple(sorted(path.stem for path in (BUNDLED / what).glob("*.toml")))


def _is_file(path: Path | str) -> bool:
    with suppress(OSError, ValueError):  # a name that no file can have
        return Path(path).exists() and not Path(path).is_dir()
    return False


def _is_folder(path: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(path).is_dir()
    return False


def _file_of(text: str, what: str) -> Path | str:
    """Return the TOML file of a path, of a bundled name, or else the file that is called ``text``."""
    is_file = is_path(text, ".toml") or (text not in names(what) and _is_file(text))
    return text if is_file else _bundled_file(what, text)


def _bundled_file(what: str, name: str) -> Path:
    if name not in names(what):
        raise UnknownNameError(SINGULAR[what], name, names(what))
    return BUNDLED / what / f"{name}.toml"


def find_network(text: str) -> Network:
    """Return the network of ``NAME[:key=value,...]``, a file, or a factory, ``file.py:build`` or ``module:build``.

    A file is TOML, ONNX, or Hugging Face's ``config.json`` or a folder that holds one: arguments are of the family
    that it is read as. ONNX and factories take ``input``, the sizes of a sample, and ``unknown=allowed``.

    UnknownNameError where no bundled network or argument has that name; ParameterError where an argument is not
    ``key=value``, is given twice, or has a value that it does not take; InputFileError where the file is wrong.
    """
    name, colon, rest = text.partition(":")
    unknown = name not in names("networks")
    if (model := _model(text)) is not None:
        return _imported(*model)
    if name.endswith(".json") or ((unknown or is_path(name)) and _is_folder(name)):
        from planner.networks.huggingface import network_of  # noqa: PLC0415 - few requests read one

        path = name if name.endswith(".json") else str(Path(name) / "config.json")
        keys = parse_text(read_text(path), path, "json")
        return network_of(keys, path, arguments(rest, f"argument of {path}") if colon else {})
    if name.endswith(".py"):
        from planner.networks.torch_module import factories_of  # noqa: PLC0415

        of = factories_of(read_text(name), name)
        raise ParameterError("network in Python", f"{name}:FACTORY", text, f"the file defines {of}")
    is_file = unknown and (_is_file(text) or name[0:1] in ("/", ".")) and Path(text).suffix not in WEIGHTS
    if is_file or text.endswith(".toml") or text == STANDARD_INPUT:
        return _network_file(text)
    if unknown and ("/" in name or Path(name).suffix or not nearest_names(name, names("networks"))):
        raise UnknownNameError("network", name, names("networks"), OWN_NETWORK)
    return build(name, arguments(rest, f"argument of network {name}") if colon else {})


def _model(text: str) -> tuple[str, str, str] | None:
    """Return path, factory and options of ``model.onnx[:options]`` or ``file.py:factory[:options]``, else None."""
    name, colon, rest = text.partition(":")
    if name.endswith(".onnx"):
        return name, "", rest
    factory, _, options = rest.partition(":")
    is_code = factory.isidentifier() and (name.endswith(".py") or name not in names("networks"))
    return (name, factory, options) if colon and is_code else None


def allowing_unknown(text: str) -> str:
    """Return a name of a network with operators allowed that are not known, where it can have some."""
    model = _model(text)
    if model is None or "unknown=" in model[2]:
        return text
    return f"{text},unknown=allowed" if model[2] else f"{text}:unknown=allowed"


@cache
def _imported(path: str, factory: str, options: str) -> Network:
    """Return the network of an ONNX file, or of the module that a factory returns; it is read once."""
    from planner.networks.imported import network_of_graph  # noqa: PLC0415 - few requests read one
    from planner.networks.onnx_file import onnx_graph  # noqa: PLC0415
    from planner.networks.torch_module import module_graph  # noqa: PLC0415

    what = f"argument of {path}:{factory}" if factory else f"argument of {path}"
    typed = arguments(options, what) if options else {}
    for key in typed.keys() - {"input", "unknown"}:
        raise UnknownNameError(what, key, ("input", "unknown"))
    if typed.get("unknown", "allowed") != "allowed":
        raise ParameterError(f"{what}: unknown", "allowed, or left out", typed["unknown"])
    sizes = typed.get("input", "")
    graph = module_graph(path, factory, sizes) if factory else onnx_graph(path, sizes)
    return network_of_graph(graph, path, allow_unknown="unknown" in typed)


def _network_file(path: str) -> Network:
    network = NETWORK.read(path)
    if network.dataset == STANDARD_INPUT:
        raise InputFileError(place_of(path), "data set must be a name or a file, got '-'", "dataset")
    try:
        if network.dataset is not None:
            find_dataset(network.dataset)
    except UsageError as error:
        raise InputFileError(place_of(path), str(error), "dataset") from None
    family = family_of(network.name)
    if family in names("networks"):
        rest = network.name[len(family) + 1 :]
        try:
            bundled = build(family, arguments(rest, f"argument of network {family}") if rest else {})
        except UsageError:  # what stands there are no arguments
            bundled = build(family, {})
        _check_own(network, bundled, "network", path)
    return network


def find_dataset(text: str) -> Dataset:
    """Return the data set of a name, of a TOML file, or of ``samples=N,bytes_per_sample=B``."""
    if "=" in text and not is_path(text, ".toml"):
        return typed_dataset(text)
    path = _file_of(text, "datasets")
    dataset = DATASET.read(path)
    if path is text and dataset.name in names("datasets"):
        _check_own(dataset, DATASET.read(_bundled_file("datasets", dataset.name)), "data set", text)
    return dataset


@cache
def find_accelerator(name: str) -> Accelerator:
    """Return the bundled accelerator of a name."""
    path = _bundled_file("accelerators", name)
    return ACCELERATOR.build(_index().accelerators[name], str(path))


def known_accelerator(name: str) -> Accelerator | None:
    """Return the bundled accelerator of a name, if there is one."""
    return find_accelerator(name) if name in names("accelerators") else None


def find_cluster(text: str) -> Cluster:
    """Return the cluster of a bundled name, or of a TOML file; refuse one of several node groups."""
    cluster = find_any_cluster(text)
    if isinstance(cluster, MixedCluster):
        raise cluster.refusal(text)
    return cluster


def find_any_cluster(text: str) -> Cluster | MixedCluster:
    """Return the cluster of a bundled name, or of a TOML file; a mixed one where it has several node groups."""
    path = _file_of(text, "clusters")
    cluster = read_cluster(path, partial(_known_device, folder=Path(path).parent))
    if path is text:
        for device in cluster.accelerators if isinstance(cluster, MixedCluster) else (cluster.node.accelerator,):
            if device.name in names("accelerators"):
                _check_own(device, find_accelerator(device.name), "accelerator", text, "accelerator")
        if cluster.name in names("clusters"):
            bundled = read_cluster(_bundled_file("clusters", cluster.name), find_accelerator)
            _check_own(cluster, bundled, "cluster", text)
    return cluster


def _known_device(name: str, folder: Path) -> Accelerator:
    """Return a bundled accelerator, that of a calibration's file, or one that an own calibration measured."""
    if is_path(name, ".json"):
        node = _calibration_file(folder / name).node
        if node is None:
            raise InputFileError(str(folder / name), "node must be recorded to be a device of a cluster, got none")
        return node.accelerator
    if name not in names("accelerators"):
        for one in own_calibrations():
            if one.node is not None and one.accelerator == name:
                return one.node.accelerator
    return find_accelerator(name)


@cache
def bundled_index(calibrations: Path, accelerators: Path) -> BundledIndex:
    """Return the index of two folders, which stands beside the first; one that is missing or out of date is written."""
    path = calibrations.with_name(f"{calibrations.name}.index")
    index = BundledIndex.read(path, calibrations, accelerators)
    if index is None:
        document = made_index(calibrations, accelerators)
        with suppress(OutputError):  # the folder may belong to someone else
            write_file(path, json.dumps(document), force=True)
        index = BundledIndex(document)
    return index


@cache
def read_bundled(path: Path) -> Calibration:
    """Return the calibration of a bundled file, which nobody writes while the program runs."""
    return CALIBRATION.build(json.loads(path.read_bytes()), str(path))


def read_part(path: Path, whole: BundledCalibration, entries: Iterable[EntryPlace]) -> Calibration:
    """Return a bundled calibration with some of its entries; the others are not parsed."""
    content = path.read_bytes()
    keys = json.loads(b"%b[]%b" % (content[: whole.start], content[whole.end :]))
    parts = [json.loads(content[one.start : one.end]) for one in entries]
    return CALIBRATION.build({**keys, "entries": parts}, str(path))


def _index() -> BundledIndex:
    return bundled_index(CALIBRATIONS, BUNDLED / "accelerators")


def _calibration_files() -> dict[str, Path]:
    return {name: CALIBRATIONS / f"{name}.json" for name in _index().calibrations}


def own_calibrations_folder() -> Path:
    """Return the folder of this user's own calibrations; it need not exist."""
    return own_folder() / "calibrations"


def own_calibration_file(name: str, time: datetime) -> Path:
    """Return the path of a new own calibration: time stamp, then name, so that file names sort by age."""
    return own_calibrations_folder() / f"{time:%Y%m%dT%H%M%S}-{name}.json"


def own_files() -> list[Path]:
    """Return the files of the folder, newest first."""
    return sorted(own_calibrations_folder().glob("*.json"), reverse=True)


def own_name(path: Path) -> str:
    """Return the name of an own calibration; of one that cannot be read, what stands behind the time stamp."""
    stem = path.stem.partition("-")[2] or path.stem
    try:
        return str(peek(path).get("name", stem))
    except InputFileError:
        return stem


def peek(path: Path) -> Mapping[str, Any]:
    """Return the keys of a calibration unchecked: enough to see whether it is worth building."""
    return _keys_of(path, path.stat().st_mtime_ns) if path.is_file() else parse_text(read_text(path), str(path), "json")


@cache
def _keys_of(path: Path, _written_ns: int) -> Mapping[str, Any]:
    """Return the keys of a file as it was written at a time: asked for more than once in an answer."""
    return parse_text(read_text(path), str(path), "json")


def find_calibration(text: str) -> Calibration:
    """Return the calibration of a bundled name, of one of the user's own (newest first), or of a JSON file."""
    if is_path(text, ".json"):
        return _calibration_file(text)
    bundled = _calibration_files()
    if text in bundled:
        return read_bundled(bundled[text])
    own = {own_name(path): path for path in reversed(own_files())}
    if text in own:
        return with_present_names(CALIBRATION.read(own[text]))
    if _is_file(text):
        return _calibration_file(text)
    raise UnknownNameError("calibration", text, {*bundled, *own})


def _calibration_file(path: Path | str) -> Calibration:
    calibration = with_present_names(CALIBRATION.read(path))
    bundled = _calibration_files().get(calibration.name)
    if bundled is not None:
        _check_own(calibration, read_bundled(bundled), "calibration", str(path))
    return calibration


def calibrations_for(cluster: Cluster) -> tuple[Calibration, ...]:
    """Return the bundled calibrations of a cluster, of its accelerator, and of any GPU, each group by name."""
    device, every = cluster.node.accelerator, dict(sorted(_index().calibrations.items()))
    of_cluster = [name for name, one in every.items() if one.cluster == cluster.name]
    of_device = [name for name, one in every.items() if one.accelerator == device.name and name not in of_cluster]
    any_gpu = (ANY_ACCELERATOR, "") if device.kind == "gpu" else None
    of_any = [name for name, one in every.items() if (one.accelerator, one.cluster) == any_gpu]
    return tuple(read_bundled(CALIBRATIONS / f"{name}.json") for name in (*of_cluster, *of_device, *of_any))


def sibling_calibrations(
    accelerator: Accelerator, missing: Callable[[str, str, str], bool]
) -> tuple[tuple[Accelerator, Calibration], ...]:
    """Return the bundled calibrations, with their devices, of other devices of the same chip, by name.

    Only those that hold a kernel (kind, direction, precision) that is ``missing``, measured or published.
    """
    found = {}
    for name, one in _of_others(accelerator).items():
        if any(missing(*place.kernel) for place in one.entries if place.scope == "kernels"):
            device = find_accelerator(one.accelerator)
            if relation(device, accelerator) == "chip":
                found[name] = device
    return tuple((device, read_bundled(CALIBRATIONS / f"{name}.json")) for name, device in found.items())


def nearest_calibrations(
    accelerator: Accelerator,
    missing: Callable[[str, str, str], bool],
    distance: Callable[[Accelerator, str, str], tuple[float, ...] | None],
) -> tuple[tuple[Accelerator, Calibration], ...]:
    """Return the bundled calibrations, with their devices, whose fit of a missing kernel is that of the nearest device.

    ``distance``: of a device, for a kind of kernel in a precision; None: it does not serve. Of equally near ones the
    first by name is nearest. Of each calibration the fits of missing kernels alone are read.
    """
    places: dict[str, list[EntryPlace]] = {}
    nearest: dict[tuple[str, str, str], tuple[tuple[float, ...], str]] = {}
    for name, one in _of_others(accelerator).items():
        for place in one.entries:
            if place.scope != "kernels" or place.term == LOOKED_UP or not missing(*place.kernel):
                continue
            places.setdefault(name, []).append(place)
            if place.origin in ("specified", "reconstructed"):
                continue
            apart = distance(find_accelerator(one.accelerator), place.kind, place.precision)
            if apart is not None and (place.kernel not in nearest or apart < nearest[place.kernel][0]):
                nearest[place.kernel] = (apart, name)
    every = _index().calibrations
    return tuple(
        (find_accelerator(every[name].accelerator), read_part(CALIBRATIONS / f"{name}.json", every[name], places[name]))
        for name in every
        if name in {of for _, of in nearest.values()}
    )


def _of_others(accelerator: Accelerator) -> Mapping[str, BundledCalibration]:
    """Return the bundled calibrations of other known devices, by name, that were measured or published."""
    others = {*names("accelerators")} - {accelerator.name}
    return {
        name: one
        for name, one in _index().calibrations.items()
        if one.accelerator in others and one.origin not in ("specified", "reconstructed")
    }


@cache
def transfer_scores() -> Transfers:
    """Return how well kernel times of one GPU told those of another."""
    return TRANSFER.read(BUNDLED / "transfer.json")


def newest_own_calibrations(
    present: Collection[str],
    report: Callable[[InputFileError], None] = lambda _: None,
    find: Callable[[str], Calibration] = find_calibration,
) -> tuple[Calibration, ...]:
    """Return the newest own calibration of one of the accelerators ``present``, and what it lacks from older ones.

    These are the newest of the same device with kernels, where it holds links alone, and with links. A file that cannot
    be used is passed over: nobody asked for it by name. ``find`` reads it, ``report`` is told what is wrong with it.
    """
    newest: list[Calibration] = []
    lacked = {"kernels", "collectives"}
    for path in own_files():
        try:
            keys = peek(path)
            scopes = {one.get("scope") for one in keys.get("entries", ()) if isinstance(one, Mapping)}
            of_device = newest[0].accelerator if newest else ""
            if keys.get("accelerator") in ((of_device,) if newest else present) and (lacked & scopes or not newest):
                newest.append(find(str(path)))
                lacked -= scopes
        except InputFileError as error:
            report(error)
    return tuple(newest)


def own_calibrations(report: Callable[[InputFileError], None] = lambda _: None) -> tuple[Calibration, ...]:
    """Return the user's own calibrations that ``find_calibration`` finds by name, newest first.

    ``report`` is told what is wrong with a file that cannot be used.
    """
    by_name: dict[str, Calibration] = {}
    bundled = _calibration_files()
    for path in own_files():
        try:
            one = with_present_names(CALIBRATION.read(path))
        except InputFileError as error:
            report(error)
            continue
        if one.name not in bundled:
            by_name.setdefault(one.name, one)
    return tuple(by_name.values())


def read_settings(start: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the first ``planner.toml`` from a folder upward, with its values, or None where there is none.

    Files that it names are found from its own folder. InputFileError where it is wrong, belongs to somebody else, or
    can be written by everybody: it may be in a shared folder.
    """
    folder = start.resolve()
    paths = (parent / SETTINGS_FILE for parent in (folder, *folder.parents))
    path = next((path for path in paths if path.exists() and not path.is_dir()), None)  # a pipe is refused by name
    if path is None:
        return None
    _check_owned(path)
    values = SETTINGS.read(path)
    return path, {key: _from_folder(path.parent, value, key) for key, value in values.items()}


def _check_owned(path: Path) -> None:
    """Refuse a file, or a link to one, that is neither this user's nor root's, or that everybody may write."""
    if not hasattr(os, "geteuid"):
        return
    link, target = path.lstat(), path.stat()
    for status in (link, target):
        if status.st_uid not in (0, os.geteuid()):
            remedy = "copy it, or give the options on the command line from another folder"
            raise InputFileError(str(path), f"file must belong to you, got one of user {status.st_uid}; {remedy}")
    if target.st_mode & stat.S_IWOTH:
        raise InputFileError(str(path), "file must not be writable by everybody, got one that is; run chmod o-w on it")


def _from_folder(folder: Path, value: Any, key: str) -> Any:
    if isinstance(value, list):
        return [_from_folder(folder, one, key) for one in value]
    if key not in FILE_KEYS or not isinstance(value, str) or "=" in value:
        return value
    is_file = is_path(value, FILE_KEYS[key]) or (value not in names(f"{key}s") and _is_file(folder / value))
    return str(folder / value) if is_file else value


def default_request() -> Mapping[str, Any]:
    """Return the values of the bundled default request by option name."""
    return REQUEST.read(BUNDLED / "requests" / "default.toml")


def arguments(text: str, what: str) -> dict[str, str]:
    """Return the values of ``key=value,...`` by key; ``what`` names the option in errors."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (equals and key and value):
            raise ParameterError(what, "key=value", part)
        if key in values:
            raise ParameterError(what, "given once", key)
        values[key] = value
    return values


def typed_dataset(text: str) -> Dataset:
    """Return the data set of ``samples=N,bytes_per_sample=B``, with ``encoding=jpeg`` where images are decoded."""
    values = arguments(text, "--dataset")
    rule = "samples=N,bytes_per_sample=B with numbers above 0"
    keys = ("samples", "bytes_per_sample")
    encoding = values.pop("encoding", "")
    if encoding not in ("", JPEG):
        raise ParameterError("encoding of --dataset", f"{JPEG}, or left out", encoding)
    for key in values:
        if key not in keys:
            raise UnknownNameError("key of --dataset", key, (*keys, "encoding"))
    missing = [key for key in keys if key not in values]
    if missing:
        raise ParameterError("--dataset", rule, text, f"{missing[0]} is missing")
    try:
        samples, size = int(values["samples"]), float(values["bytes_per_sample"])
    except ValueError:
        raise ParameterError("--dataset", rule, text) from None
    least, most = BOUNDS["sample"]
    if not least <= size <= most:
        raise ParameterError("--dataset", f"of {least:g} to {most:g} bytes_per_sample", text)
    return Dataset(text, samples, size, "as given", encoding)


SUFFIX = "-mine"
BESIDE_FIELDS = ("name", "source", "sources", "notes", "date", "unmodelled")
"""Fields of records that say what something is called and where it comes from."""


def _check_own(own: Any, bundled: Any, what: str, path: Path | str, where: str = "name") -> None:
    """Refuse the record of a file that has a bundled name but differs; the key ``where`` is to get a free name."""
    if _described(own) != _described(bundled):
        rule = f"value must be a name of your own, as this {what} differs from the bundled one of that name"
        free = own.name[: LONGEST_NAME - len(SUFFIX)] + SUFFIX
        raise InputFileError(place_of(path), f"{rule}, got {own.name!r}; call it {free!r}, say", where)


def _described(record: Any) -> Any:
    """Return the fields of a record, and of records in it, without its name and where it comes from."""
    if not is_dataclass(record):
        return record
    return [_described(getattr(record, one.name)) for one in fields(record) if one.name not in BESIDE_FIELDS]
