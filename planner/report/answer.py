"""Short answers (what to do, the table, the terms, how good it is, what comes next), and a suggestion in full."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product

from planner.domain.job import PlanToStart
from planner.domain.objective import TERMS, objective_named, weights_of
from planner.domain.prediction import LOSSY, Citation, PlanWarning, Prediction
from planner.domain.request import DEFAULT, Sourced, Subject
from planner.domain.suggestion import KNEE_TIMES, MOST_OF_FRONT, Plan, SearchReport, Suggestion, question_of
from planner.report import parts
from planner.report.blocks import LINE_WIDTH, Block, Line, Pairs, given, heading, line_count
from planner.report.doubt import deciding, goodness, launch, notices, sensitivity_lines
from planner.report.prediction import (
    BEYOND_NOTE,
    Entry,
    entries_of,
    has_letters,
    place,
    plan_table,
    prediction_details,
    prediction_rest,
)
from planner.units import format_duration, format_number

ALL_WORDS = "-v shows all"
SHORT_TABLE_PLANS = 5
"""Plans of a short table; the chosen one is among them."""
LINES_OF_LETTERS = 2
"""What the line that says which letter is which framework takes of a short table's lines, as it is wrapped."""
MOST_FEWER, LAST_FEWER = 2, 7
"""Plans that a short table leaves out where lines are many; up to the last where the answer has too many otherwise."""
LEAST_SHARES = (0.0, 0.0005, 0.005)
"""Of a period, of terms that stand in the table of a prediction; the next one where lines are many."""
MOST_LINES = 25
"""Of a short answer, warnings among them."""
MOST_OTHERS = 3
"""Frameworks behind the one to take that are named."""
ROUND_RATIO = 1.095
"""From which two digits of a ratio tell it from 1."""
MOST_LOOSENINGS = 5
"""Ways out that are told where nothing fits."""
_PARTS = {
    Fraction(1): "the same number of",
    Fraction(1, 2): "half",
    Fraction(1, 3): "a third of",
    Fraction(1, 4): "a quarter of",
    Fraction(1, 8): "an eighth of",
    Fraction(2, 3): "two thirds of",
    Fraction(3, 4): "three quarters of",
}
MOST_PARTS = 100
"""Above which a fraction is told in per cent."""
OPTION, UNTRIED = "option", ("calibration", "scenario")
"""Source of a value that was typed, and options that are never left out to find which contradict each other."""
SMALLEST_SHARE_NAMED = 0.005
"""Of a period; a term below it is not named."""


def suggestion_answer(
    suggestion: Suggestion, subject: Subject, *, more: str = ALL_WORDS, in_full: bool = False, is_alone: bool = True
) -> Iterator[Block]:
    """Yield the answer to one request: the chosen plan, the ranked table, terms, doubt, the line that starts it.

    Switches that would pay are told where MOST_LINES hold them, ``in_full`` anyway. ``is_alone``: no other answer
    stands in the same document.
    """
    is_kept = is_alone and not subject.scenario
    answer = partial(_suggestion, suggestion, subject, more, is_kept=is_kept)
    blocks = _first_short(answer, in_full=in_full)
    if (in_full or line_count(blocks) <= MOST_LINES) and suggestion.switches:  # worked out on being asked for
        times = sorted(suggestion.switches.items(), key=lambda one: -one[1])
        gains = ", ".join(f"{switch} {_times(faster)} times" for switch, faster in times)
        longer = _first_short(partial(answer, f"Faster by a switch: {gains}."), in_full=in_full, last=MOST_FEWER)
        blocks = longer if in_full or line_count(longer) <= MOST_LINES else blocks
    yield from blocks


def _first_short(
    answer: Callable[..., Iterator[Block]], *, in_full: bool = False, last: int = LAST_FEWER
) -> list[Block]:
    """Return the answer with as many plans, start and spare lines as MOST_LINES hold."""
    as_usual = product((False, True), range(MOST_FEWER + 1))
    for in_short, fewer in (*as_usual, *((True, at) for at in range(MOST_FEWER + 1, last + 1))):
        blocks = list(answer(fewer=fewer, in_short=in_short))
        spare = [one for one in blocks if isinstance(one, Line) and one.spare and in_short and fewer >= MOST_FEWER]
        while spare and line_count(blocks) > MOST_LINES:
            blocks.remove(spare.pop())
        if in_full or line_count(blocks) <= MOST_LINES:
            break
    return blocks


