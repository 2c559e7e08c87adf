"""How well predictions order the plans of a group, whatever their errors.

Plans are taken in the order a search would offer them: those predicted to fit memory first, then by predicted time.
Times equal to about 9 significant digits are ties, as in a search, so that rounding noise never decides; among tied
plans chance decides, and every figure is its exact expectation: it does not depend on the order of rows. All groups
are worked out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.validation import ORDERS, GroupRanking, OrderRanking, RankingSummary
from planner.scoring.errors import average_ranks, means, numbered, runs

__all__ = [
    "FEWEST_PLANS", "OURS", "RULES", "Outcomes", "as_times", "rank_by_rules", "rank_groups", "summarise_ranking",
]  # fmt: skip

TIME_METRICS = ("iteration_s", "update_s", "epoch_s")
RATE_METRICS = ("samples_per_s",)
DIGITS = 9
BEST_OF = 3
FEWEST_PLANS = 5
"""Of a group whose ranking tells more than a coin does."""
OURS, *_RULES = ORDERS
RULES: Mapping[str, Callable[[IntArray], FloatArray]] = dict(
    zip(
        _RULES,
        (
            lambda nodes: np.ones(nodes.size),
            lambda nodes: np.maximum(nodes, 1).astype(np.float64),
            lambda nodes: 1.0 / np.maximum(nodes, 1),
        ),
        strict=True,
    )
)
"""Rule -> what stands for a predicted time on so many nodes (n,); ties are broken by chance, exactly."""


class Outcomes(NamedTuple):
    """Plans, predicted and tried, arrays of shape (n,); times are NaN where there is none."""

    predicted_s: FloatArray
    measured_s: FloatArray
    called_out_of_memory: BoolArray
    ran_out_of_memory: BoolArray

    def take(self, rows: IntArray | BoolArray) -> Outcomes:
        """Return some of the rows."""
        return Outcomes(
            self.predicted_s[rows],
            self.measured_s[rows],
            self.called_out_of_memory[rows],
            self.ran_out_of_memory[rows],
        )


def as_times(values: FloatArray, metrics: Sequence[str]) -> FloatArray:
    """Return values (n,) as something of which less is better: times stay, rates x become 1 / x.

    Values of other metrics, which are no goals, and those that are not above 0 become NaN.
    """
    metric = np.asarray(metrics, dtype=np.str_)
    result = np.full(values.shape, np.nan)
    positive = np.isfinite(values) & (values > 0)
    np.copyto(result, values, where=positive & np.isin(metric, TIME_METRICS))
    np.divide(1.0, values, out=result, where=positive & np.isin(metric, RATE_METRICS))
    return result


def rank_groups(groups: Sequence[str], outcomes: Outcomes, mask: BoolArray | None = None) -> tuple[GroupRanking, ...]:
    """Return how well each group was ordered, by name.

    A row counts where it has a predicted time and either a measured one or ran out of memory; a group where at least
    two such rows ran. ``top1`` and ``chose_out_of_memory`` look at the first of all rows; Spearman's correlation and
    regrets at those that ran. Spearman is 0 where all predicted times are equal, None where all measured ones are.

    Parameters
    ----------
    groups : sequence of str, n
        Empty: a row of no group. Rows of one group must have one metric.
    outcomes : Outcomes of shape (n,)
    mask : ndarray of bool, shape (n,), optional
        Rows that may count.
    """
    positive = np.isfinite(outcomes.predicted_s) & (outcomes.predicted_s > 0)
    has_run = np.isfinite(outcomes.measured_s) & (outcomes.measured_s > 0) & ~outcomes.ran_out_of_memory
    use = positive & (has_run | outcomes.ran_out_of_memory) & (np.asarray(groups, dtype=np.str_) != "")
    use &= True if mask is None else mask
    names, code = numbered(groups, use)
    large = np.bincount(code[has_run[use]], minlength=len(names)) >= 2
    use[use] = large[code]
    names, code = numbered(groups, use)
    if not names:
        return ()
    plans, has_run = outcomes.take(use), has_run[use]
    top1, chose = _first_choice(code, plans, len(names))
    code, plans = code[has_run], plans.take(has_run)
    least = _expected_least(code, plans, 10**9, len(names))
    columns = (
        np.bincount(code),
        _spearman(code, _digits(plans.predicted_s), _digits(plans.measured_s), len(names)),
        top1,
        _expected_least(code, plans, 1, len(names)) / least - 1,
        _expected_least(code, plans, BEST_OF, len(names)) / least - 1,
        chose,
    )
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return tuple(
        GroupRanking(name, n, None if np.isnan(spearman) else spearman, *rest) for name, n, spearman, *rest in rows
    )


def summarise_ranking(groups: Sequence[GroupRanking]) -> RankingSummary:
    """Return means over groups, one weight a group, and the worst regrets; of none, figures None."""
    if not groups:
        return RankingSummary(0)
    correlations = [group.spearman for group in groups if group.spearman is not None]
    regret = np.array([group.regret for group in groups])
    best3 = np.array([group.regret_best3 for group in groups])
    return RankingSummary(
        groups=len(groups),
        spearman=float(np.mean(correlations)) if correlations else None,
        top1=float(np.mean([group.top1 for group in groups])),
        regret_mean=float(regret.mean()),
        regret_max=float(regret.max()),
        regret_best3=float(best3.mean()),
        regret_best3_max=float(best3.max()),
        chose_out_of_memory=float(np.mean([group.chose_out_of_memory for group in groups])),
    )


def rank_by_rules(
    groups: Sequence[str], outcomes: Outcomes, nodes: IntArray, mask: BoolArray
) -> tuple[OrderRanking, ...]:
    """Return how well predictions, chance and each rule order the same groups, large ones apart from small ones.

    Parameters
    ----------
    groups, outcomes, mask :
        As of :func:`rank_groups`.
    nodes : ndarray of int, shape (n,)
        That each row ran on.
    """
    use = mask & np.isfinite(outcomes.predicted_s)
    no_call = np.zeros(nodes.size, dtype=np.bool_)
    by_order = {OURS: rank_groups(groups, outcomes, use)}
    for name, rule in RULES.items():  # which knows no memory
        ruled = outcomes._replace(predicted_s=rule(nodes), called_out_of_memory=no_call)
        by_order[name] = rank_groups(groups, ruled, use)
    sizes = {
        f"{FEWEST_PLANS} or more": range(FEWEST_PLANS, nodes.size + 1),
        f"2 to {FEWEST_PLANS - 1}": range(FEWEST_PLANS),
    }
    found = (
        OrderRanking(order, plans, summarise_ranking([one for one in some if one.n in size]))
        for plans, size in sizes.items()
        for order, some in by_order.items()
    )
    return tuple(one for one in found if one.figures.groups)


def _digits(times: FloatArray) -> FloatArray:
    """Return logarithms of times (n,), equal where times agree to about DIGITS digits."""
    return np.asarray(np.log(times).round(DIGITS), dtype=np.float64)


def _spearman(code: IntArray, predicted: FloatArray, measured: FloatArray, count: int) -> FloatArray:
    """Return Pearson's correlation of average ranks by group (k,); NaN where all measured values are equal."""
    p, v = average_ranks(predicted, code), average_ranks(measured, code)
    p, v = p - means(p, code, count)[code], v - means(v, code, count)[code]
    both, of_p, of_v = (np.bincount(code, weights=w, minlength=count) for w in (p * v, p * p, v * v))
    result = np.where(of_v > 0, 0.0, np.nan)
    np.divide(both, np.sqrt(of_p * of_v), out=result, where=(of_p > 0) & (of_v > 0))
    return np.clip(result, -1.0, 1.0)


