"""The main job: from a resolved problem and a request to ranked plans, or to what to loosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from planner.domain.axes import AXES
from planner.domain.configuration import MODES, SPLIT_AXES, Configurations
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import SURE_TO_FIT, PlanWarning, Prediction, cited, share_that_fits
from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.suggestion import KNEE_SHARE, KNEE_TIMES, MOST_OF_FRONT, Plan, Suggestion
from planner.errors import CoverageError, PlannerError, UsageError
from planner.search.choice import (
    MOST_COMPARED,
    Choice,
    Compare,
    Ranking,
    Searched,
    alike_of,
    choice_of,
    deciding_plans,
    distinct_frameworks,
    distinct_plans,
    front_of,
    in_all_precisions,
    nearest_of,
    ranked,
    report_of,
    times_of_best,
    without_plan,
)
from planner.search.exhaustive import Asked, Outcome, Watch, unwatched
from planner.search.explain import hardly_inside, why_split, whys, whys_nearest, whys_over_limits, whys_pareto
from planner.search.ranking import Order, fewest_first
from planner.search.search import Searcher, first_plan, search
from planner.search.searchable import (
    LAST_RESORT,
    NEAREST_BATCH,
    Gains,
    Searchable,
    Settings,
    searchable_among,
    with_last_resort,
    with_nearest_batch,
)
from planner.search.space import Limits, has_whole_plans
from planner.sources.source import PRECISION_LOSSY
from planner.sources.sources import why_not_precision
from planner.steps import predict
from planner.steps.describe import Description, Deviation
from planner.steps.kernel_rows import lossy_warning
from planner.units import format_samples

__all__ = ["answer_of", "searched_by", "sourced_last_resort", "suggest", "suggest_among", "why_not_whole"]

MOST_KEPT = 2**13
"""Asynchronous plans among which the one to take is looked for: all are priced anyway."""


def suggest(problem: Problem, request: SpaceRequest, provenance: Mapping[str, Sourced[object]]) -> Suggestion:
    """Return the answer to a request; nothing that fits is an answer too, with what to loosen.

    ``provenance``: by request key, stands in the answer as ``request``. UsageError: a value breaks its rule, is more
    than the cluster has, or is not supported; CoverageError: nothing asked for can be priced, or a link is missing.
    """
    return suggest_among([(problem, request)], provenance)


def suggest_among(
    asked: Sequence[tuple[Problem, SpaceRequest]],
    provenance: Mapping[str, Sourced[object]],
    left_out: Mapping[str, PlannerError] | None = None,
    searcher: Searcher = search,
    watch: Watch = unwatched,
    *,
    settings: Settings | None = None,
) -> Suggestion:
    """Return the answer to a request over several frameworks: their plans in one ranking.

    A framework of several that cannot be searched is left out with a warning.

    Parameters
    ----------
    asked : that differ in the framework, and in the kinds of parallelism that it allows
    left_out : frameworks that are no candidates, and why
    watch : whether the searches beside the main one are to end: of leasts of a sum, and of changed inputs
    settings : that were given: what to loosen where nothing fits

    UsageError, CoverageError: as :func:`suggest`, of the first framework where none can be searched.
    """
    errors = dict(left_out or {})
    several = len(asked) + len(errors) > 1
    with watch() as stopped:
        searchable = searchable_among(asked, errors, stopped)
    if asked[0][1].deadline_s is not None:
        searchable, provenance = _on_fewest(searchable, provenance)
    searched, searches = _searches(searchable, searcher, errors, several=several)
    if not searches:
        raise next(iter(errors.values()))
    if all(one.outcome.best is None for one in searches):
        again = _searches(with_last_resort(searched), searcher, errors, several=several)
        searched, searches = again if again[1] else (searched, searches)
        provenance = sourced_last_resort(provenance, searches, asked[0][1])
    exact = None
    if wider := with_nearest_batch(searched, [one.outcome for one in searches]):
        of_wider = provenance
        if asked[0][1].deadline_s is not None:
            wider, of_wider = _on_fewest(wider, provenance)
        again = _searches(wider, searcher, errors, several=several)
        if any(one.outcome.best is not None for one in again[1]):
            from planner.search.loosen import Loosener  # noqa: PLC0415 - few requests need it

            exact = next(filter(None, (Loosener(one).fewer_gpus_per_node() for one in searched)), None)
            searched, searches = again
            width = searched[0].request.tolerance_sync
            provenance = {**of_wider, "tolerance": Sourced({"sync": width}, NEAREST_BATCH)}
    evaluators = [each.evaluator for each in searched]
    compare = partial(predict.compare_among, evaluators, searched[0].request.window)
    answer = answer_of(searches, provenance, compare, settings)
    if asked[0][1].sensitivity and answer.search.certified:  # not of a search that was interrupted
        from planner.search.studies import sensitivities  # noqa: PLC0415 - few answers need it

        with watch() as stopped:
            answer = replace(answer, sensitivity=sensitivities(searched, answer, stopped))
    plans, plan = (*answer.plans, *answer.pareto, *answer.nearest), answer.chosen_plan
    own = (
        evaluator
        for one, evaluator in zip(searches, evaluators, strict=True)
        if plan and plan.framework == one.framework
    )
    refused = (PlanWarning("framework_refused", label, f"It is left out: {why}") for label, why in errors.items())
    of_request = dict.fromkeys(warning for one in searches for warning in one.warnings)
    if plan is not None and "tolerance" in provenance and provenance["tolerance"].source == NEAREST_BATCH:
        target, mean = asked[0][1].target_batch, format_samples(plan.prediction.mini_batch.mean)
        within = " within limits" if asked[0][1].most and not exact else ""
        way = (
            f"{exact.given} takes exactly {target}"
            if exact
            else f"--tolerance 0 insists{'' if within else f' on {target}'}"
        )
        words = f"the nearest mini-batch{within} is {mean}; {way}"
        of_request |= {PlanWarning("nearest_batch", f"{target}", words): None}
    return replace(
        answer,
        switches={} if plan is None else Gains(next(own), plan.prediction.configuration),
        citations=cited([plan.prediction for plan in plans], asked[0][0].calibrations),
        warnings=(*refused, *of_request, *_lossy(asked, plan), *answer.warnings),
    )


def _searches(
    searchable: Sequence[Searchable], searcher: Searcher, errors: dict[str, PlannerError], *, several: bool
) -> tuple[list[Searchable], list[Searched]]:
    """Return the requests that were searched, with outcomes; ``errors`` collects by framework why others were not."""
    searched, searches = [], list[Searched]()
    for each in searchable:
        framework = each.problem.settings.framework
        try:
            one = searched_by(each, searcher, [one.outcome for one in searches])
        except (CoverageError, UsageError) as error:
            errors[framework.label] = error
            continue
        warnings = _refusal_warnings(each.request, each.limits)
        searches.append(replace(one, framework=framework if several else None, warnings=warnings))
        searched.append(each)
    return searched, searches


def sourced_last_resort(
    provenance: Mapping[str, Sourced[object]], asked: Sequence[Asked], before: SpaceRequest
) -> dict[str, Sourced[object]]:
    """Return the sources of a request, axes with last-resort values marked; ``before``: the request without them."""
    found = dict(provenance)
    for axis in AXES:
        values = tuple(dict.fromkeys(value for one in asked for value in one.request[axis.name] or ()))
        if values and before[axis.name] is None:
            found[axis.option] = Sourced(values, LAST_RESORT)
    return found


def _on_fewest(
    searchable: list[Searchable], provenance: Mapping[str, Sourced[object]]
) -> tuple[list[Searchable], Mapping[str, Sourced[object]]]:
    """Restrict searches to the fewest nodes, then GPUs, that meet the deadline; unchanged if none does."""
    from planner.search.loosen import Loosener  # noqa: PLC0415 - few requests need it

    found = [one for one in (Loosener(each).fewest() for each in searchable) if one is not None]
    if not found:
        return searchable, provenance
    least = min(found, key=lambda one: (one["nodes"] or (), one["gpus_per_node"] or ()))
    places = {name: least[name] for name in ("nodes", "gpus_per_node")}
    some = [
        replace(one, request=one.request.changed(**places))
        for one in searchable
        if one.limits.nodes >= max(places["nodes"] or (1,))
        and one.limits.gpus_per_node >= max(places["gpus_per_node"] or (1,))
    ]
    return some, {**provenance, **{name: Sourced(values, "deadline") for name, values in places.items()}}


def _refusal_warnings(request: SpaceRequest, limits: Limits) -> tuple[PlanWarning, ...]:
    """Return a warning for every precision that was named and is refused in all modes asked for."""
    reasons = {name: [limits.why_not(name, mode) for mode in request.modes] for name in request["precision"] or ()}
    return tuple(
        PlanWarning("precision_refused", name, f"It was requested but is left out: {why[0]}.")
        for name, why in reasons.items()
        if all(why)
        if name not in limits.refused_precisions or limits.refused_precisions[name].code != PRECISION_LOSSY
    )


def _lossy(asked: Sequence[tuple[Problem, SpaceRequest]], plan: Plan | None) -> Iterator[PlanWarning]:
    """Yield what the plan to take would take in precisions that were asked for and lose accuracy."""
    names = [name for name in asked[0][1]["precision"] or () if PRECISIONS[name].is_lossy]
    if not names or plan is None or plan.prediction.configuration.groups:
        return
    problem = next(one for one, _ in asked if plan.framework in (None, one.settings.framework))
    evaluator, configuration = predict.Evaluator(problem), plan.prediction.configuration
    for name in names:
        if name != configuration.precision and why_not_precision(evaluator.sources, name) is None:
            yield lossy_warning(evaluator, configuration, f"plan {plan.position}", name)


def searched_by(one: Asked, searcher: Searcher = search, beside: Sequence[Outcome] = ()) -> Searched:
    """Search a request and return the outcome; ``beside``: of others whose plans share its ranking."""
    request = one.request
    names = len(request["precision"] or PRECISIONS)  # as many equal plans may stand side by side
    keep = (max(request.top, MOST_COMPARED) + 1) * names  # the last reported one is compared with the next
    if request.modes == ("async",):
        keep = max(keep, MOST_KEPT)
    outcome = searcher(one, keep=keep, pareto=request.pareto, beside=beside)
    return Searched(request, one.limits, one.evaluator, one.order, outcome)


def answer_of(
    searches: Sequence[Searched],
    provenance: Mapping[str, Sourced[object]],
    compare: Compare,
    settings: Settings | None = None,
) -> Suggestion:
    """Return the answer that searches give together."""
    order, report = searches[0].order, report_of(searches)
    best = {
        at: distinct_plans(order, one.outcome.best) for at, one in enumerate(searches) if one.outcome.best is not None
    }
    if not best:
        return _nothing_fits(searches, provenance, settings)
    ranking, baseline = distinct_frameworks(ranked(order, best), order, searches), _baseline(searches, order)
    leaders, knee = _with_knee(searches, order, ranking)
    plans, choice = _ranked_plans(searches, order, leaders, baseline, compare, knee=knee)
    chosen, reason = next(one for one in plans if one.position == choice.row + 1), choice.reason
    reason += why_not_whole(searches[leaders.search[choice.row]], chosen.prediction, provenance)
    tied = tuple(row + 1 for row in choice.tied)
    front, more = _front(searches, order)
    return Suggestion(
        provenance,
        "found",
        plans,
        front,
        report,
        warnings=(*without_plan(searches), *_warnings(order, plans)),
        chosen=chosen.position,
        choice=reason,
        knee=next((line[0] + 1 for line in choice.lines if knee in line), None),
        tied=tied,
        baseline=None if baseline is None else baseline.priced.configurations.one(0),
        baseline_framework=None if baseline is None else searches[baseline.search[0]].framework,
        pareto_more=more,
        leasts=order.leasts,
        deciding=deciding_plans([plan for plan in plans if plan.position in tied], plans, chosen),
        frameworks=times_of_best(order, best, searches),
    )


def _baseline(searches: Sequence[Searched], order: Order) -> Ranking | None:
    """Return the fastest plan of those on the fewest devices, alone; None where it need not have been tried."""
    parts = {
        at: one.outcome.smallest
        for at, one in enumerate(searches)
        if one.outcome.smallest is not None and not one.outcome.trials
    }
    if not parts:
        return None
    return ranked(fewest_first(order), {at: distinct_plans(order, one) for at, one in parts.items()}).take([0])


def _with_knee(searches: Sequence[Searched], order: Order, ranking: Ranking) -> tuple[Ranking, int | None]:
    """Return the plans that are compared, and the row of the one with the least GPU-hours, which may stand behind them.

    Of those that take at most KNEE_TIMES as long as the first; None: it needs more than KNEE_SHARE of its GPU-hours.
    """
    most = None if ranking.priced.configurations.is_async.any() else max(searches[0].request.top, MOST_COMPARED)
    leaders = ranking.take(range(ranking.priced.size)[:most])
    if order.objective != "epoch-time" or not all(one.outcome.certified and not one.outcome.trials for one in searches):
        return leaders, None
    by_hours, first, knee = replace(order, objective="gpu-hours"), leaders.priced.take(slice(1)), None
    least, seconds = KNEE_SHARE * float(by_hours.values(first)[0]), KNEE_TIMES * float(order.values(first)[0])
    for at, one in enumerate(searches):
        asked = one.request.most
        name, limit = ("epoch", seconds) if order.has_dataset else ("samples-per-s", 1 / seconds)
        within = (min if order.has_dataset else max)(limit, asked.get(name, limit))
        request = one.request.changed(most={**asked, name: within})
        plan = first_plan(replace(one, request=request, order=by_hours), most=least, found=one.outcome)
        if plan is not None and plan.size and (hours := float(by_hours.values(plan)[0])) <= least:
            least, knee = hours, (at, in_all_precisions(order, one.evaluator, plan))
    if knee is None:
        return leaders, None
    if leaders.row_of(*knee) is None:
        leaders = ranked(order, {at: leaders.of_search(at) for at in sorted({*leaders.search})}, [knee])
    return leaders, leaders.row_of(*knee)


def _front(searches: Sequence[Searched], order: Order) -> tuple[tuple[Plan, ...], int]:
    """Return the first plans of the Pareto front, and how many more it has; none where it was not asked for."""
    parts = {
        at: in_all_precisions(order, one.evaluator, one.outcome.pareto)
        for at, one in enumerate(searches)
        if one.outcome.pareto is not None
    }
    if not parts:
        return (), 0
    front = front_of(order, parts)
    first = front.take(range(min(MOST_OF_FRONT, front.priced.size)))
    plans, more = _plans(searches, first, whys_pareto(order, first.priced)), front.priced.size - first.priced.size
    if not order.is_sum:
        return plans, more
    values = order.values(first.priced).tolist()
    return tuple(replace(plan, objective=value) for plan, value in zip(plans, values, strict=True)), more


def why_not_whole(asked: Asked, plan: Prediction, provenance: Mapping[str, Sourced[object]]) -> str:
    """Return the sentence that says why a plan splits the network or what is kept of it; empty where it need not."""
    more = {key for key, one in provenance.items() if one.source == LAST_RESORT}
    resorts = [axis.title for axis in AXES if axis.option in more]
    split, one = asked.limits.split, plan.configuration
    if split is None or not one.besides or not (resorts or has_whole_plans(asked.request)):
        return ""
    axes = [axis for axis in AXES if axis.option in more] or SPLIT_AXES
    defaults: dict[str, Any] = {axis.name: axis.default for axis in axes}
    whole_bytes = float(split.needed_bytes(Configurations.of([replace(one, groups=(), **defaults)]))[0])
    sentence = why_split(plan, whole_bytes, resorts)
    return f". {sentence[0].upper()}{sentence[1:]}"


def _ranked_plans(
    searches: Sequence[Searched],
    order: Order,
    ranking: Ranking,
    baseline: Ranking | None,
    compare: Compare,
    *,
    knee: int | None,
) -> tuple[tuple[Plan, ...], Choice]:
    """Return the plans that are reported, in order, and which of those that may be tied with the first is taken."""
    request, of_plans = searches[0].request, report_of(searches).ranked
    priced, frameworks = ranking.priced, [searches[at].framework for at in ranking.search]
    values = order.values(priced).tolist()
    configurations = [priced.configurations.one(at) for at in range(len(values))]

    def describe(rows: Sequence[int]) -> tuple[list[Description], Deviation]:
        some = priced.configurations.take(np.array(rows, dtype=np.int64))
        return compare([ranking.search[row] for row in rows], some)

    stale = priced.predictions.staleness_mean.tolist()
    capacity, needed = searches[0].limits.memory_bytes, priced.predictions.memory_bytes.tolist()
    tight = [capacity is not None and share_that_fits(one, capacity) < SURE_TO_FIT for one in needed]
    apart: dict[str, Any] = {"staleness": stale, "which": ranking.search, "tight": tight}
    choice = choice_of(values, configurations, describe, request, order.device, **apart)
    lines, described = choice.reported(request.top, knee), choice.compared.described
    if missing := [line[0] for line in lines if line[0] not in described]:
        choice.compared.add(missing)
    of_frameworks = [one.label if one else "" for one in frameworks]
    sentences = whys(order, priced, of_plans, lines[-1][0] + 1, of_frameworks)
    plans = tuple(
        Plan(
            row + 1,
            (one := described[row].prediction),
            sentences[row] + hardly_inside(one),
            ranking.precisions[row],
            choice.compared.first_is_better[row],
            _efficiency(one, baseline),
            frameworks[row],
            values[row] if order.is_sum else None,
            alike_of([configurations[at] for at in line]),
        )
        for row, line in ((line[0], line) for line in lines)
    )
    return plans, choice


def _efficiency(prediction: Prediction, baseline: Ranking | None) -> float | None:
    """Return samples a second and device over those of a baseline of one plan."""
    if baseline is None:
        return None
    of = baseline.priced
    rate = float(of.predictions.samples_per_s[0]) / int(of.configurations.gpus[0])
    return prediction.samples_per_s.value / prediction.configuration.gpus / rate


def _plans(searches: Sequence[Searched], plans: Ranking, sentences: Sequence[str]) -> tuple[Plan, ...]:
    """Return plans with every field, in their order."""
    by_row: dict[int, Prediction] = {}
    for at, one in enumerate(searches):
        rows = [row for row, search_of in enumerate(plans.search) if search_of == at]
        chosen = plans.priced.configurations.take(np.array(rows, dtype=np.int64))
        if rows:
            by_row |= zip(rows, one.evaluator.describe(chosen, window=one.request.window), strict=True)
    return tuple(
        Plan(row + 1, by_row[row], why + hardly_inside(by_row[row]), alike, framework=searches[at].framework)
        for row, (why, alike, at) in enumerate(zip(sentences, plans.precisions, plans.search, strict=True))
    )


def _nothing_fits(
    searches: Sequence[Searched], provenance: Mapping[str, Sourced[object]], settings: Settings | None
) -> Suggestion:
    """Return the answer without plans: what is nearest, what to loosen, and what contradicts each other."""
    from planner.search import loosen  # noqa: PLC0415 - few requests need it

    order, proven = searches[0].order, [one for one in searches if one.outcome.certified]
    nearest = _outside_window(searches, order)
    if (over := loosen.nearest_over_limits(proven, order)) is not None:
        above = _plans(proven, over, whys_over_limits(order, over.priced, proven[0].request))
        nearest = (*nearest, *(replace(one, position=len(nearest) + one.position) for one in above))
    ways = [loosen.Loosener(one).loosenings(one.outcome) for one in proven]
    others = tuple(loosen.of_settings(settings)) if settings and proven else ()
    is_one = len(proven) == 1 and proven[0].framework is None
    each = [
        loosen.with_shortages((*some, *others) if is_one else some, one.request, one.limits)
        for one, some in zip(proven, ways, strict=True)
    ]
    if is_one:
        told = each[0]
    else:  # of several frameworks the smallest change each
        firsts = ((one.label, some[0]) for one, some in zip(proven, each, strict=True) if some)
        named = (replace(first, message=f"{label}: {first.message}") for label, first in firsts)
        told = (*sorted(named, key=lambda one: one.change), *others)
    every = [way for some in (*ways, others) for way in some]
    conflict = loosen.smallest_conflict(searches, every, settings) if len(proven) == len(searches) else ()
    warnings = (*without_plan(searches), *_warnings(order, nearest))
    report = report_of(searches)
    return Suggestion(provenance, "none_feasible", (), (), report, nearest, told, warnings, conflict=conflict)


def _outside_window(searches: Sequence[Searched], order: Order) -> tuple[Plan, ...]:
    """Return the plans outside the window that are nearest to the target, of all searches."""
    parts = {
        at: in_all_precisions(order, one.evaluator, one.outcome.nearest)
        for at, one in enumerate(searches)
        if one.outcome.nearest is not None
    }
    if not parts:
        return ()
    request = searches[0].request
    nearest = nearest_of(order, parts, request)
    windows = [request.window(MODES[mode]) for mode in nearest.priced.configurations.mode]
    return _plans(searches, nearest, whys_nearest(order, nearest.priced, windows))


def _warnings(order: Order, plans: tuple[Plan, ...]) -> tuple[PlanWarning, ...]:
    """Return the warnings of the plans, each once, and that of a missing data set."""
    warnings = dict.fromkeys(warning for plan in plans for warning in plan.prediction.warnings)
    if not order.has_dataset and all(warning.code != "no_dataset" for warning in warnings):
        message = "without a data set there is no epoch: plans are ranked by samples per second"
        warnings[PlanWarning("no_dataset", "dataset", message)] = None
    return tuple(warnings)