def _suggestion(
    suggestion: Suggestion,
    subject: Subject,
    more: str,
    switches: str = "",
    *,
    is_kept: bool,
    fewer: int = 0,
    in_short: bool = False,
) -> Iterator[Block]:
    plan = suggestion.chosen_plan
    first, others = _told(suggestion, subject)
    yield from notices(first, more, len(others))
    if plan is None:
        yield from _nothing_fits(suggestion, subject)
        return
    yield from _choice(suggestion, plan, subject, switches)
    yield Line("")
    own, rows = plan.subject(subject), _rows(suggestion, plan, subject, fewer)
    baseline, note = suggestion.baseline, ""
    if baseline and any(one.efficiency is not None for one in suggestion.plans):
        words = parts.configuration_words(baseline, subject.device, (), suggestion.baseline_framework)
        note = f"100% efficiency: {words}"
    yield from plan_table(rows, plan.position, note)
    yield from _knee(suggestion, subject)
    yield from _other_frameworks(suggestion, rows)
    if suggestion.leasts:  # a weighted objective
        weights = weights_of(parts.objective_of(suggestion.request))
        of = {term: (TERMS[term], "" if weight == 1 else f"{weight:g} x ") for term, weight in weights.items()}
        terms = [f"{times}{one.noun} / {one.text(suggestion.leasts[term], 4)}" for term, (one, times) in of.items()]
        yield Line(f"Objective: {' + '.join(terms)}, over the least of all plans")
    yield from _terms(plan.prediction, subject)
    if plan.prediction.groups_s:
        yield Line(f"Each group by itself: {parts.group_steps(plan.prediction)}")
    if suggestion.pareto:
        one = objective_named(parts.objective_of(suggestion.request))
        blank, most = ("\n", MOST_OF_FRONT) if fewer <= MOST_FEWER else ("", LAST_FEWER + 1 - fewer)
        what, told = "epoch time" if one.unit == "s" else one.noun, suggestion.pareto[:most]
        untold = suggestion.pareto_more + len(suggestion.pareto) - len(told)
        count = "" if blank or not untold else f": {len(told)} of {len(told) + untold:,}"
        yield Line(f"{blank}Pareto front of {what}, {subject.device}s and distance from the target{count}", "bold")
        ranked = (replace(plan, position=plan.position_among(suggestion.plans) or 0) for plan in told)
        yield from plan_table(entries_of(ranked, subject))
        if blank:
            yield Line(f"and {untold:,} more\n" if untold else "")
    yield from (Line(one.message) for one in suggestion.warnings if one.code == LOSSY)
    yield goodness(plan.prediction, own, is_kept=is_kept)
    yield from sensitivity_lines(suggestion, subject)
    if is_kept and plan.framework is None:  # of several the table is wider, and the answer must keep to its screen
        yield from deciding(suggestion, subject)
    yield from launch(plan.to_start(subject), in_short=in_short)


def _told(suggestion: Suggestion, subject: Subject) -> tuple[list[PlanWarning], list[PlanWarning]]:
    """Return the warnings of the answer and of the plan to take, and those of other plans alone."""
    plan, plans = suggestion.chosen_plan, suggestion.plans or suggestion.nearest
    of_plans = dict.fromkeys(warning for one in plans for warning in one.prediction.warnings)
    apart = {LOSSY, "no_dataset" if subject.tokens else ""}  # its speed is in tokens
    every = [one for one in dict.fromkeys((*suggestion.warnings, *of_plans)) if one.code not in apart]
    first = [one for one in every if plan is None or one not in of_plans or one in plan.prediction.warnings]
    return first, [one for one in every if one not in first]


