"""Numbers have two bounds: any number of any file, at any value, is answered in finite figures or refused by name."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import find_network
from planner.domain.samples import NUMBER_COLUMNS
from planner.formats.calibration import CALIBRATION
from planner.formats.cluster import CLUSTER
from planner.formats.documents import Kind, dump_toml, parse_text
from planner.formats.fields import Flag, ListOf, MapOf, Name, Nullable, Number, OneOf, Table, Text, Type, Whole
from planner.formats.framework import FRAMEWORK
from planner.formats.network import DATASET, NETWORK
from planner.formats.parts import SETTINGS
from planner.formats.prediction import PREDICTION, PREDICTIONS
from planner.formats.runs import WHOLE_COLUMNS
from planner.formats.samples import COLUMNS
from planner.formats.suggestion import SUGGESTION

Run = Callable[..., tuple[int, str, str]]
Place = tuple[str | int, ...]
Case = tuple[str, Place, str]
"""Name of a file, place in it, and what stands there."""
ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "tests" / "data" / "formats"
HOLES = ("dropped", "null", "empty", "twice")
FEW, MANY = 2, 300
"""Runs of each file: of a short test, and with --hypothesis-profile=long."""


def example(kind: Type) -> Any:
    """Return a small value that a type reads."""
    match kind:
        case Nullable():
            return example(kind.type)
        case OneOf():
            return example(kind.types[0])
        case ListOf():
            return [example(kind.item)] * max(kind.least, 1)
        case MapOf():
            return {key: example(kind.item) for key in kind.choices[:1] or ("0" if "0" in kind.pattern else "x",)}
        case Table():
            return {one.name: example(one.type) for one in kind.fields if one.default is not None and one.name}
        case Name():
            return "x"
        case Text():
            return next(iter(kind.choices), "x")
        case Flag():
            return True
        case Whole():
            return max(kind.least, 1)
    return 1.0


def numbers(kind: Type, value: Any, place: Place = ()) -> Iterator[tuple[Place, Type]]:
    """Yield where the numbers of a type are, lists and maps by what they hold already."""
    match kind:
        case Number() | Whole():
            yield place, kind
        case Nullable():
            yield from numbers(kind.type, value, place)
        case OneOf():
            for one in kind.types:
                if value is None or isinstance(one, Number | Whole) or fits(one, value):
                    found = list(numbers(one, value, place))
                    yield from found
                    if found:
                        return
        case ListOf():
            for at, item in enumerate(value if isinstance(value, list) and value else [None]):
                yield from numbers(kind.item, item, (*place, at))
        case MapOf():
            known = list(value) if isinstance(value, Mapping) and value else list(example(kind))
            for key in dict.fromkeys((*known, *kind.choices)):
                yield from numbers(kind.item, value.get(key) if value else None, (*place, key))
        case Table():
            for field in kind.fields:
                inner = value.get(field.name) if isinstance(value, Mapping) else None
                yield from numbers(field.type, inner, (*place, field.name))


def fits(kind: Type, value: Any) -> bool:
    """Return whether a type reads a value."""
    try:
        kind.read(value, "")
    except Exception:  # noqa: BLE001 - whatever is wrong
        return False
    return True


def changed(kind: Type, document: Any, place: Place, value: Any) -> Any:
    """Return a document with a value at a place; tables and lists on the way are made where there are none."""
    if not place:
        return value
    kind = kind.type if isinstance(kind, Nullable) else kind
    if isinstance(kind, OneOf):
        kind = next(
            (
                one
                for one in kind.types
                if isinstance(one, Table | MapOf | ListOf) and (document is None or fits(one, document))
            ),
            next((one for one in kind.types if isinstance(one, Table | MapOf | ListOf)), kind),
        )
    document = example(kind) if document is None else document
    key = place[0]
    if isinstance(kind, ListOf):
        inner = kind.item
        rest = list(document) or [example(inner)]
        rest[int(key)] = changed(inner, rest[int(key)], place[1:], value)
        return rest
    assert isinstance(kind, MapOf | Table)
    inner = kind.item if isinstance(kind, MapOf) else next(one.type for one in kind.fields if one.name == key)
    return {**document, key: changed(inner, document.get(key), place[1:], value)}


def values_of(kind: Type) -> dict[str, Any]:
    """Return the eleven values by name."""
    assert isinstance(kind, Whole | Number)
    least, most = (kind.least, kind.most) if isinstance(kind, Whole) else (kind.scale.least or 1e-9, kind.scale.most)
    lawful = {"smallest": least, "largest": most}
    return {
        "zero": 0, "denormal": 5e-324, "tiny": 1e-300, **lawful, "huge": 1e300, "infinite": math.inf, "nan": math.nan,
        "negative": -1, "text": "1", "true": True, "list": [1],
    }  # fmt: skip


PLAN = ("--nodes", "2", "--sub-batch", "8", "--json")
ON_GROUPS = ("--group", "big:nodes=1,sub-batch=8", "--group", "small:nodes=1,sub-batch=4", "--json")
LINK = {"kind": "nvlink", "bandwidth_GBps": 300.0, "latency_us": 3.0}
DEVICE = {
    "name": "made-up",
    "memory_GiB": 80.0,
    "memory_bandwidth_GBps": 2000.0,
    "peak_TFLOPps": {"fp32": 19.5, "fp16": 312.0, "bf16": 312.0},
    "multiprocessors": 108,
}
NODE = {"gpus": 4, "gpu": "made-up", "host_memory_GiB": 512.0, "cpu_threads": 64}
BETWEEN = LINK | {"kind": "infiniband", "nics_per_node": 2, "flow_GBps": 10.0, "pair_GBps": 40.0}
CLUSTER_KEYS = {
    "format": "planner/cluster",
    "version": 1,
    "name": "made-up",
    "nodes": 4,
    "accelerator": DEVICE,
    "node": NODE,
    "links": {"intra_node": LINK, "inter_node": BETWEEN, "host": LINK},
    "storage": {"read_GBps": 2.0, "shared": True, "cache_GiB": 256.0},
    "price": {"usd_per_gpu_hour": 2.0},
}
"""A cluster of which every number is given."""


def kept(path: str) -> dict[str, Any]:
    """Return a kept file as keys."""
    text = (ASSETS / path).read_text()
    return parse_text(text, path, Path(path).suffix[1:])


def without(keys: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a document without some of its keys."""
    return {key: value for key, value in keys.items() if key not in names}


