"""Warnings in a line each: grouped by what they are about, the gravest first, at most three lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from planner.domain.prediction import PlanWarning
from planner.report.blocks import Line

__all__ = ["MOST", "notices"]

MOST = 3
"""Lines."""
WIDTH = 80
LABEL = "warning: "
HEADLINES: Mapping[str, str] = {
    "out_of_memory": "it needs more memory than {subjects} has",
    "window_missed": "the mean mini-batch is inside the window, hardly any single one is",
    "empty_updates": "many updates find no gradient",
    "mini_batch_above_dataset": "an update takes more samples than the data set has",
    "memory_tight": "it needs nearly all memory of {subjects}",
    "no_dataset": "no data set, so no epoch time: give one by --dataset",
    "specified": "times on {subjects} come in part from data sheets",
    "framework_overheads_assumed": "what {subjects} adds to its kernels is assumed",
    "framework_overheads_generic": "what {subjects} adds to its kernels is that of other frameworks",
    "framework_overheads_pooled": "what {subjects} adds to its kernels was measured on other GPUs",
    "framework_overheads_other_version": "what {subjects} adds to its kernels is that of another version",
    "overheads_of_other_mode": "what {subjects} adds to its kernels was measured in the other mode",
    "extrapolated": "{subjects} lie outside what was measured",
    "reconstructed": "{subjects} was reconstructed from published results",
    "assumed": "times of {subjects} are assumed",
    "no_time_per_call": "{subjects} has no time per call: small sub-batches look too good",
    "optimizer_differs": "the update by {subjects} is priced as another optimizer's",
    "unknown_link_kind": "kinds of {subjects} are not known: priced by bandwidth and latency",
    "mixed_circumstances": "kernels were measured under different circumstances",
    "calibration": "{count} of {subjects}",
    "input_not_modelled": "reading samples is in no time",
    "decode_not_modelled": "decoding and augmenting samples is in no time",
    "loader_threads": "threads that load samples are assumed",
    "input_cached": "later epochs are assumed to read from memory in part",
    "head_size_rounded": "heads do not divide the features of {subjects}: rounded down",
    "measured_run": "measured runs of {subjects} correct it",
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
    shown = codes if len(codes) <= MOST else codes[: MOST - 1]
    for code in shown:
        yield _line(_headline(code, by_code[code]))
    left = codes[len(shown) :]
    if left:
        count = sum(len(by_code[code]) for code in left)
        yield _line(f"{count} more; {more}")


def _line(words: str) -> Line:
    room = WIDTH - len(LABEL)
    return Line(words if len(words) <= room else f"{words[: room - 3]}...", label=LABEL, aside=True, whole=True)


def _headline(code: str, found: list[PlanWarning]) -> str:
    subjects = list(dict.fromkeys(warning.subject.replace("_", " ") for warning in found if warning.subject))
    listed = " and ".join(filter(None, (", ".join(subjects[:-1]), subjects[-1]))) if subjects else "it"
    if code not in HEADLINES:
        return found[0].message
    count = f"{len(found)} note" + ("s" if len(found) > 1 else "")
    return HEADLINES[code].format(subjects=listed, count=count)
