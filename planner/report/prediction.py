"""Predictions in full (figures, terms, where they come from), and side by side in a table, one a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase

from planner.domain.axes import ALL, AXES, Axis
from planner.domain.configuration import NEUTRAL
from planner.domain.framework import framework_parts, label_of
from planner.domain.precision import precision_named
from planner.domain.prediction import LOOKUPS, Citation, Prediction, Quantity
from planner.domain.provenance import PREDICTION_KINDS
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Plan
from planner.report import parts
from planner.report.blocks import LINE_WIDTH, Block, Line, Pairs, Table, given, heading, width_of
from planner.units import format_bytes, format_count, format_duration, format_number

NO_KINDS = ("total", "capacity", "low", "high")
"""Of memory."""
LEAST_GAIN = 0.03
"""Share of a step from which a gain is told."""


def place(subject: Subject) -> str:
    """Return network, what of it is trained, cluster and scenario in words."""
    what_if = f", scenario {subject.scenario}" if subject.scenario else ""
    trained = ""
    if subject.parameters:
        counts = format_count(subject.trained_parameters), format_count(subject.parameters)
        how = "" if subject.settings.trainable == ALL else f"{subject.settings.trainable}: "
        trained = f" ({how}{counts[0]} of {counts[1]} parameters trained)"
    return f"{_network_name(subject)}{trained} on {subject.cluster}{what_if}"


def _network_name(subject: Subject) -> str:
    """Return the name of a network; of one read from a folder or a JSON file, whose name is its sizes, that of it."""
    text, colon, rest = subject.network_option.partition(":")
    path = Path(text)
    if ":" not in subject.network or ("/" not in text and path.suffix != ".json"):
        return subject.network
    name = path.parent.name if path.name == "config.json" else path.stem if path.suffix == ".json" else path.name
    return f"{name or text}{colon}{rest}"


def prediction_details(prediction: Prediction, subject: Subject, citations: Iterable[Citation]) -> Iterator[Block]:
    """Yield figures, terms and origins of one prediction."""
    yield figures(prediction, subject)
    yield heading("Terms")
    yield parts.terms(prediction.terms, prediction.bottleneck, subject.device)
    yield from lookups([prediction])
    precision = prediction.configuration.precision
    if precision_named(precision).master_bytes:
        sent = f"gradients sent as {subject.settings.framework.message_bytes(precision)} bytes an element"
        yield Line(f"{precision}: mixed precision, fp32 master weights, {sent}")
    yield heading("Where the times come from")
    yield parts.origins(prediction.terms, citations)


def prediction_rest(
    rows: Sequence[tuple[Subject, Prediction]], request: Mapping[str, Sourced[object]], citations: Iterable[Citation]
) -> Iterator[Block]:
    """Yield what a short answer leaves out: every figure of each prediction, and the values they rest on."""
    all_citations = list(citations)
    for subject, one in rows:
        yield heading(f"{place(subject)}: {parts.configuration_words(one.configuration, subject.device)}")
        yield from prediction_details(one, subject, all_citations)
    if request:
        yield heading("Values and their sources")
        yield from parts.request_values(request)


def fusion_lines(rows: Sequence[tuple[Subject, Prediction]], gains: Sequence[float | None]) -> Iterator[Line]:
    """Yield how much of a step the best messages of gradients would save; nothing where they would save nothing."""
    for at, ((_, one), gain) in enumerate(zip(rows, gains, strict=True), 1):
        share = 0.0 if gain is None else gain / one.iteration_s.value
        if gain is not None and share >= LEAST_GAIN:
            step = f"step {at}" if len(rows) > 1 else "a step"
            saved = f"{format_duration(gain)} of {step} ({share:.1%})"
            yield Line(f"With --strategy best-fusion, gradients in the fastest buckets, it would save {saved}.")


def figures(prediction: Prediction, subject: Subject) -> Pairs:
    """Return every figure with its interval, by name; a time never without mini-batch and staleness."""
    cost = prediction.epoch_usd(subject.usd_per_gpu_hour)
    iteration = f"{subject.device} thread's period" if prediction.configuration.mode == "async" else "iteration"
    first_epoch_s = None if prediction.first_epoch_s == prediction.epoch_s else prediction.first_epoch_s
    batch, words = prediction.mini_batch, f"{parts.mini_batch(prediction.mini_batch)} samples"
    if batch.std:
        words += f", 90% between {batch.p05:.4g} and {batch.p95:.4g}"
        inside = batch.probability_in_window
        words += f"; {inside:.0%} of updates inside the window" if inside is not None else ""
        words += parts.empty_updates(prediction)
    memory, kinds = parts.memory_needed(prediction, subject.device), prediction.memory_bytes
    names = sorted(
        (key for key, size in kinds.items() if key not in NO_KINDS and size > 0), key=lambda key: -kinds[key]
    )
    memory += f": {', '.join(f'{key} {format_bytes(kinds[key])}' for key in names)}" if names else ""
    staleness, pmf = "0 updates", prediction.staleness.pmf.items()
    if mean := prediction.staleness.mean:
        chances = ", ".join(f"{value}: {chance:.0%}" for value, chance in pmf if chance >= 0.005)
        staleness = f"{mean:.3g} updates on average" + (f" ({chances})" if chances else "")
    rows = [
        ("epoch", parts.duration(prediction.epoch_s)),
        ("first epoch", parts.duration(first_epoch_s)),
        ("cost of an epoch", parts.figure(cost, "USD") if cost else ""),
        (iteration, parts.duration(prediction.iteration_s)),
        ("update thread's period", parts.duration(prediction.update_s)),
        ("speed", parts.speed(prediction.samples_per_s, subject)),
        *parts.partition(prediction, subject.device),
        ("mini-batch", words),
        ("staleness", staleness),
        ("memory", memory),
        ("bottleneck", parts.term_words(prediction.bottleneck)),
        ("intervals", _intervals(prediction)),
    ]
    return given(rows)


def lookups(predictions: Sequence[Prediction]) -> Iterator[Line]:
    """Yield how the kernel time was found, by share: from the least to the most of several; nothing without kernels."""
    shares_of_each = [one.kernel_shares for one in predictions if any(one.kernel_shares.values())]
    words = []
    for lookup, by in LOOKUPS.items():
        shares = [of_one[lookup] for of_one in shares_of_each]
        if any(shares):  # a little is never none
            low, high = ("<0.1%" if 0 < share < 0.0005 else f"{share:.1%}" for share in (min(shares), max(shares)))
            words.append(f"{high if low == high else f'{low} to {high}'} {by}")
    if words:
        yield Line(f"Kernel time: {', '.join(words)}")


def _intervals(prediction: Prediction) -> str:
    """Return what the intervals of times rest on; nothing where there are none."""
    words = BASES.get(prediction.iteration_s.interval_basis)
    if words is None:
        return ""
    kind = PREDICTION_KINDS.get(prediction.kind)
    if prediction.iteration_s.interval_basis != "conformal" or kind is None:
        return f"90%, {words}"
    outside = ", outside the measured range" if kind.is_outside else ""
    return f"90%, {words} {PLACES_IN_WORDS[kind.place]}, {EVIDENCE_IN_WORDS[kind.evidence]}{outside}"


BASES = {
    "assumed": "partly from stated assumptions",
    "covariance": "from the errors of the fits",
    "conformal": "from the errors on measured runs (conformal):",
}
"""Basis of intervals -> what they rest on."""
PLACES_IN_WORDS = {"one_gpu": "one GPU", "one_node": "one node", "several_nodes": "several nodes"}
EVIDENCE_IN_WORDS = {
    "measured": "kernels measured",
    "scaled": "kernels scaled from another GPU or precision",
    "specified": "kernels from the data sheet",
}


LINE_NOTE = "plans within 1% on the same ranks share a row"
MOST_KINDS = 2
"""Numbers of a line that are all printed."""
BEYOND_NOTE = "* outside what was measured"
FACTOR_HEADING = "factor\n(90%)"
EFFICIENCY_HEADING = "effi-\nciency"
DROPPED_COLUMNS = (
    FACTOR_HEADING,
    EFFICIENCY_HEADING,
    "plan 1\nbetter",
    "samples\n/s/{device}",
    "tokens\n/s/{device}",
    "stale-\nness",
    "{device}-\nhours",
    "memory\nGiB",
)
"""Columns that go where a line holds no more, the first one first; what tells plans apart stays."""
_LONGEST_NAME = 22
"""Signs of a framework's name that is never too long: none without switches has more."""
_OF_GROUPS = ("sub_batch", "accumulation_steps")
"""Axes whose values node groups have of their own."""
WORD_COLUMNS = (
    "network",
    "cluster",
    "scenario",
    "framework",
    "group",
    *(axis.heading for axis in AXES if axis.words),
    "",
)
"""Columns of words."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: a prediction, its number and subject, and what a ranking knows of it."""

    number: int  # 0: it is not among the ranked plans that are told
    prediction: Prediction
    subject: Subject
    precisions: tuple[str, ...] = ()
    first_is_better: float | None = None
    efficiency: float | None = None
    objective: float | None = None
    alike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def entries_of(plans: Iterable[Plan], subject: Subject) -> list[Entry]:
    """Return a row a plan."""
    names = ("precisions", "first_is_better", "efficiency", "objective", "alike")
    return [
        Entry(one.position, one.prediction, one.subject(subject), **{name: getattr(one, name) for name in names})
        for one in plans
    ]


