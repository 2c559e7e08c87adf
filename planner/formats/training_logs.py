"""Logs of Megatron(-LM, -Bridge), torchtitan and the Trainer of Hugging Face: iterations and what is stated of them.

Lines of other forms say nothing, nor does a last line that was cut off before its figures end. An iteration that a
resumed run made again counts as it was made last. Of the Trainer only the whole run is timed; its evaluations are
taken off. torchtitan states tokens a second of a device (``tps``, or ``wps``), from which seconds follow with the plan.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["BATCH", "GPUS", "SEQUENCE", "Steady", "TrainingLog", "steady", "training_log"]

BATCH, SEQUENCE, GPUS = "global batch size", "sequence length", "number of GPUs"
_STATED = (
    (BATCH, "global", re.compile(r"\bglobal[ _]batch[ _]size(?: \.+|:)? +(\d+)(?=[\s,])")),
    (BATCH, "Total train", re.compile(r"Total train batch size \(.{1,80}?\) = ([\d,]+)\s")),
    (SEQUENCE, "seq", re.compile(r"\bseq(?:_length(?: \.+|:)|uence length) +(\d+)(?=[\s,])")),
    (GPUS, "world_size", re.compile(r"\bworld_size(?: \.+|:) +(\d+)\s")),
)
"""What programs state of the plan that they run, in their listing of arguments or beside iterations.

A word goes before each pattern, and is looked for first: most of a log says nothing, and there is much of it.
"""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_MEGATRON = re.compile(r"\biteration +(\d+)/ *\d+ \|.{0,200}?\belapsed time per iteration \(ms\): *([\d.]+) \|")
_MEGATRON_MEMORY = re.compile(r"\| max reserved: ([\d.]+)\s")
_TITAN = re.compile(r"(?<!validate )\bstep: *(\d+) .{0,120}?\bmemory: *([\d.]+)GiB\([\d.]+%\) +[tw]ps: ([\d,]+) ")
_TRAINER = re.compile(
    r"""["'](train_runtime|train_steps_per_second|train_samples_per_second|eval_runtime|global_step)["']: """
    r"""["']?([\d.]+(?:e[+-]?\d+)?)(?=["',}\s])"""
)
_TRAINER_WORDS = "_runtime", "_per_second", "global_step"
_TRAINER_STEPS = re.compile(r"Total optimization steps = ([\d,]+)\s")
LARGEST_DEVIATION = 0.25
"""Of a steady iteration from the median of the later half; one with a checkpoint or an evaluation in it has more."""


class Steady(NamedTuple):
    """Times of steady iterations [s]: median and spread; how many are kept, left out before, and after."""

    time_s: float
    spread_s: float
    kept: int
    warm_up: int
    outliers: int


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """What a log tells.

    Attributes
    ----------
    iterations : mapping of int to float, seconds by number of the iteration; with ``gives_rate`` tokens a second of one
        GPU
    mean_of : iterations of a run that is timed as a whole; 0: each is timed, or a few at a time
    stated : mapping of BATCH, SEQUENCE and GPUS to int
    samples : an iteration, as rates state them, roughly; 0: not stated
    memory_bytes : largest that the allocator reserved; 0: not stated
    line : that of the last iteration
    """

    program: str
    iterations: Mapping[int, float]
    line: int
    mean_of: int = 0
    gives_rate: bool = False
    stated: Mapping[str, int] = field(default_factory=dict)
    samples: float = 0.0
    memory_bytes: float = 0.0


def training_log(lines: Iterable[tuple[int, str]]) -> TrainingLog | None:
    """Return what the numbered lines of a log tell; None: they are of no program that is known, or of no iteration."""
    megatron, titan, trainer = dict[int, float](), dict[int, float](), dict[str, float]()
    stated, line_of = dict[str, int](), 0
    memory_bytes = evaluating_s = 0.0
    for number, coloured in lines:
        line = _COLOUR.sub("", coloured) if "\x1b" in coloured else coloured
        for name, word, pattern in _STATED:
            if word in line and (found := pattern.search(line)):
                stated[name] = _whole(found[1])
        if "per iteration (ms)" in line and (found := _MEGATRON.search(line)):
            megatron[_whole(found[1])], line_of = _number(found[2]) / 1e3, number
        elif "ps: " in line and (found := _TITAN.search(line)):
            titan[_whole(found[1])], line_of = float(_whole(found[3])), number
            memory_bytes = max(memory_bytes, _number(found[2]) * 2**30)
        elif "max reserved" in line and (found := _MEGATRON_MEMORY.search(line)):
            memory_bytes = max(memory_bytes, _number(found[1]) * 2**20)
        elif "steps =" in line and (found := _TRAINER_STEPS.search(line)):
            trainer["global_step"] = _whole(found[1])
        for name, value in _TRAINER.findall(line) if any(word in line for word in _TRAINER_WORDS) else ():
            if name == "eval_runtime":
                evaluating_s += _number(value)
            else:
                trainer[name], line_of = _number(value), number
            if name == "train_runtime":
                trainer["training_s"], evaluating_s = trainer[name] - evaluating_s, 0.0
    of_iterations = {one: value for one, value in (megatron or titan).items() if value > 0}
    if of_iterations:
        program = "Megatron" if megatron else "torchtitan"
        return TrainingLog(program, of_iterations, line_of, 0, not megatron, stated, 0.0, memory_bytes)
    return _of_trainer(trainer, stated, line_of)


def _of_trainer(figures: Mapping[str, float], stated: Mapping[str, int], line: int) -> TrainingLog | None:
    runtime_s, rate = figures.get("train_runtime", 0.0), figures.get("train_steps_per_second", 0.0)
    steps = round(figures.get("global_step", 0.0) or runtime_s * rate)
    if not steps or figures.get("training_s", 0.0) <= 0:
        return None
    samples = figures.get("train_samples_per_second", 0.0) * runtime_s / steps
    return TrainingLog(
        "Hugging Face's Trainer", {steps: figures["training_s"] / steps}, line, steps, stated=stated, samples=samples
    )


def _whole(text: str) -> int:
    return int(text.replace(",", "")[:18] or 0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # of several dots
        return 0.0


def steady(iterations: Sequence[tuple[int, float]]) -> Steady | None:
    """Return the steady ones of iterations, numbers and seconds in order; None where only the first was timed.

    Left out are iteration 1 and all that differ by more than LARGEST_DEVIATION from the median of the later half of the
    others: before the first steady one as warm-up, after it as outliers.
    """
    later_s = [seconds for number, seconds in iterations if number > 1]
    if not later_s:
        return None
    reference_s = statistics.median_low(later_s[len(later_s) // 2 :])
    is_steady = [abs(seconds / reference_s - 1) <= LARGEST_DEVIATION for seconds in later_s]
    times_s = [seconds for seconds, fits in zip(later_s, is_steady, strict=True) if fits]
    median_s = statistics.median(times_s)
    spread_s = 1.4826 * statistics.median([abs(one - median_s) for one in times_s])
    before = is_steady.index(True)
    warm_up = len(iterations) - len(later_s) + before
    return Steady(median_s, spread_s, len(times_s), warm_up, len(iterations) - warm_up - len(times_s))
