"""Studies beside an answer, for people: sweeps, why not, validations, kernels one by one, batches of inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, UPDATE, KernelRow
from planner.domain.objective import Objective, objective_named
from planner.domain.prediction import Batch, Quantity
from planner.domain.request import Subject
from planner.domain.runs import ErrorSummary, Locked, ScoredRow, Validation
from planner.domain.samples import Verified, VerifiedTerm
from planner.domain.suggestion import RankedPlan, Sweep, SweptPlan, WhyNot
from planner.report import parts
from planner.report.blocks import Block, Line, Table, given, heading, listing, title
from planner.report.plots import BESIDE, LINE_COLOUR, SERIES_LOOKS, picture, plain_logarithms
from planner.report.prediction import place
from planner.units import duration_unit, format_bytes, format_duration, format_number, format_seconds

MOST_ROWS, MOST_COLUMNS = 12, 8
"""Numbers of nodes and sub-batches that a table shows."""


def sweep_view(sweep: Sweep, subject: Subject, most_rows: int = MOST_ROWS) -> Iterator[Block]:
    """Yield the best plan in a sentence, and the objective by nodes and sub-batch; at most 25 lines."""
    best = sweep.best
    words = parts.configuration_words(best.configuration, subject.device)
    rate = _tokens_per_s(sweep, best.objective, subject)
    value = rate or f"{_what(sweep)} {_objective(sweep).text(best.objective)}"
    yield title(f"{place(subject)}: best {value} with {words}")
    nodes = _spread([one.configuration.nodes for one in sweep.plans], most_rows, best.configuration.nodes)
    sizes = _sizes(sweep)
    of = {(one.configuration.nodes, one.configuration.sub_batch): one for one in sweep.plans}
    least = sweep.of_nodes
    number_of, heads = _shown(sweep, subject)

    def cell(one: SweptPlan | None, marked: SweptPlan | None = None) -> str:
        return "-" if one is None else format_number(number_of(one.objective), 3) + ("*" if one is marked else "")

    rows = [[str(n), *(cell(of.get((n, size)), least[n]) for size in sizes), cell(least[n])] for n in nodes]
    columns = ["nodes", *(str(size) for size in sizes), "best"]
    yield Line(f"\n{heads} by nodes (down) and sub-batch (across); *: best of its row")
    others = [str(size) for size in sizes if size != best.configuration.sub_batch]
    strong = [nodes.index(best.configuration.nodes)]
    yield Table(columns, rows, columns, strong=strong, fixed=True, dropped=others[1:-1:2])
    of_nodes, of_sizes = (len({plan[at] for plan in of}) for at in (0, 1))
    if (len(nodes), len(sizes)) != (of_nodes, of_sizes):
        shown = f"{len(nodes)} of {of_nodes:,} numbers of nodes, {len(sizes)} of {of_sizes:,} sub-batches"
        yield Line(f"shown: {shown}; --json has all")
    more = "" if sweep.is_complete else "; it was interrupted, and others may be better"
    yield Line(f"{sweep.evaluated:,} plans of {sweep.candidates:,} candidates priced{more}")


def sweep_plot(sweep: Sweep, subject: Subject, form: str) -> bytes:
    """Return a picture of the objective against nodes, a line a sub-batch, and the best of all.

    MissingPackageError where Matplotlib is not installed.
    """

    def draw(axes: Any) -> None:
        sweep_lines(sweep, axes, subject)
        axes.set_title(place(subject), loc="left")
        axes.legend(title="sub-batch", **BESIDE)

    return picture(draw, form)


def sweep_lines(sweep: Sweep, axes: Any, subject: Subject) -> None:
    """Draw the objective against nodes, a line each of at most MOST_COLUMNS sub-batches, and the best of all."""
    least, (number_of, heads) = sweep.of_nodes, _shown(sweep, subject)
    line = {"color": LINE_COLOUR, "linewidth": 1.4, "label": "best"}
    axes.plot(list(least), [number_of(one.objective) for one in least.values()], **line)
    for size, look in zip(_sizes(sweep), SERIES_LOOKS, strict=False):
        some = [one for one in sweep.plans if one.configuration.sub_batch == size]
        points = [one.configuration.nodes for one in some], [number_of(one.objective) for one in some]
        axes.plot(*points, label=f"{size:,}", markersize=4, linewidth=0.7, **look)
    axes.set(xlabel="nodes", ylabel=heads)
    plain_logarithms(axes)


def _sizes(sweep: Sweep) -> list[int]:
    """Return the sub-batches that are shown, that of the best plan among them."""
    every = [one.configuration.sub_batch for one in sweep.plans]
    return _spread(every, MOST_COLUMNS, sweep.best.configuration.sub_batch)


def _spread(values: Sequence[int], most: int, kept: int | None = None) -> list[int]:
    """Return at most ``most`` of the distinct values, the ends and ``kept`` among them, by even ratios."""
    distinct = np.unique(np.array(values, dtype=np.int64))
    if distinct.size > most:
        aims = np.geomspace(distinct[0], distinct[-1], most - (kept is not None))
        distinct = np.unique(distinct[np.abs(np.log(distinct)[:, None] - np.log(aims)).argmin(axis=0)])
        distinct = distinct if kept is None else np.union1d(distinct, [kept])
    return [int(one) for one in distinct]


def _what(sweep: Sweep) -> str:
    one = _objective(sweep)
    if not one.unit:
        return f"objective {parts.objective_of(sweep.request)}"
    return f"epoch {one.noun}" if sweep.plans[0].epoch_s is not None else f"{one.noun} of a sample"


def _objective(answer: Sweep | WhyNot) -> Objective:
    return objective_named(parts.objective_of(answer.request))


def _shown(sweep: Sweep, subject: Subject) -> tuple[Callable[[float], float], str]:
    """Return what gives the number that is shown of an objective, and what heads such numbers."""
    if _tokens(sweep, subject):
        return lambda one: _tokens(sweep, subject) / one, "tokens/s"
    unit = _objective(sweep).unit
    scale, unit = duration_unit(sweep.best.objective, 3) if unit == "s" else (1.0, unit)
    return lambda one: one / scale, f"{_what(sweep)} [{unit}]" if unit else _what(sweep)


def _tokens(answer: Sweep | WhyNot, subject: Subject) -> int:
    """Return the tokens of a sample of a language model whose objective is the time of a sample; 0 of others."""
    dataset = answer.request.get("dataset")
    is_of_sample = dataset is None or not dataset.value
    return subject.tokens if is_of_sample and _objective(answer).unit == "s" else 0


def _tokens_per_s(answer: Sweep | WhyNot, objective: float, subject: Subject) -> str:
    """Return the objective of a language model as a rate; empty where it is no time of a sample."""
    return parts.speed(Quantity(1 / objective), subject, 3) if _tokens(answer, subject) else ""


MOST_LOOSENINGS = 4
"""Ways out that are listed."""


def why_not_view(answer: WhyNot, subject: Subject) -> Iterator[Block]:
    """Yield the constraint that refuses such plans, or the price and the rank of the best of them."""
    target = f"target mini-batch {answer.request['target_batch'].value}"
    values = [target, *(f"{option}={value}" for option, value in answer.values.items())]
    framework = f" in {answer.framework}" if answer.framework else ""
    yield title(f"{place(subject)}{framework}, {', '.join(values)}: {_verdict(answer)}")
    for sentence in answer.outside:
        yield Line(sentence)
    first = answer.first
    if answer.best:
        behind = ""
        if first and first.objective and (share := answer.best.objective / first.objective - 1):
            words = _objective(answer)
            behind = f", {format_number(100 * abs(share))}% {words.worse if share > 0 else words.better} than plan 1"
        yield Line(f"the best of them: {_plan_words(answer, answer.best, subject)}{behind}")
        if first and answer.rank != 1:
            yield Line(f"plan 1: {_plan_words(answer, first, subject)}")
    else:
        yield from parts.refusals(answer.refused)
    for one in answer.loosen[:MOST_LOOSENINGS]:
        yield Line(one.message, label="what would help: ")


def _verdict(answer: WhyNot) -> str:
    if answer.rank and answer.evaluated:
        of_all = " of all frameworks" if answer.framework else ""
        return f"rank {answer.rank:,} of {answer.evaluated:,} plans{of_all}"
    if not answer.candidates:
        return "no such plan exists" if answer.outside else "no such plan exists on that many GPUs"
    if answer.outside:
        return "not among what the request tries"
    return f"all {answer.candidates:,} candidates are refused"


def _plan_words(answer: WhyNot, one: RankedPlan, subject: Subject) -> str:
    dataset = answer.request.get("dataset")
    of_sample = " a sample" if dataset is None or not dataset.value else ""
    value = _tokens_per_s(answer, one.objective, subject) or f"{_objective(answer).text(one.objective)}{of_sample}"
    return f"{parts.configuration_words(one.configuration, subject.device, (), one.framework)}: {value}"


MOST_WORST_ROWS = 5
MOST_REASONS = 10
MOST_VALUES = 4
"""Rules that refused rows broke, and values that broke each, that are listed: the most frequent ones."""
MEMORY_COLUMNS = ("rows", "error", "bias", "covered", "ran", "called\ntoo large", "ran out", "called\nto fit")
ERROR_COLUMNS = ("rows", "mean", "median", "90%", "bias", "covered")


def validation_view(validation: Validation, files: Sequence[str], omitted: int = 0) -> Iterator[Block]:
    """Yield what rows of files add up to; ``omitted`` rows could not be read and are not among them."""
    yield title(f"{', '.join(files)}: predicted against measured")
    yield given(_counts(validation, omitted))
    if validation.summary.n or validation.in_sample.n or not validation.memory.n:
        yield heading("abs(predicted / measured - 1), bias without abs, covered by 90% intervals")
        kinds = {"held out": validation.summary, "in-sample": validation.in_sample}
        rows = [(name, *_cells(one)) for name, one in kinds.items() if one.n or name == "held out"]
        yield Table(("", *ERROR_COLUMNS), rows, ERROR_COLUMNS)
        if validation.free_numbers is not None:
            yield Line(f"Fitted numbers behind these errors: {validation.free_numbers:,} at most in one fit")
        if validation.summary.coverage_90 is None:
            why = "none was predicted and gave a value"
            if validation.summary.n:
                why = "nothing is left to make intervals of, so that predictions state none"
            elif validation.in_sample.n:
                why = "calibrations were made from all that were predicted; --hold-out fits without some"
            yield Line(f"Of held-out rows no coverage is known: {why}")
    for axis, summaries in validation.by.items():
        if summaries and [*summaries.values()] != [validation.summary]:
            yield heading(f"By {axis}")
            yield Table(
                (axis, *ERROR_COLUMNS), [(name or "-", *_cells(one)) for name, one in summaries.items()], ERROR_COLUMNS
            )
    yield from _rankings(validation)
    yield from _closing(validation)


def verified_view(one: Verified, shown_as: str) -> Iterator[Block]:
    """Yield real steps of a plan's part beside their prediction; ``shown_as``: the plan in words."""
    yield title(f"Plan {one.position}: {shown_as}")
    yield Line(
        f"Ran on this machine's {one.device}: {one.ran}, {parts.counted(one.sub_batch, 'sample')} in {one.precision}. "
        f"Predicted for this device by {', '.join(one.calibrations) or 'its data sheet'}."
    )
    cells: dict[str, Callable[[VerifiedTerm], str]] = {
        "term": lambda term: term.name,
        "predicted": lambda term: format_seconds(term.predicted_s),
        "measured": lambda term: format_seconds(term.measured_s),
        f"spread of {one.repeats}": lambda term: f"{term.spread_s / term.measured_s:.1%}",
        "measured / predicted": lambda term: f"{term.ratio:.2f}",
    }
    yield listing(one.terms, cells, [*cells][1:])
    yield Line(f"Not run here: {'; '.join(one.not_run)}." if one.not_run else "This is the whole step of the plan.")


