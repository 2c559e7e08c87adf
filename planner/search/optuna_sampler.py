"""Ask and tell over axes: Optuna's TPE proposes, and learns from the candidate that was tried in place of its proposal.

Every second proposal is one of the best candidates with other values of one to three axes: a sampler that learns each
axis by itself rarely leaves a precision, or follows the edge of what a window accepts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

__all__ = ["AxisValues", "Sampler", "Values", "quiet"]

Values = Mapping[str, int | str]
"""Axis -> whole number or word."""
AxisValues = tuple[str, ...] | tuple[int, int]
"""Words of an axis, or the least and the largest of its whole numbers."""
LEARNT_FROM = 20
"""Trials at random before the first that is learnt from."""
BEST = 5
"""Candidates beside which others are proposed."""
MOST_CHANGED = 3


class Sampler:
    """Proposals for axes.

    Parameters
    ----------
    axes : mapping of axis to AxisValues
    quantities : how many are minimised
    """

    def __init__(self, axes: Mapping[str, AxisValues], seed: int | Sequence[int], quantities: int = 1) -> None:
        import optuna  # noqa: PLC0415 - heavy, and few requests need it

        self.axes = axes
        self.distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(values)
            if isinstance(values[0], str)
            else optuna.distributions.IntDistribution(int(values[0]), int(values[1]), log=int(values[0]) > 0)
            for name, values in axes.items()
        }
        self._random = np.random.default_rng(seed)
        sampler = optuna.samplers.TPESampler(
            seed=int(self._random.integers(2**32)), n_startup_trials=LEARNT_FROM, multivariate=True
        )
        self._study = optuna.create_study(directions=["minimize"] * quantities, sampler=sampler)
        self._best: list[tuple[float, int, Values]] = []
        self._told = 0

    def ask(self) -> Values:
        """Return a proposal, which need not be lawful."""
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy, and few requests need it

        if self._best and self._told >= LEARNT_FROM and self._told % 2:
            values = dict(self._best[self._random.integers(len(self._best))][-1])
            some = self._random.permutation(list(self.axes))[: self._random.integers(1, MOST_CHANGED + 1)].tolist()
            return values | {name: self._other(self.axes[name], values[name]) for name in some}
        asked = self._study.ask(self.distributions)
        self._study.tell(asked, state=TrialState.FAIL)  # the candidate that is tried is what it learns from
        return asked.params

    def tell(self, values: Values, quantities: Sequence[float] | None) -> None:
        """Learn what a candidate has, of each quantity; None: it has no price."""
        from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - heavy, and few requests need it

        state = TrialState.PRUNED if quantities is None else TrialState.COMPLETE
        trial = create_trial(state=state, values=quantities, params=dict(values), distributions=self.distributions)
        self._study.add_trial(trial)
        if quantities is not None and len(quantities) == 1:
            self._best = sorted([*self._best, (quantities[0], self._told, values)])[:BEST]
        self._told += 1

    def _other(self, of: AxisValues, now: int | str) -> int | str:
        """Return another value of an axis: any word, or a number some powers of two away."""
        if isinstance(now, str):
            return str(self._random.choice([word for word in of if word != now]))
        scaled = round(now * 2.0 ** self._random.normal())
        other = scaled if scaled != now else now + int(self._random.choice((-1, 1)))
        return min(max(other, int(of[0])), int(of[1]))


@contextmanager
def quiet() -> Iterator[None]:
    """Let Optuna write nothing but errors, and say nothing of what is experimental in it."""
    import optuna  # noqa: PLC0415 - heavy, and few requests need it

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