def suggestion_brief(suggestion: Suggestion, subject: Subject) -> Iterator[Block]:
    """Yield the plan to take, why, and the line that starts it; or what to loosen."""
    plan = suggestion.chosen_plan
    if plan is None:
        yield from _nothing_fits(suggestion, subject)
        return
    yield from _choice(suggestion, plan, subject)
    yield from launch(plan.to_start(subject))


def _choice(suggestion: Suggestion, plan: Plan, subject: Subject, switches: str = "") -> Iterator[Line]:
    target = suggestion.request["target_batch"].value
    words = parts.plan_words(plan, subject.device)
    is_near = any(one.code == "nearest_batch" for one in suggestion.warnings)
    near = f" (nearest {parts.mini_batch(plan.prediction.mini_batch)})" if is_near else ""
    sentence = f"{place(subject)}, target mini-batch {target}{near}: take plan {plan.position}, {words}"
    yield Line(f"{sentence}: {_results(suggestion, plan, subject)}.", "bold")
    stages = f" Its stages start with {parts.stages(plan.prediction)}." if plan.prediction.stages else ""
    if plan.prediction.stage_layers:
        stages = f" Its stages hold {parts.stage_layers(plan.prediction)}."
    if plan.prediction.shared_layers:
        shared, each = parts.shared_layers(plan.prediction), parts.instead_of_data(plan.prediction)
        stages = f" Its groups share {shared}; a {subject.device} {each}."
    order = plan.prediction.rank_order
    ranks = f" Rank order, innermost first: {', '.join(order)}." if order else ""
    is_timed = "deadline" in suggestion.request and plan.prediction.configuration.nodes > 1
    fewest = " No plan on fewer nodes meets the deadline." if is_timed else ""
    yield Line(f"{_why(suggestion)}{fewest}{stages}{ranks} {switches}".rstrip())


def _results(suggestion: Suggestion, plan: Plan, subject: Subject) -> str:
    """Return what a plan takes: an epoch or its speed, its cost and the whole training where they are asked for."""
    results = [_result(plan.prediction, subject)]
    cost = plan.prediction.epoch_usd(subject.usd_per_gpu_hour)
    terms = weights_of(parts.objective_of(suggestion.request))
    if cost is not None and any(TERMS[term].needs_price for term in terms):
        results[0] += f" for {parts.figure(cost, 'USD')}"
    if plan.objective is not None:
        results.append(f"objective {format_number(plan.objective, 4)}")
    run = suggestion.run
    training = plan.prediction.training_s(run, subject.tokens) if run else None
    if run and training is not None:
        steps = plan.prediction.steps(run, subject.tokens)
        of_steps = f"{math.ceil(steps):,} steps, " if steps else ""
        is_told = run.epochs == 1 and not of_steps and parts.duration(training) in results[0]
        results += [] if is_told else [f"{run.words} in {of_steps}{parts.duration(training)}"]
    return ", ".join(results) + parts.empty_updates(plan.prediction)


def _rows(suggestion: Suggestion, chosen: Plan, subject: Subject, fewer: int) -> list[Entry]:
    """Return as many plans as were asked for, the chosen one and the knee among them; fewer where lines are many."""
    top = suggestion.request.get("top")
    most = top.value if top is not None and isinstance(top.value, int) else SHORT_TABLE_PLANS
    is_default = top is None or top.source == DEFAULT
    kept = [one for one in suggestion.plans if one in (chosen, suggestion.knee_plan)]
    others = [one for one in suggestion.plans if one not in kept]
    for less in (fewer, fewer + LINES_OF_LETTERS) if is_default else (0,):
        plans = [*kept, *others[: max(most - less - len(kept), 0)]]
        rows = entries_of(sorted(plans, key=lambda one: one.position), subject)
        if not has_letters(rows):
            break
    return rows


def _knee(suggestion: Suggestion, subject: Subject) -> Iterator[Line]:
    """Yield the line about the knee, the plan with the least GPU-hours; nothing where it saves too little."""
    knee = suggestion.knee_plan
    if knee is None:
        return
    one, first = knee.prediction, suggestion.plans[0].prediction
    device, share = subject.device, Fraction(one.configuration.gpus, first.configuration.gpus)
    times = _times(first.samples_per_s.value / one.samples_per_s.value)
    part = _PARTS.get(share) or f"{share if share.denominator < MOST_PARTS else f'{float(share):.0%}'} of"
    within = f"the fewest {device}-hours within {KNEE_TIMES:g} times the time of plan 1"
    yield Line(f"With {part} the {device}s it takes {times} times as long: plan {knee.position}, {within}", spare=True)