def _counts(validation: Validation, omitted: int) -> Iterator[tuple[str, str]]:
    rows, locked = validation.rows, validation.locked or Locked((), 0, 0)
    unread = sum(row.refused is not None for row in rows) + omitted + locked.rows - locked.predicted
    n_predicted = sum(row.predicted is not None for row in rows) + locked.predicted
    n_in_sample = sum(row.in_sample for row in rows)
    yield "rows", f"{len(rows) + omitted + locked.rows:,}: {n_predicted:,} predicted, {unread:,} refused"
    alone = {axis: next(iter(one)) for axis, one in validation.by.items() if [*one.values()] == [validation.summary]}
    yield "all of", ", ".join(f"{axis} {name}" for axis, name in alone.items() if name)
    if n_in_sample:
        yield "in-sample", f"{n_in_sample:,} of the predicted rows: a calibration was made from them"
    if validation.unknown_frameworks:
        names = ", ".join(f"{name} ({rows:,})" for name, rows in sorted(validation.unknown_frameworks.items()))
        yield "unknown frameworks", f"{names}: answered as any framework"
    if locked.rows:
        names = ", ".join(locked.sources)
        yield "locked", f"{locked.rows:,} of {names}: shown as sums only, as nobody may look at them row by row"


def _cells(one: ErrorSummary) -> tuple[str, ...]:
    figures = (one.mape, one.median_ape, one.p90_ape)
    return (f"{one.n:,}", *(_percent(x) for x in figures), _percent(one.bias, "+"), _percent(one.coverage_90, places=0))