GPT = "gpt:layers=2,hidden=64,heads=4,sequence=32,vocabulary=100"
GROUPS_KEYS = without(CLUSTER_KEYS, "nodes", "node") | {
    "node_groups": [
        {"name": "big", "count": 2, **NODE, "links": {"intra_node": LINK}},
        {"name": "small", "count": 2, **NODE},
    ]
}
BUCKETS = {"strategies": {"bucketed": {"bucket_MiB": 25.0, "first_bucket_MiB": 1.0, "cycle_ms": 1.0}}}
FRAMEWORK_KEYS = (
    kept("framework/v1/example.toml") | BUCKETS | {"switches": {"fast": BUCKETS}, "versions": {"1": BUCKETS}}
)
OPTION_KEYS = kept("settings/v1/example.toml") | {"mode": "sync", "network": "alexnet", "cluster": "dgx-a100"}
SAMPLE_NUMBERS = tuple(one for one in COLUMNS if one in (*NUMBER_COLUMNS, "stride", "padding", "passes"))


def network_keys(name: str) -> dict[str, Any]:
    """Return the document of a network of the zoo."""
    return dict(NETWORK.document(find_network(name))) | {"name": "own"}


def calibration_keys(path: str) -> dict[str, Any]:
    """Return a calibration under a name of its own."""
    return parse_text((ROOT / path).read_text(), path, "json") | {"name": "own-one"}


def predicted(*arguments: str) -> tuple[str, ...]:
    """Return a prediction of a plan of two nodes."""
    return ("predict", *arguments, *PLAN)


def searched(*arguments: str) -> tuple[str, ...]:
    """Return a search."""
    return ("suggest", *arguments, "--target-batch", "64", "--json")


