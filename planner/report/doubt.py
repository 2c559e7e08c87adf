"""What stands beside the plans of an answer: warnings, how good it is, what would make it better, how to start one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from textwrap import shorten, wrap

from planner.domain.configuration import Configuration
from planner.domain.framework import PYTORCH, framework_parts, label_of
from planner.domain.job import Job, PlanToStart, job_of, wrapped
from planner.domain.prediction import PlanWarning, Prediction
from planner.domain.request import Subject
from planner.domain.suggestion import Sensitivity, Suggestion
from planner.report import parts
from planner.report.blocks import LINE_WIDTH, Block, Line, heading
from planner.units import format_number

MOST_NOTICES = 3
WARNING_LABEL = "warning: "
HEADLINES: Mapping[str, str] = {
    "cluster_refused": "cluster {subjects} was requested but is left out",
    "framework_refused": "{subjects} was requested but is left out",
    "framework_without_plan": "no plan in {subjects} fits",
    "nearest_batch": "",
    "precision_refused": "{subjects} was requested but is left out",
    "out_of_memory": "it needs more memory than {subjects} has",
    "window_missed": "the mean mini-batch is in the window, but hardly any single one is",
    "empty_updates": "many updates have no gradient to apply",
    "small_batch_norm": "batch norm over fewer than 8 samples: {subjects} may learn worse",
    "mini_batch_above_dataset": "an update takes more samples than the data set has",
    "memory_tight": "it may run out of memory on {subjects}",
    "tensor_across_nodes": "tensor-parallel groups span nodes: every layer sends between nodes",
    "stale_gradients": "gradients are stale: stages update without flushing the pipeline",
    "weighted_gradients": "gradients must be weighted: node groups have different sub-batches",
    "unknown_version": "{subjects} is no known version: treated as the newest",
    "head_size_rounded": "heads do not divide the width of {subjects}: head size rounded down",
    "misaligned": "layers of {subjects} outputs are slow here: not a multiple of 16 bytes",
    "head_size_padded": "heads of {subjects} features are padded: no kernel has that size",
    "network_not_modelled": "part of the network is not modelled: -v says which",
    "frozen_layers": "no step of {subjects} with frozen layers was measured",
    "no_dataset": "no data set, so no epoch time: give one with --dataset",
    "input_not_modelled": "times do not include reading samples",
    "decode_not_modelled": "times do not include decoding and augmenting samples",
    "no_time_per_call": "{subjects} has no time per call: small sub-batches look too good",
    "optimizer_differs": "the update by {subjects} is priced as another optimizer's",
    "specified": "some times on {subjects} come from data sheets",
    "framework_overheads_assumed": "the overhead of {subjects} is assumed, not measured",
    "framework_overheads_generic": "the overhead of {subjects} is taken from other frameworks",
    "framework_overheads_without_switches": "the overhead of {subjects} was measured without its switches",
    "framework_overheads_pooled": "the overhead of {subjects} was measured on other GPUs",
    "framework_overheads_other_version": "the overhead of {subjects} was measured on another version",
    "overheads_of_other_mode": "the overhead of {subjects} was measured in the other mode",
    "extrapolated": "{subjects} {lie} outside what was measured",
    "formula_only": "no measured run, so by formula alone: {subjects}",
    "reconstructed": "{subjects} was reconstructed from published results",
    "assumed": "times of {subjects} are assumed",
    "unknown_link_kind": "unknown kind of {subjects}: priced by bandwidth and latency",
    "mixed_circumstances": "kernels were measured under different conditions",
    "calibration": "",
    "loader_threads": "the number of loader threads is assumed",
    "input_cached": "later epochs are assumed to read partly from memory",
    "measured_run": "corrected by measured runs of {subjects}",
    "measured_steps": "corrected by measured steps of {subjects}",
    "own_layers": "its own layers were measured",
}
"""Code of a warning -> what it says in a line; an unknown code comes before all of them.

