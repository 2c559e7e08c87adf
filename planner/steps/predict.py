"""Evaluating configurations: many as arrays, or a few with every field of a prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import MODES, Configurations
from planner.domain.prediction import Prediction, Predictions
from planner.domain.request import Problem
from planner.errors import ParameterError
from planner.sources.refusals import missing_link
from planner.sources.sources import Sources
from planner.steps.compare import deviation_of_ratio
from planner.steps.describe import Described, described
from planner.steps.price import Pricer, asynchrony_of
from planner.steps.tables import distinct_pairs, slices

__all__ = ["Evaluator"]


class Evaluator:
    """Prices configurations of one problem. Tables are made once for a distinct case and kept between calls.

    Parameters
    ----------
    problem : Problem
    like : Evaluator, optional
        Of a problem that differs in overheads and collectives alone: what its kernels take is not computed again.
    """

    def __init__(self, problem: Problem, like: Evaluator | None = None) -> None:
        self.problem = problem
        self.sources = Sources(problem)
        self.pricers: dict[tuple[str, str], Pricer] = {}
        self._like = like

    def evaluate(self, configurations: Configurations) -> Predictions:
        """Return predictions as arrays of shape (n,).

        Raises
        ------
        CoverageError
            Nothing serves a kernel, precision, link or input of some configuration.
        ParameterError
            A configuration is larger than the cluster.
        """
        self._prepare(configurations)
        found = Predictions(**{f.name: np.full(configurations.size, np.nan) for f in fields(Predictions)})
        for part in slices(configurations.size):
            chunk = configurations.take(part)
            for rows in _groups(chunk):
                whole = isinstance(rows, slice)
                values = self._evaluated(chunk if whole else chunk.take(rows))
                for name, value in values.items():
                    getattr(found, name)[part][rows] = value
        return found

    def describe(
        self, configurations: Configurations, window: Callable[[str], tuple[float, float]] | None = None
    ) -> list[Prediction]:
        """Return predictions with every field, one a configuration, from the same tables.

        Parameters
        ----------
        configurations : Configurations
        window : mode -> (least, largest) mini-batch [samples], or None
            For the probability that the mini-batch lies in it.
        """
        return [one.prediction for one in self._described(configurations, window)]

    def compare(
        self, configurations: Configurations, window: Callable[[str], tuple[float, float]] | None = None
    ) -> tuple[list[Prediction], list[float | None]]:
        """Return predictions as :meth:`describe`, and how unsure their ratios to the first are.

        One value a configuration: the standard deviation of the logarithm of the time a sample that the first takes
        over that of each; None where errors are not known.
        """
        found = self._described(configurations, window)
        return [one.prediction for one in found], [deviation_of_ratio(found[0], other) for other in found]

    def _described(
        self, configurations: Configurations, window: Callable[[str], tuple[float, float]] | None
    ) -> list[Described]:
        self._prepare(configurations)
        found: dict[int, Described] = {}
        for rows in _groups(configurations):
            alike = configurations.take(rows)
            positions = np.arange(configurations.size)[rows].tolist()
            found |= zip(positions, described(self._pricer_of(alike), alike, window), strict=True)
        return [found[i] for i in range(configurations.size)]

    def _pricer_of(self, chosen: Configurations, position: int = 0) -> Pricer:
        """Return the pricer of the precision and mode of a configuration, a new one where there is none yet."""
        key = precision, mode = chosen.precisions[int(chosen.precision[position])], MODES[int(chosen.mode[position])]
        if key not in self.pricers:
            # Kernels are the same in either mode.
            known = (self._like.pricers.get(key) if self._like else None, *self.pricers.values())
            like = next((one for one in known if one and one.compute.precision.name == precision), None)
            self.pricers[key] = Pricer(self.sources, precision, mode, like)
        return self.pricers[key]

    def _prepare(self, configurations: Configurations) -> None:
        self._check(configurations)
        for rows in _groups(configurations):
            mode = configurations.mode[rows]
            pricer = self._pricer_of(configurations, 0 if isinstance(rows, slice) else int(rows[0]))
            pricer.ensure_sub_batches(distinct_pairs(mode, configurations.sub_batch[rows])[1])
            if MODES[int(mode[0])] == "sync":
                pricer.ensure_groups(*distinct_pairs(configurations.nodes[rows], configurations.gpus_per_node[rows]))

    def _check(self, configurations: Configurations) -> None:
        cluster = self.problem.cluster
        if configurations.size == 0:
            return
        if (gpus := int(configurations.gpus_per_node.max())) > cluster.node.gpus:
            raise ParameterError("gpus_per_node", f"at most the {cluster.node.gpus} of {cluster.name}", gpus)
        if (nodes := int(configurations.nodes.max())) > cluster.nodes:
            if cluster.inter_node is None:
                raise missing_link(cluster, "inter_node", f"the plan spans {nodes} nodes")
            raise ParameterError("nodes", f"at most the {cluster.nodes} of {cluster.name}", nodes)

    def _evaluated(self, chosen: Configurations) -> dict[str, FloatArray | float]:
        """Return the fields of Predictions for configurations of one precision and mode."""
        pricer = self._pricer_of(chosen)
        samples = self.problem.dataset.samples if self.problem.dataset else np.nan
        priced = pricer.price(chosen)
        period, first = priced.iteration.period_s, priced.first_epoch.period_s
        if chosen.is_async[0]:
            statistics = asynchrony_of(chosen, priced)
            amount = chosen.gpus * chosen.sub_batch
            more: dict[str, FloatArray | float] = {
                "update_s": statistics.update_s,
                "mini_batch_mean": statistics.mini_batch_mean,
                "staleness_mean": statistics.staleness_mean,
            }
        else:
            amount = chosen.synchronous_mini_batch
            more = {"mini_batch_mean": amount.astype(np.float64), "staleness_mean": 0.0}
        steps = samples / amount
        return more | {
            "iteration_s": period,
            "samples_per_s": amount / period,
            "epoch_s": steps * period,
            "first_epoch_s": steps * first,
            "memory_bytes": priced.memory_bytes,
        }


def _groups(chunk: Configurations) -> list[slice | IntArray]:
    """Return the rows of each precision and mode; one slice where all are alike."""
    if chunk.size == 0:
        return []
    key = chunk.precision * 2 + chunk.is_async
    present = np.unique(key) if np.any(key != key[0]) else key[:1]
    return [slice(None)] if present.size == 1 else [np.flatnonzero(key == value) for value in present.tolist()]