ON_DGX, ON_P100 = ("--cluster", "dgx-a100"), ("--cluster", "dgx1-p100")
SMALL_DATA = ("--dataset", "samples=1000,bytes_per_sample=100")
EXPLAINED = ("explain", "{file}")
RUNS = str(ASSETS / "runs/v1/example.csv")
INPUTS = "tests/data/golden/inputs"
SPRINT = ("--network", "sprint-15", "--cluster", "tsubame-kfc", "--mode", "async", "--nodes", "2", "--sub-batch", "8")
FILES: dict[str, tuple[Kind[Any], dict[str, Any], tuple[str, ...]]] = {
    "cluster": (CLUSTER, CLUSTER_KEYS, predicted("--network", "alexnet", "--cluster", "{file}")),
    "cluster of a transformer": (
        CLUSTER,
        CLUSTER_KEYS,
        predicted("--network", GPT, "--cluster", "{file}", "--tensor", "2", *SMALL_DATA),
    ),
    "cluster to search": (CLUSTER, CLUSTER_KEYS, searched("--network", "alexnet", "--cluster", "{file}")),
    "cluster of groups": (CLUSTER, GROUPS_KEYS, ("predict", "--network", "alexnet", "--cluster", "{file}", *ON_GROUPS)),
    "dataset": (
        DATASET,
        kept("dataset/v1/example.toml"),
        predicted("--network", "alexnet", "--dataset", "{file}", *ON_DGX),
    ),
    "framework": (
        FRAMEWORK,
        FRAMEWORK_KEYS,
        predicted("--network", GPT, *ON_DGX, "--framework", "{file}:fast", "--strategy", "bucketed"),
    ),
    "network": (NETWORK, kept("network/v1/example.toml"), predicted("--network", "{file}", *ON_DGX)),
    "network to search": (NETWORK, kept("network/v1/example.toml"), searched("--network", "{file}", *ON_DGX)),
    "transformer": (NETWORK, network_keys(GPT), predicted("--network", "{file}", *ON_DGX, "--tensor", "2")),
    "transformer to search": (NETWORK, network_keys(GPT), searched("--network", "{file}", *ON_DGX)),
    "network to show": (NETWORK, network_keys(GPT), ("show", "networks", "{file}", "--json")),
    **{
        f"calibration {name}": (
            CALIBRATION,
            calibration_keys(path),
            ("predict", "--calibration", "{file}", "--json", *command),
        )
        for name, path, command in (
            ("of a CPU", f"{INPUTS}/made-up-cpu.json", ("--network", "alexnet", "--sub-batch", "8")),
            ("of plans", f"{INPUTS}/plan-points-v100-16gb.json", ("--network", "alexnet", "--sub-batch", "8")),
            ("of links", "calibrations/node-links.json", ("--network", "alexnet", "--sub-batch", "8", *ON_P100)),
            ("of SPRINT", "calibrations/tsubame-kfc.json", SPRINT),
        )
    },
    "settings": (SETTINGS, OPTION_KEYS, ("suggest", "--target-batch", "64", "--json")),
    "suggestion": (SUGGESTION, kept("suggestion/v1/resnet50.json"), EXPLAINED),
    "suggestion, asynchronous": (SUGGESTION, kept("suggestion/v1/asynchronous.json"), EXPLAINED),
    "suggestion of nothing": (SUGGESTION, kept("suggestion/v1/none.json"), EXPLAINED),
    "suggestion, runs of it": (SUGGESTION, kept("suggestion/v1/resnet50.json"), (*EXPLAINED, "--part", "runs")),
    "suggestion to measure": (
        SUGGESTION,
        kept("suggestion/v1/resnet50.json"),
        ("calibrate", "--plan", "{file}", "--runs", RUNS, "--out", "x.json", "--force"),
    ),
    "prediction": (PREDICTION, kept("prediction/v1/asynchronous.json"), EXPLAINED),
    "predictions": (PREDICTIONS, kept("predictions/v1/several.json"), EXPLAINED),
}
"""Kind of file, a lawful one, and a command that reads it."""
FIT = ("calibrate", "--samples", "{folder}", "--out", "x.json", "--force")
TABLES: dict[str, tuple[Path, tuple[str, ...], tuple[str, ...]]] = {
    "samples": (ASSETS / "samples/v1/example.csv", SAMPLE_NUMBERS, FIT),
    "runs": (Path(RUNS), (*WHOLE_COLUMNS, "value"), ("validate", "--runs", "{file}", "--json")),
    "runs to predict": (Path(RUNS), (*WHOLE_COLUMNS, "value"), ("predict", "--runs", "{file}", "--json")),
}
"""Table, its columns of numbers, and a command that reads it."""
CELLS = {
    "zero": "0", "denormal": "5e-324", "tiny": "1e-300", "smallest": "1", "largest": "1000000000", "huge": "1e300",
    "infinite": "inf", "nan": "nan", "negative": "-1", "text": "x", "true": "true", "list": "1,2",
}  # fmt: skip


def cases() -> Iterator[tuple[str, Place, str]]:
    """Yield every number of every file, and of every row of every table, at every value."""
    for name, (kind, keys, _) in FILES.items():
        for place, number in dict(numbers(kind.table, without(keys, "format", "version"))).items():
            yield from ((name, place, value) for value in values_of(number))
    for name, (path, columns, _) in TABLES.items():
        lines = path.read_text().splitlines()
        rows = [at for at, line in enumerate(lines) if not line.startswith("#")][1:]
        yield from ((name, (row, column), value) for column in columns for row in rows for value in CELLS)


