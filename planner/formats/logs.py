"""Logs of tests of links, as samples, and of training programs, as runs.

Of nccl-tests, rccl-tests and OSU micro-benchmarks a row is a size and its time. What runs around such a test
(schedulers, libraries) writes to the same log: lines of other forms say nothing. Lines ``# nodes: N`` and ``#
ranks_per_node: R`` may state what a log leaves open; what it lists of its ranks goes before. Of a test's times the
out-of-place ones count, which come first.

Logs of Megatron(-LM, -Bridge), torchtitan and the Trainer of Hugging Face: iterations and what is stated of them.

Lines of other forms say nothing, nor does a last line that was cut off before its figures end. An iteration that a
resumed run made again counts as it was made last. Of the Trainer only the whole run is timed; its evaluations are
taken off. torchtitan states tokens a second of a device (``tps``, or ``wps``), from which seconds follow with the plan.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SEND_RECEIVE
from planner.errors import InputFileError, shown

OPERATIONS = {
    "allreduce": ALL_REDUCE, "allgather": ALL_GATHER, "reducescatter": REDUCE_SCATTER, "alltoall": ALL_TO_ALL,
    "sendrecv": SEND_RECEIVE, "broadcast": "broadcast", "reduce": "reduce",
}  # fmt: skip
"""How tests call an operation, letters alone -> the operation."""
OF_EACH_RANK = (ALL_GATHER, ALL_TO_ALL)
"""Operations whose size is that of one rank's part in OSU's tests, of all parts here."""
_TEST = re.compile(r"^# (?:nThread \d+ nGpus \d+|OSU MPI)", re.MULTILINE)
_TAG = re.compile(r"^ {0,8}\[\d{1,9},\d{1,9}\]<std\w{1,9}>: ?|^ {4}(?=#)", re.MULTILINE)
"""Before each line: what mpirun --tag-output writes, or the indentation of a page."""
_STARTING = re.compile(r"# Collective test starting: (\w+?)_perf")
_NCCL = re.compile(r"# nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) step: (\d+)\((\w+)\)")
_RANK = re.compile(r"#\s+Rank\s+\d+\s.{0,80}?\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s+(.+)")
_OSU = re.compile(r"# OSU MPI(-\w+)? (.{1,80}?) Test")
_STATED = re.compile(r"#\s*(nodes|ranks_per_node):\s*(\d+)\s*$")
_ENDED = ("# Out of bounds values", "# Avg bus bandwidth")
LONGEST_US = 1e12
NEAR_WHOLE = 0.2
"""A number of ranks that follows from rates of two decimals is so near to a whole one."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What options say of logs that do not: nodes, and ranks of each; 0: not given."""

    nodes: int = 0
    ranks_per_node: int = 0


UNSTATED = Stated()


@dataclass(slots=True)
class _Test:
    """One test of a log: its operation and library, its ranks, and rows of (line, words)."""

    library: str
    operation: str
    line: int
    announced: tuple[int, ...] = ()
    """Threads, GPUs a thread, least and most bytes, step; nothing: the log does not say."""
    is_factor: bool = True
    hosts: Counter[str] = field(default_factory=Counter)
    device: str = ""
    columns: tuple[str, ...] = ()
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    has_ended: bool = False
    last_line: int = 0
    """Of the log, where it ends without a line feed, as what is cut off does."""
    stated: dict[str, int] = field(default_factory=dict)


def is_log(text: str) -> bool:
    """Tell whether a text is a log of one of the tests."""
    return bool(_TEST.search(_TAG.sub("", text)))


