"""Steps of plans of like pipelines: stages, the exchange of gradients, and the update; or one stage, slot by slot.

T = pipeline(stages) + exposed exchange of gradients + tied embedding + update + gather of updated weights. Of the
stages the one with the most work is shown: its own time, what the pipeline waits for besides (bubble), and what is sent
between stages; the sum is the step.

After a stage's last backward pass it exchanges gradients while stages above it still compute: only what outlasts the
pipeline adds to the step.

Without a pipeline there is one stage. A rank's slots are its layers with parameters. A message holds one slot's
gradient, or those of a bucket of neighbours; each starts when its lowest slot's gradient is ready and the message
before it is done (:mod:`planner.steps.synchronous`). The last pass of a step hides them: what it takes besides kernels,
such as messages of tensor ranks, is spread over its slots as the time of their kernels. Such plans may be rows, or a
product of axes: what has a value for each sub-batch, say, has an axis for it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from planner.costs.features import Work
from planner.costs.terms import extrapolates
from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_numbers, distinct_rows, distinct_values
from planner.domain.axes import SCHEDULES
from planner.domain.calibration import Entry
from planner.domain.configuration import Configurations
from planner.domain.messages import GRADIENTS, Groups
from planner.domain.split import WEIGHTS_SHARDED
from planner.steps.passes import Passes
from planner.steps.pipeline import SPLIT_BACKWARD, pipeline_s
from planner.steps.pipeline_runs import RUN_SCHEDULES, exchange_s, runs_s
from planner.steps.stage_cases import StageCases
from planner.steps.state import Elements, StageExchange, State
from planner.steps.step_costs import StepCosts
from planner.steps.synchronous import (
    Fusion,
    Runs,
    backward_end_s,
    best_fusion,
    communication_prefix_s,
    cycle_fusion,
    exposed_s,
    units_backward_s,
    units_forward_s,
)
from planner.steps.tables import PairTable
from planner.workload.program import gradient_buckets

STEP_TERMS = (
    "load_input", "host_to_device", "forward", "backward", "recompute", "tensor_messages", "context_messages",
    "expert_messages", "sharded_weights", "bubble", "stage_messages", "all_reduce", "embedding_all_reduce", "update",
    "updated_weights", "offload", "replica_wait",
)  # fmt: skip
"""Terms of a step in the order of an answer."""


class _Pipelines(NamedTuple):
    """Pipelines of k distinct plans, of every stage or of each run of equal ones: r in all.

    ``at``: where they stand in passes, shape (r, k); ``alone``: forward and backward pass of a micro-batch [s];
    ``gathered``: the same with what they wait for weights [s].
    """

    at: IntArray
    alone: tuple[FloatArray, FloatArray]
    gathered: tuple[FloatArray, FloatArray]


class StepPart:
    """Plans of one schedule and number of stages, or of runs of equal stages: some ``rows`` of n plans.

    The longest path of :func:`planner.steps.pipeline.pipeline_s` is what all passes of a step take; its terms say what
    of it the slowest stage is busy with.
    """

    def __init__(self, costs: StepCosts, every: Configurations, of: tuple[Passes, State], rows: IntArray) -> None:
        self.costs, self.plans, self._rows = costs, every.take(rows), rows
        self.passes, self.state = of
        self.m = self.plans.accumulation_steps.astype(np.float64)
        self._pass, self._state = self.passes.case[rows], self.state.cases.case[rows]
        self.schedule = SCHEDULES[int(self.plans.schedule[0])]
        self._has_runs = self.schedule in RUN_SCHEDULES
        if self._has_runs:
            self.schedule = "interleaved"  # which is 1F1B with one chunk
        shares = np.where(self.plans.sharding == WEIGHTS_SHARDED, self._state + 1, 0)
        cases = (self._pass, self.passes.number), (shares, self.state.cases.rank.size + 1)
        self._first, self._which = self.plans.distinct(("accumulation_steps", "virtual_stages"), *cases)
        self._repeats = self._at(self.passes.cases, rows[self._first])[1]

    @staticmethod
    def alike(plans: Configurations, run_number: IntArray) -> tuple[IntArray, IntArray]:
        """Return what plans that are one part have in common, (n,) each, given how many runs each has."""
        codes = [SCHEDULES.index(name) for name in RUN_SCHEDULES]
        has_runs = np.isin(plans.schedule, codes)
        number = np.where(has_runs, run_number, plans.pipeline_parallel)
        return np.where(has_runs, codes[0], plans.schedule), number

    @cached_property
    def period_s(self) -> FloatArray:
        """The step of each plan [s], shape (n,), but for offloading."""
        state = self.state
        once_s = state.norms_s + state.tied_s + state.updated_weights_s
        period: FloatArray = self.exchange_s[1] + (self._whole_s[self._which] + self._update_s)
        if once_s.any():
            period = period + once_s[self._state]
        if self.wait_share.any():
            period = period + self._replica_wait_s(self._computed_s[self._which])
        return period

    def _of_slowest(self, of_stages: Any, slowest: IntArray) -> Any:
        """Return what the slowest stage has of an array of shape (r, k): shape (k,)."""
        return np.take_along_axis(of_stages, slowest[None], axis=0)[0]

    @property
    def slowest(self) -> IntArray:
        """The stage with the most work, shape (n,)."""
        stages = np.broadcast_to(np.cumsum(self._repeats, axis=0) - self._repeats, self._pipelines.at.shape)
        return np.asarray(self._of_slowest(stages, self._slowest)[self._which])

    @cached_property
    def _pipelines(self) -> _Pipelines:
        rows, m = self._rows[self._first], self.m[self._first]
        at = self._at(self.passes.cases, rows)[0]
        alone = self.passes.alone_s(at, m)
        return _Pipelines(at, alone, self._gathered(*alone))

    @cached_property
    def _slowest(self) -> IntArray:
        """The first stage, or run, with the most work, of each pipeline."""
        return np.asarray(np.argmax(self._own_s, axis=0))

    @cached_property
    def _own_s(self) -> FloatArray:
        """All passes of each stage of pipelines, shape (r, k)."""
        forward, backward = self._pipelines.gathered
        return np.asarray(self.m[self._first] * (forward + backward))

    @cached_property
    def _whole_s(self) -> FloatArray:
        """The time of all micro-batches of each pipeline, shape (k,)."""
        return self._pipeline_s(self.transfer_s[self._first])

    @cached_property
    def transfer_s(self) -> FloatArray:
        """What one micro-batch takes between neighbouring stages of each plan [s], shape (n,)."""
        return self.passes.transfer_s[self._pass]

    @cached_property
    def _computed_s(self) -> FloatArray:
        """Kernels and host time of all passes on the slowest stage of each pipeline, shape (k,)."""
        m, passes, at = self.m[self._first], self.passes, self._of_slowest(self._pipelines.at, self._slowest)
        return np.asarray(m * (passes.forward_s[at] + passes.backward.mean_s(at, m) + passes.recompute_s[at]))

    def _at(self, cases: StageCases, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return where stages of plans stand, each of a run of equal ones or all, and how many each stands for."""
        if self._has_runs:
            return cases.runs(rows)
        at = cases.at(rows)
        return at, np.ones((len(at), 1), dtype=np.int64)

    def _pipeline_s(self, transfer_s: FloatArray) -> FloatArray:
        """Return the time of all micro-batches of pipelines, given what a micro-batch takes between stages."""
        of_kind = runs_s if self._has_runs else pipeline_s
        steps = self.plans.accumulation_steps[self._first]
        return of_kind(*self._pipelines.gathered, transfer_s, steps, **self._schedule(self._first))

    def _schedule(self, some: IntArray) -> dict[str, Any]:
        """Return what says the schedule of some of the plans to its closed forms."""
        said = {"schedule": self.schedule, "virtual_stages": self.plans.virtual_stages[some]}
        if self._has_runs:
            return said | {"repeats": self._at(self.passes.cases, self._rows[some])[1]}
        if self.schedule in SPLIT_BACKWARD:
            at = self.passes.cases.at(self._rows[some])
            return said | {"weight_s": self.passes.weights.mean_s(at, self.m[some])}
        return said

    def _gathered(self, forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the passes of a micro-batch with the gathers and scatters of sharded weights that they wait for."""
        where = np.flatnonzero(self.plans.sharding[self._first] == WEIGHTS_SHARDED)
        if not where.size:
            return forward_s, backward_s
        at = self._at(self.state.cases, self._rows[self._first[where]])[0]
        ahead, back = forward_s.copy(), backward_s.copy()
        ahead[:, where], back[:, where] = self.state.gathered_s(at, forward_s[:, where], backward_s[:, where])
        return ahead, back

    def terms(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Return what each term takes, and what it adds to the step [s], (n,) each, but for offloading."""
        passes, state, m, which = self.passes, self.state, self.m, self._which
        at = self._of_slowest(self._pipelines.at, self._slowest)[which]
        computed = {
            "forward": m * passes.forward_s[at],
            "backward": m * passes.backward.mean_s(at, m),
            "recompute": m * passes.recompute_s[at],
        }
        terms = {name: (one,) * 2 for name, one in computed.items()}
        terms["host_to_device"] = (m * passes.copy_s[at],) * 2
        for name, sent in passes.messages.items():
            terms[name] = m * sent.taken_s[at], m * (sent.forward_s + sent.backward_s)[at]
        if state.norms_s.any():
            taken, added = terms["tensor_messages"]
            terms["tensor_messages"] = taken + state.norms_s[self._state], added + state.norms_s[self._state]
        terms |= {name: (one[which],) * 2 for name, one in self._waits().items()}
        terms["all_reduce"] = self.exchange_s
        terms["embedding_all_reduce"] = (state.tied_s[self._state],) * 2
        terms["update"] = (self._update_s,) * 2
        terms["updated_weights"] = (state.updated_weights_s[self._state],) * 2
        terms["replica_wait"] = (self._replica_wait_s(self._computed_s[which]),) * 2
        return terms

    def _waits(self) -> dict[str, FloatArray]:
        """Return what the slowest stage of each pipeline waits for, shape (k,)."""
        (forward, backward), (ahead, back) = self._pipelines.alone, self._pipelines.gathered
        waited = self.m[self._first] * np.maximum((ahead - forward) + (back - backward), 0.0)
        still = self._pipeline_s(np.zeros(self._first.size))
        is_pipeline = self.plans.pipeline_parallel[self._first] > 1
        return {
            "sharded_weights": self._of_slowest(waited, self._slowest),
            "bubble": np.maximum(still - self._of_slowest(self._own_s, self._slowest), 0.0) * is_pipeline,
            "stage_messages": np.where(is_pipeline, self._whole_s - still, 0.0),
        }

    def _replica_wait_s(self, computed_s: FloatArray) -> FloatArray:
        """Return what waiting for other replicas takes, given kernels and host time of all passes, shape (n,)."""
        return np.asarray(self.wait_share * (computed_s + self._update_s))

    @cached_property
    def wait_share(self) -> FloatArray:
        """By which share of itself compute takes longer as replicas wait, shape (n,)."""
        return self.costs.overheads.wait_share(self.plans.gpus_per_node, self.plans.nodes)

    @cached_property
    def _update_s(self) -> FloatArray:
        """The longest update of a stage, shape (n,)."""
        share = self.state.update_share[self._at(self.state.cases, self._rows)[0]]
        of_stages = self.passes.smaller_update_s(self._pipelines.at[:, self._which], share, self.m)
        return np.asarray(of_stages.max(axis=0))

    @cached_property
    def exchange_s(self) -> tuple[FloatArray, FloatArray]:
        """What the exchange of gradients takes of the fullest stage, and what it adds to the step, (n,)."""
        at = self._at(self.state.cases, self._rows)[0]
        shares = self.passes.backward_shares[:, self._at(self.passes.cases, self._rows)[0]]
        return self._exchange_s(Runs(shares, *(one[:, at] for one in way)) for way in self.state.exchanges)

    def _exchange_s(self, every: Iterable[Runs], some: slice = slice(None)) -> tuple[FloatArray, FloatArray]:
        """Return the same of some of the plans, given every way to exchange gradients."""
        schedule = self._schedule(np.arange(self._rows.size)[some])
        backward_s, overlaps = self._pipelines.gathered[1][:, self._which[some]], self.costs.strategy.overlap
        return exchange_s(backward_s, self.transfer_s[some], every, overlaps=overlaps, **schedule)


_ROUNDING = 1e-12
"""Share of messages that differences of sums leave."""
_MOST_AT_ONCE = 1 << 20
"""Gathers of units, or ways to send slots, that are worked out at once."""


class MessagePath(NamedTuple):
    """The gradients' messages of one plan, and which of them decide when its step ends.

    Attributes
    ----------
    groups : a single one
    every_bytes, buffer_bytes : ndarray of float, shape (B,), (k,)
        Of all messages, and of those from the deciding one on.
    hidden : ndarray of float, shape (J + 1,); 1 of each segment of the last backward pass that runs beside them
    is_simple : each message is one sum over all copies of the network
    is_exposed : they add to the step
    """

    groups: Groups
    every_bytes: FloatArray
    buffer_bytes: FloatArray
    hidden: FloatArray
    is_simple: bool
    is_exposed: bool

    def extrapolates(self, entry: Entry) -> bool:
        """Tell whether a message lies outside what an entry was fitted on."""
        if not entry.ranges:
            return False
        work: Work = {
            "bytes": self.every_bytes,
            "nodes": self.groups.nodes,
            "ranks_per_node": self.groups.ranks_per_node,
            "streams_per_nic": self.groups.streams_per_nic,
        }
        return bool(np.any(extrapolates(entry, work)))


def bucket_bytes(costs: StepCosts, rank: int = 0) -> FloatArray:
    """Return the bytes of the messages in which ranks of a kind send their gradients, shape (B,)."""
    by_slot: FloatArray = costs.gradient_bytes * costs.compute.ranks[rank].slots.elements.astype(np.float64)
    slots = gradient_buckets(by_slot, costs.strategy.first_bucket_bytes, costs.strategy.bucket_bytes)
    return np.add.reduceat(by_slot, slots) if slots.size else np.zeros(0)


class SlotExchange:
    """How ranks of one kind exchange the gradients of their slots.

    Attributes
    ----------
    rows : ndarray of int, shape (s,); cases of state of such ranks
    by_slot : Elements, each of shape (J,); gradients of every slot
    is_simple : each message is one sum over all copies of the network where state is not sharded, nor experts
    slot : ndarray of int, shape (B,); the lowest slot of each message, whose gradient is its last to be ready
    """

    is_simple: ClassVar[bool] = True

    def __init__(self, state: State, rank: int, bucket_bytes: float) -> None:
        self._costs, self._state = state.costs, state
        self.rows = np.flatnonzero((state.cases.rank == rank) & (state.bucket_bytes == bucket_bytes))
        compute = self._costs.compute.ranks[rank]
        elements = compute.slots.elements.astype(np.float64)
        is_expert = np.array([compute.network.layers[at].kind == "experts" for at in compute.slots.layer.tolist()])
        self.by_slot = Elements(elements * is_expert, elements * ~is_expert)
        strategy = self._costs.strategy
        first = bucket_bytes if strategy.rank_parameters else strategy.first_bucket_bytes
        self.slot = self._buckets(first, bucket_bytes)
        self._exchanges = (state.cases.plans.sharding[self.rows] < WEIGHTS_SHARDED).astype(np.float64)

    def _buckets(self, *sizes: float) -> IntArray:
        """Return the lowest slot of each message, shape (B,), given when the first bucket and the others are full."""
        return gradient_buckets(self.slot_bytes, *sizes)

    @property
    def slot_bytes(self) -> FloatArray:
        """Bytes of every slot's gradient as it is sent, shape (J,)."""
        return self._costs.gradient_bytes * self.by_slot.total

    def bytes_of(self, slots: IntArray) -> FloatArray:
        """Return the bytes of messages that start with these slots, the lowest of each, of their shape."""
        return np.add.reduceat(self.slot_bytes, slots) if slots.size else np.zeros(0)

    @cached_property
    def message_s(self) -> FloatArray:
        """Time of each message [s], shape (s, B)."""
        if not self.slot.size:
            return np.zeros((self.rows.size, 0))
        return self._sum_s(Elements(*(np.add.reduceat(one, self.slot) for one in self.by_slot)))

    @cached_property
    def prefix_s(self) -> FloatArray:
        """Time of a message and of all after it, without waiting [s], shape (s, B); the last column is their sum."""
        return communication_prefix_s(self.message_s)

    def _sum_s(self, each: Elements) -> FloatArray:
        """Return the time of messages of so many elements, of shape (k,) for every case [s], shape (s, k)."""
        exchange = StageExchange(self._costs, self._state.cases, self.rows)
        return exchange.sum_s(Elements(*(self._exchanges[:, None] * one for one in each)))

    def together_s(self, at: IntArray) -> FloatArray:
        """Return the time of messages of slots l to k in cases, shape (a,) [s], shape (a, J, J); only l <= k counts.

        Where they are packed in cycles, with copying several into one buffer and back: each copy reads and writes.
        """
        ahead = [np.concatenate([[0.0], np.cumsum(one)]) for one in self.by_slot]
        merged = Elements(*(np.maximum(one[None, 1:] - one[:-1, None], 0.0) for one in ahead))
        first, which = distinct_rows(*(one.ravel() for one in merged))
        only = StageExchange(self._costs, self._state.cases, self.rows[at])
        each = Elements(*(self._exchanges[at, None] * one.ravel()[first] for one in merged))
        sent_s = only.sum_s(each)[:, which].reshape(at.size, *merged.total.shape)
        if not self._costs.strategy.cycle_s:
            return np.asarray(sent_s)
        is_alone = np.eye(self.slot_bytes.size, dtype=np.bool_)
        copied = np.where(is_alone, 0.0, 4 * self._costs.gradient_bytes * merged.total)
        copied_s = copied / self._costs.sources.accelerator.memory_bytes_per_s
        return np.asarray(sent_s + copied_s * sent_s.any(axis=(1, 2), keepdims=True))

    def fusion(self, ready: FloatArray, at: IntArray, of: IntArray | int = 0) -> Fusion:
        """Return the messages behind passes whose gradients are ready at times of shape (c, J) [s].

        Shortened by ς, as :meth:`OneStage.exchange_s` adds the rest. ``of``: which of the cases ``at`` each pass is of.
        """
        together, strategy = self.together_s(at) / self._costs.slowdown, self._costs.strategy
        if strategy.best_buckets:
            return best_fusion(ready, together, of)
        return cycle_fusion(ready, together, self.slot_bytes, strategy.bucket_bytes, strategy.cycle_s, of=of)

    def fused_s(
        self, ready: FloatArray, backward: FloatArray, last: IntArray, case: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return by how much messages that are chosen by what is ready when outlast a backward pass, and take [s].

        Of the shape (k,) of ``last``, rows of ``ready``, and ``case``, positions in ``rows``.
        """
        ends, taken = np.zeros((2, case.size))
        at = distinct_values(case)
        of, step = np.searchsorted(at, case), max(1, _MOST_AT_ONCE // self.slot_bytes.size**2)
        for start in range(0, at.size, step):
            where = np.flatnonzero((of >= start) & (of < start + step))
            sent = self.fusion(ready[last[where]], at[start : start + step], of[where] - start)
            ends[where], taken[where] = sent.end_s, sent.taken_s
        return exposed_s(ends, backward[last]), self._costs.slowdown * taken


class OneStage(StepPart):
    """Plans whose ranks compute all layers: rows, or a product; times broadcast to their shape."""

    def __init__(self, costs: StepCosts, plans: Configurations, of: tuple[Passes, State]) -> None:
        self.costs, self.plans = costs, plans
        self.passes, self.state = of
        self.m = plans.accumulation_steps.astype(np.float64)
        self._state = self.state.cases.case
        self._first: Any = ...  # every plan is a step of its own
        self._which: Any = ...
        self._rows = self._repeats = np.ones((1, *[1] * self.m.ndim), dtype=np.int64)

    def _at(self, cases: StageCases, rows: IntArray) -> tuple[IntArray, IntArray]:  # noqa: ARG002 - of all plans
        return cases.case[None], self._repeats

    def _of_slowest(self, of_stages: Any, slowest: IntArray) -> Any:  # noqa: ARG002 - the only one
        return of_stages[0]

    def _gathered(self, forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        shares = self.plans.sharding == WEIGHTS_SHARDED
        if not shares.any():
            return forward_s, backward_s
        if self.passes.cases.units.has_ends:
            ahead, back = self.state.gathered_s(self._state[None], forward_s, backward_s)
        else:
            ahead, back = self._gathered_by_unit(forward_s, backward_s, shares)
        return np.where(shares, ahead, forward_s), np.where(shares, back, backward_s)

    def _gathered_by_unit(
        self, forward_s: FloatArray, backward_s: FloatArray, shares: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return passes with the gathers and scatters that units that differ wait for, where ``shares``."""
        gathers, shape = self.state.gathers_by_unit, np.broadcast_shapes(forward_s.shape, shares.shape)
        given = (forward_s, backward_s, self.passes.cases.case, self._state, shares)
        forward, backward, of_pass, of_state, is_some = (np.broadcast_to(one, shape).ravel() for one in given)
        ahead, back = forward.copy(), backward.copy()
        some, step = np.flatnonzero(is_some), max(1, _MOST_AT_ONCE // gathers[0].shape[1])
        # A unit runs beside the gather of the next, and backward beside what the one before has scattered, and is as
        # much slower (:meth:`State.gathered_s`).
        slower = 1 - 1 / self.costs.slowdown
        for rows in (some[start : start + step] for start in range(0, some.size, step)):
            gather, scatter, across = (one[of_state[rows]].T for one in gathers)
            computed = self.passes.unit_shares[of_pass[rows]].transpose(1, 2, 0)
            beside = slower * np.pad(gather[1:], ((0, 1), (0, 0)))
            ahead[rows] = units_forward_s(computed[0] * forward[rows] + beside, gather)
            gather = gather * (self.state.cases.units.reached > 0)[self.state.cases.units.sequence, None]
            beside = slower * np.pad(gather[:-1], ((1, 0), (0, 0)))
            beside += slower * np.pad((scatter + across)[1:], ((0, 1), (0, 0)))
            later = (computed[1] * backward[rows] + beside, gather, scatter, across)
            back[rows] = units_backward_s(*(one[::-1] for one in later))
        return np.asarray(ahead.reshape(shape)), np.asarray(back.reshape(shape))

    @property
    def slowest(self) -> IntArray:
        """The only stage, of the shape of the plans."""
        return np.zeros(self.plans.shape, dtype=np.int64)

    @cached_property
    def _slowest(self) -> IntArray:
        return np.zeros(self.m.shape, dtype=np.int64)

    @cached_property
    def _whole_s(self) -> FloatArray:
        return np.asarray(self._own_s[0])

    @cached_property
    def transfer_s(self) -> FloatArray:
        """Nothing is sent between stages."""
        return np.zeros(self.m.shape)

    def _waits(self) -> dict[str, FloatArray]:
        (forward, backward), (ahead, back) = self._pipelines.alone, self._pipelines.gathered
        return {"sharded_weights": self.m * np.maximum((ahead - forward) + (back - backward), 0.0)[0]}

    @cached_property
    def ready(self) -> tuple[FloatArray, FloatArray]:
        """When gradients of slots are ready in the last pass, shape (2 c, J), and what it takes, shape (2 c,) [s].

        Twice the case of a pass, and 1 for one that adds to gradients.
        """
        share, backward = self.passes.ready_shares, self.passes.last_backward_s
        return (share * backward[:, :, None]).reshape(backward.size, -1), backward.ravel()

    def exchanges(self) -> list[tuple[SlotExchange, BoolArray | None]]:
        """Return the exchange of every kind of rank, and which plans are of it, shape (n,); None: all."""
        state, kind = self.state, self.costs.slot_exchange
        first, which = distinct_rows(state.cases.rank, state.bucket_bytes)
        every = [kind(state, int(state.cases.rank[at]), float(state.bucket_bytes[at])) for at in first]
        return [(one, None if len(every) == 1 else which[self._state] == at) for at, one in enumerate(every)]

    @cached_property
    def exchange_s(self) -> tuple[FloatArray, FloatArray]:
        """What the exchange of gradients takes, and what it adds to the step [s], of the shape of the plans."""
        last = 2 * self.passes.cases.case + (self.plans.accumulation_steps > 1)
        every = self.exchanges()
        if len(every) == 1:
            return self._of_rank(every[0][0], last, self._state)
        both = np.zeros((2, *self.plans.shape))
        for exchange, rows in every:
            both[:, rows] = self._of_rank(exchange, last[rows], self._state[rows])
        return both[0], both[1]

    def _of_rank(self, exchange: SlotExchange, last: IntArray, state: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the same of plans of one kind of rank, given passes and cases of state.

        Beside messages the pass takes (1 - 1/ς) of them longer: gradient l is there by as much of the messages before
        it later, so that the step ends at (1 - 1/ς) prefix(J) + max over l of ready(l) + prefix(l)/ς.
        """
        if not exchange.slot.size:
            return (np.zeros(np.broadcast_shapes(last.shape, state.shape)),) * 2
        case = np.searchsorted(exchange.rows, state)
        (ready, backward), strategy, slowdown = self.ready, self.costs.strategy, self.costs.slowdown
        if strategy.is_timed:
            last, case = np.broadcast_arrays(last, case)
            first, which = distinct_numbers((last.ravel(), backward.size), (case.ravel(), exchange.rows.size))
            each = exchange.fused_s(ready, backward, last.ravel()[first], case.ravel()[first])
            exposed, taken = (one[which].reshape(last.shape) for one in each)
            slower = exposed + (1 - 1 / slowdown) * taken
            return taken, np.where(taken > 0, slower, 0.0) if strategy.overlap else taken
        taken = exchange.prefix_s[:, -1][case]
        if not strategy.overlap:
            return taken, taken
        of_messages = ready[:, exchange.slot]
        ends_s = partial(backward_end_s, of_messages, exchange.prefix_s / slowdown)
        exposed = _of_pairs(lambda *of: exposed_s(ends_s(*of), backward[of[0]]), last, case)
        return taken, np.where(taken > 0, exposed + (1 - 1 / slowdown) * taken, 0.0)

    def paths(self) -> list[MessagePath]:
        """Return the path of the gradients' messages of every plan, of rows."""
        groups, plans = self.costs.copies(self.state.cases.groups(GRADIENTS)), self.plans
        (taken, exposed), slowdown = self.exchange_s, self.costs.slowdown
        if self.costs.strategy.overlap:
            exposed = exposed - (1 - 1 / slowdown) * taken
        is_exposed = np.broadcast_to(exposed > _ROUNDING * taken, plans.shape)
        last = 2 * self.passes.cases.case + (plans.accumulation_steps > 1)
        found: dict[int, MessagePath] = {}
        for exchange, is_mine in self.exchanges():
            case = np.searchsorted(exchange.rows, self._state)
            for row in range(plans.size) if is_mine is None else np.flatnonzero(is_mine).tolist():
                every = path = exchange.bytes_of(exchange.slot)
                hidden = np.zeros(exchange.slot_bytes.size + 1)
                if self.costs.strategy.overlap and every.size:
                    slot, sent_s = self._messages(exchange, int(last[row]), int(case[row]))
                    first = int(np.argmax(self.ready[0][last[row]][slot] + sent_s / slowdown))
                    hidden[: slot[first] + 1] = 1.0
                    path = exchange.bytes_of(slot)[: first + 1]
                is_simple = not plans.sharding[row] and plans.expert_parallel[row] == 1 and exchange.is_simple
                own = groups.rows(self._state[[row]])
                found[row] = MessagePath(own, every, path, hidden, bool(is_simple), bool(is_exposed[row]))
        return [found[row] for row in range(plans.size)]

    def _messages(self, exchange: SlotExchange, last: int, case: int) -> tuple[IntArray, FloatArray]:
        """Return the lowest slot of each message of one plan, and the time of it and all after it [s], (B,) each."""
        if not self.costs.strategy.is_timed:
            return exchange.slot, exchange.prefix_s[case]
        ready = self.ready[0][last]
        of = np.array([case])
        slot = exchange.fusion(ready[None], of).slots(0)
        return slot, np.cumsum(exchange.together_s(of)[0, slot, np.append(slot[1:], ready.size) - 1])


def _of_pairs(compute: Callable[[IntArray, IntArray], FloatArray], last: IntArray, case: IntArray) -> FloatArray:
    """Return the numbers of pairs, of the shape that both broadcast to, each distinct pair worked out once."""
    table = PairTable(compute)
    if last.ndim > 1:
        table.ensure(distinct_values(last), distinct_values(case))
    return table.gather(last, case)
