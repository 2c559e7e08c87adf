"""Plans in one order, of several frameworks too, and which to take; answers on several clusters in one ranking.

Equal plans are one, some cannot be told from the first, and one of these is taken.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from planner.domain.axes import AXES
from planner.domain.configuration import MODES, SPLIT_AXES, Configuration, Configurations
from planner.domain.framework import Framework
from planner.domain.objective import TERMS, objective_named
from planner.domain.prediction import PlanWarning, Predictions
from planner.domain.provenance import NORMAL_90
from planner.domain.request import SpaceRequest, Subject
from planner.domain.suggestion import Plan, Refused, SearchReport, Suggestion, question_of
from planner.errors import PlannerError
from planner.numbers import constant
from planner.search.exhaustive import Asked, Outcome
from planner.search.explain import is_above, listed_positions
from planner.search.ranking import Evaluator, Order, PricedPlans, pareto_front
from planner.steps.describe import Description, Deviation

__all__ = [
    "MOST_COMPARED", "SURE_PROBABILITY", "Choice", "Compare", "Ranking", "Searched", "alike_of", "choice_of",
    "deciding_plans", "distinct_frameworks", "distinct_plans", "expected_regret", "front_of", "in_all_precisions",
    "in_one_ranking", "largest_regrets", "nearest_of", "probability_better", "ranked", "report_of", "times_of_best",
    "without_plan",
]  # fmt: skip

MOST_COMPARED = 50
"""Lines, best first, of which the first plans are compared with plan 1, and synchronous plans that are looked at."""
PROBED = 16
"""Plans that are compared at once where the last tied one of a row is looked for."""
MOST_RUNS = 3
"""Plans that are worth a run: of three tried the best one is rarely much slower than the best of all."""
LARGEST_PROBABILITY = constant("ties.largest")
FAMILY = (
    "nodes", "gpus_per_node", "precision", "mode", "expert_parallel", *(axis.name for axis in AXES if axis.is_degree),
)  # fmt: skip
"""Axes that the plans of a line have in common."""
LINE_SLACK = 0.01
SURE_PROBABILITY = 0.9
"""Probability that plan 1 is better from which a plan is not tied with it."""

Answers = list[tuple[Subject, Suggestion]]


@dataclass(frozen=True, slots=True)
class Distinct:
    """Plans in order of which no two are equal, each with the precisions of this very prediction, bf16 first."""

    priced: PricedPlans
    precisions: tuple[tuple[str, ...], ...]


def distinct_plans(order: Order, best: PricedPlans) -> Distinct:
    """Return plans, given in order, without their equals: those that differ in precision alone."""
    keys = order.keys_but_precision(best)
    codes, names = best.configurations.precision, best.configurations.precisions
    starts = np.ones(best.size, dtype=np.bool_)
    starts[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    groups = np.split(np.arange(best.size), np.flatnonzero(starts)[1:])
    by_precision = [sorted(group.tolist(), key=lambda at: names[codes[at]] != "bf16") for group in groups]
    first = np.array([group[0] for group in by_precision], dtype=np.int64)
    return Distinct(best.take(first), tuple(tuple(names[codes[at]] for at in group) for group in by_precision))


def in_all_precisions(order: Order, evaluator: Evaluator, some: PricedPlans) -> Distinct:
    """Return different plans, in their order, each with every precision in which it has this very prediction."""
    names = some.configurations.precisions
    copies = some.configurations.take(np.repeat(np.arange(some.size), len(names)))
    wide = replace(copies, precision=np.tile(np.arange(len(names)), some.size))
    distinct = distinct_plans(order, order.best(PricedPlans(wide, evaluator.evaluate(wide)), wide.size))
    at = {
        replace(distinct.priced.configurations.one(group), precision=name): group
        for group, alike in enumerate(distinct.precisions)
        for name in alike
    }
    groups = [at[some.configurations.one(position)] for position in range(some.size)]
    return Distinct(
        distinct.priced.take(np.array(groups, dtype=np.int64)), tuple(distinct.precisions[one] for one in groups)
    )


def probability_better(first: float, other: float, deviation: float | None, most: float | None = None) -> float | None:
    """Return the probability that the first of two values of the objective is the smaller; None: not known.

    P = F(ln(other / first) / s), s the standard deviation of the logarithm of their ratio and F of Student's t with 5
    degrees of freedom, as errors have heavy tails: with θ = atan(x / √5),
    F(x) = 1/2 + (θ + sinθ·cosθ·(1 + 2/3·cos²θ)) / π. No more is claimed than ``most``; None:
    LARGEST_PROBABILITY.
    """
    if deviation is None or not (first > 0 and other > 0):
        return None
    ratio = math.log(other / first)
    angle = math.atan2(ratio, deviation * math.sqrt(5)) if ratio or deviation else 0.0
    beyond = (angle + math.sin(angle) * math.cos(angle) * (1 + 2 / 3 * math.cos(angle) ** 2)) / math.pi
    reach = (LARGEST_PROBABILITY if most is None else most) - 0.5
    return 0.5 + max(-reach, min(reach, beyond))


def expected_regret(value: float, other: float, deviation: float | None) -> float | None:
    """Return how much more the first of two values of the objective is expected to be than the second, where it is.

    E[max(0, X)] of X = ln(value / other), normal with the standard deviation s of its error:
    s·φ(μ/s) + μ·Φ(μ/s); None: not known.
    """
    if deviation is None or not (value > 0 and other > 0):
        return None
    mean = math.log(value / other)
    if deviation == 0:
        return max(mean, 0.0)
    ratio = mean / deviation
    density = math.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    return deviation * density + mean * 0.5 * math.erfc(-ratio / math.sqrt(2))


def largest_regrets(values: Sequence[float], deviations: Sequence[Sequence[float | None]]) -> list[float]:
    """Return of each plan the largest expected regret against another; infinity where one is not known.

    ``deviations[i][j]``: standard deviation of the logarithm of the ratio of plans i and j.
    """
    every = range(len(values))
    regrets = [[expected_regret(values[i], values[j], deviations[i][j]) for j in every if j != i] for i in every]
    return [max((math.inf if one is None else one for one in row), default=0.0) for row in regrets]


Describe = Callable[[Sequence[int]], tuple[Sequence[Description], Deviation]]
"""Positions of plans -> their descriptions, and how unsure the ratio of two of these is."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of ranked plans is taken, at position ``row`` from 0, and why in words.

    ``tied``: the first plan and those tied with it of these: the next one, the first plans of lines, the best plan on
    each smaller number of devices, the plan to take. ``lines``: the plans of each line.
    """

    compared: _Compared
    tied: tuple[int, ...]
    row: int
    reason: str
    lines: tuple[tuple[int, ...], ...]

    def reported(self, top: int, knee: int | None = None) -> list[tuple[int, ...]]:
        """Return the first lines, and those of the plan to take and of the knee, which count among so many."""
        kept = [line for line in self.lines if line[0] == self.row or knee in line]
        others = [line for line in self.lines if line not in kept]
        return sorted([*kept, *others[: max(top - len(kept), self.lines[0] not in kept)]])


@dataclass(slots=True)
class _Compared:
    """Plans in order, of which some were compared with the first.

    ``keys``: of plans on as many devices the one with the least is taken: whether it may run out of memory, its mean
    staleness, minus the sub-batch over the devices that share it, axes that split the network. ``hours``: of devices,
    in any unit. ``first_is_better``: the probability of it, by position; None where errors are not known.
    """

    values: Sequence[float]
    gpus: Sequence[int]
    keys: Sequence[tuple[bool, float, float, int]]
    hours: Sequence[float]
    describe: Describe
    described: dict[int, Description] = field(default_factory=dict)
    first_is_better: dict[int, float | None] = field(default_factory=dict)

    def add(self, rows: Collection[int]) -> None:
        """Compare plans with the first."""
        some = [0, *sorted({*rows} - self.described.keys() - {0})]
        described, deviation = self.describe(some)
        self.described |= zip(some, described, strict=True)
        for at, row in enumerate(some):
            better = probability_better(self.values[0], self.values[row], deviation(0, at)) if row else None
            self.first_is_better[row] = better

    def is_tied(self, row: int) -> bool:
        """Whether a plan that was compared is the first or tied with it."""
        better = self.first_is_better[row]
        return row == 0 or (better is not None and better < SURE_PROBABILITY)

    def saves_nothing(self, row: int) -> bool:
        """Whether a plan has fewer devices than the first, and takes more hours of them."""
        return self.gpus[row] < self.gpus[0] and self.hours[row] > self.hours[0]

    def end_of(self, gpus: int) -> int:
        """Return the position of the best plan on no more devices that is not tied."""
        worse = (row for row in self.first_is_better if self.gpus[row] <= gpus and not self.is_tied(row))
        return min(worse, default=len(self.values))

    def fewest(self) -> int:
        """Return the position of the tied plan on the fewest devices that has the least key of those on as many.

        A plan that is tied only because little is known of it is not taken: one that another plan beats by prediction
        on no more devices, though plan 0 is surely better than that one. So what may be taken on some devices ends
        with the best plan that is not tied. The last before it with a lower key than all better ones is taken; few of
        them are compared, as each that is not tied rules out all after it.
        """
        rows: dict[int, list[int]] = {}
        for at, key in enumerate(self.keys):
            if self.saves_nothing(at):
                continue
            row = rows.setdefault(self.gpus[at], [])
            if not row or key < self.keys[row[-1]]:
                row.append(at)
        for gpus in sorted(rows):
            while row := rows[gpus][: bisect_left(rows[gpus], self.end_of(gpus))]:
                if row[-1] in self.described:
                    return row[-1]
                rest = row[bisect_left(row, max((at for at in row if at in self.described), default=-1) + 1) :]
                self.add(rest[:: -math.ceil(len(rest) / PROBED)])
        return 0

    def why_fewest(self, tied: Sequence[int], chosen: int, device: str) -> str:
        """Return in words what sets the chosen plan apart from those tied that may be taken.

        Each key counts among those alike in the keys before it: the last that tells some apart is what the plan has.
        """
        costly = [at for at in tied if self.saves_nothing(at)]
        alike = [at for at in tied if at < self.end_of(self.gpus[at]) and at not in costly]
        shares = any(-self.keys[at][2] != self.described[at].configuration.sub_batch for at in alike)
        most = f"the most samples per {device}" if shares else "the largest sub-batch"
        fewest = f"the fewest {device}s{f' at no more {device}-hours' if costly else ''}"
        names = (fewest, "memory to spare", "the smallest staleness", most, "the simplest split")
        apart = []
        for at, name in enumerate(names):
            key = {row: (self.gpus[row], *self.keys[row])[at] for row in (chosen, *alike)}
            apart += [name] if any(key[row] > key[chosen] for row in alike) else []
            alike = [row for row in alike if key[row] == key[chosen]]
        *among, has = apart or ["the best prediction"]
        with_all = " and ".join(name for name in among if name != names[0])
        is_beaten = any(self.gpus[at] < self.gpus[chosen] and at not in costly for at in tied)
        more = f"; on fewer {device}s others take more {device}-hours" if costly and fewest not in apart else ""
        of = [
            f"on {names[0]}" if names[0] in among else "",
            f"with {with_all}" if with_all else "",
            f"that no untied plan beats on as few {device}s" if is_beaten else "",
        ]
        if any(of):
            return f"of those {' '.join(filter(None, of))}, plan {chosen + 1} has {has}{more}"
        return f"plan {chosen + 1} has {has}{'' if apart or more else ' of them'}{more}"


def choice_of(
    values: Sequence[float],
    plans: Sequence[Configuration],
    describe: Describe,
    request: SpaceRequest,
    device: str = "GPU",
    *,
    staleness: Sequence[float] = (),
    which: Sequence[int] = (),
    tight: Sequence[bool] = (),
) -> Choice:
    """Return which of plans in order of ``values`` of the objective, least first, is taken.

    ``least-regret`` takes the plan whose largest expected regret against another of the tied is least, ``fastest`` the
    first, ``fewest-gpus`` that of :meth:`_Compared.fewest`. ``staleness``: its mean, plan by plan, ``which``: numbers
    of frameworks, and ``tight``: whether it may run out of memory; empty: the same of all. Where the objective is hours
    of devices none that has more of them is taken for its sub-batch.
    """
    each = (one.sub_batch * one.pipeline_parallel / one.replica_gpus for one in plans)
    tightness, stale = tight or [False] * len(plans), staleness or [0.0] * len(plans)
    keys = list(zip(tightness, stale, (-one for one in each), map(_splits, plans), strict=True))
    gpus = [one.gpus for one in plans]
    is_time, is_hours = request.objective == "epoch-time", objective_named(request.objective).is_of_gpus
    hours = [value * (many if is_time else is_hours) for value, many in zip(values, gpus, strict=True)]
    keys = [(*key[:2], 0.0, 0) for key in keys] if is_hours else keys
    compared = _Compared(values, gpus, keys, hours, describe)
    families = which or [0] * len(plans)
    firsts = [line[0] for line in lines_of(values, plans, families, 0)[: max(request.top, MOST_COMPARED)]]
    fewer: dict[int, int] = {}
    for at, many in enumerate(gpus):
        if many < gpus[0]:
            fewer.setdefault(many, at)
    compared.add({*firsts, *range(len(plans))[1:2], *list(fewer.values())[:MOST_COMPARED]})
    tied = [at for at in sorted(compared.described) if compared.is_tied(at)]
    row, why = 0, "plan 1 has the best prediction of them"
    if request.choose == "fewest-gpus":
        row = compared.fewest()
        tied = sorted({*tied, row})
        why = compared.why_fewest(tied, row, device)
    elif request.choose == "least-regret" and len(tied) > 1:
        deviation = describe(tied)[1]
        matrix = [[deviation(i, j) for j in range(len(tied))] for i in range(len(tied))]
        worst, row = min(zip(largest_regrets([values[i] for i in tied], matrix), tied, strict=True))
        words = f"{100 * math.expm1(worst):.2g}%" if math.isfinite(worst) else "not known"
        why = f"the largest expected regret against another of them is least for plan {row + 1}, {words}"
    listed = f"plans {listed_positions([at + 1 for at in tied])} are tied; {why}"
    reason = listed if len(tied) > 1 else "no other plan is tied with it"
    return Choice(compared, tuple(tied), row, reason, lines_of(values, plans, families, row))


def lines_of(
    values: Sequence[float], plans: Sequence[Configuration], which: Sequence[int], chosen: int
) -> tuple[tuple[int, ...], ...]:
    """Return the positions of plans by line: those of one family within LINE_SLACK of the first share its line.

    A family has its places, degrees, precision and framework in common; ``which`` tells frameworks apart. The chosen
    plan is the first of its line.
    """
    lines: list[list[int]] = []
    open_lines: dict[object, list[int]] = {}
    for at, one in enumerate(plans):
        family = (which[at], one.groups, *(getattr(one, name) for name in FAMILY))
        line = open_lines.get(family)
        is_near = line is not None and values[at] <= (1 + LINE_SLACK) * values[line[0]]
        if line is not None and is_near and at != chosen:
            line.append(at)
            continue
        lines.append([at])
        if not is_near:
            open_lines[family] = lines[-1]
    return tuple(map(tuple, lines))


def alike_of(plans: Sequence[Configuration]) -> dict[str, tuple[str, ...]]:
    """Return the values of the plans of a line, by axis in which they differ; the first plan's first."""
    columns = {axis.name: tuple(str(getattr(one, axis.name)) for one in plans) for axis in AXES}
    return {name: values for name, values in columns.items() if len(set(values)) > 1}


