"""Steps of plans that split a network: pipelines of stages, the exchange of gradients, and the update.

T = pipeline(stages) + exposed exchange of gradients + tied embedding + update + gather of updated weights. Of the
stages the one with the most work is shown: its own time, what the pipeline waits for besides (bubble), and what is sent
between stages; the sum is the step.

After a stage's last backward pass it exchanges gradients while stages above it still compute: only what outlasts the
pipeline adds to the step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_rows
from planner.domain.split import SCHEDULES, WEIGHTS_SHARDED, SplitPlans
from planner.steps.pipeline import pipeline_s
from planner.steps.pipeline_chunks import SPLIT_BACKWARD
from planner.steps.pipeline_drain import exchange_s
from planner.steps.pipeline_runs import RUN_SCHEDULES, runs_s
from planner.steps.split_costs import SplitCosts
from planner.steps.split_passes import Passes
from planner.steps.split_stages import StageCases, rows_of
from planner.steps.split_state import State

__all__ = ["SPLIT_TERMS", "SplitPart"]

SPLIT_TERMS = (
    "forward", "backward", "recompute", "host", "tensor_messages", "context_messages", "expert_messages",
    "sharded_weights", "host_to_device", "bubble", "stage_messages", "all_reduce", "embedding_all_reduce", "update",
    "updated_weights", "offload", "replica_wait", "load_input",
)  # fmt: skip
"""Terms of a step in the order of an answer."""


class _Pipeline(NamedTuple):
    """Pipelines of k distinct plans: passes of every stage, or of each run of equal ones; of each the rest (k,) [s].

    ``slowest``: the first stage, or run, with the most work.
    ``own_s``, ``waited_s``: of the slowest stage, all its passes, and what they wait for weights.
    """

    backward_s: FloatArray
    slowest: IntArray
    own_s: FloatArray
    waited_s: FloatArray
    still_s: FloatArray
    whole_s: FloatArray


class SplitPart:
    """Plans of one number of stages and schedule: some ``rows`` of those that passes and state are of, shape (n,).

    Attributes
    ----------
    slowest : ndarray of int, shape (n,)
        The stage with the most work.
    terms : term -> two ndarrays of float, shape (n,)
        What each takes, and what it adds to the step [s].
    """

    def __init__(self, costs: SplitCosts, every: SplitPlans, of: tuple[Passes, State], rows: IntArray) -> None:
        self.costs, self.plans, self._rows = costs, rows_of(every, rows), rows
        self.passes, self.state = of
        self.schedule = SCHEDULES[int(self.plans.schedule[0])]
        self.stages = int(self.plans.pipeline_parallel[0])
        self.m = self.plans.accumulation_steps.astype(np.float64)
        self._pass, self._state = (one.cases.case[rows] for one in of)
        self._has_runs = self.schedule in RUN_SCHEDULES
        self._repeats = self._at(self.passes.cases, rows[:1])[1]
        shares = np.where(self.plans.sharding == WEIGHTS_SHARDED, self._state, -1)
        keys = self._pass, self.plans.accumulation_steps, self.plans.virtual_stages, shares
        first, which = distinct_rows(*keys)
        pipeline = self._pipeline(first)
        self.slowest = (np.cumsum(self._repeats) - self._repeats)[pipeline.slowest][which]
        self.terms = self._terms(pipeline, which)

    def _pipeline(self, some: IntArray) -> _Pipeline:
        """Return the pipelines of some of the plans."""
        m, rows = self.m[some], self._rows[some]
        at, transfer = self._at(self.passes.cases, rows)[0], self.passes.transfer_s[self._pass[some]]
        forward, backward = self.passes.alone_s(at, m)
        passes = gathered_forward, gathered_backward = self._gathered(some, forward, backward)
        own = m * (gathered_forward + gathered_backward)
        slowest = np.argmax(own, axis=0)
        still = self._pipeline_s(some, passes, np.zeros_like(transfer))
        whole = self._pipeline_s(some, passes, transfer) if self.stages > 1 else still
        waited = m * np.maximum((gathered_forward - forward) + (gathered_backward - backward), 0.0)
        of_slowest = slowest, np.arange(some.size)
        return _Pipeline(gathered_backward, slowest, own[of_slowest], waited[of_slowest], still, whole)

    def _at(self, cases: StageCases, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return where stages of plans stand, each of a run of equal ones or all, and how many each stands for."""
        if self._has_runs:
            return cases.runs(rows)
        return cases.at(rows), np.ones(self.stages, dtype=np.int64)

    def _pipeline_s(self, some: IntArray, passes: tuple[FloatArray, FloatArray], transfer_s: FloatArray) -> FloatArray:
        """Return the time of all micro-batches of some of the plans."""
        of_kind = runs_s if self._has_runs else pipeline_s
        return of_kind(*passes, transfer_s, self.plans.accumulation_steps[some], **self._schedule(some))

    def _schedule(self, some: IntArray) -> dict[str, Any]:
        """Return what says the schedule of some of the plans to its closed forms."""
        said = {"schedule": self.schedule, "virtual_stages": self.plans.virtual_stages[some]}
        if self._has_runs:
            return said | {"repeats": self._repeats}
        if self.schedule in SPLIT_BACKWARD:
            at = self.passes.cases.at(self._rows[some])
            return said | {"weight_s": self.passes.weights.mean_s(at, self.m[some])}
        return said

    def _gathered(self, some: IntArray, forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the passes of a micro-batch with the gathers and scatters of sharded weights that they wait for."""
        where = np.flatnonzero(self.plans.sharding[some] == WEIGHTS_SHARDED)
        if not where.size:
            return forward_s, backward_s
        at = self._at(self.state.cases, self._rows[some[where]])[0]
        ahead, back = forward_s.copy(), backward_s.copy()
        ahead[:, where], back[:, where] = self.state.gathered_s(at, forward_s[:, where], backward_s[:, where])
        return ahead, back

    def _terms(self, pipeline: _Pipeline, which: IntArray) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Return the terms; ``which``: of the pipelines, each plan's."""
        passes, state, m = self.passes, self.state, self.m
        at = self._at(passes.cases, self._rows)[0][pipeline.slowest[which], np.arange(which.size)]
        kernels = {
            "forward": m * passes.forward_kernels_s[at],
            "backward": m * passes.backward_kernels.mean_s(at, m),
            "recompute": m * passes.recompute_kernels_s[at],
        }
        computed = m * (passes.forward_s[at] + passes.backward.mean_s(at, m) + passes.recompute_s[at])
        terms = {name: (one,) * 2 for name, one in kernels.items()}
        terms["host"] = (computed - sum(kernels.values()),) * 2
        for name, sent in passes.messages.items():
            terms[name] = m * sent.taken_s[at], m * (sent.forward_s + sent.backward_s)[at]
        if state.norms_s.any():
            taken, added = terms["tensor_messages"]
            terms["tensor_messages"] = taken + state.norms_s[self._state], added + state.norms_s[self._state]
        terms["sharded_weights"] = (pipeline.waited_s[which],) * 2
        bubble = np.maximum(pipeline.still_s - pipeline.own_s, 0.0) * (self.stages > 1)
        terms["bubble"] = (bubble[which],) * 2
        terms["stage_messages"] = ((pipeline.whole_s - pipeline.still_s)[which],) * 2
        terms["all_reduce"] = self._exchange(pipeline.backward_s[:, which])
        terms["embedding_all_reduce"] = (state.tied_s[self._state],) * 2
        terms["update"] = (state.update_s[self._state],) * 2
        terms["updated_weights"] = (state.updated_weights_s[self._state],) * 2
        share = np.where(self.plans.gpus > 1, self.costs.overheads.replica_wait, 0.0)
        terms["replica_wait"] = (share * (computed + terms["update"][0]),) * 2
        return terms

    def _exchange(self, backward_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what the exchange of gradients takes of the fullest stage, and what it adds to the step, (n,)."""
        at, transfer = self._at(self.state.cases, self._rows)[0], self.passes.transfer_s[self._pass]
        schedule = self._schedule(np.arange(self._rows.size))
        every = ((one[at] for one in way) for way in self.state.exchanges)
        return exchange_s(backward_s, transfer, every, overlaps=self.costs.strategy.overlap, **schedule)
