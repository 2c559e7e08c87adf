"""Steps of plans that split a network: pipelines of stages, the exchange of gradients, and the update.

T = pipeline(stages) + exposed exchange of gradients + tied embedding + update + gather of updated weights. Of the
stages the one with the most work is shown: its own time, what the pipeline waits for besides (bubble), and what is sent
between stages; the sum is the step.

After a stage's last backward pass it exchanges gradients while stages above it still compute: only what outlasts the
pipeline adds to the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.split import SCHEDULES, WEIGHTS_SHARDED
from planner.steps.passes import Passes
from planner.steps.pipeline import SPLIT_BACKWARD, pipeline_s
from planner.steps.pipeline_runs import RUN_SCHEDULES, exchange_s, runs_s
from planner.steps.stage_cases import StageCases
from planner.steps.state import State
from planner.steps.step_costs import StepCosts
from planner.steps.synchronous import Runs

__all__ = ["STEP_TERMS", "StepPart"]

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
    def computed_s(self) -> FloatArray:
        """Kernels and host time of all passes and the update, of the slowest stage [s], shape (n,)."""
        return np.asarray(self._computed_s[self._which] + self._update_s)

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
