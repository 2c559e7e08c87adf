"""Pieces that several reports share: figures with intervals, terms, origins, warnings, sources."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from planner.domain.configuration import Configuration
from planner.domain.framework import Framework
from planner.domain.objective import LIMITS
from planner.domain.prediction import Citation, MiniBatch, PlanWarning, Prediction, Quantity, Term
from planner.domain.request import DEFAULT, Sourced, Subject
from planner.domain.suggestion import Plan, Refused
from planner.report.blocks import Line, Pairs, Table
from planner.units import format_bytes, format_duration, format_number

Rows = Sequence[tuple[int, Sequence[PlanWarning]]]
"""Numbers of the rows of a table, and the warnings of each."""

SURE = 0.995
"""Probability from which one is printed as above 99 %."""
MOST_STAGES = 8
"""Of which layers are told in words."""
MOST_DECIMAL_PLACES = 3
"""Of a mini-batch."""
HYPHENATED_TERMS = ("all reduce", "all gather", "all to all", "reduce scatter")
"""Terms that people write with hyphens."""


def duration(value: Quantity | None) -> str:
    """Return a time with its central 90 % interval, in one unit, where there is one; nothing of None."""
    if value is None:
        return ""
    digits = digits_of(value)
    text = format_duration(value.value, digits)
    if value.low is None or value.high is None:
        return text
    low, high = (format_duration(end, digits, value.value) for end in (value.low, value.high))
    unit = "" if " d " in text else text.partition(" ")[2]
    return f"{text} ({low.removesuffix(f' {unit}')} to {high})"


def figure(value: Quantity, unit: str, digits: int | None = None) -> str:
    """Return a quantity in its unit, with its central 90 % interval where there is one; in millions from one of them.

    >>> figure(Quantity(8.1e6, 4.7e6, 14e6), "tokens/s")
    '8.1 M tokens/s (4.7 to 14)'
    """
    digits = digits or digits_of(value)
    scale, prefix = (1e6, "M ") if abs(value.value) >= 1e6 else (1.0, "")
    text = f"{format_number(value.value / scale, digits)} {prefix}{unit}"
    if value.low is None or value.high is None:
        return text
    return f"{text} ({format_number(value.low / scale, digits)} to {format_number(value.high / scale, digits)})"


def speed(rate: Quantity, subject: Subject, digits: int | None = None) -> str:
    """Return samples a second, of language models tokens, with their interval."""
    return figure(*in_tokens(rate, subject), digits)


def in_tokens(rate: Quantity, subject: Subject) -> tuple[Quantity, str]:
    """Return samples a second, of language models tokens, and the unit."""
    if not (tokens := subject.tokens):
        return rate, "samples/s"
    value, low, high = (end and end * tokens for end in (rate.value, rate.low, rate.high))
    return replace(rate, value=value or 0.0, low=low, high=high), "tokens/s"


def objective_of(request: Mapping[str, Sourced[object]]) -> str:
    """Return the objective of a request; the epoch's time where it has none."""
    return str(request["objective"].value) if "objective" in request else "epoch-time"


def digits_of(value: Quantity) -> int:
    """Return the significant digits that an interval leaves: 2, of 10 % or less 3, of 1 % or less or without one 4."""
    if value.high is None or not value.value:
        return 4
    reach = value.high / value.value - 1
    return 4 if reach <= 0.01 else 3 if reach <= 0.1 else 2


def factor(value: Quantity) -> float | None:
    """Return by what factor the ends of the 90 % interval lie from a value; None without an interval."""
    return None if value.high is None or not value.value else value.high / value.value


def mini_batch(batch: MiniBatch) -> str:
    """Return the mean, with its standard deviation, to two digits, where the mini-batch is random."""
    if not batch.std:
        return f"{batch.mean:.10g}"
    places = min(max(1 - math.floor(math.log10(batch.std)), 0), MOST_DECIMAL_PLACES)
    return f"{batch.mean:.{places}f} ± {batch.std:.{places}f}"