def rows_of_log(text: str, path: str, stated: Stated) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the rows of samples that a log holds, each with its line.

    InputFileError: a test was cut off or found wrong values, or says too little of what it ran on.
    """
    rows = [row for test in _tests(_TAG.sub("", text).split("\n"), path) for row in _rows(test, path, stated)]
    if not rows:
        raise InputFileError(path, "log must have a row for each size, got none; run the test to its end")
    return rows


def _tests(lines: Sequence[str], path: str) -> Iterator[_Test]:
    """Yield the tests of a log, in order."""
    test, of_file, starting, before = None, Path(path).stem, "", dict[str, int]()
    for number, line in enumerate(lines, start=1):
        if found := _STARTING.match(line):
            starting = found[1]
        elif found := _NCCL.match(line):
            yield from [test] if test else []
            test = _Test("nccl", _named(starting) or _named(of_file), number, stated=before)
            test.announced, test.is_factor = tuple(map(int, found.groups()[:5])), found[6] == "factor"
        elif found := _OSU.match(line):
            yield from [test] if test else []
            title, of_latency, _ = found[2].rpartition("Latency")
            operation = _named(title) if title else SEND_RECEIVE
            if not of_latency or not operation:
                rule = "test must be of latency, of " + ", ".join(dict.fromkeys(OPERATIONS.values()))
                raise InputFileError(path, f"{rule}, got {found[2]!r}; leave it out", f"line {number}")
            test = _Test("" if found[1] else "host", operation, number, stated=before)
        elif found := _STATED.match(line):
            (before if test is None else test.stated)[found[1]] = int(found[2])
        elif test is not None:
            _read(test, line, number, is_last=number >= len(lines) - 1)
    if test is not None:
        test.last_line = len(lines) if lines[-1] else 0
        yield test


def _named(text: str) -> str:
    """Return the operation that a name holds; the longest name first, as all-reduce holds reduce."""
    letters = re.sub(r"personalized|exchange|[^a-z]", "", text.lower())
    return next((OPERATIONS[name] for name in sorted(OPERATIONS, key=len, reverse=True) if name in letters), "")


def _read(test: _Test, line: str, number: int, *, is_last: bool) -> None:
    """Take what a line says of a test; a first line of the last two that has too few words is a cut-off row."""
    words = line.split()
    if found := _RANK.match(line):
        test.hosts[found[1]] += 1
        test.device = found[2].strip()
    elif line.startswith("rccl-tests:") or "AMD Instinct" in line:
        test.library = "rccl"
    elif line.startswith(_ENDED):
        test.has_ended = True
    elif line.startswith("#") and len(words) > 2 and words[1] in ("size", "Size"):
        test.columns = tuple(words[1:]) if not test.announced or {"time", "algbw", "busbw"} <= {*words} else ()
    elif words and words[0].isdigit() and test.columns and not test.has_ended:
        least = 2 if not test.announced else len(test.columns)
        if len(words) >= least or is_last:
            test.rows.append((number, words))


def _rows(test: _Test, path: str, stated: Stated) -> Iterator[tuple[int, Mapping[str, Any]]]:
    _check_whole(test, path)
    if test.announced and not test.operation:
        if not any(word in ("sum", "prod", "min", "max", "avg") for word in test.rows[0][1]):
            problem = "log must name its operation, got none; call the file by its test, such as all_gather_perf.log"
            raise InputFileError(path, problem, f"line {test.line}")
        test.operation = ALL_REDUCE if _ratio(test) > 0.99 else REDUCE_SCATTER  # by what its ranks send
    nodes, ranks = _placement(test, path, stated)
    parts = nodes * ranks if not test.announced and test.operation in OF_EACH_RANK else 1
    at = test.columns.index("time") if test.announced else 1
    for number, words in test.rows:
        if size := int(words[0]) * parts:
            if not 0 < (time_us := _float(words[at])) < LONGEST_US:
                problem = f"time must be a number of microseconds above 0, got {shown(words[at])}"
                raise InputFileError(path, problem, f"line {number}")
            yield number, {
                "kind": test.operation, "operation": test.operation, "library": test.library, "device": test.device,
                "bytes": size, "nodes": nodes, "ranks_per_node": ranks,
                "time_s": time_us * 1e-6,
            }  # fmt: skip


def _check_whole(test: _Test, path: str) -> None:
    """Refuse a test that was cut off, or found wrong values."""
    if not test.rows:
        raise InputFileError(
            path, "test must have a row for each size, got none; run it to its end", f"line {test.line}"
        )
    number, last = test.rows[-1]
    if test.announced:
        _, _, least, most, step = test.announced
        sizes = [int(words[0]) for _, words in test.rows]
        following = sizes[-1] * step if test.is_factor else sizes[-1] + step
        runs_on = sizes[0] == least and all(
            after in (before * step, before + step) for before, after in itertools.pairwise(sizes)
        )
        is_cut = len(last) < len(test.columns) or (not test.has_ended and runs_on and following <= most)
    else:
        decimals = {len(words[1].partition(".")[2]) for _, words in test.rows[:-1] or test.rows}
        is_cut = number == test.last_line or len(last) < 2 or len(last[1].partition(".")[2]) not in decimals
    if is_cut:
        problem = f"log must be whole, got one that ends at size {last[0]}; run the test to its end, or leave it out"
        raise InputFileError(path, problem, f"line {number}")
    for number, words in test.rows:
        wrong = [words[at] for at, name in enumerate(test.columns) if name == "#wrong"] + [
            word for word in words if word == "Fail"
        ]
        if bad := [word for word in wrong if word not in ("0", "N/A")]:
            problem = f"#wrong must be 0, got {bad[0]}: data arrived wrong, and times of such a link say nothing"
            raise InputFileError(path, f"{problem}; mend it and measure again", f"line {number}")


def _ratio(test: _Test) -> float:
    """Return bus over algorithm bandwidth of the row whose figures have the most digits."""
    at, of = test.columns.index("busbw"), test.columns.index("algbw")
    _, words = max(test.rows, key=lambda row: float(row[1][of]))
    return float(words[at]) / float(words[of]) if float(words[of]) else 0.0


def _placement(test: _Test, path: str, stated: Stated) -> tuple[int, int]:
    """Return nodes and ranks of each: those listed, else stated, else what follows from rates and the process."""
    if test.hosts:
        each = set(test.hosts.values())
        if len(each) > 1:
            rule, got = "nodes must have equally many ranks", ", ".join(map(str, test.hosts.values()))
            raise InputFileError(path, f"{rule}, got {got}; leave the log out", f"line {test.line}")
        return len(test.hosts), each.pop()
    nodes = test.stated.get("nodes", stated.nodes)
    ranks = test.stated.get("ranks_per_node", stated.ranks_per_node)
    total = 0
    if test.announced and test.operation in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        left = (2 - _ratio(test)) / 2 if test.operation == ALL_REDUCE else 1 - _ratio(test)
        total = round(1 / left) if left > 0 and abs(1 / left - round(1 / left)) < NEAR_WHOLE else 0
        if not nodes and total == test.announced[0] * test.announced[1]:  # one process, which has all of them
            nodes = 1
    if nodes and not ranks and total and total % nodes == 0:
        ranks = total // nodes
    if test.operation == SEND_RECEIVE and nodes in (1, 2):
        ranks = 3 - nodes
    if not nodes or not ranks:
        what = "nodes it ran" if ranks else "nodes it ran, with how many ranks each"
        rule = f"log must say on how many {what}, got no word of it"
        remedy = "give --nodes and --gpus-per-node, or lines '# nodes: N' and '# ranks_per_node: R' at its top"
        raise InputFileError(path, f"{rule}; {remedy}", f"line {test.line}")
    return nodes, ranks


BATCH, SEQUENCE, GPUS = "global batch size", "sequence length", "number of GPUs"
_STATED_OF_TRAINING = (
    (BATCH, "global", re.compile(r"\bglobal[ _]batch[ _]size(?: \.+|:)? +(\d+)(?=[\s,])")),
    (BATCH, "Total train", re.compile(r"Total train batch size \(.{1,80}?\) = ([\d,]+)\s")),
    (SEQUENCE, "seq", re.compile(r"\bseq(?:_length(?: \.+|:)|uence length) +(\d+)(?=[\s,])")),
    (GPUS, "world_size", re.compile(r"\bworld_size(?: \.+|:) +(\d+)\s")),
)
"""What programs state of the plan that they run, in their listing of arguments or beside iterations.