def _splits(one: Configuration) -> int:
    """Return how many axes of a plan say something else than that every device holds and keeps the whole network."""
    return sum(getattr(one, axis.name) != axis.default for axis in SPLIT_AXES)


def deciding_plans(tied: Sequence[Plan], reported: Sequence[Plan], chosen: Plan) -> tuple[int, ...]:
    """Return the positions of the first tied plans of an answer, the chosen one among them; none where it is alone.

    A few measured steps of these decide. Steps of asynchronous plans correct no prediction: such plans are left out.
    """
    plans = [plan for plan in tied if plan in reported and plan.prediction.configuration.mode == "sync"]
    first = plans[:MOST_RUNS]
    if chosen in plans[MOST_RUNS:]:
        first[-1] = chosen
    return tuple(plan.position for plan in first) if len(first) > 1 and chosen in first else ()


Compare = Callable[[Sequence[int], Configurations], tuple[list[Description], Deviation]]
"""Searches that configurations are of, one each, and these -> as :func:`planner.steps.predict.compare_among`."""


@dataclass(frozen=True)
class Searched(Asked):
    """What one search gave, and what it was made with; ``framework``: None where no other was asked for."""

    outcome: Outcome
    framework: Framework | None = None
    warnings: tuple[PlanWarning, ...] = ()

    @property
    def label(self) -> str:
        """The framework in an answer; empty where no other was asked for."""
        return self.framework.label if self.framework else ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Plans in order as of :class:`Distinct`; ``search``: position of the search that each is of."""

    priced: PricedPlans
    precisions: tuple[tuple[str, ...], ...]
    search: tuple[int, ...]

    def take(self, rows: Sequence[int]) -> Ranking:
        """Return those at positions."""
        priced = self.priced.take(np.array(rows, dtype=np.int64))
        return Ranking(priced, tuple(self.precisions[at] for at in rows), tuple(self.search[at] for at in rows))

    def of_search(self, at: int) -> Distinct:
        """Return the plans of one search."""
        some = self.take([row for row, one in enumerate(self.search) if one == at])
        return Distinct(some.priced, some.precisions)

    def row_of(self, at: int, one: Distinct) -> int | None:
        """Return the row of the first plan of a search's plans; None: there is none."""
        plan = one.priced.configurations.one(0)
        rows = (row for row, search in enumerate(self.search) if search == at)
        return next((row for row in rows if self.priced.configurations.one(row) == plan), None)