def configuration_words(
    configuration: Configuration,
    device: str = "GPU",
    precisions: Sequence[str] = (),
    framework: Framework | None = None,
) -> str:
    """Return a configuration as one line.

    ``device``: what it computes on; ``precisions``: all that are alike; ``framework``: its own, one of several.
    """
    one, groups = configuration, configuration.groups
    places = [f"{counted(of.nodes, 'node')} x {counted(of.gpus_per_node, device)}" for of in groups or (one,)]
    if len(groups) > 1:
        passes = [f" x {of.accumulation_steps}" if of.accumulation_steps > 1 else "" for of in groups]
        each = zip(places, groups, passes, strict=True)
        words = [" + ".join(f"{where} of {of.name} at sub-batch {of.sub_batch}{times}" for where, of, times in each)]
    else:
        words = [places[0] + (f" of {groups[0].name}" if groups else ""), f"sub-batch {one.sub_batch}"]
        words += [f"accumulation {one.accumulation_steps}"] * (one.accumulation_steps > 1)
    mode = "asynchronous" if one.mode == "async" else "synchronous"
    words += [" or ".join(precisions or (one.precision,)), mode, *one.besides]
    return ", ".join([*words, *([f"in {framework.label}"] if framework else [])])


def plan_words(plan: Plan, device: str) -> str:
    """Return the configuration of a plan, with all precisions that are alike and its own framework, if it has one."""
    return configuration_words(plan.prediction.configuration, device, plan.precisions, plan.framework)


def by_group(configuration: Configuration, axis: str) -> str:
    """Return the value of an axis, or those of several node groups where they differ."""
    values = [getattr(part, axis) for part in configuration.groups or (configuration,)]
    return " + ".join(map(str, values)) if len(set(values)) > 1 else str(values[0])


def group_steps(prediction: Prediction) -> str:
    """Return what each node group needs of a step by itself; nothing of a plan on one kind of nodes."""
    times = sorted(prediction.groups_s.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_duration(seconds, 3)}" for name, seconds in times)


def counted(count: int, noun: str) -> str:
    """Return a number of things: ``1 node``, ``2 nodes``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def term_words(name: str) -> str:
    """Return the name of a term as people write it."""
    words = name.replace("_", " ")
    return next((words.replace(one, one.replace(" ", "-")) for one in HYPHENATED_TERMS if one in words), words)


def terms(of_threads: Iterable[Term], bottleneck: str, device: str = "GPU", *, brief: bool = False) -> Table:
    """Return terms by thread: what each takes, what it adds after overlap, its share and where it comes from.

    Terms that take no time are left out; with ``brief`` so are the names of calibrations, and a mark stands for
    ``extrapolated``.
    """
    with_time = [term for term in of_threads if term.seconds or term.exposed_seconds]
    outside = ["" if brief or not term.extrapolated else ", extrapolated" for term in with_time]
    columns = {
        "thread": [device if term.thread == "gpu" else term.thread for term in with_time],
        "term": [term_words(term.name) for term in with_time],
        "takes": [format_duration(term.seconds, 3) for term in with_time],
        "adds": [format_duration(term.exposed_seconds, 3) for term in with_time],
        "share": [f"{term.share:.1%}" for term in with_time],
        "origin": [" + ".join(term.origins) + far for term, far in zip(with_time, outside, strict=True)],
        "calibration": [] if brief else [term.calibration or "-" for term in with_time],
        "": ["*" if term.extrapolated else "" for term in with_time] if brief else [],
    }
    if len(set(columns["thread"])) < 2:
        columns.pop("thread")
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    strong = [at for at, term in enumerate(with_time) if term.name == bottleneck]
    rows = list(zip(*columns.values(), strict=True))
    return Table(list(columns), rows, right=("takes", "adds", "share"), strong=strong)


def refusals(refused: Sequence[Refused]) -> Iterator[Table]:
    """Yield how many plans were refused for which reason, precisions that have no times last; nothing without any."""
    if refused:
        in_order = sorted(refused, key=lambda one: one.code == "precision")
        rows = [(f"{one.count:,}", one.reason.replace("_", " ")) for one in in_order]
        yield Table(("refused", "because"), rows, right=("refused",))


def memory_needed(one: Prediction, device: str = "GPU") -> str:
    """Return needed of available memory of one device, its interval, and how likely it suffices."""
    memory, capacity = one.memory(), one.memory_bytes.get("capacity")
    of = f" of {format_bytes(capacity)}" if capacity else ""
    fits = "" if one.fits is None or one.fits >= SURE else f", fits with probability {chance(one.fits)}"
    gib = [format_number(end / 2**30, 3) for end in (memory.low, memory.high) if end]
    ends = f" ({' to '.join(gib)})" if gib else ""
    return f"{format_bytes(memory.value)}{ends}{of} on one {device}{fits}"


def empty_updates(one: Prediction) -> str:
    """Return the end of a phrase on the mini-batch: how many updates find no gradient; empty where hardly any does."""
    return f"; {one.empty_share:.0%} of updates empty" if one.empty_share >= 1 - SURE else ""


def chance(probability: float) -> str:
    """Return a probability; nothing is sure enough to be printed as 0 or 100 %."""
    return ">99%" if probability >= SURE else "<1%" if probability < 1 - SURE else f"{probability:.0%}"


def first_names(names: Sequence[str], most: int) -> str:
    """Return names, and how many more there are than ``most``."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def stages(prediction: Prediction) -> str:
    """Return the layers that the stages of a pipeline start with, the first few of many; nothing: not cut so."""
    return first_names(prediction.stages, MOST_STAGES)