def _why(suggestion: Suggestion) -> str:
    search = suggestion.search
    those = f"all {search.evaluated:,}" if search.certified else f"the {search.evaluated:,} tried"
    if search.discarded or search.trials:
        those = search.ranked
    elif search.evaluated == 1:
        return f"It is the only plan{'' if search.certified else ' tried'} that fits."
    best = f"Plan {suggestion.plans[0].position} has the best prediction of {those}"
    choice = f"Among the plans tried, {suggestion.choice}" if search.trials else suggestion.choice
    if len(suggestion.tied) > 1:
        return f"{choice[0].upper()}{choice[1:]}. {best}.".replace(" of them. Plan 1 has the best prediction", "")
    return f"{best}. {choice}." if search.trials else f"{best}; {choice}."


def _times(ratio: float) -> str:
    """Return a ratio to two digits, one just above 1 to three: 1.02."""
    return f"{ratio:.3g}" if ratio < ROUND_RATIO else f"{ratio:.2g}"


def _other_frameworks(suggestion: Suggestion, rows: Sequence[Entry]) -> Iterator[Line]:
    """Yield in a line, where all rows are of one framework of several, how far the best plans of others are behind."""
    shown = {row.subject.settings.framework.label for row in rows}
    in_order = sorted(suggestion.frameworks.items(), key=lambda one: one[1])  # a document may have another
    others = [(label, times) for label, times in in_order if label not in shown]
    if len(shown) != 1:
        return
    what = "as long" if parts.objective_of(suggestion.request) == "epoch-time" else "the objective"
    line, told = f"Best of others, times {what}:", 0
    room = LINE_WIDTH - len(f"; {len(others)} more")
    for label, times in others:
        words = f"{',' if told else ''} {label} {_times(times)}"
        if told < MOST_OTHERS and len(line + words) <= room:
            line, told = line + words, told + 1
    if told:
        yield Line(f"{line}; {len(others) - told} more" if told < len(others) else line, spare=True)


def _result(one: Prediction, subject: Subject) -> str:
    return f"an epoch in {parts.duration(one.epoch_s)}" if one.epoch_s else parts.speed(one.samples_per_s, subject)


def _terms(one: Prediction, subject: Subject) -> Iterator[Line]:
    """Yield each thread's period and what it is made of, the largest term first."""
    titles = {"step": "Iteration", "gpu": f"{subject.device} thread", "update": "Update thread"}
    for thread in dict.fromkeys(term.thread for term in one.terms):
        period = one.update_s if thread == "update" else one.iteration_s
        if period is None:
            continue
        digits = parts.digits_of(period)
        words = []
        for term in sorted((t for t in one.terms if t.thread == thread), key=lambda t: -t.exposed_seconds):
            name, overlap_s = parts.term_words(term.name), term.seconds - term.exposed_seconds
            if term.share >= SMALLEST_SHARE_NAMED:
                is_told = overlap_s > SMALLEST_SHARE_NAMED * term.seconds
                hidden = f" and {format_duration(overlap_s, digits)} hidden" if is_told else ""
                words.append(f"{name} {term.share:.0%}{hidden}")
            elif term.seconds > 0 and term.exposed_seconds < term.seconds:
                words.append(f"{name} {format_duration(term.seconds, digits)} hidden")
        yield Line(f"{titles[thread]} {format_duration(period.value, digits)}: {', '.join(words)}")