def ranked(order: Order, parts: Mapping[int, Distinct], more: Sequence[tuple[int, Distinct]] = ()) -> Ranking:
    """Return the plans of searches, by position, and more in one order; of equal ones the first search's come first."""
    every = [*parts.items(), *more]
    search = [at for at, one in every for _ in one.precisions]
    precisions = [names for _, one in every for names in one.precisions]
    each = [one.priced for _, one in every]
    if len(each) == 1:
        return Ranking(each[0], tuple(precisions), tuple(search))
    configurations = Configurations.of([one.configurations.one(at) for one in each for at in range(one.size)])
    columns = {f.name: np.concatenate([getattr(one.predictions, f.name) for one in each]) for f in fields(Predictions)}
    together = Ranking(PricedPlans(configurations, Predictions(**columns)), tuple(precisions), tuple(search))
    in_order: list[int] = np.lexsort(order.keys_but_precision(together.priced)[::-1]).tolist()
    return together.take(in_order)


def distinct_frameworks(ranking: Ranking, order: Order, searches: Sequence[Searched]) -> Ranking:
    """Return plans in their order without those that others equal whose framework has some of the switches alone."""
    frameworks = [searches[at].framework for at in ranking.search]
    keys = np.stack([np.asarray(one, dtype=np.float64) for one in order.keys_but_precision(ranking.priced)], axis=1)
    alike: dict[tuple[object, ...], list[set[str]]] = {}
    kept = []
    for row, (framework, precisions) in enumerate(zip(frameworks, ranking.precisions, strict=True)):
        if framework is not None:
            key = (framework.name, framework.version, precisions, *keys[row].tolist())
            sets = alike.setdefault(key, [])
            if any(some < {*framework.switched} for some in sets):
                continue
            sets.append({*framework.switched})
        kept.append(row)
    return ranking if len(kept) == len(frameworks) else ranking.take(kept)


