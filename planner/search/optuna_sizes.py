"""Trials of one number on a logarithmic scale, of which any value may be the best; each value once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from planner.search.optuna_study import quiet

__all__ = ["SizeTrials"]

DIGITS = 3
"""Of a value in its unit, as people type it: values that are nearer to each other are one."""
ATTEMPTS = 20
FARTHER = 0.05
"""How much farther from the wanted value each further attempt is tried, relative to it."""
LEARNT_FROM = 10
"""Trials at random before the first that is learnt from."""
NAME = "size"


@dataclass
class SizeTrials:
    """Trials of values between two.

    Attributes
    ----------
    span : tuple of float
        The least and the largest.
    unit : float
    price : callable
        Value -> what is minimised, inf where nothing can have it; None: no other value can be better, which ends it.
    seed : int
    tried : dict of float to float
        What each had, in the order of trials; what stands here before is known.
    """

    span: tuple[float, float]
    unit: float
    price: Callable[[float], float | None]
    seed: int = 0
    tried: dict[float, float] = field(default_factory=dict)

    def run(self, trials: int, is_stopped: Callable[[], bool]) -> None:
        """Try values until so many are known, it is stopped, or none is left."""
        import optuna  # noqa: PLC0415 - heavy, and few requests need it

        spans: dict[str, optuna.distributions.BaseDistribution] = {
            NAME: optuna.distributions.FloatDistribution(*self.span, log=True)
        }
        random = np.random.default_rng(self.seed)
        with quiet():
            sampler = optuna.samplers.TPESampler(seed=self.seed, n_startup_trials=LEARNT_FROM)
            study = optuna.create_study(sampler=sampler)
            while len(self.tried) < trials and not is_stopped():
                asked = study.ask(spans)
                study.tell(asked, state=optuna.trial.TrialState.FAIL)  # the value itself is what it learns from
                size = self._untried(float(asked.params[NAME]), random)
                value = None if size is None else self.price(size)
                if size is None or value is None:
                    return
                self.tried[size] = value
                if math.isfinite(value):
                    study.add_trial(optuna.trial.create_trial(params={NAME: size}, distributions=spans, value=value))

    def _untried(self, wanted: float, random: np.random.Generator) -> float | None:
        """Return a value near a wanted one that was not tried; None: none was found."""
        for attempt in range(ATTEMPTS):
            near = wanted / self.unit * math.exp(attempt * FARTHER * random.normal())
            size = self.unit * float(f"{near:.{DIGITS - 1}e}")
            size = min(max(size, self.span[0]), self.span[1])
            if size not in self.tried:
                return size
        return None