First what changes the answer, then what changes its times or leaves out a part of them, then where they come from.
``{subjects}``: what the warnings of the code are about; where the line is empty, its first sentence is printed.
"""


def notices(warnings: Iterable[PlanWarning], more: str, others: int = 0) -> Iterator[Line]:
    """Yield at most three lines about warnings, one a code; ``more``: where all of them stand in full.

    ``others``: warnings beside them, which are counted alone.
    """
    by_code: dict[str, list[PlanWarning]] = {}
    for warning in dict.fromkeys(warnings):
        by_code.setdefault(warning.code, []).append(warning)
    order = list(HEADLINES)
    codes = sorted(by_code, key=lambda code: order.index(code) if code in HEADLINES else -1)
    first = codes if len(codes) + bool(others) <= MOST_NOTICES else codes[: MOST_NOTICES - 1]
    sentences = [_headline(code, by_code[code]) for code in first]
    if rest := sum(len(by_code[code]) for code in codes[len(first) :]) + others:
        sentences.append(f"{rest} more; {more}")
    yield from (Line(words, label=WARNING_LABEL, aside=True) for words in sentences)


def _headline(code: str, warnings: list[PlanWarning]) -> str:
    """Return what warnings of a code say in one line of 80 columns, their first subjects named."""
    room = LINE_WIDTH - len(WARNING_LABEL)
    if not HEADLINES.get(code):
        return shorten(warnings[0].message, room, placeholder="...")
    subjects = list(dict.fromkeys(warning.subject.replace("_", " ") for warning in warnings if warning.subject))
    if len(subjects) > 1:
        subjects = list(dict.fromkeys(name for subject in subjects for name in subject.split(", ")))
    lie = "lie" if "," in ", ".join(subjects) else "lies"
    for count in range(len(subjects), 0, -1):
        *first, last = [*subjects[:count], *[f"{len(subjects) - count} more"] * (count < len(subjects))]
        line = HEADLINES[code].format(subjects=" and ".join(filter(None, (", ".join(first), last))), lie=lie)
        if len(line) <= room:
            return line
    parts_of = {subject: framework_parts(subject) for subject in subjects}  # switches may leave no room for a name
    short = (label_of(*of[:2], ()) if of[2] else subject for subject, of in parts_of.items())
    names = list(dict.fromkeys(short))
    if names != subjects:
        return _headline(code, [replace(warnings[0], subject=name) for name in names])
    return HEADLINES[code].format(subjects="it", lie="lies")


MEASURED_LOOKUPS = ("exact", "between", "beyond")
"""Of LOOKUPS those of a network's own layers."""
RUNS = "--runs FILE.csv"
LARGE_SHARE = 0.5
"""Share of the kernel time from which a way of finding it stands for all."""


def goodness(prediction: Prediction, subject: Subject, *, is_kept: bool = False) -> Line:
    """Return one sentence: the factor, the part that most of it comes from, and what would narrow it.

    ``is_kept``: ``--json`` of the answer is a file that ``planner calibrate --plan`` takes.
    """
    one, factor = prediction, parts.factor(prediction.iteration_s)
    has_steps, is_sync = _has_measured_steps(one), one.configuration.mode == "sync"
    command = f"planner calibrate --network {shlex.quote(subject.network_option or subject.network)}"
    if has_steps or (sum(one.kernel_shares[name] for name in MEASURED_LOOKUPS) >= LARGE_SHARE and one.doubt):
        is_run_here = not one.configuration.besides and subject.settings.framework.variant == PYTORCH.name
        runs = f" {RUNS}" if has_steps or not is_run_here else ""  # of plans that a file keeps
        command = f"planner calibrate --plan plan.json{runs}" if is_kept and (is_sync or not runs) else ""
    narrowing = f" To narrow it: `{command}`" if command else ""
    if factor is None:
        return Line(f"Accuracy unknown: no part of it was compared with measured runs.{narrowing}")
    why = _because(prediction, subject)
    return Line(f"90% interval: a factor of {format_number(factor)} either way, {why}.{narrowing}")


def _because(one: Prediction, subject: Subject) -> str:
    scope = next(iter(one.doubt), "")
    if _has_measured_steps(one):
        return f"corrected by measured steps of {subject.network}"
    if any("reconstructed" in term.origins for term in one.terms):
        return "from a reconstruction of published results"
    if scope == "kernels":
        shares = one.kernel_shares
        if shares["specification"] + shares["sibling"] < LARGE_SHARE:
            own = any(shares[name] for name in MEASURED_LOOKUPS)
            which, were = ("only some", "") if own else ("the", "not ")
            return f"because {which} layers of {subject.network} were {were}timed"
        is_specified = shares["specification"] >= shares["sibling"]
        way = "come from data sheets" if is_specified else f"are those of another {subject.device}"
        return f"because most kernel times {way}"
    if scope == "overheads":
        where, kind = ("on several nodes ", "multi-node ") if one.configuration.nodes > 1 else ("", "")
        ways = {f"framework_overheads_{way}" for way in ("pooled", "assumed", "generic", "without_switches")}
        if ways & {warning.code for warning in one.warnings}:
            framework = subject.settings.framework.label
            return f"because steps of {framework} {where}were not measured on this {subject.device}"
        return f"the error on measured {kind}steps"
    if scope == "collectives":
        how = "not measured"
        own_terms = [term for term in one.terms if term.name == "all_reduce" and "specified" not in term.origins]
        if own_terms:
            how = f"measured {'at other sizes or ranks' if own_terms[0].extrapolated else 'with some error'}"
        return f"because messages between {subject.device}s of {subject.cluster} were {how}"
    return {
        "storage": "because reading and copying samples was not measured",
        "host": "because copies between host and device were not measured",
    }.get(scope, "because every part is uncertain")


def _has_measured_steps(one: Prediction) -> bool:
    return any(warning.code == "measured_steps" for warning in one.warnings)


MOST_NAMED = 2
"""Changes that a sentence names; the others are counted."""