def times_of_best(order: Order, parts: Mapping[int, Distinct], searches: Sequence[Searched]) -> dict[str, float]:
    """Return by framework, of several, how many times the objective of the best of all its best plan has, in order."""
    values = {at: float(order.values(one.priced.take(slice(1)))[0]) for at, one in parts.items()}
    least = min(values.values())
    in_order = sorted(values.items(), key=lambda one: one[1])
    return {searches[at].label: round(value / least, 3) for at, value in in_order if searches[at].label and least > 0}


def front_of(order: Order, parts: Mapping[int, Distinct]) -> Ranking:
    """Return the Pareto front of the fronts of searches, in order."""
    whole = ranked(order, parts)
    if len(parts) == 1:
        return whole
    priced = whole.priced
    front = pareto_front(order.values(priced), priced.configurations.gpus, order.distances(priced))
    return whole.take(front.tolist())


def nearest_of(order: Order, parts: Mapping[int, Distinct], request: SpaceRequest) -> Ranking:
    """Return of the plans outside the window that searches found, for each mode the nearest below and above it."""
    whole = ranked(order, parts)
    if len(parts) == 1:
        return whole
    plans, means = whole.priced.configurations, whole.priced.predictions.mini_batch_mean
    first: dict[tuple[int, bool], int] = {}
    for row in np.argsort(order.reaches(plans, means), kind="stable").tolist():
        one = plans.one(row)
        above = is_above(one, float(means[row]), request.window(one.mode))
        first.setdefault((MODES.index(one.mode), above), row)
    return whole.take([first[key] for key in sorted(first)])


