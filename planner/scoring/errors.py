"""Relative errors of predictions, their summaries, and how well predictions order plans.

p: predicted (n,); v: measured (n,); e = p / v - 1 (n,). Rows count where p is finite and v finite and above 0: anything
else is a row without a prediction or without a value.

Sums and quantiles of rows by group, all groups at once, and leaving groups out in turn.

What is predicted takes no part in the fit that predicts it.

k: groups, numbered 0 ... k - 1; code (n,): the group of every row; sizes (k,): its rows.

Which term explains what predictions miss: one term scaled at a time.

p: predicted times (n,), v: measured (n,), x: exposed time of each term over v (n, t), e = p / v - 1 (n,).

With term j scaled by 1 + d the error of row i is e_i + d·x_ij. The scale minimises

    sum over i of (e_i + d·x_ij)^2 + (mean of e^2 / PRIOR_DEVIATION^2)·d^2,    SCALE_RANGE[0] <= 1 + d <= SCALE_RANGE[1]

a parabola in d, solved exactly. The second part is the prior that a term is right within PRIOR_DEVIATION: few rows, or
a small share, cannot ask for a large scale. The error that is reported with it is that of each row with the scale that
all others ask for, so that no row explains itself. A term may stand in for another with which it grows: the scale is a
hint where to look, not a coefficient.

How well predictions order the plans of a group, whatever their errors.

Plans are taken in the order a search would offer them: those predicted to fit memory first, then by predicted time.
Times equal to about 9 significant digits are ties, as in a search, so that rounding noise never decides; among tied
plans chance decides, and every figure is its exact expectation: it does not depend on the order of rows. All groups
are worked out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.runs import ORDERS, ErrorSummary, GroupRanking, Growth, OrderRanking, RankingSummary, TermScale


def numbered(groups: Sequence[str], mask: BoolArray) -> tuple[list[str], IntArray]:
    """Return the names of the groups of the masked rows, sorted (k), and the group of every masked row (m,)."""
    names, code = np.unique(np.asarray(groups, dtype=np.str_)[mask], return_inverse=True)
    return names.tolist(), code.astype(np.int64)


def means(values: FloatArray, code: IntArray, count: int) -> FloatArray:
    """Return the mean of every group (k,); NaN where it has no row."""
    sizes = np.bincount(code, minlength=count)
    sums = np.bincount(code, weights=values, minlength=count)
    result = np.full(count, np.nan)
    np.divide(sums, sizes, out=result, where=sizes > 0)
    return result


def quantiles(values: FloatArray, code: IntArray, count: int, level: float) -> FloatArray:
    """Return the quantile of every group (k,), linear between its sorted values; NaN where it has no row."""
    result = np.full(count, np.nan)
    if values.size:
        in_order = values[np.lexsort((values, code))]
        sizes = np.bincount(code, minlength=count)
        some = sizes > 0
        first = (np.cumsum(sizes) - sizes)[some]
        place = level * (sizes[some] - 1)
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, sizes[some] - 1)
        low, high = in_order[first + below], in_order[first + above]
        result[some] = low + (place - below) * (high - low)
    return result


def runs(*columns: IntArray | FloatArray | BoolArray) -> IntArray:
    """Return the number of the run of equal rows, counted from 0, that every row of sorted columns (n,) belongs to."""
    new = np.zeros(columns[0].size, dtype=np.bool_)
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.cumsum(new, dtype=np.int64)


def average_ranks(values: FloatArray, code: IntArray) -> FloatArray:
    """Return the rank (n,) of every row among the rows of its group, from 1; equal values share their mean rank."""
    order = np.lexsort((values, code))
    by_value = runs(code[order], values[order])
    first = np.searchsorted(code[order], code[order])  # position where the group starts
    position = (np.arange(values.size) - first + 1).astype(np.float64)
    ranks = np.empty(values.size)
    ranks[order] = means(position, by_value, int(by_value[-1]) + 1 if by_value.size else 0)[by_value]
    return ranks


HOLD_OUTS = ("network", "gpu", "cluster", "source")
"""Properties of a run whose values can be left out in turn."""


class Split(NamedTuple):
    """Rows to fit on and rows to predict, bool (n,); no row is in both, and ``name`` is in none of ``fit``."""

    name: str
    fit: BoolArray
    test: BoolArray


def splits(groups: Sequence[str], mask: BoolArray | None = None) -> Iterator[Split]:
    """Yield one split for every group of the masked rows, by name; every masked row is tested once.

    Of a single group nothing remains to fit on: ``fit`` is then False everywhere.

    ``groups``: sequence of str, n, the value of the property that is left out; ``mask``: ndarray of bool, shape (n,),
    rows that take part at all.
    """
    use = np.ones(len(groups), dtype=np.bool_) if mask is None else mask
    names, code = numbered(groups, use)
    number = np.full(len(groups), -1, dtype=np.int64)
    number[use] = code
    for position, name in enumerate(names):
        test = number == position
        yield Split(name, use & ~test, test)


class Figures(NamedTuple):
    """What is compared, arrays of shape (n,) in one unit a row; NaN where there is none."""

    predicted: FloatArray
    measured: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


def comparable(predicted: FloatArray, measured: FloatArray) -> BoolArray:
    """Return where there is both a prediction and a measured value above 0, shape (n,)."""
    return np.isfinite(predicted) & np.isfinite(measured) & (measured > 0)


def relative_errors(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return e = predicted / measured - 1, shape (n,); NaN where the two cannot be compared."""
    result = np.full(predicted.shape, np.nan)
    np.divide(predicted, measured, out=result, where=comparable(predicted, measured))
    return result - 1