def _percent(share: float | None, sign: str = "", places: int = 1) -> str:
    return "-" if share is None else f"{100 * share:{sign}.{places}f}%"


def _rankings(validation: Validation) -> Iterator[Block]:
    """Yield how predictions rank the plans of groups, and large and small ones beside chance and rules of one line."""
    one = validation.ranking
    if one.groups:
        yield heading("Ranking of the plans of a group")
        lost = one.chose_out_of_memory
        best3 = f"{_percent(one.regret_best3)} on average, {_percent(one.regret_best3_max)} at worst"
        yield given(
            [
                ("groups", f"{one.groups:,}"),
                ("rank correlation", "" if one.spearman is None else f"{one.spearman:.2f} on average (Spearman)"),
                ("first choice fastest", f"in {_percent(one.top1, places=0)} of the groups"),
                ("regret of the first", f"{_percent(one.regret_mean)} on average, {_percent(one.regret_max)} at worst"),
                ("best of the first three", best3),
                ("first out of memory", f"in {_percent(lost, places=0)} of the groups" if lost else ""),
            ]
        )
    if not validation.rankings:
        return
    yield heading("Beside an order by chance and rules of one line")
    numbers = ("groups", "Spearman", "fastest\nfirst", "regret", "worst\nregret", "best of\nthree")
    rows = [
        (
            one.plans,
            one.order,
            f"{one.figures.groups:,}",
            "-" if one.figures.spearman is None else f"{one.figures.spearman:.2f}",
            _percent(one.figures.top1, places=0),
            *map(_percent, (one.figures.regret_mean, one.figures.regret_max, one.figures.regret_best3)),
        )
        for one in validation.rankings
    ]
    yield Table(("plans of\na group", "order", *numbers), rows, numbers)


