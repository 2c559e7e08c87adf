"""Kernels one by one, where another precision gains, and batches of inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, UPDATE, KernelRow
from planner.domain.prediction import Batch
from planner.domain.request import Subject
from planner.report.blocks import Block, Line, Table, heading, title
from planner.report.parts import factor
from planner.report.prediction import place
from planner.units import format_bytes, format_duration, format_number

__all__ = ["batches_view", "gains_table", "kernel_table", "replicas_view", "ridge_words"]

PASSES = {FORWARD: "f", BACKWARD_DATA: "x", BACKWARD_WEIGHT: "w", UPDATE: "u"}
SHORT = {"convolution": "conv"}
LEGEND = "f forward, x and w gradients of input and weights, u update; roof: least time by the roofline over the time"
MOST_KINDS = 6
"""Kinds of kernels that have a line of their own."""


def ridge_words(ridges: Mapping[str, float]) -> str:
    """Return the ridges of the roofline in words [FLOP/byte]."""
    return ", ".join(f"{name} {format_number(ridge, 3)}" for name, ridge in ridges.items())


def kernel_table(rows: Sequence[KernelRow], words: str, ridges: Mapping[str, float]) -> Iterator[Block]:
    """Yield kernels, a line those of equal layers; with times where they have any.

    ``words``: what they are of; ``ridges``: by precision [FLOP/byte], empty: of no device.
    """
    yield heading(f"Kernels {words}: {sum(round(one.calls) for one in rows):,} calls")
    timed = any(one.seconds for one in rows)
    columns = {
        "layer": [one.layer for one in rows],
        "kernel": [f"{SHORT.get(one.kind, one.kind.replace('_', ' '))} {PASSES[one.direction]}" for one in rows],
        "shape": [one.shape for one in rows],
        "calls": [f"{one.calls:.3g}" for one in rows],
        "MFLOP": [format_number(one.flop / 1e6, 3) if one.flop else "-" for one in rows],
        "MB": [format_number(one.bytes / 1e6, 3) for one in rows],
    }
    if timed:
        columns |= {
            "ms": [format_number(one.seconds * 1e3, 3) for one in rows],
            "roof": [f"{one.roof_s / one.seconds:.0%}" if one.seconds else "-" for one in rows],
            "bound by": [one.bound for one in rows],
        }
    else:
        columns["FLOP/B"] = [format_number(one.flop / one.bytes, 3) if one.flop else "-" for one in rows]
    right = [name for name in columns if name not in ("layer", "kernel", "shape", "bound by")]
    yield Table(list(columns), list(zip(*columns.values(), strict=True)), right, 1, fixed=True, dropped=("MB", "calls"))
    yield Line(LEGEND if timed else LEGEND.partition(";")[0])
    if ridges:
        yield Line(f"Ridge of the roofline (FLOP a byte above which compute bounds): {ridge_words(ridges)}")


def gains_table(by_precision: Mapping[str, Mapping[str, float]], words: str = "A step") -> Iterator[Block]:
    """Yield what kinds of kernels take in each precision, and how much faster than in the first they are (Amdahl).

    ``by_precision``: seconds by kind, in each precision; ``words``: what they are of.
    """
    yield heading(f"{words}, kernel by kernel: time, and times as fast as in {next(iter(by_precision))}")
    first, *others = by_precision
    most: dict[str, float] = {}
    for some in by_precision.values():
        for kind, seconds in some.items():
            most[kind] = max(most.get(kind, 0.0), seconds)
    own = sorted(most, key=lambda kind: -most[kind])[:MOST_KINDS]
    rows = {kind: [some.get(kind, 0.0) for some in by_precision.values()] for kind in own}
    rest = [sum(seconds for kind, seconds in some.items() if kind not in own) for some in by_precision.values()]
    rows |= {"others": rest} if any(rest) else {}
    rows["all kernels"] = [sum(some.values()) for some in by_precision.values()]
    cells: list[list[str]] = [[kind.replace("_", " "), *_gains(times)] for kind, times in rows.items()]
    columns = ["kernels", first, *(name for one in others for name in (one, f"{one}\ngain"))]
    yield Table(columns, cells, columns[1:], strong=[len(cells) - 1])


def _gains(times: Sequence[float]) -> Iterator[str]:
    first, *others = times
    yield format_duration(first, 3) if first else "-"
    for one in others:
        yield format_duration(one, 3) if one else "-"
        yield f"{first / one:.2f}" if one and first else "-"


def batches_view(subject: Subject, batches: Sequence[Batch], memory_bytes: float) -> Iterator[Block]:
    """Yield batches on one device as a table; ``memory_bytes``: that it has."""
    yield title(f"{_where(subject)}: inference, one {subject.device} a replica")
    first = batches[0].precision
    base = {one.sub_batch: one.latency_s for one in batches if one.precision == first}
    gains = [base[one.sub_batch] / one.latency_s if one.sub_batch in base else 0.0 for one in batches]
    columns = _columns(batches)
    if any(one.precision != first for one in batches):
        columns[f"over {first}"] = [f"{gain:.2f}" if gain else "-" for gain in gains]
    over = ["!" if sum(one.memory_bytes.values()) > memory_bytes else "" for one in batches]
    columns |= {"": over} if any(over) else {}
    yield _table(columns)
    yield from _notes(batches)


def replicas_view(
    subject: Subject, plans: Sequence[tuple[Batch, int]], latency_s: float | None, rate: float | None, tried: int
) -> Iterator[Block]:
    """Yield replicas, those to take first; ``tried``: how many batches were."""
    best, count = plans[0]
    within = "" if latency_s is None else f" within {format_duration(latency_s, 3)}"
    wanted = "" if rate is None else f" for {rate:,.0f} samples/s"
    words = f"{count} x {subject.device}, batch {best.sub_batch}, {best.precision}"
    speed = f"{best.samples_per_s * count:,.0f} samples/s, {format_duration(best.latency_s, 3)} a batch"
    yield title(f"{_where(subject)}: take {words}{wanted}{within}: {speed}.")
    yield Line(f"The best batch of each precision, of {tried} that were tried.")
    columns = {f"{subject.device}s": [str(count) for _, count in plans], **_columns([one for one, _ in plans])}
    columns["samples/s"] = [f"{one.samples_per_s * count:,.0f}" for one, count in plans]
    yield _table(columns)
    yield from _notes([one for one, _ in plans])


def _where(subject: Subject) -> str:
    return f"{place(subject)} in {subject.settings.framework.label}"


def _columns(batches: Sequence[Batch]) -> dict[str, list[str]]:
    return {
        "precision": [one.precision for one in batches],
        "batch": [str(one.sub_batch) for one in batches],
        "latency": [format_duration(one.latency_s, 3) for one in batches],
        "factor": [f"{factor(one.latency) or 0:.1f}" for one in batches],
        "samples/s": [f"{one.samples_per_s:,.0f}" for one in batches],
        "memory": [format_bytes(sum(one.memory_bytes.values())) for one in batches],
    }


def _table(columns: Mapping[str, Sequence[str]]) -> Table:
    right = [name for name in columns if name not in ("precision", "")]
    return Table(list(columns), list(zip(*columns.values(), strict=True)), right)


def _notes(batches: Sequence[Batch]) -> Iterator[Block]:
    """Yield what the times rest on, and what they leave out."""
    names = list(dict.fromkeys(name for one in batches for name in one.calibrations))
    yield Line(f"Kernels: {', '.join(names)}. {ERRORS} {LEFT_OUT}" if names else f"{OF_SHEETS} {LEFT_OUT}")
    if any(one.precision == "int8" for one in batches):
        yield Line(INT8_NOTE)


ERRORS = "Factor: 90%, from the errors on kernels; 8 of 10 measured batches lay inside (docs/inference.md)."
OF_SHEETS = "Kernels: data sheet. Factor: 90%, assumed."
LEFT_OUT = "No queue is modelled, and no copies."
INT8_NOTE = (
    "int8 needs scales calibrated on samples; what accuracy it costs is not predicted. Batches are multiples of 4."
)
