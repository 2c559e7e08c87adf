"""Configurations side by side, one a row; long names of frameworks as letters, with a line of what these mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from planner.domain.axes import AXES, Axis
from planner.domain.configuration import Configuration
from planner.domain.framework import framework_parts, label_of
from planner.domain.prediction import Prediction
from planner.domain.request import Subject
from planner.domain.suggestion import Plan
from planner.report import parts
from planner.report.blocks import Block, Line, Table, width_of
from planner.report.printing import LINE_WIDTH
from planner.units import format_duration, format_number

__all__ = ["BEYOND_NOTE", "Entry", "entries_of", "has_letters", "key_of", "letters_of", "plan_table"]

BEYOND_NOTE = "* outside what was measured"
FACTOR_HEADING = "factor\n(90 %)"
EFFICIENCY_HEADING = "effi-\nciency"
DROPPED_COLUMNS = (
    FACTOR_HEADING,
    "memory\nGiB",
    "plan 1\nbetter",
    EFFICIENCY_HEADING,
    "samples\n/s/{device}",
    "stale-\nness",
    "{device}-\nhours",
)
"""Columns that go where a line holds no more, the first one first; what tells plans apart stays."""
_LONGEST_NAME = 22
"""Signs of a framework's name that is never too long: none without switches has more."""
_OF_GROUPS = ("sub_batch", "accumulation_steps")
"""Axes whose values node groups have of their own."""
WORD_COLUMNS = ("network", "scenario", "framework", "group", *(axis.heading for axis in AXES if axis.words), "")
"""Columns of words."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: a prediction, its number and subject, and what a ranking knows of it."""

    number: int
    prediction: Prediction
    subject: Subject
    precisions: tuple[str, ...] = ()
    first_is_better: float | None = None
    efficiency: float | None = None
    objective: float | None = None


def entries_of(plans: Iterable[Plan], subject: Subject) -> list[Entry]:
    """Return a row a plan."""
    return [
        Entry(
            one.position,
            one.prediction,
            one.subject(subject),
            one.precisions,
            one.first_is_better,
            one.efficiency,
            one.objective,
        )
        for one in plans
    ]


def plan_table(entries: Sequence[Entry], chosen: int | None = None, note: str = "") -> Iterator[Block]:
    """Yield a table of plans on one kind of device, that of number ``chosen`` marked, what its marks mean and a note.

    The note is on efficiencies, and is left out where no column has them.

    A column that tells nothing is left out: one of empty cells, the mode, network or scenario where there is one, the
    mini-batch where all have the same. Where one has no data set samples/s stand for the epoch time.
    """
    columns = {name: cells for name, cells in _columns(entries).items() if any(cells)}
    letters = _letters(columns)
    if letters:
        columns["framework"] = [letters[one] for one in columns["framework"]]
        columns.pop(EFFICIENCY_HEADING, None)  # what it is relative to takes lines too
    right = [name for name in columns if name not in WORD_COLUMNS]
    strong = [at for at, one in enumerate(entries) if one.number == chosen]
    device = entries[0].subject.device
    less_needed = [name.format(device=device) for name in DROPPED_COLUMNS]
    table = Table(
        list(columns), list(zip(*columns.values(), strict=True)), right, 1, strong, fixed=True, dropped=less_needed
    )
    yield table
    if letters:
        yield Line(key_of(letters))
    meanings = [
        meaning.format(device=device)
        for mark, meaning in MEANINGS.items()
        if any(MARKS[mark](one.prediction) for one in entries)
    ]
    told = note if EFFICIENCY_HEADING in table.within(LINE_WIDTH).columns else ""
    words = "; ".join(filter(None, (*meanings, told)))
    if words:
        yield Line(words)


def has_letters(entries: Sequence[Entry]) -> bool:
    """Tell whether the table of plans calls frameworks by letters, which takes lines for what they stand for."""
    return bool(_letters({name: cells for name, cells in _columns(entries).items() if any(cells)}))


