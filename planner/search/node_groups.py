"""Plans on a cluster of several node groups: those on one of them, and those across several, in one order.

No efficiency is told: samples a second and device of one kind of device say nothing of another.

Across groups, for every choice of their nodes, the shares of the batch that take least are found.
Group i has c_i devices, each of which takes m_i samples a step and needs P_i(m_i) s for them; a step takes as long as
the slowest group, T = max_i P_i(m_i), for B = sum_i c_i·m_i samples. Wanted are the m_i with the least T / B, the time
a sample takes, of all B in a window. P_i need not grow with m: some sample counts have no good sub-batch.

Totals are what groups have in common: D_j(s), the shortest step in which the first j groups take s samples, is
min over m of max(D_(j-1)(s - c_j·m), P_j(m)). Of two groups this looks at every split of every total of the window.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.cluster import GroupPart
from planner.domain.configuration import MODES, Configuration, Configurations
from planner.domain.precision import PRECISIONS
from planner.domain.prediction import PlanWarning, Predictions, cited
from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.suggestion import Loosening, Plan, Refused, SearchReport, Suggestion
from planner.errors import CoverageError, PlannerError, Refusal, UsageError
from planner.search.choice import MOST_COMPARED, choice_of, distinct_plans
from planner.search.exhaustive import Outcome
from planner.search.explain import label, whys_of_values
from planner.search.optuna_study import Sampler, quiet
from planner.search.ranking import LIMIT_REASONS, Order, PricedPlans, keeps
from planner.search.search import search
from planner.search.searchable import Searchable, order_and_limits, with_last_resort
from planner.search.space import accepted_mini_batches, has_whole_plans, on_nodes
from planner.search.suggest import sourced_last_resort, suggest, why_not_whole
from planner.steps.describe import Description, Deviation, deviation_of_ratio
from planner.steps.node_groups import AcrossGroups, configuration_in_group, in_group
from planner.steps.predict import Evaluator

__all__ = ["BatchShares", "PlansAcross", "best_shares", "search_across", "suggest_across"]

NEAREST = 2
"""Plans of each group alone that are told where nothing fits."""
OF_DEVICE = ("kernels", "overheads")
"""Scopes that a kind of device has of its own: what is stated of two of them is not one error."""


NO_SHARES = Refusal("other", "no shares of the groups make a mini-batch of the window and fit", "mini-batch")
MOST_CHOICES, MOST_SPLITS = 200_000, 3 * 10**10
"""Choices of nodes of a set of groups, and splits of mini-batches for all of them, beyond which some choices are tried:
all would take over 20 s, or a minute, a precision."""
TRIALS = 300
"""Choices that are tried then."""
MOST_LISTED = 2**18
"""Choices among which those that are tried are."""
_LARGEST_TABLE = 1 << 20
"""Splits looked at at once: temporary arrays of 8 MB."""


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
    """Return the answer to a synchronous request on several node groups.

    A group that cannot be priced is left out with a warning. ``asked``: by group, differs in the cluster and the
    calibrations; ``seed``: of trials, where the choices of nodes are too many to look at all.

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
        outcomes = {name: search(replace(one, order=order), keep=keep) for name, one in some.items()}
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


@dataclass(frozen=True, slots=True)
class PlansAcross:
    """Plans across groups, one a choice of nodes and precision.

    Attributes
    ----------
    sets : that price them
    priced : PricedPlans, shape (n,), for the order of plans, in which each counts as a node a GPU
    candidates : choices of nodes and precisions that were looked at
    refused : mapping of Refusal to int, those without a plan
    trials : of the candidates those that Optuna proposed, of more than were looked at
    """

    plans: tuple[Configuration, ...]
    sets: tuple[AcrossGroups, ...]
    priced: PricedPlans | None
    candidates: int
    refused: Mapping[Refusal, int]
    trials: int = 0