def _nothing_fits(suggestion: Suggestion, subject: Subject) -> Iterator[Block]:
    target = suggestion.request["target_batch"].value
    yield Line(f"{place(subject)}, target mini-batch {target}: no plan fits.", "bold")
    if suggestion.nearest:
        yield Line("Nearest plans:")
        yield from plan_table(entries_of(suggestion.nearest[:SHORT_TABLE_PLANS], subject))
        if {"limit", "deadline"} & suggestion.request.keys():  # how far a plan is from a limit stands in no column
            yield Line(f"Plan {suggestion.nearest[0].position}: {suggestion.nearest[0].why}")
    if suggestion.conflict:
        never = [
            f"--{key}" for key in UNTRIED if key in suggestion.request and suggestion.request[key].source == OPTION
        ]
        left_out = f"even with all other options{' except ' * bool(never)}{' and '.join(never)} left out"
        *others, last = suggestion.conflict
        if others:
            every = f"{', '.join(others)} and {last} together"
            yield Line(f"No plan here meets {every}, {left_out}; without any one of these some plan does.")
        else:
            yield Line(f"No plan here meets {last}, {left_out}.")
    if suggestion.loosen:
        yield Line("What to loosen, the smallest change first:")
        yield from (Line(one.message, indent=2) for one in suggestion.loosen[:MOST_LOOSENINGS])
        if (more := len(suggestion.loosen) - MOST_LOOSENINGS) > 0:
            yield Line(f"and {more} more; --json has all", indent=2)


def prediction_answer(prediction: Prediction, subject: Subject, *, more: str = ALL_WORDS) -> Iterator[Block]:
    """Yield one prediction: the result, its figures, its terms, how good it is and the line that starts it."""
    yield from _first_short(partial(_prediction, prediction, subject, more))


def _prediction(prediction: Prediction, subject: Subject, more: str, *, fewer: int, in_short: bool) -> Iterator[Block]:
    yield from notices(prediction.warnings, more)
    words = parts.configuration_words(prediction.configuration, subject.device)
    yield Line(f"{place(subject)}, {words}: {_result(prediction, subject)}.", "bold")
    yield given(_figures(prediction, subject))
    terms = [
        term
        for term in prediction.terms
        if term.share >= LEAST_SHARES[min(fewer, MOST_FEWER)] or term.thread == "update"
    ]
    yield parts.terms(terms, prediction.bottleneck, subject.device, brief=True)
    if any(term.extrapolated for term in terms):
        yield Line(BEYOND_NOTE)
    yield goodness(prediction, subject)
    yield from launch(PlanToStart.of(prediction, subject), in_short=in_short)


def _figures(one: Prediction, subject: Subject) -> Iterator[tuple[str, str]]:
    rate = replace(one.samples_per_s, low=None, high=None)
    digits, gpus = parts.digits_of(one.samples_per_s), one.configuration.gpus
    speed = parts.speed(rate, subject, digits=digits)
    if gpus > 1:
        each = parts.speed(replace(rate, value=rate.value / gpus), subject, digits=digits)
        speed += f", {each.rpartition(' ')[0]} per {subject.device}"
    epoch, cost = one.epoch_s, one.epoch_usd(subject.usd_per_gpu_hour)
    hours = "" if epoch is None else format_number(epoch.value * one.configuration.gpus / 3600, parts.digits_of(epoch))
    price = "" if cost is None else f", {format_number(cost.value, parts.digits_of(cost))} USD"
    batch = f"{parts.mini_batch(one.mini_batch)} samples"
    if one.staleness.mean:
        batch += f", staleness {format_number(one.staleness.mean)} updates{parts.empty_updates(one)}"
    yield "speed", speed
    yield from parts.partition(one, subject.device, brief=True)
    yield "mini-batch", batch
    yield "each group by itself", parts.group_steps(one)
    yield "an epoch takes", f"{hours} {subject.device}-hours{price}" if hours else ""
    yield "memory", parts.memory_needed(one, subject.device)


def predictions_answer(answers: Sequence[tuple[Subject, Prediction]], *, more: str = ALL_WORDS) -> Iterator[Block]:
    """Yield many predictions as one table in the order given; how good they are is that of the least sure one."""
    yield from notices([warning for _, one in answers for warning in one.warnings], more)
    yield Line(f"{_of_all([subject for subject, _ in answers])}: {len(answers)} predictions", "bold")
    yield from plan_table([Entry(at, one, subject) for at, (subject, one) in enumerate(answers, 1)])
    yield from _least_sure(answers)