def _letters(columns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return letters for the frameworks of plans where a line does not hold their names; none where it does."""
    labels = columns.get("framework", ())
    is_short = max(map(len, labels), default=0) <= _LONGEST_NAME
    return {} if is_short or width_of(columns, 1) <= LINE_WIDTH else letters_of(labels)


def _columns(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Return the cells of each column; a column that has nothing to say has empty ones."""
    predictions = [one.prediction for one in entries]
    subjects = [one.subject for one in entries]
    configurations = [one.configuration for one in predictions]
    device = subjects[0].device
    stale = any(one.staleness.mean for one in predictions)
    return {
        "#": [str(one.number) for one in entries],
        "network": _where_they_differ([one.network for one in subjects]),
        "scenario": _where_they_differ([one.scenario or "none" for one in subjects]),
        "framework": _where_they_differ([one.settings.framework.label for one in subjects]),
        "group": [" + ".join(part.name for part in one.groups) for one in configurations],
        f"nodes\nx {device}s": [_places(one) for one in configurations],
        **{axis.heading: _cells(axis, entries) for axis in AXES if axis.heading},
        "mini-\nbatch": _mini_batches(predictions),
        "stale-\nness": [format_number(one.staleness.mean) if stale else "" for one in predictions],
        "objec-\ntive": ["" if one.objective is None else format_number(one.objective, 4) for one in entries],
        **_speeds(predictions),
        FACTOR_HEADING: [_factor(one) for one in predictions],
        "plan 1\nbetter": ["" if one.first_is_better is None else _chance(one.first_is_better) for one in entries],
        f"samples\n/s/{device}": [_each(one) for one in predictions],
        EFFICIENCY_HEADING: ["" if one.efficiency is None else f"{one.efficiency:.0%}" for one in entries],
        f"{device}-\nhours": [_device_hours(one) for one in predictions],
        "USD per\nepoch": [_usd(one) for one in entries],
        "memory\nGiB": [format_number(one.memory_bytes["total"] / 2**30, 3) for one in predictions],
        "": ["".join(mark for mark, holds in MARKS.items() if holds(one)) for one in predictions],
    }


def _places(one: Configuration) -> str:
    """Return nodes x devices, of every node group."""
    places = [(part.nodes, part.gpus_per_node) for part in one.groups] or [(one.nodes, one.gpus_per_node)]
    return " + ".join(f"{nodes} x {gpus}" for nodes, gpus in places)


def _cells(axis: Axis, entries: Sequence[Entry]) -> list[str]:
    """Return the cells of an axis, empty where all plans have its default, or one mode."""
    if axis.name == "precision":
        return [" / ".join(one.precisions or (one.prediction.configuration.precision,)) for one in entries]
    if axis.name in _OF_GROUPS:
        cells = [parts.by_group(one.prediction.configuration, axis.name) for one in entries]
    else:
        cells = [str(getattr(one.prediction.configuration, axis.name)) for one in entries]
    if axis.name == "mode":
        return _where_they_differ(cells)
    return [""] * len(cells) if set(cells) == {str(axis.default)} else cells


def _where_they_differ(cells: list[str]) -> list[str]:
    return cells if len(set(cells)) > 1 else [""] * len(cells)


def _mini_batches(predictions: Sequence[Prediction]) -> list[str]:
    words = [parts.mini_batch(one.mini_batch) for one in predictions]
    return words if any(one.mini_batch.std for one in predictions) else _where_they_differ(words)


def _speeds(predictions: Sequence[Prediction]) -> dict[str, list[str]]:
    """Return the column of epoch times, or of samples/s where one has no data set."""
    epochs = [one.epoch_s for one in predictions if one.epoch_s]
    if len(epochs) == len(predictions):
        return {"epoch": [format_duration(one.value, parts.digits_of(one)) for one in epochs]}
    speeds = [one.samples_per_s for one in predictions]
    return {"samples/s": [format_number(one.value, parts.digits_of(one)) for one in speeds]}


def _chance(probability: float) -> str:
    """Return a probability; nothing is sure enough to be printed as 0 or 100 %."""
    return ">99%" if probability >= 0.995 else "<1%" if probability < 0.005 else f"{probability:.0%}"


def _each(one: Prediction) -> str:
    return format_number(one.samples_per_s.value / one.configuration.gpus, parts.digits_of(one.samples_per_s))


def _device_hours(one: Prediction) -> str:
    if one.epoch_s is None:
        return ""
    return format_number(one.epoch_s.value * one.configuration.gpus / 3600, parts.digits_of(one.epoch_s))


def _usd(one: Entry) -> str:
    cost = one.prediction.epoch_usd(one.subject.usd_per_gpu_hour)
    return "" if cost is None else format_number(cost.value, parts.digits_of(cost))


def _factor(one: Prediction) -> str:
    factor = parts.factor(one.iteration_s)
    return "" if factor is None else format_number(factor)


def _out_of_memory(one: Prediction) -> bool:
    return one.memory_bytes["total"] > one.memory_bytes.get("capacity", float("inf"))


def _extrapolates(one: Prediction) -> bool:
    return any(term.extrapolated for term in one.terms)


MARKS: Mapping[str, Callable[[Prediction], bool]] = {"*": _extrapolates, "!": _out_of_memory}
"""Mark of a row -> what it says of a prediction."""
MEANINGS = {"*": BEYOND_NOTE, "!": "! more memory than one {device} has"}


def letters_of(labels: Sequence[str]) -> dict[str, str]:
    """Return a letter for each label, in their order.

    >>> letters_of(["pytorch", "pytorch:compile", "pytorch"])
    {'pytorch': 'A', 'pytorch:compile': 'B'}
    """
    n = len(ascii_uppercase)
    each = enumerate(dict.fromkeys(labels))
    return {label: ascii_uppercase[at % n] * (at // n + 1) for at, label in each}


def key_of(letters: Mapping[str, str]) -> str:
    """Return what letters stand for; switches that all sets of one framework have are said once.

    >>> key_of(letters_of(["mxnet:graphs", "mxnet:graphs+horovod"]))
    'Framework mxnet:graphs with A: no other switch; B: horovod'
    >>> key_of(letters_of(["mxnet", "pytorch:compile"]))
    'Framework A: mxnet; B: pytorch:compile'
    """
    names = {label: framework_parts(label) for label in letters}
    if len({(name, version) for name, version, _ in names.values()}) > 1:
        return f"Framework {'; '.join(f'{letter}: {label}' for label, letter in letters.items())}"
    (name, version, first), *others = names.values()
    shared = tuple(one for one in first if all(one in switches for _, _, switches in others))
    words = {label: "+".join(one for one in parts[2] if one not in shared) for label, parts in names.items()}
    told = "; ".join(f"{letter}: {words[label] or 'no other switch'}" for label, letter in letters.items())
    if not shared:
        told = told.replace("no other switch", "no switch")
    return f"Framework {label_of(name, version, shared)} with {told}"