def summarise(figures: Figures, mask: BoolArray | None = None) -> ErrorSummary:
    """Return the summary of the masked rows that can be compared; of none, n = 0 and figures None."""
    of_all = summaries_by([""] * figures.predicted.size, figures, mask)
    return of_all.get("", ErrorSummary(0))


def summaries_by(groups: Sequence[str], figures: Figures, mask: BoolArray | None = None) -> dict[str, ErrorSummary]:
    """Return the summary of every group that has a row, by name, sorted.

    ``groups``: sequence of str, n; ``figures``: Figures of shape (n,); ``mask``: ndarray of bool, shape (n,), rows that
    may count.
    """
    errors = relative_errors(figures.predicted, figures.measured)
    use = np.isfinite(errors) if mask is None else mask & np.isfinite(errors)
    names, code = numbered(groups, use)
    count = len(names)
    sizes = np.bincount(code, minlength=count)
    e, ape = errors[use], np.abs(errors[use])
    coverage = np.full(count, np.nan)
    if figures.low is not None and figures.high is not None:
        low, high, measured = figures.low[use], figures.high[use], figures.measured[use]
        has = ~(np.isnan(low) | np.isnan(high))
        inside = (low <= measured) & (measured <= high)
        coverage = means(inside[has].astype(np.float64), code[has], count)
    median, upper = (quantiles(ape, code, count, level) for level in (0.5, 0.9))
    columns = (means(ape, code, count), median, upper, means(e, code, count), coverage)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {
        name: ErrorSummary(int(size), *(None if np.isnan(figure) else figure for figure in row))
        for name, size, row in zip(names, sizes, rows, strict=True)
    }


PRIOR_DEVIATION = 0.5
SCALE_RANGE = (0.25, 4.0)
LEAST_GAIN = 0.1
"""A term explains something if it takes away at least this share of the mean error."""


def explaining_terms(
    terms: Sequence[str],
    exposed_s: FloatArray,
    predicted_s: FloatArray,
    measured_s: FloatArray,
    mask: BoolArray | None = None,
) -> tuple[TermScale, ...]:
    """Return the terms whose scale takes away at least LEAST_GAIN of the mean error, best first; often none.

    Parameters
    ----------
    terms : sequence of str, t
    exposed_s : ndarray of shape (n, t); what each term adds to the predicted time; 0 where a row has no such term
    predicted_s, measured_s : ndarray of shape (n,)
    mask : ndarray of bool, shape (n,); rows that may count; of them those count that have both times
    """
    use = comparable(predicted_s, measured_s)
    use &= True if mask is None else mask
    if not use.any() or not terms:
        return ()
    x = exposed_s[use] / measured_s[use, None]
    e = (predicted_s[use] / measured_s[use] - 1)[:, None]
    slope, curve = -(e * x).sum(axis=0), (x * x).sum(axis=0)
    prior = float(np.mean(e * e)) / PRIOR_DEVIATION**2
    change = _bounded(slope, curve + prior)
    others = _bounded(slope + e * x, np.maximum(curve - x * x, 0) + prior)
    before, after = float(np.abs(e).mean()), np.abs(e + others * x).mean(axis=0)
    scales = [
        TermScale(name, 1 + d, int(use.sum()), before, error)
        for name, d, error in zip(terms, change.tolist(), after.tolist(), strict=True)
        if error < (1 - LEAST_GAIN) * before
    ]
    return tuple(sorted(scales, key=lambda one: (one.scaled_mape, one.term)))