def shared_layers(prediction: Prediction) -> str:
    """Return which layers devices share by which scheme, the most frequent last; nothing: none."""
    if prediction.shared_layers is None:
        return ""
    by_scheme: dict[str, list[str]] = {}
    for layer, scheme in prediction.shared_layers.schemes.items():
        by_scheme.setdefault(scheme, []).append(layer)
    *some, (last, every) = sorted(by_scheme.items(), key=lambda one: len(one[1]))
    words = [f"{first_names(layers, MOST_STAGES)} by {scheme}" for scheme, layers in some]
    return ", ".join([*words, f"{'all other' if some else 'all'} {counted(len(every), 'layer')} by {last}"])


def instead_of_data(prediction: Prediction) -> str:
    """Return what devices send that share layers, and what data parallelism alone takes; nothing: they share none."""
    if (one := prediction.shared_layers) is None:
        return ""
    sent, of_data = map(format_bytes, (one.sent_bytes, one.data_sent_bytes))
    return (
        f"sends {sent} a step; with data parallelism alone {of_data}, a step of {format_duration(one.data_iteration_s)}"
    )


def stage_layers(prediction: Prediction) -> str:
    """Return what the stages of a pipeline hold, those in a row that are equal once; nothing: all alike."""
    groups = [(one, len(list(equal))) for one, equal in groupby(prediction.stage_layers)]
    words = []
    for one, times in groups[:MOST_STAGES]:
        again = "all" if one.again == one.layers else str(one.again)
        selective = ", selective" if one.recompute == "selective" else ""
        recomputed = f" ({again} recomputed{selective})" if one.again else ""
        words.append(f"{f'{times} x ' if times > 1 else ''}{counted(one.layers, 'layer')}{recomputed}")
    rest = sum(times for _, times in groups[MOST_STAGES:])
    return ", ".join(words) + (f" and {rest} more stages" if rest else "")


def partition(one: Prediction, device: str, *, brief: bool = False) -> Iterator[tuple[str, str]]:
    """Yield utilization and how a network is split, by name; ``brief``: in the words of a short answer.

    MFU is known for some networks, and HFU differs where something is computed again.
    """
    starts, order = stages(one), ", ".join(one.rank_order)
    again = "" if one.hfu is None or one.hfu == one.mfu else f", HFU {one.hfu:.1%}"
    is_known = one.mfu is not None and one.hfu is not None
    yield "utilization", f"MFU {one.mfu:.1%}{again}, masked pairs counted" if is_known else ""
    yield ("stages start", f"with {starts}" if starts else "") if brief else ("stages start with", starts)
    yield "stages hold", stage_layers(one)
    yield "groups share", shared_layers(one)
    yield f"each {device}", instead_of_data(one)
    yield ("ranks", f"numbered {order}" if order else "") if brief else ("ranks numbered", order)