def predictions_view(
    answers: Sequence[tuple[Subject, Prediction]],
    citations: Iterable[Citation] = (),
    request: Mapping[str, Sourced[object]] | None = None,
    *,
    beside: Iterable[Block] = (),
    in_full: bool = False,
) -> Iterator[Block]:
    """Yield one prediction, or a table of several, then what stands ``beside`` it; ``in_full``: all that is known."""
    one = answers[0]
    short = predictions_answer(answers) if len(answers) > 1 else prediction_answer(one[1], one[0])
    if not in_full:
        yield from (*short, *beside)
        return
    yield from parts.warnings((), [(number, one.warnings) for number, (_, one) in enumerate(answers, 1)])
    yield from (*_without_asides(short), *beside, *prediction_rest(answers, request or {}, citations))


def _without_asides(blocks: Iterable[Block]) -> list[Block]:
    return [block for block in blocks if not (isinstance(block, Line) and block.aside)]


def suggestions_overview(answers: Sequence[tuple[Subject, Suggestion]], *, more: str = ALL_WORDS) -> Iterator[Block]:
    """Yield the chosen plan of each of several requests, one a row, then the requests without a plan."""
    told = [_told(one, subject) for subject, one in answers]
    others = {warning for _, rest in told for warning in rest} - {warning for first, _ in told for warning in first}
    yield from notices(list(dict.fromkeys(warning for first, _ in told for warning in first)), more, len(others))
    target = ", ".join(dict.fromkeys(str(one.request["target_batch"].value) for _, one in answers))
    words = f"{_of_all([subject for subject, _ in answers])}, target mini-batch {target}"
    plans = [(subject, one.chosen_plan) for subject, one in answers]
    targets = [one.request["target_batch"].value for _, one in answers]
    with_plan = [(subject, plan) for subject, plan in plans if plan is not None]
    first, is_one = answers[0], len({question_of(*one) for one in answers}) == 1
    taken = first[1].chosen_plan if is_one else None
    to_take = "the plans to take" if with_plan else "no plan fits"
    if taken:
        results = _results(first[1], taken, first[0])
        to_take = f"take {first[0].cluster}, {parts.plan_words(taken, first[0].device)}: {results}."
    yield Line(f"{words}: {to_take}", "bold")
    if with_plan:
        better = [one.first_cluster_is_better if taken else None for _, one in answers if one.chosen_plan]
        rows = [
            Entry(at, plan.prediction, plan.subject(subject), plan.precisions, one)
            for at, ((subject, plan), one) in enumerate(zip(with_plan, better, strict=True), 1)
        ]
        yield from plan_table(rows, 1 if taken else None)
    if taken:
        minimised = "gpu-hours" if "deadline" in first[1].request else parts.objective_of(first[1].request)
        for subject, one in answers[1 : 1 + MOST_OTHERS]:
            if one.chosen_plan:
                chance, times = one.first_cluster_is_better, format_number(one.clusters[subject.cluster])
                is_better = f"; {first[0].cluster} is better with a probability of "
                sure = "" if chance is None else f"{is_better}{parts.chance(chance)}"
                yield Line(f"{subject.cluster}: {times} times the {objective_named(minimised).noun}{sure}.")
    for (subject, one), own in zip(answers, targets, strict=True):
        if one.chosen_plan is None:
            of = f", target mini-batch {own}" if len(set(targets)) > 1 else ""
            way = f"; the smallest change that helps: {one.loosen[0].given}" if one.loosen else ""
            yield Line(f"{place(subject)}{of}: no plan fits{way}.")
    yield from _least_sure([(plan.subject(subject), plan.prediction) for subject, plan in with_plan])
    if taken:
        yield from launch(taken.to_start(first[0]))


def _of_all(subjects: Sequence[Subject]) -> str:
    """Return what all subjects share, in words: the cluster, and network and scenario where these are the same."""
    first, clusters = subjects[0], {one.cluster for one in subjects}
    if len(clusters) > 1:
        first = replace(first, cluster=f"{len(clusters)} clusters")
    if any(one.network != first.network for one in subjects):
        return f"{len({one.network for one in subjects})} networks on {first.cluster}"
    return place(first if all(one.scenario == first.scenario for one in subjects) else replace(first, scenario=""))