def table_text(path: Path, place: Place, value: str) -> str:
    """Return the text of a table with a cell in a row and a column."""
    rows = list(csv.reader(path.read_text().replace("imagined", "v100-sxm2-16gb").splitlines()))
    header = next(row for row in rows if not row[0].startswith("#"))
    if place[1] not in header:
        header.append(str(place[1]))
    row = rows[int(place[0])]
    row += [""] * (len(header) - len(row))
    row[header.index(str(place[1]))] = CELLS[value]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def written(name: str, place: Place, value: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the name of a file, its text with a value at a place, and the command that reads it."""
    if name in TABLES:
        path, _, command = TABLES[name]
        return path.name, table_text(path, place, value), command
    kind, keys, command = FILES[name]
    if value in HOLES:
        document = spoilt(keys, place, value)
    else:
        own = without(keys, "format", "version")
        given = values_of(dict(numbers(kind.table, own))[place])[value]
        document = {"format": kind.format, "version": kind.version} | changed(kind.table, own, place, given)
    if kind.syntax == "json":
        return "x.json", json.dumps(document), command
    text = dump_toml(document).replace("null", {"infinite": "inf"}.get(value, "nan"))
    return "planner.toml" if kind is SETTINGS else "x.toml", text, command


def problem_of(run: Run, name: str, place: Place, value: str) -> str:
    """Return what is wrong with how a file with a value at a place is answered; empty: nothing."""
    file, text, command = written(name, place, value)
    folder = Path("files")
    folder.mkdir(exist_ok=True)
    path = Path(file) if file == "planner.toml" else folder / file
    path.write_text(text)
    try:
        code, out, err = run(*(one.format(file=path, folder=folder) for one in command))
    except BaseException as error:  # noqa: BLE001 - whatever is wrong
        return f"{type(error).__name__}: {error}"
    finally:
        path.unlink()
    last = err.strip().splitlines()[-1] if err.strip() else ""
    keys = [str(one) for one in place if isinstance(one, str)]
    if code == 0:
        return unfinished(out, command)
    if code == 3 and not (
        path.name in last and (value in HOLES or any(key in last or key.rpartition("_")[0] in last for key in keys))
    ):
        return f"exit 3 does not name {path} and {keys}: {last}"
    return "" if code in (2, 3, 4, 5) and last else f"exit {code}: {last}"


def unfinished(out: str, command: Sequence[str]) -> str:
    """Return what an answer lacks: a figure that is not finite, or is null."""
    if "--json" not in command:
        words = re.search(r"(?<![\w-])(nan|inf)(?![\w-])", out)
        return f"an answer with {out[max(0, words.start() - 40) : words.end() + 10]!r}" if words else ""
    document = json.loads(out, parse_constant=pytest.fail)
    return next((f"null at {place}" for place, one in figures(document) if one is None), "")


def figures(document: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the figures of a document by place; epochs have none without a data set, as ``value`` is null then."""
    if isinstance(document, dict):
        for key, one in document.items():
            is_figure = key in ("samples_per_s", "seconds", "objective", "factor") or (
                key == "value" and place.endswith(("_s", "_usd", "_per_s"))
            )
            if is_figure and not isinstance(one, dict | list):
                yield f"{place}.{key}", one
            yield from figures(one, f"{place}.{key}")
    elif isinstance(document, list):
        for at, one in enumerate(document):
            yield from figures(one, f"{place}[{at}]")


def holes(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Yield every place of a document with how it is spoilt there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if place:
        yield from ((place, how) for how in ("dropped", "null"))
    if value and isinstance(value, dict | list):
        yield from ((place, how) for how in ("empty", "twice")[: 1 + isinstance(value, list)] if place)
    for key, one in inside:
        yield from holes(one, (*place, key))


def spoilt(value: Any, place: Place, how: str) -> Any:
    """Return a document with a place dropped, null, empty, or with its first item twice."""
    if not place:
        return None if how == "null" else type(value)() if how == "empty" else [value[0], *value]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if how == "dropped" and len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = spoilt(value[place[0]], place[1:], how)
    return copy


def walked(run: Run, every: Iterable[Case], most: int) -> int:
    """Return how many cases were tried, evenly of each file; AssertionError with all problems."""
    by_name: dict[str, list[Case]] = {}
    for one in every:
        by_name.setdefault(one[0], []).append(one)
    taken = [one for own in by_name.values() for one in own[len(own) // 2 % 7 :: max(1, len(own) // most)]]
    problems = {one: problem for one in taken if (problem := problem_of(run, *one))}
    assert not problems, "\n".join(f"{one}: {problem}" for one, problem in problems.items())
    return len(taken)


@pytest.mark.usefixtures("clean_place")
def test_any_number_of_any_file_is_answered_in_finite_figures_or_refused_by_name(run: Run, *, long_run: bool) -> None:
    runs = walked(run, cases(), MANY if long_run else FEW)
    assert not long_run or runs >= 3_000


@pytest.mark.usefixtures("clean_place")
def test_a_file_without_any_of_its_keys_or_items_is_answered_or_refused(run: Run, *, long_run: bool) -> None:
    every = ((name, *one) for name, (_, keys, _) in FILES.items() for one in holes(keys))
    walked(run, every, MANY if long_run else FEW)
