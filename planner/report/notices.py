"""Warnings in a line each: grouped by what they are about, the gravest first, at most three lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from textwrap import shorten

from planner.domain.framework import framework_parts, label_of
from planner.domain.prediction import PlanWarning
from planner.report.blocks import Line
from planner.report.parts import counted
from planner.report.printing import LINE_WIDTH

__all__ = ["MOST_NOTICES", "notices"]

MOST_NOTICES = 3
"""Lines."""
WARNING_LABEL = "warning: "
HEADLINES: Mapping[str, str] = {
    "framework_refused": "{subjects} was asked for and is no candidate",
    "framework_without_plan": "no plan of {subjects} fits",
    "precision_refused": "{subjects} was asked for and is no candidate",
    "out_of_memory": "it needs more memory than {subjects} has",
    "window_missed": "the mean mini-batch is inside the window, hardly any single one is",
    "empty_updates": "many updates find no gradient",
    "mini_batch_above_dataset": "an update takes more samples than the data set has",
    "memory_tight": "it needs nearly all the memory of {subjects}",
    "tensor_across_nodes": "tensor-parallel groups reach beyond a node: layers send between nodes",
    "stale_gradients": "gradients are stale, as stages update without a flush of the pipeline",
    "weighted_gradients": "gradients are to be weighted: node groups take different sub-batches",
    "unknown_version": "no such version is known: {subjects} is taken as the newest",
    "head_size_rounded": "heads do not divide the features of {subjects}: rounded down",
    "misaligned": "products of {subjects} outputs are slow here: no multiple of 16 bytes",
    "no_dataset": "no data set, so no epoch time: give one by --dataset",
    "specified": "times on {subjects} come in part from data sheets",
    "framework_overheads_assumed": "the overhead of {subjects} is assumed",
    "framework_overheads_generic": "the overhead of {subjects} is that of other frameworks",
    "framework_overheads_without_switches": "the overhead of {subjects} is that of it without switches",
    "framework_overheads_pooled": "the overhead of {subjects} was measured on other GPUs",
    "framework_overheads_other_version": "the overhead of {subjects} is that of another version",
    "overheads_of_other_mode": "the overhead of {subjects} was measured in the other mode",
    "extrapolated": "{subjects} lie outside what was measured",
    "formula_only": "by formula only, as no run shows it: {subjects}",
    "reconstructed": "{subjects} was reconstructed from published results",
    "assumed": "times of {subjects} are assumed",
    "no_time_per_call": "{subjects} has no time per call: small sub-batches look too good",
    "optimizer_differs": "the update by {subjects} is priced as another optimizer's",
    "unknown_link_kind": "kinds of {subjects} are not known: priced by bandwidth and latency",
    "mixed_circumstances": "kernels were measured under different circumstances",
    "calibration": "{subjects} has {count}",
    "input_not_modelled": "no time includes reading samples",
    "decode_not_modelled": "no time includes decoding and augmenting samples",
    "loader_threads": "threads that load samples are assumed",
    "input_cached": "later epochs are assumed to read from memory in part",
    "measured_run": "measured runs of {subjects} correct it",
    "measured_steps": "measured steps of {subjects} correct it",
    "own_layers": "its own layers were measured",
}
"""Code of a warning -> what it says in a line, the gravest code first; an unknown code comes before all of them.

``{subjects}``: what the warnings of the code are about; ``{count}``: how many notes they are.
"""


def notices(warnings: Iterable[PlanWarning], more: str) -> Iterator[Line]:
    """Yield at most three lines about warnings, one a code; ``more``: where all of them stand in full."""
    by_code: dict[str, list[PlanWarning]] = {}
    for warning in dict.fromkeys(warnings):
        by_code.setdefault(warning.code, []).append(warning)
    order = list(HEADLINES)
    codes = sorted(by_code, key=lambda code: order.index(code) if code in HEADLINES else -1)
    first = codes if len(codes) <= MOST_NOTICES else codes[: MOST_NOTICES - 1]
    for code in first:
        yield _line(_headline(code, by_code[code]))
    rest = codes[len(first) :]
    if rest:
        count = sum(len(by_code[code]) for code in rest)
        yield _line(f"{count} more; {more}")


def _line(words: str) -> Line:
    return Line(words, label=WARNING_LABEL, aside=True)


def _headline(code: str, warnings: list[PlanWarning]) -> str:
    """Return what warnings of a code say in one line of 80 columns, their first subjects named."""
    room = LINE_WIDTH - len(WARNING_LABEL)
    if code not in HEADLINES:
        return shorten(warnings[0].message, room, placeholder="...")
    subjects = list(dict.fromkeys(warning.subject.replace("_", " ") for warning in warnings if warning.subject))
    count = counted(len(warnings), "note")
    lines = (
        HEADLINES[code].format(subjects=_first_names(subjects, count_of_names), count=count)
        for count_of_names in range(len(subjects), 0, -1)
    )
    fitting = next((line for line in lines if len(line) <= room), None)
    if fitting is not None:
        return fitting
    names = list(dict.fromkeys(map(_without_switches, subjects)))
    if names != subjects:
        return _headline(code, [replace(warnings[0], subject=name) for name in names])
    return HEADLINES[code].format(subjects="it", count=count)


def _without_switches(subject: str) -> str:
    """Return the name of a framework with switches, which leave no room for it; anything else as it is."""
    name, version, switches = framework_parts(subject)
    return label_of(name, version, ()) if switches else subject


def _first_names(subjects: list[str], count: int) -> str:
    """Return the first subjects, and how many more there are."""
    words = subjects[:count] if count == len(subjects) else [*subjects[:count], f"{len(subjects) - count} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