def report_of(searches: Sequence[Searched]) -> SearchReport:
    """Return how the spaces were searched, all together."""
    refused: dict[tuple[str, str], int] = {}
    for one in searches:
        for why, count in one.outcome.refused.items():
            refused[why.code, str(why)] = refused.get((why.code, str(why)), 0) + count
    return SearchReport(
        method=searches[0].outcome.method,
        certified=all(one.outcome.certified for one in searches),
        candidates=sum(one.outcome.candidates for one in searches),
        evaluated=sum(one.outcome.evaluated for one in searches),
        discarded=sum(one.outcome.discarded for one in searches),
        gap=_gap(searches),
        trials=sum(one.outcome.trials for one in searches),
        refused=tuple(Refused(code, reason, count) for (code, reason), count in refused.items()),
    )


def without_plan(searches: Sequence[Searched]) -> tuple[PlanWarning, ...]:
    """Return a warning for every framework, of several, none of whose plans fits, with what refuses most of them."""
    warnings = []
    for one in searches:
        if one.outcome.best is None and one.framework is not None:
            most = max(one.outcome.refused.items(), key=lambda item: item[1], default=None)
            why = f"; most candidates are refused: {most[0]}" if most else "; it allows none of what was asked for"
            warnings.append(PlanWarning("framework_without_plan", one.label, f"No plan of {one.label} fits{why}."))
    return tuple(warnings)


