"""A search by Optuna as options say it, and the request that a study keeps for workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.cli.buckets import span_of
from planner.cli.request import PRINTING_OPTIONS, SEARCHING_OPTIONS
from planner.cli.stopping import StoppableSearch
from planner.cli.streams import note
from planner.cli.termination import interruption
from planner.domain.request import Sourced, SpaceRequest
from planner.errors import ParameterError
from planner.search.refine import REFINED, Refined
from planner.search.refine import TRIALS as CHUNK_TRIALS
from planner.search.search import Searcher
from planner.sessions.inputs import Case
from planner.sessions.values import Values

if TYPE_CHECKING:
    from planner.search.optuna_search import OptunaSearch

__all__ = ["DEFAULT_TRIALS", "refined_by", "say_trials", "searcher_of", "values_of"]

DEFAULT_TRIALS = 200
_NOT_KEPT = PRINTING_OPTIONS | SEARCHING_OPTIONS | {"seed", "top", "choose", "epochs", "why_not", "sensitivity"}
"""Options that change no trial."""


def searcher_of(
    values: Values, cases: Sequence[Case], request_of: Callable[[Case, Values], SpaceRequest]
) -> OptunaSearch | None:
    """Return the search that ``--search optuna`` asks for; None: an exact one.

    Raises
    ------
    ParameterError
        What belongs to a search by Optuna is given without it; or there are several questions, as a study is of one.
    """
    if "search" not in values or values["search"].value == "exact":
        for name in ("trials", "study"):
            if name in values and not (name == "trials" and _tries_by_itself(values)):
                raise ParameterError(f"--{name}", "given with --search optuna", values[name].value)
        return None
    if "time_limit" in values:
        rule = "given with --search exact"
        raise ParameterError("--time-limit", rule, values["time_limit"].value, "give --trials")
    from planner.search.fingerprint import fingerprints  # noqa: PLC0415 - only this search needs it
    from planner.search.optuna_search import OptunaSearch  # noqa: PLC0415 - as above
    from planner.search.optuna_study import StudyPlace  # noqa: PLC0415 - as above

    if len(cases) > 1:
        rule = "of one network, framework and scenario, as a study is of one"
        raise ParameterError("--search optuna", rule, f"{len(cases)} of them", "run it once for each")
    return OptunaSearch(
        values["trials"].value if "trials" in values else DEFAULT_TRIALS,
        StudyPlace(values["study"].value if "study" in values else ""),
        values["seed"].value if "seed" in values else 0,
        fingerprints(cases[0].problem, request_of(cases[0], values)),
        {name: [_plain(one.value), one.source] for name, one in values.items() if name not in _NOT_KEPT},
        interruption=interruption,
    )


def refined_by(searcher: Searcher, values_of_plan: Mapping[str, str], values: Values) -> Refined:
    """Return a search whose leading plans have certain values of their own, layers of virtual stages by trials."""
    stopping = searcher.stopping if isinstance(searcher, StoppableSearch) else interruption
    trials = values["trials"].value if "trials" in values else CHUNK_TRIALS
    seed = values["seed"].value if "seed" in values else 0
    return Refined(values_of_plan, searcher, trials, seed, stopping)


def _tries_by_itself(values: Values) -> bool:
    """Tell whether an exact search has trials: of sizes of buckets, or of layers of virtual stages."""
    return span_of(values) is not None or ("stages" in values and REFINED["stages"] in values["stages"].value)


def say_trials(searcher: OptunaSearch | None) -> None:
    """Say how many trials a study had, and raise KeyboardInterrupt where the search was interrupted."""
    if searcher is None:
        return
    if searcher.place.where:
        note(f"study {searcher.place.shown}: {searcher.trials_before} trials before, {searcher.trials_here} more")
    if searcher.is_interrupted:
        goes_on = "the same command goes on" if searcher.place.where else "with --study FILE it could go on"
        note(f"the best of {searcher.trials_before + searcher.trials_here} trials; {goes_on}")
        raise KeyboardInterrupt


def values_of(options: Mapping[str, Any]) -> Values:
    """Return the values of options that a study keeps."""
    return {name: Sourced(_in_tuples(value), source) for name, (value, source) in options.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value


def _in_tuples(value: Any) -> Any:
    return tuple(_in_tuples(one) for one in value) if isinstance(value, list) else value