FEWEST_GROUPS = 3
"""Groups along an axis from which on errors are said to grow along it."""


def growths(
    axes: Mapping[str, IntArray],
    groups: Sequence[str],
    shares: Mapping[str, FloatArray],
    times_s: tuple[FloatArray, FloatArray],
    mask: BoolArray,
) -> tuple[Growth, ...]:
    """Return the axes along which errors grow within groups, the steepest first; often none.

    Of log(predicted / measured) and of each term's share the slopes by log2 of the axis, both less the means of groups.
    An axis is named where the slope that other groups ask for takes LEAST_GAIN from the errors of each.

    Parameters
    ----------
    axes : mapping of name to ndarray of int, shape (n,); 0: not known
    groups : sequence of str, n
    shares : mapping of term to ndarray of float, shape (n,), its share of the predicted time
    times_s : predicted and measured, ndarray of float, shape (n,)
    mask : ndarray of bool, shape (n,)
    """
    use, found = comparable(*times_s) & mask, list[Growth]()
    for name, values in axes.items():
        rows = use & (values > 0)
        names, code = numbered(groups, rows)

        def centred(of: FloatArray, code: IntArray = code, count: int = len(names)) -> FloatArray:
            return of - means(of, code, count)[code]

        x = centred(np.log2(values[rows]))
        e = centred(np.log(times_s[0][rows] / times_s[1][rows]))
        spread, product = (np.bincount(code, weights=one, minlength=len(names)) for one in (x * x, x * e))
        several = spread > 0
        if several.sum() < FEWEST_GROUPS:
            continue
        others = (product.sum() - product) / np.maximum(spread.sum() - spread, 1e-300)
        varies = several[code]
        before, after = (float(np.abs(one[varies]).mean()) for one in (e, e - others[code] * x))
        if after < (1 - LEAST_GAIN) * before:
            grown = {term: float((x * centred(share[rows])).sum()) for term, share in shares.items()}
            term = max((term for term in grown if grown[term] > 0), key=grown.__getitem__, default="")
            slope = float(product.sum() / spread.sum())
            found.append(Growth(name, slope, term, int(varies.sum()), int(several.sum())))
    return tuple(sorted(found, key=lambda one: -abs(one.slope)))


def _bounded(slope: FloatArray, curve: FloatArray) -> FloatArray:
    """Return the change of scale that minimises curve·d^2 / 2 - slope·d within SCALE_RANGE; 0 where nothing asks."""
    change = np.divide(slope, curve, out=np.zeros_like(slope), where=curve > 0)
    return np.clip(change, SCALE_RANGE[0] - 1, SCALE_RANGE[1] - 1)


TIME_METRICS = ("iteration_s", "update_s", "epoch_s")
RATE_METRICS = ("samples_per_s",)
DIGITS = 9
BEST_OF = 3
FEWEST_PLANS = 5
"""Of a group whose ranking tells more than a coin does."""
OURS, _CHANCE, _FEWEST, _MOST = ORDERS
RULES: Mapping[str, Callable[[IntArray], FloatArray]] = {
    _CHANCE: lambda nodes: np.ones(nodes.size),
    _FEWEST: lambda nodes: np.maximum(nodes, 1).astype(np.float64),
    _MOST: lambda nodes: 1.0 / np.maximum(nodes, 1),
}
"""Rule -> what stands for a predicted time on so many nodes (n,); ties are broken by chance, exactly."""


class Outcomes(NamedTuple):
    """Plans, predicted and tried, arrays of shape (n,); times are NaN where there is none."""

    predicted_s: FloatArray
    measured_s: FloatArray
    called_out_of_memory: BoolArray
    ran_out_of_memory: BoolArray

    def take(self, rows: IntArray | BoolArray) -> Outcomes:
        """Return some of the rows."""
        return Outcomes._make(column[rows] for column in self)


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
    groups : sequence of str, n; empty: a row of no group. Rows of one group must have one metric
    outcomes : Outcomes of shape (n,)
    mask : ndarray of bool, shape (n,); rows that may count
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
    nodes : ndarray of int, shape (n,); that each row ran on
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
    """Return the expected least measured time (k,) among the first ``picks`` rows of every group."""
    # Where the last pick falls into a block of t tied rows of which s can still be picked, the row with l slower ones
    # in the block is the least of a random subset with probability C(l, s - 1) / C(t, s).
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
