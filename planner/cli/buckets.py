"""A size of gradient buckets that is chosen for the best plans: what asks for it, and where it cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.domain.buckets import strategy_and_sizes
from planner.domain.configuration import MODES
from planner.domain.request import Problem, SpaceRequest
from planner.domain.suggestion import Suggestion
from planner.errors import ParameterError
from planner.sessions.values import Values

if TYPE_CHECKING:
    from planner.search.bucket_sizes import SizedBuckets
    from planner.search.search import Searcher

__all__ = ["check_one_size", "sized_buckets", "span_of", "with_buckets"]


def span_of(values: Values) -> tuple[float, float] | None:
    """Return the sizes among which the best is wanted [byte]; None: no size is to be chosen."""
    sizes = strategy_and_sizes(values["strategy"].value)[1] if "strategy" in values else ()
    return (sizes[0], sizes[1]) if len(sizes) > 1 else None


def check_one_size(values: Values, what: str) -> None:
    """Refuse sizes to choose from where nothing is searched that they could be the best for."""
    if span_of(values):
        rule = f"of one size of buckets, as in bucketed:25MiB, with {what}"
        raise ParameterError("--strategy", rule, values["strategy"].value, "suggest alone finds the best size")


def sized_buckets(
    asked: Sequence[tuple[Problem, SpaceRequest]], values: Values, searcher: Searcher
) -> SizedBuckets | None:
    """Return the best size for a request; None: none is asked for, or no plan fits.

    Raises
    ------
    ParameterError
        There are several frameworks, or no synchronous plan, which alone has buckets; or the search is no exact one, or
        refines its plans.
    """
    span = span_of(values)
    if span is None:
        return None
    from planner.cli.stopping import StoppableSearch  # noqa: PLC0415 - few requests need it: commands start fast
    from planner.search.bucket_sizes import TRIALS, BucketTrials  # noqa: PLC0415 - likewise

    given = values["strategy"].value
    (problem, request), *others = asked
    if not isinstance(searcher, StoppableSearch):
        remedy = "leave out --search optuna, --stages best and --recompute per-stage"
        raise ParameterError("--strategy", "of one size of buckets where plans are not searched exactly", given, remedy)
    if others:
        rule = "of one size of buckets with several frameworks"
        raise ParameterError("--strategy", rule, given, "run it once for each")
    if MODES[0] not in request.modes:
        raise ParameterError("--strategy", "of one size of buckets where all plans are asynchronous", given)
    trials = values["trials"].value if "trials" in values else TRIALS
    seed = values["seed"].value if "seed" in values else 0
    return BucketTrials(problem, request, span, trials, searcher, searcher.stopping, seed).run()


def with_buckets(suggestion: Suggestion, sized: SizedBuckets) -> Suggestion:
    """Return an answer that says how the size was chosen."""
    from planner.search.ranking import SLACK  # noqa: PLC0415 - few requests need it: commands start fast

    search, tuned = suggestion.search, sized.tuned
    method = f"{search.method}; {tuned.method} for the size of buckets, {tuned.trials} trials"
    proven = sized.gap is not None and sized.gap <= SLACK and search.certified
    report = replace(search, method=method, certified=proven, gap=None if proven else sized.gap, tuned=(tuned,))
    return replace(suggestion, search=report)
