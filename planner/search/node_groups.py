"""Plans on a cluster of several node groups: those on one of them, and those across several, in one order.

No efficiency is told: samples a second and device of one kind of device say nothing of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.configuration import Configuration, Configurations
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import PlanWarning, cited
from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.suggestion import Loosening, Plan, Refused, SearchReport, Suggestion
from planner.errors import CoverageError, PlannerError, Refusal
from planner.search.across_groups import PlansAcross, search_across
from planner.search.choice import MOST_COMPARED, choice_of, distinct_plans
from planner.search.exhaustive import Outcome
from planner.search.explain import label, whys_of_values
from planner.search.ranking import Order, PricedPlans
from planner.search.search import search
from planner.search.searchable import Searchable, order_and_limits, with_last_resort
from planner.search.space import on_nodes
from planner.search.suggest import sourced_last_resort, suggest, why_not_whole
from planner.steps.describe import Description, Deviation, deviation_of_ratio
from planner.steps.node_groups import AcrossGroups, configuration_in_group, in_group
from planner.steps.predict import Evaluator

__all__ = ["suggest_across"]

NEAREST = 2
"""Plans of each group alone that are told where nothing fits."""
OF_DEVICE = ("kernels", "overheads")
"""Scopes that a kind of device has of its own: what is stated of two of them is not one error."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan: its place in the order, its objective, and in which precisions it is alike.

    ``key``: what is compared before the precision. ``by``: the group whose nodes it is on, or what prices it across
    groups.
    """

    key: tuple[float, ...]
    value: float
    configuration: Configuration
    precisions: tuple[str, ...]
    by: str | AcrossGroups


def suggest_across(
    asked: Mapping[str, tuple[Problem, SpaceRequest]], provenance: Mapping[str, Sourced[object]], seed: int = 0
) -> Suggestion:
    """Return the answer to a request on several node groups.

    A group that cannot be priced is left out with a warning.

    Parameters
    ----------
    asked : mapping of group to (Problem, SpaceRequest), that differ in the cluster and the calibrations; synchronous
    provenance : mapping of request key to Sourced, stands in the answer as ``request``
    seed : of trials, where the choices of nodes are too many to look at all

    UsageError, CoverageError: as :func:`planner.search.suggest.suggest`, where no group can be searched: that of the
    first.
    """
    groups: dict[str, Searchable] = {}
    errors: dict[str, PlannerError] = {}
    for name, (problem, request) in asked.items():
        try:
            order, limits = order_and_limits(problem, request)
        except CoverageError as error:
            errors[name] = error
            continue
        groups[name] = Searchable(request, limits, Evaluator(problem), order, problem)
    if not groups:
        raise next(iter(errors.values()))
    order, request = next((one.order, one.request) for one in groups.values())
    across = search_across(groups, request, order, seed)
    keep = (max(request.top, MOST_COMPARED) + 1) * len(request["precision"] or PRECISIONS)  # equal ones too
    on_each = {name: on_nodes(request, group.limits.nodes) for name, group in groups.items()}
    alone = {name: replace(groups[name], request=own) for name, own in on_each.items() if own is not None}

    def searched(some: Mapping[str, Searchable]) -> tuple[list[_Found], SearchReport]:
        outcomes = {
            name: search(one.request, one.limits, one.evaluator, order, keep=keep) for name, one in some.items()
        }
        found = sorted([*_found_alone(outcomes, order), *_found_across(across, order)], key=lambda one: one.key)
        return found, _report(outcomes, across)

    found, report = searched(alone)
    if not found and (wider := with_last_resort(list(alone.values()))):
        found, report = searched(dict(zip(alone, wider, strict=True)))
        provenance = sourced_last_resort(provenance, wider, request)
    left_out = tuple(PlanWarning("group_refused", name, f"It is left out: {why}") for name, why in errors.items())
    if not found:
        return replace(_nothing_fits(groups, provenance, report), warnings=left_out)
    answer = _answer(found, groups, (order, request), (provenance, report))
    calibrations = [one for group in groups.values() for one in group.problem.calibrations]
    return replace(
        answer,
        citations=cited([plan.prediction for plan in answer.plans], calibrations),
        warnings=(*left_out, *answer.warnings),
    )


def _found_alone(outcomes: Mapping[str, Outcome], order: Order) -> Iterable[_Found]:
    """Yield the best plans of each group alone."""
    for place, (name, outcome) in enumerate(outcomes.items()):
        if outcome.best is not None:
            distinct = distinct_plans(order, outcome.best)
            values = order.values(distinct.priced).tolist()
            for row, (key, precisions) in enumerate(
                zip(_keys(order, distinct.priced), distinct.precisions, strict=True)
            ):
                yield _Found((*key, place), values[row], distinct.priced.configurations.one(row), precisions, name)


def _found_across(across: PlansAcross, order: Order) -> Iterable[_Found]:
    """Yield plans across groups; those that differ in precision alone are one."""
    if across.priced is None:
        return
    keys, values = _keys(order, across.priced), order.values(across.priced).tolist()
    alike: dict[tuple[object, ...], list[int]] = {}
    for row, plan in enumerate(across.plans):
        alike.setdefault((keys[row], plan.groups), []).append(row)
    for number, (first, *others) in enumerate(alike.values()):
        names = (across.plans[row].precision for row in (first, *others))
        precisions = tuple(sorted(names, key=lambda name: name != "bf16"))
        plan = replace(across.plans[first], precision=precisions[0])
        yield _Found((*keys[first], number), values[first], plan, precisions, across.sets[first])


def _descriptions(
    found: Sequence[_Found], groups: Mapping[str, Searchable], request: SpaceRequest
) -> list[Description]:
    """Return the descriptions of plans, in their order."""
    by_row: dict[int, Description] = {}
    for by in dict.fromkeys(one.by for one in found):
        rows = [row for row, one in enumerate(found) if one.by == by]
        plans = [found[row].configuration for row in rows]
        if isinstance(by, AcrossGroups):
            described = by.describe(plans, request.window)
        else:
            alone = groups[by].evaluator.descriptions(Configurations.of(plans), request.window)
            described = [_named(one, configuration_in_group(one.configuration, by)) for one in alone]
        by_row |= zip(rows, described, strict=True)
    return [by_row[row] for row in range(len(found))]


def _named(one: Description, named: Configuration) -> Description:
    return replace(one, configuration=named, finish=lambda: replace(one.prediction, configuration=named))


def _keys(order: Order, plans: PricedPlans) -> list[tuple[float, ...]]:
    """Return what is compared of each plan before its precision, (n,)."""
    columns = [np.asarray(column).tolist() for column in order.keys_but_precision(plans)]
    return list(zip(*columns, strict=True))


def _answer(
    found: Sequence[_Found],
    groups: Mapping[str, Searchable],
    asked: tuple[Order, SpaceRequest],
    beside: tuple[Mapping[str, Sourced[object]], SearchReport],
) -> Suggestion:
    """Return the answer of plans in order; ``beside``: the sources of its request, and how it was searched."""
    (order, request), (provenance, report) = asked, beside

    def describe(rows: Sequence[int]) -> tuple[list[Description], Deviation]:
        described = _descriptions([leaders[row] for row in rows], groups, request)

        def deviation(one: int, other: int) -> float | None:
            pair = described[one], described[other]
            first, second = ({part.name for part in plan.configuration.groups} for plan in pair)
            return deviation_of_ratio(*pair, apart=() if first == second else OF_DEVICE)

        return described, deviation

    leaders = found[: max(request.top, MOST_COMPARED)]
    values = [one.value for one in leaders]
    configurations = [
        one.configuration if isinstance(one.by, AcrossGroups) else configuration_in_group(one.configuration, one.by)
        for one in leaders
    ]
    second = label(configurations[1], order.device) if len(leaders) > 1 else ""
    sentences = whys_of_values(order, values, report.ranked, second)
    choice = choice_of(values, configurations, describe, request, order.device)
    of, better = choice.compared.described, choice.compared.first_is_better
    plans = tuple(
        Plan(row + 1, of[row].prediction, sentences[row], leaders[row].precisions, better[row])
        for (row, *_) in choice.reported(request.top)
    )
    by, chosen = leaders[choice.row].by, of[choice.row].prediction
    reason = choice.reason + (why_not_whole(groups[by], chosen, provenance) if isinstance(by, str) else "")
    warnings = dict.fromkeys(warning for plan in plans for warning in plan.prediction.warnings)
    return Suggestion(
        provenance,
        "found",
        plans,
        (),
        report,
        warnings=tuple(warnings),
        chosen=choice.row + 1,
        choice=reason,
        tied=tuple(row + 1 for row in choice.tied),
    )


def _report(outcomes: Mapping[str, Outcome], across: PlansAcross) -> SearchReport:
    """Return how the plans were searched, those on each group and those across."""
    refused: dict[Refusal, int] = {}
    for counts in (*(one.refused for one in outcomes.values()), across.refused):
        for why, count in counts.items():
            refused[why] = refused.get(why, 0) + count
    method, n_across = "exhaustive, with exact shares of the groups", len(across.plans)
    if across.trials:
        method += f"; optuna (TPE) for nodes of several groups, {across.trials:,} trials"
    return SearchReport(
        method,
        certified=not across.trials and all(one.certified for one in outcomes.values()),
        candidates=sum(one.candidates for one in outcomes.values()) + across.candidates,
        evaluated=sum(one.evaluated for one in outcomes.values()) + n_across,
        discarded=sum(one.discarded for one in outcomes.values()),
        refused=tuple(Refused(why.code, str(why), count) for why, count in refused.items()),
    )


def _nothing_fits(
    groups: Mapping[str, Searchable], provenance: Mapping[str, Sourced[object]], report: SearchReport
) -> Suggestion:
    """Return what is nearest on the nodes of each group alone, and what to loosen there: nodes, where it has fewer."""
    nearest: list[Plan] = []
    ways: list[Loosening] = []
    for name, group in groups.items():
        own, every = on_nodes(group.request, group.limits.nodes), tuple(range(1, group.limits.nodes + 1))
        answer = suggest(group.problem, own or group.request.changed(nodes=every), provenance)
        fitting = (*answer.plans, *answer.nearest)[:NEAREST]
        nearest += (replace(plan, prediction=in_group(plan.prediction, name)) for plan in fitting)
        fewer = () if own else (("--nodes", f"1:{every[-1]}"),)
        said = "".join(f"{option} {value}" for option, value in fewer)
        if answer.plans:
            words = label(answer.plans[0].prediction.configuration, group.order.device)
            ways.append(Loosening(fewer, f"{name}: {said} allows {words}", 0.0))
        for way in answer.loosen:
            before = () if "--nodes" in way.option else fewer
            message = f"{name}: {said if before else ''}{', ' if before else ''}{way.message}"
            ways.append(replace(way, changes=(*before, *way.changes), message=message))
    numbered = tuple(replace(plan, position=at) for at, plan in enumerate(nearest, start=1))
    ordered = tuple(sorted(ways, key=lambda way: way.change))
    return Suggestion(provenance, "none_feasible", (), (), report, numbered, ordered)
