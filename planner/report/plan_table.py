"""Configurations side by side, one a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.domain.prediction import Prediction
from planner.domain.request import Subject
from planner.domain.suggestion import Plan
from planner.report import parts
from planner.report.blocks import Block, Line, Table
from planner.units import format_duration, format_number

__all__ = ["Entry", "entries_of", "plan_table", "speed_words"]

FACTOR = "factor\nof 90 %"
DROPPED = (FACTOR, "memory\nGiB", "GPU-\nhours", "mode", "accu-\nmulate")
"""Columns that go where a line holds no more, the first one first."""
LEFT = ("precision", "mode", "")
"""Columns of words."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: a prediction, its number, and what a ranking knows of it."""

    number: int
    prediction: Prediction
    precisions: tuple[str, ...]
    first_is_better: float | None = None
    efficiency: float | None = None


def entries_of(plans: Sequence[Plan]) -> list[Entry]:
    """Return a row a plan."""
    return [Entry(one.position, one.prediction, one.precisions, one.first_is_better, one.efficiency) for one in plans]


def plan_table(entries: Sequence[Entry], subject: Subject, chosen: int | None = None) -> Iterator[Block]:
    """Yield a table of plans, that of number ``chosen`` marked, and what its marks mean.

    A column that tells nothing is left out: one of empty cells, the mode where there is one, the mini-batch where all
    have the same. Without a data set samples/s stand for the epoch time.
    """
    columns = {name: cells for name, cells in _columns(entries, subject).items() if any(cells)}
    right = [name for name in columns if name not in LEFT]
    strong = [at for at, one in enumerate(entries) if one.number == chosen]
    yield Table(list(columns), list(zip(*columns.values(), strict=True)), right, 1, strong, fixed=True, dropped=DROPPED)
    meanings = [
        f"{mark} {MEANINGS[mark].format(device=subject.device)}"
        for mark, holds in MARKS.items()
        if any(holds(one.prediction) for one in entries)
    ]
    if meanings:
        yield Line("; ".join(meanings))


def _columns(entries: Sequence[Entry], subject: Subject) -> dict[str, list[str]]:
    """Return the cells of each column; a column that has nothing to say has empty ones."""
    shown = [one.prediction for one in entries]
    configurations = [one.configuration for one in shown]
    device = subject.device
    costs = [one.epoch_usd(subject.usd_per_gpu_hour) for one in shown]
    accumulates = any(one.accumulation_steps > 1 for one in configurations)
    return {
        "#": [str(one.number) for one in entries],
        f"nodes\nx {device}s": [f"{one.nodes} x {one.gpus_per_node}" for one in configurations],
        "sub-\nbatch": [str(one.sub_batch) for one in configurations],
        "accu-\nmulate": [str(one.accumulation_steps) if accumulates else "" for one in configurations],
        "precision": [" / ".join(one.precisions) for one in entries],
        "mode": _where_they_differ([one.mode for one in configurations]),
        "mini-\nbatch": _mini_batches(shown),
        "stale-\nness": [f"{one.staleness.mean:.3g}" if any(x.staleness.mean for x in shown) else "" for one in shown],
        "epoch" if all(one.epoch_s for one in shown) else "samples/s": [speed_words(one) for one in shown],
        FACTOR: [_factor(one) for one in shown],
        "plan 1\nbetter": ["" if one.first_is_better is None else _chance(one.first_is_better) for one in entries],
        f"samples/s\na {device}": [_each(one) for one in shown],
        "effi-\nciency": ["" if one.efficiency is None else f"{one.efficiency:.0%}" for one in entries],
        f"{device}-\nhours": [_device_hours(one) for one in shown],
        "USD an\nepoch": [format_number(cost.value, parts.digits_of(cost)) if cost else "" for cost in costs],
        "memory\nGiB": [format_number(one.memory_bytes["total"] / 2**30, 3) for one in shown],
        "": ["".join(mark for mark, holds in MARKS.items() if holds(one)) for one in shown],
    }


def _where_they_differ(cells: list[str]) -> list[str]:
    return cells if len(set(cells)) > 1 else [""] * len(cells)


def _mini_batches(shown: Sequence[Prediction]) -> list[str]:
    words = [parts.mini_batch(one.mini_batch) for one in shown]
    return words if any(one.mini_batch.std for one in shown) else _where_they_differ(words)


def _chance(probability: float) -> str:
    """Return a probability; nothing is sure enough to be printed as 0 or 100 %."""
    return ">99%" if probability >= 0.995 else "<1%" if probability < 0.005 else f"{probability:.0%}"


def speed_words(one: Prediction) -> str:
    """Return the epoch time, or samples/s without a data set."""
    if one.epoch_s:
        return format_duration(one.epoch_s.value, parts.digits_of(one.epoch_s))
    return format_number(one.samples_per_s.value, parts.digits_of(one.samples_per_s))


def _each(one: Prediction) -> str:
    return format_number(one.samples_per_s.value / one.configuration.gpus, parts.digits_of(one.samples_per_s))


def _device_hours(one: Prediction) -> str:
    if one.epoch_s is None:
        return ""
    return format_number(one.epoch_s.value * one.configuration.gpus / 3600, parts.digits_of(one.epoch_s))


def _factor(one: Prediction) -> str:
    factor = parts.factor(one.iteration_s)
    return "" if factor is None else format_number(factor)


def _out_of_memory(one: Prediction) -> bool:
    return one.memory_bytes["total"] > one.memory_bytes.get("capacity", float("inf"))


def _extrapolates(one: Prediction) -> bool:
    return any(term.extrapolated for term in one.terms)


MARKS: Mapping[str, Callable[[Prediction], bool]] = {"*": _extrapolates, "!": _out_of_memory}
"""Mark of a row -> what it says of a prediction."""
MEANINGS = {"*": "outside of what was measured", "!": "more memory than one {device} has"}
