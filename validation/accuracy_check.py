"""Figures of the accuracy page against those that are committed: which worsened, and which got better.

Each figure has a loss, of which less is better. It worsened where its loss grew by more than SHARE of itself and by
more than FLOOR, so that small figures do not flap; a count (of rows refused, of wrong memory calls) where it grew at
all, since refusing a bad row must not pass for accuracy. A figure that is gone worsened. Bias has no loss of its own:
the mean error bounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FLOOR", "SHARE", "Comparison", "compared"]

SHARE = 0.05
FLOOR = 0.002
NOMINAL = 0.9
"""Share of rows that an interval should cover."""
SECTIONS = ("all", "parts", "sources", "kernels", "gpus", "targets", "ranking", "memory")
COUNTS = ("refused", "false_out_of_memory", "false_ok")


def _itself(value: float) -> float:
    return value


def _from_one(value: float) -> float:
    return 1 - value


def _not_covered(value: float) -> float:
    return max(0.0, NOMINAL - value)


LOSSES: Mapping[str, Callable[[float], float]] = {
    **dict.fromkeys(("mape", "median_ape", "p90_ape", "error", *COUNTS), _itself),
    **dict.fromkeys(("regret_mean", "regret_max", "regret_best3", "regret_best3_max", "chose_out_of_memory"), _itself),
    **dict.fromkeys(("spearman", "top1"), _from_one),
    "coverage_90": _not_covered,
}
"""Last key of a figure -> its loss."""
Figure = tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Sentences on the figures that changed by more than the tolerance."""

    worse: tuple[str, ...]
    better: tuple[str, ...]


def compared(committed: Mapping[str, Any], now: Mapping[str, Any], without: Collection[str] = ()) -> Comparison:
    """Return which figures of a document worsened and which got better or are new; ``without``: views left out."""
    before, after = (
        {name: value for name, value in _figures(one) if not set(name) & set(without)} for one in (committed, now)
    )
    worse, better = [], []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            worse.append(f"{' / '.join(name)}: {_shown(name, old)} before, gone now")
        elif _is_worse(name, old, new):
            worse.append(_sentence(name, old, new))
        elif _is_worse(name, new, old):
            better.append(_sentence(name, old, new))
    better += [f"{' / '.join(name)}: new, {_shown(name, new)}" for name, new in after.items() if name not in before]
    return Comparison(tuple(worse), tuple(better))


def _figures(document: Mapping[str, Any]) -> Iterator[tuple[Figure, float]]:
    for section in SECTIONS:
        yield from _leaves((section,), document.get(section, {}))


def _leaves(place: Figure, value: Any) -> Iterator[tuple[Figure, float]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves((*place, key), one)
    elif value is not None and place[-1] in LOSSES:
        yield place, value


def _is_worse(name: Figure, old: float, new: float) -> bool:
    loss = LOSSES[name[-1]]
    grown = loss(new) - loss(old)
    return grown > (0 if name[-1] in COUNTS else max(SHARE * loss(old), FLOOR))


def _sentence(name: Figure, old: float, new: float) -> str:
    return f"{' / '.join(name)}: {_shown(name, old)} before, {_shown(name, new)} now"


def _shown(name: Figure, value: float) -> str:
    if name[-1] in COUNTS:
        return f"{value:,.0f}"
    return f"{value:.2f}" if name[-1] == "spearman" else f"{100 * value:.1f} %"
