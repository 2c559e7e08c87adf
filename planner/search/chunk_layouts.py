"""How many layers each stage of a pipeline with virtual stages holds, by trials of Optuna.

The exact cut makes the slowest stage as fast as it can be (:mod:`planner.steps.stage_layouts`). With virtual stages the
way of the first micro-batches through all chunks weighs more, which other layers may shorten: trials price whole steps.
They start from even stages and from the exact cut; what each stage computes again is the best for its layers. Nothing
bounds what other layers reach, so that none are pruned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.axes import AXES
from planner.domain.configuration import Configurations
from planner.domain.suggestion import Tuned
from planner.search.evaluator import LayingEvaluator, PricedPlans
from planner.search.exhaustive import Watch, unwatched
from planner.search.feasibility import Rules
from planner.search.optuna_nodes import Choice, NodeTrials
from planner.search.ranking import Order
from planner.search.reasons import LAWFUL

__all__ = ["ChunkTrials"]

PLANS = 5
"""The leading plans of which layers are tried."""
_STAGES = next(axis for axis in AXES if axis.name == "stages")


@dataclass
class ChunkTrials:
    """Trials of layers for the leading plans of some.

    Attributes
    ----------
    evaluator : LayingEvaluator
        Prices each plan with the best layers afterwards.
    order : Order
    rules : Rules
    capacity_bytes : float
        Memory of a device.
    trials : int
        Of one plan, at most.
    seed : int
    interruption : callable
        Gives what is asked between trials: once that is true, the best so far are the answer.
    """

    evaluator: LayingEvaluator
    order: Order
    rules: Rules
    capacity_bytes: float
    trials: int = 60
    seed: int = 0
    interruption: Watch = unwatched
    _number: int = field(default=0, init=False)

    def run(self, plans: PricedPlans) -> tuple[PricedPlans, tuple[Tuned, ...]]:
        """Return plans, the leading ones with virtual and best stages with the best layers; and what that saves.

        Nothing is said where no such plan is among them, or it ended before the first trial.
        """
        c = plans.configurations
        rows = np.flatnonzero((c.virtual_stages > 1) & (c.stages == _STAGES.code("best")))
        leading = rows[np.argsort(self.order.values(plans)[rows], kind="stable")][:PLANS]
        if not leading.size:
            return plans, ()
        with self.interruption() as is_stopped:
            gains = dict(self._tried(c.take(leading[at : at + 1]), is_stopped) for at in range(leading.size))
        if not self._number:
            return plans, ()
        priced = PricedPlans(c.take(leading), self.evaluator.evaluate(c.take(leading)))
        others = plans.take(np.delete(np.arange(plans.size), leading))
        gain = gains[min(gains)]
        return others.joined(priced), (Tuned("stage_layers", "optuna (TPE)", self._number, gain),)

    def _tried(self, one: Configurations, is_stopped: Callable[[], bool]) -> tuple[float, float]:
        """Let a plan have the best layers, and return its objective and the part of that of even stages it saves."""
        exact = self.evaluator.stage_layers(one)
        chunks, stages = int(one.virtual_stages[0]), exact.size
        whole = int(exact.sum()) // chunks

        def price(choice: Choice) -> float | None:
            return self._price(one, chunks * np.array(choice))

        trials = NodeTrials((whole - stages + 1,) * stages, lambda some: _adding_up(some, whole), price, self.seed)
        even = tuple(whole // stages + (at < whole % stages) for at in range(stages))
        trials.run(self.trials, [even, tuple((exact // chunks).tolist())], is_stopped)
        self._number += len(trials.tried)
        fitting = {choice: value for choice, value in trials.tried.items() if value is not None}
        best = min(fitting, key=lambda choice: (fitting[choice], choice), default=None)
        if best is None:  # stopped before the exact cut, which is known to fit
            self.evaluator.choose_stage_layers(one, exact)
            return np.inf, 0.0
        self.evaluator.choose_stage_layers(one, chunks * np.array(best))
        start = next(iter(fitting.values()))
        return fitting[best], 1 - fitting[best] / start

    def _price(self, one: Configurations, layers: IntArray) -> float | None:
        """Return the objective of a plan with some layers; None: it does not fit, or breaks a limit."""
        self.evaluator.choose_stage_layers(one, layers)
        priced = PricedPlans(one, self.evaluator.evaluate(one))
        fits = priced.predictions.memory_bytes[0] <= self.capacity_bytes
        is_lawful = fits and self.rules.why_not_after_pricing(priced)[0] == LAWFUL
        return float(self.order.values(priced)[0]) if is_lawful else None


def _adding_up(choice: Choice, whole: int) -> Choice:
    """Return the layers that add up to a whole, changed one by one: the fewest grow, the most shrink."""
    layers = list(choice)
    while (missing := whole - sum(layers)) != 0:
        at = layers.index(min(layers) if missing > 0 else max(layers))
        layers[at] += 1 if missing > 0 else -1
    return tuple(layers)