def sensitivity_lines(suggestion: Suggestion, subject: Subject) -> Iterator[Line]:
    """Yield which changes make another plan the best, and which; nothing where it was not asked for."""
    every = suggestion.sensitivity
    if not every:
        return
    others = [one for one in every if one.is_other]
    if not others:
        yield Line(f"Sensitivity: changing any one input by {_share(every[0])} leaves plan 1 the best")
        return
    words = []
    for one in others[:MOST_NAMED]:
        more_or_less = "more" if one.factor > 1 else "less"
        change = f"{_share(one)} {more_or_less} {one.input.replace('device', subject.device)}"
        if one.best is None:
            words.append(f"with {change} nothing fits")
            continue
        plan = f"plan {one.position}" if one.position else parts.configuration_words(one.best, subject.device)
        of = f", in {one.framework.label}," if one.framework and not one.position else ""
        words.append(f"{change} makes {plan}{of} the best")
    words += [f"{len(others) - MOST_NAMED} more (--json)"] * (len(others) > MOST_NAMED)
    rest = len(every) - len(others)
    yield Line(f"Sensitivity: {'; '.join(words)}; {rest} of {len(every)} changes leave plan 1 the best")


def _share(one: Sensitivity) -> str:
    return f"{100 * abs(one.factor - 1):.0f}%"


KEPT = "plan.json"
"""Name of the file that holds the answer."""
TABLE = f"planner explain {KEPT} --part runs"
RUN_HERE = f"planner calibrate --plan {KEPT}"


def deciding(suggestion: Suggestion, subject: Subject, *, in_full: bool = False) -> Iterator[Block]:
    """Yield which plans to run and the command that comes first, or ``in_full`` all of them; nothing without ties."""
    if not suggestion.deciding:
        return
    runs = suggestion.deciding_plans
    frameworks = {one.subject(subject).settings.framework.name for one in runs}
    is_run_here = frameworks == {PYTORCH.name} and all(one.prediction.configuration.gpus == 1 for one in runs)
    *others, last = map(str, suggestion.deciding)
    plans = f"plans {', '.join(others)} and {last}"
    if not in_full:
        yield Line(f"To decide between {plans}: `{RUN_HERE if is_run_here else TABLE}`", spare=True)
        return
    yield heading(f"Runs that would decide between {plans}")
    yield Line(f"this answer in {KEPT}: the same command with --json > {KEPT}")
    if is_run_here:  # by planner calibrate itself
        yield Line(f"{RUN_HERE} --out refined.json", whole=True)
    else:
        starts = ((one.position, job_of(one.to_start(subject)).line) for one in runs)
        yield from (Line(f"plan {position}: {line}", whole=True) for position, line in starts)
        yield Line(f"{TABLE} > runs.csv  # fill in value: seconds of a step", whole=True)
        yield Line(f"{RUN_HERE} --runs runs.csv --out refined.json", whole=True)
    yield Line("then the same command with --calibration refined.json")


def launch(plan: PlanToStart, *, in_short: bool = False) -> Iterator[Line]:
    """Yield the command that starts the processes of a plan, or why none does; ``in_short``: what writes it."""
    job = job_of(plan)
    if job.refusal or job.untold:
        framework = plan.subject.settings.framework.label
        yield Line(f"No start line: {job.refusal or f'{framework} has no flag or key for {job.untold[0]}'}.")
        return
    if len(plan.configuration.groups) > 1:
        lines = _across_groups(plan.configuration, job)
    else:
        words = ["Start:", *job.settings, *job.command(file=job.file_name)]
        *before, line = "\n  ".join(wrapped(words, LINE_WIDTH - len("   \\"))).split("\n")
        lines = [*(f"{one} \\" for one in before), line]
        lines = _with_comment([*(f"{one} \\" for one in before), line], job.comment)
        if (in_short and len(lines) > 2) or max(map(len, lines)) > LINE_WIDTH:
            lines = [f"Start: planner render {KEPT} --to slurm -o job.sh"]
    yield from (Line(line, whole=True) for line in lines)


def _with_comment(lines: list[str], comment: str) -> list[str]:
    """Return the lines of a command with what is to be known beside it, behind the last one or below."""
    words = f"{lines[-1]}  # {comment}"
    if comment and len(words) <= LINE_WIDTH:
        return [*lines[:-1], words]
    return [*lines, *(f"  # {part}" for part in wrap(comment, LINE_WIDTH - len("  # ")))]


def _across_groups(one: Configuration, job: Job) -> list[str]:
    """Return the commands of a plan across node groups: each group's ranks have passes of their own."""
    times = [f" x {part.accumulation_steps}" if part.accumulation_steps > 1 else "" for part in one.groups]
    each = (f"{part.sub_batch}{passes} on {part.name}" for part, passes in zip(one.groups, times, strict=True))
    comment = f"sub-batch {', '.join(each)}, {one.precision}"
    if job.starter == "torchrun":
        lines = [f"Start: torchrun --nnodes {one.nodes} --nproc-per-node gpu --rdzv-backend c10d \\"]
        lines.append("  --rdzv-endpoint FIRST_NODE train.py")
    else:
        comment = f"slots {' + '.join(f'{part.nodes} x {part.gpus_per_node}' for part in one.groups)}, {comment}"
        lines = [f"Start: mpirun -np {one.gpus} --hostfile HOSTS PROGRAM"]
    return _with_comment(lines, comment)