def _closing(validation: Validation) -> Iterator[Block]:
    memory = validation.memory
    n_called = memory.true_out_of_memory + memory.false_out_of_memory
    if n_called or memory.false_ok or memory.n:
        yield heading("Memory: exp(mean of abs(ln(predicted / measured))) - 1, and runs by what was called")
        every = {**validation.memory_by, "all": memory} if len(validation.memory_by) != 1 else validation.memory_by
        cells = []
        for source, one in every.items():
            errors = _percent(one.error), _percent(one.bias, "+"), _percent(one.coverage_90, places=0)
            ran, ran_out = one.true_ok + one.false_out_of_memory, one.true_out_of_memory + one.false_ok
            calls = one.n, ran, one.false_out_of_memory, ran_out, one.false_ok
            count, *counts = (f"{number:,}" for number in calls)
            cells.append((source or "-", count, *errors, *counts))
        yield Table(("source", *MEMORY_COLUMNS), cells, MEMORY_COLUMNS)
    if validation.summary.n and (validation.rows or not validation.locked):
        yield heading("What the errors may come from, all metrics taken as times")
        best = validation.terms[:1]
        yield Line(best[0].sentence() if best else "No single term explains a tenth of the mean error.", indent=2)
        yield from (Line(one.sentence(), indent=2) for one in validation.growth[:2])
    yield from _refusals(validation.rows)
    yield from _worst(validation.rows)