A word goes before each pattern, and is looked for first: most of a log says nothing, and there is much of it.
"""
WRITERS = {"Megatron": "pretrain_gpt.py", "torchtitan": "-m torchtitan.train"}
"""Name of a log's program -> what records of frameworks say that they start; any other program is a user's own."""
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
    """Measurements of a training log.

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
    """Parse the numbered lines of a training log; None: unknown program, or no iterations."""
    megatron, titan, trainer = dict[int, float](), dict[int, float](), dict[str, float]()
    stated, line_of = dict[str, int](), 0
    memory_bytes = evaluating_s = 0.0
    for number, coloured in lines:
        line = _COLOUR.sub("", coloured) if "\x1b" in coloured else coloured
        for name, word, pattern in _STATED_OF_TRAINING:
            if word in line and (found := pattern.search(line)):
                stated[name] = _whole(found[1])
        if "per iteration (ms)" in line and (found := _MEGATRON.search(line)):
            megatron[_whole(found[1])], line_of = _float(found[2]) / 1e3, number
        elif "ps: " in line and (found := _TITAN.search(line)):
            titan[_whole(found[1])], line_of = float(_whole(found[3])), number
            memory_bytes = max(memory_bytes, _float(found[2]) * 2**30)
        elif "max reserved" in line and (found := _MEGATRON_MEMORY.search(line)):
            memory_bytes = max(memory_bytes, _float(found[1]) * 2**20)
        elif "steps =" in line and (found := _TRAINER_STEPS.search(line)):
            trainer["global_step"] = _whole(found[1])
        for name, value in _TRAINER.findall(line) if any(word in line for word in _TRAINER_WORDS) else ():
            if name == "eval_runtime":
                evaluating_s += _float(value)
            else:
                trainer[name], line_of = _float(value), number
            if name == "train_runtime":
                trainer["training_s"], evaluating_s = trainer[name] - evaluating_s, 0.0
    of_iterations = {one: value for one, value in (megatron or titan).items() if value > 0}
    if of_iterations:
        program = "Megatron" if megatron else "torchtitan"
        return TrainingLog(program, of_iterations, line_of, 0, not megatron, stated, 0.0, memory_bytes)
    runtime_s = trainer.get("train_runtime", 0.0)
    steps = round(trainer.get("global_step", 0.0) or runtime_s * trainer.get("train_steps_per_second", 0.0))
    if not steps or trainer.get("training_s", 0.0) <= 0:
        return None
    samples = trainer.get("train_samples_per_second", 0.0) * runtime_s / steps
    mean_s = {steps: trainer["training_s"] / steps}
    return TrainingLog("Hugging Face's Trainer", mean_s, line_of, steps, stated=stated, samples=samples)


def _whole(text: str) -> int:
    return int(text.replace(",", "")[:18] or 0)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # of several dots
        return 0.0


def steady(iterations: Sequence[tuple[int, float]]) -> Steady | None:
    """Select the steady iterations, by numbers and seconds in order; None if only the first was timed.

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