def origins(of_answer: Iterable[Term], citations: Iterable[Citation]) -> Pairs:
    """Return origin and source of every calibration that the terms name, then what is stated or assumed."""
    terms_of_answer = list(of_answer)
    names = {name for term in terms_of_answer for name in term.calibrations}
    rows = []
    for one in citations:
        if one.name in names:
            origin = "" if one.source.startswith(one.origin) else one.origin
            rows.append((one.name, ", ".join(filter(None, (origin, sources_once(one.source), one.date)))))
    for origin, words in (("specified", "from stated figures of the hardware"), ("assumed", "in part")):
        of_origin = dict.fromkeys(term_words(term.name) for term in terms_of_answer if origin in term.origins)
        if of_origin:
            rows.append((origin, f"{', '.join(of_origin)}: {words}"))
    return Pairs(rows)


def sources_once(text: str) -> str:
    """Return citations joined by semicolons, each once: files of one source may have named it several times."""
    return "; ".join(dict.fromkeys(text.split("; ")))


def warnings(of_all: Iterable[PlanWarning], of_rows: Rows = (), *, result: bool = False) -> Iterable[Line]:
    """Yield each distinct warning as an indented paragraph under a heading; nothing without any.

    They stand beside the result, or with ``result`` are it. Of the numbered rows of a table, those that a warning is of
    are named, unless it is of all of them.
    """
    rows_of: dict[PlanWarning, list[int]] = {warning: [] for warning in of_all}
    for number, of_row in of_rows:
        for warning in dict.fromkeys(of_row):
            rows_of.setdefault(warning, []).append(number)
    if rows_of:
        yield Line("Warnings", "bold", aside=not result)
    for warning, numbers in rows_of.items():
        subject, rows = f" ({warning.subject})" if warning.subject else "", ""
        if 0 < len(numbers) < len(of_rows):  # those that follow one another as a span: 1-3, 7
            starts = [one for one in numbers if one - 1 not in numbers]
            ends = [one for one in numbers if one + 1 not in numbers]
            spans = (str(low) if low == high else f"{low}-{high}" for low, high in zip(starts, ends, strict=True))
            rows = f", #{', '.join(spans)}"
        yield Line(warning.message, indent=2, label=f"{warning.code}{subject}{rows}: ", aside=not result)


def request_values(request: Mapping[str, Sourced[object]]) -> Iterator[Table | Pairs]:
    """Yield every value of a request with its source; plain defaults together, one after another.

    A value that the plan decides is None, and its source says in words what stands for it.
    """
    rows = []
    for name, one in request.items():
        text, (source, colon, words) = _plain(one.value), one.source.partition(": ")
        if name == "limit" and isinstance(one.value, Mapping):
            most = one.value.items()
            text = ", ".join(f"{key}={end:.12g}{'s' if LIMITS[key].unit == 's' else ''}" for key, end in most)
        is_of_plan = bool(colon) and one.value is None
        rows.append((name.replace("_", "-"), *((words, source) if is_of_plan else (text, one.source))))
    yield Table(("value of", "is", "from"), [row for row in rows if row[2] != DEFAULT])
    defaults = "; ".join(f"{name} {text}" for name, text, source in rows if source == DEFAULT)
    if defaults:
        yield Pairs([("defaults", defaults)])


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, Mapping):
        words = {key: _plain(one) for key, one in value.items()}
        shared = set(words.values())
        return shared.pop() if len(shared) == 1 else ", ".join(f"{text} {key}" for key, text in words.items())
    if isinstance(value, tuple | list) and all(isinstance(one, int) for one in value):
        steps = {after - before for before, after in pairwise(value)}
        if len(value) > 2 and len(steps) == 1 and min(steps) > 0:  # as a range may be typed
            step = steps.pop()
            return f"{value[0]}:{value[-1]}" + (f":{step}" if step > 1 else "")
        return ",".join(map(str, value))
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
