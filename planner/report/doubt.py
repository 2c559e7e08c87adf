"""How good an answer is, why it is not better, and the command that would make it so.

Also: what a change of single inputs does to the best plan, and the runs that would decide between tied plans.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from planner.domain.framework import PYTORCH
from planner.domain.prediction import Prediction
from planner.domain.request import Subject
from planner.domain.sensitivity import Sensitivity
from planner.domain.suggestion import Suggestion
from planner.report import parts
from planner.report.blocks import Block, Line, heading
from planner.units import format_number

__all__ = ["deciding_commands", "deciding_line", "goodness", "sensitivity_lines"]

MEASURED_LOOKUPS = ("exact", "between", "beyond")
"""Of LOOKUPS those of a network's own layers."""
RUNS = "--runs FILE.csv"
LARGE_SHARE = 0.5
"""Share of the kernel time from which a way of finding it stands for all."""


def goodness(prediction: Prediction, subject: Subject, *, is_kept: bool = False) -> Line:
    """Return one sentence: the factor, the part that most of it comes from, and what would narrow it.

    ``is_kept``: ``--json`` of the answer is a file that ``planner calibrate --plan`` takes.
    """
    factor = parts.factor(prediction.iteration_s)
    command = _command(prediction, subject, is_kept=is_kept)
    narrowing = f"; to narrow it: `{command}`" if command else ""
    if factor is None:
        return Line(f"How good this is is not known: nothing it rests on was compared with measured runs{narrowing}")
    why = _because(prediction, subject)
    return Line(f"Good to a factor of {format_number(factor)} (90 %), because {why}{narrowing}")


def _because(one: Prediction, subject: Subject) -> str:
    scope = next(iter(one.doubt), "")
    if _has_measured_steps(one):
        return f"measured steps of {subject.network} correct it"
    if any("reconstructed" in term.origins for term in one.terms):
        return "it rests on a reconstruction of published results"
    if scope == "kernels":
        return _because_of_kernels(one, subject)
    if scope == "overheads":
        return _because_of_overheads(one, subject)
    if scope == "collectives":
        return f"messages between {subject.device}s of {subject.cluster} were not measured"
    return (
        "reading and copying samples was not measured"
        if scope in ("storage", "host")
        else "all its parts are uncertain"
    )


def _because_of_kernels(one: Prediction, subject: Subject) -> str:
    shares = one.kernel_shares
    if shares["specification"] + shares["sibling"] < LARGE_SHARE:
        own = sum(shares[name] for name in MEASURED_LOOKUPS)
        return f"{'only some' if own else 'the'} layers of {subject.network} were {'' if own else 'not '}timed"
    is_specified = shares["specification"] >= shares["sibling"]
    way = "come from data sheets" if is_specified else f"are those of another {subject.device}"
    return f"most kernel times {way}"


def _because_of_overheads(one: Prediction, subject: Subject) -> str:
    framework = subject.settings.framework.label
    where = "on several nodes " if one.configuration.nodes > 1 else ""
    codes = {warning.code for warning in one.warnings}
    ways = ("pooled", "assumed", "generic", "without_switches")
    if codes & {f"framework_overheads_{way}" for way in ways}:
        return f"steps of {framework} {where}were not measured on this {subject.device}"
    return f"measured steps of {framework} {where}differ by as much"


def _command(one: Prediction, subject: Subject, *, is_kept: bool) -> str:
    """Return the command that measures what is unsure most; none where that is runs of plans that no file keeps.

    Layers that were not timed yet come first; then short runs of the plans themselves, which one device makes in
    PyTorch of those that leave the network whole.
    """
    has_steps, is_sync = _has_measured_steps(one), one.configuration.mode == "sync"
    if has_steps or (sum(one.kernel_shares[name] for name in MEASURED_LOOKUPS) >= LARGE_SHARE and one.doubt):
        is_run_here = not one.configuration.is_split and subject.settings.framework.variant == PYTORCH.name
        runs = f" {RUNS}" if has_steps or not is_run_here else ""
        return f"planner calibrate --plan plan.json{runs}" if is_kept and (is_sync or not runs) else ""
    return f"planner calibrate --network {shlex.quote(subject.network_option or subject.network)}"


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
        yield Line(f"Sensitivity: {_share(every[0])} more or less of any one input leaves plan 1 the best")
        return
    words = [_words(one, subject) for one in others[:MOST_NAMED]]
    words += [f"{len(others) - MOST_NAMED} more (--json)"] * (len(others) > MOST_NAMED)
    rest = len(every) - len(others)
    yield Line(f"Sensitivity: {'; '.join(words)}; {rest} of {len(every)} changes leave plan 1 the best")


def _words(one: Sensitivity, subject: Subject) -> str:
    """Return a change and what is the best plan then."""
    amount = f"{_share(one)} {'more' if one.factor > 1 else 'less'}"
    change = f"{amount} {one.input.replace('device', subject.device)}"
    if one.best is None:
        return f"with {change} nothing fits"
    plan = f"plan {one.position}" if one.position else parts.configuration_words(one.best, subject.device)
    of = f", in {one.framework.label}," if one.framework and not one.position else ""
    return f"{change} makes {plan}{of} the best"


def _share(one: Sensitivity) -> str:
    return f"{100 * abs(one.factor - 1):.0f} %"


KEPT = "plan.json"
"""Name of the file that holds the answer."""
TABLE = f"planner explain {KEPT} --part runs"
RUN_HERE = f"planner calibrate --plan {KEPT}"


def deciding_line(suggestion: Suggestion, subject: Subject) -> Iterator[Line]:
    """Yield which plans to run, and the command that comes first; nothing without ties."""
    if suggestion.deciding:
        command = RUN_HERE if _run_here(suggestion, subject) else TABLE
        yield Line(f"To decide between plans {_positions(suggestion)}: `{command}`")


def deciding_commands(suggestion: Suggestion, subject: Subject) -> Iterator[Block]:
    """Yield all commands, from keeping the answer to the next one; nothing without ties."""
    if not suggestion.deciding:
        return
    yield heading(f"Runs that would decide between plans {_positions(suggestion)}")
    yield Line(f"this answer in {KEPT}: the same command with --json > {KEPT}")
    if _run_here(suggestion, subject):
        yield Line(f"{RUN_HERE} --out refined.json", whole=True)
    else:
        yield from (Line(f"plan {one.position}: {one.start(subject)}", whole=True) for one in suggestion.deciding_plans)
        yield Line(f"{TABLE} > runs.csv  # fill in value: seconds of a step", whole=True)
        yield Line(f"{RUN_HERE} --runs runs.csv --out refined.json", whole=True)
    yield Line("then the same command with --calibration refined.json")


def _run_here(suggestion: Suggestion, subject: Subject) -> bool:
    """Return whether ``planner calibrate`` itself runs the plans: those of one device, in PyTorch."""
    runs = suggestion.deciding_plans
    frameworks = {one.subject(subject).settings.framework.name for one in runs}
    return frameworks == {PYTORCH.name} and all(one.prediction.configuration.gpus == 1 for one in runs)


def _positions(suggestion: Suggestion) -> str:
    *others, last = map(str, suggestion.deciding)
    return f"{', '.join(others)} and {last}"