def plan_table(entries: Sequence[Entry], chosen: int | None = None, note: str = "") -> Iterator[Block]:
    """Yield a table of plans on one kind of device, that of number ``chosen`` marked, what its marks mean and a note.

    The note is on efficiencies, and is left out where no column has them.

    A column that tells nothing is left out: one of empty cells, the mode, network or scenario where there is one, the
    mini-batch where all have the same. Where one has no data set samples or tokens a second stand for the epoch time.
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
    if any(one.alike for one in entries):
        meanings.append(LINE_NOTE)
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
    sizes = [parts.mini_batch(one.mini_batch) for one in predictions]
    noun, rates = "samples", [one.samples_per_s for one in predictions]
    if all(one.tokens for one in subjects):
        noun, rates = "tokens", [parts.in_tokens(one.prediction.samples_per_s, one.subject)[0] for one in entries]
    epochs = [one.epoch_s for one in predictions if one.epoch_s]
    speeds = {f"{noun}/s": [_rounded(one) for one in rates]}
    if len(epochs) == len(entries):
        speeds = {"epoch": [format_duration(one.value, parts.digits_of(one)) for one in epochs]}
    return {
        "#": [str(one.number or "") for one in entries],
        "network": _where_they_differ([one.network for one in subjects]),
        "cluster": _where_they_differ([one.cluster for one in subjects]),
        "scenario": _where_they_differ([one.scenario or "none" for one in subjects]),
        "framework": _where_they_differ([one.settings.framework.label for one in subjects]),
        "group": [" + ".join(part.name for part in one.groups) for one in configurations],
        f"nodes\nx {device}s": [
            " + ".join(f"{part.nodes} x {part.gpus_per_node}" for part in one.groups or (one,))
            for one in configurations
        ],
        **{axis.heading: _cells(axis, entries) for axis in AXES if axis.heading},
        "mini-\nbatch": sizes if any(one.mini_batch.std for one in predictions) else _where_they_differ(sizes),
        "stale-\nness": [format_number(one.staleness.mean) if stale else "" for one in predictions],
        "objec-\ntive": [_number(one.objective, 4) for one in entries],
        **speeds,
        FACTOR_HEADING: [_number(parts.factor(one.iteration_s)) for one in predictions],
        "plan 1\nbetter": ["" if one.first_is_better is None else parts.chance(one.first_is_better) for one in entries],
        f"{noun}\n/s/{device}": [
            _rounded(one, over=plan.gpus) for one, plan in zip(rates, configurations, strict=True)
        ],
        EFFICIENCY_HEADING: ["" if one.efficiency is None else f"{one.efficiency:.0%}" for one in entries],
        f"{device}-\nhours": [_rounded(one.epoch_s, times=one.configuration.gpus, over=3600) for one in predictions],
        "USD per\nepoch": [_rounded(one.prediction.epoch_usd(one.subject.usd_per_gpu_hour)) for one in entries],
        "memory\nGiB": [format_number(one.memory_bytes["total"] / 2**30, 3) for one in predictions],
        "": ["".join(mark for mark, holds in MARKS.items() if holds(one)) for one in predictions],
    }


def _cells(axis: Axis, entries: Sequence[Entry]) -> list[str]:
    """Return the cells of an axis, ``-`` where a word says nothing; empty where all have its default, or one mode."""
    if axis.name == "precision":
        return [" / ".join(one.precisions or (one.prediction.configuration.precision,)) for one in entries]
    value = parts.by_group if axis.name in _OF_GROUPS else getattr
    plans, is_neutral = [one.prediction.configuration for one in entries], NEUTRAL.get(axis.name)
    plain = ["-" if axis.words and is_neutral and is_neutral(one) else str(value(one, axis.name)) for one in plans]
    cells = []
    for one, cell in zip(entries, plain, strict=True):
        kinds = list(dict.fromkeys(one.alike.get(axis.name, (cell,))))  # of the plans of a line
        is_long = len(kinds) > MOST_KINDS and all(kind.isdecimal() for kind in kinds)
        cells.append(f"{min(map(int, kinds))} to {max(map(int, kinds))}" if is_long else " / ".join(kinds))
    if axis.name == "mode":
        return _where_they_differ(cells)
    return [""] * len(cells) if {*cells} <= {"-", str(axis.default)} else cells


def _where_they_differ(cells: list[str]) -> list[str]:
    return cells if len(set(cells)) > 1 else [""] * len(cells)


def _rounded(quantity: Quantity | None, *, times: float = 1.0, over: float = 1.0) -> str:
    """Return a multiple of a quantity, in as many digits as its interval leaves; nothing of None."""
    if quantity is None:
        return ""
    value, digits = quantity.value * times / over, parts.digits_of(quantity)
    return f"{format_number(value / 1e6, digits)} M" if value >= 1e6 else format_number(value, digits)


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else format_number(value, digits)


MARKS: Mapping[str, Callable[[Prediction], bool]] = {
    "*": lambda one: any(term.extrapolated for term in one.terms),
    "!": lambda one: one.memory_bytes["total"] > one.memory_bytes.get("capacity", float("inf")),
}
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