def _gap(searches: Sequence[Searched]) -> float | None:
    """Return the largest gap of those that were stopped; None: none was, or of one it is not known."""
    stopped = [one.outcome.gap for one in searches if not one.outcome.certified]
    return None if None in stopped else max((one for one in stopped if one is not None), default=None)


def in_one_ranking(answers: Sequence[tuple[Subject, Suggestion]], refused: Mapping[str, PlannerError]) -> Answers:
    """Return answers to the same questions on several clusters: of each question the cluster with the best plan first.

    With a deadline the best is the one with the fewest GPU-hours. The errors of two clusters are taken as independent.
    ``refused``: why other clusters have no answer, which is a warning of each best one.
    """
    by_question: dict[tuple[object, ...], Answers] = {}
    for subject, one in answers:
        by_question.setdefault(question_of(subject, one), []).append((subject, one))
    warnings = tuple(PlanWarning("cluster_refused", name, f"It is left out: {why}") for name, why in refused.items())
    ranked = []
    for each in by_question.values():
        (subject, first), *others = _ranked(each)
        ranked += [(subject, replace(first, warnings=(*warnings, *first.warnings))), *others]
    return ranked


def _ranked(answers: Answers) -> Answers:
    """Return the answers to one question, the best first and those without a plan last."""
    found = [(_objective(*one), *one) for one in answers if one[1].chosen_plan]
    found.sort(key=lambda one: one[0])
    times = {subject.cluster: value / found[0][0] for value, subject, _ in found}
    ranked = []
    for value, subject, one in found:
        deviation = math.hypot(_deviation(found[0][2].chosen_plan), _deviation(one.chosen_plan))
        is_known = subject is not found[0][1] and math.isfinite(deviation)
        better = probability_better(found[0][0], value, deviation) if is_known else None
        ranked.append((subject, replace(one, clusters=times, first_cluster_is_better=better)))
    return ranked + [one for one in answers if one[1].chosen_plan is None]


def _objective(subject: Subject, one: Suggestion) -> float:
    """Return the objective of the plan to take, per sample where there is no data set."""
    if (plan := one.chosen_plan) is None:
        return math.inf
    prediction, name = plan.prediction, str(one.request["objective"].value)
    seconds = prediction.epoch_s.value if prediction.epoch_s else 1 / prediction.samples_per_s.value
    term = TERMS["gpu-hours" if "deadline" in one.request else name]
    return float(seconds * term.rate(prediction.configuration.gpus, subject.usd_per_gpu_hour))


def _deviation(plan: Plan | None) -> float:
    """Return the standard deviation of the logarithm of a plan's step; infinite: it is not known."""
    step = plan.prediction.iteration_s if plan else None
    return math.log(step.high / step.low) / 2 / NORMAL_90 if step and step.low and step.high else math.inf