def search_across(groups: Mapping[str, Searchable], request: SpaceRequest, order: Order, seed: int = 0) -> PlansAcross:
    """Return the best plan of every choice of nodes of at least two groups, in every precision that they share.

    Of a set of groups with more than MOST_CHOICES choices that of TRIALS of them, which Optuna proposes.

    UsageError: too many splits of mini-batches.
    """
    if not has_whole_plans(request):
        return PlansAcross((), (), None, 0, {})
    low, high = accepted_mini_batches(request, "sync")
    window = max(math.ceil(low), 1), math.floor(high)
    found: list[_Plan] = []
    candidates, trials = 0, 0
    for names in chain.from_iterable(combinations(groups, size) for size in range(2, len(groups) + 1)):
        some = {name: groups[name] for name in names}
        choices = _Choices.of(some, request)
        is_tried = choices.are_too_many(window)
        across = AcrossGroups(
            {name: one.problem for name, one in some.items()}, {name: one.evaluator for name, one in some.items()}
        )
        asked = [name for name in PRECISIONS if name in (request["precision"] or PRECISIONS)]
        every_group = [name for name in asked if not any(one.limits.why_not(name, "sync") for one in some.values())]
        for precision in every_group:
            passes = {name: _passes(one, request, precision, window[1]) for name, one in some.items()}
            of_set = _OfSet(across, passes, precision, window)
            if is_tried:
                tried, plans = of_set.tried(choices, order, seed)
                trials += tried
            else:
                every = choices.listed()
                tried, plans = len(every), list(of_set.best(every))
            candidates += tried
            found += plans
    refused = {NO_SHARES: candidates - len(found)} if len(found) < candidates else {}
    if not found:
        return PlansAcross((), (), None, candidates, refused, trials)
    priced = _priced(found, next(iter(groups.values())).problem)
    keep = np.ones(priced.size, dtype=np.bool_)
    for name, most in request.most.items():
        if name != "nodes":  # of which no choice has more
            exceeds = keep & ~keeps(name, priced, order, most)
            if exceeds.any():
                refused[LIMIT_REASONS[name]] = int(exceeds.sum())
            keep &= ~exceeds
    kept = [one for one, is_kept in zip(found, keep.tolist(), strict=True) if is_kept]
    return PlansAcross(
        tuple(one.configuration for one in kept),
        tuple(one.across for one in kept),
        priced.take(keep) if kept else None,
        candidates,
        refused,
        trials,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """A plan across groups, the time of its step [s], and the most memory that a device of a group needs [byte]."""

    configuration: Configuration
    across: AcrossGroups
    step_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class _Passes:
    """The passes that a device may take in a step, by the samples that they make, shape (p,) each, ascending."""

    gpus_per_node: int
    sub_batch: IntArray
    accumulation: IntArray

    @property
    def samples(self) -> IntArray:
        """Of a device, shape (p,)."""
        return self.sub_batch * self.accumulation


@dataclass(frozen=True, slots=True)
class _Choices:
    """The choices of nodes of a set of groups that a request allows; ``totals``: of all groups together."""

    most: tuple[int, ...]
    gpus_per_node: tuple[int, ...]
    totals: Collection[int]

    @staticmethod
    def of(groups: Mapping[str, Searchable], request: SpaceRequest) -> _Choices:
        """Return the choices of groups."""
        most = tuple(one.limits.nodes for one in groups.values())
        limit = min(request.most.get("nodes", math.inf), sum(most))
        totals = [one for one in request["nodes"] or range(len(most), sum(most) + 1) if one <= limit]
        return _Choices(most, tuple(one.limits.gpus_per_node for one in groups.values()), totals)

    def are_too_many(self, window: tuple[int, int]) -> bool:
        """Tell whether there are too many, or too many splits of mini-batches of a window, to look at all.

        UsageError: so many splits that to try some choices would take minutes.
        """
        unit, number = math.gcd(*self.gpus_per_node), math.prod(self.most)
        in_window, below = (window[1] - window[0]) // unit + 1, window[1] // unit + 1
        totals = in_window + below * (len(self.most) - 2)
        mean_share = float(np.mean(1 / np.arange(1, self.most[-1] + 1)))  # of a mini-batch that one node may take
        splits = totals * (window[1] / self.gpus_per_node[-1] * mean_share)
        if splits > MOST_SPLITS / TRIALS:
            rule = f"the splits of mini-batches among node groups must be at most {MOST_SPLITS // TRIALS:,}"
            remedy = "; give a smaller --tolerance"
            raise UsageError(Refusal("space_too_large", rule, "splits", f"{splits:,.0f}", remedy))
        return number > MOST_CHOICES or number * splits > MOST_SPLITS

    def listed(self) -> IntArray:
        """Return every choice, shape (choices, groups); of more than MOST_LISTED fewer numbers of nodes of a group."""
        first, *others = (np.arange(1, most + 1) for most in self.most)
        fewer = int(max(MOST_LISTED / first.size, 1) ** (1 / len(others)))
        if math.prod(self.most) > MOST_LISTED:
            others = [np.unique(np.geomspace(1, one.size, fewer).round().astype(int)) for one in others]
        every: IntArray = np.stack(np.meshgrid(first, *others, indexing="ij"), axis=-1).reshape(-1, len(self.most))
        chosen: IntArray = every[np.isin(every.sum(axis=1), list(self.totals))]
        return chosen


def proportional_starts(most: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return shares of all nodes, the same of each group: all, half, a quarter, ..., one of each."""
    shares = [2.0**-power for power in range(max(most).bit_length() + 1)]
    return list(dict.fromkeys(tuple(max(1, round(one * share)) for one in most) for share in shares))


def _passes(group: Searchable, request: SpaceRequest, precision: str, high: int) -> _Passes:
    """Return the passes of a device of a group that fit its memory and may be part of a mini-batch of ``high``."""
    limits = group.limits
    most = high // limits.gpus_per_node
    fits = min(limits.fits(precision, "sync"), most)
    pairs = [np.zeros((2, 0), dtype=np.int64)]
    for n in [n for n in request["sub_batch"] or range(1, fits + 1) if n <= fits]:
        steps = np.array(request["accumulation_steps"] or range(1, most // n + 1), dtype=np.int64)
        steps = steps[steps <= most // n]
        pairs.append(np.stack([np.full(steps.size, n), steps]))
    sub_batch, accumulation = np.concatenate(pairs, axis=1)
    first = np.lexsort((accumulation, sub_batch * accumulation))
    return _Passes(limits.gpus_per_node, sub_batch[first], accumulation[first])


@dataclass(frozen=True, slots=True)
class _OfSet:
    """A set of groups in one precision, the passes that a device of each may take, and the accepted mini-batches."""

    across: AcrossGroups
    passes: Mapping[str, _Passes]
    precision: str
    window: tuple[int, int]

    def tried(self, choices: _Choices, order: Order, seed: int) -> tuple[int, list[_Plan]]:
        """Return how many choices were tried, each once, and the best plans of those that have one."""
        listed, found = choices.listed(), list[_Plan]()
        listed = listed[listed @ choices.gpus_per_node <= self.window[1]]
        sizes, starts = np.log(listed), proportional_starts(choices.most)
        trials = min(TRIALS, len(listed))
        with quiet():
            sampler = Sampler({str(at): (1, most) for at, most in enumerate(choices.most)}, seed)
            for number in range(trials):
                wanted = starts[number] if number < len(starts) else [*map(int, sampler.ask().values())]
                at = int(np.argmin(np.abs(sizes - np.log(wanted)).sum(axis=1)))
                sizes[at] = np.inf  # tried
                plan, value = next(self.best(listed[at : at + 1]), None), None
                if plan is not None:
                    found.append(plan)
                    sample_s = plan.step_s / plan.configuration.samples_per_update
                    value = order.value_of(np.array([sample_s]), np.array([plan.configuration.gpus])).tolist()
                sampler.tell(dict(zip(sampler.axes, listed[at].tolist(), strict=True)), value)
        return trials, found

    def best(self, choices: IntArray) -> Iterator[_Plan]:
        """Yield the best plan of each choice that has one."""
        if not all(one.sub_batch.size for one in self.passes.values()):
            return
        gpus_per_node = np.array([one.gpus_per_node for one in self.passes.values()])
        choices = choices[choices @ gpus_per_node <= self.window[1]]  # each device takes a sample at least
        totals = choices.sum(axis=1)
        for total in np.unique(totals).tolist():
            evaluated = {
                name: self.across.evaluate(name, total, one.sub_batch, one.accumulation, self.precision)
                for name, one in self.passes.items()
            }
            tables = []
            for name, of in evaluated.items():  # the shortest step by the samples of a device, where passes make them
                samples = self.passes[name].samples
                starts = np.flatnonzero(np.diff(samples, prepend=0))
                table = np.full(int(samples[-1]) + 1, np.inf)
                table[samples[starts]] = np.minimum.reduceat(of.iteration_s, starts)
                tables.append(table)
            for choice in choices[totals == total]:
                shares = best_shares(tables, (choice * gpus_per_node).tolist(), self.window)
                if shares is not None:
                    yield self._plan(choice.tolist(), shares, evaluated)

    def _plan(self, choice: Sequence[int], shares: BatchShares, evaluated: Mapping[str, Predictions]) -> _Plan:
        parts, memory = [], []
        for nodes, samples, (name, one) in zip(choice, shares.samples, self.passes.items(), strict=True):
            at = int(np.argmin(np.where(one.samples == samples, evaluated[name].iteration_s, np.inf)))
            passes = int(one.sub_batch[at]), int(one.accumulation[at])
            parts.append(GroupPart(name, nodes, one.gpus_per_node, *passes))
            memory.append(float(evaluated[name].memory_bytes[at]))
        plan = Configuration.across(tuple(parts), self.precision)
        return _Plan(plan, self.across, shares.step_s, max(memory))


def _priced(found: Sequence[_Plan], problem: Problem) -> PricedPlans:
    """Return plans as arrays, each as if a node had one GPU."""
    plans = [one.configuration for one in found]
    names = tuple(dict.fromkeys(one.precision for one in plans))
    rows = Configurations(
        nodes=np.array([one.gpus for one in plans]),
        gpus_per_node=np.ones(len(plans), dtype=np.int64),
        sub_batch=np.array([one.sub_batch for one in plans]),
        accumulation_steps=np.array([one.accumulation_steps for one in plans]),
        precision=np.array([names.index(one.precision) for one in plans]),
        mode=np.full(len(plans), MODES.index("sync")),
        precisions=names,
    )
    step_s, samples = np.array([one.step_s for one in found]), np.array([one.samples_per_update for one in plans])
    nothing = np.full(len(plans), np.nan)
    data = problem.dataset.samples if problem.dataset else np.nan
    return PricedPlans(
        rows,
        Predictions(
            iteration_s=step_s,
            update_s=nothing,
            samples_per_s=samples / step_s,
            epoch_s=data / samples * step_s,
            first_epoch_s=nothing,
            mini_batch_mean=samples.astype(np.float64),
            staleness_mean=np.zeros(len(plans)),
            memory_bytes=np.array([one.memory_bytes for one in found]),
        ),
    )


@dataclass(frozen=True, slots=True)
class BatchShares:
    """What each device of each group takes a step [samples], and how long the step takes [s]."""

    samples: tuple[int, ...]
    step_s: float


def best_shares(step_s: Sequence[FloatArray], devices: Sequence[int], window: tuple[int, int]) -> BatchShares | None:
    """Return the shares with the least time a sample; None where no total of the window can be divided.

    Of equal ones that with the fewest samples in all.

    Parameters
    ----------
    step_s : p_i(m) at place m [s], infinity where a device cannot take m samples; at least one sample each: place 0 is
        not looked at
    window : (int, int), least and largest accepted mini-batch [samples]
    """
    unit = math.gcd(*devices)
    counts = [count // unit for count in devices]
    low, high = max(-(-window[0] // unit), sum(counts)), window[1] // unit
    if low > high:
        return None
    alone = np.full(high + 1, np.inf)  # the step of the first group by its samples in all, in units
    most = min(step_s[0].size - 1, high // counts[0])
    alone[counts[0] : counts[0] * most + 1 : counts[0]] = step_s[0][1 : most + 1]
    shortest = [alone]
    for of_group, count in zip(step_s[1:-1], counts[1:-1], strict=True):
        shortest.append(_joined(shortest[-1], of_group, count, np.arange(high + 1))[0])
    totals = np.arange(low, high + 1)
    times, taken = _joined(shortest[-1], step_s[-1], counts[-1], totals)
    at = int(np.argmin(times / totals))
    if not math.isfinite(times[at]):
        return None
    left, samples = int(totals[at]), [int(taken[at])]
    for of_group, count, before in zip(step_s[-2:0:-1], counts[-2:0:-1], shortest[-2::-1], strict=True):
        left -= samples[-1] * counts[len(counts) - len(samples)]
        samples.append(int(_joined(before, of_group, count, np.array([left]))[1][0]))
    left -= samples[-1] * counts[1]
    return BatchShares((left // counts[0], *reversed(samples)), float(times[at]))


def _joined(before: FloatArray, step_s: FloatArray, count: int, totals: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the shortest step of some groups and one more by samples in all, and what a device of that one takes."""
    taken = np.arange(1, max(min(step_s.size - 1, int(totals.max()) // count), 1) + 1)
    own = step_s[taken] if step_s.size > 1 else np.full(1, np.inf)
    times, best = np.empty(totals.size), np.empty(totals.size, dtype=np.int64)
    rows = max(1, _LARGEST_TABLE // taken.size)
    for start in range(0, totals.size, rows):
        part = slice(start, start + rows)
        left = totals[part, None] - count * taken
        each = np.where(left >= 0, np.maximum(before[np.maximum(left, 0)], own), np.inf)
        place = np.argmin(each, axis=1)
        times[part], best[part] = np.take_along_axis(each, place[:, None], axis=1)[:, 0], taken[place]
    return times, best