def _refusals(rows: Sequence[ScoredRow]) -> Iterator[Block]:
    rules: dict[str, Counter[str]] = {}
    first: dict[str, int] = {}
    for row in rows:
        if row.refused is not None:
            rule = row.refused.rule
            rules.setdefault(rule, Counter())[row.refused.got or ""] += 1
            first.setdefault(rule, row.line)
    if not rules:
        return
    by_count = sorted(rules.items(), key=lambda item: (-item[1].total(), item[0]))
    yield heading("Refused rows")
    cells = []
    for rule, values in by_count[:MOST_REASONS]:
        got, total = sorted(((v, n) for v, n in values.items() if v), key=lambda pair: -pair[1]), values.total()
        words = [f"{value} ({count:,})" if count < total else value for value, count in got[:MOST_VALUES]]
        more = f" and {len(got) - MOST_VALUES:,} other values" if len(got) > MOST_VALUES else ""
        cells.append((f"{total:,}", str(first[rule]), rule + (f", got {', '.join(words)}{more}" if got else "")))
    yield Table(("rows", "first line", "because"), cells, ("rows", "first line"))
    if len(by_count) > MOST_REASONS:
        rest = sum(values.total() for _, values in by_count[MOST_REASONS:])
        yield Line(f"and {rest:,} more for {len(by_count) - MOST_REASONS:,} other reasons", indent=2)


def _worst(rows: Sequence[ScoredRow]) -> Iterator[Block]:
    errors = [(row, row.error) for row in rows if not row.in_sample]
    with_error = [(row, error) for row, error in errors if error is not None]
    worst = sorted(with_error, key=lambda pair: -abs(pair[1]))[:MOST_WORST_ROWS]
    if not worst:
        return
    yield heading("Worst rows")
    numbers = ("line", "predicted", "measured", "error")
    cells = [
        (row.id, str(row.line), row.metric, f"{row.predicted:.4g}", f"{row.measured:.4g}", _percent(error, "+"))
        for row, error in worst
    ]
    yield Table(("row", "line", "metric", *numbers[1:]), cells, numbers)


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
    cells = []
    for kind, (base_s, *times) in rows.items():
        cells.append([kind.replace("_", " "), format_duration(base_s, 3) if base_s else "-"])
        for one in times:
            gain = f"{base_s / one:.2f}" if one and base_s else "-"
            cells[-1] += [format_duration(one, 3) if one else "-", gain]
    columns = ["kernels", first, *(name for one in others for name in (one, f"{one}\ngain"))]
    yield Table(columns, cells, columns[1:], strong=[len(cells) - 1])


def batches_view(subject: Subject, batches: Sequence[Batch], memory_bytes: float) -> Iterator[Block]:
    """Yield batches on one device as a table; ``memory_bytes``: that it has."""
    yield title(f"{_where(subject)}: inference, one {subject.device} a replica")
    first = batches[0].precision
    base = {one.sub_batch: one.latency_s for one in batches if one.precision == first}
    gains = [base[one.sub_batch] / one.latency_s if one.sub_batch in base else 0.0 for one in batches]
    is_several = any(one.precision != first for one in batches)
    over = {f"over {first}": [f"{gain:.2f}" if gain else "-" for gain in gains] if is_several else []}
    over[""] = ["!" if sum(one.memory_bytes.values()) > memory_bytes else "" for one in batches]
    yield from _batch_table(batches, {}, over)


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
    counts = {f"{subject.device}s": [str(count) for _, count in plans]}
    rates = {"samples/s": [f"{one.samples_per_s * count:,.0f}" for one, count in plans]}
    yield from _batch_table([one for one, _ in plans], counts, rates)


def _where(subject: Subject) -> str:
    return f"{place(subject)} in {subject.settings.framework.label}"


def _batch_table(
    batches: Sequence[Batch], before: Mapping[str, Sequence[str]], changes: Mapping[str, Sequence[str]]
) -> Iterator[Block]:
    """Yield a row a batch, with columns ``before`` and other ones, then what the times rest on and leave out."""
    every: dict[str, Sequence[str]] = {
        **before,
        "precision": [one.precision for one in batches],
        "batch": [str(one.sub_batch) for one in batches],
        "latency": [format_duration(one.latency_s, 3) for one in batches],
        "factor": [f"{parts.factor(one.latency) or 0:.1f}" for one in batches],
        "samples/s": [f"{one.samples_per_s:,.0f}" for one in batches],
        "memory": [format_bytes(sum(one.memory_bytes.values())) for one in batches],
        **changes,
    }
    columns = {name: cells for name, cells in every.items() if any(cells)}
    right = [name for name in columns if name not in ("precision", "")]
    yield Table(list(columns), list(zip(*columns.values(), strict=True)), right)
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