def _first_choice(code: IntArray, rows: Outcomes, count: int) -> tuple[FloatArray, FloatArray]:
    """Return the probabilities (k,) that the first choice is the fastest that ran, and that it ran out of memory."""
    out = rows.ran_out_of_memory
    value = np.full(code.size, np.inf)
    value[~out] = _digits(rows.measured_s[~out])
    best = np.full(count, np.inf)
    np.minimum.at(best, code, value)
    key = _digits(rows.predicted_s)
    order = np.lexsort((key, rows.called_out_of_memory, code))
    block = runs(code[order], rows.called_out_of_memory[order], key[order])
    first = order[block == block[np.searchsorted(code[order], code[order])]]
    hit = (value == best[code]).astype(np.float64)
    return means(hit[first], code[first], count), means(out[first].astype(np.float64), code[first], count)


def _expected_least(code: IntArray, rows: Outcomes, picks: int, count: int) -> FloatArray:
    """Return the expected least measured time (k,) among the first ``picks`` rows of every group.

    Where the last pick falls into a block of t tied rows of which s can still be picked, the row with l slower ones in
    the block is the least of a random subset with probability C(l, s - 1) / C(t, s).
    """
    key = _digits(rows.predicted_s)
    order = np.lexsort((rows.measured_s, key, rows.called_out_of_memory, code))
    group, time = code[order], rows.measured_s[order]
    block = runs(group, rows.called_out_of_memory[order], key[order])
    position, block_start = np.arange(group.size), np.searchsorted(block, block)
    slots = picks - (block_start - np.searchsorted(group, group))
    size = np.bincount(block)[block]
    sure = size <= slots
    least = np.full(count, np.inf)
    np.minimum.at(least, group[sure], time[sure])
    is_chance = (slots > 0) & ~sure
    group, time, slots, size = group[is_chance], time[is_chance], slots[is_chance], size[is_chance]
    slower = size - 1 - (position - block_start)[is_chance]
    chance = _choose(slower, slots - 1) / _choose(size, slots)
    by_chance = np.bincount(group, weights=chance * np.minimum(time, least[group]), minlength=count)
    return np.where(np.bincount(group, minlength=count) > 0, by_chance, least)


def _choose(n: IntArray, k: IntArray) -> FloatArray:
    """Return binomial coefficients C(n, k), shape (n,), for 0 <= k <= BEST_OF."""
    result = np.ones(n.size)
    for i in range(BEST_OF):
        result = np.where(i < k, result * (n - i) / (i + 1), result)
    return result
