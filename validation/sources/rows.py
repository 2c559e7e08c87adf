"""What the converters share: cells of published tables in, runs or reasons out."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.domain.runs import MEMORY_METRIC, Run

__all__ = [
    "Cells",
    "Converted",
    "Dropped",
    "Source",
    "digits",
    "grouped",
    "llama",
    "memory_run",
    "name_of",
    "settled",
]

Cells = Mapping[str, str]
"""One row of a published table."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A published row that is left out, and why."""

    reason: str


Converted = Iterator[Run | Dropped]


@dataclass(frozen=True, slots=True)
class Source:
    """A file of runs and how it is made.

    Attributes
    ----------
    name : str
        Of the file, without suffix.
    tables : mapping of str to str
        Published tables, by file name -> where to get them.
    convert : callable
        Rows of the tables, in order, -> runs and rows left out.
    finish : callable
        Runs -> runs: repeated settings settled, plans that compete grouped.
    """

    name: str
    tables: Mapping[str, str]
    convert: Callable[[Sequence[Cells]], Converted]
    finish: Callable[[Sequence[Run]], Sequence[Run]] = list


def digits(value: float) -> float:
    """Return a value at seven digits, more than any of the sources measures."""
    return float(f"{value:.7g}")


def name_of(*parts: object) -> str:
    """Return an id: parts joined by hyphens, in small letters."""
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(str(part) for part in parts if part != "").lower()).strip("-")


def llama(sizes: tuple[int, int, int, int, int], sequence: int, vocabulary: int) -> str:
    """Return the name of a network of the LLaMA family; sizes: layers, hidden, heads, kv_heads, ffn."""
    names = ("layers", "hidden", "heads", "kv_heads", "ffn")
    values = ",".join(f"{name}={value}" for name, value in zip(names, sizes, strict=True))
    return f"llama:{values},sequence={sequence},vocabulary={vocabulary}"


def memory_run(run: Run, read_bytes: float, reading: str) -> Run:
    """Return the row of the memory that was read of a run; ``reading``: of the device, an allocator or tensors."""
    return replace(
        run, id=f"{run.id}-memory", metric=MEMORY_METRIC, value=float(round(read_bytes)), group="", notes=reading
    )


def settled(
    runs: Iterable[Run], choose: Callable[[Sequence[float]], float] = statistics.median, word: str = "median"
) -> list[Run]:
    """Return one run for each setting: where one was measured again, the median or another choice of its values."""
    settings: dict[Run, list[Run]] = {}
    for run in runs:
        settings.setdefault(replace(run, id="x", value=None, notes=""), []).append(run)
    return [_one(again, choose, word) for again in settings.values()]


def _one(again: Sequence[Run], choose: Callable[[Sequence[float]], float], word: str) -> Run:
    values = [run.value for run in again if run.value is not None]
    if len(values) < 2:
        return again[0]
    notes = f"{again[0].notes}; {word} of {len(values)} measurements from {min(values):g} to {max(values):g}"
    return replace(again[0], value=digits(choose(values)), notes=notes.removeprefix("; "))


def grouped(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with those in one group that differ in nothing but how equal GPUs are used."""
    keys = [_contest(run) for run in runs]
    times = [run.metric != MEMORY_METRIC for run in runs]
    rivals = Counter(key for run, key, is_time in zip(runs, keys, times, strict=True) if is_time and run.status == "ok")
    return [
        replace(run, group=key if is_time and rivals[key] > 1 else "")
        for run, key, is_time in zip(runs, keys, times, strict=True)
    ]


def _contest(run: Run) -> str:
    network = re.sub(r"([a-z])[a-z]*=", r"\1", run.network)
    machine = run.cluster.rpartition("/")[2].removesuffix(".toml")
    work = (f"{run.gpus}gpu", f"b{run.mini_batch}")
    return name_of(network, machine, run.precision, run.framework, run.framework_version, *work)
