"""Choices of nodes of several groups that are too many to look at, by trials of Optuna, each choice once.

What the sampler wants becomes the nearest choice that is allowed and was not tried. Every second proposal is one of the
best choices with other nodes of one group, as in :mod:`planner.search.optuna_trials`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.search.optuna_study import quiet
from planner.search.optuna_trials import LEARNT_FROM

__all__ = ["Choice", "NodeTrials", "proportional_starts"]

Choice = tuple[int, ...]
"""Nodes of each group, at least one."""
BEST = 5
"""Choices beside which others are tried."""
FARTHEST = 64
"""Nodes of a group by which an untried choice may differ from what is wanted."""
ATTEMPTS = 20


@dataclass
class NodeTrials:
    """Trials of choices of nodes.

    Attributes
    ----------
    most : tuple of int
        Nodes of each group.
    lawful : callable
        Choice -> the nearest that is allowed; None: there is none near.
    price : callable
        Choice -> what is minimised; None: it has no plan.
    seed : int
    tried : dict of Choice to float or None
        What each had, in the order of trials.
    """

    most: Choice
    lawful: Callable[[Choice], Choice | None]
    price: Callable[[Choice], float | None]
    seed: int = 0
    tried: dict[Choice, float | None] = field(default_factory=dict)

    def run(self, trials: int, starts: Sequence[Choice] = (), is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Try so many choices, those to start with first; fewer where it is stopped or no untried one is found."""
        import optuna  # noqa: PLC0415 - heavy, and only this search needs it

        random = np.random.default_rng(self.seed)
        with quiet():
            sampler = optuna.samplers.TPESampler(seed=self.seed, n_startup_trials=LEARNT_FROM, multivariate=True)
            study = optuna.create_study(sampler=sampler)
            spans: dict[str, optuna.distributions.BaseDistribution] = {
                f"nodes_{at}": optuna.distributions.IntDistribution(1, one, log=True)
                for at, one in enumerate(self.most)
            }
            waiting = list(dict.fromkeys(filter(None, map(self.lawful, starts))))
            while len(self.tried) < trials and not is_stopped():
                if waiting:
                    choice: Choice | None = waiting.pop(0)
                elif self._best and len(self.tried) >= LEARNT_FROM and len(self.tried) % 2:
                    choice = self._untried(self._beside_the_best(random), random)
                else:
                    asked = study.ask(spans)
                    study.tell(asked, state=optuna.trial.TrialState.FAIL)  # the choice itself is what it learns from
                    choice = self._untried(tuple(asked.params.values()), random)
                if choice is None:
                    return
                value = self.tried[choice] = self.price(choice)
                if value is not None:
                    params = dict(zip(spans, choice, strict=True))
                    study.add_trial(optuna.trial.create_trial(params=params, distributions=spans, value=value))

    @property
    def _best(self) -> list[Choice]:
        """The best choices so far, in order."""
        priced = [(value, choice) for choice, value in self.tried.items() if value is not None]
        return [choice for _, choice in sorted(priced)[:BEST]]

    def _beside_the_best(self, random: np.random.Generator) -> Choice:
        """Return one of the best choices with other nodes of one group."""
        best = self._best
        choice = list(best[random.integers(len(best))])
        at = random.integers(len(choice))
        scaled = round(choice[at] * 2.0 ** random.normal())
        choice[at] = scaled if scaled != choice[at] else scaled + int(random.choice((-1, 1)))
        return self._inside(choice)

    def _inside(self, choice: Sequence[int]) -> Choice:
        return tuple(min(max(int(nodes), 1), most) for nodes, most in zip(choice, self.most, strict=True))

    def _untried(self, wanted: Choice, random: np.random.Generator) -> Choice | None:
        """Return an allowed choice near a wanted one that was not tried; None: none was found."""
        choice = self.lawful(wanted)
        if choice is not None and choice not in self.tried:
            return choice
        for far in range(1, FARTHEST + 1):
            for _ in range(ATTEMPTS):
                choice = self.lawful(self._inside(np.add(wanted, random.integers(-far, far + 1, len(wanted))).tolist()))
                if choice is not None and choice not in self.tried:
                    return choice
        return None


def proportional_starts(most: Choice) -> list[Choice]:
    """Return shares of all nodes, the same of each group: all, half, a quarter, ..., one of each."""
    shares = [2.0**-power for power in range(max(most).bit_length() + 1)]
    return list(dict.fromkeys(tuple(max(1, round(one * share)) for one in most) for share in shares))