def _least_sure(predictions: Sequence[tuple[Subject, Prediction]]) -> Iterator[Line]:
    if predictions:
        subject, least = max(predictions, key=lambda answer: parts.factor(answer[1].iteration_s) or float("inf"))
        yield goodness(least, subject)


def suggestions_views(
    answers: Sequence[tuple[Subject, Suggestion]], *, in_full: bool = False, more: str = ALL_WORDS
) -> Iterator[Iterable[Block]]:
    """Yield the views of answers: one short answer, a table of several, and each in full where asked for."""
    if in_full:
        for subject, one in answers:
            is_alone = len(answers) == 1
            short = _without_asides(suggestion_answer(one, subject, in_full=True, is_alone=is_alone))
            yield [*_warnings(one), *short, *suggestion_rest(one, subject, is_alone=is_alone)]
    elif len(answers) == 1:
        subject, one = answers[0]
        yield suggestion_answer(one, subject, more=more)
    else:
        yield suggestions_overview(answers, more=more)


def part_of_suggestion(suggestion: Suggestion, part: str) -> Iterable[Block]:
    """Return one part of an answer: ``request``, ``refusals`` or ``warnings``."""
    if part == "warnings":
        return _warnings(suggestion, result=True)
    return parts.request_values(suggestion.request) if part == "request" else _refusals(suggestion.search)


def part_of_plan(plan: Plan, subject: Subject, citations: Sequence[Citation], part: str) -> Iterator[Block]:
    """Yield one part of a plan: ``plan`` for all of it, ``terms``, ``sources`` or ``warnings``."""
    one = plan.prediction
    subject = plan.subject(subject)
    if part == "plan":
        yield from _plan_details(plan, subject, citations)
    elif part == "terms":
        yield parts.terms(one.terms, one.bottleneck)
    elif part == "sources":
        yield parts.origins(one.terms, citations)
    if part in ("plan", "warnings"):
        yield from parts.warnings(one.warnings, result=part == "warnings")


def _warnings(suggestion: Suggestion, *, result: bool = False) -> Iterable[Line]:
    plans = suggestion.plans or suggestion.nearest
    of_rows = [(plan.position, plan.prediction.warnings) for plan in plans]
    return parts.warnings(suggestion.warnings, of_rows, result=result)


def suggestion_rest(suggestion: Suggestion, subject: Subject, *, is_alone: bool = True) -> Iterator[Block]:
    """Yield what a short answer leaves out: the chosen plan in full, the request, the search."""
    plan = suggestion.chosen_plan
    if plan is not None:
        yield from _plan_details(plan, subject, suggestion.citations)
    if is_alone and not subject.scenario:
        yield from deciding(suggestion, subject, in_full=True)
    yield heading("Request")
    yield from parts.request_values(suggestion.request)
    yield heading("Search")
    yield from _refusals(suggestion.search)


def _plan_details(plan: Plan, subject: Subject, citations: Sequence[Citation]) -> Iterator[Block]:
    subject = plan.subject(subject)
    yield heading(f"Plan {plan.position}: {parts.plan_words(plan, subject.device)}")
    if plan.why:
        yield Line(plan.why)
    yield from prediction_details(plan.prediction, subject, citations)


def _refusals(search: SearchReport) -> Iterator[Block]:
    proof = "no plan of the space has a better prediction" if search.certified else "a better one may exist"
    if search.gap is not None:
        proof = f"no other is more than {100 * search.gap:.2g}% better"
    counts = f"{search.candidates:,} candidates: {search.evaluated:,} ranked"
    counts += f", {sum(one.count for one in search.refused):,} refused" if search.refused else ""
    counts += f", {search.discarded:,} discarded" if search.discarded else ""
    yield Pairs([("method", f"{search.method}: {proof}"), ("plans", counts)])
    yield from parts.refusals(search.refused)
