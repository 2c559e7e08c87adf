"""Evaluating configurations: many as arrays, a few with every field, or by the least that plans can take.

The least is a bound for a search, whatever is left open of plans. No term of a step is below 0, and stages take what
their kernels and the host take at least. With Σ the passes of all units of the network over one micro-batch and t those
of the quickest block, kernels alone, and c by what the host makes any stage longer at least,

    step >= c max(m Σ / p, (m + (p - 1) / v) ⌊L / p⌋ t)

as some stage has its share of all units, every stage of an even cut holds ⌊L / p⌋ blocks, and the last one starts when
the first micro-batch has passed the others. c grows with the host's time over that of kernels, which of sums is no less
than of their least part: of a block, by itself or with an end of the network.

Closer, stages are priced as in the step itself. With w what a micro-batch takes of a stage both ways, its messages
included, W the sum of w over the s stages in front of it, and x what a micro-batch takes between stages, each way,

    step >= m w + W / v + 2 s x

of any stage, of which the one with the largest p w + W is taken. What is waited for falls away for schedules that fill
the bubble. These are bounds of the model, not of a machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_values
from planner.domain.configuration import MODES, Box, Configurations, JoinedConfigurations, splits
from planner.domain.prediction import Prediction, Predictions
from planner.domain.request import Problem
from planner.domain.split import BUBBLES, MEMORY_KINDS, RECOMPUTES
from planner.errors import ParameterError
from planner.sources.source import missing_link
from planner.sources.sources import Sources
from planner.steps.asynchronous import AsyncPricer, async_descriptions, asynchrony_of
from planner.steps.compute import PASSES, UnitTable
from planner.steps.describe import Description, Deviation, Window, as_measured, deviation_left, deviation_of_ratio
from planner.steps.host_and_gpu import composed_s
from planner.steps.layer_pipeline import step_pricer
from planner.steps.passes import Passes
from planner.steps.price import Pricer
from planner.steps.step_costs import Ring, StepCosts, units_s
from planner.steps.step_describe import step_descriptions
from planner.workload.lawful import check_lawful
from planner.workload.memory_rules import mean_staleness
from planner.workload.program import block_starts
from planner.workload.units import Units


def least_pass_s(pricer: Pricer, plans: Configurations) -> FloatArray:
    """Return what the passes of one sub-batch take at least, of a network without blocks or on one device [s], (n,).

    Some stage of a pipeline has its share of all passes.
    """
    least = np.zeros(plans.size)
    for rows, part in pricer.apart(plans):
        least[rows] = part.least_pass_s(plans.take(rows))
    return least


def least_step_s(pricer: Pricer, plans: Configurations) -> FloatArray:
    """Return a lower bound of the step of every plan that is like one of these but for what is open [s], shape (n,).

    Open are sharding, offloading, fewer virtual stages, and of schedules that have a bubble which one; stages are cut
    evenly. A sample takes no longer with more accumulation.

    Parameters
    ----------
    plans : Configurations, fields of shape (n,)
        With a schedule without a bubble, every schedule is open; without recompute, all recompute.
    """
    compute, rank = pricer.compute, pricer.ranks(plans)
    compute.cases.ensure(rank, plans.sub_batch)
    row, (every, block) = compute.cases.rows(rank, plans.sub_batch), pricer.of_rows(_leasts)
    m, p = plans.accumulation_steps, plans.pipeline_parallel
    waiting = np.where(np.isin(plans.schedule, BUBBLES), (p - 1) / plans.virtual_stages, 0.0)
    of_blocks = (compute.ranks[0].units.sequence.size - 2) // p * block[row, plans.recompute]
    replica_wait = pricer.overheads.wait_share(plans.gpus_per_node, plans.nodes) * m * of_blocks
    return np.asarray(np.maximum(m * every[row, plans.recompute] / p, (m + waiting) * of_blocks) + replica_wait)


def least_scheduled_s(pricer: Pricer, plans: Configurations) -> FloatArray:
    """Return a closer bound than :func:`least_step_s`, which takes longer."""
    passes = Passes(pricer, plans, pricer.ranks(plans))
    cases, case = passes.cases, passes.cases.case
    each_s, p = passes.least_s(messages=not pricer.chooses_order), cases.plans.pipeline_parallel[cases.of]
    ends = np.append(cases.stage[1:], 0)
    number = np.where(np.append(np.diff(cases.of), 1) > 0, p, ends) - cases.stage  # stages that each stands for
    through_s = np.cumsum(number * each_s)
    of_case = np.append(0.0, through_s)[np.flatnonzero(np.diff(cases.of, prepend=-1))]
    ahead_s = np.maximum(through_s - of_case[cases.of] - each_s, 0.0)
    score = p * each_s + ahead_s
    slowest = np.flatnonzero(score == cases.most(score)[cases.of])
    at = slowest[np.flatnonzero(np.diff(cases.of[slowest], prepend=-1))][case]
    waits = np.isin(plans.schedule, BUBBLES) & (plans.pipeline_parallel > 1)
    sent_s = 0.0 if pricer.chooses_order else 2.0 * (cases.stage + number - 1)[at] * passes.transfer_s[passes.case]
    fill_s = np.where(waits, ahead_s[at] / plans.virtual_stages + sent_s, 0.0)
    wait = pricer.overheads.wait_share(plans.gpus_per_node, plans.nodes)
    if wait.any():
        wait = wait * -cases.most(-passes.least_s(messages=False))[case]
    return np.asarray(plans.accumulation_steps * (each_s[at] + wait) + fill_s)


def _leasts(costs: StepCosts, table: UnitTable) -> tuple[FloatArray, ...]:
    """Return what passes of all units, and of the quickest block, take at least by kind of recompute, (c, kinds)."""
    units, (kernels, host) = costs.compute.ranks[0].units, units_s(costs, table)
    longer = _longer(kernels, host, units, costs.overheads.exponent)
    number = np.bincount(units.sequence, minlength=units.distinct).astype(np.float64)
    inner = np.bincount(units.sequence[1:-1], minlength=units.distinct).astype(np.float64)
    every, block = np.zeros((2, kernels.shape[0], len(RECOMPUTES)))
    for term, names, of, codes in (
        ("forward", ("forward",), number, slice(None)),
        ("backward", ("backward", "accumulating"), number, slice(None)),
        ("forward", ("forward",), inner * (units.reached > 0), RECOMPUTES.index("full")),
        ("forward", ("attention",), inner * (units.reached > 0), RECOMPUTES.index("selective")),
    ):
        least = longer[:, None] * np.min([kernels[:, PASSES.index(name)] for name in names], axis=0)
        least = costs.sources.multiplied(term, least, costs.precision)
        every.T[codes] += least @ of
        if inner.any():
            block.T[codes] += (least * (of > 0))[:, inner > 0].min(axis=1)
    return every, block


def _longer(kernels: FloatArray, host: FloatArray, units: Units, exponent: float) -> FloatArray:
    """Return by what the host makes the stages of even cuts longer at least, of each case, shape (c,)."""
    ends = np.zeros((4, 1, units.distinct))
    ends[1:3, :, units.sequence[0]] += 1.0
    ends[2:, :, units.sequence[-1]] += units.sequence.size > 1
    blocks = np.eye(units.distinct)[distinct_values(units.sequence[1:-1])]
    if not blocks.size:
        ends, blocks = ends[2:3], np.zeros((1, units.distinct))
    held = ends + blocks
    ratios = []
    for names in (("forward", "backward", "update"), ("forward", "accumulating")):
        for again in ((), ("forward",), ("attention",)):
            gpu_s, host_s = (
                np.einsum("cpu,ebu->ceb", one[:, [PASSES.index(name) for name in names]], held)
                + np.einsum("cpu,bu->cb", one[:, [PASSES.index(name) for name in again]], blocks)[:, None]
                for one in (kernels, host)
            )
            ratios.append(np.divide(host_s, gpu_s, out=np.full_like(host_s, np.inf), where=gpu_s > 0).min(axis=(1, 2)))
    return composed_s(np.ones(kernels.shape[0]), np.min(ratios, axis=0), exponent)


_ABSENT = {"staleness_mean": 0.0}
"""What a field of Predictions holds that does not apply, where that is not NaN."""
_ALWAYS = ("iteration_s", "samples_per_s", "memory_bytes", "mini_batch_mean")
"""Fields of Predictions that apply to every plan."""
Index = slice | IntArray | tuple[slice | IntArray, ...]
OF_FRAMEWORK = ("overheads",)
"""Scopes that a framework has of its own: what is stated of two of them is not one error."""


class Evaluator:
    """Prices configurations of one problem. Tables are made once for a distinct case and kept between calls.

    Parameters
    ----------
    like : of a problem that differs in overheads and collectives alone: what its kernels take is not computed again
    mean_ranks : GPUs of a node on average, of synchronous plans whose nodes hold unequal numbers: their step is that of
        nodes like the fullest, which sets the pace, with messages around one ring of all GPUs. What is told of their
        samples is of so many full nodes
    """

    def __init__(self, problem: Problem, like: Evaluator | None = None, mean_ranks: float | None = None) -> None:
        self.problem, self.mean_ranks = problem, mean_ranks
        self.sources = Sources(problem)
        self.pricers: dict[tuple[str, str], Pricer | AsyncPricer] = {}
        self._like = like
        self.switched: dict[tuple[str, str], list[tuple[str, Evaluator]]] = {}

    def evaluate(self, configurations: Configurations) -> Predictions:
        """Return predictions as arrays of shape (n,), of a product in the order of its rows.

        A product of axes costs what its cases cost and a few sums a configuration; rows gather from the same tables.

        CoverageError: nothing serves a kernel, precision, link or input of some configuration.
        ParameterError: a configuration is larger than the cluster.
        """
        self._check(configurations)
        shape = configurations.shape
        columns = {f.name: np.broadcast_to(_ABSENT.get(f.name, np.nan), shape) for f in fields(Predictions)}
        for where, alike in _alike(configurations):
            for name, value in self._columns(alike).items():
                if not columns[name].flags.writeable:
                    absent = _ABSENT.get(name, np.nan)
                    columns[name] = np.empty(shape) if name in _ALWAYS else np.full(shape, absent)
                of_all = columns[name] if alike.is_product else columns[name].reshape(-1)
                of_all[where] = value
        return Predictions(**{name: value.reshape(-1) for name, value in columns.items()})

    def describe(self, configurations: Configurations, window: Window | None = None) -> list[Prediction]:
        """Return predictions with every field, one a configuration, from the same tables.

        Parameters
        ----------
        window : mode -> (least, largest) mini-batch [samples], or None
            For the probability that the mini-batch lies in it.
        """
        return [one.prediction for one in self.descriptions(configurations, window)]

    def descriptions(self, configurations: Configurations, window: Window | None = None) -> list[Description]:
        """Return what tells configurations apart, one each, from which their predictions follow."""
        self._check(configurations)
        by_row: dict[int, Description] = {}
        for where, alike in _alike(configurations):
            positions = np.arange(configurations.size)[where].tolist()
            pricer = self.pricer_of(alike)
            if isinstance(pricer, AsyncPricer):
                of_kind = async_descriptions(pricer, alike.rows, window)
            else:
                of_kind = step_descriptions(pricer, alike.rows, window)
            by_row |= zip(positions, (as_measured(one, self.sources) for one in of_kind), strict=True)
        return [by_row[i] for i in range(configurations.size)]

    def least_epoch_s(self, configurations: Configurations, *, split: bool, closely: bool = False) -> FloatArray:
        """Return a lower bound of the epoch of every plan that may become of rows [s], shape (n,).

        Of a sample without a data set. 0 where nothing is known of a bound.

        Parameters
        ----------
        configurations : Configurations
            Synchronous, of one precision. Of plans with a whole network on every device, accumulation is open too.
        split : whether they split the network; what is open then says :func:`least_step_s`
        closely : of those that do: a closer bound, which takes longer
        """
        precision = configurations.precisions[int(configurations.precision.flat[0])] if configurations.size else ""
        if not precision or self.sources.measured_steps(precision) is not None:
            return np.zeros(configurations.size)
        samples = float(self.problem.dataset.samples) if self.problem.dataset else 1.0
        copies = configurations.data_parallel * configurations.sub_batch
        pricer = self.pricer_of(configurations)
        if isinstance(pricer, AsyncPricer):
            return np.zeros(configurations.size)
        if not split or not block_starts(self.problem.network):
            return samples / copies * least_pass_s(pricer, configurations)
        bound = least_scheduled_s if closely else least_step_s
        return samples / (copies * configurations.accumulation_steps) * bound(pricer, configurations)

    def pricer_of(self, alike: Configurations) -> Pricer | AsyncPricer:
        """Return the pricer of configurations of one precision and mode, a new one where there is none yet."""
        key = precision, mode = alike.precisions[int(alike.precision.flat[0])], MODES[int(alike.mode.flat[0])]
        if key not in self.pricers:
            # Kernels are the same in either mode.
            pricers = (self._like.pricers.get(key) if self._like else None, *self.pricers.values())
            like = next((one for one in pricers if one and one.precision == precision), None)
            self.pricers[key] = self._made(precision, mode, like)
        return self.pricers[key]

    @property
    def table_bytes(self) -> int:
        """Memory of its tables of compute times [byte]."""
        tables = {id(one.compute): one.compute.cases.columns for one in self.pricers.values()}
        return sum(getattr(table, f.name).nbytes for table in tables.values() for f in fields(table))

    def stage_memory(self, plan: Prediction) -> list[dict[str, float]]:
        """Return the memory of a rank of each stage of a plan, by kind, with ``total`` [bytes]."""
        one = Configurations.of([plan.configuration])
        pricer = self.pricer_of(one)
        if isinstance(pricer, AsyncPricer):
            return [dict(plan.memory_bytes)]
        ((_, own),) = pricer.apart(one)
        memory = (own.in_order(plan.rank_order) if plan.rank_order else own).stage_memory(one)
        columns = {name: getattr(memory, name) for name in (*MEMORY_KINDS, "total")}
        return [{name: float(column[at]) for name, column in columns.items()} for at in range(memory.stage.size)]

    def _made(self, precision: str, mode: str, like: StepCosts | None) -> Pricer | AsyncPricer:
        if mode == "async":
            return AsyncPricer(self.sources, precision, like)
        pricer = step_pricer(self.sources, precision, like)
        if self.mean_ranks is not None:
            pricer.ring = Ring(self.sources, self.mean_ranks)
        return pricer

    def _check(self, configurations: Configurations) -> None:
        cluster = self.problem.cluster
        if configurations.size == 0:
            return
        if not isinstance(configurations, JoinedConfigurations):  # which are lawful
            split = configurations.where(splits(configurations))
            if split.size:
                check_lawful(self.problem.network, self.problem.settings.framework, split.rows)
        bases = configurations.bases
        if (gpus := int(bases.gpus_per_node.max())) > cluster.node.gpus:
            raise ParameterError("gpus_per_node", f"at most the {cluster.node.gpus} of {cluster.name}", gpus)
        if (nodes := int(bases.nodes.max())) > cluster.nodes:
            if cluster.inter_node is None:
                raise missing_link(cluster, "inter_node", f"the plan spans {nodes} nodes")
            raise ParameterError("nodes", f"at most the {cluster.nodes} of {cluster.name}", nodes)

    def _columns(self, configurations: Configurations) -> dict[str, FloatArray]:
        """Return the fields of Predictions for configurations of one precision and mode, but those that are absent."""
        more: dict[str, FloatArray] = {}
        pricer = self.pricer_of(configurations)
        if isinstance(pricer, AsyncPricer):
            prices = pricer.price(configurations)
            period, first, memory_bytes = prices.period_s, prices.first_period_s, prices.memory_bytes
            amount = (configurations.gpus * configurations.sub_batch).astype(np.float64)
            statistics = asynchrony_of(configurations.gpus, configurations.sub_batch, prices)
            more["update_s"], more["staleness_mean"] = statistics.update_s, statistics.staleness_mean
            more["mini_batch_mean"] = statistics.mini_batch_mean
        else:
            period, first, memory_bytes = pricer.totals(configurations)
            more["staleness_mean"] = configurations.of_bases(mean_staleness)
            more["mini_batch_mean"] = amount = configurations.synchronous_mini_batch.astype(np.float64)
        is_later = first is period
        measured = self.sources.measured_steps(pricer.precision)
        if measured is not None and not isinstance(pricer, AsyncPricer):
            factors = measured.factors(configurations)
            period, first = period * factors, first * factors
        if self.problem.dataset:
            steps = self.problem.dataset.samples / amount
            more["epoch_s"] = steps * period
            more["first_epoch_s"] = more["epoch_s"] if is_later else steps * first
        return more | {"iteration_s": period, "samples_per_s": amount / period, "memory_bytes": memory_bytes}


def _alike(some: Configurations) -> Iterator[tuple[Index, Configurations]]:
    """Yield the configurations of each precision and mode, and their places: rows, or a part of each axis."""
    of_bases = _kinds(some.bases)
    if of_bases.size and np.all(of_bases == of_bases.flat[0]):
        yield slice(None), some
        return
    kind = _kinds(some)
    for value in distinct_values(kind).tolist():
        has_kind = kind == value
        box = some.box(has_kind)
        if box is None:
            places = np.flatnonzero(np.broadcast_to(has_kind, some.shape))
            yield places, some.rows.take(places)
        else:
            yield _index(box, some.shape), some.boxed(box)


def _kinds(some: Configurations) -> IntArray:
    return some.precision * len(MODES) + some.mode


def _index(box: Box, shape: tuple[int, ...]) -> Index:
    """Return what takes a part of each dimension of an array of a shape."""
    if all(isinstance(part, slice) for part in box):
        return box
    return np.ix_(*(np.arange(length)[part] for length, part in zip(shape, box, strict=True)))


def compare_among(
    evaluators: Sequence[Evaluator],
    window: Window | None,
    which: Sequence[int],
    configurations: Configurations,
    *,
    axes: bool = True,
) -> tuple[list[Description], Deviation]:
    """Return descriptions of rows of several problems, and how unsure their ratios are.

    Two rows -> the standard deviation of the logarithm of the time of one over the other's; None: not known.

    Parameters
    ----------
    evaluators : of problems that differ in what trains the network
    window : mode -> (least, largest) mini-batch [samples], or None
    which : sequence of int, n of them; position of the evaluator of each configuration
    configurations : Configurations, shape (n,)
    axes : whether axes in which plans differ add to the deviation
    """
    by_row: dict[int, Description] = {}
    for at, evaluator in enumerate(evaluators):
        rows = [row for row, one in enumerate(which) if one == at]
        if rows:
            some = configurations.take(np.array(rows, dtype=np.int64))
            by_row |= zip(rows, evaluator.descriptions(some, window), strict=True)

    def deviation(one: int, other: int) -> float | None:
        apart = () if which[one] == which[other] else OF_FRAMEWORK
        found = deviation_of_ratio(by_row[one], by_row[other], apart=apart, axes=axes)
        pairs = ((evaluators[which[row]].sources, by_row[row]) for row in (one, other))
        return None if found is None else found * deviation_left(*pairs)

    return [by_row[row] for row in range(configurations.size)], deviation
